"""Exercises of lesson 13f: read a checkpoint for data and for tensor parallelism."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

from labkit.grading.exercise import Case, Least, exercise
from labkit.grading.prediction import ask
from workbook.harnesses import in_a_folder, my_group

if TYPE_CHECKING:
    from labkit.rank.cell_names import device, dist, rank, torch


by_reading = partial(exercise, tolerance=0, forbids=("collectives",))  # a rank reads what it needs, and asks no other


def filled(shape: Sequence[int], rng: np.random.Generator | None = None, dtype: str = "float32") -> np.ndarray:
    """Fill an array with draws, or, without a generator, with 0, 1, 2 and so on."""
    return (np.arange(math.prod(shape)).reshape(shape) if rng is None else rng.normal(size=shape)).astype(dtype)


def _models(n: int) -> list[Case]:
    def case(about: str, seed: int, shapes: Sequence[tuple[int, ...]], dtype: str = "float32") -> Case:
        rng = np.random.default_rng([13, seed, n])

        def drawn() -> tuple[Any, Any]:
            params = [rng.integers(-50, 51, shape).astype(dtype) for shape in shapes]
            return params, [rng.normal(size=3).astype(dtype), np.array(int(rng.integers(1, 99)))]

        return Case([drawn() for _ in range(n)], about)

    first = [([np.float32([1, 2]) + 10 * r], [np.float32([3]) + 10 * r, np.array(4 + 10 * r)]) for r in range(n)]
    return [
        Case(first, "one weight, two buffers"),
        case("three weights", 1, ((2, 3), (3,), (1,))),
        case("float64", 2, ((4, 4), (4,)), "float64"),
        case("a layer of 40 x 30", 3, ((40, 30), (40,))),
    ]


@in_a_folder
def run_load_for_all(load_for_all, params, buffers, folder):
    """Save a model, see which rank reads the file, and collect what the ranks' models hold.

    The file names GPU 0 as the place of its tensors, as a file that was saved on a GPU does.
    """

    def built(change):
        model = torch.nn.Module()
        model.weights = torch.nn.ParameterList([torch.nn.Parameter(change(p)) for p in params])
        for i, b in enumerate(buffers):
            model.register_buffer(f"buffer{i}", change(b))
        return model

    path, load = os.path.join(folder, "model.pt"), torch.load
    if rank == 0:
        with patch.object(torch.serialization, "location_tag", lambda storage: "cuda:0"):
            torch.save(built(lambda t: t.clone()).state_dict(), path)

    faults = []

    def watched(file, *args, **kwargs):
        if str(getattr(file, "name", file)) != path:  # unpickling a tensor that came in a message calls torch.load, too
            return load(file, *args, **kwargs)
        if kwargs.get("weights_only") is False:
            faults.append("it loads with weights_only=False: whatever code somebody has put into the file runs")
        if rank == 0:
            return load(file, *args, **kwargs)
        faults.append(f"rank {rank} reads the file, and rank 0 alone may: with n readers it is read n times")
        return model.state_dict()

    model = built(lambda t: -t - 1)
    with patch.object(torch, "load", watched):
        load_for_all(model, path)
    assert not faults, faults[0]
    return {"parameters": [p.detach() for p in model.parameters()], "buffers": list(model.buffers())}


def broken_load_for_all(model, path):
    if rank == 0:
        model.load_state_dict(torch.load(path))
    for param in model.parameters():
        dist.broadcast(param.data, src=0)


@exercise(
    "Repair: rank 0 reads, everybody receives",
    lambda xs: [{"parameters": [*xs[0][0]], "buffers": [*xs[0][1]]} for _ in xs],
    minutes=6,
    inputs=_models,
    least=Least(sent=lambda n, S: S, rounds=lambda n: 1),
    harness=run_load_for_all,
)
def load_for_all(model, path):
    """Let rank 0 read the checkpoint, and leave what it holds in every rank's model.

    The file `path` holds the state dict of a whole model, saved on some machine's GPU 0. **Rank 0 alone** may read it.
    Afterwards every rank's `model` must hold all of it, on the rank's own `device`; all ranks have built the same
    architecture. Change `model` in place and return nothing.

    The specimen has two faults, and you see one after the other. In the picture: a weight, then two buffers, the second
    one of integers.
    Hint: A state dict has more than parameters. What does the model have that is not a parameter, and is never trained?
    Hint: Every tensor in the file remembers the device that it was saved from. `torch.load` puts it there again, unless
    `map_location` says otherwise.
    Hint: Go through `[*model.parameters(), *model.buffers()]` and broadcast each `tensor.detach()`. All ranks call it,
    in the same order.
    Afterwards: One reader, however many ranks there are. On several hosts, `map_location` is the **local** rank's GPU:
    `cuda:9` does not exist on a host of eight. Here `device` already is that.
    """
    if rank == 0:
        model.load_state_dict(torch.load(path, map_location=device, weights_only=True))
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)


@exercise(
    "Which part is mine?",
    lambda xs: [[*part_of(*x)] for x in xs],
    minutes=4,
    inputs=lambda n: [
        Case([(count, parts, r) for r in range(n)], about)
        for about, count, parts in (
            (f"{2 * n} rows for {n}", 2 * n, n),
            (f"6 layers for {n + 2}, of which you see the first {n}", 6, n + 2),
            (f"{2 * n + 1} rows for {n}", 2 * n + 1, n),
            (f"{3 * n - 1} layers for {n}", 3 * n - 1, n),
            (f"fewer rows than parts: {n - 1} for {n}", n - 1, n),
            ("no rows at all", 0, n),
            ("1,003 columns for a group of 5", 1003, 5),
        )
    ],
    forbids=("collectives",),
)
def part_of(count, n, place):
    """Return (start, end) of the part at this place among n, which differ by one at most.

    `count` rows, columns or layers are dealt out to `n` ranks. Return `(start, end)`, the part of the rank at this
    `place` (0 to n − 1): `start` belongs to it and `end` does not. The parts follow one another in the order of the
    places and cover everything **once**; their lengths differ by one at most, and the **first** places get the longer
    parts. A part may be empty. Communicate nothing: `n` is the size of some group, not of the world.
    Hint: `divmod(count, n)` gives the length of the short parts, and how many parts are longer by one.
    Hint: Before part `place` there are `place` parts. How many of them are longer?
    Hint: `start` is `place` times the short length, plus `min(place, longer)`.
    Afterwards: `torch.tensor_split` cuts like this. `torch.chunk` rounds up instead, and six layers for four ranks
    become three chunks of two; DTensor and `fully_shard` cut like that, and give the last rank an empty part. Either is
    right, as long as whoever saves and whoever loads agree.
    """
    short, longer = divmod(count, n)
    start = place * short + min(place, longer)
    return start, start + short + (place < longer)


def _sliced(xs: Sequence[Any], plan: Mapping[str, tuple[int, int]], teams: Sequence[Sequence[int]]) -> list[Any]:
    found = []
    for r, (tensors,) in enumerate(xs):
        team = next(t for t in teams if r in t)
        mine = {}
        for name, whole in tensors.items():
            if name not in plan:
                mine[name] = whole
                continue
            dim, stacked = plan[name]
            start, end = part_of(whole.shape[dim] // stacked, len(team), team.index(r))
            parts = [part.take(range(start, end), dim) for part in np.split(whole, stacked, dim)]
            mine[name] = np.concatenate(parts, dim)
        found.append(mine)
    return found


def _checkpoints(n: int) -> list[Case]:
    everybody = [list(range(n))]
    apart = {2: [[0], [1]], 3: [[0], [1, 2]], 4: [[0, 2], [1, 3]]}[n]

    def case(about: str, seed: int, shapes: Mapping[str, tuple[int, ...]], teams: Any, **plan: Any) -> Case:
        rng = np.random.default_rng([13, seed, n]) if seed else None
        tensors = {name: filled(shape, rng) for name, shape in shapes.items()}
        return Case([(tensors,)] * n, about, {"plan": plan, "teams": teams})

    small = {"up": (n, 1), "down": (2, n)}  # so that the card shows every number
    mlp = {"up": (2 * n, 3), "down": (3, 2 * n)}
    odd = {"up": (2 * n + 1, 2), "bias": (2 * n + 1,), "down": (2, 2 * n + 1), "prior": (4,)}
    qkv = {"qkv": (3 * 2 * n, 2), "gates": (2, 2 * (n + 1)), "norm": (3,)}
    return [
        case("rows of one, columns of the other", 0, small, everybody, up=(0, 1), down=(1, 1)),
        case("a remainder, and a tensor that is not cut", 1, odd, everybody, up=(0, 1), bias=(0, 1), down=(1, 1)),
        case("stacked matrices", 2, qkv, everybody, qkv=(0, 3), gates=(1, 2)),
        case(f"groups {' and '.join(map(str, apart))}", 3, {**mlp, **qkv}, apart, up=(0, 1), down=(1, 1), qkv=(0, 3)),
    ]


def run_load_slices(load_slices, tensors, plan, teams):
    """Give a `read` that counts, and collect the slices: no more may be read than is kept."""
    group, got = my_group(teams), []

    def read(name, dim=0, start=0, end=None):
        whole = tensors[name]
        end = whole.shape[dim] if end is None else end
        assert 0 <= start <= end <= whole.shape[dim], (
            f"rank {rank} reads {start} to {end} of {name!r} along dimension {dim}, which has {whole.shape[dim]}"
        )
        part = whole.narrow(dim, start, end - start).clone()
        got.append(part.numel())
        return part

    shapes = {name: tuple(t.shape) for name, t in tensors.items()}
    mine = load_slices(read, shapes, plan, part_of, group)
    if isinstance(mine, dict):
        kept = sum(t.numel() for t in mine.values())
        assert sum(got) <= kept, f"rank {rank} reads {sum(got)} numbers, and its part has {kept}"
    return mine


@by_reading(
    "A tensor-parallel rank reads its slices",
    _sliced,
    minutes=14,
    difficulty=3,
    inputs=_checkpoints,
    harness=run_load_slices,
)
def load_slices(read, shapes, plan, part_of, group):
    """Return this rank's part of every tensor of a checkpoint.

    `read(name, dim, start, end)` reads a part of a tensor from a checkpoint, and `read(name)` all of it; `shapes` has
    every tensor's shape. Return a dict with this rank's part of each. `plan[name]` is `(dim, stacked)`: cut along
    dimension `dim`, by `part_of(count, n, place)`. If `stacked` is 2 or more, this dimension holds that many equal
    matrices, one after the other (as queries, keys and values do): cut **each** of them, and put the parts together
    again. Every rank needs all of a tensor that is not in the plan.

    The ranks that share a copy of the model form `group`; other groups have copies of their own. Read only what you
    return, and communicate nothing. In the picture, `up` is cut into rows, and `down`, which has two rows, into
    columns.
    Hint: Who am I in `group`, and how many are we? `dist.get_rank(group)` and `dist.get_world_size(group)`.
    Hint: One matrix of the stack has `shape[dim] // stacked` rows or columns. `part_of` says which of them are yours,
    in each of the matrices.
    Hint: Matrix i of the stack begins at `i * size`. Read from `i * size + start` to `i * size + end` along `dim`, and
    `torch.cat(parts, dim)` puts the parts together.
    Afterwards: `nn.Linear` keeps its weight as [out, in]. So a column-parallel layer, which splits what comes **out**,
    cuts dimension 0 and its bias, and a row-parallel one cuts dimension 1 and keeps its bias whole. Code that writes
    `W1[:, start:end]` means matrices of the other orientation.
    """
    n, place = dist.get_world_size(group), dist.get_rank(group)
    mine = {}
    for name, shape in shapes.items():
        if name not in plan:
            mine[name] = read(name)
            continue
        dim, stacked = plan[name]
        size = shape[dim] // stacked
        start, end = part_of(size, n, place)
        parts = [read(name, dim, i * size + start, i * size + end) for i in range(stacked)]
        mine[name] = torch.cat(parts, dim)
    return mine


copies_after_loading = ask("""
Every rank builds the model with random weights of its own, rank 0 loads the file, and then each **parameter** is
broadcast from rank 0. All ranks compute the loss of the same rows. What do they find?
( ) the same loss on all ranks, that of the model in the file
    > That would be true of a model that has only parameters. This one has a buffer, too.
