"""The predictions of lesson 01: what a number names in a group, who has to make one, what a dead rank takes along."""

from labkit.grading.prediction import SEEN, ask

share_in_a_team = ask("""
Each team reads all 240 rows of a batch, numbered 0 to 239, and its members share them equally. There are four ranks,
and ranks 2 and 3 are the upper team. Which rows are rank 3's?
( ) 180 to 239, the last quarter
    > Those are rank 3's rows where all four ranks share one batch, as in lesson 00. The upper team would then read
    rows 120 to 239 only, and never see the first half of any batch.
(x) 120 to 239, the second half
( ) all 240
    > Then both members of a team would compute the same gradient, and one of them would be superfluous.
Why: Rows 120 to 239, the second half. Within its team rank 3 is number 1 of 2, and that is what its share of the batch
goes by: `dist.get_rank(team)` and `dist.get_world_size(team)`, not `rank` and `world_size`.
""")

src_in_a_group = ask("""
Each team now broadcasts the `y` of one member to the whole team. The next cell says `src=0` on every rank. What does it
do in the upper team, ranks 2 and 3?
( ) both get rank 2's y: it is number 0 of their team
    > That would be true if `src` counted within the group. It does not.
( ) both get rank 0's y
    > Rank 0 is not in their group, and a collective moves data among the members of its group only.
(x) it raises an error on both
Why: It raises an error on both: *Global rank 0 is not part of group*. `src` is a rank of the **world**, even where a
`group` is given. In the lower team `src=0` works, because there rank 0 happens to be number 0. Such code passes every
test in which there is one group only.
""")

new_group_by_members = ask(f"""
In the next cell only the even ranks call `new_group`, to make a group of the even ranks. What happens?
( ) it raises an error at once
    > That would need somebody who knows that the odd ranks do not call it. No rank knows what the others do.
(x) nothing that you can see
( ) the even ranks wait for the odd ones
    > They would if `new_group` ended in a barrier of all ranks. To connect, the members only need each other.
Why: Nothing that you can see: no error, no wait, and the group even works. The **next** `new_group` fails, though its
line is correct and every rank calls it. torch numbers the groups as they are made, and ranks look for each other under
that number. The even ranks are one ahead now, so they look in a different place than the odd ranks. The lab compares
what the ranks make under a number, and has named both groups with their lines. torch does not: a program of your own
hangs.
Elsewhere: **With NCCL**, on GPUs, the even ranks wait at once, in the `new_group` that only they call: torch makes the
group out of the world's, and needs all ranks of the world for that. {SEEN}
On NCCL: the even ranks wait for the odd ones
( ) nothing that you can see
    > This is what happens with Gloo, where the members only need each other to connect. NCCL's group is split off the
    world's, and all ranks of the world take part in that.
Why: The even ranks wait for the odd ones. With a `device_id`, which the lab passes, torch makes a group by splitting
the world's communicator, and **every** rank of the world takes part in a split, member or not. The odd ranks never come
to it. {SEEN} The lab has freed the even ranks and joined
all of them anew, so the next `new_group`, which every rank calls, worked. A program of your own hangs at the first.
Elsewhere: **With Gloo**, on CPUs, you would have seen nothing: no error, no wait, and the group even works. The *next*
`new_group` fails, though every rank calls it, because torch numbers the groups, and the even ranks are one ahead. So
the mistake shows up in a different line.
""")

left_after_death = ask("""
Every rank holds a trained `model`, and the members of a team hold the same one. Rank 1 now kills itself, with the
signal that no process can refuse. Which ranks have a `model` afterwards?
( ) none: the job is dead
    > That is what `torchrun` does: it ends the other workers, and they all start again from a checkpoint. The lab
    keeps the survivors, because you are in the middle of a lesson.
(x) all but rank 1
( ) all: rank 0 holds the same model, so rank 1 gets it from there
    > It could, if somebody sent it. Nothing crosses from one process to another unless both take part.
Why: All but rank 1. The survivors are the same processes as before, with the same variables. Rank 1 is a **new**
process: it has a place in the group, and the imports and functions of your cells, but the old one's variables are gone.
The process group is new as well, so the groups that you made belong to a world that is gone.
""")
