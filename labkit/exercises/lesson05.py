"""Exercises for lesson 05: a barrier out of messages, and an honest time."""

from __future__ import annotations

from math import ceil, log2

import numpy as np

from labkit.grading.exercise import Budget, Exercise, Least, Mutant
from labkit.grading.inputs import Case


def _late(n: int) -> list[Case]:
    """How many seconds each rank comes late."""
    return [
        *(Case([(0.05 * (r == late),) for r in range(n)], f"rank {late} comes late") for late in reversed(range(n))),
        Case([(0.0,)] * n, "all come at once"),
    ]


# The stamps cross while the recorder is paused: it must not take them for the learner's.
WHO_LEFT_EARLY = """
def harness(fn, late):
    import time
    from labkit.rank import recorder

    time.sleep(late)
    came = time.perf_counter()
    fn()
    left = time.perf_counter()
    stamps = [torch.zeros(1, dtype=torch.float64) for _ in range(world_size)]
    with recorder.paused():
        dist.all_gather(stamps, torch.tensor([came], dtype=torch.float64))
    last = max(range(world_size), key=lambda r: stamps[r].item())
    assert left >= stamps[last].item(), f"it left before rank {last} had come"
    return "all came"
"""

# A clock that only the work moves on: 2 to 8 s in each call, much more while the rank warms up, and the wait for the
# late ones where no barrier was called before.
FAKE_CLOCK = """
def harness(fn, seconds):
    seconds, now, calls, together = seconds.tolist(), [0.0], [], [False]
    real = dist.barrier

    def work():
        assert len(calls) < len(seconds), f"it calls work() more than {len(seconds)} times"
        now[0] += seconds[len(calls)] + (0.0 if together[0] else 20.0 + rank)
        calls.append(None)
        together[0] = False

    def barrier(*args, **kwargs):
        together[0] = True
        return real(*args, **kwargs)

    dist.barrier = barrier
    try:
        return float(fn(work, lambda: now[0], len(seconds) - 3))
    finally:
        dist.barrier = real
"""


def _stop_watches(n: int) -> list[Case]:
    """Seconds that each call of the work takes on each rank: three slow ones, then the repeats, with outliers."""

    def times(repeat: int, seed: int) -> list[np.ndarray]:
        rng = np.random.default_rng([seed, n])
        found = [rng.integers(8, 33, size=3 + repeat) / 4 for _ in range(n)]  # sums of these are exact
        for r in range(n):
            found[r][:3] += 100
            found[r][-1] += 50 * (r == 0)
        return found

    return [
        Case(times(5, 1), "five repeats"),
        Case(times(1, 3), "one repeat"),
        Case(times(6, 2), "six repeats: the median lies between two"),
        Case(
            [np.array([1.0] * 3 + [0.5 + 0.25 * (r == i % n) for i in range(7)]) for r in range(n)],
            "another is late each time",
        ),
    ]


def _honest(xs: list[np.ndarray]) -> list[float]:
    return [float(np.median(np.max(xs, axis=0)[3:])) for _ in xs]


