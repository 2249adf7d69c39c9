"""Exercises of lesson 12 on schedules: the order of a stage's passes, sends that do not block, stages equally slow."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.floor.errors import LabError
from labkit.floor.words import count
from labkit.grading.exercise import Case, Least, exercise
from labkit.grading.promises import Calls
from workbook.cards import in_words, no_numbers
from workbook.lesson12 import batches, on_stages, placed, stage_backward, stage_forward, trained
from workbook.tools import pipeline

if TYPE_CHECKING:
    from labkit.rank.cell_names import dist, everyones, name_it, rank, torch, world_size


def ordered(xs: Sequence[Any], schedule: Any) -> list[Any]:
    """Return what a schedule leaves on each rank: the gradient, the micro-batches kept at once, and the time."""
    _, inputs, targets = xs[0]
    plan, gradients = schedule(len(xs), len(inputs)), trained([x[0] for x in xs], inputs, targets)[1]
    end = max(box.end for mine in plan.played for box in mine)
    return [{"gradient": g, "kept at once": kept, "time": end} for g, kept in zip(gradients, plan.alive)]


def in_order(means: Any, schedule: Any) -> Any:
    """Return what `means` returns; for the stages that a card draws, their operations in this schedule's order."""

    def found(xs: Sequence[Any], **options: Any) -> Any:
        if list(xs) != three_stages():
            return means(xs, **options)
        return [[f"{kind}{m}{'ab'[c] if schedule.chunks > 1 else ''}" for kind, m, c in ops] for ops in schedule.orders]

    return found


def three_stages() -> list[int]:
    """Return what a card draws of lists of operations: the numbers of three stages."""
    return [0, 1, 2]


def _orders(n: int) -> list[Case]:
    return [
        Case(batches(n, 5, n + 2), f"{n + 2} micro-batches"),
        Case(batches(n, 6, n), f"{n} micro-batches"),
        Case(batches(n, 7, max(1, n - 2)), f"fewer micro-batches than ranks ({max(1, n - 2)})"),
        Case(batches(n, 8, 2 * n + 1, 2, 3, "float64"), f"{2 * n + 1} micro-batches, float64"),
    ]


def first_half(stage, kept, send):
    """Do the first half of a backward pass: the gradient that the stage before waits for."""
    (x, y), dy = kept, None
    if stage.after is not None:
        dy = torch.empty_like(y)
        dist.recv(dy, src=stage.after, tag=1)
    if stage.before is not None:
        torch.autograd.backward(y, dy, inputs=[x], retain_graph=True)
        send(x.grad, stage.before, tag=1)
    return y, dy


def run_orders(orders, weight, inputs, targets, plan, chunks=None):
    """Run the orders of all ranks, as the repaired executor does; return the gradients, what was kept, and the time."""
    from workbook.on_ranks import Small

    many = chunks or 1
    assert isinstance(orders[rank], (list, tuple)), "Return a list of operations."
    orders = [[pipeline.operation(op) for op in order] for order in orders]
    kinds, units = ("FBW", pipeline.SPLIT) if plan.split else ("FB", pipeline.UNITS)
    every = {(kind, m, c) for kind in kinds for m in range(len(inputs)) for c in range(many)}
    for r, ops in enumerate(orders):  # those of all ranks, so that all of them find the mistake
        wanted = set(every)
        for kind, m, c in ops:
            of = f"of chunk {c} " if many > 1 else ""
            last = f"its last micro-batch is number {len(inputs) - 1}"
            assert (kind, m, c) in every, f"{kind}{m} {of}is not an operation of rank {r}: {last}."
            assert (kind, m, c) in wanted, f"{kind}{m} {of}is in the list of rank {r} twice."
            wanted.discard((kind, m, c))
        missing = ", ".join(f"{kind}{m}{f' of chunk {c}' if many > 1 else ''}" for kind, m, c in sorted(wanted))
        assert not wanted, f"The order of rank {r} leaves out {missing}."
    try:
        played = pipeline.play(orders, units)
    except LabError as error:
        raise AssertionError(str(error)) from None
    stages = [Small(weight * (1 + c), c * world_size + rank, many * world_size) for c in range(many)]
    works, kept = [], {}

    def send(tensor, dst, tag=0):
        works.append((dist.isend(tensor, dst, tag=tag), tensor))

    for kind, m, c in orders[rank]:
        if kind == "F":
            kept[m, c] = stage_forward(stages[c], (inputs[m], targets[m]), len(inputs), send)
        elif kind == "W":
            torch.autograd.backward(*kept.pop((m, c)), inputs=[stages[c].weight])
        elif plan.split:
            kept[m, c] = first_half(stages[c], kept[m, c], send)
        else:
            stage_backward(stages[c], *kept.pop((m, c)), send)
    for work, _ in works:
        work.wait()
    time, enough = (max(box.end for mine in boxes for box in mine) for boxes in (played, plan.played))
    most, time = max(pipeline.alive(orders[rank]), plan.alive[rank]), max(time, enough)  # less is not a mistake
    if chunks is None:
        return {"gradient": stages[0].weight.grad, "kept at once": most, "time": time}
    return {"gradients": [stage.weight.grad for stage in stages], "kept at once, in chunks": most, "time": time}


