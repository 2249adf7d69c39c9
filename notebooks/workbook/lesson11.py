"""Exercises of lesson 11, in their places: a shard, and the three stages of ZeRO by hand."""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, Least, exercise
from labkit.grading.promises import Calls

if TYPE_CHECKING:
    from labkit.rank.seen import device, dist, everyones, name_it, rank, torch, world_size


Layers = Sequence[Sequence[tuple[int, ...]]]  # the shapes of each layer's parameters


def normal(n: int, seed: int) -> np.random.Generator:
    """Reproducible draws, different ones for every n and every case."""
    return np.random.default_rng([11, seed, n])


def shard(flat: np.ndarray, n: int, place: int) -> np.ndarray:
    """The part of a flat buffer at this place of n, the buffer filled up with zeros to n equal parts."""
    return np.pad(flat, (0, -len(flat) % n)).reshape(n, -1)[place]


BETAS, EPS, LR, TRAINED = (0.9, 0.999), 1e-8, 0.1, 3


def first_weights(shapes: Sequence[tuple[int, ...]], dtype: Any) -> np.ndarray:
    """The flat weights that an exercise's model begins with, as its harness makes them."""
    return np.linspace(-1, 1, sum(int(np.prod(shape)) for shape in shapes)).astype(dtype)


def flat(tensors: Sequence[np.ndarray]) -> np.ndarray:
    """All tensors in one row."""
    return np.concatenate([t.ravel() for t in tensors])


def adam(weights: np.ndarray, target: np.ndarray, steps: int = TRAINED) -> tuple[np.ndarray, np.ndarray]:
    """Weights after some training steps towards a target in one process, and the last gradient."""
    w, goal = weights.astype("float64"), target.astype("float64")
    mean, square, gradient = np.zeros_like(w), np.zeros_like(w), np.zeros_like(w)
    for step in range(1, steps + 1):
        gradient = w - goal
        mean = BETAS[0] * mean + (1 - BETAS[0]) * gradient
        square = BETAS[1] * square + (1 - BETAS[1]) * gradient**2
        w = w - LR * mean / (1 - BETAS[0] ** step) / (np.sqrt(square / (1 - BETAS[1] ** step)) + EPS)
    return w, gradient


def _trained(xs: Sequence[Any]) -> list[Any]:
    n = len(xs)
    first, shapes = xs[0][0], [t.shape for t in xs[0]]
    target = np.mean([flat(x) for x in xs], axis=0)
    weights, gradient = (a.astype(first.dtype) for a in adam(first_weights(shapes, first.dtype), target))
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    params = [part.reshape(shape) for part, shape in zip(np.split(weights, ends[:-1]), shapes, strict=True)]
    return [
        {"gradient of the shard": shard(gradient, n, r), "shard": shard(weights, n, r), "params": params}
        for r in range(n)
    ]


def _targets(n: int) -> list[Case]:
    rng = normal(n, 2)

    def drawn(shapes: Sequence[tuple[int, ...]], dtype: str = "float32") -> list[Any]:
        return [tuple(rng.normal(size=shape).astype(dtype) for shape in shapes) for _ in range(n)]

    return [
        Case([(np.full(2 * n, 10.0 * r, dtype="float32"),) for r in range(n)], "one parameter"),
        Case(drawn(((2, n), (3,))), f"{2 * n + 3} numbers in two parameters"),
        Case(drawn(((1,),)), "one number"),
        Case(drawn(((5, 3), (5,), (2, 5)), "float64"), "float64"),
        Case(drawn(((40, 20), (40,))), "a layer"),
    ]


