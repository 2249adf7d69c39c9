"""Show the costs of a right solution, beside the least possible and the learner's best, under the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from labkit.floor.words import count, listed
from labkit.grading.score import COSTS, Score
from labkit.show.table import cell, row, table

# Beyond the least, what still counts as it: a small tensor or two, a rounding.
SHARE, SLACK = 1.02, {"memory": 64.0, "moved": 64.0}
LESS = {"sent": "fewer bytes", "rounds": "fewer steps", "memory": "less memory", "moved": "fewer bytes"}


class Costs:
    """The bytes, steps and memory of one run, each with the least possible and the learner's best, where known.

    `allowed`: whether it was done as the card asks; else nothing is said of how near that comes to the least.
    """

    def __init__(
        self, score: Score, least: Mapping[str, float], best: Mapping[str, Any] | None, allowed: bool = True
    ) -> None:
        self._score = score
        self._allowed = allowed
        self._least = dict(least)
        comparable = best and (best["n"], best["size"]) == (score.n, score.size)
        self._best = dict(best) if best and comparable else {}
        self._mine = {cost: value for cost in COSTS if (value := getattr(score, cost)) is not None}

    @property
    def _where(self) -> str:
        size = self._score.size
        return f"With {count(self._score.n, 'rank')}" + (f", {count(size, 'byte')} of input per rank" if size else "")

    @property
    def _remarks(self) -> list[str]:
        """Sentences on how the figures are counted, and how far the solution is from the least."""
        said = []
        if self._score.textbook:
            said.append("For a collective, the bytes are the textbook's figure, and the call counts as one step.")
        if not self._allowed:
            return said
        if over := [LESS[cost] for cost in self._mine if self._far(cost)]:
            said.append(f"It can be done with {listed(over)}.")
        elif all(cost in self._least and value <= self._least[cost] + 0.5 for cost, value in self._mine.items()):
            said.append("No solution that the exercise allows takes less.")
        return said

    def _far(self, cost: str) -> bool:
        least = self._least.get(cost)
        return least is not None and self._mine[cost] > SHARE * least + SLACK.get(cost, 0.0)

    def __repr__(self) -> str:
        names = {"sent": "bytes sent by the busiest rank", "rounds": "steps", "memory": "bytes of memory at the peak"}
        names["moved"] = "bytes read and written by its kernels"
        figures = []
        for cost, value in self._mine.items():
            least = f" (least possible: {_number(self._least[cost])})" if cost in self._least else ""
            figures.append(f"{names[cost]}: {_number(value)}{least}")
        best = f" Your best: {in_short(self._best)}." if self._best else ""
        return " ".join([f"{self._where}: {' · '.join(figures)}.{best}", *self._remarks])

    def _repr_html_(self) -> str:
        names = {
            "sent": "bytes sent by the busiest rank",
            "rounds": "steps, one after another",
            "memory": "bytes of memory at the peak, beside the arguments",
            "moved": "bytes that the kernels of the busiest rank read and write",
        }
        columns = {"this solution": self._mine, "least possible": self._least, "your best": self._best}
        shown = {title: figures for title, figures in columns.items() if figures}
        rows = []
        for cost in self._mine:
            figures = [_number(column[cost]) if cost in column else "–" for column in shown.values()]
            rows.append(row(names[cost], [cell(figure, "cost") for figure in figures]))
        remarks = f"<div>{escape(' '.join(self._remarks))}</div>" if self._remarks else ""
        return table("score", escape(f"{self._where}:"), ["", *shown], rows) + remarks


def in_short(best: Mapping[str, Any]) -> str:
    """Say the figures in a few words.

    >>> in_short({"n": 4, "size": 64, "sent": 96.0, "rounds": 6, "memory": 80})
    '96 bytes sent, 6 steps, 80 bytes of memory'
    """
    parts = {"sent": "{} sent", "rounds": "{}", "memory": "{} of memory", "moved": "{} read and written"}
    said = {c: count(round(best[c]), "step" if c == "rounds" else "byte") for c in COSTS if c in best}
    return ", ".join(parts[cost].format(value) for cost, value in said.items())


def _number(value: float) -> str:
    return f"{round(value):,}"
