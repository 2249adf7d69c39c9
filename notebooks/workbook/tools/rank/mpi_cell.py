"""A cell as one of MPI's ranks runs it, for `workbook.tools.mpi`: what it printed, or how it ended. No torch.

`mpiexec -n 4 python -m workbook.tools.rank.mpi_cell cell.py` prints one line per rank, when that rank is through: JSON
with its number, its text and its error. mpiexec interrupts the other ranks where one ends too early: that is not
an error of theirs.
"""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import os
import signal
import sys
import traceback
from pathlib import Path

from workbook.tools.rank.mpi_world import joined

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the cell runs, and once it has run


def main() -> None:
    """Run the cell; an error ends all ranks, as it would where it is not caught."""
    MPI = joined()
    comm, me = MPI.COMM_WORLD, MPI.COMM_WORLD.Get_rank()  # a cell may call MPI.Finalize
    source, said, error, through = Path(sys.argv[1]).read_text(encoding="utf-8"), io.StringIO(), "", True
    linecache.cache["the cell"] = (len(source), None, source.splitlines(keepends=True), "the cell")
    with contextlib.redirect_stdout(said):
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            exec(compile(source, "the cell", "exec"), {"__name__": "__main__"})
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        except KeyboardInterrupt:
            through = False
        except BaseException as raised:
            frames = raised.__traceback__ and raised.__traceback__.tb_next  # without this module's own
            error = "".join(traceback.format_exception(raised.with_traceback(frames)))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    told = json.dumps({"rank": me, "through": through, "text": said.getvalue(), "error": error})
    os.write(1, f"{told}\n".encode())  # in one piece, beside those of other ranks
    if error:
        comm.Abort(1)


if __name__ == "__main__":
    main()
