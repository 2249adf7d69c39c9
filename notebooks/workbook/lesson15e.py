"""Exercises for lesson 15e: what MPI, NCCL and Horovod say in one call, said in torch.distributed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Least, exercise
from labkit.grading.inputs import Case, counting, draws
from labkit.grading.prediction import ask, series

if TYPE_CHECKING:
    from labkit.rank.cell_names import device, dist, everyones, name_it, rank, torch, world_size


def _stepped(xs: Sequence[Any], lr: float = 0.5, passes: int = 1) -> list[Any]:
    """Return the weights after the step, and the gradients that it leaves."""
    n, kinds = len(xs), len(xs[0])
    means = [sum(x[i] for x in xs if not isinstance(x[i], str)) / n for i in range(kinds)]
    sizes = [next(len(x[i]) for x in xs if not isinstance(x[i], str)) for i in range(kinds)]
    weights = [np.arange(s, dtype=mean.dtype) - lr * mean for s, mean in zip(sizes, means, strict=True)]
    return [{"weights": weights, "p.grad": means} for _ in range(n)]


def _gradients(n: int) -> list[Case]:
    one, two = counting(n, 2), counting(n, 3)
    unused = [(x, "2" if r == n - 1 else y[:2]) for r, (x, y) in enumerate(zip(one, two, strict=True))]
    first = [("3" if r == 0 else y, x) for r, (x, y) in enumerate(zip(one, two, strict=True))]
    return [
        Case([(x,) for x in one], "one parameter", {"lr": 0.5, "passes": 1}),
        Case(list(zip(one, two, strict=True)), "two parameters", {"lr": 0.25, "passes": 1}),
        Case([(x,) for x in draws(n, 4)], "two backward passes per step", {"lr": 0.5, "passes": 2}),
        Case(unused, f"rank {n - 1} has no gradient for parameter 1", {"lr": 0.5, "passes": 1}),
        Case(first, "rank 0 has no gradient for parameter 0", {"lr": 0.125, "passes": 4}),
    ]


def run_horovod_step(horovod_step, *gradients, lr, passes):
    """Give parameters, some without a gradient, and name the mistake that weights and gradients come from."""
    everyone, made = everyones(list(gradients)), []
    for g in gradients:
        size = int(g) if isinstance(g, str) else len(g)
        p = torch.nn.Parameter(torch.arange(float(size), device=device))
        p.grad = None if isinstance(g, str) else g.clone()
        made.append(p)
    first = [p.detach().clone() for p in made]
    own = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in made]
    sums = [sum(g for g in same if not isinstance(g, str)) for same in zip(*everyone)]
    means = [total / world_size for total in sums]

    def left(moved_by, gradients):
        return {"weights": [w - lr * by for w, by in zip(first, moved_by)], "p.grad": gradients}

    horovod_step(made, lr, passes)
    for i, (p, had) in enumerate(zip(made, everyone[rank])):
        assert p.grad is not None or not isinstance(had, str), (
            f"it skips parameter {i}, and the other ranks' all-reduce waits for this rank. A rank without a gradient "
            "brings zeros"
        )
        assert p.grad is not None, f"`p.grad` of parameter {i} is None after the step: Horovod leaves the mean there"
    out = {"weights": [p.detach() for p in made], "p.grad": [p.grad for p in made]}
    by_passes, by_passes_alone = [mean / passes for mean in means], [total / passes for total in sums]
    slips = {
        "adds up, where Horovod averages": left(sums, sums),
        "divides by `passes`, too": left(by_passes, by_passes),
        "divides by `passes` and not by the number of ranks": left(by_passes_alone, by_passes_alone),
        "moves the weights by this rank's own gradient": left(own, means),
        "does not communicate": left(own, own),
        "does not move the weights": left([torch.zeros_like(w) for w in first], means),
        "moves the weights by the sum, and leaves the mean in `p.grad`": left(sums, means),
        "leaves the sum in `p.grad`": left(means, sums),
        "leaves this rank's own gradient in `p.grad`, where Horovod leaves the mean": left(means, own),
        "clears `p.grad`, where Horovod leaves the mean": left(means, [torch.zeros_like(w) for w in first]),
    }
    name_it(out, left(means, means), slips)
    return out


@exercise(
    "Horovod's step, without Horovod",
    _stepped,
    minutes=7,
    difficulty=2,
    inputs=_gradients,
    picture=lambda: [(x,) for x in counting(4, 2)],
    least=Least(sent=lambda n, S: 2 * (n - 1) / n * S),
    harness=run_horovod_step,
)
def horovod_step(parameters, lr, passes):
    """Average each gradient over the ranks, leave it in p.grad, and update the weights with it.

    `optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr), backward_passes_per_step=passes)`, then
    `passes` times `loss.backward()`, then `optimizer.step()`. Write what `step()` does, for plain SGD. The gradients in
    `p.grad` are already the sum over this rank's `passes` backward passes.

    Horovod all-reduces each gradient with its default operation, leaves the result in `p.grad`, and updates the weights
    with it. It does **not** divide by `passes`. A parameter that this rank's rows did not use has `grad` None.
    Other ranks may have used it, so Horovod sends zeros for it. Return nothing.

    The picture starts from a gradient on each rank, weights of 0 and 1, and `lr=0.5`. It shows what they become: the
    weights, then the gradient.
    Hint: What is the default operation of `hvd.allreduce`? And how many calls does each rank have to make?
    Hint: Every rank makes one all-reduce for each parameter. For one whose `grad` is None it sends zeros.
    Hint: `dist.all_reduce(p.grad)`, `p.grad /= world_size`, and `p -= lr * p.grad` under `torch.no_grad()`.
    Afterwards: The gradients of several passes are added up, and only the ranks are averaged: with twice as many
    passes, the same learning rate takes steps twice as long. A translation that divides by `passes` trains differently.
    """
    for p in parameters:
        # yours
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)
        p.grad /= world_size
        with torch.no_grad():
            p -= lr * p.grad
        # end


def _roots(xs: Sequence[Any]) -> list[Any]:
    def root(color: int) -> int:
        return min((key, r) for r, (_, its, key) in enumerate(xs) if its == color)[1]

    return [xs[root(color)][0] for _, color, _ in xs]


def _colored(n: int) -> list[Case]:
    def case(about: str, colors: Sequence[int], keys: Sequence[int], size: int = 3) -> Case:
        return Case(list(zip(counting(n, size), colors, keys, strict=True)), about)

    every = range(n)
    return [
        case("two halves, keys in the order of the ranks", [int(r >= n // 2) for r in every], list(every)),
        case("all in one part, keys in reverse order", [7] * n, [-r for r in every]),
        case("even and odd ranks, keys in reverse order", [r % 2 for r in every], [n - r for r in every], 2),
        case("all in one part, equal keys", [0] * n, [5] * n, 1),
        case("each rank a part of its own", [10 * r for r in every], [0] * n),
        case("the last rank first, the others tied", [3] * n, [int(r < n - 1) for r in every]),
    ]


@exercise(
    "Split, then broadcast",
    _roots,
    difficulty=2,
    ranks=(4, 3, 2),
    inputs=_colored,
    keeps_input=True,
    picture=lambda: [(x, r % 2, -r) for r, x in enumerate(counting(4, 2))],
    counts_messages=False,
    counts_memory=False,
)
def split_broadcast(x, color, key):
    """Return x of my part's first member: comm.Split(color, key), then Bcast(x, root=0).

    Two lines of an MPI program:

    `team = comm.Split(color, key)`

    `team.Bcast(x, root=0)`

    Every rank passes a `color` and a `key` of its own, both integers. Ranks with the same color are in one part,
    **ordered by key**; equal keys keep the order of the ranks. The root of a `Bcast` is a rank of the part: its first
    member. Return what stands in `x` after both lines, as a new tensor. A rank knows only its own color and key.
    Hint: `dist.new_group` needs the members' ranks, on **every** rank, and every rank makes every group. How does a
    rank learn the others' colors?
    Hint: Gather `(color, key, rank)` as objects. Then, for each color, in the same order on all ranks: sort its `(key,
    rank)`, make the group, and let its members broadcast.
    Hint: `src=` is a rank of the world: the rank in the first of the sorted pairs. `group_src=0` would be the lowest
    rank of the group, because `new_group` sorts.
    Afterwards: One `Split` became a gather and a group for each color. `key` has no counterpart in torch: a group's
    ranks are always sorted, so keep your own order beside it. If each rank makes only the group of its own part, the
    ranks hang, or get another part's numbers.
    """
    told = [None] * world_size
    dist.all_gather_object(told, (color, key, rank))
    got = x.clone()
    for part in sorted({c for c, _, _ in told}):
        members = sorted((k, r) for c, k, r in told if c == part)
        team = dist.new_group([r for _, r in members])
        if color == part:
            dist.broadcast(got, src=members[0][1], group=team)
    return got


def _nccl_scattered(xs: Sequence[Any], recvcount: int = 1, inplace: bool = False) -> list[Any]:
    n = len(xs)
    total = np.sum([x[0][: n * recvcount] for x in xs], axis=0)
    held = []
    for r, (send, recv) in enumerate(xs):
        send, recv, mine = send.copy(), recv.copy(), slice(r * recvcount, (r + 1) * recvcount)
        if inplace:
            recv = send[mine]
        recv[:recvcount] = total[mine]
        held.append({"sendbuff": send, "recvbuff": recv})
    return held


def _buffers(n: int) -> list[Case]:
    def case(about: str, count: int, spare: int, room: int, inplace: bool = False, dtype: str = "float32") -> Case:
        sends = counting(n, n * count + spare, dtype)
        recvs = [np.full(room, -1, dtype) for _ in range(n)]
        return Case(list(zip(sends, recvs, strict=True)), about, {"recvcount": count, "inplace": inplace})

    return [
        case("2 elements for each rank", 2, 0, 2),
        case("1 element for each rank", 1, 0, 1),
        case("the buffers are longer than what is used", 2, 5, 4),
        case("in place", 2, 0, 1, inplace=True),
        case("in place, in a longer buffer", 3, 4, 1, inplace=True),
        case("integers", 6, 0, 6, dtype="int64"),  # the largest has none to spare: its least goes by its size
    ]


def run_nccl_reduce_scatter(nccl_reduce_scatter, sendbuff, recvbuff, recvcount, inplace):
    """Give buffers, apart or in place, and see that nothing changes in them but what should."""
    total = sum(everyones(sendbuff))[: world_size * recvcount]
    sendbuff, recvbuff = sendbuff.clone(), recvbuff.clone()
    if inplace:
        recvbuff = sendbuff[rank * recvcount : (rank + 1) * recvcount]
    before, had = sendbuff.clone(), recvbuff.clone()
    nccl_reduce_scatter(sendbuff, recvbuff, recvcount)
    own = slice(rank * recvcount, (rank + 1) * recvcount)
    kept = sendbuff.clone()
    if inplace:
        kept[own] = before[own]
    (changed,) = (kept != before).nonzero(as_tuple=True)
    may = "in place, only this rank's part of it may change" if inplace else "only `recvbuff` may change"
    assert not len(changed), (
        f"it changes `sendbuff`: element {changed[0]} was {before[changed[0]]:g}, and is {kept[changed[0]]:g}. "
        f"{may[0].upper()}{may[1:]}"
    )

    def received(numbers, rest=had):
        return torch.cat([numbers, rest[len(numbers) :]])

    mine = total[own]
    zeros, share = torch.zeros_like(had), recvcount // world_size
    slips = {
        "adds the sums to what lies in `recvbuff`": received(mine + had[:recvcount]),
        "averages, where `ncclSum` adds up": received((mine / world_size).to(mine)),
        "fills the rest of `recvbuff`, too": received(mine, zeros),
        "takes `recvcount` to be the elements of the whole buffer": received(total[rank * share : (rank + 1) * share]),
        "receives this rank's own elements, and not their sums": received(before[own]),
    }
    name_it(recvbuff, received(mine), slips, "recvbuff")
    return {"sendbuff": sendbuff, "recvbuff": recvbuff}


@exercise(
    "Counts and pointers",
    _nccl_scattered,
    minutes=7,
    difficulty=2,
    inputs=_buffers,
    picture=lambda: list(zip(counting(4, 4), [np.full(1, -1, "float32")] * 4, strict=True)),
    least=Least(sent=lambda n, S: (n - 1) / (n + 1) * S, rounds=lambda n: 1),
    counts_memory=False,
    harness=run_nccl_reduce_scatter,
)
def nccl_reduce_scatter(sendbuff, recvbuff, recvcount):
    """Sum everyone's sendbuff; put my recvcount elements of the sums into recvbuff.

    `ncclReduceScatter(sendbuff, recvbuff, recvcount, ncclFloat, ncclSum, comm, stream)`, in torch. Both buffers are
    flat tensors. They may be longer than what is used, as memory is in C: `recvcount` says how many elements **each
    rank receives**, so the first `world_size * recvcount` elements of `sendbuff` take part. Rank r's sums go into the
    first `recvcount` elements of its `recvbuff`. All other elements stay as they are.

    It may be called **in place**: then `recvbuff` is not memory of its own but rank r's part of `sendbuff`. Return
    nothing.
    Hint: How many elements of `sendbuff` take part, and how many come back?
    Hint: Cut `sendbuff[: world_size * recvcount]` into parts of `recvcount` elements. Does `dist.reduce_scatter` always
    leave its inputs alone? What if `recvbuff` is one of them?
    Hint: Clone what takes part, `split(recvcount)`, reduce-scatter into a new tensor, and copy that into
    `recvbuff[:recvcount]`.
    Afterwards: torch's tensors know their lengths, so a wrong length raises an error. A wrong count in C does not: it
    reads or writes memory beyond the buffer.
    """
    parts = sendbuff[: world_size * recvcount].clone().split(recvcount)
    mine = torch.empty_like(parts[0])
    dist.reduce_scatter(mine, list(parts))
    recvbuff[:recvcount] = mine


def _placed(xs: Sequence[Any], counts: Sequence[int] = (), displs: Sequence[int] = ()) -> list[Any]:
    counts = counts or [len(mine) for mine, _ in xs]
    displs = displs or [sum(counts[:r]) for r in range(len(xs))]
    everything = np.array(xs[0][1])
    for (mine, _), count, displ in zip(xs, counts, displs, strict=True):
        everything[displ : displ + count] = mine
    return [everything for _ in xs]


def _uneven(n: int) -> list[Case]:
    def case(about: str, counts: list[int], gap: int = 0, dtype: str = "float32", back: bool = False) -> Case:
        displs = [int(sum(counts[:r]) + gap * (r + 1)) for r in range(n)]
        if back:
            displs = [int(sum(counts[r + 1 :]) + gap * (n - r)) for r in range(n)]
        room = sum(counts) + gap * (n + 1)
        large = 2**25 + 1 if dtype == "int64" else 0  # more than a float32 can hold
        mine = [(np.arange(c) + 10 * (r + 1) + large).astype(dtype) for r, c in enumerate(counts)]
        return Case([(x, np.full(room, -1, dtype)) for x in mine], about, {"counts": counts, "displs": displs})

    return [
        case("rank r has r + 1 elements", [r + 1 for r in range(n)]),
        case("rank r has r + 1 elements, with gaps between the parts", [r + 1 for r in range(n)], gap=1),
        case("rank 0 has the most", [n - r for r in range(n)], gap=2),
        case("the last rank's part comes first", [r + 1 for r in range(n)], back=True),
        case("rank 0 has nothing", [0, *[2] * (n - 1)], gap=1),
        case("large integers", [3, *range(1, n)], gap=1, dtype="int64"),
    ]


def run_allgatherv(allgatherv, mine, everything, counts, displs):
    """Give a buffer with gaps, and name the mistake that a wrong one comes from."""
    parts, had, everything = everyones(mine), everything, everything.clone()
    allgatherv(mine, everything, counts, displs)

    def placed(into=had, displs=displs, parts=parts):
        into = into.clone()
        for part, displ in zip(parts, displs):
            into[displ : displ + len(part)] = part
        return into

    slips = {
        "puts the parts one after the other, and does not look at `displs`": placed(
            displs=[sum(counts[:r]) for r in range(world_size)]
        ),
        "writes zeros between the parts": placed(torch.zeros_like(had)),
        "sends the numbers as float32, which rounds large ones": placed(parts=[part.float() for part in parts]),
        "places this rank's own part only": placed(displs=displs[rank:][:1], parts=parts[rank:][:1]),
    }
    name_it(everything, placed(), slips)
    return everything


@exercise(
    "Parts of different length",
    _placed,
    minutes=7,
    difficulty=2,
    inputs=_uneven,
    picture=lambda: [(np.arange(1.0 + r % 2) + 10 * (r + 1), np.full(4, -1.0)) for r in range(3)],
    least=Least(rounds=lambda n: 1),
    harness=run_allgatherv,
)
def allgatherv(mine, everything, counts, displs):
    """Put rank r's counts[r] elements into everything, from displs[r] on.

    `comm.Allgatherv(mine, [everything, counts, displs, type])`, in torch, on Gloo. Rank r's `mine` has `counts[r]`
    elements. They go into `everything`, from place `displs[r]` on, on every rank. `counts` and `displs` are lists of
    integers, equal on all ranks. The places between the parts stay as they are. Return nothing. One collective is
    enough; `dist.all_gather` needs tensors of equal length.
    Hint: Make all tensors equally long. Who knows how long the longest is?
    Hint: Every rank knows `counts`: pad to `max(counts)`, gather, and throw the padding away.
    Hint: `everything[displ : displ + count] = part[:count]`, for each rank.
    Afterwards: MPI moves only what each rank has. Padding makes every rank send as much as the longest part: where one
    rank has nearly everything, a broadcast from each rank sends less in total.
    """
    padded = mine.new_zeros(max(counts))
    padded[: len(mine)] = mine
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded)
    for part, count, displ in zip(parts, counts, displs):
        everything[displ : displ + count] = part[:count]


horovods_default = ask("""
In a Horovod program on four ranks, each rank brings its number plus one: 1, 2, 3 and 4. Each calls `y =
hvd.allreduce(x)`. What does every rank hold?
( ) `x` and `y` are 10
    > That is torch's default, the sum, and torch's way, in place. This call does neither.
