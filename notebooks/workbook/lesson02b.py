"""Exercises for lesson 02b: an update that must not be lost, tickets, a version, a ring and an all-reduce of puts."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.errors import LabError
from labkit.grading.exercise import Case, exercise
from labkit.grading.inputs import counting, draws

if TYPE_CHECKING:
    from labkit.rank.seen import dist, everyones, rank, recorder, torch, world_size


MESSAGES = ("send", "collectives")

ALL_BUT_FENCES = ("send", "broadcast", "reduce", "all_reduce", "gather", "all_gather", "scatter", "reduce_scatter",
                  "all_to_all")  # fmt: skip


def _pushed(xs: Sequence[np.ndarray], weights: Sequence[float], lr: float, times: int) -> list[Any]:
    return [np.array(weights) - times * lr * sum(xs) if r == 0 else None for r in range(len(xs))]


def _gradients(n: int) -> list[Case]:
    def case(size: int, about: str, lr: float = 0.5, times: int = 1) -> Case:
        gradients = [np.arange(1.0, size + 1) + 10 * r for r in range(n)]
        return Case(gradients, about, {"weights": [1.0] * size, "lr": lr, "times": times})

    return [case(1, "one weight"), case(3, "five updates by each rank", 0.25, 5), case(40, "forty weights", 0.125, 3)]


def opened(size, dtype):
    from labkit.rank.shared import open_room
    from labkit.rank.window import open_window

    with recorder.paused():
        window, room = open_window(size, dtype), open_room(64)
    window.patience = 1.5
    window.came = [slot.view(torch.int64) for slot in room.slots]  # how far a rank is, and how its function ended
    return window


def through(window, call):
    # What the function returns, in a list; an empty one where another rank's has failed, which says why.
    try:
        out = [call()]
    except BaseException:
        window.came[rank][:2] = torch.tensor([1 << 40, 2])
        raise
    window.came[rank][:2] = torch.tensor([1 << 40, 1])
    until = time.monotonic() + 5
    while not all(came[1] for came in window.came) and time.monotonic() < until:
        os.sched_yield()
    return [] if any(came[1] == 2 for came in window.came) else out


def meddled(window, meddle):
    from labkit.rank.window import Window

    get, flush, unlock = window.get, window.flush, window.unlock
    other = Window(window._memory, window._holders, window._locks)

    def now():
        if 0 not in window._held:
            meddle(other)

    def meddled_get(of, *args, **kwargs):
        got = get(of, *args, **kwargs)
        if of == 0:
            now()
        return got

    def meddled_flush():
        handed = window.told()["handed"]
        flush()
        if handed:
            now()

    def meddled_unlock(of):
        unlock(of)
        if of == 0:
            now()

    window.get, window.flush, window.unlock = meddled_get, meddled_flush, meddled_unlock


def blame(window, right, *reasons):
    # The first reason that any rank has, on all ranks: what is not flushed counts also where the result is right.
    told = window.told()
    handed = f"rank {rank} returns before what it has handed over is there: nothing has flushed it"
    mine = [handed if told["handed"] else "", *("" if right else reason for reason in reasons)]
    found = [reason for ranks in zip(*everyones(mine)) for reason in ranks if reason]
    assert not found, found[0]


def writes(window):
    return [of for what, of, *_ in window.told()["moves"] if what != "get"]


def run_push_gradient(push_gradient, gradient, weights, lr, times):
    window = opened(len(gradient), gradient.dtype)
    if rank == 0:
        window.mine.copy_(torch.tensor(weights))
    theirs, step = torch.zeros_like(gradient), 1000.0 * torch.ones_like(gradient)

    def meddle(other):
        with other.lock(0):  # this rank keeps to locks, whether the learner's do or not
            other.accumulate(step, 0)
        theirs.add_(step)

    everyones(None)
    meddled(window, meddle)
    if not through(window, lambda: [push_gradient(window, gradient.clone(), lr) for _ in range(times)]):
        return None
    told = everyones((gradient, theirs))
    have = window._memory[0] - sum(other for _, other in told)
    off = torch.tensor(weights) - times * lr * sum(mine for mine, _ in told) - have
    own = f"rank {rank} writes into its own window" if any(of == rank != 0 for of in writes(window)) else ""
    over = theirs.any() and (off.abs() > 500).any()
    lost = "an update that came between its get and its put was written over" if over else ""
    blame(window, torch.allclose(off, torch.zeros_like(off), atol=1e-6), own, lost)
    return have if rank == 0 else None


def broken_push_gradient(window, gradient, lr):
    """Add -lr * gradient to the weights in rank 0's window."""
    weights = window.get(0)
    window.put(weights - lr * gradient, to=0)
    window.flush()


