"""Exercises of lesson 13e: attention over a sequence that is cut over the ranks, gathered and round a ring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, Least, exercise
from labkit.grading.prediction import ask
from labkit.grading.promises import Calls, Messages, OnlyTo
from labkit.theory.log import Op
from labkit.theory.record import Record
from workbook.lesson13_layers import shares
from workbook.lesson13d import name_mistakes

if TYPE_CHECKING:
    from labkit.rank.cell_names import comms, device, dist, rank, span, torch, world_size


def attended(xs: Sequence[Any]) -> list[np.ndarray]:
    """Compute each rank's part of full attention; each brings queries, keys and values of its positions."""
    k, v = (np.concatenate([x[i] for x in xs], axis=1) for i in (1, 2))
    return [shares(q, k, r * q.shape[1]) @ v for r, (q, _, _) in enumerate(xs)]


def thirds(n: int, heads: int, length: int, size: int, seed: int) -> list[Any]:
    """Draw queries, keys and values for every rank, [heads, length, size] each."""
    rng = np.random.default_rng([134, seed, n])
    return [tuple(rng.normal(size=(heads, length, size)) for _ in range(3)) for _ in range(n)]


def even(values: np.ndarray, *names: str) -> list[Any]:
    """Make inputs to draw on a card: `values[r]`, [heads, positions, 1], on rank r; queries and keys are 0."""
    return [tuple(v.astype(float) if name == "v" else 0.0 * v for name in names) for v in values]


def broken_attend_gathered(q, k, v):
    k, v = (torch.cat(comms.all_gather(t), dim=1) for t in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


@exercise(
    "Attend to what all ranks have read",
    attended,
    minutes=8,
    difficulty=2,
    inputs=lambda n: [
        Case(thirds(n, 1, 2, 2, 1), "one head, two positions per rank"),
        Case(thirds(n, 1, 1, 2, 2), "one position per rank"),
        Case(thirds(n, 3, 5, 4, 3), "three heads, five positions per rank"),
    ],
    gradients=True,
    tolerance=1e-6,
    counts_memory=False,
    picture=lambda: even(10 * np.arange(1, 7).reshape(3, 1, 2, 1), *"qkv"),
)
def attend_gathered(q, k, v):
    """Return what this rank's queries see of all positions up to their own.

    The sequence is cut into parts of equal length, the first for rank 0. `q`, `k` and `v`, [heads, positions, size],
    are the queries, keys and values of **this rank's** positions. Return its part of causal attention over the whole
    sequence: each position sees itself and all positions before it, also those on other ranks. Gradients have to flow
    back to everyone's `k` and `v`; with `comms.all_gather` they do.

    The function below runs, and on one rank its result is right. Run the check first: on which one, and why? In the
    picture, all queries and keys are 0, so a position gets the mean of the values that it sees.
    Hint: `is_causal=True` compares the number of a query with the number of a key. Which number does this rank's first
    query get, and which one should it get?
    Hint: Position i of rank r is position `r * length + i` of the sequence. Make a mask, [queries, keys], that is true
    where the query may see the key.
    Hint: `attn_mask=there <= here[:, None]`, with `here` the positions of the queries and `there` those of all keys.
    Afterwards: With more keys than queries, `is_causal=True` aligns both at position 0. So only rank 0 was right, and
    every other rank saw rank 0's positions alone: plausible numbers, and no error.
    """
    k, v = (torch.cat(comms.all_gather(t), dim=1) for t in (k, v))
    length = q.shape[1]
    here = rank * length + torch.arange(length, device=q.device)
    there = torch.arange(k.shape[1], device=q.device)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=there <= here[:, None])


def _merged(xs: Sequence[Any]) -> list[Any]:
    found = []
    for out, top, total, scores, v in xs:
        new = np.maximum(top, scores.max(-1))
        safe = np.where(np.isinf(new), 0.0, new)
        old, powers = np.exp(top - safe), np.exp(scores - safe[..., None])
        found.append([out * old[..., None] + powers @ v, new, total * old + powers.sum(-1)])
    return found


