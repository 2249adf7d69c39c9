"""Why a cell is stuck, from records written by hand: whom the sentence blames, for how long, which handles it names."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.outcome.outcome import Did, Instead, Outcome, RankOutcome, Waiting
from labkit.outcome.sentences import CHOOSE, beside, handles, judge, why
from labkit.outcome.story import Story
from labkit.outcome.why import begins_singly
from labkit.theory.record import read
from tests.recorded import Told, told

CUT = {"start": 0, "end": 900, "error": "RuntimeError"}
WITHOUT = Instead(Did.FINISHED, without=True)


def stuck(ranks: list[Told], waiting: dict[int, str], elsewhere: dict[int, Instead], **more: Any) -> Story:
    """A cell that was cut short."""
    at = {r: Waiting(op, 2) for r, op in waiting.items()}
    return Story(told(*ranks), Outcome([], "stuck", waiting=at, elsewhere=elsewhere, **more))


def test_two_cycles_are_told_together():
    pairs = [Told(4).send(peer, **CUT) for peer in (1, 0, 3, 2)]
    story = stuck(pairs, dict.fromkeys(range(4), "send"), {})
    assert why(story) == (
        "ranks 0–3 wait for one another in cycles, 0 → 1 → 0 and 2 → 3 → 2: each waits in send (line 2)"
    )


def test_a_rank_behind_a_cycle_waits_and_is_not_of_it():
    pairs = [Told(3).send(peer, **CUT) for peer in (1, 0, 0)]
    assert why(stuck(pairs, dict.fromkeys(range(3), "send"), {})) == (
        "ranks 0, 1 wait for one another in a cycle, 0 → 1 → 0: ranks 0–2 wait in send (line 2)"
    )


def test_a_receive_takes_the_message_with_its_tag_and_of_those_that_are_left_the_tags_are_told():
    sender = Told(2).send(1, tag=1).send(1, tag=2, **CUT)
    taker = Told(2).recv(0, tag=1).recv(0, tag=4, **CUT)
    assert why(stuck([sender, taker], {0: "send", 1: "recv"}, {})) == (
        "rank 0 sends to rank 1 with tag 2, and rank 1 receives from rank 0 with tag 4: rank 0 waits in send (line 2) "
        "and rank 1 waits in recv (line 2)"
    )


def test_tags_that_differ_are_told_of_a_receive_from_any_rank_and_beside_another_cycle():
    ranks = [Told(4).send(1, tag=1, **CUT), Told(4).recv(None, tag=2, **CUT)]
    ranks += [Told(4).send(3, **CUT), Told(4).send(2, **CUT)]
    assert why(stuck(ranks, {0: "send", 1: "recv", 2: "send", 3: "send"}, {})) == (
        "rank 0 sends to rank 1 with tag 1, and rank 1 receives from any rank with tag 2; "
        "ranks 2, 3 wait for one another in a cycle, 2 → 3 → 2: "
        "ranks 0, 2, 3 wait in send (line 2) and rank 1 waits in recv from any rank (line 2)"
    )


def test_tags_are_no_cause_where_the_right_message_may_come_behind_a_collective():
    early = Told(2).send(1, tag=1, asynchronous=True).meet("barrier", **CUT)
    late = Told(2).recv(0, tag=2, **CUT)
    assert "wait for one another in a cycle, 0 → 1 → 0" in why(stuck([early, late], {0: "barrier", 1: "recv"}, {}))


@pytest.mark.parametrize(
    ("instead", "said"),
    [
        (Instead(Did.RAISED, "ZeroDivisionError"), "raised ZeroDivisionError"),
        (Instead(Did.WENT_ON, line=4), "went on computing (line 4)"),
        (Instead(Did.DIED, "SIGKILL"), "died (SIGKILL)"),
    ],
)
def test_tags_are_no_cause_where_a_rank_did_not_come_to_its_end(instead, said):
    early, late = Told(2).send(1, tag=1, asynchronous=True), Told(2).recv(0, tag=2, **CUT)
    assert why(stuck([early, late], {1: "recv"}, {0: instead})).startswith(f"rank 0 {said}, while rank 1 waits")


def test_of_many_tags_that_differ_the_first_are_told():
    ring = [Told(5).send((r + 1) % 5, tag=r, **CUT).recv((r - 1) % 5, tag=r, **CUT) for r in range(5)]
    assert "with tag 3; tags differ in 2 more pairs: ranks 0–4 wait in" in why(
        stuck(ring, dict.fromkeys(range(5), "recv"), {})
    )


def test_of_a_broadcast_only_its_root_is_missing():
    ranks = [Told(3).meet("broadcast", peer=1, **CUT), Told(3), Told(3)]
    story = stuck(ranks, {0: "broadcast"}, dict.fromkeys((1, 2), WITHOUT))
    assert why(story) == "rank 1 is missing: it finished the cell, while rank 0 waits in broadcast (line 2)"


def test_a_call_without_a_record_is_named_and_nobody_knows_for_whom_it_waits():
    story = stuck([Told(2), Told(2)], {0: "new_group"}, {1: Instead(Did.WENT_ON, line=4)})
    assert story.arrows == []
    assert why(story) == "rank 1 went on computing (line 4), while rank 0 waits in new_group (line 2)"


def test_a_rank_that_has_left_what_the_others_wait_in_is_not_missing():
    ranks = [Told(3).meet("all_reduce", **CUT), Told(3).meet("all_reduce", **CUT), Told(3).meet("all_reduce")]
    story = stuck(ranks, dict.fromkeys((0, 1), "all_reduce"), {2: WITHOUT})
    assert why(story) == (
        "rank 2 left all_reduce (line 2) and finished the cell, while ranks 0, 1 wait in all_reduce (line 2)"
    )
    twice = stuck(
        [*(t.meet("all_reduce", **CUT) for t in ranks[:2]), ranks[2]],
        dict.fromkeys((0, 1), "all_reduce"),
        {2: WITHOUT},
    )
    assert why(twice).startswith("rank 2 is missing: it finished the cell, while ")


def test_collectives_of_one_group_are_not_those_of_another_with_the_same_ranks():
    ranks = [Told(2).meet("all_reduce", group="1").meet("all_reduce", group=g, **CUT) for g in ("2", "3")]
    assert why(stuck(ranks, dict.fromkeys(range(2), "all_reduce"), {})) == (
        "ranks 0, 1 call collectives of different groups that have the same ranks: each waits in all_reduce (line 2)"
    )


def test_ranks_that_do_different_things_instead_are_all_told():
    meet = Told(4).meet("all_reduce", **CUT)
    went = {1: WITHOUT, 2: Instead(Did.WENT_ON, line=7), 3: Instead(Did.NEVER_RAN)}
    assert why(stuck([meet, Told(4), Told(4), Told(4)], {0: "all_reduce"}, went)) == (
        "rank 1 finished the cell, rank 2 went on computing (line 7) and rank 3 never ran the cell, "
        "while rank 0 waits in all_reduce (line 2)"
    )


def test_a_rank_that_died_is_the_cause_also_where_another_one_is_waited_for():
    ranks = [Told(3).recv(1, **CUT), Told(3), Told(3)]
    went = {1: WITHOUT, 2: Instead(Did.DIED, "SIGKILL")}
    assert why(stuck(ranks, {0: "recv"}, went)) == "rank 2 died (SIGKILL), while rank 0 waits in recv (line 2)"


def test_without_records_nobody_is_spared():
    """Of a call that is not a cell nobody has a record."""
    outcome = Outcome([], "stuck", waiting={0: Waiting("barrier", 2)}, elsewhere={1: Instead(Did.SILENT)})
    assert why(Story([None, None], outcome)) == "rank 1 did not answer, while rank 0 waits in barrier (line 2)"


def test_seconds_are_told_from_each_rank_s_own_clock_and_only_where_they_are_wanted():
    late = [Told(2).meet("all_reduce", 1_000, 9_000, error="RuntimeError"), Told(2).meet("barrier", 0, 500)]
    late[0].log.clock, late[1].log.clock = ("a", 100.0), ("b", 200.0)  # seconds since 1970 when it stood at 0
    late[0].log.ended = late[1].log.ended = 9.0
    story = stuck(late, {0: "all_reduce"}, {1: Instead(Did.WENT_ON, line=7)}, at=205.0)
    assert story.seconds == {0: 8.0, 1: 4.5}
    assert why(story) == ("rank 1 went on computing for 4.5 s (line 7), while rank 0 waited 8 s in all_reduce (line 2)")
    assert why(story, times=False) == ("rank 1 went on computing (line 7), while rank 0 waits in all_reduce (line 2)")
    assert stuck(late, {0: "all_reduce"}, {1: Instead(Did.WENT_ON, line=7)}).seconds == {}


def test_seconds_are_those_of_the_one_clock_of_a_machine_whatever_the_wall_says():
    one = Told(2).meet("all_reduce", 1_000, None)
    one.log.clock = ("here", 100.0)
    outcome = Outcome([], "stuck", waiting={0: Waiting("all_reduce", 2)}, at=3.0, clock=("here", 3700.0))
    assert Story(told(one, Told(2)), outcome).seconds == {0: 2.0}


def test_while_a_cell_runs_ranks_have_waited():
    outcome = Outcome(
        [], "runs", waiting={0: Waiting("barrier", 2)}, elsewhere={1: Instead(Did.WENT_ON, line=3)}, at=2.0
    )
    story = Story(told(Told(2).meet("barrier", 500, None), Told(2)), outcome)
    assert why(story) == "rank 1 has been computing for 2 s (line 3), while rank 0 has waited 1.5 s in barrier (line 2)"


def test_a_handle_is_told_where_its_call_cannot_have_been_done_and_not_where_it_was():
    met = [Told(2).start("all_reduce", 0, 5), Told(2).start("all_reduce", 0, 5)]
    for one in met:
        one.recv(1, 10, 900, error="RuntimeError")
    assert "handle" not in why(
        stuck([met[0], Told(2).start("all_reduce", 0, 5)], {0: "recv"}, {1: Instead(Did.FINISHED)})
    )
    alone = Told(2).start("all_reduce", 0, None).recv(1, 10, 900, error="RuntimeError")
    assert why(stuck([alone, Told(2)], {0: "recv"}, {1: WITHOUT})) == (
        "rank 1 is missing: it finished the cell, while rank 0 waits in recv (line 2); "
        "rank 0 had not waited for the handle of all_reduce (line 2), and rank 1 never came to it"
    )


def test_what_ddp_has_under_way_in_a_backward_pass_is_no_handle_of_the_learner_s():
    passing = Told(2).start("all_reduce", 0, None).start("all_reduce", 1, None)
    story = stuck([passing, Told(2)], {0: "backward"}, {1: WITHOUT})
    assert why(story) == "rank 1 is missing: it finished the cell, while rank 0 waits in backward (line 2)"


def test_of_many_handles_the_first_are_told():
    many = Told(2)
    for line in range(1, 8):
        many.start("all_reduce", line, line + 1)
        many.log.ops[-1].line = line
    story = Story(told(many, Told(2)), Outcome([RankOutcome(0), RankOutcome(1)]))
    assert handles(story) == [
        *(f"rank 0 did not wait for the handle of all_reduce (line {line})" for line in (1, 2, 3)),
        "4 more handles were not waited for",
    ]


# What NCCL 2.28 was seen to say on an H200 where ranks 1 to 3 began with `isend`, each to the rank opposite.
GARBAGE = "NCCL error: ncclSocketInit: connecting to address with family 3 is neither AF_INET(2) nor AF_INET6(10)"
SINGLE = {"enqueued": True}
STARTED = {**SINGLE, "asynchronous": True}
FAILED = {**SINGLE, "error": "DistBackendError"}
REMEDY = "make the transfers of one exchange one dist.batch_isend_irecv call"


def ended(ranks: list[Told], *errors: str, **more: Any) -> tuple[list[str], str]:
    """The notes of a cell's error and the last words of `lab.why()`, where ranks raised these in operations."""
    by = {r: "operation" if error == "DistBackendError" else "learner" for r, error in enumerate(errors)}
    raised = [RankOutcome(r, ename=e, evalue=GARBAGE * bool(e), raised=by[r], at=1) for r, e in enumerate(errors)]
    outcome, logs = Outcome(raised, **more), told(*ranks)
    error = judge(outcome, logs)
    assert error is not None
    return error.notes, why(Story(logs, outcome)).rpartition("; ")[2]


