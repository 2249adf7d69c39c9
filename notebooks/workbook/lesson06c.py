"""Lesson 06c: kernels in Triton that are collectives: a barrier of flags, one-shot and two-shot all-reduce."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, Least, exercise
from labkit.grading.inputs import counting, draws
from labkit.grading.prediction import ask
from labkit.theory import collectives
from workbook.lesson06b import several_calls
from workbook.tools.kernels import compiled, races

triton = SimpleNamespace(jit=lambda function: function)  # a rank has Triton, the notebook needs none

if TYPE_CHECKING:
    import triton.language as tl

    from labkit.rank.cell_names import device, everyones, rank, recorder, torch, world_size
    from workbook.tools.rank.kernels import buffer, flag, meet

BLOCK = 16  # numbers of a program
FROM = "from workbook.tools.rank.kernels import "


def compiles(exercise, cell):
    """Return what Triton's compiler refuses of the cell's kernel."""
    return compiled.refusal(exercise.name, exercise.arguments, cell)


KERNELS = {
    "reads": compiles,
    "forbids": ("collectives", "send"),  # the ranks talk through memory alone
    "needs_messages": False,
    "counts_memory": False,
    "given": f"{FROM}buffer, meet, tl, triton",
}
by_kernel = partial(exercise, **KERNELS)
by_flags = partial(exercise, **KERNELS | {"given": f"{FROM}buffer, flag, tl, triton"})


def kernel_of(function):
    """Return the kernel that a check is given, without what the check has put around it."""
    return inspect.unwrap(function, stop=lambda f: not inspect.isfunction(f))


def accumulator(dtype):
    """Return the dtype to add up in, as Triton has it: sums of short floats are made in float32."""
    import triton.language as tl

    return {torch.int64: tl.int64, torch.float64: tl.float64}.get(dtype, tl.float32)


def opened(size, dtype):
    """Open symmetric memory of at least one number."""
    from workbook.tools.rank.symmetric import open_symmetric

    with recorder.paused():
        return open_symmetric(max(1, size), dtype)


def memory_for(xs, times=1):
    """Open a memory for each dtype, for so many times the longest x of it."""
    longest = {dtype: max(x.numel() for x in xs if x.dtype == dtype) for dtype in dict.fromkeys(x.dtype for x in xs)}
    return {dtype: opened(times * size, dtype) for dtype, size in longest.items()}


def late(memory, call):
    """Hold one rank up wherever it goes over from numbers to flags, or back: in each call another one."""
    if memory.seen:
        memory.seen.late = 0.002 * (rank == call % world_size)


def ordered(*memories):
    """Hold what all ranks' kernels did in these memories against the order that flags made."""
    for memory in memories:
        if memory.seen:
            said = races.told(everyones(memory.seen.events))
            assert not said, ". ".join(one[0].upper() + one[1:] for one in said)


