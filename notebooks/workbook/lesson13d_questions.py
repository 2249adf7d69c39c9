"""The predictions of lesson 13d: what attention needs of other ranks, and what a ring sends, holds and leaves idle."""

from labkit.grading.prediction import ask

what_needs_the_others = ask("""
Each rank has some positions of the sequence, and all weights. Which parts of a transformer layer need something of the
positions on other ranks?
( ) all of them: a layer is one function of the whole sequence
    > Taken together it is. But most of its parts look at one position at a time.
( ) attention and the layer norms
    > That would be true of a batch norm, which takes a mean over positions. A layer norm takes its mean over the
    numbers of one position.
( ) attention and the MLP
    > The MLP has most of the weights, and computes each position by itself.
(x) attention alone
Why: Attention alone. Embeddings, norms, MLP and output compute each position by itself. Without the others' positions
the loss is wrong, and so is the gradient, though no rank notices.
""")

keys_of_the_first_query = ask("""
Rank 2 has the queries of positions 512 to 767, and has gathered the keys and values of all 1,024 positions. It calls
`scaled_dot_product_attention(q, k, v, is_causal=True)`. Which keys does its **first** query see?
(x) key 0 alone
( ) keys 0 to 512
    > That would be right, and it would be true if the function knew that these queries begin at 512. Nobody has told
    it.
( ) keys 0 to 768: queries and keys are aligned at their ends
    > That is what you want when you generate text with a cache, and PyTorch has `causal_lower_right` for it.
    `is_causal=True` aligns both at the beginning.
( ) none: it raises an error, because there are more keys than queries
    > An error would be helpful, but these shapes are allowed, with this mask, too.
Why: Key 0 alone. The function numbers queries and keys from 0, and its query 0 sees key 0. Rank 2 would look at rank
0's positions and never at its own. All ranks but rank 0 get this wrong, without an error.
""")

block_after_two_steps = ask("""
At the beginning each of four ranks holds its own block. In each step it sends the block that it holds to the next rank
(rank 3 to rank 0) and gets one from the rank before it. Whose block does rank 1 hold after **two** steps?
( ) rank 1's: blocks go there and back
    > That would be true with two ranks.
( ) rank 2's
    > That would be true after three steps: the block before the last one has come all the way round.
(x) rank 3's
( ) rank 0's
    > That would be true after one step.
Why: Rank 3's: after s steps a rank holds the block of rank (r − s) mod N, and (1 − 2) mod 4 is 3. If you count in the
other direction, you mask the wrong keys and get plausible numbers.
""")

bytes_of_the_ring = ask("""
Compared with the all-gather of all keys and values, a rank in the ring sends …
( ) less: it only ever talks to its neighbour
    > Fewer partners are not fewer bytes. In an all-gather, too, each block has to reach three other ranks.
( ) more: it passes on what is not its own
    > That would be true if the all-gather did not. Gloo's all-gather is a ring as well, and so is NCCL's, for large
    buffers.
(x) as much
( ) half, because masked blocks are skipped
    > They are skipped when it comes to computing. But the ranks further on need them, so they travel.
Why: As much. Either way, each rank passes on N − 1 blocks. (What `comms` adds lets the ranks agree on shapes.) What
differs is that the ring computes in between and does not keep the blocks.
""")

memory_of_the_ring = ask("""
Both make the scores that they need as a whole matrix: `at_once` of 256 queries and 1,024 keys, `ring` of 256 queries
and 256 keys at a time. About how many times as many bytes of tensors does `at_once` have alive at its peak?
= 4.0 +- 15 %
( ) 1
    > That would be true if the ring kept what came by.
( ) 16
    > That would be true of one process with all 1,024 queries. The queries are shared out in both ways.
( ) 2
    > Two blocks are in memory at a time, but scores are much larger, and they are those of one block.
Why: About four times as many, one for each rank: its scores are those of four blocks against one, and its keys and
values those of four against two.
""")

even_share_of_a_causal_ring = ask("""
In each step of the ring the ranks wait for the slowest one. Count work in pairs of a query and a key that it sees, and
add up what the slowest rank has to do in each of the four steps. If all pairs were shared out **evenly**, what
percentage of this sum would each rank have to do?
= 57.1 % +- 6 %
( ) 62.5
    > These are the blocks that are not skipped, 10 of 16. The four on the diagonal are half empty.
( ) 50
    > That is the limit for many ranks. With four, the triangles still count.
( ) 25
    > That would be true if one rank did everything.
( ) 100
    > That would be true if all ranks had the same to do in each step. Rank 0 has nothing after the first.
Why: 57 %. In the first step all ranks have their own block, a triangle: half a block. In the other three, some rank
has a whole block. That is 3.5 blocks. Together there are 4 triangles and 6 whole blocks, 8 in all, and a quarter of
that is 2. With more ranks the share comes close to one half.
""")

bytes_of_ulysses = ask("""
The ring sends two tensors (keys, values) as large as a rank's `q` in each of three steps. Ulysses exchanges four
tensors of that size once: `q`, `k`, `v` and the result. How many times as many bytes does a rank send in the **ring**,
on four ranks?
= 2.0 +- 10 %
( ) 1.5
    > 6 against 4 tensors. A rank's own part stays where it is in an all-to-all: a quarter of each.
( ) 0.5
    > The other way round: the ring sends more.
( ) 1
    > Count the tensors: two in each of three steps, and four once, less a quarter.
( ) 6
    > That is what the ring sends, in tensors. Ulysses sends some, too.
Why: Twice as many. The ring sends 2 · 3 = 6 tensors. An all-to-all keeps a rank's own quarter, so Ulysses sends 4 · ¾
= 3. In general it is N / 2 times: the more ranks, the better for Ulysses. But Ulysses' messages are not hidden, and it
needs at least as many heads as ranks.
""")
