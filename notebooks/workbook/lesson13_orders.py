"""Exercises of lesson 13, in their places: the order of a stage's passes, and sends that do not block each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from labkit.grading.exercise import Case, exercise
from labkit.theory import pipeline
from workbook.lesson13 import backward, batches, forward, trained

if TYPE_CHECKING:
    from labkit.rank.seen import dist, rank, torch, world_size


def gradients(xs: Sequence[Any]) -> list[Any]:
    """The gradient of each stage's weight, in one process."""
    _, inputs, targets = xs[0]
    return trained([x[0] for x in xs], inputs, targets)[1]


# -- orders -----------------------------------------------------------------------------------------------------------


def _ordered(xs: Sequence[Any], schedule: Any) -> list[Any]:
    n, parts = len(xs), len(xs[0][1])
    plan = schedule(n, parts)
    end = max(box.end for mine in plan.played for box in mine)
    return [
        {"gradient": gradient, "kept at once": plan.alive[r], "time": end} for r, gradient in enumerate(gradients(xs))
    ]


def _orders(n: int) -> list[Case]:
    return [
        Case(batches(n, 5, n + 2), f"{n + 2} micro-batches"),
        Case(batches(n, 6, n), f"{n} micro-batches"),
        Case(batches(n, 7, max(1, n - 2)), f"fewer micro-batches than ranks ({max(1, n - 2)})"),
        Case(batches(n, 8, 2 * n + 1, 2, 3, "float64"), f"{2 * n + 1} micro-batches, float64"),
    ]


def first_half(stage, x, y, send):  # of a backward pass: the gradient that the stage before waits for
    dy = None
    if stage.after is not None:
        dy = torch.empty_like(y)
        dist.recv(dy, src=stage.after, tag=1)
    if stage.before is not None:
        torch.autograd.backward(y, dy, inputs=[x], retain_graph=True)
        send(x.grad, stage.before, tag=1)
    return y, dy


def run_orders(orders, stages, batches, plan):
    from labkit.errors import LabError
    from labkit.theory import pipeline

    orders = [[pipeline.operation(op) for op in order] for order in orders]
    kinds, units = ("FBW", pipeline.SPLIT) if plan.split else ("FB", pipeline.UNITS)
    for r, ops in enumerate(orders):  # those of all ranks, so that all of them find the mistake
        every = {(kind, m, c) for kind in kinds for m in range(len(batches)) for c in range(len(stages))}
        wanted = set(every)
        for kind, m, c in ops:
            of = f"of chunk {c} " if len(stages) > 1 else ""
            last = f"its last micro-batch is number {len(batches) - 1}"
            assert (kind, m, c) in every, f"{kind}{m} {of}is no operation of rank {r}: {last}."
            assert (kind, m, c) in wanted, f"{kind}{m} {of}is in the list of rank {r} twice."
            wanted.discard((kind, m, c))
        missing = ", ".join(f"{kind}{m}{f' of chunk {c}' if len(stages) > 1 else ''}" for kind, m, c in sorted(wanted))
        assert not wanted, f"The order of rank {r} leaves out {missing}."
    try:
        played = pipeline.play(orders, units)
    except LabError as error:
        raise AssertionError(str(error)) from None
    ops = orders[rank]
    works, kept = [], {}

    def send(tensor, dst, tag):
        works.append((dist.isend(tensor, dst, tag=tag), tensor))

    for kind, m, c in ops:
        if kind == "F":
            kept[m, c] = forward(stages[c], batches[m], len(batches), send)
        elif kind == "W":
            torch.autograd.backward(*kept.pop((m, c)), inputs=[stages[c].weight])
        elif plan.split:
            kept[m, c] = first_half(stages[c], *kept[m, c], send)
        else:
            backward(stages[c], *kept.pop((m, c)), send)
    for work, _ in works:
        work.wait()
    time, enough = (max(box.end for mine in boxes for box in mine) for boxes in (played, plan.played))
    return max(pipeline.alive(ops), plan.alive[rank]), max(time, enough)  # less is no mistake