BOTH = ["DistBackendError"] * 2


@pytest.mark.parametrize(
    "ranks",
    [
        [Told(2).send(1 - r, **FAILED, asynchronous=True) for r in range(2)],
        [Told(2).send(1 - r, **FAILED) for r in range(2)],
        [Told(2).recv(1 - r, **FAILED) for r in range(2)],
        [Told(3).send((r + 1) % 3, **STARTED).recv((r - 1) % 3, 2, 9, **(SINGLE if r else FAILED)) for r in range(3)],
    ],
    ids=["both in isend", "both in send", "both in recv", "in recv with a handle of isend"],
)
def test_an_exchange_by_single_calls_that_failed_on_nccl_is_to_be_one_call(ranks):
    failed = [any(op.error for op in rank.log.ops) for rank in ranks]
    notes, last = ended(ranks, *("DistBackendError" * one for one in failed))
    assert notes[-1] == last == REMEDY


def test_an_exchange_by_single_calls_that_gloo_has_brought_together_is_told_what_nccl_needs():
    def told_so(**more: Any) -> bool:
        ranks = [Told(3).meet("all_reduce").send((r + 1) % 3, **more).recv((r - 1) % 3, **more) for r in range(3)]
        return begins_singly(read(told(*ranks)))

    assert told_so(asynchronous=True)
    assert not told_so(asynchronous=True, batch=True)
    chain = [Told(3).send(1), Told(3).recv(0).send(2), Told(3).recv(1)]
    assert not begins_singly(read(told(*chain)))
    assert not begins_singly(read(told(*(Told(3).meet("all_reduce") for _ in range(3)))))


