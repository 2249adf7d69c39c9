"""lab.use gives the ranks the learner's function where one was right, else the workbook's, and says which."""

from __future__ import annotations

import signal

import pytest

import labkit
from labkit.content import exercises
from labkit.faces import progress
from labkit.floor.errors import LabError

NAME = "hello_sum"
MINE = "def hello_sum(x):\n    return comms.all_reduce(x)  # mine\n"
YOURS = f"The ranks use your {NAME}."
WORKBOOKS = f'The ranks use the workbook\'s {NAME}, until `lab.check("{NAME}")` finds yours right.'
CALL = f"import inspect\nprint(int({NAME}(torch.ones(1))), '# mine' in inspect.getsource({NAME}))"


@pytest.fixture(scope="module")
def lab():
    with labkit.start(4, timeout=2) as lab:
        yield lab


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_PROGRESS", str(tmp_path))
    return tmp_path


@pytest.fixture
def solved(lab):
    """The learner has found it, in a cell that does more than define it."""
    lab.run(f"# %%px\nSEEN = ['a', 'list']\n{MINE}SEEN.append({NAME}(torch.ones(1)))\nprint('once')")
    assert lab.check(NAME).ok


def holds(lab, mine: bool):
    assert lab.run(CALL) == [f"4 {mine}\n"] * 4


def test_it_is_the_workbooks_until_ones_own_is_right(lab):
    assert "Write it in the cell below, run that, then" in repr(lab.exercise(NAME))
    lab.run(exercises.find(NAME).stub.removeprefix("%%px\n"))
    assert repr(lab.use(NAME)) == WORKBOOKS
    holds(lab, mine=False)
    lab.run("def hello_sum(x):\n    return -x")
    assert not lab.check(NAME).ok
    assert repr(lab.use(NAME)) == WORKBOOKS
    holds(lab, mine=False)


def test_it_is_ones_own_from_then_on_also_after_a_stub_and_a_worse_attempt(lab, solved, capsys):
    for code in (exercises.find(NAME).stub.removeprefix("%%px\n"), "def hello_sum(x):\n    return -x"):
        lab.run(code)
        lab.check(NAME)
        capsys.readouterr()
        assert repr(lab.use(NAME)) == YOURS
        assert "once" not in capsys.readouterr().out, "what the cell did besides is not done again"
        holds(lab, mine=True)
    assert lab.check(NAME).ok
    assert progress.read()[NAME]["solved"] == 1, "checking what lab.use has put there is no new attempt"
    assert progress.read()[NAME]["attempts"] == 2


def test_the_solution_that_was_shown_is_used_once_it_was_found_right(lab):
    lab.run("def hello_sum(x):\n    return -x")
    assert not lab.check(NAME).ok
    assert lab.exercise(NAME).solution().code
    lab.run("# " + exercises.find(NAME).answer)
    assert lab.check(NAME).ok
    lab.run("def hello_sum(x): ...")
    assert repr(lab.use(NAME)) == YOURS
    holds(lab, mine=False)
    facts = progress.read()[NAME]
    assert (facts["state"], facts["solved"], facts.get("best")) == ("solved", 2, None)


def test_a_solution_that_was_shown_takes_no_own_solution_s_place(lab, solved):
    assert lab.exercise(NAME).solution().code
    lab.run("# " + exercises.find(NAME).answer)
    assert lab.check(NAME).ok
    assert repr(lab.use(NAME)) == YOURS
    holds(lab, mine=True)
    assert "# mine" in lab.exercise(NAME).mine().code


def test_several_at_once_are_told_one_by_one(lab, solved):
    told = lab.use("naive_all_reduce", NAME)
    assert repr(told).split("\n\n") == [
        WORKBOOKS.replace(NAME, "naive_all_reduce"),
        YOURS,
    ]
    assert YOURS in told._repr_html_()
    with pytest.raises(LabError, match="Did you mean 'hello_sum'"):
        lab.use("hello_sums")
    with pytest.raises(LabError, match="which functions"):
        lab.use()


@pytest.mark.parametrize("mine", [True, False])
def test_a_rank_that_dies_later_has_it_again(lab, mine, request):
    if mine:
        request.getfixturevalue("solved")
    lab.run("def hello_sum(x): ...")
    lab.use(NAME)
    lab._engines.signal([2], signal.SIGKILL)
    lab._engines.await_end(2)
    holds(lab, mine)


def test_a_check_does_not_grade_what_is_the_workbooks(lab):
    lab.use(NAME)
    verdict = lab.check(NAME)
    assert verdict.state == "elsewhere"
    (said,) = verdict.says
    assert said.startswith(f'lab.use("{NAME}") has put the workbook\'s {NAME} on the ranks. Run the cell with your own')
    assert progress.read() == {}
    lab.run(MINE)
    assert lab.check(NAME).ok


@pytest.mark.parametrize(
    ("kept", "why"),
    [
        ("%%px\ndef hello_sum(x:\n", "SyntaxError"),
        ("%%px\nimport no_such_module\ndef hello_sum(x):\n    return x\n", "No module named 'no_such_module'"),
        ("%%px\ndef other(x):\n    return x\n", "its cell defines no function hello_sum"),
        ("%%px\ndef hello_sum(x):\n    return my_sum(x)\n", "it uses my_sum, which the ranks do not have"),
    ],
)
def test_a_kept_version_that_no_longer_works_gives_way_to_the_workbooks(lab, solved, place, kept, why):
    lab.run("globals().pop('hello_sum', None)")
    (place / f"{NAME}-1.py").write_text(kept)
    told = repr(lab.use(NAME))
    assert told.startswith(f"{WORKBOOKS} The one that was right on 24 inputs does not work now: ")
    assert why in told
    holds(lab, mine=False)


def test_an_unchanged_specimen_is_shown_at_fault_and_is_no_attempt(lab, monkeypatch):
    from dataclasses import replace

    def unsummed(x):
        """Return it."""
        return x

    broken = replace(exercises.find(NAME), specimen=unsummed)
    monkeypatch.setitem(exercises.every(), NAME, broken)
    assert "Repair it in the cell below, run that, then" in repr(lab.exercise(NAME))
    lab.run(broken.stub.removeprefix("%%px\n"))
    assert lab.check(NAME).state == "wrong"
    assert progress.read() == {}
    lab.run("def hello_sum(x):\n    return x + 1\n")
    assert lab.check(NAME).state == "wrong"
    assert progress.read()[NAME]["attempts"] == 1