def run_zero1_step(zero1_step, *targets):
    from workbook.on_ranks import Adam

    goal = sum(torch.cat([t.flatten() for t in theirs]) for theirs in everyones(targets)) / world_size
    first = torch.linspace(-1, 1, sum(t.numel() for t in targets), dtype=targets[0].dtype, device=device)
    weights = torch.nn.functional.pad(first, (0, -len(first) % world_size))
    params = [torch.nn.Parameter(torch.empty_like(t)) for t in targets]
    torch.nn.utils.vector_to_parameters(weights, params)
    shard = torch.nn.Parameter(weights.chunk(world_size)[rank])
    optimizer = Adam([shard], lr=0.1)
    for step in range(3):
        loss = sum(((p - t) ** 2).sum() for p, t in zip(params, targets)) / 2
        loss.backward()
        before = weights.clone()
        mean = torch.nn.functional.pad(before[: len(goal)] - goal, (0, len(before) - len(goal))).chunk(world_size)
        own = torch.nn.functional.pad(torch.cat([p.grad.flatten() for p in params]), (0, len(before) - len(goal)))
        own = own.chunk(world_size)[rank].clone()
        zero1_step(params, weights, shard, optimizer)
        seen = optimizer.gradients
        assert len(seen) == step + 1, f"`optimizer.step()` has run {len(seen)} times by the end of step {step + 1}."
        assert seen[-1] is not None, "`shard.grad` is None when the optimizer steps, so it leaves the shard as it is."
        name_it(seen[-1], mean[rank], {"takes this rank's own gradient for the mean": own}, "shard.grad")
        stale = [
            r
            for r, (now, then) in enumerate(zip(weights.chunk(world_size), before.chunk(world_size)))
            if torch.equal(now, then) and mean[r].any()
        ]
        assert not stale, (
            f"after step {step + 1}, the part of rank {stale[0]} in `weights` is what it was before. Gather all parts "
            "after `optimizer.step()`, and wait for them."
        )
        assert all(p.grad is None or not p.grad.any() for p in params), (
            f"after step {step + 1} there still is a gradient in `p.grad`, and the next backward() adds to it: "
            "`optimizer.zero_grad()` clears that of `shard` alone."
        )
    return {"gradient of the shard": seen[-1], "shard": shard.detach(), "params": [p.detach() for p in params]}


@exercise(
    "Stage 1: each rank updates its shard",
    _trained,
    minutes=8,
    difficulty=2,
    inputs=_targets,
    tolerance=1e-4,
    forbids=("all_reduce",),
    promises=(Calls(6),),
    least=Least(sent=lambda n, S: TRAINED * 2 * (n - 1) / n * S, rounds=lambda n: 2 * TRAINED),
    harness=run_zero1_step,
)
def zero1_step(params, weights, shard, optimizer):
    """Take a training step with the ranks' mean gradient, in which this rank updates its shard alone.

    `params` are all parameters of the model, equal on all ranks, and `p.grad` is the gradient of **this rank's** loss.
    They are views of one flat buffer, `weights`, and so is `shard`, this rank's part of it. `optimizer` is an Adam that
    knows `shard` alone.

    Take the training step that one process would take with the **mean** gradient: bring this rank's part of it into
    `shard.grad`, let the optimizer step, and bring everyone's new part into `weights`. Afterwards `params` must be
    ready for the next `backward()`, which **adds** to what is in `p.grad`. Return nothing. No rank needs the whole mean
    gradient, so an all-reduce is too much. **Two** collectives a step are enough: the check takes three steps and
    counts six. (Give `shard.detach()` to collectives: for `shard`, which requires a gradient, autograd raises an
    error.)

    In the picture, each rank's loss draws the weights towards the numbers on the left. On the right, after three
    training steps: the last gradient of its shard, its shard, and `params`.
    Hint: Two collectives that you know from lesson 04: one leaves this rank's part of the sum, the other one brings all
    parts together. The optimizer steps in between.
    Hint: `shard.grad = torch.empty_like(shard)` makes room; `dist.reduce_scatter_single(shard.grad, gradient)` fills it
    with a sum, not with a mean.
    Hint: `dist.all_gather_single(weights, shard.detach())`. And `optimizer.zero_grad()` would clear `shard.grad`,
    because the shard is all that this optimizer knows: set each `p.grad = None` yourself.
    Afterwards: The step is the one of a single process, and Adam's two moments take an N-th of their memory on each
    rank. Note what zero_grad clears: the gradients of the tensors that the optimizer was given, and of no others.
    """
    gradient = torch.cat([p.grad.flatten() for p in params])
    gradient = torch.nn.functional.pad(gradient, (0, len(weights) - len(gradient)))
    # yours
    shard.grad = torch.empty_like(shard)
    dist.reduce_scatter_single(shard.grad, gradient)
    shard.grad /= world_size
    optimizer.step()
    dist.all_gather_single(weights, shard.detach())
    for p in params:
        p.grad = None
    # end


PASSES = (1, 2)  # what each of the two backward passes weighs its loss with


