"""The predictions of lesson 12b: what a small bubble takes, what shrinks it and at what price, and what is sent."""

from labkit.grading.prediction import ask

fewest_micro_batches = ask("""
Eight equal stages, 1F1B. How many micro-batches does a training step need at least, so that the bubble is at most 10 %
of the time?
= 63.0 +- 2 %
( ) 70
    > 7 of 70 turns idle: the 70 turns include the 7 idle ones.
( ) 80
    > 10 for each of the 8 stages? A rank stands idle for 7 turns.
( ) 72
    > 9 · 8: there are P − 1 idle turns, 7.
( ) 8
    > With as many micro-batches as stages, nearly half of the time is bubble: 7 of 15 turns.
Why: 63: (P − 1) / (M + P − 1) ≤ 0.1 means M ≥ 9 · (P − 1) = 63. A small bubble takes many more micro-batches than there
are stages, and a micro-batch has at least one row.
""")

one_slow_stage = ask("""
Four ranks, 8 micro-batches, all forward and then all back. If a forward pass takes 30 ms on every rank and a backward
pass 60 ms, the step takes 990 ms: 11 turns of 90 ms. Now rank 1's stage takes twice as long as each of the others: 60
and 120 ms. For how many milliseconds does the training step run?
= 1710.0 ms +- 4 %
( ) 1237.5
    > A quarter more work, a quarter more time? That would be true if the ranks could share the work.
( ) 1080
    > That is one turn longer. But the slow stage is slow for each of the 8 micro-batches.
( ) 1980
    > That would be true if all four were twice as slow. The others still pass things on in 90 ms.
( ) 1440
    > These are the 8 turns of rank 1. The first micro-batch has to come to it, and the last one to go on.
( ) 1590
    > That is 1F1B's order, which hides a little of it.
Why: 1,710 ms: eight turns of the slow stage, 180 ms each, and one turn of each of the three others, 90 ms each. A
quarter more work makes the step 73 % longer, because every micro-batch has to go through the slow stage. The other
ranks compute for 720 ms and wait for the rest.
""")

price_of_interleaving = ask("""
Each rank gets two smaller stages instead of one: rank 0 the first and the fifth eighth of the model, rank 1 the second
and the sixth, and so on. The bubble shrinks to about a half. What is the price?
( ) twice the weights on each rank
    > That would be true if each chunk were as large as the stage before. Each has half of its layers.
( ) different gradients: a micro-batch meets newer weights in the second chunk
    > That would be true of schedules that update within a step (PipeDream). Here all weights stay as they are until
    every micro-batch is back.
(x) about twice as many messages, and more activations on the first ranks
( ) nothing: it is only another way to deal out the layers
    > Count the borders: a micro-batch now crosses 7 of them instead of 3, each way.
Why: Messages, and some memory. A micro-batch crosses 7 borders instead of 3, each way, and as many numbers cross each
of them as before. And rank 0 begins with more forward passes, so it keeps more activations.
""")

bubble_of_zero_bubble = ask("""
Four ranks, 8 micro-batches. A forward pass takes 30 ms, and so does each of the two halves of a backward pass. In 1F1B
a rank stands idle for 3 turns of 90 ms. Now the stage before waits for **one** half of a backward pass, and a rank does
the other halves when it has nothing else to do. In the best case, for how many milliseconds does a rank still stand
idle in the step?
= 90.0 ms +- 5 %
( ) 270
    > That is 1F1B: 3 forward passes and 3 whole backward passes.
( ) 180
    > 3 forward passes at the beginning, and 3 first halves at the end? Rank 3 fills the second of these waits with
    halves that it has put off.
( ) 0
    > The name promises no bubble. But something has to reach the last rank before it can begin.
( ) 135
    > Half of 1F1B's? The wait at the beginning stays, because forward passes cannot be split. The wait at the end can
    be filled.
Why: 90 ms, a third. Rank 3 cannot begin before 3 forward passes have brought it the first micro-batch: 90 ms. Rank 0
begins at once, and then waits for 3 first halves, until that micro-batch comes back: 90 ms, too. From then on each rank
always has work. While the last micro-batch goes back to rank 0, rank 3 does 3 second halves that it has put off.
""")

memory_of_zero_bubble = ask("""
The second halves that are put off keep their activations. In 1F1B, ranks 0 to 3 keep 4, 3, 2 and 1 micro-batches at
once. Which rank's memory grows the most, if second halves are put off so that no rank makes another rank wait?
( ) rank 0's: it keeps the most already
    > No rank comes before rank 0, so no rank waits for its first halves, and it has no reason to put anything off.
( ) all grow alike
    > That would be true if all ranks put off equally many. The later a rank comes in the pipeline, the more ranks wait
    for its first halves.
(x) rank 3's: the one that keeps the least so far
( ) no rank's: the activations are kept for the first half anyway
    > They are, until the first half is done. In 1F1B they are freed then.
Why: Rank 3's. All other ranks wait for its first halves, so it puts off the most: three. With these it keeps four
micro-batches, as many as rank 0. Rank 2 puts off two, and rank 1 one.
""")

gradient_of_a_tied_matrix = ask("""
Many models use one matrix twice: as the embedding, and as the weight of the output layer. Here these are on rank 0 and
on rank 3, which hold a copy each. After the backward pass each copy has a gradient. Which gradient would one process
have?
( ) the mean of the two, as in data-parallel training
    > In data-parallel training each copy sees other rows, and the loss is a mean over rows. Here both copies take
    part in the loss of the same rows.
(x) the sum of the two
( ) either: both copies have the same gradient
    > That would be true if both were used in the same place. One copy looks up characters, the other scores them.
( ) the last rank's, because the loss is computed there
    > The loss also depends on the embedding, through all layers.
Why: The sum: by the chain rule, each place where a weight is used adds its part. In one process autograd adds them up
by itself. On two ranks you need an all-reduce between them, once in a training step.
""")

bytes_over_a_border = ask("""
A model of 7 billion parameters is 4,096 numbers wide. In a training step a pipeline takes 32 micro-batches of one
sequence each, 4,096 tokens long, in 16 bits. How many GB of **activations** does one stage send to the next one in that
step?
= 1.07 GB +- 10 %
( ) 0.0336
    > This is one micro-batch. There are 32 of them.
( ) 0.537
    > 16 bits are two bytes.
( ) 2.147
    > This also counts the gradients, which come back; or it takes four bytes per number.
( ) 14
    > These are the weights, 7 billion times two bytes. They stay where they are.
Why: 1.07 GB: 32 · 4,096 · 4,096 · 2 bytes, and as much again comes back as gradients. Data-parallel training of the
same model over 8 GPUs all-reduces 14 GB of gradients, for which each GPU sends 24.5 GB. Tensor parallelism (lesson 13)
over 8 GPUs makes four all-reduces in each layer: with 32 layers, each GPU sends 240 GB. So pipelines run across hosts,
and tensor parallelism stays within one.
""")
