"""Collectives as kernels: a barrier of flags, a one-shot and a two-shot all-reduce, in memory that all ranks reach.

    torchrun --nproc-per-node 4 scripts/write_the_kernel.py

Prints what lesson 06c shows, from rank 0: whether anyone leaves the barrier early, and whether the sums of both kernels
are those of dist.all_reduce, for sizes that fit no block and no number of ranks. With a GPU for each rank, Triton
compiles the kernels, and the memory is torch's symmetric memory. Elsewhere Triton interprets them, and the memory is a
file that all ranks map. All ranks are on one host, with Linux.

torchrun's own store listens on all network interfaces. Without it, ranks can meet in a new file, and nothing but
loopback listens:

    meet=$(mktemp -u)
    for r in 0 1 2 3; do
      RANK=$r WORLD_SIZE=4 INIT_METHOD=file://$meet python scripts/write_the_kernel.py &
    done; wait; rm -f $meet
"""

import os
import sys
import tempfile

import torch
import torch.distributed as dist

RANKS = int(os.environ["WORLD_SIZE"])
ON_GPUS = torch.cuda.device_count() >= RANKS
if not ON_GPUS:
    os.environ["TRITON_INTERPRET"] = "1"  # Triton looks here when it is imported
try:
    import triton
    import triton.language as tl
except ImportError:
    sys.exit("This script writes kernels in Triton, which is not installed: python -m pip install 'triton>=3.6,<4'")

BLOCK = 1024  # numbers of a program
PLACES, PAD = 4097, 9216  # numbers of a buffer, and bytes of flags: as many as torch gives
SIZES = [1, 3, 130, PLACES]
ROUNDS = 5


@triton.jit
def buffer(buffers, of, like):
    """Return where rank `of`'s buffer begins: a pointer like this one."""
    return tl.load(buffers + of).to(like.dtype)


@triton.jit
def flag(flags, of, by, world_size):
    """Return where the flag is, in rank `of`'s memory, that rank `by` sets for programs of this number."""
    return tl.load(flags + of).to(tl.pointer_type(tl.int32)) + tl.program_id(0) * world_size + by


@triton.jit
def meet(flags, rank, world_size):
    """Return when the programs of this number have come here on all ranks; what they had written is seen.

    Each flag goes up and down again: the rank that puts 1 in the place of 0 waits until the last signal has been taken.
    """
    tl.debug_barrier()  # all threads of this program have written
    for other in range(world_size):
        while tl.atomic_cas(flag(flags, other, rank, world_size), 0, 1, sem="release", scope="sys") != 0:
            pass
    for other in range(world_size):
        while tl.atomic_cas(flag(flags, rank, other, world_size), 1, 0, sem="acquire", scope="sys") != 1:
            pass


@triton.jit
def tell(out, buffers, flags, rounds, rank, world_size):
    """Tell all ranks a new number in each round, and store what they told: out[round, rank]."""
    for one in range(rounds):
        tl.store(buffer(buffers, rank, out), 100 * one + rank)
        meet(flags, rank, world_size)
        for other in range(world_size):
            tl.store(out + one * world_size + other, tl.load(buffer(buffers, other, out)))
        meet(flags, rank, world_size)  # nobody writes the next number while others read this one


@triton.jit
def one_shot(x, out, buffers, flags, size, rank, world_size, SUMS_IN: tl.constexpr, BLOCK: tl.constexpr):
    """Store the sum of all ranks' x: everyone reads every buffer."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    tl.store(buffer(buffers, rank, x) + at, tl.load(x + at, mask=mask), mask=mask)
    meet(flags, rank, world_size)
    total = tl.zeros([BLOCK], SUMS_IN)
    for other in range(world_size):
        total += tl.load(buffer(buffers, other, x) + at, mask=mask).to(SUMS_IN)
    tl.store(out + at, total, mask=mask)
    meet(flags, rank, world_size)


@triton.jit
def two_shot(x, out, buffers, flags, size, rank, world_size, SUMS_IN: tl.constexpr, BLOCK: tl.constexpr):
    """Store the sum of all ranks' x: rank r adds up chunk r, and everyone reads the sums."""
    chunk = tl.cdiv(size, world_size)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # in each chunk
    for c in range(world_size):
        place = c * chunk + at
        mask = (at < chunk) & (place < size)
        tl.store(buffer(buffers, rank, x) + place, tl.load(x + place, mask=mask), mask=mask)
    meet(flags, rank, world_size)
    place = rank * chunk + at
    mask = (at < chunk) & (place < size)
    total = tl.zeros([BLOCK], SUMS_IN)
    for other in range(world_size):
        total += tl.load(buffer(buffers, other, x) + place, mask=mask).to(SUMS_IN)
    tl.store(buffer(buffers, rank, x) + place, total, mask=mask)  # this chunk of this buffer is nobody else's now
    meet(flags, rank, world_size)
    for c in range(world_size):
        place = c * chunk + at
        mask = (at < chunk) & (place < size)
        tl.store(out + place, tl.load(buffer(buffers, c, x) + place, mask=mask), mask=mask)
    meet(flags, rank, world_size)


