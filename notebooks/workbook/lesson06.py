"""Lesson 06: all-reduce out of sends and receives, each algorithm written in place, and what it sends."""

from __future__ import annotations

from functools import partial
from math import log2
from typing import TYPE_CHECKING

import numpy as np

from labkit.grading.exercise import Budget, Least, exercise
from labkit.grading.inputs import Case, counting, vectors
from labkit.grading.prediction import ask
from labkit.grading.promises import Messages, OnlyTo
from labkit.theory import collectives
from labkit.theory.values import split

if TYPE_CHECKING:
    from labkit.rank.cell_names import dist, rank, torch, world_size

by_messages = partial(exercise, forbids=("collectives",), keeps_input=True)


def _with_room(n: int) -> list[Case]:
    """Make lists of one part for each rank: its own, and zeros as long as the others' parts, which may be unequal."""
    cases = []
    for case in vectors(n):
        wholes = [np.array_split(x, n) for x in case.xs]
        xs = [[wholes[r][q] if q == r else np.zeros_like(wholes[q][q]) for q in range(n)] for r in range(n)]
        cases.append(Case(xs, case.about))
    return cases


@by_messages(
    "One rank does it all",
    collectives.all_reduce,
    minutes=4,
    picture=lambda: counting(4, 2),
    least=Least(sent=lambda n, S: (n - 1) * S, rounds=lambda n: 2 * (n - 1), memory=lambda n, S: min(2, n - 1) * S),
)
def naive_all_reduce(x):
    """Return the sum of all ranks' x on every rank: rank 0 adds up and sends back.

    Every rank brings a tensor `x` of the same shape and dtype. Return a new tensor with the sum over the ranks, on
    every rank, by send and receive only: each other rank sends its `x` to rank 0, which adds up and sends the total
    back to each. Receive into a new tensor, such as `torch.empty_like(x)`. `x` stays as it is. The cost does not count
    yet.
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


@by_messages(
    "The ring's first half",
    lambda xs: collectives.reduce_scatter([split(x, len(xs)) for x in xs]),
    minutes=9,
    difficulty=3,
    promises=(OnlyTo(+1), Messages(lambda n: n - 1)),
    budget=Budget(sent=lambda n, S: (n - 1) / n * S, steps=lambda n: n - 1),
    picture=lambda: counting(4, 4),
    # At once there are one sum on its way out and one on its way in.
    least=Least(sent=lambda n, S: (n - 1) / n * S, rounds=lambda n: n - 1, memory=lambda n, S: min(2, n - 1) * S / n),
)
def ring_reduce_scatter(x):
    """Return the sum of everyone's chunk r on rank r, by N - 1 steps round the ring.

    Every rank brings a tensor `x` with one dimension, of the same length and dtype. Return the sum of everyone's chunk
    r on rank r. The code cuts a copy of `x` into N chunks (some may be longer, or empty). In each of N - 1 steps send
    **one** chunk to the right-hand neighbour, receive one from the left-hand neighbour into a new tensor, and add it to
    yours. All ranks send at the same time: start both in one `batch_isend_irecv`, then `wait()` for both. `x` stays
    as it is.
    Hint: A chunk's sum travels round the ring and grows: each rank adds its own and passes it on. Where must it end?
    Hint: The sum of chunk r ends on rank r, so it begins one rank further right: rank r first sends chunk r - 1.
    Hint: In step s = 1, 2, … rank r sends chunk r - s and adds what comes to chunk r - s - 1, modulo N.
    Afterwards: Every link carries a chunk in every step, and every chunk crosses N - 1 links. No rank holds the whole
    total.
    """
    chunks = list(x.clone().tensor_split(world_size))
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


@by_messages(
    "The ring's second half",
    lambda xs: [[parts[q] for q, parts in enumerate(xs)] for _ in xs],
    minutes=5,
    difficulty=2,
    inputs=_with_room,
    promises=(OnlyTo(+1), Messages(lambda n: n - 1)),
    budget=Budget(sent=lambda n, S: (n - 1) / n * S, steps=lambda n: n - 1),
    in_place=True,
    keeps_input=False,
    least=Least(sent=lambda n, S: (n - 1) / n * S, rounds=lambda n: n - 1, memory=lambda n, S: 0),
)
def ring_all_gather(parts):
    """Fill everyone's part into the list on every rank, by N - 1 steps round the ring.

    Every rank brings a list `parts` with a tensor for each rank. Its own part is in `parts[rank]`; the other tensors
    have the right lengths but no contents yet. Fill them in place, so that `parts` is the same on every rank. Send to
    the right-hand neighbour and receive from the left-hand one only, in N - 1 steps, one part per step. Return
    nothing.
    Hint: In step 0 you send your own part. What do you send in step 1? The part that has just arrived.
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


