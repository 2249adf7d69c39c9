"""What a verdict shows of results, gradients, groups and output, and what cannot be checked at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

import labkit
from labkit.floor.errors import LabError
from labkit.grading import inputs
from labkit.grading.exercise import Case
from labkit.show.verdict import _drawing
from labkit.theory import collectives
from tests.live.checked import RIGHT, SOME, checked


@pytest.fixture(scope="module")
def lab():
    with labkit.start(4, timeout=2) as lab:
        yield lab


def test_where_ranks_differ_all_that_they_printed_is_shown_by_rank(lab):
    verdict = checked(lab, "def f(x):\n    print('I hold', len(x))\n    print('as rank', rank)\n    return x")
    assert "it printed: rank 0 │ I hold 4\nit printed: rank 0 │ as rank 0\nit printed: rank 1 │ I hold 4" in repr(
        verdict
    )


def test_a_function_that_differs_between_ranks_is_told(lab):
    lab.run(RIGHT)
    lab.run(RIGHT + " * 1", ranks=[2, 3])
    verdict = lab.check("f", means=collectives.all_reduce)
    assert verdict.says == ["Ranks 2, 3 hold a different f from rank 0's. Run its cell on all ranks."]
    lab.run("del f", ranks=[0])
    assert lab.check("f", means=collectives.all_reduce).says[0].startswith("Only ranks 1–3 have f.")
    lab.run("f = 3")
    assert "not a function but a value (int)" in repr(lab.check("f", means=collectives.all_reduce))


def test_in_place_kept_inputs_options_and_no_argument(lab):
    assert checked(lab, "def f(x):\n    dist.all_reduce(x)", in_place=True).ok
    verdict = checked(lab, "def f(x):\n    dist.all_reduce(x)\n    return x", keeps_input=True)
    assert "the argument is changed" in verdict.says[0]
    code = "def f(x, root):\n    y = x.clone()\n    dist.broadcast(y, root)\n    return y"

    def rooted(n):
        return [replace(case, options={"root": i % n}) for i, case in enumerate(inputs.vectors(n))]

    assert checked(lab, code, means=collectives.broadcast, inputs=rooted).ok
    nothing = inputs.options("", ("no argument",))
    assert checked(lab, "def f():\n    return rank", means=lambda xs: list(range(len(xs))), inputs=nothing).ok


def test_the_gradient_that_is_shown_is_that_of_the_argument_that_is_wrong(lab):
    code = "def f(a, b):\n    y = a + 2 * b.detach()\n    return y + 0 * b"
    two = [Case([(x, x + 1) for x in inputs.counting(n, 2)]) for n in (2,)]
    given = {"means": lambda xs: [a + 2 * b for a, b in xs], "inputs": lambda n: two, "ranks": (2,), "gradients": True}
    verdict = checked(lab, code, **given)
    assert "the gradient of argument 1 is wrong" in verdict.says[0]
    assert "→ gradient of argument 1: [0, 0]   should be: [2.0, 0.535]" in repr(verdict)


def test_a_matrix_is_shown_with_its_shape(lab):
    cases = [Case([x.reshape(2, 3) for x in inputs.counting(2, 6)])]
    verdict = checked(lab, "def f(x):\n    return x", inputs=lambda n: cases, ranks=(2,))
    assert "rank 0 │ [[0, 1, 2], [3, 4, 5]] → [[0, 1, 2], [3, 4, 5]]   should be: [[10, 12, 14], " in repr(verdict)
    drawing = _drawing(verdict._exercise, verdict._finding)
    assert [[len(group) for group in row] for column in drawing.columns for row in column] == [[3, 3]] * 6
    assert drawing.notes == ["Shapes of the input: (2, 3) on ranks 0, 1."]


def test_a_meaning_may_be_named(lab):
    assert checked(lab, RIGHT, means="all_reduce").ok
    chunks = "def f(xs):\n    return comms.reduce_scatter(xs)"
    assert checked(lab, chunks, means="reduce_scatter").ok
    with pytest.raises(LabError, match="'all_redcue' is not a primitive"):
        lab.check("f", means="all_redcue")


def test_lists_dicts_and_bfloat16_cross(lab):
    def cases(n):
        return [Case([{"a": x, "b": [x, 3]} for x in inputs.counting(n, 2)], dtype="bfloat16")]

    code = "def f(s):\n    assert s['a'].dtype == torch.bfloat16\n    return [s['b'][0] + 1, s['a'], s['b'][1]]"
    assert checked(lab, code, means=lambda xs: [[x["a"] + 1, x["a"], 3] for x in xs], inputs=cases).ok


def test_groups_of_the_function_and_of_the_learner_live_on_their_own(lab):
    lab.run("pair = dist.new_group([0, 1])\nlater = [dist.new_group([2, 3]) for _ in range(2)]")
    own = "def f(x):\n    groups = [dist.new_group([r]) for r in range(world_size)]\n    y = x.clone()\n"
    assert checked(lab, own + "    dist.all_reduce(y)\n    return y").ok
    told = lab.run("y = torch.ones(1)\nif rank < 2:\n    dist.all_reduce(y, group=pair)\nprint(int(y))")
    assert told == ["2\n", "2\n", "1\n", "1\n"]
    assert (
        lab.run("g = dist.new_group([1, 3])\nif rank % 2:\n    dist.all_reduce(y, group=g)\nprint(int(y))")[3] == "3\n"
    )


def test_a_wrong_sum_says_what_it_is_made_of(lab):
    """The function runs again on numbers that tell where they came from, as tokens would."""
    body = "    dist.all_reduce(y)\n    return y + (x if rank == 1 else 0)"
    verdict = checked(lab, SOME + body)
    assert verdict.says[0] == "With 2 ranks: on rank 1 element 0 is 20, and should be 10."
    assert verdict.says[-1] == "Rank 1 counts rank 1 twice."
    assert "Rank 0 lacks rank 1's numbers." in checked(lab, SOME + "    return y").says
    assert "all_reduce" not in repr(checked(lab, SOME + "    dist.all_reduce(y)\n    return y / 2").says)


def test_afterwards_timeline_and_steps_show_the_last_run(lab):
    checked(lab, SOME + "    dist.all_reduce(y)\n    return y")
    lab.run(RIGHT)
    lab.check("f", means=collectives.all_reduce)
    assert "all_reduce(sum)" in repr(lab.last.timeline())


def test_what_a_function_prints_is_shown_where_it_is_wrong_and_only_there(lab, capfd):
    assert "it printed" not in repr(checked(lab, RIGHT.replace("    return", "    print('noise')\n    return")))
    verdict = checked(lab, "def f(x):\n    print('I hold', x.tolist())\n    return x")
    assert "it printed: rank 0 │ I hold [0.0, 1.0, 2.0, 3.0]" in repr(verdict)


def test_what_cannot_be_checked_is_a_lab_error(lab):
    with pytest.raises(LabError, match="There is no exercise 'nonsense'"):
        lab.check("nonsense")
    with pytest.raises(LabError, match="needs a meaning"):
        lab.check("f", forbids=("send",))
    with pytest.raises(LabError, match="not an option of a check"):
        lab.check("f", means=collectives.all_reduce, colour="red")
    with pytest.raises(LabError, match="needs 8 ranks or more"):
        lab.check("f", means=collectives.all_reduce, ranks=(8,))

    def my_sum(x):
        return x

    with pytest.raises(LabError, match=r"my_sum is the notebook's\. Write it in a %%px cell and pass its name"):
        lab.check(my_sum, means=collectives.all_reduce)
