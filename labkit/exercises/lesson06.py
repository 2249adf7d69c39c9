"""Exercises for lesson 06: all-reduce and its halves out of sends and receives, graded to the byte."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import Any

from labkit.grading.exercise import Budget, Exercise, Least, Mutant
from labkit.grading.inputs import counting, vectors
from labkit.grading.promises import Messages, OnlyTo
from labkit.theory import collectives


def _own_chunk_of_the_sum(xs: Sequence[Any]) -> list[Any]:
    return collectives.reduce_scatter([collectives.split(x, len(xs)) for x in xs])


CALLS_ALL_REDUCE = """
def {name}(x):
    total = x.clone()
    dist.all_reduce(total)
    return total
"""

ROTATES_THE_WHOLE = """
def {name}(x):
    total, travels = x.clone(), x.clone()
    for _ in range(world_size - 1):
        room = torch.empty_like(travels)
        works = [
            dist.isend(travels, dst=(rank + 1) % world_size),
            dist.irecv(room, src=(rank - 1) % world_size),
        ]
        for work in works:
            work.wait()
        total += room
        travels = room
    return total
"""

NAIVE = '''
def naive_all_reduce(x):
    """Return the sum of all ranks' x on every rank: rank 0 adds up and sends back."""
    total = x.clone()
    room = torch.empty_like(x)
    if rank == 0:
        for other in range(1, world_size):
            dist.recv(room, src=other)
            total += room
        for other in range(1, world_size):
            dist.send(total, dst=other)
    else:
        dist.send(x, dst=0)
        dist.recv(total, src=0)
    return total
'''

NAIVE_ALL_REDUCE = Exercise(
    name="naive_all_reduce",
    lesson="06",
    title="All-reduce, the plain way",
    statement=(
        "Every rank brings a tensor `x` of the same shape and dtype. Return a new tensor with the sum over the ranks, "
        "on every rank, by send and receive only: the others send theirs to rank 0, which adds up and sends the total "
        "back. `x` stays as it is. The cost does not count yet."
    ),
    minutes=8,
    difficulty=1,
    means=collectives.all_reduce,
    forbids=("collectives",),
    picture=lambda: counting(3, 2),
    keeps_input=True,
    least=Least(sent=lambda n, S: (n - 1) * S, rounds=lambda n: 2 * (n - 1), memory=lambda n, S: min(2, n - 1) * S),
    solution=NAIVE,
    mutants=(
        Mutant(
            "does not send the total back",
            replace=(
                "        for other in range(1, world_size):\n            dist.send(total, dst=other)\n    else:\n"
                "        dist.send(x, dst=0)\n        dist.recv(total, src=0)\n",
                "    else:\n        dist.send(x, dst=0)\n",
            ),
        ),
        Mutant("forgets rank 0's own numbers", replace=("total = x.clone()", "total = torch.zeros_like(x)")),
        Mutant("keeps only the last that came", replace=("total += room", "total = x + room")),
        Mutant(
            "waits for an answer before it has sent",
            replace=(
                "        dist.send(x, dst=0)\n        dist.recv(total, src=0)\n",
                "        dist.recv(total, src=0)\n        dist.send(x, dst=0)\n",
            ),
            verdict="deadlock",
        ),
        Mutant(
            "calls all_reduce",
            source=CALLS_ALL_REDUCE.format(name="naive_all_reduce"),
            verdict="forbidden",
            says="all_reduce",
        ),
    ),
    hints=(
        "Two loops on rank 0: one that receives and adds, one that sends.",
        "`dist.recv(room, src=other)` overwrites `room`; then add it. The others send first, then receive.",
    ),
    after=(
        "Rank 0 sends (N - 1) S bytes and receives as many, while the other links are idle. The ring uses all of them."
    ),
)

RING_REDUCE_SCATTER = Exercise(
    name="ring_reduce_scatter",
    lesson="06",
    title="The ring's first half",
    statement=(
        "Every rank brings a tensor `x` with one dimension, of the same length and dtype. Cut it into chunks with "
        "`x.tensor_split(world_size)`, which may be of unequal length or empty. Return the sum of everyone's chunk r "
        "on rank r. Send to the right-hand neighbour and receive from the left-hand one only, in N - 1 steps, one "
        "chunk a step: S (N - 1) / N bytes leave each rank. `x` stays as it is."
    ),
    minutes=20,
    difficulty=3,
    means=_own_chunk_of_the_sum,
    inputs=vectors,
    forbids=("collectives",),
    promises=(OnlyTo(+1), Messages(lambda n: n - 1)),
    budget=Budget(sent=lambda n, S: (n - 1) / n * S, steps=lambda n: n - 1),
    picture=lambda: counting(3, 3),
    keeps_input=True,
    least=Least(
        sent=lambda n, S: (n - 1) / n * S,
        rounds=lambda n: n - 1,
        memory=lambda n, S: min(2, n - 1) * S / n,  # one sum on its way out, one on its way in
    ),
    solution='''
