"""Exercises of the capstone on the mesh as a whole: its checkpoint, its price, its gradient's norm, the best one."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import NOTHING, Case, Least, exercise
from labkit.grading.inputs import options
from labkit.grading.promises import Calls
from workbook.capstone import meshed, pairs
from workbook.harnesses import in_a_folder

if TYPE_CHECKING:
    from labkit.rank.cell_names import device, dist, everyones, rank, recorder, torch


def _state(step: float, copy: int, part: int) -> dict[str, Any]:
    """Return what a checkpoint of this step has for a place on the mesh."""
    weight = np.full(2, step + 10.0 * part, dtype="float32")
    model = {"weight": weight, "bias": np.array([step], dtype="float32")}
    return {
        "part": {"model": model, "optimizer": {"moments": np.full_like(weight, -step - 10.0 * part)}},
        "reader": {"step": step, "noise": step + 100 * copy},
    }


def _savings(n: int) -> list[Case]:
    return [
        Case([(step,)] * n, f"step {step}, data {mesh[0]}, team {mesh[1]}", {"shape": mesh})
        for step, mesh in zip((10, 20, 100), [*pairs(n), pairs(n)[0]], strict=False)
    ]


class Stateful:
    """A part of the training that has a state, and counts how often one was loaded."""

    def __init__(self, **state):
        self.state, self.loaded = state, 0

    def state_dict(self):
        return dict(self.state)

    def load_state_dict(self, state):
        assert isinstance(state, dict) and set(state) == set(self.state), (
            f"a state of {sorted(self.state)} belongs into load_state_dict, and "
            f"{sorted(map(str, state)) if isinstance(state, dict) else type(state).__name__} came."
        )
        self.state, self.loaded = dict(state), self.loaded + 1


class Reader(Stateful):
    """A reader of batches, which knows its step."""

    @property
    def step(self):
        return self.state["step"]


def states(step, copy, part):
    """Make the model, the optimizer and the reader of a place on the mesh, as they are after this step."""
    its = _state(step, copy, part)
    model, optimizer = ({name: torch.from_numpy(x) for name, x in held.items()} for held in its["part"].values())
    return Stateful(**model), Stateful(**optimizer), Reader(**its["reader"])


@in_a_folder
def run_save_mesh(save_mesh, step, shape, folder):
    """Let the mesh save with a `put` that writes files, and collect what was written for this rank.

    All ranks but 0 are slow to write, and look for the mark before they do; all of them tell what they wrote.
    """
    (data, team), (copy, part) = meshed(shape), divmod(rank, shape[1])
    model, optimizer, reader = states(step, copy, part)
    here, said, written = os.path.join(folder, f"step-{step}"), [], []
    mark = os.path.join(here, "complete")

    def put(state, path):
        name, until = os.path.basename(path), time.monotonic() + (0.1 if rank else 0)
        while time.monotonic() < until and not os.path.exists(mark):
            time.sleep(0.005)
        if name != "complete" and os.path.exists(mark):
            said.append(f"`complete` is there, and {name} is not written yet: who loads now gets half a checkpoint.")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.dirname(path) != here:
            said.append(f"it writes {path}, and {name} belongs into `here`.")
        torch.save(state, f"{path}.{rank}")
        os.replace(f"{path}.{rank}", path)
        written.append(name)

    save_mesh(put, here, model, optimizer, reader, data, team)
    with recorder.paused():
        told = everyones((written, said))
        until = time.monotonic() + 0.5
        while time.monotonic() < until and not os.path.exists(mark):
            time.sleep(0.005)
        dist.barrier()
    wanted = [f"part-{t}.pt" for t in range(shape[1])] + [f"reader-{d}.pt" for d in range(shape[0])]
    files = [name for mine, _ in told for name in mine if name != "complete"]
    there = sorted(os.listdir(here)) if os.path.isdir(here) else []
    mine = {"part": f"part-{part}.pt", "reader": f"reader-{copy}.pt"}
    found = {what: torch.load(os.path.join(here, name)) if name in there else None for what, name in mine.items()}
    with recorder.paused():
        dist.barrier()
    for _, faults in told:
        assert not faults, faults[0]
    assert not set(wanted) - set(there), f"there is no {sorted(set(wanted) - set(there))[0]} in step-{step}."
    twice = [name for name in wanted if files.count(name) > 1]
    assert not twice, f"{twice[0]} is written by {files.count(twice[0])} ranks, and one is enough."
    assert "complete" in there, f"there is no `complete` in step-{step}, so it never counts."
    more = set(there) - set(wanted) - {"complete"}
    assert not more, f"there is {sorted(more)[0]} in step-{step}, which nobody asked for."
    return found


@exercise(
    "A checkpoint that four ranks write",
    lambda xs, shape: [_state(step, *divmod(r, shape[1])) for r, (step,) in enumerate(xs)],
    minutes=12,
    difficulty=3,
    inputs=_savings,
    counts_memory=False,
    harness=run_save_mesh,
)
def save_mesh(put, here, model, optimizer, reader, data, team):
    """Save a checkpoint of the whole mesh in the folder `here`.

    `team` holds a copy of the model in parts, and `data` are the ranks that hold the same part. Save a checkpoint in
    the folder `here`, all ranks together. `put(state, path)` writes one file, whole or not at all.

    `part-0.pt`, `part-1.pt` … have the parts, by the place in the team: `{"model": …, "optimizer": …}`, the
    `state_dict()` of both. `reader-0.pt`, `reader-1.pt` … have the `reader.state_dict()` of each **copy**, by its place
    along `data`: copies read different rows, and so their readers' states differ. No file is written by two ranks.

    Any rank may be killed at any line. The checkpoint counts once there is a file named `complete` in its folder, such
    as `put({}, f"{here}/complete")` makes: so this file may only appear when all others are there. Return nothing.

    In the picture, three ranks are one copy. It shows the number of the training step, and what the files of this
    rank's part and of its copy's reader hold afterwards.
    Hint: Which ranks have equal weights and moments, and which have equal readers? One rank of each set writes.
    Hint: The ranks whose place along `data` is 0 hold one whole copy: each of them writes its part. The ranks whose
    place in the team is 0 are one of each copy: each of them writes its reader.
    Hint: Every rank has to be done before rank 0 makes `complete`: a barrier of all ranks stands between them.
    Afterwards: A checkpoint of a mesh is many files of many ranks, and no file system can make all of them appear at
    once. So one small file decides, and it is written last. Copies of the same part cost nothing more: each part is
    written once, however many copies there are.
    """
    if dist.get_rank(data) == 0:
        part = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        put(part, f"{here}/part-{dist.get_rank(team)}.pt")
    if dist.get_rank(team) == 0:
        put(reader.state_dict(), f"{here}/reader-{dist.get_rank(data)}.pt")
    dist.barrier()
    if rank == 0:
        put({}, f"{here}/complete")


def _plans(n: int) -> list[Case]:
    tiny = (53_476, 4, 32, 768)
    of = {
        2: (("data 2", *tiny, 2, 1, 1), ("tensor 2", *tiny, 1, 2, 1), ("pipe 2", *tiny, 1, 1, 2)),
        3: (
            ("data 3", *tiny, 3, 1, 1),
            ("pipe 3, six layers", 10_000, 6, 16, 96, 1, 1, 3),
            ("one rank", *tiny, 1, 1, 1),
        ),
        4: (
            ("data 2, tensor 2", *tiny, 2, 2, 1),
            ("data 2, pipe 2", *tiny, 2, 1, 2),
            ("data 2, tensor 8, pipe 4, 80 layers", 66_613_811_456, 80, 8192, 2**21, 2, 8, 4),
        ),
    }
    return options("parameters layers width tokens data tensor pipe", *of[n])(n)


@exercise(
    "What a mesh holds and sends",
    lambda xs, **mesh: [mesh_price(**mesh)] * len(xs),
    minutes=8,
    difficulty=2,
    inputs=_plans,
    tolerance=1e-6,
    forbids=("collectives",),
)
def mesh_price(parameters, layers, width, tokens, data, tensor, pipe):
    """Return what the busiest rank holds ("memory") and sends along "data", "tensor" and "pipe", in bytes.

    A transformer of `layers` layers has `parameters` weights. A team of `tensor` times `pipe` ranks holds one copy;
    count the weights as if they were cut evenly over the team. There are `data` copies, and they share the batch of
    `tokens` tokens. Everything is float32, 4 bytes a number, trained with Adam: weights, gradients and Adam's states
    take 16 bytes a parameter.

    For the backward pass, a layer keeps 17 times `width` numbers for each token of its copy's share. Tensor parallelism
    cuts 13 of these 17, and 4 are on every rank of the team. A pipeline divides the layers.

    Return a dict of bytes for the busiest rank: `"memory"` that it holds in all, and what it sends in a training step
    along `"data"` (one all-reduce of the gradients of its weights), `"tensor"` (in each of its layers, two all-reduces
    in the forward and two in the backward pass, each of `width` numbers for every token of its share) and `"pipe"`
    (these numbers once to the next stage, and once back to the one before it). An all-reduce of S bytes among n ranks
    sends 2 (n - 1) / n times S from each. Communicate nothing.
    Hint: First say what one rank has: parameters / tensor / pipe weights, layers / pipe layers, tokens / data tokens.
    Hint: The activations are tokens times layers times (4 + 13 / tensor) times width numbers, of 4 bytes each.
    Hint: With two stages each sends one way only: the first one forward, the last one back. A stage in the middle of
    three or more sends both ways.
    Afterwards: Tensor parallelism pays by the token and by the layer, data parallelism by the parameter, a pipeline by
    the token alone. Which one is expensive depends on the model, on the batch and on the links. That is why you plan.
    """

    def all_reduced(size, ranks):
        return 2 * size * (ranks - 1) / ranks

    mine, share, my_layers = parameters / tensor / pipe, tokens / data, layers / pipe
    activations = share * my_layers * (4 + 13 / tensor) * width
    passed = 4 * share * width
    return {
        "memory": 16 * mine + 4 * activations,
        "data": all_reduced(4 * mine, data),
        "tensor": my_layers * 4 * all_reduced(passed, tensor),
        "pipe": min(pipe - 1, 2) * passed,
    }


def _loaded(xs: Sequence[Any], shape: tuple[int, int]) -> list[Any]:
    found = []
    for r, (whole, _) in enumerate(xs):
        step = max(whole, default=0)
        state = _state(step, *divmod(r, shape[1]))
        found.append({**state["part"], "reader": state["reader"], "returned": step})
    return found


@in_a_folder
def run_load_mesh(load_mesh, whole, broken, shape, folder):
    """Write whole and broken checkpoints, let the mesh load, and collect its states and what it returns."""
    data, team = meshed(shape)
    if rank == 0:
        for step in (*whole, *broken):
            here = os.path.join(folder, f"step-{step}")
            os.mkdir(here)
            for d in range(shape[0]):
                torch.save(states(step, d, 0)[2].state_dict(), os.path.join(here, f"reader-{d}.pt"))
            for t in range(shape[1]):
                model, optimizer, _ = states(step + (step in broken) / 2, 0, t)
                its = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(its, os.path.join(here, f"part-{t}.pt"))
            if step in whole:
                torch.save({}, os.path.join(here, "complete"))
    with recorder.paused():
        dist.barrier()
    model, optimizer, reader = states(0, *divmod(rank, shape[1]))
    try:
        returned, failed = load_mesh(folder, model, optimizer, reader, data, team), None
    except Exception as error:
        failed = error
    with recorder.paused():
        dist.barrier()
    if failed:
        raise failed
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "reader": reader.state_dict(),
        "returned": returned,
    }


@exercise(
    "Go on from the newest complete checkpoint",
    _loaded,
    minutes=8,
    difficulty=2,
    inputs=lambda n: [
        Case([steps] * n, about, {"shape": pairs(n)[mesh]})
        for mesh, about, steps in (
            (0, "two checkpoints, both complete", ([10, 20], [])),
            (1, "the newest one is not complete", ([10, 20], [30])),
            (0, "step 100 is newer than step 90", ([80, 90, 100], [110])),
            (0, "none is complete", ([], [10])),
            (1, "none at all", ([], [])),
        )
    ],
    counts_memory=False,
    forbids=("collectives",),
    given="import os",
    harness=run_load_mesh,
)
def load_mesh(folder, model, optimizer, reader, data, team):
    """Load the newest complete checkpoint; return its training step, or 0 if there is none.

    `folder` has the checkpoints that `save_mesh` made, in `step-10`, `step-20` and so on; some of them may lack the
    file `complete`. Load the newest one that has it: this rank's part into `model` and `optimizer`, and its copy's
    reader into `reader`, with their `load_state_dict`. Return the number of its training step. If there is none, load
    nothing and return 0. Communicate nothing.

    `os.listdir(folder)` gives the names in a folder, in no particular order.

    In the picture, three ranks are one copy. It shows the steps whose checkpoints are complete, those whose checkpoints
    are not, and then what this rank has loaded.
    Hint: Keep the names whose folder has a `complete`, turn what follows `step-` into a number, and take the largest.
    Hint: `max(numbers, default=0)` is 0 where there are none.
    Hint: The part is that of this rank's place in the team, the reader that of its place along `data`.
    Afterwards: A folder without `complete` is not a checkpoint, however new it is. All ranks see the same folder here,
    and so they choose the same step. Where a file system may lag, let rank 0 choose and broadcast the number: ranks
    that go on from different steps train nonsense.
    """
    names = [name for name in os.listdir(folder) if os.path.exists(f"{folder}/{name}/complete")]
    step = max((int(name.removeprefix("step-")) for name in names), default=0)
    if step:
        here = f"{folder}/step-{step}"
        part = torch.load(f"{here}/part-{dist.get_rank(team)}.pt", weights_only=True)
        model.load_state_dict(part["model"])
        optimizer.load_state_dict(part["optimizer"])
        reader.load_state_dict(torch.load(f"{here}/reader-{dist.get_rank(data)}.pt", weights_only=True))
    return step


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
    370e9 bytes per second; data and pipeline parallelism cross nodes and send 50e9 bytes per second. Add the times up,
    as if nothing were hidden. A pipeline also waits: the batch has `rows` rows, every micro-batch is one row of its
    copy's share, and (pipe - 1) / micro-batches of `seconds` are idle.

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
