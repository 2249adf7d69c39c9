"""Exercises of lesson 15: which rank is where, a ring that visits the hosts in order, and what it sends out of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.grading.exercise import Case, Exercise

# -- where am I? ------------------------------------------------------------------------------------------------------


def _places(xs: Sequence[Any]) -> list[Any]:
    known = list(dict.fromkeys(xs))
    return [[list(xs[:r]).count(name), list(xs).count(name), known.index(name)] for r, name in enumerate(xs)]


def _names(n: int) -> list[Case]:
    cases = {
        2: {"one host": "aa", "two hosts": "ab", "named the other way round": "ba"},
        3: {"two hosts": "aab", "one rank on the first": "baa", "not side by side": "aba", "three hosts": "cab"},
        4: {
            "two hosts of two": "aabb",
            "interleaved": "abab",
            "named the other way round": "bbaa",
            "uneven": "abbb",
            "three hosts": "cacb",
            "one host": "aaaa",
        },
    }
    return [Case([f"n{letter}" for letter in letters], about) for about, letters in cases[n].items()]


PLACE = Exercise(
    name="my_place",
    lesson="15",
    title="Which GPU is mine?",
    statement=(
        "A rank knows its `rank`, and the name of its `host`, such as `'na'`. Which GPU to take, it does not know. "
        "Find out together: return a tuple `(local_rank, local_world_size, node_rank)`. `local_rank` counts the ranks "
        "of **this** host from 0, in the order of their ranks; `local_world_size` is how many they are; `node_rank` "
        "counts the hosts from 0, in the order of their lowest ranks. Hosts may have different numbers of ranks, and "
        "ranks of one host need not have neighbouring numbers. `comms.all_gather` takes any object."
    ),
    minutes=6,
    difficulty=1,
    means=_places,
    inputs=_names,
    picture=lambda: ["na", "na", "nb", "nb"],
    solution='''
def my_place(host):
    """Return (local_rank, local_world_size, node_rank) of this rank, whose host has this name."""
    hosts = comms.all_gather(host)
    return hosts[:rank].count(host), hosts.count(host), list(dict.fromkeys(hosts)).index(host)
''',
    hints=(
        "`hosts = comms.all_gather(host)` is the list of all names, index = rank. All the rest is counting in it.",
        "How many ranks **before** this one have the same name? That is the local rank.",
        "`dict.fromkeys(hosts)` keeps each name once, in the order in which they come first.",
    ),
    after=(
        "This is what torchrun, srun and labkit tell each process as LOCAL_RANK, LOCAL_WORLD_SIZE and GROUP_RANK "
        "(Slurm says SLURM_LOCALID and SLURM_NODEID). A GPU's number counts within its host, so it goes by the local "
        "rank."
    ),
)

# -- in which order? --------------------------------------------------------------------------------------------------


def _crossings(xs: Sequence[Any]) -> list[Any]:
    (home,) = {tuple(x) for x in xs}
    hosts = len(set(home))
    return [hosts if hosts > 1 else 0 for _ in xs]


def _homes(n: int) -> list[Case]:
    cases = {
        "interleaved, two hosts": "abababab",
        "three hosts of different sizes": "abcacabba",
        "one host": "aaaa",
        "already in order": "aabbccdd",
        "four hosts, the last first": "dcbadcba",
        "a rank for each host": "badc",
    }
    return [Case([[*letters] for _ in range(n)], about) for about, letters in cases.items()]


AROUND = """
def harness(ring_by_hosts, home):
    from labkit.rank import recorder

    order = list(ring_by_hosts(list(home)))
    n = len(home)
    each = sorted(order, key=str) == sorted(range(n), key=str)
    assert each, f"{order} does not have each of the ranks 0 to {n - 1} once"
    start = order.index(0)
    told = [None] * world_size
    with recorder.paused():
        dist.all_gather_object(told, order[start:] + order[:start])
    assert told == [told[0]] * world_size, f"the ranks do not agree on the ring: {told[0]} and {told[-1]}"
    changes = sum(home[a] != home[b] for a, b in zip(order, order[1:] + order[:1]))
    fewest = len(set(home)) if len(set(home)) > 1 else 0
    assert changes == fewest, f"the ring {order} goes from host to host {changes} times, and {fewest} is enough"
    return changes
