"""Show the record of the last cell in pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.outcome.outcome import Outcome
from labkit.show.steps import Steps
from labkit.show.timeline import Timeline
from labkit.show.waits import Waits


class Last:
    """The last cell as the ranks recorded it.

    `records[r]` is rank r's record, {} where it had no part in the cell, None where it does not answer. `outcome` is
    what became of the cell, None while it runs.
    """

    def __init__(self, records: Sequence[dict[str, Any] | None], outcome: Outcome | None = None) -> None:
        self.records = list(records)
        self.outcome = outcome

    def timeline(self) -> Timeline:
        """Draw which rank called what and when, messages, and waits. See `labkit.show.timeline.Timeline`.

        >>> lab.last.timeline()

        What the cell computes in spans (`with span("backward"): …`) is drawn above what it communicates.
        """
        return Timeline(self.records)

    def steps(self) -> Steps:
        """Step through the messages: which rank sends which chunk to which other rank.

        >>> lab.last.steps()

        Tensors of up to 64 elements on CPUs are shown with their numbers. Raises `LabError` where the cell sent
        nothing from rank to rank.
        """
        return Steps(self.records)

    def waits(self) -> Waits:
        """Draw which rank waits for which, as a graph: when the cell was cut short, or else in its longest wait.

        >>> lab.last.waits()

        Ranks that wait for one another in a cycle are named. See `labkit.show.waits.Waits`.
        """
        return Waits(self.records, self.outcome)

    def __repr__(self) -> str:
        return repr(self.timeline())

    def _repr_html_(self) -> str:
        return self.timeline()._repr_html_()
