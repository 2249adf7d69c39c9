"""Let gradients flow through a collective: backward, its transpose runs on all ranks.

An all-reduced sum is its own transpose; broadcast ↔ reduce, scatter ↔ gather, all-gather ↔ reduce-scatter;
an all-to-all's is the all-to-all the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.rank.torch_internals import is_view

Collective = Callable[..., Sequence[Tensor]]


def linear(there: Collective, back: Collective, xs: Sequence[Tensor], grad: bool) -> Sequence[Tensor]:
    """Return there(*xs), differentiable with `back` as its transpose where any rank wants a gradient."""
    if not grad:
        with torch.no_grad():
            return there(*xs)
    # `grad` is equal on all ranks: a rank whose own xs want none still has to run `back` for the others.
    anchor = torch.zeros(0, requires_grad=True)  # makes the results require a gradient on every rank
    return _Linear.apply(there, back, anchor, *xs)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, there: Collective, back: Collective, anchor: Tensor, *xs: Tensor) -> Any:
        ctx.there, ctx.back = there, back
        # torch forbids in-place changes of one of several views, and an own result may be changed
        return tuple(y.clone() if is_view(y) else y for y in there(*xs))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        anchor = torch.zeros(0, requires_grad=True)
        return None, None, None, *_Linear.apply(ctx.back, ctx.there, anchor, *gradients)
