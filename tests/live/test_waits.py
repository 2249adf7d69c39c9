"""`lab.last.waits` on live ranks: who waits for whom when a cell hangs, when a rank dies, and when all goes well."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from labkit import CellError, StuckError
from labkit.cluster.engines import Engines
from labkit.floor import time_limits


def test_a_chain_of_sends_is_a_cycle_that_is_named(lab):
    with pytest.raises(StuckError):
        lab.run("x = torch.ones(1)\ndist.send(x, (rank + 1) % world_size)")
    waits = lab.last.waits()
    assert waits.says == [
        "Rank 0 waits for rank 1 in send (line 2).",
        "Rank 1 waits for rank 2 in send (line 2).",
        "Rank 2 waits for rank 0 in send (line 2).",
        "0 → 1 → 2 → 0 is a cycle: no rank can go on.",
    ]
    assert waits.arrows == [(0, 1), (1, 2), (2, 0)]


def test_those_that_wait_in_a_collective_wait_for_the_rank_that_lacks(lab):
    with pytest.raises(StuckError):
        lab.run("if rank != 2:\n    dist.all_reduce(torch.ones(1))")
    assert lab.last.waits().says == [
        "Ranks 0, 1 wait for rank 2 in all_reduce (line 2).",
        "Rank 2 finished the cell without it.",
    ]


def test_a_receive_and_a_barrier_wait_for_one_another(lab):
    with pytest.raises(StuckError):
        lab.run("if rank == 0:\n    dist.recv(torch.ones(1), 1)\nelse:\n    dist.barrier()")
    waits = lab.last.waits()
    assert waits.cycles == [[0, 1]]
    assert waits.says[-1].endswith("nor can rank 2, which waits for them.")


def test_a_handle_s_wait_names_the_call_that_made_it_and_a_rank_that_computes_its_line(lab):
    code = "if rank == 1:\n    while True: pass\nwork = dist.irecv(torch.ones(1), 1)\nwork.wait()"
    with pytest.raises(StuckError):
        lab.run(code)
    assert lab.last.waits().says == [
        "Ranks 0, 2 wait for rank 1 in the wait for irecv (line 4).",
        "Rank 1 went on computing (line 2).",
    ]


def test_ranks_that_a_group_lacks_are_waited_for_and_the_others_are_not(lab):
    code = "group = dist.new_group([0, 1])\nif rank == 0:\n    dist.all_reduce(torch.ones(1), group=group)"
    with pytest.raises(StuckError):
        lab.run(code)
    waits = lab.last.waits()
    assert waits.arrows == [(0, 1)]
    assert waits.others == dict.fromkeys((1, 2), "finished the cell without it")


def test_a_group_that_is_made_waits_for_those_that_do_not_make_it(lab):
    with pytest.raises(StuckError):
        lab.run("if rank < 2: dist.new_group([0, 1, 2])")
    waits = lab.last.waits()
    assert waits.says[0] == "Ranks 0, 1 wait for rank 2 in new_group (line 1)."
    assert waits.arrows == [(0, 2), (1, 2)]


# The last step of making a group, outside of the cell's own lines, in which a rank would compute.
LAST_STEP = """
import time
from labkit.rank import group
kept = group.refuse_other_users
exec("def last(connected):\\n if connected: {step}\\n kept(connected)", its := dict(globals()))
group.refuse_other_users = its["last"]
try:
    pair = dist.new_group([0, 1])
finally:
    group.refuse_other_users = kept
