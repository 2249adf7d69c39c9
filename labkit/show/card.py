"""Show an exercise on a card, its hints, and code to take over."""

from __future__ import annotations

from functools import cached_property
from html import escape
from typing import Any

from labkit.grading.exercise import Exercise
from labkit.grading.inputs import Case
from labkit.plot import flow as picture
from labkit.plot.flow import Drawing
from labkit.plot.sheet import CARD
from labkit.plot.tiles import flat
from labkit.show import markdown, meaning
from labkit.show.arrows import arrows
from labkit.show.picture import Picture
from labkit.show.verdict import options, written

STATES = {"not attempted": "○ not attempted yet", "tried": "◐ tried", "solved": "● solved"}


class Card(Picture):
    """An exercise: what to do, how hard and how long it is, what should become of an input, how it stands."""

    def __init__(self, exercise: Exercise, state: str = "not attempted", next_: str = "") -> None:
        self.exercise = exercise
        self.state = state
        self._next = next_

    @property
    def facts(self) -> str:
        """Its difficulty, its minutes and its state: "●●○ · about 15 minutes · ○ not attempted yet"."""
        e = self.exercise
        return f"{'●' * e.difficulty}{'○' * (3 - e.difficulty)} · about {e.minutes} minutes · {STATES[self.state]}"

    def __repr__(self) -> str:
        statement, next_ = (text.strip() for text in (self.exercise.statement, self._next))
        return "\n".join([f"Exercise: {self.exercise.title}", self.facts, statement, *self._example, next_])

    def _repr_html_(self) -> str:
        example = f"<code>{escape(self._example[0])}</code>" if self._nothing_brought else super()._repr_html_()
        level = f"difficulty {self.exercise.difficulty} of 3"
        return (
            "<div class='labkit-card' style='border: 1px solid #8a8a84; border-radius: 6px; padding: 8px 16px'>"
            f"<div style='font-size: 110%'><b>Exercise: {escape(self.exercise.title)}</b></div>"
            f"<div title='{level}'>{escape(self.facts)}</div>"
            f"{markdown.html(self.exercise.statement)}<div style='margin: 6px 0'>{example}</div>"
            f"<div>{markdown.html(self._next)}</div></div>"
        )

    @cached_property
    def case(self) -> Case:
        """The input that is drawn: a readable one for three ranks where they do."""
        if self.exercise.picture is not None:
            drawn = self.exercise.picture()
            return drawn if isinstance(drawn, Case) else Case(drawn)
        ranks = self.exercise.ranks
        return next(iter(self.exercise.inputs(3 if 3 in ranks else max(ranks))))

    @property
    def _nothing_brought(self) -> bool:
        """Whether the function gets options only, the same on all ranks: a call tells all, and a picture nothing."""
        return all(isinstance(x, tuple) and not x for x in self.case.xs)

    @property
    def _example(self) -> list[str]:
        if self._nothing_brought:
            return [f"{self._call} → {written(self._wants[0])}"]
        sides = zip(self.case.xs, self._wants, strict=True)
        return [f"rank {r} │ {written(x)} → {written(w)}" for r, (x, w) in enumerate(sides)]

    @cached_property
    def _wants(self) -> list[Any]:
        return list(self.exercise.means(list(self.case.xs), **self.case.options))

    def _drawn(self) -> Any:
        case = self.case
        columns = [meaning.before(case), meaning.after(self.exercise.means, case, self._wants)]
        needs = meaning.sources(self.exercise.means, case, self._wants)
        found, legend = arrows(needs, [len(flat(x)) for x in columns[0]])
        notes = [*meaning.shapes(case.xs), *legend]
        return picture.draw(Drawing(["before", "after"], columns, found, notes, code=self._call, room=CARD))

    @property
    def _call(self) -> str:
        """The call of the example: "tree_broadcast(x, root=0)"."""
        names = [name for name in self.exercise.arguments if name not in self.case.options]
        given = [options(self.case)] if self.case.options else []
        return f"{self.exercise.name}({', '.join([*names, *given])})"

    @property
    def alt(self) -> str:
        return " ".join([f"An example of {self.exercise.name}, what each rank brings and ends with.", *self._example])


class Note:
    """A few sentences, and perhaps code, that display themselves."""

    def __init__(self, text: str, code: str = "") -> None:
        self.text = text
        self.code = code

    def __repr__(self) -> str:
        return "\n\n".join(filter(None, [self.text, self.code.rstrip()]))

    def _repr_html_(self) -> str:
        code = f"<pre style='margin: 6px 0'>{escape(self.code.rstrip())}</pre>"
        # Folded: where a notebook listens, the next cell has it too.
        folded = f"<details><summary>The code</summary>{code}</details>" if self.code else ""
        return f"<div class='labkit-note'>{markdown.html(self.text)}{folded}</div>"
