"""Predictions of lesson 09b: what goes wrong in silence, and the learning rate of a larger batch."""

from labkit.grading.prediction import SEEN, ask, series

six_surprises = series(
    """
Six things that happen to people who train with several ranks. What do you expect? The cells below run them in this
order.
""",
    surprise_order="""
Two buckets have the same size. Rank 1 all-reduces bucket 1 first and then bucket 0; the other ranks do the opposite.
What do you get?
( ) the right numbers: a sum has no order
    > The order of the **terms** does not matter. Here, numbers of different buckets are added up.
( ) a deadlock
    > Every rank makes two calls of the same kind and size. They do pair up, but wrongly.
(x) wrong numbers, and no error
( ) an error
    > With buckets of different lengths you might get one. Here kind, length and dtype agree.
Why: Every rank has wrong numbers. A collective has no name: the first call meets the others' first call. Rank 1's
bucket 1 is added to the others' bucket 0, and the lengths fit.
""",
    surprise_unused=f"""
One layer of the model takes no part in the forward pass. What does DDP do without any options?
( ) nothing special: this layer has no gradient, as in one process
    > One process has nothing to exchange. Here a bucket waits for the gradients of that layer.
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
The last rank has one batch more than the others. Inside `with ddp.join():`, ranks that are done still answer its calls.
What is the last rank's gradient in its extra training step?
( ) its own, as it is alone
    > With `join(divide_by_initial_world_size=False)` it would be, and then the rows of one rank move the weights as
    far as the rows of all ranks do.
( ) averaged with the last gradients of the others
    > The others contribute zeros, not what is in their `p.grad`.
( ) none: the extra training step is left out
    > Without `join` the last rank would hang in it. With `join` the step is made.
(x) its own, divided by the number of ranks
Why: The ranks that have no batch contribute zeros, and the sum is divided by the number of all ranks, N. So this
training step is N times too short.
""",
    surprise_penalty="""
The loss has a penalty on the mean guess of all ranks' rows. `dist.all_reduce` computes the mean, and DDP's hooks
average the gradients. How large is the gradient of the penalty?
( ) right: the averaging corrects it
    > The average of N gradients that are too small is too small.
(x) N times too small
( ) zero: an all-reduce cuts the graph
    > It would be zero with `detach()`. As it is, the gradient passes through the all-reduce as if that did nothing.
( ) N times too large: it is counted on every rank
    > This would be true of a differentiable sum over the ranks **without** the division.
Why: It is N times too small. Each rank's own rows make up 1/N of the mean. Autograd does not see the all-reduce, so the
effect of these rows on the **other** ranks' losses is missing, and that is N − 1 parts of N. The loss itself is right
to the last digit.
""",
    surprise_dropout="""
Every rank calls `torch.manual_seed(0)`, builds the model and trains. The model has dropout. Which units are switched
off?
( ) different ones on each rank, since each rank has different rows
    > Dropout does not look at the rows. It draws from the rank's random numbers, and those are equal.
(x) the same ones on all ranks
( ) the same ones on all ranks and in every training step
    > The random numbers differ from step to step, in the same way on every rank.
Why: They are the same on all ranks, because the same seed gives the same random numbers. So dropout is less random than
in one process with the same batch. After the model is built, give each rank a seed of its own.
""",
    surprise_epoch="""
`DistributedSampler(dataset)` shuffles the rows and deals them out to the ranks. You use one sampler for all epochs.
Which rows does a rank get in epoch 1, compared with epoch 0?
( ) different rows: it shuffles again in every epoch
    > A `DataLoader` with `shuffle=True` in one process does so. This sampler has to shuffle in the same way on all
    ranks, so it takes its seed and the epoch's number, and you have to tell it that number.
( ) the same rows in a different order
    > The shuffling comes before the dealing, so a new order would also bring different rows.
(x) the same rows in the same order
( ) the rows of the next rank
    > Nothing is passed on. Each rank takes every N-th row of one shuffled list.
Why: The same rows in the same order. The sampler's random numbers come from its seed plus its epoch, and the epoch
stays 0 until you call `sampler.set_epoch(epoch)`, at the start of each epoch. Without that call nothing fails: each
rank sees the same batches in the same order again and again.
""",
)

larger_batch = ask("""
A batch of 60 rows trains well with a learning rate of 0.5. With four ranks you keep 60 rows **per rank**: the global
batch has 240 rows, and 14,400 rows take 60 training steps instead of 240. Which learning rate reaches about the same
loss after these rows?
( ) 0.125, a quarter
    > This would keep the **size** of a step where gradients are **added up** over the ranks. Averaged gradients have
    the same size as before, and there are four times fewer steps.
( ) 0.5, as before: the gradient is a mean in both cases
    > The gradient has the same size, so the steps have the same length. But there are four times fewer of them.
(x) 2.0, four times as large
( ) 8.0, sixteen times as large
    > Such steps overshoot. The last run has this learning rate, with a batch of 960 rows, and its loss explodes.
Why: 2.0. Four small steps at nearly the same weights have nearly the same gradient, so one step of four times the
length goes as far. This is *linear scaling*.
""")