( ) `x` is as before, `y` is 10
    > The call without `_` leaves its input alone, yes. But it does not add.
( ) `x` and `y` are 2.5
    > 2.5 is right for `y`. Only the calls whose name ends in `_` write into their input.
(x) `x` is as before, `y` is 2.5
Why: `x` is as before, and `y` is 2.5, the **mean**: Horovod was made for gradients, and its default operation is
`hvd.Average`. `op=hvd.Sum` adds, and `hvd.allreduce_(x)` works in place. (This was read in the source of version
0.28.1, not run.) Translate it as `dist.all_reduce(x)`, and you get four times the gradient.
""")

lists_in_lower_case = ask("""
mpi4py, four ranks. Rank r calls `comm.allreduce([r, 1])`, in lower case, with a list of two numbers. What does it
return on every rank?
( ) `[6, 4]`
    > That is `comm.Allreduce` with NumPy arrays. A list is a Python object, and `+` joins lists.
(x) `[0, 1, 1, 1, 2, 1, 3, 1]`
( ) `[[0, 1], [1, 1], [2, 1], [3, 1]]`
    > That would be `comm.allgather([r, 1])`.
( ) nothing: lists raise a TypeError
    > The calls in lower case take any object that can be pickled.
Why: `[0, 1, 1, 1, 2, 1, 3, 1]`. In lower case, mpi4py pickles objects and combines them with `+`, which joins two
lists. No error, and no sum. With an upper-case letter the calls take arrays and work in the memory that you hand over.
""")

root_of_a_split = ask("""
Ranks 2 and 3 are one part: in MPI `team = comm.Split(color, key=rank)`, in torch `team = dist.new_group([2, 3])`. Rank
r holds r. MPI: `team.Bcast(x, root=1)`. Translated: `dist.broadcast(x, src=1, group=team)`. What do ranks 2 and 3 hold?
( ) MPI: both hold 3; torch: the same
    > That would be true if `src` counted within the group. It names a rank of the world.