def _states(n: int) -> list[Case]:
    rng = np.random.default_rng([134, 4, n])

    def drawn(queries: int, keys: int, level: float = 0.0) -> list[Any]:
        xs = []
        for _ in range(n):
            before = rng.normal(size=(1, queries, 3))
            top = before.max(-1)
            powers = np.exp(before - top[..., None])
            out, scores = powers @ rng.normal(size=(1, 3, 2)), rng.normal(size=(1, queries, keys)) + level
            xs.append((out, top, powers.sum(-1), scores, rng.normal(size=(1, keys, 2))))
        return xs

    def start(x: Any, hidden: int = 0) -> Any:
        out, top, total, scores, v = x
        scores = scores.copy()
        scores[:, :hidden] = -np.inf
        return np.zeros_like(out), np.full_like(top, -np.inf), np.zeros_like(total), scores, v

    return [
        Case(drawn(2, 2), "two queries, two keys"),
        Case([start(x) for x in drawn(2, 3)], "the first piece: nothing has been seen yet"),
        Case(drawn(2, 3, 50.0), "the new scores are much larger"),
        Case(drawn(2, 3, -50.0), "the new scores are much smaller"),
        Case([(*x[:3], np.full_like(x[3], -np.inf), x[4]) for x in drawn(2, 2)], "the new piece is masked everywhere"),
        Case([start(x, 1) for x in drawn(3, 2)], "the first piece, which one query must not see at all"),
        Case(drawn(2, 3, 800.0), "scores near 800"),
        Case(drawn(40, 60), "40 queries, 60 keys"),
    ]


def run_merge_pieces(fn, out, top, total, scores, v):
    """Merge a piece, and say which part of the state is wrong where a usual mistake gives it."""
    right = _, new, _ = merge_pieces(out, top, total, scores, v)
    powers = (scores - new.masked_fill(new == -torch.inf, 0)[..., None]).exp()
    stale, alone = (out + powers @ v, new, total + powers.sum(-1)), scores.amax(-1)
    found = fn(out, top, total, scores, v)
    if not isinstance(found, (tuple, list)) or [getattr(t, "shape", None) for t in found] != [t.shape for t in right]:
        return found
    for name, got, want, other in zip(("out", "top", "total"), found, right, stale):
        says = f"`{name}` has the new piece in it, and what was there before is still relative to the old `top`."
        name_mistakes(got, want, {says: other})
    says = "`top` is the largest score of the new piece, and not the largest so far."
    name_mistakes(found[1], new, {says: alone})
    says = "`out` is divided by `total` already: the next piece cannot be added to that. Leave both sums as they are."
    name_mistakes(found[0], right[0], {says: right[0] / right[2][..., None]})
    return found


