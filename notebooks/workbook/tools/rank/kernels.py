"""What kernels over symmetric memory are made of: where a rank's buffer is, where a flag is, how ranks wait for one."""

import triton
import triton.language as tl


@triton.jit
def buffer(buffers, of, like):
    """Return where rank `of`'s buffer begins: a pointer to numbers of the dtype that the pointer `like` has."""
    return tl.load(buffers + of).to(like.dtype)


@triton.jit
def flag(flags, of, by, world_size):
    """Return where a flag is: the one in rank `of`'s memory that rank `by` sets, for programs of this number."""
    return tl.load(flags + of).to(tl.pointer_type(tl.int32)) + tl.program_id(0) * world_size + by


@triton.jit
def signal(address, value):
    """Put a value into a flag: whoever sees it there sees what this program has done before."""
    tl.debug_barrier()
    tl.atomic_xchg(address, value, sem="release", scope="sys")


@triton.jit
def until(address, value):
    """Return when a flag has this value: what was done before it was put there is seen from now on."""
    while tl.atomic_cas(address, value, value, sem="acquire", scope="sys") != value:
        pass


@triton.jit
def meet(flags, rank, world_size):
    """Return when the programs of this number have come here on all ranks, and all that they had written is seen."""
    tl.debug_barrier()
    for other in range(world_size):
        while tl.atomic_cas(flag(flags, other, rank, world_size), 0, 1, sem="release", scope="sys") != 0:
            pass
    for other in range(world_size):
        while tl.atomic_cas(flag(flags, rank, other, world_size), 1, 0, sem="acquire", scope="sys") != 1:
            pass


@triton.jit
def exchange_of_the_check(out, buffers, flags, times, barrier: tl.constexpr, rank, world_size):
    """Tell all ranks a new number, so many times, with a barrier before each reading and one behind it.

    Each program has a number of its own in every buffer, and stores what it found: out[program, time, rank].
    """
    program = tl.program_id(0)
    for time in range(times):
        tl.store(buffer(buffers, rank, out) + program, 100 * program + 10 * time + rank)
        barrier(flags, rank, world_size)
        for other in range(world_size):
            found = tl.load(buffer(buffers, other, out) + program)
            tl.store(out + (program * times + time) * world_size + other, found)
        barrier(flags, rank, world_size)
