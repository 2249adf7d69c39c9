"""`lab.script`: what torchrun's ranks print is what the cells had printed, rank for rank."""

from __future__ import annotations

import ast
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import labkit
from labkit.faces import progress
from labkit.floor.errors import CellError, LabError
from tests.live.notebook import Notebook
from tests.scripts import PLACE
from workbook.tools.script.program import command

ROOT = Path(__file__).resolve().parent.parent.parent
LIMIT = 120  # seconds: torchrun and as many imports of torch as ranks, on busy cores


def functions(script: str) -> list[str]:
    """The functions of a script of the workbook, and then what its main() does, a cell each."""
    text = (ROOT / "notebooks" / "scripts" / script).read_text(encoding="utf-8")
    found = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    *helpers, main = [ast.get_source_segment(text, node) or "" for node in found]
    return [*helpers, main, "main()"]


# Seed 003's three exercises: a mean, an argmax, an all-reduce of sends and receives in a ring.
EXERCISES = [
    "x = torch.tensor([float((3 * rank + 2) % 5), rank - 1.0])",
    "def mean(x):\n    x = x.clone()\n    dist.all_reduce(x)\n    return x / world_size",
    "mean(x)",
    """\
def argmax(x):
    largest = x.max()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    mine = torch.tensor([int(x.argmax()) if x.max() == largest else -1])
    places = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(places, mine)
    owner = next(r for r, place in enumerate(places) if place >= 0)
    return owner, int(places[owner])""",
    'print("largest on rank %d at place %d" % argmax(x))',
    """\
def ring_all_reduce(x):
    total, passed = x.clone(), x.clone()
    for _ in range(world_size - 1):
        got = torch.empty_like(passed)
        sending = dist.isend(passed, dst=(rank + 1) % world_size)
        dist.recv(got, src=(rank - 1) % world_size)
        sending.wait()
        total, passed = total + got, got
    return total""",
    "total = ring_all_reduce(x)\ndist.all_reduce(x)\nassert torch.equal(total, x)\nprint(total.tolist())\nrank",
]


