"""A check in a notebook: attempts are kept, Stop is heard, and lines are the editor's."""

from __future__ import annotations

import re
import signal

import pytest

import labkit
from labkit.cluster.engines import Engines
from labkit.content import exercises
from labkit.faces import progress
from labkit.floor.errors import StoppedError
from labkit.theory import collectives
from tests.live.checked import RIGHT, SOME, WELL, checked
from tests.live.notebook import Notebook
from tests.live.processes import eventually


@pytest.fixture(scope="module")
def lab():
    with labkit.start(4, timeout=2) as lab:
        yield lab


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_PROGRESS", str(tmp_path))
    return tmp_path


def test_an_attempt_is_kept_before_it_runs_and_a_solution_counts(lab, place):
    lab.run("def hello_sum(x):\n    return x")
    verdict = lab.check("hello_sum")
    assert (verdict.state, progress.read()["hello_sum"]["state"]) == ("wrong", "tried")
    assert progress.last("hello_sum") == "%%px\ndef hello_sum(x):\n    return x\n"
    assert ".hint()" in repr(verdict)
    lab.run(lab.exercise("hello_sum").solution().code.removeprefix("%%px\n"))
    verdict = lab.check("hello_sum")
    assert progress.read()["hello_sum"]["state"] == "solved"
    assert progress.mine("hello_sum") == (exercises.find("hello_sum").answer, True), "what was found right is used"
    assert (place / "hello_sum-1.py").read_text() == "%%px\ndef hello_sum(x):\n    return x\n", "the first try is kept"
    assert "Next: " in repr(verdict)
    assert "● solved" in repr(lab.exercise("hello_sum"))
    assert lab.progress().solved == 1


def test_who_writes_what_the_workbook_has_and_has_not_seen_it_has_solved_it(lab, place):
    answer = exercises.find("hello_sum").answer
    lab.run(answer.removeprefix("%%px\n"))
    assert lab.check("hello_sum").state == "right"
    assert progress.mine("hello_sum") == (answer, True)
    assert repr(lab.use("hello_sum")) == "The ranks use your hello_sum."


def test_after_a_worse_attempt_ones_own_solution_comes_back(lab, place):
    for body in ("comms.all_reduce(x)", "-x"):
        lab.run(f"def hello_sum(x):\n    return {body}")
        lab.check("hello_sum")
    assert lab.exercise("hello_sum").mine().code == "%%px\ndef hello_sum(x):\n    return comms.all_reduce(x)\n"
    assert "brings your solution back" in repr(lab.exercise("hello_sum"))


def test_an_attempt_is_known_in_the_next_kernel(lab, place):
    code = "def hello_sum(x):\n    return -x\n"
    lab.run(code)
    assert lab.check("hello_sum").state == "wrong"
    with Notebook(LABKIT_PROGRESS=str(place)) as notebook:
        notebook.value("from labkit import start\nlab = start(1)")
        assert "◐ tried" in notebook.value("lab.exercise('hello_sum')")
        assert notebook.value("lab.exercise('hello_sum').mine().code") == repr(f"%%px\n{code}")


def test_a_small_lab_says_which_numbers_of_ranks_it_left_out(notebook):
    notebook.value("from labkit.theory import collectives")
    notebook.value(f"%%px\n{RIGHT}")
    told = notebook.value("lab.check('f', means=collectives.all_reduce)")
    assert told == "✓ f: right on 16 inputs.\nNot run on 4 ranks: this lab has 3."


def test_a_function_that_was_written_last_in_the_notebook_is_not_checked_as_the_ranks_have_it(notebook):
    notebook.value("from labkit.theory import collectives")
    notebook.value(f"%%px\n{RIGHT}")
    wrong = RIGHT.replace("return y", "return -y")
    check = "lab.check('f', means='all_reduce')"
    assert notebook.value(check).startswith("✓ f: right")
    notebook.value(wrong)
    assert notebook.value(check) == (
        "○ f: not on the ranks.\n"
        "f was last defined in the notebook, not on the ranks. Begin its cell with %%px and run it again."
    )
    notebook.value(f"%%px\n{wrong}")
    assert notebook.value(check).startswith("✗ f: wrong.")
    notebook.value("g = 3")
    notebook.value("def ring(x):\n    return x")
    assert "ring was last defined in the notebook" in notebook.value("lab.check('ring', means='all_reduce')")


def test_a_misspelt_function_is_named_beside_the_verdict_on_the_old_one(notebook):
    notebook.value("%%px\ndef my_sum(x):\n    ...")
    notebook.value("%%px\ndef my_smu(x):\n    return comms.all_reduce(x)")
    told = notebook.value("lab.check('my_sum', means='all_reduce')")
    assert "my_sum is still empty." in told
    assert "There is a newer function my_smu. If you meant my_sum, write its name so" in told
    notebook.value("%%px\ndef my_sum(x):\n    return comms.all_reduce(x)")
    assert "my_smu" not in notebook.value("lab.check('my_sum', means='all_reduce')")


