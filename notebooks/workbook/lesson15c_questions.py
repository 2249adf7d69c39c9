"""The predictions of lesson 15c: what a longer pipeline keeps, which links carry what, and which plan is faster."""

from labkit.grading.prediction import ask

longer_pipeline = ask("""
66 billion parameters on 64 GPUs. You change data 4 x tensor 8 x pipe 2 into data 2 x tensor 8 x pipe 4. The pipeline
runs 1F1B, and a micro-batch stays one sequence. What happens to the **activations** that a GPU of the first stage holds
at most?
( ) they halve: a stage has half as many layers
    > It has. But it waits longer for the first micro-batch to come back, and meanwhile it takes in more of them.
(x) they stay the same
( ) they double: twice as many micro-batches are under way
    > That would be true if a stage kept all of its layers.
( ) they double: each copy has twice as many sequences
    > That would be true of GPipe, which keeps all micro-batches. 1F1B keeps as many as there are stages.
Why: They stay the same. The first stage has half as many layers, and keeps twice as many micro-batches of them. A
longer pipeline saves weights, gradients and optimizer states, and no activations on the first stage. Of the three
dimensions, only tensor makes these smaller.
""")

team_of_a_trillion = ask("""
A transformer of 1,009 billion parameters on 1,024 GPUs of 80 GB, in mixed precision: 2 bytes a weight, 2 a gradient, 12
for Adam's states. ZeRO-1 shards the states over the copies. Leave activations out. At least how many GPUs have to share
one copy (tensor times pipe), if the number is a power of two?
= 64.0 +- 0 %
( ) 256
    > That would be true without ZeRO: 16 x 1,009 / 80 = 202 GPUs, and the next power of two.
( ) 32
    > Is this for the weights alone? The gradients take as much again.
( ) 128
    > Does this count more than weights, gradients and a 1,024th of the states?
( ) 16
    > 16 GPUs have 1,280 GB, and weights and gradients alone take 4,036.
( ) 1024
    > That would be one copy. With 1,024 GPUs there is room for more than that.
Why: **64.** With ZeRO-1 the states are spread over all 1,024 GPUs, however large a team is: a GPU has 1/team of them,
divided by 1,024/team copies. That is 12 x 1,009 / 1,024 = 11.8 GB, which leaves 68.2 GB for weights and gradients: 4 x
1,009 / 68.2 = 59.2 GPUs, and the next power of two is 64. Activations will need more.
""")

trade_data_for_pipe = ask("""
A trillion parameters on 1,024 GPUs, 1,024 sequences a step, one sequence a micro-batch. You change data 8 x tensor 8 x
pipe 16 into data 2 x tensor 8 x pipe 64. The pipeline is four times as long. What happens to the bubble, as a part of
the time?
( ) it becomes about four times as large
    > That would be true if the number of micro-batches stayed as it was. But with a quarter of the copies, each copy
    has four times as many.
(x) it stays about the same
( ) it becomes about a quarter
    > Four times as many micro-batches do that. But there are also four times as many stages to fill.
( ) it becomes sixteen times as large
    > That would be true if the copies went and their sequences went with them. The batch stays.
Why: About the same: 15/143 and 63/575, 10.5 and 11.0 %. A copy has rows/data micro-batches, so the bubble is roughly
pipe x data / rows, and pipe x data is 128 either way: the number of GPUs divided by tensor. What shrinks the bubble is
a larger batch, fewer GPUs, or a larger tensor dimension.
""")

what_sends_the_most = ask("""
Eight GPUs share the work on 32 sequences of the model of 66 billion parameters, by one kind of parallelism alone (never
mind memory). *Expert*: each layer has eight experts, one on each GPU, and every token goes to two of them. Which order
is right, from the most bytes that a GPU sends in a training step to the fewest?
( ) data, tensor, expert, pipe
    > That would be true of a larger model or a smaller batch. Here each GPU has four sequences, 32,768 tokens, and
    the gradients of all weights are less than the activations that travel for these tokens.
(x) tensor, expert, data, pipe
( ) expert, tensor, data, pipe
    > A token is sent to two experts, four times in each layer. But only a GPU's own tokens are: an eighth of those
    that tensor parallelism all-reduces.
( ) tensor, pipe, expert, data
    > A pipeline also sends activations, but only where one stage ends: once forward and once back, and not in each of
    80 layers.
Why: Tensor, expert, data, pipe. Tensor parallelism all-reduces the activations of **all** tokens four times in each
layer. Experts get a GPU's own tokens only: there and back, forward and backward, in each layer. Data parallelism sends
the gradients once a step, however many tokens there were. A pipeline sends activations at its boundaries.
""")