@exercise(
    "One more piece of a softmax",
    _merged,
    minutes=8,
    difficulty=2,
    inputs=_states,
    tolerance=1e-9,
    promises=(Calls(0),),
    picture=lambda: [
        (*map(np.array, ([[[6.0]]], [[0.0]], [[float(k)]], [[[0.0, 0.0]]], [[[10.0], [20.0 + r]]])),)
        for r, k in enumerate((3, 2, 1))
    ],
    harness=run_merge_pieces,
)
def merge_pieces(out, top, total, scores, v):
    """Return out, top and total with one more piece of keys.

    A query has seen some keys, and more come. What it keeps: `top`, its largest score so far; `total`, the sum of
    exp(score − `top`); and `out`, the sum of exp(score − `top`) · value. Nothing is divided yet. At the beginning `top`
    is −inf and the others are 0.

    Now come the `scores`, [heads, queries, keys], of more keys, and their values `v`, [heads, keys, size]. A score is
    −inf where the query must not see the key, and a query may see none of them. Return the new `out`, `top` and
    `total`, as if all keys had come at once. Scores may be about 1,000, and no result may be nan. Communicate nothing.
    In the picture, all scores are 0, so each power is 1.
    Hint: It is the softmax of lesson 08, with what came before in place of another rank. Both sums are relative to a
    maximum. What do you multiply them by when the maximum grows?
    Hint: exp(score − top) · exp(top − new) = exp(score − new). So what was there is multiplied by exp(top − new).
    Hint: −inf − (−inf) is nan. Where nothing has been seen at all, `new` is −inf: subtract 0 instead, and exp(−inf)
    makes the zeros that you want. `masked_fill` does it.
    Afterwards: Softmax looks as if it needed all scores at once. It needs three things per query, however long the
    sequence is, and pieces may come in any order. FlashAttention merges pieces within a GPU in this way; a ring merges
    pieces that come from other ranks.
    """
    new = torch.maximum(top, scores.amax(-1))
    shift = new.masked_fill(new == -torch.inf, 0)
    old = (top - shift).exp()
    powers = (scores - shift[..., None]).exp()
    return out * old[..., None] + powers @ v, new, total * old + powers.sum(-1)


class WhileFolding:
    """While a rank folds a block, the next one is on its way: its receive was begun before, and is awaited after."""

    def broken(self, record: Record) -> str:
        """ "Rank 0 folds a block, and nothing is on its way meanwhile." """
        for r, spans in enumerate(record.spans):
            folds = [span for span in spans if span.name == "fold" and span.left is not None]
            receives = [op for op in record.ops[r] if op.kind == "recv"]
            for fold in folds[:-1]:
                until = fold.left or 0.0
                if not any(op.entered <= fold.entered and _awaited(op) >= until for op in receives):
                    return (
                        f"Rank {r} folds a block, and no block is on its way meanwhile: start the transfer, then fold."
                    )
        return ""


def _awaited(op: Op) -> float:
    """Return the moment from which on a receive keeps its rank waiting."""
    if not op.asynchronous:
        return op.entered
    return float("inf") if op.waited is None else op.waited[0]


def block(r: int, shape: tuple[int, ...]) -> np.ndarray:
    """Make rank r's keys and values, in one tensor; harnesses know everyone's by it."""
    return np.cos(0.7 * np.arange(int(np.prod(shape))) + 1.9 * r).reshape(shape)


def _blocks(n: int) -> list[Case]:
    rng = np.random.default_rng([134, 5, n])

    def drawn(heads: int, length: int, size: int, about: str) -> Case:
        shape = (heads, length, size)
        return Case([(rng.normal(size=shape), block(r, (2, *shape))) for r in range(n)], about)

    return [
        drawn(1, 2, 2, "one head, two positions per rank"),
        drawn(2, 1, 3, "two heads, one position per rank"),
        drawn(2, 6, 4, "two heads, six positions per rank"),
    ]


def block_of(r, shape):
    """Return the keys and values of a rank, as a tensor."""
    return torch.from_numpy(block(r, tuple(shape))).to(device)


def scores_of(q, k, theirs):
    """Return the scores of this rank's queries for another rank's keys, masked causally."""
    length = q.shape[1]
    here = rank * length + torch.arange(length, device=device)
    there = theirs * length + torch.arange(length, device=device)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return scores.masked_fill(there > here[:, None], -torch.inf)


def known(kv, theirs, said, seen):
    """Raise an AssertionError unless the block is whole, of the rank that is said, and there for the first time."""
    assert isinstance(kv, torch.Tensor), f"`{said}` got a {type(kv).__name__}, and a block is one tensor."
    assert theirs in range(world_size), f"`{said}` was told that a block is rank {theirs}'s, and there is no such rank."
    whose = [r for r in range(world_size) if torch.equal(kv, block_of(r, kv.shape))]
    assert whose, f"`{said}` got what is not a rank's block: was it awaited, and is it whole?"
    assert whose == [theirs], f"`{said}` was told that the block is rank {theirs}'s, and it is rank {whose[0]}'s."
    assert theirs not in seen, f"The block of rank {theirs} came to `{said}` twice."
    seen.append(theirs)


