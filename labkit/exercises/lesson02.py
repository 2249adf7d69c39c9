"""Exercises for lesson 02: exchanges by send and receive that cannot lock up."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from labkit.grading.exercise import Exercise, Least, Mutant
from labkit.grading.inputs import uneven
from labkit.grading.promises import Messages, OnlyTo


def _partners(xs: Sequence[Any]) -> list[Any]:
    return [xs[r ^ 1] if r ^ 1 < len(xs) else xs[r] for r in range(len(xs))]


def _from_the_left(xs: Sequence[Any]) -> list[Any]:
    return [xs[r - 1] for r in range(len(xs))]


SWAP = Exercise(
    name="swap",
    lesson="02",
    title="Swap with your partner",
    statement=(
        "Ranks 0 and 1 are partners, so are 2 and 3, and so on: the partner of r is `rank ^ 1`. Every rank brings a "
        "tensor `x` of the same shape and dtype. Return a tensor with the **partner's** `x`. With an odd number of "
        "ranks the last one has no partner and returns its own numbers. Send and receive only, and no deadlock."
    ),
    minutes=8,
    difficulty=1,
    means=_partners,
    forbids=("collectives",),
    least=Least(sent=lambda n, S: S, rounds=lambda n: 1, memory=lambda n, S: S),
    solution='''
def swap(x):
    """Return the partner's x, or this rank's own where there is no partner."""
    partner = rank ^ 1
    got = x.clone()
    if partner < world_size:
        works = [dist.isend(x, dst=partner), dist.irecv(got, src=partner)]
        for work in works:
            work.wait()
    return got
''',
    mutants=(
        Mutant(
            "lets both partners send first",
            replace=(
                "        works = [dist.isend(x, dst=partner), dist.irecv(got, src=partner)]\n"
                "        for work in works:\n"
                "            work.wait()\n",
                "        dist.send(x, dst=partner)\n        dist.recv(got, src=partner)\n",
            ),
            verdict="deadlock",
        ),
        Mutant("takes the right-hand neighbour for a partner", replace=("rank ^ 1", "rank + 1"), verdict="deadlock"),
        Mutant(
            "forgets that the last rank may be alone",
            replace=("partner < world_size", "True"),
            verdict="raises",
            says="no rank 3",
        ),
        Mutant("returns its own numbers", replace=("return got", "return x")),
        Mutant(
            "gathers everybody's numbers",
            source="""
def swap(x):
    everyone = [torch.empty_like(x) for _ in range(world_size)]
    dist.all_gather(everyone, x)
    return everyone[rank ^ 1] if rank ^ 1 < world_size else x
""",
            verdict="forbidden",
            says="all_gather",
        ),
    ),
    hints=(
        "If both partners call `dist.send` first, whom does each of them wait for?",
        "Either one of the two receives first, or neither waits: `isend` and `irecv` return at once.",
        "Start both, then call `wait()` on both handles. Only then may you read what has arrived.",
    ),
    after="Your two messages cross on the way. MPI has one call for this: `MPI_Sendrecv`.",
)

RING_SHIFT = Exercise(
    name="ring_shift",
    lesson="02",
    title="One step round the ring",
    statement=(
        "Pass `x` to the right-hand neighbour and return, in a tensor like `x`, what comes from the left: rank r ends "
        "with the `x` of rank r - 1, and rank 0 with that of the last rank. `x` stays as it is. Send and receive only, "
        "with **any** number of ranks, and each rank sends one message."
    ),
    minutes=8,
    difficulty=1,
    means=_from_the_left,
    forbids=("collectives",),
    promises=(OnlyTo(+1), Messages(1)),
    keeps_input=True,
    least=Least(sent=lambda n, S: S, rounds=lambda n: 1, memory=lambda n, S: S),
    solution='''
def ring_shift(x):
    """Return the left-hand neighbour's x."""
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    got = torch.empty_like(x)
    exchange = [dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, got, left)]
    for work in dist.batch_isend_irecv(exchange):
        work.wait()
    return got
