"""The predictions of the capstone: what a mesh sends, who averages with whom, what a checkpoint needs, what is lost."""

from labkit.grading.prediction import ask, series

least_sent_on_a_mesh = ask("""
Four ranks train a transformer of four layers of width 32: 53,476 parameters in float32. A batch has 96 rows of 8
characters, 768 tokens. On which of the five meshes does the busiest rank send the **fewest** bytes in a training step?
( ) data 4: only the gradients are sent, once a training step
    > That would be true if the model were smaller. But it has 214 kB of gradients, and in an all-reduce among four,
    each rank sends 1.5 times as much.
( ) tensor 4: every rank holds a quarter of the weights, so no gradient travels
    > No gradient travels, but the activations of every layer do, four times: this mesh sends the most.
( ) pipe 4: only what passes from stage to stage
    > Close. But a middle stage sends the activations of the whole batch in one direction, and their gradients in the
    other.
( ) data 2 x tensor 2: half the gradients, and half the activations
    > Half of the activations is still a lot: a training step has sixteen all-reduces of them, which take far more
    than the gradients.
(x) data 2 x pipe 2: half the gradients, and one boundary
Why: The mesh of data 2 x pipe 2. A rank all-reduces the gradients of half of the model with one other rank, and passes
the activations of half of the batch over one boundary, in one direction. Both halves help: cutting the model shrinks
the gradients, and cutting the batch shrinks the activations.
""")

on_a_mesh = series(
    """
Four ranks in a mesh of data 2 x tensor 2:
""",
    mates_of_rank_3="""
A mesh of data 2 x tensor 2: ranks 0 and 1 hold one copy of the model, ranks 2 and 3 the other. With which ranks does
rank 3 average the gradient of its half of a layer's columns?
( ) with rank 2, which holds the other half
    > Rank 2 has the gradient of **other** columns. They have the same shape, so the average would raise no error, and
    it would be nonsense.
( ) with ranks 0, 1 and 2, as always in data parallelism
    > That would be true if all four held the same weights. Ranks 0 and 2 have other columns than rank 3.
(x) with rank 1, which holds the same half
( ) with none: tensor parallelism leaves the gradients where they are
    > That would be true in a mesh of tensor 4. Here there is a second copy, which has seen other rows.
Why: With rank 1. It has the same place along tensor, so it holds the same columns of the other copy, and it has read
other rows. Gradients are averaged over the ranks that hold **the same part**: that is what a data group is.
""",
    rows_of_rank_3="""
The batch has rows 0 to 95. On the mesh of data 2 x tensor 2, which rows does rank 3 read, if the four ranks are to take
the training step of one process?
( ) 72 to 95, the last quarter
    > That would be true in a mesh of data 4. Here rank 3 computes half of every layer, and rank 2 the other half: for
    the same rows, or their sum means nothing.
(x) 48 to 95, as rank 2 does
( ) 48 to 95, and rank 2 reads 0 to 47
    > Ranks 2 and 3 are one copy. Each has half of every layer, and they add up parts that belong to the same rows.
( ) 0 to 95, like everybody
    > That would be true in a mesh of tensor 4. Two copies that read all rows would compute everything twice.
Why: 48 to 95, and so does rank 2. The ranks of a team compute parts of the same activations, so they read the same
rows, and the same noise. The share goes by the place along **data**: number 1 of 2.
""",
    gradients_that_all_have="""
Norms and embeddings are not cut: ranks 2 and 3 both hold them whole. After the backward pass, before anything is
averaged, how do the two ranks' gradients of a norm compare?
( ) each has a part, and the team has to add them up
    > That would be true with sequence parallelism, where each rank has seen a part of the positions; then this sum is
    needed. Here *f* has added up what flows back into the norm.
( ) they differ by rounding, so they have to be averaged now and then
    > That would be true if the two added in different orders. Gloo's all-reduce leaves the same bits on both.
(x) they are equal, to the last bit
( ) rank 2 has them, and rank 3 has zeros
    > No rank is special: both run the same norm on the same activations, forward and backward.
Why: They are equal. Before each cut layer, *f* adds up over the team what flows back, so both ranks carry on with
the same whole gradient, and everything that is not cut gets the same. Nothing has to be summed over the team
afterwards.
""",
    what_copies_differ_in="""
Ranks 0 and 2 hold the same part of the model, in two copies. Both have weights, Adam's moments, the number of the
training step, and a reader with its random generator. Right after a training step, in what do the two differ?
( ) in nothing: copies are equal
    > The model's are. But the two read different rows, with different noise, and the next random number is part of
    the state of training, too.
( ) in the moments: each Adam has seen the gradients of its own rows
    > That would be true if each copy stepped with its own gradients. Both step with the mean.
( ) in weights and moments, a little, by rounding
    > That would be true if they computed with different numbers. They step with the same bits.
(x) in the reader's random generator alone
Why: In the reader's generator alone. Weights and moments are equal to the last bit, so one copy of them is enough in a
checkpoint. But each copy's reader draws a noise of its own, so the checkpoint needs the readers of **all** copies, or
the second one goes on with the noise of the first.
""",
)

