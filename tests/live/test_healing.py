"""Processes that die or stand still: they are replaced under the same rank, the others keep their variables."""

from __future__ import annotations

import os
import select
import signal

import psutil
import pytest

from labkit import CellError, LabError, StoppedError
from labkit.cluster.engines import Engines
from labkit.outcome.outcome import Healed, Note
from labkit.outcome.phrases import healed
from tests.live.processes import SOON, Trace, eventually, states

ALIVE = """
y = torch.ones(1)
dist.all_reduce(y)
print(rank, world_size, int(y), globals().get('keep'))
"""


@pytest.fixture(autouse=True)
def _variables(lab):
    lab.run("keep = 100 + rank\nimport os, signal")


def pid(lab, rank):
    return lab._engines.members[rank].pid


def alive(lab, lost=()):
    """All ranks are there, under their numbers; only the lost ones come without their variables."""
    told = [f"{r} {lab.n} {lab.n} {None if r in lost else 100 + r}\n" for r in range(lab.n)]
    assert lab.run(ALIVE) == told
    assert [m.rank for m in lab._engines.members] == list(range(lab.n))
    assert set(states(lab)) == {"idle"}


def ended(lab, code, lost):
    """Run a cell that some ranks do not survive; the next one finds them replaced."""
    with pytest.raises(CellError) as caught:
        lab.run(code)
    alive(lab, lost)
    return caught.value


def test_a_rank_killed_in_a_cell_is_named_and_replaced(lab):
    error = ended(lab, "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\ndist.barrier()", {1})
    assert str(error) == "rank 1 died (SIGKILL)"
    assert error.notes[-2].startswith("rank 1 was started anew, ")
    assert error.notes[-1] == "the process group is joined again; the other ranks keep their variables"


def test_a_name_that_went_with_a_rank_is_said_to_be_lost(lab):
    ended(lab, "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)", {1})
    with pytest.raises(CellError) as caught:
        lab.run("keep")
    assert str(caught.value) == "rank 1: NameError: name 'keep' is not defined"
    assert caught.value.notes == ["rank 1 was started anew and may have lost keep: run the cell that makes it again"]


def test_a_rank_killed_while_the_others_never_wait_for_it_is_replaced(lab):
    error = ended(lab, "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)", {1})
    assert str(error) == "rank 1 died (SIGKILL)"


DIES = "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize(
    ("code", "says", "beside"),
    [
        (f"if rank == 1: raise ValueError('no')\nif rank == 2: {DIES}\ndist.barrier()", "rank 1: ValueError: no", []),
        (f"if rank == 1: raise ValueError('no')\nif rank == 2: {DIES}", "rank 1: ValueError: no", []),
        (f"if rank < 2: raise ValueError(rank)\n{DIES}", "rank 0: ValueError: 0", ["rank 1: ValueError: 1"]),
        (f"if rank == 2: {DIES}\ndist.broadcast(torch.ones(1), rank)", "Ranks disagree on the root: ", []),
    ],
    ids=["while the third waits", "while nobody waits", "of both others", "that is a wrong call"],
)
def test_a_death_beside_an_error_is_told_as_well(lab, code, says, beside):
    error = ended(lab, code, {2})
    assert str(error).startswith(says)
    assert error.notes[: len(beside) + 1] == [*beside, "rank 2 died (SIGKILL)"]


def test_a_rank_that_was_ended_beside_an_error_is_told_as_well(lab):
    error = ended(
        lab, "if rank == 1: raise ValueError('no')\nif rank == 2: signal.raise_signal(19)\ndist.barrier()", {2}
    )
    assert str(error) == "rank 1: ValueError: no"
    assert error.notes[:1] == ["rank 2 stood still (SIGSTOP) and was ended"]


def test_all_ranks_killed_in_a_cell_are_replaced(lab):
    error = ended(lab, "os.kill(os.getpid(), signal.SIGKILL)", {0, 1, 2})
    assert str(error) == "ranks 0–2 died (SIGKILL)"
    assert error.notes[0].startswith("ranks 0–2 were started anew, ")
    assert error.notes[1:] == ["the process group is joined again"]


def test_a_rank_killed_between_cells_is_replaced_before_the_next_one(lab, capsys):
    os.kill(pid(lab, 2), signal.SIGKILL)
    assert eventually(lambda: states(lab)[2] == "dead")
    alive(lab, {2})
    said = capsys.readouterr().out
    assert "Rank 2 had died (SIGKILL); rank 2 was started anew, " in said


