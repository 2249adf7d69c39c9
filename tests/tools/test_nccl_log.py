"""NCCL's log: every kind of line in the format that its source prints, and pieces of recorded logs."""

from __future__ import annotations

import json
import re
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.floor.errors import LabError
from tests.notebooks import NOTEBOOKS, sources
from workbook.tools import nccl_log, schedules, topology
from workbook.tools.nccl_log.lines import Branch, Call, Comm, Hop, Link, Ring, Said

# The formats of NCCL 2.27 to 2.30, filled in: init.cc, enqueue.cc, graph/rings.cc, graph/connect.cc, transport/*.cc.
PRINTED = {
    "AllReduce: 4194304 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..1}":  # enqueue.cc
        [Call("all-reduce", 4194304, "tree", "LL", 0, 1)],
    "ReduceScatter: 64 Bytes -> Algo PAT proto SIMPLE channel{Lo..Hi}={2..2}":
        [Call("reduce-scatter", 64, "PAT", "Simple", 2, 2)],
    "AllReduce: 1 Bytes -> Algo COLLNET_DIRECT proto SIMPLE channel{Lo..Hi}={0..15}":
        [Call("all-reduce", 1, "CollNet direct", "Simple", 0, 15)],
    "AllReduce [Symmetric]: 4096 Bytes -> Kernel AllReduce_AGxLL_R nchannels 4 nthreads 512":
        [Call("all-reduce", 4096, "symmetric", "Kernel AllReduce_AGxLL_R nchannels 4 nthreads 512")],
    "8 Bytes -> Algo 0 proto 0 time 25.200924":  # until 2.22
        [Call("", 8, "tree", "LL", expected=25.200924)],
    "AllReduce: 8 Bytes -> Algo 0 proto 0 time 25.200924":  # 2.23
        [Call("all-reduce", 8, "tree", "LL", expected=25.200924)],
    "comm 0x5639e9f0e8c0 rank 3 nRanks 24 nNodes 3 localRanks 8 localRank 3 MNNVL 0":  # init.cc
        [Comm(3, 24, 3, 8, 3, "0x5639e9f0e8c0")],
    "ncclCommInitRank comm 0x8ec0ac0 rank 6 nranks 16 cudaDev 6 nvmlDev 6 busId c8000 commId 0x49bb - Init COMPLETE":
        [Comm(6, 16, at="0x8ec0ac0", name="0x49bb")],
    "[Rank 6] ncclCommInitRank comm 0x8a rank 6 nranks 16 cudaDev 6 nvmlDev 6 busId c8000 commId 0x49 - Init START":
        [Comm(6, 16, at="0x8a", name="0x49")],  # 2.30
    "ncclCommSplit comm 0x8b rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId c0 parent 0x8a splitCount 1 color 3 key 1- Init "
    "START": [Comm(1, 2, at="0x8b", name="1 3", parent="0x8a")],  # 2.23 to 2.29
    "comm 0x8a rank 6 nranks 16 cudaDev 6 busId c8000 - Destroy COMPLETE": [],
    "comm 0x7fdc3c000dc0 rank 8 nranks 16 cudaDev 0 busId 101c0 - Init COMPLETE":  # 2.7
        [Comm(8, 16, at="0x7fdc3c000dc0")],
    "Channel 01/08 :    0   2   1   3": [Ring(1, 8, (0, 2, 1, 3))],  # rings.cc
    "Channel 01 :    0   2   1   3": [Ring(1, 0, (0, 2, 1, 3))],  # 2.4
    "Ring 00 : 3 -> 0 -> 2": [Hop(0, 3, 0, 2)],
    "Trees [0] 1/-1/-1->0->-1 [1] -1/-1/-1->0->3": [Branch(0, 0, -1, (1,)), Branch(1, 0, 3, ())],
    "Trees [0] 26->25->24/-1/-1": [Branch(0, 25, 26, (24,))],  # 2.4: parent first
    "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/4/GDRDMA/Shared": [Link(0, 0, 1, "NET", "IB/4/GDRDMA/Shared")],
    "Channel 02/0 : 7[7] -> 8[0] [receive] via NET/IB/1(3)/GDRDMA(PCI)": [Link(2, 7, 8, "NET", "IB/1(3)/GDRDMA(PCI)")],
    "Channel 01 : 9[101d0] -> 0[101c0] [send] via NET/AWS Libfabric/0": [Link(1, 9, 0, "NET", "AWS Libfabric/0")],
    "Ring 00 : 6 -> 2 [receive] via NET/IB/0": [Link(0, 6, 2, "NET", "IB/0")],
    "Channel 05/0 : 1[1] -> 0[0] via P2P/direct pointer": [Link(5, 1, 0, "P2P", "direct pointer")],
    "Ring 00 : 1[17] -> 0[16] via direct shared memory": [Link(0, 1, 0, "SHM", "")],  # until 2.9
    "Channel 00 : 1[1] -> 0[0] via SHM/direct/direct": [Link(0, 1, 0, "SHM", "direct/direct")],
    "16 coll channels, 16 collnet channels, 16 nvls channels, 16 p2p channels, 2 p2p channels per peer":
        [Said("channels", "", "16")],
    "2 coll channels, 2 p2p channels, 1 p2p channels per peer": [Said("channels", "", "2")],
    "Using network IBext": [Said("network", "", "IBext")],
    "NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/RoCE [RO]; OOB ib0:<0>":
        [Said("card", "0", "mlx5_0 (IB/SHARP)"), Said("card", "1", "mlx5_1 (RoCE)")],
    "NET/Socket : Using [0]lo:127.0.0.1<0> [1]eth0:fe80::1%eth0<0>":
        [Said("card", "0", "lo"), Said("card", "1", "eth0")],
    "NET/IB : No device found.": [Said("no card", "", "no InfiniBand card")],
    "NCCL_ALGO set by environment to Tree": [Said("env", "NCCL_ALGO", "Tree")],
    "NCCL_CROSS_NIC set by environment to 2.": [Said("env", "NCCL_CROSS_NIC", "2")],
    "NCCL version 2.29.7+cuda12.9": [Said("version", "NCCL", "2.29.7")],
    "GPU Direct RDMA Disabled for GPU 2 / HCA 0 (distance 8 > 5)":
        [Said("no gdr", "GPU 2 / HCA 0", "distance 8 > 5")],
    "Launch mode Parallel": [],
    "threadThresholds 8/8/64 | 128/8/64 | 512 | 512": [],
    "Connected all rings, use ring PXN 0 GDR 0": [],
}  # fmt: skip


