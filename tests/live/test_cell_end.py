"""Every rank keeps what ended its cell: what was raised, when, out of which operation, and by whom."""

from __future__ import annotations

import contextlib

import pytest

from labkit import CellError
from labkit.cluster.run import Running
from labkit.floor import timestamps


def ended(lab, code):
    """Run a cell that may fail; what each rank says of its end."""
    with contextlib.suppress(CellError):
        lab.run(code)
    return told(lab)


def told(lab):
    return by_lab(lab._console.engines.ask("ended", range(lab.n), 2.0))


def by_lab(answers):
    """The lab breaks the ranks off one after the other: what failed after the first was broken off is the lab's."""
    first = min((a["aborted"] for a in answers.values() if a["aborted"]), default=None)
    for a in answers.values():
        if first is not None and a["raised"] == "operation" and a["at"] > first:
            a["raised"] = "lab"
    return answers


def raised(answers):
    return [(a["error"], a["raised"], a["op"], a["line"]) for a in answers.values()]


def test_a_cell_that_ends_well_leaves_no_error_and_says_which_request_it_was(lab):
    before = ended(lab, "x = 1")
    after = ended(lab, "1 / 0")
    again = ended(lab, "x = 2")
    assert raised(again) == raised(before) == [("", "", None, None)] * 3
    assert {a["error"] for a in after.values()} == {"ZeroDivisionError"}
    assert all(len({a[r]["request"] for a in (before, after, again)}) == 3 for r in range(3))


def test_a_rank_that_raises_is_told_from_those_that_the_lab_freed(lab):
    began = timestamps.now()
    answers = ended(lab, "x = torch.ones(1)\nif rank == 2:\n    1 / 0\ndist.all_reduce(x)")
    assert raised(answers) == [
        ("RuntimeError", "lab", "all_reduce", 4),
        ("RuntimeError", "lab", "all_reduce", 4),
        ("ZeroDivisionError", "learner", None, 3),
    ]
    assert began < answers[2]["at"] < min(answers[0]["at"], answers[1]["at"]) < timestamps.now()


def test_a_waiting_rank_that_is_not_heard_in_a_look_is_not_taken_for_one_that_went_on(lab, monkeypatch):
    """On a busy machine an agent may answer too late. Who went on is interrupted, who waits is broken off."""
    engines = lab._console.engines
    put, settle, asked = engines.put, Running._settle, []

    def settle_unheard(running):
        looks = iter([{0: None}])

        def unheard(do, ranks):
            asked.append(do)
            return put(do, ranks) | (next(looks, {}) if do == "where" else {})

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engines, "put", unheard)
            return settle(running)

    monkeypatch.setattr(Running, "_settle", settle_unheard)
    ended(lab, "if rank != 2:\n    dist.all_reduce(torch.ones(1))")
    assert asked == ["where"]


def test_an_argument_that_torch_refuses_in_python_is_the_learners(lab):
    answers = ended(lab, "x = 'ones' if rank == 1 else torch.ones(1)\ndist.all_reduce(x)")
    assert raised(answers)[1] == ("TypeError", "learner", "all_reduce", 2)
    assert {answers[0]["raised"], answers[2]["raised"]} == {"lab"}


INT16 = "x = torch.ones(1, dtype=torch.int16 if rank == 1 else torch.float)\ndist.all_reduce(x)"


def test_an_argument_that_torch_refuses_in_c_is_the_learners(lab):
    lab.guard = False  # it compares the dtypes, and who then raises what depends on who comes first
    try:
        answers = ended(lab, INT16)
    finally:
        lab.guard = True
    assert raised(answers)[1][1:] == ("learner", "all_reduce", 2)
    assert {answers[0]["raised"], answers[2]["raised"]} == {"lab"}


