"""`lab.histogram`: how many times each whole number occurs in the ranks' lists."""

from __future__ import annotations

from typing import Any

from labkit.faces import arguments
from workbook.tools.histogram.show import Histogram


def histogram(lab: Any, *expressions: str) -> Histogram:
    """Draw how many times each whole number occurs in the ranks' lists: a panel an expression, a bar a rank.

    >>> lab.histogram("staleness")
    >>> lab.histogram("free", "bounded")     # on one scale

    Ranks that lack the list are left out. Raises `LabError` where all do, or where it is no list of whole numbers.
    """
    arguments.quoted('which numbers to count: lab.histogram("staleness"), where a rank has a list of them', expressions)
    return Histogram({expression: lab._held(expression) for expression in expressions})