def test_stop_while_the_ranks_are_brought_back_heals_them_and_stops_the_cell_that_waits_for_it(lab, monkeypatch):
    os.kill(pid(lab, 2), signal.SIGKILL)
    assert eventually(lambda: states(lab)[2] == "dead")
    really = Engines.join

    def pressed(engines):
        signal.raise_signal(signal.SIGINT)
        return really(engines)

    monkeypatch.setattr(Engines, "join", pressed)
    with pytest.raises(StoppedError, match="You stopped the cell"):
        lab.run("while True: pass")
    alive(lab, {2})


def test_ranks_that_labkit_itself_failed_to_heal_are_healed_before_the_next_cell(lab, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(lab._console, "draw", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            lab.run("if rank: dist.all_reduce(torch.ones(1))")
    alive(lab)


def test_a_rank_killed_between_cells_is_replaced_by_hand(lab):
    os.kill(pid(lab, 0), signal.SIGKILL)
    assert eventually(lambda: states(lab)[0] == "dead")
    lab.heal()
    assert states(lab)[0] == "idle"
    alive(lab, {0})


def test_a_replaced_rank_has_its_definitions_again_and_the_note_says_what_is_lost(lab):
    lab.run("import math\nLIMIT = 3\ndef step(x):\n    return min(x, LIMIT)\nw = torch.ones(2)")
    error = ended(lab, "if rank == 2: os.kill(os.getpid(), signal.SIGKILL)", {2})
    (note,) = (note for note in error.notes if "anew" in note)
    back, lost = note.removeprefix("rank 2 was started anew, with ").split(" again, without variables ")
    assert {"math", "LIMIT", "step"} <= set(back.replace(" and ", ", ").split(", "))
    assert "w" in lost.removeprefix("(").removesuffix(" are lost)").replace(" and ", ", ").split(", ")
    assert lab.pull("step(9)") == [3, 3, 3]
    assert lab.pull("'w' in globals()") == [True, True, False]


def test_what_a_rank_gets_back_is_named_and_many_names_are_counted():
    def said(back, lost=()):
        return healed(Note(Healed.ANEW, (1,), back=tuple(back), lost=tuple(lost)))

    assert said([]) == "rank 1 was started anew, without variables"
    assert said(["f"], ["x", "y"]).endswith("started anew, with f again, without variables (x and y are lost)")
    assert said(f"f{i}" for i in range(20)).endswith("f6 and 13 more again, without variables")


def test_ranks_are_right_though_engine_ids_have_moved_on(lab):
    engines = [m.engine for m in lab._engines.members]
    ended(lab, "if rank == 0: os.kill(os.getpid(), signal.SIGKILL)", {0})
    lab.run("import os, signal")
    moved = [m.engine for m in lab._engines.members]
    assert moved[0] not in engines
    assert moved[1:] == engines[1:]
    assert lab.run("print(rank)", ranks=[0, 2]) == ["0\n", "2\n"]
    assert lab.pull("rank") == [0, 1, 2]
    assert lab.run("print(os.environ['RANK'], dist.get_rank())") == ["0 0\n", "1 1\n", "2 2\n"]


def test_a_rank_that_ends_its_process_is_named_with_its_exit_code(lab):
    assert str(ended(lab, "if rank == 1: os._exit(3)", {1})) == "rank 1 died (exit code 3)"


@pytest.mark.parametrize("leave", ["raise SystemExit(3)", "import sys; sys.exit(3)", "exit()", "quit()"])
def test_leaving_politely_ends_the_cell_and_keeps_the_rank(lab, leave):
    pids = [pid(lab, rank) for rank in range(3)]
    with pytest.raises(CellError, match=r"rank 1: (SystemExit|LabError: exit\(\) and quit\(\) do not end a rank)"):
        lab.run(f"if rank == 1: {leave}\ndist.barrier()")
    alive(lab)
    assert [pid(lab, rank) for rank in range(3)] == pids


def test_a_rank_that_a_mismatch_aborts_is_named_and_replaced(lab):
    """Gloo checks no shapes across ranks: one that receives more than its buffer holds ends its process."""
    code = """
x = torch.ones(1000 if rank == 0 else 1)
out = [torch.empty_like(x) for _ in range(world_size)]
dist.all_gather(out, x)
"""
    lab.guard = False
    with pytest.raises(CellError) as caught:
        lab.run(code)
    lab.guard = True
    assert "SIGABRT" in str(caught.value)
    said = [line.split() for line in lab.run(ALIVE)]
    assert [words[:3] for words in said] == [[str(r), "3", "3"] for r in range(3)]


def test_a_rank_that_stands_still_is_ended_and_replaced(lab):
    error = ended(lab, "if rank == 2: os.kill(os.getpid(), signal.SIGSTOP)\ndist.barrier()", {2})
    assert str(error) == "rank 2 stood still (SIGSTOP) and was ended"
    assert "ranks 0, 1 waited in barrier (line 2) and were freed" in error.notes


def test_a_rank_stopped_between_cells_is_ended_and_replaced_in_the_next_one(lab):
    os.kill(pid(lab, 1), signal.SIGSTOP)
    with pytest.raises(CellError, match=r"rank 1 stood still \(SIGSTOP\) and was ended"):
        lab.run(ALIVE)
    alive(lab, {1})


def test_a_rank_stopped_between_cells_is_replaced_by_hand(lab):
    stopped = psutil.Process(pid(lab, 1))
    stopped.suspend()
    assert eventually(lambda: stopped.status() == psutil.STATUS_STOPPED)
    lab.heal()
    alive(lab, {1})


def test_a_rank_killed_while_it_is_replaced_is_replaced_again(lab):
    """The survivors wait for the killed one in the rendezvous; they must not wait for its time-out."""
    lab.run(
        "import labkit.rank.group as g, torch.distributed as d\n"
        "real = d.init_process_group\n"
        "def dying(*a, **k):\n"
        "    d.init_process_group = real\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "if rank == 2: d.init_process_group = dying"
    )
    error = ended(lab, "if rank == 0: os._exit(1)", {0, 2})
    assert str(error) == "rank 0 died (exit code 1)"
    assert any(note.startswith("ranks 0, 2 were started anew, ") for note in error.notes)


def test_the_processes_of_a_replaced_rank_end_with_it(lab):
    lab.run("import subprocess\nchild = subprocess.Popen(['sleep', '1000']).pid")
    children = [psutil.Process(p) for p in lab.pull("child")]
    ended(lab, "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)", {1})
    assert eventually(lambda: not children[1].is_running())
    assert children[0].is_running()


def forks(lab):
    """The fork server and everything that it forked, which looks alike from outside."""
    alike = [p for p in Trace.of(lab._address).processes() if p.status() != psutil.STATUS_ZOMBIE]
    return [p for p in alike if "labkit.cluster.forkserver" in p.cmdline()]


def fork_server(lab):
    return next(p for p in forks(lab) if p.ppid() == os.getpid())


def controller(lab):
    others = {fork_server(lab).pid, *(m.pid for m in lab._engines.members)}
    return next(p for p in forks(lab) if p.pid not in others)


def killed(*processes):
    fds = [os.pidfd_open(process.pid) for process in processes]
    for process, fd in zip(processes, fds, strict=True):
        process.kill()
        assert select.select([fd], [], [], SOON)[0]  # with all its threads, which may outlive the first
        os.close(fd)


def test_a_controller_killed_between_cells_is_started_anew_with_all_variables(lab, capsys):
    killed(controller(lab))
    alive(lab)
    assert "The controller had died and was started anew" in capsys.readouterr().out


def test_a_rank_replaced_after_several_controllers_gets_an_engine_of_its_own(lab):
    for _ in range(3):
        killed(controller(lab))
        alive(lab)
    ended(lab, "if rank == 0: os._exit(1)", {0})
    engines = [m.engine for m in lab._engines.members]
    assert len(set(engines)) == len(engines)


def test_a_controller_killed_during_a_cell_ends_it_and_all_variables_are_kept(lab):
    victim = controller(lab).pid
    code = f"if rank == 0: os.kill({victim}, signal.SIGKILL)\nkeep = 100 + rank\nwhile True: pass"
    with pytest.raises(CellError, match="the controller died"):
        lab.run(code)
    alive(lab)


def test_a_cell_that_begins_when_the_ranks_are_told_to_join_is_ended_and_all_variables_are_kept(lab):
    """On a busy machine: it had arrived when the ranks were asked who still has one to leave."""
    engines = lab._console.engines
    engines.execute("while True: pass", [1])
    assert engines.join()
    alive(lab)


def test_a_controller_killed_while_ranks_wait_ends_the_cell_and_all_variables_are_kept(lab):
    victim = controller(lab).pid
    code = f"if rank == 0: os.kill({victim}, signal.SIGKILL)\nif rank: dist.barrier()"
    with pytest.raises(CellError, match="the controller died"):
        lab.run(code)
    alive(lab)


@pytest.mark.parametrize("code", ["while True: pass", "if rank: dist.barrier()", ""])
def test_a_controller_that_stands_still_for_good_is_replaced_and_all_variables_are_kept(lab, code):
    """Nothing would arrive any more; a rank that does not answer for this is not ended."""
    os.kill(controller(lab).pid, signal.SIGSTOP)
    with pytest.raises(CellError, match="the controller died"):
        lab.run(f"keep = 100 + rank\n{code}")
    alive(lab)


def test_a_killed_fork_server_is_not_missed_until_a_rank_dies_and_then_started_anew(lab):
    server = fork_server(lab)
    killed(server)
    alive(lab)
    error = ended(lab, "if rank == 0: os.kill(os.getpid(), signal.SIGKILL)\ndist.barrier()", {0})
    assert str(error) == "rank 0 died (its process ended)"  # only the killed server knew how
    assert fork_server(lab) != server
    assert str(ended(lab, "import os\nif rank == 0: os._exit(3)", {0})) == "rank 0 died (exit code 3)"


def test_a_killed_fork_server_and_controller_are_both_started_anew(lab):
    killed(fork_server(lab), controller(lab))
    alive(lab)


def test_a_rank_that_dies_again_and_again_while_joining_ends_in_a_clear_error(lab, monkeypatch):
    """What heal cannot mend it says, with what to do next, and the lab can still be stopped or healed later."""
    from labkit.cluster.engines import Engines

    with monkeypatch.context() as patch:
        patch.setattr(Engines, "join", lambda self: False)
        with pytest.raises(LabError, match=r"lab\.stop\(\) and start\(\)"):
            lab._console.engines.rejoin()
    lab.heal()
    alive(lab)


def test_ranks_that_are_out_of_step_in_a_sub_group_alone_are_joined_again(lab):
    """Else the call of the next cell on one rank would meet that of this cell on the others, and give its numbers."""
    with pytest.raises(CellError, match="rank 1: ZeroDivisionError") as caught:
        lab.run(
            "g, x = dist.new_group(), torch.ones(2)\nif rank == 1: 1 / 0\n"
            "h = dist.all_reduce(x, group=g, async_op=True)"
        )
    assert caught.value.notes[-1] == "sub-groups are gone with the old group: make them again"
    alive(lab)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("labkit.rank.guard", "_open_board"),
        ("torch.distributed.distributed_c10d", "_register_process_group"),
        ("torch.distributed.distributed_c10d", "_update_default_pg"),
    ],
)
def test_a_rank_that_fails_at_the_end_of_a_join_is_in_the_next_one(lab, module, name):
    """torch has noted its new group by then, under a name that no other group may have, and not made it the default."""
    lab.run(
        f"import {module} as at\nreal = at.{name}\n"
        "def failing(group, *a):\n"
        "    if group is None: return real(group, *a)\n"
        f"    at.{name} = real\n"
        "    raise RuntimeError('by itself')\n"
        f"if rank == 2: at.{name} = failing"
    )
    engines = lab._console.engines
    assert not engines.join()
    assert engines._why == ": rank 2: RuntimeError: by itself"
    assert engines.join(), engines._why
    alive(lab)


# Twice rank 0 says what is to be done, and rank 1 fails for it.
DISTURBED = """
from labkit.floor.errors import LabError
from labkit.rank import group

join, left = group.join, 2


def disturbed(*args, **kwargs):
    global left
    left -= 1
    if left >= 0 and rank < 2:
        raise LabError("Try again.") if rank == 0 else ConnectionError("Rank 0 has gone.")
    return join(*args, **kwargs)


group.join = disturbed
"""


def test_a_rank_that_cannot_join_since_another_says_what_is_to_be_done_is_not_ended(lab):
    lab.run(DISTURBED)
    try:
        assert lab._console.engines.rejoin() == []
        assert lab.pull("left") == [-1] * lab.n
    finally:
        lab.run("group.join = join")
    alive(lab)
