"""Ask a question, or a dozen at once, to answer before the ranks do: predictions that can be locked in.

It works without a front end, so that tests and unattended runs can drive it.
"""

from __future__ import annotations

from typing import Any

from labkit import content
from labkit.faces import current_lab, progress
from labkit.floor.errors import LabError
from labkit.grading.prediction import Prediction, Series
from labkit.show import view
from labkit.show.prediction import Answer, Answers, Question, Questions


class Predict(view.View):
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
        super().__init__(kind="predict", data={**view.predict(self._prediction), "kernel": True})

    def lock(self, choice: str | float) -> None:
        """Lock in an option by its letter or its words, or a number; it cannot be changed afterwards."""
        understood = self._prediction.choice(choice)
        if self.choice is not None:
            raise LabError("This prediction is already locked in. Run its cell again to give a new answer.")
        self.choice, self._late = understood, self._shown
        if self._ours:
            progress.predict(self._prediction.name, understood, self._prediction.is_right(understood))
        texts = [option.text for option in self._prediction.options]
        locked = {
            "choice": texts.index(str(understood)) if texts else None,
            "words": self._prediction.words(understood),
        }
        self.data = {**self.data, "locked": locked}

    def reveal(self) -> Answer:
        """Hold what was locked in against the answer; where nothing was, the answer is folded away."""
        first = progress.predicted().get(self._prediction.name, {}).get("first") if self._ours else None
        self._shown = True
        return Answer(self._prediction, self.choice, first, self._late, self._named("answer"))

    def heard(self, said: dict[str, Any]) -> None:
        """Lock in the option of this letter, or the number that was typed."""
        options, choice = dict(self._prediction.lettered), said["choice"]
        self.lock(options[choice].text if options else choice)

    @property
    def meta(self) -> dict[str, Any] | None:
        return self._named("predict")

    def _named(self, kind: str) -> dict[str, Any] | None:
        return {"kind": kind, "name": self._prediction.name} if self._ours else None

    def __repr__(self) -> str:
        return repr(Question(self._prediction, self.choice))

    def _repr_html_(self) -> str:
        return Question(self._prediction, self.choice)._repr_html_()


class Choose(view.View):
    """Several questions at once: choose an answer to each, and lock them in, all together or some first.

    A lesson names one of the workbook's series: `Choose("eight_situations")`. Without a mouse,
    `lock("b a - d")` or `lock("b", "a", "-", "d")` chooses by letters; `-` leaves a question open. `choices` are those
    that were locked in, one for each question; None where none was.

    What is shown, this widget's state included, is the same whatever the answers: only `reveal()` tells them.
    """

    def __init__(self, series: str | Series) -> None:
        found = content.series.find(series) if isinstance(series, str) else series
        self._known = content.series.every().get(found.name) is found  # one of the workbook's
        self._ours = [content.predictions.every().get(part.name) is part for part in found.parts]  # whose answers count
        self._series = found.on(current_lab.backend())
        self.choices: list[str | None] = [None] * len(self._series.parts)
        data = {**view.choose(self._series), "kernel": True, "locked": [None] * len(self.choices)}
        super().__init__(kind="choose", data=data)

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
        locked = [
            None if choice is None else [option.text for option in part.options].index(choice)
            for part, choice in zip(self._series.parts, self.choices, strict=True)
        ]
        self.data = {**self.data, "locked": locked}

    def reveal(self) -> Answers:
        """Hold what was locked in against the answers; where nothing was, they are folded away."""
        return Answers(self._series, list(self.choices), self._named("answers"))

    def heard(self, said: dict[str, Any]) -> None:
        """Lock in the option of this letter for each question, None where one stays open."""
        parts = zip(self._series.parts, said["choices"], strict=True)
        self.lock([None if choice is None else dict(part.lettered)[choice].text for part, choice in parts])

    @property
    def meta(self) -> dict[str, Any] | None:
        return self._named("choose")

    def _named(self, kind: str) -> dict[str, Any] | None:
        return {"kind": kind, "name": self._series.name} if self._known else None

    def __repr__(self) -> str:
        return repr(Questions(self._series, self.choices))

    def _repr_html_(self) -> str:
        return Questions(self._series, self.choices)._repr_html_()
