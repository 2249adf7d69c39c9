"""Exercises without a cluster: inputs, the comparison of results, gradients by differences, what a run costs."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest

from labkit.grading import gradients, inputs, judge, run_cost, tracing
from labkit.grading.exercise import ANY, NOTHING, exercise, stub
from labkit.grading.inputs import Case
from labkit.theory import collectives
from labkit.theory.origin import Origin
from labkit.theory.record import read
from tests.recorded import Told, told

if TYPE_CHECKING:
    from labkit.rank.cell_names import dist, rank, torch


@exercise("Total", collectives.all_reduce, given="import math")
def total(x, root=0):
    """Return the sum of all ranks' x.

    Add.
    Hint: Which call
    adds?
    Hint: All-reduce.
    Afterwards: That was it.

    - one
    - two
    """
    y = x.clone()
    dist.all_reduce(y)
    return y


def differs(got, want, **options) -> str:
    found = judge.first_difference(got, want, judge.Rule(**options))
    return found.says if found else ""


def floats(*values, dtype="float32"):
    return np.array(values, dtype=dtype)


def test_a_stub_keeps_the_signature_the_docstring_and_what_is_given():
    assert total.stub == (
        '%%px\nimport math\n\n\ndef total(x, root=0):\n    """Return the sum of all ranks\' x."""\n    ...'
    )
    assert total.arguments == ["x", "root"]


def test_the_card_is_the_rest_of_the_docstring():
    assert total.statement == "Add."
    assert total.hints == ("Which call adds?", "All-reduce.")
    assert total.after == "That was it.\n\n- one\n- two"


@exercise("Ring", collectives.all_reduce)
def marked(x):
    """Return the sum."""
    got = torch.empty_like(x)
    if rank:
        # yours
        dist.send(x, 0)

        x = got
        # end
    for _ in range(3):
        # yours
        dist.recv(got, 1)
    # end
    return got


def test_what_the_learner_writes_stands_between_two_marks_that_nobody_sees():
    assert marked.stub == (
        '%%px\ndef marked(x):\n    """Return the sum."""\n    got = torch.empty_like(x)\n    if rank:\n        ...\n'
        "    for _ in range(3):\n        ...\n    return got"
    )
    unmarked = "".join(line for line in marked.solution.splitlines(keepends=True) if "#" not in line)
    assert marked.answer == f"%%px\n{unmarked}\n"
    with pytest.raises(AssertionError, match="take turns"):
        stub("def f():\n    # yours\n    return 1\n")


def test_a_specimen_is_its_own_stub():
    def broken(x):
        return x

    @exercise("Total", collectives.all_reduce, specimen=broken)
    def mended(x): ...

    assert mended.stub == "%%px\ndef mended(x):\n    return x"


def kept(function):
    return function


@exercise("Half", collectives.all_reduce)
@kept
@kept
def half(x):
    """Return half of x.

    Divide.
    """
    # yours
    return x / 2
    # end


def test_the_decorators_below_the_exercise_are_the_learners_as_well():
    begins = '%%px\n@kept\n@kept\ndef half(x):\n    """Return half of x."""\n    '
    assert half.stub == f"{begins}..."
    assert half.answer == f"{begins}return x / 2\n"


@kept
def broken_third(x):
    return x / 2


@exercise("Third", collectives.all_reduce)
@kept
def third(x):
    """Return a third of x.

    Divide.
    """
    return x / 3


def test_those_of_a_broken_function_are_the_stubs():
    assert third.stub == '%%px\n@kept\ndef third(x):\n    """Return a third of x."""\n    return x / 2'


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
def test_inputs_are_deterministic_and_among_them_are_odd_empty_and_several_dtypes(n):
    cases = inputs.vectors(n)
    assert {case.n for case in cases} == {n}
    sizes = [len(case.xs[0]) for case in cases]
    assert {0, 1} <= set(sizes)
    assert n == 1 or any(size % n for size in sizes)
    assert {str(case.xs[0].dtype) for case in cases} == {"float32", "float64", "int64"}
    assert any((case.xs[0] < 0).any() for case in cases if len(case.xs[0]))
    for a, b in zip(cases, inputs.vectors(n), strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(a.xs, b.xs, strict=True))


