"""Exercises of lesson 13f: a pipeline's stage, and a file that only one rank has."""

from __future__ import annotations

import weakref
from collections import UserDict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Budget, Case, Least, exercise
from labkit.theory.primitives import OBJECTS
from workbook.harnesses import kept
from workbook.lesson13f import by_reading, filled, part_of

if TYPE_CHECKING:
    from labkit.rank.cell_names import device, dist, rank, torch, world_size


def _stages(xs: Sequence[Any], layers: int) -> list[Any]:
    n, found = len(xs), []
    for r, (whole,) in enumerate(xs):
        start, end = part_of(layers, n, r)
        mine = {f"blocks.{i - start}.{what}": whole[f"blocks.{i}.{what}"] for i in range(start, end) for what in LAYER}
        first = {"embedding.weight": whole["embedding.weight"]} if r == 0 else {}
        last = {name: whole[name] for name in ("head.weight", "head.prior")} if r == n - 1 else {}
        found.append({**first, **mine, **last})
    return found


LAYER = ("weight", "count")  # a parameter and a buffer


def _whole_models(n: int) -> list[Case]:
    def case(layers: int, seed: int, about: str = "") -> Case:
        rng = np.random.default_rng([13, seed, n])
        whole: dict[str, Any] = {"embedding.weight": rng.integers(-9, 10, 2).astype("float32")}
        for i in range(layers):
            whole[f"blocks.{i}.weight"] = np.array([i + 0.5], dtype="float32")
            whole[f"blocks.{i}.count"] = np.array(100 + i)
        whole |= {"head.weight": rng.integers(-9, 10, 2).astype("float32"), "head.prior": np.array([7.5], "float32")}
        return Case([(dict(whole),) for _ in range(n)], about or f"{layers} layers", {"layers": layers})

    return [case(n, 10, "one layer per stage"), case(2 * n + 1, 11), case(12, 12), case(3 * n - 1, 13)]


def _two_layers() -> Case:
    case = _whole_models(2)[0]
    return replace(case, xs=[({name: t[:1] if t.ndim else t for name, t in whole.items()},) for (whole,) in case.xs])


def run_load_stage(load_stage, whole, layers):
    """Give a stage with numbers of its own and a checkpoint that counts what is read; collect the stage."""
    asked = []

    class Checkpoint(UserDict):
        def __getitem__(self, name):
            tensor = whole[name]
            asked.append(name)
            return tensor.clone()

    def part(parameter, **buffers):
        module = torch.nn.Module()
        module.weight = torch.nn.Parameter(torch.full_like(whole[parameter], -1))
        for name, there in buffers.items():
            module.register_buffer(name, torch.full_like(whole[there], -1))
        return module

    start, end = part_of(layers, world_size, rank)
    stage = torch.nn.Module()
    if rank == 0:
        stage.embedding = part("embedding.weight")
    stage.blocks = torch.nn.ModuleList(part("blocks.0.weight", count="blocks.0.count") for _ in range(start, end))
    if rank == world_size - 1:
        stage.head = part("head.weight", prior="head.prior")
    load_stage(stage, Checkpoint(whole), layers, part_of)
    state = stage.state_dict()
    for i in range(end - start):
        held = [k for k in range(layers) if torch.equal(state[f"blocks.{i}.weight"], whole[f"blocks.{k}.weight"])]
        assert held in ([], [start + i]), (
            f"block {i} of rank {rank} holds layer {held[0]} of the checkpoint, and should hold layer {start + i}"
        )
    assert len(asked) <= len(state), f"rank {rank} reads {len(asked)} tensors, and its stage has {len(state)}"
    return dict(state)


def broken_load_stage(stage, whole, layers, part_of):
    layers_per_rank = layers // world_size
    mine = {}
    for layer in range(rank * layers_per_rank, (rank + 1) * layers_per_rank):
        for name in whole:
            if name.startswith(f"blocks.{layer}."):
                mine[name] = whole[name]
    stage.load_state_dict(mine, strict=False)


@by_reading(
    "Repair: a pipeline's stage loads its layers",
    _stages,
    difficulty=2,
    inputs=_whole_models,
    picture=_two_layers,
    harness=run_load_stage,
)
def load_stage(stage, whole, layers, part_of):
    """Fill this rank's stage of the pipeline from the checkpoint of the whole model.

    `whole` is a checkpoint of a model that has `layers` layers: `whole[name]` reads one tensor, and going through
    `whole` gives the names, such as `blocks.3.weight`. `stage` is this rank's part of the model: `stage.blocks` holds
    its layers, those of `part_of(layers, world_size, rank)`, and counts them **from 0**. The first stage also has the
    embedding, and the last one the head. Fill everything that `stage` has, buffers too, and read nothing else.
    Communicate nothing and return nothing.

    The specimen raises no error. Run its check, and look at what the stages hold. Numbers of −1 are those that the
    stage began with.
    Hint: `strict=False` hides what goes wrong: names that the stage does not have are left out without a word. Take it
    away and read the error.
    Hint: Begin with the names that the stage has: `stage.state_dict()`. What are they called in the whole model?
    Hint: Layer `number` of the stage is layer `start + number` of the model, where `start, _ = part_of(layers,
    world_size, rank)`. All other names are the same.
    Afterwards: `strict=False` is for a checkpoint that really has other tensors than the model; then look at the
    missing and unexpected names that `load_state_dict` returns. A layer that is not loaded still computes, and the
    model is just worse. `assign=True` uses the tensors that were read; without it they are copied into the stage's own,
    and for a moment both are in memory.
    """
    start, _ = part_of(layers, world_size, rank)
    mine = {}
    for name in stage.state_dict():
        there = name
        if name.startswith("blocks."):
            _, number, *rest = name.split(".")
            there = ".".join(["blocks", str(start + int(number)), *rest])
        mine[name] = whole[there]
    stage.load_state_dict(mine, assign=True)


