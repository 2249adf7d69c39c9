"""Tokens and probe numbers tell the same story of where every element came from."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.floor.errors import LabError
from labkit.theory import collectives as c
from labkit.theory.origin import Origin, merge, passes
from labkit.theory.values import split

SIZES = st.tuples(st.integers(1, 5), st.integers(1, 8))
COUNTS = st.dictionaries(st.tuples(st.integers(0, 4), st.integers(0, 7)), st.integers(1, 15))


@given(COUNTS, COUNTS)
def test_adding_tokens_adds_their_contributions(a, b):
    assert (Origin.of(a) + Origin.of(b)).counts == Counter(a) + Counter(b)
    assert Origin.of(a) + Origin.of(b) == Origin.of(b) + Origin.of(a)
    assert hash(Origin.of(a)) == hash(Origin.of(dict(reversed(a.items()))))


@given(COUNTS, st.sampled_from([4, 24, 30, 53, 62, 160]))
def test_probe_numbers_read_back_as_the_contributions_that_made_them(counts, bits):
    runs = passes(5, 8, bits)
    values = [sum(times * xs[r][i] for (r, i), times in counts.items()) for xs in runs]
    assert all(value < 2**bits for value in values)
    assert merge(values, 5, 8, bits) == Origin.of(counts)


@given(SIZES, st.sampled_from(["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "reduce"]))
def test_tokens_and_probe_numbers_agree_on_every_collective(size, name):
    n, k = size

    def run(xs):
        """The collective on flat buffers, and its results as one flat list."""
        if name in ("reduce_scatter", "all_to_all"):
            xs = [split(x, n) for x in xs]
        return list(flat(getattr(c, name)(xs)))

    marks, probes = run([[Origin(r, i) for i in range(k)] for r in range(n)]), [run(xs) for xs in passes(n, k)]
    assert [None if m is None else m for m in marks] == [
        None if values[0] is None else merge(values, n, k) for values in zip(*probes, strict=True)
    ]


def flat(x):
    if isinstance(x, list):
        for inner in x:
            yield from flat(inner)
    else:
        yield x


@given(SIZES)
def test_every_pair_is_probed_once_and_fits_an_int64(size):
    n, k = size
    runs = np.array(passes(n, k), dtype=np.int64)
    assert ((runs != 0).sum(axis=0) == 1).all()
    assert len(runs) == -(-n * k // 15)


def test_an_int64_probe_survives_fifteen_copies_of_everything():
    (xs,) = passes(3, 5)
    everything = 15 * np.array(xs, dtype=np.int64).sum()
    assert merge([int(everything)], 3, 5) == Origin.of({(r, i): 15 for r in range(3) for i in range(5)})


def test_float_results_are_read_where_they_are_whole():
    runs = passes(2, 4, bits=24)
    values = [np.float32(xs[1][3]) + np.float32(xs[0][0]) for xs in runs]
    assert merge(values, 2, 4, bits=24) == Origin(0, 0) + Origin(1, 3)


def test_a_token_says_how_often_each_element_is_in_it():
    token = sum([Origin(2, 1), Origin(0, 3), Origin(2, 1)])
    assert repr(token) == "r0[3] + 2·r2[1]"
    assert token.ranks == [0, 2]
    assert repr(Origin.of({})) == "nothing"
    assert Origin.of({}) + 0 == Origin.of({})


def test_a_buffer_of_no_elements_is_one_empty_probe():
    assert passes(2, 0) == [[[], []]]


def test_tokens_refuse_what_has_no_origin():
    with pytest.raises(TypeError):
        Origin(0, 0) + 1
    with pytest.raises(TypeError):
        Origin(0, 0) * Origin(1, 0)


@pytest.mark.parametrize(
    "value", [-1, 16**4, 0.5, float("nan"), float("inf")], ids=["negative", "large", "broken", "nan", "inf"]
)
def test_a_number_that_no_sum_of_probes_gives_is_refused(value):
    with pytest.raises(LabError, match="only moves and adds"):
        merge([value], 2, 2, 16)


def test_a_probe_needs_room_and_one_value_a_run():
    with pytest.raises(LabError, match="4 or more"):
        passes(2, 2, bits=3)
    with pytest.raises(LabError, match="one value per run"):
        merge([1], 4, 8)
