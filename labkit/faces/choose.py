"""Ask a dozen questions at once, each with a list to choose from, as `Predict` asks one."""

from __future__ import annotations

from typing import Any

import ipywidgets

from labkit import content
from labkit.faces import current_lab, progress
from labkit.floor.errors import LabError
from labkit.grading.prediction import Series
from labkit.show.box import LINES, Box
from labkit.show.choices import Answers, Questions, asked
from labkit.show.keys import DEAF
from labkit.show.prediction import code, plain

OPEN = "choose …"


class Choose(Box):
    """Several questions at once: choose an answer to each, and lock them in, all together or some first.

    A lesson names one of the workbook's series: `Choose("twelve_situations")`. Without a mouse,
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
        super().__init__([ipywidgets.HTML(asked(self._series) + DEAF + LINES), *rows, self._button, self._said])

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
