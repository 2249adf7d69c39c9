"""Play the messages of the last cell step by step, for `lab.last.steps`. No torch, no cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ipywidgets

from labkit.floor.errors import LabError
from labkit.plot import svg
from labkit.show.box import Box
from labkit.show.film import Film, title
from labkit.theory.record import read

# As `labkit.show.keys.DEAF` does, it keeps keys from the notebook; and arrows step.
KEYS = """<style onload="
    const box = this.closest('.labkit-steps');
    box.role = 'group';
    box.ariaLabel = 'Step through the messages';
    for (const button of box.querySelectorAll('button')) button.ariaLabel = button.title;
    box.onkeydown = event => {
        event.stopPropagation();
        const way = {ArrowLeft: '.labkit-back', ArrowRight: '.labkit-on'}[event.key];
        if (way && !event.target.closest('.widget-slider')) box.querySelector(way).click();
    }"></style>"""


class Player(Box):
    """A player of `count` steps and what they leave, with buttons, arrow keys or a slider; a subclass draws them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._picture = ipywidgets.HTML()
        self._slider = ipywidgets.IntSlider(
            value=0, min=0, max=count, description="step", readout=False, layout={"width": "16em"}
        )
        self._said = ipywidgets.Label()
        play = ipywidgets.Play(min=0, max=count, interval=1200, tooltip="play")
        ipywidgets.jslink((play, "value"), (self._slider, "value"))
        back, on = (
            ipywidgets.Button(description=d, tooltip=t, layout={"width": "3em"})
            for d, t in (("◀", "one step back"), ("▶", "one step on"))
        )
        back.add_class("labkit-back")
        on.add_class("labkit-on")
        back.on_click(lambda _: self.go(self.step - 1))
        on.on_click(lambda _: self.go(self.step + 1))
        self._slider.observe(lambda _: self._show(), "value")
        row = ipywidgets.HBox([play, back, on, self._slider, self._said, ipywidgets.HTML(KEYS)])
        super().__init__([self._picture, row])
        self.add_class("labkit-steps")
        self._show()

    @property
    def step(self) -> int:
        """The step that is shown, from 0; the last one shows what the messages have left."""
        return int(self._slider.value)

    def go(self, step: int) -> None:
        """Show a step, as the slider does."""
        self._slider.value = min(max(step, 0), self.count)

    def frame(self, step: int) -> str:
        """Return a step as HTML."""
        raise NotImplementedError

    def _show(self) -> None:
        self._picture.value = self.frame(self.step)
        self._said.value = title(self.step, self.count)


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

    def frame(self, step: int) -> str:
        """Return the step's picture, with its messages as its words."""
        return svg.img(self.film.svg(step), self.film.told(step))

    def __repr__(self) -> str:
        return repr(self.film)

    def _repr_html_(self) -> str:
        return svg.img(self.film.still, repr(self))
