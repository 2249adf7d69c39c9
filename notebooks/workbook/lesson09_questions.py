"""Predictions of lesson 09: what keeps copies equal, what overlap saves, and how DDP fills its buckets."""

from labkit.grading.prediction import ask, series

drift_then_average = ask("""
For 20 training steps each rank trains alone, so the four copies of a weight differ. From then on the ranks average
their **gradients** in every step, as in lesson 00. What happens to the four copies in the next 20 training steps?
( ) they come together within a few training steps
    > This would be true if the **weights** were averaged. The average gradient is the same number on every rank, and
    two weights keep their difference if you subtract the same number from both.
( ) they come together slowly: each training step takes a part of the difference away
    > This would be true if each rank were pulled towards the others. Nothing here measures how far apart they are.
(x) their distances stay exactly as they are
( ) they drift on, more slowly than before
    > This would be true if the ranks still took different steps. From training step 20 on all of them take the same
    one.
Why: The distances stay exactly as they are: four parallel lines. Every rank subtracts the same average. This average is
not the gradient of any one of the models: its four parts were computed with four different sets of weights.

Equal steps keep equal copies equal, and different copies different. So they have to **begin** equal, and after the
broadcast at training step 40 they are one line.
""")

first_backward = ask("""
`DistributedDataParallel` fills buckets of 25 MiB, and its first bucket holds only 1 MiB, so that something leaves
early. The gradients of this transformer are 54 tensors, 12.1 MiB in total. How many all-reduces do you see in the
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
bucket, notes the order, and fills new buckets before the second training step: the first one holds 1 MiB or a little
more, because a tensor is never cut in two.

Rank 0 broadcasts its order, so that all ranks have the same buckets. (With `find_unused_parameters=True` DDP never
learns the order. Lesson 09b shows what it does instead.)
""")

what_overlap_saves = series(
    """
The exchange of all gradients takes about half as long as the computing, forward and backward. There are five buckets.
In the order in which they leave: a tiny one with the output layer, then one for each of the four transformer layers,
the last layer first. The first transformer layer's bucket also holds the embeddings.
""",
    never_hidden="""
Which bucket's exchange can **never** be hidden behind the backward pass?
( ) the tiny one: it leaves before the transformer layers have computed anything
    > So the whole backward pass of these layers is still to come, and the bucket travels meanwhile.
( ) that of the last transformer layer: it is the first large one
    > Three more layers compute while it travels.
(x) that of the first transformer layer
( ) none: every bucket can be hidden
    > This would be true if something were computed after the last gradient. But the optimizer's step comes next, and it
    needs all the means.
Why: The bucket of the first transformer layer is full only when the backward pass is over. Nothing is left to compute
while it travels.
""",
    saved_at_best="""
Done after the backward pass, the exchange costs a time E on top of the computing. How much of E does overlap save at
best?
( ) all of E
    > The last bucket, about a quarter of the bytes, has nothing to hide behind.
(x) about three quarters
( ) about a quarter
    > This would be true if only one of the four large buckets were hidden.
( ) nothing: the bytes are the same
    > The bytes are the same, but most of them travel while the rank computes.
Why: About three quarters. Each layer's bucket travels while the layer before it computes, and the last quarter of the
bytes leaves when the computing is over. On an idle machine, more than half of E was saved in most of our runs. What
you measure differs from the three quarters: copying into buckets and back takes time,
on CPU ranks the threads that send need the same cores as the computing, and one large exchange can take longer than
several small ones.
""",
)
