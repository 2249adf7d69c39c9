"""Describe a question to answer before the ranks do, what to say to each answer, and a series of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from string import ascii_lowercase
from textwrap import dedent
from typing import Any

from labkit.floor.errors import LabError
from labkit.grading.prose import unwrapped

SEEN = "(Seen on one H200 that four ranks shared: NCCL 2.28.9, torch 2.11.)"  # what is told of a GPU, and was run there
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?")
COMMAS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+(?!\d)[^,]*")  # those of thousands, as in 1,170
ROUNDING = 0.06  # how far a number may be off a trap's and still come from it
SLIPS = {  # by how much a number is off, and what often does that
    2: "Both directions of a link, or a factor that was left out?",
    8: "Bits for bytes?",
    1000: "A thousand between two units, such as µs and ms, or MB and GB?",
    1e6: "A million between two units, such as µs and s, or MB and bytes?",
}


@dataclass(frozen=True)
class Option:
    """An answer to choose: plain text, in which `backticks` mark code.

    `reply`, in Markdown, says to a learner who chose it and was wrong under what idea it would be true.
    """

    text: str
    reply: str = ""


@dataclass(frozen=True)
class Trap:
    """A wrong number that a known slip leads to, in the unit of the answer, and what to say of it, in Markdown.

    >>> Trap(2.1, "This counts one direction only.").caught(2.05)
    True
    """

    value: float
    reply: str

    def caught(self, number: float) -> bool:
        """Tell whether a number is this one, give or take what rounding on a napkin does."""
        return abs(number - self.value) <= ROUNDING * abs(self.value)


@dataclass(frozen=True)
class Prediction:
    """A question to answer before the ranks do.

    Args:
        question: in Markdown; it gives nothing away.
        options: what to choose from, two or more; every wrong one has a reply.
        answer: the text of the right option, or, without options, the right number.
        why: in Markdown, what to say to all once the ranks have answered; first the answer, then the reason.
        within: how far a number may be off, as a part of the right one.
        unit: of a number, such as "MiB".
        traps: wrong numbers that have a reply of their own.
        elsewhere: in Markdown, a sentence or two on what the other backend does, told after `why`; it says whether
            that was run, and where, or only read.
        nccl: the question as ranks with NCCL answer it, with the same options; None where the same is true there.
        name: that of its variable in the lesson's module, unique in the workbook: `Predict("late_receiver")`.
        lesson: that of its module, such as "02".
    """

    question: str
    answer: str | float
    why: str
    options: tuple[Option, ...] = ()
    within: float = 0.2
    unit: str = ""
    traps: tuple[Trap, ...] = ()
    elsewhere: str = ""
    nccl: Prediction | None = None
    name: str = ""
    lesson: str = ""

    def on(self, backend: str) -> Prediction:
        """Return the question as ranks with this backend answer it, "gloo" or "nccl"; what is asked is the same."""
        there = self.nccl if backend == "nccl" else None
        return self if there is None else replace(there, name=self.name, lesson=self.lesson)

    def choice(self, said: str | float) -> str | float:
        """Read what is meant: an option by its letter or its words, or a number with or without its unit.

        >>> asked = Prediction("Which?", "two", "", (Option("one", "No."), Option("two")))
        >>> asked.choice("b"), asked.choice("One")
        ('two', 'one')
        >>> Prediction("How much?", 24, "", unit="MiB").choice("2.4e1 MiB")
        24.0

        A comma parts thousands, and a number is not negative unless the answer or a trap is.
        """
        words = str(said).strip().removesuffix(".").replace("`", "").lower()
        if not self.options:
            digits = words.removesuffix(self.unit.lower()).strip()
            plain = digits.replace(",", "").replace("_", "")
            if not NUMBER.fullmatch(plain):
                unit = f", in {self.unit}" if self.unit else ""
                raise LabError(f"{str(said)!r} is not a number. Write one such as 24 or 1.5e6{unit}.")
            if "," in digits and not COMMAS.fullmatch(digits):
                point = digits.replace(",", ".")
                instead = f"Write {point} if you mean that" if NUMBER.fullmatch(point) else "Leave out the commas"
                raise LabError(f"{str(said)!r} has a comma, which parts thousands here, as in 1,170. {instead}.")
            number = float(plain)
            if number < 0 <= min([float(self.answer), *(trap.value for trap in self.traps)]):
                raise LabError(f"{str(said)!r} is negative, and what is asked for is not. Write a number such as 24.")
            return number
        for option in self.options:
            if option.text.replace("`", "").lower().removesuffix(".") == words:
                return option.text
        if len(words) == 1 and words in ascii_lowercase[: len(self.options)]:
            return self.options[ascii_lowercase.index(words)].text
        known = [f"{letter}. {option.text}" for letter, option in self.lettered]
        raise LabError("\n".join([f'{str(said)!r} is not one of the options. Choose a letter: lock("b").', *known]))

    def is_right(self, choice: str | float) -> bool:
        """Tell whether a choice, as `choice()` returns it, is the answer; a number may be off by `within`."""
        if isinstance(choice, str) or isinstance(self.answer, str):
            return choice == self.answer
        return abs(choice - self.answer) <= self.within * abs(self.answer) * (1 + 1e-9)

    def reply(self, choice: str | float) -> str:
        """Answer a wrong choice: the option's own reply or the trap's, else by how much the number is off.

        >>> asked = Prediction("How long?", 40.0, "", unit="ms", traps=(Trap(20, "One way only."),))
        >>> asked.reply(20.4), asked.reply(320)
        ('One way only.', 'Your number is 8 times too large. Bits for bytes?')
        """
        if self.is_right(choice):
            return ""
        if isinstance(choice, str) or isinstance(self.answer, str):
            return next((option.reply for option in self.options if option.text == choice), "")
        caught = [trap for trap in self.traps if trap.caught(choice)]
        if caught:
            return min(caught, key=lambda trap: abs(choice - trap.value)).reply
        if not choice or (choice < 0) != (self.answer < 0) or not self.answer:
            return ""
        off = max(choice / self.answer, self.answer / choice)
        what = "large" if abs(choice) > abs(self.answer) else "small"
        slip = [hint for factor, hint in SLIPS.items() if abs(off - factor) <= ROUNDING * factor]
        return " ".join([f"Your number is {float(f'{off:.2g}'):,.10g} times too {what}.", *slip])

    def words(self, choice: str | float) -> str:
        """Write a choice: "b. both hold the sum", "24 MiB"; an option of an earlier wording has no letter."""
        if isinstance(choice, str):
            known = {option.text: f"{letter}. {option.text}" for letter, option in self.lettered}
            return known.get(choice, choice)
        return f"{choice:,.10g} {self.unit}".strip()

    @property
    def lettered(self) -> list[tuple[str, Option]]:
        """The options with their letters."""
        return list(zip(ascii_lowercase, self.options, strict=False))


@dataclass(frozen=True)
class Series:
    """Several questions with options that are asked together, in a table; each has its own answer and its replies.

    >>> one = Prediction("Rank 0 knows it:", "send", "Send it.", (Option("send"), Option("recv", "No.")))
    >>> Series("What does it?", (one, one)).choices("b -")
    ['recv', None]
    """

    question: str
    parts: tuple[Prediction, ...]
    name: str = ""
    lesson: str = ""

    def on(self, backend: str) -> Series:
        """Return the questions as ranks with this backend answer them."""
        return replace(self, parts=tuple(part.on(backend) for part in self.parts))

    @property
    def how_to_lock(self) -> str:
        """The sentence that says what to type; its letters have nothing to do with the answers."""
        letters = " ".join("abcd"[i % 3] if i % 4 else "-" for i in range(len(self.parts)))
        return f'Give a letter for each, and - for one to leave open, such as lock("{letters}").'

    def choices(self, said: str | Sequence[str | None]) -> list[str | None]:
        """Read one choice for each question: "b a -" or ["b", "a", None], where - or None leaves one open."""
        each = said.split() if isinstance(said, str) else list(said)
        if len(each) != len(self.parts):
            raise LabError(f"There are {len(self.parts)} questions, and this is for {len(each)}. {self.how_to_lock}")
        return [None if c in (None, "", "-") else str(p.choice(c)) for p, c in zip(self.parts, each, strict=True)]


MARKS = re.compile(r"^(\( \)|\(x\)|=) ", re.M)
NUMERIC = re.compile(r"(?P<number>\S+)(?: (?!\+- )(?P<unit>.+?))?(?: \+- (?P<within>[\d.]+) %)?")


def ask(text: str) -> Prediction:
    """Read a question, its answers and what to say to each, from text.

    >>> asked = ask(\"\"\"
    ... How many MiB does each of four ranks send?
    ... = 3 MiB +- 5 %
    ... ( ) 4
    ...     > It keeps its own part: no rank sends that.
    ... Why: It sends what the three others lack.
    ... \"\"\")
    >>> asked.answer, asked.unit, asked.traps[0].reply
    (3.0, 'MiB', 'It keeps its own part: no rank sends that.')

    First comes the question. A line `(x) …` is the right option and `( ) …` a wrong one, with its reply below it after
    `>`. A line `= …` is the right number, with its unit and how far an answer may be off (20 % by default); then
    `( ) …` are numbers that known slips lead to. `Why: …` and `Elsewhere: …` follow, and `On NCCL: …` with the answer
    there and what else differs, in the same form. A reply, a reason and a question may have paragraphs.
    """
    text, _, there = text.partition("\nOn NCCL: ")
    question, marked, why, elsewhere = _parts(text)
    right = [body for mark, body, _ in marked if mark != "( )"]
    assert len(right) == 1, f"one answer is right, in\n{text}"
    number = NUMERIC.fullmatch(right[0]) if marked[0][0] == "=" else None
    if number:
        known: dict[str, Any] = {
            "answer": float(number["number"]),
            "unit": number["unit"] or "",
            "within": float(number["within"] or 20) / 100,
            "traps": tuple(Trap(float(body), reply) for mark, body, reply in marked if mark == "( )"),
        }
    else:
        known = {"answer": right[0], "options": tuple(Option(body, reply) for _, body, reply in marked)}
    asked = Prediction(question, why=why, elsewhere=elsewhere, **known)
    if not there:
        return asked
    answer, other, why, elsewhere = _parts(there)
    replies = {o.text: o.reply for o in asked.options} | {body: reply for _, body, reply in other} | {answer: ""}
    options = tuple(Option(o.text, replies.pop(o.text)) for o in asked.options)
    assert number or not replies, f"there are no such options: {list(replies)}, in\n{text}"
    changed = replace(asked, answer=float(answer) if number else answer, options=options, why=why, elsewhere=elsewhere)
    return replace(asked, nccl=changed)


def series(question: str, **parts: str) -> Series:
    """Ask several questions in one table; each part's name comes with its text, as `ask` reads it."""
    return Series(unwrapped(question), tuple(replace(ask(text), name=name) for name, text in parts.items()))


def _parts(text: str) -> tuple[str, list[tuple[str, str, str]], str, str]:
    """Split into what comes first, the marked lines with their marks and replies, the reason, and the other backend."""
    text, _, why = text.partition("\nWhy: ")
    why, _, elsewhere = why.partition("\nElsewhere: ")
    first, *rest = MARKS.split(text)
    marked = []
    for mark, body in zip(rest[::2], rest[1::2], strict=True):
        body, _, reply = body.partition("\n    > ")
        marked.append((mark, unwrapped(body), unwrapped(dedent(f"    {reply}"))))
    return unwrapped(first), marked, unwrapped(why), unwrapped(elsewhere)
