"""Predictions of lesson 04: what the collectives without a root leave behind, and what they cost."""

from labkit.grading.prediction import ask

forgotten_division = ask("""
All ranks begin with equal weights. Each one computes the gradient of its own share of the batch, calls
`dist.all_reduce(p.grad)`, forgets to divide, and takes its step. What happens?
( ) the ranks' weights drift apart, because each rank had different data
    > This would be true without the all-reduce. After it, all ranks hold the same sum, so they take the same step,
    right or wrong.
(x) the weights stay equal, and the step is too long
( ) nothing bad: a gradient is a direction, and its length does not matter
    > This would be true of an optimizer that rescales its gradient, as Adam nearly does. Plain gradient descent
    subtracts the gradient itself, so a longer gradient is a longer step.
( ) an error: a sum of gradients does not fit the weights
    > This would be true if adding changed the shape. The sum over the ranks has the shape of each of them.
Why: The weights stay equal, and the step is too long: with N ranks, N times as long. Nobody notices, because nothing
differs between the ranks. The training is just less stable, and the more ranks there are, the worse it gets.

Divided by the number of ranks, the sum is the gradient that one process computes from the whole batch, up to rounding.
This holds for a loss that is a mean and for equal shares.
""")

bytes_of_all_gather = ask("""
Four ranks all-gather: each brings a tensor of 1 MiB, and each ends with all four. How many MiB does each rank **send**?
= 3 MiB +- 0 %
Why: It sends 3 MiB. Each rank lacks three of the four tensors, so it receives 3 MiB. All that is received has been
sent, so ranks send 3 MiB on average as well. With N ranks and D bytes from each it is D (N - 1).

The matrix shows how, where bytes can be counted: every rank sends to the next one only. It passes its own tensor on,
then the one that has just come in, and so on round the ring. No rank sends more than any other.
""")

two_calls = ask("""
Each of these pairs of calls does the work of a single call. (Gloo makes one of the three single calls out of an
all-reduce, and throws a part of the result away.) With which pair does the busiest of the four ranks send **no more**
bytes than with the single call?
( ) gather, then broadcast, for an all-gather
    > This would be true if the broadcast were free. Its root has to send the whole result, more than once.
(x) reduce, then scatter, for a reduce-scatter
( ) reduce, then broadcast, for an all-reduce
    > This would be true if the root could hand out the total without sending it. Here it sends the whole buffer to two
    ranks, after it has taken part in the reduce.
( ) none of them: one call is always cheaper
    > In theory that is right, and a good library achieves it. Here one of the three single calls is an all-reduce
    inside, and costs as much as one.
Why: Reduce, then scatter: 6 MiB, as much as the single call. The single call should need half of that, 3 MiB, as the
column *textbook* says. But **Gloo runs an all-reduce under its reduce-scatter** and throws three quarters of the result
away. The result takes less memory, but no bytes are saved.

In the other two rows the single call is cheaper, since it has no root: no rank has to collect everything and hand it
out again. What holds everywhere is the meaning of a pair; what it costs depends on the library.
Elsewhere: **With NCCL**, on GPUs, it is none of them: its reduce-scatter is a true one. (From its source, not run.)
On NCCL: none of them: one call is always cheaper
( ) gather, then broadcast, for an all-gather
    > This would be true if the broadcast were free. The whole result goes along the whole ring, after the parts have
    been gathered.
( ) reduce, then scatter, for a reduce-scatter
    > This is true of Gloo, whose reduce-scatter is an all-reduce inside. NCCL has a true one.
( ) reduce, then broadcast, for an all-reduce
    > This would be true if the root could hand out the total without sending it. The whole buffer goes along the ring
    twice.
Why: None of them. NCCL has a true reduce-scatter, in which each rank sends 3 MiB. Its broadcast and its reduce pass the
whole buffer along a ring, and its gather and scatter are sends and receives. So the busiest rank sends 5 MiB in a
gather and a broadcast where an all-gather takes 3, 4 MiB in a reduce and a scatter where a reduce-scatter takes 3, and
8 MiB in a reduce and a broadcast where an all-reduce takes 6. (Computed from NCCL's source. Where NCCL does not use the
network, nothing is counted.)
Elsewhere: **With Gloo**, on CPUs, a reduce and then a scatter send no more than the one call: Gloo runs a whole
all-reduce under its reduce-scatter, 6 MiB from each rank instead of 3.
""")

uneven_tokens = ask("""
Each of four ranks gives two numbers to its right-hand neighbour, none to itself and one to each other rank. The `x` of
rank 0 is 0, 1, 2, 3; that of rank 1 is 10, 11, 12, 13; and so on. What does rank 2 hold in `got`?
( ) 2, 12, 22, 32
    > This would be true if every rank gave one number to each rank, itself too, as in the all-to-all before.
(x) 2, 11, 12, 33
( ) 3, 12, 13, 33
    > This would be true if every rank also set one number aside for itself. It gives itself none, so the next
    receiver's numbers begin right there.
( ) 11, 12, 2, 33
    > These are the right numbers. But they arrive in the order of the ranks that sent them, not neighbour first.
Why: 2, 11, 12, 33. The numbers arrive in the order of their senders: one from rank 0, two from rank 1, whose
right-hand neighbour is rank 2, and one from rank 3.

The receivers cannot know the sizes, so **the sizes go first**, by an all-to-all of their own: `give` says how many
numbers go to each rank, `take` how many come from each. A mixture of experts does this twice in each layer: tokens
travel to their experts, and back. Lesson 13d trains one.
""")

gradient_of_a_mean = ask("""
Each rank subtracts the mean over the ranks from its activation `h`, computes a loss of its own, and calls `backward()`.
Every loss depends on every rank's `h`, through the mean. What is in `h.grad`?
( ) the gradient of the sum of all ranks' losses: that is what the all-reduce is for
    > This would be true if autograd ran an all-reduce on the way back as well. It does not know that what one rank
    put in came out on the others.
(x) the gradient of the rank's own loss only, without what its number did to the others' losses
( ) the gradient without the mean: backward stops at the all-reduce, as it stops at a receive
    > This would be true if the tensor had come from nowhere, as a received one does. The all-reduce worked in place,
    on a tensor that was in the graph and stays in it.
( ) nothing: backward raises an error at the all-reduce
    > An error would be safer. torch only warns, and backward goes on.
Why: Only the rank's own loss is in it. Autograd does not see the all-reduce: the gradient passes through it unchanged,
as if the sum were the rank's own number. The others' losses depend on that number too, and their part is missing.

Nothing looks wrong: the loss is right, the gradients have the right shape, and the model trains, to something else.
torch warns, in the words that the cell has printed, which are easy to miss in a log. Averaging the gradients of the
**weights** is not affected: that happens after backward.
""")
