"""The exercises at the end of lesson 13b: several stages on a rank, and the norm of a gradient that all ranks share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, exercise
from labkit.grading.promises import Calls
from labkit.theory import pipeline
from workbook.lesson13 import batches, normal, trained
from workbook.lesson13_orders import run_orders

if TYPE_CHECKING:
    from labkit.rank.seen import device, dist, rank, torch, world_size


# -- several stages a rank --------------------------------------------------------------------------------------------


def _interleaved(xs: Sequence[Any], chunks: int) -> list[Any]:
    n, (_, inputs, targets) = len(xs), xs[0]
    plan = pipeline.interleaved(n, len(inputs), chunks)
    weights = [xs[stage % n][0] * (1 + stage // n) for stage in range(n * chunks)]
    slopes = trained(weights, inputs, targets)[1]
    end = max(box.end for mine in plan.played for box in mine)
    return [{"gradients": slopes[r::n], "kept at once, in chunks": plan.alive[r], "time": float(end)} for r in range(n)]


def run_interleaved_order(order_of, weight, inputs, targets, chunks):
    from workbook.on_ranks import Small

    orders = [order_of(r, world_size, len(inputs), chunks) for r in range(world_size)]
    assert isinstance(orders[rank], (list, tuple)), "It returns no list."
    stages = [Small(weight * (1 + c), c * world_size + rank, chunks * world_size) for c in range(chunks)]
    plan = pipeline.interleaved(world_size, len(inputs), chunks)
    kept, time = run_orders(orders, stages, list(zip(inputs, targets)), plan)
    return {"gradients": [s.weight.grad for s in stages], "kept at once, in chunks": kept, "time": time}


@exercise(
    "Several stages on a rank",
    _interleaved,
    minutes=20,
    difficulty=3,
    inputs=lambda n: [
        Case(batches(n, 30, 2 * n), f"two chunks, {2 * n} micro-batches", {"chunks": 2}),
        Case(batches(n, 31, n), f"two chunks, {n} micro-batches", {"chunks": 2}),
        Case(batches(n, 32, 2 * n, 1, 3, "float64"), f"three chunks, {2 * n} micro-batches, float64", {"chunks": 3}),
        Case(batches(n, 33, n), f"one chunk, {n} micro-batches", {"chunks": 1}),
    ],
    tolerance=1e-5,
    counts_memory=False,
    harness=run_interleaved_order,
)
def interleaved_order(place, ranks, parts, chunks):
    """Return the operations of this rank, ("F", m, c) and ("B", m, c), interleaved.

    Each rank holds `chunks` stages: chunk c of rank r is stage c · `ranks` + r, so a micro-batch goes round all ranks
    once a chunk. Return the operations of rank number `place`, of `ranks`, as a list of `("F", m, c)` and `("B", m,
    c)`, for `parts` micro-batches, a multiple of `ranks`.

    Go forward in groups of `ranks` micro-batches: the first group through chunk 0, then the same group through chunk 1,
    and so on; then the next group. Go back in the same groups, the last chunk first. Begin with 2 · (`ranks` − `place`
    − 1) + (`chunks` − 1) · `ranks` forward passes, or with all if there are fewer, then do one forward and one backward
    pass in turns, then the backward passes that are left. With one chunk, begin with `ranks` − `place` − 1 as in 1F1B.

    The check runs your lists on the ranks. On the right of the picture: the gradients of the rank's weights, one a
    chunk; the most (micro-batch, chunk) pairs that were kept at once; and the time, where a forward pass through
    **all** chunks of a rank takes 1, and a backward pass 2.
    Hint: Write two lists first: all forward passes in their order, and all backward passes in theirs. Each has `parts`
    · `chunks` entries.
    Hint: `[("F", first + i, c) for first in range(0, parts, ranks) for c in range(chunks) for i in range(ranks)]`; the
    other list has the chunks in reversed order.
    Hint: The rest is 1F1B with these two lists: the first `ahead` forward passes, then the next forward pass, if there
    is one left, and the next backward pass, in turns.
    Afterwards: The bubble is a `chunks`-th of 1F1B's: a rank waits at the beginning for one chunk's time per stage, not
    for all its layers. A micro-batch crosses `chunks` times as many boundaries. The factor 2 is Megatron-LM's: where
    messages take no time, it gains nothing and keeps more activations; where they do, it gives them time.
    """
    groups = range(0, parts, ranks)
    forward = [("F", first + i, c) for first in groups for c in range(chunks) for i in range(ranks)]
    back = [("B", first + i, c) for first in groups for c in reversed(range(chunks)) for i in range(ranks)]
    ahead = ranks - place - 1
    if chunks > 1:
        ahead = min(2 * ahead + (chunks - 1) * ranks, len(forward))
    order = forward[:ahead]
    for i, op in enumerate(back):
        order += [*forward[ahead + i : ahead + i + 1], op]
    return order


# -- the norm of the whole model's gradient ---------------------------------------------------------------------------


def _norm(xs: Sequence[Any]) -> list[Any]:
    """The norm in one process, which has the tied matrix once."""
    squares = [[float((g.astype("float64") ** 2).sum()) for g in gradients] for (gradients,) in xs]
    tied = squares[-1][-1]  # the last rank's last one is the first rank's first one
    return [float(np.sqrt(sum(map(sum, squares)) - tied))] * len(xs)


def _stages(n: int) -> list[Case]:
    def case(about: str, seed: int, most: int, dtype: str = "float32", level: float = 1.0) -> Case:
        rng = normal(n, seed)

        def drawn(count: int) -> list[Any]:
            return [(level * rng.normal(size=2 + i)).astype(dtype) for i in range(count)]

        tied = (level * rng.normal(size=(3, 2))).astype(dtype)
        middle = [([*drawn(most)],) for _ in range(n - 2)]
        return Case([([tied, *drawn(most)],), *middle, ([*drawn(most - 1), tied.copy()],)], about)

    return [
        case("two gradients on a rank, and one more on rank 0", 50, 2),
        case("the last rank has only the tied matrix", 51, 1),
        case("float64", 52, 3, "float64", 5.0),
    ]


def run_pipeline_norm(pipeline_norm, gradients):
    norm = pipeline_norm(gradients, {0: 0, world_size - 1: len(gradients) - 1}.get(rank))
    assert norm is not None, "It returns nothing."
    return float(norm)


@exercise(
    "The norm of the whole model's gradient",
    _norm,
    difficulty=2,
    inputs=_stages,
    tolerance=1e-5,
    counts_memory=False,
    promises=(Calls(1),),
    harness=run_pipeline_norm,
)
def pipeline_norm(gradients, tied):
    """Return the norm of the whole model's gradient, with the tied matrix once.

    To clip a gradient you need the norm of **all** of it. `gradients` is the list of the gradients of this rank's
    stage. The first and the last rank hold copies of one matrix, as in `tie_ends`, and both copies already have the
    same gradient: `gradients[tied]`. On all other ranks, `tied` is `None`. Return, on every rank, the norm that one
    process would find, which has this matrix once: the root of the sum of all squares. **One** collective, of one
    number. A rank may hold nothing but the tied matrix.

    In the picture: each rank's gradients on the left, the norm on the right.
    Hint: Squares add up, norms do not. Which ranks have squares that another rank has, too?
    Hint: One of the two ends leaves the tied matrix out of its sum. Begin with `torch.zeros(())`, which is also the sum
    of nothing.
    Hint: `dist.all_reduce(squares)`, and then the root, on every rank.
    Afterwards: If each stage clipped by its own norm, each would scale by a different factor. Megatron-LM leaves out
    copies of shared weights in the same way, and adds up the squares over the pipeline. All stages wait here for the
    slowest one: this is why zero bubble's authors put the check after the step.
    """
    squares = torch.zeros((), dtype=torch.float64, device=device)
    for i, gradient in enumerate(gradients):
        if i != tied or rank == 0:
            squares += (gradient.double() ** 2).sum()
    dist.all_reduce(squares)
    return squares.sqrt()
