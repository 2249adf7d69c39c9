"""What the collectives mean: their laws, whatever the values, the sizes and the number of ranks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.floor.errors import LabError
from labkit.theory import collectives as c
from labkit.theory.origin import Origin
from labkit.theory.values import PAIRWISE, combine, cut, join, shape_of, split

RANKS = st.integers(1, 6)
INTS = st.integers(-1000, 1000)
TOKENS = [[Origin(r, i) for i in range(2)] for r in range(2)]


@st.composite
def buffers(draw, elements=INTS):
    """n ranks' flat buffers of one length, 0 included."""
    n, k = draw(RANKS), draw(st.integers(0, 9))
    return [draw(st.lists(elements, min_size=k, max_size=k)) for _ in range(n)]


@st.composite
def uneven(draw):
    """n ranks' flat buffers with a table of how many elements each sends to each."""
    n = draw(RANKS)
    splits = [[draw(st.integers(0, 3)) for _ in range(n)] for _ in range(n)]
    return [draw(st.lists(INTS, min_size=sum(row), max_size=sum(row))) for row in splits], splits


@given(buffers())
def test_an_all_reduce_is_a_reduce_then_a_broadcast(xs):
    assert c.all_reduce(xs) == c.broadcast(c.reduce(xs, root=0), root=0)


@given(buffers())
def test_an_all_gather_of_a_reduce_scatter_is_an_all_reduce(xs):
    kept = c.reduce_scatter([split(x, len(xs)) for x in xs])
    assert [join(chunks) for chunks in c.all_gather(kept)] == c.all_reduce(xs)


@given(buffers())
def test_an_all_gather_is_a_gather_then_a_broadcast(xs):
    root = len(xs) - 1
    assert c.all_gather(xs) == c.broadcast(c.gather(xs, root), root)


@given(buffers())
def test_a_reduce_scatter_is_a_reduce_then_a_scatter(xs):
    chunks = [split(x, len(xs)) for x in xs]
    assert c.reduce_scatter(chunks) == c.scatter(c.reduce(chunks))


@given(buffers())
def test_scatter_undoes_gather(xs):
    assert c.scatter(c.gather(xs, root=0), root=0) == xs


@given(uneven())
def test_all_to_all_twice_is_the_identity(case):
    xs, splits = case
    back = [list(column) for column in zip(*splits, strict=True)]
    assert c.all_to_all(c.all_to_all(xs, splits), back) == xs


@given(uneven())
def test_all_to_all_is_one_scatter_from_every_rank(case):
    xs = [cut(x, row) for x, row in zip(*case, strict=True)]
    scattered = [c.scatter(xs, root=r) for r in range(len(xs))]
    assert c.all_to_all(xs) == [list(column) for column in zip(*scattered, strict=True)]


@given(buffers(), st.data())
def test_an_uneven_reduce_scatter_keeps_each_ranks_part_of_the_sum(xs, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(xs[0])), min_size=len(xs) - 1, max_size=len(xs) - 1)))
    splits = [b - a for a, b in zip([0, *cuts], [*cuts, len(xs[0])], strict=True)]
    assert join(c.reduce_scatter(xs, splits=splits)) == c.all_reduce(xs)[0]


@given(buffers(), st.integers(1, 6))
def test_split_then_join_is_the_identity_and_chunks_differ_by_one_at_most(xs, n):
    chunks = split(xs[0], n)
    assert join(chunks) == xs[0]
    assert len(chunks) == n
    assert [len(a) for a in chunks] == [len(a) for a in np.array_split(np.array(xs[0]), n)]


@given(buffers())
def test_arrays_and_lists_mean_the_same(xs):
    arrays = [np.array(x, dtype=int) for x in xs]
    for op in ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"):
        assert [out.tolist() for out in c.all_reduce(arrays, op)] == c.all_reduce(xs, op)