def sheet() -> list[str]:
    """What the cheat sheet's cells run on the ranks."""
    notebook = json.loads((ROOT / "notebooks" / "cheat-sheet.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [cell.partition("\n")[2] for cell in cells if cell.startswith(("%%px\n", "%%flow "))]


PROGRAMS = {
    "softmax": functions("distributed_softmax.py"),
    "exercises": EXERCISES,
    "cheatsheet": sheet(),
}


def printed(shown: str, folder: Path, n: int) -> list[list[str]]:
    """Run the command that was shown, in its folder; the lines of each rank."""
    assert shown.startswith("torchrun ")
    kept = {key: value for key, value in os.environ.items() if key not in PLACE}
    kept |= {"PYTHONUTF8": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'notebooks'}"}
    words = [sys.executable, str(ROOT / "tests/live/torchrun.py"), "--log-dir=logs", *shlex.split(shown)[1:]]
    ran = subprocess.run(words, cwd=folder, env=kept, capture_output=True, text=True, timeout=LIMIT)
    assert ran.returncode == 0, ran.stderr[-3000:]
    (attempt,) = folder.glob("logs/*/attempt_0")
    return [(attempt / str(r) / "stdout.log").read_text(encoding="utf-8").splitlines() for r in range(n)]


def run_all(lab: Any, cells: Sequence[str]) -> list[list[str]]:
    """Run cells; the lines that each rank printed."""
    lines: list[list[str]] = [[] for _ in range(lab.n)]
    for cell in cells:
        for mine, text in zip(lines, lab.run(cell), strict=True):
            mine += text.splitlines()
    return lines


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(progress, "HERE", tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_prints_under_torchrun_what_its_cells_printed(name: str, folder: Path):
    with labkit.start(4) as lab:
        before = run_all(lab, PROGRAMS[name])
        note = lab.script(f"{name}_cells.py")
    shown = command(f"{name}_cells.py", 4)
    assert shown in repr(note)
    assert any(before)
    assert printed(shown, folder, 4) == before
    assert name == "cheatsheet" or "labkit" not in (folder / f"{name}_cells.py").read_text()


@pytest.mark.slow
def test_a_few_ranks_the_labs_tools_and_a_borrowed_function_come_along(folder: Path):
    with labkit.start(3, timeout=5) as lab:
        lab.use("ring_shift")
        lab.push(lr=0.5)
        before = run_all(lab, ["x = ring_shift(torch.tensor([rank * lr]))", "for rank in range(9):\n    pass", "x"])
        (alone,) = lab.run('text = """a\n  b"""\nprint(text, "of", rank)', ranks=[2])
        before[2] += alone.splitlines()
        with pytest.raises(CellError):
            lab.run("x = undefined_name", ranks=[1])
        lab.flow("y = comms.all_reduce(x)", "x", "y")
        with pytest.raises(CellError):
            lab.run("import os\nos._exit(3)", ranks=[0])
        loss = "torch.manual_seed(0)\nloss = tiny.loss(tiny.Model(), tiny.batch(0, rank, world_size))"
        again = [
            loss,
            "y = ring_shift(torch.tensor([rank * 1.0]))",
            "kind = type(timed(dist.barrier, repeat=3)).__name__",
            "import atexit\nsgd = torch.optim.SGD([torch.ones(1)])\nleft = atexit.register(print, 'taken apart')",
        ]
        after = run_all(lab, [*again, "kind, y.tolist(), round(loss.item(), 4)"])
        late = lab.late("z = y.clone()\ndist.all_reduce(z)", rank=1)
        after = [a + b for a, b in zip(after, run_all(lab, ["print(y.tolist(), z.tolist())"]), strict=True)]
        note = lab.script("tools.py")
    assert "late" in repr(late)
    assert "left out: it did not run to its end" in repr(note)
    text = (folder / "tools.py").read_text()
    assert "undefined_name" not in text
    assert "workbook.tools.rank.late" not in text
    assert printed(command("tools.py", 3), folder, 3) == [b + a for b, a in zip(before, after, strict=True)]


def in_cell(notebook: Notebook, code: str, key: str) -> str:
    """Run a cell as JupyterLab does, which names it; what it returned."""
    message = notebook.client.session.msg(
        "execute_request",
        {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False},
        metadata={"cellId": key},
    )
    notebook.client.shell_channel.send(message)
    cell = notebook.wait(message["header"]["msg_id"])
    assert cell.status == "ok", cell
    return cell.result


def test_a_notebooks_cells_stand_in_it_once_by_their_numbers(tmp_path: Path):
    def run(code: str, key: str) -> str:
        return in_cell(notebook, code, key)

    with Notebook(LABKIT_PROGRESS=str(tmp_path)) as notebook:
        run(f"import os; os.chdir({str(tmp_path)!r}); from labkit import start; lab = start(2)", "a")
        run("%%px\ndef twice(x):\n    return x + x", "b")
        run("%%px --targets 1\nprint(twice(rank))", "c")
        run("%%px\ndef twice(x):\n    return 2 * x", "b")
        run("%%px --noblock\ntwice(3)", "d")
        assert "cell [5] is left out: its end was not waited for".lower() in run('lab.script("one.py")', "e").lower()
        run("%pxresult", "f")
        said = run('lab.script("two.py")', "e")
        alone = run('lab.script("three.py", last=1)', "e")
        assert run('lab.script("four.py", cells=[4])', "e").count("twice") == 1
    assert "`two.py` has cells [4], [3] and [5]" in said
    assert said.count("def twice") == 1
    assert "return 2 * x" in said
    assert "# cell [3], %%px\nif rank == 1:\n    print(twice(rank))" in said
    assert "# cell [5], %%px --noblock\nshow(twice(3))" in said
    assert "def twice" not in alone
    assert "It needs `twice`, which cell [4] made and no cell in it makes." in alone
    assert "lab.script('three.py', cells=[4, 5])" in alone


@pytest.mark.slow
def test_cells_of_a_notebook_run_under_torchrun_as_their_magics_said(tmp_path: Path):
    with Notebook(LABKIT_PROGRESS=str(tmp_path)) as notebook:
        in_cell(notebook, f"import os; os.chdir({str(tmp_path)!r}); from labkit import start; lab = start(2)", "a")
        for key, code in (
            ("b", "%%px\nx = torch.tensor([1.0 * rank])"),
            ("b", "%%px\nx = torch.tensor([rank + 1.0])"),
            ("c", "%%flow x\ndist.all_reduce(x)"),
            ("d", "%%px --targets 1\nx += 1\nprint('only', rank)"),
            ("e", "%%late 1\ny = x.clone()\ndist.all_reduce(y)"),
            ("f", "%%px\nrank, x.tolist(), y.tolist()"),
        ):
            in_cell(notebook, code, key)
        in_cell(notebook, 'lab.script("magics.py")', "g")
    ranks = printed(command("magics.py", 2), tmp_path, 2)
    assert ranks == [["(0, [3.0], [7.0])"], ["only 1", "(1, [4.0], [7.0])"]]


def test_what_the_learner_wrote_is_never_lost(lab: Any, folder: Path):
    file = folder / "mine.py"
    lab.run("x = rank")
    lab.script("mine.py")
    first = file.read_text()
    lab.script("mine.py")
    assert file.read_text() == first
    for text, why in ((f"{first}# mine\n", "changed"), (first.replace("rank", "rang", 1), "changed"), ("", "written")):
        file.write_text(text)
        with pytest.raises(LabError, match=f"{why}.*overwrite=True"):
            lab.script("mine.py")
        assert file.read_text() == text
    lab.script("mine.py", overwrite=True)
    assert file.read_text() == first


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"file": "mean"}, r"lab\.script\('mean\.py'\)"),
        ({"file": "my mean.py"}, r"lab\.script\('my_mean\.py'\)"),
        ({"file": "random.py"}, r"Python's module random.*lab\.script\('my_random\.py'\)"),
        ({"file": "a.py", "cells": [99]}, "no such cell has run.*numbers in brackets"),
        ({"file": "a.py", "last": 0}, "last=2"),
    ],
)
def test_a_wish_that_cannot_be_met_says_what_to_do(lab: Any, folder: Path, asked: dict[str, Any], said: str):
    lab.run("x = rank")
    with pytest.raises(LabError, match=said):
        lab.script(**asked)
    assert list(folder.iterdir()) == []


def test_before_the_first_cell_there_is_nothing_to_write(folder: Path):
    with labkit.start(1) as lab:
        with pytest.raises(LabError, match="No cell has run"):
            lab.script("a.py")
        with pytest.raises(CellError):
            lab.run("1 / 0")
        with pytest.raises(LabError, match=r"nothing to write.*Run a %%px cell"):
            lab.script("a.py")
    assert list(folder.iterdir()) == []
