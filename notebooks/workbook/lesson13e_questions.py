"""Predictions of lesson 13e: loading a model for data, tensor and pipeline parallelism."""

from labkit.grading.prediction import ask

copies_after_loading = ask("""
Every rank builds the model with random weights of its own, rank 0 loads the file, and then each **parameter** is
broadcast from rank 0. All ranks compute the loss of the same rows. What do they find?
( ) the same loss on all ranks, that of the model in the file
    > That would be true of a model that consists of parameters. This one has a buffer, too.
( ) a different loss on every rank
    > That would be true if something random were left. The buffer that nobody broadcasts begins with zeros, on every
    rank.
(x) one loss on rank 0, and another one that all other ranks share
( ) nothing: rank 0 waits for ever in the broadcast
    > That would be true if the ranks had different numbers of parameters. All of them have built the same model, so
    their calls match.
Why: Rank 0 has the loss of the file, and all others share a worse one. They have rank 0's parameters, and the zeros
that their own buffer began with: `model.parameters()` lists no buffers. Nothing raises an error.
""")

peak_of_the_reader = ask("""
The file has 16 MiB. Every rank builds the model, `Primed()`. Then rank 0 runs
`model.load_state_dict(torch.load(path))`, and everybody receives. How many MiB more than before does **rank 0** hold at
its peak?
= 32.0 MiB +- 10 %
( ) 16
    > This is what the others hold. Rank 0 has built a model as well, and what it reads comes on top.
( ) 64
    > This is what four ranks hold. The question is about one of them.
( ) 48
    > `load_state_dict` copies number by number into the model that is there. It makes no third copy.
Why: About 32: the model that it has built, with random numbers that nobody needs, and beside it everything that
`torch.load` returns, until it has been copied. The others hold one copy.
""")

seconds_to_64_replicas = ask("""
On paper: 64 hosts start with the same model of 14 GB. The storage gives 5 GB/s, which all its readers share; each link
between hosts carries 10 GB/s. One host reads the file, and **then** broadcasts it in many small pieces that everyone
passes on, so that the broadcast takes about as long as one copy on one link. How many seconds is that together?
= 4.2 s
( ) 2.8
    > This is the reading alone. The broadcast comes on top.
( ) 1.4
    > This is the broadcast alone. Before it, one host has to read.
( ) 179.2
    > That is if all 64 read: 64 times 14 GB at 5 GB/s.
( ) 11.2
    > That would be true of a tree that passes on the whole file at each of its 6 levels.
( ) 91.0
    > That would be true if one host sent it to each of the 63 others in turn.
Why: 4.2 s: 14 / 5 = 2.8 s to read, and 14 / 10 = 1.4 s to broadcast. If all 64 read for themselves, the storage has to
give 896 GB, which takes 179 s: 43 times as long.
""")

gpus_for_350_gb = ask("""
GPT-3 has 175 billion parameters: 350 GB in 16 bits. A GPU has room for 25 GB of weights. Tensor parallelism cuts every
layer by its heads, 96 of them, and each GPU gets **equally many**. What is the smallest number of GPUs that works?
= 16.0 +- 0 %
( ) 14
    > 350 / 25 is 14, and 96 / 14 is not a whole number: some GPUs would get 7 heads, others 6.
( ) 12
    > 96 divides by 12, but 350 / 12 is 29.2 GB on each.
( ) 8
    > 96 divides by 8, but 350 / 8 is 43.8 GB on each.
( ) 7
    > 350 GB are the bytes in 16 bits already.
( ) 24
    > That works, too, but a smaller number does as well.
Why: 16. There are 350 / 25 = 14 shards of 25 GB, and 96 heads divide neither by 14 nor by 15. With 16 GPUs each holds 6
heads and 21.9 GB. With 12 the heads would divide, but 29.2 GB do not fit; with 8 it is 43.8 GB.
""")

six_in_four_chunks = ask("""
Six layers for four ranks: `torch.arange(6).chunk(4)[rank]`. What does **rank 3** get?
( ) layer 5
    > That would be true of `tensor_split(4)`, which makes parts of 2, 2, 1 and 1.
(x) an IndexError
( ) layers 4 and 5
    > Rank 2 gets these. `chunk` makes parts of 6 / 4 layers, rounded up.
( ) nothing: an empty tensor
    > DTensor, which cuts like `chunk`, gives its last ranks empty parts. `chunk` itself makes fewer parts.
Why: An IndexError: `chunk(4)` rounds the length up, to 2, and after three chunks nothing is left. With `6 // 4 = 1`
layer a rank, the formula of many guides, layers 4 and 5 belong to nobody, and no error says so.
""")

a_chunk_of_qkv = ask("""
`qkv.weight` has 720 rows: 240 for the queries, then 240 for the keys, then 240 for the values; 20 rows for each of 12
heads. What does rank 0 of four get from `qkv.weight.chunk(4)[0]`?
( ) the queries, keys and values of its three heads
    > That would be true if the rows were ordered by heads. They are ordered by queries, keys and values.
(x) the queries of nine heads, and no keys or values
( ) all queries, and nothing else
    > That would be true of `chunk(3)`: 240 rows. A quarter of 720 is 180.
( ) an error: 720 rows of three kinds do not divide by four
    > 720 divides by 4, and `chunk` knows nothing of kinds.
Why: 180 rows, all of them queries: those of nine heads. The shape is what a quarter should have, so nothing raises an
error, and the model computes nonsense. Each of the three has to be cut by itself.
""")

the_device_of_rank_9 = ask("""
A program for one host of 8 GPUs reads `torch.load(path, map_location=f'cuda:{rank}')`. It now runs on two such hosts,
with 16 ranks in all. Which device does **rank 9** need?
( ) `cuda:9`
    > That would be true of a host with ten GPUs or more. Each host counts its own GPUs from 0, and here they end at
    7: `torch.load` raises an error.
(x) `cuda:1`
( ) `cuda:0`
    > That would be true of rank 8, the first one of the second host.
( ) none: without a `map_location` each rank loads to its own GPU
    > That would be true if files did not remember where a tensor was. They do: all ranks of a host would load to the
    GPU that it was saved from, often `cuda:0`.
Why: `cuda:1`: rank 9 is the second rank of the second host. That number is the **local** rank, which `torchrun` puts
into the environment variable `LOCAL_RANK`. labkit's `device` comes from it, too.
""")
