"""What the ten lines must print, what was recorded of them, and the phrasebook that says what was run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from labkit.floor.errors import LabError
from labkit.theory import collectives
from workbook.tools.elsewhere import phrases, ten_lines
from workbook.tools.elsewhere.ten_lines import SYSTEMS, System, expected, read

SCRIPTS = Path(__file__).resolve().parent.parent.parent / "notebooks" / "scripts"
each = pytest.mark.parametrize("system", SYSTEMS.values(), ids=list(SYSTEMS))


def test_the_expected_numbers_are_what_theory_means():
    for n in (2, 3, 4, 7):
        mine = [r + 1.0 for r in range(n)]
        parts = [[10.0 * (r + 1) + i for i in range(n)] for r in range(n)]
        must = expected(n)
        assert [x for (x,) in must["all_reduce"]] == collectives.all_reduce(mine)
        assert [x for (x,) in must["broadcast"]] == collectives.broadcast(mine)
        assert must["all_gather"] == [list(x) for x in collectives.all_gather(mine)]
        assert must["gather"][0] == mine
        assert must["reduce"][0] == [sum(mine)]
        assert [x for (x,) in must["scatter"]] == parts[0]
        assert [sum(x) for x in must["all_to_all"]] == [x for (x,) in must["reduce_scatter"]]


def test_the_step_is_one_of_gradient_descent_on_all_rows():
    for n in (2, 4, 8):
        (w, *others) = expected(n)["step"]
        assert others == [w] * (n - 1)
        assert w is not None
        small = 1e-6

        def loss(a: float, b: float, n: int = n) -> float:
            return sum((a * (r + 1) + 2 * b - 10) ** 2 for r in range(n)) / n

        slope = [(loss(1 + small, 2) - loss(1, 2)) / small, (loss(1, 2 + small) - loss(1, 2)) / small]
        assert w == pytest.approx([1 - slope[0] / 16, 2 - slope[1] / 16], rel=1e-4)


def test_a_wrong_number_a_missing_call_and_a_missing_rank_are_found():
    right = ten_lines.Told("x", 3, expected(3))
    assert right.wrong == []
    for call in expected(3):
        held = list(expected(3)[call])
        assert ten_lines.Told("x", 3, {**expected(3), call: [[99.0], *held[1:]]}).wrong == [call]
        assert ten_lines.Told("x", 3, {**expected(3), call: held[:2]}).wrong == [call]
        assert ten_lines.Told("x", 3, {c: v for c, v in expected(3).items() if c != call}).wrong == [call]


def test_what_nobody_promises_may_be_anything_and_an_absent_call_needs_a_reason():
    assert ten_lines.Told("x", 2, {**expected(2), "reduce": [[3.0], [17.0]]}).wrong == []
    assert ten_lines.Told("x", 2, {**expected(2), "reduce": "no such call"}).wrong == []
    assert ten_lines.Told("x", 2, {**expected(2), "reduce": ""}).wrong == ["reduce"]


def test_output_is_read_beside_other_lines():
    told = read("built an operator\nx 1.0, 2 ranks\nreduce          [3.0] null\nsend, recv      absent: none\nbye\n")
    assert (told.about, told.n, told.recorded) == ("x 1.0, 2 ranks", 2, "")
    assert told.rows == {"reduce": [[3.0], None], "send, recv": "none"}
    assert told.ran == ["reduce"]
    with pytest.raises(LabError, match="did not say who ran it"):
        read("Traceback")


@each
def test_the_record_has_the_day_the_versions_and_the_right_numbers(system: System):
    told = read((SCRIPTS / system.record).read_text(encoding="utf-8"))
    assert re.match(r"202\d-\d\d-\d\d with Python 3\.\d+\.\d+ on Linux \w+: .+ \d+\.\d+", told.recorded)
    assert told.n == ten_lines.N
    assert told.wrong == []
    assert set(told.rows) == set(expected(told.n))
    pinned = re.findall(r"([\w-]+)==([\d.]+)", system.package)
    assert all(f"{name} {version}" in told.recorded for name, version in pinned), "the command makes what was recorded"


@each
def test_what_is_absent_is_tensorflows_alone(system: System):
    told = read((SCRIPTS / system.record).read_text(encoding="utf-8"))
    absent = [call for call in told.rows if call not in told.ran]
    assert sorted(absent) == (
        ["async", "gather", "reduce", "reduce_scatter", "scatter", "send, recv"] if system.name == "tensorflow" else []
    )


@each
def test_the_ten_lines_are_about_ten_and_communicate(system: System):
    lines = ten_lines.ten_lines((SCRIPTS / system.program).read_text(encoding="utf-8")).splitlines()
    assert 5 <= len([line for line in lines if line.strip()]) <= 12


def test_every_call_is_in_the_phrasebook_in_every_tongue():
    assert set(expected(4)) - {"step"} <= set(phrases.CALLS)
    for call, said in phrases.CALLS.items():
        assert list(said) == list(phrases.TONGUES), call


def test_what_tensorflow_lacks_has_no_word_or_none_that_was_run():
    told = read((SCRIPTS / SYSTEMS["tensorflow"].record).read_text(encoding="utf-8"))
    words = {call: said["tensorflow"] for call, said in phrases.CALLS.items()}
    assert [call for call in expected(4) if call in words and not words[call]] == [
        call for call in expected(4) if call not in told.ran and call != "reduce_scatter"
    ]


def test_each_trap_is_about_a_column_and_none_is_left_without():
    named = {tongue for names, _ in phrases.TRAPS for tongue in names}
    assert named == set(phrases.TONGUES) - {"torch"}
    for _, text in phrases.TRAPS:
        assert text.count("`") % 2 == 0
        assert text.startswith("**")


def test_an_unknown_system_is_told_which_there_are():
    with pytest.raises(LabError, match="mpi4py"):
        phrases.find("openmpi")
    with pytest.raises(LabError, match="deepspeed"):
        ten_lines.find("horovod")
