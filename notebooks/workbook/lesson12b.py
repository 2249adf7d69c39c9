"""Exercises of lesson 12b: a split backward pass and its order, a matrix at both ends, stages in turns, and a norm."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case
from labkit.grading.promises import Calls
from workbook.cards import in_words, no_numbers
from workbook.harnesses import as_many_groups
from workbook.lesson12 import batches, on_stages, trained
from workbook.lesson12_orders import in_order, ordered, run_as_in, run_orders, three_stages
from workbook.tools import pipeline

if TYPE_CHECKING:
    from labkit.rank.cell_names import device, dist, rank, torch, world_size


def run_split_order(split_order, weight, inputs, targets):
    """Ask for every rank's list, and run them."""
    plain = [[op[:2] for op in order] for order in pipeline.one_f_one_b(world_size, len(inputs)).orders]
    orders = [split_order(list(order), r) for r, order in enumerate(plain)]
    for r, (order, given) in enumerate(zip(orders, plain)):
        assert isinstance(order, (list, tuple)), "Return a list of operations."
        rest = [tuple(op) for op in order if op[0] != "W"]
        assert rest == given, f"Without its second halves, the list of rank {r} is no longer the one that was given."
    return run_orders(orders, weight, inputs, targets, pipeline.zero_bubble(world_size, len(inputs)))


