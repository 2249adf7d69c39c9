"""Lesson 02b: an update that must not be lost, tickets and a version, in windows that others read and write."""

from __future__ import annotations

import itertools
import os
import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from labkit.floor.errors import LabError
from labkit.grading.exercise import Case, exercise
from labkit.grading.inputs import counting, draws
from labkit.grading.prediction import ask, series

if TYPE_CHECKING:
    from labkit.rank.cell_names import everyones, rank, recorder, torch, world_size

MESSAGES = ("send", "collectives")
on_windows = partial(exercise, counts_memory=False)


def opened(size, dtype):
    """Open a window, and beside it memory in which a rank tells how far it `came`, and how its function ended."""
    from workbook.tools.rank.window import open_window

    with recorder.paused():
        window = open_window(size, dtype)
        window.came = open_window(2, torch.int64)._memory
    window.patience = 1.5
    return window


def through(window, call):
    """Return what the call does, in a list; an empty one where another rank's has failed, which says why."""
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
    """Call `meddle` with a window of its own after each call that concerns rank 0's, outside of locks.

    So what goes wrong between ranks goes wrong every time. Where a rank has read something that it does not hold the
    lock of, or has let go of the lock, another rank's change comes at that moment: through a second handle on the same
    memory, in the same process.
    """
    from workbook.tools.rank.window import Window

    other = Window(window._memory, window._holders, window._locks)

    def then_meddle(real, concerned):
        def call(*args, **kwargs):
            meddles = concerned(*args, **kwargs)
            out = real(*args, **kwargs)
            if meddles and 0 not in window._held:
                meddle(other)
            return out

        return call

    window.get = then_meddle(window.get, lambda of, *_, **__: of == 0)
    window.flush = then_meddle(window.flush, lambda: window.told()["handed"])
    window.unlock = then_meddle(window.unlock, lambda of: of == 0)


def blame(window, right, *reasons):
    """Raise the first reason that any rank has, on all ranks: one counts also where the result is right."""
    handed = f"rank {rank} returns before what it has handed over is there: nothing has flushed it"
    mine = [handed if window.told()["handed"] else "", *("" if right else reason for reason in reasons)]
    found = [reason for ranks in zip(*everyones(mine)) for reason in ranks if reason]
    assert not found, found[0]


def writes(window):
    """Return whose windows this rank has written into."""
    return [of for what, of, *_ in window.told()["moves"] if what != "get"]


def into_own(window):
    """Say that this rank writes into its own window; nothing where it does not, or owns the weights."""
    return f"rank {rank} writes into its own window" * any(of == rank != 0 for of in writes(window))


def _gradients(n: int) -> list[Case]:
    def case(size: int, about: str, lr: float = 0.5, times: int = 1) -> Case:
        gradients = [np.arange(1.0, size + 1) + 10 * r for r in range(n)]
        return Case(gradients, about, {"weights": [1.0] * size, "lr": lr, "times": times})

    return [case(1, "one weight"), case(3, "five updates by each rank", 0.25, 5), case(40, "forty weights", 0.125, 3)]


def run_push_gradient(push_gradient, gradient, weights, lr, times):
    """Let updates of another rank come in between, and collect the weights in rank 0's window without them."""
    window, weights = opened(len(gradient), gradient.dtype), torch.tensor(weights)
    if rank == 0:
        window.mine.copy_(weights)
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
    off = weights - times * lr * sum(mine for mine, _ in told) - have
    over = bool(theirs.any() and (off.abs() > 500).any())
    lost = "an update that came between its get and its put was overwritten" * over
    blame(window, torch.allclose(off, torch.zeros_like(off), atol=1e-6), into_own(window), lost)
    return have if rank == 0 else None


def broken_push_gradient(window, gradient, lr):
    weights = window.get(0)
    window.put(weights - lr * gradient, to=0)
    window.flush()


@on_windows(
    "Update weights that others update as well",
    lambda xs, weights, lr, times: [
        np.array(weights) - times * lr * sum(xs) if r == 0 else None for r in range(len(xs))
    ],
    minutes=4,
    inputs=_gradients,
    forbids=MESSAGES,
    needs_messages=False,
    harness=run_push_gradient,
)
def push_gradient(window, gradient, lr):
    """Add -lr * gradient to the weights in rank 0's window.

    The weights are in rank 0's window. Add `-lr * gradient` to them there, and return when it is done. All ranks do
    this, rank 0 too, any number of times and at the same time; **no update may be lost**. Rank 0 does not answer, so
    use no messages and no fence.

    First run the check on the function as it is. The function does what the counter did, and the check lets an update
    of another rank arrive at the worst moment, every time. The picture shows the ranks' gradients on the left and rank
    0's weight afterwards on the right; it was 1, with `lr = 0.5`.
    Hint: Between the `get` and the `put` any rank may write. What is overwritten is lost.
    Hint: Say what to add instead of what the new value is. Then it does not matter which rank came before.
    Hint: `window.accumulate(-lr * gradient, to=0)`, and flush.
    Afterwards: A get and a put inside `with window.lock(0):` are right as well, but slower: the lock keeps the others
    out while you read, compute and write. Accumulate keeps them out during the addition only. Training in this way is
    called Hogwild: each weight is updated atomically, but no lock covers all weights together.
    """
    window.accumulate(-lr * gradient, to=0)
    window.flush()


