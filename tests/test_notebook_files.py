"""The notebooks obey the rules and lie in normal form; each rule finds the fault planted against it."""

from __future__ import annotations

from pathlib import Path

import lint_notebooks
import nbformat
import normal_form
import pytest
from cells import DIFFERS
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

START = new_code_cell("from labkit import start\n\nlab = start()")
STOP = new_code_cell("lab.stop()")


def lesson(*sources: str) -> nbformat.NotebookNode:
    """A notebook that starts a lab, runs these cells and stops it."""
    return new_notebook(cells=[START, *map(new_code_cell, sources), STOP])


def lint(nb: nbformat.NotebookNode) -> list[str]:
    """Every fault as `[cell] message`."""
    return [f"[{cell.number if cell else '-'}] {message}" for cell, message in lint_notebooks.faults(nb)]


def test_a_good_lesson_has_no_fault():
    px = "%%px --targets 0,2\nx = torch.arange(4.0) + 10 * rank\ndist.all_reduce(x)\nx"
    flow = "%%flow x\ndist.all_reduce(x)\nout = comms.all_gather(x)"
    assert lint(lesson(px, flow, "lab.look('x')".replace("'", '"'), "%px dist.barrier()")) == []


def test_a_name_that_labkit_or_push_puts_on_the_ranks_is_known():
    used = "%%px\nprint(torch, dist, rank, world_size, device, comms, timed, tiny, footprint, peak, span, lr)"
    assert lint(lesson("lab.push(lr=0.1)", used)) == []
    assert lint(lesson(used)) == ["[2] line 2: F821 Undefined name `lr`"]


@pytest.mark.parametrize(
    ("sources", "fault"),
    [
        (["%%px\nx = torhc.ones(1)"], "[2] line 2: F821 Undefined name `torhc`"),
        (["%%flow x\n\ndist.all_reduce(y)"], "[2] line 3: F821 Undefined name `y`"),
        (["%%px\nimport os\nx = 1"], "[2] line 2: F401"),
        (["%%px\nx = (1"], "[2] line 2: invalid-syntax"),
        (["%px x = lost"], "[2] line 1: F821 Undefined name `lost`"),
        (["%%px\nx=1"], "[2] is not formatted"),
        (["import torch"], "[2] imports torch in the notebook's own process"),
        (["def late():\n    from torch import nn\n"], "[2] imports torch.nn"),
        (["from labkit.rank import comms"], "[2] imports labkit.rank.comms"),
        (["\n".join(f"x{i} = {i}" for i in range(16))], "[2] has 16 lines"),
        (["x = ("], "[2] line "),
        (["x = lost"], "[2] line 1: F821 Undefined name `lost`"),
        (["# NBVAL_SKIP\nlab"], "[2] switches its own check off"),
    ],
)
def test_a_planted_fault_is_found_and_its_place_named(sources: list[str], fault: str):
    assert any(line.startswith(fault) for line in lint(lesson(*sources)))


def test_an_unknown_name_may_be_the_lesson_where_the_cell_is_tagged_so():
    nb = lesson("rank", "%%px\nlost")
    assert len(lint(nb)) == 2
    for cell in nb.cells[1:3]:
        cell.metadata["tags"] = ["raises-exception"]
    assert lint(nb) == []


def on_card(words: int) -> nbformat.NotebookNode:
    shown = {
        "text/html": f"<div class='labkit-card'><b>Exercise</b><svg>in a picture</svg>{' word' * (words - 1)}</div>"
    }
    return new_code_cell('lab.exercise("f")', outputs=[new_output("execute_result", shown)])


@pytest.mark.parametrize(
    ("most", "more", "fault"),
    [
        ([new_markdown_cell("why") for _ in range(38)], new_markdown_cell("why"), "[-] has 41 cells"),
        ([new_markdown_cell("why " * 1600)], new_markdown_cell("why"), "[-] has 1601 words of text"),
        ([on_card(1200)], on_card(1), "[-] has 1201 words of exercises' cards"),
    ],
)
def test_on_the_way_a_lesson_has_at_most_so_much_and_the_rest_is_optional_or_an_exercise(most, more, fault):
    assert lint(new_notebook(cells=[START, *most, STOP])) == []
    (found,) = lint(new_notebook(cells=[START, *most, more, STOP]))
    assert found.startswith(fault)
    for heading in "## Optional: more of it", "## Exercises":
        behind = [new_markdown_cell(heading), more, *(new_markdown_cell("why") for _ in range(40))]
        assert lint(new_notebook(cells=[START, *most, *behind, STOP])) == []


