"""The predictions of lesson 13c: what arrives at an expert, what comes back, and what a router does if it is let."""

from labkit.grading.prediction import ask

tokens_that_arrive = ask("""
Each of the four ranks has 480 tokens and one expert, and the router has chosen an expert for every token. How many
tokens will arrive at rank 2's expert?
( ) 480: as many as rank 2 has
    > That would be true if the router dealt the tokens out evenly. It chooses for each token alone, and does not
    count.
( ) 120, a quarter of what rank 2 has
    > These would be rank 2's own tokens for its own expert, if all experts were equally liked. The other ranks send
    theirs, too.
(x) rank 2 cannot know before the other ranks tell it
( ) as many as rank 2 sends away
    > That would be true of a swap. What rank 2 sends depends on its own tokens, and what comes depends on the tokens
    of the others.
Why: Rank 2 cannot know. Anything from 0 to 1,920 is possible, and a receiver has to make room before the tokens come.
So a first all-to-all brings four numbers, and a second one the tokens.
""")

backward_of_an_exchange = ask("""
An all-to-all brings rows from every rank to every rank: `give[r]` of this rank's rows to rank r, and `take[r]` from
rank r. In the backward pass a rank has the gradients of the rows that **came**. Which call gives it the gradients of
the rows that it **gave**?
(x) an all-to-all that gives `take[r]` rows to rank r and takes `give[r]`
( ) an all-reduce of the gradients
    > That would be true if every rank had used the same row. Each row is on one rank only, and it has one gradient
    there.
( ) the same all-to-all once more, with `give` and `take` as they are
    > That would be true if all numbers of rows were equal. Now rank 2 has the gradients of the rows that it took, and
    these go back to where they came from.
( ) a reduce-scatter
    > That is the backward pass of an all-gather, where every rank used every row, and the gradients add up. Here
    nothing adds up.
Why: The same call with its splits swapped. An all-to-all only moves rows, and its backward pass moves their gradients
back. Autograd does not do this by itself: to it, torch's collectives do not exist.
""")

gradient_of_an_expert = ask("""
Every rank computes the mean loss of **its own** rows and calls `backward()`. Nobody has averaged any gradient yet. What
is in the gradient of rank 2's expert, which exists on rank 2 alone?
( ) the gradient of rank 2's loss
    > That is true of rank 2's copy of the embedding. But its expert has computed tokens of all ranks, and their
    gradients have come back to it.
( ) the gradient of the mean of all ranks' losses
    > It is close: all ranks' losses are in it. But nobody has divided, because an all-to-all moves numbers and does
    no arithmetic.
( ) nothing, until the gradients are all-reduced
    > That would be true if no gradient came back through the exchange. Yours brings them.
(x) the gradient of the sum of all ranks' losses
Why: The sum over all ranks' losses. The tokens of all ranks went through this expert, and the backward all-to-all has
brought all their gradients. One process would take the mean of the losses, so N times less.
""")

exchanges_of_a_training_step = ask("""
The model has two mixtures, with the functions that you have written. How many **collectives** does a rank call in a
forward and a backward pass together?
= 10.0 +- 0 %
( ) 6
    > That is the forward pass alone: sizes, tokens and results, in two mixtures.
( ) 8
    > The tokens' journeys are all there. Before they leave, their numbers travel, too.
( ) 12
    > That would be true if sizes had a gradient. They are integers.
( ) 5
    > That is one mixture. The model has two.
( ) 4
    > That is the forward pass without the sizes, or one mixture without them. Every journey has a way back.
Why: Ten, five for each mixture: sizes, tokens and results in the forward pass, gradients of the results and of the
tokens in the backward pass. Sizes have no gradient.
""")

bytes_against_tensor_parallel = ask("""
For one MLP, tensor parallelism all-reduces all 1,920 tokens in the forward pass, and as many numbers in the backward
pass. The mixture sends each rank's 480 tokens to one expert each and the results back, and in the backward pass the
gradients likewise. How many times as many bytes does a rank send with tensor parallelism, on four ranks?
= 4.0 +- 15 %
( ) 1
    > Four exchanges and two all-reduces, each of them in two halves: that part is equal. How many tokens?
( ) 2
    > An all-reduce sends twice as much as an all-to-all of the same buffer; but the buffers differ, too.
( ) 8
    > There are four exchanges, and two all-reduces: count the way back.
( ) 0.25
    > The other way round: each rank's own tokens are a quarter of all tokens.
Why: Four times as many, one for each rank. Two ring all-reduces send 2 · 2 · 1,920 · ¾ rows from each rank, and four
exchanges 4 · 480 · ¾. With two experts a token it is half of that, and with 8, as in DeepSeek-V3, four ranks would send
more than tensor parallelism does.
""")

head_start_of_an_expert = ask("""
With its head start, expert 0 gets nearly all tokens at the beginning. Nothing but the loss of the language model is
trained: all weights, the router's too. Where do the tokens go after 20 training steps?
( ) training has evened them out: about a quarter to each expert
    > That would be true if an idle expert cost anything. The loss depends on the model's guesses, not on how busy
    each expert is.
(x) still most of them to expert 0
( ) exactly where they went at the beginning: the router gets no gradient
    > It gets one through the gate, which multiplies what the chosen expert returns. Some tokens do change their
    expert.
( ) most of them to a different expert: expert 0 has too much to learn
    > That would be true if an expert got worse with every token. More tokens mean more training.
Why: Still most of them to expert 0. Only the chosen expert is trained by a token, so expert 0 gets better, its gate is
worth raising, and the others stay about as they began. In larger models, too, a few experts often end up with most
tokens, and the memory of all others is wasted.
""")

dropped_at_capacity_one = ask("""
With a capacity factor of 1 there are as many places as tokens. After its training, the **balanced** model sends roughly
equally many tokens to each expert. How many tokens are dropped?
( ) none: there is a place for each
    > That would be true if a token could take any free place. Each has one expert, and where that is full, free
    places elsewhere do not help.
(x) some, but fewer than half
( ) three quarters: a rank has places for a quarter of its tokens
    > A rank has places for a quarter of its tokens at **each** of the four experts.
( ) as many as without the loss for balance
    > That would be true if balance did not matter. Without it nearly all tokens want the same expert, and most of
    them find no place.
Why: Some, while as many places stay empty: roughly equal is not equal. Some experts are a little more popular than
others, and each rank's batch is different. So the Switch Transformer was also trained with a factor of 1.25.
""")