BARRIER_BY_HAND = Exercise(
    name="barrier_by_hand",
    lesson="05",
    title="A barrier from messages",
    statement=(
        "Write a barrier by send and receive only: no rank returns before **every** rank has called the function. It "
        "takes nothing and returns nothing. Do it in ⌈log2 N⌉ rounds, in each of which a rank sends one message at "
        "most and receives one at most; the rounds of a rank follow one another."
    ),
    minutes=15,
    difficulty=3,
    means=lambda xs: ["all came" for _ in xs],
    inputs=_late,
    forbids=("collectives",),
    budget=Budget(steps=lambda n: ceil(log2(n))),
    harness=WHO_LEFT_EARLY,
    picture=lambda: ["early", "early", "late"],
    least=Least(rounds=lambda n: ceil(log2(n))),
    solution='''
def barrier_by_hand():
    """Return when every rank has come."""
    sent, heard = torch.zeros(1, device=device), torch.zeros(1, device=device)
    distance = 1
    while distance < world_size:
        works = [
            dist.isend(sent, dst=(rank + distance) % world_size),
            dist.irecv(heard, src=(rank - distance) % world_size),
        ]
        for work in works:
            work.wait()
        distance *= 2
''',
    mutants=(
        Mutant(
            "stops a round too early",
            replace=("while distance < world_size", "while 2 * distance <= world_size - 1"),
            says="left before",
        ),
        Mutant(
            "tells rank 0 and goes on",
            source="""
def barrier_by_hand():
    box = torch.zeros(1, device=device)
    if rank == 0:
        for other in range(1, world_size):
            dist.recv(box, src=other)
    else:
        dist.send(box, dst=0)
""",
            says="left before",
        ),
        Mutant(
            "does nothing",
            source="""
def barrier_by_hand():
    return None
""",
            says="left before",
        ),
        Mutant(
            "asks torch for a barrier",
            source="""
def barrier_by_hand():
    dist.barrier()
""",
            verdict="forbidden",
            says="barrier",
        ),
        Mutant(
            "sends first, all of them",
            replace=(
                """        works = [
            dist.isend(sent, dst=(rank + distance) % world_size),
            dist.irecv(heard, src=(rank - distance) % world_size),
        ]
        for work in works:
            work.wait()
""",
                """        dist.send(sent, dst=(rank + distance) % world_size)
        dist.recv(heard, src=(rank - distance) % world_size)
""",
            ),
            verdict="deadlock",
        ),
        Mutant(
            "collects at rank 0, which answers one after the other",
            source="""
def barrier_by_hand():
    box = torch.zeros(1, device=device)
    for other in range(1, world_size):
        if rank == 0:
            dist.recv(box, src=other)
        elif rank == other:
            dist.send(box, dst=0)
    for other in range(1, world_size):
        if rank == 0:
            dist.send(box, dst=other)
        elif rank == other:
            dist.recv(box, src=0)
""",
            verdict="costly",
        ),
    ),
    hints=(
        "To leave, a rank must have heard from everybody, if not directly then through others. What does a message "
        "prove?",
        "Round 1: tell your right-hand neighbour. Whom do you tell in round 2, so that it learns of four ranks?",
        "In round k send to `(rank + 2**k) % world_size` and receive from `(rank - 2**k) % world_size`, both at once.",
    ),
    after="No number was needed, only who heard from whom. This one is called a dissemination barrier.",
)

BENCH_BY_HAND = Exercise(
    name="bench_by_hand",
    lesson="05",
    title="An honest time",
    statement=(
        "`work()` is a collective, and `clock()` reads a rank's own clock in seconds, as `time.perf_counter()` does. "
        "Call the work **three times** to warm up, then `repeat` times, each time after a `dist.barrier()`, so that "
        "all ranks start together, and with the clock read right before and right after it. A repeat took as long as "
        "its **slowest rank**; the honest time is the **median** of the repeats, with an even number of them the mean "
        "of the two in the middle. Return it in seconds, as a Python float, the same on every rank."
    ),
    minutes=12,
    difficulty=2,
    means=_honest,
    inputs=_stop_watches,
    harness=FAKE_CLOCK,
    tolerance=1e-9,
    solution='''
def bench_by_hand(work, clock, repeat):
    """Return the seconds that work() takes: the median over the repeats of the slowest rank's time."""
    for _ in range(3):
        work()
    seconds = []
    for _ in range(repeat):
        dist.barrier()
        began = clock()
        work()
        seconds.append(clock() - began)
    slowest = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.quantile(0.5).item()
''',
    mutants=(
        Mutant("does not warm up", replace=("    for _ in range(3):\n        work()\n", "")),
        Mutant("lets the ranks start when they like", replace=("        dist.barrier()\n", "")),
        Mutant("trusts each rank's own clock", replace=("    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)\n", "")),
        Mutant("takes the mean", replace=("quantile(0.5)", "mean()")),
        Mutant("takes the fastest rank", replace=("ReduceOp.MAX", "ReduceOp.MIN")),
        Mutant(
            "takes each rank's median first, then the slowest of these",
            replace=(
                "    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)\n    return slowest.quantile(0.5).item()",
                "    middle = slowest.quantile(0.5)\n    dist.all_reduce(middle, op=dist.ReduceOp.MAX)\n    return "
                "middle.item()",
            ),
        ),
        Mutant("takes the lower one of the two in the middle", replace=("quantile(0.5)", "median()")),
        Mutant(
            "calls the barrier after the work, within the time",
            replace=(
                "        dist.barrier()\n        began = clock()\n        work()",
                "        began = clock()\n        work()\n        dist.barrier()",
            ),
        ),
        Mutant(
            "lets rank 0 alone reduce",
            replace=("    dist.all_reduce(", "    if rank == 0:\n        dist.all_reduce("),
            verdict="deadlock",
        ),
    ),
    hints=(
        "Which comes first: the slowest rank of each repeat, or the median of the repeats?",
        "Put a rank's times into one tensor of float64. An all-reduce with `ReduceOp.MAX` finds the slowest of each "
        "repeat.",
        "`torch.median` takes the lower one of two in the middle; `x.quantile(0.5)` takes their mean.",
    ),
    after="`timed` does this for you: it warms up, lets all start together, and takes the slowest rank of each repeat.",
)

EXERCISES = (BARRIER_BY_HAND, BENCH_BY_HAND)
