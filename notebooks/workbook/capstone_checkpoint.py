"""Exercises of the capstone: a checkpoint of a mesh, which is complete or does not count, and how to go on from it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, exercise
from workbook.capstone import meshed, pairs
from workbook.harnesses import in_a_folder

if TYPE_CHECKING:
    from labkit.rank.cell_names import dist, everyones, rank, recorder, torch


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
    Hint: Sort the states by who has the same: which ranks have equal weights and moments, and which have equal readers?
    One rank of each set writes.
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
    Afterwards: A folder without `complete` is no checkpoint, however new it is. All ranks see the same folder here, and
    so they choose the same step. Where a file system may lag, let rank 0 choose and broadcast the number: ranks that go
    on from different steps train nonsense.
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