def run_gpipe_order(order_of, weight, inputs, targets):
    from workbook.on_ranks import Small

    orders = [order_of(r, world_size, len(inputs)) for r in range(world_size)]
    assert isinstance(orders[rank], (list, tuple)), "It returns no list."
    stage = Small(weight)
    kept, time = run_orders(orders, [stage], list(zip(inputs, targets)), pipeline.gpipe(world_size, len(inputs)))
    return {"gradient": stage.weight.grad, "kept at once": kept, "time": time}


@exercise(
    "GPipe: all forward, then all back",
    lambda xs: _ordered(xs, pipeline.gpipe),
    minutes=3,
    inputs=_orders,
    tolerance=1e-5,
    counts_memory=False,
    harness=run_gpipe_order,
)
def gpipe_order(stage, stages, parts):
    """Return the operations of this stage, ("F", m) and ("B", m), in GPipe's order.

    Return the operations of stage number `stage`, of `stages`, as a list: `("F", m)` takes micro-batch `m` forward
    through the stage, `("B", m)` takes it back. There are `parts` micro-batches, numbered from 0. In GPipe's schedule
    all of them go forward, and then all of them go back.

    The check asks for the lists of all stages and runs them on the ranks. On the right of the picture: the gradient of
    the stage's weight; the most micro-batches that were kept at once; and the time of a training step, where a forward
    pass takes 1 and a backward pass 2.
    Hint: The list is the same for every stage.
    Hint: `[("F", m) for m in range(parts)]` is its first half.
    Afterwards: GPipe's paper goes back in the opposite order, last micro-batch first, and that is right, too, if
    **all** stages do it. A stage keeps the activations of all micro-batches until they come back.
    """
    return [("F", m) for m in range(parts)] + [("B", m) for m in range(parts)]


def run_one_f_one_b(order_of, weight, inputs, targets):
    from workbook.on_ranks import Small

    orders = [order_of(r, world_size, len(inputs)) for r in range(world_size)]
    assert isinstance(orders[rank], (list, tuple)), "It returns no list."
    stage = Small(weight)
    kept, time = run_orders(orders, [stage], list(zip(inputs, targets)), pipeline.one_f_one_b(world_size, len(inputs)))
    return {"gradient": stage.weight.grad, "kept at once": kept, "time": time}


@exercise(
    "1F1B: one forward, one back",
    lambda xs: _ordered(xs, pipeline.one_f_one_b),
    minutes=12,
    difficulty=3,
    inputs=_orders,
    tolerance=1e-5,
    counts_memory=False,
    harness=run_one_f_one_b,
)
def one_f_one_b(stage, stages, parts):
    """Return the operations of this stage, ("F", m) and ("B", m), in the order of 1F1B.

    Return the operations of stage number `stage`, of `stages`, as a list of `("F", m)` and `("B", m)`, for `parts`
    micro-batches. In 1F1B's schedule, a micro-batch goes back as soon as it can. A stage begins with as many forward
    passes as there are stages **after** it: that many more micro-batches are under way before the first one comes back.
    From then on it does one forward and one backward pass in turns. When there is no micro-batch left to go forward, it
    takes the others back.

    A training step may take no longer than GPipe's, and stage number s may keep the activations of no more than
    `stages` − s micro-batches at once. There may be fewer micro-batches than stages. The check runs your lists on the
    ranks. On the right of the picture: the weight's gradient, the most micro-batches that were kept at once, and the
    time of a training step (forward 1, backward 2).
    Hint: Take four stages. The last one goes back with micro-batch 0 at once: F0 B0 F1 B1 … Which forward passes does
    stage 2 do, before B0 can come to it?
    Hint: Stage s begins with `stages - s - 1` forward passes, or with all of them, if there are fewer.
    Hint: After these, for m = 0, 1, …: the next forward pass, if there is one left; then B of m.
    Afterwards: The time is GPipe's, and so is the bubble. What 1F1B saves is memory: stage s keeps `stages` − s
    micro-batches, however many there are in the batch. So you can make the bubble small with many micro-batches.
    """
    ahead = min(stages - stage - 1, parts)
    order = [("F", m) for m in range(ahead)]
    for m in range(parts):
        if ahead + m < parts:
            order.append(("F", ahead + m))
        order.append(("B", m))
    return order


