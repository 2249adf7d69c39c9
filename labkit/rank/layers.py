"""Record a span for each layer's forward pass and for its backward pass, by hooks that change no number.

Forward: the module's own hooks. Backward: hooks on the layer's part of autograd's graph, from the node that makes its
output to the nodes that lead out of it and those that accumulate its parameters' gradients. A module's full backward
hooks would put a node of their own round each layer: they forbid what works in place behind it, and end at once where
the input is text, which has no gradient.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from labkit.rank import backward_pass, stream
from labkit.rank.nested import tensors
from labkit.theory.log import Span

Open = Callable[[str, str], Span | None]  # begins a span of this name and pass
OURS = "labkit"  # marks a node of the graph that belongs to a layer


def layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers of a model by name: what a list of modules holds, else the outermost ones without such a list.

    >>> from labkit.rank import tiny
    >>> list(layers(tiny.Transformer(layers=2)))
    ['embedding', 'position', 'blocks.0', 'blocks.1', 'norm', 'output']

    What only wraps a model (`DistributedDataParallel`) is passed over. Modules without parameters are not layers.
    """
    while len(inside := _children(model)) == 1 and not list(model.parameters(recurse=False)):
        ((_, model),) = inside.items()
    found: dict[int, tuple[str, nn.Module]] = {}
    for name, child in _children(model).items():
        for path, layer in _layers(name, child, isinstance(model, nn.ModuleList)):
            found.setdefault(id(layer), (path, layer))
    return dict(found.values()) or {type(model).__name__: model}


def _layers(path: str, module: nn.Module, whole: bool) -> Iterator[tuple[str, nn.Module]]:
    lists = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
    within = not whole and (isinstance(module, lists) or any(isinstance(m, nn.ModuleList) for m in module.modules()))
    if not within:
        yield path, module
        return
    for name, child in _children(module).items():
        yield from _layers(f"{path}.{name}", child, isinstance(module, nn.ModuleList))


def _children(module: nn.Module) -> dict[str, nn.Module]:
    return {name: child for name, child in module.named_children() if next(child.parameters(), None) is not None}


@contextlib.contextmanager
def watched(model: nn.Module, begin: Open) -> Iterator[None]:
    """Begin a span by `begin` for every layer's forward and backward pass inside."""
    watch = _Watch(begin)
    handles = [handle for name, layer in layers(model).items() for handle in _Layer(watch, name).hooked(layer)]
    try:
        yield
    finally:
        watch.end()
        for handle in handles:
            handle.remove()


class _Watch:
    """What the layers of one model share."""

    def __init__(self, begin: Open) -> None:
        self.begin = begin
        self.handles: list[Any] = []  # of hooks on nodes
        self.calls: list[_Call] = []  # whose backward pass has begun and may go on
        self.latest: _Call | None = None

    def end(self, *_: float) -> None:
        """End the spans of a backward pass that is over; without a time, the watch too."""
        for call in self.calls:
            call.end()
        self.calls, self.latest = [], None
        if not _:
            for handle in self.handles:
                handle.remove()


class _Layer:
    """One layer: its calls that run, and where its parameters' gradients are accumulated."""

    def __init__(self, watch: _Watch, name: str) -> None:
        self.watch, self.name = watch, name
        self.running: list[tuple[Span | None, set[Any]]] = []
        self.accumulators: set[Any] = set()

    def hooked(self, module: nn.Module) -> list[Any]:
        """Hook the module; the handles. Ours is the last to run before it and behind it: others' work is not its."""
        before = module.register_forward_pre_hook(self._enter, with_kwargs=True)
        return [before, module.register_forward_hook(self._leave, always_call=True)]

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        came_from = {t.grad_fn for t in tensors((args, kwargs)) if t.grad_fn is not None}
        self.running.append((self.watch.begin(self.name, "forward"), came_from))

    def _leave(self, module: nn.Module, args: Any, out: Any) -> None:
        if not self.running:
            return
        span, came_from = self.running.pop()
        if span is not None:
            stream.end_span(span)
        if torch.is_grad_enabled():
            # A graph of an unknown kind costs its span, and not the learner's cell.
            with contextlib.suppress(AttributeError, RuntimeError):
                self._follow({t.grad_fn for t in tensors(out) if t.grad_fn is not None}, came_from)

    def _follow(self, outputs: set[Any], inputs: set[Any]) -> None:
        """Hook the layer's part of the graph: what makes its outputs, and what leads out of it."""
        call = _Call(self)
        handles = self.watch.handles
        todo, mine = list(outputs - inputs), set()
        while todo:
            node = todo.pop()
            if node in mine or node in inputs:
                continue
            if hasattr(node, "variable"):  # it accumulates a gradient, and is the same in every pass
                if node not in self.accumulators:
                    self.accumulators.add(node)
                    handles.append(node.register_hook(self._accumulated))
                continue
            if OURS in node.metadata:  # an earlier layer's
                continue
            mine.add(node)
            node.metadata[OURS] = True
            behind = {other for other, _ in node.next_functions if other is not None}
            if not behind or any(other in inputs or OURS in other.metadata for other in behind - mine):
                handles.append(node.register_hook(call.went_on))
            todo += behind
        handles += [node.register_prehook(call.came) for node in outputs & mine]

    def _accumulated(self, *_: Any) -> None:
        latest = self.watch.latest
        if latest is not None and latest.layer is self:  # not another layer's that has the same weights
            latest.went_on()


class _Call:
    """One call of a layer, and its backward pass."""

    def __init__(self, layer: _Layer) -> None:
        self.layer = layer
        self.span: Span | None = None

    def came(self, *_: Any) -> None:
        """Begin the span: the gradient of the call's output has come."""
        if self.span is None:
            watch = self.layer.watch
            watch.latest = self
            watch.calls.append(self)
            backward_pass.at_end(watch.end)
            self.span = watch.begin(self.layer.name, "backward")

    def went_on(self, *_: Any) -> None:
        """End the span here: one of its last pieces of work is done; of several the last counts."""
        if self.span is not None:
            stream.end_span(self.span)

    def end(self) -> None:
        """Close the span: no more of the call comes in this backward pass."""
        if self.span is not None and self.span.left is None:
            stream.end_span(self.span)
        self.span = None