@by_messages(
    "Up a tree, and down again",
    collectives.all_reduce,
    minutes=7,
    difficulty=2,
    budget=Budget(sent=lambda n, S: (n - 1).bit_length() * S, steps=lambda n: 2 * (n - 1).bit_length()),
    picture=lambda: counting(4, 2),
    least=Least(
        sent=lambda n, S: (n - 1).bit_length() * S,
        rounds=lambda n: 2 * (n - 1).bit_length(),
        memory=lambda n, S: min(2, (n - 1).bit_length()) * S,
    ),
)
def tree_all_reduce(x):
    """Return the sum of all ranks' x on every rank: up a tree to rank 0, and down again.

    Every rank brings a tensor `x` of the same shape and dtype. Return a new tensor with the sum over the ranks, on
    every rank, in **2 ⌈log2 N⌉** steps. On the way up the distances go from large to small: with distance d, the ranks
    d to 2 d - 1, as far as they exist, send what they have to the rank d below, which adds it. On the way down it is
    the other way round: small distances first, and no rank adds. `x` stays as it is.
    Hint: In a step a rank does one of three things: it sends, it receives, or it rests. Two conditions are enough.
    Hint: `distance <= rank < 2 * distance`: it sends to `rank - distance`. The receiver is that many ranks below, and
    receives only if the sender exists.
    Hint: `rank + distance < min(world_size, 2 * distance)`: it receives from `rank + distance`, and adds. On the
    way down, send and receive change places.
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


@by_messages(
    "The same bytes in 2 log2 N steps",
    collectives.all_reduce,
    minutes=9,
    difficulty=3,
    ranks=(2, 4),
    budget=Budget(sent=lambda n, S: 2 * (n - 1) / n * S, steps=lambda n: 2 * log2(n)),
    picture=lambda: counting(4, 4),
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


same_bits = ask("""
Each of four ranks brings one number: 100000000, 1, -100000000 and 1, as float32. Their sum is 2. They add them up by
this recipe. What do the ranks hold afterwards?
( ) 2 on every rank
    > This would be true in float64. A float32 has room for about seven digits: 100000000 + 1 is rounded to 100000000.
( ) the same number on every rank, but not 2
    > This would be true if all ranks added in the same order. Each rank begins with its own number, and adds the
    others as they come.
(x) not the same number on every rank
Why: **Not the same number on every rank.** A float32 has room for about seven digits, so 100000000 + 1 is 100000000
again. Each rank adds in an order of its own, and loses something different. In training the copies of the model would
drift apart, a bit at a time, and no error would tell you.
""")

first_chunk = ask("""
In every step each rank sends one chunk to the right. Chunk 0 should pass every rank, collect every rank's part, and be
complete **on rank 0** after N - 1 steps. Which rank sends chunk 0 in the first step?
( ) rank 0
    > A chunk that begins on rank 0 gets to rank N - 1 in N - 1 steps, and ends there. It would need one step more to
    come home.
(x) rank 1
( ) rank N - 1
    > From rank N - 1 the chunk goes to rank 0 in the first step already, with the parts of two ranks in it, and then
    moves on.
Why: **Rank 1.** From there it goes to ranks 2, 3, …, and comes to rank 0 last. In the first step every rank sends the
chunk of the rank on its left. And in the second step? It sends the sum that it has just made.
""")

ring_bytes = ask("""
Reduce-scatter, then all-gather, round the ring. How much does each rank send, if N is large?
( ) nearly S / N
    > S / N is the size of one chunk, so it is what a rank sends in one step. There are 2 (N - 1) steps.
(x) nearly 2 S, whatever N is
( ) nearly N S
    > This would be true if each rank passed on whole buffers. Here it passes on one chunk in each step, and the chunks
    get smaller as N grows.
Why: **Nearly 2 S.** Every rank sends a chunk, S / N bytes, in each of 2 (N - 1) steps: 2 S (N - 1) / N. With more ranks
there are more steps, and the chunks are smaller: N cancels out of the bytes.
""")

torchs_own = ask("""
Which of these four ways does torch's own `dist.all_reduce` resemble, if the ranks use Gloo?
( ) one rank does it all
    > Then one row and one column of the matrix would hold all the bytes, those of rank 0.
( ) a tree
    > Then rank 0 would send more than the others: one whole buffer in each step on the way down.
(x) a ring
( ) halving and doubling
    > Then each rank would send to two others, most of it to the nearer one.
Why: **A ring.** Every rank sends 1.5 S, and all of it to one neighbour. Gloo's ring may turn the other way than yours.
Halving and doubling sends as much, but each rank to two partners.
Elsewhere: **With NCCL** it depends on the size and on the machine: a ring, two trees, or additions in a switch. (From
its source. The optional section below has more on that.)
""")

shared_link = ask("""
Eight ranks sit on two hosts, ranks 0 to 3 on the first one. Whatever leaves a host goes through **one** link, which is
as fast as a rank's own connection. The buffer is so large that α does not count. Which all-reduce is faster?
( ) halving and doubling: it has 6 steps, and the ring 14
    > Fewer steps save α. They do not save bytes, and here only the bytes count.
( ) neither: in both of them each rank sends 1.75 S
    > This would be true if each rank had a link of its own to the other host.
(x) the ring
Why: **The ring.** In each of its steps one message leaves a host, so no link ever has more to carry than a rank's own:
1.75 S β. In two steps of halving and doubling **all four** ranks of a host send to the other host at once, S / 8 each,
and share the link: these steps take four times as long, and it is 2.5 S β in all.
""")

odd_ranks = ask("""
With α = 10 µs, 10 GB/s for every rank and no shared links, halving and doubling takes 215 ms for 1 GiB on 1,024 ranks.
How many milliseconds does it take on **1,000** ranks?
= 429 ms
Why: **429 ms, twice as long on fewer ranks.** 512 ranks halve and double among themselves: 2 S. Before that, 488 ranks
hand over a whole buffer, and in the end they get one back: 2 S more. The ring takes 235 ms, whether N is a power of two
or not.
""")
