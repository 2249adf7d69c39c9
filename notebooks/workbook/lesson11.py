"""Lesson 11: a shard, stages 1 and 2 of ZeRO by hand, and the questions of the lesson."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, Least, exercise
from labkit.grading.inputs import normals
from labkit.grading.prediction import ask
from labkit.grading.promises import Calls
from workbook.cards import pictured
from workbook.harnesses import adam_step

if TYPE_CHECKING:
    from labkit.rank.cell_names import device, dist, everyones, name_it, rank, torch, world_size


on_shards = partial(exercise, tolerance=1e-4, forbids=("all_reduce",))  # what is summed is needed in shards alone


def cut(flat: np.ndarray, n: int, place: int) -> np.ndarray:
    """Cut a flat buffer, filled up with zeros, into n equal parts; return the one at this place."""
    return np.pad(flat, (0, -len(flat) % n)).reshape(n, -1)[place]


def padded(flat):
    """Copy a flat tensor, filled up with zeros to equal parts for all ranks."""
    return torch.nn.functional.pad(flat, (0, -len(flat) % world_size))


def _begun_and_wanted(xs: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the flat weights that a model begins with, and what all ranks together draw them to."""
    wanted = np.mean([np.concatenate([t.ravel() for t in x]) for x in xs], axis=0)
    return np.linspace(-1, 1, len(wanted)).astype(xs[0][0].dtype), wanted


def first_weights(targets):
    """Make the flat weights that a model for these targets begins with."""
    return torch.linspace(-1, 1, sum(t.numel() for t in targets), dtype=targets[0].dtype, device=device)


LR, TRAINED = 0.1, 3


def _trained(xs: Sequence[Any]) -> list[Any]:
    n, (w, goal) = len(xs), (a.astype("float64") for a in _begun_and_wanted(xs))
    mean, square = np.zeros_like(w), np.zeros_like(w)
    for step in range(1, TRAINED + 1):
        gradient = w - goal
        mean, square, by = adam_step(mean, square, gradient, step)
        w = w - LR * by
    w, gradient = (a.astype(xs[0][0].dtype) for a in (w, gradient))
    ends = np.cumsum([t.size for t in xs[0]])[:-1]
    params = [part.reshape(t.shape) for part, t in zip(np.split(w, ends), xs[0])]
    return [{"gradient of the shard": cut(gradient, n, r), "shard": cut(w, n, r), "params": params} for r in range(n)]


def _one_step(xs: Sequence[Any]) -> list[Any]:
    """Take Adam's first step, which moves each weight by the learning rate, down where its gradient is positive."""
    n, after = len(xs), xs[0]["weights"] - LR
    mean = sum(x["p.grad"] for x in xs) / n
    return [{"shard.grad": cut(mean, n, r), "shard": cut(after, n, r), "weights": after} for r in range(n)]


def _before_a_step() -> list[Any]:
    return [{"weights": np.array([1.0, 2.0]), "p.grad": np.array(grad)} for grad in ([2.0, 5.0], [4.0, 7.0])]


def _targets(n: int) -> list[Case]:
    rng = np.random.default_rng([11, 2, n])
    return [
        Case([(np.full(2 * n, 10.0 * r, dtype="float32"),) for r in range(n)], "one parameter"),
        Case(normals(n, rng, ((2, n), (3,))), f"{2 * n + 3} numbers in two parameters"),
        # After its first step this weight is what its gradient was, -0.9: chance brings that too, and it is no mistake.
        Case([(np.array([r - (n - 1) / 2 - LR], "float32"),) for r in range(n)], "one number"),
        Case(normals(n, rng, ((5, 3), (5,), (2, 5)), "float64"), "float64"),
        Case(normals(n, rng, ((40, 20), (40,))), "a layer"),
    ]


