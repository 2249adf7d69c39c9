"""Who waits for whom, read from records written by hand: cycles, ranks that did not come, the longest wait."""

from __future__ import annotations

import pytest

from labkit.outcome.outcome import Outcome, RankOutcome
from labkit.show.waits import Waits
from tests import pictures
from tests.recorded import Told, told

CUT = {"start": 0, "end": 900, "error": "RuntimeError"}


@pytest.mark.parametrize("n", [2, 3, 8])
def test_ranks_that_all_send_first_wait_in_a_cycle(n):
    waits = pictures.ring(n)
    assert waits.arrows == [(r, (r + 1) % n) for r in range(n)]
    assert waits.cycles == [list(range(n))]
    circle = " → ".join(map(str, [*range(n), 0]))
    assert waits.says[-1] == f"{circle} is a cycle: no rank can go on."


def test_a_chain_that_ends_is_no_cycle():
    waits = Waits(told(Told(3).recv(1, **CUT), Told(3).recv(2, **CUT), Told(3)))
    assert waits.arrows == [(0, 1), (1, 2)]
    assert waits.cycles == []
    assert "cycle" not in repr(waits)


def test_two_pairs_are_two_cycles_and_a_third_rank_waits_behind_one():
    pairs = [Told(5).send(peer, **CUT) for peer in (1, 0, 3, 2, 0)]
    waits = Waits(told(*pairs))
    assert waits.cycles == [[0, 1], [2, 3]]
    assert waits.says[-2:] == [
        "0 → 1 → 0 is a cycle: none of these ranks can go on, nor can rank 4, which waits for them.",
        "2 → 3 → 2 is a cycle: none of these ranks can go on.",
    ]


def test_of_a_collective_those_are_waited_for_that_did_not_come():
    waits = pictures.lacking()
    assert waits.arrows == [(r, absent) for r in (0, 1, 5) for absent in (2, 3, 4)]
    assert waits.others[3] == "died (SIGKILL)"
    assert "Rank 2 finished the cell without it." in waits.says
    assert waits.alt.startswith("Wait-for graph of 6 ranks. Who waits for whom when the cell is cut short.")


def test_a_receiver_of_a_broadcast_waits_for_its_root_alone():
    late = [Told(3).meet("broadcast", peer=1, **CUT), Told(3), Told(3)]
    assert Waits(told(*late)).arrows == [(0, 1)]


def test_ranks_in_different_collectives_wait_for_one_another():
    waits = Waits(told(Told(2).meet("barrier", **CUT), Told(2).meet("all_reduce", **CUT)))
    assert waits.cycles == [[0, 1]]


def test_an_error_of_the_learner_s_own_is_no_wait():
    raised = RankOutcome(0, ename="ValueError", raised="learner")
    freed = RankOutcome(1, ename="RuntimeError", raised="lab")
    logs = told(Told(2).send(1, error="ValueError"), Told(2).recv(0, **CUT))
    waits = Waits(logs, Outcome([raised, freed]))
    assert waits.arrows == [(1, 0)]
    assert waits.others == {0: "raised ValueError"}


def test_a_receive_from_anybody_has_no_arrow_and_says_so():
    waits = Waits(told(Told(2).recv(None, **CUT), Told(2)))
    assert waits.arrows == []
    assert b"No arrows" in waits.svg
    assert waits.says[0] == "Rank 0 waits for any rank in recv (line 2)."


def test_one_wait_for_several_messages_is_for_all_their_ranks():
    together = {"asynchronous": True, "waited": (0.1, 0.9, 6), "error": "RuntimeError"}
    waits = Waits(told(Told(3).recv(1, 0, 1, **together).send(2, 0, 1, **together), Told(3), Told(3)))
    assert waits.arrows == [(0, 1), (0, 2)]
    assert waits.says[0] == "Rank 0 waits for ranks 1, 2 in the wait for send (line 6)."


def test_a_cell_that_ended_well_shows_who_waited_at_the_end_of_its_longest_wait():
    ranks = [Told(3).meet("all_reduce", start, 205, line=3) for start in (0, 1, 200)]
    waits = Waits(told(*ranks), Outcome([RankOutcome(r) for r in range(3)]))
    assert repr(waits).splitlines() == [
        "Nothing was stuck. The longest wait: 200 ms.",
        "Ranks 0, 1 waited for rank 2 in all_reduce (line 3).",
        "Rank 2 had not arrived yet.",
    ]


def test_several_ranks_that_do_something_else_were_in_it():
    pairs = [Told(4).send(r ^ 1, 0, 150).recv(r ^ 1, 0, 300, line=2) for r in (0, 1)] + [Told(4), Told(4)]
    waits = Waits(told(*[p.meet("all_reduce", 1 if r > 1 else 300, 305, line=3) for r, p in enumerate(pairs)]))
    assert waits.says == ["Ranks 2, 3 waited for rank 0 in all_reduce (line 3).", "Ranks 0, 1 were in recv, line 2."]


def test_a_cell_in_which_nobody_waited_says_so_and_has_a_picture():
    waits = Waits(told(Told(2), Told(2)), Outcome([]))
    assert repr(waits) == "Nothing was stuck. No rank waited for another."
    assert waits.svg


def test_the_picture_marks_the_cycle_and_carries_its_words():
    waits = pictures.ring(4)
    text = waits.svg.decode()
    assert "0 → 1 → 2 → 3 → 0 is a cycle: no rank can go on." in text
    assert text.count("in send, line 7") == 4
    assert 'alt="Wait-for graph of 4 ranks.' in waits._repr_html_()
    assert waits.svg == pictures.ring(4).svg
    assert len(waits.svg) < 10_000
