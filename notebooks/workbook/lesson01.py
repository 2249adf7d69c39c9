"""Exercises for lesson 01: teams of ranks, whom a number names in them, and who is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Least, exercise
from labkit.grading.inputs import Case, counting, vectors

if TYPE_CHECKING:
    from labkit.rank.seen import device, dist, rank, torch, world_size


def _teams(n: int, split: int | None) -> list[range]:
    """The team of each rank; halves where nothing is said."""
    split = n // 2 if split is None else split
    return [range(split) if r < split else range(split, n) for r in range(n)]


# -- gradients of a team ------------------------------------------------------------------------------------------


def _team_means(xs: Sequence[Any], split: int | None = None) -> list[Any]:
    grads = [[sum(xs[r][i] for r in team) / len(team) for i in range(len(xs[0]))] for team in _teams(len(xs), split)]
    return [g if len(g) > 1 else g[0] for g in grads]


def _team_gradients(n: int) -> list[Case]:
    rng = np.random.default_rng(n)
    drawn = [tuple(rng.normal(size=shape).astype("float32") for shape in ((4, 3), (4,), (2, 4))) for _ in range(n)]
    half = {"split": n // 2}
    return [
        Case([(x,) for x in counting(n, 3)], "one parameter", half),
        Case([(x, 100 + x[:2]) for x in counting(n, 4)], "two parameters", half),
        Case([(x,) for x in counting(n, 2)], "rank 0 is a team of its own", {"split": 1}),
        Case(drawn, f"rank {n - 1} is a team of its own", {"split": n - 1}),
    ]


def run_average_in_team(average_in_team, *grads, split):
    lower, upper = (dist.new_group(list(part)) for part in (range(split), range(split, world_size)))
    team = lower if rank < split else upper

    model = torch.nn.ParameterList([torch.nn.Parameter(torch.ones_like(g)) for g in grads])
    for p, g in zip(model, grads):
        p.grad = g.clone()
    average_in_team(model, team)
    assert all((p == 1).all() for p in model), "It changes the weights. Change `p.grad`, and leave `p` alone."
    return [p.grad for p in model] if len(model) > 1 else model[0].grad


@exercise(
    "The mean gradient of a team",
    _team_means,
    minutes=5,
    ranks=(4, 3, 2),
    inputs=_team_gradients,
    picture=lambda: [(x,) for x in counting(4, 3)],
    least=Least(  # one team is a single rank, which needs nobody; the given loop makes a call for each parameter
        sent=lambda n, S: 2 * (n - 2) / (n - 1) * S,
        memory=lambda n, S: 0,
    ),
    harness=run_average_in_team,
)
def average_in_team(model, team):
    """Replace each gradient of the model by its mean over the ranks of the team.

    The ranks are in two teams, and each team trains a model of its own. `team` is this rank's group; a team has one
    rank or more, and the two need not be of the same size. Replace **each** gradient of the model by its mean over the
    ranks of **this rank's team**, in place. Leave the weights as they are. Return nothing.
    Hint: They are the two lines of lesson 00, each with one change.
    Hint: `dist.all_reduce` takes `group=`, by name: its second argument is the operation. How many gradients did the
    sum add up? Not `world_size` of them.
    Hint: `dist.all_reduce(p.grad, group=team)`, then divide by `dist.get_world_size(team)`.
    Afterwards: With its own group, a team is a world of its own: a rank, a size, and collectives that nobody else
    hears.
    """
    for p in model.parameters():
        # yours
        dist.all_reduce(p.grad, group=team)
        p.grad /= dist.get_world_size(team)
        # end


# -- whom a number names ------------------------------------------------------------------------------------------


def _of_member(xs: Sequence[Any], split: int | None = None) -> list[Any]:
    return [xs[team[xs[r][1]]][0] for r, team in enumerate(_teams(len(xs), split))]


def _members(n: int) -> list[Case]:
    def case(split: int, member: int, about: str, size: int = 3) -> Case:
        numbers = [min(member, len(team) - 1) for team in _teams(n, split)]
        return Case(list(zip(counting(n, size), numbers, strict=True)), about, {"split": split})

    return [
        case(1, n, "the last member of each team"),
        case(n - 1, 0, "member 0 of each team"),
        case(n // 2, 0, "halves, member 0 of each team"),
        case(n // 2, n, "halves, the last member of each team", 1),
    ]


def run_from_member(from_member, x, member, split):
    lower, upper = (dist.new_group(list(part)) for part in (range(split), range(split, world_size)))
    team = lower if rank < split else upper

    return from_member(x, team, member)


def broken_from_member(x, team, member):
    """Return the x of the team's member of this number, on every rank of the team."""
    got = x.clone()
    dist.broadcast(got, src=member, group=team)
    return got


