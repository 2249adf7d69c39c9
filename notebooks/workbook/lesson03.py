"""Exercises for lesson 03: tutorials' snippets repaired, and what a root does built by hand."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Budget, Least, exercise
from labkit.grading.inputs import Case, draws, vectors, with_roots
from labkit.grading.promises import Once, Root
from labkit.theory import collectives
from labkit.theory.primitives import OBJECTS
from labkit.words import count

if TYPE_CHECKING:
    from labkit.rank.seen import device, dist, everyones, name_it, rank, torch, world_size


def _models(n: int) -> list[Case]:
    """What a model holds: a weight and a bias, two buffers of a batch normalisation, and one that is not saved."""

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


def _runs(n: int) -> list[Case]:
    """(The losses of a rank's next steps, the loss that is good enough); only rank 0's losses count."""

    def staggered(rank0: Sequence[float], late: int) -> list[np.ndarray]:
        """Every rank's losses fall as rank 0's do, each `late` steps after the rank before it."""
        return [np.array([*[9.0] * (late * r), *rank0, *[0.0] * (late * (n - r))]) for r in range(n)]

    falling = staggered([4.0, 3.0, 2.0, 1.0], 1)
    low = [np.array([4.0, 3.0, 2.0, 1.0])] + [np.array([0.5, 0.5, 0.5, 0.5]) for _ in range(n - 1)]
    return [
        Case([(losses, 2.5) for losses in falling]),
        Case([(losses, 3.0) for losses in falling], "rank 0's second loss is exactly `good`"),
        Case([(losses, 4.5) for losses in falling], "rank 0 is done after one step"),
        Case([(losses, 2.5) for losses in low], "the other ranks' losses are low from the start"),
    ]


def _steps(xs: Sequence[Any]) -> list[int]:
    losses, good = xs[0]
    return [next(step for step, loss in enumerate(losses, 1) if loss < good)] * len(xs)


def _items(n: int) -> list[Case]:
    """A list on rank 0, None on the others."""
    cases: tuple[tuple[list[Any], str], ...] = (
        (list(range(10)), ""),
        (list(range(100, 100 + 3 * n)), f"{3 * n} items"),
        (["cat.png", "dog.png", "eel.png", "fox.png", "gnu.png"], "file names"),
        ([7], "one item for all ranks"),
        ([], "no item"),
        ([f"{i:04}" * 1250 for i in range(2 * n)], "long file names"),
    )
    return [Case([(None if r else items,) for r in range(n)], about) for items, about in cases]


def _dealt(xs: Sequence[Any]) -> list[Any]:
    return [xs[0][0][r :: len(xs)] for r in range(len(xs))]


def _losses(n: int) -> list[Case]:
    return [
        Case([np.array([r + 1.0], dtype="float32") for r in range(n)]),
        Case([np.array([0.5 - 2 * r], dtype="float32") for r in range(n)], "negative losses"),
        Case([np.array([2.0**r], dtype="float64") for r in range(n)], "float64"),
    ]


def _mean_on_0(xs: Sequence[Any]) -> list[Any]:
    return collectives.reduce(xs, root=0, op="AVG")


def _batches(n: int) -> list[Case]:
    """(A model's one weight, a batch to validate), different on every rank."""
    return [
        Case([(np.array([2.0 + r], dtype="float32"), x) for r, x in enumerate(draws(n, k, seed=k))], about)
        for k, about in ((4, ""), (1, "a batch of one"), (64, "a batch of 64"))
    ]


def _validated(xs: Sequence[Any]) -> list[Any]:
    (weight, batch), *_ = xs
    return [np.float32((weight * batch).mean())] * len(xs)


def _answers(n: int) -> list[Case]:
    """Which of a rank's validation samples the model got right; every rank has a different number of them."""

    def drawn(sizes: Sequence[int], seed: int) -> list[np.ndarray]:
        rng = np.random.default_rng([seed, n])
        return [rng.random(size) < 0.2 + 0.2 * r for r, size in enumerate(sizes)]

    return [
        Case([np.arange(4 * (r + 1)) < 1 + 3 * r for r in range(n)]),
        Case(drawn([7 * (n - r) for r in range(n)], 1), "the last rank has the fewest samples"),
        Case(drawn([0, *[10 + r for r in range(1, n)]], 2), "rank 0 has no sample"),
        Case(drawn([300 + r for r in range(n)], 3), "some 300 samples a rank"),
        Case([np.zeros(3 + r, dtype=bool) for r in range(n)], "the model got all samples wrong"),
    ]


def _accuracy(xs: Sequence[Any]) -> list[Any]:
    right = np.concatenate(xs)
    return [right.sum() / len(right), *[None] * (len(xs) - 1)]


def _dealt_predictions(n: int) -> list[Case]:
    """Predictions for samples that were dealt out one by one: rank r has those of samples r, r + n, r + 2n …"""
    cases = (
        (np.arange(3 * n), ""),
        (np.arange(2 * n + 1) + 100, count(2 * n + 1, "sample")),
        (np.arange(4 * n - 1)[::-1], count(4 * n - 1, "sample")),
        (np.arange(n - 1) - 5, f"{count(n - 1, 'sample')}, so the last rank has none"),
        (np.zeros(0), "no sample"),
        (np.arange(1, 301) ** 2 % 97, "300 samples"),
    )
    return [Case([x[r::n].astype("int64") for r in range(n)], about) for x, about in cases]


def _in_order(xs: Sequence[Any]) -> list[Any]:
    everyone = np.zeros(sum(map(len, xs)), dtype="int64")
    for r, x in enumerate(xs):
        everyone[r :: len(xs)] = x
    return [everyone, *[None] * (len(xs) - 1)]


def _only_rank_0_has(n: int) -> list[Case]:
    """A flat tensor on rank 0, an empty one elsewhere: more elements than ranks, fewer, none."""
    cases = (
        (2 * n, "float32", ""),
        (2 * n + 1, "float32", f"{2 * n + 1} elements, which {n} does not divide"),
        (1, "float32", "one element for all ranks"),
        (0, "float32", "no element"),
        (3 * n - 1, "int64", "integers"),
        (101, "float64", "float64"),
    )
    return [
        Case([x[: 0 if r else None] for r, x in enumerate(draws(n, k, dtype, seed=k))], about)
        for k, dtype, about in cases
    ]


def _rows(n: int) -> list[Case]:
    """One row for each rank."""
    cases = ((2, "float32", ""), (1, "float32", "one number a row"), (0, "float32", "empty rows"))
    more = ((3, "int64", "integers"), (101, "float64", "101 numbers a row"))
    return [
        Case([x.reshape(n, k) for x in draws(n, n * k, dtype, seed=k)], about) for k, dtype, about in (*cases, *more)
    ]


def _rounds(n: int) -> int:
    return ceil(log2(n))


def run_broadcast_model(fn, tensors):
    model = torch.nn.Module()
    for name, tensor in tensors.items():
        if name in ("weight", "bias"):
            model.register_parameter(name, torch.nn.Parameter(tensor))
        else:
            model.register_buffer(name, tensor, persistent=name != "mask")
    fn(model)
    return {name: tensor.detach() for name, tensor in [*model.named_parameters(), *model.named_buffers()]}


def broken_broadcast_model(model):
    """Leave what rank 0's model holds in every rank's model."""
    state = model.state_dict() if rank == 0 else None
    dist.broadcast(state, src=0)
    model.load_state_dict(state)


@exercise(
    "Repair: give everyone rank 0's model",
    collectives.broadcast,
    minutes=8,
    difficulty=2,
    inputs=_models,
    least=Least(sent=lambda n, S: S, rounds=lambda n: 1, memory=lambda n, S: 0),
    forbids=OBJECTS,
    specimen=broken_broadcast_model,
    harness=run_broadcast_model,
)
def broadcast_model(model):
    """Leave what rank 0's model holds in every rank's model.

    A tutorial hands the whole state to `dist.broadcast`. Run the function, run the check, and repair it: after the call
    every rank's `model`, an `nn.Module`, must hold **everything** that rank 0's model holds. All ranks have the same
    architecture. Change `model` in place; what you return does not count. No object collectives: they pickle. Each row
    below shows what one model holds: a weight (two numbers), a bias, and three buffers, which are a running mean, a
    number of batches and a mask.
    Hint: `dist.broadcast` moves one tensor. Call it once for each tensor, on every rank, in the same order.
    Hint: Parameters are not all that a model holds. What else does `model.named_buffers()` list?
    Hint: `state_dict()` leaves out buffers that were registered with `persistent=False`. `model.buffers()` does not.
    Hint: Go through `[*model.parameters(), *model.buffers()]`, and broadcast each `tensor.detach()` in place.
    Afterwards: PyTorch's `DistributedDataParallel` (DDP) does the same when it wraps a model: parameters and all
    buffers, from rank 0. A `state_dict()` has what is worth saving; buffers that every model makes anew, such as a
    mask, are not in it. Broadcast `parameter.detach()`, or under `torch.no_grad()`: else the next backward pass warns
    that it runs through the broadcast.
    """
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)


def run_train_until(fn, losses, good):
    runs = list(zip(*everyones(losses.tolist())))

    def until(stop):
        return next((steps for steps, now in enumerate(runs, 1) if stop(now)), None)

    slips = {
        "stops once the mean of all ranks' losses is low": until(lambda now: sum(now) / world_size < good),
        "goes on until the losses of all ranks are low": until(lambda now: max(now) < good),
        "looks at the last rank's loss, and not at rank 0's": until(lambda now: now[-1] < good),
        "stops as soon as any rank's loss is low": until(lambda now: min(now) < good),
        "stops where the loss is `good`, and not yet below": until(lambda now: now[0] <= good),
        "does not count the last step": until(lambda now: now[0] < good) - 1,
    }
    coming = iter(losses.tolist())

    def step():
        dist.all_reduce(torch.zeros(1, device=device))
        loss = next(coming, None)
        assert loss is not None, f"it trains on, and takes {len(losses) + 1} steps and more"
        return loss

    steps = fn(step, good)
    name_it(steps, until(lambda now: now[0] < good), slips)
    return steps


def broken_train_until(step, good):
    """Train until rank 0's loss is below good; return the number of steps."""
    steps = 1
    while step() >= good:
        steps += 1
    return steps


@exercise(
    "Repair: stop together",
    _steps,
    minutes=8,
    difficulty=2,
    inputs=_runs,
    specimen=broken_train_until,
    harness=run_train_until,
)
def train_until(step, good):
    """Train until rank 0's loss is below good; return the number of steps.

    Train until **rank 0's** loss is below `good`. `step()` is one training step: every rank has to take part in it,
    because it averages the gradients, and it returns this rank's own loss, a Python number that differs from rank to
    rank. Return how many steps this rank took. Run the function and its check, look at who waits for whom, and repair
    it. Each row below shows a rank's losses, step by step, then `good`, and how many steps it must take.
    Hint: Whose loss decides? How do the others learn of the decision?
    Hint: A decision that every rank must follow is one number from rank 0, in **every** step, also when the answer is
    to go on.
    Hint: Write 1.0 or 0.0 into a tensor, broadcast it from rank 0, and let every rank look at what arrived.
    Afterwards: A control signal: 4 bytes a step. Whatever decides how many collectives a rank calls must be the same on
    all ranks: a loss, a clock, the end of a data loader, a signal from the scheduler.
    """
    steps = 0
    stop = torch.zeros(1, device=device)
    while not stop.item():
        stop.fill_(step() < good)
        dist.broadcast(stop, src=0)
        steps += 1
    return steps


def run_deal(fn, items):
    from labkit.rank import recorder
    from labkit.theory.record import Log

    mine = fn(items)
    came = sum(op.bytes or 0 for op in Log.of(recorder.records()).ops)
    own = sum(len(str(item)) for item in mine) if isinstance(mine, list) else came
    assert rank == 0 or came < 2.5 * max(own, 10_000), (
        f"{came:,} bytes reach it, and its own items have {own:,}: only rank 0 may see the items of other ranks"
    )
    return mine


def broken_deal(items):
    """Return every world_size-th of rank 0's items, from number `rank` on."""
    chunks = [items[r::world_size] for r in range(world_size)] if rank == 0 else None
    mine = torch.zeros(3, dtype=torch.int64, device=device)
    dist.scatter(mine, chunks, src=0)
    return mine.tolist()


@exercise(
    "Repair: deal out the work",
    _dealt,
    minutes=5,
    inputs=_items,
    least=Least(rounds=lambda n: 1),
    specimen=broken_deal,
    harness=run_deal,
)
def deal(items):
    """Return every world_size-th of rank 0's items, from number `rank` on.

    Rank 0 has a list `items`, numbers or file names; on the other ranks `items` is `None`. Deal it out one by one, as
    cards are dealt: item 0 to rank 0, item 1 to rank 1, and after the last rank it is rank 0's turn again. Return this
    rank's items, a list, which may be empty. Only rank 0 may see the items of other ranks, so do not broadcast them.
    Hint: `dist.scatter` moves tensors of equal shape. File names are neither tensors nor equally long.
    Hint: `dist.scatter_object_list(box, chunks, src=0)` pickles. `box` is a list of one, into which the object is put.
    Afterwards: Objects may differ in size, so work that does not divide evenly needs no padding. Each is pickled and
    sent with its length: good for a list of file names once an epoch, slow for numbers in every step.
    """
    mine = [None]
    chunks = [items[r::world_size] for r in range(world_size)] if rank == 0 else None
    dist.scatter_object_list(mine, chunks, src=0)
    return mine[0]


def run_validate(fn, weight, batch):
    losses = everyones((weight * batch).mean())

    class Wrapped:
        def module(self, batch):
            return (weight * batch).mean()

        def __call__(self, batch):
            dist.broadcast(torch.zeros(1, device=device), src=0)
            return self.module(batch)

    loss = fn(Wrapped(), batch)
    slips = {
        "returns the loss of this rank's own batch": losses[rank],
        "averages the losses of all ranks' batches": sum(losses) / world_size,
        "adds up the losses of all ranks' batches": sum(losses),
    }
    name_it(loss, losses[0], slips)
    return loss


def broken_validate(model, batch):
    """Return the loss of rank 0's batch, on every rank."""
    loss = None
    if rank == 0:
        loss = model(batch)
    dist.barrier()
    return loss


@exercise(
    "Repair: validation on rank 0",
    _validated,
    minutes=8,
    difficulty=2,
    inputs=_batches,
    least=Least(rounds=lambda n: 1),
    specimen=broken_validate,
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
    Hint: Off rank 0 nobody joins the broadcast inside `model(batch)`. Rank 0 can do without it.
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


def run_repair_gather_losses(fn, loss):
    out = fn(loss)
    assert rank != 0 or out is None or isinstance(out, torch.Tensor), (
        f"it returns {out!r:.40}, a {type(out).__name__}, and a tensor is asked for"
    )
    return out


def broken_repair_gather_losses(loss):
    """Return the mean of all ranks' losses, on rank 0."""
    if rank == 0:
        all_losses = [0.0] * world_size
        dist.gather(loss, [torch.full_like(loss, one) for one in all_losses], dst=0)
        return torch.tensor([sum(all_losses) / world_size], dtype=loss.dtype, device=device)
    dist.gather(loss, dst=0)


@exercise(
    "Repair: the average loss",
    _mean_on_0,
    minutes=5,
    inputs=_losses,
    forbids=("reduce", "all_reduce", *OBJECTS),
    promises=(Once(("gather",)),),
    least=Least(sent=lambda n, S: S, rounds=lambda n: 1, memory=lambda n, S: n * S),
    specimen=broken_repair_gather_losses,
    harness=run_repair_gather_losses,
)
def repair_gather_losses(loss):
    """Return the mean of all ranks' losses, on rank 0.

    This is the function of the lesson that logs 0.0. Run it, run the check, and repair it with a **gather**. `loss` is
    a tensor with one number on every rank. Return, on rank 0, a tensor with one number: the mean of all losses, in the
    dtype of `loss`. What the other ranks return does not count.
    Hint: The gather fills the tensors in the list that it is given. Who can read them after the call?
    Hint: Give that list a name before the call. It is needed on rank 0 only: off the root it must be `None`.
    Hint: `torch.stack(losses).mean(dim=0)` is a tensor with one number.
    Afterwards: The tutorial built the list inside the call, and nothing else referred to it: the losses arrived and
    were thrown away. The mean was that of `all_losses`, which still held its zeros.
    """
    losses = [torch.zeros_like(loss) for _ in range(world_size)] if rank == 0 else None
    dist.gather(loss, losses, dst=0)
    if rank == 0:
        return torch.stack(losses).mean(dim=0)


def tensor_on_0(fn, loss):
    out = fn(loss)
    assert rank != 0 or out is None or isinstance(out, torch.Tensor), (
        f"it returns {out!r:.40}, a {type(out).__name__}, and a tensor is asked for"
    )
    return out


def run_repair_reduce(fn, loss):
    before = loss.clone()
    out = tensor_on_0(fn, loss)
    assert rank == 0 or out is not loss or loss.equal(before), (
        f"it returns its `loss`, which was {before.item():g} and is {loss.item():g} now: on any rank `dist.reduce` may "
        "leave a part of the sum in the tensor that it is given. Give it a copy"
    )
    return out


def broken_repair_reduce(loss):
    """Return the mean of all losses on rank 0, and this rank's own loss elsewhere."""
    if rank == 0:
        total = dist.reduce(loss, dst=0, op=dist.ReduceOp.SUM)
        return total / world_size
    return loss


@exercise(
    "Repair: rank 0 logs the loss",
    lambda xs: [_mean_on_0(xs)[0], *xs[1:]],
    minutes=6,
    inputs=_losses,
    forbids=("all_reduce", "gather", "all_gather", *OBJECTS),
    promises=(Once(("reduce",)), Root(0)),
    least=Least(sent=lambda n, S: S, rounds=lambda n: 1, memory=lambda n, S: S),
    specimen=broken_repair_reduce,
    harness=run_repair_reduce,
)
def repair_reduce(loss):
    """Return the mean of all losses on rank 0, and this rank's own loss elsewhere.

    "Only rank 0 logs, so only rank 0 reduces." Run the function and its check, and repair it with a **reduce**. It has
    more than one fault. `loss` is a tensor with one number on every rank. Rank 0 returns a tensor with the mean of all
    losses, in the dtype of `loss`. Every other rank returns **its own** `loss`, as it was.
    Hint: How many ranks reach the line with `dist.reduce`, and how many must?
    Hint: `dist.reduce` returns `None`. Rank 0 finds the sum in the tensor that it passed.
    Hint: Off the root, nobody may rely on what the passed tensor holds afterwards. Pass a copy:
    `loss.detach().clone()`.
    Afterwards: Three faults in two lines: a collective under `if rank == 0` (a hang), the result of a call that returns
    `None`, and a loss that is overwritten on the other ranks.
    """
    total = loss.detach().clone()
    dist.reduce(total, dst=0)
    return total / world_size if rank == 0 else loss


@exercise(
    "Accuracy over everyone's samples",
    _accuracy,
    minutes=6,
    inputs=_answers,
    promises=(Once(("reduce",)), Root(0)),
    least=Least(rounds=lambda n: 1),
)
def accuracy(right):
    """Return the accuracy over all ranks' samples, on rank 0.

    Each rank validated a different number of samples: `right` is a tensor of booleans, one for each of this rank's
    samples, and may be empty. Return, on rank 0, the accuracy over **all** samples, with a single `dist.reduce`. What
    the other ranks return does not count.
    Hint: A mean of means weighs a rank with 3 samples as much as one with 300. Which two numbers add up?
    Hint: Put how many are right and how many there are into one tensor, and reduce that.
    Afterwards: Reduce what adds up, and divide afterwards. It is the same with a loss over uneven batches: reduce the
    sum and the count.
    """
    counts = torch.tensor([right.sum(), right.numel()], dtype=torch.float64, device=device)
    dist.reduce(counts, dst=0)
    return counts[0] / counts[1]


@exercise(
    "Put the predictions back in order",
    _in_order,
    minutes=12,
    difficulty=2,
    inputs=_dealt_predictions,
    forbids=(*OBJECTS, "send", "isend"),
    budget=Budget(sent=lambda n, S: S + 96),
    least=Least(rounds=lambda n: 2),
)
def gather_predictions(mine):
    """Return everyone's predictions on rank 0, in the order of the samples.

    Samples were dealt out one by one: rank r predicted samples r, r + N, r + 2N and so on, N being `world_size`. Their
    number need not divide by N, and no rank knows it. `mine` is a tensor of integers, this rank's predictions in that
    order. Return, on rank 0, all predictions in the **order of the samples**. What the other ranks return does not
    count. Use tensors, and let no rank but rank 0 receive the others' predictions.
    Hint: `dist.gather` wants equal shapes. How long must the tensors be, and how does every rank learn it?
    Hint: Pad with zeros to the longest share. Its length is known after an all-gather of the sizes.
    Hint: The k-th predictions of ranks 0, 1, 2 … are neighbours in the order of the samples: `torch.stack(parts,
    dim=1)` has them side by side.
    Hint: Only the last ranks can be one short, so all padding ends up at the end: cut it off there.
    Afterwards: A sampler that deals out samples often pads by repeating some of them, so that all shares are equal.
    Then the repeated ones must be cut off before an accuracy is computed, or they count twice.
    """
    size = torch.tensor([len(mine)], device=device)
    sizes = [torch.zeros_like(size) for _ in range(world_size)]
    dist.all_gather(sizes, size)
    padded = mine.new_zeros(max(sizes).item())
    padded[: len(mine)] = mine
    parts = [torch.zeros_like(padded) for _ in range(world_size)] if rank == 0 else None
    dist.gather(padded, parts, dst=0)
    if rank == 0:
        return torch.stack(parts, dim=1).flatten()[: sum(sizes).item()]


@exercise(
    "Deal out what does not divide",
    lambda xs: collectives.split(xs[0], len(xs)),
    minutes=15,
    difficulty=2,
    inputs=_only_rank_0_has,
    forbids=(*OBJECTS, "send", "isend"),
    budget=Budget(sent=lambda n, S: (n - 1) / n * S + 64),
    least=Least(sent=lambda n, S: (n - 1) / n * S + 8, rounds=lambda n: 2, memory=lambda n, S: S / n),
)
def scatter_uneven(x):
    """Return part r of rank 0's x, on rank r.

    Rank 0 has a tensor `x` with one dimension and any number of elements. The others bring an empty one of the same
    dtype and do **not** know how long rank 0's is. Cut it into `world_size` consecutive parts as
    `x.tensor_split(world_size)` does: the first parts are one element longer where it does not divide. Rank r returns
    part r, which may be empty. Use tensors: no object collectives and no send. About S (N - 1) / N bytes may leave rank
    0, S being the bytes of its `x`, so nobody else gets the whole.
    Hint: What must the others know before they can make room? One number does it.
    Hint: `dist.scatter` wants tensors of equal shape: pad the short parts, and cut the padding off after the call.
    Hint: With `short, longer = divmod(length, world_size)`, part r has `short + (rank < longer)` elements.
    Afterwards: Pad, or send the sizes first: every library that deals out uneven work does one of the two.
    `comms.scatter` does.
    """
    length = torch.tensor([len(x)], device=device)
    dist.broadcast(length, src=0)
    short, longer = divmod(length.item(), world_size)
    mine = torch.zeros(short + 1, dtype=x.dtype, device=device)
    padded = None
    if rank == 0:
        padded = [torch.zeros_like(mine) for _ in range(world_size)]
        for room, part in zip(padded, x.tensor_split(world_size)):
            room[: len(part)] = part
    dist.scatter(mine, padded, src=0)
    return mine[: short + (rank < longer)]


@exercise(
    "A broadcast without a broadcast",
    collectives.broadcast,
    minutes=12,
    difficulty=2,
    inputs=vectors,
    forbids=(
        "broadcast",
        "reduce",
        "all_reduce",
        "send",
        "isend",
        "gather",
        "all_to_all",
        *OBJECTS,
    ),
    promises=(Once(("scatter", "all_gather")),),
    keeps_input=True,
    least=Least(sent=lambda n, S: 2 * (n - 1) / n * S, rounds=lambda n: 2, memory=lambda n, S: S),
)
def broadcast_from_scatter_all_gather(x):
    """Return rank 0's x on every rank, by a scatter and an all-gather.

    Every rank brings a tensor `x` with one dimension, of the same length and dtype. Return a tensor like it with **rank
    0's** numbers, on every rank, by a `dist.scatter` of the parts and a `dist.all_gather` of them. The length need not
    divide by `world_size`, and may be 0. `x` stays as it is.
    Hint: A scatter wants equal parts. What can you put behind the last element?
    Hint: `-(-len(x) // world_size)` rounds up. `padded.view(world_size, size)` has one part a row.
    Hint: After the all-gather, `torch.cat(parts)` and cut the padding off.
    Afterwards: The root now sends S (N - 1) / N bytes in the scatter and as much in the all-gather: less than 2 S,
    however many ranks there are. A tree's root sends S · ⌈log2 N⌉. Long messages are broadcast like this.
    """
    size = -(-len(x) // world_size)
    padded = x.new_zeros(size * world_size)
    padded[: len(x)] = x
    mine = x.new_empty(size)
    dist.scatter(mine, list(padded.view(world_size, size)) if rank == 0 else None, src=0)
    parts = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(parts, mine)
    return torch.cat(parts)[: len(x)]


@exercise(
    "A broadcast in ⌈log2 N⌉ steps",
    collectives.broadcast,
    minutes=15,
    difficulty=3,
    inputs=with_roots(vectors),
    forbids=("collectives",),
    budget=Budget(steps=_rounds),
    keeps_input=True,
    least=Least(sent=lambda n, S: (n.bit_length() - 1) * S, rounds=_rounds, memory=lambda n, S: S),
)
def tree_broadcast(x, root):
    """Return the root's x on every rank: whoever has it passes it on.

    Every rank brings a tensor `x` of the same shape and dtype. Return a tensor like it with the numbers of rank
    **`root`**, on every rank, by send and receive only. In a step a rank sends one message at most, and all is done in
    ⌈log2 N⌉ **steps**: two with four ranks. So the root must not serve everybody itself. `x` stays as it is.
    Hint: Take root 0 first. After the first step two ranks have it. How many can have it after the second one, if both
    pass it on?
    Hint: In the step in which the ranks below `have` have it, rank r serves rank r + `have`. Double `have` after each
    step, and mind the ranks that do not exist.
    Hint: For another root count the places from there: `place = (rank - root) % world_size`.
    Afterwards: Gloo broadcasts by such a tree. `lab.last.steps()` shows it step by step.
    """
    got = x.clone()
    place = (rank - root) % world_size  # counted from the root
    have = 1  # the places below this one have it
    while have < world_size:
        if place < have and place + have < world_size:
            dist.send(got, dst=(rank + have) % world_size)
        elif have <= place < 2 * have:
            dist.recv(got, src=(rank - have) % world_size)
        have *= 2
    return got


@exercise(
    "A scatter in ⌈log2 N⌉ steps",
    lambda xs: [xs[0][r] for r in range(len(xs))],
    minutes=20,
    difficulty=3,
    inputs=_rows,
    forbids=("collectives",),
    budget=Budget(sent=lambda n, S: (n - 1) / n * S, steps=_rounds),
    keeps_input=True,
    least=Least(sent=lambda n, S: (n - 1) / n * S, rounds=_rounds, memory=lambda n, S: n // 2 * S / n),
)
def tree_scatter(x):
    """Return row r of rank 0's x, on rank r.

    Rank 0 has a tensor `x` with one row for each rank. The others bring a tensor of the same shape and dtype whose
    numbers do not count. Return row `rank` of **rank 0's** `x`, on every rank, by send and receive only and in ⌈log2 N⌉
    **steps**, for any number of ranks. Rank 0 sends no row twice: S (N - 1) / N bytes at most, S being the bytes of
    `x`.
    Hint: Rank 0 sends the rows of half of the ranks to one of them. Who deals those out, and what does rank 0 do
    meanwhile?
    Hint: Every rank keeps track of the block of ranks that it belongs to, from `low` up to `high`; rank `low` has the
    block's rows. Cut the block at `middle` in each step.
    Hint: Round `middle` up: with three ranks the lower block then has two ranks, and two steps are enough.
    Afterwards: The same bytes leave rank 0 as in a plain scatter, in ⌈log2 N⌉ messages instead of N - 1. For short
    messages to many ranks that is faster; for long ones the rows in the middle travel more than once for nothing.
    """
    rows = x.clone()
    low, high = 0, world_size  # rank `low` has the rows of the ranks from low up to high
    while high - low > 1:
        middle = (low + high + 1) // 2
        if rank == low:
            dist.send(rows[middle:high], dst=middle)
        elif rank == middle:
            dist.recv(rows[middle:high], src=low)
        low, high = (low, middle) if rank < middle else (middle, high)
    return rows[rank]