def _handed(xs: Sequence[Any]) -> list[Any]:
    n = len(xs)
    return [{name: t[slice(*part_of(len(t), n, r))] for name, t in tensors.items()} for r, (tensors,) in enumerate(xs)]


def _on_one_rank(n: int) -> list[Case]:
    def case(about: str, seed: int, **shapes: tuple[int, ...]) -> Case:
        rng = np.random.default_rng([13, seed, n]) if seed else None
        return Case([({name: filled(shape, rng) for name, shape in shapes.items()},)] * n, about)

    return [
        case("two tensors", 0, up=(n, 2), bias=(2 * n,)),
        case("rows that do not divide", 21, up=(2 * n + 1, 3), down=(n + 1, 2), bias=(3,)),
        case("fewer rows than ranks", 22, up=(2 * n, 1), short=(n - 1, 2)),
        case("three larger ones", 23, up=(8 * n, 40), down=(16 * n, 20), head=(4 * n, 50)),
    ]


def run_hand_out(hand_out, tensors):
    """Give rank 0 the tensors one by one, see that each goes before the next comes, and collect the parts."""
    names, held, faults = list(tensors), [], []

    def pieces():
        for name in names:
            faults.extend(f"{name!r} is read while all of {names[i]!r} is still in memory" for i in kept(held))
            whole = tensors[name].clone()
            held.append(weakref.ref(whole.untyped_storage()))
            yield name, whole
            del whole

    shapes = {name: tuple(t.shape) for name, t in tensors.items()}
    mine = hand_out(pieces() if rank == 0 else None, shapes, part_of)
    faults.extend(f"all of {names[i]!r} is still in memory at the end: does a view keep it?" for i in kept(held))
    assert not faults, faults[0]
    return mine


@exercise(
    "One rank has the file: hand it out piece by piece",
    _handed,
    minutes=15,
    difficulty=3,
    inputs=_on_one_rank,
    picture=lambda: [({"up": filled((2, 2)), "bias": filled((2,))},)] * 2,
    tolerance=0,
    forbids=OBJECTS,
    budget=Budget(sent=lambda n, S: 1.5 * (n - 1) / n * S),  # room for parts that are filled up to equal lengths
    least=Least(sent=lambda n, S: (n - 1) / n * S),
    harness=run_hand_out,
)
def hand_out(pieces, shapes, part_of):
    """Return this rank's rows of every tensor, which rank 0 reads one by one.

    Only rank 0 sees the checkpoint, and no rank has room for all of it. On rank 0 `next(pieces)` reads **one** tensor
    and returns `(name, tensor)`, in the order of `shapes`, a dict of all shapes that every rank knows; elsewhere
    `pieces` is None. Everything is float32.

    Return a dict with this rank's rows of each tensor: those of `part_of(rows, world_size, rank)`, perhaps none. When
    the next tensor is read, the one before must be gone from memory; and each row travels once, to the rank that needs
    it, perhaps with some padding. No object collectives.
    Hint: Send and receive tensor by tensor: read one, send each rank its rows, keep your own, let go of it, read the
    next one.
    Hint: A view such as `whole[start:end]` keeps the memory of all of `whole`. Copy your rows into a tensor of their
    own.
    Hint: A loop variable that still names the old tensor keeps it, while `next(pieces)` reads the new one: `del whole`.
    Send nothing to a rank that has no rows.
    Afterwards: Rank 0 never holds more than its part and one whole tensor. `dist.scatter` does the same in one call for
    each tensor, if all parts are filled up to the same shape. A broadcast of each tensor, after which every rank cuts,
    is simpler and sends more.
    """
    mine = {}
    for name, shape in shapes.items():
        parts = [part_of(shape[0], world_size, r) for r in range(world_size)]
        start, end = parts[rank]
        mine[name] = torch.empty(end - start, *shape[1:], device=device)
        if rank == 0:
            _, whole = next(pieces)
            mine[name].copy_(whole[start:end])
            for r in range(1, world_size):
                if parts[r][0] < parts[r][1]:
                    dist.send(whole[slice(*parts[r])], dst=r)
            del whole
        elif start < end:
            dist.recv(mine[name], src=0)
    return mine
