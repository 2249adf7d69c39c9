"""Lesson 06b: an all-reduce through memory that ranks share, by flags, slots, chunks and pieces."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, exercise
from labkit.grading.inputs import counting, draws
from labkit.grading.prediction import ask
from labkit.theory import collectives

if TYPE_CHECKING:
    from labkit.rank.cell_names import everyones, rank, recorder, torch, world_size

by_memory = partial(exercise, forbids=("collectives", "send"))  # the ranks talk through memory alone


def opened(size):
    """Open a room of slots of so many bytes."""
    from workbook.tools.rank.shared import open_room

    with recorder.paused():
        return open_room(size)


def run_meet(meet, *late):
    """Let another rank come late to each meeting: one that leaves before it is seen. Rank r counts in slot r."""
    room = opened(64)
    came = [slot.view(torch.int64) for slot in room.slots]
    for k, who in enumerate(map(int, late), 1):
        time.sleep(0.03 * (rank == who))
        came[rank][0] = k
        meet(room)
        early = [r for r in range(world_size) if came[r][0] < k]
        if early:
            room.flags[rank] = 1 << 40  # nobody need wait for this rank any more
        assert not early, f"it left meeting {k} before rank {early[0]} had come"
    return "all met"


@by_memory(
    "A barrier of flags",
    lambda xs: ["all met" for _ in xs],
    minutes=6,
    difficulty=2,
    inputs=lambda n: [
        Case([tuple(np.float32(k % n) for k in range(2 * n))] * n, "each rank is late in turn"),
        Case([(np.float32(0),) * 3] * n, "rank 0 is late each time"),
        Case([(np.float32(-1),) * 50] * n, "fifty meetings, nobody is late"),
    ],
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
    Hint: First raise your own flag, then wait for the others: for the smallest of all flags.
    Hint: `while min(room.flags) < room.count: os.sched_yield()`
    Afterwards: No flag is ever taken down, and no two ranks write the same one. A rank that is already at the next
    meeting has a higher number, which is why you wait while a flag is smaller, not while it is different.
    """
    room.count += 1
    room.flags[rank] = room.count
    while min(room.flags) < room.count:
        os.sched_yield()


def several_calls(n: int, longest: int = 40) -> list[Case]:
    """Make what a rank brings to two or three calls in a row, of different lengths."""

    def of(*calls: Sequence[np.ndarray]) -> list[Any]:
        return [tuple(call[r] for call in calls) for r in range(n)]

    rng = np.random.default_rng([7, n])
    wild = [(10.0 ** rng.integers(-6, 7, 24) * rng.normal(size=24)).astype("float32") for _ in range(n)]
    return [
        Case(of(counting(n, 2 * n), [x + 1 for x in counting(n, 2 * n)])),
        Case(of(draws(n, longest), draws(n, 3, seed=1), draws(n, 33, seed=2)), f"{longest}, 3, then 33 elements"),
        Case(of(counting(n, 1), counting(n, 0)), "one element, then none"),
        Case(of(draws(n, 2 * n + 1, "int64"), draws(n, 5, "float64")), "integers, then float64"),
        Case(of(wild, wild), "large and tiny numbers: all ranks want the same bits"),
    ]


def through_slots(add_up, *xs, size, frugal):
    """Call the function on each x and a room with slots of this size; other ranks are late each time.

    One rank comes late to each call, and another one is late to leave each meeting: what is read too early, or written
    over too early, is seen. Where the sums are right, their bits count, and how many elements were gone through.
    """
    from torch.overrides import TorchFunctionMode

    class Counting(TorchFunctionMode):
        touched = 0

        def __torch_function__(self, op, types, args=(), kwargs=None):
            out = op(*args, **(kwargs or {}))
            if op.__name__.strip("_").startswith(("copy", "add", "iadd", "radd", "sum", "clone", "stack", "cat")):
                self.touched += args[0].numel() if isinstance(args[0], torch.Tensor) else out.numel()
            return out

    room, counting, brought = opened(size), Counting(), everyones(xs)
    meet, call = room.meet, 0

    def slow_meet():
        meet()
        time.sleep(0.01 * (rank == (call + 1) % world_size))

    room.meet = slow_meet
    for call, x in enumerate(xs):
        time.sleep(0.01 * (rank == (call + 2) % world_size))
        with counting:
            add_up(x, room)
    ended = list(zip(*everyones(xs)))
    if all(torch.allclose(x, sum(gave), 1e-3, 1e-2) for gave, have in zip(zip(*brought), ended) for x in have):
        same = all(torch.equal(x, y) for theirs in ended for x, y in zip(theirs, theirs[1:]))
        assert same, "the ranks' sums differ in their last bits: they were added up in different orders"
        length, least = sum(map(len, xs)), 3 - 2 / world_size
        shares = counting.touched / max(1, length)
        assert not frugal or counting.touched <= least * length + 12 * len(xs), (
            f"its copies and sums go through {shares:.2f} S in all, and {least:.2f} S is possible"
        )
    return list(xs)


