"""Lesson 10: what the slowest of many costs, who holds the others up, and why; and all questions of the lesson."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, Least, exercise
from labkit.grading.prediction import ask, series
from labkit.grading.promises import Calls

if TYPE_CHECKING:
    from labkit.rank.cell_names import comms, dist, torch, world_size


def _expected_slowest(xs: Sequence[Any], ranks: int) -> list[float]:
    times = np.sort(np.concatenate(xs))
    below = (np.arange(len(times) + 1) / len(times)) ** ranks
    return [float((times * np.diff(below)).sum())] * len(xs)


def _measured(n: int) -> list[Case]:
    rng = np.random.default_rng([n, 10])

    def case(sizes: Sequence[int], about: str, ranks: int) -> Case:
        return Case([np.round(10 + rng.exponential(10, size), 2) for size in sizes], about, {"ranks": ranks})

    return [
        Case([np.array([10.0, 10.0 if r else 30.0]) for r in range(n)], "a hiccup on rank 0", {"ranks": 2}),
        case([5] * n, "one rank", 1),
        case([r + 1 for r in range(n)], "uneven lists", 8),
        case([0, *[3] * (n - 1)], "rank 0 has measured nothing", 4),
        case([40] * n, "1,000 ranks", 1000),
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
    ranks. Each of them draws one of **all** the measured times at random, all equally likely. Return the **expected
    maximum** of the times that they draw, as a Python float, the same on every rank. Compute it, do not draw: the
    chance that all of them stay at or below the i-th shortest of m times is (i / m) to the power `ranks`.
    Hint: Collect all times on every rank: `comms.all_gather` takes tensors of different lengths. Then sort them.
    Hint: The longest time drawn is the i-th shortest if all draws are at or below it, but not all at or below the one
    before it.
    Hint: With `below = torch.linspace(0, 1, m + 1, dtype=torch.float64) ** ranks`, the chances are `below.diff()`.
    Afterwards: With one rank this is the mean. The more ranks there are, the more the longest times count, and in the
    end only the longest one counts. The measurement knows nothing of times that are rarer than that.
    """
    times = torch.cat(comms.all_gather(seconds)).sort().values
    below = torch.linspace(0, 1, len(times) + 1, dtype=torch.float64) ** ranks
    return (times * below.diff()).sum().item()


CAUSES = ("throttling", "shards", "cable", "logging")


