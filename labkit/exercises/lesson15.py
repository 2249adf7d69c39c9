"""Exercises of lesson 15: all-reduce and broadcast that send little from host to host, measured on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.exercises.lesson15_places import BY_HOSTS, OUT, OUT_SLIPS, PLACE
from labkit.grading.exercise import Budget, Case, Exercise
from labkit.grading.inputs import counting, draws, vectors
from labkit.grading.slips import naming
from labkit.theory import collectives

Hosts = Sequence[Sequence[int]]
ON = {  # ways to put n ranks on hosts; the first one is the readable one
    2: ([[0], [1]], [[0, 1]]),
    3: ([[0, 1], [2]], [[0, 2], [1]], [[0], [1], [2]]),
    4: ([[0, 1], [2, 3]], [[0, 2], [1, 3]], [[0], [1, 2, 3]], [[0, 3], [1], [2]], [[0, 1, 2, 3]]),
}
LARGE = 2**15  # numbers, 128 KiB: of fewer, Gloo's headers would count


def _sum(xs: Sequence[Any], **_: Any) -> list[Any]:
    return collectives.all_reduce(xs)


def _on(hosts: Hosts, case: Case, **more: Any) -> Case:
    said = f"hosts {' and '.join(str(list(ranks)) for ranks in hosts)}"
    about = ", ".join(part for part in (said, *(f"{k} {v}" for k, v in more.items()), case.about) if part)
    return Case(case.xs, about, {"hosts": [list(ranks) for ranks in hosts], **more}, case.dtype)


def _large(n: int) -> list[Case]:
    """Buffers of which the bytes are counted, one for each way to put the ranks on hosts."""
    return [Case(draws(n, 12 * (LARGE // 12), seed=150 + i), "128 KiB a rank") for i, _ in enumerate(ON[n])]


def _any(n: int) -> list[Case]:
    small = vectors(n)[:7]
    ways = ON[n]
    return [
        *(_on(ways[i % len(ways)], case) for i, case in enumerate(small)),
        *(_on(hosts, case) for hosts, case in zip(ways, _large(n), strict=True)),
    ]


def _even(n: int) -> list[Case]:
    """Hosts with equally many ranks, and buffers that these ranks divide."""
    ways = [hosts for hosts in ON[n] if len({len(ranks) for ranks in hosts}) == 1]
    small = [Case(counting(n, 2 * n)), Case(draws(n, 6 * n, "float64", 151), "float64"), Case(counting(n, 0), "empty")]
    small.append(Case(draws(n, 3 * n, "int64", 152), "integers"))
    return [
        *(_on(ways[i % len(ways)], case) for i, case in enumerate(small)),
        *(_on(hosts, case) for hosts, case in zip(ways, _large(n), strict=False)),
    ]


def _measured(groups: str, call: str, share: str, who: str) -> str:
    """A harness that makes groups, counts the bytes that this rank sends to other hosts, and holds them against S."""
    return f"""
def harness(reduces, x, hosts):
    from labkit.rank import link, recorder

    hosts = [sorted(ranks) for ranks in hosts]
    (mine,) = [ranks for ranks in hosts if rank in ranks]
    with recorder.paused():

        def made(among):
            groups = [(ranks, dist.new_group(ranks)) for ranks in among]
            return next((group for ranks, group in groups if rank in ranks), None)

        {groups}
        ends = link.connections(hosts)
        before = link.sent(ends)
    total = {call}
    after = link.sent(ends)
    size, h, g = x.numel() * x.element_size(), len(hosts), len(mine)
    enough = 2 * (h - 1) / h * {share}
    if size >= 2**16 and after is not None:
        gone = (after - before) / size
        assert gone <= 1.05 * enough + 0.02, (
            f"rank {{rank}}{who} sends {{gone:.2f}} S to other hosts, and {{enough:.2f}} S is enough"
        )
    return total
"""


LEADERS = Exercise(
    name="leaders_all_reduce",
    lesson="15",
    title="One rank of each host talks to the others",
    statement=(
        "Return the sum of all ranks' `x` on every rank, in three calls of `torch.distributed`: add up **within** each "
        "host, add up **between** the hosts, hand the result out **within** each host. `inside` is the group of the "
        "ranks on this rank's host; the one with group rank 0 is the host's leader. `leaders` is the group of all "
        "leaders, and None on a rank that is no leader. Only leaders send anything to another host, with h hosts "
        "**2 (h - 1) / h** times S each: S with two hosts. The check counts that on the wire. Hosts may have different "
        "numbers of ranks. `x` has one dimension and stays as it is."
    ),
    minutes=8,
    difficulty=2,
    means=_sum,
    inputs=_any,
    harness=_measured(
        "inside, leaders = made(hosts), made([[ranks[0] for ranks in hosts]])",
        "reduces(x, inside, leaders)",
        "(rank == mine[0])",
        "{', no leader,' if rank != mine[0] else ''}",
    ),
    picture=lambda: counting(4, 2),
    keeps_input=True,
    solution='''
def leaders_all_reduce(x, inside, leaders):
    """Return the sum of all ranks' x on every rank; of each host, one rank talks to other hosts."""
    total = x.clone()
    # yours
    dist.reduce(total, group_dst=0, group=inside)
    if leaders is not None:
        dist.all_reduce(total, group=leaders)
    dist.broadcast(total, group_src=0, group=inside)
    # end
    return total