(x) MPI: both hold 3; torch: both raise an error
( ) MPI: both hold 1; torch: the same
    > Rank 1 of the world is not in this part. A communicator knows only its own ranks.
( ) MPI: both hold 3; torch: both hold 2
    > That would be true if torch took a rank that is not there for the first one of the group.
Why: MPI's root 1 is member 1 of the part: rank 3 of the world. torch's `src=1` is rank 1 of the world, which is not in
the group, so torch raises an error. You are lucky to get one: in a part of ranks 0 and 1, both calls mean the same
rank; in a part of ranks 1 and 2, the translation runs and broadcasts the wrong tensor. Write `group_src=1`.
""")

nccls_count = ask("""
Four GPUs. `dist.reduce_scatter_single(out, x)` takes an `x` of 4,000 float32 on each rank. Which number does the
program in C pass as the count: `ncclReduceScatter(x, out, count, ncclFloat, ncclSum, comm, stream)`?
= 1000.0 +- 0.1 %
( ) 4000
    > That is what `ncclAllReduce` would take. Here NCCL would read 16,000 elements, far beyond `x`.
( ) 16000
    > The count is in elements, not in bytes, and the type says how large one is.
( ) 64000
    > This counts all ranks' bytes. The count is for one rank, and in elements.
Why: 1,000: `recvcount`, the elements that **one rank** receives. `ncclAllGather` takes `sendcount`, what one rank
sends, and `ncclAllReduce` the elements of the whole buffer. MPI's `MPI_Reduce_scatter_block` counts the same way.
""")

on_tensorflows_cpus = ask("""
Which of the phrasebook's collectives does TensorFlow 2.21 have for workers on CPUs?
( ) all: they are in `tf.raw_ops`
    > Some are missing there, and one that is there has no implementation for CPUs.