def _run(n: int, cause: str, rank: int, steps: int = 8, faint: float = 0.0) -> Case:
    """Make what each rank measures: rows, compute, send and rest. `faint` is harmless, and large beside the usual."""
    rng = np.random.default_rng([n, rank, CAUSES.index(cause)])
    xs = []
    for r in range(n):
        rows = np.full(steps, 60.0)
        pace = 1 + rng.random(steps) / 50
        send, rest = 2 + rng.random(steps), 0.5 + rng.random(steps) / 10
        if r == (rank + 1) % n:
            rest = rest + faint
        if r == rank and cause == "throttling":
            pace[steps // 4 :] *= 2
            rows += 1
        elif r == rank and cause == "shards":
            rows *= 2
        elif r == rank and cause == "cable":
            send += 40
        elif r == rank:
            rest[3::4] += 200
        xs.append((rows, rows * pace, send, rest))
    return Case(xs, f"{cause} on rank {rank}")


def _cause(xs: Sequence[Any]) -> list[Any]:
    table = np.array([[column.mean() for column in x] for x in xs])
    lost = table[:, 1:] - np.sort(table[:, 1:], axis=0)[(len(xs) - 1) // 2]
    rank, what = np.unravel_index(lost.argmax(), lost.shape)
    rows, pace = table[:, 0], table[:, 1] / table[:, 0]
    slow = pace[rank] / pace.min() > rows[rank] / rows.min()
    cause = (CAUSES[0] if slow else CAUSES[1], *CAUSES[2:])[what]
    return [[int(rank), cause]] * len(xs)


def broken_name_the_cause(rows, compute, send, rest):
    mine = torch.stack([rows, compute, send, rest]).median(1).values
    everyone = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(everyone, mine)
    table = torch.stack(everyone)  # a row per rank

    slower = (table / table.median(0).values)[:, 1:]
    culprit, what = divmod(slower.argmax().item(), 3)
    return [culprit, ("throttling", "cable", "logging")[what]]


@exercise(
    "Who holds the others up, and why?",
    _cause,
    minutes=12,
    difficulty=2,
    inputs=lambda n: [
        _run(n, "shards", n - 1),
        _run(n, "throttling", 0),
        _run(n, "cable", n - 1, faint=2.0),
        _run(n, "logging", 0),
        _run(n, "throttling", n - 1, steps=12, faint=2.0),
        _run(n, "shards", 1 % n, steps=1),
    ],
    picture=lambda: _run(3, "shards", 2, steps=2).xs,
    promises=(Calls(1),),
    least=Least(rounds=lambda n: 1),
)
def name_the_cause(rows, compute, send, rest):
    """Return [rank, cause] of what loses the most time.

    Every rank has measured some training steps, one number per step, in float64: the `rows` of its shares, and the time
    that its forward and backward pass took (`compute`), its sends (`send`) and all else that it did (`rest`), all in
    the same unit. On **one** rank **one** thing is wrong. Return a list of two, the same on every rank: that rank and
    the cause. A row takes longer than on the others: `"throttling"`. It has more rows: `"shards"`. Its sends take long:
    `"cable"`. It does something else, perhaps only now and then: `"logging"`. What loses the **most time** counts; a
    small time that doubles is harmless. One call that communicates.

    The function as it stands does this for some runs, and is wrong in **three** ways: repair it.
    Hint: Ask the function three questions. What does it make of a rank where one step in four takes long? Of a tiny
    time that doubles? Of a rank that has twice the rows?
    Hint: A median does not see what is rare; a mean does. Time lost is a difference from what a healthy rank takes, not
    a quotient.
    Hint: Where it is `compute` that loses most: which is larger beside the healthiest rank, this rank's rows, or its
    time for a row?
    Afterwards: Monitoring of large jobs does this for thousands of ranks: a few numbers per rank and step are gathered
    now and then and compared with the median of all.
    """
    mine = torch.stack([rows, compute, send, rest]).mean(1)
    everyone = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(everyone, mine)
    table = torch.stack(everyone)  # a row per rank

    lost = (table - table.median(0).values)[:, 1:]
    culprit, what = divmod(lost.argmax().item(), 3)
    if what > 0:
        return [culprit, ("cable", "logging")[what - 1]]
    more = table[culprit, 0] / table[:, 0].min()
    slower = (table[:, 1] / table[:, 0])[culprit] / (table[:, 1] / table[:, 0]).min()
    return [culprit, "throttling" if slower > more else "shards"]


slowest_of_eight = ask("""
In each step a rank computes for 10 ms, and then for a random time: 10 ms on average, often less, sometimes much more.
Alone it takes 20 ms per step. Now eight such ranks all-reduce one number after each step, which by itself takes 1 or 2
ms. How long does a step take on average?
( ) about 20 ms: an average stays an average
    > That would be true of many steps of one rank, where long and short steps even out. Here the ranks meet after
    every step, and seven short steps do not make up for a long one on the eighth rank.
( ) about 25 ms: it gets a little worse
    > That is what two ranks take. With each further rank there is one more chance of a long step.
(x) about 40 ms: the slowest of eight is usually late
( ) about 160 ms: each waits for seven others
    > They wait for seven others at the same time, not one after the other: only the slowest of them counts.
Why: **About 40 ms, twice as long.** No rank is slow: all eight are alike. But the step ends when the *last* rank
arrives, and of eight random times one is usually long. You pay the maximum, in every step.
""")

four_slow_runs = series(
    """
What is wrong in each of the four runs?
""",
    run_a="""
Run A:
( ) throttling
    > A throttled device needs longer for the *same* rows. This one has more rows.
( ) a bad cable
    > Then one rank's sends would take longer than the others'. They do not.
(x) uneven shards
( ) rank 0 writes its log
    > Then rank 0 would do something else now and then, while the others wait.
Why: Rank 1 computes three times as long as the others, in every step, and it has three times the **rows**. The device
is fine: it takes as long for a row as the others do.
""",
    run_b="""
Run B:
( ) throttling
    > Then a rank would compute longer. Here all compute for the same time.
(x) a bad cable
( ) uneven shards
    > The rows are the same everywhere, and so is the time that they take.
( ) rank 0 writes its log
    > Then it would show in the rest of rank 0's step. Here sends are slow, and they are another rank's.
Why: All compute equally long, and the last rank's **sends** take many times as long as the others'. In a ring
everything passes over every link, so a single slow link makes the whole all-reduce slow.
""",
    run_c="""
Run C:
( ) throttling
    > A hot device is slow in its forward and backward pass, and stays slow. Here a rank does something else, in every
    fourth step.
( ) a bad cable
    > The sends are as quick as in a healthy run.
( ) uneven shards
    > The rows are the same everywhere, and so is the time that they take.
(x) rank 0 writes its log
Why: Rank 0 is late in every fourth step only: in the time that is neither computing nor sending. The other ranks write
nothing and wait for it in the barrier of the next step. A median over the steps would not show it at all.
""",
    run_d="""
Run D:
(x) throttling
( ) a bad cable
    > No rank's sends are slower than the others'.
( ) uneven shards
    > That would show in the rows. They are the same everywhere, and in the first steps the times are, too.
( ) rank 0 writes its log
    > It is not rank 0, and it is the forward and backward pass that takes long.
Why: One rank begins like the others, then takes three times as long for the **same rows**, and stays slow. So does a
chip that gets hot and lowers its clock.
""",
)

nobody_waits = series(
    """
Before you run it: what will you find?
""",
    how_stale="""
With four ranks there are three workers. Two are equally fast, and the last one takes about four times as long for a
gradient. How many updates does the server make, on average, between a worker's pull and the arrival of its gradient?
( ) about 2 for each worker: there are two others
    > Two is the average over all updates. But the slow worker misses many more updates than a fast one does.
( ) 0: a worker computes with the weights that the server has
    > That would be true if the server's weights stood still while a worker computes. The others go on moving them.
( ) about 8 for each worker: the slow one holds up all of them
    > That would be true if the others waited for the slow worker. Here no worker waits for it.
(x) 1 to 2 for a fast worker, several times as many for the slow one: the others go on while it computes
Why: While the slow worker computes one gradient, each of the two others sends three or four. The slowest rank no longer
costs time. It brings the *stalest* gradients instead. Over all updates the average is about 2, the number of *other*
workers.
""",
    replayed_bits="""
No two asynchronous runs are alike. The server has written down from which worker each gradient came, and nothing else:
no times, no gradients. One process replays the run from this list. How close does it come to the server's weights?
(x) it gets the same weights, to the last bit
( ) to about six digits: floats are added in another order
    > That would be true of an all-reduce, which adds up in an order of its own. The server adds one gradient after
    the other, and the list says in which order.
( ) not close at all: without the times it does not know which weights a gradient was computed with
    > The list tells: a worker pulls right after its own update, so its next gradient belongs to the weights that it got
    then, however long it took.
( ) the losses agree, and the weights do not
    > That would be true of two different runs that both train well. This is the same run.
Why: Chance decides the order of arrivals and nothing else. Given the order, everything follows: which weights a worker
pulled, which rows it read, and what the server added to what.
""",
)

thirty_two_workers = ask("""
Your three workers trained the model with learning rate 0.25. Its loss fell from 3.6 to about 2.7, nearly as far as with
fresh gradients: so little staleness costs almost nothing. Now take 32 workers, all equally fast.
Everything else is as before, also the number of gradients in all. What happens to the loss?
( ) it falls as before: the same gradients are applied
    > They are not the same: each is computed with weights that are 31 updates old.
(x) it explodes: it ends far above where it began
( ) it falls more slowly, and ends where the others do if you wait
    > That is what a smaller learning rate would do. With this one the old gradients push the weights beyond the goal
    again and again, further each time.
( ) it falls faster: 32 workers do more
    > They take less time, but the number of gradients is the same here, and each is older.
Why: **It explodes.** A gradient says which way is downhill *here*. Applied 31 steps later it is wrong, and by then 31
more like it are on their way. Training survives that only if each step is small: in the picture, each time the workers
are doubled, the largest learning rate that still works is about half as large. (Losses above 4 are drawn as 4.)
""")

bound_of_two = ask("""
The last worker takes four times as long for a gradient, in every step. Now a worker may be at most two steps ahead of
the slowest one. How fast do updates come, compared with the server without a bound?
( ) as fast: two steps of head start are enough
    > That would be true if the slow worker caught up now and then. It never does: after two steps the head start is
    used up.
(x) at the slowest worker's pace, after a head start: the fast ones have to wait for it
( ) more slowly than with synchronous SGD: there is the server in between as well
    > The server costs little. In the long run both go at the pace of the slowest.
Why: Every worker ends up at the pace of the slowest. A bound gives the fast ones a head start of two steps, once. It
helps against hiccups, where a different rank falls behind each time and then catches up. No bound helps against a rank
that is always slow.
""")

local_steps_help = ask("""
Local SGD averages the weights after every tenth step only. In one run every rank hiccups by chance. In the other, the
last rank takes four times as long in every step. In which of the two does it save a good part of the time?
( ) in both: the ranks meet ten times less often
    > They meet less often, but they do meet. A rank that is always slow is then late by the time of ten steps.
( ) where the last rank is always slow: the others need not wait for it
    > They wait for it at every tenth step, and then ten times as long.
(x) where every rank hiccups: long and short steps even out within ten
( ) in neither: in the end all wait for the slowest
    > For the slowest *sum of ten steps*, yes. But the slowest sum is not far above the average one.
Why: Over ten steps, long and short ones even out, and the slowest sum of ten is not far above the average. A rank that
is always slow is just as slow over ten steps as over one. It needs less to do. In the picture about the same piece of
time is saved at both ends, that of the hiccups: on the left it is a good part of the whole, and on the right what the
slow rank computes remains.
""")
