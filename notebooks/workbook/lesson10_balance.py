"""An exercise of lesson 10: shares by speed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, Least, exercise

if TYPE_CHECKING:
    from labkit.rank.seen import device, dist, everyones, rank, torch, world_size


def _whole_batch(xs: Sequence[Any], rows: int) -> list[Any]:
    i = np.arange(rows, dtype="float64")  # row i has the gradient [i, i * i]
    return [np.array([i.mean(), (i * i).mean()]) for _ in xs]


def _speeds(n: int) -> list[Case]:
    cases = {
        "": (12, [1.0] * (n - 1) + [2.0]),
        "all are alike": (12 * n, [1.0] * n),
        "rank 0 is four times slower": (61, [4.0] + [1.0] * (n - 1)),
        "all differ": (100, [0.5 + 0.3 * r for r in range(n)]),
        "milliseconds": (240, [1e-3 * (2 + r % 2) for r in range(n)]),
    }
    return [Case([(s,) for s in seconds], about, {"rows": rows}) for about, (rows, seconds) in cases.items()]


def run_balanced_gradient(fn, seconds, rows):
    asked = []

    def gradient(first, last):
        assert 0 <= first < last <= rows, f"rows {first} to {last} are no share of a batch of {rows} rows"
        asked.append((first, last))
        i = torch.arange(first, last, dtype=torch.float64)
        return torch.stack([i, i * i]).mean(1)

    result = fn(gradient, rows, seconds)
    paces, shares = zip(*everyones((seconds, asked)))
    taken = sorted(i for mine in shares for first, last in mine for i in range(first, last))
    missing, twice = set(range(rows)) - set(taken), {i for i in taken if taken.count(i) > 1}
    assert not missing, f"row {min(missing)} of {rows} is on no rank"
    assert not twice, f"row {min(twice)} is on more than one rank"
    slow = {r: paces[r] * sum(last - first for first, last in mine) for r, mine in enumerate(shares)}
    last, enough = max(slow, key=slow.get), rows / sum(1 / s for s in paces) + max(paces)
    ends = [0.0] * world_size  # the least with whole rows: each goes to the rank that is done with it first
    for _ in range(rows):
        first = min(range(world_size), key=lambda r: ends[r] + paces[r])
        ends[first] += paces[first]
    best = max(ends)
    assert slow[last] < enough, f"rank {last} computes for {slow[last]:.3g} s, and all could be done in {best:.3g} s"
    return result


@exercise(
    "Shares by speed",
    _whole_batch,
    minutes=12,
    difficulty=2,
    inputs=_speeds,
    tolerance=1e-9,
    least=Least(rounds=lambda n: 2),
    harness=run_balanced_gradient,
)
def balanced_gradient(gradient, rows, seconds):
    """Return the mean gradient of the batch; each rank computes as many rows as its speed allows.

    A row takes this rank `seconds`, a float that was measured and differs from rank to rank. Share out the rows 0 to
    `rows` − 1 of a batch, so that all ranks finish at nearly the same time: each takes one run of rows, in the order of
    the ranks, as many as its part of the speed of all. `gradient(first, last)` computes rows `first` to `last` − 1 and
    returns the **mean** gradient of these. Return the mean gradient of the **whole batch**, on every rank. No share is
    empty here. In the picture row i has the gradient [i, i²].
    Hint: A rank's speed is `1 / seconds` rows a second. Everybody needs everybody's, to know where their share begins.
    Hint: If you round each share by itself, rows are lost or doubled. Round the **borders**: those are sums of speeds.
    Hint: The mean gradient of few rows must not count as much as that of many: multiply by the rows of the share, sum
    up, divide by `rows`.
    Afterwards: A slow device costs now what it lacks, not what all others wait: three devices at full speed and one at
    a quarter of it do 3.25 devices' work, where equal shares get 1. And the step is the same to the last digits.
    """
    speed = torch.tensor([1 / seconds], dtype=torch.float64, device=device)
    speeds = [torch.empty_like(speed) for _ in range(world_size)]
    dist.all_gather(speeds, speed)
    borders = torch.cat([torch.zeros_like(speed), *speeds]).cumsum(0)
    first, last = (rows * borders / borders[-1]).round().long().tolist()[rank : rank + 2]
    total = gradient(first, last) * (last - first)
    dist.all_reduce(total)
    return total / rows
