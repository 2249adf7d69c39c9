"""Be a script of the workbook as `python script.py` is, and tell where it listens, and if it leaves Gloo's threads.

Such a thread lets go of a collective's tensors some time after the collective is done. For that it takes Python's lock,
and up to Python 3.13 a thread that asks for the lock of an interpreter which is being taken apart is ended on the spot:
in the middle of C++, "terminate called without an active exception". The program dies of SIGABRT after its work is
done, on a busy machine and seldom. That a thread is left can be seen every time.

As the script leaves its process group, the addresses that it listens at are told on stderr (Linux).
"""

import atexit
import faulthandler
import os
import runpy
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

from labkit.rank import gloo

LEFT = 70  # the exit code where a thread is left
LISTENS = "listens at:"  # how the line begins


def become(words: Sequence[str], env: Mapping[str, str], folder: str, out: str, err: str) -> None:
    """In a process that was just forked: run `python script.py ...` in this environment and folder, to its end."""
    for number, path in ((1, out), (2, err)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, number)
        os.close(file)
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    faulthandler.enable()
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    torch.set_num_threads(int(env.get("OMP_NUM_THREADS", 0)) or torch.get_num_threads())
    if sys.platform.startswith("linux"):
        watch()
    sys.argv = list(words)
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as leaving:
        if leaving.code:
            raise
    threading._shutdown()  # type: ignore[attr-defined]  # as Python does at its end, and a forked process does not
    atexit._run_exitfuncs()
    tell()


def tell() -> None:
    """End at once, with an exit code of its own, where a thread is left."""
    if left := gloo.threads():
        print(f"{len(left)} threads of Gloo are left as Python ends: nobody has waited for them.", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(LEFT)


def watch() -> None:
    """Have `destroy_process_group` tell the addresses first."""
    destroy = dist.destroy_process_group

    def told(*args: Any, **kwargs: Any) -> None:
        seen = (c for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN)
        print(LISTENS, *sorted({c.laddr.ip for c in seen}), file=sys.stderr, flush=True)
        destroy(*args, **kwargs)

    dist.destroy_process_group = told