''',
    mutants=(
        Mutant(
            "lets everyone send first",
            replace=(
                "    exchange = [dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, got, left)]\n"
                "    for work in dist.batch_isend_irecv(exchange):\n"
                "        work.wait()\n",
                "    dist.send(x, dst=right)\n    dist.recv(got, src=left)\n",
            ),
            verdict="deadlock",
        ),
        Mutant(
            "turns the ring the other way",
            replace=(
                "(rank + 1) % world_size, (rank - 1) % world_size",
                "(rank - 1) % world_size, (rank + 1) % world_size",
            ),
        ),
        Mutant(
            "forgets that the ring closes",
            replace=("(rank + 1) % world_size,", "rank + 1,"),
            verdict="raises",
            says="no rank",
        ),
        Mutant("returns its own numbers", replace=("return got", "return x")),
        Mutant(
            "goes round by the left, all but one step of the way",
            source="""
def ring_shift(x):
    for _ in range(world_size - 1):
        got = torch.empty_like(x)
        works = [dist.isend(x, dst=(rank - 1) % world_size), dist.irecv(got, src=(rank + 1) % world_size)]
        for work in works:
            work.wait()
        x = got
    return x
""",
            verdict="not as asked",
            says="may only send to the next rank",
        ),
        Mutant(
            "sends its numbers in three pieces",
            source="""
def ring_shift(x):
    got = torch.empty_like(x)
    for mine, room in zip(x.tensor_split(3), got.tensor_split(3)):
        works = [dist.isend(mine, dst=(rank + 1) % world_size), dist.irecv(room, src=(rank - 1) % world_size)]
        for work in works:
            work.wait()
    return got
""",
            verdict="not as asked",
            says="sends 3 messages",
        ),
        Mutant(
            "gathers everybody's numbers",
            source="""
def ring_shift(x):
    everyone = [torch.empty_like(x) for _ in range(world_size)]
    dist.all_gather(everyone, x)
    return everyone[rank - 1]
""",
            verdict="forbidden",
            says="all_gather",
        ),
    ),
    hints=(
        "`(rank + 1) % world_size` is the right-hand neighbour, also of the last rank. Who is the left-hand one?",
        "A circle of ranks that all send first waits for ever. Lesson 02 has three repairs.",
        "`dist.batch_isend_irecv` takes a list of `dist.P2POp` and returns handles to wait for.",
    ),
    after=(
        "Every ring algorithm is this step, repeated. In lesson 06 you repeat it 2(N - 1) times and have an all-reduce."
    ),
)

SEND_UNEVEN = Exercise(
    name="send_uneven",
    lesson="02",
    title="A ring shift of unequal lengths",
    statement=(
        "As in `ring_shift`, but `x` has one dimension and **another length on every rank**; it may be empty. The "
        "dtype is the same everywhere. Return the left-hand neighbour's `x`, with its own length. Nobody knows "
        "another rank's length beforehand. Send and receive only."
    ),
    minutes=12,
    difficulty=2,
    means=_from_the_left,
    inputs=uneven,
    forbids=("collectives",),
    promises=(OnlyTo(+1),),
    least=Least(sent=lambda n, S: S + 8, rounds=lambda n: 2, memory=lambda n, S: S),  # its length goes first
    solution='''
def send_uneven(x):
    """Return the left-hand neighbour's x, whatever its length."""
    right, left = (rank + 1) % world_size, (rank - 1) % world_size

    def shift(mine, room):
        works = [dist.isend(mine, dst=right), dist.irecv(room, src=left)]
        for work in works:
            work.wait()
        return room

    length = torch.tensor([len(x)], device=device)
    length = shift(length, torch.empty_like(length))
    return shift(x, torch.empty(length.item(), dtype=x.dtype, device=device))
