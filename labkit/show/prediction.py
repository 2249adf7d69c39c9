"""A prediction as it is asked, which gives nothing away, and as it is answered: folded where nothing was chosen."""

from __future__ import annotations

import re
from html import escape
from typing import Any

from labkit.grading.prediction import Prediction
from labkit.show import markdown

_MARKED = re.compile(r"`([^`]*)`|(?<!\w)\*\*(?=\S)([^*`]+)(?<=\S)\*\*(?!\w)")


def nothing(number: bool = False) -> str:
    """Say what to do where no answer, or no number, was locked in."""
    what = "Type a number" if number else "Choose an answer"
    return f"You have not locked in a prediction. {what} above, lock it in, and run this cell again."


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
        return f"<div class='labkit-question'>{asked(self.prediction)}{options}{locked}</div>"

    @property
    def _wanted(self) -> str:
        return f"Your answer is a number{f', in {self.prediction.unit}' if self.prediction.unit else ''}."


class Answer:
    """The learner's choice, held against the answer: right, or the reply to that choice; then why.

    Args:
        prediction: the question.
        choice: what was locked in; None where nothing was: then the answer is there, folded away.
        first: what was locked in when the question was first answered.
        late: whether the answer was there, folded away, before the choice was locked in.
    """

    def __init__(
        self, prediction: Prediction, choice: str | float | None, first: str | float | None = None, late: bool = False
    ) -> None:
        self.prediction, self.choice = prediction, choice
        self._first, self._late = first, late

    @property
    def said(self) -> str:
        """The choice and whether it is right, in a line; backticks mark code."""
        if self.choice is None:
            return nothing(number=not self.prediction.options)
        chose = f"You predicted {self._words(self.choice)}"
        if self._late:
            chose = f"You chose {self._words(self.choice)} when the answer was already there to read"
        if not self.prediction.is_right(self.choice):
            return f"✗ {chose}, but the answer is {self._short}."
        if self.choice != self.prediction.answer:
            return f"✓ {chose}. That is close enough: the answer is {self._short}."
        return f"✓ {chose}. That is right."

    @property
    def _told(self) -> list[tuple[str, str]]:
        """The paragraphs that follow: a line in bold, and Markdown under it; without a choice, replies to all."""
        p, why = self.prediction, self.prediction.why
        if self.choice is not None:
            first = self._first
            before = "" if first in (None, self.choice) else f"The first time you predicted {self._words(first)}."
            return [(before, p.reply(self.choice)), ("", why), ("", p.elsewhere)]
        wrong = [(f"{self._words(o.text)}?", o.reply) for o in p.options if o.text != p.answer]
        wrong += [(f"{self._words(trap.value)}?", trap.reply) for trap in p.traps]
        return [(f"The answer is {self._words(p.answer)}.", why), *wrong, ("", p.elsewhere)]

    @property
    def _short(self) -> str:
        """The answer's letter, since `why` begins with the answer; a number as it is."""
        words = self.prediction.words(self.prediction.answer)
        return words[0] if self.prediction.options else words

    def _words(self, choice: Any) -> str:
        return self.prediction.words(choice).removesuffix(".")

    def __repr__(self) -> str:
        parts = [self.said, *(part for told in self._told for part in told)]
        return "\n\n".join(filter(None, parts))

    def _repr_html_(self) -> str:
        told = "".join(f"{_bold(line)}{markdown.html(text)}" for line, text in self._told)
        folded = told if self.choice is not None else f"<details><summary>The answer</summary>{told}</details>"
        return f"<div class='labkit-answer'>{_bold(self.said)}{folded}</div>"


def _bold(line: str) -> str:
    return f"<p><b>{code(line)}</b></p>" if line else ""


def asked(prediction: Prediction) -> str:
    """Return the question as HTML."""
    return markdown.html(f"**Predict:** {prediction.question}")


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