def grid(size):
    """Return how many programs so many numbers take."""
    return (-(-size // BLOCK),)


def told_all(kernel, x):
    """Launch it once, in a memory of its own."""
    memory, out = opened(x.numel(), x.dtype), torch.full_like(x, -1)
    late(memory, x.numel())
    kernel_of(kernel)[(x.numel() // 4,)](x, out, memory.buffers, memory.flags, rank, world_size, 4)
    ordered(memory)
    return out


@triton.jit
def broken_tell_all(x, out, buffers, flags, rank, world_size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if rank == 0:
        for other in range(world_size):
            tl.store(buffer(buffers, other, x) + at, tl.load(x + at))
            tl.atomic_xchg(flag(flags, other, 0, world_size), 1, sem="relaxed")
    while tl.atomic_cas(flag(flags, rank, 0, world_size), 1, 0, sem="relaxed") != 1:
        pass
    tl.store(out + at, tl.load(buffer(buffers, rank, x) + at))


@by_flags(
    "Repair a broadcast without order",
    collectives.broadcast,
    minutes=5,
    difficulty=2,
    inputs=lambda n: [
        Case(counting(n, 4)),
        Case(draws(n, 12), "three programs on each rank"),
        Case(draws(n, 8, "int64", 1), "integers"),
    ],
    harness=told_all,
)
@triton.jit
def tell_all(x, out, buffers, flags, rank, world_size, BLOCK: tl.constexpr):
    """Store rank 0's x in out, on every rank: rank 0 puts it into all buffers and sets a flag in each.

    On x86 its numbers are right every time you run it. On GPUs they would be wrong now and then. Each launch gets fresh
    memory, so `x` need not be kept from the next one. Repair it without adding a flag: `flag(flags, of, by,
    world_size)` is the address of the flag in rank `of`'s memory that rank `by` sets.
    Hint: Which of the two operations says that numbers are there, and which one looks? `sem=` is different for them.
    Hint: Without `scope=` an operation on a flag counts among the programs of one GPU. `scope="sys"` reaches all.
    Hint: A program has many threads, and one of them sets the flag. `tl.debug_barrier()` before that waits for all.
    Afterwards: Three words were missing, and no test on this machine could have told by its numbers. Tools look for
    such races by the order of the operations, as the check did: ThreadSanitizer for C++, and compute-sanitizer within
    one GPU.
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if rank == 0:
        for other in range(world_size):
            tl.store(buffer(buffers, other, x) + at, tl.load(x + at))
            tl.debug_barrier()
            tl.atomic_xchg(flag(flags, other, 0, world_size), 1, sem="release", scope="sys")
    while tl.atomic_cas(flag(flags, rank, 0, world_size), 1, 0, sem="acquire", scope="sys") != 1:
        pass
    tl.store(out + at, tl.load(buffer(buffers, rank, x) + at))


def run_barrier(barrier, times, programs=1):
    """Let a kernel tell all ranks a number again and again, with the learner's barrier around each reading."""
    memory = opened(programs, torch.float32)
    from workbook.tools.rank import kernels

    out = torch.zeros(programs, int(times), world_size, device=device)
    late(memory, int(times))
    tables = memory.buffers, memory.flags
    kernels.exchange_of_the_check[(programs,)](out, *tables, int(times), kernel_of(barrier), rank, world_size)
    ordered(memory)
    return out


def exchanged(xs: Sequence[Any], programs: int = 1) -> list[np.ndarray]:
    """Return the numbers that `run_barrier` should find, on every rank."""
    shape = (programs, int(xs[0]), len(xs))
    program, time, other = np.indices(shape)
    return [(100 * program + 10 * time + other).astype("float32") for _ in xs]


@by_flags(
    "A barrier in a kernel",
    exchanged,
    minutes=8,
    difficulty=3,
    inputs=lambda n: [
        Case([np.int64(2)] * n, "two readings, four meetings"),
        Case([np.int64(8)] * n, "eight readings in a row"),
        Case([np.int64(3)] * n, "three programs on each rank", {"programs": 3}),
    ],
    harness=run_barrier,
    scales=False,
)
@triton.jit
def meet_in_kernel(flags, rank, world_size):
    """Return when the programs with my number have come here on all ranks.

    Programs with the same `tl.program_id(0)` meet, one of each rank. `flag(flags, of, by, world_size)` is the address
    of the flag in rank `of`'s memory that rank `by` sets for them; all flags are 0 at first. Tell every rank, this one
    too, that you have come; then wait until all have told you. What a rank wrote before the meeting, all must be able
    to read after it. Leave each flag at 0, ready for the next meeting. (The check's kernel meets before and after each
    of two exchanges, in which every rank stores a new number and loads all others', as in the picture.)
    Hint: A rank may not have taken down your last signal yet, and a second one would be lost. So set a flag only where
    it is 0: repeat `tl.atomic_cas(address, 0, 1, …)` `while` it does not return 0.
    Hint: Waiting and taking down are one operation: put 0 in the place of 1, until what was there is 1.
    Hint: Release what you did when you set a flag: `sem="release", scope="sys"`. Acquire it when you wait:
    `sem="acquire", scope="sys"`. Other GPUs are beyond the scope "gpu".
    Afterwards: This is the barrier of PyTorch's own kernels for symmetric memory. Each flag has one writer and one
    reader, who take turns, so it needs no count that somebody would have to keep from call to call.
    """
    tl.debug_barrier()  # all threads of this program are here, and have written
    # yours
    for other in range(world_size):
        while tl.atomic_cas(flag(flags, other, rank, world_size), 0, 1, sem="release", scope="sys") != 0:
            pass
    for other in range(world_size):
        while tl.atomic_cas(flag(flags, rank, other, world_size), 1, 0, sem="acquire", scope="sys") != 1:
            pass
    # end


def sums(kernel, *xs, shared=False):
    """Launch a kernel on each x in turn, in one memory for each dtype, and return what it stored."""
    kernel, memories, outs = kernel_of(kernel), memory_for(xs), []
    for call, x in enumerate(xs):
        memory, out = memories[x.dtype], torch.full_like(x, -1)
        late(memory, call)
        programs = grid(-(-x.numel() // (world_size if shared else 1)))
        tables = memory.buffers, memory.flags
        kernel[programs](x, out, *tables, x.numel(), rank, world_size, accumulator(x.dtype), BLOCK)
        outs.append(out)
    ordered(*memories.values())
    if xs[0].dtype == torch.bfloat16:
        wrong = any(not torch.allclose(out.float(), sum(brought)) for out, *brought in zip(outs, *everyones(xs)))
        assert not wrong, (
            "in bfloat16 the sums are wrong: add up in ACC, total = tl.zeros([BLOCK], ACC) and .to(ACC). A GPU would "
            "round every sum to 8 bits, and Triton's interpreter does not know this dtype when it adds"
        )
    for one in zip(*everyones(outs)):
        same = all(torch.equal(one[0], other) for other in one)
        near = all(torch.allclose(one[0], other, 1e-3, 1e-2) for other in one)
        assert same or not near, "the ranks' sums differ in their last bits: they were added up in different orders"
    return outs


def several(n: int) -> list[Case]:
    """Make what a rank brings to two or three launches in a row, and to one in bfloat16."""
    return [*several_calls(n, longest=70), Case([(x,) for x in draws(n, 2 * n + 1)], "bfloat16", dtype="bfloat16")]


@by_kernel(
    "Everyone reads every buffer",
    collectives.all_reduce,
    minutes=7,
    difficulty=2,
    inputs=several,
    harness=sums,
    least=Least(moved=lambda n, S: (n + 2) * S),
    picture=lambda: [(x,) for x in counting(3, 6)],
)
@triton.jit
def one_shot(x, out, buffers, flags, size, rank, world_size, ACC: tl.constexpr, BLOCK: tl.constexpr):
    """Store the sum of all ranks' x in out: everyone reads every buffer.

    `x` and `out` are pointers to `size` numbers of this rank. `buffer(buffers, r, x)` is a pointer to rank r's buffer,
    which has room for `size` numbers. Add up in the dtype `ACC`, from `tl.zeros([BLOCK], ACC)` on. Each program has the
    places `at`, as far as `mask` is true. `meet(flags, rank, world_size)` is your barrier. The kernel is launched many
    times in a row with the same buffers, and all ranks end with the same bits.
    Hint: Copy your places of `x` into your own buffer, meet, add up, store, and think of the next launch.
    Hint: `tl.load(x + at, mask=mask)` reads, `tl.store(buffer(buffers, rank, x) + at, …, mask=mask)` writes.
    Hint: `total += tl.load(…, mask=mask).to(ACC)` for every rank, from rank 0 on: `for other in range(world_size):`
    Afterwards: It is `sum_slots` of the last lesson, in one launch. The second meeting keeps a fast rank from writing
    its next `x` while others still read. And you can do without reading your own buffer: you have those numbers.
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    # yours
    tl.store(buffer(buffers, rank, x) + at, tl.load(x + at, mask=mask), mask=mask)
    meet(flags, rank, world_size)
    total = tl.zeros([BLOCK], ACC)
    for other in range(world_size):
        total += tl.load(buffer(buffers, other, x) + at, mask=mask).to(ACC)
    tl.store(out + at, total, mask=mask)
    meet(flags, rank, world_size)
    # end


@by_kernel(
    "Everyone adds up a chunk",
    collectives.all_reduce,
    minutes=12,
    difficulty=3,
    inputs=several,
    harness=partial(sums, shared=True),
    least=Least(moved=lambda n, S: (5 - 2 / n) * S),
    picture=lambda: [(x,) for x in counting(3, 6)],
)
@triton.jit
def two_shot(x, out, buffers, flags, size, rank, world_size, ACC: tl.constexpr, BLOCK: tl.constexpr):
    """Store the sum of all ranks' x in out: rank r adds up chunk r, and everyone reads the sums.

    As `one_shot`, but `x` is cut into a chunk for each rank, of `chunk` numbers, the last ones perhaps shorter. A
    program works on the places `at` of **each** chunk: in chunk c these are the numbers `c * chunk + at`, as far as
    `at` is smaller than `chunk` and the number smaller than `size` (`&` joins two masks, and `and` does not). Rank r
    adds up chunk r and puts the sum where the others can read it. Fill `out` from there.
    Hint: It is a reduce-scatter and an all-gather: write, meet, add up, write, meet, read.
    Hint: After the first meeting nobody but you reads or writes chunk `rank` of your own buffer: put the sum there.
    Hint: `for c in range(world_size):` with `place = c * chunk + at` and `mask = (at < chunk) & (place < size)`.
    Afterwards: (5 − 2/N) S are possible: you need not write your own chunk before you have its sum, nor read again what
    you have just had. With more ranks the bytes hardly grow, and those of `one_shot` do.
    """
    chunk = tl.cdiv(size, world_size)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # yours
    for c in range(world_size):
        place = c * chunk + at
        mask = (at < chunk) & (place < size)
        tl.store(buffer(buffers, rank, x) + place, tl.load(x + place, mask=mask), mask=mask)
    meet(flags, rank, world_size)
    place = rank * chunk + at
    mask = (at < chunk) & (place < size)
    total = tl.zeros([BLOCK], ACC)
    for other in range(world_size):
        total += tl.load(buffer(buffers, other, x) + place, mask=mask).to(ACC)
    tl.store(buffer(buffers, rank, x) + place, total, mask=mask)
    meet(flags, rank, world_size)
    for c in range(world_size):
        place = c * chunk + at
        mask = (at < chunk) & (place < size)
        tl.store(out + place, tl.load(buffer(buffers, c, x) + place, mask=mask), mask=mask)
    meet(flags, rank, world_size)
    # end


peek_too_soon = ask("""
Rank 1's buffer begins with 10. Now each rank fills its buffer with new numbers, from 100 on, and peeks at once. Rank 1
comes 0.3 s late. What does rank 0 find in rank 1's buffer?
( ) 110: the kernels of all ranks begin together
    > This would be true of a collective. A kernel is launched on one rank, and knows nothing of the others.
(x) 10, the old number
( ) 110: the load waits until rank 1 has written
    > This would be true of a receive. What should a load wait for? There is a number in that place already.
Why: **10, the old number.** A load takes what is there. Had rank 1 been in time, it might have been 110, or half of it
old and half new. Below its picture, `lab.moves` calls this a **race**: two ranks access the same number, one of them
writes it, and nothing says which comes first. It would be a race as well if the number had been right.
""")

bytes_of_one_shot = ask("""
Each rank's kernel copies `x` into its buffer, reads all buffers, its own too, and stores the sum. How many bytes does
it read and write in all, on four ranks, in units of S, the bytes of `x`?
= 7 S +- 2 %
Why: **7 S**: it reads `x`, writes its buffer, reads four buffers, and writes `out`. With N ranks it is (N + 3) S, of
which (N − 1) S come from other GPUs. On eight ranks it is 11 S. Does it have to grow like that?
""")

one_shot_or_two = ask("""
Eight GPUs of one host, connected by NVLink. A model that writes text, one token after another, adds up 16 KiB in each
layer. `one_shot` moves 11 S and meets twice. Your `two_shot` moves about 5 S and meets three times. Which is faster?
(x) one_shot
( ) two_shot, because it moves half the bytes
    > This is true of large tensors. How long does 16 KiB take, at hundreds of GB/s?
( ) they take the same time, because the same numbers are added
    > The sum is the same. The way to it is not: count the meetings.
Why: **one_shot.** 16 KiB take some 0.1 µs on such a link, and a meeting takes microseconds. So the meetings decide, and
each of them is a flag's way there and back. vLLM, which serves models, takes one shot below 512 KiB on up to four GPUs,
below 256 KiB on up to eight, and two shots above (from its source, `custom_all_reduce.cuh`; not run here).
""")
