"""Exercises of lesson 14b: six more programs of the clinic, with groups, gradients and handles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, exercise
from labkit.grading.inputs import counting
from labkit.grading.promises import Calls, SameGroups

if TYPE_CHECKING:
    from labkit.rank.seen import device, dist, rank, torch, world_size


# -- a bad batch --------------------------------------------------------------------------------------------------


def _or_skip(xs: Sequence[Any]) -> list[Any]:
    finite = np.isfinite(np.concatenate(xs)).all()
    return [np.sum(xs, axis=0, dtype="float32") if finite else np.zeros_like(xs[0])] * len(xs)


def _bad(n: int) -> list[Case]:
    def case(about: str, **bad: float) -> Case:
        xs = counting(n, 3)
        for where, value in bad.items():
            xs[-1 if where == "last" else 0][1] = value
        return Case(xs, about)

    nan, inf = float("nan"), float("inf")
    return [
        case("all numbers are finite"),
        case("a nan on the last rank", last=nan),
        case("an infinity on rank 0", first=inf),
        case("infinities of both signs, on two ranks", first=inf, last=-inf),
    ]


def broken_step_or_skip(gradient):
    """Return everyone's sum, or zeros where a rank has a bad batch."""
    if not gradient.isfinite().all():
        raise ValueError("a bad batch")
    total = gradient.clone()
    dist.all_reduce(total)
    return total


@exercise("One bad batch", _or_skip, minutes=5, inputs=_bad, promises=(Calls(2),), specimen=broken_step_or_skip)
def step_or_skip(gradient):
    """Return everyone's sum, or zeros where a rank has a bad batch.

    `gradient` has a `nan` or an infinity on one rank, now and then. Repair the function: where **any** rank has one,
    all ranks skip the step and return zeros; otherwise all return the sum over the ranks. Nobody raises. Two calls are
    enough.
    Hint: A rank that raises is gone, and the others wait for it. What must all of them know before they decide?
    Hint: All-reduce a count of bad numbers first. Then all ranks take the same branch.
    Afterwards: FSDP's gradient scaler does the same: one flag is all-reduced, and all ranks skip the step or none. One
    call does it, too: a sum with a `nan` or an infinity in it is not finite on any rank, so all can look at the sum. It
    then also skips a step in which finite numbers add up to more than the dtype holds. Where an error cannot be mended,
    let all ranks raise: the others' time-out hides whose error it was.
    """
    bad = (~gradient.isfinite()).sum()
    dist.all_reduce(bad)
    if bad > 0:
        return torch.zeros_like(gradient)
    total = gradient.clone()
    dist.all_reduce(total)
    return total


# -- whom src names -----------------------------------------------------------------------------------------------


def _second(xs: Sequence[Any]) -> list[Any]:
    return [xs[0], *[xs[2]] * (len(xs) - 1)]


def broken_from_the_second(x):
    """Return the x of the team's second member; on rank 0, its own."""
    team = dist.new_group(range(1, world_size))
    got = x.clone()
    if rank > 0:
        dist.broadcast(got, src=1, group=team)  # members 0, 1, 2: the second one is 1
    return got


@exercise(
    "A broadcast in a team",
    _second,
    minutes=3,
    ranks=(3, 4),
    keeps_input=True,
    promises=(SameGroups(),),
    specimen=broken_from_the_second,
)
def from_the_second(x):
    """Return the x of the team's second member; on rank 0, its own.

    All ranks but rank 0 are a team. Its **second member** tells the team its `x`. Repair the function: return that `x`
    on the team's ranks, and its own `x` on rank 0. `x` stays as it is. All ranks make the group.
    Hint: Which rank is the team's second member, counted in the whole job?
    Hint: `src` always is a rank of the whole job. For a place in the group there is `group_src`.
    Afterwards: `src` and `dst` are global ranks, whatever the group (pytorch#91760). If the number happens to be in the
    group, nobody complains. Write `group_src` and `group_dst` wherever there is a group.
    """
    team = dist.new_group(range(1, world_size))
    got = x.clone()
    if rank > 0:
        dist.broadcast(got, group_src=1, group=team)
    return got


# -- nothing to count ---------------------------------------------------------------------------------------------


def _count(xs: Sequence[Any]) -> list[Any]:
    return [np.int32(sum(x.sum() for x in xs))] * len(xs)


def _hits(n: int) -> list[Case]:
    def case(sizes: Sequence[int], about: str) -> Case:
        return Case([np.arange(k) % 3 != 1 for k in sizes], about)

    return [
        case([4] * (n - 1) + [0], "the last rank has no rows"),
        case([3] * n, "three rows on each rank"),
        case([0, *range(2, n + 1)], "rank 0 has no rows"),
    ]


def broken_count_hits(hits):
    """Return how many hits there are on all ranks."""
    if len(hits):
        count = hits.sum(dtype=torch.int32)
    else:
        count = torch.tensor(0.0, device=device)  # nothing to count
    dist.all_reduce(count)
    return count


@exercise("Nothing to count", _count, minutes=3, inputs=_hits, promises=(Calls(1),), specimen=broken_count_hits)
def count_hits(hits):
    """Return how many hits there are on all ranks.

    `hits` has a True for each row of this rank that was predicted right; a rank may have no rows. Repair the function:
    return how many there are on all ranks together, a tensor with one integer, on every rank. One call is enough.
    Hint: Print `count.dtype` on every rank before the call.
    Hint: The sum of no numbers is 0, and it can be an int32 as well.
    Afterwards: 4 bytes here, 4 bytes there: Gloo has nothing to complain about, and adds bits of different meaning.
    Branches for special cases are where dtypes go astray.
    """
    count = hits.sum(dtype=torch.int32)  # 0 where there are none
    dist.all_reduce(count)
    return count


