"""The capstone: its cells and its program train alike, a killed run ends as an undisturbed one, the plan is true."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

import labkit
from labkit import exercises
from labkit.errors import CellError
from labkit.theory import plan
from tests.scripts import PLACE, SCRIPTS

ROOT = Path(__file__).resolve().parent.parent.parent
LIMIT = 150  # seconds: torchrun starts four ranks twice, on busy cores
GOAL = 2.9  # the loss on other text that the lesson trains to

OTHER_WAYS = {
    "mesh_price": [
        """
def mesh_price(parameters, layers, width, tokens, data, tensor, pipe):
    mine = parameters / (tensor * pipe)
    x = 4 * width * tokens / data
    ring = {n: 2 - 2 / n for n in (data, tensor)}
    return {
        "pipe": x * (0 if pipe == 1 else 1 if pipe == 2 else 2),
        "tensor": 4 * ring[tensor] * x * layers / pipe,
        "data": ring[data] * mine * 4,
        "memory": mine * 16 + x * layers / pipe * (13 / tensor + 4),
    }
"""
    ],
    "make_groups": [
        """
def make_groups(shape):
    table, groups = torch.arange(world_size).view(*shape.values()), {}
    for i, name in enumerate(shape):
        rows = table.movedim(i, -1).reshape(-1, shape[name]).tolist()
        mine = next(row for row in rows if rank in row)
        groups[name] = dist.new_group(mine, use_local_synchronization=True)
    return groups
""",
        """
def make_groups(shape):
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(device.type, tuple(shape.values()), mesh_dim_names=tuple(shape))
    return {name: mesh.get_group(name) for name in shape}
""",
        """
def make_groups(shape):
    import itertools

    found, sizes = {}, list(shape.values())
    places = list(itertools.product(*map(range, sizes)))
    for i, name in enumerate(shape):
        others = sorted({place[:i] + place[i + 1 :] for place in places})
        for other in others:
            ranks = [r for r, place in enumerate(places) if place[:i] + place[i + 1 :] == other]
            group = dist.new_group(ranks)
            if dist.get_rank(group) >= 0:
                found[name] = group
    return found
""",
    ],
    "mesh_step": [
        """
def mesh_step(read, compute, params, optimizer, data, team):
    copies = dist.get_world_size(data)
    inputs, targets = read(dist.get_rank(data), copies)
    for p in params:
        p.grad = None
    loss = float(compute(inputs, targets))
    for p in params:
        dist.all_reduce(p.grad, group=data)
        p.grad /= copies
    optimizer.step()
    return comms.all_reduce(loss, group=data) / copies
"""
    ],
    "save_mesh": [
        """
def save_mesh(put, here, model, optimizer, reader, data, team):
    copy, place = dist.get_rank(data), dist.get_rank(team)
    if copy == dist.get_world_size(data) - 1:  # the last copy saves as well as the first
        put({"optimizer": optimizer.state_dict(), "model": model.state_dict()}, here + f"/part-{place}.pt")
    if place == dist.get_world_size(team) - 1:
        put(reader.state_dict(), here + f"/reader-{copy}.pt")
    done = comms.all_gather(True)
    if all(done) and rank == world_size - 1:
        put({}, here + "/complete")
    dist.barrier()
"""
    ],
    "load_mesh": [
        """