( ) a different loss on every rank
    > That would be true if something random were left. The buffer is not broadcast, and it begins with zeros on every
    rank.
(x) one loss on rank 0, and a different one that all other ranks share
( ) nothing: rank 0 waits for ever in the broadcast
    > That would be true if the ranks had different numbers of parameters. All of them have built the same model, so
    their calls match.
Why: Rank 0 has the loss of the file, and all others share a worse one. They have rank 0's parameters, and the zeros
that their own buffer began with: `model.parameters()` lists no buffers. Nothing raises an error.
""")

peak_of_the_reader = ask("""
The file has 16 MiB. Every rank builds the model, `Primed()`. Then rank 0 runs
`model.load_state_dict(torch.load(path))`, and everybody receives. How many MiB more than before does **rank 0** hold at
its peak?
= 32.0 MiB +- 10 %
( ) 16
    > This is what the others hold. Rank 0 has built a model as well, and what it reads comes on top.
( ) 64
    > This is what four ranks hold. The question is about one of them.
( ) 48
    > `load_state_dict` copies number by number into the model that is there. It makes no third copy.
Why: About 32: the model that it has built, with random numbers that are not needed, and beside it everything that
`torch.load` returns, until it has been copied. The others hold one copy.
""")

seconds_to_64_replicas = ask("""
On paper: 64 hosts start with the same model of 14 GB. The storage gives 5 GB/s, which all its readers share; each link
between hosts carries 10 GB/s. One host reads the file, and **then** broadcasts it in many small pieces that everyone
passes on, so that the broadcast takes about as long as one copy on one link. How many seconds is that together?
= 4.2 s
( ) 2.8
    > This is the reading alone. The broadcast comes on top.
