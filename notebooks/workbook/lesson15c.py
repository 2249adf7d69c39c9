"""Exercises of lesson 15c, in their places: what a plan holds, who forms a group, what leaves a host."""

from __future__ import annotations

from functools import partial

from labkit.grading.exercise import Case, exercise
from labkit.grading.inputs import options
from labkit.grading.prediction import ask

on_paper = partial(exercise, ranks=(2,), forbids=("collectives",))


LARGE, HUGE = (80, 8192, 256 * 8192), (128, 25_600, 1024 * 2048)  # layers, width and tokens of a batch


MEMORY_SLIPS = {
    "keeps one micro-batch, as without a pipeline": ("min(pipe, micro)", "1"),
    "keeps all micro-batches, as GPipe does": ("min(pipe, micro)", "micro"),
    "counts micro-batches that do not exist": ("min(pipe, micro)", "pipe"),
    "cuts all activations by tensor": ("10 + 24 / tensor", "34 / tensor"),
    "lets sequence parallelism change nothing": ("34 / tensor if sequence else 10", "10"),
    "shards over all GPUs": ("12 * mine / (data", "12 * mine / (data * tensor * pipe"),
    "shards gradients in stage 1": ("zero >= 2", "zero >= 1"),
    "shards only in its own stage": ("zero >= 1", "zero == 1"),
    "forgets that the copies share the batch": ("tokens / data / micro", "tokens / micro"),
    "does not cut the weights by pipe": ("/ (tensor * pipe)", "/ tensor"),
    "does not cut the layers' activations by pipe": ("layers / pipe  # of", "layers  # of"),
}


@on_paper(
    "What a GPU of the first stage holds",
    lambda xs, **numbers: [stage_memory(**numbers)] * len(xs),
    difficulty=2,
    inputs=options(
        "layers width tokens data tensor pipe micro zero sequence",
        ("data 4", 4, 10, 4000, 4, 1, 1, 1, 0, False),
        ("tensor 2, pipe 2, one micro-batch", 4, 10, 4000, 1, 2, 2, 1, 0, False),
        ("66B: data 4, tensor 8, pipe 2, ZeRO-1", *LARGE, 4, 8, 2, 64, 1, False),
        ("66B: the same with sequence parallelism", *LARGE, 4, 8, 2, 64, 1, True),
        ("66B: data 8, tensor 8, ZeRO-2", *LARGE, 8, 8, 1, 32, 2, True),
        ("66B: data 4, tensor 2, pipe 8, ZeRO-3", *LARGE, 4, 2, 8, 16, 3, False),
        ("1T: data 16, tensor 8, pipe 8, four micro-batches", *HUGE, 16, 8, 8, 4, 1, True),
    ),
    tolerance=1e-6,
    slips=MEMORY_SLIPS,
)
def stage_memory(layers, width, tokens, data, tensor, pipe, micro, zero, sequence):
    """Return the bytes that a GPU of the first stage holds, by kind.

    A transformer has `layers` layers with 12 times `width` squared weights each; ignore everything else. It is cut by
    `tensor` and `pipe`, and there are `data` copies. A batch of `tokens` tokens is shared by the copies, and each
    copy cuts its share into `micro` equal micro-batches.

    A weight takes 2 bytes, its gradient 2, and Adam's states 12. ZeRO shards over the `data` copies: with `zero` 1 the
    states, with 2 the gradients too, with 3 also the weights.

    For the backward pass, a layer keeps 34 bytes for each number of each token's width. Tensor parallelism cuts 24 of
    these, and with `sequence` parallelism all 34 are cut. The pipeline runs 1F1B: its first stage keeps the
    activations of at most `pipe` micro-batches at once.

    Return a dict with the bytes that a GPU of the **first** stage holds: `"weights"`, `"gradients"`, `"optimizer"` and
    `"activations"`. Communicate nothing.
    Hint: First the weights of this GPU: those of its layers, `layers / pipe`, cut by `tensor`. The states follow.
    Hint: One micro-batch has `tokens / data / micro` tokens. What does this GPU keep of it? Then: how many are alive?
    Hint: `10 + 24 / tensor` bytes for each token and number, or `34 / tensor` with sequence parallelism, in each of
    `layers / pipe` layers, for `min(pipe, micro)` micro-batches.
    Afterwards: The figures are those of Korthikanti and others (10 + 24/t, and 34/t) and of the ZeRO paper (2, 2 and
    12). `pipe` has vanished from the activations, as long as there are at least as many micro-batches as stages.
    """
    mine = 12 * width**2 * layers / (tensor * pipe)
    per_token = 34 / tensor if sequence else 10 + 24 / tensor
    in_one = tokens / data / micro * width * per_token * layers / pipe  # of one micro-batch
    alive = min(pipe, micro)
    return {
        "weights": 2 * mine / (data if zero >= 3 else 1),
        "gradients": 2 * mine / (data if zero >= 2 else 1),
        "optimizer": 12 * mine / (data if zero >= 1 else 1),
        "activations": alive * in_one,
    }


