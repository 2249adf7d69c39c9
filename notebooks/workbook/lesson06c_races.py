"""The exercises at the end of lesson 06c: puts, a fused step, and three kernels with a race to repair."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from labkit.grading.exercise import Case, Least, exercise
from labkit.grading.inputs import counting, draws
from labkit.theory import collectives
from workbook.lesson06c import (
    BLOCK,
    FROM,
    KERNELS,
    accumulator,
    by_kernel,
    grid,
    kernel_of,
    late,
    memory_for,
    opened,
    ordered,
    several,
)

triton = SimpleNamespace(jit=lambda function: function)  # a rank has Triton, the notebook needs none

if TYPE_CHECKING:
    import triton.language as tl

    from labkit.rank.cell_names import device, everyones, rank, torch, world_size
    from workbook.tools.rank.kernels import buffer, flag, meet, signal, until


def gathered(kernel, *xs):
    """Launch it on each x in turn; let no rank read another's buffer."""
    kernel, outs, memories = kernel_of(kernel), [], memory_for(xs, times=world_size)
    for call, x in enumerate(xs):
        memory, out = memories[x.dtype], torch.full((world_size * x.numel(),), -1, dtype=x.dtype, device=device)
        late(memory, call)
        kernel[grid(x.numel())](x, out, memory.buffers, memory.flags, x.numel(), rank, world_size, BLOCK)
        outs.append(out)
    ordered(*memories.values())
    for memory in memories.values():
        of = [row[1] for row in memory.seen.events if row[0] == "load" and row[1] != rank] if memory.seen else []
        others = [theirs for theirs in everyones(of) if theirs]
        assert not others, f"it reads rank {int(others[0][0])}'s buffer from elsewhere: put the numbers there instead"
    return outs


