"""MPI's all-reduce beside the lab's: ranks of its own on this host, which sleep until it is their turn; and `%%mpi`.

The lab's ranks were not started by mpiexec and cannot become MPI's. These live as long as one race, or one cell: they
end with the process that asks them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from labkit.floor import time_limits
from labkit.floor.errors import LabError
from labkit.floor.words import ranks
from labkit.outcome.text import merge
from workbook.tools.child_command import end, tied

MPI_TURN = 30.0  # seconds that one turn, or one cell, of MPI's own ranks may take
MPIEXEC = "mpiexec.gforker"  # mpich's; its other mpiexec listens on all of the host's addresses
SHARED = {
    "UCX_TLS": "self,sm",  # shared memory alone: else each rank listens on the host's own address
    "UCX_LOG_FILE": "stderr",  # its warnings, as in a container without /sys, would stand among the ranks' answers
}


def missing() -> str:
    """Return why there is no MPI here; empty where there is."""
    if importlib.util.find_spec("mpi4py") is None or not _mpiexec().exists():
        return "MPI is not installed (the packages mpi4py and mpich)."
    return ""


class Mpi:
    """`n` MPI ranks on this host.

    >>> with Mpi(2) as mpi:
    ...     mpi.turn(nbytes=2**20, repeat=3, calls=0, lasts=0.012)["samples"]  # seconds, [repetition][rank]
    """

    def __init__(self, n: int) -> None:
        pipes = [os.pipe() for _ in range(n)]
        reads, self._orders = [r for r, _ in pipes], [w for _, w in pipes]
        try:
            self._popen = subprocess.Popen(
                [*launcher(n), sys.executable, "-m", "workbook.tools.rank.mpi", ",".join(map(str, reads))],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=_environment(),
                pass_fds=reads,
                start_new_session=True,  # Stop is for the kernel
            )
        finally:
            for read in reads:
                os.close(read)

    def turn(self, **order: Any) -> dict[str, Any]:
        """Let the ranks measure; return what they did. Raises `LabError` where they do not answer."""
        line = (json.dumps(order) + "\n").encode()
        out = self._popen.stdout
        assert out
        with contextlib.suppress(BrokenPipeError):
            for pipe in self._orders:
                os.write(pipe, line)
        if not select.select([out], [], [], MPI_TURN)[0]:
            raise LabError(f"MPI's ranks did not answer within {MPI_TURN:.0f} s")
        answer = out.readline()
        if not answer:
            raise LabError(f"MPI's ranks ended with exit code {self._popen.wait()}")
        return json.loads(answer)

    def close(self) -> None:
        """End the ranks: without orders they end by themselves, and take their shared memory away."""
        for pipe in self._orders:
            os.close(pipe)
        self._orders = []
        try:
            self._popen.wait(time_limits.PROCESS_ENDS)
        except subprocess.TimeoutExpired:
            self._popen.terminate()  # mpiexec ends its ranks
            try:
                self._popen.wait(time_limits.PROCESS_ENDS)
            except subprocess.TimeoutExpired:
                self._popen.kill()
                self._popen.wait()
        if self._popen.stdout:
            self._popen.stdout.close()

    def __enter__(self) -> Mpi:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def cell(code: str, n: int) -> str:
    """Run a cell on `n` MPI ranks of its own; return what they printed, in the order of the ranks.

    >>> cell("from mpi4py import MPI\\nprint(MPI.COMM_WORLD.Get_rank())", 2)
    'rank 0 │ 0\\nrank 1 │ 1\\n'

    Raises LabError where the cell fails, or is not through in time.
    """
    with tempfile.TemporaryDirectory(prefix="labkit-mpi-") as folder:
        file = Path(folder, "cell.py")
        file.write_text(code, encoding="utf-8")
        command = [*launcher(n), sys.executable, "-m", "workbook.tools.rank.mpi_cell", str(file)]
        with tied([(command, _environment())], Path(folder)) as (mpiexec,):
            late = not mpiexec.wait(MPI_TURN)
            end([mpiexec])
            out, status = mpiexec.out, mpiexec.code
    told = sorted((json.loads(line) for line in out.splitlines() if line.startswith("{")), key=lambda t: t["rank"])
    for failed in (t for t in told if t["error"]):
        raise LabError(f"MPI's rank {failed['rank']} failed. Mend the cell:\n{failed['error']}")
    open_ = set(range(n)) - {t["rank"] for t in told if t["through"]}
    silent = set(range(n)) - {t["rank"] for t in told}  # the others were interrupted because of them
    missed = ranks(open_ if late else silent or open_) if open_ else ""
    if late:
        raise LabError(
            f"MPI's {missed or 'mpiexec'} did not end within {MPI_TURN:.0f} s. "
            "Look for a call that not every rank makes, such as a Fence."
        )
    if missed:
        raise LabError(
            f"MPI's {missed} ended in the middle of the cell, without a Python error (mpiexec: status "
            f"{status}). Look for what ends a process, or runs out of memory."
        )
    return merge({t["rank"]: t["text"] for t in told})


def show(code: str, n: int) -> None:
    """Run a cell on `n` MPI ranks and print what they printed, or what to install where there is no MPI."""
    if lack := missing():
        print(f"{lack} This cell has done nothing. To run it: pip install mpi4py mpich, and run it again.")
    else:
        print(cell(code, n).rstrip("\n"))


def _environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("LABKIT_")}
    return kept | {"OMP_NUM_THREADS": "1"} | SHARED


def launcher(n: int) -> list[str]:
    """Return the command that starts another one on n MPI ranks of this host."""
    return [str(_mpiexec()), "-n", str(n)]


def _mpiexec() -> Path:
    return Path(sys.executable).with_name(MPIEXEC)
