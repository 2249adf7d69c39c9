"""Exercises at the end of the capstone, which look at the mesh as a whole: the gradient's norm, and the best mesh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import NOTHING, Case, Least, exercise
from labkit.grading.promises import Calls
from workbook.capstone import mesh_price, meshed, pairs

if TYPE_CHECKING:
    from labkit.rank.cell_names import device, dist, torch


def _norms(xs: Sequence[Any], shape: tuple[int, int]) -> list[Any]:
    counted = [g for cut, _ in xs[: shape[1]] for g in cut] + xs[0][1]
    return [np.float32([np.sqrt(sum((g.astype("float64") ** 2).sum() for g in counted))])] * len(xs)


def _gradients(n: int) -> list[Case]:
    rng = np.random.default_rng([16, 4, n])

    def drawn(shape: tuple[int, int], cut: tuple[int, ...], whole: tuple[int, ...], about: str = "") -> Case:
        parts = [[rng.normal(size=size).astype("float32") for size in cut] for _ in range(shape[1])]
        common = [rng.normal(size=size).astype("float32") for size in whole]
        told = f"data {shape[0]}, team {shape[1]}{about}"
        return Case([(parts[r % shape[1]], common) for r in range(n)], told, {"shape": shape})

    first, *others = pairs(n)
    readable = [([np.float32([3 * (r % first[1] == 0)])], [np.float32([4])]) for r in range(n)]
    return [
        Case(readable, f"data {first[0]}, team {first[1]}", {"shape": first}),
        *(drawn(shape, (3, 2), (4,)) for shape in others),
        drawn(first, (7,), (), ", nothing that is whole"),
    ]


@exercise(
    "The norm of a gradient on a mesh",
    _norms,
    minutes=8,
    difficulty=2,
    inputs=_gradients,
    tolerance=1e-4,
    promises=(Calls(1),),
    least=Least(rounds=lambda n: 1),
    setup=lambda cut, whole, shape: (cut, whole, *meshed(shape)),
    collect=lambda norm, *_: torch.as_tensor(norm, dtype=torch.float32).reshape(1),
)
def mesh_norm(cut, whole, data, team):
    """Return the norm of the model's gradient, of which this rank holds a part.

    The gradients have been averaged over `data`, so all copies have the same. Each rank of a team holds its own part of
    the gradients in `cut`, a list of tensors. The gradients in `whole`, those of norms and of biases that are not cut,
    are the same on all ranks of the team. Return the norm of the model's gradient on every rank: the root of the sum of
    all squares, in which every parameter counts **once**. Use **one** collective.

    In the picture, three ranks are one copy. Each has a cut gradient of one number, and a whole one.
    Hint: Squares add up; norms do not. Which squares are on one rank of the team alone, and which on all of them?
    Hint: Only the squares of `cut` have to be added up over the team. The copies have nothing to add.
    Hint: All-reduce the squares of `cut` over `team`, and add those of `whole` afterwards.
    Afterwards: Megatron-LM marks parameters that every rank of a team has, and counts them on one of its ranks alone.
    If you forget this, gradients are clipped a little too early, the more so the larger the team is, and there is no
    error.
    """
    squares = torch.zeros((), device=device)
    for gradient in cut:
        squares += (gradient**2).sum()
    dist.all_reduce(squares, group=team)
    for gradient in whole:
        squares += (gradient**2).sum()
    return squares.sqrt().item()


FLOPS = 400e12  # what an H100 computes in a second


def _clusters(n: int) -> list[Case]:
    def case(about: str, gpus: int, per_node: int, room: float, parameters: float, rows: int, **model: int) -> Case:
        tokens = rows * 2048
        computing = 6 * parameters * tokens / gpus / FLOPS
        numbers = {"parameters": parameters, "rows": rows, "tokens": tokens, "seconds": computing, "room": room}
        return Case([()] * n, about, {"gpus": gpus, "per_node": per_node, **model, **numbers})

    large = {"layers": 32, "width": 4096}
    cases = [
        case("a small model", 8, 8, 80e9, 1e8, 32, layers=12, width=768),
        case("7 billion parameters on 64 GPUs", 64, 8, 80e9, 7e9, 64, **large),
        case("twice the batch", 64, 8, 80e9, 7e9, 128, **large),
        case("less memory", 64, 8, 30e9, 7e9, 64, **large),
        case("nodes of two", 64, 2, 40e9, 7e9, 64, **large),
        case("no room at all", 8, 8, 1e9, 7e9, 64, **large),
    ]
    return cases if n == 4 else cases[1:4]


def with_price(gpus, per_node, layers, width, rows, parameters, tokens, seconds, room):
    """Make the arguments, of which `price` says what a mesh of this model holds and sends."""

    def price(data, tensor, pipe):
        assert data * tensor * pipe == gpus, f"{data} x {tensor} x {pipe} are not all {gpus} GPUs."
        return mesh_price(parameters, layers, width, tokens, data, tensor, pipe)

    return price, gpus, per_node, layers, rows, seconds, room


@exercise(
    "The best mesh for a cluster",
    lambda xs, **case: [best_mesh(*with_price(**case)) or NOTHING] * len(xs),
    minutes=12,
    difficulty=3,
    inputs=_clusters,
    forbids=("collectives",),
    ranks=(2, 4),
    setup=with_price,
)
def best_mesh(price, gpus, per_node, layers, rows, seconds, room):
    """Return [data, tensor, pipe] of the mesh that fits and loses the least time in a training step, or None.

    A cluster has `gpus` GPUs in nodes of `per_node`. `price(data, tensor, pipe)` returns what your `mesh_price` returns
    for such a mesh of the given model: bytes, under `"memory"`, `"data"`, `"tensor"` and `"pipe"`. Find the mesh of
    **all** GPUs that loses the least time in a training step.

    Computing takes `seconds` on every mesh. What is lost comes on top. Tensor parallelism stays within a node and sends
    370e9 bytes a second; data and pipeline parallelism cross nodes and send 50e9 bytes a second. Add the times up, as
    if nothing were hidden. A pipeline also waits: the batch has `rows` rows, every micro-batch is one row of its copy's
    share, and (pipe - 1) / micro-batches of `seconds` are idle.

    A mesh is possible if its memory is at most `room`, if `tensor` is at most `per_node`, and if `pipe` divides
    `layers`. Return `[data, tensor, pipe]`, or None if no mesh is possible. Communicate nothing.

    The picture also has the `width`, `parameters` and `tokens` that are built into its `price`.
    Hint: Go through all `tensor` up to `per_node` and all `pipe` up to `layers`, and skip what does not divide.
    Hint: `data` is what is left: `gpus // (tensor * pipe)`, where that has no remainder. A copy has `rows / data`
    micro-batches.
    Hint: The time lost is `seconds * (pipe - 1) / (rows / data) + cost["tensor"] / 370e9 + (cost["data"] +
    cost["pipe"]) / 50e9`. Keep the least one that fits.
    Afterwards: This is the core of what planners do. Real ones add what this one leaves out: what overlaps, latency,
    sequence parallelism, ZeRO, GPUs that compute small pieces less well. Their answer is a short list of meshes, which
    are then measured.
    """
    best, least = None, float("inf")
    for tensor in range(1, per_node + 1):
        for pipe in range(1, layers + 1):
            if gpus % (tensor * pipe) == 0 and layers % pipe == 0:
                data = gpus // (tensor * pipe)
                cost = price(data, tensor, pipe)
                idle = seconds * (pipe - 1) / (rows / data)
                lost = idle + cost["tensor"] / 370e9 + (cost["data"] + cost["pipe"]) / 50e9
                if cost["memory"] <= room and lost < least:
                    best, least = [data, tensor, pipe], lost
    return best