def run_ring_attention(ring_attention, q, kv):
    """Give a `fold` that knows all ranks' blocks, and collect the attention that the state holds."""
    seen = []

    def fold(state, q, kv, theirs):
        with span("fold"):
            known(kv, theirs, "fold", seen)
            k, v = kv
            nothing = torch.zeros_like(q), q.new_full(q.shape[:-1], -torch.inf), q.new_zeros(q.shape[:-1])
            return merge_pieces(*(state or nothing), scores_of(q, k, theirs), v)

    state = ring_attention(q, kv, fold)
    assert isinstance(state, tuple) and len(state) == 3, "It returns no state: return what the last `fold` returned."
    missing = sorted(set(range(world_size)) - set(seen))
    assert not missing, f"The block of rank {missing[0]} has not been folded in."
    return state[0] / state[2][..., None]


@exercise(
    "Attention round a ring",
    lambda xs: attended([(q, *kv) for q, kv in xs]),
    minutes=15,
    difficulty=3,
    inputs=_blocks,
    tolerance=1e-9,
    picture=lambda: [(q, np.stack([k, v])) for q, k, v in even(10 * np.arange(1, 7).reshape(3, 1, 2, 1), *"qkv")],
    forbids=("collectives",),
    promises=(OnlyTo(+1), Messages(lambda n: n - 1), WhileFolding()),
    least=Least(sent=lambda n, S: (n - 1) * S * 2 / 3, rounds=lambda n: n - 1),
    counts_memory=False,
    scales=False,
    harness=run_ring_attention,
)
def ring_attention(q, kv, fold):
    """Return the state of this rank's queries after all ranks' blocks have come by.

    `q`, [heads, positions, size], are this rank's queries, and `kv`, [2, heads, positions, size], its keys and values
    in one tensor: its block. `fold(state, q, kv, theirs)` folds the block of rank `theirs` into what the queries have
    seen, masks what they must not see, and returns the new state; the first one is `None`. Return the state when all
    blocks, your own too, have been folded in once.

    No rank gathers the blocks: they travel round the ring, from each rank to the **next** one, and a rank passes on
    what it got. It sends `world_size - 1` messages and no more. While a block is folded, the next one is already on its
    way: begin to send and to receive, fold, then wait. In the picture, all queries and keys are 0, and the state is
    shown as attention: the mean of the values that a position sees.
    Hint: Blocks move to the next rank. So after one step a rank has the block of the rank before it, and after two that
    of the rank before that one.
    Hint: `dist.batch_isend_irecv` returns at once, with works to wait for: `room = torch.empty_like(kv)`, begin a send
    and a receive, fold `kv`, wait for both, and then `room` is the next `kv`.
    Hint: Whose block is it after `step` steps? Rank `(rank - step) % world_size`'s. In the last step there is something
    to fold and nothing to send.
    Afterwards: No rank ever holds the keys and values of the whole sequence. The computation hides the transfers, as
    long as folding a block takes longer than sending one.
    """
    state = None
    # yours
    after, before = (rank + 1) % world_size, (rank - 1) % world_size
    for step in range(world_size):
        works = []
        if step < world_size - 1:
            room = torch.empty_like(kv)
            exchange = [dist.P2POp(dist.isend, kv, after), dist.P2POp(dist.irecv, room, before)]
            works = dist.batch_isend_irecv(exchange)
        state = fold(state, q, kv, (rank - step) % world_size)
        for work in works:
            work.wait()
        kv = room
    # end
    return state


def _zigzag(xs: Sequence[Any]) -> list[Any]:
    n = len(xs)
    pieces = np.split(np.arange(xs[0]), 2 * n)
    return [np.concatenate([pieces[r], pieces[2 * n - 1 - r]]) for r in range(n)]