def run_as_in(schedule, order_of, weight, inputs, targets, **chunks):
    """Run the orders that a function returns, and hold them against this schedule."""
    sizes = world_size, len(inputs), *chunks.values()
    orders = [order_of(r, *sizes) for r in range(world_size)]
    return run_orders(orders, weight, inputs, targets, schedule(*sizes), **chunks)


@on_stages(
    "1F1B: one forward, one back",
    in_order(lambda xs: ordered(xs, pipeline.one_f_one_b), pipeline.one_f_one_b(3, 4)),
    minutes=8,
    difficulty=2,
    inputs=_orders,
    picture=three_stages,
    harness=partial(run_as_in, pipeline.one_f_one_b),
)
def one_f_one_b(stage, stages, parts):
    """Return the operations of stage number `stage`, ("F", m) and ("B", m), in the order of 1F1B.

    Return the operations of stage number `stage`, of `stages`, as a list of `("F", m)` and `("B", m)`, for `parts`
    micro-batches. In 1F1B's schedule, a micro-batch goes back as soon as it can. A stage begins with as many forward
    passes as there are stages **after** it. From then on it alternates: one forward, then one back. When no
    micro-batch is left to go forward, it takes the others back. There may be fewer micro-batches than stages.

    A training step may take no longer than GPipe's, and a stage keeps the activations of as few micro-batches at once
    as this order allows. The check runs the lists of all stages on the ranks, and counts 1 for the time of a forward
    pass and 2 for that of a backward pass. The picture has the lists of three stages for four micro-batches.
    Hint: Take four stages. The last one takes micro-batch 0 back at once: F0 B0 F1 B1 … Which forward passes can stage
    2 do before B0 comes to it?
    Hint: For m = 0, 1, …: the next forward pass, if there is one left; then B of m. What number does the next forward
    pass have?
    Afterwards: The order is all that changes: the functions that compute and send are those of GPipe.
    """
    ahead = min(stages - stage - 1, parts)
    order = [("F", m) for m in range(ahead)]
    for m in range(parts):
        # yours
        if ahead + m < parts:
            order.append(("F", ahead + m))
        order.append(("B", m))
        # end
    return order


def run_run_ops(run_ops, weight, inputs, targets):
    """Let the function run 1F1B's operations, with what an operation does."""
    stage, kept, most, handles = placed(weight), {}, [0], []

    def run(op, start):
        def send(tensor, dst, tag=0):  # a handle that nobody keeps may take its message with it: a deadlock
            handles.append(start(tensor, dst, tag=tag))

        kind, m = op
        if kind == "F":
            kept[m] = stage_forward(stage, (inputs[m], targets[m]), len(inputs), send)
        else:
            stage_backward(stage, *kept.pop(m), send)
        most.append(len(kept))

    run_ops([op[:2] for op in pipeline.one_f_one_b(world_size, len(inputs)).orders[rank]], run)
    assert not kept, f"of {len(inputs)} micro-batches, {len(kept)} did not come back."
    dist.barrier()  # until all have what they wait for
    return {"gradient": stage.weight.grad, "kept at once": max(most)}


def broken_run_ops(ops, run):
    for op in ops:
        run(op, dist.send)


