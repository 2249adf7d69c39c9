"""Exercises of lesson 09: gradients averaged as they become ready, in buckets, once a step."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, Least, exercise
from labkit.grading.inputs import counting
from labkit.theory import collectives
from labkit.theory.log import Log
from workbook.harnesses import calls, in_a_folder

if TYPE_CHECKING:
    from labkit.rank.cell_names import dist, everyones, name_it, rank, recorder, torch, world_size


def _averages(xs: Sequence[Any], steps: int = 1) -> list[Any]:
    """Average each of the gradients that ranks bring last; in step k they are k times as large."""
    means = collectives.all_reduce([x[-1] for x in xs], op="AVG")[0]
    return [k * mean for k in range(1, steps + 1) for mean in means]


def _kept_equal(xs: Sequence[Any], steps: int = 1, frozen: bool = False) -> list[Any]:
    params, buffers, _ = xs[0]
    return [{"parameters": params, "buffers": buffers, "gradients": _averages(xs, steps)} for _ in xs]


def _counting(n: int) -> list[Any]:
    return [([x[:1]], [x[1:2]], [x[2:]]) for x in counting(n, 3)]


def _copies(n: int) -> list[Case]:
    def case(about: str, seed: int, sizes: Sequence[int], dtype: str = "float32", **options: Any) -> Case:
        rng = np.random.default_rng([9, seed, n])
        trained = sizes[: len(sizes) - options.get("frozen", False)]

        def drawn(lengths: Sequence[int]) -> list[np.ndarray]:
            return [rng.integers(-50, 51, length).astype(dtype) for length in lengths]

        return Case([(drawn(sizes), drawn((1,)), drawn(trained)) for _ in range(n)], about, options)

    counted = [([np.array([0.5 + r, -r])], [np.array([7 + r])], [np.array([1.0, 2.0 * r])]) for r in range(n)]
    return [
        Case(_counting(n), "one parameter, one buffer"),
        case("two parameters", 1, (2, 3)),
        case("two steps", 2, (2, 1), steps=2),
        case("the second parameter is frozen", 3, (2, 2), frozen=True),
        Case(counted, "a buffer of integers"),
        case("float64", 4, (40, 3, 7), "float64", steps=2),
    ]


def _named(out, everyone, passes=1, more=None):
    """Name the usual mistakes, and `more`, in gradients that should be the means; in pass k they are k times those."""
    sums = [sum(same) for same in zip(*everyone)]

    def each(gradients, divisor=1):
        return [k * g / divisor for k in range(1, passes + 1) for g in gradients]

    slips = {
        "adds up and does not divide by the number of ranks": each(sums),
        "leaves this rank's own gradients as they are. Did you assign to the name? `grad.copy_(…)` writes into the "
        "tensor": each(everyone[rank]),
        "divides, and does not add up": each(everyone[rank], world_size),
        **{why: each(gives, world_size) for why, gives in (more or {}).items()},
    }
    name_it(out, each(sums, world_size), slips, "gradients")


def run_data_parallel(fn, params, buffers, grads, steps=1, frozen=False):
    """Return what a model of these parameters and buffers holds, and its gradients after each backward pass."""
    everyone = everyones((params, buffers, grads))
    sums = [[sum(same) for same in zip(*theirs)] for theirs in zip(*everyone)]
    model = torch.nn.Module()
    model.params = torch.nn.ParameterList([torch.nn.Parameter(p) for p in params])
    if frozen:
        model.params[-1].requires_grad = False
    for i, buffer in enumerate(buffers):
        model.register_buffer(f"buffer{i}", buffer, persistent=False)
    fn(model)
    out = {name: [x.detach().clone() for x in getattr(model, name)()] for name in ("parameters", "buffers")}
    out["gradients"] = []
    for k in range(1, steps + 1):
        sum((k * p * grad).sum() for p, grad in zip(model.params, grads)).backward()
        out["gradients"] += [p.grad for p in model.params if p.requires_grad]
        model.zero_grad()
    beside = ": broadcast `model.buffers()`, too, of which a `state_dict` need not have all"
    for i, name in enumerate(("parameters", "buffers")):
        slips = {
            f"leaves this rank's own {name} as they are{beside if i else ''}": everyone[rank][i],
            f"adds up all ranks' {name}": sums[i],
            f"averages all ranks' {name}": [total / world_size for total in sums[i]],
        }
        name_it(out[name], everyone[0][i], slips, name)

    _named(out["gradients"], [theirs[2] for theirs in everyone], steps)
    return out


@exercise(
    "Equal copies that stay equal",
    _kept_equal,
    inputs=_copies,
    minutes=6,
    picture=lambda: _counting(3),
    counts_memory=False,  # what it sends, it sends in the backward pass
    harness=run_data_parallel,
)
def data_parallel(model):
    """Give all ranks rank 0's model, and let every backward() average the gradients.

    Every rank calls `data_parallel(model)` once, before it trains. The ranks' models may differ: give every rank
    rank 0's **parameters and buffers**. From then on every `backward()` has to leave the **mean over the ranks** in
    each `p.grad`, without any further call: autograd calls the function that you pass to
    `p.register_post_accumulate_grad_hook(...)` with `p` as soon as the gradient of `p` is complete. A frozen parameter
    (`p.requires_grad` is false) never gets a gradient, and torch refuses a hook on it. Return nothing. The picture
    shows a parameter, a buffer and a gradient of each rank.
    Hint: First make all copies equal. A model is its parameters **and** its buffers: which call gives every rank what
    one rank has?
    Hint: `dist.broadcast(tensor.detach(), src=0)` for each tensor of `model.parameters()` and `model.buffers()`. Not
    every buffer is in the `state_dict`.
    Hint: In the hook, `p.grad` is complete: all-reduce it in place, then divide it by `world_size`.
    Afterwards: This is data-parallel training in ten lines, and it is right. It is not fast: each tensor travels alone,
    and the backward pass stands still until it has arrived.
    """
    # yours
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.detach(), src=0)
    # end

    def average(p):
        """Autograd calls this as soon as p.grad is complete."""
        # yours
        dist.all_reduce(p.grad)
        p.grad /= world_size
        # end

    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(average)


def _filled(sizes: Sequence[int], cap: int) -> list[int]:
    """Fill buckets with gradients of these bytes, each until it holds `cap` bytes or more; return its bytes."""
    buckets = [0]
    for size in sizes:
        if buckets[-1] >= cap:
            buckets.append(0)
        buckets[-1] += size
    return buckets


SHAPES = ((36,), (36, 32), (32,), (32, 128), (128, 32), (128,), (32,), (32, 32), (32,), (96, 32), (96,), (32, 8))
LARGE_CAP = 16384


def _ready(n: int) -> list[Case]:
    def case(shapes: Sequence[tuple[int, ...]], cap: int, about: str, seed: int, dtype: str = "float32") -> Case:
        rng = np.random.default_rng([9, seed, n])
        grads = [([rng.integers(-50, 51, s).astype(dtype) for s in shapes],) for _ in range(n)]
        return Case(grads, about, {"cap": cap})

    readable = [([x[:1], x[1:3], x[3:]],) for x in counting(n, 4)]
    return [
        Case(readable, "three gradients, two buckets", {"cap": 12}),
        case([(2,), (2,), (2,), (2,)], 16, "four gradients of 8 bytes, 16 a bucket", 1),
        case([(1,), (5,), (2, 2), (1,)], 16, "a gradient that overshoots", 2),
        case([(3,), (2,)], 1, "every gradient fills a bucket", 3),
        case([(3,), (2, 2), (1,)], 10**6, "one bucket for all", 4, "float64"),
        case([(7,)], 8, "one gradient", 5),
        case(SHAPES, LARGE_CAP, f"a transformer's layer, {LARGE_CAP:,} bytes a bucket", 6),
    ]


def run_average_in_buckets(fn, grads, cap):
    """Count the calls, name mistakes in the gradients, and collect these and the buckets' bytes."""
    everyone = everyones(grads)
    sizes = fn(grads, cap)
    made = calls()
    assert isinstance(sizes, list), "it returns no list: return the bytes of each bucket"
    assert made == len(sizes), f"it communicates {made} times for {len(sizes)} bucket{'s' * (len(sizes) != 1)}"
    _named(grads, everyone)
    return {"gradients": grads, "sizes": sizes}


