"""The predictions of lesson 14b: six more broken programs."""

from labkit.grading.prediction import ask, series

clinic_7 = ask("""
**Case 7.** Rank 2 finds a `nan` in its batch and raises `ValueError`. The others call `all_reduce`. In a job of a
thousand ranks on Gloo, with a time-out of 30 minutes: what do most of the log files say?
( ) ValueError: a bad batch
    > One log says that, rank 2's. An exception stays in its process.
(x) a time-out, or a closed connection, in all_reduce
( ) nothing: the other ranks go on
    > They wait in `all_reduce`: rank 2 is one of their group.
( ) SIGABRT
    > An exception in Python is not a signal: it ends the process in an orderly way.
Why: **A time-out or a closed connection.** 999 logs tell of the consequence and one tells of the cause. Sort the logs
by time: the first error counts. Torchrun's summary does that, too (its *first observed failure*), as well as it can
where the ranks do not end by themselves. Reported as Automodel#2468.
Elsewhere: **With NCCL** the consequence looks different: at the time-out, ten minutes unless you say otherwise, torch's
watchdog writes what it waited for and ends the process. (From torch's source, not run.)
""")

clinic_8 = ask("""
**Case 8.** Ranks 1, 2 and 3 are a team, and its second member is to broadcast, so the program says `src=1`. Each rank
brings a power of ten. What does the team hold afterwards?
( ) 100, rank 2's number: the team's second member
    > It would be so if `src` counted within the group.
(x) 10, rank 1's number
( ) nothing: an error, because member 1 is not rank 1
    > Rank 1 is in the team, so the call is a legal one.
Why: **10.** `src` is a rank of the whole job, in every group. Rank 1 happens to be in the team, so nobody complains.
Reported as pytorch#91760 and #60356.
Elsewhere: **With NCCL** it is the same: torch looks the rank up before it asks a backend.
""")

clinic_9 = ask("""
**Case 9.** Ranks 0 to 2 count 3 hits each, in int32. Rank 3 has no rows and brings `torch.tensor(0.0)`, a float32. What
do they hold after `all_reduce`?
( ) 9 on all ranks: 0.0 and 0 have the same bits
    > They have, and so ranks 0 to 2 may come out right. But in which dtype does rank 3 read the sum?
(x) 9 on ranks 0 to 2, and something else on rank 3
( ) a process dies, as in case 4
    > There the messages had different lengths. These all have 4 bytes.
( ) an error on rank 3
    > `DETAIL` would raise one, on all ranks. Without it nobody compares.
Why: **Something else on rank 3**: it reads the integer's bits as a float, and prints 1.3e-44, or 0 if you round. The
zero of a float has the bits of the integer 0, so the others are right by luck. With any other number they would not be.
Reported as pytorch#150433. Which tool would have found it? `DETAIL` compares the dtypes, and the flight recorder knows
them, as the next cell shows.
Elsewhere: **With NCCL** each GPU also adds in the dtype that its own rank has named, and nobody compares. By NCCL's
documentation the behaviour is undefined. (Not run.)
""")

clinic_10 = ask("""
**Case 10.** `loss` is the sum of all ranks' features, gathered by `all_gather`, plus half of this rank's own. A feature
is `w * 10**rank`. What does `loss.backward()` do on rank 1, where the gradient should be 15?
( ) it raises: an all_gather has no gradient
    > It would, if nothing else in the loss had one. The half of its own feature does.
( ) `w.grad` is 15
    > It would be so if autograd had seen this rank's feature pass through `all_gather`.
(x) `w.grad` is 5: only the half that did not travel
( ) it hangs in backward
    > It might, if the gather had a backward pass that communicates and a rank skipped it. This one has none.
Why: **5.** `all_gather` writes into tensors that have no graph. The part of the gradient through them is missing, and
since another part is there, nobody complains. The model trains, only worse. Reported as pytorch#152127.
Elsewhere: **With NCCL** it is the same: autograd sees neither backend's `all_gather`.
""")

clinic_11 = ask("""
**Case 11.** `all_reduce(total, async_op=True)`, then `mean = total / world_size`, then `work.wait()`. Rank 3 comes half
a second late. What is `mean` on ranks 0 to 2?
( ) the mean: the division waits for the result
    > Not on a GPU either: the sum runs on a stream of its own there, and only `wait()` makes yours wait for it.
( ) an error: the tensor is in use
    > Nobody guards the tensor. Reading it is just too early.
(x) their own number, divided by 4
Why: **Their own number, divided by 4.** The division reads `total` before anybody's number has been added to it; the
sum is there half a second later. Whether such a program is wrong depends on time. Here at least one rank is wrong each
time. Reported as OpenNMT-py#2295.
Elsewhere: **With NCCL** it is the same race: the sum runs in a queue of its own on the GPU, and only `wait()` makes the
queue with the division wait for it. (From torch's source, not run.)
""")

