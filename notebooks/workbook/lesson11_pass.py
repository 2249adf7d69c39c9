"""Exercises of lesson 11, at its end: a whole pass through sharded layers, and what a stage costs."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, Least, exercise
from labkit.grading.promises import Calls
from labkit.theory import sharding
from workbook.lesson11 import kept, normal, shard

if TYPE_CHECKING:
    from labkit.rank.seen import dist, rank, torch, world_size


def _passed(xs: Sequence[Any]) -> list[Any]:
    n, each = len(xs), []
    for whole, x, slope in xs:
        wide, values = x.shape[1], [x]
        for w in whole:
            values.append(np.tanh(values[-1] * w[:wide] + w[wide:]))
        parts = []
        for w, before, y in zip(whole[::-1], values[-2::-1], values[:0:-1], strict=True):
            dz = slope * (1 - y**2)
            parts.append(np.concatenate([(dz * before).sum(0), dz.sum(0)]))
            slope = dz * w[:wide]
        each.append(parts[::-1])
    means = [np.mean(layer, axis=0).astype(xs[0][1].dtype) for layer in zip(*each, strict=True)]
    return [[shard(mean, n, r) for mean in means] for r in range(n)]


def _three(n: int) -> list[Case]:
    rng = normal(n, 8)

    def chain(wide: int, rows: int, dtype: str = "float32") -> list[Any]:
        whole = [rng.normal(size=2 * wide).astype(dtype) for _ in range(3)]
        return [
            ([w.copy() for w in whole], *(rng.normal(size=(rows, wide)).astype(dtype) for _ in range(2)))
            for _ in range(n)
        ]

    return [
        Case(chain(2, 1), "layers of 4 weights"),
        Case(chain(3, 2), "layers of 6 weights"),
        Case(chain(5, 3, "float64"), "layers of 10 weights, float64"),
        Case(chain(60, 4), "layers of 120 weights"),
    ]


TURNS = 500


def run_sharded_pass(sharded_pass, whole, x, slope):
    held, wrong = {}, []

    class Layer:
        def __init__(self, i):
            self.i = i

        def alone(self, weights):
            if not torch.equal(weights[: len(whole[self.i])], whole[self.i]):
                wrong.append(f"layer {self.i} computes with weights that are not its own.")
                return
            held[self.i] = weakref.ref(weights.untyped_storage())
            others = [i for i in held if i != self.i]
            still = [] if wrong else kept([held[i] for i in others])
            if still:
                which = others[still[0]]
                wrong.append(f"while layer {self.i} computes, the whole weights of layer {which} are in memory.")

        def forward(self, weights, x):
            self.alone(weights)
            return torch.tanh(x * weights[: x.shape[1]] + weights[x.shape[1] : 2 * x.shape[1]])

        def backward(self, weights, x, dy):
            self.alone(weights)
            wide = x.shape[1]
            y = torch.tanh(x * weights[:wide] + weights[wide : 2 * wide])
            dz = dy * (1 - y**2)
            parts = torch.cat([(dz * x).sum(0), dz.sum(0)])
            return torch.nn.functional.pad(parts, (0, len(weights) - len(parts))), dz * weights[:wide]

    length = -(-len(whole[0]) // world_size)
    padded = [torch.nn.functional.pad(w, (0, length * world_size - len(w))) for w in whole]
    shards = [p.chunk(world_size)[rank].clone() for p in padded]
    gradients = sharded_pass([Layer(i) for i in range(3)], shards, x, slope)
    assert not wrong, wrong[0]
    return gradients


@exercise(
    "A whole pass through sharded layers",
    _passed,
    minutes=20,
    difficulty=3,
    inputs=_three,
    tolerance=1e-4,
    forbids=("all_reduce",),
    promises=(Calls(8),),
    least=Least(rounds=lambda n: 8),
    harness=run_sharded_pass,
)
def sharded_pass(layers, shards, x, dy):
    """Return the gradients of this rank's shards, for one pass forward and backward through all layers.

    There are three layers. `shards[i]` is this rank's part of layer i's flat weights (zeros at the end do no harm).
    `layers[i].forward(weights, x)` returns `y`; `layers[i].backward(weights, x, dy)` takes the `x` that the layer had
    in the forward pass, and returns the gradients `(d_weights, dx)`. Pass `x` forward through all layers; then `dy`,
    the gradient of what came out, backward. Return the list of the gradients of this rank's `shards`: its parts of the
    **mean** over the ranks.

    While a layer computes, the whole weights of **no other** layer may be in memory. And gather no weights that you
    still have: **eight** collectives are enough, without an all-reduce.

    In the picture, the whole weights, `x` and `dy` are on the left, and the gradients of the shards are on the right.
    With three ranks, four weights leave the last rank with zeros only.
    Hint: Three all-gathers forward, and three reduce-scatters backward: that leaves two. Which layer comes first in the
    backward pass, and what do you still have of it?
    Hint: Keep the input of each layer in a list. Keep the weights in **one** variable, so that the next gather lets the
    old ones go.
    Hint: In the backward loop: gather unless it is the last layer; `layers[i].backward(…)`; a reduce-scatter of
    `d_weights`. Divide by `world_size`.
    Afterwards: This is FSDP's schedule, without the overlap. Its documentation advises the same: do not reshard the
    layer whose backward pass comes right after its forward pass. For the outermost module, `fully_shard` therefore
    keeps the weights between the passes by default.
    """

    def gathered(shard):
        weights = shard.new_empty(world_size * len(shard))
        dist.all_gather_single(weights, shard)
        return weights

    inputs = []
    for layer, shard in zip(layers, shards):
        weights = gathered(shard)
        inputs.append(x)
        x = layer.forward(weights, x)

    gradients = [torch.empty_like(shard) for shard in shards]
    for i in reversed(range(len(layers))):
        if i < len(layers) - 1:
            weights = gathered(shards[i])
        d_weights, dy = layers[i].backward(weights, inputs[i], dy)
        dist.reduce_scatter_single(gradients[i], d_weights)
    return [gradient / world_size for gradient in gradients]


def _price(xs: Sequence[Any], parameters: float, gpus: int, stage: int) -> list[Any]:
    memory = sum(sharding.held(parameters, gpus, stage, sharding.MIXED).values())
    return [[memory, sharding.sent(parameters, gpus, stage, sharding.MIXED)] for _ in xs]


def _jobs(n: int) -> list[Case]:
    jobs = [(7.5e9, 64, 0), (7.5e9, 64, 1), (7.5e9, 64, 2), (7.5e9, 64, 3), (1e12, 1024, 3), (1.5e9, 1, 2), (8e9, 2, 1)]
    return [
        Case([()] * n, f"{p / 1e9:g} billion, {g} GPUs, stage {s}", {"parameters": p, "gpus": g, "stage": s})
        for p, g, s in jobs
    ]


PRICE_SLIPS = {
    "shards the gradients in stage 1 already": ("stage >= 2", "stage >= 1"),
    "shards the optimizer's states in stage 2 only": ("stage >= 1", "stage >= 2"),
    "shards the weights in stage 2 already": ("stage >= 3", "stage >= 2"),
    "forgets the float32 copy of the weights": ("12 * parameters", "8 * parameters"),
    "gathers the weights once in stage 3": ("3 if stage == 3 else 2", "2"),
    "counts a single pass where there are two": ("3 if stage == 3 else 2", "3 if stage == 3 else 1"),
    "sends the whole buffer, this rank's own part too": (" * (gpus - 1) / gpus]", "]"),
    "counts one byte a parameter on the wire": ("passes * 2 * parameters", "passes * parameters"),
    "counts in gigabytes": (
        "[states + gradients + weights, passes * 2 * parameters * (gpus - 1) / gpus]",
        "[(states + gradients + weights) / 1e9, passes * 2 * parameters * (gpus - 1) / gpus / 1e9]",
    ),
}


@exercise(
    "What a stage costs", _price, minutes=6, inputs=_jobs, tolerance=1e-6, promises=(Calls(0),), slips=PRICE_SLIPS
)
def stage_price(parameters, gpus, stage):
    """Return [memory, sent]: the bytes that one GPU holds, and those that it sends in a training step.

    A model is trained with Adam in mixed precision, on `gpus` GPUs. A parameter takes 2 bytes as a weight, 2 as a
    gradient, and 12 in the optimizer: a float32 copy and two moments. Stage 0 shards nothing, 1 the optimizer's states,
    2 the gradients too, 3 everything.

    Return `[memory, sent]`: the bytes that **one** GPU holds, and the bytes that it sends in a training step with
    collectives that send the least. Stage 0 all-reduces the gradients; 1 and 2 reduce-scatter the gradients and
    all-gather the weights; 3 gathers the weights in the forward **and** in the backward pass. Communicate nothing.
    Hint: Three amounts of memory, each divided by the number of GPUs from one stage on.
    Hint: With S bytes in the whole buffer, a reduce-scatter and an all-gather send S (N − 1) / N from each rank, and an
    all-reduce both of these.
    Hint: Gradients and weights have 2 bytes a parameter each, so every one of these transfers has S = 2 · parameters.
    Afterwards: 7.5 billion parameters on 64 GPUs take 120, 31.4, 16.6 and 1.9 GB: figure 1 of the ZeRO paper.
    Activations come on top.
    """
    states = 12 * parameters / (gpus if stage >= 1 else 1)
    gradients = 2 * parameters / (gpus if stage >= 2 else 1)
    weights = 2 * parameters / (gpus if stage >= 3 else 1)
    passes = 3 if stage == 3 else 2
    return [states + gradients + weights, passes * 2 * parameters * (gpus - 1) / gpus]


# What a mistaken function does, and the edit of the solution that makes it do so.
