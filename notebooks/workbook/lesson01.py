"""Lesson 01: teams of ranks, whom a number names in them, who has to make one, and who is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Least, exercise
from labkit.grading.inputs import Case, counting, normals, vectors
from labkit.grading.prediction import SEEN, ask
from labkit.theory import collectives
from workbook.harnesses import as_many_groups, my_group, with_gradients
from workbook.lesson00 import gradients_of

if TYPE_CHECKING:
    from labkit.rank.cell_names import device, dist, everyones, name_it, rank, torch, world_size


def _teams(n: int, split: int | None) -> list[range]:
    """Return the team of each rank; halves where nothing is said."""
    split = n // 2 if split is None else split
    return [range(split) if r < split else range(split, n) for r in range(n)]


def _team_means(xs: Sequence[Any], split: int | None = None) -> list[Any]:
    return [collectives.all_reduce([xs[r] for r in team], op="AVG")[0] for team in _teams(len(xs), split)]


def _team_gradients(n: int) -> list[Case]:
    drawn = normals(n, np.random.default_rng(n), ((4, 3), (4,), (2, 4)))
    half = {"split": n // 2}
    return [
        Case(counting(n, 3), "one parameter", half),
        Case([(x, 100 + x[:2]) for x in counting(n, 4)], "two parameters", half),
        Case(counting(n, 2), "rank 0 is a team of its own", {"split": 1}),
        Case(drawn, f"rank {n - 1} is a team of its own", {"split": n - 1}),
    ]


def _team(split):
    """Make both teams on every rank, those below `split` and the others; return this rank's."""
    return my_group([range(split), range(split, world_size)])


def run_average_in_team(fn, *grads, split):
    """Average the gradients, and name what a sum over all ranks gives, or a division by their number."""
    model, team, everyone = with_gradients(*grads), _team(split), everyones(grads)
    mates = everyone[:split] if rank < split else everyone[split:]

    def added(ranks, divisor):
        sums = [sum(same) / divisor for same in zip(*ranks)]
        return sums if len(sums) > 1 else sums[0]

    out = gradients_of(fn(model, team), model)
    slips = {
        "adds up over all ranks: pass `group=team`": added(everyone, len(mates)),
        "divides by the number of all ranks, and not of the team's": added(mates, world_size),
        "averages over all ranks, and not over the team's": added(everyone, world_size),
    }
    name_it(out, added(mates, len(mates)), slips)
    return out


@exercise(
    "The mean gradient of a team",
    _team_means,
    minutes=5,
    ranks=(4, 3, 2),
    inputs=_team_gradients,
    picture=lambda: counting(4, 3),
    # One team is a single rank, which needs no message; the given loop makes a call for each parameter.
    least=Least(sent=lambda n, S: 2 * (n - 2) / (n - 1) * S, memory=lambda n, S: 0),
    harness=run_average_in_team,
)
def average_in_team(model, team):
    """Replace each gradient of the model by its mean over the ranks of the team.

    The ranks are in two teams, and each team trains its own model. `team` is this rank's group; a team has one rank or
    more, and the two may differ in size. Replace **each** gradient of the model by its mean over the
    ranks of **this rank's team**, in place. Leave the weights as they are. Return nothing.
    Hint: Take the two lines of lesson 00, and change one thing in each.
    Hint: `dist.all_reduce` takes `group=`, by name, because its second argument is the operation. How many gradients
    did the sum add up? Not `world_size` of them.
    Hint: `dist.all_reduce(p.grad, group=team)`, then divide by `dist.get_world_size(team)`.
    Afterwards: With its own group, a team has its own ranks, its own size, and collectives that no rank outside takes
    part in.
    """
    for p in model.parameters():
        # yours
        dist.all_reduce(p.grad, group=team)
        p.grad /= dist.get_world_size(team)
        # end


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


def broken_from_member(x, team, member):
    got = x.clone()
    dist.broadcast(got, src=member, group=team)
    return got


@exercise(
    "A team mate's numbers",
    lambda xs, split=None: [xs[team[xs[r][1]]][0] for r, team in enumerate(_teams(len(xs), split))],
    minutes=5,
    ranks=(4, 3, 2),
    inputs=_members,
    keeps_input=True,
    picture=lambda: [(x, 1) for x in counting(4, 3)],
    # One team is a single rank, which needs no message; the card asks for a repair, not for fewer bytes.
    least=Least(rounds=lambda n: min(1, n - 2), memory=lambda n, S: min(1, n - 2) * S),
    setup=lambda x, member, split: (x, _team(split), member),
)
def from_member(x, team, member):
    """Return the x of the team's member of this number, on every rank of the team.

    The ranks are in two teams, `team` is this rank's group, and `member` counts within the team, from 0. Every rank
    brings a tensor `x` of the same shape. Return the `x` of member number `member` on every rank of the team. The
    function in the cell is broken: run the check, find out for which team it goes wrong and why, and repair it.
    Hint: Which rank's numbers did the team get, and which number was `member`?
    Hint: `src` is a rank of the **world**, even if you pass a group. `member` is a rank of the **group**.
    Hint: Pass `group_src=member` instead of `src`; or translate the number: `dist.get_global_rank(team, member)`.
    Afterwards: The wrong number raised no error, because the team had a rank of that number. If it had none, torch
    would have raised an error, as in the lesson. `group_src` counts within the group, and
    `dist.get_global_rank(team, member)` translates a number. Calls that have a `dst` have a `group_dst` as well.
    """
    got = x.clone()
    dist.broadcast(got, group_src=member, group=team)
    return got


