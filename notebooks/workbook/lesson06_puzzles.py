"""Puzzles of lesson 06: all-reduce where the direction, the order, N or the network asks for something else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log2
from typing import TYPE_CHECKING

from labkit.grading.exercise import NOTHING, Budget, Least
from labkit.grading.inputs import Case, counting, vectors
from labkit.grading.promises import Messages, OnlyTo, enough
from labkit.theory import collectives
from labkit.theory.record import Record, rounds
from labkit.theory.values import split
from workbook.lesson06 import by_messages

if TYPE_CHECKING:
    from labkit.rank.cell_names import dist, rank, torch, world_size

PIECES = 4


@by_messages(
    "The ring turns the other way",
    lambda xs: collectives.reduce_scatter([split(x, len(xs)) for x in xs]),
    minutes=6,
    promises=(OnlyTo(-1), Messages(lambda n: n - 1)),
    budget=Budget(sent=lambda n, S: (n - 1) / n * S, steps=lambda n: n - 1),
    picture=lambda: counting(3, 3),
    least=Least(sent=lambda n, S: (n - 1) / n * S, rounds=lambda n: n - 1, memory=lambda n, S: min(2, n - 1) * S / n),
)
def leftward_ring(x):
    """Return the sum of everyone's chunk r on rank r, by N - 1 steps round the ring to the left.

    The ring's first half again, a reduce-scatter, but every rank may send to its **left-hand** neighbour only. Still
    rank r should end with the total of chunk r: return that. N - 1 steps, one chunk per step. `x` has one dimension,
    any length, and stays as it is.
    Hint: The sum of chunk r ends on rank r, and it travels to the left. So on which rank does it begin?
    Hint: On rank r - 1: rank r first sends chunk r + 1, and one chunk further in each step.
    Afterwards: The same bytes and steps. A ring that turns both ways at once would keep both directions of a link busy.
    """
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    chunks = x.clone().tensor_split(world_size)
    for step in range(1, world_size):
        out, into = chunks[(rank + step) % world_size], chunks[(rank + step + 1) % world_size]
        room = torch.empty_like(into)
        exchange = [dist.P2POp(dist.isend, out, left), dist.P2POp(dist.irecv, room, right)]
        for work in dist.batch_isend_irecv(exchange):
            work.wait()
        into += room
    return chunks[rank]


@by_messages(
    "The ring in one function",
    collectives.all_reduce,
    minutes=12,
    difficulty=2,
    promises=(OnlyTo(+1), Messages(lambda n: 2 * (n - 1))),
    budget=Budget(sent=lambda n, S: 2 * (n - 1) / n * S, steps=lambda n: 2 * (n - 1)),
    picture=lambda: counting(3, 3),
    least=Least(sent=lambda n, S: 2 * (n - 1) / n * S, rounds=lambda n: 2 * (n - 1), memory=lambda n, S: S),
)
def ring_all_reduce(x):
    """Return the sum of all ranks' x on every rank: chunks travel twice round the ring.

    Lesson 06b races this function against torch's own. Write both halves of the ring in **one** function that needs no
    other function of yours. Every rank brings a tensor `x` with one dimension, of the same length and dtype. Return a
    new tensor with the sum over the ranks, on every rank. Send to the right-hand neighbour and receive from the
    left-hand one only: 2 (N - 1) steps, one chunk per step, **2 S (N - 1) / N** bytes out of each rank. The length need
    not divide by N, and may be 0. `x` stays as it is. Can you do it with little more than S bytes of memory?
    Hint: Two halves: a reduce-scatter, after which every rank has the total of one chunk, and an all-gather of these.
    Hint: In step s of the first half rank r sends chunk r - s and adds what comes to chunk r - s - 1, modulo N. Which
    chunk is complete on rank r in the end?
    Hint: Chunk r + 1 is. In step s of the second half send chunk r + 1 - s and receive chunk r - s in its place.
    Hint: `total.tensor_split(world_size)` returns views: what you write into a chunk is in `total`.
    Afterwards: N cancels out of the bytes: 1.5 S with four ranks, 2 S with a thousand. What grows is the number of
    steps.
    """
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    total = x.clone()
    chunks = total.tensor_split(world_size)

    def pass_on(out, room):
        exchange = [dist.P2POp(dist.isend, chunks[out % world_size], right), dist.P2POp(dist.irecv, room, left)]
        for work in dist.batch_isend_irecv(exchange):
            work.wait()

    for step in range(world_size - 1):
        into = chunks[(rank - step - 1) % world_size]
        room = torch.empty_like(into)
        pass_on(rank - step, room)
        into += room
    for step in range(world_size - 1):
        pass_on(rank + 1 - step, chunks[(rank - step) % world_size])
    return total


@by_messages(
    "Pieces in flight",
    lambda xs: [*[NOTHING] * (len(xs) - 1), collectives.all_reduce(xs)[-1]],
    minutes=15,
    difficulty=2,
    promises=(OnlyTo(+1), Messages(PIECES, least=PIECES)),
    budget=Budget(sent=lambda n, S: S, steps=lambda n: n - 2 + PIECES),
    picture=lambda: counting(3, 4),
    least=Least(sent=lambda n, S: S, rounds=lambda n: n - 2 + PIECES),
)
def chain_reduce(x):
    """Return the sum of all ranks' x on the last rank, None elsewhere; four pieces go down the chain.

    The ranks stand in a chain: rank r may send to rank r + 1 only. Return the sum of all ranks' `x` on the **last**
    rank, and None on the others. Cut `x` into **four** pieces by `tensor_split(4)`, and let a rank pass a piece on
    while it receives the next one, so that it takes N + 2 steps. A rank that finishes with one piece before it takes
    the next needs more. `x` has one dimension, any length, and stays as it is.
    Hint: First write it with `send` and `recv` in a loop over the pieces. It is right, and takes too many steps. Why?
    Hint: While a rank waits in `send`, it cannot receive. `isend` returns at once.
    Hint: Keep what `isend` returns in a list, and wait for all of it after the loop.
    Afterwards: With P pieces, N - 2 + P pieces pass one after another. With many pieces, that takes hardly longer
    than sending S bytes once, however long the chain is. NCCL cuts its buffers like this, too.
    """
    total, sending = x.clone(), []
    for piece in total.tensor_split(4):
        if rank > 0:
            room = torch.empty_like(piece)
            dist.recv(room, src=rank - 1)
            piece += room
        if rank < world_size - 1:
            sending.append(dist.isend(piece, dst=rank + 1))
    for work in sending:
        work.wait()
    return total if rank == world_size - 1 else None


def _folded(n: int) -> tuple[float, float]:
    """Return what halving and doubling on any number of ranks takes: bytes, in units of S, and steps."""
    power = 1 << n.bit_length() - 1
    return 2 * (power - 1) / power + (n > power), 2 * log2(power) + 2 * (n > power)


@by_messages(
    "Three ranks have no halves",
    collectives.all_reduce,
    minutes=15,
    difficulty=2,
    budget=Budget(sent=lambda n, S: _folded(n)[0] * S, steps=lambda n: _folded(n)[1]),
    picture=lambda: counting(3, 2),
    least=Least(sent=lambda n, S: _folded(n)[0] * S, rounds=lambda n: _folded(n)[1], memory=lambda n, S: S),
)
def fold_in(x):
    """Return the sum of all ranks' x on every rank by halving and doubling, for any number of ranks.

    Halving and doubling for **any** N. Let P be the largest power of two up to N. The ranks from P on hand their `x` to
    a rank below P first, and get the total last; the P ranks halve and double among themselves. Return a new tensor
    with the sum on every rank. Steps: 2 log2 P, and two more where N is not P. `x` has one dimension, any length, and
    stays as it is. Begin with your lines of `halving_doubling`.
    Hint: Rank P + i hands its `x` to rank i, waits for the total, and is done: nothing else concerns it.
    Hint: `power = 2 ** (world_size.bit_length() - 1)`. In the loop over the distances, `power` takes the place of
    `world_size`.
    Afterwards: Folding in sends whole buffers, and twice: that is why 1,000 ranks take longer than 1,024. A ring does
    not care what N is.
    """
    power = 2 ** (world_size.bit_length() - 1)  # ranks that go on
    total, path = x.clone(), []
    if rank >= power:
        dist.send(total, dst=rank - power)
        dist.recv(total, src=rank - power)
        return total
    if rank + power < world_size:
        room = torch.empty_like(total)
        dist.recv(room, src=rank + power)
        total += room
    kept = total
    for distance in [2**k for k in range(power.bit_length() - 1)]:
        partner = rank ^ distance
        low, high = kept.tensor_split(2)
        kept, given = (low, high) if rank < partner else (high, low)
        room = torch.empty_like(kept)
        exchange = [dist.P2POp(dist.isend, given, partner), dist.P2POp(dist.irecv, room, partner)]
        for work in dist.batch_isend_irecv(exchange):
            work.wait()
        kept += room
        path.append((kept, given, partner))
    for kept, given, partner in reversed(path):
        exchange = [dist.P2POp(dist.isend, kept, partner), dist.P2POp(dist.irecv, given, partner)]
        for work in dist.batch_isend_irecv(exchange):
            work.wait()
    if rank + power < world_size:
        dist.send(total, dst=rank + power)
    return total


def _on_two_hosts(n: int) -> list[Case]:
    """Put four ranks on two hosts, two on each, which are not always neighbours by number."""
    ways = ([[0, 1], [2, 3]], [[0, 2], [1, 3]], [[3, 0], [2, 1]])
    cases = [Case(counting(n, n)), *vectors(n)[1:]]
    return [
        Case(case.xs, f"hosts {hosts[0]} and {hosts[1]}" + (f", {case.about}" if case.about else ""), {"hosts": hosts})
        for i, case in enumerate(cases)
        for hosts in [ways[i % len(ways)]]
    ]


@by_messages(
    "A slow link between two hosts",
    lambda xs, hosts: collectives.all_reduce(xs),
    minutes=18,
    difficulty=3,
    inputs=_on_two_hosts,
    ranks=(4,),
    budget=Budget(sent=lambda n, S: 1.5 * S, steps=lambda n: 4, link=lambda n, S: S),
    least=Least(sent=lambda n, S: 1.5 * S, rounds=lambda n: 3),
)
def two_hosts(x, hosts):
    """Return the sum of all ranks' x on every rank; little goes from host to host.

    Four ranks on two hosts. `hosts` says who is where, such as `[[0, 1], [2, 3]]`, and it is the same on every rank.
    Inside a host messages are cheap; the link between the hosts is slow. Return the sum of all ranks' `x` on every
    rank, so that no more than **S** bytes go from one host to the other, each way, and no more than **1.5 S** leave any
    rank, in 4 steps at most. `x` has one dimension, any length, and stays as it is.
    Hint: Three stages. In the first and the last one, ranks of the same host talk; in the second one, hosts.
    Hint: A reduce-scatter in each host: afterwards each of its two ranks has the host's sum of one half.
    Hint: Then each rank exchanges its half with the rank of the other host that has the same one, and adds. The last
    stage is an all-gather in each host.
    Afterwards: A ring sends 1.5 S from host to host, in six steps. Between hosts with g ranks each, every rank's own
    network card carries an all-reduce of S / g: this is how several cards of one host are used at once.
    """
    here, there = hosts if rank in hosts[0] else hosts[::-1]
    place = here.index(rank)
    mate, twin = here[1 - place], there[place]
    total = x.clone()
    halves = total.tensor_split(2)
    mine, other = halves[place], halves[1 - place]

    def swap(out, room, partner):
        exchange = [dist.P2POp(dist.isend, out, partner), dist.P2POp(dist.irecv, room, partner)]
        for work in dist.batch_isend_irecv(exchange):
            work.wait()

    for out, partner in ((other, mate), (mine, twin)):
        room = torch.empty_like(mine)
        swap(out, room, partner)
        mine += room
    swap(mine, other, mate)
    return total


@dataclass(frozen=True)
class InSteps:
    """So many messages follow one another at most, where a rank may send to several others at the same time."""

    most: Callable[[int], float]

    def broken(self, record: Record) -> str:
        steps = max(rounds(record).values(), default=0)
        most = self.most(record.n)
        return f"{steps} steps follow one another, and {enough(most)}." if steps > most else ""


@by_messages(
    "Both directions of every link",
    collectives.all_reduce,
    minutes=18,
    difficulty=3,
    ranks=(3, 4),
    promises=(OnlyTo(+1, -1), InSteps(lambda n: 2 * (n - 1))),
    budget=Budget(sent=lambda n, S: 2 * (n - 1) / n * S, link=lambda n, S: (n - 1) / n * S),
    picture=lambda: counting(3, 6),
    least=Least(sent=lambda n, S: 2 * (n - 1) / n * S, memory=lambda n, S: S),
)
def two_way_ring(x):
    """Return the sum of all ranks' x on every rank: half of it goes round the ring each way.

    A link carries as much in one direction as in the other at the same time, and a ring uses one. Let one half of `x`
    go round to the right and the other half to the left, **at the same time**. Return a new tensor with the sum over
    the ranks, on every rank. Each rank sends to both of its neighbours at once, 2 (N - 1) times. (The score counts
    one message per step, so it shows 4 (N - 1) steps.) No more than **S (N - 1) / N** bytes go from any rank
    to any other rank. `x` has one dimension, any length, and stays as it is. It runs on 3 and 4 ranks, because with two
    ranks both neighbours are the same one.
    Hint: Two rings over the two halves of `x`. With `way` = 1 or -1 the same line serves both: `rank + way * step`.
    Hint: Start all four operations of a step, two `isend` and two `irecv`, in one `batch_isend_irecv`, and only then
    wait for them.
    Hint: In step s a ring to the right sends chunk r - s and receives chunk r - s - 1; the one to the left sends r + s
    and receives r + s + 1. Add in the first N - 1 steps, put into place in the others.
    Afterwards: Each direction carries S (N - 1) / N bytes: where links are full duplex, this takes half of a ring's
    time.
    """
    total = x.clone()
    ways = [(half.tensor_split(world_size), way) for half, way in zip(total.tensor_split(2), (1, -1))]
    for step in range(2 * (world_size - 1)):
        exchange, came = [], []
        for chunks, way in ways:
            out, into = chunks[(rank - way * step) % world_size], chunks[(rank - way * (step + 1)) % world_size]
            room = torch.empty_like(into)
            exchange.append(dist.P2POp(dist.isend, out, (rank + way) % world_size))
            exchange.append(dist.P2POp(dist.irecv, room, (rank - way) % world_size))
            came.append((into, room))
        for work in dist.batch_isend_irecv(exchange):
            work.wait()
        for into, room in came:
            into.copy_(into + room if step < world_size - 1 else room)
    return total
