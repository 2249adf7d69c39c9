"""The predictions of lesson 15c: what a longer pipeline keeps, which links carry what, and which plan is faster."""

from labkit.predictions.prediction import Option, Prediction, Trap

LONGER = Prediction(
    name="longer_pipeline",
    lesson="15c",
    question=(
        "66 billion parameters on 64 GPUs. You change data 4 x tensor 8 x pipe 2 into data 2 x tensor 8 x pipe 4. The "
        "pipeline runs 1F1B, and a micro-batch stays one sequence. What happens to the **activations** that a GPU of "
        "the first stage holds at most?"
    ),
    options=(
        Option(
            "they halve: a stage has half as many layers",
            "It has. But it waits longer for the first micro-batch to come back, and meanwhile it takes in more of "
            "them.",
        ),
        Option("they stay the same"),
        Option(
            "they double: twice as many micro-batches are under way",
            "That would be true if a stage kept all of its layers.",
        ),
        Option(
            "they double: each copy has twice as many sequences",
            "That would be true of GPipe, which keeps all micro-batches. 1F1B keeps as many as there are stages.",
        ),
    ),
    answer="they stay the same",
    why=(
        "They stay the same. The first stage has half as many layers, and keeps twice as many micro-batches of them. A "
        "longer pipeline saves weights, gradients and optimizer states, and no activations on the first stage. Of "
        "the three dimensions, only tensor makes these smaller."
    ),
)

TEAM = Prediction(
    name="team_of_a_trillion",
    lesson="15c",
    question=(
        "A transformer of 1,009 billion parameters on 1,024 GPUs of 80 GB, in mixed precision: 2 bytes a weight, 2 a "
        "gradient, 12 for Adam's states. ZeRO-1 shards the states over the copies. Leave activations out. At least "
        "how many GPUs have to share one copy (tensor times pipe), if the number is a power of two?"
    ),
    answer=64.0,
    within=0.0,
    why=(
        "**64.** With ZeRO-1 the states are spread over all 1,024 GPUs, however large a team is: a GPU has 1/team of "
        "them, divided by 1,024/team copies. That is 12 x 1,009 / 1,024 = 11.8 GB, which leaves 68.2 GB for weights "
        "and gradients: 4 x 1,009 / 68.2 = 59.2 GPUs, and the next power of two is 64. Activations will need more."
    ),
    traps=(
        Trap(256, "That would be true without ZeRO: 16 x 1,009 / 80 = 202 GPUs, and the next power of two."),
        Trap(32, "Is this for the weights alone? The gradients take as much again."),
        Trap(128, "Does this count more than weights, gradients and a 1,024th of the states?"),
        Trap(16, "16 GPUs have 1,280 GB, and weights and gradients alone take 4,036."),
        Trap(1024, "That would be one copy. With 1,024 GPUs there is room for more than that."),
    ),
)

TRADE = Prediction(
    name="trade_data_for_pipe",
    lesson="15c",
    question=(
        "A trillion parameters on 1,024 GPUs, 1,024 sequences a step, one sequence a micro-batch. You change data 8 x "
        "tensor 8 x pipe 16 into data 2 x tensor 8 x pipe 64. The pipeline is four times as long. What happens to the "
        "bubble, as a part of the time?"
    ),
    options=(
        Option(
            "it becomes about four times as large",
            "That would be true if the number of micro-batches stayed as it was. But with a quarter of the copies, "
            "each copy has four times as many.",
        ),
        Option("it stays about the same"),
        Option(
            "it becomes about a quarter",
            "Four times as many micro-batches do that. But there are also four times as many stages to fill.",
        ),
        Option(
            "it becomes sixteen times as large",
            "That would be true if the copies went and their sequences went with them. The batch stays.",
        ),
    ),
    answer="it stays about the same",
    why=(
        "About the same: 15/143 and 63/575, 10.5 and 11.0 %. A copy has rows/data micro-batches, so the bubble is "
        "roughly pipe x data / rows, and pipe x data is 128 either way: the number of GPUs divided by tensor. What "
        "shrinks the bubble is a larger batch, fewer GPUs, or a larger tensor dimension."
    ),
)

SENDS = Prediction(
    name="what_sends_the_most",
    lesson="15c",
    question=(
        "Eight GPUs share the work on 32 sequences of the model of 66 billion parameters, by one kind of parallelism "
        "alone (never mind memory). *Expert*: each layer has eight experts, one on each GPU, and every token goes to "
        "two of them. Which order is right, from the most bytes that a GPU sends in a training step to the fewest?"
    ),
    options=(
        Option(
            "data, tensor, expert, pipe",
            "That would be true of a larger model or a smaller batch. Here each GPU has four sequences, 32,768 tokens, "
            "and the gradients of all weights are less than the activations that travel for these tokens.",
        ),
        Option("tensor, expert, data, pipe"),
        Option(
            "expert, tensor, data, pipe",
            "A token is sent to two experts, four times in each layer. But only a GPU's own tokens are: an eighth of "
            "those that tensor parallelism all-reduces.",
        ),
        Option(
            "tensor, pipe, expert, data",
            "A pipeline also sends activations, but only where one stage ends: once forward and once back, and not in "
            "each of 80 layers.",
        ),
    ),
    answer="tensor, expert, data, pipe",
    why=(
        "Tensor, expert, data, pipe. Tensor parallelism all-reduces the activations of **all** tokens four times in "
        "each layer. Experts get a GPU's own tokens only: there and back, forward and backward, in each layer. Data "
        "parallelism sends the gradients once a step, however many tokens there were. A pipeline sends "
        "activations at its boundaries."
    ),
)

