"""Exercises of lesson 13b on a sequence in parts: to all positions and back, lean columns, half a layer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

from labkit.grading.exercise import Case, exercise
from workbook.cards import in_words, no_numbers
from workbook.lesson13 import OF_A_LAYER, both_passes, called, copy_in, my_parts
from workbook.lesson13_layers import OF_AN_MLP, back_from_the_whole, gelu, gradients_of, one_bias

if TYPE_CHECKING:
    from labkit.rank.cell_names import dist, everyones, name_it, rank, torch, world_size


def _gathered(xs: Sequence[Any]) -> list[Any]:
    y = np.concatenate([x for x, _ in xs], 1)
    return [{"y": y, "gradient of x": part} for part in np.split(sum(slope for _, slope in xs), len(xs), 1)]


def _sequences(n: int) -> list[Case]:
    rng = np.random.default_rng([12, 8, n])

    def case(shape: tuple[int, int, int], about: str, dtype: str = "float32") -> Case:
        rows, positions, width = shape
        whole = (rows, n * positions, width)
        return Case([tuple(rng.integers(-9, 10, s).astype(dtype) for s in (shape, whole)) for _ in range(n)], about)

    return [
        case((1, 1, 2), "one position per rank"),
        case((3, 2, 4), "three rows, two positions per rank, float64", "float64"),
        case((2, 3, 1), "two rows, three positions per rank"),
    ]


def run_gather_sequence(gather_sequence, x, slope):
    """Gather and go back; name the mistakes that give the same numbers."""
    xs, slopes = zip(*everyones((x, slope)))
    total = sum(slopes)
    y = gather_sequence(x.requires_grad_())
    ours = next((op for op in called() if op.startswith("comms.")), "")
    assert not ours, (
        f"The function calls {ours}, whose backward pass is there already, and on Gloo moves as many bytes as an "
        "all-reduce. Write both directions with `dist`."
    )
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
    picture=lambda: [(x[..., :1], slope[..., :1]) for x, slope in _sequences(3)[0].xs],
    **both_passes(2),
    harness=run_gather_sequence,
)
def gather_sequence(x):
    """Return all positions; in the backward pass, add up the gradients of this rank's positions.

    Each rank holds its part of the sequence: `x` is [rows, positions, width], with the same number of positions on
    every rank, the first ones on rank 0. Return the whole sequence, [rows, all positions, width]: it goes into a
    column-parallel layer, **whose columns differ from rank to rank**. So each rank gets back a different `dy`, with all
    positions. Return the gradient of this rank's `x`. One collective of `dist` in each direction is enough, and each
    should move no more than is needed: no all-reduce, and nothing of `comms`.

    In the picture, `x` and this rank's `dy` are on the left; the whole sequence and the gradient of `x` are on the
    right.
    Hint: Forward: an all-gather, and `torch.cat` along the positions.
    Hint: Backward: each rank has a `dy` for all positions, from its own columns. This rank needs the sum over the ranks
    for its own positions only. Lesson 04 has one collective for that.
    Hint: `dist.reduce_scatter(dx, parts)`; `parts` are the chunks of `dy` along dimension 1, each made contiguous.
    Afterwards: `whole_output` in lesson 13 makes the same all-gather and has a different backward pass: what matters is
    what the ranks do with the whole. The mirror image, reduce-scatter forward and all-gather backward, comes after the
    row-parallel layer. (`comms.all_gather` goes back by a reduce-scatter, too; on Gloo its bytes are those of an
    all-reduce.)
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


outer = partial(np.tensordot, axes=((0, 1), (0, 1)))  # the sum of the outer products over rows and positions


def _lean(xs: Sequence[Any]) -> list[Any]:
    n, (whole, weight, bias, slope) = len(xs), xs[0]
    cut = zip(*(np.array_split(t, n, axis) for t, axis in ((slope @ weight, 1), (weight, 0), (bias, 0), (slope, 2))))
    return [
        {"y": whole @ w.T + b, **dict(zip(OF_A_LAYER, (dx, outer(dy, whole), dy.sum((0, 1)))))} for dx, w, b, dy in cut
    ]