def test_other_numbers_keep_what_is_equal_and_what_is_zero_and_take_more_digits_than_half_a_float_has():
    model, labels = np.array([1, 0, -3], "float32"), np.array([1, 2])
    case = Case([(model, x, labels) for x in inputs.counting(3, 4)], "a model on all ranks")
    factors, seen = [1.25, 1 + 3 / 2**12], set()
    for seed in range(20):
        other = inputs.varied(case, factors, Random(seed))
        own = [float(x[-1] / brought[-1]) for (_, x, _), (_, brought, _) in zip(other.xs, case.xs, strict=True)]
        assert set(own) <= set(factors)
        assert len({m.tobytes() for m, _, _ in other.xs}) == 1
        assert {str(a.dtype) for x in other.xs for a in x} == {"float32", "int64"}
        assert all((a == labels).all() for _, _, a in other.xs)
        assert other.about.startswith("a model on all ranks, its numbers times 1.")
        seen.add(tuple(own))
    assert len(seen) > 4, "each rank's factor is its own"
    (wide,) = {float(x[0]) for x in inputs.varied(Case([np.ones(2)] * 2), factors[1:], Random(0)).xs}
    assert float(np.float16(factors[1])) != factors[1] == float(np.float32(factors[1]))
    assert float(np.float32(wide)) != wide, "a float64 takes more"
    for same in (Case([labels] * 2), Case([model] * 2, dtype="bfloat16"), Case([np.zeros(0)] * 2)):
        assert inputs.varied(same, factors, Random(0)) is same


@pytest.mark.parametrize("kind", [inputs.chunked, inputs.divisible, inputs.uneven])
def test_every_kind_of_input_has_an_x_for_every_rank(kind):
    assert all(len(case.xs) == 3 for case in kind(3))


def test_the_first_difference_names_the_element_and_both_values():
    assert differs(floats(1, 5), floats(1, 2)) == "element 1 is 5, and should be 2"
    assert differs(np.array([[1, 5], [6, 7]]), np.array([[1, 5], [2, 7]])) == "element [1, 0] is 6, and should be 2"
    assert differs({"a": [floats(1)]}, {"a": [floats(2)]}) == "element 0 in result['a'][0] is 1, and should be 2"


@pytest.mark.parametrize(
    ("times", "n", "says"),
    [
        (3.0, 3, "What differs is 3 times what it should be: the sum over 3 ranks, and not their mean?"),
        (1 / 3, 3, "What differs is 1/3 of what it should be: divided by the number of ranks once too often?"),
        (-1.0, 3, "What differs has the wrong sign."),
        (2.0, 3, ""),
    ],
)
def test_numbers_that_differ_by_one_factor_say_which_slip_that_may_be(times, n, says):
    want = {"gradient": floats(1, -2, 4), "same": [floats(5)]}
    got = {"gradient": times * floats(1, -2, 4), "same": [floats(5)]}
    assert judge.factor([(got, want), (got, want)], n) == says


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (floats(3), floats(1)),  # a single number may be anything
        (floats(3, 3), floats(1, 1)),
        (np.array([3, 6]), np.array([1, 2])),  # counts
        (floats(3, 6, 1), floats(1, 2, 3)),
        (floats(3, 6), floats(1, 2, 3)),
        ("ring", "tree"),
    ],
)
def test_no_factor_is_told_where_it_may_be_chance(got, want):
    assert judge.factor([(got, want)], 3) == ""


def test_right_numbers_that_were_rounded_to_float32_are_known():
    third, rounded = np.array([1 / 3, 2.0]), np.array([1 / 3, 2.0]).astype("float32").astype("float64")
    assert judge.rounded([(rounded, third), (rounded, third)])
    assert not judge.rounded([(rounded, third), (third + 1, third)])
    assert not judge.rounded([(third, third)])
    assert not judge.rounded([(rounded[:1], third)])
    assert not judge.rounded([(np.array([3]), np.array([4]))])


