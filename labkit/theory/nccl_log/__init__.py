"""What NCCL's log says: who talks to whom over what, and how each operation ran.

>>> from labkit.theory import nccl_log
>>> nccl_log.find("one-gpu").sentences[2]
'Between nodes: Socket, card 1, without GPU Direct RDMA.'

`read(text)` reads your own, `labkit.draw(log)` draws its rings. Pieces of published logs lie in `bundled/`, with
their sources.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from labkit.errors import LabError
from labkit.theory.nccl_log.lines import Branch, Call, Comm, Hop, Line, Link, Ring, Said, events, line
from labkit.theory.nccl_log.log import Log, read
from labkit.words import listed

FOLDER = Path(__file__).parent / "bundled"

__all__ = [
    "Branch",
    "Call",
    "Comm",
    "Hop",
    "Line",
    "Link",
    "Log",
    "Ring",
    "Said",
    "bundled",
    "events",
    "find",
    "line",
    "read",
    "text",
]


def bundled() -> list[str]:
    """The names of the bundled pieces."""
    return sorted(path.stem for path in FOLDER.glob("*.txt"))


def text(name: str) -> str:
    """A bundled piece as it was published. Raises `LabError` where there is none of this name."""
    if name not in bundled():
        raise LabError(f"There is no log {name!r}. There are {listed(bundled())}.")
    return (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


@cache
def find(name: str) -> Log:
    """A bundled piece, read."""
    return read(text(name))