@exercise(
    "One all-reduce per bucket",
    lambda xs, cap: [{"gradients": _averages(xs), "sizes": _filled([g.nbytes for g in xs[0][0]], cap)}] * len(xs),
    inputs=_ready,
    minutes=7,
    difficulty=2,
    least=Least(
        sent=lambda n, S: 2 * (n - 1) / n * S,
        rounds=lambda n: len(_filled([4 * int(np.prod(s)) for s in SHAPES], LARGE_CAP)),
    ),
    harness=run_average_in_buckets,
)
def average_in_buckets(grads, cap):
    """Replace each gradient by its mean over the ranks, a bucket at a time; return the buckets' bytes.

    `grads` are the gradients of this rank, in the order in which they became ready; shapes, order and dtype are the
    same on all ranks. The cell already puts them into buckets in this order: a bucket takes gradients until it holds
    `cap` bytes **or more**. Replace each gradient by its **mean over the ranks**, in place, with **one** all-reduce per
    bucket. The function returns the bytes of each bucket.

    In the picture, `cap` is 12. The first two gradients, of 4 and 8 bytes, fill a bucket; the third one, of 4 bytes,
    has a bucket of its own. On the right are the means, and then the bytes of the two buckets.
    Hint: Several gradients in **one** call: what do you have to make of them first?
    Hint: `torch.cat` of the flattened gradients is one tensor. After the all-reduce it has to be taken apart again:
    `flat.split([…])` takes the lengths.
    Hint: `grad.copy_(part.view_as(grad))` brings a part back into the shape and the place of its gradient.
    Afterwards: The bytes are the same, and there are far fewer messages. The price is a copy into the bucket and one
    back. With `gradient_as_bucket_view=True` DDP saves the second: `p.grad` **is** a piece of the bucket.
    """
    buckets = [[]]
    for grad in grads:
        if sum(g.nbytes for g in buckets[-1]) >= cap:
            buckets.append([])
        buckets[-1].append(grad)
    for bucket in buckets:
        # yours
        flat = torch.cat([grad.flatten() for grad in bucket])
        dist.all_reduce(flat)
        flat /= world_size
        for grad, part in zip(bucket, flat.split([grad.numel() for grad in bucket])):
            grad.copy_(part.view_as(grad))
        # end
    return [sum(grad.nbytes for grad in bucket) for bucket in buckets]


