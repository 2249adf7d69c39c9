"""lab.look, lab.pull, lab.push and lab's own displays on real ranks; what they look like is tests/test_look.py's."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from labkit import LabError
from tests.live.processes import eventually, states


def test_look_shows_one_row_a_rank_and_says_what_differs(lab):
    lab.run("x = torch.arange(2.) + rank")
    shown = repr(lab.look("x"))
    assert "different on every rank" in shown
    assert [line.split(" │ ")[0] for line in shown.splitlines()[1:]] == ["rank 0", "rank 1", "rank 2"]
    assert "same on all ranks" in repr(lab.look("world_size"))


def test_look_tells_a_missing_name_from_an_expression_that_raises(lab):
    lab.run("if rank: y = 1\nelse: globals().pop('y', None)")
    missing = repr(lab.look("y")).splitlines()
    assert "rank 0" in missing[1]
    assert "1" not in missing[1].split("│")[1]
    assert "ZeroDivisionError" in repr(lab.look("1 / rank"))
    assert "ZeroDivisionError" not in repr(lab.look("y"))


def test_look_takes_what_cannot_be_pickled(lab):
    lab.run(
        "import threading\nlock = threading.Lock()\nclass Own:\n    pass\nown = Own()\nmodel = torch.nn.Linear(2, 2)"
    )
    for name in ("lock", "own", "model", "lambda: 0", "dist.group.WORLD"):
        assert "rank" in repr(lab.look(name))
        assert "<table" in lab.look(name)._repr_html_()


def test_looking_leaves_no_name_on_the_ranks(lab):
    lab.run("x = torch.ones(2)\nbefore = None\nbefore = set(globals())")
    lab.look("x")
    lab.look("sorted(globals())")
    assert lab.run("print([n for n in set(globals()) - before if n[:2] != '_i'])") == ["[]\n"] * 3


def test_pull_brings_plain_values_in_the_order_of_the_ranks(lab):
    lab.run("x = torch.ones(2, dtype=torch.bfloat16) * rank")
    first, second, third = lab.pull("{'x': x, 'list': [rank, (None, 'a')]}")
    assert isinstance(second["x"], np.ndarray)
    assert second["x"].tolist() == [1.0, 1.0]
    assert [v["list"] for v in (first, second, third)] == [[r, [None, "a"]] for r in range(3)]


@pytest.mark.parametrize("value", ["lambda: 0", "type('Own', (), {})()", "dist.group.WORLD", "iter([])", "{1, 2}"])
def test_what_cannot_leave_its_rank_is_refused_and_the_lab_lives_on(lab, value):
    with pytest.raises(LabError, match=r"ranks 0–2: TypeError: .* cannot leave its rank; pull numbers"):
        lab.pull(value)
    assert lab.pull("rank") == [0, 1, 2]


def test_a_name_that_some_ranks_lack_is_refused_with_these_ranks_and_what_to_do(lab):
    lab.run("globals().pop('z', None)\nif rank == 1: z = 1")
    with pytest.raises(LabError) as caught:
        lab.pull("z")
    assert str(caught.value) == (
        "ranks 0, 2: NameError: name 'z' is not defined. "
        "Make 'z' on every rank in a %%px cell first; lab.look('z') shows who has it."
    )


@pytest.mark.parametrize("wrong", ["1 +", "x = 1", ""])
def test_what_is_no_expression_is_refused(lab, wrong):
    with pytest.raises(LabError):
        lab.pull(wrong)
    assert "rank" in repr(lab.look(wrong))


def test_push_gives_every_rank_the_same(lab):
    lab.push(lr=0.1, names=["a", {"b": (1, None)}], grid=np.arange(6).reshape(2, 3))
    assert lab.pull("(lr, names, grid.tolist())") == [[0.1, ["a", {"b": [1, None]}], [[0, 1, 2], [3, 4, 5]]]] * 3


@pytest.mark.parametrize("value", [lambda: 0, object(), iter([1]), open(os.devnull)])  # noqa: SIM115
def test_pushing_what_cannot_cross_is_refused_and_the_lab_lives_on(lab, value):
    with pytest.raises(LabError, match=r"^x: a \w+ cannot cross to the ranks\."):
        lab.push(x=[{"deep": value}])
    assert lab.run("print(rank)") == ["0\n", "1\n", "2\n"]


def died(lab, rank):
    os.kill(lab._engines.members[rank].pid, signal.SIGKILL)
    assert eventually(lambda: states(lab)[rank] == "dead")


def test_pulling_from_a_rank_that_has_died_finds_it_replaced(lab):
    died(lab, 1)
    assert lab.pull("rank") == [0, 1, 2]
    died(lab, 2)
    assert "rank 2" in repr(lab.look("rank"))


def test_an_expression_that_ends_its_rank_is_an_error_and_the_lab_lives_on(lab):
    lab.run("import os")
    with pytest.raises(LabError, match=r"^rank 1 died \(exit code 1\)$"):
        lab.pull("os._exit(1) if rank == 1 else rank")
    assert lab.pull("rank") == [0, 1, 2]


def test_the_lab_shows_a_row_a_rank_with_what_the_ranks_say_of_themselves(lab):
    lab.heal()
    shown = repr(lab)
    for told in lab.pull("(rank, __import__('os').getpid())"):
        assert f"rank {told[0]}" in shown
        assert str(told[1]) in shown
    assert "<table" in lab._repr_html_()


def test_a_dead_rank_shows_in_the_lab_and_its_table(lab):
    died(lab, 1)
    assert states(lab) == ["idle", "dead", "idle"]
    assert "dead" in repr(lab)
    lab.heal()


def test_ranks_that_are_none_are_refused(lab):
    for ranks in (3, -1, [0, 7], [], "all", [0.5]):
        with pytest.raises(LabError, match="ranks 0 to 2"):
            lab.run("1", ranks)


def test_curves_are_drawn_of_the_ranks_that_have_them(lab):
    lab.run("losses = [3.0 - rank, 2.0, torch.tensor(1.0)]")
    lab.run("more = torch.tensor([3.0, 2.0])", ranks=1)
    assert lab.curves("losses", "more").values == {
        "losses": {r: [3.0 - r, 2.0, 1.0] for r in range(3)},
        "more": {1: [3.0, 2.0]},
    }
    with pytest.raises(LabError, match=r"lost.*in a %%px cell first"):
        lab.curves("lost")
    with pytest.raises(LabError, match="needs a list to draw"):
        lab.curves()