def test_a_message_is_read_for_what_it_says(subtests):
    for message, means in PRINTED.items():
        with subtests.test(message):
            assert nccl_log.events(message) == means


def test_cards_and_gpu_direct_are_read_from_a_connection():
    def link(what: str) -> Link:
        return Link(0, 0, 1, "NET", what)

    assert [link(w).card for w in ("IB/4/GDRDMA", "AWS Libfabric/0", "IB/1(3)/GDRDMA(PCI)", "Socket/12")] == [
        "4",
        "0",
        "1",
        "12",
    ]
    assert [link(w).direct for w in ("IB/4/GDRDMA", "IB/1(3)/GDRDMA(PCI)", "IB/4")] == [True, True, False]
    assert Link(0, 0, 1, "P2P", "IPC/read").card is None


@pytest.mark.parametrize(
    ("line", "host", "level"),
    [
        ("lab:12:34 [0] NCCL INFO Using network IB", "lab", "INFO"),
        ("[1,26]<stdout>:ip-1:8716:9558 [2] NCCL INFO Using network IB", "ip-1", "INFO"),
        ("[rank3]:ip-1:8716:9558 [2] NCCL INFO Using network IB", "ip-1", "INFO"),
        ("[default3]:ip-1.a_b:8716:9558 [2] NCCL INFO Using network IB", "ip-1.a_b", "INFO"),
        ("3:node7:12:34 [5] NCCL INFO Using network IB", "node7", "INFO"),
        ("node7: node7:12:34 [5] NCCL INFO Using network IB", "node7", "INFO"),
        ("> [2025-01-01 10:00:00] node7:12:34 [5] NCCL INFO Using network IB", "node7", "INFO"),
        ("<the cluster>:12:34 [5] NCCL INFO Using network IB", None, "INFO"),
        ("10:00:00 node7:12:34 NCCL CALL ncclGroupEnd()", "node7", "CALL"),
        ("\x1b[36m(W pid=1, ip=10.0.0.2)\x1b[0m node7:12:34 [5] NCCL INFO Using network IB", "node7", "INFO"),
        ("\x1b[36mnode7:12:34 [5] NCCL INFO Using network IB\x1b[0m", "node7", "INFO"),
        ("3: node7:12:34 [5] NCCL INFO Using network IB", "node7", "INFO"),
        ("[0] h100:12:34 [0] NCCL INFO Using network IB", "h100", "INFO"),
        ("NCCL INFO Using network IB", None, "INFO"),
        ("lab:12:34 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]", "lab", "WARN"),
    ],
)
def test_what_launchers_write_before_a_line_does_not_matter(line, host, level):
    told = nccl_log.line(line)
    assert told is not None
    assert (told.host, told.level) == (host, level)