def _backward_passes(n: int) -> list[Case]:
    def case(sizes: Sequence[int], layout: Sequence[Sequence[int]], about: str, seed: int, **options: Any) -> Case:
        rng = np.random.default_rng([9, seed, n])
        drawn = [([rng.integers(-50, 51, s).astype("float32") for s in sizes],) for _ in range(n)]
        return Case(drawn, about, {"layout": [list(bucket) for bucket in layout], "passes": 2, **options})

    return [
        Case([([x[:1], x[1:2], x[2:]],) for x in counting(n, 4)], "three gradients, two buckets"),
        case((3, 1, 2, 4), ((0, 1), (2, 3)), "two passes", 1),
        case((2,) * 4, ((0, 1), (2, 3)), "gradients become ready in a different order on odd ranks", 2, turned=True),
        case((3, 2, 5), ((0,), (1,), (2,)), f"rank {n - 1} begins its backward pass late", 3, late=n - 1),
        case((40, 300, 7, 90, 1), ((0, 1), (2, 3), (4,)), "five gradients in three buckets", 4),
    ]


@in_a_folder
def run_overlapped(fn, xs, layout=((0, 1), (2,)), passes=1, turned=False, late=None, folder=""):
    """Let gradients that are known beforehand come in their order, or on odd ranks the second half first.

    The late rank begins when it sees the files that the others leave behind as they come out of their backward pass.
    """
    left_backward = [os.path.join(folder, str(r)) for r in range(world_size)]

    everyone, half = everyones(xs), len(xs) // 2
    orders = [
        [*range(half, len(xs)), *range(half)] if turned and r % 2 else [*range(len(xs))] for r in range(world_size)
    ]
    order = orders[rank]
    ps = [torch.nn.Parameter(torch.zeros_like(x)) for x in xs]
    finish = fn([[ps[i] for i in bucket] for bucket in layout])
    assert callable(finish), "it returns no function: return `finish` itself, and do not call it"
    before, left, out, stuck = [0], [], [], []
    ps[order[-1]].register_hook(lambda _: left.append(calls() - before[0]))
    for k in range(1, passes + 1):
        terms = {i: (ps[i] * xs[i] * k).sum() for i in reversed(order)}  # the last one made comes back first
        total = sum(terms.values())
        if rank == late and k == 1:
            until = time.monotonic() + 2
            while missing := [r for r, path in enumerate(left_backward) if r != rank and not os.path.exists(path)]:
                if time.monotonic() > until:
                    stuck = missing
                    break
                time.sleep(0.01)
        total.backward()
        with contextlib.suppress(OSError):  # the folder may be gone
            open(left_backward[rank], "w").close()
        finish()
        before[0] = calls()
        out += [p.grad for p in ps]
        for p in ps:
            p.grad = None
    assert not stuck, f"rank {stuck[0]} waits for this rank inside its backward pass: it should wait in finish()"
    full = next(k for k, bucket in enumerate(layout) if order[-1] in bucket) if order == sorted(order) else 0
    said = f"{full} bucket{'s were' if full > 1 else ' was'} full before the last gradient came"
    early, few = left.index(min(left)), min(left) or "none"
    anew = ". This happens if finish() does not begin anew: the next pass has to count from nothing" if early else ""
    assert min(left) >= full, f"{said} in pass {early + 1}, and {few} had left{anew}"
    sent = sum(op.bytes or 0 for op in Log.of(recorder.records()).ops if "all_reduce" in op.op)
    held = passes * sum(x.nbytes for x in xs)
    assert sent <= held, (
        f"its all-reduces carry {sent} bytes, and the gradients have {held}: a bucket leaves once in a pass, and not "
        "again at each later gradient"
    )
    met = [sum(theirs[its[order.index(i)]] for theirs, its in zip(everyone, orders)) for i in range(len(xs))]
    _named(out, everyone, passes, {"lets a bucket leave as soon as it is full, though it is not its turn": met})
    return out