@given(st.lists(INTS, min_size=1, max_size=6))
def test_every_reduction_agrees_with_its_textbook(xs):
    band, bor, bxor = xs[0], xs[0], xs[0]
    for x in xs[1:]:
        band, bor, bxor = band & x, bor | x, bxor ^ x
    textbook = {
        "SUM": sum(xs),
        "AVG": sum(xs) / len(xs),
        "PRODUCT": math.prod(xs),
        "MIN": min(xs),
        "MAX": max(xs),
        "BAND": band,
        "BOR": bor,
        "BXOR": bxor,
    }
    assert {op: combine(xs, op) for op in textbook} == textbook
    assert set(textbook) == set(PAIRWISE)
    assert combine(xs, lambda a, b: a + b) == combine(xs, "sum")


def test_aliases_and_torchs_own_operations_are_understood():
    class Torchs:  # what dist.ReduceOp.AVG looks like from here
        name = "AVG"

    assert combine([1, 2], "mean") == combine([1, 2], Torchs()) == 1.5


def test_tokens_say_where_each_element_of_a_reduce_scatter_comes_from():
    chunks = [split(x, 2) for x in TOKENS]
    assert c.reduce_scatter(chunks) == [[Origin(0, 0) + Origin(1, 0)], [Origin(0, 1) + Origin(1, 1)]]


def test_a_mean_of_tokens_comes_from_the_same_places_as_the_sum():
    assert c.all_reduce(TOKENS, "AVG") == c.all_reduce(TOKENS, "SUM")


def test_ranks_that_get_nothing_get_none():
    xs = [10, 20, 30]
    assert c.reduce(xs, root=1) == [None, 60, None]
    assert c.gather(xs, root=2) == [None, None, xs]
    assert c.send_recv(xs, src=0, dst=2) == [None, None, 10]
    assert c.barrier(xs) == [None, None, None]


@pytest.mark.parametrize("name", ["broadcast", "all_gather", "all_reduce", "reduce_scatter", "all_to_all"])
def test_inputs_stay_as_they_are_and_ranks_share_nothing(name):
    xs = [[np.ones(2), np.ones(2)] for _ in range(2)]
    first, second = getattr(c, name)(xs)
    for array in first:
        np.asarray(array)[...] = 7
    assert all((x == 1).all() for row in xs for x in row)
    assert all((np.asarray(array) != 7).all() for array in second)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: c.broadcast([1, 2], root=2), "no rank 2 among 2"),
        (lambda: c.reduce([1, 2], root=-1), "no rank -1"),
        (lambda: c.send_recv([1, 2], 1, 1), "sends to itself"),
        (lambda: c.all_reduce([[1, 2], [1, 2, 3]]), r"rank 1 holds \(3,\), rank 0 holds \(2,\)"),
        (lambda: c.all_reduce([np.ones(2), np.ones((1, 2))]), "disagree on shape"),
        (lambda: c.all_reduce([1, 2], "MEDIAN"), "not a reduction"),
        (lambda: c.all_reduce([1.5, 2.5], "BAND"), "BAND cannot combine"),
        (lambda: combine([]), "no values to combine"),
        (lambda: c.scatter([[1, 2, 3], None], root=0), "Rank 0 brings 3 chunks"),
        (lambda: c.scatter([None, [1, 2]], root=0), "Rank 0 brings None"),
        (lambda: c.reduce_scatter([[1, 2], [1, 2, 3]]), "Rank 1 brings 3 chunks"),
        (lambda: c.reduce_scatter([[1, 2], [1, 2]], splits=[1, 2]), "do not cut 2 elements"),
        (lambda: c.reduce_scatter([[[1], [2]], [[1], [2, 3]]]), "disagree on shape"),
        (lambda: c.all_to_all([[1], [2]], splits=[[1, 0]]), "one row per rank"),
    ],
)
def test_a_mistake_is_told_with_what_to_do_next(call, says):
    with pytest.raises(LabError, match=says) as caught:
        call()
    assert str(caught.value).endswith(".")


def test_a_ragged_list_has_a_shape_to_compare():
    assert shape_of([[1, 2], [3]]) == (2, [(2,), (1,)])
    assert shape_of(np.ones((2, 3))) == shape_of([[1] * 3] * 2) == (2, 3)
