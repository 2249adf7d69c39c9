"""What a card says where its numbers would tell nothing."""

from __future__ import annotations

from typing import Any


def in_words(means: Any, words: str) -> Any:
    """Return what `means` returns; for a card that shows no numbers, what each rank ends with in words."""
    return lambda xs, **options: means(xs, **options) if any(xs) else [words] * len(xs)


def pictured(means: Any, drawn: Any) -> Any:
    """Return what `means` returns; for a card's picture, which brings dicts where inputs bring tuples, `drawn`'s."""
    return lambda xs, **options: (drawn if isinstance(xs[0], dict) else means)(xs, **options)


def no_numbers() -> list[tuple[()]]:
    """Return what a card draws then: no rank brings anything."""
    return [()] * 3