@exercise(
    "A bucket leaves while you compute",
    lambda xs, passes=1, **_: [_averages(xs, passes) for _ in xs],
    inputs=_backward_passes,
    minutes=15,
    difficulty=3,
    least=Least(sent=lambda n, S: 2 * 2 * (n - 1) / n * S, rounds=lambda n: 2 * 3),  # two passes, three buckets
    counts_memory=False,  # the function returns before anything is computed
    harness=run_overlapped,
)
def overlapped(buckets):
    """Let each bucket leave as soon as it may; return finish(), which waits for all of them.

    `buckets` is a list of lists of parameters, the same on all ranks. During a backward pass, all-reduce a bucket **as
    soon as** the gradients of all its parameters are there, and do not wait: with `async_op=True` the call returns a
    handle at once. Return a function `finish()`. It is called after each `backward()`, waits for all buckets and leaves
    the **mean over the ranks** in each `p.grad`. Then the next pass may begin.

    Gradients may become ready in a different order on different ranks, but all ranks must call their collectives in the
    same order. So on **every** rank bucket 0 leaves first, then bucket 1, and so on, even where bucket 1 is full first.
    Hint: Keep a set `there` of the parameters whose gradients are there, and a list `left` of the buckets that have
    left. In `ready`, look at the bucket whose turn it is, number `len(left)`: are all its parameters there? And those
    of the next one? Register `ready` as the hook of every parameter.
    Hint: A full bucket becomes one flat tensor, and `dist.all_reduce(flat, async_op=True)` gives you its handle. Keep
    both in `left`.
    Hint: In `finish`: `work.wait()`, split the tensor, copy the parts divided by `world_size` into the gradients. Then
    clear `there` and `left`.
    Afterwards: DDP does the same in C++, and its buckets leave in the order of their numbers for the same reason. So
    the bucket that is full first should be number 0. How can DDP know beforehand which one that will be? The section
    "The first backward pass" below answers it.
    """
    # yours
    there, left = set(), []  # parameters whose gradients are there; buckets that have left: (flat, handle)
    # end

    def ready(p):
        """Take note of p, and let the buckets leave whose turn it is."""
        # yours
        there.add(p)
        while len(left) < len(buckets) and there.issuperset(buckets[len(left)]):
            flat = torch.cat([q.grad.flatten() for q in buckets[len(left)]])
            left.append((flat, dist.all_reduce(flat, async_op=True)))
        # end

    def finish():
        """Wait for the buckets, leave the means in the gradients, and begin anew."""
        # yours
        for bucket, (flat, work) in zip(buckets, left):
            work.wait()
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
                p.grad.copy_(part.view_as(p) / world_size)
        there.clear()
        left.clear()
        # end

    # yours
    for bucket in buckets:
        for p in bucket:
            p.register_post_accumulate_grad_hook(ready)
    # end
    return finish


def _accumulated(xs: Sequence[Any]) -> list[Any]:
    rows = [row for batches in xs for batch in batches for row in batch]
    return [sum(rows) / len(rows) for _ in xs]


def _micro_batches(n: int) -> list[Case]:
    def case(many: int, about: str, seed: int, rows: int = 2, dtype: str = "float32") -> Case:
        drawn = np.random.default_rng([9, seed, n]).integers(-20, 21, (n, many, rows, 2)).astype(dtype)
        return Case([tuple(drawn[r]) for r in range(n)], about)

    return [
        Case([(x[None, :2], x[None, 2:4], x[None, 4:]) for x in counting(n, 6)], "three micro-batches of one row"),
        case(2, "two micro-batches", 2),
        case(1, "one micro-batch", 3),
        case(4, "float64", 4, 5, "float64"),
    ]