def _orders(n: int) -> list[Case]:
    usual, turned = ["pipe", "data", "tensor"], ["tensor", "data", "pipe"]

    def case(order: list[str], pipe: int, data: int, tensor: int, rank: int, along: str) -> Case:
        sizes = {"pipe": pipe, "data": data, "tensor": tensor}
        told = " x ".join(f"{name} {sizes[name]}" for name in order)
        asked = {"order": order, "sizes": sizes, "rank": rank, "along": along}
        return Case([()] * n, f"{told}, rank {rank}, along {along}", asked)

    return [
        case(usual, 2, 2, 2, 5, "tensor"),
        case(usual, 2, 2, 2, 5, "data"),
        case(usual, 2, 2, 2, 5, "pipe"),
        case(turned, 2, 2, 2, 5, "tensor"),
        case(usual, 2, 4, 8, 43, "data"),
        case(turned, 2, 4, 8, 43, "data"),
        case(["data", "tensor", "pipe"], 4, 2, 3, 17, "tensor"),
        case(usual, 16, 8, 8, 1000, "pipe"),
        case(usual, 1, 4, 1, 2, "tensor"),
    ]


MATES_SLIPS = {
    "takes the first dimension for the neighbours": ("reversed(order)", "order"),
    "always takes the usual order": ("reversed(order)", '("tensor", "data", "pipe")'),
    "begins at the rank itself": ("first = rank - place * step", "first = rank"),
    "takes neighbours for every group": ("step *= sizes[name]", "step = 1"),
    "begins every group in the first rank": ("first = rank - place * step", "first = rank % step"),
    "takes all ranks in the same place along the dimension": (
        "return [first + i * step for i in range(sizes[along])]",
        "import math; return [r for r in range(math.prod(sizes.values())) if r // step % sizes[along] == place]",
    ),
    "counts places up to the end of the world": ("rank // step % sizes[along]", "rank // step"),
}


@on_paper(
    "Who is in my group?",
    lambda xs, **asked: [mates(**asked)] * len(xs),
    minutes=8,
    difficulty=2,
    inputs=_orders,
    slips=MATES_SLIPS,
)
def mates(order, sizes, rank, along):
    """Return the sorted ranks of this rank's group along a dimension.

    A mesh has `sizes` such as `{"pipe": 2, "data": 2, "tensor": 2}`: how many ranks lie along each dimension. `order`
    lists the names of the dimensions. The ranks 0, 1, 2 … fill the mesh so that neighbours differ along the **last**
    dimension of `order`; when that has run through, the one before it moves on by one place, and so on, like the digits
    of a number.

    Return a sorted list of the ranks in the group of `rank` along the dimension `along`: those that differ from it in
    their place along this dimension and in no other, `rank` itself among them. It has to work for meshes that are far
    larger than this lab, so it is arithmetic: communicate nothing.
    Hint: How far apart are two neighbours of the group in the numbers of the ranks? For the last dimension it is 1.
    Hint: The distance is the product of the sizes of all dimensions that come **after** `along` in `order`.
    Hint: The place of the rank along the dimension is `rank // step % sizes[along]`. Go back that many steps: there the
    group begins.
    Afterwards: `init_device_mesh` and Megatron-LM do this. The order decides what is near: with 8 ranks in a host, a
    group whose step is 8 or more has every member in a host of its own.
    """
    step = 1  # from a rank of the group to the next
    for name in reversed(order):
        if name == along:
            break
        step *= sizes[name]
    place = rank // step % sizes[along]
    first = rank - place * step
    return [first + i * step for i in range(sizes[along])]


LEAVES_SLIPS = {
    "does not close the ring": ("ranks[1:] + ranks[:1]", "ranks[1:]"),
    "counts every message": ("following // per_host != host", "following != rank"),
    "adds up all hosts": ("return max(out.values(), default=0.0)", "return float(sum(out.values()))"),
    "sends the whole buffer twice": ("2 * size * (len(ranks) - 1) / len(ranks)", "2 * size"),
    "sends once, as a reduce-scatter does": (
        "2 * size * (len(ranks) - 1) / len(ranks)",
        "size * (len(ranks) - 1) / len(ranks)",
    ),
    "takes the number of all ranks for that of the group": (
        "2 * size * (len(ranks) - 1) / len(ranks)",
        "2 * size * (world_size - 1) / world_size",
    ),
    "takes `rank % per_host` for the host": ("host = rank // per_host", "host = rank % per_host"),
    "forgets the groups before the last one": ("out.get(host, 0) + each", "each"),
    "counts what comes in as well": (
        "out[host] = out.get(host, 0) + each",
        "out[host] = out.get(host, 0) + each; out[following // per_host] = out.get(following // per_host, 0) + each",
    ),
}


