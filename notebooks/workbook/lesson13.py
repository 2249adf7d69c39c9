"""Exercises of lesson 13 on a linear layer that is cut in two ways: its parts, f and g."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, Least, exercise
from labkit.grading.promises import Calls, Once
from labkit.theory.log import Log
from workbook.harnesses import my_group

if TYPE_CHECKING:
    from labkit.rank.cell_names import device, dist, name_it, rank, recorder, torch, world_size


ONE_ALL_REDUCE: dict[str, Any] = {
    "promises": (Once(("all_reduce",)),),
    "least": Least(rounds=lambda n: 1),
    "counts_memory": False,
}


def both_passes(calls: int, rounds: int = 0) -> dict[str, Any]:
    """Return what an exercise says of so many calls, where the backward pass does half of the work."""
    return {"promises": (Calls(calls),), "least": Least(rounds=lambda n: rounds or calls), "counts_memory": False}


def teams(n: int, halves: bool = False) -> list[tuple[int, list[int]]]:
    """Return each rank's place and its team: all ranks, or those with an even and those with an odd rank."""
    step = 2 if halves else 1
    return [(r // step, list(range(r % step, n, step))) for r in range(n)]


def in_team(halves, *given):
    """Return the arguments, and this rank's group where there are two teams."""
    if not halves:
        return given
    return *given, my_group([range(0, world_size, 2), range(1, world_size, 2)])


def _cut(xs: Sequence[Any], kind: str, halves: bool = False) -> list[Any]:
    def part(t: np.ndarray, place: int, team: Sequence[int], axis: int = 0) -> np.ndarray:
        return np.array_split(t, len(team), axis)[place]

    each = zip(xs, teams(len(xs), halves))
    if kind == "row":
        return [[part(weight, *where, axis=1), bias] for (weight, bias), where in each]
    return [[part(weight, *where), part(bias, *where)] for (weight, bias), where in each]


def _layers(n: int) -> list[Case]:
    rng = np.random.default_rng([12, 1, n])

    def case(kind: str, out: int, into: int, about: str, **halves: bool) -> Case:
        weight = (10 * np.arange(1, out + 1)[:, None] + np.arange(1, into + 1)).astype("float32")  # row 2, column 1: 21
        bias = rng.integers(1, 9, out).astype("float32")
        return Case([(weight, bias)] * n, about, {"kind": kind, **halves})

    return [
        case("column", n, 2, f"column-parallel, {n} outputs"),
        case("row", 2, 2 * n, f"row-parallel, {2 * n} inputs"),
        case("column", n + 1, 3, f"column-parallel, {n + 1} outputs, which {n} does not divide"),
        case("row", 3, n + 1, f"row-parallel, {n + 1} inputs, which {n} does not divide"),
        case("column", 5, 2, "column-parallel, two groups of ranks", halves=True),
        case("row", 2, 5, "row-parallel, two groups of ranks", halves=True),
    ]


def to_cut(weight, bias, kind, halves=False):
    """Make the layer, and return the arguments."""
    linear = torch.nn.Linear(1, 1, device=device)
    linear.weight, linear.bias = torch.nn.Parameter(weight), torch.nn.Parameter(bias)
    return in_team(halves, linear, kind)


def owned_parts(found, linear, kind, group=None):
    """Return the parts, which have memory of their own and are those of this place in the group."""
    assert isinstance(found, (tuple, list)) and len(found) == 2, "Return two tensors: `(weight, bias)`."
    for name, mine in zip(("weight", "bias"), found):
        if isinstance(mine, torch.Tensor) and mine.numel():
            whole = mine.untyped_storage().nbytes()
            assert whole == mine.nbytes, (
                f"The {name} that comes back has {mine.nbytes} bytes, and keeps {whole} bytes in memory: it is a view "
                "of the whole one. Return a clone."
            )
            still = mine.data_ptr() in (linear.weight.data_ptr(), linear.bias.data_ptr())
            assert not still, f"The {name} that comes back is the layer's own. Return a clone."
            assert mine.grad_fn is None, (
                f"The {name} that comes back still has a graph: autograd remembers that it was cut from the layer, and "
                f"would send gradients back there. Cut `linear.{name}.detach()`."
            )
    mistake = "takes the rank and the number of ranks of the world: take those of `group`"
    name_it(list(found), list(cut_linear(linear, kind, group)), {mistake: list(cut_linear(linear, kind))})
    return list(found)


@exercise(
    "Cut a linear layer",
    _cut,
    minutes=5,
    inputs=_layers,
    picture=lambda: _layers(2)[0],
    tolerance=0.0,
    promises=(Calls(0),),
    setup=to_cut,
    collect=owned_parts,
)
def cut_linear(linear, kind, group=None):
    """Return this rank's (weight, bias) of a layer that is cut by its outputs ("column") or its inputs ("row").

    `linear` is a `torch.nn.Linear`, equal on all ranks of the group. In a **column-parallel** layer (`kind="column"`),
    each rank computes some of the outputs, from all inputs: return the weight and the bias of these outputs. In a
    **row-parallel** layer (`kind="row"`), each rank has some of the inputs and computes, for every output, their part
    of the sum: return the weight of these inputs, and the bias whole, on every rank.

    The parts follow one another in the order of the ranks **of the group**. If they cannot be equal, the first ones are
    larger by one. Return tensors of their own: with memory of their own, so that `linear` can be freed, and without a
    graph (`detach`). `group=None` means all ranks.

    In the picture, a layer with two inputs and two outputs is on the left: the two rows of the weight, then the bias.
    This rank's parts of both are on the right.
    Hint: `linear.weight` has the shape [out, in]: one row for each output, one column for each input.
    Hint: `tensor.tensor_split(size, dim=…)[place]` is the part at this place; if parts cannot be equal, it makes the
    first ones larger by one. `dist.get_rank(group)` is the place in the group.
    Hint: What `tensor_split` returns is a view of the whole tensor: `.clone()` copies it. Cut without autograd:
    `linear.weight.detach()`.
    Afterwards: The names come from papers that write x A with A as [in, out]: there, a column of A is one output.
    PyTorch stores the transpose, so the column-parallel layer is cut along dimension 0 and the row-parallel one along
    dimension 1.
    """
    size, place = dist.get_world_size(group), dist.get_rank(group)
    weight, bias = linear.weight.detach(), linear.bias.detach()
    if kind == "row":
        return weight.tensor_split(size, dim=1)[place].clone(), bias.clone()
    return weight.tensor_split(size, dim=0)[place].clone(), bias.tensor_split(size)[place].clone()


OF_A_LAYER = ("gradient of x", "gradient of the weight", "gradient of the bias")


def called(since=0):
    """Return the names of the collectives that were called, those of backward passes among them."""
    return [does(op.op) for op in Log.of(recorder.records()).ops][since:]


def does(op):
    """Return what an operation does: torch calls the backward pass of a functional collective after the collective."""
    if op.endswith("_backward"):
        return "reduce_scatter" if "gather" in op else "all_gather" if "reduce_scatter" in op else op
    return op


def no_gather_of_gradients():
    """Raise an AssertionError where gradients were gathered."""
    found = [op for op in called() if "gather" in op]
    assert not found, (
        f"The backward pass calls {found[0]}. The ranks' gradients of `x` are not pieces to put side by side: each "
        "has the shape of `x`, and is one part of a sum. They have to be added up."
    )


def some_call():
    """Raise an AssertionError where nothing was communicated."""
    assert called(), (
        "The backward pass communicates nothing. This rank has the share of its own columns in the gradient of `x`; "
        "the other ranks' shares are missing."
    )


def no_sum_of_sums(since):
    """Raise an AssertionError where gradients were added up that are equal on all ranks."""
    found = [op for op in called(since) if "reduce" in op]
    name = found[0] if found else ""
    calls = "adds up what the ranks have" if name.startswith("ProcessGroup.") else f"calls {name}"
    assert not found, (
        f"The backward pass {calls}. All ranks go on with the same numbers to the same loss, so each one has "
        "the whole gradient already: added up, it would be too large by the number of ranks."
    )


def my_parts(*cuts):
    """Return this rank's parts of (tensor, dimension) pairs, with memory of their own."""
    return (t.tensor_split(world_size, dim)[rank].clone() for t, dim in cuts)


def _copied(xs: Sequence[Any], halves: bool = False) -> list[Any]:
    return [
        {"y": x, "gradient of x": sum(xs[r][1] for r in team), "gradient of what was added": slope}
        for (x, slope), (_, team) in zip(xs, teams(len(xs), halves))
    ]


def _summed(xs: Sequence[Any], halves: bool = False) -> list[Any]:
    return [
        {"y": sum(np.tanh(xs[r][0]) for r in team), "gradient of x": slope * (1 - np.tanh(x) ** 2)}
        for (x, slope), (_, team) in zip(xs, teams(len(xs), halves))
    ]


def _equal(part: int, n: int) -> list[Case]:
    """Make cases with two tensors a rank, of which the one at `part` is equal on all ranks that work together."""
    rng = np.random.default_rng([12, 3 + part, n])

    def case(shape: tuple[int, ...], about: str, dtype: str = "float32", **halves: bool) -> Case:
        def drawn() -> np.ndarray:
            return (rng.integers(-9, 10, shape) / 10 if len(shape) == 1 else rng.normal(size=shape)).astype(dtype)

        each = [[drawn(), drawn()] for _ in range(n)]
        for pair, (_, team) in zip(each, teams(n, **halves)):
            pair[part] = each[team[0]][part]
        return Case([tuple(pair) for pair in each], about, halves)

    return [
        case((3,), "three numbers"),
        case((2, 4, 5), "float64", "float64"),
        case((2, 2), "two groups of ranks", halves=True),
    ]


def _two_numbers(part: int) -> list[Any]:
    return [tuple(t[:2] for t in x) for x in _equal(part, 3)[0].xs]


def run_copy_in(copy_in, x, slope, halves=False):
    """Add a tensor to the result, and go back."""
    given = in_team(halves, x.requires_grad_())
    beside = torch.zeros_like(x).requires_grad_()
    other = 1 * beside  # what comes later in the forward pass is earlier in the backward pass
    y = copy_in(*given)
    assert not called(), f"The forward pass calls {called()[0]}. Every rank has `x` already."
    try:
        (y + other).backward(slope.clone())  # autograd hands one and the same tensor back to both
    except RuntimeError:
        no_gather_of_gradients()
        raise
    no_gather_of_gradients()
    some_call()
    assert torch.equal(beside.grad, slope), (
        "The function has changed `dy` itself, and autograd uses `dy` elsewhere as well: here as the gradient of a "
        "tensor that was added to the result. Add up in a copy of `dy`."
    )
    return {"y": y.detach(), "gradient of x": x.grad, "gradient of what was added": beside.grad}


@exercise(
    "f: before the columns",
    _copied,
    minutes=5,
    inputs=partial(_equal, 0),
    picture=partial(_two_numbers, 0),
    **ONE_ALL_REDUCE,
    harness=run_copy_in,
)
def copy_in(x, group=None):
    """Return x, with the backward pass that the columns need.

    Megatron calls this function **f**. It stands before the columns: forward, `x` as it is; backward, the sum of the
    gradients that all ranks' columns have for `x`. After it, this rank's columns are an ordinary layer,
    `torch.nn.functional.linear(copy_in(x), weight, bias)`. The forward pass is there. (A `Function` should not return
    its own argument, hence `view_as`.) Write the backward pass: it gets `dy`, the gradient of what `forward` has
    returned, and returns the gradient of `x`.

    Autograd may use `dy` elsewhere as well, so do not change it; with NCCL, a collective needs a contiguous tensor. The
    ranks are those of `group`; `None` means all. In the picture, `x` and `dy` are on the left. On the right are the
    result, the gradient of `x`, and the gradient of a tensor that was added to the result.
    Hint: Each rank's `dy` is what its own columns say of `x`. The whole gradient is the sum of all ranks' `dy`.
    Hint: `dx = dy.clone(memory_format=torch.contiguous_format)`, then `dist.all_reduce(dx, group=group)`.
    Afterwards: Forward a copy, backward a sum: what every rank was given on the way there is added up on the way back.
    An all-gather would be wrong here. It puts pieces together, and each rank's `dy` already has the shape of `x`.
    """

    class F(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, dy):
            """Return the gradient of x."""
            # yours
            dx = dy.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(dx, group=group)
            return dx
            # end

    return F.apply(x)


def run_sum_out(sum_out, x, slope, halves=False):
    """Sum what autograd keeps for its backward pass, and go back."""
    partial = torch.tanh(x.requires_grad_())
    before = partial.detach().clone()
    y = sum_out(*in_team(halves, partial))
    made = len(called())
    assert torch.equal(partial, before), (
        "Your sum is written over the numbers that were given to it, and autograd has kept these for the backward "
        "pass. Add up in a copy."
    )
    assert y.requires_grad, "No gradient flows back: autograd does not see through `dist.all_reduce`."
    y.backward(slope)
    no_sum_of_sums(made)
    return {"y": y.detach(), "gradient of x": x.grad}


@exercise(
    "g: after the rows",
    _summed,
    minutes=4,
    inputs=partial(_equal, 1),
    picture=partial(_two_numbers, 1),
    **ONE_ALL_REDUCE,
    harness=run_sum_out,
)
def sum_out(partial, group=None):
    """Return the sum of all ranks' partial; gradients flow back.

    After a row-parallel layer each rank holds `partial`, its part of a sum. Megatron's **g** adds them up: return the
    sum of all ranks' `partial`, on every rank, and do not change `partial`: autograd may have kept it. From there on
    all ranks compute the same thing, with the same numbers, down to the same loss. So what is the gradient of this
    rank's `partial`, if `dy` is the gradient of the sum?

    Sum over the ranks of `group`; `None` means all. In the picture, `partial` is the tanh of the first row on the left,
    and the second row is `dy`; the sum and the gradient of that first row are on the right.
    Hint: The sum is a + b + c + d. If this rank's part grows by a little, by how much does the sum grow?
    Hint: All ranks compute one and the same loss. There are no different losses that would have to be added up.
    Hint: Forward: clone `partial`, all-reduce the clone, return it. Backward: return `dy`.
    Afterwards: f and g mirror each other: f copies forward and sums backward, g sums forward and copies backward. The
    Megatron paper calls them conjugate. (`dist.all_reduce` on a clone is right here without a `Function`: autograd does
    not see it, and passes `dy` on unchanged.)
    """

    class G(torch.autograd.Function):
        @staticmethod
        def forward(ctx, partial):
            total = partial.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total, group=group)
            return total

        @staticmethod
        def backward(ctx, dy):
            return dy

    return G.apply(partial)
