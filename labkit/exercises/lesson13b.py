"""Exercises of lesson 13b: a split backward pass, a matrix at both ends, and several stages on a rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from labkit.exercises.lesson13 import batches, normal, trained
from labkit.exercises.lesson13_orders import RUN
from labkit.grading.exercise import Case, Exercise, Mutant
from labkit.grading.promises import Calls
from labkit.theory import pipeline

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


TIE = Exercise(
    name="tie_ends",
    lesson="13b",
    title="One matrix, at both ends of the pipeline",
    statement=(
        "The embedding on the first rank and the output on the last one are meant to be **one** matrix. On these two "
        "ranks `weight` is their copy of it, a parameter; on all ranks between them it is `None`. Every rank calls "
        "`tie_ends(weight)` once, before training. Make the last rank's copy equal to the first one's, and return a "
        "function `tied()` that **every** rank calls after each backward pass: it gives both copies the gradient that "
        "one process would have. Ranks between the ends take part in no collective.\n\n"
        "In the picture: a copy and its own gradient on the left; both after a training step with `lr=0.5` on the "
        "right."
    ),
    minutes=7,
    difficulty=2,
    means=_tied,
    inputs=_two_ends,
    tolerance=1e-6,
    counts_memory=False,
    harness="""
from labkit.rank import recorder


def harness(tie_ends, weight, slope):
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
""",
    solution='''
def tie_ends(weight):
    """Make both copies of the shared matrix equal; return what keeps their gradients equal."""
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
''',
    mutants=(
        Mutant(
            "leaves each copy its own gradient",
            replace=("            dist.all_reduce(weight.grad, group=ends)\n", "            pass\n"),
            says="gradient",
        ),
        Mutant(
            "averages the two gradients",
            replace=(
                "dist.all_reduce(weight.grad, group=ends)",
                "dist.all_reduce(weight.grad, op=dist.ReduceOp.AVG, group=ends)",
            ),
            says="gradient",
        ),
        Mutant(
            "lets the copies begin as they are",
            replace=("        dist.broadcast(weight.detach(), src=0, group=ends)\n", "        pass\n"),
            says="weight",
        ),
        Mutant(
            "gives the last rank the first one's gradient",
            replace=("dist.all_reduce(weight.grad, group=ends)", "dist.broadcast(weight.grad, src=0, group=ends)"),
            says="gradient",
        ),
        Mutant(
            "averages the weights instead",
            replace=("dist.all_reduce(weight.grad, group=ends)", "dist.all_reduce(weight.detach(), group=ends)"),
        ),
        Mutant(
            "lets only the two ends make the group",
            replace=(
                "    ends = dist.new_group([0, world_size - 1])\n    if weight is not None:\n",
                "    if weight is not None:\n        ends = dist.new_group([0, world_size - 1])\n",
            ),
            says="the next new_group would hang",
        ),
        Mutant(
            "asks all ranks of the world",
            replace=("dist.all_reduce(weight.grad, group=ends)", "dist.all_reduce(weight.grad)"),
            verdict="deadlock",
            says="3 ranks",
        ),
    ),
    hints=(
        "The loss depends on the matrix in two places. By the chain rule its gradient is the **sum** of both.",
        "A group of the two ranks: `dist.new_group([0, world_size - 1])`. Who has to call it? (Lesson 01.)",
        "In `tied()`: `dist.all_reduce(weight.grad, group=ends)`, on the two ranks that have the matrix.",
    ),
    after=(
        "Equal weights and equal gradients: from then on both copies stay equal, as in data-parallel training, but the "
        "gradients are **added**, not averaged. Megatron-LM does exactly this, once in a training step."
    ),
)


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


LATER = Exercise(
    name="later_linear",
    lesson="13b",
    title="The input's gradient now, the weight's later",
    statement=(
        "Return `x @ weight.T + bias`, in such a way that a backward pass computes **only** the gradient of `x`, and "
        "appends to the list `later` one function without arguments. Whoever calls that function, at any later time, "
        "adds the gradients of `weight` and `bias` to `weight.grad` and `bias.grad`, which may be `None` before; these "
        "gradients carry no graph. `x` has any number of dimensions, the last one being that of the inputs. "
        "Communicate nothing.\n\n"
        "The check makes a stage of two such layers with a tanh between them, takes its micro-batches back, looks at "
        "what has been computed by then, and only then calls the functions. It counts the products of matrices: one a "
        "layer in the backward pass, one a layer later."
    ),
    minutes=15,
    difficulty=3,
    means=_halves,
    inputs=_linears,
    tolerance=1e-5,
    counts_memory=False,
    promises=(Calls(0),),
    harness="""
from torch.utils._python_dispatch import TorchDispatchMode


