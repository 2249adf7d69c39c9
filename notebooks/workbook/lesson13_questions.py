"""The predictions of lesson 13: what is cut, where it has to be added up or put together, and what that costs."""

from labkit.grading.prediction import series

cut_an_mlp = series(
    """
Before you cut anything: which part of a weight, and why columns first?
""",
    rows_or_columns="""
The layer `widen` is a `torch.nn.Linear(48, 192)`. Rank 0 of four is to compute the first 48 of the 192 outputs, and
each output needs all 48 inputs. Which part of `widen.weight` does rank 0 need?
( ) `weight[:, :48]`: the first 48 columns
    > That would be true if the weight were stored as [in, out], as in formulas that write x W. There it is
    `W1[:, start:end]`.
( ) `weight[:, ::4]`: every fourth column
    > Columns of PyTorch's weight belong to inputs, and every output needs all of them.
(x) `weight[:48]`: the first 48 rows
( ) `weight[:12, :12]`: a quarter of the rows and of the columns
    > This block would know 12 of the inputs only, and it is a sixteenth of the weight, not a quarter.
Why: `weight[:48]`, its first 48 rows: `nn.Linear` stores its weight as [out, in] and computes `x @ weight.T`. A row of
PyTorch's weight is a column of the W in x W. The layer is called **column-parallel** after that W.
""",
    gelu_between="""
Two linear layers with a gelu between them: `narrow(gelu(widen(x)))`. Suppose they were cut the other way round: `widen`
by its inputs (row-parallel), `narrow` by its outputs (column-parallel). What would have to be sent between the two
layers?
(x) before gelu, an all-reduce of `widen`'s results
( ) nothing: gelu works number by number
    > It does, and so it needs finished numbers. Each rank would hold only a part of each sum.
( ) before gelu, an all-gather of `widen`'s results
    > That would be true if each rank had some of the 192 numbers. After a row-parallel layer it has all 192, and each
    is only a part of a sum.
( ) after gelu, an all-reduce of its results
    > That would give gelu(a) + gelu(b), and gelu(a + b) is something else.
Why: An all-reduce of `widen`'s results: each rank would hold one part of each sum, and gelu(a + b) is not gelu(a) +
gelu(b). With columns first, each rank has finished numbers, though not all of them, and gelu needs no others. They are
exactly the inputs that the row-parallel layer needs on this rank.
""",
)

back_through_the_mlp = series(
    """
The backward pass. What do you expect?
""",
    input_gradient_of_columns="""
The column-parallel layer's backward pass. Each rank has `dy`, the gradient of its own outputs, and its part of the
weight, and computes `dx = dy @ weight`. What has to be done with the ranks' `dx`, so that every rank has the gradient
of `x`?
( ) nothing: `dx` has the shape of `x` already
    > The shape is right on every rank, but the numbers are not: each `dx` knows about one rank's outputs only.
( ) put them together: an all-gather
    > That would be true if each rank had some of the numbers of `dx`. Each rank has all of them, but every one is
    only a part of a sum.
( ) each keeps a part of the sum: a reduce-scatter
    > It is a sum. But the ranks go on with the whole `x`, and so each of them needs the whole gradient.
(x) add them up: an all-reduce
Why: They are added up, by an all-reduce. The loss depends on an element of `x` through the outputs of **all** ranks,
and each `dx` is what one rank's outputs contribute. An all-gather of pieces of `dx` raises no error either, and the
loss still falls: after 60 training steps on four ranks, this lesson's model had a loss of 2.61 with such gradients, and
of 2.62 with the right ones.
""",
    summed_both_ways="""
Suppose that the sum after the row-parallel layer is made by `comms.all_reduce`. It is differentiable: its backward
pass is an all-reduce, too. All ranks compute the same loss from the result and call `backward()`. The last bias is
added after the sum. With four ranks, the MLP's gradients are …
( ) right: the transpose of a sum is a sum
    > It is, if each rank has a loss of its own and their **sum** is meant. Here it is one loss, which all ranks
    compute.
( ) all four times too large
    > Almost: one gradient does not pass through the sum.
(x) four times too large, except that of the last bias
( ) four times too large, and 16 times before gelu
    > On the way back, gradients pass the sum once. What is four times too large after gelu is four times too large
    before it. (A second MLP before this one would have gradients 16 times too large.)
Why: Four times too large, except that of the last bias, which is added after the sum. Every rank's `dy` is whole
already, and four equal ones are added up. No error is raised, and the model learns all the same: in 60 training steps
on four ranks its loss even fell further than with the right gradients, to 2.54 instead of 2.62, as with a higher
learning rate.
""",
)

