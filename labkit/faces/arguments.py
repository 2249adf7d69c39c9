"""Check what a learner gives a lab's methods, and say what to give instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.floor import words
from labkit.floor.errors import LabError


def ranks(ranks: int | Sequence[int] | None, n: int) -> list[int]:
    """Return the ranks that were chosen, all where none was."""
    chosen = list(range(n)) if ranks is None else [ranks] if isinstance(ranks, int) else list(ranks)
    if not chosen or not all(isinstance(r, int) and 0 <= r < n for r in chosen):
        raise LabError(f"ranks={ranks!r}: this lab has the ranks 0 to {n - 1}. Choose among them.")
    return chosen


def text(like: str, *given: object) -> None:
    """Refuse a value of the notebook's where text is wanted that the ranks read, or a name; `like` is such a call."""
    for value in given:
        if not isinstance(value, str):
            what = f"{like.partition('(')[0]} takes text, and was given a value ({type(value).__name__})"
            raise LabError(f"{what}. Put quotes around it, as in {like}.")


def quoted(what: str, expressions: Sequence[object]) -> None:
    """Refuse to draw nothing, or anything but text that the ranks read; `what` says what to give, with a call."""
    if not expressions or not all(isinstance(expression, str) for expression in expressions):
        raise LabError(f"Say in quotes {what}.")


def against(expressions: Sequence[str], every: int, over: str | Sequence[str] | None, unit: str) -> list[str]:
    """Return for each expression the name of the list to draw it against; none where that is steps."""
    if over is None:
        if unit:
            raise LabError(f'unit={unit!r} is that of a list to draw against. Name it: over="seconds", unit="s".')
        return []
    names = [over] * len(expressions) if isinstance(over, str) else list(over) if isinstance(over, Sequence) else [over]
    if not all(isinstance(name, str) for name in names):
        raise LabError('over= takes the name of a list on the ranks in quotes, such as over="seconds".')
    if len(names) != len(expressions):
        raise LabError(
            f"over= names {words.count(len(names), 'list')} for {words.count(len(expressions), 'expression')}. "
            "Give one name for all of them, or one for each."
        )
    if every != 1:
        raise LabError(f"every={every} counts steps, and over= draws against something else. Leave one of them out.")
    return names


def crosses(name: str, value: Any) -> None:
    """Refuse a value that would be another thing on the ranks, or nothing at all."""
    if isinstance(value, (list, tuple, dict)):
        for entry in [*value, *value.values()] if isinstance(value, dict) else value:
            crosses(name, entry)
    elif not isinstance(value, (type(None), bool, int, float, complex, str, bytes)) and (
        type(value).__module__ != "numpy" or value.dtype == object
    ):
        raise LabError(
            f"{name}: a {type(value).__name__} cannot cross to the ranks. Push numbers, text or arrays, "
            "or make it in a %%px cell."
        )


def all_have(expression: str, errors: dict[int, str]) -> None:
    """Refuse an expression that some ranks lack: `errors` says why, by rank."""
    if errors:
        raise LabError(
            f"{words.ranks(errors)}: {next(iter(errors.values()))}. "
            f"Make {expression!r} on every rank in a %%px cell first; lab.look({expression!r}) shows who has it."
        )
