"""Predictions for lesson 03: what a root gives, what the others hold, and what goes through the root."""

from labkit.grading.prediction import ask

trained_on_rank_0 = ask("""
Rank 0 trains a model with a batch normalisation for 30 steps. The other ranks' models are new. Then every rank runs
`for parameter in model.parameters(): dist.broadcast(parameter.detach(), src=0)` and evaluates the **same** validation
text. Which losses do the four ranks print?
( ) the same loss on all four
    > That would be true if a model were its parameters. A batch normalisation also holds **buffers**, the running
    mean and variance, which it uses in evaluation and which no optimizer touches. The loop leaves them out.
(x) one loss on rank 0, and a different one on ranks 1 to 3
( ) four different losses
    > The buffers do stay behind, so rank 0's loss differs. But the other three ranks hold the same: rank 0's
    parameters, and the buffers of a **new** batch normalisation, which are 0 and 1 everywhere.
( ) on ranks 1 to 3, the loss of an untrained model
    > The parameters did arrive, and they are most of what was learned. Only the running mean and variance are those
    of a new model.
Why: A model's **buffers** belong to it as well: here the running mean, the running variance and the step count of the
batch normalisation. Rank 0's have moved, the others' are new. New buffers are the same on every rank, so this mistake
stays hidden as long as you try it with a new model, and shows once a trained one is loaded.
""")

scattered_lists = ask("""
Rank 0 wants to deal out ten numbers. It cuts the Python list `[0, 1, …, 9]` into four lists and passes these to
`dist.scatter(mine, chunks, src=0)`; the other ranks pass `None` for `chunks`. What happens?
( ) every rank gets its list
    > A scatter moves tensors. Lists of numbers have to become tensors first, or travel as objects.
( ) every rank raises a TypeError
    > Each rank checks only what it passes itself. `None` is exactly right for a rank that is not the root, so three
    ranks find nothing wrong.
(x) rank 0 raises a TypeError, and the others wait for it
( ) nothing raises, and mine stays 0 on the other ranks
    > The other ranks do not return from the call without data: a scatter's receivers wait until the root has sent.
Why: Rank 0's call is refused before anything is sent. The other ranks have passed all that they should, so they wait
for a message that never comes. **One rank's mistake makes everyone wait**: the lab freed them, but a job of your own
would show one rank's error and the silence of the others, until a time-out.
""")

average_loss = ask("""
Rank r's loss is r + 1, so the four losses are 1, 2, 3 and 4. What does rank 0 print in the next cell?
( ) average loss: 2.5
    > That was the intention. Look at which list is averaged, and at which tensors the gather fills.
(x) average loss: 0.0
( ) average loss: 0.25
    > That would be true if only rank 0's own loss were in the list: 1 / 4. Not even that is in `all_losses`.
( ) nothing: the gather raises
    > The gather finds all that it wants: four tensors of the right shape on the root, and no list on the others.
Why: The losses arrived, in tensors that were made for the call and that nothing else refers to. The mean is that of
`all_losses`, which still holds its four zeros. Nothing raises: a program like this can log 0.0 for weeks. The exercise
*Repair: the average loss* is this function.
""")

shared_evaluation = ask("""
Samples are dealt out like cards, and rank r predicts the validation samples r, r + 4, r + 8 … On its own samples each
rank is right in about three of ten. Rank 0 gathers the predictions, joins them with `torch.cat(parts)`, and compares
them with the targets of all samples. Which accuracy does it find?
( ) about 0.3, as on each rank
    > That would be true if each prediction met the target of its own sample. Write down for eight samples in which
    order they arrive.
(x) far less than 0.3
( ) more than 0.3
    > Four ranks with the same model know no more than one. Together they only predict more samples.
( ) none: the comparison raises
    > The joined tensor is as long as the targets. Nothing compares whose prediction stands where.
Why: A gather keeps the order of the **ranks**. `torch.cat` puts samples 0, 4, 8 … first, and they are compared with the
targets of samples 0, 1, 2 … What is left is chance: a character that happens to be the same as that of another sample.
The exercise *Put the predictions back in order* repairs it for any number of samples.
""")

broadcast_bytes = ask("""
Rank 0 broadcasts a tensor of 4 MiB to three other ranks, with the backend of this lab. How many bytes does **rank 0**
send?
( ) 4 MiB
    > That would be true of a chain, in which rank 0 tells rank 1, rank 1 tells rank 2, and so on, or of a network
    that can multiply a message on its way. Gloo does neither.
(x) 8 MiB
( ) 12 MiB
    > That would be true if rank 0 served all three itself. But a rank that has received the tensor can pass it on,
    while rank 0 serves the next one.
( ) 3 MiB
    > That would be true if it sent each of the others a quarter, as a scatter does. Each of them needs all 4 MiB.
Why: Rank 0 sends to ranks 1 and 2, and rank 1 passes the tensor on to rank 3: a **binomial tree**. In each step every
rank that has the tensor sends it once, so the ranks that have it double: two steps for four ranks, ⌈log2 N⌉ in general,
and the root sends in all of them.
Elsewhere: **With NCCL**, on GPUs, it is 4 MiB: a broadcast passes the tensor on from rank to rank, in pieces. (From
NCCL's source, not run.)
On NCCL: 4 MiB
( ) 8 MiB
    > That is Gloo's way, a binomial tree, in which rank 0 sends to two other ranks. NCCL has trees for all-reduce,
    and a ring for broadcast.
( ) 12 MiB
    > That would be true if rank 0 served all three itself. It sends to one neighbour, which passes the tensor on.
Why: 4 MiB. NCCL passes a broadcast on along its **ring**: rank 0 sends the tensor once, to its neighbour, and each rank
but the last one sends it once, too. It travels in pieces, so that all links work at the same time. (From NCCL's source.
The kernel's counters see this only where NCCL uses the network.)
Elsewhere: **With Gloo**, on CPUs, it is 8 MiB: rank 0 sends to ranks 1 and 2, and rank 1 passes the tensor on to
rank 3. That is a binomial tree, and the root sends in each of its ⌈log2 N⌉ steps.
""")
