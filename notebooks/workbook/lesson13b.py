"""Exercises of lesson 13b, in their places: a split backward pass, its order, and a matrix at both ends."""

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
    from labkit.rank.seen import dist, rank, recorder, torch, world_size


# -- the two halves of a backward pass --------------------------------------------------------------------------------


def _halves(xs: Sequence[Any]) -> list[Any]:
    found = []
    for first, second, inputs, slopes in xs:
        first, second, inputs, slopes = (a.astype("float64") for a in (first, second, inputs, slopes))
        dtype = xs[0][0].dtype
        back, of_first, of_second = [], np.zeros_like(first), np.zeros_like(second)
        for x, dy in zip(inputs, slopes, strict=True):
            h = np.tanh(x @ first.T + 1)
            dz = dy @ second * (1 - h**2)
            back.append((dz @ first).astype(dtype))
            flat = [a.reshape(-1, a.shape[-1]) for a in (x, dz, h, dy)]
            of_first += flat[1].T @ flat[0]
            of_second += flat[3].T @ flat[2]
        of_bias = slopes.sum(tuple(range(slopes.ndim - 1)))
        weights = [a.astype(dtype) for a in (of_first, of_second, of_bias)]
        found.append({"gradients of x": back, "gradients of the weights": weights})
    return found


def _linears(n: int) -> list[Case]:
    def case(about: str, seed: int, parts: int, rows: tuple[int, ...], wide: int, dtype: str = "float32") -> Case:
        rng = normal(n, seed)

        def drawn(*shape: int) -> np.ndarray:
            return rng.normal(size=shape).astype(dtype)

        return Case(
            [(drawn(3, wide), drawn(2, 3), drawn(parts, *rows, wide), drawn(parts, *rows, 2)) for _ in range(n)], about
        )

    return [
        case("one micro-batch of one row", 20, 1, (1,), 2),
        case("two micro-batches", 21, 2, (3,), 2),
        case("two micro-batches of rows and positions, float64", 22, 2, (2, 3), 4, "float64"),
    ]


def run_later_linear(later_linear, first, second, inputs, slopes):
    from workbook.on_ranks import Products

    weights = [torch.nn.Parameter(w) for w in (first, second)]
    biases = [torch.nn.Parameter(torch.ones_like(w[:, 0])) for w in weights]
    back, tasks = [], []
    for m, (x, dy) in enumerate(zip(inputs, slopes)):
        x, later = x.clone().requires_grad_(), []
        h = torch.tanh(later_linear(x, weights[0], biases[0], later))
        y = later_linear(h, weights[1], biases[1], later)
        assert not later, "Something is left for later before the backward pass has begun."
        with Products() as now:
            y.backward(dy)
        assert all(p.grad is None for p in (*weights, *biases)), "After the backward pass, a weight has its gradient."
        assert now.count <= 2, (
            f"The backward pass through two layers makes {now.count} products of matrices; 2 are enough for the inputs."
        )
        assert len(later) == 2, f"Two layers have left {len(later)} functions for later."
        back.append(x.grad)
        tasks.append(later)
    for later in tasks:
        with Products() as then:
            for work in later:
                work()
        assert then.count <= 2, f"Later, two layers make {then.count} products of matrices, and 2 are enough."
    assert all(p.grad is not None for p in (*weights, *biases)), "After the functions have run, a gradient is missing."
    assert not any(p.grad.requires_grad for p in (*weights, *biases)), (
        "The gradient of a weight carries a graph, which keeps all that it was computed from: use torch.no_grad()."
    )
    return {"gradients of x": back, "gradients of the weights": [*(w.grad for w in weights), biases[1].grad]}


