"""What lesson 08 evaluates and cuts up: a small trained model, rows dealt out unevenly, scores of many words.

    from workbook.tools.rank import prepared

    model = prepared.model(device)
    inputs, targets = prepared.uneven_rows(device)  # none for rank 0
    features = prepared.features(model, inputs)     # what the output layer takes in

Nothing here communicates: that is the lesson's part.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.rank import tiny

__all__ = ["Gradients", "features", "gradients", "model", "uneven_rows", "wide_scores"]

STEPS, RATE, MOMENTUM = 40, 0.3, 0.9
TOKENS, WORDS = 512, 4096  # words on each rank


class Gradients(NamedTuple):
    """The gradients of a loss by some scores, by the weights that these come from, and by the layer's input."""

    scores: Tensor
    weight: Tensor
    features: Tensor


def model(device: torch.device) -> tiny.Model:
    """Return the model after 40 steps of training, the same on every rank."""
    torch.manual_seed(0)
    model = tiny.Model().to(device)
    parameters = list(model.parameters())
    moving = [torch.zeros_like(p) for p in parameters]
    for step in range(STEPS):
        slopes = torch.autograd.grad(tiny.loss(model, tiny.batch(step)), parameters)
        with torch.no_grad():  # by hand: in its first step an optimizer of torch imports for seconds
            for p, mean, slope in zip(parameters, moving, slopes, strict=True):
                p.sub_(RATE * mean.mul_(MOMENTUM).add_(slope))
    return model


def uneven_rows(device: torch.device) -> tiny.Batch:
    """Return this rank's rows of the 960 that no batch holds: r shares for rank r, and so none for rank 0 of many."""
    rank, n = dist.get_rank(), dist.get_world_size()
    sizes = [960 * r // max(1, sum(range(n))) for r in range(n)]
    sizes[-1] = 960 - sum(sizes[:-1])
    inputs, targets = (part.to(device).split(sizes)[rank] for part in tiny.validation())
    return inputs, targets


def features(model: tiny.Model, inputs: Tensor) -> Tensor:
    """Return what the model's output layer takes in, without gradients: float32 [rows, 120]."""
    with torch.no_grad():
        return torch.tanh(model.hidden(model.embedding(inputs).flatten(1)))


def gradients(output: nn.Linear, features: Tensor, targets: Tensor, chars: Tensor) -> Gradients:
    """Return what one process with the whole layer computes, of these characters' scores and weights alone."""
    features = features.detach().requires_grad_()
    scores = output(features)
    loss = nn.functional.cross_entropy(scores, targets)
    by_scores, by_weight, by_features = torch.autograd.grad(loss, (scores, output.weight, features))
    return Gradients(by_scores[:, chars], by_weight[chars], by_features)


def wide_scores(device: torch.device) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return scores of 512 tokens for 4,096 words of this rank, the right words, and room for all ranks' scores."""
    scores = torch.randn(TOKENS, WORDS, device=device)
    return scores, torch.arange(TOKENS, device=device), [torch.empty_like(scores) for _ in range(dist.get_world_size())]
