"""Exercises of lesson 12 from the whole output on: heads, a sequence in parts, and two hard ones at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, Least, exercise
from labkit.grading.promises import Calls
from workbook.lesson12 import (
    OF_A_LAYER,
    OF_AN_MLP,
    called,
    copy_in,
    gelu,
    gradients_of,
    in_team,
    my_parts,
    no_sum_of_sums,
    normal,
    one_bias,
    teams,
)

if TYPE_CHECKING:
    from labkit.rank.seen import device, dist, everyones, name_it, rank, torch, world_size


# -- the whole output -------------------------------------------------------------------------------------------------


def _whole(xs: Sequence[Any], dim: int) -> list[Any]:
    y = np.concatenate([part for part, _ in xs], dim)
    return [{"y": y, "gradient of part": slope} for slope in np.split(xs[0][1], len(xs), dim)]


def _parts(n: int) -> list[Case]:
    rng = normal(n, 6)

    def case(shape: tuple[int, ...], dim: int, about: str, dtype: str = "float32") -> Case:
        whole = [n * size if axis == dim % len(shape) else size for axis, size in enumerate(shape)]
        slope = rng.integers(-9, 10, whole).astype(dtype)
        return Case([(rng.integers(-9, 10, shape).astype(dtype), slope) for _ in range(n)], about, {"dim": dim})

    return [
        case((1, 2), 1, "two columns a rank"),
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
    tolerance=1e-6,
    promises=(Calls(1),),
    least=Least(rounds=lambda n: 1),
    counts_memory=False,
    harness=run_whole_output,
)
def whole_output(part, dim):
    """Return all ranks' parts, one after the other along this dimension; gradients flow back.

    Each rank has a `part`, and all parts have the same shape. Return the whole: the ranks' parts, one after the other
    along dimension `dim`, which may be negative. From there on **every rank does the same** with the whole, down to the
    same loss. So what is the gradient of this rank's `part`, where `dy` is that of the whole?

    `dist.all_gather(parts, part)` fills the tensors of a list; with NCCL, these and `part` must be contiguous. One
    collective is enough. In the picture, `part` and `dy` are on the left; the whole and the gradient of `part` are on
    the right.
    Hint: Forward it is an all-gather and a `torch.cat` along `dim`. `part.contiguous()` first.
    Hint: The loss is one and the same on all ranks, and `dy` is whole and equal everywhere. Which of its numbers belong
    to this rank's part?
    Hint: `dy.chunk(world_size, dim)[rank]`, and nothing to communicate.
    Afterwards: An all-gather's backward pass is a slice here, because all ranks do the same with what was gathered.
    Where they go on to do different things, it is a reduce-scatter: you will meet that, too.
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


# -- attention by heads -----------------------------------------------------------------------------------------------


