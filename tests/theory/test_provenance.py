"""Probing: what a function does to zeros and ones tells where its results come from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest

from labkit.theory import mistakes
from labkit.theory.origin import Origin
from labkit.theory.primitives import MEANINGS, PRIMITIVES
from labkit.theory.provenance import FAMILIES, OWN, Part, Response, read

VALUES = [3.0, 5.0, 4.0]


def probed(f: Callable[[Sequence[float]], float], n: int = 3) -> Part | None:
    """What probing finds out about a function of one number a rank."""
    responses = {}
    for rest, changed in FAMILIES:
        base = f([rest] * n)
        one = {(r, 0): f([changed if s == r else rest for s in range(n)]) - base for r in range(n)}
        responses[rest, changed] = Response(base, one, f([changed] * n) - base)
    return read(responses, n, f(VALUES), {(r, 0): v for r, v in enumerate(VALUES)})


def bits(combine):
    def f(xs):
        total = int(xs[0])
        for x in xs[1:]:
            total = combine(total, int(x))
        return total

    return f


@pytest.mark.parametrize(
    ("kind", "f"),
    [
        ("sum", sum),
        ("mean", lambda xs: sum(xs) / len(xs)),
        ("max", max),
        ("min", min),
        ("product", math.prod),
        ("or", bits(lambda a, b: a | b)),
        ("and", bits(lambda a, b: a & b)),
        ("xor", bits(lambda a, b: a ^ b)),
    ],
)
def test_every_reduction_is_told_from_the_others(kind, f):
    assert probed(f) == Part(kind, Origin(0) + Origin(1) + Origin(2))


def test_a_copy_comes_from_one_place():
    assert probed(lambda xs: xs[1]) == Part("copy", Origin(1))


def test_a_rank_that_is_counted_twice_is_counted_twice():
    assert probed(lambda xs: xs[0] + 2 * xs[1]) == Part("sum", Origin(0) + Origin(1) + Origin(1))
    assert probed(lambda xs: xs[0] * xs[1] ** 2).origin == Origin(0) + Origin(1) + Origin(1)
    assert probed(lambda xs: (xs[0] + 2 * xs[2]) / 3) == Part("mean", Origin(0) + Origin(2) + Origin(2))


def test_what_no_rank_brought_is_its_own():
    assert probed(lambda xs: 7.0) == OWN


def test_a_function_that_is_no_reduction_is_a_mixture_of_what_it_depends_on():
    assert probed(lambda xs: xs[0] ** 2).kind == "mix"
    assert probed(lambda xs: math.exp(xs[0]) / (math.exp(xs[0]) + math.exp(xs[2]))) == Part(
        "mix", Origin(0) + Origin(2)
    )
    assert probed(lambda xs: xs[0] - xs[1]).kind == "mix"


def span(*origins):
    return [(i, i + 1, o) for i, o in enumerate(origins)]


def test_ranks_with_the_same_mistake_are_told_together():
    right = span(Origin(0) + Origin(1))
    wrong = span(Origin(0))
    assert mistakes.mistakes([wrong, wrong, right], [right] * 3) == ["ranks 0, 1 lack rank 1's element 0"]


def test_a_rank_that_is_missing_altogether_is_named_without_its_elements():
    right = span(*(Origin(0, i) + Origin(3, i) for i in range(3)))
    wrong = span(*(Origin(0, i) for i in range(3)))
    assert mistakes.mistakes([wrong], [right]) == ["rank 0 lacks rank 3's numbers"]


def test_something_in_another_s_place_is_named_with_what_belongs_there():
    assert mistakes.mistakes([span(Origin(1, 2))], [span(Origin(1, 0))]) == [
        "rank 0 holds rank 1's element 2 where rank 1's element 0 belongs"
    ]
    swapped = span(Origin(1, 2), Origin(1, 0))
    assert mistakes.mistakes([span(*(o for _, _, o in swapped[::-1]))], [swapped]) == [
        "rank 0 holds rank 1's elements 0, 2 where rank 1's elements 2, 0 belong"
    ]
    assert mistakes.mistakes([span(Origin(1))], [span(Origin(3))]) == [
        "rank 0 holds rank 1's element 0 where rank 3's element 0 belongs"
    ]


def test_where_a_0_belongs_or_nothing_at_all_it_is_said_whose_number_is_there():
    nowhere = Origin.of({})
    assert mistakes.mistakes([span(Origin(1, 2))], [span(nowhere)]) == [
        "rank 0 holds rank 1's element 2 where a 0 belongs"
    ]
    assert mistakes.mistakes([span(Origin(1), Origin(1, 2))], [span(Origin(1))]) == [
        "rank 0 holds rank 1's element 2 where nothing belongs"
    ]


def test_a_sum_in_another_s_place_is_named_by_its_parts():
    both = Origin(0, 1) + Origin(2, 1)
    assert mistakes.mistakes([span(both)], [span(Origin(2, 1))]) == [
        "rank 0 holds element 1 of ranks 0, 2 where rank 2's element 1 belongs"
    ]
    assert mistakes.mistakes([span(Origin(0) + Origin(1, 1))], [span(Origin(0) + Origin(1))]) == [
        "rank 0 holds rank 0's element 0 and rank 1's element 1 where element 0 of ranks 0, 1 belong"
    ]
    assert mistakes.mistakes([span(both)], [span(Origin(0) + Origin(2))]) == [
        "rank 0 holds element 1 where element 0 belongs"
    ]


def test_the_meaning_of_every_primitive_is_known():
    for name in MEANINGS:
        assert len(mistakes.expected(name, [[2]] * 2)) == 2
        assert mistakes.expected(PRIMITIVES[name].meaning, [[2]] * 2) == mistakes.expected(name, [[2]] * 2)


def test_a_function_of_ones_own_is_a_meaning_as_well():
    assert mistakes.expected(lambda xs: xs[::-1], [[1], [1]]) == [[Origin(1)], [Origin(0)]]
