"""The predictions of lesson 11b: what gathering ahead hides, where FSDP sums, whose rank counts, what parts hide."""

from labkit.grading.prediction import ask

what_prefetching_hides = ask("""
A model of equal layers: gathering a layer takes 3 ms, and computing it takes 2 ms. Every layer is gathered while the
one before it computes. How long does a forward pass of 10 layers take, in ms?
= 32.0 ms +- 5 %
( ) 50
    > This is the time without any overlap: ten times 3 + 2.
( ) 20
    > This is the computing alone. A layer cannot compute faster than its weights come.
( ) 23
    > That would be true if computing were the slower one. Here gathering takes longer.
( ) 30
    > These are the ten gathers. The last layer still has to compute.
Why: 32 ms. Nothing can hide the first gather: 3 ms. From then on the network is what limits: nine gathers of 3 ms, each
hiding 2 ms of computing behind it. After the last one the tenth layer computes: 3 + 27 + 2.
""")

where_fsdp_sums = ask("""
Rank 0's gradient is 256, and every other rank's is 1. `MixedPrecisionPolicy(param_dtype=torch.bfloat16)` says nothing
about sums. The weights and their gradients are float32 afterwards. With four ranks the true mean is 64.75. What does
FSDP find?
( ) 64.75 everywhere: the gradients are float32
    > That would be true if the gradients were float32 when they are added. They are turned into float32 after the
    sum.
(x) 64 at some places, 65 at others
( ) 65 everywhere: 64.75, rounded to bfloat16
    > That would be true if the sum were exact and rounded once at the end: near 64 bfloat16 holds halves, and 64.75
    becomes 65. But every addition is rounded, and from 256 on bfloat16 holds even numbers only.
( ) inf: 256 is too large for 16 bits
    > That would be a matter of range, as in fp16 from 65,504 on. bfloat16 has float32's range, and what it lacks is
    digits.
Why: 64 at some places and 65 at others. Without a `reduce_dtype`, FSDP adds in `param_dtype`: in bfloat16 256 + 1 is
256 again, so three single ones vanish and leave 256 / 4 = 64. Where ones are added to each other first, 2 + 256 is 258,
the last 1 makes it 260, and 260 / 4 = 65. Which order a place has depends on the ring.
""")

rank_of_the_world = ask("""
Four ranks in a 2 × 2 mesh: ranks 0 and 1 share one copy of the model, ranks 2 and 3 the other. The code takes the shard
`weights.chunk(2)[rank % 2]`, with the rank of the **world**. It works. Then the mesh is laid out the other way: ranks 0
and 2 share a copy, and ranks 1 and 3. What happens?
( ) nothing changes: `rank % 2` is the place in a group of two
    > That would be true if neighbours were in one group. Ranks 0 and 2 are now, and both have remainder 0.
( ) an error: rank 2 asks for a part that does not exist
    > That would be true of `chunk(2)[rank]`. The remainder is always 0 or 1, so no error comes.
(x) each copy has one half of the weights twice, and the other half not at all
( ) the two copies swap their halves, and all is well again
    > That would be true if ranks 0 and 2 took different halves. Both take the first one.
Why: Each copy has one half twice: ranks 0 and 2 both take the first half, ranks 1 and 3 both the second one. Nothing
raises, because all shapes fit. The place within the group is what you need: `mesh.get_local_rank("shard")`, or
`dist.get_rank(group)`.
""")

bytes_across_hosts = ask("""
On paper: a model of 7 billion parameters is trained on 8 hosts of 8 GPUs, sharded within each host, with a copy on
every host. Gradients travel in bfloat16. How many GB does **one GPU** send to other hosts in a training step, with an
all-reduce that sends the least?
= 3.0625 GB +- 10 %
( ) 24.5
    > This is an all-reduce of the whole gradient among 8. Only a GPU's own eighth has to go across.
( ) 27.5625
    > This is DDP on 64 GPUs: all of the gradient, among all of them.
( ) 1.75
    > This is the shard. An all-reduce among 8 sends 2 · 7/8 times as much as it is given.
( ) 1.53125
    > This is half of an all-reduce: a reduce-scatter of the shard alone.
( ) 12.25
    > This is the reduce-scatter of the whole gradient, which stays within the host.
( ) 6.125
    > Gradients in float32 would send this much. bfloat16 takes 2 bytes.
Why: About 3.1 GB. The whole gradient has 14 GB. After the reduce-scatter within the host a GPU has an eighth of it,
1.75 GB, and an all-reduce of that among 8 hosts sends 2 · 7/8 · 1.75 GB from each. The gathers and the reduce-scatters
stay within the host.
""")

norm_of_clipped_parts = ask("""
The gradient of a sharded model lies in parts on four ranks, and each part happens to have norm 1. Every rank clips its
own part, so that the norm of the part is at most 1. What is the norm of the whole gradient afterwards?
= 2.0 +- 1 %
( ) 1
    > That would be true if each rank knew the norm of the whole gradient. It sees its own part alone.
( ) 4
    > Norms do not add up. Their squares do.
( ) 0.5
    > To scale each part to 1/2 would be right: then the whole has norm 1. But no rank knows that it has to.
( ) 0.25
    > Nothing is divided here: each rank finds that its part is short enough.
Why: 2. Each rank sees a norm of 1 and leaves its part alone. The squares add up to 4, so the whole gradient has norm 2:
twice the limit, and on 64 ranks it would be 8 times. Where the parts have different norms, each is scaled by a
different factor, and the direction of the gradient changes, too.
""")

what_rank_0_saves = ask("""
The weights of a model take 821 kB, and `fully_shard` has cut them for four ranks. **Rank 0 alone** runs
`torch.save(model.state_dict(), path)`, as programs with DDP do. What happens?
( ) the file has the whole model: `state_dict()` gathers it
    > That would be true of `get_model_state_dict` with `full_state_dict=True`. It is a collective, and all ranks have
    to call it.
( ) rank 0 waits for ever: the other ranks do not join its all-gather
    > That would be true if `state_dict()` communicated. It only lists the DTensors that this rank has.
(x) the file has rank 0's part, about a quarter of the weights
( ) an error: DTensors cannot be saved
    > That would at least be noticed. A DTensor can be saved: this rank's part, and how it was cut.
Why: The file has rank 0's part, and nothing complains until somebody needs the rest. `state_dict()` communicates
nothing: it lists DTensors, and of each one this rank has its own part.
""")