tensor_leaves_the_host = ask("""
Ranks 0 and 1 play host A, 2 and 3 host B. Four layers of width 128 in float32, 192 rows of 8 positions, data 2 x tensor
2: each copy gets 96 rows. Tensor parallelism makes four all-reduces of the activations in each layer. Now the order is
turned: each tensor group has one rank in A and one in B. How many MB (millions of bytes) of tensor parallelism does
host A send to host B in a training step?
= 12.6 MB
( ) 6.3
    > That is one rank's part. Host A has two ranks, and both of them send.
( ) 25.2
    > This counts both directions, or all 192 rows for each copy. What B sends to A is not counted.
( ) 3.15
    > Those would be the gradients. Or is it one rank, and two all-reduces a layer? There are four.
( ) 1.57
    > Is this one all-reduce in each layer? There are four, two forward and two back, on two ranks.
Why: **12.6 MB.** The activations of a copy are 96 x 8 x 128 numbers of 4 bytes, 393 kB. An all-reduce between two ranks
sends them once from each. There are 4 x 4 all-reduces, so each rank sends 6.3 MB, and both ranks of host A send to host
B. With tensor parallelism inside the hosts it would be nothing, and the gradients would cross instead: 3.3 MB.
""")

faster_than_the_capstone = ask("""
The capstone's plan for 66 billion parameters is data 4 x tensor 8 x pipe 2 with 64 micro-batches, ZeRO-1 and sequence
parallelism. By the planner's model a step takes 42.4 s: computing 32.7, tensor 8.8, bubble 0.6, data 0.3. A GPU holds
52 GB. Which of these changes makes it faster, and still fits?
( ) tensor 16 and pipe 1: no bubble at all
    > The bubble is 0.6 s. A tensor group of 16 takes up two hosts, so what it sends goes through their NICs: 28 s
    instead of 8.8.
( ) ZeRO-3 instead of ZeRO-1: what is saved in memory leaves room
    > It saves 12 GB. But weights would be gathered twice for each of 64 micro-batches: 24 s along data instead of
    0.3.
(x) tensor 4 and pipe 4: smaller tensor groups
( ) 128 micro-batches: a smaller bubble
    > Each copy has 64 sequences, and every micro-batch is one of them already.
( ) data 8 and pipe 1, with ZeRO-2: no bubble, and more copies
    > ZeRO-2 scatters the gradients for each of 32 micro-batches. With ZeRO-1 this mesh would be a little faster than
    the capstone's: 41.6 s.
Why: Tensor 4 and pipe 4: 39.2 s. A GPU has half as many layers, and for each of them it sends less: 3/4 of the
activations instead of 7/8, ten times a layer. That saves 5.1 s of tensor traffic. The longer pipeline costs 1 s of
bubble, and its last stage, which also has the output, 1 s of computing. The price is memory: activations are cut by 4
instead of 8, and a GPU holds 76 of its 80 GB.
""")

gathers_of_zero_3 = ask("""
66.6 billion parameters, data 4 x tensor 4 x pipe 4, 64 micro-batches. With ZeRO-3 every micro-batch gathers the weights
twice and reduce-scatters the gradients once, among the four copies. Weights and gradients travel in 2 bytes. How many
GB does each GPU send along data in a training step?
= 1199.0 GB
( ) 12.5
    > That is ZeRO-1: one reduce-scatter and one all-gather in the whole training step.
( ) 18.7
    > That is for one micro-batch. There are 64, and none of them finds the weights of the last one.
( ) 799
    > This has the two gathers. The gradients are scattered for each micro-batch as well.
( ) 1599
    > An all-gather among 4 sends 3/4: nobody sends to itself.
Why: **1,199 GB.** A GPU's part of the model is 66.6 / 16 = 4.16 billion weights, 8.3 GB. An all-gather or a
reduce-scatter among 4 sends 3/4 of that: 6.2 GB. There are 3 of them for each of 64 micro-batches: 192. With ZeRO-1
there are 2 in the whole step, 12.5 GB. (The planner says 1,240 for the first stage, which also has the embeddings.)
""")
