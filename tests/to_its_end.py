"""Run a script of the workbook as `python script.py` does, and tell where it listens, and if it leaves Gloo's threads.

    python tests/to_its_end.py notebooks/scripts/ddp_by_hand.py

Such a thread lets go of a collective's tensors some time after the collective is done. For that it takes Python's lock,
and up to Python 3.13 a thread that asks for the lock of an interpreter which is being taken apart is ended on the spot:
in the middle of C++, "terminate called without an active exception". The program dies of SIGABRT after its work is
done, on a busy machine and seldom. That a thread is left can be seen every time.

As the script leaves its process group, the addresses that it listens at are told on stderr (Linux).
"""

import atexit
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
        seen = (c for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN)
        print(LISTENS, *sorted({c.laddr.ip for c in seen}), file=sys.stderr, flush=True)
        destroy(*args, **kwargs)

    dist.destroy_process_group = told


if __name__ == "__main__":
    atexit.register(tell)  # the first one in, and so the last one out
    if sys.platform.startswith("linux"):
        watch()
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
