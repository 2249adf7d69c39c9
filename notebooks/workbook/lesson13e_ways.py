"""Exercises of lesson 13e, further on: heads in exchange for positions, and the gradient's way round the ring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Budget, Case, Least, exercise
from labkit.grading.promises import Calls, OnlyTo
from workbook.lesson13_layers import shares
from workbook.lesson13e import attended, block, block_of, even, known, scores_of, thirds

if TYPE_CHECKING:
    from labkit.rank.cell_names import dist, rank, torch, world_size


def run_swap_heads(swap_heads, q, k, v):
    """Give an `attend` that sees whether it gets all positions of some heads, and collect this rank's rows."""
    heads, length, size = q.shape
    calls = []

    def attend(q, k, v):
        calls.append(1)
        want = (heads // world_size, length * world_size, size)
        for name, t in (("q", q), ("k", k), ("v", v)):
            assert tuple(t.shape) == want, f"`attend` got {name} of shape {tuple(t.shape)}, and it should be {want}."
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    out = swap_heads(q, k, v, attend)
    assert calls == [1], f"`attend` was called {len(calls)} times, and once is enough."
    return out


@exercise(
    "Heads in exchange for positions",
    attended,
    minutes=12,
    difficulty=2,
    inputs=lambda n: [
        Case(thirds(n, n, 1, 2, 6), "a head and a position for each rank"),
        Case(thirds(n, n, 3, 2, 7), "one head per rank, three positions"),
        Case(thirds(n, 2 * n, 2, 3, 8), "two heads per rank"),
    ],
    tolerance=1e-9,
    promises=(Calls(2),),
    picture=lambda: even(np.array([[[[10 * (r + 1)]], [[r + 1]], [[0]]] for r in range(3)]), *"qkv"),
    least=Least(sent=lambda n, S: (n - 1) / n * S * 4 / 3, rounds=lambda n: 2),
    counts_memory=False,
    harness=run_swap_heads,
)
def swap_heads(q, k, v, attend):
    """Return causal attention for this rank's positions and all heads.

    `q`, `k` and `v`, [heads, positions, size], belong to this rank's positions and **all** heads, and `world_size`
    divides the number of heads. `attend(q, k, v)` is causal attention for some heads and **all** positions. Exchange,
    so that each rank has all positions of its share of the heads (the first heads for rank 0), call `attend` once, and
    exchange back. Return a tensor like `q`: this rank's positions, all heads. **Two** all-to-alls are enough.

    In the picture, three heads have different values, and all queries and keys are 0.
    Hint: For the all-to-all the first dimension must be the rank that gets it: heads 0 to heads / world_size − 1 go to
    rank 0. `view(3, world_size, -1, length, size)` names that dimension, `transpose` brings it to the front.
    Hint: What comes has the rank that sent it first, and its positions belong one after the other: bring that dimension
    next to the positions before you join the two.
    Hint: On the way back the positions are cut by rank: `mine.view(-1, world_size, length, size).transpose(0, 1)`. What
    comes then is sorted by heads already. Use `contiguous()` before each exchange.
    Afterwards: This is DeepSpeed-Ulysses. Attention itself needs no change, so any kernel serves. But a rank needs a
    head of its own: there cannot be more ranks than heads, or than key and value heads where these are fewer.
    """
    heads, length, size = q.shape
    give = torch.stack([q, k, v]).view(3, world_size, -1, length, size).transpose(0, 1).contiguous()
    got = torch.empty_like(give)
    dist.all_to_all_single(got, give)
    mine = attend(*got.permute(1, 2, 0, 3, 4).reshape(3, -1, world_size * length, size))
    give = mine.view(-1, world_size, length, size).transpose(0, 1).contiguous()
    out = torch.empty_like(give)
    dist.all_to_all_single(out, give)
    return out.view(heads, length, size)


def _slopes(xs: Sequence[Any]) -> list[Any]:
    _, length, size = xs[0][0].shape
    k, v = np.concatenate([kv for _, kv, _ in xs], axis=2)
    dkv, dqs = np.zeros((2, *k.shape)), []
    for r, (q, _, slope) in enumerate(xs):
        p, dp = shares(q, k, r * length), slope @ v.swapaxes(1, 2)
        ds = p * (dp - (dp * p).sum(-1, keepdims=True)) / np.sqrt(size)
        dqs.append(ds @ k)
        dkv += ds.swapaxes(1, 2) @ q, p.swapaxes(1, 2) @ slope
    return [{"dq": dq, "dkv": part} for dq, part in zip(dqs, np.split(dkv, len(xs), axis=2), strict=True)]


def _sloped(n: int) -> list[Case]:
    rng = np.random.default_rng([134, 9, n])

    def drawn(heads: int, length: int, size: int, about: str) -> Case:
        shape = (heads, length, size)
        return Case([(rng.normal(size=shape), block(r, (2, *shape)), rng.normal(size=shape)) for r in range(n)], about)

    return [
        drawn(1, 1, 2, "one head, one position per rank"),
        drawn(1, 2, 2, "one head, two positions per rank"),
        drawn(2, 5, 3, "two heads, five positions per rank"),
    ]


def run_ring_backward(ring_backward, q, kv, slope):
    """Give a `fold_back` that knows all ranks' blocks, and collect the two gradients."""
    seen = []
    blocks = [block_of(r, kv.shape) for r in range(world_size)]
    scores = torch.cat([scores_of(q, k, r) for r, (k, _) in enumerate(blocks)], -1)
    logs = scores.logsumexp(-1, keepdim=True)
    out = (scores - logs).exp() @ torch.cat([v for _, v in blocks], 1)
    delta = (slope * out).sum(-1, keepdim=True)

    def fold_back(q, kv, theirs):
        known(kv, theirs, "fold_back", seen)
        k, v = kv
        p = (scores_of(q, k, theirs) - logs).exp()
        ds = p * (slope @ v.mT - delta) / q.shape[-1] ** 0.5
        return ds @ k, torch.stack([ds.mT @ q, p.mT @ slope])

    found = ring_backward(q, kv, fold_back)
    assert isinstance(found, (tuple, list)) and len(found) == 2, "Return two tensors, dq and dkv."
    missing = sorted(set(range(world_size)) - set(seen))
    assert not missing, f"The block of rank {missing[0]} has not been folded back."
    return {"dq": found[0], "dkv": found[1]}


@exercise(
    "The gradient's way round the ring",
    _slopes,
    minutes=25,
    difficulty=3,
    inputs=_sloped,
    tolerance=1e-9,
    picture=lambda: [(q, np.stack([k, v]), 6 * v / v) for q, k, v in even(np.arange(1, 4).reshape(3, 1, 1, 1), *"qkv")],
    forbids=("collectives",),
    promises=(OnlyTo(+1),),
    budget=Budget(sent=lambda n, S: (2 * n - 1) * S / 2),
    least=Least(sent=lambda n, S: (2 * n - 1) * S / 2, rounds=lambda n: n),
    counts_memory=False,
    scales=False,
    harness=run_ring_backward,
)
def ring_backward(q, kv, fold_back):
    """Return the gradients of this rank's queries and of its own block.

    The backward pass of ring attention. `fold_back(q, kv, theirs)` takes the block of rank `theirs` once more and
    returns `(dq, dkv)`: what **this rank's** queries contribute to the gradient of `q`, and to that of the block.
    Return `(dq, dkv)`: the whole gradient of this rank's `q`, and the whole gradient of **this rank's own** block `kv`,
    to which all ranks' queries contribute.

    The blocks travel as before, from each rank to the next, and a block's gradient **travels with it**: every rank adds
    its part. A block has made N − 1 steps when everyone has seen it; its gradient has to come home, which takes one
    more. Send no block on this last step, and no collective at all.

    In the picture, all queries and keys are 0, so a query's gradient is shared evenly by the positions that it sees.
    Hint: Two tensors travel together: a block, and the gradient that has been collected for it. Add this rank's part
    first, then pass both on.
    Hint: `torch.stack([carried, kv])` is one message for both. After N steps a gradient is back on the rank whose block
    it belongs to.
    Hint: In the last step no rank needs a block any more: send `carried` alone. What arrives then is the gradient of
    this rank's own block.
    Afterwards: The backward pass sends about twice as much as the forward pass. Its scores are computed anew from `q`,
    the block and one number per query, the logarithm of its `total` plus its `top`: if they were kept, they would take
    more memory than everything else.
    """
    after, before = (rank + 1) % world_size, (rank - 1) % world_size
    dq, carried = torch.zeros_like(q), torch.zeros_like(kv)
    for step in range(world_size):
        mine, more = fold_back(q, kv, (rank - step) % world_size)
        dq, carried = dq + mine, carried + more
        parcel = torch.stack([carried, kv]) if step < world_size - 1 else carried[None]
        room = torch.empty_like(parcel)
        exchange = [dist.P2POp(dist.isend, parcel, after), dist.P2POp(dist.irecv, room, before)]
        for work in dist.batch_isend_irecv(exchange):
            work.wait()
        carried, kv = room[0], room[-1]
    return dq, carried
