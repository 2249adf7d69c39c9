"""What a rank holds and sends in data-parallel training, replicated or sharded: ZeRO's stages as arithmetic.

Ψ parameters on N ranks. A training step keeps weights, gradients and an optimizer's states; stage 1 shards the
states, stage 2 the gradients too, stage 3 also the weights. A shard is an N-th; nothing else that takes memory counts
(activations, buffers, what an allocator wastes).

Source: Rajbhandari and others, *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*, 2020 (arXiv
1910.02054), sections 3, 5 and 7. Pure arithmetic: neither torch nor a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.floor.errors import LabError

KINDS = ("weights", "gradients", "optimizer")
STAGES = ("replicated", "ZeRO-1", "ZeRO-2", "ZeRO-3")  # its place is its number


@dataclass(frozen=True)
class Recipe:
    """How many bytes a parameter takes: as a weight, as a gradient, and in the optimizer's states."""

    name: str
    weights: int
    gradients: int
    optimizer: int


FLOAT32 = Recipe("float32, Adam", 4, 4, 8)  # two moments
MIXED = Recipe("mixed precision, Adam", 2, 2, 12)  # 16-bit; the states are a float32 copy of the weights, two moments


def held(parameters: float, ranks: int, stage: int = 0, recipe: Recipe = FLOAT32) -> dict[str, float]:
    """Return the bytes that each rank holds of each kind, when the shards lie on `ranks` ranks.

    >>> held(1000, 4, stage=1)
    {'weights': 4000.0, 'gradients': 4000.0, 'optimizer': 2000.0}
    >>> round(sum(held(7.5e9, 64, 3, MIXED).values()) / 1e9, 1)  # the paper's figure 1
    1.9
    """
    _check(parameters, ranks, stage)
    sharded = {"optimizer": stage >= 1, "gradients": stage >= 2, "weights": stage >= 3}
    return {kind: getattr(recipe, kind) * parameters / (ranks if sharded[kind] else 1) for kind in KINDS}


def all_reduced(size: float, ranks: int) -> float:
    """Return the bytes that each rank sends in an all-reduce of so many bytes that sends the least.

    >>> all_reduced(1000, 4)
    1500.0
    """
    return 2 * size * (ranks - 1) / ranks


def sent(
    parameters: float,
    ranks: int,
    stage: int = 0,
    recipe: Recipe = FLOAT32,
    replicas: int = 1,
    reshards: bool = True,
) -> float:
    """Return the bytes that each rank sends in a training step, with collectives that send the least.

    Replicated: an all-reduce of the gradients. Stages 1 and 2: a reduce-scatter of the gradients and an all-gather of
    the weights, which are as many. Stage 3: the reduce-scatter and two all-gathers, one for the forward and one for the
    backward pass; one only where the weights stay after the forward pass (`reshards=False`).

    The shards lie on `ranks` ranks. With `replicas` such groups (HSDP) an all-reduce of the gradients' shard follows.

    >>> sent(1000, 4), sent(1000, 4, stage=2), sent(1000, 4, stage=3)
    (6000.0, 6000.0, 9000.0)
    """
    _check(parameters, ranks, stage)
    gradients, weights = recipe.gradients * parameters, recipe.weights * parameters
    if stage == 0:
        return all_reduced(gradients, ranks * replicas)
    gathers = 2 if stage == 3 and reshards else 1
    return (ranks - 1) / ranks * (gradients + gathers * weights) + all_reduced(gradients / ranks, replicas)


def fewest(parameters: float, room: float, stage: int, recipe: Recipe = MIXED) -> int | None:
    """Return the smallest number of ranks with which a rank's share fits into `room` bytes; None where none does.

    >>> fewest(1e12, 80e9, stage=3), fewest(1e12, 80e9, stage=2)
    (200, None)
    """
    _check(parameters, 1, stage)
    whole = held(parameters, 1, stage, recipe)
    stays = sum(value for kind, value in whole.items() if held(1, 2, stage, recipe)[kind] == getattr(recipe, kind))
    cut = sum(whole.values()) - stays
    if stays + cut <= room:
        return 1
    return None if stays >= room or not cut else int(-(-cut // (room - stays)))


def _check(parameters: float, ranks: int, stage: int) -> None:
    if stage not in range(len(STAGES)):
        raise LabError(f"There is no stage {stage!r}. Choose 0 (nothing sharded), 1, 2 or 3.")
    if not parameters > 0 or ranks < 1:
        raise LabError(f"{parameters!r} parameters on {ranks!r} ranks cannot be. Give numbers above 0.")