def load_mesh(folder, model, optimizer, reader, data, team):
    import pathlib

    marks = sorted(pathlib.Path(folder).glob("step-*/complete"), key=lambda mark: int(mark.parent.name[5:]))
    if not marks:
        return 0
    here = marks[-1].parent
    state = torch.load(here / f"part-{dist.get_rank(team)}.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    reader.load_state_dict(torch.load(here / f"reader-{dist.get_rank(data)}.pt"))
    return reader.step
"""
    ],
    "mesh_norm": [
        """
def mesh_norm(cut, whole, data, team):
    mine = sum(float(g.double().pow(2).sum()) for g in cut)
    mine += sum(float(g.double().pow(2).sum()) for g in whole) / dist.get_world_size(team)
    return comms.all_reduce(mine, group=team) ** 0.5
"""
    ],
    "best_mesh": [
        """
def best_mesh(price, gpus, per_node, layers, rows, seconds, room):
    def lost(mesh):
        data, tensor, pipe = mesh
        cost = price(*mesh)
        sending = cost["tensor"] / 370e9 + (cost["data"] + cost["pipe"]) / 50e9
        return float("inf") if cost["memory"] > room else sending + seconds * (pipe - 1) * data / rows

    found = [
        [gpus // tensor // pipe, tensor, pipe]
        for pipe in range(1, gpus + 1)
        for tensor in range(1, min(gpus, per_node) + 1)
        if layers % pipe == 0 and gpus % (tensor * pipe) == 0
    ]
    best = min(found, key=lost)
    return None if lost(best) == float("inf") else tuple(best)
"""
    ],
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Four ranks, with time to import what they train with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_PROGRESS", str(tmp_path_factory.mktemp("progress")))
        with labkit.start(4, timeout=10) as lab:
            yield lab


@pytest.mark.parametrize(("name", "source"), [(name, way) for name, ways in OTHER_WAYS.items() for way in ways])
def test_another_right_way_is_right(lab, name: str, source: str):
    lab.run(source)
    verdict = lab.check(name)
    assert verdict.state == "right", repr(verdict)


# -- the lesson's cells -----------------------------------------------------------------------------------------------


def cells() -> list[nbformat.NotebookNode]:
    found = nbformat.read(ROOT / "notebooks" / "capstone.ipynb", as_version=4).cells
    return [cell for cell in found if cell.cell_type == "code"]


@pytest.fixture(scope="module")
def run(lab) -> dict[str, Any]:
    """What the lesson's cells leave in the notebook, the workbook's own functions in place of the stubs.

    `said` is what rank 0 printed in each cell, `ended` how each cell ended that raised.
    """
    solutions = {e.stub: e.answer for e in exercises.every().values() if e.lesson == "capstone"}
    said: list[str] = []
    ended: list[str] = []
    space: dict[str, Any] = {"lab": lab, "display": str, "said": said, "ended": ended}
    for cell in cells():
        source = solutions.get(cell.source, cell.source)
        if source.startswith("%%px"):
            try:
                said.append((lab.run(source.removeprefix("%%px\n")) or [""])[0])
            except CellError as error:
                ended.append(str(error))
        elif "exercise" not in cell.metadata.get("tags", ()) and "lab.stop()" not in source:
            exec(source.replace("lab = start(4)", ""), space)
    return space


def found(run: dict[str, Any], pattern: str) -> list[str]:
    """What a pattern finds in all that rank 0 printed."""
    return re.findall(pattern, "\n".join(run["said"]))


@pytest.mark.slow
def test_a_rank_is_really_killed_twice_and_the_lab_names_it(run):
    assert run["ended"] == ["rank 1 died (SIGKILL)"]
    assert isinstance(run["error"] if "error" in run else CellError, type), "the cell itself caught the first one"


@pytest.mark.slow
def test_the_mesh_has_the_losses_and_the_gradients_of_one_process_and_reaches_the_goal(lab, run):
    alone, undisturbed, piped = (lab.pull(f"globals().get({name!r}, [])")[0] for name in RUNS)
    assert len(alone) == len(undisturbed) == len(piped) == 40
    assert undisturbed == pytest.approx(alone, abs=1e-4)
    assert piped == pytest.approx(alone, abs=1e-4)
    (off,) = found(run, r"largest difference from one process ([\d.e-]+)")
    assert float(off) < 1e-12, "in float64"
    others = found(run, r"on other text ([\d.]+)")
    assert [float(loss) < GOAL for loss in others] == [True, True]


RUNS = ("one_process", "undisturbed", "piped")


@pytest.mark.slow
def test_what_was_killed_ends_as_what_was_not_to_the_last_bit(lab, run):
    undisturbed, piped, resumed, without = lab.pull("[undisturbed, piped, resumed, without_moments]")[0]
    assert resumed == piped[20:], "killed while step 30 was saved, so it went on from step 20"
    assert without != undisturbed[20:]
    assert without[0] == undisturbed[20], "the weights were right"
    jump = max(a - b for a, b in zip(without[:5], undisturbed[20:25], strict=True))
    assert jump > 0.1
    assert run["columns_resumed"] == undisturbed[20:]


@pytest.mark.slow
def test_the_plan_is_what_was_measured(lab, run):
    small = plan.Model(layers=4, width=32)
    assert len(run["measured"]) == 5
    for mesh, held, sent in run["measured"]:
        stages = [r % mesh.pipe for r in range(4)]
        for r, stage in enumerate(stages):
            planned = plan.held(small, mesh, 768 / mesh.data, stage)
            kept = planned.pop("activations")
            steps = 4 * len(plan.KINDS) * 54  # Adam's counters, 4 bytes for each tensor
            assert {kind: held[r][kind] for kind in planned} == pytest.approx(planned, abs=steps)
            assert kept <= held[r]["activations"] < 1.25 * kept
            bytes_sent = sum(plan.sent(small, mesh, 768 / mesh.data, stage).values())
            assert bytes_sent <= sent[r] < 1.15 * bytes_sent


# -- the program ------------------------------------------------------------------------------------------------------


def torchrun(folder: Path, *words: str, restarts: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the program with four ranks."""
    kept = {key: value for key, value in os.environ.items() if key not in PLACE}
    kept |= {"PYTHONUTF8": "1", "OMP_NUM_THREADS": "1"}
    start = [sys.executable, str(ROOT / "tests/live/torchrun.py"), "--nproc-per-node=4", f"--max-restarts={restarts}"]
    command = [*start, str(SCRIPTS / "mesh.py"), *words]
    return subprocess.run(command, cwd=folder, env=kept, capture_output=True, text=True, timeout=LIMIT)


def steps(out: str) -> list[tuple[int, float]]:
    """The training steps that rank 0 told of, in their order."""
    return [(int(step), float(loss)) for step, loss in re.findall(r"^step (\d+): ([\d.]+)$", out, re.MULTILINE)]


@pytest.mark.slow
@pytest.mark.parametrize(("cut", "name"), [("tensor", "undisturbed"), ("pipe", "piped")])
def test_under_torchrun_a_rank_is_killed_and_the_program_ends_with_the_losses_of_the_cells(
    lab, run, tmp_path: Path, cut: str, name: str
):
    ran = torchrun(tmp_path, "--folder=run", f"--cut={cut}", "--die=2:27", restarts=1)
    assert ran.returncode == 0, ran.stderr[-3000:]
    told = steps(ran.stdout)
    assert [step for step, _ in told] == [*range(1, 28), *range(21, 41)], "27, a kill, and then from the checkpoint"
    again = dict(told[27:])
    assert [again[step] for step, _ in told[20:27]] == [loss for _, loss in told[20:27]], "to the last bit"
    right = lab.pull(name)[0]
    assert [dict(told)[step] for step in range(1, 41)] == pytest.approx(right, abs=1e-5)


@pytest.mark.slow
def test_ranks_that_are_no_mesh_are_told_how_many_to_start(tmp_path: Path):
    ran = torchrun(tmp_path, "--data=3")
    assert ran.returncode != 0
    assert "4 ranks are no mesh of 3 copies" in ran.stderr
