"""Calls that fit are told from calls that do not, and what does not fit is named."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from labkit.theory.fingerprint import Call, Statement, disagreement, pack, statement, unpack

SUM = Call("all_reduce", "SUM", dtype="float32", shape="[4]", gives=4, takes=4, place="line 3")


def told(*calls, members=None):
    return disagreement(dict(enumerate(calls)), members or range(len(calls)))


def but(**changes):
    return dataclasses.replace(SUM, **changes)


def test_equal_calls_fit_wherever_they_stand():
    assert told(SUM, but(place="line 7"), SUM) == ""


def test_who_has_not_come_yet_disagrees_with_nobody():
    assert disagreement({1: SUM}, [0, 1, 2]) == ""


def test_the_few_are_named_before_the_many():
    assert told(SUM, but(reduce="MAX", place="line 5"), SUM) == (
        "Ranks disagree on the reduction: rank 1 calls all_reduce(MAX, float32[4]) (line 5); ranks 0, 2 call "
        "all_reduce(SUM, float32[4]) (line 3). Make the same call with the same arguments on every rank."
    )


def test_each_reason_has_its_name():
    root = Call("broadcast", root=0, other="src", dtype="float32", shape="[4]", gives=4, takes=4)
    assert told(SUM, Call("barrier")).startswith("Ranks disagree on the operation: rank 0 calls all_reduce")
    assert "root: rank 0 calls broadcast(src=0, " in told(root, dataclasses.replace(root, root=1))
    assert "dtype: " in told(SUM, but(dtype="float64"))
    assert "number of elements: " in told(SUM, but(gives=5, takes=5, shape="[5]"))


def test_what_one_rank_alone_cannot_mean_is_said_before_another_comes():
    single = Call("all_gather", dtype="float32", shape="[2]", gives=2, takes=-2, sizes=(2, 7), place="line 1")
    assert disagreement({1: single}, [0, 1, 2]) == (
        "The number of elements does not fit: rank 1 calls all_gather(float32[2]) with 2 elements of input and 7 of "
        "output (line 1); ranks 0, 2 have not come yet. The output has to be 3 times as long as the input."
    )
    uneven = Call("all_to_all", dtype="float32", shape="[7]", gives=-1, takes=-2, sizes=(7, 7))
    assert told(uneven, uneven, uneven).endswith("Their length has to be a multiple of 3.")
    assert "Rank 0 gives 1 element to itself, and expects 2. " in told(Call("all_gather", gives=1, takes=(2, 1)))


def test_tensors_that_are_moved_as_they_lie_have_to_lie_alike():
    turned = but(strides="(1, 2)")
    assert told(turned, turned) == ""
    assert told(SUM, turned) == (
        "Ranks disagree on the order of the elements in memory: rank 0 calls all_reduce(SUM, float32[4]) with its rows "
        "one behind the other (line 3); rank 1 calls all_reduce(SUM, float32[4]) with strides (1, 2) (line 3). "
        "Make the call with x.contiguous()."
    )


def test_a_rank_that_is_missing_is_said_to_be():
    said = disagreement({0: SUM, 1: but(reduce="MAX")}, [0, 1, 3])
    assert "; rank 3 has not come yet. " in said


def test_ranks_are_named_by_their_numbers_in_the_world():
    assert "rank 5 calls all_reduce(MAX" in disagreement({3: SUM, 5: but(reduce="MAX"), 9: SUM}, [3, 5, 9])


def test_unequal_parts_fit_where_each_pair_agrees():
    a = Call("all_to_all", gives=(1, 2), takes=(1, 3))
    b = Call("all_to_all", gives=(3, 1), takes=(2, 1))
    assert told(a, b) == ""
    said = told(a, dataclasses.replace(b, takes=(1, 1)))
    assert "Rank 0 gives 2 elements to rank 1, and rank 1 expects 1. " in said


@given(st.integers(2, 6).flatmap(lambda n: st.lists(st.lists(st.integers(0, 9), min_size=n, max_size=n), min_size=n,
                                                    max_size=n)), st.data())  # fmt: skip
def test_an_all_to_all_fits_exactly_where_what_is_given_is_what_is_taken(splits, data):
    n = len(splits)
    taken = [[splits[j][i] for j in range(n)] for i in range(n)]
    calls = [Call("all_to_all", gives=tuple(splits[i]), takes=tuple(taken[i])) for i in range(n)]
    assert told(*calls) == ""
    i, j = data.draw(st.permutations(range(n)))[:2]
    taken[i][j] += data.draw(st.integers(1, 3))
    calls[i] = dataclasses.replace(calls[i], takes=tuple(taken[i]))
    assert f"rank {i} expects {taken[i][j]}" in told(*calls).lower()


def test_a_gather_compares_only_with_its_root():
    root = Call("gather", root=0, other="dst", gives=(3, 0, 0), takes=(3, 3, 3))
    other = dataclasses.replace(root, gives=(3, 0, 0), takes=0)
    assert told(root, other, other) == ""
    assert "number of elements" in told(root, other, dataclasses.replace(other, gives=(4, 0, 0)))


def exchange(n, size, room):
    return Call("all_to_all", dtype="float32", shape=f"[{size}]", gives=size // n, takes=room // n,
                sizes=(size, room), place="line 2")  # fmt: skip


def test_an_output_that_fits_on_no_rank_is_named_with_its_input_and_no_rank_is_said_to_disagree():
    assert told(*[exchange(4, 4, 2)] * 4) == (
        "The number of elements does not fit: ranks 0–3 call all_to_all(float32[4]) with 4 elements of input and 2 of "
        "output (line 2). The output has to be as long as the input."
    )
    gathers = Call("all_gather", dtype="float32", shape="[2]", gives=2, takes=1, sizes=(2, 3))
    assert told(*[gathers] * 3).endswith("The output has to be 3 times as long as the input.")


def test_an_output_that_fits_not_on_one_rank_is_named_there():
    assert told(exchange(2, 4, 4), exchange(2, 4, 2)) == (
        "Ranks disagree on the number of elements: rank 0 calls all_to_all(float32[4]) with 4 elements of input and 4 "
        "of output (line 2); rank 1 calls all_to_all(float32[4]) with 4 elements of input and 2 of output (line 2). "
        "The output has to be as long as the input."
    )
    assert "Give every rank what the others expect of it." in told(exchange(2, 4, 4), exchange(2, 2, 2))


SWAPPED = "if rank == 1:\n    f(b)\n    f(a)\nelse:\n    f(a)\n    f(b)\n"


def at(line, **more):
    text, here = statement(SWAPPED, line)
    return but(place=f"line {line}", text=text, path=(here,), **more)


def test_calls_in_a_different_order_are_named_so_though_they_look_alike():
    assert told(at(5), at(2), at(5)) == (
        "Ranks disagree on the order of their calls: rank 1 calls f(b) first (line 2); ranks 0, 2 call f(a) first "
        "(line 5). Make the calls in the same order on every rank."
    )


def test_calls_in_a_different_order_are_named_so_where_their_sizes_differ():
    assert "disagree on the order" in told(at(5), at(2, gives=9, takes=9, shape="[9]"))


def test_different_lines_are_no_different_order():
    assert told(at(5), at(3)) == "", "both call f(a)"
    lone = [statement("if rank:\n    f(a)\nelse:\n    f(b)\n", line) for line in (2, 4)]
    assert told(*(but(text=text, path=(here,)) for text, here in lone)) == ""


def test_the_innermost_statement_of_a_line_counts():
    cell = "for i in range(3):\n    with x:\n        f(a,\n          b)\n    g(a)\nf(b)\n"
    assert [statement(cell, line)[0] for line in (1, 4, 5, 6)] == [
        "for i in range(3):\n    with x:\n        f(a, b)\n    g(a)", "f(a, b)", "g(a)", "f(b)",
    ]  # fmt: skip
    assert statement("try:\n    f()\nexcept E:\n    g()\n", 4)[0] == "g()"
    assert statement("%magic\nf()", 2)[0] == "", "no Python"


def test_a_call_survives_being_packed():
    call = but(path=(Statement(1, (2, 3)),), gives=(1, 2), sizes=(4, 2))
    assert unpack(pack(call)) == call


def test_a_call_that_is_too_long_is_compared_in_what_there_is_room_for():
    call = but(gives=tuple(range(1000)), path=(Statement(1, (2, 3)),))
    kept = unpack(pack(call, 1000))
    assert (kept.kind, kept.reduce, kept.gives, kept.path) == ("all_reduce", "SUM", None, ())
    assert told(kept, but(reduce="MAX")).startswith("Ranks disagree on the reduction")