def _lean_layers(n: int) -> list[Case]:
    rng = np.random.default_rng([12, 9, n])

    def case(rows: int, positions: int, width: int, out: int, about: str) -> Case:
        shapes = ((rows, n * positions, width), (out, width), (out,), (rows, n * positions, out))
        return Case([tuple(rng.normal(size=shape) for shape in shapes)] * n, about)

    return [
        case(1, 1, 2, n, "one position per rank"),
        case(3, 2, 4, 2 * n, "three rows, two positions per rank"),
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
    in_words(_lean, "what my columns make of all positions"),
    minutes=15,
    difficulty=3,
    inputs=_lean_layers,
    picture=no_numbers,
    forbids=("all_reduce", "all_to_all"),
    **both_passes(3),
    harness=run_lean_column,
)
def lean_column(x, weight, bias):
    """Return what this rank's columns make of all positions, and keep only this rank's positions.

    `gather_sequence` before a column-parallel layer makes the whole sequence, and autograd keeps it until the backward
    pass: the activations that sequence parallelism has cut are whole again. Write gather and layer in one
    `torch.autograd.Function`. `x` is this rank's part of the sequence, [rows, positions, width]; `weight` and `bias`
    are its part of the layer. Return what its columns make of **all** positions, and keep nothing of `x` but this
    rank's part of it.

    In the backward pass, return the gradients of `x`, summed over the ranks, of `weight` and of `bias`. The gradient of
    `weight` needs the whole `x` once more: gather it again. Three collectives in all, and none of them is an
    all-reduce.
    Hint: Call `ctx.save_for_backward(x, weight)`, where `x` is this rank's part. The gathered sequence is a local
    variable of `forward`, and is freed when it returns.
    Hint: `dx = dy @ weight` has all positions and this rank's columns only: a reduce-scatter along the positions.
    Hint: `weight` has a gradient from all positions: `dy.flatten(0, 1).T @ whole.flatten(0, 1)`, where `whole` is
    gathered again. `bias`: the sum of `dy` over rows and positions.
    Afterwards: Megatron does this, and hides both: the second all-gather runs while `dy @ weight` is computed, and the
    reduce-scatter while the weight's gradient is. It sends half as many bytes again as the plain version.
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
    rng = np.random.default_rng([12, 10, n])

    def case(rows: int, positions: int, width: int, hidden: int, about: str) -> Case:
        wide = (rows, n * positions, width)
        shapes = (wide, (width,), (width,), (hidden, width), (hidden,), (width, hidden), (width,), wide)
        return Case([tuple(rng.normal(size=shape) for shape in shapes)] * n, about)

    return [
        case(1, 1, 3, n, "one position per rank"),
        case(3, 2, 4, 2 * n, "three rows, two positions per rank"),
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

    with patch.object(torch.nn.functional, "layer_norm", noted):
        y = sequence_mlp(x, (gain, shift), (w1, b1), (w2, b2), gather_sequence.function, scatter, copy_in.function)
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
    in_words(_in_sequence, "half a layer of one process, for my positions"),
    minutes=15,
    difficulty=3,
    inputs=_sequence_layers,
    picture=no_numbers,
    **both_passes(7, rounds=5),
    harness=run_sequence_mlp,
)
def sequence_mlp(x, norm, widen, narrow, gather, scatter, f):
    """Return x + narrow(gelu(widen(norm(x)))) for this rank's positions.

    Half a transformer layer is `x + narrow(gelu(widen(norm(x))))`. `x` is this rank's part of the sequence, [rows,
    positions, width]. Return the half layer's result for this part. `norm` is the `(weight, bias)` of a layer norm,
    equal on all ranks; `widen` and `narrow` are this rank's `(weight, bias)` of a column-parallel and a row-parallel
    layer, so narrow's bias is whole.

    Three functions are given. `gather(t)` puts the ranks' parts together, and reduce-scatters in the backward pass;
    `scatter(t)` adds up the ranks' `t` and keeps this rank's positions, and gathers in the backward pass; `f(t)`
    returns `t`, and all-reduces in the backward pass. Afterwards, **all** gradients must be those of one process: on
    every rank the whole gradient of what is equal everywhere. The norm must work on this rank's positions only.
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