def test_a_ring_in_which_all_begin_with_isend_stands_in_these_calls_on_nccl():
    ranks = [Told(3).send((r + 1) % 3, **STARTED, start=0, end=None) for r in range(3)]
    story = stuck(ranks, dict.fromkeys(range(3), "isend"), {})
    assert why(story) == (
        f"ranks 0–2 wait for one another in a cycle, 0 → 1 → 2 → 0: each waits in send (line 2); {REMEDY}"
    )


@pytest.mark.parametrize(
    ("ranks", "errors"),
    [
        ([Told(2).send(1, **FAILED), Told(2).recv(0, **FAILED)], BOTH),
        ([Told(3).send(1, **FAILED), Told(3).send(2, **FAILED), Told(3).recv(1, **FAILED)], [*BOTH, BOTH[0]]),
        ([Told(2).send(1 - r, **FAILED, batch=True) for r in range(2)], BOTH),
        ([Told(2).send(1 - r, **STARTED).meet("all_reduce", 2, 9, **FAILED) for r in range(2)], BOTH),
        ([Told(2).send(1 - r, error="DistBackendError") for r in range(2)], BOTH),
        ([Told(2).send(1, **STARTED).recv(1, 2, 9, **FAILED), Told(2)], ["DistBackendError", "ZeroDivisionError"]),
    ],
    ids=["a send and its receive", "a chain", "a batch", "a collective", "on a CPU", "a learner's error"],
)
def test_nothing_is_said_of_batches_where_something_else_failed(ranks, errors):
    assert all(REMEDY not in said for said in ended(ranks, *errors))


