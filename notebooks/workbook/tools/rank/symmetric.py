"""Symmetric memory: a buffer and flags on every rank that the kernels of all ranks can reach by their addresses.

    memory = open_symmetric(8)                       # eight numbers on every rank
    memory.fill(x)                                   # into this rank's buffer
    kernel[(1,)](memory.buffers, memory.flags, …)    # tables of addresses, index = rank

On GPUs it is torch's own (`torch.distributed._symmetric_memory`). CPU ranks of one host map the same file
(`workbook.tools.rank.shared`), and their kernels run in Triton's interpreter, which `workbook.tools.rank.interpreter`
watches: who read and wrote what, and which flags ordered it.
"""

from __future__ import annotations

import importlib
import importlib.util
import shlex
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from IPython.core.getipython import get_ipython
from numpy.lib import NumpyVersion
from torch import Tensor

from labkit.floor.errors import LabError
from labkit.floor.words import count
from workbook.tools.rank.shared import open_room

PAD = 4096  # bytes of flags on a CPU rank: 128 programs of 8 ranks
FLAG = torch.int32


class Symmetric:
    """What `open_symmetric` returns: `mine` is this rank's buffer, `buffers` and `flags` are tables of addresses.

    Entry r of a table is where rank r's buffer begins, or its flags: whole numbers of 32 bits, all 0. A kernel gets the
    tables, and not `mine`: `tl.load(memory.buffers + r)` is the address. There are flags for 128 programs on 8 ranks.
    """

    def __init__(self, mine: Tensor, buffers: Tensor, flags: Tensor) -> None:
        self.mine, self.buffers, self.flags = mine, buffers, flags
        self.seen: Any = None  # a workbook.tools.rank.interpreter.Seen, on CPUs

    def fill(self, x: Tensor) -> None:
        """Copy x into the beginning of this rank's buffer. Raises `LabError` where it does not fit."""
        if x.numel() > len(self.mine) or x.dtype != self.mine.dtype:
            raise LabError(
                f"x has {count(x.numel(), 'number')} of {x.dtype}, and a buffer {len(self.mine)} of {self.mine.dtype}. "
                "Open a larger memory, of x's dtype: open_symmetric(len(x), x.dtype)."
            )
        if self.seen:
            self.seen.filled(x.numel())
        self.mine[: x.numel()].copy_(x.flatten())

    def told(self) -> dict[str, Any]:
        """Return what this rank's kernels read and wrote in the last cell, as `lab.moves` draws it."""
        if not self.seen:
            raise LabError("What a kernel does on a GPU is not seen. Run it on CPU ranks: start(4, backend='gloo').")
        return self.seen.told()

    def __repr__(self) -> str:
        return f"symmetric memory: {count(len(self.mine), 'number')} of {self.mine.dtype} on each rank, and flags"


def open_symmetric(size: int, dtype: torch.dtype = torch.float32) -> Symmetric:
    """Open symmetric memory of `size` numbers on every rank, all 0; every rank calls this.

    >>> memory = open_symmetric(4)
    >>> memory.mine
    tensor([0., 0., 0., 0.])

    Raises `LabError` where Triton is not installed, where CPU ranks are on several hosts, and where the GPUs cannot
    reach each other's memory.
    """
    if not isinstance(size, int) or size < 1:
        raise LabError(f"A buffer has at least one number, not {size!r}. Write open_symmetric(4).")
    need_triton()
    return _on_gpus(size, dtype) if _have_gpus() else _on_cpus(size, dtype)


def _have_gpus() -> bool:
    return "nccl" in dist.get_backend_config()


def need_triton() -> None:
    """Have Triton ready for kernels, and watched where this rank has no GPU. Raises `LabError` where it is missing."""
    importlib.invalidate_caches()  # it may have been installed since this process began
    if importlib.util.find_spec("triton") is None:
        raise LabError(
            "This lesson writes kernels in Triton, which is not installed (200 MB to download, 700 MB on disk). In a "
            f"terminal: {_pip()}; then run this cell again."
        )
    if not _have_gpus():
        version = metadata.version("triton")
        if NumpyVersion(version) < "3.7.0" and NumpyVersion(np.__version__) >= "2.4.0":
            raise LabError(
                f"The interpreter of Triton {version} does not know numpy {np.__version__}. In a terminal: "
                f"{_pip('triton>=3.7,<4')}; then run lab = start() again."
            )
        importlib.import_module("workbook.tools.rank.interpreter").install()


def _pip(newest: str = "") -> str:
    """Return the command that installs Triton for this Python: a clone's own version, or one of these."""
    pins = Path(__file__).resolve().parents[4] / "constraints.txt"
    what = f"-c {shlex.quote(str(pins))} triton" if pins.is_file() and not newest else f"'{newest or 'triton>=3.4,<4'}'"
    return f"{shlex.quote(sys.executable)} -m pip install {what}"


def _on_cpus(size: int, dtype: torch.dtype) -> Symmetric:
    from workbook.tools.rank import interpreter

    nbytes = size * dtype.itemsize
    room = open_room(PAD + nbytes)
    pads, buffers = ([slot[a:b] for slot in room.slots] for a, b in ((0, PAD), (PAD, PAD + nbytes)))
    memory = Symmetric(buffers[dist.get_rank()].view(dtype), _addresses(buffers), _addresses(pads))
    memory.seen = interpreter.Seen(room, [b.view(dtype) for b in buffers], [p.view(FLAG) for p in pads], memory)
    shell = get_ipython()
    if shell is not None and interpreter.begin not in shell.events.callbacks["pre_run_cell"]:
        shell.events.register("pre_run_cell", interpreter.begin)
    return memory


def _on_gpus(size: int, dtype: torch.dtype) -> Symmetric:
    import torch.distributed._symmetric_memory as symm_mem

    device = torch.device("cuda", torch.cuda.current_device())
    try:
        mine = symm_mem.empty(size, dtype=dtype, device=device)
        handle = symm_mem.rendezvous(mine, dist.group.WORLD)  # type: ignore[arg-type]  # there is one
    except RuntimeError as error:
        raise LabError(
            f"These GPUs give no symmetric memory to all ranks: {str(error).splitlines()[0]}. Run the lesson on CPU "
            "ranks instead: lab = start(4, backend='gloo')."
        ) from error
    # torch hands out memory again that it had before, with the numbers and the flags that are left in it.
    mine.zero_()
    handle.get_signal_pad(dist.get_rank(), dtype=FLAG).zero_()
    buffers = [address + getattr(handle, "offset", 0) for address in handle.buffer_ptrs]
    dist.barrier()
    return Symmetric(mine, *(torch.tensor(found, device=device) for found in (buffers, handle.signal_pad_ptrs)))


def _addresses(tensors: list[Tensor]) -> Tensor:
    return torch.tensor([t.data_ptr() for t in tensors])