@exercise(
    "A team mate's numbers",
    _of_member,
    minutes=5,
    ranks=(4, 3, 2),
    inputs=_members,
    keeps_input=True,
    picture=lambda: [(x, 1) for x in counting(4, 3)],
    least=Least(  # one team is a single rank, which needs nobody; the card asks for a repair, not for fewer bytes
        rounds=lambda n: min(1, n - 2),
        memory=lambda n, S: min(1, n - 2) * S,
    ),
    specimen=broken_from_member,
    harness=run_from_member,
)
def from_member(x, team, member):
    """Return the x of the team's member of this number, on every rank of the team.

    The ranks are in two teams, `team` is this rank's group, and `member` counts within the team, from 0. Every rank
    brings a tensor `x` of the same shape. Return the `x` of member number `member` on every rank of the team. The
    function in the cell is broken: run the check, find out for which team it goes wrong and why, and repair it.
    Hint: Which rank's numbers did the team get, and which number was `member`?
    Hint: `src` is a rank of the **world**, also inside a group. `member` is a rank of the **group**.
    Hint: Pass `group_src=member` instead of `src`; or translate, `src=dist.get_global_rank(team, member)`.
    Afterwards: Nobody complained about the wrong number, because a rank of that number was in the team. Where none is,
    torch raises an error: the lucky case. `group_src` counts within the group, `dist.get_global_rank(team, member)`
    translates; calls that have a `dst` have a `group_dst` as well.
    """
    got = x.clone()
    dist.broadcast(got, group_src=member, group=team)
    return got


# -- everybody makes every group ----------------------------------------------------------------------------------


def _two_sums(xs: Sequence[Any]) -> list[Any]:
    return [(x if r % 2 else sum(xs[::2]), sum(xs)) for r, x in enumerate(xs)]


def run_two_sums(two_sums, x):
    from labkit.rank import recorder

    sums = two_sums(x)
    made = [None] * world_size
    with recorder.paused():
        dist.all_gather_object(made, dist.distributed_c10d._world.group_count)
    assert len(set(made)) == 1, "Some ranks have made more groups than others: the next new_group would hang."
    return sums


def broken_two_sums(x):
    """Return the sum of x over the even ranks (an odd rank: its own x), and the sum over all."""
    of_leaders, of_all = x.clone(), x.clone()
    if rank % 2 == 0:
        leaders = dist.new_group(range(0, world_size, 2))
        dist.all_reduce(of_leaders, group=leaders)
    dist.barrier()  # the leaders are done
    everyone = dist.new_group(range(world_size))
    dist.all_reduce(of_all, group=everyone)
    return of_leaders, of_all


@exercise(
    "A group for the leaders, and one for all",
    _two_sums,
    minutes=8,
    difficulty=2,
    ranks=(4, 3),
    inputs=lambda n: vectors(n)[:5],
    picture=lambda: [np.array([10.0**r]) for r in range(4)],
    keeps_input=True,
    least=Least(memory=lambda n, S: 2 * S),
    specimen=broken_two_sums,
    harness=run_two_sums,
)
def two_sums(x):
    """Return the sum of x over the even ranks (an odd rank: its own x), and the sum over all.

    The even ranks are leaders. Return two new tensors like `x`: first the sum of `x` over the leaders (a rank that is
    no leader gets its own `x` instead), then the sum over all ranks. Each sum is made in a group of its own. The
    function in the cell is broken. With Gloo, the check names two of its lines, and one of them is right: find out
    which is wrong and why, and repair it.
    Hint: How many groups has each rank made when it comes to the second `new_group`?
    Hint: torch numbers the groups as they are made, and the ranks look for each other under that number.
    Hint: Move the first `new_group` out of the `if`, so that every rank calls it. (`use_local_synchronization=True`
    lets the leaders alone call it, but since torch 2.14 they count that group as well.)
    Afterwards: In a program of your own nobody compares the groups, and the second `new_group` hangs (with NCCL, the
    first one). So when a `new_group` hangs, look for an `if rank` around it, and around the **earlier** ones.
    """
    of_leaders, of_all = x.clone(), x.clone()
    leaders = dist.new_group(range(0, world_size, 2))
    if rank % 2 == 0:
        dist.all_reduce(of_leaders, group=leaders)
    dist.barrier()  # the leaders are done
    everyone = dist.new_group(range(world_size))
    dist.all_reduce(of_all, group=everyone)
    return of_leaders, of_all


