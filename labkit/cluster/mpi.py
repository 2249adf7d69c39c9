"""MPI's all-reduce beside the lab's: ranks of its own on this host, which sleep until it is their turn.

The lab's ranks were not started by mpiexec and cannot become MPI's. These live as long as one race, on pipes alone:
they end with the process that asks them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

from labkit.errors import LabError

MPIEXEC = "mpiexec.gforker"  # mpich's; its other mpiexec listens on all of the host's addresses
PATIENCE = 30.0  # seconds that one turn may take


def missing() -> str:
    """Why there is no MPI here; empty where there is."""
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
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LABKIT_")}
        environment |= {"OMP_NUM_THREADS": "1", "UCX_TLS": "self,sm"}
        try:
            self._popen = subprocess.Popen(
                [
                    *(str(_mpiexec()), "-n", str(n), sys.executable, "-m", "labkit.rank.mpi"),
                    ",".join(map(str, reads)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                pass_fds=reads,
                start_new_session=True,  # Stop is for the kernel
            )
        finally:
            for read in reads:
                os.close(read)

    def turn(self, **order: Any) -> dict[str, Any]:
        """What the ranks measured; LabError where they do not answer."""
        line = (json.dumps(order) + "\n").encode()
        out = self._popen.stdout
        assert out
        with contextlib.suppress(BrokenPipeError):
            for pipe in self._orders:
                os.write(pipe, line)
        if not select.select([out], [], [], PATIENCE)[0]:
            raise LabError(f"MPI's ranks said nothing in {PATIENCE:.0f} s")
        answer = out.readline()
        if not answer:
            raise LabError(f"MPI's ranks ended with exit code {self._popen.wait()}")
        return json.loads(answer)

    def close(self) -> None:
        """End them: without orders they end by themselves, and take their shared memory away."""
        for pipe in self._orders:
            os.close(pipe)
        self._orders = []
        try:
            self._popen.wait(5)
        except subprocess.TimeoutExpired:
            self._popen.terminate()  # mpiexec ends its ranks
            try:
                self._popen.wait(5)
            except subprocess.TimeoutExpired:
                self._popen.kill()
                self._popen.wait()
        if self._popen.stdout:
            self._popen.stdout.close()

    def __enter__(self) -> Mpi:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _mpiexec() -> Path:
    return Path(sys.executable).with_name(MPIEXEC)