def _attended(xs: Sequence[Any], heads: int, halves: bool = False) -> list[Any]:
    found = []
    for (x, weight, bias, project), (place, team) in zip(xs, teams(len(xs), halves)):
        (positions, width), mine = x.shape, np.array_split(np.arange(heads), len(team))[place]
        qkv = np.split(x @ weight.T + bias, 3, axis=1)
        q, k, v = (t.reshape(positions, heads, -1).transpose(1, 0, 2) for t in qkv)
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(width // heads)
        scores = np.where(np.tril(np.ones((positions, positions))) > 0, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        seen = (weights / weights.sum(-1, keepdims=True)) @ v
        columns = project.reshape(width, heads, -1)
        found.append({"heads": len(mine), "attention": sum(seen[h] @ columns[:, h].T for h in mine)})
    return found


def _heads(n: int) -> list[Case]:
    rng = normal(n, 7)

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
        assert len(set(many)) == 1, (
            "Its rows of `qkv` are {} of queries, {} of keys and {} of values. A rank needs as many of each, those of "
            "its heads: take them out of each third of `qkv`.".format(*many)
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
            else "Its columns of `project` are in another order than its queries."
        )
    made = torch.nn.functional.linear(x, w, b)
    q, k, v = (t.unflatten(-1, (mine, -1)).transpose(0, 1)[None] for t in made.chunk(3, -1))
    seen = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)[0]
    return {"heads": mine, "attention": seen.transpose(0, 1).flatten(1) @ out.T}


@exercise("Which heads are mine?", _attended, difficulty=2, inputs=_heads, promises=(Calls(0),), harness=run_my_heads)
def my_heads(qkv, project, heads, group=None):
    """Return this rank's (weight, bias) of qkv and weight of project: those of its heads.

    `qkv` and `project` are the linear layers of an attention with `heads` heads, equal on all ranks of the group. `qkv`
    makes queries, keys and values out of `width` inputs: its `3 * width` outputs are all queries, then all keys, then
    all values, and within each of them one head after the other. `project` takes the heads' results, one head after the
    other.

    Each rank gets some heads, the first ones for the first rank of the group; where the heads cannot be dealt out
    evenly, the first ranks get one more. Return this rank's `(weight, bias)` of `qkv`, with the queries, then the keys,
    then the values of its heads, and its `weight` of `project`: `(weight, bias, weight)`. Communicate nothing. The
    check lets each rank compute the attention of its heads and project it, and compares with what one process makes of
    them: the ranks' results add up to the whole attention.

    In the picture, `x`, the weight and the bias of `qkv` and the weight of `project` are on the left, as far as they
    fit. On the right is the number of the rank's heads, followed by what their attention gives.
    Hint: First the numbers of this rank's heads among the `width` queries: `torch.arange(width).view(heads, -1)` has a
    row for each head, and `tensor_split(size)[place]` deals rows out.
    Hint: The keys of the same heads lie `width` rows further down in `qkv`, the values `2 * width` rows.
    Hint: `project` has one column for each number of the heads: `project.weight[:, mine]`.
    Afterwards: Attention falls into heads by itself: no head sees another one before the projection. So `qkv` is a
    column-parallel layer, cut in a certain order, and `project` a row-parallel one.
    """
    width = qkv.in_features
    size, place = dist.get_world_size(group), dist.get_rank(group)
    mine = torch.arange(width).view(heads, -1).tensor_split(size)[place].flatten()  # the numbers of its heads
    rows = torch.cat([mine, mine + width, mine + 2 * width])
    return qkv.weight.detach()[rows], qkv.bias.detach()[rows], project.weight.detach()[:, mine]


# -- a sequence in parts ----------------------------------------------------------------------------------------------


def _gathered(xs: Sequence[Any]) -> list[Any]:
    y = np.concatenate([x for x, _ in xs], 1)
    return [{"y": y, "gradient of x": part} for part in np.split(sum(slope for _, slope in xs), len(xs), 1)]


def _sequences(n: int) -> list[Case]:
    rng = normal(n, 8)

    def case(shape: tuple[int, int, int], about: str, dtype: str = "float32") -> Case:
        rows, positions, width = shape
        whole = (rows, n * positions, width)
        return Case([tuple(rng.integers(-9, 10, s).astype(dtype) for s in (shape, whole)) for _ in range(n)], about)

    return [
        case((1, 1, 2), "one position a rank"),
        case((3, 2, 4), "three rows, two positions a rank, float64", "float64"),
        case((2, 3, 1), "two rows, three positions a rank"),
    ]


def run_gather_sequence(gather_sequence, x, slope):
    """Gather and go back; name the mistakes that give the same numbers."""
    xs, slopes = zip(*everyones((x, slope)))
    total = sum(slopes)
    y = gather_sequence(x.requires_grad_())
    back = called(back_from_the_whole(y, slope))
    assert back, (
        "The backward pass communicates nothing. This rank's `dy` is what its own columns say of all positions; the "
        "other ranks' columns have something to say of these positions, too."
    )
    assert "all_reduce" not in back, (
        "The backward pass calls all_reduce: it adds up the gradients of all positions on every rank, which keeps "
        "those of its own positions and throws the others away. A reduce-scatter leaves each rank with its own."
    )
    assert not any("gather" in op for op in back), (
        "The backward pass calls all_gather: every rank gets all gradients of all ranks, and adds up itself. A "
        "reduce-scatter leaves each rank with the sum for its own positions."
    )
    slips = {
        "puts the parts behind one another in memory, which is by rows: `torch.cat(parts, dim=1)`": torch.cat(xs),
        "takes the ranks' positions in turns": torch.stack(xs, 2),
        "rounds the numbers to bfloat16 on their way": torch.cat(xs, 1).bfloat16().to(x.dtype),
    }
    slips = {why: gives.reshape(y.shape) for why, gives in slips.items()}
    name_it(y.detach(), torch.cat(xs, 1), slips, "the whole")
    parts, flat = total.chunk(world_size, 1), total.flatten().chunk(world_size)
    slips = {
        "cuts the gradient in memory's order, which is by rows: cut it along dimension 1": flat[rank].view(x.shape),
        "returns the first positions' gradient on every rank": parts[0],
        "divides by the number of ranks: what all columns say is a sum": parts[rank] / world_size,
    }
    name_it(x.grad, parts[rank], slips, "the gradient of x")
    return {"y": y.detach(), "gradient of x": x.grad}


@exercise(
    "From my positions to all of them",
    _gathered,
    minutes=8,
    difficulty=2,
    inputs=_sequences,
    promises=(Calls(2),),
    least=Least(rounds=lambda n: 2),
    counts_memory=False,
    harness=run_gather_sequence,
)
def gather_sequence(x):
    """Return all positions; in the backward pass, add up the gradients of this rank's positions.

    Each rank holds its part of the sequence: `x` is [rows, positions, width], with the same number of positions on
    every rank, the first ones on rank 0. Return the whole sequence, [rows, all positions, width]: it goes into a
    column-parallel layer, **whose columns differ from rank to rank**. So each rank gets back a different `dy`, with all
    positions. Return the gradient of this rank's `x`. One collective in each direction is enough, and each should move
    no more than is needed: no all-reduce.

    In the picture, `x` and this rank's `dy` are on the left; the whole sequence and the gradient of `x` are on the
    right.
    Hint: Forward, as in `whole_output`: an all-gather, and `torch.cat` along the positions.
    Hint: Backward: each rank has a `dy` for all positions, from its own columns. This rank's positions need the sum
    over the ranks, and the other positions do not belong to it. Lesson 04 has one collective for that.
    Hint: `dist.reduce_scatter(dx, parts)`; `parts` are the chunks of `dy` along dimension 1, each made contiguous.
    Afterwards: The same all-gather as in `whole_output`, and a different backward pass: what matters is what the ranks
    do with the whole. Its mirror image, reduce-scatter forward and all-gather backward, comes after the row-parallel
    layer. (`comms.all_gather` goes back by a reduce-scatter, too; on Gloo its bytes are those of an all-reduce.)
    """

    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            x = x.contiguous()
            parts = [torch.empty_like(x) for _ in range(world_size)]
            dist.all_gather(parts, x)
            return torch.cat(parts, dim=1)

        @staticmethod
        def backward(ctx, dy):
            parts = [part.contiguous() for part in dy.chunk(world_size, dim=1)]
            dx = torch.empty_like(parts[rank])
            dist.reduce_scatter(dx, parts)
            return dx

    return Gather.apply(x)


# -- and save only one's own positions --------------------------------------------------------------------------------


def outer(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the sum of the outer products over rows and positions."""
    return left.reshape(-1, left.shape[-1]).T @ right.reshape(-1, right.shape[-1])


def _lean(xs: Sequence[Any]) -> list[Any]:
    n, (whole, weight, bias, slope) = len(xs), xs[0]
    cut = zip(*(np.array_split(t, n, axis) for t, axis in ((slope @ weight, 1), (weight, 0), (bias, 0), (slope, 2))))
    return [
        {"y": whole @ w.T + b, **dict(zip(OF_A_LAYER, (dx, outer(dy, whole), dy.sum((0, 1)))))} for dx, w, b, dy in cut
    ]


def _lean_layers(n: int) -> list[Case]:
    rng = normal(n, 9)

    def case(rows: int, positions: int, width: int, out: int, about: str) -> Case:
        shapes = ((rows, n * positions, width), (out, width), (out,), (rows, n * positions, out))
        return Case([tuple(rng.normal(size=shape) for shape in shapes)] * n, about)

    return [
        case(1, 1, 2, n, "one position a rank"),
        case(3, 2, 4, 2 * n, "three rows, two positions a rank"),
        case(2, 3, 4, 2 * n + 1, f"{2 * n + 1} outputs, which {n} does not divide"),
    ]


def run_lean_column(lean_column, whole, weight, bias, slope):
    """Weigh what is kept from the forward to the backward pass."""
    x, w, b, dy = my_parts((whole, 1), (weight, 0), (bias, 0), (slope, 2))
    leaves = [t.requires_grad_() for t in (x, w, b)]
    kept = {}

    def keep(t):
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        y = lean_column(*leaves)
    for value in getattr(y.grad_fn, "__dict__", {}).values():
        for t in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(t, torch.Tensor):
                keep(t)
    for t in (w, b):
        kept.pop(t.untyped_storage().data_ptr(), None)
    assert sum(kept.values()) <= x.nbytes, (
        f"From the forward to the backward pass, {sum(kept.values())} bytes of activations are kept. This rank's part "
        f"of `x` has {x.nbytes}."
    )
    y.backward(dy.contiguous())
    return {"y": y.detach(), **{name: t.grad for name, t in zip(OF_A_LAYER, leaves)}}


@exercise(
    "A column-parallel layer that keeps its own positions only",
    _lean,
    minutes=15,
    difficulty=3,
    inputs=_lean_layers,
    forbids=("all_reduce", "all_to_all"),
    promises=(Calls(3),),
    least=Least(rounds=lambda n: 3),
    counts_memory=False,
    harness=run_lean_column,
)
def lean_column(x, weight, bias):
    """Return what this rank's columns make of all positions, and keep only this rank's positions.

    `gather_sequence` before a column-parallel layer makes the whole sequence, and autograd keeps it until the backward
    pass: the activations that sequence parallelism has cut are whole again. Write both in one
    `torch.autograd.Function`. `x` is this rank's part of the sequence, [rows, positions, width]; `weight` and `bias`
    are its part of the layer. Return what its columns make of **all** positions, and keep nothing of `x` but this
    rank's part of it.

    In the backward pass, return the gradients of `x`, summed over the ranks, of `weight` and of `bias`. The gradient of
    `weight` needs the whole `x` once more: gather it again. Three collectives in all, and none of them is an
    all-reduce.

    In the picture, the whole sequence, weight, bias and gradient of the output are on the left, as far as they fit; on
    the right are the columns' output and the gradients of `x`, of `weight` and of `bias`.
    Hint: Write the layer as you repaired it, with `save_for_backward(x, weight)`, where `x` is this rank's part; the
    gathered sequence is a local variable of `forward`, and goes when it returns.
    Hint: `dx = dy @ weight` has all positions and this rank's columns only: a reduce-scatter along the positions.
    Hint: `weight` has a gradient from all positions: `dy.flatten(0, 1).T @ whole.flatten(0, 1)`, where `whole` is
    gathered again. `bias`: the sum of `dy` over rows and positions.
    Afterwards: Megatron does this, and hides both: the second all-gather runs while `dy @ weight` is computed, and the
    reduce-scatter while the weight's gradient is. It costs half as many bytes again as the plain version.
    """

    def gathered(x):
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in range(world_size)]
        dist.all_gather(parts, x)
        return torch.cat(parts, dim=1)

    class Column(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, bias):
            ctx.save_for_backward(x, weight)
            return torch.nn.functional.linear(gathered(x), weight, bias)

        @staticmethod
        def backward(ctx, dy):
            x, weight = ctx.saved_tensors
            parts = [part.contiguous() for part in (dy @ weight).chunk(world_size, dim=1)]
            dx = torch.empty_like(parts[rank])
            dist.reduce_scatter(dx, parts)
            d_weight = dy.flatten(0, 1).T @ gathered(x).flatten(0, 1)
            return dx, d_weight, dy.sum((0, 1))

    return Column.apply(x, weight, bias)


# -- an MLP on a part of the sequence ---------------------------------------------------------------------------------

OF_HALF_A_LAYER = ("x", "norm's weight", "norm's bias", *OF_AN_MLP[1:])


def _in_sequence(xs: Sequence[Any]) -> list[Any]:
    n, (x, gain, shift, w1, b1, w2, b2, slope) = len(xs), xs[0]
    deviation = np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    normed = (x - x.mean(-1, keepdims=True)) / deviation
    hidden, steep = gelu((normed * gain + shift) @ w1.T + b1)
    dz = (slope @ w2) * steep
    d_norm = dz @ w1
    inner = d_norm * gain
    dx = inner - inner.mean(-1, keepdims=True) - normed * (inner * normed).mean(-1, keepdims=True)
    whole, of_norm = x + hidden @ w2.T + b2, ((d_norm * normed).sum((0, 1)), d_norm.sum((0, 1)))
    slopes = ((outer(dz, normed * gain + shift), 0), (dz.sum((0, 1)), 0), (outer(slope, hidden), 1))
    cut = zip(*(np.array_split(t, n, axis) for t, axis in ((whole, 1), (slope + dx / deviation, 1), *slopes)))
    return [gradients_of(OF_HALF_A_LAYER, y, (dx, *of_norm, *mine, slope.sum((0, 1)))) for y, dx, *mine in cut]


def _sequence_layers(n: int) -> list[Case]:
    rng = normal(n, 10)

    def case(rows: int, positions: int, width: int, hidden: int, about: str) -> Case:
        wide = (rows, n * positions, width)
        shapes = (wide, (width,), (width,), (hidden, width), (hidden,), (width, hidden), (width,), wide)
        return Case([tuple(rng.normal(size=shape) for shape in shapes)] * n, about)

    return [
        case(1, 1, 3, n, "one position a rank"),
        case(3, 2, 4, 2 * n, "three rows, two positions a rank"),
        case(2, 2, 5, 2 * n + 1, f"{2 * n + 1} hidden numbers, which {n} does not divide"),
    ]


def scatter(t):
    """Add up the ranks' tensors and keep this rank's positions; gather in the backward pass."""

    class Scatter(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            pieces = [part.contiguous() for part in t.chunk(world_size, 1)]
            kept = torch.empty_like(pieces[rank])
            dist.reduce_scatter(kept, pieces)
            return kept

        @staticmethod
        def backward(ctx, dy):
            parts = [torch.empty_like(dy) for _ in range(world_size)]
            dist.all_gather(parts, dy.contiguous())
            return torch.cat(parts, 1)

    return Scatter.apply(t)


def run_sequence_mlp(sequence_mlp, x, gain, shift, w1, b1, w2, b2, slope):
    """Go through this rank's positions and back, and look on how many of them the norm works."""
    normed, layer_norm = [], torch.nn.functional.layer_norm
    once = torch.nn.functional.gelu(torch.nn.functional.linear(layer_norm(x, x.shape[-1:], gain, shift), w1, b1))
    once = (x + torch.nn.functional.linear(once, w2, b2)).tensor_split(world_size, 1)[rank]
    x, w1, b1, w2, slope = my_parts((x, 1), (w1, 0), (b1, 0), (w2, 1), (slope, 1))
    leaves = [t.requires_grad_() for t in (x, gain, shift, w1, b1, w2, b2)]

    def noted(t, *args, **kwargs):
        normed.append(t.shape[1])
        return layer_norm(t, *args, **kwargs)

    torch.nn.functional.layer_norm = noted
    try:
        y = sequence_mlp(x, (gain, shift), (w1, b1), (w2, b2), gather_sequence.function, scatter, copy_in.function)
    finally:
        torch.nn.functional.layer_norm = layer_norm
    here = x.shape[1]
    assert all(positions == here for positions in normed), (
        f"The norm works on {max(normed)} positions, and this rank has {here}: the norm comes before the gather."
    )
    assert y.shape == x.shape, f"Your result is {list(y.shape)}, and this rank's part of the sequence {list(x.shape)}."
    one_bias(y, once, b2)
    y.backward(slope)
    return gradients_of(OF_HALF_A_LAYER, y.detach(), [t.grad for t in leaves])


@exercise(
    "Half a transformer layer on a part of the sequence",
    _in_sequence,
    minutes=15,
    difficulty=3,
    inputs=_sequence_layers,
    promises=(Calls(7),),
    least=Least(rounds=lambda n: 5),
    counts_memory=False,
    harness=run_sequence_mlp,
)
def sequence_mlp(x, norm, widen, narrow, gather, scatter, f):
    """Return x + narrow(gelu(widen(norm(x)))) for this rank's positions.

    Half a transformer layer is `x + narrow(gelu(widen(norm(x))))`. `x` is this rank's part of the sequence, [rows,
    positions, width], and so is what you return. `norm` is the `(weight, bias)` of a layer norm, equal on all ranks;
    `widen` and `narrow` are this rank's `(weight, bias)` of a column-parallel and a row-parallel layer, so narrow's
    bias is whole.

    Three functions are given. `gather(t)` puts the ranks' parts together, and reduce-scatters in the backward pass;
    `scatter(t)` adds up the ranks' `t` and keeps this rank's positions, and gathers in the backward pass; `f(t)`
    returns `t`, and all-reduces in the backward pass. Afterwards, **all** gradients must be those of one process: on
    every rank the whole gradient of what is equal everywhere. The norm must work on this rank's positions only.

    In the picture, everything is whole on the left, as far as it fits: `x`, norm, widen, narrow, the gradient of the
    result. On the right are this rank's result and then the gradients, in the order of the arguments.
    Hint: Forward: the norm on this rank's positions, `gather`, the columns and gelu, the rows, `scatter`, then bias and
    residual on this rank's positions.
    Hint: What is equal on all ranks, but sees only this rank's positions, has only a part of its gradient. Which three
    tensors are these?
    Hint: `f` takes weights, too: with `f(norm[0])`, `f(norm[1])` and `f(bias)` in their place, their gradients are
    added up.
    Afterwards: The collectives of the weights' gradients need not run here: Megatron marks such weights and adds up all
    their gradients in one all-reduce after the backward pass.
    """
    weight, bias = (f(t) for t in norm)
    y = torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias)
    hidden = torch.nn.functional.gelu(torch.nn.functional.linear(gather(y), *widen))
    weight, bias = narrow
    return x + scatter(torch.nn.functional.linear(hidden, weight)) + f(bias)