@on_stages(
    "Run 1F1B without a deadlock",
    in_words(
        lambda xs: [{k: v for k, v in one.items() if k != "time"} for one in ordered(xs, pipeline.one_f_one_b)],
        "every operation has run, in its order, and all messages have been received",
    ),
    minutes=8,
    difficulty=2,
    picture=no_numbers,
    inputs=lambda n: [
        Case(batches(n, 9, n + 2), f"1F1B, {n + 2} micro-batches"),
        Case(batches(n, 10, 1), "one micro-batch"),
        Case(batches(n, 11, 2 * n, 2, 3, "float64"), f"1F1B, {2 * n} micro-batches, float64"),
    ],
    harness=run_run_ops,
)
def run_ops(ops, run):
    """Run my operations in their order: run(op, send) receives, computes and sends.

    This is the function that hung. 1F1B's order is right; the function that runs it has to change. `ops` are this
    rank's operations, and `run(op, send)` runs one of them: it receives, computes, and sends what comes out with
    `send(tensor, dst)` or `send(tensor, dst, tag=1)`. Give it a `send` of your own that does not block when two
    neighbours send to each other, and keep the order of the operations. When `run_ops` returns, all messages have been
    received. Return nothing.
    Hint: In the wait-for graph two neighbours wait for each other, both in `send`. At least one of them has to continue
    before its message is received.
    Hint: `dist.isend(tensor, dst, tag=tag)` starts a send and returns a handle at once. Where do you keep the handles?
    Hint: Collect them in a list, and wait for all of them after the last operation.
    Afterwards: Megatron-LM and PyTorch pair the two messages that cross: `batch_isend_irecv` of the activation that
    goes forward and the gradient that comes back. With NCCL you need this: there a rank's calls wait in one queue, and
    a message that is too long for NCCL's buffer holds up all that follow until it is received.
    """
    works = []

    def send(tensor, dst, group=None, tag=0):  # as dist.send
        works.append(dist.isend(tensor, dst, group, tag=tag))

    for op in ops:
        run(op, send)
    for work in works:
        work.wait()


def name_other_cuts(mine, layers):
    """Compare with the right layers, and name a wrong way of cutting."""
    assert not isinstance(mine, torch.Tensor), "Return a list, and not a tensor: its method `tolist()` makes one of it."
    mine = list(mine) if isinstance(mine, range) else mine  # as good as a list, but a range cannot leave its rank
    each, most, numbers, right = layers // world_size, -(-layers // world_size), list(range(layers)), cut_layers(layers)
    early, end = rank * each, layers if rank == world_size - 1 else (rank + 1) * each
    slips = {
        "loses the layers that are left over": numbers[early : early + each],
        "gives the last rank all that are left over": numbers[early:end],
        "rounds up on every rank, as torch.chunk does": numbers[rank * most : (rank + 1) * most],
        "deals the layers out like cards": numbers[rank::world_size],
        "counts the layers from 1": [number + 1 for number in right],
    }
    if rank:
        slips = {"forgets that the ranks before it have one more": numbers[early : early + len(right)], **slips}
    name_it(mine, right, slips)
    return mine


@exercise(
    "Which layers are mine?",
    lambda xs, layers: [part.tolist() for part in np.array_split(np.arange(layers), len(xs))],
    minutes=4,
    inputs=lambda n: [
        Case([()] * n, count(layers, "layer"), {"layers": layers})
        for layers in (2 * n, 3 * n + 1, 4 * n - 1, n, 10, max(1, n - 1))
    ],
    promises=(Calls(0),),
    setup=lambda layers: (layers,),
    collect=name_other_cuts,
)
def cut_layers(layers):
    """Return the numbers of my layers, of so many.

    The model has `layers` equal layers, numbered from 0. Return the list of those that this rank holds, in their order:
    neighbouring layers, rank 0 the first ones. Every layer is on exactly one rank, and the numbers of layers differ by
    one at most. Where the number of ranks does not divide the number of layers, the first ranks get one more.
    Communicate nothing.

    For instance, 10 layers on 4 ranks: 3, 3, 2 and 2.
    Hint: `divmod(layers, world_size)` says how many each rank gets at least, and how many are left over.
    Hint: Your first layer comes after those of all ranks before you. How many of these ranks have one more?
    Hint: `first = rank * each + min(rank, more)`; this rank holds `each` layers, and one more if `rank < more`.
    Afterwards: This is what `torch.arange(layers).tensor_split(world_size)` does. Equal counts are a beginning: the
    first stage also embeds and the last one also scores all words, and the slowest stage sets the pace.
    """
    each, more = divmod(layers, world_size)
    first = rank * each + min(rank, more)
    return list(range(first, first + each + (rank < more)))


def slowest(costs: Sequence[float], ranks: int) -> float:
    """Return the least time that the slowest of so many ranks can take, each with neighbouring parts: try all cuts.

    >>> slowest([1, 1, 4], 2)
    4
    """
    every = combinations(range(1, len(costs)), ranks - 1)
    return min(max(sum(costs[a:b]) for a, b in pairwise((0, *cuts, len(costs)))) for cuts in every)


