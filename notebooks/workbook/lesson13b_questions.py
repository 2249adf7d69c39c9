"""The predictions of lesson 13b: which collective where, and what is kept."""

from labkit.grading.prediction import ask, series

which_collective_where = series(
    """
With sequence parallelism, norms and residuals work on **this rank's positions** only, of whole width. Attention and MLP
stay as they are: each rank has its heads and hidden numbers, of all positions. What has to be called?
""",
    before_columns_forward="""
Before a column-parallel layer, forward:
( ) all_reduce
    > The ranks hold different positions, and these are not parts of a sum.
( ) nothing
    > That was so when every rank had all positions. Now it has only some of them.
( ) reduce_scatter
    > There is nothing to add up here: each position is complete, on one of the ranks.
(x) all_gather
Why: This rank's columns need all positions, and each rank has some: they are put together.
""",
    behind_rows_forward="""
After a row-parallel layer, forward:
( ) all_reduce
    > It would work, at twice the bytes: every rank would get the sums for all positions.
( ) nothing
    > Then each rank would go on with its part of a sum.
(x) reduce_scatter
( ) all_gather
    > The ranks hold parts of a sum, for all positions. Put together they would not be added up.
Why: Each rank holds a part of the sum for all positions, and needs the sum for its own.
""",
    behind_rows_backward="""
After a row-parallel layer, backward:
( ) all_reduce
    > The ranks hold the gradients of different positions, and these are not parts of a sum.
( ) nothing
    > That was so when every rank came back with the gradient of all positions.
( ) reduce_scatter
    > This is its forward pass. Backward, what was scattered has to be put together.
(x) all_gather
Why: Each rank comes back with the gradient of its positions, and the rows' gradients need all positions.
""",
    before_columns_backward="""
Before a column-parallel layer, backward:
( ) all_reduce
    > It would work, at twice the bytes. This rank goes on with the gradient of its own positions.
( ) nothing
    > Then the shares of the other ranks' columns would be missing.
(x) reduce_scatter
( ) all_gather
    > The ranks hold shares of one sum here, for all positions.
Why: Each rank's columns give a share of the gradient of all positions, and this rank needs the sum for its own.
""",
    gradient_of_a_norm="""
For the gradient of a norm's weight (every rank has the whole weight):
(x) all_reduce
( ) nothing
    > That was so when each rank's norm saw all positions.
( ) reduce_scatter
    > Every rank keeps the whole weight of the norm, and so needs its whole gradient.
( ) all_gather
    > Each rank has a share of every number of this gradient. They have to be added up.
Why: Each rank's norm has seen its own positions only, and its gradient counts only these. All ranks need the sum.
""",
    gradient_of_columns="""
For the gradient of a column-parallel layer's weight:
( ) all_reduce
    > It would mix gradients of different columns.
(x) nothing
( ) reduce_scatter
    > It would mix gradients of different columns.
( ) all_gather
    > No other rank needs the gradient of this rank's columns.
Why: Only this rank has these columns, and they have seen all positions.
""",
)

activations_in_parts = ask("""
First with tensor parallelism alone, without sequence parallelism: how many bytes of a transformer layer's activations
does autograd keep on each of four ranks, compared with one process?
( ) a quarter
    > That is true of what lies between columns and rows. Before the columns and after the rows, every rank has the
    whole `x`.
(x) between a third and a half
( ) the same: all ranks have the same rows
    > Between columns and rows, each rank has its own heads and hidden numbers only, and these are most of it.
( ) more: sums from the other ranks come on top
    > The sum takes the place of this rank's part, and is as large.
Why: 7 of 16 parts, 44 %. Three quarters of the 16 lie between columns and rows, and these are divided by four. The rest
is whole on every rank: the inputs of both norms, and the inputs of both column-parallel layers.
""")
