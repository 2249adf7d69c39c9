"""`lab.moves`: what the last cell moved in and out of the ranks' windows."""

from __future__ import annotations

from typing import Any

from labkit.faces import arguments
from labkit.floor import words
from labkit.floor.errors import LabError
from workbook.tools.windows.moves import Moves


def moves(lab: Any, window: str) -> Moves:
    """Draw what the last cell put into the ranks' windows, added to them and got from them, and who took part.

    >>> lab.moves("window")           # %%px: window = open_window(4)
    >>> lab.moves("window").lost()    # an update that two ranks made of the same number

    Raises `LabError` where a rank has no such window.
    """
    arguments.text('lab.moves("window")', window)
    told = lab._console.call("labkit.rank.agent.pull", f"{window}.told()")
    if lack := {r: error for r, (error, _) in enumerate(told) if error}:
        raise LabError(
            f"{words.ranks(lack)}: {next(iter(lack.values()))}. lab.moves draws a window that every rank has open. "
            "In a %%px cell: from workbook.tools.rank.window import open_window; window = open_window(4)."
        )
    return Moves([value for _, value in told])