def run_accumulate(fn, *batches):
    """Train a model of two parameters, so that a call for each is seen; a micro-batch's row is its gradient."""

    class Line(torch.nn.Module):
        def __init__(self):
            super().__init__()
            one = torch.ones(1, dtype=batches[0].dtype)
            self.weights = torch.nn.ParameterList([torch.nn.Parameter(one.clone()) for _ in range(2)])

        def forward(self, rows):
            return rows @ torch.cat(list(self.weights))

    everyone = everyones([batch.mean(0) for batch in batches])
    with recorder.paused():
        ddp = torch.nn.parallel.DistributedDataParallel(Line())
    came, back, faults = [], [], []

    def loss_of(model, rows):
        if len(rows) != len(batches[0]):
            faults.append(
                f"`loss_of` gets {len(rows)} rows at once, and a micro-batch has {len(batches[0])}: more do not fit "
                "into memory"
            )
        elif len(back) < len(came):
            faults.append(
                f"micro-batch {len(came)} goes forward before micro-batch {len(back)} has gone back: so the "
                "activations of several are in memory at once. Call backward() on each loss"
            )
        came.append(rows)
        loss = model(rows).mean()
        loss.register_hook(lambda _: back.append(rows))
        return loss

    fn(ddp, list(batches), loss_of)
    assert not faults, faults[0]
    weights = list(ddp.module.weights)
    assert all(p.grad is not None for p in weights), "there is no gradient"
    assert all(p.item() == 1 for p in weights), "it changes the weights, and should leave them as they are"
    calls = sum("broadcast" not in op.op for op in Log.of(recorder.records()).ops)  # DDP's own, for new buckets
    of = f"for {len(batches)} micro-batch{'es' * (len(batches) != 1)} of a model with {len(weights)} parameters"
    assert calls < 2, f"it communicates {calls} times {of}, and once is enough"
    grad = torch.cat([p.grad for p in weights])
    mean = sum(map(sum, everyone)) / len(batches) / world_size
    slips = {
        "adds up the micro-batches and does not divide by their number": mean * len(batches),
        "adds up the ranks and does not divide by their number": mean * world_size,
        "takes the last micro-batch alone": sum(theirs[-1] for theirs in everyone) / world_size,
        "leaves the last micro-batch out": mean - sum(theirs[-1] for theirs in everyone) / len(batches) / world_size,
    }
    name_it(grad, mean, slips)
    return grad


@exercise(
    "Four micro-batches, one exchange",
    _accumulated,
    inputs=_micro_batches,
    minutes=4,
    tolerance=1e-5,
    least=Least(sent=lambda n, S: 2 * (n - 1) / n * S / (4 * 5), rounds=lambda n: 1),  # one gradient for 4 × 5 rows
    harness=run_accumulate,
)
def accumulate(ddp, batches, loss_of):
    """Leave the mean gradient of all micro-batches of all ranks, after one exchange.

    `ddp` is a model wrapped in `DistributedDataParallel`, with no gradients yet. `batches` is this rank's list of
    micro-batches, all of one size, and the same number on each rank. `loss_of(ddp, batch)` calls `ddp` and returns the
    mean loss of one of them. Leave in each `p.grad` the gradient of the mean loss over **all** micro-batches of **all**
    ranks, and communicate **once**, however many parameters there are. Inside `with ddp.no_sync():` nothing is sent; it
    has to surround the forward pass, too. Memory holds the activations of only one micro-batch: call `backward()` on
    each loss before the next micro-batch goes forward. Change no weights and return nothing. (In the picture each
    micro-batch has one row, and the row is its gradient.)
    Hint: `backward()` adds to what is already in `p.grad`. When DDP communicates, it averages what it finds there.
    Hint: All micro-batches but the last one go inside `with ddp.no_sync():`, forward and backward.
    Hint: A mean over k micro-batches is the sum of their means, divided by k. Divide each loss before its backward
    pass.
    Afterwards: With k micro-batches you send a k-th of the bytes, and the result is exact. That is the cheapest
    compression there is.
    """
    with ddp.no_sync():
        for batch in batches[:-1]:
            (loss_of(ddp, batch) / len(batches)).backward()
    (loss_of(ddp, batches[-1]) / len(batches)).backward()