def broken_two_sums(x):
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
    lambda xs: [(x if r % 2 else sum(xs[::2]), sum(xs)) for r, x in enumerate(xs)],
    minutes=8,
    difficulty=2,
    ranks=(4, 3),  # of two, a leader is a group of its own, whose address the other one takes for one of all
    inputs=lambda n: vectors(n)[:5],
    picture=lambda: [np.array([10.0**r]) for r in range(4)],
    keeps_input=True,
    least=Least(memory=lambda n, S: 2 * S),
    collect=as_many_groups,
)
def two_sums(x):
    """Return the sum of x over the even ranks (an odd rank: its own x), and the sum over all.

    The even ranks are leaders. Return two new tensors like `x`: first the sum of `x` over the leaders (a rank that is
    not a leader returns its own `x` instead), then the sum over all ranks. Make a separate group for each sum. The
    function in the cell is broken. With Gloo, the check names two of its lines, and one of them is right: find out
    which one is wrong and why, and repair it.
    Hint: How many groups has each rank made when it comes to the second `new_group`?
    Hint: torch numbers the groups in the order in which they are made, and ranks find each other by that number.
    Hint: Move the first `new_group` out of the `if`, so that every rank calls it. (`use_local_synchronization=True`
    lets the leaders alone call it, but since torch 2.14 they count that group as well.)
    Afterwards: Outside the lab nothing compares the groups, and the second `new_group` hangs (with NCCL, the first
    one). So when a `new_group` hangs, look for an `if rank` around it, and around the **earlier** ones.
    """
    of_leaders, of_all = x.clone(), x.clone()
    leaders = dist.new_group(range(0, world_size, 2))
    if rank % 2 == 0:
        dist.all_reduce(of_leaders, group=leaders)
    dist.barrier()  # the leaders are done
    everyone = dist.new_group(range(world_size))
    dist.all_reduce(of_all, group=everyone)
    return of_leaders, of_all


@exercise(
    "Who is left?",
    lambda xs: [[r for r, x in enumerate(xs) if x[0]] for _ in xs],
    minutes=8,
    inputs=lambda n: [
        Case([np.array([int(r != 1)]) for r in range(n)], "rank 1 has lost its data"),
        Case([np.array([int(r == n - 1)]) for r in range(n)], f"only rank {n - 1} has its data"),
        Case([np.array([1]) for _ in range(n)], "all ranks have their data"),
        Case([np.array([0]) for _ in range(n)], "no rank has its data"),
        Case([np.array([r % 2], dtype="int32") for r in range(n)], "the odd ranks have theirs, in int32"),
    ],
    least=Least(rounds=lambda n: 1),
)
def who_is_left(alive):
    """Return the ranks whose alive is 1, in increasing order, on every rank.

    Some ranks have lost their data. `alive` is a tensor with one integer: 1 if this rank still has its data, 0 if not.
    All ranks take part. Return the **list of the ranks** that have theirs, as Python integers in increasing
    order, the same list on every rank. The list may be empty.
    Hint: A sum would tell you how many ranks are left. To learn **which** ones, you need a place for each rank.
    Hint: Let every rank make a tensor with `world_size` zeros and write its flag into place `rank`. What is the sum of
    these tensors?
    Hint: `flags[rank] = alive`, `dist.all_reduce(flags)`, then list the r for which `flags[r]` is 1.
    Afterwards: A rank that has nothing to contribute still makes the call; otherwise the others would wait for ever. An
    all-gather collects the flags with fewer bytes: see lesson 04.
    """
    flags = torch.zeros(world_size, dtype=alive.dtype, device=device)
    flags[rank] = alive
    dist.all_reduce(flags)
    return [r for r in range(world_size) if flags[r].item() == 1]


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
    least=Least(sent=lambda n, S: 2 * (n - 1) / n * S, memory=lambda n, S: 2 * S),  # one row, columns of one rank
)
def grid_sums(x, columns):
    """Return the sum of x over this rank's row and over its column of the grid.

    Put the ranks into a grid with `columns` columns, row by row: with 4 ranks and 2 columns, ranks 0 and 1 are the
    first row, ranks 0 and 2 the first column. Every rank brings a tensor `x` of the same shape. Return two new tensors:
    the sum over **your row** and the sum over **your column**. `columns` divides `world_size`.
    Hint: How many rows are there, how many columns, and which ranks are in each? Write the lists down for 4 ranks.
    Hint: Every rank makes **all** groups, in the same order, and keeps those that it is in.
    Hint: A loop over the rows, a loop over the columns; in each `group = dist.new_group(ranks)`, and `if rank in ranks`
    keep it. Then make two all-reduces, on two copies of `x`.
    Afterwards: Data and tensor parallelism share the ranks in such a grid: weights are split along a row, gradients are
    averaged down a column. `torch.distributed.device_mesh.init_device_mesh` makes these groups for you.
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


share_in_a_team = ask("""
Each team reads all 240 rows of a batch, numbered 0 to 239, and its members share them equally. There are four ranks,
and ranks 2 and 3 are the upper team. Which rows are rank 3's?
( ) 180 to 239, the last quarter
    > Those are rank 3's rows if all four ranks share one batch, as in lesson 00. The upper team would then read
    rows 120 to 239 only, and never see the first half of any batch.
