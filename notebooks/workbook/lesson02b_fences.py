"""Lesson 02b: a ring and an all-reduce of puts, in which ranks meet in fences."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from labkit.grading.exercise import Case
from labkit.grading.inputs import counting, draws
from labkit.theory import collectives
from workbook.lesson02b import blame, on_windows, opened, through, writes

if TYPE_CHECKING:
    from labkit.rank.cell_names import everyones, rank, torch, world_size

ALL_BUT_FENCES = ("send", "broadcast", "reduce", "all_reduce", "gather", "all_gather", "scatter", "reduce_scatter",
                  "all_to_all")  # fmt: skip


def own_only(window):
    """Say that this rank writes into no window but its own."""
    return f"rank {rank} writes into its own window only" * (set(writes(window)) == {rank})


# At the start and after each fence one rank, a different one each time, goes on only when its left-hand neighbour has
# written what it had to write up to its next fence, or is through. So whatever a fence should keep apart meets where
# it is missing.
def slowed(window, noticed):
    """Make one rank slow after each fence, another one each time, and notice who reads too early or writes too soon."""
    came, left = window.came, (rank - 1) % world_size
    flush, fence, get = window.flush, window.fence, window.get
    window.stood, window.rest = None, 1.0  # what stood there after the fence; seconds that it may wait in all

    def let_the_left_go_first():
        began, passed = time.monotonic(), window._fences
        # A neighbour that waits for a message from here never gets that far.
        while passed % world_size == rank and came[left][0] <= passed and time.monotonic() - began < window.rest:
            os.sched_yield()
        window.rest -= time.monotonic() - began

    def slow_fence():
        flush()
        came[rank][0] = window._fences + 1  # so many fences at which it has flushed
        fence()
        window.stood = window.mine.clone()
        everyones(None)  # nobody writes before all have seen what stands there
        let_the_left_go_first()

    def watched_get(of, at=0, size=None):
        got, told = get(of, at, size), window.told()
        wrote = any(what != "get" and fences == window._fences for what, *_, fences in told["moves"])
        if told["handed"] or wrote:
            noticed.append("it reads before the fence: what was handed over need not be there yet")
        elif of == rank and window.stood is not None and not torch.equal(got, window.stood[at : at + len(got)]):
            noticed.append(f"rank {left} wrote into rank {rank}'s window before rank {rank} had read what was there")
        return got

    let_the_left_go_first()
    window.fence, window.get = slow_fence, watched_get


def run_ring_by_puts(ring_by_puts, x, steps):
    """Slow one rank down after each fence, and collect what has arrived."""
    window, noticed, gave = opened(len(x), x.dtype), [], x.clone()
    slowed(window, noticed)
    for out in through(window, lambda: ring_by_puts(window, x, steps)):
        if isinstance(out, torch.Tensor):
            want = everyones(gave)[(rank - steps) % world_size]
            right = everyones(out.shape == want.shape and torch.equal(out, want))
            blame(window, all(right), own_only(window), *noticed[:1] or [""])
        return out


def broken_ring_by_puts(window, x, steps):
    for _ in range(steps):
        window.put(x, to=(rank + 1) % world_size)
        window.fence()
        x = window.get(rank)
    return x


@on_windows(
    "Repair a ring of puts",
    lambda xs, steps: [xs[(r - steps) % len(xs)] for r in range(len(xs))],
    minutes=6,
    difficulty=2,
    inputs=lambda n: [
        Case(counting(n, 2), "one step", {"steps": 1}),
        Case(counting(n, 2), "two steps", {"steps": 2}),
        Case(draws(n, 5), "once round and one more", {"steps": n + 1}),
        Case(draws(n, 33, "int64", seed=1), "six steps", {"steps": 6}),
    ],
    forbids=ALL_BUT_FENCES,
    counts_messages=False,
    harness=run_ring_by_puts,
)
def ring_by_puts(window, x, steps):
    """Pass x on to the right, `steps` times; return what has arrived.

    Pass `x` on to the right `steps` times, each time into the window of the next rank, and return what has arrived: the
    `x` of the rank that is `steps` places to the left. The windows are as long as `x`. Use no messages; ranks meet in
    `window.fence()` only.

    The function as it is works for one step. With more steps, it is right most of the time. Run its check first: the
    check makes a different rank slow after each fence.
    Hint: After a fence, all puts before it have arrived. That does not mean that every rank has read them.
    Hint: What may a fast rank do right after its `get`, while its neighbour has not yet come to its own `get`?
    Hint: Put, fence, get, fence.
    Afterwards: A message guarantees two things: the data is there when `recv` returns, and the next message waits until
    it is received. With puts, you need a fence for each of the two. If two windows take turns, one fence per step is
    enough, because the next put goes into a window that no rank is reading.
    """
    for _ in range(steps):
        window.put(x, to=(rank + 1) % world_size)
        window.fence()
        x = window.get(rank)
        window.fence()
    return x


def _several(n: int) -> list[Case]:
    def three(size: int, dtype: str) -> list[Any]:
        return list(zip(*(draws(n, size, dtype, seed=k) for k in range(3)), strict=True))

    return [
        Case(counting(n, n), "one number for each rank"),
        Case([(x, x + 1) for x in counting(n, 2 * n)], "two calls, one after another"),
        Case(three(1, "int64"), "three calls with a single number"),
        Case(three(301, "float64"), "three calls with 301 numbers"),
    ]


def run_all_reduce_by_puts(all_reduce_by_puts, *xs):
    """Slow one rank down after each fence, count what is moved between windows, and collect the sums."""
    window, noticed, gave = opened(len(xs[0]), xs[0].dtype), [], [x.clone() for x in xs]
    slowed(window, noticed)
    for outs in through(window, lambda: [all_reduce_by_puts(window, x) for x in xs]):
        if all(isinstance(out, torch.Tensor) for out in outs):
            wants = [sum(each) for each in zip(*everyones(gave))]
            right = all(out.shape == want.shape and torch.allclose(out, want) for out, want in zip(outs, wants))
            size, least = sum(map(len, xs)), 2 * (world_size - 1) / world_size
            moved = sum(length for _, of, _, length, *_ in window.told()["moves"] if of != rank)
            shares = f"rank {rank} moves {moved / size:.2f} S between windows, and {least:.2f} S is possible"
            much = shares * (moved > least * size + 2 * world_size * len(xs))
            well = all(everyones(right)) and not any(everyones(much))
            blame(window, well, own_only(window), *noticed[:1] or [""], much)
        return outs if len(xs) > 1 else outs[0]


@on_windows(
    "An all-reduce of puts",
    collectives.all_reduce,
    minutes=15,
    difficulty=3,
    inputs=_several,
    forbids=ALL_BUT_FENCES,
    counts_messages=False,
    tolerance=1e-5,
    harness=run_all_reduce_by_puts,
)
def all_reduce_by_puts(window, x):
    """Return the sum of all ranks' x: rank r adds up chunk r, and puts it into all windows.

    Return the sum of all ranks' `x`, on every rank. The windows are as long as `x`; the function is called several
    times in a row with the same window, which may hold any numbers before. Use no messages; ranks meet in
    `window.fence()` only. A rank may put, accumulate and get 2 (N − 1)/N S bytes in all in other ranks' windows: so
    **rank r adds up chunk r** of `x.tensor_split(world_size)`, and puts the sum into the others' windows. Chunk r
    begins where the chunks before it end.
    Hint: It has two halves. First every rank adds its chunk r to rank r's window. Then rank r puts the sum into all
    other windows, at the place of chunk r. What is in the windows before?
    Hint: `starts = [sum(map(len, chunks[:r])) for r in range(world_size)]`. Put a fence between two steps that must not
    overlap: clear, fence, accumulate, fence, put, fence.
    Hint: `window.accumulate(chunks[r], to=r, at=starts[r])` for every r; then `mine = window.get(rank, at=starts[rank],
    size=len(chunks[rank]))` and `window.put(mine, to=r, at=starts[rank])` for every other r.
    Afterwards: These are the two shots of `two_shot_all_reduce_`, which symmetric memory offers on GPUs. In the
    one-shot version every rank reads the `x` of all ranks. It moves (N − 1) S bytes and needs one fence less, so it is
    faster if `x` is small.
    """
    chunks = x.tensor_split(world_size)
    starts = [sum(map(len, chunks[:r])) for r in range(world_size)]
    window.mine.zero_()
    window.fence()  # no rank adds before all are zero
    for r in range(world_size):
        window.accumulate(chunks[r], to=r, at=starts[r])
    window.fence()  # the sums are complete
    mine = window.get(rank, at=starts[rank], size=len(chunks[rank]))
    for r in range(world_size):
        if r != rank:
            window.put(mine, to=r, at=starts[rank])
    window.fence()  # all sums are everywhere
    return window.get(rank)