@exercise(
    "Move weights that others move as well",
    _pushed,
    minutes=4,
    inputs=_gradients,
    forbids=MESSAGES,
    needs_messages=False,
    counts_memory=False,
    specimen=broken_push_gradient,
    harness=run_push_gradient,
)
def push_gradient(window, gradient, lr):
    """Add -lr * gradient to the weights in rank 0's window.

    The weights stand in rank 0's window. Add `-lr * gradient` to them there, and return when it is done. All ranks do
    this, rank 0 too, as often as they like and at the same time; **no update may be lost**. Rank 0 does not answer: no
    messages and no fence.

    Run the check on the specimen first. It does what the counter did, and the check lets an update of another rank
    arrive at the worst moment, every time. The picture has the ranks' gradients on the left. On the right is what has
    become of rank 0's weight, which was 1, with `lr = 0.5`.
    Hint: Between the `get` and the `put` any rank may write. What is written over is gone.
    Hint: Say what to add, not what shall stand there: then it does not matter who came before.
    Hint: `window.accumulate(-lr * gradient, to=0)`, and flush.
    Afterwards: With `with window.lock(0):` around a get and a put it is right as well, and slower: the lock keeps the
    others out while you read, compute and write. Accumulate keeps them out for the addition alone. Training in this way
    has a name, Hogwild: each weight is added to atomically, and no lock holds the weights together.
    """
    window.accumulate(-lr * gradient, to=0)
    window.flush()


# -- tickets -----------------------------------------------------------------------------------------------------------


def run_take_ticket(take_ticket, times):
    window = opened(1, torch.int64)
    theirs = []

    def meddle(other):
        with other.lock(0):
            theirs.append(int(other.get(0)))
            other.accumulate(1, 0)

    everyones(None)
    meddled(window, meddle)
    for mine in through(window, lambda: [int(take_ticket(window)) for _ in range(int(times))]):
        given = sorted(ticket for pair in everyones((mine, theirs)) for some in pair for ticket in some)
        twice = [f"number {a} was handed out twice" for a, b in zip(given, given[1:]) if a == b]
        left_out = [f"number {k} was never handed out" for k in sorted(set(range(len(given))) - set(given))]
        left = int(window._memory[0])
        short = f"{len(given)} numbers were handed out, and the counter says {left}" if left != len(given) else ""
        own = f"rank {rank} writes into its own window" if any(of == rank != 0 for of in writes(window)) else ""
        blame(window, not (twice or left_out or short), own, *twice[:1], *left_out[:1], short)
    return "each once"


@exercise(
    "Hand out each number once",
    lambda xs: ["each once" for _ in xs],
    minutes=6,
    difficulty=2,
    inputs=lambda n: [
        Case([np.float32(1) for _ in range(n)], "one for each rank"),
        Case([np.float32(r + 1) for r in range(n)], "rank r asks for r + 1"),
        Case([np.float32(20) for _ in range(n)], "twenty for each rank"),
    ],
    forbids=MESSAGES,
    counts_memory=False,
    harness=run_take_ticket,
)
def take_ticket(window):
    """Return the number in rank 0's window, and leave the next one there.

    Ranks that differ in speed should not get equal shares of the work: whoever is free takes the next batch. So rank
    0's window holds a counter, one whole number, 0 at first. Return the number that stands there, and leave the next
    one. All ranks call this at any time: **no number may be handed out twice**, and none left out. No messages, no
    fence. (The picture has on the left how many numbers each rank asks for.)
    Hint: Reading and writing must be one thing to all others. An accumulate alone does not tell you what was there.
    Hint: Which lock? The one that the others ask for, too: that of rank 0's window.
    Hint: `with window.lock(0):`, and in it a `get`, and a `put` of one more. It flushes as it unlocks.
    Afterwards: MPI has this in one call, `Fetch_and_op`, and NVSHMEM as `atomic_fetch_add`: the network card or the
    memory does it, and no lock is needed. A lock that is never released stops everybody, and MPI would not tell you who
    holds it.
    """
    with window.lock(0):
        ticket = window.get(0)
        window.put(ticket + 1, to=0)
    return ticket.item()


# -- a version ---------------------------------------------------------------------------------------------------------


def _newest(xs: Sequence[np.ndarray], updates: int) -> list[Any]:
    return [xs[(r + 1) % len(xs)] + 100 * updates for r in range(len(xs))]


