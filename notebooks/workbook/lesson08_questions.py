"""The predictions of lesson 08: an empty shard, gradients of a split layer and of a batch norm, a sum, eight needs."""

from labkit.grading.prediction import ask, series

mean_with_an_empty_shard = ask("""
Every rank computes the mean loss of its own rows, and the ranks average these means. What comes out?
( ) the mean loss of all rows
    > That would be true if all ranks had equally many rows. Here a rank with few rows counts as much as a rank with
    many, and rank 0 has none at all.
( ) a number close to it: each rank counts the same, however many rows it has
    > That would be true without rank 0: then only the weights of the ranks would be wrong. But rank 0 takes part in
    the average, too.
( ) a number that is too small: rank 0 adds 0 and is still counted
    > That would be true if the mean of no rows were 0. Their sum is 0, but the mean divides it by 0.
(x) no number at all
Why: No number at all. Rank 0 has no rows, the mean of nothing is `nan`, and one `nan` makes the sum of all ranks `nan`.
""")

gradients_of_a_split_layer = ask("""
Each rank has the scores and the weights of its own characters; all ranks have the same features, which the layer takes
in. The loss is on every rank. Now backward: which of these gradients needs another collective?
( ) the gradient of a rank's own scores
    > A score does act on the loss through the sum over **all** characters. But that sum has been known on every rank
    since the forward pass: a score's gradient is its share, minus 1 for the right character.
( ) the gradient of a rank's own weights
    > It is the features times the gradient of the rank's own scores, and the rank has both.
(x) the gradient of the features
( ) all three
    > That would be true if a rank did not know the sum over all characters. It has known it since the forward pass,
    so its own scores and weights need nothing more.
( ) none of them
    > That is true of the scores and of the weights. But the features go into every rank's scores, and a rank can only
    compute what comes back through its own.
Why: The gradient of the features. They go into the scores of all characters, on all ranks, so each rank has a part of
their gradient and an **all-reduce** adds the parts up. Megatron-LM calls this operator *f*: nothing in the forward
pass, an all-reduce in the backward pass. (The cell computes the softmax anew, with all-reduces, only to be short: the
forward pass of the loss has had these numbers.)
""")

gradient_of_the_statistics = ask("""
A batch norm over all ranks takes its mean and its deviation from `dist.all_reduce`, under `torch.no_grad()`. In the
forward pass every rank gets what one process with the whole batch would get. In the backward pass, the gradient of `x`
is that of …
( ) the batch norm of the whole batch
    > That would be true if autograd saw the statistics change with `x`. It takes them for constants.
( ) a batch norm over this rank's own rows
    > That would be true if the rank computed the statistics from its own rows, in sight of autograd. They come from
    the all-reduce, and autograd sees no `x` in them at all.
(x) a layer with a fixed mean and a fixed deviation
( ) nothing: backward raises an error
    > Autograd has nothing to refuse: it sees two tensors that need no gradient, and goes on.
Why: A layer with a fixed mean and a fixed deviation: it only scales. But every row moves the mean and the deviation of
**all** rows, on all ranks, and that part of the gradient is missing. Nothing says so, and training goes on with such
gradients, only worse.
""")

order_of_a_sum = ask("""
The same four numbers are added at each of the eight places. What do the places hold after the all-reduce?
( ) 2 everywhere
    > That would be true if nothing were rounded, as in float64. In float32, 1e8 + 1 is 1e8: the 1 is lost.
( ) the same wrong number everywhere
    > That would be true if all places were added up in the same order. A ring begins each part of the tensor at a
    different rank. (With only two ranks, or with a library that does not use a ring here, your ranks may have
    printed just that.)
(x) different numbers at different places
( ) different numbers on different ranks
    > That would be true if every rank added up for itself, in its own order. In a ring each place is added up once,
    and the total is passed round: all ranks hold the same bits.
Why: Different numbers at different places, with four ranks on Gloo. In a ring, each part of the tensor starts its round
at a different rank. So at different places the same numbers are added in different orders, and a 1 that meets 1e8
before −1e8 is lost.
Elsewhere: (Gloo carries tensors on the CPU, also where there are GPUs.) **NCCL** cuts eight floats into two chunks of
its ring at most, or adds them up along a tree, so there are fewer orders. All ranks hold the same bits there as well.
(From its source, not run.)
""")