(x) 120 to 239, the second half
( ) all 240
    > Then both members of a team would compute the same gradient, and one of them would be superfluous.
Why: Rows 120 to 239, the second half. Within its team rank 3 is number 1 of 2, and these two numbers decide which rows
it gets: `dist.get_rank(team)` and `dist.get_world_size(team)`, not `rank` and `world_size`.
""")

src_in_a_group = ask("""
Each team now broadcasts the `y` of one member to the whole team. The next cell says `src=0` on every rank. What does it
do in the upper team, ranks 2 and 3?
( ) both get rank 2's y: it is number 0 of their team
    > That would be true if `src` counted within the group. It does not.
( ) both get rank 0's y
    > Rank 0 is not in their group, and a collective moves data among the members of its group only.
(x) it raises an error on both
Why: It raises an error on both: *Global rank 0 is not part of group*. `src` is a rank of the **world**, even if you
pass a `group`. In the lower team `src=0` works, because there rank 0 happens to be number 0. Such code passes every
test that has only one group.
""")

new_group_by_members = ask(f"""
In the next cell only the even ranks call `new_group`, to make a group of the even ranks. With this lab's backend, what
happens?
( ) it raises an error at once
    > To raise an error, torch would have to know that the odd ranks do not call it. No rank knows what the others do.
(x) nothing that you can see
( ) the even ranks wait for the odd ones
    > They would if `new_group` ended in a barrier of all ranks. To connect, the members only need each other.
Why: Nothing that you can see: no error, no wait, and the group even works. The **next** `new_group` fails, though its
line is correct and every rank calls it. torch numbers the groups in the order in which they are made, and ranks find
each other by that number. The even ranks are now one group ahead, so they use a different number from the odd ranks.
The lab compares the groups that the ranks make under one number, and named both, with their lines. torch does not
compare them: outside the lab, your program hangs.
Elsewhere: **With NCCL**, on GPUs, the even ranks wait at once, in the `new_group` that only they call: torch splits
the group off the world's, and needs all ranks of the world for that. {SEEN}
On NCCL: the even ranks wait for the odd ones
( ) nothing that you can see
    > This is what happens with Gloo, where the members only need each other to connect. With NCCL the group is split
    off the world's, and all ranks of the world take part in that.
Why: The even ranks wait for the odd ones. With a `device_id`, which the lab passes, torch makes a group by splitting
the world's communicator, and **every** rank of the world takes part in a split, member or not. The odd ranks never come
to it. {SEEN} The lab has freed the even ranks and joined
all of them anew, so the next `new_group`, which every rank calls, worked. Outside the lab, your program hangs in the
first one.
Elsewhere: **With Gloo**, on CPUs, you would have seen nothing: no error, no wait, and the group even works. The *next*
`new_group` fails, though every rank calls it, because torch numbers the groups, and the even ranks are one group ahead.
So the error is raised in a different line from the mistake.
""")

left_after_death = ask("""
Every rank holds a trained `model`, and the members of a team hold the same one. Rank 1 now kills itself, with the
signal that no process can refuse. Which ranks have a `model` afterwards?
( ) none: the job is dead
    > That is how `torchrun` handles it: it ends the other workers, and they all start again from a checkpoint. The
    lab keeps the survivors, because you are in the middle of a lesson.
(x) all but rank 1
( ) all: rank 0 holds the same model, so rank 1 gets it from there
    > It could, if rank 0 sent it. Nothing gets from one process to another unless both take part.
Why: All but rank 1. The survivors are the same processes as before, with the same variables. Rank 1 is a **new**
process: it has a place in the group, and the imports and functions of your cells, but the old one's variables are gone.
The process group is new as well, so the groups that you made in the old one no longer work.
""")