def owner(memory, versions):
    for numbers in versions[1:]:  # each turn writes one number of the window
        memory[0] += 1
        yield
        for place, number in enumerate(numbers, 1):
            memory[place] = number
            yield
        memory[0] += 1
        yield


def run_read_whole(read_whole, numbers, updates):
    theirs, size = (rank + 1) % world_size, len(numbers)
    window, noticed = opened(1 + size, numbers.dtype), []
    first = everyones(numbers)[theirs]
    versions = [first + 100 * k for k in range(updates + 1)]
    memory, get, lock = window._memory[theirs], window.get, window.lock

    def meanwhile(late, every, many):
        # A get in which the owner takes `many` turns before every first or third number that is read. It begins `late`
        # numbers after the reader; where `late` is negative, it has taken so many turns before.
        memory[0], memory[1:] = 0, first
        writing, read, asked = owner(memory, versions), itertools.count(-late), itertools.count()
        for _ in range(-late):
            next(writing, None)

        def slow_get(of, at=0, size=None):
            got = get(of, at, size)
            if next(asked) == 500:
                raise LabError(
                    f"Rank {rank} has called get 500 times, and the owner stopped writing long ago. Read the version "
                    "anew each time you try."
                )
            for k in range(len(got) if of == theirs else 0):
                now = next(read)
                for _ in range(many if now >= 0 and now % every == 0 else 0):
                    next(writing, None)
                got[k] = memory[at + k]
            return got

        return slow_get

    def noted_lock(of):
        noticed.append(f"rank {rank} takes a lock, for which the owner never asks")
        return lock(of)

    def call():
        for every, many in ((1, 1), (3, 1), (1, size + 2)):
            for late in range(-size - 1, 2 * size + 5):
                window.get = meanwhile(late, every, many)
                out = read_whole(window, theirs)
                if not isinstance(out, torch.Tensor) or out.shape != first.shape or noticed:
                    return out
                if not any(torch.equal(out, version) for version in versions):
                    mixed = [str(2 * k) for k, version in enumerate(versions) if (out == version).any()]
                    what = f"numbers of versions {' and '.join(mixed[:2])}" if mixed[1:] else "what never stood there"
                    noticed.append(f"rank {rank} returns {what}, from rank {theirs}'s window")
                    return out
        window.get = meanwhile(-updates * (size + 2), 1, 1)  # all is written
        return read_whole(window, theirs)

    everyones(None)
    window.lock = noted_lock
    for out in through(window, call):
        wrote = f"rank {rank} writes into a window" if writes(window) else ""
        blame(window, not (noticed or wrote), wrote, *noticed[:1] or [""])
        return out


@exercise(
    "Read without a lock",
    _newest,
    minutes=5,
    difficulty=2,
    inputs=lambda n: [
        Case(counting(n, 3), "nobody writes", {"updates": 0}),
        Case(counting(n, 2), "the owner writes once", {"updates": 1}),
        Case(draws(n, 3, "int64", seed=1), "three times, one after the other", {"updates": 3}),
        Case(draws(n, 12), "twice, and twelve numbers", {"updates": 2}),
    ],
    forbids=MESSAGES,
    counts_memory=False,
    counts_messages=False,
    harness=run_read_whole,
)
def read_whole(window, of):
    """Return the numbers behind the version in rank of's window, all of one version.

    In the training above, rank 1 may have to wait while rank 0 reads: a lock takes the owner's time. An owner that must
    never wait takes none. Place 0 of its window holds a **version number**, 0 at first, with the numbers behind it, and
    it writes new ones in three lines: `window.mine[0] += 1`, then `window.mine[1:] = newest`, then `window.mine[0] +=
    1` again. So the version is odd while it writes.

    Return the numbers in rank `of`'s window, without the version and **all of one version**. A `get` copies one number
    after another, and the owner may write meanwhile: where that has happened, try again. No lock, no messages, no
    fence. (In the picture, each rank reads the window of the next one, and nobody writes.)
    Hint: A version tells you what was true when you read it. When do you have to read it, so that it says something
    about the numbers?
    Hint: Read it before the numbers and after them. If it is the same both times, the owner has neither begun nor ended
    an update in between; if it is even, it was not in the middle of one.
    Hint: In a loop: `before = window.get(of, size=1)`, then `numbers = window.get(of, at=1)`, then `after =
    window.get(of, size=1)`.
    Afterwards: This is called a **seqlock**; programs on Linux read the clock in this way. The owner never waits and
    does not know who reads. The readers pay: they try again, and a reader that never finds a gap between two updates
    never ends. A seqlock also needs the owner's writes to arrive in their order. On x86 processors they do. On other
    processors, and over a network, owner and reader must ask for that order with a memory barrier.
    """
    while True:
        before = window.get(of, size=1).item()
        numbers = window.get(of, at=1)
        after = window.get(of, size=1).item()
        if before == after and before % 2 == 0:
            return numbers


