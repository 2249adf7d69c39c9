"""Show a learner's messages beside the workbook's, step by step, with what differs marked. No torch, no cluster."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from labkit.floor.words import count
from labkit.plot import svg
from labkit.show import markdown
from labkit.show.film import Film
from labkit.show.steps import Player
from labkit.theory.message_diff import differences, told
from labkit.theory.record import Record
from labkit.theory.replay import Replay

TOLD = 4  # differences that are told in a sentence of their own


class Beside(Player):
    """Two records played as one: yours above, the workbook's below.

    `said` is what became of the learner's run, `next_` what to do now, both in Markdown. A message that differs is
    dashed and has a word beside it; its text lists the steps of both. `same` is whether no message differs, `fine`
    whether the learner's run went well all the same.
    """

    def __init__(self, name: str, mine: Record, right: Record, said: str, next_: str, fine: bool = False) -> None:
        replays = Replay(mine), Replay(right)
        found = differences(*replays)
        marks = [
            {id(m): d.mark for d in found if (m := d.mine)},
            {id(m): d.mark for d in found if (m := d.right) and d.mine is None},
        ]
        self.films = [Film(r, m, p) for r, m, p in zip((mine, right), marks, replays, strict=True)]
        self.same = not found
        self._titles = f"your {name}", "the workbook's"
        self._became = said
        self._differ = told(found)
        self._next = next_
        self._fine = fine
        super().__init__(max(film.count for film in self.films), markdown.html(self.summary))

    @property
    def summary(self) -> str:
        """The learner's run in Markdown: what became of it, how its messages differ, and what to do now."""
        if self.same:
            differ = "It sends the same messages as the workbook's, step by step."
        else:
            more = len(self._differ) - TOLD
            rest = [f"And {count(more, 'more difference')}."] * (more > 0)
            which = ", though other messages can be just as right" * self._fine
            differ = " ".join([f"What differs from the workbook's{which}:", *self._differ[:TOLD], *rest])
        return "\n\n".join(filter(None, [self._became, differ, self._next]))

    def frame(self, step: int) -> str:
        """Return both pictures of the step, one above the other."""
        return self._stacked([svg.img(film.svg(at := min(step, film.count)), film.told(at)) for film in self.films])

    def _stacked(self, pictures: Sequence[str]) -> str:
        titled = zip(self._titles, pictures, strict=True)
        return "".join(f"<div><b>{escape(title)}</b></div><div>{picture}</div>" for title, picture in titled)

    def __repr__(self) -> str:
        lines = [self.summary.replace("\n\n", "\n")]
        for k in range(self.count):
            for title, film in zip(self._titles, self.films, strict=True):
                if k < film.count:
                    lines.append(f"{title}, {film.told(k)}")
        notes = dict.fromkeys(note for film in self.films for note in film.notes)
        return "\n".join([*lines, *notes])

    def _repr_html_(self) -> str:
        return self.data["head"] + self._stacked([svg.img(film.still, repr(film)) for film in self.films])