def ring_reduce_scatter(x):
    """Return the sum of everyone's chunk r on rank r, by N - 1 steps round the ring."""
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    chunks = x.clone().tensor_split(world_size)
    for step in range(1, world_size):
        out, into = chunks[(rank - step) % world_size], chunks[(rank - step - 1) % world_size]
        room = torch.empty_like(into)
        works = [dist.isend(out, dst=right), dist.irecv(room, src=left)]
        for work in works:
            work.wait()
        into += room
    return chunks[rank]
''',
    mutants=(
        Mutant("stops a step early", replace=("range(1, world_size)", "range(1, world_size - 1)")),
        Mutant(
            "returns the next rank's chunk", replace=("return chunks[rank]", "return chunks[(rank + 1) % world_size]")
        ),
        Mutant("overwrites instead of adding", replace=("into += room", "into.copy_(room)")),
        Mutant(
            "sends first, then receives",
            replace=(
                "        works = [dist.isend(out, dst=right), dist.irecv(room, src=left)]\n        for work in "
                "works:\n            work.wait()\n",
                "        dist.send(out, dst=right)\n        dist.recv(room, src=left)\n",
            ),
            verdict="deadlock",
        ),
        Mutant(
            "turns the ring the other way",
            source="""
def ring_reduce_scatter(x):
    chunks = x.clone().tensor_split(world_size)
    for step in range(1, world_size):
        out, into = chunks[(rank + step) % world_size], chunks[(rank + step + 1) % world_size]
        room = torch.empty_like(into)
        works = [dist.isend(out, dst=(rank - 1) % world_size), dist.irecv(room, src=(rank + 1) % world_size)]
        for work in works:
            work.wait()
        into += room
    return chunks[rank]
""",
            verdict="not as asked",
            says="may only send to the next rank",
        ),
        Mutant(
            "rotates whole tensors and keeps a chunk",
            source=ROTATES_THE_WHOLE.format(name="ring_reduce_scatter").replace(
                "return total", "return total.tensor_split(world_size)[rank]"
            ),
            verdict="costly",
        ),
        Mutant(
            "all-reduces and keeps a chunk",
            source=CALLS_ALL_REDUCE.format(name="ring_reduce_scatter").replace(
                "return total", "return total.tensor_split(world_size)[rank]"
            ),
            verdict="forbidden",
            says="all_reduce",
        ),
    ),
    hints=(
        "A chunk's sum travels round the ring and grows: each rank adds its own and passes it on. Where must it end?",
        "The sum of chunk r ends on rank r, so it begins one rank further right: rank r first sends chunk r - 1.",
        "In step s = 1, 2, … rank r sends chunk r - s and adds what comes to chunk r - s - 1, modulo N.",
    ),
    after=(
        "Every link carries a chunk in every step, and every chunk crosses N - 1 links. Nobody holds the whole total."
    ),
)

RING_ALL_GATHER = Exercise(
    name="ring_all_gather",
    lesson="06",
    title="The ring's second half",
    statement=(
        "Every rank brings a tensor `x` of the same shape and dtype. Return the **list** of everyone's `x` in the "
        "order of the ranks, on every rank. Send to the right-hand neighbour and receive from the left-hand one only, "
        "in N - 1 steps, one tensor a step. `x` stays as it is."
    ),
    minutes=12,
    difficulty=2,
    means=collectives.all_gather,
    inputs=vectors,
    forbids=("collectives",),
    promises=(OnlyTo(+1), Messages(lambda n: n - 1)),
    budget=Budget(sent=lambda n, S: (n - 1) * S, steps=lambda n: n - 1),
    picture=lambda: counting(3, 1),
    keeps_input=True,
    least=Least(sent=lambda n, S: (n - 1) * S, rounds=lambda n: n - 1, memory=lambda n, S: (n - 1) * S),
    solution='''
