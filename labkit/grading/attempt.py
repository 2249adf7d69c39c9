"""One run of a learner's function on the ranks, as plain data: what each answered, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkit.outcome.outcome import Outcome
from labkit.theory.record import Record, read


@dataclass
class Attempt:
    """One run: the answers by rank, and the report where it did not end well by itself."""

    answers: dict[int, dict[str, Any]]
    report: Outcome
    slow: bool = False

    @property
    def records(self) -> list[dict[str, Any] | None]:
        """What each rank that took part has recorded; None where it does not answer."""
        return [self.answers.get(r.rank, {}).get("told") for r in self.report.ranks]

    @property
    def record(self) -> Record | None:
        """The run's operations, where every rank has told them."""
        return read(self.records) if all(self.records) else None