def shared_out(mine, length):
    """Return the positions, unless they are not equally many or, in ascending order, not an even share of the work."""
    assert isinstance(mine, torch.Tensor) and not mine.is_floating_point(), "Return a tensor of integers."
    assert len(mine) == length // world_size, (
        f"This rank has {len(mine)} positions, and {length} positions on {world_size} ranks are "
        f"{length // world_size} each."
    )
    pairs, even = int((mine + 1).sum()), length * (length + 1) // 2 // world_size
    ascending = torch.equal(mine, mine.sort().values)
    assert pairs == even or not ascending, f"This rank's queries see {pairs} keys in all, and an even share is {even}."
    return mine


@exercise(
    "Share out the triangle",
    _zigzag,
    minutes=6,
    inputs=lambda n: [Case([2 * n * each] * n, f"{2 * n * each} positions") for each in (1, 2, 5, 64)],
    promises=(Calls(0),),
    collect=shared_out,
)
def zigzag_positions(length):
    """Return this rank's positions: two pieces of the sequence, with an even share of the work.

    A sequence of `length` positions, which 2 · `world_size` divides, is cut into 2 · `world_size` equally long pieces,
    and each rank gets two of them. Rank r gets piece r, counted from 0, and one more. Return its positions in the
    sequence as a tensor of integers, in ascending order.

    Which one more? A query at position i sees i + 1 keys, and all ranks must have **equally many** pairs of a query and
    a key that it sees. Communicate nothing.
    Hint: Piece 0 is the cheapest, and rank 0 has it. Which other piece should it get?
    Hint: The most expensive one. The cheaper a rank's first piece, the more expensive its second.
    Hint: `torch.arange(length).chunk(2 * world_size)` are the pieces, and `pieces[-1 - rank]` is the one that lies as
    far from the end as piece `rank` lies from the beginning.
    Afterwards: The work of both pieces together is exactly the same for every rank. Rank 0 holds the two ends of the
    sequence, and rank N − 1 its middle. Giving each rank every N-th position (striped) is nearly even, too, but then
    each block is half empty; zigzag has whole pieces to compute or to skip.
    """
    pieces = torch.arange(length).chunk(2 * world_size)
    return torch.cat([pieces[rank], pieces[-1 - rank]])


what_needs_the_others = ask(""" Each rank has some positions of the sequence, and all weights. Which parts of a
transformer layer need something from positions on other ranks?
( ) all of them: a layer is one function of the whole sequence
    > Taken together it is. But most of its parts look at one position at a time.
( ) attention and the layer norms
    > That would be true of a batch norm, which takes a mean over positions. A layer norm takes its mean over the
    numbers of one position.
( ) attention and the MLP
    > The MLP has most of the weights, and computes each position by itself.
(x) attention alone
Why: Attention alone. Embeddings, norms, MLP and output compute each position by itself. Without the others' positions
the loss is wrong, and so is the gradient, though no rank notices.
""")

keys_of_the_first_query = ask("""
Rank 2 has the queries of positions 512 to 767, and has gathered the keys and values of all 1,024 positions. It calls
`scaled_dot_product_attention(q, k, v, is_causal=True)`. Which keys does its **first** query see?
(x) key 0 alone
( ) keys 0 to 512
    > That would be right. But the function does not know that these queries begin at 512.
( ) keys 0 to 768: queries and keys are aligned at their ends
    > That is what you want when you generate text with a cache, and PyTorch has `causal_lower_right` for it.
    `is_causal=True` aligns both at the beginning.
( ) none: it raises an error, because there are more keys than queries
    > An error would be helpful, but these shapes are allowed, with this mask, too.
Why: Key 0 alone. The function numbers queries and keys from 0, and its query 0 sees key 0. Rank 2 would look at rank
0's positions and never at its own. All ranks but rank 0 get this wrong, without an error.
""")

