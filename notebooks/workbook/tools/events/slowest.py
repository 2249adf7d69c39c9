"""Draw how long ranks compute, and tell the slowest of them by formula. Imports neither torch nor a cluster."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from labkit.floor.errors import LabError
from workbook.tools.events.fabric import Numbers

LAWS = ("normal", "exponential")


def drawn(n: int, seconds: float, spread: float, law: str = "normal", seed: int = 0) -> Numbers:
    """Draw how long each of n ranks computes, with a mean of `seconds` and a standard deviation of `spread` seconds.

    "normal": errors of both signs, never below 0. "exponential": `seconds - spread` for all and a hiccup of `spread`
    on average.
    """
    if law not in LAWS:
        raise LabError(f"law={law!r} is unknown. Choose one of: {', '.join(LAWS)}.")
    if not 0 <= spread <= seconds:
        raise LabError(f"spread={spread:g} does not fit {seconds:g} seconds. Choose 0 to {seconds:g}.")
    rng = np.random.default_rng(seed)
    if law == "normal":
        return np.maximum(0.0, seconds + spread * rng.standard_normal(n))
    return seconds - spread + spread * rng.exponential(size=n)


def expected(n: int, seconds: float, spread: float, law: str = "normal") -> float:
    """Return the expected maximum of n such times.

    >>> round(expected(100_000, 1.0, 0.02), 3), round(expected(100_000, 1.0, 0.02, "exponential"), 3)
    (1.087, 1.222)

    Exponential: the hiccup times the harmonic number 1 + 1/2 + … + 1/n, exactly (Rényi 1953). Normal: the quantile at
    (n - 0.375) / (n + 0.25), after Blom (1958), right to half a per cent of the spread for n from 2 on.
    """
    if law not in LAWS or n < 1:
        raise LabError(
            f"No expected maximum for law={law!r}, n={n}. Choose one of {', '.join(LAWS)}, and 1 rank or more."
        )
    if law == "normal":
        return seconds + spread * NormalDist().inv_cdf((n - 0.375) / (n + 0.25))
    return seconds - spread + spread * harmonic(n)


def harmonic(n: int) -> float:
    """Return 1 + 1/2 + … + 1/n."""
    return float((1 / np.arange(1, n + 1)).sum())
