"""Exercises of lesson 13 on layers in parts: an MLP, attention by heads, and the whole output of a layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, exercise
from labkit.grading.promises import Calls
from workbook.cards import in_words, no_numbers
from workbook.lesson13 import both_passes, called, copy_in, in_team, my_parts, no_sum_of_sums, sum_out, teams

if TYPE_CHECKING:
    from labkit.rank.cell_names import device, dist, name_it, rank, torch, world_size


def gelu(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return GELU and its derivative, as torch has them by default."""
    below = 0.5 * (1 + np.vectorize(math.erf, otypes=[float])(z / math.sqrt(2)))
    return z * below, below + z * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)


def shares(q: np.ndarray, k: np.ndarray, first: int = 0) -> np.ndarray:
    """Compute how much of each key each query takes, causally; the queries are those of positions from `first` on."""
    here, there = first + np.arange(q.shape[-2]), np.arange(k.shape[-2])
    scores = np.where(there <= here[:, None], q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def _attended(xs: Sequence[Any], heads: int, halves: bool = False) -> list[Any]:
    found = []
    for (x, weight, bias, project), (place, team) in zip(xs, teams(len(xs), halves)):
        (positions, width), mine = x.shape, np.array_split(np.arange(heads), len(team))[place]
        qkv = np.split(x @ weight.T + bias, 3, axis=1)
        q, k, v = (t.reshape(positions, heads, -1).transpose(1, 0, 2) for t in qkv)
        seen = shares(q, k) @ v
        columns = project.reshape(width, heads, -1)
        found.append({"heads": len(mine), "attention": sum(seen[h] @ columns[:, h].T for h in mine)})
    return found


def _heads(n: int) -> list[Case]:
    rng = np.random.default_rng([12, 7, n])

    def case(heads: int, each: int, about: str, **halves: bool) -> Case:
        width = heads * each
        shapes = ((4, width), (3 * width, width), (3 * width,), (width, width))
        return Case([tuple(rng.normal(size=shape) for shape in shapes)] * n, about, {"heads": heads, **halves})

    return [
        case(n, 1, f"{n} heads of one number"),
        case(2 * n, 3, f"{2 * n} heads of three numbers"),
        case(n + 1, 2, f"{n + 1} heads, which {n} does not divide"),
        case(3, 2, "two groups of ranks", halves=True),
    ]


def places(pieces, whole):
    """Return where in the whole they stand, as far as they stand there."""
    among = [(whole == piece).reshape(len(whole), -1).all(1).nonzero() for piece in pieces]
    return [int(found[0]) for found in among if len(found)]


def run_my_heads(my_heads, x, weight, bias, out, heads, halves=False):
    """Look which heads' rows and columns the function returns, and compute their attention."""
    width = len(out)
    qkv, project = torch.nn.Linear(1, 1, device=device), torch.nn.Linear(1, 1, bias=False, device=device)
    qkv.weight, qkv.bias, project.weight = (torch.nn.Parameter(t) for t in (weight, bias, out))
    qkv.in_features, qkv.out_features, project.in_features, project.out_features = width, 3 * width, width, width
    given = in_team(halves, qkv, project, heads)
    found = my_heads(*given)
    assert isinstance(found, (tuple, list)) and len(found) == 3, "Return three tensors: `(weight, bias, weight)`."
    w, b, out = (t.detach() for t in found)
    each = width // heads
    mine = len(b) // (3 * each)
    assert w.shape == (3 * mine * each, width) and b.shape == (3 * mine * each,), (
        f"The weight of `qkv` is {list(w.shape)}, and its bias {list(b.shape)}. A head has {each} queries, {each} keys "
        f"and {each} values: as many rows as {3 * each} times the number of heads."
    )
    assert out.shape == (width, mine * each), (
        f"The weight of `project` has the shape {list(out.shape)}. The rank's heads have {mine * each} of the {width} "
        f"inputs, and each output needs all of these: it should be [{width}, {mine * each}]."
    )

    def heads_at(numbers):
        return sorted({number % width // each for number in numbers})

    rows, numbers, columns = places(w, weight), places(b, bias), places(out.T, project.weight.T)
    which = [row // width for row in rows]
    many = [which.count(kind) for kind in range(3)]
    if len(rows) == len(w):
        kinds = [f"{count or 'none'} of {kind}" for count, kind in zip(many, ("queries", "keys", "values"))]
        assert len(set(many)) == 1, (
            f"Rank {rank} has {kinds[0]}, {kinds[1]} and {kinds[2]}. The rows of `qkv` are all queries, then all keys, "
            "then all values, so a run of them is not a set of heads. A rank needs as many of each: take the rows of "
            "its heads out of each third of `qkv`."
        )
        assert which == sorted(which), (
            "Its rows of `qkv` are queries, keys and values in turns: first all queries of its heads, then all keys, "
            "then all values."
        )
        size, place = dist.get_world_size(*given[3:]), dist.get_rank(*given[3:])
        own = torch.arange(heads).tensor_split(size)[place].tolist()
        for kind, name in enumerate(("queries", "keys", "values")):
            taken = heads_at(rows[kind * mine * each : (kind + 1) * mine * each])
            assert taken == own, f"Its {name} are those of heads {taken}, and this rank's are heads {own} of {heads}."
        assert numbers == rows, "Its bias of `qkv` is not that of its rows of the weight: cut both in the same way."
        assert columns == rows[: mine * each], (
            f"Its columns of `project` are those of heads {heads_at(columns)}, and its queries those of heads {own}."
            if heads_at(columns) != own
            else "Its columns of `project` are in a different order from its queries."
        )
    made = torch.nn.functional.linear(x, w, b)
    q, k, v = (t.unflatten(-1, (mine, -1)).transpose(0, 1)[None] for t in made.chunk(3, -1))
    seen = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)[0]
    return {"heads": mine, "attention": seen.transpose(0, 1).flatten(1) @ out.T}


@exercise(
    "Which heads are mine?",
    in_words(_attended, "the weight and bias of my queries, keys and values, and my columns of project's weight"),
    difficulty=2,
    inputs=_heads,
    picture=no_numbers,
    promises=(Calls(0),),
    harness=run_my_heads,
)
def my_heads(qkv, project, heads, group=None):
    """Return this rank's (weight, bias) of qkv and weight of project: those of its heads.

    `qkv` and `project` are the linear layers of an attention with `heads` heads, equal on all ranks of the group. `qkv`
    has `width` inputs. Its `3 * width` outputs are all queries, then all keys, then all values, and each of these three
    has one head after the other. `project` takes the heads' results, one head after the other.

    The first rank of the group gets the first heads, and so on; if the heads cannot be dealt out evenly, the first
    ranks get one more. Return this rank's `(weight, bias)` of `qkv`, with the queries, then the keys, then the values
    of its heads, and its `weight` of `project`: `(weight, bias, weight)`. Communicate nothing. The check lets each rank
    compute the attention of its heads and project it: the ranks' results have to add up to the whole attention.
    Hint: Begin with the numbers of this rank's heads among the `width` queries: `torch.arange(width).view(heads, -1)`
    has a row for each head, and `tensor_split(size)[place]` deals rows out.
    Hint: The keys of the same heads lie `width` rows further down in `qkv`, the values `2 * width` rows.
    Hint: `project` has one column for each number of the heads: `project.weight[:, mine]`.
    Afterwards: No head sees any other head before the projection. So `qkv` is a column-parallel layer, cut in a certain
    order, and `project` a row-parallel one.
    """
    width = qkv.in_features
    size, place = dist.get_world_size(group), dist.get_rank(group)
    mine = torch.arange(width).view(heads, -1).tensor_split(size)[place].flatten()  # the numbers of its heads
    rows = torch.cat([mine, mine + width, mine + 2 * width])
    return qkv.weight.detach()[rows], qkv.bias.detach()[rows], project.weight.detach()[:, mine]


OF_AN_MLP = ("x", "widen's weight", "widen's bias", "narrow's weight", "narrow's bias")


def gradients_of(names: Sequence[str], y: Any, gradients: Sequence[Any]) -> dict[str, Any]:
    """Return a result, and the gradients by their names."""
    return {"y": y, **{f"gradient of {name}": gradient for name, gradient in zip(names, gradients)}}


def _mlp(xs: Sequence[Any]) -> list[Any]:
    n, (x, w1, b1, w2, b2, slope) = len(xs), xs[0]
    hidden, steep = gelu(x @ w1.T + b1)
    dz = (slope @ w2) * steep
    cut = zip(*(np.array_split(t, n, axis) for t, axis in ((dz.T @ x, 0), (dz.sum(0), 0), (slope.T @ hidden, 1))))
    return [gradients_of(OF_AN_MLP, hidden @ w2.T + b2, (dz @ w1, *mine, slope.sum(0))) for mine in cut]


def _mlps(n: int) -> list[Case]:
    rng = np.random.default_rng([12, 5, n])

    def case(rows: int, wide: int, hidden: int, about: str) -> Case:
        shapes = ((rows, wide), (hidden, wide), (hidden,), (wide, hidden), (wide,), (rows, wide))
        return Case([tuple(rng.normal(size=shape) for shape in shapes)] * n, about)

    return [
        case(1, 2, n, f"{n} hidden numbers"),
        case(3, 4, 4 * n, f"{4 * n} hidden numbers"),
        case(2, 3, 2 * n + 1, f"{2 * n + 1} hidden numbers, which {n} does not divide"),
    ]


def one_bias(y, once, bias):
    """Raise an AssertionError where every rank has added the bias before the sum; `once` is the right result."""
    often = isinstance(y, torch.Tensor) and y.shape == once.shape and torch.allclose(y, once + (world_size - 1) * bias)
    assert not often, (
        f"narrow's bias is in the result {world_size} times: each rank has added it before the sum. Add it after the "
        "sum, once."
    )


def run_parallel_mlp(parallel_mlp, x, w1, b1, w2, b2, slope):
    """Go through this rank's parts of the layers and back."""

    def alone(w1, b1, w2):
        y = torch.nn.functional.linear(torch.nn.functional.gelu(torch.nn.functional.linear(x, w1, b1)), w2, b2)
        return y, torch.autograd.grad(y, x, slope)[0]

    x.requires_grad_()
    once, right = alone(w1, b1, w2)
    w1, b1, w2 = my_parts((w1, 0), (b1, 0), (w2, 1))
    _, share = alone(w1, b1, w2)
    leaves = [t.requires_grad_() for t in (x, w1, b1, w2, b2)]
    y = parallel_mlp(x, (w1, b1), (w2, b2), copy_in.function, sum_out.function)
    one_bias(y, once, b2)
    y.backward(slope)
    name_it(x.grad, right, {"leaves out f: each rank has only its own columns' share": share}, "the gradient of x")
    return gradients_of(OF_AN_MLP, y.detach(), [t.grad for t in leaves])


@exercise(
    "The MLP, in parts",
    in_words(_mlp, "the MLP of one process, on every rank"),
    minutes=5,
    difficulty=2,
    inputs=_mlps,
    picture=no_numbers,
    **both_passes(2),
    harness=run_parallel_mlp,
)
def parallel_mlp(x, widen, narrow, f, g):
    """Return narrow(gelu(widen(x))) on every rank, each of which holds a part of both layers.

    `x` is the same on every rank. `widen` is this rank's `(weight, bias)` of the first linear layer, which is
    column-parallel; `narrow` is its `(weight, bias)` of the second one, which is row-parallel, so its bias is whole.
    `f(t)` returns `t` and adds up gradients in the backward pass; `g(t)` returns the sum of all ranks' `t` and passes
    gradients back as they are. Return the whole MLP's result on every rank. All gradients have to be right as well. Two
    collectives are enough, one in each direction. `torch.nn.functional` has `linear` and `gelu`.
    Hint: f goes where all ranks have the same numbers and begin to compute different things. g goes where the ranks
    have parts of a sum that all of them need.
    Hint: `linear(f(x), *widen)`, then gelu: each rank has its own columns' finished outputs, so gelu needs no other
    rank.
    Hint: `g(linear(hidden, weight)) + bias`: the bias comes after the sum, once.
    Afterwards: Two layers need one all-reduce forward and one backward. The hidden numbers, four times as many as `x`
    has in this lesson's model, are never in one place.
    """
    hidden = torch.nn.functional.gelu(torch.nn.functional.linear(f(x), *widen))
    weight, bias = narrow
    return g(torch.nn.functional.linear(hidden, weight)) + bias


def _whole(xs: Sequence[Any], dim: int) -> list[Any]:
    y = np.concatenate([part for part, _ in xs], dim)
    return [{"y": y, "gradient of part": slope} for slope in np.split(xs[0][1], len(xs), dim)]


def _parts(n: int) -> list[Case]:
    rng = np.random.default_rng([12, 6, n])

    def case(shape: tuple[int, ...], dim: int, about: str, dtype: str = "float32") -> Case:
        whole = [n * size if axis == dim % len(shape) else size for axis, size in enumerate(shape)]
        slope = rng.integers(-9, 10, whole).astype(dtype)
        return Case([(rng.integers(-9, 10, shape).astype(dtype), slope) for _ in range(n)], about, {"dim": dim})

    return [
        case((1, 2), 1, "two columns per rank"),
        case((3, 2, 4), -1, "the last dimension, float64", "float64"),
        case((3, 2, 4), 1, "the dimension in the middle"),
    ]


def back_from_the_whole(y, slope):
    """Go back from what was gathered; return how many collectives the forward pass has called."""
    made = len(called())
    assert isinstance(y, torch.Tensor), f"Return a tensor, and not {type(y).__name__}."
    assert y.shape == slope.shape, f"The result has the shape {list(y.shape)}, and should have {list(slope.shape)}."
    assert y.requires_grad, "No gradient flows back: autograd does not see through `dist.all_gather`."
    y.backward(slope)
    return made


def run_whole_output(whole_output, part, slope, dim):
    """Gather a part whose rows lie in no row, and go back."""
    part = (1 * part.requires_grad_()).transpose(0, 1).contiguous().transpose(0, 1)  # no row behind the other
    part.retain_grad()
    y = whole_output(part, dim)
    no_sum_of_sums(back_from_the_whole(y, slope))
    return {"y": y.detach(), "gradient of part": part.grad}


@exercise(
    "Put the whole output together",
    _whole,
    minutes=6,
    difficulty=2,
    inputs=_parts,
    picture=lambda: Case([(part[:, :1], slope[:, ::2]) for part, slope in _parts(3)[0].xs], options={"dim": 1}),
    tolerance=1e-6,
    **both_passes(1),
    harness=run_whole_output,
)
def whole_output(part, dim):
    """Return all ranks' parts, one after the other along this dimension; gradients flow back.

    Each rank has a `part`, and all parts have the same shape. Return the whole: the ranks' parts, one after the other
    along dimension `dim`, which may be negative. From there on **every rank does the same** with the whole, down to the
    same loss. So what is the gradient of this rank's `part`, if `dy` is the gradient of the whole?

    `dist.all_gather(parts, part)` fills the tensors of a list; with NCCL, these and `part` must be contiguous. One
    collective is enough. In the picture, `part` and `dy` are on the left; the whole and the gradient of `part` are on
    the right.
    Hint: Forward it is an all-gather and a `torch.cat` along `dim`. `part.contiguous()` first.
    Hint: The loss is one and the same on all ranks, and `dy` is whole and equal everywhere. Which of its numbers belong
    to this rank's part?
    Hint: `dy.chunk(world_size, dim)[rank]`, and nothing to communicate.
    Afterwards: The backward pass of this all-gather is a slice, because all ranks do the same with what was gathered.
    If they went on to do different things, it would be a reduce-scatter: lesson 13b has that case.
    """

    class Whole(torch.autograd.Function):
        @staticmethod
        def forward(ctx, part):
            part = part.contiguous()
            parts = [torch.empty_like(part) for _ in range(world_size)]
            dist.all_gather(parts, part)
            return torch.cat(parts, dim)

        @staticmethod
        def backward(ctx, dy):
            return dy.chunk(world_size, dim)[rank]

    return Whole.apply(part)