def test_an_optional_section_makes_no_name_that_is_needed_after_it():
    nb = lesson("one = 1", "%%px\ntwo = 2", "one", "%%px\ntwo")
    assert lint(nb) == []
    nb.cells.insert(1, new_markdown_cell("## Optional: names"))
    nb.cells.insert(4, new_markdown_cell("## On"))
    assert lint(nb) == [
        f"[{cell}] line {line}: F821 Undefined name `{name}`: only an optional section makes it (cells are counted "
        "without those)"
        for cell, line, name in ((2, 1, "one"), (3, 2, "two"))
    ]


def test_a_lesson_that_starts_a_lab_ends_by_stopping_it():
    (fault,) = lint(new_notebook(cells=[START, STOP, new_code_cell("lab")]))
    assert fault.startswith("[3] is the last")
    assert lint(new_notebook(cells=[new_code_cell("1 + 1")])) == [], "one that starts none has none to stop"


def test_fix_formats_the_cells_on_ranks_and_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "lesson.ipynb"
    nbformat.write(lesson("%%px\nx=1", "y=1"), path)
    monkeypatch.setattr("sys.argv", ["lint_notebooks.py", "--fix", str(path)])
    assert lint_notebooks.main() == 0
    after = nbformat.read(path, as_version=4).cells
    assert [cell.source for cell in after[1:3]] == ["%%px\nx = 1", "y=1"]


def executed(source: str, *outputs: nbformat.NotebookNode, tags: tuple[str, ...] = ()) -> nbformat.NotebookNode:
    """A notebook of one code cell, in normal form but for what the outputs bring."""
    cell = new_code_cell(source, execution_count=1, outputs=list(outputs), metadata={"tags": list(tags)})
    nb = normal_form.normalise(new_notebook(cells=[cell]))
    nb.cells[0].outputs = [nbformat.from_dict(output) for output in outputs]
    return nb


ERROR = new_output("error", ename="CellError", evalue="rank 2 died", traceback=["CellError: rank 2 died"])
VIEW = {"text/plain": "IntSlider()", "application/vnd.jupyter.widget-view+json": {"model_id": "ab12"}}


@pytest.mark.parametrize(
    ("nb", "fault"),
    [
        (executed("x", new_output("stream", text="\x1b[31mred\x1b[0m")), "has ANSI colour codes"),
        (executed("x", new_output("display_data", VIEW)), "holds a widget's view"),
        (executed("x", new_output("display_data", {"a/b": "c"}, metadata={"w": 1})), "has output metadata"),
        (executed("x", ERROR), "ended in an error"),
        (executed("x", ERROR | {"traceback": ["a", "b"]}, tags=("raises-exception",)), "has a traceback"),
        (executed("f()", tags=("raises-exception",)), "is tagged raises-exception and raised nothing"),
        (executed("x = 1\nx"), "has no output"),
        (executed("%%px\nprint(rank)"), "has no output"),
        (executed("%%flow x\ndist.all_reduce(x)"), "has no output"),
        (executed("x", *[new_output("stream", text="a\n")] * 2), "is not in normal form"),
    ],
)
def test_a_file_that_is_not_in_normal_form_is_named(nb: nbformat.NotebookNode, fault: str):
    (message,) = [m for _, m in normal_form.faults(normal_form.serialised(nb)) if m.startswith(fault)]
    assert message


def test_a_cell_that_may_show_nothing_needs_no_output():
    for source in ("x = 1", "f()", "lab.stop()", "%%capture\nprint(1)", "%time x", "%%px\ny = x"):
        assert list(normal_form.faults(normal_form.serialised(executed(source)))) == [], source


def test_a_cell_that_raises_with_nccl_alone_shows_that_it_did_not():
    nb = executed("f()", tags=(DIFFERS, "raises-exception"))
    assert list(normal_form.faults(normal_form.serialised(nb))) == []


def test_the_rest_of_a_files_form_is_held_too():
    good = executed("f()", new_output("stream", text="a\n"))
    assert list(normal_form.faults(normal_form.serialised(good))) == []
    good.metadata["widgets"] = {"state": {}}
    assert [m for _, m in normal_form.faults(normal_form.serialised(good))] == ["holds widget state"]
    del good.metadata["widgets"]
    good.cells[0].execution_count = 7
    assert [m for _, m in normal_form.faults(normal_form.serialised(good))] == ["has the number 7, not 1"]
    big = executed("f()", new_output("stream", text="a" * normal_form.LARGEST))
    assert "over 400,000" in next(m for _, m in normal_form.faults(normal_form.serialised(big)))
