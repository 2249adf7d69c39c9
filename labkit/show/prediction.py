"""Show questions, one or a series, as they are asked, and as they are answered: folded where nothing was chosen."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Any

from labkit.floor.words import count
from labkit.grading.prediction import Prediction, Series
from labkit.show import markdown

_MARKED = re.compile(r"`([^`]*)`|(?<!\w)\*\*(?=\S)([^*`]+)(?<=\S)\*\*(?!\w)")


def bundle(shown: Any, meta: dict[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what IPython asks of a value: its text and its HTML, and `meta` as the output's metadata."""
    return {"text/plain": repr(shown), "text/html": shown._repr_html_()}, {"labkit": meta} if meta else {}


def nothing(number: bool = False) -> str:
    """Say what to do where no answer, or no number, was locked in."""
    what = "type a number" if number else "choose an answer"
    return f"No prediction was locked in. In a running notebook, {what} above, lock it in, and run this cell again."


class Question:
    """A question and what to choose from, where no widget shows them: nothing in it depends on the answer.

    >>> Question(Prediction("How many messages?", 6, "One each way for three pairs."))
    Predict: How many messages?
      Your answer is a number.
    """

    def __init__(self, prediction: Prediction, choice: str | float | None = None) -> None:
        self.prediction = prediction
        self._choice = choice

    def __repr__(self) -> str:
        locked = [] if self._choice is None else [f"Locked in: {plain(self.prediction.words(self._choice))}"]
        options = [f"  {letter}. {plain(option.text)}" for letter, option in self.prediction.lettered]
        return "\n".join([f"Predict: {self.prediction.question}", *(options or [f"  {self._wanted}"]), *locked])

    def _repr_html_(self) -> str:
        locked = "" if self._choice is None else f"<p>Locked in: <b>{code(self.prediction.words(self._choice))}</b></p>"
        items = [f"<li><b>{letter}.</b> {code(option.text)}</li>" for letter, option in self.prediction.lettered]
        options = f"<ul style='list-style-type: none'>{''.join(items)}</ul>" if items else f"<p>{self._wanted}</p>"
        return f"<div class='labkit-question'>{asked('Predict', self.prediction.question)}{options}{locked}</div>"

    @property
    def _wanted(self) -> str:
        return f"Your answer is a number{f', in {self.prediction.unit}' if self.prediction.unit else ''}."


class Answer:
    """The learner's choice, held against the answer: right, or the reply to that choice; then why.

    Where `choice` is None, nothing was locked in, and the answer is folded away. `first` was locked in when the
    question was first answered; `late` tells that the answer was there to read before the choice was locked in.
    `meta` goes with it into the notebook.
    """

    def __init__(
        self,
        prediction: Prediction,
        choice: str | float | None,
        first: str | float | None = None,
        late: bool = False,
        meta: dict[str, Any] | None = None,
    ) -> None:
        self.prediction, self.choice, self.meta = prediction, choice, meta
        self._first, self._late = first, late

    @property
    def said(self) -> str:
        """The choice and whether it is right, in a line; backticks mark code."""
        if self.choice is None:
            return nothing(number=not self.prediction.options)
        chose = f"You predicted {self.words(self.choice)}"
        if self._late:
            chose = f"You chose {self.words(self.choice)} when the answer was already there to read"
        if not self.prediction.is_right(self.choice):
            return f"✗ {chose}, but the answer is {self.short}."
        if self.choice != self.prediction.answer:
            return f"✓ {chose}. That is close enough: the answer is {self.short}."
        return f"✓ {chose}. That is right."

    @property
    def told(self) -> str:
        """What follows, as HTML; without a choice, the replies to all."""
        return "".join(f"{_bold(line)}{markdown.html(text)}" for line, text in self._told)

    @property
    def _told(self) -> list[tuple[str, str]]:
        """The paragraphs that follow: a line in bold, and Markdown under it; without a choice, replies to all."""
        p, why = self.prediction, self.prediction.why
        if self.choice is not None:
            first = self._first
            before = "" if first in (None, self.choice) else f"The first time you predicted {self.words(first)}."
            return [(before, p.reply(self.choice)), ("", why), ("", p.elsewhere)]
        wrong = [(f"{self.words(o.text)}?", o.reply) for o in p.options if o.text != p.answer]
        wrong += [(f"{self.words(trap.value)}?", trap.reply) for trap in p.traps]
        return [(f"The answer is {self.words(p.answer)}.", why), *wrong, ("", p.elsewhere)]

    @property
    def short(self) -> str:
        """The answer's letter, since `why` begins with the answer; a number as it is."""
        words = self.prediction.words(self.prediction.answer)
        return words[0] if self.prediction.options else words

    def words(self, choice: Any) -> str:
        """Write a choice as it stands within a sentence."""
        return self.prediction.words(choice).removesuffix(".")

    def __repr__(self) -> str:
        parts = [self.said, *(part for told in self._told for part in told)]
        return "\n\n".join(filter(None, parts))

    def _repr_html_(self) -> str:
        if self.choice is None:
            folded = f"<details><summary>The answer</summary>{self.told}</details>"
            return f"<div class='labkit-answer'>{_quiet(self.said)}{folded}</div>"
        return f"<div class='labkit-answer'>{_bold(self.said)}{self.told}</div>"

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return bundle(self, self.meta)


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
        return f"<div class='labkit-question'>{asked('Choose', self.series.question)}<ol>{''.join(items)}</ol></div>"


