"""Ask a question to answer before the ranks do, as a widget: a prediction that can be locked in.

It works without a front end, so that tests and unattended runs can drive it.
"""

from __future__ import annotations

from typing import Any

import ipywidgets

from labkit.content import predictions
from labkit.faces import current_lab, progress
from labkit.floor.errors import LabError
from labkit.grading.prediction import Prediction
from labkit.show.box import LINES, Box
from labkit.show.keys import DEAF, ENTER_GOES_ON
from labkit.show.prediction import Answer, Question, asked, code, plain

# ipywidgets gives an option one line of 20 px: a longer one ran into the next, and its button fell to its last line.
WRAPPED = """<style>
.labkit-predict .widget-radio-box label {display: flex; align-items: baseline; height: auto; min-height: 20px}
.labkit-predict .widget-radio-box input {order: -1; flex: none; float: none; align-self: flex-start}
</style>"""


class Predict(Box):
    """A question to answer before the ranks do: choose, and lock it in.

    >>> asked = Predict(Prediction("How many messages?", 6, "Two for each of three pairs."))
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
        self._prediction = found.on(current_lab.backend())
        self.choice: str | float | None = None  # the option or the number that was locked in
        self._shown = self._late = False  # the answer, folded away: now, and when the choice was locked in
        self._said = ipywidgets.HTML()
        self._button = ipywidgets.Button(description="Lock it in", disabled=bool(self._prediction.options))
        self._button.on_click(lambda _: self.attempt(lambda: self.lock(self._field.value), self._said))
        self._field, shown = self._options() if self._prediction.options else self._number()
        keys = DEAF if self._prediction.options else ENTER_GOES_ON
        question = ipywidgets.HTML(asked(self._prediction) + keys + LINES + WRAPPED)
        super().__init__([question, shown, self._button, self._said])
        self.add_class("labkit-predict")

    def lock(self, choice: str | float) -> None:
        """Lock in an option by its letter or its words, or a number; it cannot be changed afterwards."""
        understood = self._prediction.choice(choice)
        if self.choice is not None:
            raise LabError("This prediction is already locked in. Run its cell again to give a new answer.")
        self.choice, self._late = understood, self._shown
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
        return Answer(self._prediction, self.choice, first, self._late)

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

    def _picked(self, change: dict[str, Any]) -> None:
        self._button.disabled = change["new"] is None or self.choice is not None

    def __repr__(self) -> str:
        return repr(Question(self._prediction, self.choice))

    def _repr_html_(self) -> str:
        return Question(self._prediction, self.choice)._repr_html_()