@pytest.mark.parametrize("peer", [" [none]", "", " [127.0.0.1]:40123"])  # Gloo knows none: what it says is chance
def test_whoever_exchanges_with_itself_is_told_what_to_do(peer):
    said = f"[enforce fail at state_ >= CONNECTED. 1 vs 4. Pair is not connected ($1 <-->{peer})"
    raised = RankOutcome(1, ename="RuntimeError", evalue=said, raised="operation", at=1)
    error = judge(Outcome([RankOutcome(0), raised], ""))
    assert error is not None
    assert error.notes == [CHOOSE]


def test_who_failed_otherwise_is_told_beside_calls_that_do_not_fit():
    misfit = RankOutcome(0, ename="MismatchError", evalue="Ranks disagree on the root", raised="learner", at=1)
    alone = RankOutcome(1, ename="ValueError", evalue="no", raised="learner", at=2)
    freed = RankOutcome(2, ename="RuntimeError", evalue="Connection closed by peer", raised="lab", at=3)
    error = judge(Outcome([misfit, alone, freed, RankOutcome(3)], "stuck", dead={3: "SIGKILL"}))
    assert str(error) == "Ranks disagree on the root"
    assert error is not None
    assert error.notes == ["rank 1: ValueError: no", "rank 3 died (SIGKILL)"]


STOOD = {0: Waiting("all_reduce", 4), 1: Instead(Did.STOOD, line=3), 2: Waiting("all_reduce", 4)}


def test_beside_a_prompt_each_rank_that_has_a_part_in_the_cell_is_told_of():
    others = {3: Instead(Did.WENT_ON, line=6), 4: WITHOUT, 5: Instead(Did.NEVER_RAN), 6: Instead(Did.DIED, "SIGKILL")}
    assert beside(STOOD | others) == (
        "ranks 0, 2 wait in all_reduce (line 4), rank 1 stands at the debugger's prompt (line 3), "
        "rank 3 is computing (line 6), rank 4 finished the cell and rank 6 died (SIGKILL)"
    )
    assert beside({5: Instead(Did.NEVER_RAN)}) == ""


def test_an_error_says_on_which_rank_the_debugger_was_left_and_who_waited():
    waiting = {r: w for r, w in STOOD.items() if isinstance(w, Waiting)}
    error = judge(Outcome([RankOutcome(1)], "left", waiting=waiting, elsewhere={1: STOOD[1]}))
    assert type(error).__name__ == "StoppedError"
    assert str(error).startswith("You left the debugger on rank 1, and the cell has ended there. Run it again")
    assert error.notes == ["ranks 0, 2 waited in all_reduce (line 4) and were freed"]