def run_take_ticket(take_ticket, times):
    """Let other ranks take tickets in between, and hold all numbers that were handed out against one another."""
    window, theirs = opened(1, torch.int64), []

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
        short = f"{len(given)} numbers were handed out, and the counter says {left}" * (left != len(given))
        blame(window, not (twice or left_out or short), into_own(window), *twice[:1], *left_out[:1], short)
    return "each once"


@on_windows(
    "Hand out each number once",
    lambda xs: ["each once" for _ in xs],
    minutes=6,
    difficulty=2,
    inputs=lambda n: [
        Case([np.float32(1) for _ in range(n)], "one for each rank"),
        Case([np.float32(r + 1) for r in range(n)], "rank r asks r + 1 times"),
        Case([np.float32(20) for _ in range(n)], "twenty for each rank"),
    ],
    forbids=MESSAGES,
    harness=run_take_ticket,
)
def take_ticket(window):
    """Return the number in rank 0's window, and leave the next one there.

    If ranks differ in speed, they should not get equal shares of the work: a rank that is free takes the next batch.
    So rank 0's window holds a counter, one whole number, 0 at first. Return the number that is there, and leave the
    next one. All ranks call this at any time: **no number may be handed out twice**, and none may be left out. Use no
    messages and no fence. (In the picture, the numbers on the left say how many times each rank asks.)
    Hint: No other rank may come between reading and writing. An accumulate alone does not tell you what was there.
    Hint: Which lock? The one that all ranks ask for: that of rank 0's window.
    Hint: `with window.lock(0):`, and in it a `get`, and a `put` of one more. Unlocking flushes.
    Afterwards: MPI has this in one call, `Fetch_and_op`, and NVSHMEM has `atomic_fetch_add`: the network card or the
    memory does it, and no lock is needed. A lock that is never released stops all ranks, and MPI would not tell you
    which rank holds it.
    """
    with window.lock(0):
        ticket = window.get(0)
        window.put(ticket + 1, to=0)
    return ticket.item()


def owner(memory, versions):
    """Write the versions into a window, one number each time that the owner's turn comes."""
    for numbers in versions[1:]:
        memory[0] += 1
        yield
        for place, number in enumerate(numbers, 1):
            memory[place] = number
            yield
        memory[0] += 1
        yield


def run_read_whole(read_whole, numbers, updates):
    """Play the owner of the window that is read, and collect what the function returns once all is written.

    While a `get` copies number after number, the owner writes on. It begins earlier or later, and writes as fast as
    the reader reads, slower and faster: so each place at which it can come in between is met, every time.
    """
    theirs, size = (rank + 1) % world_size, len(numbers)
    window, noticed = opened(1 + size, numbers.dtype), []
    first = everyones(numbers)[theirs]
    versions = [first + 100 * k for k in range(updates + 1)]
    memory, get, lock = window._memory[theirs], window.get, window.lock

    def meanwhile(late, every, many):
        """Return a get in which the owner takes `many` turns before every first or third number that is read.

        It begins `late` numbers after the reader; where `late` is negative, it has taken so many turns before.
        """
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
        noticed.append(f"rank {rank} takes a lock, which the owner never asks for")
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
        wrote = f"rank {rank} writes into a window" * bool(writes(window))
        blame(window, not (noticed or wrote), wrote, *noticed[:1] or [""])
        return out