def test_numbers_that_the_rank_itself_brought_are_known():
    brought = ([floats(11)], [floats(12)])
    assert judge.own([({"a": floats(11), "b": floats(3)}, {"a": floats(1), "b": floats(3)}, brought)])
    assert not judge.own([({"a": floats(13)}, {"a": floats(1)}, brought)])
    assert not judge.own([({"a": floats(11)}, {"a": floats(11)}, brought)])


@pytest.mark.parametrize(
    ("got", "want", "says"),
    [
        (None, floats(1), "None comes back, and a tensor of shape (1,) should"),
        (floats(1, 2), floats(1, 2, 3), "the shape is (2,), and should be (3,)"),
        (floats(1, 2), np.array([1, 2]), "there are floats (float32), and should be integers (int64)"),
        ([floats(1)], [floats(1), floats(2)], "the list has 1 entry, and should have 2"),
        (floats(1, 2), [floats(1), floats(2)], "a tensor of shape (2,) comes back, and a list of 2 should"),
        ({"a": 1}, {"a": 1, "b": 2}, "the dict lacks 'b'"),
        ("ring", "tree", "'ring' comes back, and 'tree' should"),
        (3, NOTHING, "an int comes back, and None should"),
        (None, [], "None comes back, and an empty list should"),
        (10**6 + 1, 10**6, "element 0 is 1000001, and should be 1000000"),
        (floats(np.inf), floats(1), "element 0 is inf, and should be 1"),
        ("one", 1, "a str comes back, and an int should"),
    ],
)
def test_other_differences_are_told_in_words(got, want, says):
    assert differs(got, want) == says


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (floats(1 + 1e-7), floats(1)),
        (floats(np.nan, -np.inf), floats(np.nan, -np.inf)),
        (3.0, np.array(3.0)),
        (floats(3), 3.0),
        ([1, floats(2).reshape(())], (1, 2.0)),
        (floats(), floats()),
        (floats(), []),
        (float(np.float32(5 / 12)), np.float64(5 / 12)),
        ("whatever", ANY),
        (None, NOTHING),
        ([floats(1), 7], [floats(1), ANY]),
        ((floats(1), floats(2, 3)), [floats(1), floats(2, 3)]),
    ],
)
def test_what_counts_as_the_same(got, want):
    assert differs(got, want) == ""


def test_tolerance_goes_by_the_coarsest_dtype_and_zero_asks_for_the_same_bits():
    got, want = floats(1 + 1e-7), floats(1)
    assert "should be" in differs(got, want, tolerance=0.0)
    near = floats(1.004)
    assert differs(near, want) != ""
    assert differs(near, want, dtype="bfloat16") == ""


def test_gradients_by_differences_agree_with_those_by_hand():
    xs = [np.array([1.0, -2.0]), np.array([3.0, 0.5])]
    (a,), (b,) = gradients.gradients(lambda xs: [xs[0] * xs[1]] * 2, xs, {})
    weights = gradients.weights(2, 0) + gradients.weights(2, 1)
    assert np.allclose(a, weights * xs[1], atol=1e-8)
    assert np.allclose(b, weights * xs[0], atol=1e-8)
    (once,), _ = gradients.gradients(lambda xs: [xs[0] * xs[1]] * 2, xs, {}, one=True)
    assert np.allclose(once, gradients.weights(2, 0) * xs[1], atol=1e-8)


def test_only_floating_point_arguments_have_gradients():
    xs = [(np.ones(2), np.array([1, 0]), np.ones(1, dtype="float32"))]
    (row,) = gradients.gradients(lambda xs: [xs[0][0].sum() + 3 * xs[0][2]], xs, {})
    assert [g.round(6).tolist() for g in row] == [[1.0, 1.0], [3.0]]