ACROSS = Prediction(
    name="tensor_leaves_the_host",
    lesson="15c",
    question=(
        "Ranks 0 and 1 play host A, 2 and 3 host B. Four layers of width 128 in float32, 192 rows of 8 positions, "
        "data 2 x tensor 2: each copy gets 96 rows. Tensor parallelism makes four all-reduces of the activations in "
        "each layer. Now the order is turned: each tensor group has one rank in A and one in B. How many MB (millions "
        "of bytes) of tensor parallelism does host A send to host B in a training step?"
    ),
    unit="MB",
    answer=12.6,
    why=(
        "**12.6 MB.** The activations of a copy are 96 x 8 x 128 numbers of 4 bytes, 393 kB. An all-reduce between two "
        "ranks sends them once from each. There are 4 x 4 all-reduces, so each rank sends 6.3 MB, and both ranks of "
        "host A send to host B. With tensor parallelism inside the hosts it would be nothing, and the gradients "
        "would cross instead: 3.3 MB."
    ),
    traps=(
        Trap(6.3, "That is one rank's part. Host A has two ranks, and both of them send."),
        Trap(25.2, "This counts both directions, or all 192 rows for each copy. What B sends to A is not counted."),
        Trap(3.15, "Those would be the gradients. Or is it one rank, and two all-reduces a layer? There are four."),
        Trap(1.57, "Is this one all-reduce in each layer? There are four, two forward and two back, on two ranks."),
    ),
)

FASTER = Prediction(
    name="faster_than_the_capstone",
    lesson="15c",
    question=(
        "The capstone's plan for 66 billion parameters is data 4 x tensor 8 x pipe 2 with 64 micro-batches, ZeRO-1 and "
        "sequence parallelism. By the planner's model a step takes 42.4 s: computing 32.7, tensor 8.8, bubble 0.6, "
        "data 0.3. A GPU holds 52 GB. Which of these changes makes it faster, and still fits?"
    ),
    options=(
        Option(
            "tensor 16 and pipe 1: no bubble at all",
            "The bubble is 0.6 s. A tensor group of 16 takes up two hosts, so what it sends goes through their NICs: "
            "28 s instead of 8.8.",
        ),
        Option(
            "ZeRO-3 instead of ZeRO-1: what is saved in memory leaves room",
            "It saves 12 GB. But weights would be gathered twice for each of 64 micro-batches: 24 s along data "
            "instead of 0.3.",
        ),
        Option("tensor 4 and pipe 4: smaller tensor groups"),
        Option(
            "128 micro-batches: a smaller bubble",
            "Each copy has 64 sequences, and every micro-batch is one of them already.",
        ),
        Option(
            "data 8 and pipe 1, with ZeRO-2: no bubble, and more copies",
            "ZeRO-2 scatters the gradients for each of 32 micro-batches. With ZeRO-1 this mesh would be a little "
            "faster than the capstone's: 41.6 s.",
        ),
    ),
    answer="tensor 4 and pipe 4: smaller tensor groups",
    why=(
        "Tensor 4 and pipe 4: 39.2 s. A GPU has half as many layers, and for each of them it sends less: 3/4 of the "
        "activations instead of 7/8, ten times a layer. That saves 5.1 s of tensor traffic. The longer pipeline costs "
        "1 s of bubble, and its last stage, which also has the output, 1 s of computing. The price is memory: "
        "activations are cut by 4 instead of 8, and a GPU holds 76 of its 80 GB."
    ),
)

GATHERS = Prediction(
    name="gathers_of_zero_3",
    lesson="15c",
    question=(
        "66.6 billion parameters, data 4 x tensor 4 x pipe 4, 64 micro-batches. With ZeRO-3 every micro-batch gathers "
        "the weights twice and reduce-scatters the gradients once, among the four copies. Weights and gradients travel "
        "in 2 bytes. How many GB does each GPU send along data in a training step?"
    ),
    unit="GB",
    answer=1199.0,
    why=(
        "**1,199 GB.** A GPU's part of the model is 66.6 / 16 = 4.16 billion weights, 8.3 GB. An all-gather or a "
        "reduce-scatter among 4 sends 3/4 of that: 6.2 GB. There are 3 of them for each of 64 micro-batches: 192. With "
        "ZeRO-1 there are 2 in the whole step, 12.5 GB. (The planner says 1,240 for the first stage, which also has "
        "the embeddings.)"
    ),
    traps=(
        Trap(12.5, "That is ZeRO-1: one reduce-scatter and one all-gather in the whole training step."),
        Trap(18.7, "That is for one micro-batch. There are 64, and none of them finds the weights of the last one."),
        Trap(799, "This has the two gathers. The gradients are scattered for each micro-batch as well."),
        Trap(1599, "An all-gather among 4 sends 3/4: nobody sends to itself."),
    ),
)

PREDICTIONS = (LONGER, TEAM, TRADE, SENDS, ACROSS, FASTER, GATHERS)