( ) broadcast, all-reduce and all-gather; nothing else
    > These three are what `tf.distribute` uses. There is one more.
(x) broadcast, all-reduce, all-gather and all-to-all; no reduce-scatter
( ) broadcast, all-reduce, all-gather and reduce-scatter; no all-to-all
    > It is the other way round: there is an implementation of all-to-all for CPUs, and none of reduce-scatter.
Why: Broadcast, all-reduce, all-gather and all-to-all. `tf.raw_ops.CollectiveReduceScatterV2` exists, but on CPUs it
finds no implementation, and this error ends all collectives of the program. Gather, scatter, reduce to one worker, send
and receive have no call at all.
""")

false_friends = series(
    """
Here are five false friends. What is each in torch, or what does it do?
""",
    word_average="""
`hvd.reducescatter(x)` in Horovod is, in torch:
( ) `dist.reduce_scatter(y, xs)`
    > Horovod's default is the mean here, too.
(x) the same, then `y /= world_size`
( ) `dist.all_reduce(x)`, then my part
    > It would hold the sum, not the mean, and send twice the bytes.
Why: `dist.reduce_scatter(y, xs)`, then `y /= world_size`: Horovod's default is the mean here, too.
""",
    word_order="""
`MPI_Comm_split(comm, 0, -rank, &team)`: who is rank 0 of `team`, and of `dist.new_group([3, 2, 1, 0])`?
( ) rank 3 in both
    > `new_group` sorts the ranks that it gets.
