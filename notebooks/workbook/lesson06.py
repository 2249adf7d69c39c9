"""Exercises for lesson 06: all-reduce out of sends and receives, each algorithm written in place, graded to the byte.

The puzzles at the lesson's end are in `lesson06_puzzles`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Budget, Least, exercise
from labkit.grading.inputs import Case, counting, vectors
from labkit.grading.promises import Messages, OnlyTo
from labkit.theory import collectives

if TYPE_CHECKING:
    from labkit.rank.seen import dist, rank, torch, world_size


def _own_chunk_of_the_sum(xs: Sequence[Any]) -> list[Any]:
    return collectives.reduce_scatter([collectives.split(x, len(xs)) for x in xs])


def _with_room(n: int) -> list[Case]:
    """On every rank a list of one part for each rank: its own is there, the others are zeros, as long as they will be.

    The parts are those of `vectors`, so that they can be of unequal length, or empty.
    """
    cases = []
    for case in vectors(n):
        wholes = [np.array_split(x, n) for x in case.xs]
        xs = [[wholes[r][q] if q == r else np.zeros_like(wholes[q][q]) for q in range(n)] for r in range(n)]
        cases.append(Case(xs, case.about))
    return cases


def _joined(xs: Sequence[Any]) -> list[Any]:
    """Every rank's own part, on every rank."""
    return [[xs[q][q] for q in range(len(xs))] for _ in xs]


@exercise(
    "One rank does it all",
    collectives.all_reduce,
    minutes=4,
    forbids=("collectives",),
    picture=lambda: counting(4, 2),
    keeps_input=True,
    least=Least(sent=lambda n, S: (n - 1) * S, rounds=lambda n: 2 * (n - 1), memory=lambda n, S: min(2, n - 1) * S),
)
def naive_all_reduce(x):
    """Return the sum of all ranks' x on every rank: rank 0 adds up and sends back.

    Every rank brings a tensor `x` of the same shape and dtype. Return a new tensor with the sum over the ranks, on
    every rank, by send and receive only: each other rank sends its `x` to rank 0, which adds up and sends the total
    back to each. Receive into a tensor of its own, such as `torch.empty_like(x)`. `x` stays as it is. The cost does not
    count yet.
    Hint: Two loops on rank 0: one that receives and adds, one that sends.
    Hint: `dist.recv(room, src=other)` overwrites `room`; then add it. The others send first, then receive.
    Afterwards: Rank 0 sends (N - 1) S bytes and receives as many, while the links between the others are idle.
    """
    total = x.clone()
    if rank == 0:
        # yours
        room = torch.empty_like(x)
        for other in range(1, world_size):
            dist.recv(room, src=other)
            total += room
        for other in range(1, world_size):
            dist.send(total, dst=other)
        # end
    else:
        # yours
        dist.send(x, dst=0)
        dist.recv(total, src=0)
        # end
    return total