def ring_all_gather(x):
    """Return the list of everyone's x, by N - 1 steps round the ring."""
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    parts = [x.clone() for _ in range(world_size)]
    for step in range(world_size - 1):
        out, into = parts[(rank - step) % world_size], parts[(rank - step - 1) % world_size]
        works = [dist.isend(out, dst=right), dist.irecv(into, src=left)]
        for work in works:
            work.wait()
    return parts
''',
    mutants=(
        Mutant("stops a step early", replace=("range(world_size - 1)", "range(world_size - 2)")),
        Mutant(
            "sends its own x in every step", replace=("out, into = parts[(rank - step) % world_size]", "out, into = x")
        ),
        Mutant(
            "puts what comes into the wrong place",
            replace=("parts[(rank - step - 1) % world_size]", "parts[(rank + step + 1) % world_size]"),
        ),
        Mutant(
            "sends first, then receives",
            replace=(
                "        works = [dist.isend(out, dst=right), dist.irecv(into, src=left)]\n        for work in "
                "works:\n            work.wait()\n",
                "        dist.send(out, dst=right)\n        dist.recv(into, src=left)\n",
            ),
            verdict="deadlock",
        ),
        Mutant(
            "sends its own to each other rank itself",
            source="""
def ring_all_gather(x):
    parts = [x.clone() for _ in range(world_size)]
    for step in range(1, world_size):
        into = parts[(rank - step) % world_size]
        works = [dist.isend(x, dst=(rank + step) % world_size), dist.irecv(into, src=(rank - step) % world_size)]
        for work in works:
            work.wait()
    return parts
""",
            verdict="not as asked",
            says="may only send to the next rank",
        ),
        Mutant(
            "passes the whole list on in every step",
            source="""
def ring_all_gather(x):
    parts = torch.stack([torch.zeros_like(x)] * rank + [x] + [torch.zeros_like(x)] * (world_size - rank - 1))
    for _ in range(world_size - 1):
        room = torch.empty_like(parts)
        works = [
            dist.isend(parts, dst=(rank + 1) % world_size),
            dist.irecv(room, src=(rank - 1) % world_size),
        ]
        for work in works:
            work.wait()
        room[rank] = x
        parts = room
    return list(parts)
""",
            verdict="costly",
        ),
    ),
    hints=(
        "In step 0 you send your own. What do you send in step 1? It has just come.",
        "In step s rank r sends part r - s and receives part r - s - 1, modulo N, straight into its place.",
    ),
    after="D (N - 1) bytes leave each rank, which is the least that an all-gather needs.",
)

RING = '''
def ring_all_reduce(x):
    """Return the sum of all ranks' x on every rank: chunks travel twice round the ring."""
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    total = x.clone()
    chunks = total.tensor_split(world_size)

    def pass_on(out, room):
        works = [dist.isend(chunks[out % world_size], dst=right), dist.irecv(room, src=left)]
        for work in works:
            work.wait()

    for step in range(world_size - 1):
        into = chunks[(rank - step - 1) % world_size]
        room = torch.empty_like(into)
        pass_on(rank - step, room)
        into += room
    for step in range(world_size - 1):
        pass_on(rank + 1 - step, chunks[(rank - step) % world_size])
    return total