@on_stages(
    "When to do the second halves",
    in_order(lambda xs: ordered(xs, pipeline.zero_bubble), pipeline.zero_bubble(3, 3)),
    difficulty=2,
    picture=three_stages,
    inputs=lambda n: [
        Case(batches(n, 44, n + 2), f"{n + 2} micro-batches"),
        Case(batches(n, 41, n), f"{n} micro-batches"),
        Case(batches(n, 42, 1), "one micro-batch"),
        Case(batches(n, 43, 2 * n + 1, 2, 3, "float64"), f"{2 * n + 1} micro-batches, float64"),
    ],
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

    The check runs the lists of all ranks. The picture has the lists of three ranks for three micro-batches.
    Hint: No rank is before rank 0, so no rank waits for rank 0's first halves. Can it do each second half at once?
    Hint: The last rank has waited for P − 1 forward passes before its first backward pass. To lose no more time, it
    must not keep the rank before it waiting later on. How many second halves may it put off, so that it keeps P
    micro-batches at most? In 1F1B it keeps one.
    Hint: Rank r puts the second halves off by r micro-batches: after B of micro-batch m comes W of m − r. Those that
    are left come at the end.
    Afterwards: The authors call this schedule ZB-H1. Near the end, each rank but the first does what it has put off, in
    turns in which it would stand idle. The price is memory: every rank now keeps as much as 1F1B's first rank.
    """
    found, waiting = [], []
    for op in order:
        found.append(op)
        if op[0] == "B":
            waiting.append(("W", op[1]))
            if len(waiting) > place:
                found.append(waiting.pop(0))
    return found + waiting


def _tied(xs: Sequence[Any]) -> list[Any]:
    first, slope = xs[0][0], xs[0][1] + xs[-1][1]
    after = {"gradient": slope, "weight": (first - 0.5 * slope).astype(first.dtype)}
    return [after, *[None] * (len(xs) - 2), after]


def _two_ends(n: int) -> list[Case]:
    def case(about: str, seed: int, shape: tuple[int, ...], dtype: str = "float32") -> Case:
        rng = np.random.default_rng([13, seed, n])
        return Case([tuple(rng.integers(-9, 10, shape).astype(dtype) for _ in range(2)) for _ in range(n)], about)

    return [case("four numbers", 12, (4,)), case("a matrix", 13, (3, 2)), case("float64", 14, (5,), "float64")]


def run_tie_ends(tie_ends, weight, slope):
    """Do a training step with what keeps the copies' gradients equal."""
    weight = torch.nn.Parameter(weight) if rank in (0, world_size - 1) else None
    tied = tie_ends(weight)
    assert callable(tied), "Return the function `tied`."
    as_many_groups()
    if weight is not None:
        (weight * slope).sum().backward()
    tied()
    if weight is None:
        return None
    with torch.no_grad():
        weight -= 0.5 * weight.grad
    return {"gradient": weight.grad, "weight": weight.detach()}


@on_stages(
    "One matrix, at both ends of the pipeline",
    _tied,
    minutes=7,
    difficulty=2,
    inputs=_two_ends,
    picture=lambda: [(weight[:2], slope[:2]) for weight, slope in _two_ends(3)[0].xs],
    tolerance=1e-6,
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


def _halves(xs: Sequence[Any]) -> list[Any]:
    def rows(a: np.ndarray) -> np.ndarray:
        return a.reshape(-1, a.shape[-1])

    found, dtype = [], xs[0][0].dtype
    for first, second, inputs, slopes in ([a.astype("float64") for a in x] for x in xs):
        h = np.tanh(inputs @ first.T + 1)
        dz = slopes @ second * (1 - h**2)
        weights = [rows(dz).T @ rows(inputs), rows(slopes).T @ rows(h), rows(slopes).sum(0)]
        weights = [a.astype(dtype) for a in weights]
        found.append({"gradients of x": list((dz @ first).astype(dtype)), "gradients of the weights": weights})
    return found


def _linears(n: int) -> list[Case]:
    def case(about: str, seed: int, parts: int, rows: tuple[int, ...], wide: int, dtype: str = "float32") -> Case:
        rng, shapes = np.random.default_rng([13, seed, n]), ((3, wide), (2, 3), (parts, *rows, wide), (parts, *rows, 2))
        return Case([tuple(rng.normal(size=shape).astype(dtype) for shape in shapes) for _ in range(n)], about)

    return [
        case("one micro-batch of one row", 20, 1, (1,), 2),
        case("two micro-batches", 21, 2, (3,), 2),
        case("two micro-batches of rows and positions, float64", 22, 2, (2, 3), 4, "float64"),
    ]


def run_later_linear(later_linear, first, second, inputs, slopes):
    """Take micro-batches through two layers and back, count the products, and only then do what was left for later."""
    from workbook.on_ranks import Products

    weights = [torch.nn.Parameter(w) for w in (first, second)]
    biases = [torch.nn.Parameter(torch.ones_like(w[:, 0])) for w in weights]
    back, tasks = [], []
    for x, dy in zip(inputs, slopes):
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


@on_stages(
    "The input's gradient now, the weight's later",
    in_words(_halves, "x @ weight.T + bias, and after the backward pass one function more in `later`"),
    minutes=15,
    difficulty=3,
    inputs=_linears,
    picture=no_numbers,
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
    been computed by then, and only then calls the functions. It counts the products of matrices: each layer may make
    one in the backward pass and one later.
    Hint: A `torch.autograd.Function` decides what its backward pass computes. Returning `None` for `weight` and `bias`
    leaves their gradients alone.
    Hint: `backward` appends a function to `later` and returns `dy @ weight, None, None`. The function knows `x` and
    `dy` from where it was made.
    Hint: With `rows = dy.reshape(-1, dy.shape[-1])` and `x` reshaped alike, the weight's gradient is `rows.T @ x`, and
    the bias's is `rows.sum(0)`. Add them to what there is, under `torch.no_grad()`: this runs outside of the backward
    pass.
    Afterwards: The stage before gets its gradient after half of the work, and the other half fills what would be a
    bubble. The price is memory: `x` and `dy` of every layer stay until the function has run. The first zero-bubble
    implementation and DeepSeek's DualPipe keep such a list, too.
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


def _interleaved(xs: Sequence[Any], chunks: int) -> list[Any]:
    n, (_, inputs, targets) = len(xs), xs[0]
    plan = pipeline.interleaved(n, len(inputs), chunks)
    slopes = trained([xs[stage % n][0] * (1 + stage // n) for stage in range(n * chunks)], inputs, targets)[1]
    end = float(max(box.end for mine in plan.played for box in mine))
    return [{"gradients": slopes[r::n], "kept at once, in chunks": plan.alive[r], "time": end} for r in range(n)]


@on_stages(
    "Several stages on a rank",
    in_order(_interleaved, pipeline.interleaved(3, 3)),
    minutes=20,
    picture=three_stages,
    difficulty=3,
    inputs=lambda n: [
        Case(batches(n, 30, 2 * n), f"two chunks, {2 * n} micro-batches", {"chunks": 2}),
        Case(batches(n, 31, n), f"two chunks, {n} micro-batches", {"chunks": 2}),
        Case(batches(n, 32, 2 * n, 1, 3, "float64"), f"three chunks, {2 * n} micro-batches, float64", {"chunks": 3}),
        Case(batches(n, 33, n), f"one chunk, {n} micro-batches", {"chunks": 1}),
    ],
    harness=partial(run_as_in, pipeline.interleaved),
)
def interleaved_order(place, ranks, parts, chunks):
    """Return the operations of this rank, ("F", m, c) and ("B", m, c), interleaved.

    Each rank holds `chunks` stages: chunk c of rank r is stage c · `ranks` + r, so a micro-batch goes round all ranks
    once for each chunk. Return the operations of rank number `place`, of `ranks`, as a list of `("F", m, c)` and
    `("B", m, c)`, for `parts` micro-batches, a multiple of `ranks`.

    Go forward in groups of `ranks` micro-batches: the first group through chunk 0, then the same group through chunk 1,
    and so on; then the next group. Go back in the same groups, the last chunk first. Begin with 2 · (`ranks` − `place`
    − 1) + (`chunks` − 1) · `ranks` forward passes, or with all if there are fewer, then do one forward and one backward
    pass in turns, then the backward passes that are left. With one chunk, begin with `ranks` − `place` − 1 as in 1F1B.

    The check runs your lists on the ranks. It compares the gradients, the most (micro-batch, chunk) pairs that were
    kept at once, and the time, where a forward pass through **all** chunks of a rank takes 1, and a backward pass 2.
    The picture has the beginnings of the lists of three ranks, for three micro-batches and two chunks, a and b.
    Hint: Write two lists first: all forward passes in their order, and all backward passes in theirs. Each has `parts`
    · `chunks` entries.
    Hint: `[("F", first + i, c) for first in range(0, parts, ranks) for c in range(chunks) for i in range(ranks)]`; the
    other list has the chunks in reversed order.
    Hint: The rest is 1F1B with these two lists: the first `ahead` forward passes, then the next forward pass, if there
    is one left, and the next backward pass, in turns.
    Afterwards: The idle time is 1F1B's divided by `chunks`: at the beginning a rank waits for small stages. A
    micro-batch crosses more than `chunks` times as many borders. The factor 2 is Megatron-LM's. If messages take no
    time, it gains nothing and keeps more activations; if they take time, it hides them.
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


def _norm(xs: Sequence[Any]) -> list[Any]:
    every = [g for (gradients,) in xs for g in gradients][:-1]  # the last one is the first one: the tied matrix
    return [float(np.sqrt(sum(float((g.astype("float64") ** 2).sum()) for g in every)))] * len(xs)


def _stages(n: int) -> list[Case]:
    def case(about: str, seed: int, most: int, dtype: str = "float32", level: float = 1.0) -> Case:
        rng = np.random.default_rng([13, seed, n])

        def drawn(count: int) -> list[Any]:
            return [(level * rng.integers(-4, 5, 2 + i)).astype(dtype) for i in range(count)]

        tied = (level * rng.integers(-4, 5, (3, 2))).astype(dtype)
        middle = [([*drawn(most)],) for _ in range(n - 2)]
        return Case([([tied, *drawn(most)],), *middle, ([*drawn(most - 1), tied],)], about)

    return [
        case("two gradients on a rank, and one more on rank 0", 50, 2),
        case("the last rank has only the tied matrix", 51, 1),
        case("float64", 52, 3, "float64", 5.0),
    ]


def as_number(norm, *_):
    """Return a norm as a number."""
    assert norm is not None, "Return the norm: the function returns nothing."
    return float(norm)


@on_stages(
    "The norm of the whole model's gradient",
    _norm,
    difficulty=2,
    inputs=_stages,
    promises=(Calls(1),),
    setup=lambda gradients: (gradients, {0: 0, world_size - 1: len(gradients) - 1}.get(rank)),
    collect=as_number,
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
    slowest one, so zero bubble's authors put the check after the step.
    """
    squares = torch.zeros((), dtype=torch.float64, device=device)
    for i, gradient in enumerate(gradients):
        if i != tied or rank == 0:
            squares += (gradient.double() ** 2).sum()
    dist.all_reduce(squares)
    return squares.sqrt()
