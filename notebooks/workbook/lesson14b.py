"""Exercises of lesson 14b: six more programs of the clinic, with groups, gradients and handles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.floor.words import ranks
from labkit.grading.exercise import Case, exercise
from labkit.grading.inputs import counting
from labkit.grading.prediction import ask, series
from labkit.grading.promises import Calls
from labkit.theory.record import Record

if TYPE_CHECKING:
    from labkit.rank.cell_names import device, dist, rank, torch, world_size


def _or_skip(xs: Sequence[Any]) -> list[Any]:
    finite = np.isfinite(np.concatenate(xs)).all()
    return [np.sum(xs, axis=0, dtype="float32") if finite else np.zeros_like(xs[0])] * len(xs)


def _bad(n: int) -> list[Case]:
    def case(about: str, first: float = 1.0, last: float = 10.0 * n - 9) -> Case:
        xs = counting(n, 3)
        xs[0][1], xs[-1][1] = first, last
        return Case(xs, about)

    return [
        case("all numbers are finite"),
        case("a nan on the last rank", last=np.nan),
        case("an infinity on rank 0", first=np.inf),
        case("infinities of both signs, on two ranks", first=np.inf, last=-np.inf),
    ]


def broken_step_or_skip(gradient):
    if not gradient.isfinite().all():
        raise ValueError("a bad batch")
    total = gradient.clone()
    dist.all_reduce(total)
    return total


@exercise("One bad batch", _or_skip, minutes=5, inputs=_bad, promises=(Calls(2),))
def step_or_skip(gradient):
    """Return the sum over all ranks, or zeros if a rank has a bad batch.

    Now and then, `gradient` has a `nan` or an infinity on one rank. Repair the function: if **any** rank has one, all
    ranks skip the step and return zeros; otherwise all return the sum over the ranks. No rank raises. Two calls are
    enough.
    Hint: A rank that raises leaves the function, and the others wait for it. What must all ranks know before they
    decide?
    Hint: All-reduce a count of bad numbers first. Then all ranks take the same branch.
    Afterwards: FSDP's gradient scaler does the same: it all-reduces one flag, and then either all ranks skip the step
    or none does. One call is enough, too: a sum that contains a `nan` or an infinity is not finite on any rank, so all
    ranks can check the sum. Then they also skip a step in which finite numbers add up to more than the dtype holds. If
    you cannot recover from an error, let all ranks raise; otherwise the others' time-outs hide which rank had the
    error.
    """
    bad = (~gradient.isfinite()).sum()
    dist.all_reduce(bad)
    if bad > 0:
        return torch.zeros_like(gradient)
    total = gradient.clone()
    dist.all_reduce(total)
    return total


def broken_from_the_second(x):
    team = dist.new_group(range(1, world_size))
    got = x.clone()
    if rank > 0:
        dist.broadcast(got, src=1, group=team)  # members 0, 1, 2: the second one is 1
    return got


class SameGroups:
    """All ranks make the same groups in the same order, also those that they are not in."""

    def broken(self, record: Record) -> str:
        made = [log.made for log in record.logs]
        odd = next((r for r, groups in enumerate(made) if groups != made[-1]), None)
        if odd is None:
            return ""
        mine, others = (" and then ".join(f"a group of {ranks(g)}" for g in made[r]) or "no group" for r in (odd, -1))
        return (
            f"Rank {odd} makes {mine}, and rank {record.n - 1} {others}. Every rank makes all groups, in the same "
            "order, even those that it is not in."
        )


@exercise(
    "A broadcast in a team",
    lambda xs: [xs[0], *[xs[2]] * (len(xs) - 1)],
    minutes=3,
    ranks=(3, 4),
    keeps_input=True,
    promises=(SameGroups(),),
)
def from_the_second(x):
    """Return the x of the team's second member; on rank 0, its own.

    All ranks but rank 0 are a team. Its **second member** tells the team its `x`. Repair the function: return that `x`
    on the team's ranks, and its own `x` on rank 0. `x` stays as it is. All ranks make the group.
    Hint: Which rank is the team's second member, counted in the whole job?
    Hint: `src` always is a rank of the whole job. For a place in the group there is `group_src`.
    Afterwards: `src` and `dst` are global ranks, whatever the group (pytorch#91760). If the group happens to have a
    rank of that number, there is no error. Write `group_src` and `group_dst` whenever you pass a group.
    """
    team = dist.new_group(range(1, world_size))
    got = x.clone()
    if rank > 0:
        dist.broadcast(got, group_src=1, group=team)
    return got


def broken_count_hits(hits):
    if len(hits):
        count = hits.sum(dtype=torch.int32)
    else:
        count = torch.tensor(0.0, device=device)  # nothing to count
    dist.all_reduce(count)
    return count


@exercise(
    "Nothing to count",
    lambda xs: [np.int32(sum(x.sum() for x in xs))] * len(xs),
    minutes=3,
    inputs=lambda n: [
        Case([np.arange(k) % 3 != 1 for k in sizes], about)
        for sizes, about in (
            ([4] * (n - 1) + [0], "the last rank has no rows"),
            ([3] * n, "three rows on each rank"),
            ([0, *range(2, n + 1)], "rank 0 has no rows"),
        )
    ],
    promises=(Calls(1),),
)
def count_hits(hits):
    """Return how many hits there are on all ranks.

    `hits` has a True for each row of this rank that was predicted right; a rank may have no rows. Repair the function:
    on every rank, return the number of hits on all ranks together, as a tensor with one integer. One call is enough.
    Hint: Print `count.dtype` on every rank before the call.
    Hint: The sum of no numbers is 0, and it can be an int32 as well.
    Afterwards: All messages have 4 bytes, so Gloo raises no error, and adds bits that mean different things. A branch
    for a special case often has a different dtype.
    """
    count = hits.sum(dtype=torch.int32)  # 0 where there are none
    dist.all_reduce(count)
    return count


def broken_gather_features(x):
    everyone = [torch.empty_like(x) for _ in range(world_size)]
    dist.all_gather(everyone, x)
    return torch.cat(everyone)


@exercise(
    "Features of all ranks",
    lambda xs: [np.concatenate(xs)] * len(xs),
    minutes=5,
    difficulty=2,
    inputs=lambda n: [
        Case(counting(n, 2, "float64"), ""),
        Case(counting(n, 1, "float64"), "one number each"),
        Case(counting(n, 30, "float64"), "30 numbers each"),
    ],
    gradients="one",
    promises=(Calls(1),),
)
def gather_features(x):
    """Return the x of all ranks, one after the other.

    Every rank needs the features of all ranks for its loss; all `x` have the same length. Repair the function: return
    all of them in the order of the ranks, one after another, in a tensor through which the gradient gets **back to this
    rank's** `x`. (Unlike in the case above, the loss is the same on all ranks, so each rank needs only its own part of
    the gradient.) One call is enough.
    Hint: What does autograd know about a tensor that a collective has filled?
    Hint: One of the gathered parts is this rank's own `x`, and that one has a graph.
    Hint: Put `x` itself in its place, before `torch.cat`.
    Afterwards: Autograd does not see that `dist.all_gather` fills tensors. With a second term in the loss, backward
    runs, and only this part of the gradient is missing (pytorch#152127, #148690). Where each rank has a loss of its
    own, the other parts count as well, and the backward pass has to communicate, as in lessons 04 and 13.
    """
    everyone = [torch.empty_like(x) for _ in range(world_size)]
    dist.all_gather(everyone, x.detach())
    everyone[rank] = x  # with its graph
    return torch.cat(everyone)


def broken_mean_in_background(x):
    total = x.clone()
    work = dist.all_reduce(total, async_op=True)
    mean = total / world_size
    work.wait()
    return mean


@exercise(
    "In the background",
    lambda xs: [np.mean(xs, axis=0, dtype="float64").astype("float32")] * len(xs),
    minutes=3,
    inputs=lambda n: [
        Case(counting(n, 3), ""),
        Case(counting(n, 1), "one number"),
        Case(counting(n, 200_000), "200,000 numbers"),
    ],
    keeps_input=True,
    promises=(Calls(1),),
)
def mean_in_background(x):
    """Return the mean over all ranks.

    This function lets the all-reduce run in the background. Repair it: return the mean of `x` over the ranks, on every
    rank. `x` stays as it is. One call is enough.
    Hint: What does a call with `async_op=True` return, and what does it promise?
    Hint: Until `work.wait()` has returned, neither read nor write the tensor.
    Afterwards: Between the call and `wait()`, the tensor belongs to the library. With some work between the call and
    the division, the sum is often there in time: such a program passes its tests, and lies when a rank is late.
    """
    total = x.clone()
    work = dist.all_reduce(total, async_op=True)
    work.wait()
    return total / world_size


def broken_sums_in_two_groups(gradient, activation):
    data, model = dist.new_group(), dist.new_group()
    first, second = gradient.clone(), activation.clone()
    if rank == 0:
        dist.all_reduce(first, group=data)
        dist.all_reduce(second, group=model)
    else:
        dist.all_reduce(second, group=model)
        dist.all_reduce(first, group=data)
    return first, second


@exercise(
    "Two groups, two orders",
    lambda xs: [(sum(a for a, _ in xs), sum(b for _, b in xs))] * len(xs),
    minutes=4,
    inputs=lambda n: [
        Case(list(zip(counting(n, a), counting(n, b), strict=True)), about)
        for a, b, about in ((2, 2, ""), (1, 5, "different lengths"), (40, 40, "40 numbers each"))
    ],
    keeps_input=True,
)
def sums_in_two_groups(gradient, activation):
    """Return the sums of gradient and of activation.

    All ranks are in two groups, one for `gradient` and one for `activation`. Rank 0's activation is late, so rank 0
    sums the gradient first; the others begin with the activation. Repair the function: return both sums, of `gradient`
    and of `activation`, on every rank. Both arguments stay as they are.
    Hint: Rank 0 waits for the others in one group. Where do they wait for rank 0?
    Hint: Use one order on all ranks, or start both calls with `async_op=True` before you wait for either.
    Afterwards: Within a group torch counts the calls; between groups nothing orders them. On a GPU, two communicators
    may deadlock even if all ranks call them in the same order, if their kernels do not fit on the device side by side:
    NCCL's guide asks for one order on all ranks there, too.
    """
    data, model = dist.new_group(), dist.new_group()
    first, second = gradient.clone(), activation.clone()
    dist.all_reduce(first, group=data)
    dist.all_reduce(second, group=model)
    return first, second


clinic_7 = ask("""
**Case 7.** Rank 2 finds a `nan` in its batch and raises `ValueError`. The others call `all_reduce`. In a job of a
thousand ranks on Gloo, with a time-out of 30 minutes: what do most of the log files say?
( ) ValueError: a bad batch
    > One log says that, rank 2's. An exception stays in its process.
(x) a time-out, or a closed connection, in all_reduce
( ) nothing: the other ranks go on
    > They wait in `all_reduce`, because rank 2 is in their group.
( ) SIGABRT
    > An exception in Python is not a signal: it ends the process in an orderly way.
Why: **A time-out or a closed connection.** 999 logs show the consequence and one shows the cause. Sort the logs by
time: the first error counts. Torchrun's summary tries to do that, too (its *first observed failure*), but it can be
wrong if the ranks do not end by themselves. Reported as Automodel#2468.
Elsewhere: **With NCCL** the consequence looks different: at the time-out, by default ten minutes, torch's watchdog
writes what it waited for and ends the process. (From torch's source, not run.)
""")

clinic_8 = ask("""
**Case 8.** Ranks 1, 2 and 3 are a team, and its second member is to broadcast, so the program says `src=1`. Each rank
brings a power of ten. What does the team hold afterwards?
( ) 100, rank 2's number: the team's second member
    > That would be true if `src` counted within the group.
(x) 10, rank 1's number
( ) nothing: an error, because member 1 is not rank 1
    > Rank 1 is in the team, so the call is a legal one.
Why: **10.** `src` is a rank of the whole job, in every group. Rank 1 happens to be in the team, so there is no error.
Reported as pytorch#91760 and #60356.
Elsewhere: **With NCCL** it is the same: torch translates the rank before it calls a backend.
""")

clinic_9 = ask("""
**Case 9.** Ranks 0 to 2 count 3 hits each, in int32. Rank 3 has no rows and brings `torch.tensor(0.0)`, a float32. What
do they hold after `all_reduce`?
( ) 9 on all ranks: 0.0 and 0 have the same bits
    > They have, and so ranks 0 to 2 may be right. But in which dtype does rank 3 read the sum?
(x) 9 on ranks 0 to 2, and something else on rank 3
( ) a process dies, as in case 4
    > There the messages had different lengths. These all have 4 bytes.
( ) an error on rank 3
    > `DETAIL` would raise one, on all ranks. Without it, dtypes are not compared.
Why: **Something else on rank 3**: it reads the integer's bits as a float, and prints 1.3e-44, or 0 if you round. The
zero of a float has the bits of the integer 0, so the others are right by luck. With a different number they would not
be. Reported as pytorch#150433. Which tool would have found it? `DETAIL` compares the dtypes, and the flight recorder
keeps them, as the next cell shows.
Elsewhere: **With NCCL**, too, each GPU adds in the dtype that its own rank has named, and the dtypes are not compared.
By NCCL's documentation the behaviour is undefined. (Not run.)
""")

clinic_10 = ask("""
**Case 10.** `loss` is the sum of all ranks' features, gathered by `all_gather`, plus half of this rank's own. A feature
is `w * 10**rank`. What does `loss.backward()` do on rank 1, where the gradient should be 15?
( ) it raises: an all_gather has no gradient
    > It would if nothing else in the loss had a gradient. The half of its own feature has one.
( ) `w.grad` is 15
    > That would be true if autograd had seen this rank's feature pass through `all_gather`.
(x) `w.grad` is 5: only the half that did not travel
( ) it hangs in backward
    > It might, if the gather had a backward pass that communicates and a rank skipped it. This one has none.
Why: **5.** `all_gather` writes into tensors that have no graph. The part of the gradient through them is missing. The
other part is there, so there is no error: the model trains, but worse. Reported as pytorch#152127.
Elsewhere: **With NCCL** it is the same: autograd sees neither backend's `all_gather`.
""")

clinic_11 = ask("""
**Case 11.** `all_reduce(total, async_op=True)`, then `mean = total / world_size`, then `work.wait()`. Rank 3 comes half
a second late. What is `mean` on ranks 0 to 2?
( ) the mean: the division waits for the result
    > Not on a GPU either: the sum runs on a stream of its own there, and only `wait()` makes yours wait for it.
( ) an error: the tensor is in use
    > Nothing guards the tensor. You just read it too early.
(x) their own number, divided by 4
Why: **Their own number, divided by 4.** The division reads `total` before any other rank's number has been added to it;
the sum is there half a second later. Whether such a program is wrong depends on timing. Here at least one rank is wrong
each time. Reported as OpenNMT-py#2295.
Elsewhere: **With NCCL** you have the same race: the sum runs in a queue of its own on the GPU, and only `wait()` makes
the queue with the division wait for it. (From torch's source, not run.)
""")

clinic_12 = ask("""
**Case 12.** All ranks are in the groups `data` and `model`. Rank 0 sums in `data` first and then in `model`, the others
the other way round. The shapes are alike, as in case 5. What does the program do?
( ) it lies, as in case 5: first meets first
    > Within one group, yes. But each group counts its own calls.
( ) it is right: each group has its own messages
    > It would be if no rank waited. But rank 0 waits in `data` before it comes to `model`.
(x) it hangs
Why: **It hangs**: rank 0 waits for the others in `data`, and they wait for rank 0 in `model`. That is a cycle. The
second group has turned a lie into a hang, and a hang is better: you notice it. Reported as torchrec#4149. If several
groups have the same ranks, lines alone do not tell you for whom a rank waits. The lab's error says that the groups
differ, and the flight recorder says which ones they are, as the next cell shows.
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
( ) `recvbuff` is the same as `sendbuff`, except on rank 3
    > Rank 3 keeps its input and writes the sum into a different buffer. The other ranks do not notice.
( ) the number behind the name of the machine is different on all ranks
    > It is the number of the process, and each rank is a separate process.
Why: The others have started call 42 (2a). Rank 0 is in call 41, or has finished it and is elsewhere: find out what rank
0 does. The name, `count`, `datatype`, `op`, `root` and `nranks` of a call also have to be the same on all ranks. In
case 4, one rank says `datatype 8`, float64, and the others 7. In case 5 all lines are equal, because a log does not
contain the lines of your program.
""",
    clinic_nccl_barrier="""
**The log.** Which call of the program has `opCount 6`, an `AllReduce` with `count 1`?
( ) a fourth all_reduce of `x`
    > Then its count would be that of `x`: 262144.
( ) the end of reduce_scatter_tensor, which adds up
    > A reduce-scatter is one call with one line, here that of `opCount 5`. Its count is what one rank gets.
(x) the barrier
( ) none: NCCL makes sure that all ranks are there
    > NCCL writes such a line only when it is called, and this time torch called it.
Why: NCCL has no barrier. torch sums a single number over all ranks and waits for the result; its flight recorder calls
that `all_reduce_barrier`.
""",
    clinic_nccl_record="""
**The flight recorder.** The last call that was enqueued is number 7, the last that was completed number 6. Does rank 0
hang in number 7?
( ) yes: it waits for the others in the barrier
    > That is what it looks like. But number 7 has an entry of its own, with a `state`.
(x) no: its own entry says `completed`
( ) no one can tell: the barrier has only just begun
    > The entry was updated when the record was written, so it is newer than the summary.
Why: A watchdog thread checks now and then which calls are done, and `last_completed_collective` is what it saw the last
time. When the record is written, each call that is still open is checked once more. So rely on each call's own `state`:
one that hangs is `scheduled` (or `started`, which torch notes only if TORCH_NCCL_ENABLE_TIMING is set: hence the -1).
The times say when torch *noticed* that a call was done: the first six at the same moment. They do not say how long a
call took.
""",
    clinic_nccl_ras="""
**RAS.** It speaks of 4 GPUs, and the machine has one. Why?
(x) it adds up the GPUs that each process uses
( ) each rank takes itself for a machine with its own GPU
    > They do: NCCL's log says `nNodes 4` for the same ranks, in a line that is not shown here. But RAS counts the
    addresses of the hosts, and says that there is 1 node.
( ) the GPU has been cut into four
    > The driver can do that (MIG), but it was not told to: each of the four processes uses all of the GPU, and they
    take turns.
( ) it counts channels: one for each rank
    > There are 2 channels, as another part of the log says, and each one passes through all ranks.
Why: Four processes use one GPU each, and RAS does not check whether it is the same one. It counts nodes by the
addresses of the hosts: 1. NCCL's log, in a line that is not shown here, says `nNodes 4` for the same ranks, because
each one has its own name in `NCCL_HOSTID`, without which NCCL refuses to share a GPU. Both are right: they count
different things.
""",
)