@by_kernel(
    "An all-gather of puts",
    lambda xs: [[np.concatenate(call) for call in zip(*xs)]] * len(xs),
    minutes=8,
    difficulty=2,
    inputs=several,
    harness=gathered,
    least=Least(moved=lambda n, S: (3 * n - 1) * S),
    picture=lambda: [(x,) for x in counting(3, 2)],
)
@triton.jit
def gather_by_puts(x, out, buffers, flags, size, rank, world_size, BLOCK: tl.constexpr):
    """Store all ranks' x in out, one after another: each rank puts its own into every buffer.

    `x` has `size` numbers, `out` and each buffer have room for `world_size * size`. Each program has the places `at`
    of x, as far as `mask` is true. Let no rank read another's buffer: on GPUs, a program that writes there goes on at
    once, and one that reads waits for the answer. The kernel is launched many times in a row.
    Hint: Load your places of `x` once, and store them in every rank's buffer. Which places are yours there?
    Hint: Rank r's numbers begin at `rank * size`, in every buffer.
    Hint: Meet. Then copy `world_size` pieces from your own buffer to `out`, and meet once more: the others' next puts
    must not come before that.
    Afterwards: All bytes travel in one direction, and none waits for an answer. What is left of the waiting is the
    flag. NVSHMEM and the kernels for a mixture of experts work like this. (A rank need not put its own numbers into its
    own buffer: it has them.)
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    # yours
    mine = tl.load(x + at, mask=mask)
    for other in range(world_size):
        tl.store(buffer(buffers, other, x) + rank * size + at, mine, mask=mask)
    meet(flags, rank, world_size)
    for other in range(world_size):
        place = other * size + at
        tl.store(out + place, tl.load(buffer(buffers, rank, x) + place, mask=mask), mask=mask)
    meet(flags, rank, world_size)
    # end


def normed(kernel, *xs):
    """Launch it on each x, a program for each row, in one memory."""
    kernel, outs = kernel_of(kernel), []
    memory = opened(max(x.numel() for x in xs), torch.float32)
    for call, x in enumerate(xs):
        out, width = torch.full_like(x, -1), x.shape[1]
        weight = 1 + torch.arange(float(width), device=device) / 4
        late(memory, call)
        block = 1 << max(0, width - 1).bit_length()
        kernel[(len(x),)](x, weight, out, memory.buffers, memory.flags, width, rank, world_size, block)
        outs.append(out)
    ordered(memory)
    return outs


def sums_normed(xs):
    """Return what `normed` should find."""

    def one(*theirs):
        total = np.sum(theirs, axis=0, dtype="float64")
        weight = 1 + np.arange(total.shape[1]) / 4
        return (total / np.sqrt((total**2).mean(1, keepdims=True) + 1e-6) * weight).astype("float32")

    return [[one(*call) for call in zip(*xs)]] * len(xs)


@by_kernel(
    "Sum and norm in one kernel",
    sums_normed,
    minutes=10,
    difficulty=3,
    inputs=lambda n: [
        Case([(x.reshape(2, 4), x.reshape(2, 4) + 1) for x in counting(n, 8)], "two rows of 4, twice"),
        Case([(x.reshape(3, 5),) for x in draws(n, 15)], "three rows of 5, which is no power of 2"),
        Case([(x[:1].reshape(1, 1), x.reshape(2, 9)) for x in draws(n, 18, seed=2)], "a row of 1, then two of 9"),
    ],
    harness=normed,
    least=Least(moved=lambda n, S: (n + 3) * S),
    picture=lambda: [(x.reshape(2, 2),) for x in counting(3, 4)],
)
@triton.jit
def sum_and_norm(x, weight, out, buffers, flags, width, rank, world_size, BLOCK: tl.constexpr):
    """Store in out the sum of all ranks' x, each row divided by its root mean square, times weight.

    A layer that is split over ranks (lesson 13) ends in an all-reduce, and the next one begins with a norm. Do both in
    one kernel: program i has row i of `x` and `out`, which is `width` numbers from `i * width` on. With s the sum of
    all ranks' rows, store `s / sqrt(mean(s²) + 1e-6) * weight`. `weight` has `width` numbers. All is float32.
    Hint: As far as the sum it is `one_shot`, with the places `tl.program_id(0) * width + at`.
    Hint: What a load finds where its mask is false may be anything, and here it would go into the mean, as nan perhaps:
    `tl.load(…, mask=mask, other=0.0)`.
    Hint: `tl.sum(total * total) / width` is the mean of the squares; `tl.sqrt` is there, too.
    Afterwards: The sum was in registers, and the norm used it there. In two kernels it goes to memory and comes back:
    2 S more, one launch more. For a few rows, as when a model writes a text, that is most of the time.
    """
    at = tl.arange(0, BLOCK)
    mask = at < width
    row = tl.program_id(0) * width + at
    # yours
    tl.store(buffer(buffers, rank, x) + row, tl.load(x + row, mask=mask), mask=mask)
    meet(flags, rank, world_size)
    total = tl.zeros([BLOCK], tl.float32)
    for other in range(world_size):
        total += tl.load(buffer(buffers, other, x) + row, mask=mask, other=0.0)
    total = total / tl.sqrt(tl.sum(total * total) / width + 1e-6)
    tl.store(out + row, total * tl.load(weight + at, mask=mask), mask=mask)
    meet(flags, rank, world_size)
    # end


def passed(kernel, x):
    """Launch it once, with a slot of four numbers on every rank."""
    memory, out = opened(4, x.dtype), torch.full_like(x, -1)
    late(memory, x.numel())
    near = (rank + 1) % world_size, rank, (rank - 1) % world_size
    kernel_of(kernel)[(1,)](x, out, memory.buffers, memory.flags, x.numel() // 4, *near, world_size, 4)
    ordered(memory)
    return out


@triton.jit
def broken_pass_on(x, out, buffers, flags, pieces, right, rank, left, world_size, SLOT: tl.constexpr):
    at = tl.arange(0, SLOT)
    for piece in range(pieces):
        until(flag(flags, right, rank, world_size), 0)  # the slot on the right is empty
        tl.store(buffer(buffers, right, x) + at, tl.load(x + piece * SLOT + at))
        signal(flag(flags, right, rank, world_size), 1)
        until(flag(flags, rank, left, world_size), 1)  # my own slot is full
        signal(flag(flags, rank, left, world_size), 0)
        tl.store(out + piece * SLOT + at, tl.load(buffer(buffers, rank, x) + at))


@exercise(
    "Repair a pipe",
    lambda xs: [xs[r - 1] for r in range(len(xs))],
    minutes=6,
    difficulty=1,
    inputs=lambda n: [
        Case(counting(n, 8), "two pieces"),
        Case(draws(n, 32), "eight pieces"),
        Case(draws(n, 20, "int64", 1), "five pieces of integers"),
    ],
    harness=passed,
    picture=lambda: counting(3, 4),
    **KERNELS | {"given": f"{FROM}buffer, flag, signal, tl, triton, until"},
)
@triton.jit
def pass_on(x, out, buffers, flags, pieces, right, rank, left, world_size, SLOT: tl.constexpr):
    """Store the left neighbour's x in out, in pieces that go through a slot of SLOT numbers.

    Each rank puts its pieces into the right neighbour's slot, one after another. A flag says whether the slot is full
    (1) or empty (0): the writer waits until it is empty, the reader until it is full. `until(flag, value)` waits, and
    acquires; `signal(flag, value)` releases, and sets. Run `lab.check` first, and look at the lines that it names.
    Hint: What may the left neighbour do as soon as the flag is 0?
    Hint: When is the slot no longer needed?
    Hint: Change places: the last line of the loop has to come before the line above it.
    Afterwards: A flag that says "empty" is a message, too: it releases the reader's loads. NCCL's transports do the
    same with two counters, a head and a tail, and eight slots, so that the writer seldom has to wait.
    """
    at = tl.arange(0, SLOT)
    for piece in range(pieces):
        until(flag(flags, right, rank, world_size), 0)  # the slot on the right is empty
        tl.store(buffer(buffers, right, x) + at, tl.load(x + piece * SLOT + at))
        signal(flag(flags, right, rank, world_size), 1)
        until(flag(flags, rank, left, world_size), 1)  # my own slot is full
        tl.store(out + piece * SLOT + at, tl.load(buffer(buffers, rank, x) + at))
        signal(flag(flags, rank, left, world_size), 0)


def in_a_row(kernel, *xs):
    """Launch it on each x in turn, told which launch it is, with room for two."""
    memory, outs, kernel = opened(2 * len(xs[0]), xs[0].dtype), [], kernel_of(kernel)
    for call, x in enumerate(xs):
        out = torch.full_like(x, -1)
        late(memory, call)
        kernel[grid(len(x))](
            x, out, memory.buffers, memory.flags, len(x), call, rank, world_size, accumulator(x.dtype), BLOCK
        )
        outs.append(out)
    ordered(memory)
    if memory.seen:
        meetings = sum(row[0] == "barrier" for row in memory.seen.events) / len(xs) / max(1, grid(len(xs[0]))[0])
        assert meetings < 1.5, "it meets more than once in a launch: use two slots in turn instead"
    return outs


@triton.jit
def broken_in_turn(x, out, buffers, flags, size, call, rank, world_size, ACC: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    tl.store(buffer(buffers, rank, x) + at, tl.load(x + at, mask=mask), mask=mask)
    meet(flags, rank, world_size)
    total = tl.zeros([BLOCK], ACC)
    for other in range(world_size):
        total += tl.load(buffer(buffers, other, x) + at, mask=mask).to(ACC)
    tl.store(out + at, total, mask=mask)


@by_kernel(
    "Save a meeting",
    collectives.all_reduce,
    minutes=6,
    difficulty=2,
    inputs=lambda n: [
        Case([(x, x + 1, x + 2) for x in counting(n, 6)], "three launches"),
        Case([(x,) * 5 for x in draws(n, 20)], "five launches of two programs"),
        Case([(x, x) for x in draws(n, 7, "int64", 1)], "two launches, of integers"),
    ],
    harness=in_a_row,
    picture=lambda: [(x, x + 1) for x in counting(3, 2)],
)
@triton.jit
def in_turn(x, out, buffers, flags, size, call, rank, world_size, ACC: tl.constexpr, BLOCK: tl.constexpr):
    """Store the sum of all ranks' x in out, with one meeting in each launch.

    It is `one_shot` without the second meeting: half the waiting. `call` says which launch it is, from 0 on, and each
    buffer has room for `2 * size` numbers. Repair it, and keep to one meeting.
    Hint: A rank that has met the others may write its next `x` while they still read this one. Where could it write it?
    Hint: The places from `size` on are free. Use both halves in turn.
    Hint: `call % 2 * size` is where the launch's half begins. Is the half free again two launches later?
    Afterwards: A rank that comes to the meeting of launch 1 has left launch 0, so in launch 2 its half is free. Two
    slots cost twice the memory and save half the meetings. DeepSpeed's all-reduce for CPUs does the same.
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    half = call % 2 * size
    tl.store(buffer(buffers, rank, x) + half + at, tl.load(x + at, mask=mask), mask=mask)
    meet(flags, rank, world_size)
    total = tl.zeros([BLOCK], ACC)
    for other in range(world_size):
        total += tl.load(buffer(buffers, other, x) + half + at, mask=mask).to(ACC)
    tl.store(out + at, total, mask=mask)