class Products(TorchDispatchMode):
    count = 0

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # else torch imports its compiler at the first operation, for seconds

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function.overloadpacket.__name__ in ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv")
        return function(*args, **(kwargs or {}))


def harness(later_linear, first, second, inputs, slopes):
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
""",
    solution='''
def later_linear(x, weight, bias, later):
    """Return x @ weight.T + bias, whose backward pass leaves the gradients of weight and bias for later."""

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
''',
    mutants=(
        Mutant(
            "leaves it to autograd, which does everything at once",
            source="""
def later_linear(x, weight, bias, later):
    return x @ weight.T + bias
""",
            says="a weight has its gradient",
        ),
        Mutant(
            "computes at once, and only adds later",
            replace=(
                "            @torch.no_grad()  # outside of the backward pass autograd would note it\n"
                "            def weights():\n"
                "                rows = dy.reshape(-1, dy.shape[-1])\n"
                "                for p, slope in ((weight, rows.T @ x.reshape(-1, x.shape[-1])), "
                "(bias, rows.sum(0))):\n",
                "            rows = dy.reshape(-1, dy.shape[-1])\n"
                "            slopes = rows.T @ x.reshape(-1, x.shape[-1]), rows.sum(0)\n\n"
                "            def weights():\n                for p, slope in zip((weight, bias), slopes):\n",
            ),
            says="makes 4 products",
        ),
        Mutant(
            "lets autograd note what it does later",
            replace=(
                "            @torch.no_grad()  # outside of the backward pass autograd would note it\n",
                "",
            ),
            says="carries a graph",
        ),
        Mutant(
            "keeps the last micro-batch's gradient only",
            replace=("p.grad = slope if p.grad is None else p.grad + slope", "p.grad = slope"),
            says="two micro-batches",
        ),
        Mutant("forgets the bias", replace=(", (bias, rows.sum(0))):", ",):"), says="a gradient is missing"),
        Mutant(
            "multiplies the wrong way round",
            replace=("rows.T @ x.reshape(-1, x.shape[-1])", "(x.reshape(-1, x.shape[-1]).T @ rows).view_as(weight)"),
        ),
        Mutant(
            "sends nothing back",
            replace=("return dy @ weight, None, None", "return torch.zeros_like(x), None, None"),
            says="gradients of x",
        ),
        Mutant(
            "does the work before the backward pass",
            replace=(
                "            ctx.save_for_backward(x)\n",
                "            later.append(lambda: None)\n            ctx.save_for_backward(x)\n",
            ),
            says="before the backward pass has begun",
        ),
        Mutant(
            "knows two dimensions only",
            replace=("rows = dy.reshape(-1, dy.shape[-1])", "rows = dy.view(len(dy), dy.shape[1])"),
            verdict="raises",
            says="rows and positions",
        ),
    ),
    hints=(
        "A `torch.autograd.Function` decides what its backward pass computes. Returning `None` for `weight` and `bias` "
        "leaves their gradients alone.",
        "`backward` appends a function to `later` and returns `dy @ weight, None, None`. The function knows `x` and "
        "`dy` from where it was made.",
        "With `rows = dy.reshape(-1, dy.shape[-1])` and `x` reshaped alike, the weight's gradient is `rows.T @ x`, "
        "and the bias's is `rows.sum(0)`. Add them to what there is, under `torch.no_grad()`: this runs outside of "
        "the backward pass.",
    ),
    after=(
        "The stage before gets its gradient after half of the work, and the other half fills what would be a bubble. "
        "The price is memory: `x` and `dy` of every layer stay until the function has run. The authors of zero bubble, "
        "and DeepSeek's DualPipe, keep such a list too."
    ),
)


# -- several stages a rank --------------------------------------------------------------------------------------------


def _interleaved(xs: Sequence[Any], chunks: int) -> list[Any]:
    n, (_, inputs, targets) = len(xs), xs[0]
    plan = pipeline.interleaved(n, len(inputs), chunks)
    weights = [xs[stage % n][0] * (1 + stage // n) for stage in range(n * chunks)]
    slopes = trained(weights, inputs, targets)[1]
    end = max(box.end for mine in plan.played for box in mine)
    return [{"gradients": slopes[r::n], "kept at once, in chunks": plan.alive[r], "time": float(end)} for r in range(n)]


INTERLEAVED = Exercise(
    name="interleaved_order",
    lesson="13b",
    title="Several stages on a rank",
    statement=(
        "Each rank holds `chunks` stages: chunk c of rank r is stage c · `ranks` + r, so a micro-batch goes round all "
        'ranks once a chunk. Return the operations of rank number `place`, of `ranks`, as a list of `("F", m, c)` and '
        '`("B", m, c)`, for `parts` micro-batches, a multiple of `ranks`.\n\n'
        "Go forward in groups of `ranks` micro-batches: the first group through chunk 0, then the same group through "
        "chunk 1, and so on; then the next group. Go back in the same groups, the last chunk first. Begin with 2 · "
        "(`ranks` − `place` − 1) + (`chunks` − 1) · `ranks` forward passes, or with all if there are fewer, then do "
        "one forward and one backward pass in turns, then the backward passes that are left. With one chunk, begin "
        "with `ranks` − `place` − 1 as in 1F1B.\n\n"
        "The check runs your lists on the ranks. On the right of the picture: the gradients of the rank's weights, one "
        "a chunk; the most (micro-batch, chunk) pairs that were kept at once; and the time, where a forward pass "
        "through **all** chunks of a rank takes 1, and a backward pass 2."
    ),
    minutes=20,
    difficulty=3,
    means=_interleaved,
    inputs=lambda n: [
        Case(batches(n, 30, 2 * n), f"two chunks, {2 * n} micro-batches", {"chunks": 2}),
        Case(batches(n, 31, n), f"two chunks, {n} micro-batches", {"chunks": 2}),
        Case(batches(n, 32, 2 * n, 1, 3, "float64"), f"three chunks, {2 * n} micro-batches, float64", {"chunks": 3}),
        Case(batches(n, 33, n), f"one chunk, {n} micro-batches", {"chunks": 1}),
    ],
    tolerance=1e-5,
    counts_memory=False,
    harness=RUN
    + """
