"""What the last cell did, and its pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.show.steps import Steps
from labkit.show.timeline import Timeline


class Last:
    """The last cell as the ranks recorded it: `records[r]` is rank r's record, {} where it had no part in the cell,
    None where it does not answer."""

    def __init__(self, records: Sequence[dict[str, Any] | None]) -> None:
        self.records = list(records)

    def timeline(self) -> Timeline:
        """Draw who called what and when, messages, and who waited for whom. See `labkit.show.timeline.Timeline`.

        >>> lab.last.timeline()
        """
        return Timeline(self.records)

    def steps(self) -> Steps:
        """Step through the messages, round by round: who sends which chunk to whom.

        >>> lab.last.steps()

        Tensors of up to 64 elements on CPUs are shown with their numbers. Raises `LabError` where the cell sent
        nothing from rank to rank.
        """
        return Steps(self.records)

    def __repr__(self) -> str:
        return repr(self.timeline())

    def _repr_html_(self) -> str:
        return self.timeline()._repr_html_()