"""


def test_ranks_that_are_slow_to_connect_are_not_called_stuck_though_the_others_have_finished(lab):
    lab.run(LAST_STEP.format(step="time.sleep(2)"))
    lab.run("if rank < 2: dist.barrier(group=pair)")


def test_a_group_that_is_given_up_in_its_last_step_is_no_group(lab):
    groups = "len(dist.distributed_c10d._world.pg_map)"
    before = lab.pull(groups)
    with pytest.raises(CellError, match="KeyboardInterrupt"):
        lab.run(LAST_STEP.format(step="raise KeyboardInterrupt"))
    assert lab.pull(groups) == before


def test_a_rank_that_raised_or_died_is_what_the_others_wait_for(lab):
    with pytest.raises(CellError):
        lab.run("if rank == 1: 1 / 0\ndist.barrier()")
    waits = lab.last.waits()
    assert waits.arrows == [(0, 1), (2, 1)]
    assert waits.others == {1: "raised ZeroDivisionError"}
    with pytest.raises(CellError):
        lab.run("import os, signal\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)\ndist.barrier()")
    waits = lab.last.waits()
    assert waits.arrows == [(0, 1), (2, 1)]
    assert waits.others == {1: "died (SIGKILL)"}


def questions(monkeypatch) -> list[int]:
    """The ranks that are asked where they are, from now on."""
    asked: list[int] = []
    put = Engines.put

    def note(self, do, ranks):
        ranks = list(ranks)
        asked.extend(ranks if do == "where" else ())
        return put(self, do, ranks)

    monkeypatch.setattr(Engines, "put", note)
    return asked


def test_a_rank_that_answers_nothing_delays_no_look_at_the_others_and_is_ended_at_the_limit(lab, monkeypatch):
    lab.run("x = rank")
    asked = questions(monkeypatch)
    with pytest.raises(CellError, match=r"^rank 1 did not answer and was ended"):
        lab.run("import ctypes\nif rank == 1: ctypes.PyDLL(None).sleep(1000)\ndist.barrier()")
    assert lab.last.waits().arrows == [(0, 1), (2, 1)]
    assert asked.count(1) < asked.count(0)  # it is asked no more, for whatever it still says to the first counts
    assert lab.pull("'x' in globals()") == [True, False, True]


def test_a_rank_that_answers_late_is_heard(lab):
    keeps = "ctypes.PyDLL(None).usleep(700_000)"  # longer than the first look waits, with the interpreter's lock
    with pytest.raises(StuckError, match=r"^rank 1 went on computing \(line 4\), while ranks 0, 2 wait in barrier"):
        lab.run(f"import ctypes\nif rank == 1:\n    {keeps}\n    while True: pass\ndist.barrier()")


def slow_import(folder: Path, seconds: float) -> str:
    """A cell in which all wait for rank 1, which imports a module for longer than the lab's two seconds."""
    folder.mkdir()
    (folder / "slow_module.py").write_text(f"import time\ntime.sleep({seconds})\n")
    return f"import sys\nsys.path[:0] = [{str(folder)!r}]\nif rank == 1:\n    import slow_module\ndist.barrier()"


def test_whoever_waits_while_a_library_is_imported_does_not_wait_too_long(lab, tmp_path):
    assert lab.run(slow_import(tmp_path / "site-packages", 4)) == ["", "", ""]


def test_a_module_of_the_learners_own_is_waited_for_like_a_cell(lab, tmp_path):
    with pytest.raises(StuckError, match="barrier"):
        lab.run(f"import sys\nsys.modules.pop('slow_module', None)\n{slow_import(tmp_path / 'mine', 60)}")


def test_an_import_without_an_end_is_a_hang(lab, tmp_path, monkeypatch):
    monkeypatch.setattr(time_limits, "LIBRARY_IMPORT", 0.5)
    with pytest.raises(CellError, match=r"rank 1 went on computing .* and was ended"):
        lab.run(f"import sys\nsys.modules.pop('slow_module', None)\n{slow_import(tmp_path / 'dist-packages', 60)}")


def test_a_call_that_may_take_a_second_may_import_a_library_for_longer(lab, tmp_path):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "slow_library.py").write_text("import time\ntime.sleep(4)\ndef answer():\n    return 42\n")
    lab.run(f"import sys\nsys.path[:0] = [{str(folder)!r}]")
    outcome = lab._engines.call("slow_library.answer", {0: (), 2: ()}, limit=1)
    assert (outcome.ended, outcome.answers) == ("", {0: 42, 2: 42})


def test_a_cell_that_ended_well_shows_its_longest_wait(lab, tmp_path):
    began = time.monotonic()
    lab.run(f"""import os, time
if rank: open(f"{tmp_path}/{{rank}}", "w").close()
while rank == 0 and len(os.listdir("{tmp_path}")) < 2: time.sleep(0.01)
if rank == 0: time.sleep(1)
dist.barrier()""")
    took = time.monotonic() - began
    waits = lab.last.waits()
    assert waits.arrows == [(1, 0), (2, 0)]
    assert repr(waits).splitlines()[1:] == [
        "Ranks 1, 2 waited for rank 0 in barrier (line 5).",
        "Rank 0 had not arrived yet.",
    ]
    assert 0.4 < waits.long < took
    lab.run("x = 1")
    assert repr(lab.last.waits()) == "Nothing was stuck. No rank waited for another."


def test_after_a_check_the_last_run_of_the_function_is_shown(lab):
    lab.run("def f(x):\n    if rank:\n        dist.barrier()\n    return x")
    with pytest.raises(StuckError):
        lab.run("if rank < 2: dist.barrier()")
    lab.check("f", means=list, ranks=(2,))
    assert lab.last.waits().says == [
        "Rank 1 waits for rank 0 in barrier among ranks 0, 1 (line 3).",
        "Rank 0 finished the cell without it.",
        "Rank 2 never ran the cell.",
    ]
