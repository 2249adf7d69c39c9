"""What the lab holds on NCCL, held here to a stand-in that does on CPUs what NCCL was seen to do (`tests.standin`)."""

from __future__ import annotations

import pytest

import labkit
from labkit import CellError, StuckError

BEGIN = "from tests import standin\nx = torch.full((4,), float(rank + 1))\n"


@pytest.fixture(scope="module")
def lab():
    """Four ranks with the stand-in beside Gloo, that give up waiting after two seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_PRELOAD", "tests.standin")
        with labkit.start(4, timeout=2) as lab:
            lab._console.engines.backend = "standin"
            lab._console.engines.rejoin()
            lab.run(BEGIN)
            yield lab


def sums(lab) -> None:
    """The group works, and what the ranks had before is there."""
    assert lab.run("y = x.clone()\ndist.all_reduce(y)\nstandin.synchronize()\nprint(y[0].item())") == ["10.0\n"] * 4


def test_nccl_keeps_to_loopback_answers_nobody_and_ends_no_rank_that_waits(lab):
    lab.run("import os")
    told = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_RAS_ENABLE": "0", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
            "TORCH_NCCL_ENABLE_MONITORING": "0"}  # fmt: skip
    assert lab.pull(f"{{name: os.environ[name] for name in {list(told)}}}") == [told] * 4


def test_connections_that_are_made_later_are_nobodys_business(lab):
    sums(lab)
    lab.run("if rank == 0: dist.send(x, 3)\nif rank == 3: dist.recv(z := torch.empty(4), 0)\nstandin.synchronize()")
    assert lab.pull("float(z[0]) if rank == 3 else 1.0") == [1.0] * 4


@pytest.mark.parametrize("local", [False, True])
def test_sub_groups_connect_later_as_well(lab, local):
    members = "[0, 1] if rank < 2 else [2, 3]" if local else "[2, 3]"
    lab.run(f"half = dist.new_group({members}, use_local_synchronization={local})")
    lab.run("w = x.clone()\nif rank > 1: dist.all_reduce(w, group=half)\nstandin.synchronize()")
    assert lab.pull("float(w[0])") == [1.0, 2.0, 7.0, 7.0]


@pytest.mark.parametrize(
    ("call", "seen"),
    [("standin.synchronize()", "synchronize"), ("print(float(standin.item()))", "item"), ("wait()", "wait")],
)
def test_a_wait_for_the_device_is_a_wait_for_the_call_that_it_has_not_completed(lab, call, seen):
    lab.run("def wait():\n    x = 1\n    standin.synchronize()\n    return x")
    with pytest.raises(StuckError) as stuck:
        lab.run(f"if rank != 2:\n    dist.all_reduce(x.clone())\n    {call}\n    print('went on with wrong numbers')")
    seen = seen if seen != "wait" else "synchronize"
    assert str(stuck.value) == (
        "rank 2 is missing: it finished the cell, while ranks 0, 1, 3 wait in all_reduce (line 2), "
        f"seen in {seen} (line 3)"
    )
    assert lab.last.waits().arrows == [(0, 2), (1, 2), (3, 2)]
    sums(lab)


def test_what_a_rank_printed_with_wrong_numbers_is_never_seen(lab, capsys):
    with pytest.raises(StuckError):
        lab.run("if rank:\n    dist.all_reduce(x.clone())\n    standin.synchronize()\n    print('wrong')")
    assert "wrong" not in capsys.readouterr().out


def test_a_sub_group_that_waits_is_named_with_its_ranks(lab):
    lab.run("half = dist.new_group([1, 3])")
    with pytest.raises(StuckError, match=r"rank 3 is missing.*rank 1 waits in all_reduce among ranks 1, 3 \(line 1\)"):
        lab.run("if rank == 1: dist.all_reduce(x.clone(), group=half)\nstandin.synchronize()")
    sums(lab)


def test_a_call_that_fails_as_it_is_aborted_is_no_cause(lab):
    lab.run("standin.sets_up = True")
    try:
        with pytest.raises(StuckError) as stuck:
            lab.run("if rank != 2: dist.all_reduce(x.clone())")
    finally:
        lab.run("standin.sets_up = False")
    assert (
        str(stuck.value) == "rank 2 is missing: it finished the cell, while ranks 0, 1, 3 wait in all_reduce (line 1)"
    )
    sums(lab)


def test_gloos_part_of_the_same_group_is_freed_as_ever(lab):
    with pytest.raises(StuckError, match=r"rank 1 is missing.*ranks 0, 2, 3 wait in barrier"):
        lab.run("if rank != 1: dist.barrier()")
    sums(lab)


def test_a_rank_that_is_killed_is_started_anew_and_the_others_are_freed_with_their_variables(lab):
    with pytest.raises(CellError, match=r"rank 1 died \(SIGKILL\)"):
        lab.run(
            "import os, signal\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
            "dist.all_reduce(x.clone())\nstandin.synchronize()"
        )
    assert lab.pull("'x' in globals()") == [True, False, True, True]
    lab.run(BEGIN, ranks=[1])
    sums(lab)


def test_a_rank_that_can_join_no_group_any_more_is_started_anew_and_the_others_keep_their_variables(lab):
    lab.run("standin.broken = rank == 1")
    with pytest.raises(StuckError) as stuck:
        lab.run("if rank: dist.all_reduce(x.clone())\nstandin.synchronize()")
    assert any(note.startswith("rank 1 was started anew") for note in stuck.value.notes)
    assert lab.pull("'x' in globals()") == [True, False, True, True]
    lab.run(BEGIN, ranks=[1])
    sums(lab)


def test_a_rank_that_computes_while_a_call_is_under_way_does_not_wait(lab):
    lab.run(
        "import time\nif rank == 0:\n    until = time.monotonic() + 4\n    while time.monotonic() < until: pass\n"
        "dist.all_reduce(x.clone())\nif rank: until = time.monotonic() + 5\nwhile time.monotonic() < until: pass\n"
        "standin.synchronize()"
    )