def ring(n: int, rounds: int):
    """Everybody sends to the right at once, and again once that has come."""
    ranks = [Told(n) for _ in range(n)]
    for k in range(rounds):
        for r, rank in enumerate(ranks):
            rank.send((r + 1) % n, start=k, bytes=100).recv((r - 1) % n, start=k)
            rank.log.ops[-2].done = rank.log.ops[-1].done  # an isend, waited for after the receive
    return read(told(*ranks))


def test_a_rings_steps_and_bytes_are_counted():
    assert run_cost.steps(ring(4, 3)) == 3
    assert run_cost.sent(ring(4, 3)) == [300.0] * 4


def test_a_root_that_serves_one_after_the_other_takes_a_step_each_whether_it_waits_or_not():
    for waits in (True, False):
        root = Told(4).send(1).send(2).send(3)
        if not waits:
            for op in root.log.ops:
                op.done = 99
        record = read(told(root, Told(4).recv(0), Told(4).recv(0), Told(4).recv(0)))
        assert run_cost.steps(record) == 3


def test_a_tree_takes_the_logarithm():
    ranks = [Told(4).send(1).send(2), Told(4).recv(0).send(3), Told(4).recv(0), Told(4).recv(1)]
    assert run_cost.steps(read(told(*ranks))) == 2


def test_collectives_count_as_the_textbook_has_them():
    ranks = [Told(4).meet("all_reduce", bytes=1000) for _ in range(4)]
    assert run_cost.sent(read(told(*ranks))) == [1500.0] * 4
    ranks = [Told(4).meet("comms.all_gather", bytes=size) for size in (0, 100, 200, 100)]
    assert run_cost.sent(read(told(*ranks))) == [300.0] * 4


def traced(case: inputs.Case, function):
    """Where a function's results come from, told by probe numbers alone."""
    outs = [function(probe.xs) for probe in tracing.probes(case)]
    rows = tracing.decoded(case, outs)
    return rows if rows and tracing.explains(case, rows, function(case.xs)) else None


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_probe_numbers_tell_what_tokens_tell(n: int, dtype: str):
    case = inputs.Case(inputs.counting(n, 2 * n, dtype))
    wants = collectives.all_reduce(case.xs)
    tokens = tracing.origins(collectives.all_reduce, case, wants)
    assert tokens == [[Origin.of((r, i) for r in range(n)) for i in range(2 * n)]] * n
    assert traced(case, collectives.all_reduce) == tokens


def test_a_mistake_is_told_as_what_lacks_and_what_counts_twice():
    case = inputs.Case(inputs.counting(3, 2))
    came = traced(case, lambda xs: [xs[0] + xs[1], 2 * xs[0] + xs[1] + xs[2], xs[0] + xs[1] + xs[2]])
    wanted = tracing.origins(collectives.all_reduce, case, collectives.all_reduce(case.xs))
    assert tracing.in_words(came, wanted) == ["rank 0 lacks rank 2's numbers", "rank 1 counts rank 0 twice"]
    shifted = traced(case, lambda xs: [xs[1], xs[2], xs[0]])
    assert tracing.in_words(shifted, [[Origin(2, i) for i in range(2)], None, None]) == [
        "rank 0 holds rank 1's numbers where rank 2's belong"
    ]


@pytest.mark.parametrize(
    "function",
    [
        lambda xs: [sum(xs) / len(xs)] * len(xs),
        lambda xs: [np.maximum(xs[0], xs[1])] * len(xs),
        lambda xs: [xs[0] * xs[1]] * len(xs),
        lambda xs: [xs[0] + 1] * len(xs),
        lambda xs: [xs[0], None],
    ],
)
def test_what_does_more_than_move_and_add_is_not_explained_by_sums(function):
    assert traced(inputs.Case(inputs.counting(2, 4)), function) is None


def test_mixed_inputs_and_large_ones_are_not_probed():
    for case in (
        inputs.Case([(floats(1), np.array([1]))] * 2),
        inputs.Case([["a"]] * 2),
        inputs.Case(inputs.counting(4, 1000)),
        inputs.Case(inputs.counting(2, 0)),
        inputs.Case(inputs.counting(2, 2), dtype="bfloat16"),
    ):
        assert tracing.probes(case) == []