( ) rank 0 in both
    > `MPI_Comm_split` orders by key, and rank 3 has the smallest one.
(x) rank 3 in MPI, rank 0 in torch
Why: MPI orders by key, so rank 3 comes first. torch sorts the ranks of a group, so rank 0 does.
""",
    word_in_place="""
`comm.Allreduce(x, x)` in mpi4py, to add up in place:
(x) is an error: use `MPI.IN_PLACE`
( ) works: MPI sees that it is the same array
    > MPI does see it, and calls it an error.
( ) gives zeros
    > mpich checks for it and raises an error instead.
Why: An error with mpich 5.0, which was run: input and output may not be the same memory. Write
`comm.Allreduce(MPI.IN_PLACE, x)`.
""",
    word_async="""
`ncclAllReduce(…, stream)` has returned. Is the sum there?
( ) yes: the call blocks, as in MPI
    > It returns when the operation is enqueued on the stream.
( ) yes on this rank, perhaps not on the others
    > It may not have begun on this rank either.
(x) not necessarily: it is only enqueued
Why: It is enqueued, as with `async_op=True`. Work on the same stream comes after it; anything else has to wait for the
stream.
""",
    word_all_to_all="""
A program uses `ncclAlltoAll`, and the machine has NCCL 2.27:
( ) it links and runs: all-to-all is as old as NCCL
    > NCCL had sends and receives only; 2.28 added the call.
(x) it does not link: write `ncclSend` and `ncclRecv` to each rank, in a group
( ) it links and hangs
    > A function that is not there does not link.
Why: The header of 2.27.7 does not have it, nor `ncclGather` and `ncclScatter`; that of 2.28.3 has all three.
""",
)