# -- who is left --------------------------------------------------------------------------------------------------


@exercise(
    "Who is left?",
    lambda xs: [[r for r, x in enumerate(xs) if x[0]] for _ in xs],
    minutes=8,
    inputs=lambda n: [
        Case([np.array([int(r != 1)]) for r in range(n)], "rank 1 has lost its data"),
        Case([np.array([int(r == n - 1)]) for r in range(n)], f"only rank {n - 1} has its data"),
        Case([np.array([1]) for _ in range(n)], "all have their data"),
        Case([np.array([0]) for _ in range(n)], "nobody has their data"),
        Case([np.array([r % 2], dtype="int32") for r in range(n)], "the odd ranks have theirs, in int32"),
    ],
    least=Least(rounds=lambda n: 1),
)
def who_is_left(alive):
    """Return the ranks whose alive is 1, in increasing order, on every rank.

    Some ranks have lost their data. `alive` is a tensor with one integer: 1 where the rank still has its data, and 0
    where not. All ranks take part. Return the **list of the ranks** that have theirs, as Python integers in increasing
    order, the same list on every rank. The list may be empty.
    Hint: How many ranks are left is a sum. **Who** is left needs a place for each rank.
    Hint: Let every rank make a tensor with `world_size` zeros and write its flag into place `rank`. What is their sum?
    Hint: `flags[rank] = alive`, `dist.all_reduce(flags)`, then list the r for which `flags[r]` is 1.
    Afterwards: A rank that has nothing to give still makes the call: without it the others would wait for ever. An
    all-gather collects the flags with fewer bytes; lesson 04 has it.
    """
    flags = torch.zeros(world_size, dtype=alive.dtype, device=device)
    flags[rank] = alive
    dist.all_reduce(flags)
    return [r for r in range(world_size) if flags[r].item() == 1]


# -- rows and columns ---------------------------------------------------------------------------------------------


def _grid(xs: Sequence[Any], columns: int = 2) -> list[Any]:
    n = len(xs)
    rows = [sum(xs[r // columns * columns + c] for c in range(columns)) for r in range(n)]
    return [(rows[r], sum(xs[q] for q in range(r % columns, n, columns))) for r in range(n)]


@exercise(
    "Rows and columns",
    _grid,
    minutes=15,
    difficulty=3,
    inputs=lambda n: [
        *([Case(counting(n, 2), "a square", {"columns": 2})] if n == 4 else []),
        Case(counting(n, 3), "one row", {"columns": n}),
        Case(counting(n, 3), "one column", {"columns": 1}),
        Case(counting(n, 5, "float64"), "one row, float64", {"columns": n}),
    ],
    keeps_input=True,
    picture=lambda: [np.array([10.0**r]) for r in range(4)],
    least=Least(sent=lambda n, S: 2 * (n - 1) / n * S, memory=lambda n, S: 2 * S),
)
def grid_sums(x, columns):
    """Return the sum of x over this rank's row and over its column of the grid.

    Put the ranks into a grid with `columns` columns, row by row: with 4 ranks and 2 columns, ranks 0 and 1 are the
    first row, ranks 0 and 2 the first column. Every rank brings a tensor `x` of the same shape. Return two new tensors:
    the sum over **your row** and the sum over **your column**. `columns` divides `world_size`.
    Hint: How many rows are there, how many columns, and which ranks are in each? Write the lists down for 4 ranks.
    Hint: Every rank makes **all** groups, in the same order, and keeps those that it is in.
    Hint: A loop over the rows, a loop over the columns; in each `group = dist.new_group(ranks)`, and `if rank in ranks`
    keep it. Then two all-reduces, on two copies of `x`.
    Afterwards: Such a grid is how data and tensor parallelism share the ranks: weights are split along a row, gradients
    are averaged down a column. `torch.distributed.device_mesh.init_device_mesh` makes these groups for you.
    """
    rows = [range(first, first + columns) for first in range(0, world_size, columns)]
    upright = [range(first, world_size, columns) for first in range(columns)]
    sums = []
    for cut in (rows, upright):
        for ranks in cut:
            group = dist.new_group(ranks)
            if rank in ranks:
                mine = group
        total = x.clone()
        dist.all_reduce(total, group=mine)
        sums.append(total)
    return sums[0], sums[1]