@exercise(
    "The ring's first half",
    _own_chunk_of_the_sum,
    minutes=9,
    difficulty=3,
    inputs=vectors,
    forbids=("collectives",),
    promises=(OnlyTo(+1), Messages(lambda n: n - 1)),
    budget=Budget(sent=lambda n, S: (n - 1) / n * S, steps=lambda n: n - 1),
    picture=lambda: counting(4, 4),
    keeps_input=True,
    least=Least(
        sent=lambda n, S: (n - 1) / n * S,
        rounds=lambda n: n - 1,
        memory=lambda n, S: min(2, n - 1) * S / n,  # one sum on its way out, one on its way in
    ),
)
def ring_reduce_scatter(x):
    """Return the sum of everyone's chunk r on rank r, by N - 1 steps round the ring.

    Every rank brings a tensor `x` with one dimension, of the same length and dtype. Return the sum of everyone's chunk
    r on rank r. The code cuts a copy of `x` into N chunks (some may be longer, or empty). In each of N - 1 steps send
    **one** chunk to the right-hand neighbour, receive one from the left-hand neighbour into a tensor of its own, and
    add it to yours. All ranks send at the same time: start both in one `batch_isend_irecv`, then `wait()` for both. `x`
    stays as it is.
    Hint: A chunk's sum travels round the ring and grows: each rank adds its own and passes it on. Where must it end?
    Hint: The sum of chunk r ends on rank r, so it begins one rank further right: rank r first sends chunk r - 1.
    Hint: In step s = 1, 2, … rank r sends chunk r - s and adds what comes to chunk r - s - 1, modulo N.
    Afterwards: Every link carries a chunk in every step, and every chunk crosses N - 1 links. Nobody holds the whole
    total.
    """
    chunks = x.clone().tensor_split(world_size)
    for step in range(1, world_size):
        # yours
        out, into = chunks[(rank - step) % world_size], chunks[(rank - step - 1) % world_size]
        room = torch.empty_like(into)
        send = dist.P2POp(dist.isend, out, (rank + 1) % world_size)
        receive = dist.P2POp(dist.irecv, room, (rank - 1) % world_size)
        for work in dist.batch_isend_irecv([send, receive]):
            work.wait()
        into += room
        # end
    return chunks[rank]


@exercise(
    "The ring's second half",
    _joined,
    minutes=5,
    difficulty=2,
    inputs=_with_room,
    forbids=("collectives",),
    promises=(OnlyTo(+1), Messages(lambda n: n - 1)),
    budget=Budget(sent=lambda n, S: (n - 1) / n * S, steps=lambda n: n - 1),
    in_place=True,
    least=Least(sent=lambda n, S: (n - 1) / n * S, rounds=lambda n: n - 1, memory=lambda n, S: 0),
)
def ring_all_gather(parts):
    """Fill everyone's part into the list on every rank, by N - 1 steps round the ring.

    Every rank brings a list `parts` with a tensor for each rank. Its own, `parts[rank]`, is there; the others are room,
    as long as what belongs there. Fill them in, in place, so that `parts` is the same on every rank. Send to the
    right-hand neighbour and receive from the left-hand one only, in N - 1 steps, one part a step. Return nothing.
    Hint: In step 0 you send your own. What do you send in step 1? It has just come.
    Hint: In step s rank r sends part r - s and receives part r - s - 1, modulo N, straight into its place.
    Afterwards: S (N - 1) / N bytes leave each rank, where S is all parts together: as many as in the first half.
    """
    for step in range(world_size - 1):
        # yours
        out, into = parts[(rank - step) % world_size], parts[(rank - step - 1) % world_size]
        send = dist.P2POp(dist.isend, out, (rank + 1) % world_size)
        receive = dist.P2POp(dist.irecv, into, (rank - 1) % world_size)
        for work in dist.batch_isend_irecv([send, receive]):
            work.wait()
        # end