def _shed(xs: Sequence[Any]) -> list[Any]:
    n, found = len(xs), []
    for layers in zip(*[x[0] for x in xs], strict=True):
        target = np.mean([flat(layer) for layer in layers], axis=0)
        first = layers[0][0]
        weights = first_weights([t.shape for t in layers[0]], first.dtype)
        found.append(sum(PASSES) * (weights - target))
    return [[shard(gradient.astype(xs[0][0][0][0].dtype), n, r) for gradient in found] for r in range(n)]


def _three_layers(n: int) -> list[Case]:
    rng = normal(n, 3)

    def drawn(layers: Layers, dtype: str = "float32") -> list[Any]:
        return [([[rng.normal(size=s).astype(dtype) for s in shapes] for shapes in layers],) for _ in range(n)]

    same: Layers = [[(n,), (n,)]] * 3
    readable = [([[np.full(s, 10.0 * r, dtype="float32") for s in shapes] for shapes in same],) for r in range(n)]
    return [
        Case(readable, "three layers of two parameters, two micro-batches"),
        Case(drawn([[(3, 2), (3,)], [(2, 3)], [(2,), (1,), (4, 2)]]), "three different layers, two micro-batches"),
        Case(drawn([[(1,)], [(7,)], [(2, 2)]], "float64"), "one parameter a layer, float64"),
        Case(drawn([[(16, 8), (16,)], [(8, 16), (8,)], [(8,), (8,)]]), "larger layers"),
    ]


