"""The predictions of lesson 12: what is cut, where it has to be added up or put together, and what that costs."""

from labkit.predictions.prediction import Option, Prediction, Series

WIDTH, TOKENS = 48, 240 * 8  # of the lesson's model, and of its batches
LAYER = 12 * WIDTH**2 + 13 * WIDTH  # the parameters of a transformer layer

WHICH_PART = Prediction(
    name="rows_or_columns",
    lesson="12",
    question=(
        "The layer `widen` is a `torch.nn.Linear(48, 192)`. Rank 0 of four is to compute the first 48 of the 192 "
        "outputs, and each output needs all 48 inputs. Which part of `widen.weight` does rank 0 need?"
    ),
    options=(
        Option(
            "`weight[:, :48]`: the first 48 columns",
            "That would be true if the weight were stored as [in, out], as in formulas that write x W. There, and in "
            "one of the documents that this workbook began with, it is `W1[:, start:end]`.",
        ),
        Option(
            "`weight[:, ::4]`: every fourth column",
            "Columns of PyTorch's weight belong to inputs, and every output needs all of them.",
        ),
        Option("`weight[:48]`: the first 48 rows"),
        Option(
            "`weight[:12, :12]`: a quarter of the rows and of the columns",
            "This block would know 12 of the inputs only, and it is a sixteenth of the weight, not a quarter.",
        ),
    ),
    answer="`weight[:48]`: the first 48 rows",
    why=(
        "`weight[:48]`, its first 48 rows: `nn.Linear` stores its weight as [out, in] and computes `x @ weight.T`. A "
        "row of PyTorch's weight is a column of the W in x W. The layer is called **column-parallel** after that W."
    ),
)

GELU = Prediction(
    name="gelu_between",
    lesson="12",
    question=(
        "Two linear layers with a gelu between them: `narrow(gelu(widen(x)))`. Suppose they were cut the other way "
        "round: `widen` by its inputs (row-parallel), `narrow` by its outputs (column-parallel). What would have to be "
        "sent between the two layers?"
    ),
    options=(
        Option("before gelu, an all-reduce of `widen`'s results"),
        Option(
            "nothing: gelu works number by number",
            "It does, and so it needs finished numbers. Each rank would hold only a part of each sum.",
        ),
        Option(
            "before gelu, an all-gather of `widen`'s results",
            "That would be true if each rank had some of the 192 numbers. After a row-parallel layer it has all 192, "
            "and each is only a part of a sum.",
        ),
        Option(
            "after gelu, an all-reduce of its results",
            "That would give gelu(a) + gelu(b), and gelu(a + b) is something else.",
        ),
    ),
    answer="before gelu, an all-reduce of `widen`'s results",
    why=(
        "An all-reduce of `widen`'s results: each rank would hold one part of each sum, and gelu(a + b) is not gelu(a) "
        "+ gelu(b). With columns first, each rank has finished numbers, though not all of them, and gelu needs no "
        "others. They are exactly the inputs that the row-parallel layer needs on this rank."
    ),
)

INPUT_GRADIENT = Prediction(
    name="input_gradient_of_columns",
    lesson="12",
    question=(
        "The column-parallel layer's backward pass. Each rank has `dy`, the gradient of its own outputs, and its part "
        "of the weight, and computes `dx = dy @ weight`. What has to be done with the ranks' `dx`, so that every rank "
        "has the gradient of `x`?"
    ),
    options=(
        Option(
            "nothing: `dx` has the shape of `x` already",
            "The shape is right on every rank, but the numbers are not: each `dx` knows about one rank's outputs only.",
        ),
        Option(
            "put them together: an all-gather",
            "That would be true if each rank had some of the numbers of `dx`. Each rank has all of them, but every one "
            "is only a part of a sum.",
        ),
        Option(
            "each keeps a part of the sum: a reduce-scatter",
            "It is a sum. But the ranks go on with the whole `x`, and so each of them needs the whole gradient.",
        ),
        Option("add them up: an all-reduce"),
    ),
    answer="add them up: an all-reduce",
    why=(
        "They are added up, by an all-reduce. The loss depends on an element of `x` through the outputs of **all** "
        "ranks, and each `dx` is what one rank's outputs contribute. Many tables say all-gather here, and so does one "
        "of the documents that this workbook began with."
    ),
)

TWICE = Prediction(
    name="summed_both_ways",
    lesson="12",
    question=(
        "Somebody uses the all-reduce of `comms` for the sum after the row-parallel layer. It is differentiable: its "
        "backward pass is an all-reduce, too. All ranks compute the same loss from the result and call `backward()`. "
        "The last bias is added after the sum. With four ranks, the MLP's gradients are …"
    ),
    options=(
        Option(
            "right: the transpose of a sum is a sum",
            "It is, if each rank has a loss of its own and their **sum** is meant. Here it is one loss, which all "
            "ranks compute.",
        ),
        Option(
            "all four times too large",
            "Almost. One of them does not pass through the sum.",
        ),
        Option("four times too large, except that of the last bias"),
        Option(
            "four times too large, and 16 times before gelu",
            "The way back passes the sum once. What is four times too large after gelu is four times too large before "
            "it. (A second MLP before this one would have gradients 16 times too large.)",
        ),
    ),
    answer="four times too large, except that of the last bias",
    why=(
        "Four times too large, except that of the last bias, which comes after the sum. Every rank's `dy` is whole "
        "already, and four equal ones are added up. No error is raised, and the model learns all the same: in 60 "
        "training steps on four ranks it even came further than with the right gradients, to a loss of 2.54 instead "
        "of 2.62, as with a higher learning rate."
    ),
)

