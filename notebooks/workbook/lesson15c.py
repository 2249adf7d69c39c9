"""Exercises of lesson 15c, in their places: what a plan holds, who forms a group, what leaves a host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from labkit.grading.exercise import Case, exercise

if TYPE_CHECKING:
    pass


# -- what a GPU holds -------------------------------------------------------------------------------------------------


def expected_stage_memory(
    layers: int, width: int, tokens: int, data: int, tensor: int, pipe: int, micro: int, zero: int, sequence: bool
) -> dict[str, float]:
    """What the exercise of this name asks for: `workbook.tools.planning` without norms, embeddings and output."""
    mine = 12 * width**2 * layers / pipe / tensor
    shards = [data if zero >= stage else 1 for stage in (3, 2, 1)]
    of_token = 34 / tensor if sequence else 10 + 24 / tensor
    return {
        "weights": 2 * mine / shards[0],
        "gradients": 2 * mine / shards[1],
        "optimizer": 12 * mine / shards[2],
        "activations": min(pipe, micro) * tokens / data / micro * width * of_token * layers / pipe,
    }


def _memory(xs: Sequence[Any], **numbers: Any) -> list[Any]:
    return [expected_stage_memory(**numbers)] * len(xs)


def _plans(n: int) -> list[Case]:
    names = ("layers", "width", "tokens", "data", "tensor", "pipe", "micro", "zero", "sequence")

    def case(about: str, *numbers: Any) -> Case:
        return Case([()] * n, about, dict(zip(names, numbers, strict=True)))

    large, huge = (80, 8192, 256 * 8192), (128, 25_600, 1024 * 2048)
    return [
        case("data 4", 4, 10, 4000, 4, 1, 1, 1, 0, False),
        case("tensor 2, pipe 2, one micro-batch", 4, 10, 4000, 1, 2, 2, 1, 0, False),
        case("66B: data 4, tensor 8, pipe 2, ZeRO-1", *large, 4, 8, 2, 64, 1, False),
        case("66B: the same with sequence parallelism", *large, 4, 8, 2, 64, 1, True),
        case("66B: data 8, tensor 8, ZeRO-2", *large, 8, 8, 1, 32, 2, True),
        case("66B: data 4, tensor 2, pipe 8, ZeRO-3", *large, 4, 2, 8, 16, 3, False),
        case("1T: data 16, tensor 8, pipe 8, four micro-batches", *huge, 16, 8, 8, 4, 1, True),
    ]


MEMORY_SLIPS = {
    "keeps one micro-batch, as without a pipeline": ("min(pipe, micro)", "1"),
    "keeps all micro-batches, as GPipe does": ("min(pipe, micro)", "micro"),
    "counts micro-batches that do not exist": ("min(pipe, micro)", "pipe"),
    "cuts all activations by tensor": ("10 + 24 / tensor", "34 / tensor"),
    "lets sequence parallelism change nothing": ("34 / tensor if sequence else 10", "10"),
    "shards over all GPUs": ("12 * mine / (data", "12 * mine / (data * tensor * pipe"),
    "shards gradients in stage 1": ("zero >= 2", "zero >= 1"),
    "shards only in its own stage": ("zero >= 1", "zero == 1"),
    "forgets that the copies share the batch": ("tokens / data / micro", "tokens / micro"),
    "does not cut the weights by pipe": ("/ (tensor * pipe)", "/ tensor"),
    "does not cut the layers' activations by pipe": ("layers / pipe  # of", "layers  # of"),
}


@exercise(
    "What a GPU of the first stage holds",
    _memory,
    difficulty=2,
    inputs=_plans,
    ranks=(2,),
    tolerance=1e-6,
    forbids=("collectives",),
    slips=MEMORY_SLIPS,
)
def stage_memory(layers, width, tokens, data, tensor, pipe, micro, zero, sequence):
    """Return the bytes that a GPU of the first stage holds, by kind.

    A transformer has `layers` layers with 12 times `width` squared weights each; leave everything else out. It is cut
    by `tensor` and `pipe`, and there are `data` copies. A batch of `tokens` tokens is shared by the copies, and each
    copy cuts its share into `micro` equal micro-batches.

    A weight takes 2 bytes, its gradient 2, and Adam's states 12. ZeRO shards over the `data` copies: with `zero` 1 the
    states, with 2 the gradients too, with 3 also the weights.

    For the backward pass a layer keeps 34 bytes for each token and each number of the width. Tensor parallelism cuts 24
    of these, and with `sequence` parallelism all 34 are cut. The pipeline runs 1F1B: its first stage keeps the
    activations of at most `pipe` micro-batches at once.

    Return a dict with the bytes that a GPU of the **first** stage holds: `"weights"`, `"gradients"`, `"optimizer"` and
    `"activations"`. Communicate nothing.
    Hint: First the weights of this GPU: those of its layers, `layers / pipe`, cut by `tensor`. The states follow.
    Hint: One micro-batch has `tokens / data / micro` tokens. What does this GPU keep of it? Then: how many are alive?
    Hint: `10 + 24 / tensor` bytes for each token and number, or `34 / tensor` with sequence parallelism, in each of
    `layers / pipe` layers, for `min(pipe, micro)` micro-batches.
    Afterwards: The figures are those of Korthikanti and others (10 + 24/t, and 34/t) and of the ZeRO paper (2, 2 and
    12). `pipe` has vanished from the activations, as long as there are at least as many micro-batches as stages.
    """
    mine = 12 * width**2 * layers / (tensor * pipe)
    per_token = 34 / tensor if sequence else 10 + 24 / tensor
    in_one = tokens / data / micro * width * per_token * layers / pipe  # of one micro-batch
    alive = min(pipe, micro)
    return {
        "weights": 2 * mine / (data if zero >= 3 else 1),
        "gradients": 2 * mine / (data if zero >= 2 else 1),
        "optimizer": 12 * mine / (data if zero >= 1 else 1),
        "activations": alive * in_one,
    }


# -- who forms a group ------------------------------------------------------------------------------------------------


def expected_mates(order: Sequence[str], sizes: dict[str, int], rank: int, along: str) -> list[int]:
    """What the exercise of this name asks for."""
    stride = 1
    for name in order[order.index(along) + 1 :]:
        stride *= sizes[name]
    mine = rank // stride % sizes[along]
    return [rank + (place - mine) * stride for place in range(sizes[along])]


def _mates(xs: Sequence[Any], order: Sequence[str], sizes: dict[str, int], rank: int, along: str) -> list[Any]:
    return [expected_mates(order, sizes, rank, along)] * len(xs)


def _orders(n: int) -> list[Case]:
    usual, turned = ["pipe", "data", "tensor"], ["tensor", "data", "pipe"]

    def case(order: list[str], pipe: int, data: int, tensor: int, rank: int, along: str) -> Case:
        sizes = {"pipe": pipe, "data": data, "tensor": tensor}
        told = " x ".join(f"{name} {sizes[name]}" for name in order)
        options = {"order": order, "sizes": sizes, "rank": rank, "along": along}
        return Case([()] * n, f"{told}, rank {rank}, along {along}", options)

    return [
        case(usual, 2, 2, 2, 5, "tensor"),
        case(usual, 2, 2, 2, 5, "data"),
        case(usual, 2, 2, 2, 5, "pipe"),
        case(turned, 2, 2, 2, 5, "tensor"),
        case(usual, 2, 4, 8, 43, "data"),
        case(turned, 2, 4, 8, 43, "data"),
        case(["data", "tensor", "pipe"], 4, 2, 3, 17, "tensor"),
        case(usual, 16, 8, 8, 1000, "pipe"),
        case(usual, 1, 4, 1, 2, "tensor"),
    ]


MATES_SLIPS = {
    "takes the first dimension for the neighbours": ("reversed(order)", "order"),
    "always takes the usual order": ("reversed(order)", '("tensor", "data", "pipe")'),
    "begins at the rank itself": ("first = rank - place * step", "first = rank"),
    "takes neighbours for every group": ("step *= sizes[name]", "step = 1"),
    "begins every group in the first rank": ("first = rank - place * step", "first = rank % step"),
    "takes all ranks in the same place along the dimension": (
        "return [first + i * step for i in range(sizes[along])]",
        "import math; return [r for r in range(math.prod(sizes.values())) if r // step % sizes[along] == place]",
    ),
    "counts places up to the end of the world": ("rank // step % sizes[along]", "rank // step"),
}


@exercise(
    "Who is in my group?",
    _mates,
    minutes=8,
    difficulty=2,
    inputs=_orders,
    ranks=(2,),
    forbids=("collectives",),
    slips=MATES_SLIPS,
)
def mates(order, sizes, rank, along):
    """Return the sorted ranks of this rank's group along a dimension.

    A mesh has `sizes` such as `{"pipe": 2, "data": 2, "tensor": 2}`: how many ranks lie along each dimension. `order`
    lists the names of the dimensions. The ranks 0, 1, 2 … fill the mesh so that neighbours differ along the **last**
    dimension of `order`; when that has run through, the one before it moves on by one place, and so on, like the digits
    of a number.

    Return a sorted list of the ranks in the group of `rank` along the dimension `along`: those that differ from it in
    their place along this dimension and in no other, `rank` itself among them. It has to work for meshes that are far
    larger than this lab, so it is arithmetic: communicate nothing.
    Hint: How far apart are two neighbours of the group in the numbers of the ranks? For the last dimension it is 1.
    Hint: The distance is the product of the sizes of all dimensions that come **after** `along` in `order`.
    Hint: The place of the rank along the dimension is `rank // step % sizes[along]`. Go back that many steps: there the
    group begins.
    Afterwards: `init_device_mesh` and Megatron-LM do this. The order decides what is near: with 8 ranks in a host, a
    group whose step is 8 or more has every member in a host of its own.
    """
    step = 1  # from a rank of the group to the next
    for name in reversed(order):
        if name == along:
            break
        step *= sizes[name]
    place = rank // step % sizes[along]
    first = rank - place * step
    return [first + i * step for i in range(sizes[along])]


# -- what leaves a host -----------------------------------------------------------------------------------------------


def expected_leaves_host(groups: Sequence[Sequence[int]], size: float, per_host: int) -> float:
    """What the exercise of this name asks for."""
    out: dict[int, float] = {}
    for ranks in groups:
        n = len(ranks)
        for i, rank in enumerate(ranks):
            away = rank // per_host != ranks[(i + 1) % n] // per_host
            out[rank // per_host] = out.get(rank // per_host, 0.0) + away * 2 * size * (n - 1) / n
    return max(out.values())


def _leaving(xs: Sequence[Any], **numbers: Any) -> list[Any]:
    return [expected_leaves_host(**numbers)] * len(xs)


def _groups(n: int) -> list[Case]:
    def case(about: str, groups: list[list[int]], size: float, per_host: int) -> Case:
        return Case([()] * n, about, {"groups": groups, "size": float(size), "per_host": per_host})

    near, far = [[0, 1], [2, 3]], [[0, 2], [1, 3]]
    rows = [[8 * h + i for h in range(4)] for i in range(8)]
    return [
        case("two groups of neighbours", near, 1000, 2),
        case("two groups across", far, 1000, 2),
        case("one group of four, two hosts", [[0, 1, 2, 3]], 1000, 2),
        case("the same ring in another order", [[0, 2, 1, 3]], 1000, 2),
        case("eight groups across four hosts of eight", rows, 12e9, 8),
        case("16 GPUs in one ring, two hosts", [list(range(16))], 14e9, 8),
        case("groups of three in hosts of four", [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]], 900, 4),
        case("one host for all", [[0, 1, 2, 3]], 1000, 8),
    ]


LEAVES_SLIPS = {
    "does not close the ring": ("ranks[1:] + ranks[:1]", "ranks[1:]"),
    "counts every message": ("following // per_host != host", "following != rank"),
    "adds up all hosts": ("return max(out.values(), default=0.0)", "return float(sum(out.values()))"),
    "sends the whole buffer twice": ("2 * size * (len(ranks) - 1) / len(ranks)", "2 * size"),
    "sends once, as a reduce-scatter does": (
        "2 * size * (len(ranks) - 1) / len(ranks)",
        "size * (len(ranks) - 1) / len(ranks)",
    ),
    "takes the number of all ranks for that of the group": (
        "2 * size * (len(ranks) - 1) / len(ranks)",
        "2 * size * (world_size - 1) / world_size",
    ),
    "takes `rank % per_host` for the host": ("host = rank // per_host", "host = rank % per_host"),
    "forgets the groups before the last one": ("out.get(host, 0) + each", "each"),
    "counts what comes in as well": (
        "out[host] = out.get(host, 0) + each",
        "out[host] = out.get(host, 0) + each; out[following // per_host] = out.get(following // per_host, 0) + each",
    ),
}


@exercise(
    "What leaves a host",
    _leaving,
    minutes=8,
    difficulty=2,
    inputs=_groups,
    ranks=(2,),
    tolerance=1e-6,
    forbids=("collectives",),
    slips=LEAVES_SLIPS,
)
def leaves_host(groups, size, per_host):
    """Return the bytes that leave the busiest host in a ring all-reduce of each group.

    There are `per_host` ranks in each host: rank r is in host `r // per_host`. Each of the `groups`, a list of lists of
    ranks, all-reduces `size` bytes in a **ring**: every rank sends 2 (n - 1) / n times `size` bytes to the next one in
    its list, and the last one sends to the first; n is the length of its list. All groups do this once.

    Return the number of bytes that leave the **busiest** host, the one that sends the most to other hosts: what comes
    in is not counted. Communicate nothing.
    Hint: Go round each ring: a rank, and the one that follows it. `zip(ranks, ranks[1:] + ranks[:1])` has the pairs.
    Hint: Only a pair in two different hosts counts, for the host that sends. Keep a dict from host to bytes.
    Hint: In the end take the largest value, and 0 where there is none.
    Afterwards: A ring leaves a host as many times as its order makes it, and at least once if it has members elsewhere.
    NCCL looks for rings that leave each host once, and uses several at a time, so that all NICs are busy.
    """
    out = {}
    for ranks in groups:
        each = 2 * size * (len(ranks) - 1) / len(ranks)
        for rank, following in zip(ranks, ranks[1:] + ranks[:1]):
            host = rank // per_host
            if following // per_host != host:
                out[host] = out.get(host, 0) + each
    return max(out.values(), default=0.0)