@given(st.text(max_size=80))
def test_any_text_is_skipped_or_read_and_never_fails(text):
    nccl_log.events(text)
    nccl_log.line(text)


def printed(n: int, gpus: int) -> str:
    """What the ranks would print of a ring in reversed order and of NCCL's trees, by its formats."""
    lines = []
    first, second = schedules.node_parents(n // gpus, gpus)
    for r in range(n):
        before = f"host{r // gpus}:{100 + r}:{100 + r} [{r % gpus}] NCCL INFO "
        lines.append(
            f"{before}comm 0x1 rank {r} nRanks {n} nNodes {n // gpus} localRanks {gpus} localRank {r % gpus} M 0"
        )
        trees = []
        for c, tree in enumerate((first, second)):
            down = [q for q in range(n) if tree[q] == r]
            below = "/".join(map(str, [*down, -1, -1, -1][:3]))
            trees.append(f"[{c}] {below}->{r}->{tree[r]}")
        lines.append(f"{before}Ring 00 : {(r + 1) % n} -> {r} -> {(r - 1) % n}")
        lines.append(f"{before}Trees {' '.join(trees)}")
    return "\n".join(lines)


def made(host: str, pid: int, at: str, rank: int, n: int, name: str) -> list[str]:
    """What a process prints while it makes a communicator: until 2.16 without a name."""
    before = f"{host}:{pid}:{pid} [0] NCCL INFO "
    comm = (
        f"{before}comm 0x{at}{pid} rank {rank} nranks {n} cudaDev 0 busId 10{' commId ' if name else ''}{name} - Init "
    )
    ring = [f"{before}Channel 00/02 : {' '.join(map(str, range(n)))}"] if rank == 0 else []
    return [
        *([f"{comm}START"] if name else []),
        *ring,
        f"{before}Trees [0] -1/-1/-1->{rank}->{rank - 1}",
        f"{comm}COMPLETE",
    ]


@given(st.sampled_from([1, 2, 4]), st.booleans(), st.randoms())
def test_lines_of_several_communicators_are_told_apart_in_whatever_order_the_processes_write(gpus, named, rng):
    """The world, and beside it the GPUs of each of 3 hosts, and those that have the same place in their hosts."""
    n = 3 * gpus
    processes = []
    for r in range(n):
        host, place = divmod(r, gpus)
        groups = [("a", r, n), (f"b{host}", place, gpus), (f"c{place}", host, 3)]
        processes.append(
            [line for name, *who in groups for line in made(f"h{host}", r, name, *who, f"0x{name}" if named else "")]
        )
    lines = []
    while any(processes):
        lines.append(rng.choice([p for p in processes if p]).pop(0))
    log = nccl_log.read("\n".join(lines))
    assert (log.ranks, log.nodes, log.rings, log.crossings(0)) == (n, 3, {0: tuple(range(n))}, 3)
    assert log.trees == {0: {r: r - 1 for r in range(n)}}
    assert sorted(other.ranks for other in log.others) == sorted([gpus] * 3 + [3] * gpus)
    assert bool(log.doubts) == (not named and gpus > 1)


@pytest.mark.parametrize(("n", "gpus"), [(2, 1), (8, 4), (12, 4), (5, 1), (16, 8)])
def test_rings_and_trees_are_put_together_from_all_ranks_lines(n, gpus):
    log = nccl_log.read(printed(n, gpus))
    assert (log.ranks, log.nodes) == (n, n // gpus)
    assert log.whole(0)
    order = log.rings[0]
    assert all((b - a) % n == n - 1 for a, b in pairwise(order))
    assert log.crossings(0) == (n // gpus if n > gpus else 0)
    for c, tree in enumerate(schedules.node_parents(n // gpus, gpus)):
        assert [log.trees[c][r] for r in range(n)] == tree
    assert log.skipped == 0


def test_a_ring_with_a_missing_rank_is_not_whole():
    lines = [line for line in printed(4, 1).splitlines() if "host2" not in line]
    log = nccl_log.read("\n".join(lines))
    assert not log.whole(0)
    assert log.crossings(0) is None


def test_the_published_rings_leave_each_node_once():
    log = nccl_log.find("a100-1412")
    assert [log.crossings(c) for c in sorted(log.rings)] == [2] * 5
    assert log.channels == 8


def test_a_line_that_nccl_cut_off_is_not_taken_for_a_ring():
    log = nccl_log.find("h100-1453")
    assert len(log.rings[0]) == 20
    assert not log.whole(0)
    assert "its first 20 ranks" in repr(log)


def test_the_slow_servers_sentences_say_why():
    said = nccl_log.find("p4d-64").sentences
    assert "Between nodes: AWS Libfabric, card 0, without GPU Direct RDMA." in said
    assert "Between nodes: AWS Libfabric, card 0, with GPU Direct RDMA." in nccl_log.find("p4d-527").sentences


def test_of_four_ranks_that_share_an_h200_all_is_told():
    log = nccl_log.find("h200-shared")
    assert (log.version, log.ranks, log.nodes, log.hosts, log.channels) == ("2.28.9", 4, 4, ("gpubox",), 2)
    assert log.rings == {0: (0, 1, 2, 3), 1: (0, 1, 2, 3)}
    assert [[log.trees[c][r] for r in range(4)] for c in (0, 1)] == list(schedules.node_parents(4, 1))
    assert {link.what for link in log.links} == {"Socket/0"}
    assert log.cards == {"0": "lo"}
    assert "NCCL_HOSTID makes 4 nodes of 1 host." in log.sentences
    assert "An all-reduce of 1 MiB ran as ring, Simple, channels 0–1 (3 lines)." in log.sentences
    assert "An all-reduce of 4 B ran as tree, LL, channel 0 (2 lines)." in log.sentences


def test_the_bytes_of_an_all_gather_and_of_a_reduce_scatter_are_those_of_a_part():
    """The same program brought 1 MiB to both: NCCL prints count × the dtype's size, and the count is a part's."""
    log = nccl_log.find("h200-shared")
    assert {(c.op, c.nbytes) for c in log.calls} > {("all-gather", 2**20), ("reduce-scatter", 2**18)}
    assert "An all-gather of 1 MiB from each rank ran as ring, Simple, channels 0–1." in log.sentences
    assert "A reduce-scatter of 256 KiB for each rank ran as ring, Simple, channels 0–1." in log.sentences


def test_a_setting_that_differs_is_told_with_all_its_values():
    log = nccl_log.find("h200-shared")
    assert log.settings["NCCL_HOSTID"] == ("lab-0", "lab-1", "lab-2", "lab-3")
    assert "It sets NCCL_HOSTID to lab-0, lab-1, lab-2 and lab-3, which differ." in log.sentences
    assert "The environment sets NCCL_SOCKET_IFNAME=lo and NCCL_MAX_NCHANNELS=2." in log.sentences


def test_what_ras_and_torch_said_of_the_same_program_lies_beside_its_log():
    calls = [entry["profiling_name"] for entry in json.loads(nccl_log.text("h200-shared.json"))["entries"]]
    begun = re.findall(r":5605 \[0\] NCCL INFO (\w+): opCount", nccl_log.text("h200-shared"))
    last = ["nccl:broadcast", "nccl:_all_gather_base", "nccl:_reduce_scatter_base", "nccl:all_reduce_barrier"]
    assert calls == ["nccl:all_reduce"] * 3 + last
    assert begun == ["AllReduce"] * 3 + ["Broadcast", "AllGather", "ReduceScatter"] + ["AllReduce"] * 2, "barriers last"
    assert "4 4 4 RUNNING OK" in " ".join(nccl_log.text("h200-shared.ras").split())


def test_lessons_quote_the_recorded_texts_and_no_others():
    """Letter by letter; and NCCL's choice follows from the row of its table, as lesson 07b reckons."""
    log, lines = nccl_log.text("h200-shared"), []
    for lesson in ("07b", "14b", "15b"):
        quoted = "\n".join(sources(NOTEBOOKS[lesson]))
        lines += [line for line in quoted.splitlines() if line.startswith("gpubox:")]
        assert (nccl_log.text("h200-shared.ras").rstrip() in quoted) == (lesson == "14b")
        shortened = re.findall(r'^```xml\n(<cpu numaid="-1".*?)^```', quoted, re.MULTILINE | re.DOTALL)
        assert len(shortened) == (lesson == "15b")
        told = [attribute for text in shortened for attribute in re.findall(r'\w+="[^"]*"', text)]
        assert [attribute for attribute in told if attribute not in topology.text("h200-one.xml")] == []
    assert len(lines) == 2
    assert set(lines) <= set(log.splitlines())
    (row,) = re.findall(r"AllReduce \|(.*26\.8.*)\|", log)
    cells = [tuple(map(float, cell.split("/"))) for cell in row.split("|")[:6]]
    table = dict(zip(product(("tree", "ring"), ("LL", "LL128", "Simple")), cells, strict=True))
    napkin = "\n".join(sources(NOTEBOOKS["07b"]))
    told = [" | ".join(str(v[i]) for (_, p), v in table.items() if p != "LL128") for i in (0, 1)]
    assert f"| latency, µs | {told[0]} |" in napkin
    assert f"| bandwidth, GB/s | {told[1]} |" in napkin
    took = {call.nbytes: (call.algorithm, call.protocol) for call in nccl_log.find("h200-shared").calls}
    for nbytes in (4, 2**20):
        expected = {how: lat + nbytes / (1e3 * bw) for how, (lat, bw) in table.items() if bw}
        assert took[nbytes] == min(expected, key=lambda how: expected[how])


def test_unknown_lines_are_counted_and_said():
    log = nccl_log.read("NCCL INFO Launch mode Parallel\nsomebody else's line\nNCCL INFO Using network IB")
    assert (log.read, log.skipped) == (1, 1)
    assert log.sentences[-1] == "1 line read; 1 of other kinds skipped."
    assert "Between nodes NCCL would use IB." in log.sentences


def test_warnings_are_kept():
    log = nccl_log.read("a:1:1 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]")
    assert "NCCL warns on a: Failed to open libibverbs.so[.1]" in log.sentences


def test_a_number_that_no_version_prints_is_no_failure():
    """Python turns no text of more than 4,300 digits into a number."""
    assert nccl_log.read(f"a:1:1 [0] NCCL INFO Channel 00/02 : 0 {'9' * 9999}").read == 1


def test_a_text_without_nccl_is_refused_with_what_to_set():
    with pytest.raises(LabError, match="NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH,TUNING"):
        nccl_log.read("Hello\nWorld")
    with pytest.raises(LabError, match="a100-1412"):
        nccl_log.find("nothing")


def test_every_bundled_piece_is_read_and_its_source_stands_beside_it():
    told = (nccl_log.FOLDER / "README.md").read_text(encoding="utf-8")
    for name in nccl_log.bundled():
        assert f"`{name}.txt`" in told
        assert nccl_log.find(name).read >= 5