clinic_12 = ask("""
**Case 12.** All ranks are in the groups `data` and `model`. Rank 0 sums in `data` first and then in `model`, the others
the other way round. The shapes are alike, as in case 5. What does the program do?
( ) it lies, as in case 5: first meets first
    > Within one group, yes. But every group counts for itself.
( ) it is right: each group has its own messages
    > It would be, if nobody waited. But rank 0 waits in `data` before it comes to `model`.
(x) it hangs
Why: **It hangs**: rank 0 waits for the others in `data`, and they wait for rank 0 in `model`. That is a cycle. The
second group has turned a lie into a hang, and a hang is better: somebody notices. Reported as torchrec#4149. Lines
alone do not tell you for whom a rank waits, where several groups have the same ranks. The lab's error says that the
groups differ, and the flight recorder which they are, as the next cell shows.
Elsewhere: **With NCCL** it hangs as well: here in the calls, because the first one in a group sets up its connections;
in groups that have been used before, in the queues of the GPUs, which you notice where the program needs a number.
(From the sources of torch and NCCL, not run.)
""")

clinic_nccl = series(
    """
What do these records say?
""",
    clinic_nccl_log="""
**The log.** Another job, with four ranks as well, hangs. You compare the last line of each rank. Which difference tells
you why?
( ) `comm` is a different number on rank 1
    > It is an address in the memory of rank 1's own process: look at the four lines of call 3. All four ranks are in
    one communicator.
(x) `opCount` is 29 on rank 0 and 2a on the others
( ) `recvbuff` is the same as `sendbuff`, but for rank 3
    > Rank 3 keeps its input and writes the sum beside it. The other ranks do not notice.
( ) the number behind the name of the machine is different on all ranks
    > It is the process: each rank is one of its own.
Why: The others have started call 42 (2a), and rank 0 is in call 41, or has done it and gone elsewhere: look for what
rank 0 does. The name, `count`, `datatype`, `op`, `root` and `nranks` of a call have to be the same on all ranks, too.
In case 4, one rank says `datatype 8`, float64, and the others 7. In case 5 all lines are equal: a log has no lines of
your program.
""",
    clinic_nccl_barrier="""
**The log.** Which call of the program has `opCount 6`, an `AllReduce` with `count 1`?
( ) a fourth all_reduce of `x`
    > Then its count would be that of `x`: 262144.
( ) the end of reduce_scatter_tensor, which adds up
    > A reduce-scatter is one call with one line, here that of `opCount 5`. Its count is what one rank gets.
(x) the barrier
( ) none: NCCL makes sure that all ranks are there
    > NCCL writes such a line when somebody calls it, and this time it was torch.
Why: NCCL has no barrier. torch sums up a single number over all ranks and waits for it; its flight recorder calls that
`all_reduce_barrier`.
""",
    clinic_nccl_record="""
**The flight recorder.** The last call that was enqueued is number 7, the last that was completed number 6. Does rank 0
hang in number 7?
( ) yes: it waits for the others in the barrier
    > That is what it looks like. But number 7 has an entry of its own, with a `state`.
(x) no: its own entry says `completed`
( ) nobody can tell: the barrier has only just begun
    > The entry was asked when the record was written: it knows more than the summary.
Why: A watchdog thread looks now and then at what has been done, and `last_completed_collective` is what it saw the last
time. When the record is written, each call that is still open is asked once more. So the calls' own `state` counts: one
that hangs is `scheduled` (or `started`, which torch notes only if TORCH_NCCL_ENABLE_TIMING is set: hence the -1). And
the times say when somebody *saw* that a call was done: the first six at the same moment. They do not say how long a
call took.
""",
    clinic_nccl_ras="""
**RAS.** It speaks of 4 GPUs, and the machine has one. Why?
(x) it adds up the GPUs that each process uses
( ) each rank takes itself for a machine with a GPU of its own
    > They do: NCCL's log says `nNodes 4` of the same ranks, in a line that is not shown here. But RAS goes by the
    addresses of the hosts, and says that there is 1 node.
( ) the GPU has been cut into four
    > The driver can do that (MIG), but nobody told it to: each of the four processes uses all of the GPU, and they
    take turns.
( ) it counts channels: one for each rank
    > There are 2 channels, as another part of the log says, and each one passes through all ranks.
Why: Four processes use one GPU each, and RAS does not ask whether it is the same one. It counts nodes by the addresses
of the hosts: 1. NCCL's log, in a line that is not shown here, says `nNodes 4` of the same ranks, as each one has a name
of its own in `NCCL_HOSTID`, without which NCCL refuses to share a GPU. Both are right: ask what is counted.
""",
)
