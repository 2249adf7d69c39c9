"""Two controls made of ipywidgets: a live strip of what the ranks do, and a prediction that can be locked in.

Both work without a front end, so that tests and unattended runs can drive them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import ipywidgets

from labkit.errors import LabError

# Colour (Okabe–Ito's), shape in a box of 16 × 16, words: no state is told by its colour alone.
STATES = {
    "idle": ("#999999", '<circle cx="8" cy="8" r="5.5" fill="none" stroke-width="2"/>', "idle"),
    "computing": ("#009E73", '<path d="M3.5 2 L14 8 L3.5 14 Z"/>', "computing"),
    "collective": ("#0072B2", '<rect x="2.5" y="2.5" width="11" height="11"/>', "in a collective"),
    "silent": ("#E69F00", '<path d="M8 2 L14 13.5 H2 Z" fill="none" stroke-width="2"/>', "does not answer"),
    "dead": ("#D55E00", '<path d="M3 3 L13 13 M13 3 L3 13" stroke-width="3"/>', "dead"),
}

# Keys stay in the box that this stands in: the notebook's shortcuts would hear them ("d d" deletes the cell, also when
# a button has the focus). JupyterLab's own attribute against that, data-lm-suppress-shortcuts, counts on the focused
# element alone, not on what is around it, and ipywidgets sets no attributes. A style's handler runs once it has loaded.
DEAF = """<style onload="this.closest('.widget-box').onkeydown = event => event.stopPropagation()"></style>"""


class Strip(ipywidgets.HTML):
    """A live strip: what each rank does right now.

    `poll` returns a dict for each rank with "rank", "state" ("idle", "computing", "collective", "silent" or
    "dead"), "op", "line" and "seconds"; it is asked every `period` seconds until `stop()` or `close()`, or
    until it raises.
    """

    value: str  # ipywidgets' trait

    def __init__(self, poll: Callable[[], Sequence[dict[str, Any]]], n: int, period: float = 0.25) -> None:
        super().__init__(value=_strip([{"rank": r, "state": "silent"} for r in range(n)]))
        self._n = n
        self._poll = poll
        self._period = period
        self._over = threading.Event()
        threading.Thread(target=self._watch, name="labkit-strip", daemon=True).start()

    def refresh(self) -> None:
        """Ask once, and draw only if something has changed."""
        value = _strip(self._poll())
        if value != self.value and not self._over.is_set():
            self.value = value

    def stop(self) -> None:
        """Leave the strip as it is from now on."""
        self._over.set()

    def close(self) -> None:
        """Stop, and take the strip off the page."""
        self.stop()
        super().close()

    def _watch(self) -> None:
        try:
            while not self._over.is_set():
                self.refresh()
                self._over.wait(self._period)
        except Exception as error:
            if not self._over.is_set():
                self.value = f"<em>The strip has stopped: {escape(str(error) or type(error).__name__)}</em>"
                self.stop()

    def __repr__(self) -> str:
        return f"a live strip of {self._n} ranks"


class Predict(ipywidgets.VBox):
    """A question to answer before the ranks do: pick an option and lock it in.

    >>> p = Predict("What does rank 1 hold after reduce?", ["the sum", "what it held before"])
    >>> p
    Predict: What does rank 1 hold after reduce?
      ( ) the sum
      ( ) what it held before

    Whether the choice was right is not told before `reveal(answer)`.
    """

    def __init__(self, question: str, options: Sequence[Any]) -> None:
        self.question = question
        self.options = [str(option) for option in options]
        assert len(set(self.options)) == len(self.options) > 1, "a prediction needs options that differ"
        self._choice: str | None = None
        self._answer: str | None = None
        wide = ipywidgets.Layout(width="max-content", max_width="100%")
        self._radio = ipywidgets.RadioButtons(options=self.options, value=None, tooltip=question, layout=wide)
        self._button = ipywidgets.Button(description="Lock it in", disabled=True)
        self._said = ipywidgets.HTML()
        asked = ipywidgets.HTML(f"<strong>Predict:</strong> {escape(question)}{DEAF}")
        self._radio.observe(self._picked, "value")
        self._button.on_click(lambda _: self.lock(self._radio.value))
        super().__init__([asked, self._radio, self._button, self._said])

    @property
    def choice(self) -> str | None:
        """The option that was locked in; None as long as none is."""
        return self._choice

    def lock(self, option: Any) -> None:
        """Lock an option in, as the button does; it cannot be changed afterwards."""
        if str(option) not in self.options:
            raise LabError("\n".join([f"{option!r} is no option. Choose one of these:", *map(repr, self.options)]))
        if self._choice is not None or self._answer is not None:
            raise LabError("This prediction is closed. Run its cell again to make a new one.")
        self._choice = str(option)
        self._close(f"Locked in: <b>{escape(self._choice)}</b>")

    def reveal(self, answer: Any, why: str = "") -> Answer:
        """Hold the prediction against the answer, which is one of the options: right or wrong in one sentence."""
        assert str(answer) in self.options, f"{answer!r} is none of the options"
        self._answer = str(answer)
        if self._choice is None:
            said = f"The answer: {answer}. No prediction was locked in."
        elif self._choice == self._answer:
            said = f"✓ As you predicted: {answer}."
        else:
            said = f"✗ You predicted: {self._choice}. The answer: {answer}."
        self._close(escape(said))
        return Answer(f"{said} {why}".strip())

    def _picked(self, change: dict[str, Any]) -> None:
        self._button.disabled = change["new"] is None or self._choice is not None

    def _close(self, said: str) -> None:
        self._radio.value = self._choice
        self._radio.disabled = True
        self._button.disabled = True
        self._button.layout.display = "none"
        self._said.value = said

    def __repr__(self) -> str:
        lines = [f"  ({'•' if option == self._choice else ' '}) {option}" for option in self.options]
        lines += [f"The answer: {self._answer}"] if self._answer is not None else []
        return "\n".join([f"Predict: {self.question}", *lines])

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        items = "".join(f"<li>{escape(option)}</li>" for option in self.options)
        static = f"<p><strong>Predict:</strong> {escape(self.question)}</p><ul>{items}</ul>"
        return {**super()._repr_mimebundle_(**kwargs), "text/plain": repr(self), "text/html": static}


class Answer(str):
    """A sentence that a cell can end in: it shows itself without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _strip(statuses: Sequence[dict[str, Any]]) -> str:
    said = [(s, _words(s)) for s in sorted(statuses, key=lambda s: s["rank"])]
    label = "; ".join(f"rank {s['rank']}: {words}" for s, words in said)
    chips = "".join(_chip(s, words) for s, words in said)
    style = "display: flex; flex-wrap: wrap; gap: 6px; line-height: 1.5"
    return f'<div role="img" aria-label="{escape(label)}" style="{style}">{chips}</div>'


def _words(status: dict[str, Any]) -> str:
    words = STATES[status["state"]][2]
    if status["state"] == "collective" and status.get("op"):
        words = f"in {status['op']}"
    seconds = int(status.get("seconds") or 0)
    at = f"line {status['line']}" if status.get("line") else ""
    busy = status["state"] in ("computing", "collective")
    since = f"{seconds} s" if busy and seconds else ""
    return ", ".join(filter(None, [words, at * busy, since]))


def _chip(status: dict[str, Any], words: str) -> str:
    colour, shape, _ = STATES[status["state"]]
    line = "dashed" if status["state"] in ("dead", "silent") else "solid"
    style = (
        "display: inline-flex; align-items: center; gap: 6px; padding: 2px 10px 2px 8px; border-radius: 4px; "
        f"border: 2px {line} {colour}; color: var(--jp-ui-font-color1, inherit)"
    )
    svg = f'<svg width="14" height="14" viewBox="0 0 16 16" fill="{colour}" stroke="{colour}">{shape}</svg>'
    return f'<span style="{style}">{svg}<b>rank {status["rank"]}</b> {escape(words)}</span>'