''',
    mutants=(
        Mutant(
            "makes room for a hundred elements",
            replace=("torch.empty(length.item(), ", "torch.zeros(100, "),
        ),
        Mutant(
            "takes the neighbour's tensor to be as long as its own",
            replace=("torch.empty(length.item(), dtype=x.dtype, device=device)", "torch.empty_like(x)"),
            verdict="raises",
        ),
        Mutant("announces one element more than it sends", replace=("[len(x)]", "[len(x) + 1]")),
        Mutant(
            "sends first and receives afterwards",
            replace=(
                "        works = [dist.isend(mine, dst=right), dist.irecv(room, src=left)]\n"
                "        for work in works:\n"
                "            work.wait()\n",
                "        dist.send(mine, dst=right)\n        dist.recv(room, src=left)\n",
            ),
            verdict="deadlock",
        ),
        Mutant(
            "sends its numbers to everybody, who keep their neighbour's",
            source="""
def send_uneven(x):
    everyone = []
    for step in range(1, world_size):
        to, source = (rank + step) % world_size, (rank - step) % world_size
        length, room = torch.tensor([len(x)], device=device), torch.zeros(1, dtype=torch.int64, device=device)
        for work in [dist.isend(length, dst=to), dist.irecv(room, src=source)]:
            work.wait()
        got = torch.empty(room.item(), dtype=x.dtype, device=device)
        for work in [dist.isend(x, dst=to), dist.irecv(got, src=source)]:
            work.wait()
        everyone.append(got)
    return everyone[0]
""",
            verdict="not as asked",
            says="may only send to the next rank",
        ),
    ),
    hints=(
        "A message is bytes: neither shape nor length travels with it. What must the receiver know before it can make "
        "room?",
        "Two shifts: first the length, in a tensor with one integer, then the numbers.",
        "`torch.empty(length, dtype=x.dtype, device=device)` is the room for the second shift.",
    ),
    after="`comms.send` and `comms.recv` do the same: a header first, then the tensor.",
)

PREFIX_SUM = Exercise(
    name="prefix_sum",
    lesson="02",
    title="A running total",
    statement=(
        "Every rank brings a tensor `x` of the same shape and dtype. Return a new tensor with the sum of the `x` of "
        "the ranks 0 to r, on rank r: rank 0 returns its own numbers, the last rank everyone's sum. `x` stays as it "
        "is. Send and receive only; no rank sends more than one message."
    ),
    minutes=8,
    difficulty=1,
    means=lambda xs: list(accumulate(xs)),
    forbids=("collectives",),
    promises=(Messages(1),),
    keeps_input=True,
    least=Least(sent=lambda n, S: S, rounds=lambda n: n - 1, memory=lambda n, S: S),
    solution='''
def prefix_sum(x):
    """Return the sum of the x of ranks 0 to this one."""
    total = x.clone()
    if rank > 0:
        dist.recv(total, src=rank - 1)
        total += x
    if rank < world_size - 1:
        dist.send(total, dst=rank + 1)
    return total
''',
    mutants=(
        Mutant("passes its own numbers on, not the total", replace=("dist.send(total,", "dist.send(x,")),
        Mutant("leaves itself out", replace=("        total += x\n", "")),
        Mutant("counts itself twice", replace=("total += x", "total += 2 * x")),
        Mutant(
            "makes rank 0 receive as well",
            replace=("    if rank > 0:", "    if rank >= 0:"),
            verdict="raises",
            says="no rank -1",
        ),
        Mutant(
            "lets every rank tell all that come after it",
            source="""
def prefix_sum(x):
    works = [dist.isend(x, dst=other) for other in range(rank + 1, world_size)]
    total, before = x.clone(), torch.empty_like(x)
    for other in range(rank):
        dist.recv(before, src=other)
        total += before
    for work in works:
        work.wait()
    return total
""",
            verdict="not as asked",
            says="and 1 is enough",
        ),
        Mutant(
            "closes the chain to a circle",
            source="""
def prefix_sum(x):
    total = x.clone()
    before = torch.zeros_like(x)
    dist.recv(before, src=(rank - 1) % world_size)
    if rank > 0:
        total += before
    dist.send(total, dst=(rank + 1) % world_size)
    return total
""",
            verdict="deadlock",
        ),
    ),
    hints=(
        "What must a rank hear before it can say anything?",
        "Receive, add, send: in this order. Which rank does not receive, and which one does not send?",
    ),
    after=(
        "A chain has no circle, so it cannot lock up, but rank N - 1 waits for N - 1 messages. MPI calls this a scan."
    ),
)

EXERCISES = (SWAP, RING_SHIFT, SEND_UNEVEN, PREFIX_SUM)