@exercise(
    "The input's gradient now, the weight's later",
    _halves,
    minutes=15,
    difficulty=3,
    inputs=_linears,
    tolerance=1e-5,
    counts_memory=False,
    promises=(Calls(0),),
    harness=run_later_linear,
)
def later_linear(x, weight, bias, later):
    """Return x @ weight.T + bias, whose backward pass leaves the gradients of weight and bias for later.

    Return `x @ weight.T + bias`, in such a way that a backward pass computes **only** the gradient of `x`, and appends
    to the list `later` one function without arguments. Whoever calls that function, at any later time, adds the
    gradients of `weight` and `bias` to `weight.grad` and `bias.grad`, which may be `None` before; these gradients carry
    no graph. `x` has any number of dimensions, the last one being that of the inputs. Communicate nothing.

    The check makes a stage of two such layers with a tanh between them, takes its micro-batches back, looks at what has
    been computed by then, and only then calls the functions. It counts the products of matrices: one a layer in the
    backward pass, one a layer later.
    Hint: A `torch.autograd.Function` decides what its backward pass computes. Returning `None` for `weight` and `bias`
    leaves their gradients alone.
    Hint: `backward` appends a function to `later` and returns `dy @ weight, None, None`. The function knows `x` and
    `dy` from where it was made.
    Hint: With `rows = dy.reshape(-1, dy.shape[-1])` and `x` reshaped alike, the weight's gradient is `rows.T @ x`, and
    the bias's is `rows.sum(0)`. Add them to what there is, under `torch.no_grad()`: this runs outside of the backward
    pass.
    Afterwards: The stage before gets its gradient after half of the work, and the other half fills what would be a
    bubble. The price is memory: `x` and `dy` of every layer stay until the function has run. The authors of zero
    bubble, and DeepSeek's DualPipe, keep such a list too.
    """

    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, bias):
            ctx.save_for_backward(x)
            return x @ weight.T + bias

        @staticmethod
        def backward(ctx, dy):
            (x,) = ctx.saved_tensors

            @torch.no_grad()  # outside of the backward pass autograd would note it
            def weights():
                rows = dy.reshape(-1, dy.shape[-1])
                for p, slope in ((weight, rows.T @ x.reshape(-1, x.shape[-1])), (bias, rows.sum(0))):
                    p.grad = slope if p.grad is None else p.grad + slope

            later.append(weights)
            return dy @ weight, None, None

    return Linear.apply(x, weight, bias)


# -- the order of the halves ------------------------------------------------------------------------------------------


def _split(xs: Sequence[Any]) -> list[Any]:
    plan = pipeline.zero_bubble(len(xs), len(xs[0][1]))
    end = max(box.end for mine in plan.played for box in mine)
    _, inputs, targets = xs[0]
    slopes = trained([x[0] for x in xs], inputs, targets)[1]
    return [{"gradient": slope, "kept at once": plan.alive[r], "time": end} for r, slope in enumerate(slopes)]


def run_split_order(split_order, weight, inputs, targets):
    from workbook.on_ranks import Small

    plain = [[op[:2] for op in order] for order in pipeline.one_f_one_b(world_size, len(inputs)).orders]
    orders = [split_order(list(order), r) for r, order in enumerate(plain)]
    for r, (order, given) in enumerate(zip(orders, plain)):
        assert isinstance(order, (list, tuple)), "It returns no list."
        rest = [tuple(op) for op in order if op[0] != "W"]
        assert rest == given, f"Without its second halves, the list of rank {r} is no longer the one that was given."
    stage = Small(weight)
    plan = pipeline.zero_bubble(world_size, len(inputs))
    kept, time = run_orders(orders, [stage], list(zip(inputs, targets)), plan)
    return {"gradient": stage.weight.grad, "kept at once": kept, "time": time}


@exercise(
    "When to do the second halves",
    _split,
    difficulty=2,
    inputs=lambda n: [
        Case(batches(n, 40, n + 2), f"{n + 2} micro-batches"),
        Case(batches(n, 41, n), f"{n} micro-batches"),
        Case(batches(n, 42, 1), "one micro-batch"),
        Case(batches(n, 43, 2 * n + 1, 2, 3, "float64"), f"{2 * n + 1} micro-batches, float64"),
    ],
    tolerance=1e-5,
    counts_memory=False,
    harness=run_split_order,
)
def split_order(order, place):
    """Return 1F1B's list for this rank with ("W", m), the second halves, put in.

    `order` is what rank number `place` does in 1F1B's schedule: a list of `("F", m)` and `("B", m)`. Now `("B", m)` is
    only the first half of a backward pass, and `("W", m)` is the second half: the gradients of the weights. Return the
    list with a `("W", m)` put in for each micro-batch, somewhere after its `("B", m)`; leave everything else in its
    order.

    A forward pass and each half of a backward pass take one turn. With P ranks and M micro-batches (P or more), a
    training step may take 3 · M + P − 1 turns. A rank keeps a micro-batch's activations until its second half is done,
    and no rank may keep more than P micro-batches at once. Communicate nothing.

    The check asks for the lists of all ranks and runs them. On the right of the picture: the weight's gradient, the
    most micro-batches that were kept at once, and the turns of a training step.
    Hint: Rank 0 has nobody before it, so nobody waits for what it does. Can it do each second half at once?
    Hint: Before the last rank's first backward pass, it has waited for P − 1 forward passes. To lose no more than that,
    it must not keep the rank before it waiting later on. How many second halves may it put off, so that it keeps P
    micro-batches at most? In 1F1B it keeps one.
    Hint: Rank r puts the second halves off by r micro-batches: after B of micro-batch m comes W of m − r. Those that
    are left come at the end.
    Afterwards: This is the schedule that its authors call ZB-H1. Near the end, each rank but the first does what it has
    put off, in turns in which it would stand idle. The price is memory: every rank now keeps as much as 1F1B's first
    rank.
    """
    found, waiting = [], []
    for op in order:
        found.append(op)
        if op[0] == "B":
            waiting.append(("W", op[1]))
            if len(waiting) > place:
                found.append(waiting.pop(0))
    return found + waiting