def test_a_rank_whose_arguments_the_guard_refuses_is_told_from_those_that_the_lab_freed(lab):
    """Rank 1 comes late, and finds the mismatch; or it comes first, torch refuses its dtype, and a late one finds it.

    The lab frees the others at once: one waits in its all-reduce already, another may not have come to it.
    """
    answers = ended(lab, INT16)
    assert raised(answers)[1][1:] == ("learner", "all_reduce", 2)
    for other in (answers[0], answers[2]):
        assert (other["error"] == "MismatchError") == (other["raised"] == "learner")
        assert other["raised"] in {"learner", "lab"}


def test_a_rank_that_had_not_come_to_calls_that_the_guard_refuses_is_freed_by_the_lab(lab):
    answers = ended(lab, INT16.replace("\n", "\nwhile rank == 0: pass\n"))
    assert raised(answers)[0] == ("KeyboardInterrupt", "lab", None, 2)
    assert {answers[1]["raised"], answers[2]["raised"]} <= {"learner", "lab"}
    assert "MismatchError" in {answers[1]["error"], answers[2]["error"]}


def test_what_all_ranks_do_wrong_is_everyones_own(lab):
    answers = ended(lab, "dist.all_reduce(torch.ones(1), op=dist.ReduceOp.PREMUL_SUM)")
    assert [r[1:] for r in raised(answers)] == [("learner", "all_reduce", 1)] * 3


def test_ranks_whose_peer_died_failed_in_their_operation(lab):
    """The killed rank is a neighbour of both others in a ring of three."""
    code = "import os, signal\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n{}"
    for call, op in (("dist.all_reduce(torch.ones(1000))", "all_reduce"), ("dist.recv(torch.ones(1), 1)", "recv")):
        seen = []
        lab.run("1")
        engines = lab._console.engines
        join = engines.join

        def noting(join=join, seen=seen, engines=engines):
            seen.append(engines.ask("ended", [0, 2], 2.0))
            return join()

        engines.join = noting
        try:
            ended(lab, code.format(call))
        finally:
            del engines.join
        assert {(a["raised"], a["op"], a["line"]) for a in seen[0].values()} <= {("operation", op, 3), ("lab", op, 3)}
        assert "operation" in {a["raised"] for a in seen[0].values()}


def test_a_group_whose_time_runs_out_failed_in_its_operation(lab):
    code = """import datetime
g = dist.new_group(list(range(world_size)), timeout=datetime.timedelta(seconds=0.3))
if rank != 2:
    dist.all_reduce(torch.ones(1), group=g)
"""
    assert raised(ended(lab, code))[:2] == [("RuntimeError", "operation", "all_reduce", 4)] * 2


def test_a_handle_that_is_waited_for_is_an_operation(lab):
    code = """work = dist.irecv(torch.ones(1), (rank + 1) % world_size)
work.wait()
"""
    assert raised(ended(lab, code)) == [("RuntimeError", "lab", "wait", 2)] * 3


def test_an_operation_in_a_backward_pass_is_found(lab):
    code = """import torch.distributed.nn.functional as F
x = torch.ones(2, requires_grad=True)
y = F.all_reduce(x).sum()
if rank != 1:
    y.backward()
"""
    answers = ended(lab, code)
    assert [(a["raised"], a["line"]) for a in answers.values()] == [("lab", 5), ("", None), ("lab", 5)]


def test_an_operation_that_ddp_makes_in_c_is_found(lab):
    code = """from torch.nn.parallel import DistributedDataParallel
model = DistributedDataParallel(torch.nn.Linear(2, 1))
loss = model(torch.ones(1, 2)).sum()
if rank != 1:
    loss.backward()
"""
    answers = ended(lab, code)
    assert [(a["raised"], a["line"]) for a in answers.values()] == [("lab", 5), ("", None), ("lab", 5)]


def test_a_functional_collective_is_found(lab):
    code = """import torch.distributed._functional_collectives as funcol
if rank != 1:
    y = funcol.all_reduce(torch.ones(2), "sum", list(range(world_size))) + 1
"""
    answers = ended(lab, code)
    assert [(a["raised"], a["line"]) for a in answers.values()] == [("lab", 3), ("", None), ("lab", 3)]


