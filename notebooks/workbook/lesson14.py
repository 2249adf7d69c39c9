"""Exercises of lesson 14: six programs of the clinic, each broken as it was found, to be repaired."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, exercise
from labkit.grading.prediction import SEEN, ask
from labkit.grading.promises import Calls

if TYPE_CHECKING:
    from labkit.rank.cell_names import device, dist, rank, torch, world_size


def _validated(xs: Sequence[Any]) -> list[Any]:
    sums = sum(gradients for gradients, _ in xs)
    return [(sums, (sums * xs[0][1]).sum(-1))] * len(xs)


def _steps(n: int) -> list[Case]:
    def case(steps: int, size: int, about: str, seed: int) -> Case:
        rng = np.random.default_rng([seed, n, 14])
        rows = [rng.integers(-8, 9, (steps, size)).astype("float32") for _ in range(n)]
        held = [rng.integers(1, 5, size).astype("float32") * (r == 0) for r in range(n)]  # rank 0 alone has the data
        return Case(list(zip(rows, held, strict=True)), about)

    return [case(2, 2, "", 0), case(1, 3, "a single step", 1), case(5, 40, "five steps", 2)]


def broken_train_and_validate(gradients, held_out):
    sums, scores = [], []
    for gradient in gradients:
        total = gradient.clone()
        dist.all_reduce(total)
        sums.append(total)
        if rank == 0:
            score = (total * held_out).sum()
            dist.broadcast(score, src=0)  # tell all ranks
            scores.append(score)
    return torch.stack(sums), torch.stack(scores)


@exercise("Rank 0 validates", _validated, minutes=5, inputs=_steps)
def train_and_validate(gradients, held_out):
    """Return the summed gradients of each step, and rank 0's scores.

    `gradients` has one row for each step. In each step, all ranks sum their rows, and rank 0 validates: it multiplies
    the sum by `held_out`, which **only rank 0 has** (the others bring zeros), and tells all ranks the score. Repair the
    function: **on every rank** return the sums and the scores of all steps, two tensors. Two calls per step are enough.
    Hint: Which calls does rank 0 make in a step, and in which order? Which ones does rank 1 make?
    Hint: Every rank of the group makes every collective call. Work that only rank 0 does may be inside an `if`, but the
    call may not.
    Hint: The other ranks need a tensor to receive into: of the same shape and dtype as rank 0's score.
    Afterwards: Leave the work in `if rank == 0:` and take the call out of it. The same holds for a `barrier`, for a
    `state_dict()` of a sharded model, which communicates inside, and for a logger that averages before it prints.
    """
    sums, scores = [], []
    for gradient in gradients:
        total = gradient.clone()
        dist.all_reduce(total)
        sums.append(total)
        score = (total * held_out).sum()  # it counts on rank 0 only
        dist.broadcast(score, src=0)
        scores.append(score)
    return torch.stack(sums), torch.stack(scores)


def _until_worse(xs: Sequence[Any]) -> list[Any]:
    mean = np.mean(xs, axis=0, dtype="float64")
    worse = [*np.flatnonzero(mean[1:] > mean[:-1]) + 1, len(mean)]
    return [mean[: worse[0]].astype("float32")] * len(xs)


def _curves(n: int) -> list[Case]:
    down, bump = np.float32([8, 6, 5, 4, 3]), np.float32([0, 0, 2, 0, 0])
    return [
        Case([down + bump * (r == n - 1) for r in range(n)], "one rank's loss gets worse, the mean does not"),
        Case([np.float32([4 + r, 3 + r, 9, 2, 1]) for r in range(n)], "worse on every rank at the third step"),
        Case([down + r for r in range(n)], "never worse"),
        Case([np.float32([5 + r]) for r in range(n)], "a single step"),
    ]


def broken_train_until_worse(losses):
    history, before = [], torch.inf
    for loss in losses:
        if loss > before:
            break
        mean = loss.clone()
        dist.all_reduce(mean)
        history.append(mean / world_size)
        before = loss
    return torch.stack(history)


@exercise("Stop when it gets worse", _until_worse, minutes=5, inputs=_curves)
def train_until_worse(losses):
    """Return the mean losses of all steps before the first one that is worse.

    `losses` holds this rank's validation loss after each step, at least one. Training ends before the first step whose
    loss is worse (larger) than that of the step before it. Repair the function: the loss that counts is the **mean**
    over the ranks. On every rank, return a tensor with the mean losses of all steps before the worse one.
    Hint: Which number decides whether a rank goes on? Is it the same number on all ranks?
    Hint: After an all-reduce all ranks hold the same number. Let that number decide.
    Afterwards: Every decision to go on or to stop has to depend on a number that is the same on all ranks: an early
    stop, a skipped step after an overflow, the end of the data, a time limit. If the ranks may differ, all-reduce a
    flag first.
    """
    history, before = [], torch.inf
    for loss in losses:
        mean = loss.clone()
        dist.all_reduce(mean)
        mean /= world_size
        if mean > before:
            break
        history.append(mean)
        before = mean
    return torch.stack(history)


def broken_mean_loss(losses):
    total = losses.clone()
    dist.all_reduce(total)
    return total.mean() / world_size


@exercise(
    "The last batch",
    lambda xs: [np.float32(np.concatenate(xs, dtype="float64").mean())] * len(xs),
    minutes=5,
    inputs=lambda n: [
        Case([np.arange(1, k + 1, dtype="float32") * (r + 1) for r, k in enumerate(sizes)], about)
        for sizes, about in (
            ([4] * (n - 1) + [2], "the last rank has fewer rows"),
            ([3] * n, "the same number of rows"),
            ([6, *range(1, n)], "a different number on each rank"),
            ([5] * (n - 1) + [0], "the last rank has none left"),
        )
    ],
    tolerance=1e-5,
    promises=(Calls(1),),
)
def mean_loss(losses):
    """Return the mean loss of all rows of all ranks.

    `losses` holds the losses of this rank's rows. In the last batch the ranks have **different numbers of rows**,
    perhaps none. Repair the function: return the mean over all rows of all ranks, a tensor with one number, on every
    rank. One call is enough.
    Hint: All ranks have to bring tensors of the same length. Which few numbers must each rank bring for a mean?
    Hint: The sum of its losses and their number: two numbers, in one tensor.
    Afterwards: An all-reduce of unequal lengths is never right. Gloo adds pieces that do not belong together; some
    ranks wait for bytes that no rank sends, and others go on with wrong numbers.
    """
    both = torch.stack([losses.sum(), torch.tensor(float(len(losses)), device=device)])
    dist.all_reduce(both)
    return both[0] / both[1]


def _mixed(n: int) -> list[Case]:
    def case(size: int, about: str, wide: int) -> Case:
        xs = [(np.arange(size) + 10 * (r + 1)).astype("float64" if r == wide % n else "float32") for r in range(n)]
        return Case(xs, about)

    same = [np.arange(3, dtype="float32") + r for r in range(n)]
    return [case(4, "the last rank brings float64", -1), case(1, "rank 0 does", 0), Case(same, "all bring float32")]


def broken_sum_in_float32(x):
    total = x.clone()
    dist.all_reduce(total)
    return total


@exercise(
    "A number from numpy",
    lambda xs: [np.sum([np.asarray(x, dtype="float64") for x in xs], axis=0).astype("float32")] * len(xs),
    minutes=3,
    inputs=_mixed,
    keeps_input=True,
)
def sum_in_float32(x):
    """Return the sum over all ranks, in float32.

    One rank's `x` came from numpy, and numpy's numbers are **float64**; the others' are float32. Repair the function:
    return the sum over all ranks as float32, on every rank. `x` stays as it is.
    Hint: What do the ranks have to agree on before a collective, besides the call and the length?
    Hint: `x.to(torch.float32)` converts. Does it also copy if there is nothing to convert?
    Afterwards: Every rank works out the number of bytes from its own dtype. If the sizes differ, Gloo ends the process
    (SIGABRT). If they are equal, as with int32 and float32, you get garbage without an error.
    """
    total = x.to(torch.float32, copy=True)
    dist.all_reduce(total)
    return total


def broken_log_sums(loss, rows):
    loss, rows = loss.clone(), rows.clone()
    if rank == 0:
        dist.all_reduce(rows)  # the log wants it first
        dist.all_reduce(loss)
    else:
        dist.all_reduce(loss)
        dist.all_reduce(rows)
    return loss, rows


@exercise(
    "Rank 0 logs first",
    lambda xs: [(sum(a for a, _ in xs), sum(b for _, b in xs))] * len(xs),
    minutes=3,
    inputs=lambda n: [
        Case([(np.full(k, r + 1, "float32"), np.full(k, 100, "float32")) for r in range(n)], about)
        for k, about in ((1, ""), (3, "three numbers each"), (0, "empty"))
    ],
    keeps_input=True,
    promises=(Calls(2),),
)
def log_sums(loss, rows):
    """Return the sums of loss and of rows over all ranks.

    Sum `loss` over the ranks, and sum `rows` over the ranks; both have the same shape. Rank 0 needs `rows` first, for
    its log. Repair the function: return both sums, `loss` and `rows`, on every rank. Both stay as they are. Two calls
    are enough.
    Hint: The first call of one rank is matched with the first call of the others, whatever the variables are called.
    Hint: All ranks can sum the rows first. Nothing is lost by that.
    Afterwards: Calls are matched by their order. Two calls that differ in shape or kind may hang or raise an error; two
    calls that look alike mix their numbers without any error.
    """
    loss, rows = loss.clone(), rows.clone()
    dist.all_reduce(rows)
    dist.all_reduce(loss)
    return loss, rows


def _by_rank_0(xs: Sequence[Any]) -> list[Any]:
    values = [x for x, _ in xs]
    return [np.max(values, 0) if int(xs[0][1][0]) else np.sum(values, 0)] * len(xs)


def broken_reduce_as_set(x, maximum):
    total = x.clone()
    if maximum.item():
        dist.all_reduce(total, op=dist.ReduceOp.MAX)
    else:
        dist.all_reduce(total, op=dist.ReduceOp.SUM)
    return total


@exercise(
    "An old settings file",
    _by_rank_0,
    minutes=5,
    inputs=lambda n: [
        Case([(np.float32([10.0**r, 2]), np.array([s])) for r, s in enumerate(settings)], about)
        for settings, about in (
            ([0] * (n - 1) + [1], "rank 0 says sum, the last rank says maximum"),
            ([1] + [0] * (n - 1), "rank 0 says maximum, the others say sum"),
            ([0] * n, "all say sum"),
            ([1] * n, "all say maximum"),
        )
    ],
    keeps_input=True,
    promises=(Calls(2),),
)
def reduce_as_set(x, maximum):
    """Return the maximum over all ranks, or the sum.

    Each rank read `maximum` from a settings file on its own host: an int64 tensor with one number, 1 for the maximum, 0
    for the sum. **One host has an old file.** Repair the function: all ranks use the value that rank 0 has read. Return
    the sum or the maximum of `x` over all ranks, on every rank. `x` stays as it is. Two calls are enough.
    Hint: The settings differ, so the ranks have to agree on one before they use it.
    Hint: `dist.broadcast(setting, src=0)` gives all ranks rank 0's value. Broadcast a copy if you want to keep your
    own.
    Afterwards: Read settings on one rank and broadcast them, or compare a digest of them at the start. No message
    contains the operation, the root or the order of the calls: Gloo and NCCL do not check them.
    """
    total, setting = x.clone(), maximum.clone()
    dist.broadcast(setting, src=0)
    if setting.item():
        dist.all_reduce(total, op=dist.ReduceOp.MAX)
    else:
        dist.all_reduce(total, op=dist.ReduceOp.SUM)
    return total


clinic_1 = ask("""
**Case 1.** Read the next cell. Rank 0 tells all ranks its validation loss. There are two steps. What does the program
do?
( ) it hangs in step 0, because no rank receives the broadcast
    > It is true that no rank receives it, but only rank 0 would notice. What do the other ranks do meanwhile? They go
    on to step 1.
