"""Exercises of lesson 15: all-reduce and broadcast that send little from host to host, measured on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from labkit.grading.exercise import Budget, Case, exercise
from labkit.grading.inputs import counting, draws, vectors
from labkit.theory import collectives
from workbook.harnesses import my_group

if TYPE_CHECKING:
    from labkit.rank.cell_names import comms, dist, everyones, rank, recorder, torch, world_size


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


@exercise(
    "What a ring sends out of each host",
    lambda xs: [bytes_out_of_hosts(*x) for x in xs],
    minutes=8,
    difficulty=2,
    inputs=lambda n: [
        Case([ring] * n, about)
        for about, ring in {
            "two hosts of two, in order": ([0, 1, 2, 3], [0, 0, 1, 1], 4000),
            "the same, interleaved": ([0, 2, 1, 3], [0, 0, 1, 1], 4000),
            "begins in the middle of a host": ([1, 2, 3, 0], [0, 0, 1, 1], 4000),
            "ranks numbered in turn, visited by hosts": ([0, 2, 4, 1, 3, 5], [0, 1, 0, 1, 0, 1], 600),
            "ranks numbered in turn, visited by number": ([0, 1, 2, 3, 4, 5], [0, 1, 0, 1, 0, 1], 600),
            "three hosts of different sizes": ([0, 5, 1, 2, 3, 4], [0, 1, 1, 1, 2, 2], 1200),
            "a host that is visited twice": ([0, 1, 2, 3, 4], [0, 1, 0, 2, 2], 1000),
            "one host": ([2, 0, 1], [0, 0, 0], 300),
        }.items()
    ],
    picture=lambda: [([0, 1, 2, 3], [0, 0, 1, 1], 4000)] * 4,
    forbids=("collectives",),
    ranks=(2, 4),
    slips=OUT_SLIPS,
)
def bytes_out_of_hosts(order, home, nbytes):
    """Return a list of the bytes that leave each host in a ring all-reduce in this order.

    A ring all-reduces `nbytes` bytes per rank in chunks, as in lesson 06. `order` is the list of the ranks in the order
    of the ring: each sends to the next one, and the last one to the first. `home[r]` is the number of the host that
    rank r is on: 0, 1, …, and each host has at least one rank. Return a list: for each host, how many bytes it sends to
    other hosts during the whole all-reduce. The ring has `len(order)` ranks; that need not be `world_size`.
    Hint: Each rank sends 2 (N - 1) chunks of S/N bytes to the next one. They count only if that one is on a different
    host.
    Hint: Go through the places of the ring. The rank at place i sends to `order[(i + 1) % n]`.
    Afterwards: All that counts is how many times the ring leaves a host. Each time costs 2 S (N - 1)/N, nearly 2 S with
    many ranks.
    """
    out = [0] * (max(home) + 1)
    # yours
    n = len(order)
    for place, sender in enumerate(order):
        receiver = order[(place + 1) % n]
        if home[sender] != home[receiver]:
            out[home[sender]] += 2 * (n - 1) * nbytes / n
    # end
    return out


ON = {  # ways to put n ranks on hosts; the first one is the readable one
    2: ([[0], [1]], [[0, 1]]),
    3: ([[0, 1], [2]], [[0, 2], [1]], [[0], [1], [2]]),
    4: ([[0, 1], [2, 3]], [[0, 2], [1, 3]], [[0], [1, 2, 3]], [[0, 3], [1], [2]], [[0, 1, 2, 3]]),
}

LARGE = 2**15  # numbers, 128 KiB: of fewer, Gloo's headers would count


def _on(hosts: Sequence[Sequence[int]], case: Case, **more: Any) -> Case:
    each = " and ".join(str(list(ranks)) for ranks in hosts)
    said = f"hosts {each}" if len(hosts) > 1 else "all on one host"
    about = ", ".join(part for part in (said, *(f"{k} {v}" for k, v in more.items()), case.about) if part)
    return Case(case.xs, about, {"hosts": [list(ranks) for ranks in hosts], **more})


def _large(n: int) -> list[Case]:
    """Draw buffers of which the bytes are counted, one for each way to put the ranks on hosts."""
    return [Case(draws(n, 12 * (LARGE // 12), seed=150 + i), "128 KiB per rank") for i, _ in enumerate(ON[n])]


def _any(n: int) -> list[Case]:
    ways = ON[n]
    small = [_on(ways[i % len(ways)], case) for i, case in enumerate(vectors(n)[:7])]
    return small + [_on(hosts, case) for hosts, case in zip(ways, _large(n), strict=True)]


def _even(n: int) -> list[Case]:
    """Make cases of hosts with equally many ranks, and buffers that these ranks divide."""
    ways = [hosts for hosts in ON[n] if len({len(ranks) for ranks in hosts}) == 1]
    small = [Case(counting(n, 2 * n)), Case(draws(n, 6 * n, "float64", 151), "float64"), Case(counting(n, 0), "empty")]
    small.append(Case(draws(n, 3 * n, "int64", 152), "integers"))
    large = [_on(hosts, case) for hosts, case in zip(ways, _large(n), strict=False)]
    return [_on(ways[i % len(ways)], case) for i, case in enumerate(small)] + large


def sends_out(reduces, x, hosts, across, share, who=""):
    """Call with the groups of this host and `across`; hold what this rank sends to other hosts against its share."""
    from workbook.tools.rank import link

    with recorder.paused():
        groups = my_group(hosts), my_group(across)
        ends = link.connections(hosts)
        before = link.sent(ends)
    total = reduces(x, *groups)
    after = link.sent(ends)
    enough = 2 * (len(hosts) - 1) / len(hosts) * share
    size = x.numel() * x.element_size()
    if size >= 2**16 and before is not None and after is not None:
        gone = (after - before) / size
        assert gone <= 1.05 * enough + 0.02, (
            f"rank {rank}{who} sends {gone:.2f} S to other hosts, and {enough:.2f} S is enough"
        )
    return total


def run_leaders_all_reduce(reduces, x, hosts):
    """Give the groups of a host and of the leaders, and watch what this rank sends to other hosts."""
    hosts = [sorted(ranks) for ranks in hosts]
    leads = any(rank == ranks[0] for ranks in hosts)
    return sends_out(reduces, x, hosts, [[ranks[0] for ranks in hosts]], leads, "" if leads else ", no leader,")


def run_rails_all_reduce(reduces, x, hosts):
    """Give the groups of a host and of a rail, and watch what this rank sends to other hosts."""
    hosts = [sorted(ranks) for ranks in hosts]
    return sends_out(reduces, x, hosts, [list(slot) for slot in zip(*hosts)], 1 / len(hosts[0]))


@exercise(
    "One rank of each host talks to the others",
    lambda xs, hosts=(): collectives.all_reduce(xs),
    minutes=8,
    difficulty=2,
    inputs=_any,
    picture=lambda: counting(4, 2),
    keeps_input=True,
    harness=run_leaders_all_reduce,
)
def leaders_all_reduce(x, inside, leaders):
    """Return the sum of all ranks' x on every rank; of each host, one rank talks to other hosts.

    Return the sum of all ranks' `x` on every rank, in three calls of `torch.distributed`: add up **within** each host,
    add up **between** the hosts, hand the result out **within** each host. `inside` is the group of the ranks on this
    rank's host; the one with group rank 0 is the host's leader. `leaders` is the group of all leaders, and None on all
    other ranks. Only leaders send to other hosts. Between two hosts, each of them sends **S**; with h hosts, each
    sends **2 (h - 1) / h** times S. The check counts that on the wire. Hosts may have different numbers of ranks. `x`
    has one dimension and stays as it is.
    Hint: A reduce in `inside` to its group rank 0, an all-reduce in `leaders`, a broadcast in `inside`.
    Hint: `group_dst=0` and `group_src=0` count ranks within the group; `dst` and `src` count them in the world, where
    rank 0 is not on every host.
    Hint: Only a leader may call the all-reduce: with `group=None` it would be one of the whole world.
    Afterwards: Between two hosts, S cross each way, where the ring over all ranks sends 1.5 S. One rank of each host
    sends all of it while the others wait.
    """
    total = x.clone()
    # yours
    dist.reduce(total, group_dst=0, group=inside)
    if leaders is not None:
        dist.all_reduce(total, group=leaders)
    dist.broadcast(total, group_src=0, group=inside)
    # end
    return total


@exercise(
    "Every rank takes its share across",
    lambda xs, hosts=(): collectives.all_reduce(xs),
    difficulty=2,
    inputs=_even,
    picture=lambda: counting(4, 2),
    keeps_input=True,
    harness=run_rails_all_reduce,
)
def rails_all_reduce(x, inside, rail):
    """Return the sum of all ranks' x on every rank; each rank takes its share to the other hosts.

    Return the same sum. Now **every** rank sends to other hosts, and all send equally much: **2 (h - 1) / h** times
    S/g, if there are h hosts of g ranks. `inside` is the group of the ranks on this rank's host, and `rail` the group
    of the ranks with the same group rank in `inside`, one on each host. Every host has g = `inside.size()` ranks, and g
    divides the length of `x`. Three calls of `torch.distributed` do it. The check counts on the wire what each rank
    sends to other hosts. `x` stays as it is.
    Hint: After the reduce-scatter in `inside`, each rank has the host's sum of one share. The rank with the same group
    rank on every other host has that host's sum of the same share.
    Hint: So an all-reduce of the share in `rail` makes it the sum over all ranks. The other shares are still missing,
    and the ranks of your own host have them.
    Hint: `list(total.chunk(g))` are views of `total`: what `dist.all_gather` writes into them is in `total`.
    Afterwards: The hosts exchange as many bytes as with leaders, but over g connections at once. The puzzle `two_hosts`
    of lesson 06 asks for the same with sends, on two hosts of two.
    """
    total = torch.empty_like(x)
    # yours
    g = inside.size()
    share = x.new_empty(len(x) // g)
    dist.reduce_scatter(share, list(x.chunk(g)), group=inside)
    dist.all_reduce(share, group=rail)
    dist.all_gather(list(total.chunk(g)), share, group=inside)
    # end
    return total


def _places(xs: Sequence[Any]) -> list[Any]:
    known = list(dict.fromkeys(xs))
    return [[xs[:r].count(name), xs.count(name), known.index(name)] for r, name in enumerate(xs)]


NAMES = {
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


@exercise(
    "Which GPU is mine?",
    _places,
    minutes=6,
    inputs=lambda n: [Case([f"n{letter}" for letter in letters], about) for about, letters in NAMES[n].items()],
    picture=lambda: ["na", "na", "nb", "nb"],
)
def my_place(host):
    """Return (local_rank, local_world_size, node_rank) of this rank, whose host has this name.

    A rank knows its `rank`, and the name of its `host`, such as `'na'`. It does not know which GPU to take. Find it
    out together: return a tuple `(local_rank, local_world_size, node_rank)`. `local_rank` counts the ranks of
    **this** host from 0, in the order of their ranks; `local_world_size` is their number; `node_rank` counts the
    hosts from 0, in the order of their lowest ranks. Hosts may have different numbers of ranks, and ranks of one host
    need not have neighbouring numbers. `comms.all_gather` takes any object.
    Hint: `hosts = comms.all_gather(host)` is the list of all names, index = rank. The rest is counting in it.
    Hint: How many ranks **before** this one have the same name? That is the local rank.
    Hint: `dict.fromkeys(hosts)` keeps each name once, in the order in which they come first.
    Afterwards: This is what torchrun, srun and labkit tell each process as LOCAL_RANK, LOCAL_WORLD_SIZE and GROUP_RANK
    (Slurm says SLURM_LOCALID and SLURM_NODEID). A GPU's number counts within its host, so it goes by the local rank.
    """
    hosts = comms.all_gather(host)
    return hosts[:rank].count(host), hosts.count(host), list(dict.fromkeys(hosts)).index(host)


def run_ring_by_hosts(ring_by_hosts, home):
    order = list(ring_by_hosts(list(home)))
    n = len(home)
    each = sorted(order, key=str) == sorted(range(n), key=str)
    assert each, f"{order} does not have each of the ranks 0 to {n - 1} once"
    start = order.index(0)
    told = everyones(order[start:] + order[:start])
    assert told == [told[0]] * world_size, f"the ranks do not agree on the ring: {told[0]} and {told[-1]}"
    changes = sum(home[a] != home[b] for a, b in zip(order, order[1:] + order[:1]))
    fewest = len(set(home)) if len(set(home)) > 1 else 0
    assert changes == fewest, f"the ring {order} goes from host to host {changes} times, and {fewest} is enough"
    return changes


@exercise(
    "A ring that knows the hosts",
    lambda xs: [len(set(xs[0])) if len(set(xs[0])) > 1 else 0] * len(xs),
    minutes=5,
    inputs=lambda n: [
        Case([[*letters] for _ in range(n)], about)
        for about, letters in {
            "interleaved, two hosts": "abababab",
            "three hosts of different sizes": "abcacabba",
            "one host": "aaaa",
            "already in order": "aabbccdd",
            "four hosts, the last first": "dcbadcba",
            "a rank for each host": "badc",
        }.items()
    ],
    forbids=("collectives",),
    harness=run_ring_by_hosts,
)
def ring_by_hosts(home):
    """Return the ranks in the order of a ring that changes hosts as few times as it can.

    `home[r]` is the name of the host that rank r is on, the same list on every rank. Return all ranks in the order in
    which a ring should visit them, so that it goes **from one host to another as few times** as a ring can, including
    the way back to the first rank. Any such order will do, but all ranks have to return the same ring, without
    communicating. The list may be longer than the number of ranks that you have. The check counts how many times the
    ring changes hosts.
    Hint: If all ranks of a host follow one another, the ring leaves each host once. Fewer is impossible.
    Hint: Sort the ranks by their hosts: `sorted(range(len(home)), key=…)`.
    Afterwards: With h hosts the ring changes hosts h times, however many ranks there are. Launchers number the ranks
    host by host for this reason, and NCCL finds such rings by itself, whatever the numbers are. (An order by `set` or
    `hash` passes here but not everywhere: processes that are started separately hash texts differently.)
    """
    return sorted(range(len(home)), key=lambda r: home[r])


def _roots(n: int) -> list[Case]:
    ways = ([[1, 0]], [[1], [0]]) if n == 2 else ([[2, 0], [1]], *ON[3]) if n == 3 else ([[2, 0], [3, 1]], *ON[4])
    return [_on(ways[i % len(ways)], case, root=(i + n - 1) % n) for i, case in enumerate(vectors(n))]


@exercise(
    "A broadcast that crosses once",
    lambda xs, root=0, **_: [xs[root]] * len(xs),
    difficulty=2,
    inputs=_roots,
    forbids=("collectives",),
    budget=Budget(link=lambda n, S: S),
    picture=lambda: counting(4, 2),
    keeps_input=True,
)
def broadcast_once(x, hosts, root):
    """Return the root's x on every rank; it goes to each other host once.

    Rank `root` has the weights, and all ranks need them. `hosts` says who is where, such as `[[0, 1], [2, 3]]`: hosts
    may have different numbers of ranks, their numbers come in any order, and the root may be any of them. Return the
    root's `x` on every rank, by `dist.send` and `dist.recv`, so that **no more than S** bytes go from any host to any
    other. Every rank brings an `x` of the same shape and dtype, which stays as it is.
    Hint: In each host one rank has it first: in the root's host the root, in the others any rank you like.
    Hint: The root sends to that rank of every other host. After that, each of these ranks sends to the others on its
    own host.
    Hint: All other ranks only receive, once, from the rank that has it first on their host.
    Afterwards: Gloo's broadcast is a tree over the ranks' numbers and does not know where the ranks are. With the ranks
    in the order of the hosts it does well by luck; with interleaved ranks the same bytes cross several times.
    """
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