@on_windows(
    "Read without a lock",
    lambda xs, updates: [xs[(r + 1) % len(xs)] + 100 * updates for r in range(len(xs))],
    minutes=5,
    difficulty=2,
    inputs=lambda n: [
        Case(counting(n, 3), "no rank writes", {"updates": 0}),
        Case(counting(n, 2), "the owner writes once", {"updates": 1}),
        Case(draws(n, 3, "int64", seed=1), "three times, one after another", {"updates": 3}),
        Case(draws(n, 12), "twice, and twelve numbers", {"updates": 2}),
    ],
    forbids=MESSAGES,
    counts_messages=False,
    harness=run_read_whole,
)
def read_whole(window, of):
    """Return the numbers behind the version in rank of's window, all of one version.

    At the beginning of the lesson, rank 1 may have to wait while rank 0 reads: a lock costs the owner time. An owner
    that must never wait takes no lock. Place 0 of its window holds a **version number**, 0 at first, with the numbers
    behind it, and it writes new ones in three lines: `window.mine[0] += 1`, then `window.mine[1:] = newest`, then
    `window.mine[0] += 1` again. So the version is odd while it writes.

    Return the numbers in rank `of`'s window, without the version and **all of one version**. A `get` copies one number
    after another, and the owner may write meanwhile: if that has happened, try again. Use no lock, no messages and no
    fence. (In the picture, each rank reads the window of the next one, and no rank writes.)
    Hint: A version number tells you the state at the moment when you read it. When do you have to read it to know the
    version of the numbers?
    Hint: Read it before the numbers and after them. If it is the same both times, the owner has neither begun nor ended
    an update in between; if it is even, it was not in the middle of one.
    Hint: In a loop: `before = window.get(of, size=1)`, then `numbers = window.get(of, at=1)`, then `after =
    window.get(of, size=1)`.
    Afterwards: This is called a **seqlock**; programs on Linux read the clock in this way. The owner never waits and
    does not know which ranks read. Instead, the readers may have to try again, and a reader that never finds a gap
    between two updates never ends. A seqlock also needs the owner's writes to arrive in their order. On x86 processors
    they do. On other processors, and over a network, owner and reader must ask for that order with a memory barrier.
    """
    while True:
        before = window.get(of, size=1).item()
        numbers = window.get(of, at=1)
        after = window.get(of, size=1).item()
        if before == after and before % 2 == 0:
            return numbers


ask_a_busy_rank = ask("""
Rank 1 trains for 30 training steps and then sends its weights to rank 0. Rank 0 calls `dist.recv` at once. When does
rank 0 have weights of rank 1?
( ) at once: rank 0 reads them out of rank 1's memory
    > That would be true if a receive reached into the other process. It only takes what that process sends.
( ) after the training step that rank 1 is in: then it answers
    > That would be true if rank 1 looked for questions between two training steps. Nothing in its loop does.
(x) after all 30 training steps
( ) never: rank 1 does not know that rank 0 is waiting
    > Rank 1 need not know it. It calls `send` after its training, and there the two meet.
Why: After all 30. A message needs both ranks: rank 0 waits until rank 1 comes to its `send`. To answer earlier, rank 1
would have to stop again and again and check whether another rank is asking.
""")

three_places = series(
    """
Four ranks have windows of three places each, all 0. What will you find? (With fewer ranks, there are fewer numbers.)
""",
    get_after_put="""
Place 0: the last rank puts a 7 into rank 0's window and gets that place in its next line. It finds:
(x) the 0 that was there
( ) the 7
    > That would be true if `put` returned once the number has arrived. It returns once the number is handed over.
( ) nothing: `get` raises an error
    > That would help, but it is not checked. A `get` returns whatever is there.
Why: The 0 that was there. A put may be under way until you wait for it, as in `fence`. In this window it always is, so
that you see it; with MPI or on a GPU the 7 may be there already, and then the mistake shows up only once in a while.
""",
    puts_to_one_place="""
Place 1: every rank but rank 0 puts its own number there, 1, 2 and 3. After the fence it holds:
( ) 6, the sum
    > That would be true of `accumulate`. A put overwrites what is there.
( ) 3: the highest rank comes last
    > That would be true if ranks took turns. Nothing decides which of them comes last.
( ) an error: the place is taken
    > That would be true if this were checked. The owner takes no part, and the other ranks do not know.
(x) 1, 2 or 3: it may differ from run to run
Why: One of the three: the one that was written last. MPI promises less: the result of two puts to the same place, with
nothing in between to order them, is undefined.
""",
    adds_to_one_place="""
Place 2: every rank but rank 0 accumulates its own number there, 1, 2 and 3. After the fence it holds:
( ) 1, 2 or 3: it may differ from run to run
    > That would be true of `put`. Here each number is added to what is there.
(x) 6, the sum
( ) 6 most of the time, and less when two ranks come at the same time
    > That would be true if each rank read, added and wrote in three steps. An accumulate is a single step: no other
    rank comes in between.
Why: The sum, every time, whatever the order of the ranks. Accumulate is **atomic**, number by number: other ranks see
the place before the addition or after it.
""",
)

count_together = ask("""
Rank 0's window holds a 0. Four ranks all start at once, and each does this 400 times: get the number, put that number
plus one, flush. They make no other call. What does the window hold in the end?
( ) 1,600
    > That would be true if no other rank wrote between a rank's get and its put. Nothing keeps the others out.
( ) 400: all ranks count the same numbers
    > That would be true if all ranks were in step and made each get at the same moment. They do not wait for one
    another.
(x) less than 1,600, and a different number from run to run
( ) more than 1,600 at times: some ranks count twice
    > Each put writes one more than was read. No update can count twice; it can only be overwritten.
Why: Less than 1,600, and a different number from run to run. If two ranks read the same number, both write one more:
two updates have become one. A rank that is delayed between its get and its put loses even more: with an old number, it
overwrites all that has been counted since. This is a **race**.
""")
