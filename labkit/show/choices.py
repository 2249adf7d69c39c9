"""A series of questions as it is asked, and as it is answered: a reply to each choice, and how many were right."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.floor.words import count
from labkit.grading.prediction import Prediction, Series
from labkit.show import markdown
from labkit.show.prediction import code, nothing, plain


class Questions:
    """The questions and what to choose from, where no widget shows them: nothing in it depends on the answers."""

    def __init__(self, series: Series, choices: Sequence[str | None]) -> None:
        self.series = series
        self._choices = choices

    def __repr__(self) -> str:
        lines = [f"Choose: {plain(self.series.question)}"]
        for number, (part, choice) in enumerate(zip(self.series.parts, self._choices, strict=True), 1):
            locked = [] if choice is None else [f"    Locked in: {plain(part.words(choice))}"]
            options = [f"    {letter}. {plain(option.text)}" for letter, option in part.lettered]
            lines += [f"{number}. {plain(part.question)}", *options, *locked]
        return "\n".join([*lines, f"No mouse? {self.series.how_to_lock}"])

    def _repr_html_(self) -> str:
        items = []
        for part, choice in zip(self.series.parts, self._choices, strict=True):
            options = "<br>".join(f"<b>{letter}.</b> {code(option.text)}" for letter, option in part.lettered)
            locked = "" if choice is None else f"<br>Locked in: <b>{code(part.words(choice))}</b>"
            items.append(f"<li style='margin-bottom: 8px'>{code(part.question)}<br>{options}{locked}</li>")
        return f"<div class='labkit-question'>{asked(self.series)}<ol>{''.join(items)}</ol></div>"


class Answers:
    """The learner's choices, held against the answers one by one; those still open stay open, unless all are.

    `choices` are what was locked in, one for each question; None where nothing was.
    """

    def __init__(self, series: Series, choices: Sequence[str | None]) -> None:
        self.series = series
        self.choices = choices

    @property
    def said(self) -> str:
        """The number of right ones, in a line."""
        chosen = [(p, c) for p, c in zip(self.series.parts, self.choices, strict=True) if c is not None]
        if not chosen:
            return nothing()
        right = sum(p.is_right(c) for p, c in chosen)
        open_ = len(self.choices) - len(chosen)
        rest = (
            f" {count(open_, 'question')} still open: choose above, lock in, and run this cell again." if open_ else ""
        )
        return f"{right} of {len(chosen)} right.{rest}"

    @property
    def _shown(self) -> list[tuple[int, str, str]]:
        """Number, question and a reply in Markdown: of each that was answered, or of all where none was."""
        every = all(choice is None for choice in self.choices)
        each = enumerate(zip(self.series.parts, self.choices, strict=True), 1)
        return [(n, part.question, _told(part, choice)) for n, (part, choice) in each if every or choice is not None]

    def __repr__(self) -> str:
        return "\n\n".join([self.said, *(f"{n}. {plain(question)}\n{told}" for n, question, told in self._shown)])

    def _repr_html_(self) -> str:
        items = "".join(
            f"<li value='{n}' style='margin-bottom: 12px'>{code(question)}{markdown.html(told)}</li>"
            for n, question, told in self._shown
        )
        listed = f"<ol>{items}</ol>"
        folded = f"<details><summary>The answers</summary>{listed}</details>" if self.said == nothing() else listed
        return f"<div class='labkit-answer'><p><b>{self.said}</b></p>{folded}</div>"


def _told(part: Prediction, choice: str | None) -> str:
    """Reply to a choice, in Markdown; where nothing was chosen, give the answer and a reply to every other option."""
    elsewhere = f"\n\n{part.elsewhere}" if part.elsewhere else ""
    if choice is None:
        others = [f"{part.words(o.text)}? {o.reply}" for o in part.options if o.text != part.answer]
        return "\n\n".join([f"**{part.words(part.answer)}.** {part.why}", *others]) + elsewhere
    if part.is_right(choice):
        return f"✓ **{part.words(choice)}.** {part.why}{elsewhere}"
    reply = next(option.reply for option in part.options if option.text == choice)
    return f"✗ **{part.words(choice)}.** {reply}\n\n**{part.words(part.answer)}.** {part.why}{elsewhere}"


def asked(series: Series) -> str:
    """Return the series' own question as HTML."""
    return markdown.html(f"**Choose:** {series.question}")