( ) 1.4
    > This is the broadcast alone. Before it, one host has to read.
( ) 179.2
    > That is if all 64 read: 64 times 14 GB at 5 GB/s.
( ) 11.2
    > That would be true of a tree that passes on the whole file at each of its 6 levels.
( ) 91.0
    > That would be true if one host sent it to each of the 63 others in turn.
Why: 4.2 s: 14 / 5 = 2.8 s to read, and 14 / 10 = 1.4 s to broadcast. If all 64 read for themselves, the storage has to
give 896 GB, which takes 179 s: 43 times as long.
""")

gpus_for_350_gb = ask("""
GPT-3 has 175 billion parameters: 350 GB in 16 bits. A GPU has room for 25 GB of weights. Tensor parallelism cuts every
layer by its heads, 96 of them, and each GPU gets **equally many**. What is the smallest number of GPUs that works?
= 16.0 +- 0 %
( ) 14
    > 350 / 25 is 14, and 96 / 14 is not a whole number: some GPUs would get 7 heads, others 6.
( ) 12
    > 96 divides by 12, but 350 / 12 is 29.2 GB on each.
( ) 8
    > 96 divides by 8, but 350 / 8 is 43.8 GB on each.
( ) 7
    > 350 GB are the bytes in 16 bits already.
( ) 24
    > That works, too, but a smaller number does as well.
