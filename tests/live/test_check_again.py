"""What is right on every input of an exercise runs again on other numbers: what that finds, and how it is told."""

from __future__ import annotations

import re

import pytest

import labkit
from labkit.cluster import check
from labkit.grading import judge
from labkit.grading.inputs import Case, counting
from labkit.theory import collectives

SUM = "    y = x.clone()\n    dist.all_reduce(y)\n"
WELL = "z = torch.ones(1)\ndist.all_reduce(z)\nprint(int(z))"


@pytest.fixture(scope="module")
def lab():
    with labkit.start(4, timeout=2) as lab:
        yield lab


def one_case(n: int) -> list[Case]:
    """One input, of numbers that every dtype holds."""
    return [Case(counting(n, 4))]


def checked(lab: labkit.Lab, code: str, **given):
    lab.run(code)
    verdict = lab.check("f", means=collectives.all_reduce, **given)
    assert lab.run(WELL) == ["4\n"] * 4
    return verdict


def test_a_check_calls_often_enough_to_find_what_is_wrong_in_one_call_of_twenty_and_each_call_draws_anew(lab):
    code = f"drawn = []\ndef f(x):\n{SUM}    drawn.append(float(torch.rand(1)))\n    return y"
    assert checked(lab, code).ok
    first = lab.run("print(len(drawn), len(set(drawn)), drawn[-1])")
    calls, different, last = first[0].split()
    assert int(calls) >= check.MANY, "nine times in ten: 1 - 0.95 ** 45 is 0.9"
    assert calls == different
    assert len({said.split()[2] for said in first}) == 1, "all ranks draw the same"
    assert checked(lab, code).ok
    assert lab.run("print(drawn[-1])")[0].strip() != last, "and every check others"


def test_what_is_wrong_by_chance_tells_a_seed_that_shows_it_again(lab):
    code = f"def f(x):\n{SUM}    return y if torch.rand(1) < 0.8 else -y"
    verdict = checked(lab, code)
    assert verdict.state == "wrong"
    (seed,) = set(re.findall(r"seed=(\d+)", repr(verdict)))
    again = checked(lab, code, seed=int(seed))
    assert again.says == verdict.says
    assert again.right == verdict.right


def test_other_numbers_find_what_was_remembered_and_what_was_rounded(lab):
    for body in (
        f"    if key in known:\n        return known[key]\n{SUM}    known[key] = y\n    return y",
        "    y = x.bfloat16()\n    dist.all_reduce(y)\n    return y.to(x.dtype)",
    ):
        keyed = "    key = (world_size, x.shape, x.dtype, rank, bool(x.sum() < 0))\n"
        verdict = checked(lab, f"known = {{}}\ndef f(x):\n{keyed}{body}", inputs=one_case)
        assert (verdict.state, verdict.right) == ("wrong", 3)
        assert "its numbers times 1.0" in verdict.says[0]
        assert "is anything rounded, or kept from an earlier call?" in " ".join(verdict.says)


def test_what_is_right_alone_and_wrong_in_a_row_is_asked_what_it_keeps(lab):
    verdict = checked(
        lab, f"calls = [0]\ndef f(x):\n{SUM}    calls[0] += 1\n    return -y if calls[0] == 33 and rank == 0 else y"
    )
    assert verdict.state == "wrong"
    assert "Alone, with the same numbers, it is right" in verdict.says[-1]
    verdict = checked(lab, f"calls = [0]\ndef f(x):\n    calls[0] += 1\n    if calls[0] == 33 and rank == 0:\n"
                           f"        raise ValueError('Tired.')\n{SUM}    return y")  # fmt: skip
    assert verdict.state == "raises"
    assert "Tired" in verdict.says[0]


def test_a_death_among_many_calls_tells_which_call_it_was_and_asks_no_rank_that_has_lost_its_variables(lab):
    verdict = checked(lab, f"import os\ncalls = [0]\ndef f(x):\n    calls[0] += 1\n"
                           f"    if calls[0] == 33 and rank == 0:\n        os._exit(1)\n{SUM}    return y")  # fmt: skip
    assert verdict.state == "raises"
    assert "rank 0 died" in verdict.says[0]
    assert "That was call 9 of 24 in a row" in verdict.says[-1]


def test_a_hang_among_many_calls_is_drawn_as_of_the_call_alone_and_heals(lab):
    verdict = checked(lab, f"calls = [0]\ndef f(x):\n    calls[0] += 1\n    if calls[0] > 33 and rank == 1:\n"
                           f"        return x\n{SUM}    return y")  # fmt: skip
    assert verdict.state == "deadlock"
    assert "Rank 1 finished the function without it." in verdict.says
    assert "started anew" not in repr(verdict), "it was met where it could be freed"


def test_of_a_result_that_is_far_too_large_only_what_it_is_leaves_its_rank(lab):
    for code, what in (
        ("torch.zeros(2_000_000)", "a tensor of shape (2000000,)"),
        ("[0.0] * 500_000", "a list of 500000"),
        ("torch.zeros(1).expand(3_000, 3_000)", "a tensor of shape (3000, 3000)"),
    ):
        verdict = checked(lab, f"def f(x):\n    return {code}")
        assert verdict.state == "wrong"
        assert f"{what} comes back, and a tensor of shape (4,) should" in verdict.says[0]
        assert all(isinstance(out, judge.Large) for out in verdict._finding.outs)
        assert what in verdict._repr_html_()


SET = "torch.set_default_dtype(torch.float64); torch.set_default_device('meta'); torch.set_grad_enabled(False)"
TOLD = (
    "print(torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled(), torch.initial_seed() == 7)"
)


def test_what_a_function_sets_and_what_a_learner_has_set_disturbs_no_check_and_only_the_learners_stays(lab):
    new = lab.run(TOLD)
    assert checked(lab, f"def f(x):\n{SUM}    {SET}; torch.manual_seed(7)\n    return y").ok
    assert lab.run(TOLD) == new
    lab.run(f"{SET}\ndef f(x):\n{SUM}    return y + torch.zeros(1).to(y)")
    try:
        assert lab.check("f", means=collectives.all_reduce).ok
        assert lab.run(TOLD) == ["torch.float64 meta False False\n"] * 4
    finally:
        lab.run("torch.set_default_device(None); torch.set_default_dtype(torch.float32); torch.set_grad_enabled(True)")