@exercise(
    "Up a tree, and down again",
    collectives.all_reduce,
    minutes=7,
    difficulty=2,
    forbids=("collectives",),
    budget=Budget(sent=lambda n, S: ceil(log2(n)) * S, steps=lambda n: 2 * ceil(log2(n))),
    picture=lambda: counting(4, 2),
    keeps_input=True,
    least=Least(
        sent=lambda n, S: ceil(log2(n)) * S,
        rounds=lambda n: 2 * ceil(log2(n)),
        memory=lambda n, S: min(2, ceil(log2(n))) * S,
    ),
)
def tree_all_reduce(x):
    """Return the sum of all ranks' x on every rank: up a tree to rank 0, and down again.

    Every rank brings a tensor `x` of the same shape and dtype. Return a new tensor with the sum over the ranks, on
    every rank, in **2 ⌈log2 N⌉** steps. On the way up the distances go from large to small: with distance d, the ranks
    d to 2 d - 1, as far as they exist, send what they have to the rank d below, which adds it. On the way down it is
    the other way round: small distances first, and nobody adds. `x` stays as it is.
    Hint: In a step a rank does one of three things: it sends, it receives, or it rests. Two conditions are enough.
    Hint: `distance <= rank < 2 * distance`: it sends to `rank - distance`. Who receives is that many ranks below, and
    only if the sender exists.
    Hint: `rank + distance < min(world_size, 2 * distance)`: it receives from `rank + distance`, and adds. Downwards
    send and receive change places.
    Afterwards: 20 steps for 1,024 ranks, where the ring takes 2,046. But every message is the whole buffer.
    """
    total = x.clone()
    distances = [2**k for k in range((world_size - 1).bit_length())]  # 1, 2, 4, … below N
    for distance in reversed(distances):
        # yours
        if distance <= rank < 2 * distance:
            dist.send(total, dst=rank - distance)
        elif rank + distance < min(world_size, 2 * distance):
            room = torch.empty_like(x)
            dist.recv(room, src=rank + distance)
            total += room
        # end
    for distance in distances:
        # yours
        if distance <= rank < 2 * distance:
            dist.recv(total, src=rank - distance)
        elif rank + distance < min(world_size, 2 * distance):
            dist.send(total, dst=rank + distance)
        # end
    return total


@exercise(
    "The same bytes in 2 log2 N steps",
    collectives.all_reduce,
    minutes=9,
    difficulty=3,
    inputs=vectors,
    ranks=(2, 4),
    forbids=("collectives",),
    budget=Budget(sent=lambda n, S: 2 * (n - 1) / n * S, steps=lambda n: 2 * log2(n)),
    picture=lambda: counting(4, 4),
    keeps_input=True,
    least=Least(sent=lambda n, S: 2 * (n - 1) / n * S, rounds=lambda n: 2 * log2(n), memory=lambda n, S: S),
)
def halving_doubling(x):
    """Return the sum of all ranks' x on every rank: halve, add, then go back and double.

    N is a **power of two**. Every rank brings a tensor `x` with one dimension, of the same length and dtype. Return a
    new tensor with the sum over the ranks, on every rank, in **2 log2 N** steps and with **2 S (N - 1) / N** bytes out
    of each rank.

    There: cut `kept` in two by `tensor_split(2)`. The lower rank of the two keeps the lower half. Call what you keep
    `kept` and the other half `given`; send `given` to `partner`, and add what comes to `kept`. Both are views: what you
    write into them is in `total`.

    Back: the loop goes through the same pairs, the last one first. Send what you kept, and receive what you had given
    away. `x` stays as it is.
    Hint: Which half is yours? `rank < partner` decides. Then `room` needs the length of the half that you keep.
    Hint: There: one `batch_isend_irecv` that sends `given` to `partner` and receives `room` from it; wait for both; add
    `room` to `kept`.
    Hint: Back: send `kept` and receive `given` in the same way. What the partner kept is complete by then, and it is
    just what you had given away.
    Afterwards: S / 2, S / 4, … there and the same back: the ring's bytes in far fewer steps.
    """
    total, path = x.clone(), []
    kept = given = total
    for distance in [2**k for k in range(world_size.bit_length() - 1)]:  # 1, 2, 4, … below N
        partner = rank ^ distance  # the rank that is so far away, and whose partner this one is
        # yours
        low, high = kept.tensor_split(2)
        kept, given = (low, high) if rank < partner else (high, low)
        room = torch.empty_like(kept)
        exchange = [dist.P2POp(dist.isend, given, partner), dist.P2POp(dist.irecv, room, partner)]
        for work in dist.batch_isend_irecv(exchange):
            work.wait()
        kept += room
        # end
        path.append((kept, given, partner))
    for kept, given, partner in reversed(path):
        # yours
        exchange = [dist.P2POp(dist.isend, kept, partner), dist.P2POp(dist.irecv, given, partner)]
        for work in dist.batch_isend_irecv(exchange):
            work.wait()
        # end
    return total
