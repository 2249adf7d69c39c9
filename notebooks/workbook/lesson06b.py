"""Exercises for lesson 06b: an all-reduce through memory that ranks share, by flags, slots, chunks and pieces."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, exercise
from labkit.grading.inputs import counting, draws
from labkit.theory import collectives

if TYPE_CHECKING:
    from labkit.rank.seen import dist, rank, recorder, torch, world_size


MESSAGES = ("collectives", "send")  # the ranks talk through memory alone


def _sums(xs: Sequence[Sequence[np.ndarray]]) -> list[Any]:
    """What each call leaves."""
    sums = [collectives.all_reduce([mine[k] for mine in xs]) for k in range(len(xs[0]))]
    return [[total[r] for total in sums] for r in range(len(xs))]


def _calls(n: int) -> list[Case]:
    """Two or three calls in a row, of different lengths: what a rank brings to each."""

    def of(*calls: Sequence[np.ndarray]) -> list[Any]:
        return [tuple(call[r] for call in calls) for r in range(n)]

    rng = np.random.default_rng([7, n])
    wild = [(10.0 ** rng.integers(-6, 7, 24) * rng.normal(size=24)).astype("float32") for _ in range(n)]
    return [
        Case(of(counting(n, 2 * n), [x + 1 for x in counting(n, 2 * n)])),
        Case(of(draws(n, 40), draws(n, 3, seed=1), draws(n, 33, seed=2)), "40, 3, then 33 elements"),
        Case(of(counting(n, 1), counting(n, 0)), "one element, then none"),
        Case(of(draws(n, 2 * n + 1, "int64"), draws(n, 5, "float64")), "integers, then float64"),
        Case(of(wild, wild), "large and tiny numbers: all ranks want the same bits"),
    ]


def _lengths(n: int) -> list[Case]:
    """As `_calls`, and one that takes several pieces, the last of them short."""
    return [*_calls(n), Case([(mine, mine[:70]) for mine in draws(n, 300, seed=3)], "300 elements, 1200 bytes")]


def _meetings(n: int) -> list[Case]:
    each = [tuple(np.float32(k % n) for k in range(2 * n))] * n
    same = [tuple(np.float32(0) for _ in range(3))] * n
    return [
        Case(each, "each rank is late in turn"),
        Case(same, "rank 0 is late each time"),
        Case([(np.float32(-1),) * 50] * n, "fifty meetings, nobody is late"),
    ]


def run_meet(fn, *late):
    import time

    from labkit.rank import recorder
    from labkit.rank.shared import open_room

    with recorder.paused():
        room = open_room(64)
    came = [slot.view(torch.int64) for slot in room.slots]
    for k, who in enumerate(int(x) for x in late):
        time.sleep(0.03 * (rank == who))
        came[rank][0] = k + 1
        fn(room)
        early = [r for r in range(world_size) if came[r][0] < k + 1]
        if early:
            room.flags[rank] = 1 << 40  # nobody need wait for this rank any more
        assert not early, f"it left meeting {k + 1} before rank {early[0]} had come"
    return "all met"


@exercise(
    "A barrier of flags",
    lambda xs: ["all met" for _ in xs],
    minutes=6,
    difficulty=2,
    inputs=_meetings,
    forbids=MESSAGES,
    given="import os",
    harness=run_meet,
)
def meet(room):
    """Return when every rank has called this as many times as I have.

    Return when every rank has called `meet(room)` as many times as this one. `room.flags` has a whole number for each
    rank, 0 at first; all ranks see it, and rank r writes `room.flags[r]` only. `room.count` is this rank's own number,
    0 at first, to count its calls in. While you wait, call `os.sched_yield()`, which lets another process have this
    core. Send no messages. (The picture says which rank comes late to each of six meetings.)
    Hint: A flag that is only up or down is still up at the next meeting. Let it count instead.
    Hint: First say that you have come, then wait for the others: for the smallest of all flags.
    Hint: `while min(room.flags) < room.count: os.sched_yield()`
    Afterwards: No flag is ever taken down, and no two ranks write the same one. A rank that is already at the next
    meeting has a higher number, which is why you wait while a flag is smaller, not while it is different.
    """
    room.count += 1
    room.flags[rank] = room.count
    while min(room.flags) < room.count:
        os.sched_yield()


def through_slots(fn, xs, room_for, frugal):
    import time

    from torch.overrides import TorchFunctionMode

    from labkit.rank.shared import open_room

    def everyones(mine):
        told = [None] * world_size
        with recorder.paused():
            dist.all_gather_object(told, [x.clone() for x in mine])
        return list(zip(*told))

    class Counting(TorchFunctionMode):
        touched = 0

        def __torch_function__(self, op, types, args=(), kwargs=None):
            out = op(*args, **(kwargs or {}))
            if op.__name__.strip("_").startswith(("copy", "add", "iadd", "radd", "sum", "clone", "stack", "cat")):
                self.touched += args[0].numel() if isinstance(args[0], torch.Tensor) else out.numel()
            return out

    with recorder.paused():
        room = open_room(room_for)
    meet, call, counting = room.meet, [0], Counting()

    def slow_meet():
        meet()
        time.sleep(0.01 * (rank == (call[0] + 1) % world_size))

    room.meet = slow_meet
    brought = everyones(xs)
    for k, x in enumerate(xs):
        call[0] = k
        time.sleep(0.01 * (rank == (k + 2) % world_size))
        with counting:
            fn(x, room)
    ended = everyones(xs)
    if all(torch.allclose(x, sum(gave), 1e-3, 1e-2) for gave, have in zip(brought, ended) for x in have):
        same = all(torch.equal(x, y) for theirs in ended for x, y in zip(theirs, theirs[1:]))
        assert same, "the ranks' sums differ in their last bits: they were added up in different orders"
        size = sum(map(len, xs))
        shares, least = counting.touched / max(1, size), 3 - 2 / world_size
        assert not frugal or counting.touched <= least * size + 12 * len(xs), (
            f"its copies and sums go through {shares:.2f} S in all, and {least:.2f} S is possible"
        )
    return list(xs)


def run_sum_slots(fn, *xs):
    return through_slots(fn, xs, 4096, frugal=False)


def run_shared_all_reduce(fn, *xs):
    return through_slots(fn, xs, 512, frugal=True)


@exercise(
    "Everyone reads every slot",
    _sums,
    difficulty=2,
    inputs=_calls,
    forbids=MESSAGES,
    needs_messages=False,
    harness=run_sum_slots,
)
def sum_slots(x, room):
    """Add up all ranks' x in place: everyone reads every slot.

    Add up all ranks' `x` in place, on every rank, by way of the slots. `x` has one dimension and fits into a slot;
    `room.places(x)` is a list: entry r is the beginning of rank r's slot, with x's length and dtype. `room.meet()` is
    the barrier of flags. The function is called many times in a row, with different lengths, and all ranks end with the
    same bits. It returns nothing.
    Hint: Copy, meet, add. `x.copy_(…)` writes into x; `x = …` would only give its name to something else. Then think of
    the next call: who may still be reading your slot?
    Hint: Floating-point sums depend on their order. Let every rank begin with slot 0 and go on to slot 1, 2, …
    Hint: A second `room.meet()` at the end: nobody goes on before everyone has read.
    Afterwards: The second meeting is the one that is easily forgotten: the function works without it on most days. And
    whoever begins with its own x gets other last bits than its neighbours: the models then drift apart.
    """
    places = room.places(x)
    places[rank].copy_(x)
    room.meet()
    x.copy_(places[0])
    for other in range(1, world_size):
        x += places[other]
    room.meet()


@exercise(
    "Everyone adds up a chunk",
    _sums,
    minutes=12,
    difficulty=3,
    inputs=_lengths,
    forbids=MESSAGES,
    needs_messages=False,
    harness=run_shared_all_reduce,
)
def shared_all_reduce(x, room):
    """Add up all ranks' x in place: rank r adds up chunk r of every piece.

    Add up all ranks' `x` in place, on every rank, by way of the slots. `x` has one dimension and any length. The loop
    cuts it into pieces that fit into a slot, and each piece into chunks: `mine[c]` is chunk c of this rank's piece, and
    `slots[r][c]` is the place for chunk c in rank r's slot. Rank r adds up chunk r, and **only** that one. A rank may
    go through (3 − 2/N) S in all, copies and sums together. It returns nothing.
    Hint: It is a reduce-scatter and an all-gather, each of one step: write, meet, add, write, meet, fetch.
    Hint: First copy to your own slot what **others** add up: every chunk but your own. Then meet.
    Hint: Add chunk `rank` of the other slots to `mine[rank]`, and put the sum where the others can read it:
    `slots[rank][rank]`. Meet again, then fetch `slots[c][c]` for every other c.
    Afterwards: Only one rank adds up a chunk, so all ranks have the same bits without thinking of an order. And two
    meetings are enough: chunk c of a slot is written and read by the same ranks in every piece.
    """
    others = [r for r in range(world_size) if r != rank]
    for piece in x.split(room.size // x.itemsize):
        mine, slots = piece.tensor_split(world_size), room.chunks(piece)
        # yours
        for c in others:
            slots[rank][c].copy_(mine[c])
        room.meet()
        for r in others:
            mine[rank].add_(slots[r][rank])
        slots[rank][rank].copy_(mine[rank])
        # end
        room.meet()
        for c in others:
            mine[c].copy_(slots[c][c])


def run_meet_in_time(fn, x):
    import re
    import time

    from labkit.rank import recorder
    from labkit.rank.shared import open_room

    with recorder.paused():
        room = open_room(64)
    missing, said = int(x), "nobody"
    try:
        time.sleep(0.05 * (rank == 0))
        fn(room, 30.0)
        if rank == missing:
            said = f"rank {rank}"
        else:
            fn(room, 0.2 if missing >= 0 else 30.0)
    except TimeoutError as error:
        if room.count == 1:
            room.flags[rank] = 1 << 40  # nobody need wait for this rank any more
            raise AssertionError(f"it raises a TimeoutError at once: {error}") from None
        named = sorted(set(map(int, re.findall("[0-9]+", str(error)))) & set(range(world_size)))
        said = "rank " + ", ".join(map(str, named)) if named else str(error)
    finally:
        with recorder.paused():
            dist.barrier()
    return "all met", said


@exercise(
    "A barrier that names who is missing",
    lambda xs: [("all met", "nobody" if xs[0] < 0 else f"rank {int(xs[0])}") for _ in xs],
    minutes=8,
    difficulty=2,
    inputs=lambda n: [
        Case([np.float32(n - 1)] * n, f"rank {n - 1} does not come to the second meeting"),
        Case([np.float32(-1)] * n, "all come"),
        Case([np.float32(0)] * n, "rank 0 does not come to the second meeting"),
    ],
    forbids=MESSAGES,
    given="import os\nimport time",
    harness=run_meet_in_time,
)
def meet_in_time(room, seconds):
    """Return when all have come; after so many seconds raise a TimeoutError that names who has not.

    As `meet(room)`, but wait for at most `seconds`. Then raise a `TimeoutError` whose message has the numbers of the
    ranks that have not come, such as `rank 2 has not come`. Return nothing where all have come. Send no messages: a
    rank that is missing would not answer. (In the picture rank 2 stays away from the second meeting.)
    Hint: `time.monotonic() + seconds` before the loop, and a look at the clock in every turn.
    Hint: The flags say who is missing: whose number is smaller than yours?
    Afterwards: This is what a time-out of a process group is for. A rank that spins without one uses all of a core, and
    nobody learns why. What it cannot do: make the room fit for use again. After a time-out the counts differ.
    """
    room.count += 1
    room.flags[rank] = room.count
    until = time.monotonic() + seconds
    while min(room.flags) < room.count:
        if time.monotonic() > until:
            missing = [r for r, flag in enumerate(room.flags) if flag < room.count]
            raise TimeoutError(f"rank {', '.join(map(str, missing))} has not come")
        os.sched_yield()