def run_zero1_step(zero1_step, *targets):
    """Train some steps with an Adam of our own, and collect the shard, its gradient and the parameters.

    The first optimizer of torch.optim imports torch's compiler, for seconds.
    """
    from workbook.on_ranks import Adam

    goal = sum(torch.cat([t.flatten() for t in theirs]) for theirs in everyones(targets)) / world_size
    weights = padded(first_weights(targets))
    params = [torch.nn.Parameter(torch.empty_like(t)) for t in targets]
    torch.nn.utils.vector_to_parameters(weights, params)
    shard = torch.nn.Parameter(weights.chunk(world_size)[rank])
    optimizer = Adam([shard], lr=LR)
    alone = torch.nn.Parameter(weights.clone())  # what one process trains
    its_optimizer = Adam([alone], lr=LR)
    for step in range(TRAINED):
        loss = sum(((p - t) ** 2).sum() for p, t in zip(params, targets)) / 2
        loss.backward()
        before = weights.clone()
        alone.grad = padded(before[: len(goal)] - goal)
        its_optimizer.step()
        mean, right = alone.grad.chunk(world_size), alone.detach().chunk(world_size)
        own = padded(torch.cat([p.grad.flatten() for p in params])).chunk(world_size)
        slips = {
            "takes this rank's own gradient for the mean": own[rank],
            "divides this rank's own gradient by the number of ranks": own[rank] / world_size,
            "adds up and does not divide by the number of ranks": mean[rank] * world_size,
            "divides the mean by the number of ranks once more": mean[rank] / world_size,
            "gives every rank the part of rank 0": mean[0],
        }
        zero1_step(params, weights, shard, optimizer)
        seen = optimizer.gradients
        assert len(seen) == step + 1, f"`optimizer.step()` has run {len(seen)} times by the end of step {step + 1}."
        assert seen[-1] is not None, "`shard.grad` is None when the optimizer steps, so it leaves the shard as it is."
        name_it(seen[-1], mean[rank], slips, "shard.grad")
        wrong = [(r, now) for r, now in enumerate(weights.chunk(world_size)) if not torch.allclose(now, right[r])]
        stale = [r for r, now in wrong if torch.equal(now, before.chunk(world_size)[r])]
        assert not stale, (
            f"after step {step + 1}, the part of rank {stale[0]} in `weights` is what it was before. Gather all parts "
            "after `optimizer.step()`, and wait for them."
        )
        mixed = [r for r, now in wrong if torch.allclose(now, mean[r])]
        assert not mixed, (
            f"after step {step + 1}, the part of rank {mixed[0]} in `weights` is its gradient. "
            "Gather what the optimizer has updated: `shard.detach()`, and not `shard.grad`."
        )
        assert all(p.grad is None or not p.grad.any() for p in params), (
            f"after step {step + 1} there still is a gradient in `p.grad`, and the next backward() adds to it: "
            "`optimizer.zero_grad()` clears that of `shard` alone."
        )
    return {"gradient of the shard": seen[-1], "shard": shard.detach(), "params": [p.detach() for p in params]}