''',
    hints=(
        "A reduce in `inside` to its group rank 0, an all-reduce in `leaders`, a broadcast in `inside`.",
        "`group_dst=0` and `group_src=0` count ranks within the group; `dst` and `src` count them in the world, where "
        "rank 0 is not on every host.",
        "Only a leader may call the all-reduce: with `group=None` it would be one of the whole world.",
    ),
    after=(
        "S each way between two hosts, where the ring over all ranks sends 1.5 S. One rank of each host sends all of "
        "it, while the others wait."
    ),
)

RAILS = Exercise(
    name="rails_all_reduce",
    lesson="15",
    title="Every rank takes its share across",
    statement=(
        "Return the same sum, but now **every** rank of a host sends to other hosts, each an equal share: with h hosts "
        "of g ranks, **2 (h - 1) / h** times S/g. `inside` is the group of the ranks on this rank's host, "
        "and `rail` the group of the ranks with the same group rank in `inside`, one on each host. Every host has g = "
        "`inside.size()` ranks, and g divides the length of `x`. Three calls of "
        "`torch.distributed` do it. The check counts on the wire what each rank sends to other hosts. `x` stays as it "
        "is."
    ),
    minutes=10,
    difficulty=2,
    means=_sum,
    inputs=_even,
    harness=_measured(
        "inside, rail = made(hosts), made([list(slot) for slot in zip(*hosts)])",
        "reduces(x, inside, rail)",
        "1 / g",
        "",
    ),
    picture=lambda: counting(4, 2),
    keeps_input=True,
    solution='''
def rails_all_reduce(x, inside, rail):
    """Return the sum of all ranks' x on every rank; each rank takes its share to the other hosts."""
    total = torch.empty_like(x)
    # yours
    g = inside.size()
    share = x.new_empty(len(x) // g)
    dist.reduce_scatter(share, list(x.chunk(g)), group=inside)
    dist.all_reduce(share, group=rail)
    dist.all_gather(list(total.chunk(g)), share, group=inside)
    # end
    return total
''',
    hints=(
        "After the reduce-scatter in `inside`, each rank has the host's sum of one share. The rank with the same "
        "group rank on every other host has that host's sum of the same share.",
        "So an all-reduce of the share in `rail` makes it the sum over all ranks. What is missing are the other "
        "shares, and the ranks of your own host have them.",
        "`list(total.chunk(g))` are views of `total`: what `dist.all_gather` writes into them is in `total`.",
    ),
    after=(
        "The hosts exchange as many bytes as with leaders, but over g connections at once. The puzzle `two_hosts` of "
        "lesson 06 asks for the same with sends, on two hosts of two."
    ),
)


def _roots(n: int) -> list[Case]:
    cases = vectors(n)
    ways = ([[1, 0]], [[1], [0]]) if n == 2 else ([[2, 0], [1]], *ON[3]) if n == 3 else ([[2, 0], [3, 1]], *ON[4])
    return [_on(ways[i % len(ways)], case, root=(i + n - 1) % n) for i, case in enumerate(cases)]


def _roots_x(xs: Sequence[Any], root: int = 0, **_: Any) -> list[Any]:
    return [xs[root]] * len(xs)


ONCE = '''
def broadcast_once(x, hosts, root):
    """Return the root's x on every rank; it goes to each other host once."""
    got = x.clone()
    (here,) = [ranks for ranks in hosts if rank in ranks]
    entry = root if root in here else here[0]  # where this host has it first
    if rank == root:
        for ranks in hosts:
            if root not in ranks:
                dist.send(got, dst=ranks[0])
    elif rank == entry:
        dist.recv(got, src=root)
    if rank == entry:
        for other in here:
            if other != entry:
                dist.send(got, dst=other)
    else:
        dist.recv(got, src=entry)
    return got
'''
CHAIN = """
def broadcast_once(x, hosts, root):
    got = x.clone()
    if rank != root:
        dist.recv(got, src=(rank - 1) % world_size)
    if (rank + 1) % world_size != root:
        dist.send(got, dst=(rank + 1) % world_size)
    return got
"""

BROADCAST = Exercise(
    name="broadcast_once",
    lesson="15",
    title="A broadcast that crosses once",
    statement=(
        "Rank `root` has the weights, and all ranks need them. `hosts` says who is where, such as `[[0, 1], [2, 3]]`: "
        "hosts may have different numbers of ranks, their numbers come in any order, and the root may be any of them. "
        "Return the root's `x` on every rank, by `dist.send` and `dist.recv`, so that **no more than S** bytes go from "
        "any host to any other. Every rank brings an `x` of the same shape and dtype, which stays as it is."
    ),
    minutes=10,
    difficulty=2,
    means=_roots_x,
    inputs=_roots,
    forbids=("collectives",),
    budget=Budget(link=lambda n, S: S),
    picture=lambda: counting(4, 2),
    keeps_input=True,
    solution=ONCE,
    hints=(
        "In each host one rank has it first: the root in its own host, any one you like in the others.",
        "The root sends to that rank of every other host. After that, each of these ranks sends to the others on its "
        "own host.",
        "A rank that is not the first of its host to have it only receives, once.",
    ),
    after=(
        "Gloo's broadcast is a tree over the ranks' numbers and does not know where they are. With the ranks in the "
        "order of the hosts it does well by luck; with interleaved ranks the same bytes cross several times."
    ),
)

EXERCISES = (naming(OUT, OUT_SLIPS), LEADERS, RAILS, PLACE, BY_HOSTS, BROADCAST)  # as the lesson asks them
