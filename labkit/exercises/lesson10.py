"""Exercises for lesson 10: what the slowest rank costs, who is slow and why, a parameter server and its replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from labkit.grading.exercise import Case, Exercise, Least, Mutant
from labkit.grading.promises import Calls

# -- the slowest of n --------------------------------------------------------------------------------------------------


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


SLOWEST = Exercise(
    name="expected_slowest",
    lesson="10",
    title="How long does the slowest of many take?",
    statement=(
        "Every rank has measured some `seconds`, a float64 tensor of any length, perhaps of none. Imagine so many "
        "`ranks`, each of which draws one of **all** measured times by chance, each time being as likely as any other. "
        "Return the **expected maximum** of the times that they draw, as a Python float, the same on every rank. "
        "Compute it, do not draw: the chance that all of them stay at or below the i-th shortest of m times is (i / m) "
        "to the power `ranks`."
    ),
    minutes=10,
    difficulty=2,
    means=_expected_slowest,
    inputs=_measured,
    tolerance=1e-9,
    least=Least(rounds=lambda n: 1),
    solution='''
def expected_slowest(seconds, ranks):
    """Return the expected maximum of so many times, each drawn from all that were measured."""
    times = torch.cat(comms.all_gather(seconds)).sort().values
    below = torch.linspace(0, 1, len(times) + 1, dtype=torch.float64) ** ranks
    return (times * below.diff()).sum().item()
''',
    mutants=(
        Mutant("knows its own times only", replace=("torch.cat(comms.all_gather(seconds))", "seconds")),
        Mutant("takes the longest of all", replace=("(times * below.diff()).sum()", "times.max()")),
        Mutant("takes the mean", replace=("(times * below.diff()).sum()", "times.mean()")),
        Mutant("does not sort", replace=(".sort().values", ""), says="belongs there"),
        Mutant("sorts the wrong way round", replace=(".sort()", ".sort(descending=True)")),
        Mutant(
            "multiplies with the chance that all stay below, not that this one is the longest",
            replace=("below.diff()", "below[1:]"),
        ),
        Mutant(
            "averages what each rank expects",
            source="""
def expected_slowest(seconds, ranks):
    times = seconds.sort().values
    below = torch.linspace(0, 1, len(times) + 1, dtype=torch.float64) ** ranks
    total = (times * below.diff()).sum()
    dist.all_reduce(total)
    return total.item() / world_size
