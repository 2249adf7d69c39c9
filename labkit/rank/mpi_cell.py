"""A cell as one of MPI's ranks runs it, for `labkit.cluster.mpi`: what it printed, or how it ended. No torch.

`mpiexec -n 4 python -m labkit.rank.mpi_cell cell.py` prints one line a rank, when that rank is through: JSON with its
number, its text and its error.
"""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import os
import sys
import traceback
from pathlib import Path

os.environ["UCX_TLS"] = "self,sm"  # shared memory alone: else each rank listens on the host's own address


def main() -> None:
    """Run the cell; an error ends all ranks, as it would where nobody catches it."""
    from mpi4py import MPI

    comm, me = MPI.COMM_WORLD, MPI.COMM_WORLD.Get_rank()  # a cell may call MPI.Finalize
    source, said, error = Path(sys.argv[1]).read_text(encoding="utf-8"), io.StringIO(), ""
    linecache.cache["the cell"] = (len(source), None, source.splitlines(keepends=True), "the cell")
    with contextlib.redirect_stdout(said):
        try:
            exec(compile(source, "the cell", "exec"), {"__name__": "__main__"})
        except BaseException as raised:
            frames = raised.__traceback__ and raised.__traceback__.tb_next  # without this module's own
            error = "".join(traceback.format_exception(raised.with_traceback(frames)))
    told = json.dumps({"rank": me, "text": said.getvalue(), "error": error})
    os.write(1, f"{told}\n".encode())  # in one piece, beside those of other ranks
    if error:
        comm.Abort(1)


if __name__ == "__main__":
    main()