(x) it hangs, with the ranks in two different calls
( ) it raises: a broadcast does not fit an all_reduce
    > The calls are not compared. Gloo marks each message with its kind of call and waits for a message of that kind. A
    message of a different kind is not an error.
( ) it ends well, and the loss is wrong
    > That happens if both calls are of the same kind. Here the ranks wait for messages that the other call does not
    send.
Why: **It hangs, with the ranks in two different calls.** Rank 0 is in the `broadcast` of step 0, the others are in the
`all_reduce` of step 1. The others are not late: they are further on, and nothing is wrong with the line on which they
wait. Look at the rank that is behind. Reported as pytorch#54059.
Elsewhere: **With NCCL** the result is undefined: if the calls of the ranks do not match, its documentation warns of
"undefined behavior, including hangs, crashes, or data corruption". (This case was not run on a GPU.)
""")

clinic_2 = ask(f"""
**Case 2.** Each rank stops at its own first loss that got worse. Read the next cell. What does the program do?
( ) all ranks stop together: rank 3 has ended the group
    > Leaving a loop does not end the group. The process lives, and its connections are open.
(x) ranks 0 to 2 wait for rank 3 in the third step
( ) it raises on ranks 0 to 2, because a rank is missing
    > Only a process that has ended closes its connections. Rank 3 is running, but it is elsewhere in the program.