""",
        ),
        Mutant(
            "takes all lists to be as long as its own",
            replace=(
                "    times = torch.cat(comms.all_gather(seconds))",
                "    everyone = [torch.empty_like(seconds) for _ in range(world_size)]\n"
                "    dist.all_gather(everyone, seconds)\n    times = torch.cat(everyone)",
            ),
            verdict="raises",
        ),
    ),
    hints=(
        "Collect all times on every rank: `comms.all_gather` takes tensors of different lengths. Then sort them.",
        "The longest one drawn is the i-th shortest time exactly if all stay at or below it, but not all at or below "
        "the one before it.",
        "With `below = torch.linspace(0, 1, m + 1, dtype=torch.float64) ** ranks`, the chances are `below.diff()`.",
    ),
    after=(
        "With one rank this is the mean. The more ranks, the more weight have the longest times, and in the end only "
        "the longest that was ever measured: of what is rarer than that, the measurement knows nothing."
    ),
)

# -- who, and why ------------------------------------------------------------------------------------------------------

CAUSES = ("throttling", "uneven shards", "bad cable", "logging")


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
            elif cause == "uneven shards":
                rows *= 2
            elif cause == "bad cable":
                send += 40
            else:
                rest[3::4] += 200
        xs.append((rows, rows * pace, send, rest))
    return Case(xs, f"{cause} on rank {rank}")


def _runs(n: int) -> list[Case]:
    last = n - 1
    return [
        _run(n, "uneven shards", last),
        _run(n, "throttling", 0),
        _run(n, "bad cable", last, faint=2.0),
        _run(n, "logging", 0),
        _run(n, "throttling", last, steps=12, faint=2.0),
        _run(n, "uneven shards", 1 % n, steps=1),
    ]


def _cause(xs: Sequence[Any]) -> list[Any]:
    table = np.array([[column.mean() for column in x] for x in xs])
    lost = table[:, 1:] - np.sort(table[:, 1:], axis=0)[(len(xs) - 1) // 2]
    rank, what = np.unravel_index(lost.argmax(), lost.shape)
    rows, pace = table[:, 0], table[:, 1] / table[:, 0]
    slow = pace[rank] / pace.min() > rows[rank] / rows.min()
    cause = (CAUSES[0] if slow else CAUSES[1], *CAUSES[2:])[what]
    return [[int(rank), cause]] * len(xs)


NAME = Exercise(
    name="name_the_cause",
    lesson="10",
    title="Who holds the others up, and why?",
    statement=(
        "Every rank has measured some training steps, one number a step, in float64: the `rows` of its shares, and the "
        "milliseconds that its forward and backward pass took (`compute`), its sends (`send`) and all else that it did "
        "(`rest`). On **one** rank **one** thing is wrong. Return a list of two, the same on every rank: that rank and "
        'the cause. A row takes longer than on the others: `"throttling"`. It has more rows: `"uneven shards"`. Its '
        'sends take long: `"bad cable"`. It does something besides, perhaps only now and then: `"logging"`. What loses '
        "the **most time** counts; a little more of a small thing is harmless. One call that communicates."
    ),
    minutes=15,
    difficulty=2,
    means=_cause,
    inputs=_runs,
    picture=lambda: _run(3, "uneven shards", 2, steps=2).xs,
    promises=(Calls(1),),
    least=Least(rounds=lambda n: 1),
    solution='''
def name_the_cause(rows, compute, send, rest):
    """Return [rank, cause] of what loses the most time."""
    mine = torch.stack([rows, compute, send, rest]).mean(1)
    everyone = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(everyone, mine)
    table = torch.stack(everyone)  # a row a rank

    lost = (table - table.median(0).values)[:, 1:]
    culprit, what = divmod(lost.argmax().item(), 3)
    if what > 0:
        return [culprit, ("bad cable", "logging")[what - 1]]
    more = table[culprit, 0] / table[:, 0].min()
    slower = (table[:, 1] / table[:, 0])[culprit] / (table[:, 1] / table[:, 0]).min()
    return [culprit, "throttling" if slower > more else "uneven shards"]
''',
    mutants=(
        Mutant(
            "takes the median of the steps, and misses what is rare",
            replace=("rest]).mean(1)", "rest]).median(1).values"),
            says="logging",
        ),
        Mutant(
            "takes who is many times slower in whatever is small",
            replace=("(table - table.median(0).values)", "(table / table.median(0).values)"),
        ),
        Mutant(
            "calls a full shard a slow device",
            replace=('"throttling" if slower > more else "uneven shards"', '"throttling"'),
            says="uneven shards",
        ),
        Mutant(
            "calls a slow device with one row more a full shard",
            replace=("slower > more", "more == 1"),
            says="throttling",
        ),
        Mutant("names the fastest", replace=("lost.argmax()", "lost.argmin()")),
        Mutant(
            "looks at its own times only",
            replace=(
                "    table = torch.stack(everyone)",
                "    everyone = [mine] * world_size\n    table = torch.stack(everyone)",
            ),
        ),
        Mutant(
            "gathers column by column",
            replace=(
                "    everyone = [torch.empty_like(mine) for _ in range(world_size)]\n"
                "    dist.all_gather(everyone, mine)\n    table = torch.stack(everyone)",
                "    table = torch.stack([torch.cat(comms.all_gather(column.reshape(1))) for column in mine], 1)",
            ),
            verdict="not as asked",
            says="1 is enough",
        ),
        Mutant(
            "gathers on rank 0 alone",
            replace=(
                "    dist.all_gather(everyone, mine)",
                "    if rank == 0:\n        dist.all_gather(everyone, mine)",
            ),
            verdict="deadlock",
        ),
    ),
    hints=(
        "Four numbers a rank are enough, in one tensor: its means over the steps. A median would not see what happens "
        "in every fourth step.",
        "All-gather them into a table with a row a rank. What a healthy rank takes, the median of a column tells. Time "
        "lost is the difference from that, not the quotient.",
        "Where it is `compute` that loses most: which is larger beside the healthiest rank, this rank's rows or its "
        "time for a row?",
    ),
    after=(
        "Monitoring of large jobs does this for thousands of ranks: a few numbers a rank and step, gathered now and "
        "then, held against the median of all."
    ),
)

# -- a parameter server ------------------------------------------------------------------------------------------------

# Who sends when is laid down here: a worker's gradient is not ready before its turn, and its turn begins when the one
# before it was received. So a run is the same every time. What each worker computed with is compared as well. Whenever
# the recorder pauses, it puts torch's own functions back, hence `quietly`.
SERVED = """
def harness(fn, x, turns, **options):
    from datetime import timedelta
    from labkit.rank import recorder

    mine = [turn for turn, worker in enumerate(turns) if worker == rank]
    real, token, tokens, pulled, came = dist.send, torch.zeros(1), [], [], []

    def gradient(weights):
        assert len(pulled) < len(mine), "it goes on after it was told to stop"
        pulled.append(weights.clone())
        before = turns[mine[len(pulled) - 1] - 1] if mine[len(pulled) - 1] else rank
        if before != rank:
            quietly(lambda: dist.recv(token, src=before, tag=9))
        return weights - x

    def send(*args, **kwargs):
        real(*args, **kwargs)
        turn = mine[len(pulled) - 1] + 1 if pulled else len(turns)
        if turn < len(turns) and turns[turn] != rank:
            quietly(lambda: tokens.append(dist.isend(token, dst=turns[turn], tag=9)))

    def quietly(call):
        with recorder.paused():
            call()
        dist.send = send

    dist.send = send
    try:
        fn(x if rank == 0 else torch.zeros_like(x), gradient, note=came.append, **options)
    finally:
        dist.send = real
    with recorder.paused():
        for passing in tokens:
            try:
                passing.wait(timedelta(seconds=2))
            except RuntimeError:  # nobody came for it: what comes back says why
                pass
    return [x, came] if rank == 0 else pulled
