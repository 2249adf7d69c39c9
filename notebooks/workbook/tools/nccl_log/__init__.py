"""NCCL's log, read: which ranks talk to which over what, and how each operation ran.

>>> from workbook.tools import nccl_log
>>> nccl_log.find("h200-shared").sentences[3]
'Between nodes: Socket, card 0, lo, without GPU Direct RDMA.'

`read(text)` reads your own, `labkit.draw(log)` draws its rings. A log tells of its largest communicator; `log.others`
are the others. Pieces of recorded logs lie in `bundled/`, with their sources.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from labkit.floor.errors import LabError
from labkit.floor.words import listed
from workbook.tools.nccl_log.gather import read
from workbook.tools.nccl_log.lines import Call, events, line
from workbook.tools.nccl_log.log import Log

FOLDER = Path(__file__).parent / "bundled"

__all__ = ["Call", "Log", "bundled", "events", "find", "line", "read", "text"]


def bundled() -> list[str]:
    """Return the names of the bundled pieces."""
    return sorted(path.stem for path in FOLDER.glob("*.txt"))


def text(name: str) -> str:
    """Return a bundled piece as it was printed; "h200-shared.ras" and "h200-shared.json" are RAS's and torch's output.

    Raises `LabError` where there is none of this name.
    """
    files = {path.name: path for path in FOLDER.iterdir() if path.suffix != ".md"}
    file = files.get(name) or files.get(f"{name}.txt")
    if file is None:
        raise LabError(f"There is no log {name!r}. There are {listed(bundled())}.")
    return file.read_text(encoding="utf-8")


@cache
def find(name: str) -> Log:
    """Read a bundled piece."""
    return read(text(name))