@on_paper(
    "What leaves a host",
    lambda xs, **numbers: [leaves_host(**numbers)] * len(xs),
    minutes=8,
    difficulty=2,
    inputs=options(
        "groups size per_host",
        ("two groups of neighbours", [[0, 1], [2, 3]], 1000.0, 2),
        ("two groups across", [[0, 2], [1, 3]], 1000.0, 2),
        ("one group of four, two hosts", [[0, 1, 2, 3]], 1000.0, 2),
        ("the same ring in another order", [[0, 2, 1, 3]], 1000.0, 2),
        ("eight groups across four hosts of eight", [[8 * h + i for h in range(4)] for i in range(8)], 12e9, 8),
        ("16 GPUs in one ring, two hosts", [list(range(16))], 14e9, 8),
        ("groups of three in hosts of four", [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]], 900.0, 4),
        ("one host for all", [[0, 1, 2, 3]], 1000.0, 8),
    ),
    tolerance=1e-6,
    slips=LEAVES_SLIPS,
)
def leaves_host(groups, size, per_host):
    """Return the bytes that leave the busiest host in a ring all-reduce of each group.

    There are `per_host` ranks in each host: rank r is in host `r // per_host`. Each of the `groups`, a list of lists of
    ranks, all-reduces `size` bytes in a **ring**: every rank sends 2 (n - 1) / n times `size` bytes to the next one in
    its list, and the last one sends to the first; n is the length of its list. All groups do this once.

    Return the number of bytes that leave the **busiest** host, the one that sends the most to other hosts: what comes
    in is not counted. Communicate nothing.
    Hint: Go round each ring: a rank, and the one that follows it. `zip(ranks, ranks[1:] + ranks[:1])` has the pairs.
    Hint: Only a pair in two different hosts counts, for the host that sends. Keep a dict from host to bytes.
    Hint: In the end take the largest value, or 0 if there is none.
    Afterwards: A ring leaves a host as many times as its order makes it, and at least once if it has members elsewhere.
    NCCL looks for rings that leave each host once, and uses several at a time, so that all NICs are busy.
    """
    out = {}
    for ranks in groups:
        each = 2 * size * (len(ranks) - 1) / len(ranks)
        for rank, following in zip(ranks, ranks[1:] + ranks[:1]):
            host = rank // per_host
            if following // per_host != host:
                out[host] = out.get(host, 0) + each
    return max(out.values(), default=0.0)


longer_pipeline = ask("""
66 billion parameters on 64 GPUs. You change data 4 x tensor 8 x pipe 2 into data 2 x tensor 8 x pipe 4. The pipeline
runs 1F1B, and a micro-batch stays one sequence. What happens to the **activations** that a GPU of the first stage holds
at most?
( ) they halve: a stage has half as many layers
    > It does have half as many. But it waits longer for the first micro-batch to come back, and takes in more of them
    meanwhile.
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
A transformer of 1,009 billion parameters on 1,024 GPUs of 80 GB, in mixed precision: for each parameter 2 bytes of
weight, 2 of gradient, 12 of Adam's states. ZeRO-1 shards the states over the copies. Leave activations out. At least
how many GPUs have to share one copy (tensor times pipe), if the number is a power of two?
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
    > That would be a single copy. There is room for more than one.
Why: **64.** With ZeRO-1 the states are spread over all 1,024 GPUs, however large a team is: a GPU has 1/team of them,
divided by 1,024/team copies. That is 12 x 1,009 / 1,024 = 11.8 GB, which leaves 68.2 GB for weights and gradients: 4 x
1,009 / 68.2 = 59.2 GPUs, and the next power of two is 64. Activations will need more.
""")

trade_data_for_pipe = ask("""
A trillion parameters on 1,024 GPUs, 1,024 sequences per step, one sequence per micro-batch. You change data 8 x tensor
8 x pipe 16 into data 2 x tensor 8 x pipe 64. The pipeline is four times as long. What happens to the bubble, as a part
of the time?
( ) it becomes about four times as large
    > That would be true if the number of micro-batches stayed as it was. But with a quarter of the copies, each copy
    has four times as many.
(x) it stays about the same
( ) it becomes about a quarter
    > Four times as many micro-batches do that. But there are also four times as many stages to fill.
( ) it becomes sixteen times as large
    > That would be true if each copy had a quarter of the micro-batches. It has four times as many: the batch stays.
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
    > A token is sent to two experts, four times in each layer. But a GPU sends only its own tokens: an eighth of those
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
    > This counts both directions, or all 192 rows for each copy. The question is only what A sends to B.
( ) 3.15
    > That is about what the gradients would be. Or is it one rank, and two all-reduces per layer? There are four.
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
    > That is for one micro-batch. There are 64, and each of them gathers the weights again.
( ) 799
    > This has the two gathers. The gradients are scattered for each micro-batch as well.
( ) 1599
    > An all-gather among 4 sends 3/4: no rank sends to itself.
Why: **1,199 GB.** A GPU's part of the model is 66.6 / 16 = 4.16 billion weights, 8.3 GB. An all-gather or a
reduce-scatter among 4 sends 3/4 of that: 6.2 GB. There are 3 of them for each of 64 micro-batches: 192. With ZeRO-1
there are 2 in the whole step, 12.5 GB. (The planner says 1,240 for the first stage, which also has the embeddings.)
""")