eight_situations = series(
    """
Here are eight moments of a training run. Which call do the ranks make? If several answers would work, choose the
one that moves and stores the least, or that makes the fewest ranks wait.
""",
    need_stop_on_nan="""
Any rank's loss may become `nan`. Then all ranks must stop, after the same step:
( ) all_reduce the loss, with MAX
    > A `MAX` can lose the `nan`, on Gloo and on NCCL (lesson 04b).
(x) all_reduce a flag, with SUM
( ) raise an error on that rank
    > That rank stops, and the others wait for it in their next collective until the time-out.
( ) gather the losses on rank 0
    > Then rank 0 knows, and the others go on. They would have to be told by a second call.
Why: Every rank brings 1 if its loss is `nan` and 0 if not. All ranks get the same number and decide alike.
""",
    need_config="""
Rank 0 has read the settings from a file, a dictionary. All ranks need all of them:
( ) scatter_object_list
    > A scatter deals out different parts: each rank would get one entry of a list.
( ) all_gather_object
    > It would do, but each rank would bring an object and receive all the others'. Only rank 0's is wanted.
( ) broadcast
    > It sends tensors only, and the receivers must know shape and dtype. A dictionary has neither.
(x) broadcast_object_list
Why: One rank has it, all need the same, and it is not a tensor.
""",
    need_predictions_in_a_file="""
Each rank has some hundred translated sentences, not equally many. Rank 0 writes all of them to a file:
(x) gather_object
( ) all_gather_object
    > It would do, with N − 1 copies too many: every rank receives and keeps the sentences of all ranks.
( ) reduce
    > A reduce adds values up. Sentences do not add up.
( ) gather
    > It wants tensors of equal shape on every rank. You would have to encode the sentences, send the lengths and pad.
Why: One rank needs the values of all ranks, they do not add up, and their sizes differ.
""",
    need_my_shard_of_the_gradient="""
Each rank has a gradient for all weights, from its own rows. It will update one N-th of the weights:
( ) all_reduce
    > It would do, for twice the bytes: afterwards every rank has the whole total and drops most of it.
( ) reduce to rank 0, then scatter
    > It would do, but everything goes through rank 0, which needs the memory and the time for all.
( ) all_gather
    > It would do, for N times the bytes: every rank gets all gradients of all ranks and adds up itself.
(x) reduce_scatter
Why: The values add up, and each rank needs one part of the total: S (N − 1) / N bytes from each rank.
""",
    need_experts="""
Each rank has tokens, and an expert. A router has chosen an expert for each token:
( ) all_gather
    > It would do, but every rank would receive all tokens and throw most of them away.
(x) all_to_all
( ) a scatter from each rank in turn
    > It would do, in N calls one after the other, and in each of them a single rank sends.
( ) reduce_scatter
    > The pattern is right, but on arrival the tokens of different ranks would be added up.
Why: Every rank has something different for every other rank. The sizes travel first, by an all-to-all of their own.
""",
    need_plateau="""
`ReduceLROnPlateau` lowers the rate when the validation loss stagnates. Each rank has validated its own, uneven share:
( ) nothing
    > Each scheduler would see a different loss and lower the rate at a different step. Then the steps differ, and the
    weights drift apart.
( ) all_reduce the mean losses with AVG
    > The ranks would agree, but on the wrong number: a share of few rows counts as much as one of many.
(x) all_reduce [sum, count]
( ) reduce [sum, count] to rank 0
    > Then rank 0 alone has the right loss, and its scheduler alone lowers the rate.
Why: The ranks' schedulers see different losses. Give every one of them the mean loss of all rows, and they lower the
rate at the same step.
""",
    need_log="""
Every 100 steps, rank 0 writes the sum of all ranks' token counts to a log:
(x) reduce
( ) all_reduce
    > It would do, and for one number it costs little more. But every rank gets a total that it does not need, and
    waits for the slowest one.
( ) gather
    > It would do: rank 0 gets N numbers and adds them up. With a large tensor it would need N times the room.
( ) nothing
    > Then the log holds one rank's count. Tokens differ from rank to rank.
Why: One rank needs the total. The others hand in their number and need not wait for each other.
""",
    need_norm_under_ddp="""
Plain DDP has averaged the gradients in `loss.backward()`. Each rank scales them down if their norm is above 1:
( ) all_reduce the sum of squares
    > Each gradient is on all ranks, so it would be counted N times: the norm would be √N times too large. It is right
    where each rank holds a different shard.
( ) all_reduce the norms with MAX
    > It would do no harm: all norms are equal. It would cost a collective in every step.
(x) nothing
( ) broadcast rank 0's norm
    > Every rank would receive the number that it has computed itself.
Why: The averaged gradients are equal on all ranks, and so are their norm and the factor. What all ranks can compute
alike need not be sent.
""",
)
