"""Exercises of lesson 10 for ranks of unequal speed: shares by speed, and rounds of steps without the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, Least, exercise
from workbook.harnesses import adam_step

if TYPE_CHECKING:
    from labkit.rank.cell_names import device, dist, everyones, rank, torch, world_size


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
    """Give gradients of rows, of which number i has [i, i * i], and hold the ranks' shares against their pace.

    What each rank computes is collected while the recorder is paused.
    """
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
    lambda xs, rows: [(np.arange(rows)[:, None] ** [1.0, 2.0]).mean(0)] * len(xs),  # row i has the gradient [i, i * i]
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


INNER, DECAY = 0.25, 0.01  # AdamW as torch has it, but for the learning rate


def _diloco(xs: Sequence[Any], rounds: int, steps: int, lr: float, momentum: float) -> list[Any]:
    """Train in one process with a row a rank: AdamW on each, and a step of SGD with Nesterov momentum for all."""
    goals, anchor, velocity = np.array(xs), np.zeros_like(xs[0]), np.zeros_like(xs[0])
    first, second, count = np.zeros_like(goals), np.zeros_like(goals), 0
    for _ in range(rounds):
        weights = np.zeros_like(goals) + anchor
        for _ in range(steps):
            count += 1
            first, second, by = adam_step(first, second, 2 * (weights - goals * count), count)
            weights = weights * (1 - INNER * DECAY) - INNER * by
        outward = anchor - weights.mean(0)
        velocity = momentum * velocity + outward
        anchor = anchor - lr * (outward + momentum * velocity)
    return [[anchor, anchor] for _ in xs]


def _rounds(n: int) -> list[Case]:
    rng = np.random.default_rng([n, 6])

    def case(rounds: int, steps: int, about: str, lr: float = 0.7, momentum: float = 0.9) -> Case:
        goals = [np.array([3.0, -2.0, 1.0]) * (r + 1) - [0, 0, 2.5] + rng.random(3) / 2 for r in range(n)]
        return Case(goals, about, {"rounds": rounds, "steps": steps, "lr": lr, "momentum": momentum})

    return [
        case(1, 2, "one round of two steps"),
        case(2, 3, "two rounds of three steps"),
        case(3, 1, "three rounds of a single step, without momentum", 1.0, 0.0),
        case(4, 2, "four rounds of two steps", 0.4, 0.5),
    ]


def run_diloco_round(fn, goal, rounds, steps, lr, momentum):
    """Train a model of two parameters for some rounds, and collect its weights and the anchor."""
    from workbook.on_ranks import AdamW

    model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros_like(part)) for part in (goal[:1], goal[1:])])
    inner = AdamW(model.parameters(), lr=INNER)
    anchor = [p.detach().clone() for p in model.parameters()]
    velocity = [torch.zeros_like(a) for a in anchor]
    count = [0]

    def loss(model):
        count[0] += 1
        return ((torch.cat(list(model.parameters())) - goal * count[0]) ** 2).sum()

    for number in range(rounds):
        fn(model, inner, [loss] * steps, anchor, velocity, lr=lr, momentum=momentum)
        assert count[0] == steps * (number + 1), f"{count[0]} losses in {number + 1} rounds of {steps} steps"
    return [torch.cat([p.detach() for p in model.parameters()]), torch.cat(anchor)]


@exercise(
    "A round of DiLoCo", _diloco, minutes=20, difficulty=3, inputs=_rounds, tolerance=1e-9, harness=run_diloco_round
)
def diloco_round(model, inner, losses, anchor, velocity, lr=0.7, momentum=0.9):
    """Take an inner step for each loss, then one outer step with all ranks.

    One round of DiLoCo on every rank. The `model` starts equal on all, `inner` is its own AdamW. `anchor` and
    `velocity` are lists with a tensor for each parameter: the weights with which this round began, and the outer
    momentum, both equal on all ranks. The inner steps are written: one for each of `losses`, a function of the model.
    Write the **outer step**, which all ranks take together. The **outer gradient** `outward` is the anchor minus the
    ranks' mean weights. SGD with **Nesterov** momentum moves the anchor by it: `velocity = momentum * velocity +
    outward`, then `anchor -= lr * (outward + momentum * velocity)`. In the end every model is at the new anchor. Change
    anchor, velocity and model in place; the state of `inner` stays for the next round. Return nothing.
    Hint: Think of the whole round as one gradient: it points from where the ranks have gone back to where they began.
    Hint: For each parameter: `outward = start - p.detach()`, averaged over the ranks. Then the two formulas, in place:
    `v.mul_(momentum).add_(outward)`.
    Hint: `start -= lr * (outward + momentum * v)` uses the new `v`. Last, `p.data.copy_(start)`: the next round begins
    there. Leave `inner` alone.
    Afterwards: With `lr=1` and `momentum=0` the anchor becomes the mean of the models: local SGD. DiLoCo puts an
    optimizer of its own around it, and ranks meet once in hundreds of steps. An all-reduce of one flat tensor would do.
    """
    for loss in losses:
        inner.zero_grad()
        loss(model).backward()
        inner.step()
    # yours
    for p, start, v in zip(model.parameters(), anchor, velocity):
        outward = start - p.detach()
        dist.all_reduce(outward)
        outward /= world_size
        v.mul_(momentum).add_(outward)
        start -= lr * (outward + momentum * v)
        p.data.copy_(start)
    # end
