"""Exercises for lesson 10: what the slowest of many costs, and who holds the others up, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, Least, exercise
from labkit.grading.promises import Calls

if TYPE_CHECKING:
    from labkit.rank.seen import comms, dist, torch, world_size


def _expected_slowest(xs: Sequence[Any], ranks: int) -> list[float]:
    times = np.sort(np.concatenate(xs))
    below = (np.arange(len(times) + 1) / len(times)) ** ranks
    return [float((times * np.diff(below)).sum())] * len(xs)


def _measured(n: int) -> list[Case]:
    rng = np.random.default_rng([n, 10])

    def drawn(sizes: Sequence[int]) -> list[np.ndarray]:
        return [np.round(10 + rng.exponential(10, size), 2) for size in sizes]

    first = [np.array([10.0, 30.0]) if r == 0 else np.array([10.0, 10.0]) for r in range(n)]
    return [
        Case(first, "a hiccup on rank 0", {"ranks": 2}),
        Case(drawn([5] * n), "one rank", {"ranks": 1}),
        Case(drawn([r + 1 for r in range(n)]), "uneven lists", {"ranks": 8}),
        Case(drawn([0, *[3] * (n - 1)]), "rank 0 has measured nothing", {"ranks": 4}),
        Case(drawn([40] * n), "1,000 ranks", {"ranks": 1000}),
    ]


@exercise(
    "How long does the slowest of many take?",
    _expected_slowest,
    difficulty=2,
    inputs=_measured,
    tolerance=1e-9,
    least=Least(rounds=lambda n: 1),
)
def expected_slowest(seconds, ranks):
    """Return the expected maximum of so many times, each drawn from all that were measured.

    Every rank has measured some `seconds`, a float64 tensor of any length, perhaps none. Imagine a job with `ranks`
    ranks. Each of them draws one of **all** measured times at random, every time equally likely. Return the **expected
    maximum** of the times that they draw, as a Python float, the same on every rank. Compute it, do not draw: the
    chance that all of them stay at or below the i-th shortest of m times is (i / m) to the power `ranks`.
    Hint: Collect all times on every rank: `comms.all_gather` takes tensors of different lengths. Then sort them.
    Hint: The longest one drawn is the i-th shortest time exactly if all stay at or below it, but not all at or below
    the one before it.
    Hint: With `below = torch.linspace(0, 1, m + 1, dtype=torch.float64) ** ranks`, the chances are `below.diff()`.
    Afterwards: With one rank this is the mean. The more ranks, the more weight have the longest times, and in the end
    only the longest that was ever measured: of what is rarer than that, the measurement knows nothing.
    """
    times = torch.cat(comms.all_gather(seconds)).sort().values
    below = torch.linspace(0, 1, len(times) + 1, dtype=torch.float64) ** ranks
    return (times * below.diff()).sum().item()


CAUSES = ("throttling", "shards", "cable", "logging")


def _run(n: int, cause: str, rank: int, steps: int = 8, faint: float = 0.0) -> Case:
    """What each rank measures: rows, compute, send and rest. `faint` is harmless and large beside what is usual."""
    rng = np.random.default_rng([n, rank, CAUSES.index(cause)])
    xs = []
    for r in range(n):
        rows = np.full(steps, 60.0)
        pace = 1 + rng.random(steps) / 50
        send, rest = 2 + rng.random(steps), 0.5 + rng.random(steps) / 10
        if r == (rank + 1) % n:
            rest = rest + faint
        if r == rank:
            if cause == "throttling":
                pace[steps // 4 :] *= 2
                rows += 1
            elif cause == "shards":
                rows *= 2
            elif cause == "cable":
                send += 40
            else:
                rest[3::4] += 200
        xs.append((rows, rows * pace, send, rest))
    return Case(xs, f"{cause} on rank {rank}")


def _runs(n: int) -> list[Case]:
    last = n - 1
    return [
        _run(n, "shards", last),
        _run(n, "throttling", 0),
        _run(n, "cable", last, faint=2.0),
        _run(n, "logging", 0),
        _run(n, "throttling", last, steps=12, faint=2.0),
        _run(n, "shards", 1 % n, steps=1),
    ]


def _cause(xs: Sequence[Any]) -> list[Any]:
    table = np.array([[column.mean() for column in x] for x in xs])
    lost = table[:, 1:] - np.sort(table[:, 1:], axis=0)[(len(xs) - 1) // 2]
    rank, what = np.unravel_index(lost.argmax(), lost.shape)
    rows, pace = table[:, 0], table[:, 1] / table[:, 0]
    slow = pace[rank] / pace.min() > rows[rank] / rows.min()
    cause = (CAUSES[0] if slow else CAUSES[1], *CAUSES[2:])[what]
    return [[int(rank), cause]] * len(xs)


def broken_name_the_cause(rows, compute, send, rest):
    """Return [rank, cause] of what loses the most time."""
    mine = torch.stack([rows, compute, send, rest]).median(1).values
    everyone = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(everyone, mine)
    table = torch.stack(everyone)  # a row a rank

    slower = (table / table.median(0).values)[:, 1:]
    culprit, what = divmod(slower.argmax().item(), 3)
    return [culprit, ("throttling", "cable", "logging")[what]]


@exercise(
    "Who holds the others up, and why?",
    _cause,
    minutes=12,
    difficulty=2,
    inputs=_runs,
    picture=lambda: _run(3, "shards", 2, steps=2).xs,
    promises=(Calls(1),),
    least=Least(rounds=lambda n: 1),
    specimen=broken_name_the_cause,
)
def name_the_cause(rows, compute, send, rest):
    """Return [rank, cause] of what loses the most time.

    Every rank has measured some training steps, one number a step, in float64: the `rows` of its shares, and the time
    that its forward and backward pass took (`compute`), its sends (`send`) and all else that it did (`rest`), all in
    the same unit. On **one** rank **one** thing is wrong. Return a list of two, the same on every rank: that rank and
    the cause. A row takes longer than on the others: `"throttling"`. It has more rows: `"shards"`. Its sends take long:
    `"cable"`. It does something besides, perhaps only now and then: `"logging"`. What loses the **most time** counts; a
    little more of a small thing is harmless. One call that communicates.

    The function as it stands does this for some runs, and is wrong in **three** ways: repair it.
    Hint: Three questions to the function: what does it make of a step in four that takes long? Of two hundredths of a
    second that become four? Of a rank that has twice the rows?
    Hint: A median does not see what is rare; a mean does. Time lost is a difference from what a healthy rank takes, not
    a quotient.
    Hint: Where it is `compute` that loses most: which is larger beside the healthiest rank, this rank's rows, or its
    time for a row?
    Afterwards: Monitoring of large jobs does this for thousands of ranks: a few numbers a rank and step, gathered now
    and then, held against the median of all.
    """
    mine = torch.stack([rows, compute, send, rest]).mean(1)
    everyone = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(everyone, mine)
    table = torch.stack(everyone)  # a row a rank

    lost = (table - table.median(0).values)[:, 1:]
    culprit, what = divmod(lost.argmax().item(), 3)
    if what > 0:
        return [culprit, ("cable", "logging")[what - 1]]
    more = table[culprit, 0] / table[:, 0].min()
    slower = (table[:, 1] / table[:, 0])[culprit] / (table[:, 1] / table[:, 0]).min()
    return [culprit, "throttling" if slower > more else "shards"]
