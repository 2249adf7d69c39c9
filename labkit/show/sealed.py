"""Seal the end of a flow until the learner has said what each rank holds, for `%%flow x --predict`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.floor.errors import LabError
from labkit.floor.words import count
from labkit.plot import flow as picture
from labkit.plot import svg
from labkit.show.alt_text import by_rank
from labkit.show.compared import Compared, kept, tiles
from labkit.show.flow import Flow, in_words
from labkit.show.guess import hold
from labkit.show.view import View

MOST = 48  # tiles that one fills in


class SealedFlow(View):
    """A flow before the learner knows how it ends: fill in what every rank holds, then compare it with the ranks.

    Without a mouse: `sealed.fill([[6, 10], [6, 10]])`, one row per rank; `...` leaves a tile, or a whole row, empty.

    The cell has run, and nothing here asks the ranks again. `flow` is what would have been shown without `--predict`.
    """

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self._places = flow.places
        many = sum(map(len, self._places))
        if many > MOST:
            raise LabError(
                f"The cell has run and left {count(many, 'number')}, more than the {MOST} that you can predict. "
                "Use a smaller tensor."
            )
        super().__init__(kind="tiles", data={**tiles(flow), "kernel": True})

    def fill(self, rows: Sequence[Any]) -> Compared:
        """Compare `rows`, one per rank, with the ranks, like the button: a number, None, "?" or ... for each tile."""
        compared = Compared(hold(self._places, rows, self.flow.meant), self.flow, self.fill)
        self.data = {"result": compared._repr_html_()}
        return compared

    def heard(self, said: dict[str, Any]) -> None:
        """Compare what was typed."""
        self.fill(said["rows"])

    @property
    def meta(self) -> dict[str, Any] | None:
        flow = kept(self.flow)
        return {"kind": "tiles", **flow} if flow else None

    # -- how it shows itself --------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        blank = self.flow.blank
        before, after = blank.titles
        rows = zip(*blank.columns, strict=True)
        lines = [f"rank {r} │ {in_words(x)} → {in_words(y)}" for r, (x, y) in enumerate(rows)]
        return "\n".join([f"{before} → {after}: what does each rank hold?", *lines])

    def _repr_html_(self) -> str:
        folded = f"<details><summary>What the ranks hold</summary>{self.flow._repr_html_()}</details>"
        return svg.img(self.svg, self.alt) + folded

    @property
    def svg(self) -> bytes:
        """The picture with blanks."""
        return svg.svg(picture.draw(self.flow.blank))

    @property
    def alt(self) -> str:
        """The picture with blanks in words."""
        after = self.flow.blank.titles[1]
        blanks = by_rank({p[0].rank: f"holds {count(len(p), 'value')} to fill in" for p in self._places})
        return f"{self.flow.before} {after}: {blanks}."
