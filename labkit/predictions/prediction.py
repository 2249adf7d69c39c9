"""What a prediction is: a question, and what to say to each answer. Plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    """An answer to choose. `reply` says, to whoever chose it and was wrong, under what idea it would be true."""

    text: str
    reply: str = ""


@dataclass(frozen=True)
class Prediction:
    """A question to answer before the ranks do.

    Args:
        name: unique in the workbook: `Predict("late_receiver")`.
        lesson: "02".
        question: in Markdown; it gives nothing away.
        options: what to choose from, two or more; every wrong one has a reply.
        answer: the text of the right option, or, without options, the right number.
        why: in Markdown, what to say to everybody once the ranks have answered; first the answer, then the reason.
        within: how far a number may be off, as a part of the right one.
        unit: of a number, such as "MiB".
    """

    name: str
    lesson: str
    question: str
    answer: str | float
    why: str
    options: tuple[Option, ...] = ()
    within: float = 0.2
    unit: str = ""

    def __post_init__(self) -> None:
        texts = [option.text for option in self.options]
        assert len(set(texts)) == len(texts) != 1, f"{self.name}: a prediction needs options that differ"
        if texts:
            assert self.answer in texts, f"{self.name}: {self.answer!r} is none of the options"
            silent = [o.text for o in self.options if o.text != self.answer and not o.reply]
            assert not silent, f"{self.name}: no reply to {silent}"
        else:
            assert isinstance(self.answer, (int, float)), f"{self.name}: without options the answer is a number"
