"""The predictions of lesson 11: what a rank holds, what it sends and gathers, and what is forgotten."""

from labkit.grading.prediction import ask

bytes_of_a_replica = ask("""
The model has 205,220 parameters in float32. Each rank trains a copy of it with Adam, which keeps two numbers for every
parameter. How many MB (millions of bytes) of weights, gradients and optimizer states does **one** rank hold, once it
has taken a training step?
= 3.28352 MB +- 10 %
( ) 0.82088
    > These are the weights alone. Gradients and the optimizer's states come on top.
( ) 1.64176
    > These are weights and gradients. Adam keeps two numbers for each parameter, too.
( ) 2.46264
    > One of the four is missing: weight, gradient, and two numbers of Adam.
( ) 13.13408
    > This is what four ranks hold together. The question is about one.
Why: About 3.3 MB. A parameter takes 4 bytes as a weight, 4 as a gradient and 8 in Adam's two moments: 16 bytes, times
205,220. Half of it is the optimizer's.
""")

optimizer_states_of_replicas = ask("""
The four ranks average their gradients, and each one lets its own Adam take the step. In the ranks' memory, how do
Adam's moments compare after a few training steps?
( ) each rank's are those of its own data, so they have to be averaged now and then
    > That would be true if each Adam saw the gradient of its rank's own data. It sees the mean, which is the same
    everywhere.
( ) they drift apart slowly, by rounding
    > That would be true if the ranks computed with different numbers. An all-reduce leaves the same bits on every
    rank, and the same operations on the same bits give the same bits.
(x) they are the same on every rank, to the last bit
( ) rank 0's are the true ones, and the others wait for a broadcast
    > That would be true of a parameter server. Here no rank is special, and nobody broadcasts anything.
Why: They are the same, to the last bit: all ranks feed the same mean gradients to the same Adam. So nothing ever
averages optimizer states, though some tables list that as a use of all-reduce. Four equal copies mean that three of
them are wasted.
""")

zero_grad_of_a_shard = ask("""
The optimizer knows this rank's shard alone. Every training step begins with `optimizer.zero_grad()`, as it always did,
and nothing else clears a gradient. What does the second training step use as its gradient?
( ) the gradient of the second batch, as it should
    > That would be true if `zero_grad` went through the model. It goes through the tensors that the optimizer was
    given, and that is the shard.
(x) the sum of the gradients of both batches
( ) zero, because the shard's gradient has been cleared
    > The shard's gradient is cleared, and the reduce-scatter fills it anew from the model's gradients.
( ) nothing: `backward()` raises an error
    > That would be true if autograd refused to add to an old gradient. It adds, which is what you want for
    micro-batches.
Why: The sum of both. `backward()` **adds** to `p.grad`, and `optimizer.zero_grad()` clears the gradients of the tensors
that it was given: the shard. The model's own are still there, and nothing complains.
""")

bytes_of_stage_1 = ask("""
Stage 1 replaces the all-reduce of the gradients by a reduce-scatter of the gradients and an all-gather of the weights.
With collectives that send the least, a rank then sends …
( ) half as much as with the all-reduce
    > That would be true of the reduce-scatter alone. The new weights have to get to the other ranks as well.
( ) half as much again: the weights come on top
    > That would be true if the reduce-scatter took as much as an all-reduce. It leaves the second half of the work
    out.
( ) twice as much, because there are two collectives
    > That would be true if each took as much as an all-reduce. Each is one of its halves.
(x) as much as with the all-reduce
Why: As much as with the all-reduce, which **is** a reduce-scatter and an all-gather (lesson 04). In stage 1 the
optimizer's step stands between the two, and what is gathered is weights instead of gradients.
""")

gathers_of_stage_3 = ask("""
In stage 3 a layer's weights are whole only while it computes. The model has six layers (the embeddings, four
transformer layers, and the output). How many all-gathers does your stage 3 make in a training step, forward and
backward together?
= 12.0 +- 0 %
( ) 6
    > These are those of the forward pass. Backward needs the weights, too, and they are gone by then.
( ) 1
    > That would be true if all weights were gathered at once, and then they would all be in memory.
( ) 2
    > That would be true if all weights were gathered at once, and then they would all be in memory.
( ) 18
    > All-gathers and reduce-scatters together: six of these 18 are reduce-scatters.
( ) 11
    > That would be true if the last layer kept its weights until its backward pass. Yours lets them go.
Why: Twelve: six in the forward pass and six in the backward pass, because the weights were let go in between. Six
reduce-scatters of gradients come on top, and nothing after the optimizer's step. (Gloo runs these as all-reduces, and
its flight recorder calls them so.)
""")

bytes_of_stage_3 = ask("""
An all-reduce of the gradients (DDP) sends 100 %. How many per cent does a rank send in stage 3, with collectives that
send the least?
= 150.0 % +- 5 %
( ) 100
    > That is stages 1 and 2. In stage 3 the weights travel twice, forward and backward.
( ) 300
    > Three collectives, but each of them sends half of what an all-reduce sends.
( ) 200
    > That would be true of two all-reduces. It is three halves of one.
( ) 25
    > A rank keeps a quarter, and yet all gradients and all weights have to travel.
Why: 150 %. A reduce-scatter and an all-gather each send half of what an all-reduce sends. Stage 3 makes one
reduce-scatter of all gradients and **two** all-gathers of all weights: half as much again, for an N-th of the memory.
""")

gathers_of_fully_shard = ask("""
`fully_shard` was called for each of the four transformer layers, and then for the whole model, which takes the rest:
embeddings, norm and output. With its default settings, how many all-gathers are there in the **backward** pass?
= 4.0 +- 0 %
( ) 5
    > These are those of the forward pass. One of the five units does not let go of its weights.
( ) 0
    > That would be true with `reshard_after_forward=False`: all weights stay after the forward pass.
( ) 3
    > Close. The last transformer layer lets its weights go, although it is needed again soon.
( ) 6
    > FSDP makes a unit of each call of `fully_shard`: five here, the ends of the model in one.
( ) 9
    > These are those of the forward and the backward pass together.
Why: Four: one for each transformer layer. By default, the outermost module keeps its weights after the forward pass:
the backward pass begins with it, so they would be gathered again at once.
""")