def test_a_second_check_of_one_cell_says_which_it_was(notebook):
    cell = "%%px\ndef same_sum(x):\n    return comms.all_reduce(x)"
    notebook.value(cell)
    assert "Checked is" not in notebook.value("lab.check('same_sum', means='all_reduce')")
    number = int(notebook.value("len(In) - 3"))
    again = notebook.value("lab.check('same_sum', means='all_reduce')")
    assert again.startswith("✓ same_sum: right on 16 inputs.")
    assert f"Checked is same_sum as cell [{number}] has defined it. If you have changed that cell since, run" in again
    notebook.value(cell)
    assert "Checked is" not in notebook.value("lab.check('same_sum', means='all_reduce')")


def test_stop_ends_a_check_and_the_ranks_are_well(notebook, tmp_path):
    notebook.value(f"%%px\ndef f(x):\n    open(f'{tmp_path}/{{rank}}', 'w').close()\n    while True: pass")
    notebook.value("from labkit.theory import collectives")
    running = notebook.send("lab.check('f', means=collectives.all_reduce)")
    assert eventually(lambda: len(list(tmp_path.iterdir())) == 2)
    notebook.interrupt()
    cell = notebook.wait(running)
    assert cell.status == "ok", cell.traceback
    assert cell.result.startswith("○ f: stopped.")
    after = notebook.run("%%px\ny = torch.ones(1)\ndist.all_reduce(y)\nprint(int(y), world_size)")
    assert (after.error, after.stdout) == ("", "ranks 0–2 │ 3 3\n")


def test_stop_ends_a_check_whose_ranks_wait(notebook, tmp_path):
    """Rank 0 computes for ever, so that no hopeless wait ends the run before Stop does."""
    begun = f"    open(f'{tmp_path}/{{rank}}', 'w').close()\n"
    code = f"{begun}    while rank == 0: pass\n    dist.all_reduce(y)\n    return y"
    notebook.value(f"%%px\n{SOME}{code}")
    running = notebook.send("from labkit.theory import collectives\nlab.check('f', means=collectives.all_reduce)")
    assert eventually(lambda: len(list(tmp_path.iterdir())) == 2)
    notebook.interrupt()
    cell = notebook.wait(running)
    assert (cell.status, cell.result.split(".")[0]) == ("ok", "○ f: stopped")
    after = notebook.run("%%px\ny = torch.ones(1)\ndist.all_reduce(y)\nprint(int(y), world_size)")
    assert (after.error, after.stdout) == ("", "ranks 0–2 │ 3 3\n")


@pytest.mark.parametrize(
    ("moment", "told"),
    [("begin", "You stopped the check."), ("finish", "You pressed Stop when the ranks had finished.")],
)
def test_stop_before_the_first_run_and_after_the_last_one_is_heard_and_tears_nothing_in_two(
    lab, monkeypatch, moment, told
):
    lab.run(f"keep = 100 + rank\n{RIGHT}")
    really = Engines.call

    def pressed(engines, path, *args, **options):
        if path == f"labkit.rank.function.{moment}":
            signal.raise_signal(signal.SIGINT)
        return really(engines, path, *args, **options)

    monkeypatch.setattr(Engines, "call", pressed)
    try:
        said = repr(lab.check("f", means=collectives.all_reduce))
    except StoppedError as error:
        said = str(error)
    assert told in said
    monkeypatch.undo()
    assert lab.run(WELL) == [f"{r} 4 4 4 {100 + r}\n" for r in range(4)]
    assert checked(lab, RIGHT).ok


def test_in_a_notebook_line_numbers_are_the_editors_and_code_comes_into_a_new_cell(notebook, place):
    notebook.value(f"import os; os.environ['LABKIT_PROGRESS'] = {str(place)!r}")
    notebook.value("%%px\n\ndef hello_sum(x):\n    if rank == 1:\n        raise KeyError(3)\n    return x")
    cell = notebook.run("lab.check('hello_sum')")
    assert "Line 5 of the cell: raise KeyError(3)" in cell.result
    assert cell.status == "ok"
    notebook.value("first = get_ipython().set_next_input; put = []")
    notebook.value("get_ipython().set_next_input = put.append")
    notebook.value("_ = lab.exercise('hello_sum').mine(), lab.exercise('hello_sum').solution()")
    assert notebook.value("put[0]") == repr(
        "%%px\n\ndef hello_sum(x):\n    if rank == 1:\n        raise KeyError(3)\n    return x"
    )
    assert notebook.value("put[1].startswith('%%px\\ndef hello_sum')") == "True"


@pytest.mark.parametrize("n", [2, 3])
def test_a_rank_that_dies_before_the_first_run_on_n_ranks_gets_its_functions_back_and_the_verdict_is_right(
    lab, monkeypatch, capsys, n
):
    lab.run(f"keep = 100 + rank\n{RIGHT}")
    really, killed = Engines.call, []

    def kills(engines, path, args, *rest, **options):
        if path == "labkit.rank.function.begin" and args[0][0] == n and not killed:
            killed.append(engines.kill(2))
        return really(engines, path, args, *rest, **options)

    monkeypatch.setattr(Engines, "call", kills)
    assert lab.check("f", means=collectives.all_reduce).state == "right"
    assert killed
    assert re.match(r"Rank 2 was started anew, with .*\bf again, without variables", capsys.readouterr().out)
    lab.run("f(torch.ones(1))")