"""


def scripted(n: int, turns: Sequence[int], about: str, **options: Any) -> Case:
    """All start from weights of zero, and worker r has a goal that it pulls them to; they send in these turns."""
    goals = [np.zeros(2), *(np.array([8.0 * r, 4.0 - r]) for r in range(1, n))]
    return Case(goals, about, {"turns": [int(turn) for turn in turns], **options})


def _asynchronous(xs: Sequence[Any], turns: Sequence[int], updates: int, lr: float) -> list[Any]:
    """What rank 0 is left with, and whom it noted; what each worker computed its gradients with."""
    weights = np.zeros_like(xs[0])
    pulled = [[weights] for _ in xs]
    for worker in turns[:updates]:
        weights = weights - lr * (pulled[worker][-1] - xs[worker])
        pulled[worker].append(weights)
    return [[weights, list(turns[:updates])], *pulled[1:]]


def _orders(n: int) -> list[Case]:
    rng = np.random.default_rng([n, 3])

    def case(order: Sequence[int], about: str, lr: float = 0.5) -> Case:
        return scripted(n, [*order, *range(1, n)], about, updates=len(order), lr=lr)

    return [
        case([n - 1, *range(1, n)], "the last worker comes first"),
        case([1, 1, 1, n - 1], "worker 1 comes three times in a row", 0.25),
        case(rng.integers(1, n, 9).tolist(), "nine updates in a random order"),
        case([n - 1], "a single update"),
    ]


SERVE = Exercise(
    name="asynchronous_sgd",
    lesson="10",
    title="A parameter server that answers whoever comes first",
    statement=(
        "Rank 0 is the server, the others are its workers. All are given the same flat `weights`. A **worker** sends "
        "the gradient of what it has pulled, `gradient(pulled)`, and pulls the new weights, over and over, until what "
        "it gets is `nan`. The **server** takes so many `updates` in the order in which they **arrive**. For each, it "
        "moves its weights in place, `weights -= lr * push`, calls `note(worker)` with the sender's rank, and sends "
        "the new weights to this worker alone. Nobody waits for a slower worker. How workers are told to stop is "
        "written already. Return nothing. The picture shows where the workers pull the weights to."
    ),
    minutes=10,
    difficulty=2,
    means=_asynchronous,
    inputs=_orders,
    harness=SERVED,
    tolerance=1e-9,
    forbids=("collectives",),
    solution='''
def asynchronous_sgd(weights, gradient, updates, lr, note):
    """Train on all ranks: rank 0 holds the weights, the others send it gradients."""
    if rank == 0:
        push = torch.empty_like(weights)
        for _ in range(updates):
            # yours
            worker = dist.recv(push)
            weights -= lr * push
            note(worker)
            dist.send(weights, dst=worker)
            # end
        for _ in range(1, world_size):  # each sends once more, and is told to stop
            dist.send(torch.full_like(weights, torch.nan), dst=dist.recv(push))
    else:
        pulled = weights.clone()
        while not pulled.isnan().any():
            # yours
            dist.send(gradient(pulled), dst=0)
            dist.recv(pulled, src=0)
            # end
''',
    mutants=(
        Mutant(
            "serves the workers in rank order",
            replace=(
                "for _ in range(updates):\n            worker = dist.recv(push)",
                "for i in range(updates):\n            worker = dist.recv(push, src=1 + i % (world_size - 1))",
            ),
            verdict="deadlock",
            says="for rank 1 to send",
        ),
        Mutant(
            "answers only once a gradient of every worker is there",
            replace=(
                "            dist.send(weights, dst=worker)\n",
                "            waiting = [*waiting, worker] if _ else [worker]\n"
                "            if len(waiting) % (world_size - 1) == 0:\n"
                "                for one in waiting[1 - world_size :]:\n"
                "                    dist.send(weights, dst=one)\n",
            ),
            verdict="deadlock",
        ),
        Mutant("applies a gradient twice", replace=("weights -= lr * push", "weights -= lr * (push + push)")),
        Mutant(
            "answers before the update",
            replace=(
                "            weights -= lr * push\n            note(worker)\n            "
                "dist.send(weights, dst=worker)\n",
                "            dist.send(weights, dst=worker)\n            weights -= lr * push\n"
                "            note(worker)\n",
            ),
        ),
        Mutant(
            "has workers that never pull",
            replace=(
                "dist.recv(pulled, src=0)",
                "answer = torch.empty_like(pulled)\n            dist.recv(answer, src=0)\n"
                "            pulled = answer if answer.isnan().any() else pulled",
            ),
        ),
        Mutant(
            "has workers that do not even look whether to stop",
            replace=("dist.recv(pulled, src=0)", "dist.recv(torch.empty_like(pulled), src=0)"),
            verdict="raises",
            says="told to stop",
        ),
        Mutant("climbs", replace=("weights -= lr", "weights += lr")),
        Mutant("divides by the number of workers", replace=("lr * push", "lr * push / (world_size - 1)")),
        Mutant("moves a copy", replace=("weights -= lr * push", "weights = weights - lr * push")),
        Mutant("notes nobody", replace=("            note(worker)\n", "")),
        Mutant("sends the gradient back", replace=("dist.send(weights, ", "dist.send(push, ")),
        Mutant(
            "never answers",
            replace=("            dist.send(weights, dst=worker)\n", ""),
            verdict="deadlock",
        ),
        Mutant(
            "all-reduces the gradients",
            source="""
