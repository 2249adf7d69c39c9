"""Play the messages of the last cell step by step, for `lab.last.steps`. No torch, no cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import traitlets

from labkit.floor.errors import LabError
from labkit.plot import svg
from labkit.show.film import Film, scene
from labkit.show.view import View
from labkit.theory.record import read

AT_ONCE = 60  # steps that are drawn for the page at once; a page that comes to others asks for as many more


class Player(View):
    """A player of `count` steps and what they leave, with buttons, arrow keys or a slider; a subclass draws them.

    `step` is the step that is shown, from 0; the last one shows what the messages have left.
    """

    step = traitlets.Int().tag(sync=True)

    def __init__(self, count: int, head: str = "") -> None:
        self.count = count
        super().__init__(kind="steps", data={"head": head, "frames": [], "kernel": True})

    def go(self, step: int) -> None:
        """Show a step, as the slider does."""
        self.step = min(max(step, 0), self.count)

    def frame(self, step: int) -> str:
        """Return a step as HTML."""
        raise NotImplementedError

    def heard(self, said: dict[str, Any]) -> None:
        """Draw the step that the page has come to, and those after it."""
        drawn = {k: self.frame(k) for k in range(said["step"], min(said["step"] + AT_ONCE, self.count + 1))}
        frames = self.data["frames"] or [None] * (self.count + 1)
        self.data = {**self.data, "frames": [drawn.get(k, frame) for k, frame in enumerate(frames)]}

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        if not self.data["frames"]:
            self.heard({"step": 0})  # only what is looked at is drawn
        return super()._repr_mimebundle_(**kwargs)


class Steps(Player):
    """The steps of a cell's messages: play them, step with buttons, arrow keys or the slider.

    A message comes one step after the last thing that its sender or its receiver had finished before calling it:
    order counts, not the clock. `steps.go(2)` shows the third step; its text lists all of them.
    """

    def __init__(self, told: Sequence[dict[str, Any] | None]) -> None:
        record = read(told)
        if not record.messages:
            raise LabError(
                "The last cell sent nothing from rank to rank. Run one with send, recv, isend or irecv first; "
                "lab.last.timeline() draws collectives."
            )
        self.film = Film(record)
        super().__init__(self.film.count)

    @property
    def meta(self) -> dict[str, Any] | None:
        return {"kind": "steps", "scene": scene(self.film)}

    def frame(self, step: int) -> str:
        """Return the step's picture, with its messages as its words."""
        return svg.img(self.film.svg(step), self.film.told(step))

    def __repr__(self) -> str:
        return repr(self.film)

    def _repr_html_(self) -> str:
        return svg.img(self.film.still, repr(self))