@by_memory(
    "Everyone reads every slot",
    collectives.all_reduce,
    difficulty=2,
    inputs=several_calls,
    needs_messages=False,
    harness=partial(through_slots, size=4096, frugal=False),
    picture=lambda: [(x,) for x in counting(3, 6)],
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
    Hint: A second `room.meet()` at the end: no rank goes on before all ranks have read.
    Afterwards: The second meeting is easily forgotten, because the function mostly works without it. And a rank that
    begins with its own x gets different last bits than its neighbours: the models then drift apart.
    """
    places = room.places(x)
    places[rank].copy_(x)
    room.meet()
    x.copy_(places[0])
    for other in range(1, world_size):
        x += places[other]
    room.meet()


@by_memory(
    "Everyone adds up a chunk",
    collectives.all_reduce,
    minutes=12,
    difficulty=3,
    # The last case takes several pieces, the last of them short.
    inputs=lambda n: [
        *several_calls(n),
        Case([(x, x[:70]) for x in draws(n, 300, seed=3)], "300 elements, 1200 bytes"),
    ],
    needs_messages=False,
    harness=partial(through_slots, size=512, frugal=True),
    picture=lambda: [(x,) for x in counting(3, 6)],
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


def run_meet_in_time(meet_in_time, x):
    """Let a rank stay away from the second meeting, and collect whom the others' time-out names."""
    room, missing, said = opened(64), int(x), "nobody"
    try:
        time.sleep(0.05 * (rank == 0))
        meet_in_time(room, 30.0)
        if rank == missing:
            said = f"rank {rank}"
        else:
            meet_in_time(room, 0.2 if missing >= 0 else 30.0)
    except TimeoutError as error:
        if room.count == 1:
            room.flags[rank] = 1 << 40  # nobody need wait for this rank any more
            raise AssertionError(f"it raises a TimeoutError at once: {error}") from None
        named = sorted(set(map(int, re.findall("[0-9]+", str(error)))) & set(range(world_size)))
        said = "rank " + ", ".join(map(str, named)) if named else str(error)
    finally:
        everyones(None)
    return "all met", said


@by_memory(
    "A barrier that names who is missing",
    lambda xs: [("all met", "nobody" if xs[0] < 0 else f"rank {int(xs[0])}") for _ in xs],
    minutes=8,
    difficulty=2,
    inputs=lambda n: [
        Case([np.float32(n - 1)] * n, f"rank {n - 1} does not come to the second meeting"),
        Case([np.float32(-1)] * n, "all come"),
        Case([np.float32(0)] * n, "rank 0 does not come to the second meeting"),
    ],
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
    no message says why. A time-out cannot make the room usable again: afterwards the counts differ.
    """
    room.count += 1
    room.flags[rank] = room.count
    until = time.monotonic() + seconds
    while min(room.flags) < room.count:
        if time.monotonic() > until:
            missing = [r for r, flag in enumerate(room.flags) if flag < room.count]
            raise TimeoutError(f"rank {', '.join(map(str, missing))} has not come")
        os.sched_yield()


python_against_gloo = ask("""
`dist.all_reduce` on Gloo is C++. Your ring is Python. How does the ring do at 16 MiB, on two ranks?
( ) it takes ten times as long, or more
    > This would be true if Python touched each number. It runs a few lines in each step. The sending and the adding
    are C++ in both.
(x) it takes about as long, give or take a factor of two
( ) it takes half as long, or less
    > This would be true if it sent half the bytes. On two ranks each rank of a ring sends S bytes, which is the
    least possible.
Why: **About as long.** Both send the same bytes through the same sockets, and at 16 MiB that is where the time goes.
The language that a collective is written in hardly matters. What matters is the way that the bytes take, and Gloo's
leads through the operating system's network, even from one process to the next on the same host.
""")

flag_before_data = ask("""
Rank 0 writes a thousand numbers into its slot and then raises its flag. Rank 1 sees the flag up and reads the slot. Can
it still find an old number there?
( ) no: what was written first is seen first
    > This is what you would expect, and it is true for the core that writes. Another core need not see the writes in
    this order.
(x) it depends on the processor
( ) yes, on any processor: writes reach other cores in any order
    > This would be true if no processor promised an order. Some do.
Why: **It depends on the processor.** x86 promises that other cores see a core's writes in the order in which they were
made (*total store order*), so there a flag after the data is enough. ARM does not promise it. Programs there put a
*fence* between the data and the flag: C and C++ have atomic variables with *release* and *acquire* for it. Python has
none. So what you write in this lesson is right on x86 only, and on ARM it would be wrong once in a while. (ARM was not
run here.)
""")

chunks_on_four = ask("""
Now each rank adds up **its own chunk** only, a quarter of `x` on four ranks, and fetches the other three sums. Each
rank copies to its slot the chunks that others add up, adds three chunks to its own, puts the sum into its slot, and
copies the others' sums back. How many bytes does it copy and add in all, in units of S?
= 2.5 S +- 2 %
Why: **2.5 S**: ¾ to the slot, ¾ added, ¼ sum to the slot, ¾ fetched. With N ranks it is (3 − 2/N) S, which is less than
3 S however many there are. When everyone reads every slot, it is (N + 1) S. On two ranks the chunks take 2 S. There you
can do without them: copy all of `x` to your slot and add all of the other slot, which is 2 S as well.
""")

one_piece_or_many = ask("""
64 MiB. A slot could be as large as `x`: then the ranks meet twice. Or it is 2 MiB, and they go through `x` in 32 pieces
and meet 64 times. Which is faster, if nothing else runs on the cores?
( ) one piece: two meetings instead of 64
    > This is true if meetings take long, as they do on a busy machine. Where each rank has its core, a meeting takes
    microseconds, and 64 of them are a small part of this.
( ) no difference: the same bytes are copied
    > The bytes are the same. How fast they can be copied depends on where they are.
(x) many pieces
Why: **Many pieces.** A slot of 2 MiB stays in the cache: the other rank reads it there, and it is written over before
it has gone to memory. A slot of 64 MiB goes to memory and comes back. NCCL has small buffers as well: 4 MiB, cut into 8
steps (from its source and documentation; not run here). And many containers have only 64 MiB of `/dev/shm`.

If other programs want the cores, your table may say the opposite. A rank that is not running comes late to a meeting,
and that can happen 64 times.
""")

waiting_costs = ask("""
Rank 1 comes 0.3 s late. While rank 0 waits for it, how much time does rank 0's core **work** in `shared_all_reduce`,
and how much in Gloo's `all_reduce`?
( ) hardly any in either: a rank that waits does nothing
    > This would be true if both slept. Which of the two could be woken up when the other rank comes?
(x) as much as it can get in yours, hardly any in Gloo's
( ) as much as it can get in both
    > This would be true if Gloo asked again and again, too. It waits in a system call, and the operating system wakes
    it up when data comes.
Why: **As much as it can get in yours**: nearly 0.3 s if no other program wants the core, and its share of that time
if one does. A rank that looks at a flag again and again keeps its core busy, even if it offers it to others each
time. That is why it is so fast when the flag comes at once. MPI's ranks do the same, and so does NCCL, which keeps a
part of the GPU busy while it waits. Gloo sleeps, and waking up takes time.
""")

never_yield = ask("""
Four ranks share two cores. One version calls `os.sched_yield()` while it waits, the other one does nothing but look
again. How do they compare at 4 bytes?
( ) the one that never yields is faster: it saves a system call
    > This is true where each rank has a core of its own. Here the rank that you wait for may need yours.
( ) about the same: the operating system shares the cores out anyway
    > It does, but in slices of milliseconds. How many meetings fit into one?
(x) the one that never yields is slower
Why: **It is slower.** A rank that waits without yielding keeps its core until the operating system takes it away, after
some milliseconds. The rank that it waits for may be the one that cannot run. If other programs want the cores, too,
even a rank that yields waits long for its next turn, and the two come closer. And the version that yields may lose to
Gloo here: a rank that yields stays in the queue for a core, while one that sleeps leaves it.
""")