# -- neighbours that both send ----------------------------------------------------------------------------------------


def _run(xs: Sequence[Any]) -> list[Any]:
    plan = pipeline.one_f_one_b(len(xs), len(xs[0][1]))
    return [{"gradient": gradient, "kept at once": plan.alive[r]} for r, gradient in enumerate(gradients(xs))]


def run_run_ops(run_ops, weight, inputs, targets):
    from labkit.theory import pipeline
    from workbook.on_ranks import Small

    stage, kept, most, handles = Small(weight), {}, [0], []

    def run(op, start):
        def send(*args, **named):  # a handle that nobody keeps may take its message with it: a deadlock
            handles.append(start(*args, **named))

        kind, m = op
        if kind == "F":
            kept[m] = forward(stage, (inputs[m], targets[m]), len(inputs), send)
        else:
            backward(stage, *kept.pop(m), send)
        most.append(len(kept))

    run_ops([op[:2] for op in pipeline.one_f_one_b(world_size, len(inputs)).orders[rank]], run)
    assert not kept, f"of {len(inputs)} micro-batches, {len(kept)} did not come back."
    dist.barrier()  # until all have what they wait for
    return {"gradient": stage.weight.grad, "kept at once": max(most)}


def broken_run_ops(ops, run):
    """Run my operations in their order: run(op, send) receives, computes and sends."""
    for op in ops:
        run(op, dist.send)


@exercise(
    "Run 1F1B without a deadlock",
    _run,
    minutes=8,
    difficulty=2,
    inputs=lambda n: [
        Case(batches(n, 9, n + 2), f"1F1B, {n + 2} micro-batches"),
        Case(batches(n, 10, 1), "one micro-batch"),
        Case(batches(n, 11, 2 * n, 2, 3, "float64"), f"1F1B, {2 * n} micro-batches, float64"),
    ],
    tolerance=1e-5,
    counts_memory=False,
    specimen=broken_run_ops,
    harness=run_run_ops,
)
def run_ops(ops, run):
    """Run my operations in their order: run(op, send) receives, computes and sends.

    This is the function that hung. `ops` are this rank's operations, and `run(op, send)` runs one of them: it receives,
    computes, and sends what comes out with `send(tensor, dst)` or `send(tensor, dst, tag=1)`. Give it a `send` of your
    own, with which neighbours that both send do not block each other, and keep the order of the operations. When
    `run_ops` returns, all messages have been received. Return nothing.

    In the picture: each stage's weight and the batch on the left; the weight's gradient, and the most micro-batches
    that were kept at once, on the right.
    Hint: In the wait-for graph two neighbours wait for each other, both in `send`. One of them at least has to go on
    without waiting until its message is taken.
    Hint: `dist.isend(tensor, dst, tag=tag)` starts a send and returns a handle at once. Where do you keep the handles?
    Hint: Collect them in a list, and wait for all of them after the last operation.
    Afterwards: Megatron-LM and PyTorch pair the two messages that cross: `batch_isend_irecv` of the activation that
    goes forward and the gradient that comes back. On NCCL this is what you need: there a rank's calls wait in one
    queue, and a message that is too long for NCCL's buffer holds up all that follow until it is received.
    """
    works = []

    def send(tensor, dst, group=None, tag=0):  # as dist.send
        works.append(dist.isend(tensor, dst, group, tag=tag))

    for op in ops:
        run(op, send)
    for work in works:
        work.wait()
