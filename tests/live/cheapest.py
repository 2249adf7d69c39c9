"""Solutions that take the least possible, and in what they do, where the workbook's own takes more.

`hold_to_the_least` is what the tests of solutions say of a right one's costs.
"""

from __future__ import annotations

import re

import pytest

from labkit.content import exercises
from labkit.grading.attempt import Attempt
from labkit.grading.exercise import Exercise
from labkit.grading.finding import Finding, judged
from labkit.grading.inputs import Case
from labkit.grading.score import scored
from labkit.show.score import LESS
from labkit.show.verdict import Verdict


def invited(verdict: Verdict) -> set[str]:
    """In what the verdict says that it can be done with less."""
    (said,) = re.findall(r"It can be done with (.*?)\.", repr(verdict)) or [""]
    return {cost for cost, less in LESS.items() if less in said and getattr(verdict.score, cost) is not None}


def runs_of_checks(patch: pytest.MonkeyPatch) -> list[tuple[Case, Attempt]]:
    """Return a list that grows by each undisturbed run that a check makes, and its input."""
    runs: list[tuple[Case, Attempt]] = []

    def kept(exercise: Exercise, case: Case, ran: Attempt, want: list, mode: str) -> Finding | None:
        if not mode and ran.record:  # one of many calls in one go has none
            runs.append((case, ran))
        return judged(exercise, case, ran, want, mode)

    patch.setattr("labkit.cluster.check.judged", kept)
    return runs


def hold_to_the_least(exercise: Exercise, verdict: Verdict, runs: list[tuple[Case, Attempt]]) -> None:
    """Assert that a right solution takes no less than the card's least, and that the verdict shows both figures.

    The verdict is about the largest input on most ranks; on fewer ranks, bytes and steps are those of the check's runs.
    """
    for n in sorted(exercise.ranks):
        score = scored(exercise, *max((run for run in runs if run[0].n == n), key=lambda run: run[0].size))
        assert all(getattr(score, c) >= least - 1e-9 for c, least in score.least(exercise).items() if c != "memory"), n
    shown, score = repr(verdict), verdict.score
    assert (score.n, score.size) == (n, max(case.size for case in exercise.inputs(n)))
    least = score.least(exercise)
    assert least
    for cost, value in least.items():
        mine = getattr(score, cost)
        assert mine >= value - 1e-9, (n, cost)
        assert f": {round(mine):,} (least possible: {round(value):,})" in shown
        assert f">{round(value):,}</td>" in verdict._repr_html_()
    assert invited(verdict) == {cost for name, cost, _ in CHEAPEST if name == exercise.name}


