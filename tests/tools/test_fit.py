"""α and β from times: exact where the times are exact, by relative error where they are not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.floor.errors import LabError
from workbook.tools.sweep.fit import fit

SIZES = [4 * 4**i for i in range(14)]


@given(st.floats(1e-7, 1e-3), st.floats(1e-12, 1e-8))
def test_an_exact_line_is_found(alpha, beta):
    found = fit(SIZES, [alpha + beta * s for s in SIZES])
    assert found.alpha == pytest.approx(alpha, rel=1e-6)
    assert found.beta == pytest.approx(beta, rel=1e-6)
    assert found.worst < 1e-6


@given(st.lists(st.floats(0.8, 1.25), min_size=len(SIZES), max_size=len(SIZES)))
def test_no_line_nearby_has_a_smaller_relative_error(noise):
    seconds = [(2e-5 + 1e-9 * s) * k for s, k in zip(SIZES, noise, strict=True)]
    found = fit(SIZES, seconds)

    def off(alpha, beta):
        return sum(((alpha + beta * s) / t - 1) ** 2 for s, t in zip(SIZES, seconds, strict=True))

    for a in (0.99, 1, 1.01):
        for b in (0.99, 1, 1.01):
            assert off(found.alpha, found.beta) <= off(found.alpha * a, found.beta * b) + 1e-9


def test_small_sizes_are_met_where_ordinary_least_squares_miss_them():
    rng = np.random.default_rng(0)
    seconds = [(2e-5 + 1e-9 * s) * rng.uniform(0.9, 1.1) for s in SIZES]
    beta, alpha = np.polyfit(SIZES, seconds, 1)
    ours, ordinary = fit(SIZES, seconds).at(4), alpha + beta * 4
    assert abs(ours / seconds[0] - 1) < 0.15
    assert abs(ordinary / seconds[0] - 1) > 0.5


def test_neither_alpha_nor_beta_falls_below_zero():
    falling = fit([1, 10, 100, 1000], [4e-6, 3e-6, 2e-6, 1e-6])
    assert falling.alpha >= 0
    assert falling.beta >= 0
    assert falling.bandwidth == float("inf")


@pytest.mark.parametrize(("sizes", "seconds"), [([], []), ([4], [1]), ([4, 4], [1, 2]), ([1, 2], [1, 0])])
def test_what_makes_no_line_is_refused(sizes, seconds):
    with pytest.raises(LabError):
        fit(sizes, seconds)
