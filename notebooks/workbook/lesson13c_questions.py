"""Predictions of lesson 13c: a vocabulary in parts, what placements say and hide, and which products need a message."""

from labkit.grading.prediction import ask, series

table_or_rows = ask("""
An embedding table has 128,000 rows of 4,096 numbers, and eight ranks hold an eighth of the rows each. The batch has
4,096 tokens. One way is to gather the whole table on every rank. The other way is that each rank looks up the rows it
has, and an all-reduce adds up what was found. With collectives that send the least, how many **times** as many bytes
does the all-gather of the table take?
= 15.625 times +- 10 %
( ) 31.25
    > An all-reduce sends everything twice: once to add up, once to hand out the sum.
( ) 3.90625
    > Every rank has an eighth, and the all-gather brings it the other seven.
( ) 62.5
    > The all-reduce sends twice, and its bytes are what you divide by.
( ) 125.0
    > Both are shared by eight ranks: the factor 7/8 is in both.
Why: About 16 times: 128,000 rows against 4,096, and the all-reduce sends its rows twice. And every rank would need room
for the whole table, which was cut because it is too large. A rank needs only the rows of its batch, and one all-reduce
brings these. At 64,000 tokens both ways send the same; then memory decides.
""")

two_ends = series(
    """
Two questions before you write it. The model answers both when it trains with a vocabulary that is cut.
""",
    padding_of_a_vocabulary="""
36 words do not fill the rows that four ranks have: the last four rows of the table are padding, all zeros. Suppose
that the loss is taken over all 40 columns, as if these rows were words. What does training look like?
( ) as before: a row of zeros adds nothing
    > That would be true of a sum of scores. The loss adds up exp(score), and exp(0) is 1.
( ) the loss is not a number
    > That would be true if some row gave the logarithm of 0. The scores of the padding are 0, so exp of them is 1.
(x) the loss is a little too large, and the padding gets gradients
( ) the last rank waits for targets that never come
    > No rank waits for targets: the ranks make the same calls, whatever is in their rows.
Why: The loss is too large: each padding row takes part in the softmax as a word with the score 0. If all scores were 0,
the loss would be log 40 instead of log 36. Training then pushes the padding away, with gradients that the model without
padding does not have. No error is raised.
""",
    gradients_of_the_output_layer="""
Backward through the output layer: the features `x` are the same on all ranks, `part` has some of the rows, and each
rank knows the gradient of its own scores. It computes a gradient of `x` and one of `part` from that. Which of them has
to be added up over the ranks?
( ) both
    > That would be true of weights that are copies. No other rank has anything to add to these rows: a score belongs
    to one word, and a word to one rank.
(x) only the gradient of `x`
( ) only the gradient of `part`
    > It is the other way round. A row's gradient comes from the scores of its own word, and these are all on its
    rank. The features were used by every rank.
( ) neither: all ranks have the same `x` and the same loss
    > They have the same `x`, but each has used it for other scores. One process would add up the gradients of all
    uses.
Why: Only that of `x`: it took part in the scores of all words, and each rank knows the gradients of the scores of its
own words only. This is *f* of lesson 13, and the one all-reduce that the backward pass makes. The gradient of `part` is
complete where it is. This holds for every weight that is cut by tensor parallelism: its gradient is cut in the same
way, and the optimizer needs no message.
""",
)