class Answers:
    """The learner's choices, held against the answers one by one; those still open stay open, unless all are.

    `choices` are what was locked in, one for each question; None where nothing was.
    """

    def __init__(self, series: Series, choices: Sequence[str | None], meta: dict[str, Any] | None = None) -> None:
        self.series, self.choices, self.meta = series, choices, meta

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
        return [(n, part.question, reply(part, choice)) for n, (part, choice) in each if every or choice is not None]

    def __repr__(self) -> str:
        return "\n\n".join([self.said, *(f"{n}. {plain(question)}\n{told}" for n, question, told in self._shown)])

    def _repr_html_(self) -> str:
        if self.said == nothing():
            folded = f"<details><summary>The answers</summary>{self.told}</details>"
            return f"<div class='labkit-answer'>{_quiet(self.said)}{folded}</div>"
        return f"<div class='labkit-answer'>{_bold(self.said)}{self.told}</div>"

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return bundle(self, self.meta)

    @property
    def told(self) -> str:
        """The questions and their replies, as HTML."""
        items = "".join(
            f"<li value='{n}' style='margin-bottom: 12px'>{code(question)}{markdown.html(told)}</li>"
            for n, question, told in self._shown
        )
        return f"<ol>{items}</ol>"


def reply(part: Prediction, choice: str | None) -> str:
    """Reply to a choice, in Markdown; where nothing was chosen, give the answer and a reply to every other option."""
    elsewhere = f"\n\n{part.elsewhere}" if part.elsewhere else ""
    if choice is None:
        others = [f"{part.words(o.text)}? {o.reply}" for o in part.options if o.text != part.answer]
        return "\n\n".join([f"**{part.words(part.answer)}.** {part.why}", *others]) + elsewhere
    if part.is_right(choice):
        return f"✓ **{part.words(choice)}.** {part.why}{elsewhere}"
    reply = next(option.reply for option in part.options if option.text == choice)
    return f"✗ **{part.words(choice)}.** {reply}\n\n**{part.words(part.answer)}.** {part.why}{elsewhere}"


def _bold(line: str) -> str:
    return f"<p><b>{code(line)}</b></p>" if line else ""


def _quiet(line: str) -> str:
    return f"<p style='font-size: 90%; opacity: 0.7'>{code(line)}</p>"


def asked(verb: str, question: str) -> str:
    """Return the question as HTML, behind what to do."""
    return markdown.html(f"**{verb}:** {question}")


def plain(text: str) -> str:
    """Return text for where nothing can be marked.

    >>> plain("`x` on **all** ranks, 2 * N * S bytes")
    'x on all ranks, 2 * N * S bytes'
    """
    return _MARKED.sub(lambda found: found[1] or found[2] or "", text)


def code(text: str) -> str:
    """Return text as HTML, with what stands in backticks as code and between two stars in bold; all else as it is.

    >>> code("`2**k` on **all** ranks, 2 * N * S < 3 bytes")
    '<code>2**k</code> on <b>all</b> ranks, 2 * N * S &lt; 3 bytes'
    """
    return _MARKED.sub(lambda found: f"<b>{found[2]}</b>" if found[2] else f"<code>{found[1]}</code>", escape(text))
