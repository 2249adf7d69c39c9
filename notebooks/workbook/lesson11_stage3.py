"""Exercises of lesson 11: stage 3 of ZeRO for a layer, a whole pass through such layers, and what a stage costs."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, Least, exercise
from labkit.grading.inputs import options
from labkit.grading.promises import Calls
from workbook.cards import in_words, no_numbers
from workbook.harnesses import kept
from workbook.lesson11 import cut, on_shards, padded

if TYPE_CHECKING:
    from labkit.rank.cell_names import dist, everyones, name_it, rank, torch, world_size


def _through(xs: Sequence[Any]) -> list[Any]:
    n, found = len(xs), []
    for weights, x, slope in xs:
        if x.dtype.kind == "i":
            y = np.tanh(weights[x])
            part = np.zeros_like(weights)
            np.add.at(part, x, slope * (1 - y**2))
            found.append((y, part, None))
        else:
            wide = x.shape[1]
            matrix, bias = weights[:-wide].reshape(wide, wide), weights[-wide:]
            y = np.tanh(x @ matrix.T + bias)
            dz = slope * (1 - y**2)
            found.append((y, np.concatenate([(dz.T @ x).ravel(), dz.sum(0)]), dz @ matrix))
    mean = np.mean([part for _, part, _ in found], axis=0).astype(xs[0][0].dtype)
    return [[y, cut(mean, n, r), dx] for r, (y, _, dx) in enumerate(found)]


def _one_layer(n: int) -> list[Case]:
    rng = np.random.default_rng([11, 4, n])

    def layer(wide: int, rows: int, dtype: str = "float32") -> list[Any]:
        weights = rng.normal(size=wide * wide + wide).astype(dtype)
        return [(weights.copy(), *(rng.normal(size=(rows, wide)).astype(dtype) for _ in range(2))) for _ in range(n)]

    table = rng.normal(size=2 * n + 1).astype("float32")
    looked = [(table.copy(), rng.integers(0, len(table), 5), rng.normal(size=5).astype("float32")) for _ in range(n)]
    return [
        Case(layer(2, 1), "a layer of 6 weights"),
        Case(layer(4, 3), "a layer of 20 weights, three rows"),
        Case(layer(3, 2, "float64"), "a layer of 12 weights, float64"),
        Case(looked, "x are integers"),
        Case(layer(24, 8), "a layer of 600 weights"),
    ]


def run_zero3_layer(zero3_layer, whole, x, slope):
    """Go through a layer and back, see its whole weights go after each pass, and collect the gradients."""
    held = []

    def compute(weights, x):
        held.append(weakref.ref(weights.untyped_storage()))
        if not x.is_floating_point():
            return torch.tanh(weights[x])
        wide = x.shape[1]
        matrix, bias = weights[: wide * wide].view(wide, wide), weights[wide * wide : wide * wide + wide]
        return torch.tanh(x @ matrix.T + bias)

    shard = torch.nn.Parameter(padded(whole).chunk(world_size)[rank].clone())
    own, alone = padded(whole).requires_grad_(), x.detach().clone().requires_grad_(x.is_floating_point())
    compute(own, alone).backward(slope)
    mine, total = (grad.chunk(world_size)[rank] for grad in (own.grad, sum(everyones(own.grad))))
    held.clear()
    x.requires_grad_(x.is_floating_point())
    y = zero3_layer(compute, shard, x)
    assert not kept(held), (
        "the whole weights are still in memory after the forward pass: something keeps them for the backward pass."
    )
    y.backward(slope)
    assert not kept(held), "the whole weights are still in memory after the backward pass."
    slips = {
        "takes this rank's own gradient for the mean over the ranks": mine,
        "divides this rank's own gradient by the number of ranks": mine / world_size,
        "adds up and does not divide by the number of ranks": total,
    }
    name_it(shard.grad, total / world_size, slips, "shard.grad")
    if alone.grad is not None:
        slip = "divides the gradient of `x` by the number of ranks: each rank has its own `x`"
        name_it(x.grad, alone.grad, {slip: alone.grad / world_size}, "x.grad")
    return [y.detach(), shard.grad, x.grad]


@on_shards(
    "Stage 3: a layer whose weights come and go",
    in_words(_through, "the result, and the gradients of this rank's shard and of x"),
    minutes=15,
    difficulty=3,
    inputs=_one_layer,
    promises=(Calls(3),),
    least=Least(rounds=lambda n: 3),
    counts_memory=False,
    picture=no_numbers,
    harness=run_zero3_layer,
)
def zero3_layer(compute, shard, x):
    """Return compute(weights, x) for the weights that lie in shards on the ranks; gradients flow back.

    The flat weights of a layer lie in shards on the ranks, and `shard` is this rank's. `compute(weights, x)` is what
    the layer makes of `x` with **all** its weights (zeros at the end do no harm). Each rank has its own `x`. Return
    `compute` of the gathered weights, with a backward pass of your own: a `torch.autograd.Function`.

    In the forward pass gather the weights, compute, and keep **neither the weights nor anything computed from them**:
    save `shard` and `x` only. In the backward pass, which gets the gradient `dy` of the result, gather again, compute
    again, and return the gradient of `shard`, which is its part of the **mean** over the ranks, and the gradient of `x`
    (`None` where `x` holds integers). Three collectives in all, and no all-reduce.
    Hint: A class inside the function, with two static methods, `forward(ctx, shard, x)` and `backward(ctx, dy)`; its
    `apply(shard, x)` calls them. Inside a `Function` autograd records nothing: what `compute` leaves behind in
    `forward` is gone when it returns. `ctx.save_for_backward(shard, x)` is all that stays.
    Hint: In `backward`, make leaves of the gathered weights and of a detached `x`, compute under `torch.enable_grad()`,
    and call `y.backward(dy)`: then `weights.grad` and `x.grad` are there.
    Hint: `weights.grad` is the gradient of this rank's loss with respect to all weights. A reduce-scatter and a
    division make this rank's part of its mean. `x` is this rank's own, so its gradient needs no collective.
    Afterwards: Two all-gathers and a reduce-scatter are the price of stage 3. Computing the layer a second time instead
    of keeping what the first pass computed is called activation checkpointing. FSDP keeps the activations, unless you
    ask for checkpointing as well: it brings back the weights alone.
    """

    class Sharded(torch.autograd.Function):
        @staticmethod
        def forward(ctx, shard, x):
            ctx.save_for_backward(shard, x)
            weights = shard.new_empty(world_size * len(shard))
            dist.all_gather_single(weights, shard)
            return compute(weights, x)

        @staticmethod
        def backward(ctx, dy):
            shard, x = (t.detach() for t in ctx.saved_tensors)
            weights = shard.new_empty(world_size * len(shard))
            dist.all_gather_single(weights, shard)
            for t in (weights, x):
                t.requires_grad_(t.is_floating_point())
            with torch.enable_grad():
                y = compute(weights, x)
            y.backward(dy)
            mine = torch.empty_like(shard)
            dist.reduce_scatter_single(mine, weights.grad)
            return mine / world_size, x.grad

    return Sharded.apply(shard, x)


def _passed(xs: Sequence[Any]) -> list[Any]:
    n, each = len(xs), []
    for whole, x, slope in xs:
        wide, values = x.shape[1], [x]
        for w in whole:
            values.append(np.tanh(values[-1] * w[:wide] + w[wide:]))
        parts = []
        for w, before, y in zip(whole[::-1], values[-2::-1], values[:0:-1]):
            dz = slope * (1 - y**2)
            parts.append(np.concatenate([(dz * before).sum(0), dz.sum(0)]))
            slope = dz * w[:wide]
        each.append(parts[::-1])
    means = [np.mean(layer, axis=0).astype(xs[0][1].dtype) for layer in zip(*each)]
    return [[cut(mean, n, r) for mean in means] for r in range(n)]


def _three(n: int) -> list[Case]:
    rng = np.random.default_rng([11, 8, n])

    def chain(wide: int, rows: int, dtype: str = "float32") -> list[Any]:
        whole = [rng.normal(size=2 * wide).astype(dtype) for _ in range(3)]
        drawn = rng.normal(size=(n, 2, rows, wide)).astype(dtype)
        return [([w.copy() for w in whole], x, slope) for x, slope in drawn]

    return [
        Case(chain(2, 1), "layers of 4 weights"),
        Case(chain(3, 2), "layers of 6 weights"),
        Case(chain(5, 3, "float64"), "layers of 10 weights, float64"),
        Case(chain(60, 4), "layers of 120 weights"),
    ]


def run_sharded_pass(sharded_pass, whole, x, slope):
    """Give layers that see whose weights they get and which others are in memory; collect the gradients."""
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
            for still in [] if wrong else kept([held[i] for i in others])[:1]:
                which = others[still]
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

    shards = [padded(w).chunk(world_size)[rank].clone() for w in whole]
    gradients = sharded_pass([Layer(i) for i in range(3)], shards, x, slope)
    assert not wrong, wrong[0]
    return gradients


@on_shards(
    "A whole pass through sharded layers",
    in_words(_passed, "the gradients of this rank's shards"),
    minutes=20,
    difficulty=3,
    inputs=_three,
    promises=(Calls(8),),
    least=Least(rounds=lambda n: 8),
    picture=no_numbers,
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
    Hint: The forward pass takes three all-gathers and the backward pass three reduce-scatters. That leaves two
    collectives. Which layer comes first in the backward pass, and what do you still have of it?
    Hint: Keep the input of each layer in a list. Keep the weights in **one** variable, so that the next gather lets the
    old ones go.
    Hint: In the backward loop: gather unless it is the last layer; `layers[i].backward(…)`; a reduce-scatter of
    `d_weights`. Divide by `world_size`.
    Afterwards: This is FSDP's schedule without the overlap. By default, `fully_shard` also keeps the weights of the
    outermost module between the passes, because its backward pass comes right after its forward pass.
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


JOBS = ((7.5e9, 64, 0), (7.5e9, 64, 1), (7.5e9, 64, 2), (7.5e9, 64, 3), (1e12, 1024, 3), (1.5e9, 1, 2), (8e9, 2, 1))
_jobs = options("parameters gpus stage", *((f"{p / 1e9:g} billion, {g} GPUs, stage {s}", p, g, s) for p, g, s in JOBS))


PRICE_SLIPS = {  # what a mistaken function does, and the edit of the solution that makes it do so
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
    "What a stage costs",
    lambda xs, **job: [stage_price(**job)] * len(xs),
    minutes=6,
    inputs=_jobs,
    tolerance=1e-6,
    promises=(Calls(0),),
    slips=PRICE_SLIPS,
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
