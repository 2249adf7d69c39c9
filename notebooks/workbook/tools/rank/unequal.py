"""Train the small model from flat weights on ranks of unequal speed, and keep what came of it, for lesson 10.

    from workbook.tools.rank.unequal import alone, busy, gradient, loss_of, run

    sync = run(synchronous_sgd)    # synchronous_sgd(weights, note) trains in place, and calls note() after each update
    sync.seconds, sync.loss        # the losses on the way, and when they were reached
    loss_of(sync.weights)

How ranks train is the learner's part: of what is here, `run` begins with a barrier, `replayed` broadcasts who came, and
`sweep` gathers its losses.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from labkit.rank import tiny

__all__ = ["Run", "alone", "busy", "compute", "fresh", "gradient", "loss_of", "replayed", "run", "sweep"]

KEPT = 10  # losses of a run, about
HIGHEST = 4.0  # losses above are cut off: a model that knows nothing has log 36 = 3.6

# Seeds whose first draws are near their averages, on rank 0 alone and on all ranks: the lesson shows 40 of each.
_chance = random.Random(192 + (dist.get_rank() if dist.is_initialized() else 0))
_model = tiny.Model()  # of which only the shape matters: it is given weights before each use


@dataclass(frozen=True)
class Run:
    """What a rank noted of a run: the last weights, who came, and about ten losses with the seconds until then."""

    weights: torch.Tensor
    came: list[int | None]
    seconds: list[float]
    loss: list[float]


def fresh() -> torch.Tensor:
    """Return the weights that every run begins with, as one flat tensor, the same whenever it is called."""
    torch.manual_seed(0)
    return parameters_to_vector(tiny.Model().parameters()).detach()


def gradient(weights: torch.Tensor, batch: tiny.Batch) -> torch.Tensor:
    """Return the gradient of the mean loss of a batch at these weights, flat as they are."""
    model = _with(weights)
    model.zero_grad()
    tiny.loss(model, batch).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def loss_of(weights: torch.Tensor) -> float:
    """Return the mean loss of text that is in no batch."""
    with torch.no_grad():
        return tiny.loss(_with(weights), tiny.validation()).item()


def compute(jitter: float) -> float:
    """Play a device that is not slow: 10 ms, and a hiccup of `jitter` ms on average; return the seconds it took."""
    began = time.perf_counter()
    time.sleep((10 + jitter * _chance.expovariate(1)) / 1000)
    return time.perf_counter() - began


def busy(rows: int, slow: float) -> None:
    """Play a device: 20 ms for 60 rows, on the last rank `slow` times as long, and a hiccup of 5 ms on average."""
    factor = slow if dist.get_rank() == dist.get_world_size() - 1 else 1
    time.sleep(factor * rows / 3000 + _chance.expovariate(1 / 0.005))


def alone(lr: float, parts: int, batches: int = 40) -> torch.Tensor:
    """Train in one process that is never busy, with an update for each part of a batch; return the weights."""
    weights = fresh()
    for step, part in itertools.product(range(batches), range(parts)):
        weights -= lr * gradient(weights, tiny.batch(step, part, parts))
    return weights


def run(train: Callable[..., Any], **options: Any) -> Run:
    """Begin on all ranks at once, and call `train(weights, note, **options)`; return what it noted.

    Each `note()`, or `note(worker)`, keeps the seconds until then and the weights; the losses are computed afterwards.
    """
    weights = fresh()
    noted: list[tuple[int | None, float, torch.Tensor]] = []
    dist.barrier()
    began = time.perf_counter()

    def note(who: int | None = None) -> None:
        noted.append((who, time.perf_counter() - began, weights.clone()))

    train(weights, note, **options)
    every = max(1, len(noted) // KEPT)
    kept = noted[every - 1 :: every]
    return Run(weights, [who for who, _, _ in noted], [at for _, at, _ in kept], [loss_of(w) for _, _, w in kept])


def sweep(
    replay: Callable[..., Any], workers: Sequence[int], rates: Sequence[float], updates: int = 96
) -> dict[float, list[float]]:
    """Replay runs in which so many workers take turns; return, by learning rate, the loss that each number ends with.

    Each gradient is of a whole batch: update number u takes batch u, whoever computes it. Ranks share out the rates.
    """
    rank, n = dist.get_rank(), dist.get_world_size()

    def ends(many: int, rate: float) -> float:
        def pushed(pulled: torch.Tensor, worker: int, step: int) -> torch.Tensor:
            return gradient(pulled, tiny.batch(step * many + worker))

        end, _ = replay([update % many for update in range(updates)], fresh(), pushed, rate)
        return min(HIGHEST, loss_of(end))

    mine = {rate: [ends(many, rate) for many in workers] for rate in rates[rank::n]}
    found: list[dict[float, list[float]]] = [{} for _ in range(n)]
    dist.all_gather_object(found, mine)
    return {rate: next(part[rate] for part in found if rate in part) for rate in rates}


def replayed(replay: Callable[..., Any], served: Run, lr: float) -> tuple[torch.Tensor, list[int]]:
    """Replay rank 0's run with a server, on every rank for itself; return the weights, and my gradients' staleness."""
    told: list[Any] = [served.came]
    dist.broadcast_object_list(told, src=0)
    (came,), workers = told, max(1, dist.get_world_size() - 1)

    def pushed(pulled: torch.Tensor, worker: int, step: int) -> torch.Tensor:
        return gradient(pulled, tiny.batch(step, worker - 1, workers))

    weights, staleness = replay(came, fresh(), pushed, lr)
    return weights, [late for late, worker in zip(staleness, came, strict=True) if worker == dist.get_rank()]


def _with(weights: torch.Tensor) -> tiny.Model:
    """Return the model with these weights."""
    vector_to_parameters(weights, _model.parameters())
    return _model