# -- a gradient that is not there ---------------------------------------------------------------------------------


def _gathered(xs: Sequence[Any]) -> list[Any]:
    return [np.concatenate(xs)] * len(xs)


def _features(n: int) -> list[Case]:
    return [
        Case(counting(n, 2, "float64"), ""),
        Case(counting(n, 1, "float64"), "one number each"),
        Case(counting(n, 30, "float64"), "30 numbers each"),
    ]


def broken_gather_features(x):
    """Return the x of all ranks, one after the other."""
    everyone = [torch.empty_like(x) for _ in range(world_size)]
    dist.all_gather(everyone, x)
    return torch.cat(everyone)


@exercise(
    "Features of all ranks",
    _gathered,
    minutes=5,
    difficulty=2,
    inputs=_features,
    gradients="one",
    promises=(Calls(1),),
    specimen=broken_gather_features,
)
def gather_features(x):
    """Return the x of all ranks, one after the other.

    Every rank needs the features of all ranks for its loss; all `x` have the same length. Repair the function: return
    all of them in the order of the ranks, one after the other, in a tensor through which the gradient gets **back to
    this rank's** `x`. (Unlike in the case above, the loss is the same on all ranks, so each rank needs its own part of
    the gradient only.) One call is enough.
    Hint: What does autograd know of a tensor that a collective has filled?
    Hint: One of the gathered parts is this rank's own `x`, and that one has a graph.
    Hint: Put `x` itself in its place, before `torch.cat`.
    Afterwards: `dist.all_gather` fills tensors behind autograd's back. With a second term in the loss, backward runs,
    and only this part of the gradient is missing (pytorch#152127, #148690). Where each rank has a loss of its own, the
    parts of the others count as well: there a backward pass has to communicate, as in lessons 04 and 12.
    """
    everyone = [torch.empty_like(x) for _ in range(world_size)]
    dist.all_gather(everyone, x.detach())
    everyone[rank] = x  # with its graph
    return torch.cat(everyone)


# -- too early ----------------------------------------------------------------------------------------------------


def _mean(xs: Sequence[Any]) -> list[Any]:
    return [np.mean(xs, axis=0, dtype="float64").astype("float32")] * len(xs)


def broken_mean_in_background(x):
    """Return the mean over all ranks."""
    total = x.clone()
    work = dist.all_reduce(total, async_op=True)
    mean = total / world_size
    work.wait()
    return mean


@exercise(
    "In the background",
    _mean,
    minutes=3,
    inputs=lambda n: [
        Case(counting(n, 3), ""),
        Case(counting(n, 1), "one number"),
        Case(counting(n, 200_000), "200,000 numbers"),
    ],
    keeps_input=True,
    promises=(Calls(1),),
    specimen=broken_mean_in_background,
)
def mean_in_background(x):
    """Return the mean over all ranks.

    This function lets the all-reduce run in the background. Repair it: return the mean of `x` over the ranks, on every
    rank. `x` stays as it is. One call is enough.
    Hint: What does `async_op=True` return, and what does it promise?
    Hint: Until `work.wait()` has returned, neither read nor write the tensor.
    Afterwards: Between the call and `wait()`, the tensor belongs to the library. With some work between the call and
    the division, the sum is often there in time: such a program passes its tests, and lies where a rank is late.
    """
    total = x.clone()
    work = dist.all_reduce(total, async_op=True)
    work.wait()
    return total / world_size


# -- two groups ---------------------------------------------------------------------------------------------------


def _both(xs: Sequence[Any]) -> list[Any]:
    return [(sum(a for a, _ in xs), sum(b for _, b in xs))] * len(xs)


def _two(n: int) -> list[Case]:
    def case(a: int, b: int, about: str) -> Case:
        return Case(list(zip(counting(n, a), counting(n, b), strict=True)), about)

    return [case(2, 2, ""), case(1, 5, "different lengths"), case(40, 40, "40 numbers each")]


def broken_sums_in_two_groups(gradient, activation):
    """Return the sums of gradient and of activation."""
    data, model = dist.new_group(), dist.new_group()
    first, second = gradient.clone(), activation.clone()
    if rank == 0:
        dist.all_reduce(first, group=data)
        dist.all_reduce(second, group=model)
    else:
        dist.all_reduce(second, group=model)
        dist.all_reduce(first, group=data)
    return first, second


@exercise("Two groups, two orders", _both, minutes=4, inputs=_two, keeps_input=True, specimen=broken_sums_in_two_groups)
def sums_in_two_groups(gradient, activation):
    """Return the sums of gradient and of activation.

    All ranks are in two groups, one for `gradient` and one for `activation`. Rank 0 has its activation late, so it sums
    the gradient first; the others begin with the activation. Repair the function: return both sums, of `gradient` and
    of `activation`, on every rank. Both arguments stay as they are.
    Hint: Rank 0 waits for the others in one group. Where do they wait for rank 0?
    Hint: One order for all ranks, or start both calls with `async_op=True` before anyone waits.
    Afterwards: Within a group torch counts the calls; between groups nothing orders them. On a GPU two communicators on
    one device may lock up even in the same order, if their kernels do not fit side by side: NCCL's guide asks for one
    order on all ranks there, too.
    """
    data, model = dist.new_group(), dist.new_group()
    first, second = gradient.clone(), activation.clone()
    dist.all_reduce(first, group=data)
    dist.all_reduce(second, group=model)
    return first, second
