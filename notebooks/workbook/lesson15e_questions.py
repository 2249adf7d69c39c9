"""The predictions of lesson 15e: a default, a list, a root, a count, and what TensorFlow does not have on CPUs."""

from labkit.grading.prediction import ask, series

horovods_default = ask("""
In a Horovod program on four ranks, each rank brings its number plus one: 1, 2, 3 and 4. Each calls `y =
hvd.allreduce(x)`. What does every rank hold?
( ) `x` and `y` are 10
    > That is torch's default, the sum, and torch's way, in place. Horovod has neither.
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
the group, so torch raises an error. That was luck: in the part of ranks 0 and 1 both mean the same rank, and in one of
ranks 1 and 2 the translation runs and broadcasts the wrong tensor. Write `group_src=1`.
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
    > All ranks' bytes? The count is of one rank, and in elements.
Why: 1,000: `recvcount`, the elements that **one rank** receives. `ncclAllGather` takes `sendcount`, what one rank
sends, and `ncclAllReduce` the elements of the whole buffer. MPI's `MPI_Reduce_scatter_block` counts alike.
""")

on_tensorflows_cpus = ask("""
Which of the phrasebook's collectives does TensorFlow 2.21 have for workers on CPUs?
( ) all: they are in `tf.raw_ops`
    > Some have no operation there at all, and for one of those that do, a CPU has no implementation.
( ) broadcast, all-reduce and all-gather; nothing else
    > These three are what `tf.distribute` uses. There is one more.
(x) broadcast, all-reduce, all-gather and all-to-all; no reduce-scatter
( ) broadcast, all-reduce, all-gather and reduce-scatter; no all-to-all
    > It is the other way round: a CPU has an implementation of all-to-all, and none of reduce-scatter.
Why: Broadcast, all-reduce, all-gather and all-to-all. `tf.raw_ops.CollectiveReduceScatterV2` exists, but on CPUs it
finds no implementation, and this error ends all collectives of the program. Gather, scatter, reduce to one worker, send
and receive have no call at all.
""")

false_friends = series(
    """
Five false friends. What is each in torch, or what does it do?
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
