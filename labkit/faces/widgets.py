"""Ask a question, or a dozen at once, to answer before the ranks do: predictions that can be locked in.

It works without a front end, so that tests and unattended runs can drive it.
"""

from __future__ import annotations

from typing import Any

import ipywidgets

from labkit import content
from labkit.faces import current_lab, progress
from labkit.floor.errors import LabError
from labkit.grading.prediction import Prediction, Series
from labkit.show.box import LINES, Box
from labkit.show.keys import DEAF, ENTER_GOES_ON
from labkit.show.prediction import Answer, Answers, Question, Questions, asked, code, plain

OPEN = "choose …"

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
        found = content.predictions.find(prediction) if isinstance(prediction, str) else prediction
        self._ours = content.predictions.every().get(found.name) is found  # one of the workbook's, whose answers count
        self._prediction = found.on(current_lab.backend())
        self.choice: str | float | None = None  # the option or the number that was locked in
        self._shown = self._late = False  # the answer, folded away: now, and when the choice was locked in
        self._said = ipywidgets.HTML()
        self._button = ipywidgets.Button(description="Lock it in", disabled=bool(self._prediction.options))
        self._button.on_click(lambda _: self.attempt(lambda: self.lock(self._field.value), self._said))
        self._field, shown = self._options() if self._prediction.options else self._number()
        keys = DEAF if self._prediction.options else ENTER_GOES_ON
        question = ipywidgets.HTML(asked("Predict", self._prediction.question) + keys + LINES + WRAPPED)
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


class Choose(Box):
    """Several questions at once: choose an answer to each, and lock them in, all together or some first.

    A lesson names one of the workbook's series: `Choose("eight_situations")`. Without a mouse,
    `lock("b a - d")` or `lock("b", "a", "-", "d")` chooses by letters; `-` leaves a question open. `choices` are those
    that were locked in, one for each question; None where none was.

    What is shown, this widget's state included, is the same whatever the answers: only `reveal()` tells them.
    """

    def __init__(self, series: str | Series) -> None:
        found = content.series.find(series) if isinstance(series, str) else series
        self._ours = [content.predictions.every().get(part.name) is part for part in found.parts]  # whose answers count
        self._series = found.on(current_lab.backend())
        self.choices: list[str | None] = [None] * len(self._series.parts)
        self._said = ipywidgets.HTML()
        self._button = ipywidgets.Button(description="Lock in what is chosen", layout={"width": "max-content"})
        self._button.on_click(lambda _: self._press())
        self._fields = []
        rows = []
        for number, part in enumerate(self._series.parts, 1):
            options = [(OPEN, ""), *((f"{letter}. {plain(o.text)}", o.text) for letter, o in part.lettered)]
            field = ipywidgets.Dropdown(
                options=options,
                value="",  # with None the list would show nothing at all
                description=f"{number}. {plain(part.question)}",  # for screen readers: it takes no room
                style={"description_width": "0px"},
                layout={"width": "max-content", "min_width": "30em", "max_width": "96%", "margin": "2px 0 2px 20px"},
            )
            question = ipywidgets.HTML(f"<b>{number}.</b> {code(part.question)}", layout={"margin": "6px 0 0 4px"})
            self._fields.append(field)
            rows += [question, field]
        head = ipywidgets.HTML(asked("Choose", self._series.question) + DEAF + LINES)
        super().__init__([head, *rows, self._button, self._said])

    def lock(self, *choices: Any) -> None:
        """Lock in a letter or an option's words for each question; what is locked in cannot be changed afterwards.

        All in one string of letters, in one list, or each as an argument of its own.
        """
        understood = self._series.choices(choices[0] if len(choices) == 1 else choices)
        twice = [i for i, c in enumerate(understood, 1) if c is not None and self.choices[i - 1] is not None]
        if twice:
            raise LabError(f"Question {twice[0]} is already locked in. Give - for it, or run the cell above again.")
        for i, (part, choice) in enumerate(zip(self._series.parts, understood, strict=True)):
            if choice is None:
                continue
            self.choices[i] = choice
            if self._ours[i]:
                progress.predict(part.name, choice, part.is_right(choice))
            self._fields[i].value = choice
            self._fields[i].disabled = True
        locked = sum(choice is not None for choice in self.choices)
        self._said.value = f"Locked in: <b>{locked} of {len(self.choices)}</b> answers"
        self._button.disabled = locked == len(self.choices)

    def reveal(self) -> Answers:
        """Hold what was locked in against the answers; where nothing was, they are folded away."""
        return Answers(self._series, list(self.choices))

    def _press(self) -> None:
        chosen = [
            field.value if before is None else None for field, before in zip(self._fields, self.choices, strict=True)
        ]
        if not any(chosen):
            self._said.value = "Nothing new is chosen. Choose an answer in one of the lists above first."
        else:
            self.attempt(lambda: self.lock(chosen), self._said)

    def __repr__(self) -> str:
        return repr(Questions(self._series, self.choices))

    def _repr_html_(self) -> str:
        return Questions(self._series, self.choices)._repr_html_()
