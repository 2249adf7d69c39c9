"""Predictions of lesson 09: what keeps copies equal, who decides about buckets, and what goes wrong in silence."""

from labkit.grading.prediction import SEEN, ask, series

drift_then_average = ask("""
For 20 training steps each rank trains alone, so the four copies of a weight differ. From then on the ranks average
their **gradients** in every step, as in lesson 00. What becomes of the four copies in the next 20 training steps?
( ) they come together within a few training steps
    > This would be true if the **weights** were averaged. The average gradient is one number for everybody, and two
    weights from which you subtract the same number keep their difference.
( ) they come together slowly: each training step takes a part of the difference away
    > This would be true if each rank were pulled towards the others. Nothing here knows how far apart the copies are.
(x) their distances stay exactly as they are
( ) they drift on, more slowly than before
    > This would be true if the ranks still took different steps. From training step 20 on all of them take the same
    one.
Why: The distances stay exactly as they are: four parallel lines. Every rank subtracts the same average. By now that
average is not even the gradient of any one model: its four parts were computed at four different places.

Equal steps keep equal copies equal, and different copies different. So they have to **begin** equal, and after the
broadcast at training step 40 they are one line.
""")

first_backward = ask("""
`DistributedDataParallel` fills buckets of 25 MiB, and its first bucket holds only 1 MiB, so that something leaves
early. The gradients of this transformer are 54 tensors of 12.1 MiB together. How many all-reduces do you see in the
**first** backward pass?
( ) 54, one for each tensor
    > This would be true of hooks that average each gradient on its own, as in your first exercise.
( ) 2: a bucket of 1 MiB, and one with the rest
    > This comes true in the second backward pass. In the first one DDP does not know yet in which order the gradients
    will come.
(x) 1, with all gradients in it
( ) 13: twelve of 1 MiB, and what is left over
    > This would be true with `bucket_cap_mb=1`, from the second backward pass on.
Why: One, with all 54 gradients in it, so nothing overlaps in the first training step. DDP does not know in which order
the gradients become ready, and a bucket that fills late holds up all others behind it. So it puts everything into one
bucket, writes down the order, and fills the buckets anew before the second training step: the first one holds 1 MiB or
a little more, as a tensor is never cut in two.

Rank 0's order counts. It is broadcast, so that all ranks have the same buckets.
""")

six_surprises = series(
    """
Six things that happen to people who train with several ranks. What do you expect? The cells below run them, one after
the other.
""",
    surprise_order="""
Two buckets are equally large. Rank 1 all-reduces bucket 1 first and then bucket 0, the other ranks the other way round:
( ) the right numbers: a sum has no order
    > The order of the **terms** does not matter. Here different things are added up.
( ) a deadlock
    > Every rank makes two calls of the same kind and size. They pair up, only wrongly.
(x) wrong numbers, and no error
( ) an error
    > With buckets of different lengths you might get one. Here kind, length and dtype agree.
Why: Every rank has wrong numbers. A collective has no name: the first call meets the others' first call. Rank 1's
bucket 1 is added to the others' bucket 0, and the lengths fit.
""",
    surprise_unused=f"""
One layer of the model takes no part in the forward pass. DDP as it is, without options:
( ) nothing special: this layer has no gradient, as in one process
    > One process needs no agreement. Here a bucket waits for the gradients of that layer.
(x) the first training step seems to work, and the second one raises an error
( ) the first backward pass raises an error
    > DDP can only know that a gradient will not come when the next forward pass begins.
( ) the first backward pass hangs
    > It hangs if some ranks use the layer and others do not: see the last case that was run, where rank 0 waits for
    ranks that never come. Here no rank's bucket is ever full, so nobody has called anything to wait in.
Why: The second forward pass raises. In the first backward pass the bucket waits for gradients that do not come, so it
never leaves, and `backward()` returns all the same: **nothing** has been averaged. If only rank 0 uses the layer, as in
the last case that was run, it is worse: rank 0's bucket is full and leaves, and rank 0 waits for the others' buckets,
which never do. `find_unused_parameters=True` helps in both cases.
Elsewhere: **With NCCL**, rank 0 of that last case also waits, but not in `backward()`: the call returned, and rank 0
waited later, where it needed something from the GPU. {SEEN}
""",
    surprise_join="""
The last rank has one batch more than the others. Inside `with ddp.join():` ranks that are done still answer its calls.
The last rank's gradient in its extra training step is:
( ) its own, as it is alone
    > With `join(divide_by_initial_world_size=False)` it would be, and then the rows of one rank move the weights as
    far as the rows of all ranks do.
( ) averaged with the last gradients of the others
    > The others bring zeros. What lies in their `p.grad` stays where it is.
( ) none: the extra training step is left out
    > Without `join` the last rank would hang in it. With `join` it is done, in a way of its own.
(x) its own, divided by the number of ranks
Why: The ranks that have no batch bring zeros, and the sum is divided by the number of all ranks, N. So the training
step is N times shorter than its rows deserve.
""",
    surprise_penalty="""
The loss has a penalty on the mean guess of all ranks' rows. The mean is computed by `dist.all_reduce`, and DDP's hooks
average the gradients. The gradient of the penalty:
( ) is right: the averaging puts it right
    > The average of N gradients that are too small is too small.
(x) is N times too small
( ) is zero: an all-reduce cuts the graph
    > It would be zero with `detach()`. As it is, the gradient passes through the all-reduce as if that did nothing.
( ) is N times too large: it is counted on every rank
    > This happens the other way round: with a differentiable sum over the ranks and **no** division.
Why: Each rank's own rows are a part 1/N of the mean. Autograd does not see the all-reduce, so what these rows do to the
**other** ranks' losses is missing, and that is N − 1 parts of N. The loss itself is right to the last digit.
""",
    surprise_dropout="""
Every rank calls `torch.manual_seed(0)`, builds the model and trains. The model has dropout. The units that are switched
off are:
( ) different on each rank, since each rank has different rows
    > Dropout does not look at the rows. It draws from the rank's random numbers, and those are equal.
(x) the same on all ranks
( ) the same on all ranks, and the same in every training step
    > The numbers go on from step to step. They do so in the same way everywhere.
Why: The same seed draws the same numbers. The noise is less random than one process would have with the same batch.
After the model is built, give each rank a seed of its own.
""",
    surprise_crash="""
`torch.save(state, path)` writes over the only checkpoint. Rank 0 is killed in the middle of it. Under `path` there is:
( ) the old checkpoint
    > This would be true if the new one were written beside it and took its name at the end.
( ) the new checkpoint, for the operating system finishes the writing
    > It finishes what it was given. The second half never left the process.
( ) no file
    > Nobody removes it. It is there, and it has a length.
(x) half a file, which nobody can load
Why: Opening the file for writing empties it, and then it is filled from the front. The old checkpoint is lost at the
first byte, the new one is not there before the last.
""",
)