'''

RING_ALL_REDUCE = Exercise(
    name="ring_all_reduce",
    lesson="06",
    title="The ring, exact to the byte",
    statement=(
        "Every rank brings a tensor `x` with one dimension, of the same length and dtype. Return a new tensor with "
        "the sum over the ranks, on every rank. Send to the right-hand neighbour and receive from the left-hand one "
        "only: 2(N - 1) steps, one **chunk** a step, so that **2 S (N - 1) / N** bytes leave each rank, however many "
        "ranks there are. The length need not divide by N, and may be 0: `tensor_split` cuts it. `x` stays as it is."
    ),
    minutes=25,
    difficulty=3,
    means=collectives.all_reduce,
    inputs=vectors,
    forbids=("collectives",),
    promises=(OnlyTo(+1), Messages(lambda n: 2 * (n - 1))),
    budget=Budget(sent=lambda n, S: 2 * (n - 1) / n * S, steps=lambda n: 2 * (n - 1)),
    picture=lambda: counting(3, 3),
    keeps_input=True,
    least=Least(sent=lambda n, S: 2 * (n - 1) / n * S, rounds=lambda n: 2 * (n - 1), memory=lambda n, S: S),
    solution=RING,
    mutants=(
        Mutant(
            "sends whole tensors round the ring",
            source=ROTATES_THE_WHOLE.format(name="ring_all_reduce"),
            verdict="costly",
        ),
        Mutant("lets rank 0 do it all", source=NAIVE.replace("naive_all_reduce", "ring_all_reduce"), verdict="costly"),
        Mutant(
            "turns the ring the other way",
            source=RING.replace(
                "(rank + 1) % world_size, (rank - 1) % world_size", "(rank - 1) % world_size, (rank + 1) % world_size"
            )
            .replace("rank - step - 1", "rank + step + 1")
            .replace("pass_on(rank - step, room)", "pass_on(rank + step, room)")
            .replace("pass_on(rank + 1 - step, chunks[(rank - step)", "pass_on(rank - 1 + step, chunks[(rank + step)"),
            verdict="not as asked",
            says="may only send to the next rank",
        ),
        Mutant(
            "sends each chunk in two pieces",
            source=RING.replace(
                "        works = [dist.isend(chunks[out % world_size], dst=right), dist.irecv(room, src=left)]\n",
                "        works = [dist.isend(half, dst=right) for half in chunks[out % world_size].tensor_split(2)]\n"
                "        works += [dist.irecv(half, src=left) for half in room.tensor_split(2)]\n",
            ),
            verdict="costly",
        ),
        Mutant(
            "adds in the second half, too",
            replace=(
                "        pass_on(rank + 1 - step, chunks[(rank - step) % world_size])",
                "        into = chunks[(rank - step) % world_size]\n        room = torch.empty_like(into)\n        "
                "pass_on(rank + 1 - step, room)\n        into += room",
            ),
        ),
        Mutant(
            "leaves the second half out",
            replace=("        pass_on(rank + 1 - step, chunks[(rank - step) % world_size])", "        pass"),
        ),
        Mutant(
            "begins the second half with the wrong chunk",
            replace=(
                "        pass_on(rank + 1 - step, chunks[(rank - step) % world_size])",
                "        pass_on(rank - step, chunks[(rank - step - 1) % world_size])",
            ),
        ),
        Mutant(
            "cuts N equal chunks and forgets the rest",
            replace=(
                "chunks = total.tensor_split(world_size)",
                "size = len(x) // world_size\n    chunks = [total[i * size : (i + 1) * size] for i in "
                "range(world_size)]",
            ),
        ),
        Mutant(
            "sends first, then receives",
            replace=(
                "        works = [dist.isend(chunks[out % world_size], dst=right), dist.irecv(room, src=left)]\n"
                "        for work in works:\n            work.wait()\n",
                "        dist.send(chunks[out % world_size], dst=right)\n        dist.recv(room, src=left)\n",
            ),
            verdict="deadlock",
        ),
        Mutant(
            "calls all_reduce",
            source=CALLS_ALL_REDUCE.format(name="ring_all_reduce"),
            verdict="forbidden",
            says="all_reduce",
        ),
    ),
    hints=(
        "Two halves: a reduce-scatter, after which every rank has the total of one chunk, and an all-gather of these.",
        "In step s of the first half rank r sends chunk r - s and adds what comes to chunk r - s - 1, modulo N. "
        "Which chunk is complete on rank r in the end?",
        "Chunk r + 1 is. In step s of the second half send chunk r + 1 - s and receive chunk r - s in its place.",
        "`total.tensor_split(world_size)` returns views: what you write into a chunk is in `total`.",
    ),
    after="N cancels out of the bytes: 1.5 S with four ranks, 2 S with a thousand. What grows is the number of steps.",
)

HALVING_DOUBLING = Exercise(
    name="halving_doubling",
    lesson="06",
    title="The same bytes in 2 log2 N steps",
    statement=(
        "The number of ranks is a **power of two**. Every rank brings a tensor `x` with one dimension, of the same "
        "length and dtype. Return a new tensor with the sum over the ranks, on every rank, in **2 log2 N** steps and "
        "with **2 S (N - 1) / N** bytes out of each rank: exchange half of what you have with a partner and keep the "
        "sum of the other half, N / 2 ranks away, then N / 4, down to 1; then go back. `x` stays as it is."
    ),
    minutes=25,
    difficulty=3,
    means=collectives.all_reduce,
    inputs=vectors,
    ranks=(2, 4),
    forbids=("collectives",),
    budget=Budget(sent=lambda n, S: 2 * (n - 1) / n * S, steps=lambda n: 2 * log2(n)),
    picture=lambda: counting(2, 4),
    keeps_input=True,
    least=Least(sent=lambda n, S: 2 * (n - 1) / n * S, rounds=lambda n: 2 * log2(n), memory=lambda n, S: S),
    solution='''