"""

BY_HOSTS = Exercise(
    name="ring_by_hosts",
    lesson="15",
    title="A ring that knows the hosts",
    statement=(
        "`home[r]` is the name of the host that rank r is on, the same list on every rank. Return all ranks in the "
        "order in which a ring should visit them, so that it goes **from one host to another as few times** as a ring "
        "can, the way back to the first rank included. Any such order will do, but all ranks have to return the same "
        "ring: they communicate nothing. The list may be longer than the number of ranks that you have. The check "
        "counts how many times the ring changes hosts."
    ),
    minutes=5,
    difficulty=1,
    means=_crossings,
    inputs=_homes,
    harness=AROUND,
    forbids=("collectives",),
    solution='''
def ring_by_hosts(home):
    """Return the ranks in the order of a ring that changes hosts as few times as it can."""
    return sorted(range(len(home)), key=lambda r: home[r])
''',
    hints=(
        "If all ranks of a host follow one another, the ring leaves each host once. It cannot do with less.",
        "Sort the ranks by their hosts: `sorted(range(len(home)), key=…)`.",
    ),
    after=(
        "With h hosts the ring changes hosts h times, however many ranks there are. Launchers number the ranks host by "
        "host for this reason, and NCCL finds such rings by itself, whatever the numbers are. (An order by `set` or "
        "`hash` passes here, and not everywhere: processes that are started apart hash texts differently.)"
    ),
)

# -- how much? --------------------------------------------------------------------------------------------------------


def out_of_hosts(order: Sequence[int], home: Sequence[int], nbytes: float) -> list[float]:
    """The bytes that leave each host in a ring all-reduce of `nbytes` bytes a rank that visits the ranks in this order.

    >>> out_of_hosts([0, 1, 2, 3], [0, 0, 1, 1], 100), out_of_hosts([0, 2, 1, 3], [0, 0, 1, 1], 100)
    ([150.0, 150.0], [300.0, 300.0])
    """
    n = len(order)
    each = 2 * (n - 1) / n * nbytes
    ends = [(home[a], home[b]) for a, b in zip(order, [*order[1:], order[0]], strict=True)]
    return [each * sum(a == h != b for a, b in ends) for h in range(max(home) + 1)]


def _out(xs: Sequence[Any]) -> list[Any]:
    return [out_of_hosts(*x) for x in xs]


def _rings(n: int) -> list[Case]:
    cases: dict[str, tuple[list[int], list[int], int]] = {
        "two hosts of two, in order": ([0, 1, 2, 3], [0, 0, 1, 1], 4000),
        "the same, interleaved": ([0, 2, 1, 3], [0, 0, 1, 1], 4000),
        "begins in the middle of a host": ([1, 2, 3, 0], [0, 0, 1, 1], 4000),
        "ranks numbered in turn, visited by hosts": ([0, 2, 4, 1, 3, 5], [0, 1, 0, 1, 0, 1], 600),
        "ranks numbered in turn, visited by number": ([0, 1, 2, 3, 4, 5], [0, 1, 0, 1, 0, 1], 600),
        "three hosts of different sizes": ([0, 5, 1, 2, 3, 4], [0, 1, 1, 1, 2, 2], 1200),
        "a host that is visited twice": ([0, 1, 2, 3, 4], [0, 1, 0, 2, 2], 1000),
        "one host": ([2, 0, 1], [0, 0, 0], 300),
    }
    return [Case([ring for _ in range(n)], about) for about, ring in cases.items()]


OUT = Exercise(
    name="bytes_out_of_hosts",
    lesson="15",
    title="What a ring sends out of each host",
    statement=(
        "A ring all-reduce in chunks, as in lesson 06, of `nbytes` bytes a rank. `order` is the list of the ranks in "
        "the order of the ring: each sends to the next one, and the last one to the first. `home[r]` is the number of "
        "the host that rank r is on: 0, 1, …, and each has at least one rank. Return a list: how many bytes leave each "
        "host for another one, over the whole all-reduce. The number of ranks of the ring is `len(order)`; it need not "
        "be `world_size`."
    ),
    minutes=8,
    difficulty=2,
    means=_out,
    inputs=_rings,
    picture=lambda: [([0, 1, 2, 3], [0, 0, 1, 1], 4000)] * 4,
    forbids=("collectives",),
    ranks=(2, 4),
    solution='''
def bytes_out_of_hosts(order, home, nbytes):
    """Return a list of the bytes that leave each host in a ring all-reduce in this order."""
    out = [0] * (max(home) + 1)
    # yours
    n = len(order)
    for place, sender in enumerate(order):
        receiver = order[(place + 1) % n]
        if home[sender] != home[receiver]:
            out[home[sender]] += 2 * (n - 1) * nbytes / n
    # end
    return out
''',
    hints=(
        "Each rank sends to the next one 2 (N - 1) chunks of S/N bytes. That counts only if the next one is on another "
        "host.",
        "Go through the places of the ring. The receiver at place i is `order[(i + 1) % n]`.",
    ),
    after=(
        "What counts is how many times the ring leaves a host. Each time costs 2 S (N - 1)/N, nearly 2 S on many ranks."
    ),
)

OUT_SLIPS = {
    "forgets the way from the last rank to the first": ("in enumerate(order):", "in enumerate(order[:-1]):"),
    "counts a reduce-scatter only": ("2 * (n - 1) * nbytes / n", "(n - 1) * nbytes / n"),
    "takes whole buffers for the messages": ("2 * (n - 1) * nbytes / n", "2 * (n - 1) * nbytes"),
    "counts what stays inside, too": ("if home[sender] != home[receiver]:", "if True:"),
    "takes the places in the ring for the ranks": (
        "home[sender] != home[receiver]",
        "home[place] != home[(place + 1) % n]",
    ),
    "divides by the number of hosts": ("2 * (n - 1) * nbytes / n", "2 * (len(out) - 1) * nbytes / len(out)"),
    "counts a host once, however many times the ring leaves it": ("out[home[sender]] += 2", "out[home[sender]] = 2"),
    "counts what comes in as well": (
        "out[home[sender]] += 2 * (n - 1) * nbytes / n",
        "out[home[sender]] += 2 * (n - 1) * nbytes / n; out[home[receiver]] += 2 * (n - 1) * nbytes / n",
    ),
    "takes the world's size for the ring's": ("n = len(order)", "n = world_size"),
}

EXERCISES: tuple[Exercise, ...] = ()  # they stand among those of lesson15.py