def opened(device: torch.device):
    """Open a buffer of PLACES numbers of 8 bytes on every rank, and flags that are 0.

    Returns tables of addresses, of all ranks' buffers and of their flags, and what has to live as long as these.
    """
    if ON_GPUS:
        import torch.distributed._symmetric_memory as symm_mem

        mine = symm_mem.empty(PLACES, dtype=torch.int64, device=device)
        handle = symm_mem.rendezvous(mine, dist.group.WORLD)
        buffers = [begin + getattr(handle, "offset", 0) for begin in handle.buffer_ptrs]  # torch 2.8 has no offset
        told, kept = (buffers, handle.signal_pad_ptrs), (mine, handle)
    else:
        size = PAD + 8 * PLACES
        path = [""]
        if dist.get_rank() == 0:
            handle, path[0] = tempfile.mkstemp()
            os.truncate(handle, size * RANKS)
            os.close(handle)
        dist.broadcast_object_list(path, src=0)
        kept = torch.from_file(path[0], shared=True, size=size * RANKS, dtype=torch.uint8)
        dist.barrier()
        if dist.get_rank() == 0:
            os.unlink(path[0])
        begins = [kept.data_ptr() + r * size for r in range(RANKS)]
        told = [begin + PAD for begin in begins], begins
    buffers, flags = (torch.tensor(addresses, device=device) for addresses in told)
    return buffers, flags, kept


def check(kernel, size: int, dtype: torch.dtype, device: torch.device, memory) -> bool:
    """Tell whether a kernel's sums are those of dist.all_reduce, on every rank."""
    rank = dist.get_rank()
    x = ((torch.arange(size, device=device) % 7 + 1) * (rank + 1)).to(dtype)
    out = torch.full_like(x, -1)
    share = triton.cdiv(size, RANKS) if kernel is two_shot else size
    sums_in = tl.int64 if dtype == torch.int64 else tl.float32
    kernel[(triton.cdiv(share, BLOCK),)](x, out, *memory, size, rank, RANKS, sums_in, BLOCK)
    dist.all_reduce(x)
    wrong = (x != out).sum()
    dist.all_reduce(wrong)
    return int(wrong) == 0


def main() -> None:
    """Run all of it; rank 0 prints."""
    if os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]) == os.environ["WORLD_SIZE"]:  # all on one host
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    rank = int(os.environ["RANK"])
    device = torch.device("cuda", rank) if ON_GPUS else torch.device("cpu")
    if ON_GPUS:
        torch.cuda.set_device(device)
    backend = "nccl" if ON_GPUS else "gloo"
    dist.init_process_group(backend, os.environ.get("INIT_METHOD", "env://"), rank=rank, world_size=RANKS)
    *memory, _kept = opened(device)

    numbers = torch.zeros(ROUNDS, RANKS, dtype=torch.int64, device=device)
    tell[(1,)](numbers, *memory, ROUNDS, rank, RANKS)
    wanted = 100 * torch.arange(ROUNDS)[:, None] + torch.arange(RANKS)
    early = (numbers.cpu() != wanted).any().to(device, torch.int64)
    dist.all_reduce(early)

    lines = [f"barrier: {int(early)} of {RANKS} ranks left early in {ROUNDS} rounds"]
    for kernel in (one_shot, two_shot):
        for dtype in (torch.float32, torch.int64):
            right = [size for size in SIZES if check(kernel, size, dtype, device, memory)]
            lines.append(f"{kernel.__name__}, {dtype}: as dist.all_reduce for {right} numbers of {SIZES}")
    if rank == 0:
        where = "compiled, in torch's symmetric memory" if ON_GPUS else "interpreted, in a file that all ranks map"
        print(f"The kernels were {where}.", *lines, sep="\n")
    dist.barrier()  # nobody lets go of memory that others still reach
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # a thread of Gloo's that outlived the group would abort the process (before Python 3.14)


if __name__ == "__main__":
    main()