( ) ranks 0 to 2 go on with sums of three ranks
    > A collective needs all ranks of its group. It never goes on without one.
Why: **Ranks 0 to 2 wait in the third step**, as long as rank 3's process lives, or until the time-out. (In a script
that ends there, they get *Connection closed by peer*.) Rank 3 is already outside the loop. In a training program it
would now make a different call, a `barrier` before saving, say, and you would see case 1. Reported as pytorch#33148.
Elsewhere: **With NCCL** they wait as well, but not in the call: `all_reduce` returned, and then
`torch.cuda.synchronize()` did not return within 30 s. {SEEN}
""")

clinic_3 = ask(f"""
**Case 3.** In the last batch, rank 3 has 2 rows and the others have 4. All ranks call `all_reduce` on the losses of
their rows. What does the program do, on Gloo?
( ) an error on all ranks: the shapes differ
    > That would be true with `TORCH_DISTRIBUTED_DEBUG=DETAIL`, where ranks exchange shapes first. A message itself has
    no shape.
( ) all ranks wait
    > Rank 3 has few numbers to send and to receive, and gets them.
( ) it ends well: the first two sums have four terms, the others three
    > That would be true if a rank knew that two numbers are missing.
(x) some ranks wait, and some end well with wrong numbers
Why: **Some wait, and some end well.** Rank 3 ends, and the others wait for bytes that no rank will send. The picture
has no arrows, because every rank has come to the call, so none of them is missing. Which ranks wait depends on the
lengths, and so do the numbers: with these lengths, rank 3 keeps its own. (With some lengths, a process dies.)
Reported as nccl#1394 and #1417.
Elsewhere: **With NCCL** the behaviour is undefined, by its documentation. With 8 numbers on rank 0 and 4 on the others,
the cell had not ended after 30 s. {SEEN}
""")

clinic_4 = ask("""
**Case 4.** All ranks bring four numbers. Those of rank 3 came from numpy and are float64, the others' are float32. What
does the program do, on Gloo?
( ) a Python exception on rank 3
    > With `DETAIL` there would be an exception, on all ranks. Without it, no rank knows the dtypes of the others.