six_redistributions = series(
    """
`X.redistribute(placements=[…])` brings a DTensor into another layout on the same ranks. Which collective does each of
these need, if no rank is to receive what it does not keep?
""",
    shard_to_replicate="""
`Shard(0)` → `Replicate()`:
( ) nothing is sent
    > A rank has only its own block, and wants the others.
(x) all-gather
( ) all-reduce
    > There is nothing to add up: the blocks are different rows.
( ) reduce-scatter
    > That is the other direction, and of a sum.
( ) all-to-all
    > In an all-to-all a rank ends with as much as it had. Here it ends with everything.
Why: An all-gather: every rank has a block, and wants all of them.
""",
    partial_to_replicate="""
`Partial()` → `Replicate()`:
( ) nothing is sent
    > The parts differ, and have to be added up.
( ) all-gather
    > Then every rank would have all parts, and still no sum.
(x) all-reduce
( ) reduce-scatter
    > It leaves each rank with a block of the sum, and here every rank wants all of it.
( ) all-to-all
    > It moves blocks about and adds nothing up.
Why: An all-reduce: every rank has a part of the sum, and wants the sum.
""",
    partial_to_shard="""
`Partial()` → `Shard(0)`:
( ) nothing is sent
    > A rank has its part of the sum of every block, and lacks the others' parts.
( ) all-gather
    > No rank wants all the parts: each wants one block, added up.
( ) all-reduce
    > It works, at twice the bytes: every rank would receive blocks that it then drops.
(x) reduce-scatter
( ) all-to-all
    > It brings the right blocks to the right ranks, but it does not add them up.
Why: A reduce-scatter, which is half of an all-reduce: each rank wants the sum of its own block only.
""",
    shard_to_shard="""
`Shard(0)` → `Shard(1)`:
( ) nothing is sent
    > A rank has all columns of its rows. It wants all rows of its columns.
( ) all-gather
    > It works, but brings N times as much as each rank keeps.
( ) all-reduce
    > There is nothing to add up.
( ) reduce-scatter
    > There is nothing to add up.
(x) all-to-all
Why: An all-to-all: every rank has something for every other rank, where its rows cross the other's columns. On CPUs
torch gathers everything and drops the rest; with NCCL it makes the all-to-all.
""",
    partial_to_columns="""
`Partial()` → `Shard(1)`:
( ) nothing is sent
    > A rank has its part of the sum of every block, and lacks the others' parts.
( ) all-gather
    > No rank wants all the parts: each wants one block, added up.
( ) all-reduce
    > It works, at twice the bytes: every rank would receive blocks that it then drops.
(x) reduce-scatter
( ) all-to-all
    > It brings the right blocks to the right ranks, but it does not add them up.
Why: A reduce-scatter again, of blocks of columns. How the blocks lie in memory is the library's business: it makes each
one contiguous first.
""",
    replicate_to_shard="""
`Replicate()` → `Shard(0)`:
(x) nothing is sent
( ) all-gather
    > That is the way back.
( ) all-reduce
    > Every rank has the right numbers already.
( ) reduce-scatter
    > That would add up N equal copies, and give N times the numbers.
( ) all-to-all
    > What would they send? Every rank has everything.
Why: Nothing. Every rank has all of it, and keeps its own block.
""",
)

four_claims = series(
    """
A placement is a claim about what the ranks hold. Here are four questions about such claims. The cells below answer
them, one after the other.
""",
    uneven_shards="""
A matrix of five rows is distributed over four ranks with `Shard(0)`. How many rows do the ranks hold, in the order of
the ranks?
( ) 2, 1, 1, 1
    > That would be true of `tensor_split`, which makes the parts as equal as it can.
(x) 2, 2, 1, 0
( ) 2, 2, 2, 2, with rows of zeros at the end
    > Padding is only added for a transfer, and taken off again. The local tensors have no padding.
( ) none: it raises an error, because 4 does not divide 5
    > That would be true of `reduce_scatter_single` and its like. DTensor allows it.
Why: 2, 2, 1, 0: `Shard` cuts as `torch.chunk` does, into blocks as long as the quotient rounded up. A rank can be left
with nothing. So compute no rank's part by hand: look at `to_local()`.
""",
    a_placement_that_lies="""
Each rank has computed the gradient of its own rows of the batch, so the ranks' tensors differ. They make a DTensor of
them with `DTensor.from_local(gradient, mesh, [Replicate()])`, and call `full_tensor()`. What comes back?
(x) on each rank its own gradient
( ) the mean, because a copy has to be the same everywhere
    > Torch does not check that the copies are the same, and does not make them so.
( ) an error: the ranks' tensors differ
    > To find that out, the ranks would have to send each other their tensors. `from_local` sends nothing by default.
( ) rank 0's gradient on every rank
    > That would be true with `run_check=True`, which broadcasts rank 0's tensor. It is off by default.
Why: Each rank's own: to make a `Replicate()` whole, there is nothing to do. `from_local` believes what you say. From
here on the ranks compute with different numbers under one name, and nothing raises. The right placement for these
gradients was `Partial()`.
""",
    relu_of_a_partial="""
`P` is a DTensor with the placement `Partial()`: rank 0 holds [1, 3], every other rank [1, −1]. On four ranks the sum is
[4, 0]. What do `P.relu().full_tensor()` and the sum over the ranks of `P.to_local().relu()` give?
( ) [4, 0] and [4, 0]
    > The second one is the sum of what each rank's relu leaves: rank 0's 3 stays, the others' −1 does not.
( ) [4, 3] and [4, 3]
    > That would be true if DTensor did what each rank does alone. It knows that these are parts of a sum.
(x) [4, 0] and [4, 3]
( ) an error and [4, 3]
    > DTensor need not refuse: it can add up first, and does.
Why: DTensor knows that a relu of parts is not a part of the relu. It all-reduces first, without a word: that is right,
and it costs an all-reduce that your code does not show. With `to_local()`, adding up is your task.
""",
    full_tensor_on_one_rank="""
`X` is cut into rows. For a log line, only rank 0 prints the norm: `if rank == 0: print(X.full_tensor().norm())`. What
happens?
( ) it prints the norm: rank 0 fetches the other blocks
    > That would be true if a rank could fetch from others that do nothing. They have to send.
( ) it prints the norm of rank 0's rows
    > That would be true of `X.to_local().norm()`.
(x) rank 0 waits for the others, which make no such call
( ) it raises an error on rank 0 at once, which says that a DTensor belongs to all ranks
    > Nothing on rank 0 knows what the others do.
Why: It waits: `full_tensor()` is an all-gather. The same holds for every operation that needs a collective, and with
DTensor you do not always see which one does. So let all ranks compute, and only one of them print.
""",
)