def _timed(n: int) -> list[Case]:
    def case(about: str, seed: int, costs: Sequence[float], noise: float) -> Case:
        rng = np.random.default_rng([13, seed, n])
        return Case([np.array(costs) * rng.uniform(1 - noise, 1 + noise, len(costs)) for _ in range(n)], about)

    return [
        Case([np.array([1.0, 2, 2, 2, 2, 6])] * n, "the output takes as long as three layers"),
        case("twelve parts, timed by clocks that differ a little", 40, [0.5, *[2.0] * 10, 5.0], 0.2),
        case("twelve parts, timed by clocks that differ much", 41, [3.0, *[2.0] * 10, 3.0], 0.9),
        Case([np.array([9.0, 1, 1, 1, 1, 1, 1, 1])] * n, "one part takes longer than all others"),
        case(f"{n} parts, one for each rank", 42, [1.0] * n, 0.5),
        case("fourteen parts of random cost", 43, [*np.random.default_rng([13, 44, 1]).uniform(0.2, 4, 14)], 0.3),
    ]


def time_of_slowest(mine, seconds):
    """Return how long the slowest rank takes with the parts that the ranks have returned."""
    assert isinstance(mine, (list, tuple, range)), "Return a list of the numbers of parts."
    everyone, clocks = zip(*everyones(([int(i) for i in mine], seconds.tolist())))
    for r, parts in enumerate(everyone):
        assert parts, f"Rank {r} gets no part."
        assert parts == list(range(parts[0], parts[-1] + 1)), f"The parts of rank {r} are not neighbours: {parts}."
    each = [part for parts in everyone for part in parts]
    twice = sorted({part for part in each if each.count(part) > 1})
    assert not twice, f"More than one rank has part {twice[0]}. All ranks have to cut by the same numbers."
    assert each == sorted(each), "The ranks' parts are not in the order of the ranks."
    costs = [sum(column) / world_size for column in zip(*clocks)]
    missing = [i for i in range(len(costs)) if i not in each]
    assert not missing, f"No rank has part {missing[0]}. All ranks have to cut by the same numbers."
    return {"slowest rank": max(sum(costs[i] for i in parts) for parts in everyone)}


@on_stages(
    "Stages that are equally slow",
    lambda xs: [{"slowest rank": slowest(np.mean(xs, axis=0).tolist(), len(xs))}] * len(xs),
    minutes=20,
    difficulty=3,
    inputs=_timed,
    tolerance=1e-9,
    least=Least(sent=lambda n, S: 2 * (n - 1) / n * S, rounds=lambda n: 1),
    collect=time_of_slowest,
)
def balanced_parts(seconds):
    """Return the numbers of the parts that I get.

    The model is a chain of parts that do not take equally long. Every rank has timed all of them, and `seconds[i]` is
    what **its own** clock says of part i. Return the list of the numbers of the parts that this rank gets. Each rank
    gets neighbouring parts, at least one, rank 0 the first ones; each part is on exactly one rank; and the slowest rank
    is as fast as it can be, by the **mean** of what all ranks have timed. There are at least as many parts as ranks.

    In the picture: what each rank has timed, and what the slowest rank takes. (The check asks what the ranks return,
    and adds up.)
    Hint: If two ranks cut by different numbers, a part may be on both of them, or on none. What has to come first?
    Hint: After an all-reduce all ranks have the same numbers, to the last bit, and each can compute the cut alone.
    Hint: For k ranks and the parts before `end`, try every place for the last cut. The slowest rank then takes the
    larger of two times: the best one for k − 1 ranks before the cut, and that of the parts after it. Begin with k = 1.
    Afterwards: Every rank computes the same cut by itself, because all begin with the same numbers. DeepSpeed's
    `partition_method` and Megatron-LM's options for the first and the last stage do this by counts of parameters or
    layers. Uneven layers are why real bubbles are larger than the formula's.
    """
    costs = seconds.clone()
    dist.all_reduce(costs)  # the same numbers on all ranks
    costs = costs.tolist()
    best = {end: (sum(costs[:end]), [0]) for end in range(1, len(costs) + 1)}  # one rank has all parts before `end`
    for ranks in range(1, world_size):
        best = {
            end: min((max(best[cut][0], sum(costs[cut:end])), [*best[cut][1], cut]) for cut in range(ranks, end))
            for end in range(ranks + 1, len(costs) + 1)
        }
    begins = [*best[len(costs)][1], len(costs)]
    return list(range(begins[rank], begins[rank + 1]))