from labkit.theory import pipeline


def harness(order_of, weight, inputs, targets, chunks):
    orders = [order_of(r, world_size, len(inputs), chunks) for r in range(world_size)]
    assert isinstance(orders[rank], (list, tuple)), "It returns no list."
    stages = [Small(weight * (1 + c), c * world_size + rank, chunks * world_size) for c in range(chunks)]
    plan = pipeline.interleaved(world_size, len(inputs), chunks)
    kept, time = run_orders(orders, stages, list(zip(inputs, targets)), plan)
    return {"gradients": [s.weight.grad for s in stages], "kept at once, in chunks": kept, "time": time}
""",
    solution='''
def interleaved_order(place, ranks, parts, chunks):
    """Return the operations of this rank, ("F", m, c) and ("B", m, c), interleaved."""
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
''',
    mutants=(
        Mutant(
            "begins as 1F1B does",
            replace=("ahead = min(2 * ahead + (chunks - 1) * ranks, len(forward))", "ahead = min(ahead, len(forward))"),
            says="never end",
        ),
        Mutant(
            "begins with the passes through the earlier chunks only",
            replace=("min(2 * ahead + (chunks", "min((chunks"),
            says="time",
        ),
        Mutant(
            "takes the chunks back in the order in which they went forward",
            replace=("reversed(range(chunks))", "range(chunks)"),
            says="never end",
        ),
        Mutant(
            "takes everything forward first",
            replace=("ahead = min(2 * ahead + (chunks - 1) * ranks, len(forward))", "ahead = len(forward)"),
            says="kept at once",
        ),
        Mutant(
            "takes each micro-batch through its chunks before the next one comes",
            replace=(
                "for first in groups for c in range(chunks) for i in range(ranks)]\n    back",
                "for first in groups for i in range(ranks) for c in range(chunks)]\n    back",
            ),
        ),
        Mutant(
            "forgets the second chunk",
            replace=("for c in range(chunks) for", "for c in range(1) for"),
            says="leaves out",
        ),
        Mutant(
            "takes the next one from a list that may be empty",
            replace=("order += [*forward[ahead + i : ahead + i + 1], op]", "order += [forward[ahead + i], op]"),
            verdict="raises",
            says="out of range",
        ),
        Mutant(
            "leaves the last micro-batches where they are",
            replace=("enumerate(back):", "enumerate(back[: len(forward) - ahead]):"),
            says="leaves out",
        ),
    ),
    hints=(
        "Write two lists first: all forward passes in their order, and all backward passes in theirs. Each has "
        "`parts` · `chunks` entries.",
        '`[("F", first + i, c) for first in range(0, parts, ranks) for c in range(chunks) for i in range(ranks)]`; the '
        "other list has the chunks in reversed order.",
        "The rest is 1F1B with these two lists: the first `ahead` forward passes, then the next forward pass, if there "
        "is one left, and the next backward pass, in turns.",
    ),
    after=(
        "The bubble is a `chunks`-th of 1F1B's: a rank waits at the beginning for one chunk's time per stage, not for "
        "all its layers. A micro-batch crosses `chunks` times as many boundaries. The factor 2 is Megatron-LM's: where "
        "messages take no time, it gains nothing and keeps more activations; where they do, it gives them time."
    ),
)

EXERCISES = (LATER, TIE, INTERLEAVED)
