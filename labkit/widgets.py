"""Two controls made of ipywidgets: a live strip of what the ranks do, and a prediction that can be locked in.

Both work without a front end, so that tests and unattended runs can drive them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import ipywidgets

from labkit import lab, progress
from labkit.content import predictions
from labkit.errors import LabError
from labkit.grading.prediction import Prediction
from labkit.show.box import LINES, Box
from labkit.show.keys import DEAF, ENTER_GOES_ON
from labkit.show.prediction import Answer, Question, asked, code, plain

# Colour (Okabe–Ito's), shape in a box of 16 × 16, words: no state is told by its colour alone.
STATES = {
    "idle": ("#999999", '<circle cx="8" cy="8" r="5.5" fill="none" stroke-width="2"/>', "idle"),
    "computing": ("#009E73", '<path d="M3.5 2 L14 8 L3.5 14 Z"/>', "computing"),
    "collective": ("#0072B2", '<rect x="2.5" y="2.5" width="11" height="11"/>', "in a collective"),
    "silent": ("#E69F00", '<path d="M8 2 L14 13.5 H2 Z" fill="none" stroke-width="2"/>', "does not answer"),
    "dead": ("#D55E00", '<path d="M3 3 L13 13 M13 3 L3 13" stroke-width="3"/>', "dead"),
}

# ipywidgets gives an option one line of 20 px: a longer one ran into the next, and its button fell to its last line.
WRAPPED = """<style>
.labkit-predict .widget-radio-box label {display: flex; align-items: baseline; height: auto; min-height: 20px}
.labkit-predict .widget-radio-box input {order: -1; flex: none; float: none; align-self: flex-start}
</style>"""


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


class Predict(Box):
    """A question to answer before the ranks do: choose, and lock it in.

    >>> asked = Predict(Prediction("pairs", "02", "How many messages?", 6, "Two for each of three pairs."))
    >>> asked
    Predict: How many messages?
      Your answer is a number.
    >>> asked.lock(9)
    >>> asked.reveal()
    ✗ You predicted 9, but the answer is 6.
    <BLANKLINE>
    Your number is 1.5 times too large.
    <BLANKLINE>
    Two for each of three pairs.

    A lesson names one of the workbook's: `Predict("late_receiver")`. Where Gloo and NCCL differ, the answer is that of
    the lab that runs (without one, Gloo's), and what the other backend does is told after it.

    What is shown of the question, this widget's state included, is the same whatever the answer: only `reveal()`
    tells it. Nothing can be changed once it is locked in; a new run of the question's cell asks anew.
    """

    def __init__(self, prediction: str | Prediction) -> None:
        found = predictions.find(prediction) if isinstance(prediction, str) else prediction
        self._ours = predictions.every().get(found.name) is found  # one of the workbook's, whose answers count
        self._prediction = found.on(lab.backend())
        self._choice: str | float | None = None
        self._shown = self._late = False  # the answer, folded away: now, and when the choice was locked in
        self._said = ipywidgets.HTML()
        self._button = ipywidgets.Button(description="Lock it in", disabled=bool(self._prediction.options))
        self._button.on_click(lambda _: self._press())
        self._field, shown = self._options() if self._prediction.options else self._number()
        keys = DEAF if self._prediction.options else ENTER_GOES_ON
        question = ipywidgets.HTML(asked(self._prediction) + keys + LINES + WRAPPED)
        super().__init__([question, shown, self._button, self._said])
        self.add_class("labkit-predict")

    @property
    def choice(self) -> str | float | None:
        """The option or the number that was locked in; None as long as none is."""
        return self._choice

    def lock(self, choice: str | float) -> None:
        """Lock in an option by its letter or its words, or a number; it cannot be changed afterwards."""
        understood = self._prediction.choice(choice)
        if self._choice is not None:
            raise LabError("This prediction is already locked in. Run its cell again to give a new answer.")
        self._choice, self._late = understood, self._shown
        if self._ours:
            progress.predict(self._prediction.name, understood, self._prediction.is_right(understood))
        words = self._prediction.words(understood)
        if isinstance(self._field, ipywidgets.RadioButtons):
            self._field.value = understood
        self._field.disabled = True
        self._button.disabled = True
        self._button.layout.display = "none"
        self._said.value = f"Locked in: <b>{code(words)}</b>"

    def reveal(self) -> Answer:
        """Hold what was locked in against the answer; where nothing was, the answer is folded away."""
        first = progress.predicted().get(self._prediction.name, {}).get("first") if self._ours else None
        self._shown = True
        return Answer(self._prediction, self._choice, first, self._late)

    def _options(self) -> tuple[Any, Any]:
        wide = ipywidgets.Layout(width="max-content", max_width="100%")
        options = [(f"{letter}. {plain(option.text)}", option.text) for letter, option in self._prediction.lettered]
        question = plain(self._prediction.question)
        radio = ipywidgets.RadioButtons(options=options, value=None, tooltip=question, layout=wide)
        radio.observe(self._picked, "value")
        return radio, radio

    def _number(self) -> tuple[Any, Any]:
        field = ipywidgets.Text(description="Your answer", placeholder="a number", continuous_update=False)
        return field, ipywidgets.HBox([field, ipywidgets.Label(self._prediction.unit)])

    def _press(self) -> None:
        try:
            self.lock(self._field.value)
        except LabError as error:
            self._said.value = escape(str(error))

    def _picked(self, change: dict[str, Any]) -> None:
        self._button.disabled = change["new"] is None or self._choice is not None

    @property
    def _static(self) -> Question:
        return Question(self._prediction, self._choice)

    def __repr__(self) -> str:
        return repr(self._static)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        static = {"text/plain": repr(self._static), "text/html": self._static._repr_html_()}
        return {**super()._repr_mimebundle_(**kwargs), **static}


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