@on_shards(
    "Stage 1: each rank updates its shard",
    pictured(_trained, _one_step),
    minutes=8,
    difficulty=2,
    inputs=_targets,
    picture=_before_a_step,
    promises=(Calls(6),),
    least=Least(sent=lambda n, S: TRAINED * 2 * (n - 1) / n * S, rounds=lambda n: 2 * TRAINED),
    harness=run_zero1_step,
)
def zero1_step(params, weights, shard, optimizer):
    """Take a training step with the ranks' mean gradient, in which this rank updates its shard alone.

    `params` are all parameters of the model, equal on all ranks: views of one flat buffer, `weights`. `shard` is a
    view, too: this rank's part of it. `p.grad` is the gradient of **this rank's** loss. `optimizer` is an Adam that
    knows `shard` alone.

    Take the training step that one process would take with the **mean** gradient: bring this rank's part of it into
    `shard.grad`, let the optimizer step, and bring everyone's new part into `weights`. Afterwards `params` must be
    ready for the next `backward()`, which **adds** to what is in `p.grad`. Return nothing. No rank needs the whole mean
    gradient, so an all-reduce is too much. **Two** collectives per step are enough, `dist.reduce_scatter_single` and
    `dist.all_gather_single`: the check takes three steps and counts six. (Give `shard.detach()` to collectives: for
    `shard`, which requires a gradient, autograd raises an error.)

    The picture shows one step of two ranks. On rank 0, `weights` of 1 and 2 and `p.grad` of 2 and 5 become a
    `shard.grad` of 3, a `shard` of 0.9, and `weights` of 0.9 and 1.9. (Adam's first step moves each weight by the
    learning rate, here 0.1.)
    Hint: You know both collectives from lesson 04: one leaves this rank's part of the sum, the other brings all parts
    together. The optimizer steps in between.
    Hint: `shard.grad = torch.empty_like(shard)` makes room; `dist.reduce_scatter_single(shard.grad, gradient)` fills it
    with a sum, not with a mean.
    Hint: `dist.all_gather_single(weights, shard.detach())`. And `optimizer.zero_grad()` would clear `shard.grad`,
    because the shard is all that this optimizer knows: set each `p.grad = None` yourself.
    Afterwards: The step is that of a single process, and on each rank Adam's two moments take one N-th of their memory.
    Note what `zero_grad()` clears: the gradients of the tensors that the optimizer was given, and no others.
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
    layers = [_begun_and_wanted(layer) for layer in zip(*[x[0] for x in xs])]
    gradients = [(sum(PASSES) * (begun - wanted)).astype(begun.dtype) for begun, wanted in layers]
    return [[cut(gradient, len(xs), r) for gradient in gradients] for r in range(len(xs))]


def _one_pass(xs: Sequence[Any]) -> list[Any]:
    n, means = len(xs), {name: sum(x[name] for x in xs) / len(xs) for name in xs[0]}
    return [{name: cut(mean, n, r) for name, mean in means.items()} for r in range(n)]


def _before_a_pass() -> list[Any]:
    return [{f"layer {i}": np.array([first, first + 1.0]) for i, first in enumerate((r, 10 + r))} for r in (2, 4)]


def _three_layers(n: int) -> list[Case]:
    rng = np.random.default_rng([11, 3, n])

    def drawn(layers: Sequence[Sequence[tuple[int, ...]]], dtype: str = "float32") -> list[Any]:
        return [([[rng.normal(size=s).astype(dtype) for s in shapes] for shapes in layers],) for _ in range(n)]

    readable = [([[np.full(n, 10.0 * r, dtype="float32") for _ in range(2)] for _ in range(3)],) for r in range(n)]
    return [
        Case(readable, "three layers of two parameters, two micro-batches"),
        Case(drawn([[(3, 2), (3,)], [(2, 3)], [(2,), (1,), (4, 2)]]), "three different layers, two micro-batches"),
        Case(drawn([[(1,)], [(7,)], [(2, 2)]], "float64"), "one parameter a layer, float64"),
        Case(drawn([[(16, 8), (16,)], [(8, 16), (8,)], [(8,), (8,)]]), "larger layers"),
    ]


def run_shed_gradients(shed_gradients, layers):
    """Go back through three layers twice, count the gradients alive at once, and collect those of the shards."""
    theirs = [[torch.cat([t.flatten() for t in targets]) for targets in each] for each in everyones(layers)]
    goals = [sum(same) / world_size for same in zip(*theirs)]
    models, shards = [], []
    for targets in layers:
        first = first_weights(targets)
        split = first.split([t.numel() for t in targets])
        models.append([torch.nn.Parameter(part.clone().view_as(t)) for part, t in zip(split, targets)])
        shards.append(torch.nn.Parameter(first.new_zeros(-(-len(first) // world_size))))
    every, most = [p for params in models for p in params], [0]
    for params, shard in zip(models, shards):
        shed_gradients(params, shard)
    for p in every:
        p.register_post_accumulate_grad_hook(
            lambda _: most.append(sum(q.grad.numel() for q in every if q.grad is not None))
        )
    enough = max(sum(p.numel() for p in params) for params in models)
    for nth, weight in enumerate(PASSES, 1):
        losses = [((p - t) ** 2).sum() for params, ts in zip(models, layers) for p, t in zip(params, ts)]
        (weight * sum(losses) / 2).backward()
        left = sum(p.grad is not None for p in every)
        assert not left, (
            f"{left} of {len(every)} parameters still have a whole gradient after backward pass {nth} of {len(PASSES)}."
            f"{' What counts the gradients that have come has to begin anew in each pass.' * (nth > 1)}"
        )
        assert max(most) <= enough, (
            f"{max(most)} numbers of whole gradients are alive at once, and the largest layer has {enough}."
        )
    assert all(s.grad is not None for s in shards), "a `shard.grad` is None after the backward pass."

    def parts(goals, weight):
        wholes = [torch.cat([p.detach().flatten() for p in params]) - goal for params, goal in zip(models, goals)]
        return [padded(weight * whole).chunk(world_size)[rank] for whole in wholes]

    slips = {
        "takes this rank's own gradient for the mean": parts(theirs[rank], 3),
        "divides this rank's own gradient by the number of ranks": parts(theirs[rank], 3 / world_size),
        "keeps the last micro-batch's gradient, and does not add to what is there": parts(goals, 2),
        "adds up and does not divide by the number of ranks": parts(goals, 3 * world_size),
    }
    out = [s.grad for s in shards]
    name_it(out, parts(goals, 3), slips)
    return out


@on_shards(
    "Stage 2: let the gradients go as they come",
    pictured(_shed, _one_pass),
    minutes=8,
    difficulty=2,
    inputs=_three_layers,
    picture=_before_a_pass,
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

    The picture shows one backward pass of two ranks. On the left are each rank's gradients of two layers, each of two
    numbers; on the right are the layers' `shard.grad`. The check goes back through three layers twice, which takes six
    collectives.
    Hint: `arrived` runs once for each parameter, and the last time all of them have a gradient: `any(p.grad is None for
    p in params)` says whether some are missing.
    Hint: Then the same as in stage 1: one flat gradient with zeros at the end, a reduce-scatter, the division.
    Hint: The memory of a gradient is freed when nothing refers to it: `p.grad = None`, not `p.grad.zero_()`.
    Afterwards: The whole gradients of two layers were never in memory at the same time. Since PyTorch 2.0,
    `zero_grad()` sets gradients to `None` by default for this reason: a gradient of zeros still takes its memory.
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
    return [cut(x, len(ranks), ranks.index(r)) if r in ranks else None for r, x in enumerate(xs)]


def _buffers(n: int) -> list[Case]:
    rng = np.random.default_rng([11, 1, n])

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
    """Ask for the part of this rank in a group, which must not be a view, and name a wrong part."""
    group = () if members is None else (dist.new_group(members),)
    members = list(range(world_size)) if members is None else members
    if rank not in members:
        return None
    mine = my_shard(flat, *group)
    if isinstance(mine, torch.Tensor):
        whole = mine.untyped_storage().nbytes()
        assert whole == mine.nbytes, (
            f"the part has {mine.nbytes} bytes, and keeps a buffer of {whole} bytes alive: it is a view of it. "
            "Return a clone."
        )

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


bytes_of_a_replica = ask("""
The model has 205,220 parameters in float32. Each rank trains a copy of it with Adam, which keeps two numbers for every
parameter. How many MB (millions of bytes) of weights, gradients and optimizer states does **one** rank hold, once it
has taken a training step?
= 3.28352 MB +- 10 %
( ) 0.82088
    > These are the weights alone. Gradients and the optimizer's states come on top.