(x) a process dies, without a Python exception
( ) the numbers are converted: the sum is float64 on all ranks
    > That would be true if the dtype travelled with the message. Only bytes do.
( ) all ranks wait
    > They would if a message that is too long were read in part. Gloo compares its length with the room for it.
Why: **A process dies.** Gloo receives a message that is longer than the room for it, and calls `abort()`: signal 6,
SIGABRT. No `try` catches that. The process that dies is a neighbour of the culprit, not the culprit. Reported as
ms-swift#9550 and pytorch#54351.
Elsewhere: **With NCCL** the behaviour is undefined, by its documentation: each GPU works out the number of bytes from
its own rank's dtype, and the length of a message is not checked. (This case was not run on a GPU.)
""")

clinic_5 = ask("""
**Case 5.** Rank 0 sums `rows` first and then `loss`; the other ranks the other way round. Both are one float32 number.
What does the program do?
( ) it hangs: rank 0 waits in one call, the others in another
    > They would if calls were matched by the names of their variables. Torch counts the calls: the first one is
    matched with the first one.
( ) it is right: a sum does not depend on the order
    > The order of the ranks in a sum does not matter. Here different things are added.
(x) it ends well, and both sums are wrong on all ranks
( ) rank 0 has the two sums swapped, the others are right
    > The first call adds rank 0's rows to the others' losses. No rank gets a right sum.
Why: **It ends well, and everything is wrong**: 109 is 100 rows of rank 0 plus the losses 2 + 3 + 4. There is no error
and no warning. The mean loss of a training run would look noisy, and you might never ask why. Reported as apex#19.
Elsewhere: **With NCCL** you get the same lie: there, too, the first call of a rank is matched with the others' first
call. (From NCCL's source, not run.)
""")

clinic_6 = ask("""
**Case 6.** Rank 0 read an old settings file, and calls `all_reduce` with `MAX`; the others call it with `SUM`. Each
rank brings a power of ten: 1, 10, 100, 1000. What does the program do?
( ) it raises: the operations differ
    > No message contains the operation. Each rank applies its own to what arrives.
( ) rank 0 gets 1000, the others get 1111
    > That would be true if each rank got all four numbers and reduced them alone.
(x) it ends well, and the result is neither the sum nor the maximum
( ) it hangs
    > Sum and maximum send the same messages, so no rank waits for one that does not come.
Why: **Neither sum nor maximum**: 1110. Each rank combines what it receives with its own operation and passes the result
on, and rank 0's number got lost in rank 0's maximum. All ranks agree on the same wrong number, so comparing the ranks
finds nothing. With the old file on rank 3, the sum would be right, by luck. (Made up for this lesson; pytorch#39706 is
a report of a `dst` that differs between the ranks.)
Elsewhere: **With NCCL**, too, each rank applies its own operation to what it receives. Which number comes out depends
on the order in which NCCL combines the ranks. (From its source, not run.)
""")