def asynchronous_sgd(weights, gradient, updates, lr, note):
    for _ in range(updates):
        push = torch.zeros_like(weights) if rank == 0 else gradient(weights)
        dist.all_reduce(push)
        weights -= lr * push
""",
        ),
    ),
    hints=(
        "Which call takes a message from whoever sends first, and how does it tell you who that was? Lesson 02 has it.",
        "`worker = dist.recv(push)`, without `src`, fills `push` and returns the sender's rank. A worker sends to rank "
        "0 and receives into `pulled`.",
        "Server: receive, move the weights in place, note, send the weights to `worker`. Worker: "
        "`dist.send(gradient(pulled), dst=0)`, then `dist.recv(pulled, src=0)`.",
    ),
    after=(
        "Six lines, and no worker waits for another. Look at what you gave up: the server moves its weights by a "
        "gradient of weights that others have moved since."
    ),
)


# -- the same run in one process ---------------------------------------------------------------------------------------


def _replayed(xs: Sequence[Any], order: Sequence[int], lr: float) -> list[Any]:
    start, slope = xs[0]
    weights, pulled, steps, version, stale = start, {}, {}, {}, []
    for update, worker in enumerate(order):
        step = steps.get(worker, 0)
        weights = weights - lr * (slope * pulled.get(worker, start) - worker - 10 * step)
        stale.append(update - version.get(worker, 0))
        pulled[worker], steps[worker], version[worker] = weights, step + 1, update + 1
    return [[weights, stale]] * len(xs)


def _recorded(n: int) -> list[Case]:
    rng = np.random.default_rng([n, 4])
    same = [(np.array([1.0, 2.0]), np.array([1.0, 0.5]))] * n

    def case(order: Sequence[int], about: str) -> Case:
        return Case([tuple(a.copy() for a in x) for x in same], about, {"order": list(order), "lr": 0.25})

    return [
        case([1, 2, 1], "two workers"),
        case([1, 1, 1], "a single worker"),
        case([2, 1, 1, 1, 3, 2], "worker 2 comes back late"),
        case(rng.integers(1, 6, 20).tolist(), "five workers, 20 updates"),
        case([], "no update"),
    ]


REPLAY = Exercise(
    name="replay_arrivals",
    lesson="10",
    title="Replay an asynchronous run in one process",
    statement=(
        "`order` lists which worker's gradient arrived at the server, one entry an update, and `weights` is where all "
        "began. `gradient(pulled, worker, step)` gives what a worker sent after it had pulled these weights, in its "
        "own step 0, 1, 2, … Replay the run, without any communication, and return two things: the **weights** after "
        "the last update, and for each update its **staleness**: how many updates of others the server had made since "
        "this worker pulled. Leave `weights` itself as it is."
    ),
    minutes=12,
    difficulty=2,
    means=_replayed,
    inputs=_recorded,
    forbids=("collectives", "send", "recv"),
    keeps_input=True,
    tolerance=1e-9,
    picture=lambda: [(np.array([1.0, 2.0]), np.array([1.0, 0.5]))] * 2,
    harness="""
