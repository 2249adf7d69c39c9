"""A slip in a cell of the notebook's own: what is said behind its error leads to the cell that works."""

from __future__ import annotations

import pytest

from labkit.cluster import error_hints
from tests.live.notebook import Notebook

HERE = "and this cell ran in the notebook. Begin it with %%px."


@pytest.fixture(scope="module")
def notebook():
    with Notebook() as notebook:
        assert notebook.run("from labkit import start\nlab.look('x')").stdout == (
            "lab is what start() returns. Run the cell with lab = start() first.\n"
        )
        notebook.value("lab = start(2, timeout=20)")
        notebook.value("%%px\nx = torch.ones(2) * rank\ndef hello_sum(x):\n    return comms.all_reduce(x)")
        yield notebook


@pytest.mark.parametrize("name", sorted(error_hints.GIVEN))
def test_a_forgotten_px_is_said_behind_the_name_error(notebook, name):
    cell = notebook.run(f"print({name})")
    assert cell.error == f"NameError: name '{name}' is not defined"
    assert cell.stdout == f"{name} lives on the ranks, and this cell ran in the notebook. Begin it with %%px.\n"


def test_a_name_that_the_learner_s_cells_gave_the_ranks_is_known_too(notebook):
    notebook.value("%%px\nkept_there = 3")
    told = "kept_there lives on the ranks, and this cell ran in the notebook. Begin it with %%px.\n"
    assert notebook.run("print(kept_there)").stdout == told


def test_other_errors_and_cells_of_the_ranks_are_left_alone(notebook):
    for code in (
        "print(nowhere)",
        "x = (1,\nfor",
        "%nothing",
        "%%px --nonsense\n1",
        "lab.look('x').nothing",
        "1 / 0",
        "raise NameError('dist')",
        "%%px\nprint(nowhere)",
        "%%px\ndist.nothing",
    ):
        cell = notebook.run(code)
        assert (cell.status, cell.stdout) == ("error", ""), code
    assert notebook.run("rank = 3\nprint(rank)\ndel rank").stdout == "3\n"


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("lab.look(x)", 'x lives on the ranks. Put quotes around it: lab.look("x").'),
        ("a = 1\nlab.look(x[0] + 1)", 'x lives on the ranks. Put quotes around it: lab.look("x[0] + 1").'),
        ("lab.check(hello_sum)", 'hello_sum lives on the ranks. Put quotes around it: lab.check("hello_sum").'),
        ("lab.check(hello_sum, means='all_reduce')", "around it: lab.check(\"hello_sum\", means='all_reduce')."),
        ("lab.wire(dist.all_reduce(x))", 'Put quotes around it: lab.wire("dist.all_reduce(x)").'),
        ("lab.run(print(rank))", 'Put quotes around it: lab.run("print(rank)").'),
        ("lab.flow(dist.all_reduce(x), x)", 'Put quotes around it: lab.flow("dist.all_reduce(x)", "x").'),
        ("lab.flow(x)", "Begin a cell with %%flow x to follow it through that cell."),
        ("lab.late(dist.barrier(), 1)", 'lab.late("dist.barrier()", 1).'),
        ("def shown():\n    return lab.look(x)\nshown()", 'Put quotes around it: lab.look("x").'),
        ("lab.exercise(ring_shift)", 'around it: lab.exercise("ring_shift").'),
        ("lab.look(nowhere)", 'lab.look takes what the ranks should read as text. Put quotes around it: lab.look("now'),
        ("x.look()", 'x lives on the ranks. To ask the ranks, write lab.look("x").'),
        ("lab.push(y=x)", 'Fetch it first, a value per rank: x = lab.pull("x").'),
        ("print(x, lab.n)", "x lives on the ranks, and this cell ran in the notebook. Begin it with %%px."),
        ("print(lab.look('x'), x)", "Move its line into a cell that begins with %%px."),
        ("look('x')", "look is a method of lab: write lab.look(…)."),
        ("lab.Look('x')", "Did you mean lab.look?"),
        ("lab.exercise('hello_sum').hints()", "Did you mean .hint?"),
        ("lab.last.timelines()", "Did you mean .timeline?"),
        ("import torch.distributed\ntorch.distributed.get_rank()", "Begin the cell with %%px: the ranks run it."),
        ("lab.px('print(rank)')", "Begin a cell with %%px for that."),
        ("lab.look x", 'Write it with brackets and quotes: lab.look("x").'),
        ("lab.flow x", "Begin a cell with %%flow x; what the ranks should run stands below."),
        ("%% px\nprint(rank)", "Write %%px: two %, no blank behind them, small letters."),
        ("%%PX\nprint(rank)", "Write %%px: two %, no blank behind them, small letters."),
        ("%%pxx\nprint(rank)", "Write %%px: two %, no blank behind them, small letters."),
        ("%%flwo x\nprint(rank)", "Write %%flow x: two %, no blank behind them, small letters."),
        ("# mine\n%%px\nprint(rank)", "Let %%px be the first line of its cell, at the very left."),
        ("  %%px\nprint(rank)", "Let %%px be the first line of its cell, at the very left."),
        ("%%px --rank 0\nprint(rank)", "ranks are chosen with %%px --targets 0,2."),
        ("%%px 0\nprint(rank)", "ranks are chosen with %%px --targets 0,2."),
    ],
)
def test_what_is_said_leads_to_what_works(notebook, cell, said):
    ended = notebook.run(cell)
    assert ended.status == "error"
    assert ended.stdout.rstrip().endswith(said) or said in ended.stdout


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        (
            "%px\nprint(rank)",
            "%px runs the rest of its line, and there is none. For a whole cell write %%px, with two %.",
        ),
        ("%flow x\nprint(rank)", "%flow stands over a whole cell: write %%flow x, with two %."),
        ("%%flow x y\ny = x", "Say which value to follow: %%flow x, or %%flow x -> y"),
    ],
)
def test_a_magic_that_cannot_mean_a_cell_says_how_it_is_written(notebook, cell, said):
    ended = notebook.run(cell)
    assert said in ended.stderr + ended.stdout


@pytest.mark.parametrize(
    "call",
    ["look", "pull", "wire", "run", "check", "exercise", "use", "curves", "moves", "script", "times", "bars", "race"],
)
def test_a_value_of_the_notebooks_where_text_is_wanted_is_refused_in_a_sentence(notebook, call):
    error = notebook.run(f"lab.{call}(3)").error
    assert error.startswith("LabError: ")
    assert "quotes" in error
    assert "quotes" in notebook.run(f"lab.{call}(lab.exercise('hello_sum'))").error


def test_a_name_in_quotes_behind_flow_is_that_name(notebook):
    assert "Σ 0,1" in notebook.value('%%flow "x"\ndist.all_reduce(x)')


def test_a_call_of_lab_on_the_ranks_is_sent_back_to_the_notebook_and_the_notebooks_names_to_the_ranks(notebook):
    told = notebook.run("%%px\nlab.look('x')").traceback
    assert "lab lives in the notebook: run this line in a cell of its own, without %%px" in told
    told = notebook.run("lr = 0.1\nget_ipython().run_cell_magic('px', '', 'print(lr)')").traceback
    assert "lr lives in the notebook, and this cell ran on the ranks: give it to them with lab.push(lr=lr)" in told


def test_what_a_collective_returns_and_a_later_cell_uses_is_said_to_be_none(notebook):
    notebook.value("%%px\nkept = torch.ones(1)\nkept = dist.all_reduce(kept)")
    assert "dist.all_reduce returns None" in notebook.run("%%px\nkept + 1").traceback
