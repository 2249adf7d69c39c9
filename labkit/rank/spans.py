"""Record what a rank computes, under names that the learner gives, for `lab.last.timeline()`.

    with span("backward"):
        loss.backward()

    with span.layers(model):
        tiny.loss(model, batch).backward()

Outside of a cell, in a program that torchrun runs for instance, nothing is recorded.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial

from torch import nn

from labkit.floor.errors import LabError
from labkit.rank import backward_pass, cell_record, layers, stream
from labkit.rank.torch_internals import backward_number
from labkit.theory.log import Span

__all__ = ["span"]

_used = False  # whether this rank has ever recorded a span, or a cell speaks of them


def expect(code: str) -> None:
    """Note whether a cell that begins speaks of spans."""
    global _used
    _used = _used or "span" in code


def wanted() -> bool:
    """Tell whether spans are used at all: what is recorded for their sake costs nothing before."""
    return _used


def _begin(name: str, of: str) -> Span | None:
    """Begin a span, if a cell runs that is recorded."""
    global _used
    cell = cell_record.current
    if not cell.recording:
        return None
    _used = True
    span = Span(cell.rank, name, of, time.perf_counter())
    cell.spans.append(span)
    stream.mark_start(span)
    cell.spans_made += 1
    if backward_number() >= 0:
        backward_pass.at_end(partial(_passed, cell))
    return span


def _passed(cell: cell_record.Cell, computed: float, done: float) -> None:
    """Note once from when to when a backward pass stood at its end; every span in the pass calls this."""
    if not cell.stood or computed > cell.stood[-1][1]:
        cell.stood.append((computed, done))


@contextlib.contextmanager
def _open(name: str) -> Iterator[None]:
    span = _begin(name, _pass(name))
    try:
        yield
    except BaseException as error:
        if span is not None:
            span.error = type(error).__name__
        raise
    finally:
        if span is not None:
            stream.end_span(span)


class Spans:
    """`with span("backward"): …` records what the rank computes, and from when to when; spans may lie in one another.

    `with span.layers(model): …` does so for every layer's forward and backward pass.
    """

    def __call__(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Record what runs inside `with span(name)` as a span of this name.

        >>> with span("backward"):
        ...     loss.backward()

        A span that an exception leaves is kept too. On a GPU its times are the GPU's, by CUDA events. Raises `LabError`
        where the name is not text.
        """
        if not isinstance(name, str) or not name.strip():
            raise LabError(f'A span needs a name, and {name!r} is not one. Write: with span("backward"): …')
        return _open(" ".join(name.split()))

    def layers(self, model: nn.Module) -> contextlib.AbstractContextManager[None]:
        """Record each layer's forward pass inside `with span.layers(model)` as a span, and its backward pass too.

        >>> with span.layers(model):
        ...     tiny.loss(model, tiny.batch(step, rank, world_size)).backward()

        Layers are what the model's `ModuleList`s hold, and the outermost modules that hold none; they have the names
        that the model gives them, such as "blocks.0". A backward pass is recorded if its forward pass was inside,
        and ends when the gradients of the layer's parameters are there. No number changes, and no hook stays.
        Raises `LabError` for what is not a module.
        """
        if not isinstance(model, nn.Module):
            raise LabError(f"span.layers watches a model, and this is a {type(model).__name__}. Give it the nn.Module.")
        return layers.watched(model, _begin) if cell_record.current.recording else contextlib.nullcontext()

    def __repr__(self) -> str:
        return 'span: with span("backward"): … records what a rank computes, and lab.last.timeline() draws it'


def _pass(name: str) -> str:
    """Tell which pass a learner's span is of, if its name begins with one."""
    first = name.split()[0].lower()
    return first if first in ("forward", "backward") else ""


span = Spans()