def harness(fn, start, slope, order, lr):
    def gradient(pulled, worker, step):
        assert isinstance(step, int), f"`step` is a whole number, and {step!r} comes"
        return slope * pulled - worker - 10 * step

    weights, staleness = fn(list(order), start, gradient, lr)
    return [weights, [int(s) for s in staleness]]
""",
    solution='''
def replay_arrivals(order, weights, gradient, lr):
    """Return the weights after the last update, and the staleness of each."""
    pulled = dict.fromkeys(order, weights)
    version, steps, staleness = dict.fromkeys(order, 0), dict.fromkeys(order, 0), []
    for update, worker in enumerate(order):
        # yours
        weights = weights - lr * gradient(pulled[worker], worker, steps[worker])
        staleness.append(update - version[worker])
        pulled[worker], version[worker] = weights, update + 1
        steps[worker] += 1
        # end
    return weights, staleness
''',
    mutants=(
        Mutant(
            "lets workers compute with the newest weights",
            replace=("gradient(pulled[worker], ", "gradient(weights, "),
            says="two workers",
        ),
        Mutant(
            "has workers that never pull",
            replace=("        pulled[worker], version[worker] = weights, update + 1\n", ""),
        ),
        Mutant("counts a worker's own update", replace=("update - version[worker]", "update + 1 - version[worker]")),
        Mutant("applies a gradient twice", replace=("- lr * gradient", "- 2 * lr * gradient")),
        Mutant("takes the update for the worker's step", replace=("worker, steps[worker])", "worker, update)")),
        Mutant("forgets to count the steps", replace=("        steps[worker] += 1\n", "")),
        Mutant(
            "moves everybody's copy in place",
            replace=("weights = weights - lr * gradient", "weights -= lr * gradient"),
        ),
        Mutant(
            "takes the first worker to be worker 0",
            replace=("gradient(pulled[worker], ", "gradient(pulled[worker - 1], "),
            verdict="raises",
            says="KeyError",
        ),
    ),
    hints=(
        "What does a worker hold that the server does not? The weights of its last visit. Keep them for each worker.",
        "`pulled[worker]` are those weights, `version[worker]` is how many updates were in them. The staleness is the "
        "difference between that and now.",
        "New weights, then the staleness, then the worker pulls: `pulled[worker], version[worker] = weights, "
        "update + 1`. Write `weights = weights - …`: in place would change what others have pulled.",
    ),
    after=(
        "An asynchronous run is not reproducible, and its order of arrivals is all that is missing. Whoever records it "
        "can debug the run in one process."
    ),
)

EXERCISES = (SLOWEST, NAME, SERVE, REPLAY)