QKV = Prediction(
    name="quarter_of_qkv",
    lesson="12",
    question=(
        "`qkv` makes 48 queries, 48 keys and 48 values, in this order, for 12 heads of four numbers. Four ranks cut "
        "its 144 outputs into four runs of 36, as for any other column-parallel layer. What does rank 0 get?"
    ),
    options=(
        Option(
            "queries, keys and values of three heads",
            "That would be true if the outputs were stored head by head. Here all queries come first, then all keys.",
        ),
        Option("queries of nine heads, and nothing else"),
        Option(
            "all queries, and no keys",
            "That would be true of three ranks: there are 48 queries, and rank 0 has 36 of the 144 outputs.",
        ),
        Option(
            "a quarter of each kind",
            "That is what rank 0 should have. A run of 36 outputs does not reach beyond the 48 queries.",
        ),
    ),
    answer="queries of nine heads, and nothing else",
    why=(
        "The queries of nine heads, and nothing else. No error would be raised: the layer's forward pass cuts whatever "
        "it gets into three equal pieces and takes them for queries, keys and values. So the rows have to be picked "
        "head by head."
    ),
)

COUNT = Prediction(
    name="count_of_all_reduces",
    lesson="12",
    question=(
        "A layer has two pairs of columns and rows: `qkv` and `project`, `widen` and `narrow`. There are two layers; "
        "embeddings, norms and output are whole on every rank. How many all-reduces does a training step make, forward "
        "and backward together?"
    ),
    options=(
        Option("4", "That is one direction, or one layer."),
        Option("8"),
        Option("16", "f and g communicate in one direction each: the columns backward, the rows forward."),
        Option(
            "38",
            "30 more would average the gradients of 30 tensors. That is data parallelism; here all ranks see the same "
            "rows.",
        ),
    ),
    answer="8",
    why=(
        "Eight: each pair makes one in the forward pass, after its rows, and one in the backward pass, before its "
        "columns. Two pairs in each of two layers make four forward and four backward. No more are needed: the "
        "gradients of what is whole are equal on all ranks already."
    ),
)

AGAINST_DATA = Prediction(
    name="bytes_against_data_parallel",
    lesson="12",
    question=(
        f"On a napkin: one layer of width 48 has {LAYER:,} parameters, and data parallelism all-reduces their "
        "gradients once. Tensor parallelism all-reduces activations of the size of `x`, which has "
        f"{TOKENS:,} · 48 = {TOKENS * WIDTH:,} numbers, and gradients of that size. All are float64. For this layer, "
        "compared with data parallelism, it sends:"
    ),
    options=(
        Option(
            "a third of it", "The other way round: here even one `x` has more numbers than the layer has parameters."
        ),
        Option("3 times as much", "That is one all-reduce of the size of `x`. A layer has two in each direction."),
        Option("6 times as much", "That is one direction. A layer has two all-reduces forward and two backward."),
        Option("13 times as much"),
    ),
    answer="13 times as much",
    why=(
        "13 times: 4 · 92,160 = 368,640 numbers against 28,272. The number of ranks cancels. A layer of width h has "
        "about 12 h² parameters, and t tokens make 4 t h numbers: both send the same where **t = 3 h**. A layer of "
        "width 12,288 (GPT-3) reaches that with 36,864 tokens."
    ),
)

SEEDS = Prediction(
    name="seeds_of_dropout",
    lesson="12",
    question=(
        "Two dropouts in a tensor-parallel layer: one on `x`, which is whole and equal on all ranks, and one between "
        "the columns and the rows, where each rank has different numbers. With which seed should each rank draw the "
        "two masks?"
    ),
    options=(
        Option(
            "the same seed for both",
            "Between columns and rows, every rank would drop the same places in its part: the whole mask would repeat "
            "itself, and no single process would draw such a mask.",
        ),
        Option(
            "a seed of its own for both",
            "Then `x` differs from rank to rank, and the ranks no longer compute parts of the same thing. "
            "No error would be raised.",
        ),
        Option(
            "its own for `x`, the same in between",
            "It is the other way round: the same mask where ranks hold the same numbers, different masks where they do "
            "not.",
        ),
        Option("the same for `x`, its own in between"),
    ),
    answer="the same for `x`, its own in between",
    why=(
        "The same seed for `x`, so that it stays equal everywhere; a seed of its own for the numbers that only this "
        "rank has. For this, Megatron keeps two states of the random generator and switches between them."
    ),
)