CHEAPEST = [
    (
        "average_gradients",
        "rounds",
        """
def average_gradients(model):
    grads = [p.grad for p in model.parameters()]
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat)
    for grad, mean in zip(grads, flat.split([grad.numel() for grad in grads])):
        grad.copy_(mean.view_as(grad) / world_size)
""",
    ),
    (
        "prefix_sum",
        "memory",
        """
def prefix_sum(x):
    total, before, distance = x.clone(), torch.empty_like(x), 1
    while distance < world_size:
        works = []
        if rank + distance < world_size:
            works.append(dist.isend(total, dst=rank + distance))
        if rank >= distance:
            works.append(dist.irecv(before, src=rank - distance))
        for work in works:
            work.wait()
        if rank >= distance:
            total += before
        distance *= 2
    return total
""",
    ),
    (
        "broadcast_model",
        "rounds",
        """
def broadcast_model(model):
    tensors = [tensor.detach() for tensor in (*model.parameters(), *model.buffers())]
    flat = torch.cat([tensor.reshape(-1).view(torch.uint8) for tensor in tensors])
    dist.broadcast(flat, src=0)
    for tensor, part in zip(tensors, flat.split([tensor.nbytes for tensor in tensors])):
        tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))
""",
    ),
    (
        "tree_scatter",
        "memory",
        """
def tree_scatter(x):
    rows, first, low, high = x, 0, 0, world_size
    while high - low > 1:
        middle = (low + high + 1) // 2
        if rank == low:
            dist.send(rows[middle - first : high - first], dst=middle)
        elif rank == middle:
            rows, first = x.new_empty(high - middle, *x.shape[1:]), middle
            dist.recv(rows, src=low)
        low, high = (low, middle) if rank < middle else (middle, high)
    return rows[rank - first]
""",
    ),
    *(
        (
            "scatter_uneven",
            cost,
            """
def scatter_uneven(x):
    length = torch.tensor([len(x)])
    dist.broadcast(length, src=0)
    short, longer = divmod(length.item(), world_size)
    sizes = [short + (r < longer) for r in range(world_size)]
    mine, none = x.new_empty(sizes[rank]), [0] * world_size
    dist.all_to_all_single(mine, x, [sizes[rank]] + none[1:], none if rank else sizes)
    return mine
""",
        )
        for cost in ("sent", "memory")
    ),
    (
        "broadcast_from_scatter_all_gather",
        "memory",
        """
def broadcast_from_scatter_all_gather(x):
    size = -(-len(x) // world_size)
    result = x.new_empty(size * world_size)
    rooms, parts = result.view(world_size, size), None
    if rank == 0 and len(x) == len(result):
        parts = list(x.view(world_size, size))
    elif rank == 0:
        parts = list(torch.cat([x, x.new_zeros(len(result) - len(x))]).view(world_size, size))
    dist.scatter(rooms[rank], parts, src=0)
    dist.all_gather(list(rooms), rooms[rank])
    return result[: len(x)]
""",
    ),
    (
        "sharded_step",
        "memory",
        """
def sharded_step(weights, gradient, lr):
    new = torch.empty_like(weights)
    parts, old = list(new.chunk(world_size)), weights.chunk(world_size)
    dist.reduce_scatter(parts[rank], list(gradient.chunk(world_size)))
    parts[rank].mul_(-lr / world_size).add_(old[rank])
    dist.all_gather(parts, parts[rank])
    return new
""",
    ),
    (
        "lean_reduce_scatter",
        "memory",
        """
def lean_reduce_scatter(x):
    chunks = list(x.view(world_size, len(x) // world_size))
    got = [chunk if r == rank else torch.empty_like(chunk) for r, chunk in enumerate(chunks)]
    dist.all_to_all(got, chunks)
    total = got.pop(rank - 1)
    for part in got:
        total += part
    return total
""",
    ),
    (
        "late_or_slow",
        "rounds",
        """
def late_or_slow(began, ended):
    mine = torch.stack([began, ended])
    everyone = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(everyone, mine)
    begins, ends = torch.stack(everyone, 1)
    last = begins.argmax(0).bincount(minlength=world_size).argmax()
    return [last.item(), (ends.amax(0) - begins.amax(0)).quantile(0.5).item()]
""",
    ),
    (
        "ring_reduce_scatter",
        "memory",
        """
def ring_reduce_scatter(x):
    chunks = x.tensor_split(world_size)
    out = chunks[rank - 1]
    for step in range(1, world_size):
        into = chunks[(rank - step - 1) % world_size]
        room = torch.empty_like(into)
        works = [dist.isend(out, dst=(rank + 1) % world_size), dist.irecv(room, src=(rank - 1) % world_size)]
        while works:
            works.pop().wait()
        room += into
        out = room
    return out
""",
    ),
    (
        "ring_all_reduce",
        "memory",
        """
def ring_all_reduce(x):
    total = torch.empty_like(x)
    mine, sums = x.tensor_split(world_size), total.tensor_split(world_size)
    for step in range(2 * (world_size - 1)):
        out, into = (rank - step) % world_size, (rank - step - 1) % world_size
        works = [
            dist.isend(sums[out] if step else mine[out], dst=(rank + 1) % world_size),
            dist.irecv(sums[into], src=(rank - 1) % world_size),
        ]
        for work in works:
            work.wait()
        if step < world_size - 1:
            sums[into].add_(mine[into])
    return total
""",
    ),
    (
        "halving_doubling",
        "memory",
        """
def halving_doubling(x):
    def exchange(out, room, partner):
        for work in [dist.isend(out, dst=partner), dist.irecv(room, src=partner)]:
            work.wait()

    total, distance, places = torch.empty_like(x), world_size // 2, []
    low, high = 0, len(x)
    while distance:
        partner, middle = rank ^ distance, low + -(-(high - low) // 2)
        places.append((partner, low, middle, high))
        keep, give = [(low, middle), (middle, high)][:: 1 if rank < partner else -1]
        if len(places) == 1:
            exchange(x[slice(*give)], total[slice(*keep)], partner)
            total[slice(*keep)] += x[slice(*keep)]
        else:  # the half that went first is still empty
            first = places[0]
            free = total[first[2] :] if rank < first[0] else total[: first[2]]
            size = keep[1] - keep[0]
            room = free[:size] if size <= len(free) else torch.empty_like(total[slice(*keep)])
            exchange(total[slice(*give)], room, partner)
            total[slice(*keep)] += room
        (low, high), distance = keep, distance // 2
    for partner, low, middle, high in reversed(places):
        have, want = [(low, middle), (middle, high)][:: 1 if rank < partner else -1]
        exchange(total[slice(*have)], total[slice(*want)], partner)
    return total
""",
    ),
    (
        "tree_all_reduce",
        "memory",
        """
def tree_all_reduce(x):
    total, room = x.clone(), torch.empty_like(x)
    distances = [2**k for k in range((world_size - 1).bit_length())]
    for distance in reversed(distances):
        if distance <= rank < 2 * distance:
            dist.send(total, dst=rank - distance)
        elif rank + distance < min(world_size, 2 * distance):
            dist.recv(room, src=rank + distance)
            total += room
    for distance in distances:
        if distance <= rank < 2 * distance:
            dist.recv(total, src=rank - distance)
        elif rank + distance < min(world_size, 2 * distance):
            dist.send(total, dst=rank + distance)
    return total
""",
    ),
    (
        "leftward_ring",
        "memory",
        """
def leftward_ring(x):
    chunks = x.tensor_split(world_size)
    out = chunks[(rank + 1) % world_size]
    for step in range(1, world_size):
        into = chunks[(rank + step + 1) % world_size]
        room = torch.empty_like(into)
        works = [dist.isend(out, dst=(rank - 1) % world_size), dist.irecv(room, src=(rank + 1) % world_size)]
        while works:
            works.pop().wait()
        room += into
        out = room
    return out
""",
    ),
    (
        "fold_in",
        "memory",
        """
def fold_in(x):
    def exchange(out, room, partner):
        for work in [dist.isend(out, dst=partner), dist.irecv(room, src=partner)]:
            work.wait()

    power = 2 ** (world_size.bit_length() - 1)
    total, distance, places = torch.empty_like(x), power // 2, []
    if rank >= power:
        dist.send(x, dst=rank - power)
        dist.recv(total, src=rank - power)
        return total
    if rank + power < world_size:
        dist.recv(total, src=rank + power)
        x = x + total
    low, high = 0, len(x)
    while distance:
        partner, middle = rank ^ distance, low + -(-(high - low) // 2)
        places.append((partner, low, middle, high))
        keep, give = [(low, middle), (middle, high)][:: 1 if rank < partner else -1]
        if len(places) == 1:
            exchange(x[slice(*give)], total[slice(*keep)], partner)
            total[slice(*keep)] += x[slice(*keep)]
        else:  # the half that went first is still empty
            first = places[0]
            free = total[first[2] :] if rank < first[0] else total[: first[2]]
            size = keep[1] - keep[0]
            room = free[:size] if size <= len(free) else torch.empty_like(total[slice(*keep)])
            exchange(total[slice(*give)], room, partner)
            total[slice(*keep)] += room
        (low, high), distance = keep, distance // 2
    for partner, low, middle, high in reversed(places):
        have, want = [(low, middle), (middle, high)][:: 1 if rank < partner else -1]
        exchange(total[slice(*have)], total[slice(*want)], partner)
    if rank + power < world_size:
        dist.send(total, dst=rank + power)
    return total
""",
    ),
    (
        "two_way_ring",
        "memory",
        """
def two_way_ring(x):
    total = torch.empty_like(x)
    cut = [[half.tensor_split(world_size) for half in whole.tensor_split(2)] for whole in (x, total)]
    ways = [*zip(*cut, (1, -1))]
    for step in range(2 * (world_size - 1)):
        works = []
        for mine, sums, way in ways:
            out, into = (rank - way * step) % world_size, (rank - way * (step + 1)) % world_size
            works.append(dist.isend(sums[out] if step else mine[out], dst=(rank + way) % world_size))
            works.append(dist.irecv(sums[into], src=(rank - way) % world_size))
        for work in works:
            work.wait()
        for mine, sums, way in ways if step < world_size - 1 else ():
            into = (rank - way * (step + 1)) % world_size
            sums[into].add_(mine[into])
    return total
""",
    ),
    (
        "distributed_argmax",
        "rounds",
        """
def distributed_argmax(x):
    mine = torch.zeros(2, dtype=torch.float64)
    mine[1] = -1
    if len(x):
        best = x.max()
        mine[:1] = best.double() if x.is_floating_point() else best.reshape(1).view(torch.float64)
        mine[1] = (x == best).nonzero()[0, 0]
    offers = [torch.zeros_like(mine) for _ in range(world_size)]
    dist.all_gather(offers, mine)
    values = [o[0].item() if x.is_floating_point() else o[:1].view(torch.int64).item() for o in offers]
    places = [int(o[1]) for o in offers]
    r = max((r for r in range(world_size) if places[r] >= 0), key=lambda r: (values[r], -r))
    return values[r], r, places[r]
""",
    ),
    (
        "distributed_softmax",
        "rounds",
        """
def distributed_softmax(x):
    top = x.max().item() if len(x) else -torch.inf
    mine = torch.tensor([top, (x - top).exp().sum() if top > -torch.inf else 0.0], dtype=torch.float64)
    offers = [torch.zeros_like(mine) for _ in range(world_size)]
    dist.all_gather(offers, mine)
    tops, sums = torch.stack(offers).T
    return ((x - tops.max()).exp() / (sums * (tops - tops.max()).exp()).sum()).to(x.dtype)
""",
    ),
    (
        "sync_batch_norm",
        "rounds",
        """
class OneReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        wide = x.double()
        total = torch.cat([wide.sum(0), (wide**2).sum(0), wide.new_tensor([len(x)])])
        dist.all_reduce(total)
        ctx.count, columns = total[-1].to(x.dtype), x.shape[1]
        mean = total[:columns] / total[-1]
        ctx.scale = (total[columns:-1] / total[-1] - mean**2 + 1e-5).rsqrt().to(x.dtype)
        y = ((wide - mean) * ctx.scale).to(x.dtype)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        means = torch.stack([dy.sum(0), (dy * y).sum(0)]) / ctx.count
        dist.all_reduce(means)
        return (dy - means[0] - y * means[1]) * ctx.scale


def sync_batch_norm(x, weight, bias):
    return OneReduce.apply(x) * weight + bias
""",
    ),
    (
        "vocab_cross_entropy",
        "rounds",
        """
class OneGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target):
        width = logits.shape[1]
        place = target - sum(comms.all_gather(width)[:rank])
        hits = place[:, None] == torch.arange(width)
        top = logits.max(1).values
        mine = torch.stack([top, (logits - top[:, None]).exp().sum(1), (logits * hits).sum(1)])
        parts = [torch.empty_like(mine) for _ in range(world_size)]
        dist.all_gather(parts, mine)
        tops, sums, hit = torch.stack(parts, 1)
        top = tops.max(0).values
        logs = top + (sums * (tops - top).exp()).sum(0).log()
        kept = target != -100
        ctx.save_for_backward(((logits - logs[:, None]).exp() - hits.to(logits)) * kept[:, None] / kept.sum())
        return (logs - hit.sum(0))[kept].mean()

    @staticmethod
    def backward(ctx, d_loss):
        return ctx.saved_tensors[0] * d_loss, None


def vocab_cross_entropy(logits, target):
    return OneGather.apply(logits, target)
""",
    ),
    (
        "ordered_sum",
        "memory",
        """
def ordered_sum(x):
    if len(x) % world_size:
        return uneven(x)
    total = torch.empty_like(x)
    parts = total.view(world_size, len(x) // world_size)
    dist.all_to_all_single(total, x)
    for part in parts[1:]:
        parts[0] += part
    parts[rank].copy_(parts[0])
    dist.all_gather(list(parts), parts[rank])
    return total


def uneven(x):
"""
        + exercises.find("ordered_sum").code.partition('on every rank."""\n')[2],
    ),
    (
        "sequence_mlp",
        "rounds",
        """
def sequence_mlp(x, norm, widen, narrow, gather, scatter, f):
    weight, shift, bias = f(torch.stack([*norm, narrow[1]]))  # one all-reduce for all three
    y = torch.nn.functional.layer_norm(x, x.shape[-1:], weight, shift)
    hidden = torch.nn.functional.gelu(torch.nn.functional.linear(gather(y), *widen))
    return x + scatter(torch.nn.functional.linear(hidden, narrow[0])) + bias
""",
    ),
    (
        "mixture_gradients",
        "rounds",
        """
def mixture_gradients(shared, experts):
    flat = torch.cat([p.grad.flatten() for p in shared])
    dist.all_reduce(flat)
    for p, total in zip(shared, flat.split([p.numel() for p in shared])):
        p.grad.copy_(total.view_as(p) / world_size)
    for p in experts:
        if p.grad is not None:
            p.grad /= world_size
""",
    ),
    (
        "load_for_all",
        "rounds",
        """
def load_for_all(model, path):
    if rank == 0:
        model.load_state_dict(torch.load(path, map_location=device, weights_only=True))
    tensors = [t.detach() for t in (*model.parameters(), *model.buffers())]
    raw = torch.cat([t.contiguous().flatten().view(torch.uint8) for t in tensors])
    dist.broadcast(raw, src=0)
    for t, part in zip(tensors, raw.split([t.nbytes for t in tensors])):
        t.copy_(part.clone().view(t.dtype).view_as(t))
""",
    ),
    (
        "load_for_all",
        "sent",
        """
def load_for_all(model, path):
    if rank == 0:
        model.load_state_dict(torch.load(path, map_location=device, weights_only=True))
    for tensor in [*model.parameters(), *model.buffers()]:
        if rank > 0:
            dist.recv(tensor.detach(), src=rank - 1)
        if rank + 1 < world_size:
            dist.send(tensor.detach(), dst=rank + 1)
""",
    ),
    (
        "one_shot",
        "moved",
        """
import triton
import triton.language as tl
from workbook.tools.rank.kernels import buffer, flag, meet


@triton.jit
def one_shot(x, out, buffers, flags, size, rank, world_size, ACC: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    mine = tl.load(x + at, mask=mask)
    tl.store(buffer(buffers, rank, x) + at, mine, mask=mask)
    meet(flags, rank, world_size)
    total = tl.zeros([BLOCK], ACC)
    for other in range(world_size):
        if other == rank:
            total += mine.to(ACC)
        else:
            total += tl.load(buffer(buffers, other, x) + at, mask=mask).to(ACC)
    tl.store(out + at, total, mask=mask)
    meet(flags, rank, world_size)
""",
    ),
    (
        "two_shot",
        "moved",
        """
import triton
import triton.language as tl
from workbook.tools.rank.kernels import buffer, flag, meet


@triton.jit
def two_shot(x, out, buffers, flags, size, rank, world_size, ACC: tl.constexpr, BLOCK: tl.constexpr):
    chunk = tl.cdiv(size, world_size)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    own = rank * chunk + at
    here = (at < chunk) & (own < size)
    mine = tl.load(x + own, mask=here)
    for c in range(world_size):
        place = c * chunk + at
        mask = (at < chunk) & (place < size) & (c != rank)
        tl.store(buffer(buffers, rank, x) + place, tl.load(x + place, mask=mask), mask=mask)
    meet(flags, rank, world_size)
    total = tl.zeros([BLOCK], ACC)
    for other in range(world_size):
        if other == rank:
            total += mine.to(ACC)
        else:
            total += tl.load(buffer(buffers, other, x) + own, mask=here).to(ACC)
    tl.store(buffer(buffers, rank, x) + own, total, mask=here)
    tl.store(out + own, total, mask=here)
    meet(flags, rank, world_size)
    for c in range(world_size):
        place = c * chunk + at
        mask = (at < chunk) & (place < size) & (c != rank)
        tl.store(out + place, tl.load(buffer(buffers, c, x) + place, mask=mask), mask=mask)
    meet(flags, rank, world_size)
""",
    ),
    (
        "gather_by_puts",
        "moved",
        """
import triton
import triton.language as tl
from workbook.tools.rank.kernels import buffer, flag, meet


@triton.jit
def gather_by_puts(x, out, buffers, flags, size, rank, world_size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mine = tl.load(x + at, mask=at < size)
    tl.store(out + rank * size + at, mine, mask=at < size)
    for other in range(world_size):
        tl.store(buffer(buffers, other, x) + rank * size + at, mine, mask=(at < size) & (other != rank))
    meet(flags, rank, world_size)
    for other in range(world_size):
        mask = (at < size) & (other != rank)
        place = other * size + at
        tl.store(out + place, tl.load(buffer(buffers, rank, x) + place, mask=mask), mask=mask)
    meet(flags, rank, world_size)
""",
    ),
    (
        "sum_and_norm",
        "moved",
        """
import triton
import triton.language as tl
from workbook.tools.rank.kernels import buffer, flag, meet


@triton.jit
def sum_and_norm(x, weight, out, buffers, flags, width, rank, world_size, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    mask = at < width
    row = tl.program_id(0) * width + at
    total = tl.load(x + row, mask=mask, other=0.0)
    tl.store(buffer(buffers, rank, x) + row, total, mask=mask)
    meet(flags, rank, world_size)
    for step in range(1, world_size):
        total += tl.load(buffer(buffers, (rank + step) % world_size, x) + row, mask=mask, other=0.0)
    mean = tl.sum(total * total) / width
    tl.store(out + row, total * tl.load(weight + at, mask=mask) / tl.sqrt(mean + 1e-6), mask=mask)
    meet(flags, rank, world_size)
""",
    ),
]
