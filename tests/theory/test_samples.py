"""What is made of the times that ranks measured together."""

from __future__ import annotations

import pytest

from labkit.theory.samples import Timing


def timing(samples, arrivals=(), calls=2):
    return Timing(samples, calls, "Gloo", "cpu", arrivals)


def test_the_slowest_rank_of_each_repetition_counts():
    t = timing(((1e-4, 3e-4), (5e-4, 2e-4), (4e-4, 4e-4)))
    assert t.slowest == [3e-4, 5e-4, 4e-4]
    assert (t.min, t.median) == (3e-4, 4e-4)
    assert t.p90 == pytest.approx(4.8e-4)
    assert repr(t) == (
        "median 400 µs (min 300 µs, p90 480 µs), slowest rank of each of 3 repeats of 2 calls, 2 ranks, Gloo on cpu"
    )


def test_who_came_late_is_told_apart_from_the_transfer():
    waited = timing(((0.105, 0.005), (0.105, 0.004), (0.104, 0.005)), ((0.0, 0.1),) * 3, calls=1)
    assert waited.late == [0.0, 0.1]
    assert waited.transfer == pytest.approx(0.005)
    assert waited.median == 0.105
    assert repr(waited).endswith("; rank 1 came 100 ms late, then a call took 5 ms")


def test_a_late_start_is_shared_by_the_calls_behind_it():
    t = timing(((0.06, 0.01),), ((0.0, 0.1),), calls=2)
    assert t.transfer == pytest.approx(0.01)


def test_clocks_that_cannot_be_compared_say_nothing_about_who_was_late():
    t = timing(((0.06, 0.01),))
    assert t.late == []
    assert t.transfer == 0.06
    assert "late" not in repr(t)


@pytest.mark.parametrize(
    ("seconds", "said"), [(2.5, "2.5 s"), (0.0123, "12.3 ms"), (4.12e-4, "412 µs"), (3e-8, "30 ns")]
)
def test_a_time_is_said_in_the_unit_that_fits(seconds, said):
    assert repr(timing(((seconds,),), calls=1)).startswith(f"median {said} ")