def _where(name: str, question: str, answer: str, why: str, **replies: str) -> Prediction:
    options = tuple(Option(o, replies.get(o, "")) for o in ("all_reduce", "nothing", "reduce_scatter", "all_gather"))
    return Prediction(name, "12", question, answer, why, options)


KEPT = Prediction(
    name="activations_in_parts",
    lesson="12",
    question=(
        "And with tensor parallelism alone, without sequence parallelism: how many bytes of a transformer layer's "
        "activations does autograd keep on each of four ranks, compared with one process?"
    ),
    options=(
        Option(
            "a quarter",
            "That is true of what lies between columns and rows. Before the columns and after the rows, every rank has "
            "the whole `x`.",
        ),
        Option("between a third and a half"),
        Option(
            "the same: all ranks have the same rows",
            "Between columns and rows, each rank has its own heads and hidden numbers only, and these are most of it.",
        ),
        Option(
            "more: sums from the other ranks come on top",
            "The sum takes the place of this rank's part, and is as large.",
        ),
    ),
    answer="between a third and a half",
    why=(
        "7 of 16 parts, 44 %. Three quarters of the 16 lie between columns and rows, and these are divided by four. "
        "The rest is whole on every rank: the inputs of both norms, and the inputs of both column-parallel layers."
    ),
)

DIRECTIONS = Series(
    name="which_collective_where",
    lesson="12",
    question=(
        "With sequence parallelism, norms and residuals work on **this rank's positions** only, of whole width. "
        "Attention and MLP stay as they are: each rank has its heads and hidden numbers, of all positions. What has to "
        "be called?"
    ),
    parts=(
        _where(
            "before_columns_forward",
            "Before a column-parallel layer, forward:",
            "all_gather",
            "This rank's columns need all positions, and each rank has some: they are put together.",
            all_reduce="The ranks hold different positions, and these are not parts of a sum.",
            nothing="That was so when every rank had all positions. Now it has only some of them.",
            reduce_scatter="There is nothing to add up here: each position is complete, on one of the ranks.",
        ),
        _where(
            "behind_rows_forward",
            "After a row-parallel layer, forward:",
            "reduce_scatter",
            "Each rank holds a part of the sum for all positions, and needs the sum for its own.",
            all_reduce="It would work, at twice the bytes: every rank would get the sums for all positions.",
            nothing="Then each rank would go on with its part of a sum.",
            all_gather="The ranks hold parts of a sum, for all positions. Put together they would not be added up.",
        ),
        _where(
            "behind_rows_backward",
            "After a row-parallel layer, backward:",
            "all_gather",
            "Each rank comes back with the gradient of its positions, and the rows' gradients need all positions.",
            all_reduce="The ranks hold the gradients of different positions, and these are not parts of a sum.",
            nothing="That was so when every rank came back with the gradient of all positions.",
            reduce_scatter="This is its forward pass. Backward, what was scattered has to be put together.",
        ),
        _where(
            "before_columns_backward",
            "Before a column-parallel layer, backward:",
            "reduce_scatter",
            "Each rank's columns give a share of the gradient of all positions, and this rank needs the sum for its "
            "own.",
            all_reduce="It would work, at twice the bytes. This rank goes on with the gradient of its own positions.",
            nothing="Then the shares of the other ranks' columns would be missing.",
            all_gather="The ranks hold shares of one sum here, for all positions.",
        ),
        _where(
            "gradient_of_a_norm",
            "For the gradient of a norm's weight (every rank has the whole weight):",
            "all_reduce",
            "Each rank's norm has seen its own positions only, and its gradient counts only these. All ranks need the "
            "sum.",
            nothing="That was so when each rank's norm saw all positions.",
            reduce_scatter="Every rank keeps the whole weight of the norm, and so needs its whole gradient.",
            all_gather="Each rank has a share of every number of this gradient. They have to be added up.",
        ),
        _where(
            "gradient_of_columns",
            "For the gradient of a column-parallel layer's weight:",
            "nothing",
            "Only this rank has these columns, and they have seen all positions.",
            all_reduce="It would mix gradients of different columns.",
            reduce_scatter="It would mix gradients of different columns.",
            all_gather="No other rank needs the gradient of this rank's columns.",
        ),
        KEPT,
    ),
)

CUT = Series(
    name="cut_an_mlp",
    lesson="12",
    question="Before you cut anything: which part of a weight, and why columns first?",
    parts=(WHICH_PART, GELU),
)
BACKWARD = Series(
    name="back_through_the_mlp",
    lesson="12",
    question="The backward pass. What do you expect?",
    parts=(INPUT_GRADIENT, TWICE),
)
HEADS = Series(
    name="heads_and_seeds", lesson="12", question="Two things that can go wrong without an error:", parts=(QKV, SEEDS)
)

PRICE = Series(
    name="price_of_parts", lesson="12", question="What does it cost, forward and backward?", parts=(COUNT, AGAINST_DATA)
)

PREDICTIONS = (CUT, BACKWARD, HEADS, PRICE, DIRECTIONS)