( ) 1.64176
    > These are weights and gradients. Adam keeps two numbers for each parameter, too.
( ) 2.46264
    > One of the four is missing: weight, gradient, and two numbers of Adam.
( ) 13.13408
    > This is what four ranks hold together. The question is about one.
Why: About 3.3 MB (3.13 MiB in the picture further down). A parameter takes 4 bytes as a weight, 4 as a gradient and 8
in Adam's two moments: 16 bytes, times 205,220. Half of it is the optimizer's.
""")

bytes_of_stage_3 = ask("""
An all-reduce of the gradients (DDP) sends 100 %. How many per cent does a rank send in stage 3, with collectives that
send the least?
= 150.0 % +- 5 %
( ) 100
    > That is stages 1 and 2. In stage 3 the weights travel twice, forward and backward.
( ) 300
    > Three collectives, but each of them sends half of what an all-reduce sends.
( ) 200
    > That would be true of two all-reduces. It is three halves of one.
( ) 25
    > A rank keeps a quarter of everything, and still all gradients and all weights have to travel.
Why: 150 %. A reduce-scatter and an all-gather each send half of what an all-reduce sends. Stage 3 makes one
reduce-scatter of all gradients and **two** all-gathers of all weights: half as much again, for an N-th of the memory.
""")

what_autograd_holds = ask("""
In the forward pass, autograd saves a layer's weight, because the backward pass needs it. With `fully_shard`, what does
autograd hold of a transformer layer's weight between the two passes?
( ) a copy of the whole weight, freed after the backward pass
    > Then FSDP would save no memory between the passes. Autograd saves the tensor itself, and makes no copy.
( ) this rank's part of the weight
    > This rank's part is what the optimizer holds. The layer's backward pass needs the whole weight.
(x) the same tensor, with no memory behind it
( ) the same tensor, whole: FSDP frees the weights of a layer after its backward pass
    > That is what `reshard_after_forward=False` does. By default a layer's weights are freed after its forward pass,
    too.
Why: The same tensor, with 0 bytes behind it. FSDP frees the *storage* of the tensor. In the backward pass it fills the
same storage again with an all-gather, just before the layer needs it, and frees it again afterwards. Nothing is
computed a second time, and here only one of the transformer layers is whole at a time.
""")

gathers_of_fully_shard = ask("""
`fully_shard` was called for each of the four transformer layers, and then for the whole model, which takes the rest:
embeddings, norm and output. With its default settings, how many all-gathers are there in the **backward** pass?
= 4.0 +- 0 %
( ) 5
    > These are those of the forward pass. One of the five units does not let go of its weights.
( ) 0
    > That would be true with `reshard_after_forward=False`: all weights stay after the forward pass.
( ) 3
    > Close. The last transformer layer lets its weights go, although it is needed again soon.
( ) 6
    > FSDP makes a unit of each call of `fully_shard`: five here, the ends of the model in one.
( ) 9
    > These are those of the forward and the backward pass together.
Why: Four: one for each transformer layer. By default, the outermost module keeps its weights after the forward pass:
the backward pass begins with it, so they would be gathered again at once.
""")