after_the_kill = series(
    """
Rank 2 is killed after 27 training steps, with checkpoints of steps 10 and 20:
""",
    who_goes_back="""
Checkpoints are saved after steps 10 and 20. In the 28th training step rank 2 is killed. Ranks 0, 1 and 3 are alive,
with their variables. The group is joined again, with a new rank 2. Who loads the checkpoint of step 20?
( ) rank 2 alone: the others have all they need
    > Then ranks 0, 1 and 3 are at step 27 and rank 2 at step 20. Their weights belong to different steps, and nothing
    would complain.
( ) ranks 2 and 3: their copy is broken, and the other one is whole
    > Then the two copies differ, in weights and in moments, and averaging their gradients never makes them equal
    again.
(x) all four
( ) none: rank 0 holds the same part, and sends it to rank 2
    > The weights and the moments could come from there, without going back, and some systems do so. But the generator
    would have to come from rank 3, which reads the same rows as rank 2, and the survivors need not have stopped at
    the same line.
Why: All four. A checkpoint is the state of the whole mesh at one training step. A mesh that mixes two steps is in a
state that no run has ever been in. The price is the work since step 20, on every rank.
""",
    groups_of_the_old_world="""
Rank 2 has been replaced, and the process group is joined again. Ranks 0, 1 and 3 still have the variable `groups`. What
does an all-reduce in `groups["tensor"]` do on ranks 0 and 1, neither of which died?
( ) it works: both members are alive
    > That would be true if a group were a list of ranks. It is a set of connections, and it belongs to the world that
    it was made in.
(x) it raises an error on both
( ) it hangs: the group waits for a rank that is gone
    > No rank of this group is gone. But torch knows only the groups of the present world, and this one is no longer
    among them.
( ) it adds up over the new ranks 0 and 1 as before, because groups go by number
    > Groups do find each other by number, when they are made. This one was made in the old world.
Why: It raises an error. When a rank dies, the world is left and joined anew, and all groups of the old world are gone.
So all ranks make the groups of a mesh again after each heal, before anything else.
""",
    loss_after_the_loss="""
The mesh goes on from step 20 and trains until step 40. How does its last loss compare with that of the run that nobody
disturbed, on the same CPUs?
( ) a little higher: seven training steps were lost
    > They were lost, and then done again with the same rows. They cost time and nothing else.
( ) equal to about six digits: rounding
    > That would be true if something were added in a different order. The same ranks do the same operations on the
    same bits.
( ) similar: after a restart the noise is different
    > That would be true if the generators were not in the checkpoint.
(x) equal, to the last bit
Why: Equal, to the last bit. Weights, moments, step and generators are all that the next training step depends on, and
on these CPUs with Gloo the same operations on the same bits give the same bits. (On GPUs some kernels and algorithms
add in an order that may change from run to run; then equal to rounding is what you get.)
""",
)

without_a_rank = ask("""
Each of four ranks holds a whole copy of a small model, and they share the 240 rows of every batch: 60 rows for each.
After 15 training steps rank 1 dies. The other three go on as a group of three, with 80 rows for each, and without a
checkpoint. How does their loss go on, compared with that of four ranks that nobody disturbs?
( ) it jumps up: a quarter of what was learnt is gone
    > That would be true if each rank held a quarter of the model. Each holds all of it, and rank 1 had nothing that the
    others lack.
( ) it goes on a little higher: three ranks learn less from a batch than four
    > That would be true if every rank kept to its 60 rows. Three shares of 80 rows are the whole batch again.
( ) it goes on as before, if the learning rate is lowered by a quarter
    > Some lower it when batches get smaller. Here the batch is as large as ever, and so is the step to take.
(x) it goes on as before, up to rounding
( ) it goes on as before, to the last bit
    > That would be true if the same numbers were added in the same order. Three partial sums are rounded differently
    from four.
Why: As before, up to rounding. The weights are whole on every rank, and the mean gradient of the 240 rows is the same
however many ranks add it up. What changes is the time: each of three ranks computes a third more.
""")

killed_while_saving = ask("""
In the second run rank 1 is killed while it writes its part of the checkpoint of step 30: half of the bytes are on the
disk. Checkpoints are saved every ten steps, and the run began at step 0. How many finished training steps have to be
done **again**?
= 10.0 +- 0 %
( ) 0
    > That would be true if the checkpoint of step 30 counted. A part of it is missing.
( ) 30
    > That would be true if each checkpoint replaced the one before it. Each has a folder of its own.
( ) 1
    > The last training step itself was finished. What is missing is its checkpoint.
( ) 9
    > Steps 21 to 30 are ten.
Why: Ten. The folder of step 30 is there, with the parts of the ranks that were faster, and without `complete`. So the
newest checkpoint that counts is that of step 20, and steps 21 to 30 are done again. Had rank 1 written over the files
of step 20, all thirty would be gone.
""")

smallest_team = ask("""
A transformer of 66.6 billion parameters is trained with Adam in mixed precision: 16 bytes a parameter. A GPU has 80 GB.
Leave activations out. At least how many GPUs have to share one copy (tensor times pipe), if the number is a power of
two and ZeRO is not used?
= 16.0 +- 0 %
( ) 14
    > 14 GPUs have 1,120 GB, which is enough. But 14 is not a power of two.
( ) 2
    > That is for the weights alone, at 2 bytes each. Gradients and Adam's states come on top.
( ) 4
    > That is for weights and gradients. Adam's states take three quarters of the memory.
( ) 8
    > 8 GPUs have 640 GB, and the copy takes 1,066.
( ) 32
    > 32 is what you need once there are activations. The question leaves them out.
( ) 64
    > That would leave no room for a second copy, and 16 GPUs are enough without activations.
Why: The copy takes 16 times 66.6 billion bytes, 1,066 GB, and 14 GPUs have 1,120 GB. The next power of two is 16, which
leaves 13 GB on each for activations: too few, as you will see.
""")
