"""What records say of a run that went wrong, and where a process crashed: on records and stacks written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labkit.grading import evidence
from labkit.theory.record import read
from tests.recorded import Told, told


def against(*ranks: Told, finished=()) -> list[str]:
    return evidence.contradictions(read(told(*ranks)), finished)


def failed(rank: Told) -> Told:
    rank.log.ops[-1].error = "RuntimeError"
    return rank


def test_what_fits_is_no_contradiction():
    assert against(Told(2).send(1), Told(2).recv(0)) == []
    assert against(Told(2).meet("all_reduce", shape=[4]), Told(2).meet("all_reduce", shape=[4])) == []
    assert against(Told(2).meet("all_to_all", bytes=8), Told(2).meet("all_to_all", bytes=16)) == []


def test_ranks_that_receive_from_themselves_are_named_together():
    both = [failed(Told(2).recv(r, line=8)) for r in range(2)]
    assert against(*both) == ["Ranks 0, 1 receive from themselves (line 8)."]
    assert against(failed(Told(2).send(0, line=3)), Told(2)) == ["Rank 0 sends to itself (line 3)."]
    assert against(Told(2).send(0, line=3).recv(0, line=4), Told(2)) == [], "a batch on a GPU may do so"


@pytest.mark.parametrize(
    ("odd", "rest", "says"),
    [
        ({"shape": [2]}, {"shape": [3]}, "Rank 0 brings 2 elements to all_reduce (line 4), and the others bring 3."),
        ({"shape": [1]}, {"shape": [2, 2]}, "Rank 0 brings 1 element to all_reduce (line 4), and the others bring 4."),
        (
            {"dtype": "float64"},
            {"dtype": "float32"},
            "Rank 0 brings float64 to all_reduce (line 4), and the others bring float32.",
        ),
        (
            {"reduce": "max"},
            {"reduce": "sum"},
            "Rank 0 asks for max in all_reduce (line 4), and the others ask for sum.",
        ),
    ],
)
def test_ranks_that_disagree_in_a_collective_are_told_apart(odd, rest, says):
    facts = {"line": 4, "dtype": "float32", "shape": [3], "reduce": "sum"}
    ranks = [Told(3).meet("all_reduce", **{**facts, **(rest if r else odd)}) for r in range(3)]
    assert against(*ranks) == [says]


def test_different_calls_and_roots_are_told_apart():
    assert against(Told(2).meet("all_reduce", line=4), Told(2).meet("barrier", line=6)) == [
        "Rank 0 calls all_reduce (line 4), and rank 1 calls barrier (line 6)."
    ]
    assert against(*[Told(2).meet("broadcast", peer=r, line=3) for r in range(2)]) == [
        "Rank 0 names rank 0 as the root of broadcast (line 3), and rank 1 names rank 1."
    ]


def test_a_receive_that_does_not_fit_its_send_is_told_with_both_lines():
    send, recv = Told(2).send(1, line=4, shape=[2]), Told(2).recv(0, line=6, shape=[4])
    assert against(send, recv) == ["Rank 0 sends 2 elements (line 4), and rank 1 makes room for 4 elements (line 6)."]
    tags = Told(2).send(1, line=4, tag=1), Told(2).recv(0, line=6, tag=2)
    assert against(*tags) == ["Rank 0 sends to rank 1 with tag 1 (line 4), and rank 1 receives with tag 2 (line 6)."]


def test_one_tensor_for_several_results_is_named():
    assert against(*[Told(3).meet("all_gather", line=4, shared=3) for _ in range(3)]) == [
        "Ranks 0–2 give all_gather a list with the same tensor in it 3 times (line 4): "
        "each result overwrites the one before."
    ]
    assert against(Told(2).meet("gather", peer=0, shared=2), Told(2).meet("gather", peer=0)) == [
        "Rank 0 gives gather a list with the same tensor in it 2 times (line 2): each result overwrites the one before."
    ]


def test_only_of_a_rank_that_reached_the_end_is_a_handle_never_waited_for():
    rank = Told(2).send(1, line=6)
    rank.log.ops[-1] = replace(rank.log.ops[-1], op="isend", asynchronous=True, done=None)
    assert against(rank, Told(2), finished=[1]) == []
    assert against(rank, Told(2), finished=[0, 1]) == ["Rank 0 started isend (line 6) and never waited for it."]


def test_of_a_rank_that_died_the_others_say_what_they_called_with_it():
    living = Told(3).send(1, line=3, shape=[4], dtype="float32").send(2, line=5, shape=[4], dtype="float32")
    record = read([told(living)[0], None, None])
    assert evidence.with_others(record, [1]) == ["Rank 0 called send with 4 elements of float32 (line 3)."]
    assert evidence.with_others(record, [1], but=[0]) == []


GLOO = """Fatal Python error: Aborted

Thread 0x00007fbc077fe6c0 (most recent call first):
  File "/venv/lib/python3.11/site-packages/zmq/devices/basedevice.py", line 237 in run_device

Thread 0x00007fbc36eb2b80 [MainThread] (most recent call first):
  File "/work/labkit/rank/recorder.py", line 248 in wait
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2799 in recv
  File "/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/work/labkit/rank/recorder.py", line 210 in recorded
  File "/tmp/ipykernel_902/1503056606.py", line 5 in exchange
  File "/tmp/ipykernel_902/881.py", line 7 in f
  File "/work/labkit/rank/function.py", line 99 in run

Extension modules: zmq.backend.cython._zmq (total: 1)
"""


def test_a_stack_that_was_written_at_the_end_names_the_call_and_the_line():
    words = evidence.last_words(GLOO)
    assert str(words) == "in recv (line 5 of exchange, called in line 7)"
    assert not words.own
    lines = GLOO.splitlines(keepends=True)
    assert str(evidence.last_words("".join(line for line in lines if "distributed" not in line))).startswith("in wait")
    own = "Current thread 0x1 (most recent call first):\n" + '  File "/tmp/ipykernel_9/1.py", line 5 in f\n'
    assert str(evidence.last_words(own)) == "in line 5"
    assert evidence.last_words(own).own
    assert evidence.last_words("") is evidence.last_words("Fatal Python error: Aborted\n") is None


def test_a_send_that_lost_its_handle_and_never_came_is_named_though_its_rank_hangs_as_well():
    def rank(me):
        told = Told(2).send(1 - me, line=6).recv(1 - me, 2, None, line=8)
        told.log.ops[0] = replace(told.log.ops[0], op="isend", asynchronous=True, done=None)
        return told

    assert against(rank(0), rank(1), finished=[]) == ["Ranks 0, 1 started isend (line 6) and never waited for it."]
    assert against(rank(0), Told(2).recv(0), finished=[]) == [], "it came"