def halving_doubling(x):
    """Return the sum of all ranks' x on every rank: halve, add, then go back and double."""

    def exchange(out, room, partner):
        for work in [dist.isend(out, dst=partner), dist.irecv(room, src=partner)]:
            work.wait()

    kept, gone = x.clone(), []
    distance = world_size // 2
    while distance:
        partner = rank ^ distance
        low, high = kept.tensor_split(2)
        kept, give = (low, high) if rank < partner else (high, low)
        room = torch.empty_like(kept)
        exchange(give, room, partner)
        kept = kept + room
        gone.append((partner, torch.empty_like(give)))
        distance //= 2
    for partner, room in reversed(gone):
        exchange(kept, room, partner)
        kept = torch.cat([kept, room] if rank < partner else [room, kept])
    return kept
''',
    mutants=(
        Mutant("does not go back", replace=("reversed(gone)", "[]")),
        Mutant(
            "joins the halves in one order on all ranks",
            replace=("[kept, room] if rank < partner else [room, kept]", "[kept, room]"),
        ),
        Mutant("goes back in the same order", replace=("reversed(gone)", "gone"), verdict="raises", says="died"),
        Mutant(
            "keeps the half that it gives away",
            replace=("(low, high) if rank < partner else (high, low)", "(low, high)"),
            verdict="wrong",
        ),
        Mutant("overwrites instead of adding", replace=("kept = kept + room", "kept = room")),
        Mutant(
            "sends first, then receives",
            replace=(
                "        for work in [dist.isend(out, dst=partner), dist.irecv(room, src=partner)]:\n            "
                "work.wait()\n",
                "        dist.send(out, dst=partner)\n        dist.recv(room, src=partner)\n",
            ),
            verdict="deadlock",
        ),
        Mutant(
            "exchanges everything in every step",
            source="""
def halving_doubling(x):
    total = x.clone()
    distance = world_size // 2
    while distance:
        room = torch.empty_like(total)
        for work in [dist.isend(total, dst=rank ^ distance), dist.irecv(room, src=rank ^ distance)]:
            work.wait()
        total = total + room
        distance //= 2
    return total
""",
            verdict="costly",
        ),
        Mutant(
            "takes the ring, which needs more steps",
            source=RING.replace("ring_all_reduce", "halving_doubling"),
            verdict="costly",
        ),
    ),
    hints=(
        "With `partner = rank ^ distance`, the lower one of the two keeps the lower half and gives the upper one away.",
        "Remember the partners and the lengths of what you gave away: on the way back each partner returns it, "
        "complete.",
        "On the way back send all that you have, receive as much (give or take one), and join the two in the right "
        "order.",
    ),
    after="S / 2, S / 4, … there and the same back: the ring's bytes in far fewer steps, but partners sit far apart.",
)

EXERCISES = (NAIVE_ALL_REDUCE, RING_REDUCE_SCATTER, RING_ALL_GATHER, RING_ALL_REDUCE, HALVING_DOUBLING)