def test_a_disagreement_in_comms_is_the_learners_and_a_missing_call_the_labs(lab):
    assert (
        raised(ended(lab, "comms.all_reduce(torch.ones(1 + rank))"))
        == [("LabError", "learner", "comms.all_reduce", 1)] * 3
    )
    assert (
        raised(ended(lab, "if rank: comms.send(torch.ones(1), 0)"))[1:]
        == [("RuntimeError", "lab", "comms.send", 1)] * 2
    )


def test_a_meeting_that_is_broken_off_is_the_labs(lab):
    answers = ended(lab, "if rank < 2: dist.new_group([0, 1, 2])")
    assert [a["raised"] for a in answers.values()] == ["lab", "lab", ""]
    assert answers[0]["op"] == "new_group"


def test_an_interrupted_computation_is_the_labs_and_ones_own_interrupt_is_not(lab):
    answers = ended(lab, "if rank == 1:\n    while True: pass\ndist.barrier()")
    assert raised(answers)[1] == ("KeyboardInterrupt", "lab", None, 2)
    assert raised(ended(lab, "raise KeyboardInterrupt")) == [("KeyboardInterrupt", "learner", None, 1)] * 3


def test_an_operation_that_is_interrupted_as_it_fails_keeps_its_name(lab):
    """The interrupt is raised once C++ comes back: its error has left the frame of the operation by then."""
    code = """import threading
from labkit.rank import agent, anysource, frames, group
def waits():
    inner = frames.stack(agent.MAIN)[0]
    return inner.f_code.co_filename == anysource.__file__ and "function(" in frames.source(inner)
def interrupt():
    while not waits(): pass
    agent.interrupt()
    group.abort()
if rank == 0:
    threading.Thread(target=interrupt).start()
    dist.all_reduce(torch.ones(1))
"""
    assert raised(ended(lab, code))[0] == ("KeyboardInterrupt", "lab", "all_reduce", 12)


def test_an_error_raised_from_an_operations_is_that_operations(lab):
    code = """if rank != 1:
    try:
        dist.barrier()
    except RuntimeError as error:
        raise ValueError("no barrier") from error
"""
    assert raised(ended(lab, code))[0] == ("ValueError", "lab", None, 5)


def test_a_syntax_error_is_the_learners(lab):
    assert [a[:2] for a in raised(ended(lab, "x = (1,\nfor"))] == [("SyntaxError", "learner")] * 3


def test_a_function_that_labkit_runs_by_name_leaves_its_end_too(lab):
    engines = lab._console.engines
    outcome = engines.call("labkit.rank.clock.timed", dict.fromkeys(range(lab.n), ("bad",)), 5)
    assert all("needs a function to call" in error.evalue for error in outcome.errors.values())
    assert [a["error"] for a in told(lab).values()] == ["LabError"] * 3


HELD = """
import weakref
class Big: pass
def fails():
    big = Big()
    seen.append(weakref.ref(big))
    try: 1 / 0
    except ZeroDivisionError as error: raise KeyError("weights") from error
seen = []
fails()
"""


def test_the_last_error_holds_nothing_that_the_functions_had_which_it_came_through(lab):
    """A tensor for which memory ran out, or a process group with its threads and sockets."""
    with contextlib.suppress(CellError):
        lab.run(HELD)
    assert lab.pull("seen[0]() is None") == [True] * lab.n


def test_the_last_error_of_a_function_that_labkit_ran_holds_no_group_that_is_gone(lab):
    lab.run("import weakref\nworld = weakref.ref(dist.group.WORLD)")
    outcome = lab._engines.call("workbook.tools.rank.sweep.row", {0: ("all_reduce", 3, "float32", 1)}, 0.5)
    assert outcome.ended == "slow", "it waited for the others and was freed"
    lab.heal()
    lab.run("import gc\n_ = gc.collect()")
    assert lab.pull("world() is None") == [True] * lab.n
