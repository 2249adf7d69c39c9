"""Lesson 03: functions repaired, in which rank 0 gives all ranks a model, a decision, work or a loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Least, exercise
from labkit.grading.inputs import Case, draws
from labkit.grading.prediction import ask
from labkit.theory import collectives
from labkit.theory.log import Log
from labkit.theory.primitives import OBJECTS

if TYPE_CHECKING:
    from labkit.rank.cell_names import device, dist, everyones, name_it, rank, recorder, torch, world_size


def _models(n: int) -> list[Case]:
    """Make what models hold: a weight and a bias, two buffers of a batch normalisation, and one that is not saved."""

    def held(r: int, k: int = 1) -> dict[str, Any]:
        some = np.arange(k, dtype="float32")
        return {
            "weight": np.arange(2.0 * k, dtype="float32").reshape(k, 2) + 100 * r,
            "bias": -1 - r - some,
            "running_mean": 0.5 + r + some,
            "num_batches_tracked": np.array(7 + r),
            "mask": 10 + r + some,
        }

    def only(*names: str) -> list[dict[str, Any]]:
        return [{name: held(r)[name] for name in names} for r in range(n)]

    return [
        Case([held(r) for r in range(n)]),
        Case([held(r, 5) for r in range(n)], "a wider layer"),
        Case(only("weight", "bias"), "a model without buffers"),
        Case(only("running_mean", "num_batches_tracked"), "a model without parameters"),
    ]


def _model(tensors):
    """Make a module that holds these tensors under their names; its mask is made anew by every model, and not saved."""
    model = torch.nn.Module()
    for name, tensor in tensors.items():
        if name in ("weight", "bias"):
            model.register_parameter(name, torch.nn.Parameter(tensor))
        else:
            model.register_buffer(name, tensor, persistent=name != "mask")
    return (model,)


def _tensors_of(out, model):
    return {name: tensor.detach() for name, tensor in [*model.named_parameters(), *model.named_buffers()]}


def broken_broadcast_model(model):
    state = model.state_dict() if rank == 0 else None
    dist.broadcast(state, src=0)
    model.load_state_dict(state)


@exercise(
    "Repair: give everyone rank 0's model",
    collectives.broadcast,
    minutes=8,
    difficulty=2,
    inputs=_models,
    picture=lambda: [{**held, "weight": held["weight"][0, :1]} for held in _models(3)[0].xs],
    least=Least(rounds=lambda n: 1, memory=lambda n, S: 0),  # the bytes wait for lesson 03's tree
    forbids=OBJECTS,
    setup=_model,
    collect=_tensors_of,
)
def broadcast_model(model):
    """Leave what rank 0's model holds in every rank's model.

    This function hands the whole state to `dist.broadcast`. Run it, run the check, and repair it: after the call
    every rank's `model`, an `nn.Module`, must hold **everything** that rank 0's model holds. All ranks have the same
    architecture. Change `model` in place; what you return does not count. No object collectives: they pickle. Each row
    below shows what one model holds: a weight, a bias, and three buffers, which are a running mean, a number of batches
    and a mask.
    Hint: `dist.broadcast` moves one tensor. Call it once for each tensor, on every rank, in the same order.
    Hint: Parameters are not all that a model holds. What else does `model.named_buffers()` list?
    Hint: `state_dict()` leaves out buffers that were registered with `persistent=False`. `model.buffers()` does not.
    Hint: Go through `[*model.parameters(), *model.buffers()]`, and broadcast each `tensor.detach()` in place.
    Afterwards: PyTorch's `DistributedDataParallel` (DDP) does the same when it wraps a model: parameters and all
    buffers, from rank 0. One broadcast for each tensor is one step for each tensor. It takes fewer steps if you copy
    the tensors into one flat tensor, broadcast that, and copy its parts back; DDP does so. Broadcast
    `parameter.detach()`, or under `torch.no_grad()`: else the next backward pass warns that it runs through the
    broadcast.
    """
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)


def _runs(n: int) -> list[Case]:
    """Make a rank's losses of its next steps, and the loss that is good enough; only rank 0's losses count."""
    falling = [np.array([9.0] * r + [4.0, 3.0, 2.0, 1.0] + [0.0] * (n - r)) for r in range(n)]
    low = [np.array([4.0, 3.0, 2.0, 1.0])] + [np.full(4, 0.5)] * (n - 1)
    return [
        Case([(losses, 2.5) for losses in falling]),
        Case([(losses, 3.0) for losses in falling], "rank 0's second loss is exactly `good`"),
        Case([(losses, 4.5) for losses in falling], "rank 0 is done after one step"),
        Case([(losses, 2.5) for losses in low], "the other ranks' losses are low from the start"),
    ]


def run_train_until(train_until, losses, good):
    """Give a `step` that takes all ranks, as in data-parallel training, and collect the number of steps."""
    runs = list(zip(*everyones(losses.tolist())))

    def until(stop):
        return next((steps for steps, now in enumerate(runs, 1) if stop(now)), None)

    right = until(lambda now: now[0] < good)
    slips = {
        "stops once the mean of all ranks' losses is low": until(lambda now: sum(now) / world_size < good),
        "goes on until the losses of all ranks are low": until(lambda now: max(now) < good),
        "looks at the last rank's loss, and not at rank 0's": until(lambda now: now[-1] < good),
        "stops as soon as any rank's loss is low": until(lambda now: min(now) < good),
        "stops where the loss is `good`, and not yet below": until(lambda now: now[0] <= good),
        "does not count the last step": right - 1,
    }
    coming = iter(losses.tolist())

    def step():
        dist.all_reduce(torch.zeros(1, device=device))
        loss = next(coming, None)
        assert loss is not None, f"it trains on, and takes {len(losses) + 1} steps and more"
        return loss

    steps = train_until(step, good)
    name_it(steps, right, slips)
    return steps


def broken_train_until(step, good):
    steps = 1
    while step() >= good:
        steps += 1
    return steps


@exercise(
    "Repair: stop together",
    lambda xs: [next(step for step, loss in enumerate(xs[0][0], 1) if loss < xs[0][1])] * len(xs),
    minutes=8,
    difficulty=2,
    inputs=_runs,
    harness=run_train_until,
)
def train_until(step, good):
    """Train until rank 0's loss is below good; return the number of steps.

    Train until **rank 0's** loss is below `good`. `step()` is one training step: every rank has to take part in it,
    because it averages the gradients, and it returns this rank's own loss, a Python number that differs from rank to
    rank. Return how many steps this rank took. Run the function and its check, look at who waits for whom, and repair
    it. Each row below shows a rank's losses, step by step, then `good`, and how many steps it must take.
    Hint: Whose loss decides? How do the others learn of the decision?
    Hint: A decision that every rank must follow is one number from rank 0, in **every** step, even when the answer
    is to go on.
    Hint: Write 1.0 or 0.0 into a tensor, broadcast it from rank 0, and let every rank look at what arrived.
    Afterwards: A control signal: 4 bytes per step. Whatever decides how many collectives a rank calls must be the same
    on all ranks: a loss, a clock, the end of a data loader, a signal from the scheduler.
    """
    steps = 0
    stop = torch.zeros(1, device=device)
    while not stop.item():
        stop.fill_(step() < good)
        dist.broadcast(stop, src=0)
        steps += 1
    return steps


def _only_its_own(mine, items):
    # Whoever gets far more bytes than its own items have, got the others' as well. The long file names tell, 10 kB for
    # each rank: beside them a length, or what pickle puts around a list, is nothing. Twice as many are forgiven: a
    # record counts the bytes of `recv_object_list` twice.
    came = sum(op.bytes or 0 for op in Log.of(recorder.records()).ops)
    own = sum(len(str(item)) for item in mine) if isinstance(mine, list) else came
    assert rank == 0 or came < 2.5 * max(own, 10_000), (
        f"{came:,} bytes reach it, and its own items have {own:,}: only rank 0 may see the items of other ranks"
    )
    return mine


def broken_deal(items):
    chunks = [items[r::world_size] for r in range(world_size)] if rank == 0 else None
    mine = torch.zeros(3, dtype=torch.int64, device=device)
    dist.scatter(mine, chunks, src=0)
    return mine.tolist()


@exercise(
    "Repair: deal out the work",
    lambda xs: [xs[0][0][r :: len(xs)] for r in range(len(xs))],
    minutes=5,
    inputs=lambda n: [
        Case([(None if r else items,) for r in range(n)], about)
        for items, about in (
            (list(range(10)), ""),
            (list(range(100, 100 + 3 * n)), f"{3 * n} items"),
            (["cat.png", "dog.png", "eel.png", "fox.png", "gnu.png"], "file names"),
            ([7], "one item for all ranks"),
            ([], "no item"),
            ([f"{i:04}" * 1250 for i in range(2 * n)], "long file names"),
        )
    ],
    picture=lambda: [(None if r else list(range(7)),) for r in range(3)],
    least=Least(rounds=lambda n: 1),
    collect=_only_its_own,
)
def deal(items):
    """Return this rank's items of rank 0's list, dealt out like cards.

    This function does what the question above asks about. Run its cell and its check, and you see what happens. Then
    repair it: `dist.scatter_object_list` deals out Python objects. Rank 0 has a list `items`, numbers or file names; on
    the other ranks `items` is `None`. Deal it out one by one: item 0 to rank 0, item 1 to rank 1, and after the last
    rank it is rank 0's turn again. Return this rank's items, a list, which may be empty. Only rank 0 may see the items
    of other ranks, so do not broadcast them.
    Hint: `dist.scatter` moves tensors of equal shape. File names are neither tensors nor equally long.
    Hint: `dist.scatter_object_list(box, chunks, src=0)` pickles. `box` is a list of one, into which the object is put.
    Afterwards: Objects may differ in size, so work that does not divide evenly needs no padding. Each is pickled and
    sent with its length: good for a list of file names once an epoch, slow for numbers in every step.
    """
    mine = [None]
    chunks = [items[r::world_size] for r in range(world_size)] if rank == 0 else None
    dist.scatter_object_list(mine, chunks, src=0)
    return mine[0]


def run_validate(validate, weight, batch):
    """Wrap a model so that it broadcasts its buffers in each forward pass, as DDP does, and collect the loss."""
    losses = everyones((weight * batch).mean())

    class Wrapped:
        def module(self, batch):
            return (weight * batch).mean()

        def __call__(self, batch):
            dist.broadcast(torch.zeros(1, device=device), src=0)
            return self.module(batch)

    loss = validate(Wrapped(), batch)
    slips = {
        "returns the loss of this rank's own batch": losses[rank],
        "averages the losses of all ranks' batches": sum(losses) / world_size,
        "adds up the losses of all ranks' batches": sum(losses),
    }
    name_it(loss, losses[0], slips)
    return loss


def broken_validate(model, batch):
    loss = None
    if rank == 0:
        loss = model(batch)
    dist.barrier()
    return loss


@exercise(
    "Repair: validation on rank 0",
    lambda xs: [np.float32((xs[0][0] * xs[0][1]).mean())] * len(xs),
    minutes=8,
    difficulty=2,
    inputs=lambda n: [  # a model's one weight, and a batch to validate
        Case([(np.array([2.0 + r], dtype="float32"), x) for r, x in enumerate(draws(n, k, seed=k))], about)
        for k, about in ((4, ""), (1, "a batch of one"), (64, "a batch of 64"))
    ],
    least=Least(rounds=lambda n: 1),
    harness=run_validate,
)
def validate(model, batch):
    """Return the loss of rank 0's batch, on every rank.

    Rank 0 validates, the others wait for it in a barrier, and then training goes on: at least that was the idea.
    `model` is wrapped for data parallelism: `model(batch)` first broadcasts the buffers from rank 0, as PyTorch's
    `DistributedDataParallel` (DDP) does, and then computes the loss. `model.module` is the model inside, which never
    communicates. Each rank has a different `batch`. Return rank 0's loss, a tensor, on **every** rank. Each row below
    shows a model's only weight, then the batch; the loss is the mean of weight · batch.
    Hint: Which collective is rank 0 in, and which one are the others in?
    Hint: No other rank joins the broadcast inside `model(batch)`. Rank 0 can do without it.
    Hint: The others need rank 0's loss anyway. While they wait for its broadcast they need no barrier.
    Afterwards: A hang that is reported again and again: everything under `if rank == 0` must be free of collectives,
    those inside a wrapped model too. The broadcast of the result makes the others wait, so the barrier is not needed.
    If validation takes longer than the group's time-out, the waiting ranks give up: then let all ranks validate.
    """
    loss = torch.zeros((), device=device)
    if rank == 0:
        loss = model.module(batch)
    dist.broadcast(loss, src=0)
    return loss


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
batch normalisation. Rank 0's have moved, the others' are new. New buffers are the same on every rank, so with a new
model this mistake does not show. It shows once a trained model is loaded.
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
for a message that never comes. **One rank's mistake makes all ranks wait**: the lab freed them, but in a job of your
own you would see one rank's error, and nothing from the others until a time-out.
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
Why: The losses arrived in `room`, but the mean is that of `all_losses`, which still holds its four zeros. Nothing
raises: a program like this can log 0.0 for weeks. The exercise *Repair: the average loss* is this function.
""")

shared_evaluation = ask("""
Samples are dealt out like cards: rank r predicts the validation samples r, r + 4, r + 8 … On its own samples each rank
is right about one time in four. Rank 0 gathers the predictions, joins them with `torch.cat(parts)`, and compares them
with the targets of all samples. What accuracy does it find?
( ) about 0.25, as on each rank
    > That would be true if each prediction were compared with the target of its own sample. Write down for eight
    samples in which order they arrive.
(x) clearly less than 0.25
( ) more than 0.25
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
This is counted only where NCCL uses the network.)
Elsewhere: **With Gloo**, on CPUs, it is 8 MiB: rank 0 sends to ranks 1 and 2, and rank 1 passes the tensor on to
rank 3. That is a binomial tree, and the root sends in each of its ⌈log2 N⌉ steps.
""")