# -- one matrix at both ends ------------------------------------------------------------------------------------------


def _tied(xs: Sequence[Any]) -> list[Any]:
    ends = {0, len(xs) - 1}
    first, slope = xs[0][0], xs[0][1] + xs[-1][1]
    after = {"gradient": slope, "weight": (first - 0.5 * slope).astype(first.dtype)}
    return [after if r in ends else None for r in range(len(xs))]


def _two_ends(n: int) -> list[Case]:
    def case(about: str, seed: int, shape: tuple[int, ...], dtype: str = "float32") -> Case:
        rng = normal(n, seed)
        return Case([tuple(rng.integers(-9, 10, shape).astype(dtype) for _ in range(2)) for _ in range(n)], about)

    return [case("four numbers", 12, (4,)), case("a matrix", 13, (3, 2)), case("float64", 14, (5,), "float64")]


def run_tie_ends(tie_ends, weight, slope):
    weight = torch.nn.Parameter(weight) if rank in (0, world_size - 1) else None
    tied = tie_ends(weight)
    assert callable(tied), "It returns no function."
    made = [None] * world_size
    with recorder.paused():
        dist.all_gather_object(made, dist.distributed_c10d._world.group_count)
    assert len(set(made)) == 1, "Some ranks have made more groups than others: the next new_group would hang."
    if weight is not None:
        (weight * slope).sum().backward()
    tied()
    if weight is None:
        return None
    with torch.no_grad():
        weight -= 0.5 * weight.grad
    return {"gradient": weight.grad, "weight": weight.detach()}


@exercise(
    "One matrix, at both ends of the pipeline",
    _tied,
    minutes=7,
    difficulty=2,
    inputs=_two_ends,
    tolerance=1e-6,
    counts_memory=False,
    harness=run_tie_ends,
)
def tie_ends(weight):
    """Make both copies of the shared matrix equal; return what keeps their gradients equal.

    The embedding on the first rank and the output on the last one are meant to be **one** matrix. On these two ranks
    `weight` is their copy of it, a parameter; on all ranks between them it is `None`. Every rank calls
    `tie_ends(weight)` once, before training. Make the last rank's copy equal to the first one's, and return a function
    `tied()` that **every** rank calls after each backward pass: it gives both copies the gradient that one process
    would have. Ranks between the ends take part in no collective.

    In the picture: a copy and its own gradient on the left; both after a training step with `lr=0.5` on the right.
    Hint: The loss depends on the matrix in two places. By the chain rule its gradient is the **sum** of both.
    Hint: A group of the two ranks: `dist.new_group([0, world_size - 1])`. Who has to call it? (Lesson 01.)
    Hint: In `tied()`: `dist.all_reduce(weight.grad, group=ends)`, on the two ranks that have the matrix.
    Afterwards: Equal weights and equal gradients: from then on both copies stay equal, as in data-parallel training,
    but the gradients are **added**, not averaged. Megatron-LM does exactly this, once in a training step.
    """
    # yours
    ends = dist.new_group([0, world_size - 1])
    if weight is not None:
        dist.broadcast(weight.detach(), src=0, group=ends)
    # end

    def tied():
        """Give both copies the gradient that one process would have."""
        # yours
        if weight is not None:
            dist.all_reduce(weight.grad, group=ends)
        # end

    return tied
