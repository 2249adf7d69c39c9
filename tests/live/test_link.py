"""A link that the kernel slows down: on the right connections, read back from them, and taken away again."""

from __future__ import annotations

import pytest

import labkit
from labkit.floor.errors import CellError

# What the kernel says of each of this rank's connections: the other end's rank → its rate in bytes per second.
RATES = """
import socket
from labkit.rank import group
from workbook.tools.rank import link
def rates():
    owner = link.connections([[r] for r in range(world_size)])
    found = {}
    for noted, other in owner.items():
        with group.opened(noted) as s:
            found.setdefault(other, set()).add(s.getsockopt(socket.SOL_SOCKET, link.PACING, 8)[:4])
    return {other: sorted(int.from_bytes(rate, "little") for rate in rates) for other, rates in found.items()}
"""
FREE = 2**32 - 1

# Ranks 0 and 1 connect from one port to ranks 2 and 3, as Linux may choose as well.
FROM_ONE_PORT = """
import os, socket, weakref
from labkit.rank import group
from workbook.tools.rank import link
def told(value):
    values = [None] * 4
    dist.all_gather_object(values, value)
    return values
own = socket.socket()
own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
own.bind(("127.0.0.1", 0)) if rank != 1 else None
own.listen() if rank > 1 else None
ports = told(own.getsockname()[1])
own.bind(("127.0.0.1", ports[0])) if rank == 1 else None
own.connect(("127.0.0.1", ports[rank + 2])) if rank < 2 else None
with own if rank < 2 else own.accept()[0] as s:
    noted = s.fileno(), os.fstat(s.fileno()).st_ino
    group._sockets.append((weakref.ref(dist.group.WORLD), {noted}))
    begins = told((s.getsockname() if rank < 2 else s.getpeername())[1])
    leads = [link.connections(hosts).get(noted) for hosts in ([[0, 2], [1, 3]], [[0, 3], [1, 2]])]
    group._sockets.pop()
own.close()
"""


@pytest.fixture(scope="module")
def lab():
    with labkit.start(4, timeout=5) as lab:
        lab.run(f"from workbook.tools.rank.link import slow_link\n{RATES}")
        yield lab


@pytest.fixture(autouse=True)
def _as_fast_as_it_goes(lab):
    yield
    lab.run("slow_link(None)")


@pytest.mark.parametrize("hosts", [[[0, 1], [2, 3]], [[0, 2], [3, 1]], [[0], [1, 2, 3]], [[0], [1], [2], [3]]])
def test_connections_to_other_hosts_are_slowed_down_and_no_others(lab, hosts):
    lab.run(f"link_is = slow_link(5e6, {hosts})\nfound = rates()")
    for rank, found in enumerate(lab.pull("found")):
        (mine,) = (ranks for ranks in hosts if rank in ranks)
        assert found == {other: [FREE if other in mine else 5_000_000] for other in range(4) if other != rank}
    for rank, ranks in enumerate(lab.pull("list(link_is.ranks)")):
        (mine,) = (its for its in hosts if rank in its)
        assert ranks == [r for r in range(4) if r not in mine]


def test_connections_that_begin_at_one_port_are_told_apart_by_where_they_lead(lab):
    lab.run(FROM_ONE_PORT)
    assert len(set(lab.pull("begins")[0])) == 1
    assert lab.pull("leads") == [[None, 2], [None, 3], [None, 0], [None, 1]]


def test_a_share_of_the_link_is_what_a_connection_gets(lab):
    said = lab.run("slow_link(50e6, [[0, 1], [2, 3]], share=2)")
    assert said[0] == "2 connections to ranks 2, 3 on other hosts, 25 MB/s each"
    lab.run("found = rates()")
    assert lab.pull("found")[0] == {1: [FREE], 2: [25_000_000], 3: [25_000_000]}


def test_none_takes_it_away(lab):
    lab.run("slow_link(5e6, [[0, 1], [2, 3]])")
    assert lab.run("slow_link(None)") == ["no connection is slowed down"] * 4
    lab.run("found = rates()")
    assert all(rates == [FREE] for found in lab.pull("found") for rates in found.values())


def test_a_group_s_connections_count_if_it_is_there_and_a_later_one_is_free(lab):
    lab.run("before = dist.new_group([0, 2])\nlink_is = slow_link(5e6, [[0, 1], [2, 3]])")
    assert lab.pull("link_is.connections") == [3, 2, 3, 2]
    lab.run("after = dist.new_group([0, 2])\nfound = rates()")
    assert lab.pull("found")[0] == {1: [FREE], 2: [5_000_000, FREE], 3: [5_000_000]}
    lab.run("slow_link(5e6, [[0, 1], [2, 3]])\nfound = rates()")
    assert lab.pull("found")[0] == {1: [FREE], 2: [5_000_000], 3: [5_000_000]}
    lab.run("if rank in (0, 2):\n    dist.destroy_process_group(before)\n    dist.destroy_process_group(after)")


def test_a_group_that_was_joined_again_is_free(lab):
    lab.run("slow_link(5e6, [[0, 1], [2, 3]])")
    with pytest.raises(CellError):
        lab.run("if rank: dist.barrier()\nelse: 1 / 0")
    lab.run("found = rates()")
    assert all(rates == [FREE] for found in lab.pull("found") for rates in found.values())


def test_all_reduce_still_adds_up_and_what_crossed_is_counted_on_the_slow_connections(lab):
    lab.run("slow_link(20e6, [[0, 1], [2, 3]])\nends = link.connections([[0, 1], [2, 3]])\nx = torch.ones(2**16)")
    wire = lab.wire("b = link.sent(ends); dist.all_reduce(x); gone = link.sent(ends) - b")
    assert lab.pull("x.eq(4).all().item()") == [True] * 4
    there, back = wire.across([[0, 1], [2, 3]])[0][1], wire.across([[0, 1], [2, 3]])[1][0]
    assert there == pytest.approx(1.5 * 2**18, rel=0.02)
    assert back == pytest.approx(1.5 * 2**18, rel=0.02)
    gone = lab.pull("gone")
    assert gone[0] + gone[1] == pytest.approx(there, abs=1000)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("slow_link(0, [[0, 1], [2, 3]])", "not a number of bytes per second"),
        ("slow_link(5e6, [[0, 1], [2, 3]], share=0)", "not a number of connections"),
        ("slow_link(5e6, [[0, 1], [2]])", "does not have each of the ranks 0 to 3 once"),
        ("slow_link(5e6)", "All ranks are on one host"),
    ],
)
def test_a_wish_that_cannot_be_met_is_refused_with_what_to_do(lab, call, says):
    with pytest.raises(CellError, match=says):
        lab.run(call)


@pytest.mark.parametrize(
    ("patch", "says"),
    [
        ("sys.platform", "darwin paces no connection; Linux does"),
        ("dist.get_backend_config", "NCCL's data does not go through connections"),
    ],
)
def test_where_the_kernel_cannot_pace_it_is_said(lab, patch, says):
    value = "'darwin'" if patch == "sys.platform" else "lambda: 'cpu:gloo,cuda:nccl'"
    with pytest.raises(CellError, match=says):
        lab.run(
            f"import sys\nkept, {patch} = {patch}, {value}\n"
            f"try:\n    slow_link(5e6, [[0, 1], [2, 3]])\nfinally:\n    {patch} = kept"
        )


def test_the_lab_knows_its_hosts(lab):
    assert lab.hosts == [[0, 1, 2, 3]]