# -- fences ------------------------------------------------------------------------------------------------------------


def _shifted(xs: Sequence[np.ndarray], steps: int) -> list[Any]:
    return [xs[(r - steps) % len(xs)] for r in range(len(xs))]


def _turns(n: int) -> list[Case]:
    return [
        Case(counting(n, 2), "one step", {"steps": 1}),
        Case(counting(n, 2), "two steps", {"steps": 2}),
        Case(draws(n, 5), "once round and one more", {"steps": n + 1}),
        Case(draws(n, 33, "int64", seed=1), "six steps", {"steps": 6}),
    ]


def slowed(window, noticed):
    came, left = window.came, (rank - 1) % world_size
    flush, fence, get = window.flush, window.fence, window.get
    stood, rest = [None], [1.0]  # seconds that it may wait in all

    def let_the_left_go_first():
        began, passed = time.monotonic(), window._fences
        # A neighbour that waits for a message from here never gets that far.
        while passed % world_size == rank and came[left][0] <= passed and time.monotonic() - began < rest[0]:
            os.sched_yield()
        rest[0] -= time.monotonic() - began

    def slow_fence():
        flush()
        came[rank][0] = window._fences + 1  # so many fences at which it has flushed
        fence()
        stood[0] = window.mine.clone()
        with recorder.paused():
            dist.barrier()  # nobody writes before all have seen what stands there
        let_the_left_go_first()

    def watched_get(of, at=0, size=None):
        got, told = get(of, at, size), window.told()
        wrote = any(what != "get" and fences == window._fences for what, *_, fences in told["moves"])
        if told["handed"] or wrote:
            noticed.append("it reads before the fence: what was handed over need not be there yet")
        elif of == rank and stood[0] is not None and not torch.equal(got, stood[0][at : at + len(got)]):
            noticed.append(f"rank {left} wrote into rank {rank}'s window before rank {rank} had read what was there")
        return got

    let_the_left_go_first()
    window.fence, window.get = slow_fence, watched_get


def own_only(window):
    moved = writes(window)
    return f"rank {rank} writes into its own window only" if moved and all(of == rank for of in moved) else ""


def run_ring_by_puts(ring_by_puts, x, steps):
    window, noticed, gave = opened(len(x), x.dtype), [], x.clone()
    slowed(window, noticed)
    for out in through(window, lambda: ring_by_puts(window, x, steps)):
        if isinstance(out, torch.Tensor):
            want = everyones(gave)[(rank - steps) % world_size]
            right = everyones(out.shape == want.shape and torch.equal(out, want))
            blame(window, all(right), own_only(window), *noticed[:1] or [""])
        return out


def broken_ring_by_puts(window, x, steps):
    """Pass x on to the right so many times; return what has arrived."""
    for _ in range(steps):
        window.put(x, to=(rank + 1) % world_size)
        window.fence()
        x = window.get(rank)
    return x


@exercise(
    "Repair a ring of puts",
    _shifted,
    minutes=6,
    difficulty=2,
    inputs=_turns,
    forbids=ALL_BUT_FENCES,
    counts_memory=False,
    counts_messages=False,
    specimen=broken_ring_by_puts,
    harness=run_ring_by_puts,
)
def ring_by_puts(window, x, steps):
    """Pass x on to the right so many times; return what has arrived.

    Pass `x` on to the right `steps` times, each time into the window of the next rank, and return what has arrived: the
    `x` of the rank that is `steps` places to the left. The windows are as long as `x`. No messages; ranks meet in
    `window.fence()` only.

    The specimen is right for one step. With more, it is right most of the time. Run its check first: the check makes a
    different rank slow after each fence.
    Hint: A fence says that all puts before it are there. It does not say that everybody has read them.
    Hint: What may a fast rank do right after its `get`, while its neighbour has not yet come to its own?
    Hint: Put, fence, get, fence.
    Afterwards: A message brings both: the data is there when `recv` returns, and the next message waits until somebody
    receives it. With puts, you need one fence for each. If two windows take turns, one fence a step is enough: the next
    put goes where nobody reads.
    """
    for _ in range(steps):
        window.put(x, to=(rank + 1) % world_size)
        window.fence()
        x = window.get(rank)
        window.fence()
    return x


