"""What a rank computes, by names that the learner gives: `lab.last.timeline()` draws it above what it communicates.

    with span("backward"):
        loss.backward()

    with span.layers(model):
        tiny.loss(model, batch).backward()

Outside of a cell, in a program that torchrun runs for instance, nothing is recorded.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from types import TracebackType
from typing import Any

from torch import nn

from labkit.floor.errors import LabError
from labkit.rank import backward_pass, layers, stream
from labkit.rank.torch_internals import backward_number
from labkit.theory.log import Span

__all__ = ["span"]

LIMIT = 2000  # spans of one cell that are kept: the last ones


class Kept:
    """The spans of the cell that runs, or that ran last."""

    def __init__(self, on: bool = False, rank: int = 0) -> None:
        self.on, self.rank = on, rank
        self.spans: deque[Span] = deque(maxlen=LIMIT)
        self.made = 0
        self.stood: deque[tuple[float, float]] = deque(maxlen=LIMIT)  # at the end of a backward pass

    def begin(self, name: str, of: str) -> Span | None:
        """A span begins, if a cell runs."""
        global _used
        if not self.on:
            return None
        _used = True
        span = Span(self.rank, name, of, time.perf_counter())
        self.spans.append(span)
        stream.came(span)
        self.made += 1
        if backward_number() >= 0:
            backward_pass.at_end(self.passed)
        return span

    def passed(self, computed: float, done: float) -> None:
        """A backward pass has ended, with what waited behind it; told several times, it is one."""
        if not self.stood or computed > self.stood[-1][1]:
            self.stood.append((computed, done))


_kept = Kept()
_used = False  # whether this rank has ever recorded a span, or a cell speaks of them


def begin(rank: int, code: str) -> None:
    """A cell starts: forget the last one."""
    global _kept, _used
    backward_pass.forget()
    _used = _used or "span" in code
    _kept = Kept(True, rank)


def end() -> None:
    """A cell has ended."""
    _kept.on = False


def wanted() -> bool:
    """Whether spans are used at all: what is recorded for their sake costs nothing before."""
    return _used


def kept() -> Kept:
    """What is there of the last cell."""
    return _kept


@contextlib.contextmanager
def paused() -> Any:
    """What runs inside leaves no spans."""
    mine, on = _kept, _kept.on
    mine.on = False
    try:
        yield
    finally:
        mine.on = on


class _Open:
    """One use of `with span(name)`."""

    __slots__ = ("name", "span")

    def __init__(self, name: str) -> None:
        self.name = name
        self.span: Span | None = None

    def __enter__(self) -> None:
        self.span = _kept.begin(self.name, _pass(self.name))

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        if self.span is not None:
            stream.ended(self.span)
            self.span.error = "" if kind is None else kind.__name__


class Spans:
    """`with span("backward"): …` records what the rank computes, and from when to when; spans may lie in one another.

    `with span.layers(model): …` does so for every layer's forward and backward pass.
    """

    def __call__(self, name: str) -> _Open:
        """A context manager: what runs inside is a span of this name.

        >>> with span("backward"):
        ...     loss.backward()

        A span that an exception leaves is kept too. On a GPU its times are the GPU's, by CUDA events. Raises `LabError`
        where the name is no text.
        """
        if not isinstance(name, str) or not name.strip():
            raise LabError(f'A span needs a name, and {name!r} is none. Write with span("backward"): for instance.')
        return _Open(" ".join(name.split()))

    def layers(self, model: nn.Module) -> contextlib.AbstractContextManager[None]:
        """A context manager: inside, each layer's forward pass is a span, and so is its backward pass.

        >>> with span.layers(model):
        ...     tiny.loss(model, tiny.batch(step, rank, world_size)).backward()

        Layers are what the model's `ModuleList`s hold, and the outermost modules that hold none; they have the names
        that the model gives them, such as "blocks.0". A backward pass belongs to it if its forward pass was inside,
        and ends when the gradients of the layer's parameters are there. No number changes, and no hook stays.
        Raises `LabError` for what is no module.
        """
        if not isinstance(model, nn.Module):
            raise LabError(f"span.layers watches a model, and this is a {type(model).__name__}. Give it the nn.Module.")
        return layers.watched(model, _kept.begin) if _kept.on else contextlib.nullcontext()

    def __repr__(self) -> str:
        return 'span: with span("backward"): … records what a rank computes, and lab.last.timeline() draws it'


def _pass(name: str) -> str:
    """Which pass a learner's span is of, if its name begins with one."""
    first = name.split()[0].lower()
    return first if first in ("forward", "backward") else ""


span = Spans()
