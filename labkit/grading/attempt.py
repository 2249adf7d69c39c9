"""One run of a learner's function on the ranks, as plain data: what each answered, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkit.outcome.outcome import Outcome
from labkit.theory.record import Record, read


@dataclass
class Attempt:
    """One run: what became of it, and what each rank that finished answered."""

    report: Outcome

    @property
    def answers(self) -> dict[int, dict[str, Any]]:
        return {r.rank: r.answer for r in self.report.ranks if r.answer is not None}

    @property
    def records(self) -> list[dict[str, Any] | None]:
        """What each rank that took part has recorded; None where it does not answer."""
        return [self.answers.get(r.rank, {}).get("told") for r in self.report.ranks]

    @property
    def record(self) -> Record | None:
        """The run's operations, where every rank has told them."""
        return read(self.records) if all(self.records) else None