Why: 16. There are 350 / 25 = 14 shards of 25 GB, and 96 heads divide neither by 14 nor by 15. With 16 GPUs each holds 6
heads and 21.9 GB. With 12 the heads would divide, but 29.2 GB do not fit; with 8 it is 43.8 GB.
""")

six_in_four_chunks = ask("""
Six layers for four ranks: `torch.arange(6).chunk(4)[rank]`. What does **rank 3** get?
( ) layer 5
    > That would be true of `tensor_split(4)`, which makes parts of 2, 2, 1 and 1.
(x) an IndexError
( ) layers 4 and 5
    > Rank 2 gets these. `chunk` makes parts of 6 / 4 layers, rounded up.
( ) nothing: an empty tensor
    > DTensor, which cuts like `chunk`, gives its last ranks empty parts. `chunk` itself makes fewer parts.
Why: An IndexError: `chunk(4)` rounds the length up, to 2, and after three chunks nothing is left. With `6 // 4 = 1`
layer per rank, layers 4 and 5 belong to no rank, and no error says so.
""")

a_chunk_of_qkv = ask("""
`qkv.weight` has 720 rows: 240 for the queries, then 240 for the keys, then 240 for the values; 20 rows for each of 12
heads. What does rank 0 of four get from `qkv.weight.chunk(4)[0]`?
( ) the queries, keys and values of its three heads
    > That would be true if the rows were ordered by heads. They are ordered by queries, keys and values.
(x) the queries of nine heads, and no keys or values
( ) all queries, and nothing else
    > That would be true of `chunk(3)`: 240 rows. A quarter of 720 is 180.
( ) an error: 720 rows of three kinds do not divide by four
    > 720 divides by 4, and `chunk` knows nothing of kinds.
Why: 180 rows, all of them queries: those of nine heads. The shape is what a quarter should have, so nothing raises an
error, and the model computes nonsense. Each of the three has to be cut by itself.
""")

the_device_of_rank_9 = ask("""
A program for one host of 8 GPUs reads `torch.load(path, map_location=f'cuda:{rank}')`. It now runs on two such hosts,
with 16 ranks in all. Which device does **rank 9** need?
( ) `cuda:9`
    > That would be true of a host with ten GPUs or more. Each host counts its own GPUs from 0, and here they end at
    7: `torch.load` raises an error.
(x) `cuda:1`
( ) `cuda:0`
    > That would be true of rank 8, the first one of the second host.
( ) none: without a `map_location` each rank loads to its own GPU
    > That would be true if files did not remember where a tensor was. They do: all ranks of a host would load to the
    GPU that it was saved from, often `cuda:0`.
Why: `cuda:1`: rank 9 is the second rank of the second host. That number is the **local** rank, which `torchrun` puts
into the environment variable `LOCAL_RANK`. labkit's `device` comes from it, too.
""")
