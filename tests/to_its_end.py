"""Run a script of the workbook on each of n ranks, and tell where it listens, and if it leaves Gloo's threads.

    python tests/to_its_end.py 3 /tmp/said notebooks/scripts/ddp_by_hand.py

A rank runs the script and ends as `python script.py` does, but torch is imported once, before the ranks are forked: it
takes two seconds of a processor. Rank r writes into `out-r` and `err-r` of the folder; into `code-r` goes how it ended,
an exit code or the negative number of a signal.

A thread of Gloo lets go of a collective's tensors some time after the collective is done. For that it takes Python's
lock, and up to Python 3.13 a thread that asks for the lock of an interpreter which is being taken apart is ended on the
spot: in the middle of C++, "terminate called without an active exception". The program dies of SIGABRT after its work
is done, on a busy machine and seldom. That a thread is left can be seen every time.

As the script leaves its process group, the addresses that it listens at are told on stderr (Linux).
"""

import atexit
import importlib
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import psutil

from labkit.rank import gloo

LEFT = 70  # the exit code where a thread is left
LISTENS = "listens at:"  # how the line begins


def tell() -> None:
    """End at once, with an exit code of its own, where a thread is left."""
    if left := gloo.threads():
        print(f"{len(left)} threads of Gloo are left as Python ends: nobody has waited for them.", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(LEFT)


def watch() -> None:
    """Have `destroy_process_group` tell the addresses first."""
    import torch.distributed as dist

    destroy = dist.destroy_process_group

    def told(*args: Any, **kwargs: Any) -> None:
        every = psutil.net_connections("inet")  # a process's own has another name in psutil 5
        seen = (c for c in every if c.pid == os.getpid() and c.status == psutil.CONN_LISTEN)
        print(LISTENS, *sorted({c.laddr.ip for c in seen}), file=sys.stderr, flush=True)
        destroy(*args, **kwargs)

    dist.destroy_process_group = told


def fork(ranks: int, folder: Path, program: Path) -> None:
    """Return in each of the ranks; the process that forks them ends here, when they have ended."""
    importlib.import_module("torch.distributed")
    if "torch.optim" in program.read_text(encoding="utf-8"):
        importlib.import_module("torch._dynamo")  # which the first optimizer of a process does
    forked = {}
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            os.environ["RANK"] = str(rank)
            for name, number in (("out", 1), ("err", 2)):
                os.dup2(os.open(folder / f"{name}-{rank}", os.O_WRONLY | os.O_CREAT, 0o600), number)
            return
        forked[pid] = rank
    while forked:
        pid, status = os.wait()
        (folder / f"code-{forked.pop(pid)}").write_text(str(os.waitstatus_to_exitcode(status)))
    sys.exit()


if __name__ == "__main__":
    fork(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
    atexit.register(tell)  # the first one in, and so the last one out
    if sys.platform.startswith("linux"):
        watch()
    sys.argv = sys.argv[3:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
