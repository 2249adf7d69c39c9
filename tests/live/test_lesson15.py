"""Lesson 15: what its all-reduces send across is what theory says, and the checks take other right ways."""

from __future__ import annotations

import itertools
from math import prod

import pytest

import labkit
from labkit.content import exercises
from tests.live.lesson_cells import beginning
from workbook.lesson15 import bytes_out_of_hosts
from workbook.tools import schedules

S = 4 * 2**20
HOSTS = [[0, 1], [2, 3]]
HOME = [0, 0, 1, 1]

OTHER_WAYS = {
    "leaders_all_reduce": [
        """
def leaders_all_reduce(x, inside, leaders):
    total = x.clone()
    dist.all_reduce(total, group=inside)
    if leaders is not None:
        dist.all_reduce(total, group=leaders)
    dist.broadcast(total, src=dist.get_global_rank(inside, 0), group=inside)
    return total
""",
        """
def leaders_all_reduce(x, inside, leaders):
    rooms = [torch.empty_like(x) for _ in range(inside.size())] if leaders is not None else None
    dist.gather(x, rooms, group_dst=0, group=inside)
    total = torch.empty_like(x)
    if leaders is not None:
        total = torch.stack(rooms).sum(0)
        dist.all_reduce(total, group=leaders)
    dist.broadcast(total, group_src=0, group=inside)
    return total
""",
    ],
    "rails_all_reduce": [
        """
def rails_all_reduce(x, inside, rail):
    total = x.clone()
    dist.all_reduce(total, group=inside)
    share = total.chunk(inside.size())[inside.rank()].clone()
    dist.all_reduce(share, group=rail)
    parts = [torch.empty_like(share) for _ in range(inside.size())]
    dist.all_gather(parts, share, group=inside)
    return torch.cat(parts)
""",
    ],
    "broadcast_once": [
        """
def broadcast_once(x, hosts, root):
    got = x.clone()
    heads = [root if root in ranks else max(ranks) for ranks in hosts]
    ways = [(root, head) for head in heads if head != root]
    ways += [(head, r) for head, ranks in zip(heads, hosts) for r in ranks if r != head]
    for src, dst in ways:
        if rank == src:
            dist.send(got, dst=dst)
        if rank == dst:
            dist.recv(got, src=src)
    return got
""",
        """
def broadcast_once(x, hosts, root):
    got = x.clone()
    (first,) = [ranks for ranks in hosts if root in ranks]
    order = [root, *[r for r in first if r != root], *[r for ranks in hosts if root not in ranks for r in ranks]]
    place = order.index(rank)
    if place:
        dist.recv(got, src=order[place - 1])
    if place + 1 < len(order):
        dist.send(got, dst=order[place + 1])
    return got
""",
    ],
    "my_place": [
        """
def my_place(host):
    told = [None] * world_size
    dist.all_gather_object(told, host)
    seen = {}
    for r, name in enumerate(told):
        seen.setdefault(name, []).append(r)
    mine = seen[host]
    return [mine.index(rank), len(mine), list(seen).index(host)]
""",
    ],
    "ring_by_hosts": [
        """
def ring_by_hosts(home):
    by_host = {}
    for r, name in enumerate(home):
        by_host.setdefault(name, []).append(r)
    return [r for name in reversed(by_host) for r in reversed(by_host[name])]
""",
    ],
    "bytes_out_of_hosts": [
        """
def bytes_out_of_hosts(order, home, nbytes):
    ends = [(home[a], home[b]) for a, b in zip(order, order[1:] + order[:1])]
    each = 2 * nbytes - 2 * nbytes / len(order)
    return [each * sum(a == h and b != h for a, b in ends) for h in sorted(set(home))]
""",
    ],
}


@pytest.fixture(scope="module")
def lab(own_progress):
    with labkit.start(4, timeout=5) as lab:
        yield lab


def test_every_exercise_has_another_way():
    assert set(OTHER_WAYS) == {e.name for e in exercises.every().values() if e.lesson == "15"}


@pytest.mark.parametrize(("name", "source"), [(name, way) for name, ways in OTHER_WAYS.items() for way in ways])
def test_another_right_way_is_right(lab, name, source):
    lab.run(source)
    verdict = lab.check(name)
    assert verdict.state == "right", repr(verdict)


def near(seen: list[list[int]], shares: tuple[float, float]) -> bool:
    """Bytes out of the first host and of the second, in units of S, to 1 %."""
    return seen == [[0, pytest.approx(shares[0] * S, rel=0.01)], [pytest.approx(shares[1] * S, rel=0.01), 0]]


@pytest.fixture(scope="module")
def ways(lab):
    """The lesson's ring, its cell that makes the groups, and the workbook's functions."""
    lab.push(hosts=HOSTS)
    lab.run(f"x = torch.ones({S // 4}, device=device)")
    lab.run("from workbook.tools.rank.ring import ring_in_order")
    (groups,) = beginning("15", "from torch.distributed.device_mesh import")
    lab.run(groups)
    for name in ("leaders_all_reduce", "rails_all_reduce"):
        lab.run(exercises.find(name).answer.removeprefix("%%px\n"))
    return lab


def test_a_ring_sends_across_what_its_order_makes_it_send(ways):
    for order in itertools.permutations(range(1, 4)):
        there, back = bytes_out_of_hosts([0, *order], HOME, 1)
        assert near(ways.wire(f"ring_in_order(x.clone(), [0, *{order}])").across(HOSTS), (there, back))


def test_torchs_own_ring_goes_by_the_numbers_whatever_order_a_group_is_given(ways):
    assert near(ways.wire("dist.all_reduce(x.clone())").across(HOSTS), (1.5, 1.5))
    ways.run("g = dist.new_group([0, 2, 1, 3])")
    assert near(ways.wire("dist.all_reduce(x.clone(), group=g)").across(HOSTS), (1.5, 1.5))


def test_hierarchical_ways_send_each_host_s_sum_once_and_rails_over_every_rank(ways):
    leaders = ways.wire("y = leaders_all_reduce(x, inside, leaders)")
    assert near(leaders.across(HOSTS), (1, 1))
    assert leaders.matrix[1][2] + leaders.matrix[1][3] + leaders.matrix[3][0] + leaders.matrix[3][1] < 0.01 * S
    rails = ways.wire("y = rails_all_reduce(x, inside, rail)")
    assert near(rails.across(HOSTS), (1, 1))
    for a, b in ((0, 2), (2, 0), (1, 3), (3, 1)):
        assert rails.matrix[a][b] == pytest.approx(S / 2, rel=0.01)
    assert ways.pull("y.eq(4).all().item()") == [True] * 4


@pytest.mark.parametrize("sizes", [(2, 2), (2, 4), (4, 2)])
def test_the_schedules_of_theory_cross_as_often_as_the_exercise_says(sizes):
    hosts, each = sizes
    n = prod(sizes)
    home = [r // each for r in range(n)]
    assert schedules.ring("all_reduce", n).crossing(each, 1.0) == pytest.approx(bytes_out_of_hosts(range(n), home, 1.0))
    assert schedules.hierarchical("all_reduce", *sizes).crossing(each, 1.0) == pytest.approx(
        [2 * (hosts - 1) / hosts] * hosts
    )