two_products = series(
    """
Y = X @ W, on several ranks. What do they need?
""",
    paintings_that_need="""
Each of the two matrices is cut into rows, into columns, or not at all, over all ranks: nine ways. In how many of them
does something have to travel **before** the ranks can multiply?
( ) one
    > There is more than one. Go through those where **both** are cut: there are four.
(x) three
( ) five
    > Columns with a whole W, and a whole X with rows, are no problem: of the whole matrix, a rank takes the part that
    it needs, and drops the rest.
( ) eight
    > A matrix that is not cut fits everything, and X in columns with W in rows gives partial sums without a message.
Why: Three: rows with rows, rows with columns, and columns with columns. In the other six each rank can begin, but they
do not lead to the same: in one way, every rank computes everything; in three, the result is a sum that has not been
added up yet.
""",
    tiles_on_a_grid="""
Four ranks on a mesh of 2 × 2. X is cut into rows over dimension 0, and not over dimension 1. W is cut into columns over
dimension 1, and not over dimension 0. How do the ranks get Y = X @ W, and how is it laid out?
(x) without a message; each rank has one tile of Y
( ) an all-gather of W along dimension 1, then Y is cut into rows
    > That would be needed if each rank wanted whole rows of Y. It can compute a tile with what it has.
( ) without a message; Y is a partial sum
    > That would be true if X were cut into columns: only a cut along k leaves sums that are not complete.
( ) not at all: rows and columns do not fit together
    > They do not over **one** dimension of a mesh. Here they are cut over different ones.
Why: Without a message. Rank (i, j) has the i-th half of X's rows and the j-th half of W's columns, which is all that
tile (i, j) of Y needs. Every rank holds half of each matrix. On a mesh of one dimension it would hold a quarter of one
and all of the other.
""",
)

three_annotations = series(
    """
The same model with three annotations. What do you expect?
""",
    all_reduces_by_annotation="""
With `columns_then_rows`: in each of the two transformer layers `qkv` and `widen` are cut into columns, `project` and
`narrow` into rows, and the embedding is cut by its vocabulary. Each product is computed where its weight lies. How many
all-reduces does the **forward** pass need, up to the scores?
( ) two
    > Each layer has two pairs of a column cut and a row cut, and the embedding is a partial sum, too.
( ) four
    > These are the two in each of the two layers. The embedding is a partial sum as well.
(x) five
( ) nine
    > A layer that is cut into columns needs nothing in the forward pass.
Why: Five: one for the embedding, and in each of the two layers one after `project` and one after `narrow`. These are
the ones that you put in by hand in lesson 13. Here torch puts them in: partial sums have to be added up before a norm.
""",
    cut_the_positions_too="""
With `every_matrix`: so far one table was whole on every rank, `position.weight`, with a row for each of the eight
positions of the text. Now it is cut into rows as well. It is added to the looked-up rows, at the beginning. What
becomes of the all-reduces of the forward pass?
( ) they stay, and one all-gather of the table comes on top
    > That would be true if torch made the table whole. It can also cut the other term of the sum.
( ) they stay: a table that is added needs nothing
    > A rank has the positions' rows of its block only. It cannot add them to all positions of the text.
( ) it raises an error: the shapes do not fit
    > The shapes are those of the whole tensors, and they fit. Only the layouts differ.
(x) each becomes a reduce-scatter, and the ranks go on with different positions of the text
Why: Reduce-scatters: the looked-up rows are a partial sum, and to add it to a table that is cut by positions, the
cheapest is to cut the sum by positions, too. Then norms and the sums around the layers see an N-th of the positions,
and each layer gathers them and scatters its result. That is **sequence parallelism**, as in lesson 13b. Here one
annotation is enough for it.
""",
    a_foolish_annotation="""
With `thoughtless`: **every** weight of the transformer is distributed with `Shard(0)`, biases and norms included. What
does training do?
( ) it raises an error at the first product that does not fit
    > That would be true of local tensors. DTensor brings what does not fit into a layout that does.
(x) it trains to the same losses, with many more collectives
( ) it trains, but to different losses, because attention and norms see only parts
    > No operation works on the parts as if they were the whole: each one knows the layout of its inputs.
( ) it trains to the same losses, with about as many collectives: everything is cut anyway
    > How a weight is cut decides what has to travel. Rows in the wrong place cost a gather each.
Why: The same losses: a placement says where numbers are, not what is computed. A bad annotation gives the right
results, but slowly, and only a profile or `CommDebugMode` shows it. The same holds for JAX's sharding.
""",
)
