"""One run of a learner's function on the ranks, as plain data: what each answered, and how it ended."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

from labkit.grading.evidence import LastWords
from labkit.outcome.outcome import Outcome
from labkit.theory.record import Record, read


@dataclass
class Attempt:
    """One run: what became of it, what each rank that finished answered, and where processes crashed."""

    report: Outcome
    last_words: dict[int, LastWords] = field(default_factory=dict)

    @property
    def answers(self) -> dict[int, dict[str, Any]]:
        return {r.rank: r.answer for r in self.report.ranks if r.answer is not None}

    @property
    def records(self) -> list[dict[str, Any] | None]:
        """The record of each rank that took part; None where it does not answer."""
        return [self.answers.get(r.rank, {}).get("record") for r in self.report.ranks]

    @functools.cached_property
    def told(self) -> Record:
        """The run's operations, as far as the ranks have told them."""
        return read(self.records)

    @property
    def record(self) -> Record | None:
        """The run's operations, None where a rank has not told them."""
        return self.told if all(self.records) else None

    @property
    def finished(self) -> list[int]:
        """The ranks that reached the function's end; what a harness finds behind it is raised in no cell's line."""
        return [r for r, answer in self.answers.items() if not ("error" in answer and answer["error"][2].get("line"))]
