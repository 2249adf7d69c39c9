"""A learner's copy is read as it was written: its exercises, and the cell that each function is graded from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from labkit.content import exercises
from labkit.floor.errors import LabError
from labkit.grading.submission import CALL, Submission, read

KNOWN = exercises.every()
NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))
ROTATED = "%%px\ndef rotated(x):\n    return x\n"


def test_every_lessons_notebook_has_its_exercises_and_each_a_cell_that_defines_it():
    found = set()
    for path in NOTEBOOKS:
        copy = read(path)
        asked = {e.name for e in copy.exercises(KNOWN)}
        assert asked == {name for cell in copy.cells for _, name in CALL.findall(cell) if name in KNOWN}, path.name
        for name in asked:
            defining = copy.defining(name)
            assert defining is not None, name
            assert defining.error == "", name
            assert defining.is_of(KNOWN[name].stub), name
        found |= asked
    assert found == set(KNOWN)


def test_deleted_cells_do_not_make_a_lesson_shorter():
    assert len(Submission(('lab.check("repair_mean")',)).exercises(KNOWN)) == 10


def test_of_a_notebook_with_several_lessons_those_are_graded_that_it_names():
    both = Submission(
        ('lab.exercise("repair_mean")', "lab.check('ring_shift')", 'lab.check("mine", means="all_reduce")')
    )
    assert [e.name for e in both.exercises(KNOWN)] == ["ring_shift", "repair_mean"]


@pytest.mark.parametrize(
    ("cells", "source"),
    [
        ((ROTATED, "%%px\ndef rotated(x):\n    return x + 1\n"), "# %%px\ndef rotated(x):\n    return x + 1\n"),
        (("def rotated(x):\n    return x\n",), "def rotated(x):\n    return x\n"),
        (("%%px --targets 0\nrotated = lambda x: x",), "# %%px --targets 0\nrotated = lambda x: x"),
        (("rotated = torch.compile(turn)",), "rotated = torch.compile(turn)"),
        (("%%px\n%timeit 1\nrotated?\ndef rotated(x): ...",), "# %%px\n\n\ndef rotated(x): ..."),
        ((ROTATED, "%%px\nprint(rotated(1))", "%%bash\ndef rotated"), "# %%px\ndef rotated(x):\n    return x\n"),
    ],
    ids=["the last one", "without %%px", "a lambda", "made by a call", "beside magics", "not where it is called"],
)
def test_a_function_is_taken_from_the_last_cell_that_defines_it(cells: tuple[str, ...], source: str):
    defining = Submission(cells).defining("rotated")
    assert defining is not None
    assert (defining.source, defining.error) == (source, "")


@pytest.mark.parametrize(
    "cell", ["def outer():\n    def rotated(x): ...", "rotated = yours", "%%bash\ndef rotated", "rotated(x)"]
)
def test_what_defines_it_nowhere_at_the_top_is_no_attempt(cell: str):
    assert Submission((cell,)).defining("rotated") is None


def test_a_last_cell_that_is_no_python_counts_and_is_told_with_its_line():
    defining = Submission((ROTATED, "%%px\ndef rotated(x)\n    return x")).defining("rotated")
    assert defining is not None
    assert defining.error == "line 2: expected ':'"


@pytest.mark.parametrize(
    ("more", "alone"),
    [("print(rotated(1))", True), ("import math\nSIZE = 3", True), ("room = []", False), ("x = torch.ones(2)", False)],
)
def test_a_cell_runs_as_a_whole_only_where_it_makes_variables(more: str, alone: bool):
    defining = Submission((f"{ROTATED}{more}",)).defining("rotated")
    assert defining is not None
    assert defining.alone is alone


def test_the_ranks_get_their_own_cells_and_the_graded_functions():
    copy = Submission(("from labkit import start", "%%px\nimport math", "def rotated(x): ...", "def other(): ..."))
    assert copy.for_ranks(["rotated"]) == ["# %%px\nimport math", "def rotated(x): ..."]


@pytest.mark.parametrize("text", ["", "[]", '{"cells": 3}', json.dumps({"cells": [{"cell_type": "code"}]})])
def test_a_file_that_is_no_notebook_is_told(tmp_path: Path, text: str):
    path = tmp_path / "mine.ipynb"
    path.write_text(text)
    with pytest.raises(LabError, match="is not a notebook"):
        read(path)


def test_a_file_that_is_not_there_is_told(tmp_path: Path):
    with pytest.raises(LabError, match="cannot be read"):
        read(tmp_path / "none.ipynb")