heads_and_seeds = series(
    """
Two things that can go wrong without an error:
""",
    quarter_of_qkv="""
`qkv` makes 48 queries, 48 keys and 48 values, in this order, for 12 heads of four numbers. Four ranks cut its 144
outputs into four runs of 36, as for any other column-parallel layer. What does rank 0 get?
( ) queries, keys and values of three heads
    > That would be true if the outputs were stored head by head. Here all queries come first, then all keys.
(x) queries of nine heads, and nothing else
( ) all queries, and no keys
    > That would be true of three ranks: there are 48 queries, and rank 0 has 36 of the 144 outputs.
( ) a quarter of each kind
    > Rank 0 should have that. But a run of 36 outputs does not reach beyond the 48 queries.
Why: The queries of nine heads, and nothing else. No error would be raised: the layer's forward pass cuts whatever it
gets into three equal pieces and takes them for queries, keys and values. So the rows have to be picked head by head.
""",
    seeds_of_dropout="""
Two dropouts in a tensor-parallel layer: one on `x`, which is whole and equal on all ranks, and one between the columns
and the rows, where each rank has different numbers. With which seed should each rank draw the two masks?
( ) the same seed for both
    > Between columns and rows, every rank would drop the same places in its part: the whole mask would repeat itself.
    No single process would draw such a mask.
( ) a seed of its own for both
    > Then `x` differs from rank to rank, and the ranks no longer compute parts of the same thing. No error would be
    raised.
( ) a seed of its own for `x`, the same seed in between
    > It is the other way round: the same mask where ranks hold the same numbers, different masks where they do not.
(x) the same seed for `x`, a seed of its own in between
Why: The same seed for `x`, so that it stays equal everywhere; a seed of its own for the numbers that only this rank
has. For this, Megatron keeps two states of the random generator and switches between them.
""",
)

price_of_parts = series(
    """
What does it cost, forward and backward?
""",
    count_of_all_reduces="""
A layer has two pairs of columns and rows: `qkv` and `project`, `widen` and `narrow`. There are two layers; embeddings,
norms and output are whole on every rank. How many all-reduces does a training step make, forward and backward together?
( ) 4
    > That is one direction, or one layer.
(x) 8
( ) 16
    > f and g communicate in one direction each: the columns backward, the rows forward.
( ) 38
    > 30 more would average the gradients of 30 tensors. That is data parallelism; here all ranks see the same rows.
Why: Eight: each pair makes one in the forward pass, after its rows, and one in the backward pass, before its columns.
Two pairs in each of two layers make four forward and four backward. No more are needed: the gradients of what is whole
are equal on all ranks already.
""",
    bytes_against_data_parallel="""
On a napkin: one layer of width 48 has 28,272 parameters, and data parallelism all-reduces their gradients once. Tensor
parallelism all-reduces activations of the size of `x`, which has 1,920 · 48 = 92,160 numbers, and gradients of that
size. All are float64. For this layer, compared with data parallelism, it sends:
( ) a third of it
    > It is the other way round: even one `x` has more numbers here than the layer has parameters.
( ) 3 times as much
    > That is one all-reduce of the size of `x`. A layer has two in each direction.
( ) 6 times as much
    > That is one direction. A layer has two all-reduces forward and two backward.
(x) 13 times as much
Why: 13 times: 4 · 92,160 = 368,640 numbers against 28,272. The number of ranks cancels. A layer of width h has about 12
h² parameters, and t tokens make 4 t h numbers: both send the same where **t = 3 h**. A layer of width 12,288 (GPT-3)
reaches that with 36,864 tokens.
""",
)