def run_shed_gradients(shed_gradients, layers):
    theirs = [[torch.cat([t.flatten() for t in targets]) for targets in each] for each in everyones(layers)]
    goals = [sum(same) / world_size for same in zip(*theirs)]
    models, shards = [], []
    for targets in layers:
        first = torch.linspace(-1, 1, sum(t.numel() for t in targets), dtype=targets[0].dtype, device=device)
        parts = first.split([t.numel() for t in targets])
        models.append([torch.nn.Parameter(part.clone().view_as(t)) for part, t in zip(parts, targets)])
        shards.append(torch.nn.Parameter(first.new_zeros(-(-len(first) // world_size))))
    every, most = [p for params in models for p in params], [0]
    for params, shard in zip(models, shards):
        shed_gradients(params, shard)
    for p in every:
        p.register_post_accumulate_grad_hook(
            lambda _: most.append(sum(q.grad.numel() for q in every if q.grad is not None))
        )
    enough = max(sum(p.numel() for p in params) for params in models)
    for weight in (1, 2):
        parts = [((p - t) ** 2).sum() for params, ts in zip(models, layers) for p, t in zip(params, ts)]
        (weight * sum(parts) / 2).backward()
        left = sum(p.grad is not None for p in every)
        assert not left, f"{left} of {len(every)} parameters still have a whole gradient after the backward pass."
        assert max(most) <= enough, (
            f"{max(most)} numbers of whole gradients are alive at once, and the largest layer has {enough}."
        )
    assert all(s.grad is not None for s in shards), "a `shard.grad` is None after the backward pass."

    def parts(goals, passes):
        found = []
        for params, goal, shard in zip(models, goals, shards):
            whole = passes * (torch.cat([p.detach().flatten() for p in params]) - goal)
            whole = torch.nn.functional.pad(whole, (0, len(shard) * world_size - len(whole)))
            found.append(whole.chunk(world_size)[rank])
        return found

    slips = {
        "takes this rank's own gradient for the mean": parts(theirs[rank], 3),
        "divides this rank's own gradient by the number of ranks": [g / world_size for g in parts(theirs[rank], 3)],
        "keeps the last micro-batch's gradient, and does not add to what is there": parts(goals, 2),
        "adds up and does not divide by the number of ranks": [world_size * part for part in parts(goals, 3)],
    }
    out = [s.grad for s in shards]
    name_it(out, parts(goals, 3), slips)
    return out


@exercise(
    "Stage 2: let the gradients go as they come",
    _shed,
    minutes=8,
    difficulty=2,
    inputs=_three_layers,
    tolerance=1e-4,
    forbids=("all_reduce",),
    promises=(Calls(6),),
    least=Least(sent=lambda n, S: 2 * (n - 1) / n * S, rounds=lambda n: 6),
    counts_memory=False,
    harness=run_shed_gradients,
)
def shed_gradients(params, shard):
    """From now on, a backward pass leaves the mean gradient of this layer in shard.grad, and no p.grad.

    `shed_gradients(params, shard)` is called once for each layer, before training. From then on a backward pass calls
    `arrived` whenever one of the layer's gradients has been computed. Write its body: as soon as **all** gradients of
    the layer are there, this rank's part of their **mean over the ranks** goes into `shard.grad`, in **one** collective
    for the layer, and every `p.grad` of the layer is set to `None`. If `shard.grad` holds something already, from an
    earlier micro-batch, **add** to it.

    `len(shard)` times `world_size` is at least as long as the layer's parameters together: fill up with zeros. Return
    nothing.

    In the picture, each rank's loss draws the weights of three layers towards the numbers on the left. On the right are
    the three `shard.grad` after two micro-batches, which take six collectives.
    Hint: `arrived` runs once for each parameter, and the last time all of them have a gradient: `any(p.grad is None for
    p in params)` says whether some are missing.
    Hint: Then the same as in stage 1: one flat gradient with zeros at the end, a reduce-scatter, the division.
    Hint: The memory of a gradient is freed when nothing refers to it: `p.grad = None`, not `p.grad.zero_()`.
    Afterwards: At no time were the whole gradients of two layers there. PyTorch's `zero_grad()` has set gradients to
    `None` by default since version 2.0, for this reason; zeroed gradients still take their memory.
    """

    def arrived(_):
        """Note that one of the gradients has come."""
        # yours
        if any(p.grad is None for p in params):
            return
        gradient = torch.cat([p.grad.flatten() for p in params])
        gradient = torch.nn.functional.pad(gradient, (0, len(shard) * world_size - len(gradient)))
        mine = torch.empty_like(shard)
        dist.reduce_scatter_single(mine, gradient)
        shard.grad = mine / world_size if shard.grad is None else shard.grad + mine / world_size
        for p in params:
            p.grad = None
        # end

    for p in params:
        p.register_post_accumulate_grad_hook(arrived)


def _parts(xs: Sequence[Any], members: Sequence[int] | None = None) -> list[Any]:
    ranks = list(range(len(xs)) if members is None else members)
    return [shard(x, len(ranks), ranks.index(r)) if r in ranks else None for r, x in enumerate(xs)]


def _buffers(n: int) -> list[Case]:
    rng = normal(n, 1)

    def same(size: int, about: str, dtype: str = "float32", members: list[int] | None = None) -> Case:
        flat = rng.integers(1, 90, size).astype(dtype)
        return Case([flat.copy() for _ in range(n)], about, {"members": members} if members else {})

    team = [r for r in range(n) if r % 2] or [0]
    return [
        Case([np.arange(1.0, 2 * n + 1, dtype="float32")] * n),
        same(2 * n + 1, f"{2 * n + 1} numbers, which {n} does not divide"),
        same(1, "one number"),
        same(7, f"a group of ranks {team}", members=team),
        same(6, "a group of the last rank alone", members=[n - 1]),
        same(50 * n - 1, "float64", "float64"),
        same(3 * n + 2, "integers", "int64"),
    ]


def run_my_shard(my_shard, flat, members=None):
    group = None if members is None else dist.new_group(members)
    if members is not None and rank not in members:
        return None
    mine = my_shard(flat) if group is None else my_shard(flat, group)
    if isinstance(mine, torch.Tensor):
        whole = mine.untyped_storage().nbytes()
        assert whole == mine.nbytes, (
            f"the part has {mine.nbytes} bytes, and keeps a buffer of {whole} bytes alive: it is a view of it. "
            "Return a clone."
        )
    members = list(range(world_size)) if members is None else members

    def part(size, place):
        length = -(-len(flat) // size)
        return torch.nn.functional.pad(flat, (0, length * world_size)).split(length)[place]

    slips = {
        "takes the part of the rank's number in the world, and not of its number in the group": (len(members), rank),
        "cuts for all ranks of the world, and not for those of the group": (world_size, members.index(rank)),
        "cuts for all ranks of the world, where only a group holds `flat`": (world_size, rank),
    }
    right = part(len(members), members.index(rank))
    name_it(mine, right, {why: part(*of) for why, of in slips.items()})
    return mine


@exercise(
    "Which part is mine?",
    _parts,
    minutes=5,
    inputs=_buffers,
    tolerance=0.0,
    promises=(Calls(0),),
    least=Least(memory=lambda n, S: S / n),
    harness=run_my_shard,
)
def my_shard(flat, group=None):
    """Return this rank's part of flat, one of equal parts for the ranks of the group.

    Every rank of a group holds the same flat tensor `flat`. Cut it into as many parts as the group has ranks, all
    **equally long** and as short as possible: where the numbers do not suffice, fill up with zeros at the end. Return
    this rank's part: the first part to the first rank **of the group**. The part must have memory of its own, so that
    `flat` can be freed. `group=None` means all ranks. No communication.
    Hint: Seven numbers for four ranks: two each, and one zero for the last rank. Which formula gives 2?
    Hint: Division rounded up is `-(-a // b)`. `dist.get_rank(group)` is this rank's number within the group.
    Hint: A slice may be shorter than asked for, or empty: `torch.nn.functional.pad(mine, (0, missing))` fills up at the
    end. A slice is a view and keeps the whole buffer alive; what `pad` returns, or `.clone()`, is a copy.
    Afterwards: Stage 3 counts on three things: equal lengths, as Gloo and NCCL want them; zeros at the end, which
    change no sum; and the rank within the group, which is what you need as soon as a model is sharded in groups.
    """
    size = dist.get_world_size(group)
    length = -(-len(flat) // size)
    start = length * dist.get_rank(group)
    mine = flat[start : start + length]
    return torch.nn.functional.pad(mine, (0, length - len(mine)))  # a copy, also where nothing is missing


def _through(xs: Sequence[Any]) -> list[Any]:
    n = len(xs)
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray | None]] = []
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
    return [[y, shard(mean, n, r), dx] for r, (y, _, dx) in enumerate(found)]


def _one_layer(n: int) -> list[Case]:
    rng = normal(n, 4)

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


TURNS = 500


def kept(refs):
    for _ in range(TURNS):
        if all(ref() is None for ref in refs):
            return []
        time.sleep(0.002)
    return [i for i, ref in enumerate(refs) if ref() is not None]


def run_zero3_layer(zero3_layer, whole, x, slope):
    held = []

    def compute(weights, x):
        held.append(weakref.ref(weights.untyped_storage()))
        if not x.is_floating_point():
            return torch.tanh(weights[x])
        wide = x.shape[1]
        matrix, bias = weights[: wide * wide].view(wide, wide), weights[wide * wide : wide * wide + wide]
        return torch.tanh(x @ matrix.T + bias)

    length = -(-len(whole) // world_size)
    padded = torch.nn.functional.pad(whole, (0, length * world_size - len(whole)))
    shard = torch.nn.Parameter(padded.chunk(world_size)[rank].clone())
    del padded
    own = torch.nn.functional.pad(whole, (0, length * world_size - len(whole))).clone().requires_grad_()
    alone = x.detach().clone().requires_grad_(x.is_floating_point())
    compute(own, alone).backward(slope)
    mine, total, held[:] = own.grad.chunk(world_size)[rank], sum(everyones(own.grad)).chunk(world_size)[rank], []
    x = x.requires_grad_() if x.is_floating_point() else x
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


@exercise(
    "Stage 3: a layer whose weights come and go",
    _through,
    minutes=15,
    difficulty=3,
    inputs=_one_layer,
    tolerance=1e-4,
    forbids=("all_reduce",),
    promises=(Calls(3),),
    least=Least(rounds=lambda n: 3),
    counts_memory=False,
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

    In the picture, all weights, `x` and `dy` are on the left; the result and the two gradients are on the right.
    Hint: A class inside the function, with two static methods, `forward(ctx, shard, x)` and `backward(ctx, dy)`; its
    `apply(shard, x)` calls them. Inside a `Function` autograd records nothing: what `compute` leaves behind in
    `forward` is gone when it returns. `ctx.save_for_backward(shard, x)` is all that stays.
    Hint: In `backward`, make leaves of the gathered weights and of a detached `x`, compute under `torch.enable_grad()`,
    and call `y.backward(dy)`: then `weights.grad` and `x.grad` are there.
    Hint: `weights.grad` is the gradient of this rank's loss by all weights. A reduce-scatter and a division make this
    rank's part of the mean of it. `x` is this rank's own, so its gradient needs no collective.
    Afterwards: Two all-gathers and a reduce-scatter: that is the price of stage 3. To compute the layer a second time,
    instead of keeping what the first pass computed, is called activation checkpointing. FSDP keeps the activations,
    unless you ask for checkpointing too, and brings back the weights alone.
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
