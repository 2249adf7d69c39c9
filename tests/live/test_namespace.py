"""What a lab gives a rank (names, a group, counted bytes) is there in the next cell, whatever a cell did to it."""

from __future__ import annotations

import pytest

from labkit import CellError, StuckError, start

RIGHT = """
y = torch.ones(1, device=device)
dist.all_reduce(y)
assert callable(timed) and comms.all_reduce(1) == world_size
print(rank, world_size, int(y))
"""


def right(lab):
    lab.run("pass")  # what a cell does before it learns that something was put back is not said twice
    assert lab.run(RIGHT) == [f"{r} {lab.n} {lab.n}\n" for r in range(lab.n)]


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("rank = 'zero'", "rank (it held 'zero')"),
        ("for rank in range(3): pass", "rank (it held 2)"),
        ("rank = torch.tensor(1)", "rank (it held tensor(1))"),
        ("world_size = 8; del dist", "dist (it was deleted), world_size (it held 8)"),
        ("torch = comms = timed = None", "torch (it held None), comms (it held None), timed (it held None)"),
        ("device = 'cuda:7'", "device (it held 'cuda:7')"),
    ],
)
def test_a_name_that_a_cell_spoils_is_put_back_and_said_once(lab, capsys, code, what):
    lab.run(code)
    said = [line for line in capsys.readouterr().err.splitlines() if "Put back" in line]
    right(lab)
    assert {line.partition("│ ")[2] for line in said} == {f"Put back for the next cell: {what}."}
    assert "Put back" not in capsys.readouterr().err


def test_a_cell_that_fails_has_its_names_put_back_too(lab, capsys):
    with pytest.raises(CellError, match="ZeroDivisionError"):
        lab.run("rank = None\n1 / 0")
    assert "ranks 0–2 │ Put back for the next cell: rank (it held None)." in capsys.readouterr().err
    right(lab)


def test_what_the_notebook_spoils_is_put_back_by_the_next_cell(lab, capsys):
    lab.push(rank=7)
    assert lab.run("print(rank)") == ["0\n", "1\n", "2\n"]
    assert "ranks 0–2 │ Put back for the next cell: rank (it held 7)." in capsys.readouterr().err


def test_a_name_that_is_given_what_it_held_is_no_news(lab, capsys):
    lab.run(
        "import torch, torch.distributed as dist\nfrom labkit.rank import comms\n"
        "rank, world_size, device = dist.get_rank(), dist.get_world_size(), 'cpu'\ndevice = torch.device(device)"
    )
    assert capsys.readouterr().err == ""


def test_within_a_cell_the_names_are_the_learners(lab):
    assert lab.run("rank = 10 * rank\nprint(rank)") == ["0\n", "10\n", "20\n"]
    assert lab.run("def f(rank): return -rank\nprint(f(3))") == ["-3\n"] * 3


def joined(lab):
    return [a["joined"] for a in lab._console.engines.ask("groups", range(lab.n), 2.0).values()]


@pytest.mark.parametrize(
    "code",
    [
        "dist.destroy_process_group()",
        "dist.destroy_process_group()\ndist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)",
    ],
)
def test_a_group_that_a_learner_left_or_replaced_is_not_the_labs(lab, code):
    try:
        lab.run(code)
        assert joined(lab) == [False] * 3
    finally:
        lab._console.engines.rejoin()
    assert joined(lab) == [True] * 3


def test_a_group_beside_the_labs_takes_nothing_from_it(lab):
    # In two runs each: a rank that destroys a group at once closes connections that another one may still be making.
    lab.run("g = dist.new_group([0, 1])")
    lab.run("dist.destroy_process_group(g)")
    assert joined(lab) == [True] * 3
    lab.run("h = dist.new_group([0, 1])")
    lab.run("dist.destroy_process_group(h); del h, g")
    assert joined(lab) == [True] * 3


def test_a_group_in_which_a_time_ran_out_works_no_more(lab):
    code = """import datetime
g = dist.group.WORLD
(getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout)(datetime.timedelta(seconds=0.2), g)
try:
    if rank: dist.barrier()
except RuntimeError:
    print("caught")
"""
    try:
        assert lab.run(code) == ["", "caught\n", "caught\n"]
        assert joined(lab) == [False] * 3
    finally:
        lab._console.engines.rejoin()
    right(lab)


def test_bytes_are_seen_to_be_counted_and_more_of_them_after_a_call(lab):
    code = """from labkit.rank import group
before = group.moved()
dist.all_reduce(torch.ones(1000))
dist.barrier()  # the kernel has acknowledged by now
print(group.moved() - before > 4000)
"""
    assert lab.run(code) == ["True\n"] * 3


def test_bytes_that_nobody_counts_are_none_and_not_zero(lab):
    code = """from labkit.rank import group
lent, group._moved = group._moved, lambda: 7
try:
    print(group._counts(), end=" ")
    group._counted, before = False, group._counted
    print(group.moved())
finally:
    group._counted, group._moved = before, lent
"""
    assert lab.run(code) == ["False None\n"] * 3


def test_a_rank_has_its_definitions_again_with_their_source(lab):
    cells = ["import math\n\ndef twice(x):\n    # by hand\n    return 2 * x\n", "w = torch.ones(1)\ndist.barrier()"]
    fate = lab._console.engines.call("labkit.rank.definitions.replay", {1: (cells,)}, 10)
    assert fate.answers == {1: {"back": ["math", "twice"], "lost": ["w"]}}
    assert lab.run("import inspect\nprint(twice(rank), inspect.getsource(twice))", ranks=1) == [
        "2 def twice(x):\n    # by hand\n    return 2 * x\n\n"
    ]
    seen = lab._console.engines.call("labkit.rank.function.describe", {1: ("twice",)}, 10)
    assert seen.answers[1]["cell"] == cells[0]
    with pytest.raises(CellError) as caught:
        lab.run("twice({})", ranks=1)
    assert "An earlier cell, line 5" in caught.value.traceback


def test_a_hang_is_freed_though_gloo_was_told_to_connect_lazily(monkeypatch):
    monkeypatch.setenv("TORCH_GLOO_LAZY_INIT", "1")
    with start(2, timeout=2) as lazy:
        lazy.run("import os\nkeep = os.environ['TORCH_GLOO_LAZY_INIT']")
        for wait in ("", "g = dist.new_group([0, 1])\n"):
            with pytest.raises(StuckError):
                lazy.run(f"{wait}if rank: dist.barrier({'g' if wait else ''})")
            assert lazy.pull("keep") == ["1", "1"]
        right(lazy)