block_after_two_steps = ask("""
At the beginning each of four ranks holds its own block. In each step it sends the block that it holds to the next rank
(rank 3 to rank 0) and gets one from the rank before it. Whose block does rank 1 hold after **two** steps?
( ) rank 1's: blocks go there and back
    > That would be true with two ranks.
( ) rank 2's
    > That would be true after three steps: the block before the last one has come all the way round.
(x) rank 3's
( ) rank 0's
    > That would be true after one step.
Why: Rank 3's: after s steps a rank holds the block of rank (r − s) mod N, and (1 − 2) mod 4 is 3. If you count in the
other direction, you mask the wrong keys and get plausible numbers.
""")

bytes_of_the_ring = ask("""
Compared with the all-gather of all keys and values, a rank in the ring sends …
( ) less: it only ever talks to its neighbour
    > Fewer partners are not fewer bytes. In an all-gather, too, each block has to reach three other ranks.
( ) more: it passes on what is not its own
    > That would be true if the all-gather did not do the same. Gloo's all-gather is a ring as well, and so is NCCL's,
    for large buffers.
(x) as much
( ) half, because masked blocks are skipped
    > A rank skips them when it computes. But the ranks further on need them, so they travel.
Why: As much. Either way, each rank passes on N − 1 blocks. (`comms` adds a few bytes, by which the ranks agree on
shapes.) What differs is that the ring computes in between and does not keep the blocks.
""")

memory_of_the_ring = ask("""
Both make the scores that they need as a whole matrix: `at_once` of 256 queries and 1,024 keys, `ring` of 256 queries
and 256 keys at a time. About how many times as many bytes of tensors does `at_once` have alive at its peak?
= 4.0 +- 15 %
( ) 1
    > That would be true if the ring kept what came by.
( ) 16
    > That would be true of one process with all 1,024 queries. The queries are shared out in both ways.
( ) 2
    > Two blocks are in memory at a time, but scores are much larger, and they are those of one block.
Why: About four times as many, one for each rank: its scores are those of four blocks against one, and its keys and
values those of four against two.
""")

even_share_of_a_causal_ring = ask("""
In each step of the ring the ranks wait for the slowest one. Count work in pairs of a query and a key that it sees, and
add up what the slowest rank has to do in each of the four steps. If all pairs were shared out **evenly**, what
percentage of this sum would each rank have to do?
= 57.1 % +- 6 %
( ) 62.5
    > These are the blocks that are not skipped, 10 of 16. The four on the diagonal are half empty.
( ) 50
    > That is the limit for many ranks. With four, the triangles still count.
( ) 25
    > That would be true if one rank did everything.
( ) 100
    > That would be true if all ranks had the same to do in each step. Rank 0 has nothing after the first.
Why: 57 %. In the first step all ranks have their own block, a triangle: half a block. In the other three, some rank
has a whole block. That is 3.5 blocks. Together there are 4 triangles and 6 whole blocks, 8 in all, and a quarter of
that is 2. With more ranks the share comes close to one half.
""")

bytes_of_ulysses = ask("""
The ring sends two tensors (keys, values) as large as a rank's `q` in each of three steps. Ulysses exchanges four
tensors of that size once: `q`, `k`, `v` and the result. How many times as many bytes does a rank send in the **ring**,
on four ranks?
= 2.0 +- 10 %
( ) 1.5
    > 6 against 4 tensors. A rank's own part stays where it is in an all-to-all: a quarter of each.
( ) 0.5
    > The other way round: the ring sends more.
( ) 1
    > Count the tensors: two in each of three steps, and four once, less a quarter.
( ) 6
    > That is what the ring sends, in tensors. Ulysses sends some, too.
Why: Twice as many. The ring sends 2 · 3 = 6 tensors. An all-to-all keeps a rank's own quarter, so Ulysses sends 4 · ¾
= 3. In general it is N / 2 times: the more ranks, the better for Ulysses. But Ulysses' messages are not hidden, and it
needs at least as many heads as ranks.
""")