def _summed(xs: Sequence[Any]) -> list[Any]:
    if isinstance(xs[0], np.ndarray):  # one call
        return [sum(xs) for _ in xs]
    return [[sum(mine[k] for mine in xs) for k in range(len(xs[0]))] for _ in xs]


def _several(n: int) -> list[Case]:
    def of(*calls: Sequence[Any]) -> list[Any]:
        return [tuple(call[r] for call in calls) for r in range(n)]

    return [
        Case(counting(n, n), "one number for each rank"),
        Case(of(counting(n, 2 * n), [x + 1 for x in counting(n, 2 * n)]), "two calls, one after the other"),
        Case(of(*(draws(n, 1, "int64", seed=k) for k in range(3))), "three calls with a single number"),
        Case(of(*(draws(n, 301, "float64", seed=k) for k in range(3))), "three calls with 301 numbers"),
    ]


def run_all_reduce_by_puts(all_reduce_by_puts, *xs):
    window, noticed, gave = opened(len(xs[0]), xs[0].dtype), [], [x.clone() for x in xs]
    slowed(window, noticed)
    for outs in through(window, lambda: [all_reduce_by_puts(window, x) for x in xs]):
        if all(isinstance(out, torch.Tensor) for out in outs):
            wants = [sum(xs) for xs in zip(*everyones(gave))]
            right = [out.shape == want.shape and torch.allclose(out, want) for out, want in zip(outs, wants)]
            size, moves = sum(map(len, xs)), window.told()["moves"]
            moved = sum(length for what, of, at, length, *_ in moves if of != rank)
            least = 2 * (world_size - 1) / world_size
            much = moved > least * size + 2 * world_size * len(xs) and (
                f"rank {rank} moves {moved / size:.2f} S between windows, and {least:.2f} S is possible"
            )
            well = all(map(all, everyones(right)))
            blame(window, well and not any(everyones(much)), own_only(window), *noticed[:1] or [""], much or "")
        return outs if len(xs) > 1 else outs[0]


@exercise(
    "An all-reduce of puts",
    _summed,
    minutes=15,
    difficulty=3,
    inputs=_several,
    forbids=ALL_BUT_FENCES,
    counts_memory=False,
    counts_messages=False,
    tolerance=1e-5,
    harness=run_all_reduce_by_puts,
)
def all_reduce_by_puts(window, x):
    """Return the sum of all ranks' x: rank r adds up chunk r, and puts it into all windows.

    Return the sum of all ranks' `x`, on every rank. The windows are as long as `x`; the function is called several
    times in a row with the same window, in which anything may stand. No messages; ranks meet in `window.fence()` only.
    A rank may put, accumulate and get 2 (N − 1)/N S bytes in all in other ranks' windows: so **rank r adds up chunk r**
    of `x.tensor_split(world_size)`, and hands the sum to the others. Chunk r begins where the chunks before it end.
    Hint: It has two halves: everyone adds its chunk r to what stands at rank r; then rank r puts the sum into all other
    windows, where the same chunk belongs. What stands in the window before?
    Hint: `starts = [sum(map(len, chunks[:r])) for r in range(world_size)]`. Between two things that must not meet
    stands a fence: clear, fence, accumulate, fence, put, fence.
    Hint: `window.accumulate(chunks[r], to=r, at=starts[r])` for every r; then `mine = window.get(rank, at=starts[rank],
    size=len(chunks[rank]))` and `window.put(mine, to=r, at=starts[rank])` for every other r.
    Afterwards: These are the two shots of `two_shot_all_reduce_`, which symmetric memory offers on GPUs. In the
    one-shot version everybody reads everybody's x. It moves (N − 1) S bytes and needs one fence less: it wins where x
    is small.
    """
    chunks = x.tensor_split(world_size)
    starts = [sum(map(len, chunks[:r])) for r in range(world_size)]
    window.mine.zero_()
    window.fence()  # nobody adds before all are zero
    for r in range(world_size):
        window.accumulate(chunks[r], to=r, at=starts[r])
    window.fence()  # the sums are complete
    mine = window.get(rank, at=starts[rank], size=len(chunks[rank]))
    for r in range(world_size):
        if r != rank:
            window.put(mine, to=r, at=starts[rank])
    window.fence()  # all sums are everywhere
    return window.get(rank)
