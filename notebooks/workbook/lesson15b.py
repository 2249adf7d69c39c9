"""Exercises of lesson 15b: paths and cards of a server, NCCL's trees and PAT, what leaves a node, and a log's line."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from labkit.grading.exercise import Case, exercise
from labkit.grading.prediction import ask
from workbook.tools import schedules, topology


def _dealt(n: int, asked: Sequence[tuple[Any, ...]], about: str, rounds: int) -> list[Case]:
    """Ask every rank about something else; `rounds` cases, all of which together ask for everything twice."""
    return [
        Case([asked[(i * n + r) % len(asked)] for r in range(n)], f"{about}, from number {i * n % len(asked) + 1} on")
        for i in range(max(rounds, 3))
    ]


def _mixed(asked: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Put them into an order that is not theirs, and always the same."""
    return random.Random(15).sample(asked, len(asked))


WAYS = (
    (["switch 1", "CPU 0"], ["switch 1", "CPU 0"]),
    (["switch 1", "CPU 0"], ["switch 2", "CPU 0"]),
    (["switch 1", "CPU 0"], ["switch 1", "CPU 1"]),  # two CPUs may both have a switch of that name
    (["switch 3", "switch 1", "CPU 0"], ["switch 4", "switch 1", "CPU 0"]),
    (["CPU 0"], ["CPU 0"]),
    (["CPU 0"], ["CPU 1"]),
    (["switch 3", "switch 1", "CPU 0"], ["switch 1", "CPU 0"]),
    (["switch 3", "switch 1", "CPU 0"], ["switch 3", "switch 1", "CPU 0"]),
    (["switch 3", "switch 1", "CPU 0"], ["switch 5", "switch 2", "CPU 0"]),
    (["switch 1", "CPU 0"], ["CPU 0"]),
    (["switch 3", "switch 1", "CPU 0"], ["switch 2", "CPU 1"]),
    (["CPU 0"], ["switch 1", "CPU 1"]),
)


@exercise(
    "The path between two devices",
    lambda xs: [topology.by_pcie(tuple(a), tuple(b)) for a, b in xs],
    minutes=6,
    inputs=lambda n: _dealt(n, WAYS, "twelve pairs", -(-len(WAYS) // n) + 1),
)
def pcie_path(mine, theirs):
    """Return the path between two devices over PCIe: "PIX", "PXB", "PHB" or "SYS".

    `mine` and `theirs` say what stands above two devices of one server, nearest first: their PCIe switches, last their
    CPU, such as `["switch 3", "switch 1", "CPU 0"]`. Each CPU numbers its switches anew. Return the path between the
    two over PCIe: `"PIX"` where they are below the same switch, with no other on the way; `"PXB"` through several
    switches and no CPU; `"PHB"` through one CPU; `"SYS"` from one CPU to another. Every rank is asked about a different
    pair.
    Hint: The CPU stands last. What does it mean if the two have different ones?
    Hint: Everything but the last is a switch. If the two have none in common, the path goes through the CPU.
    Hint: With a switch in common, the path turns round at the lowest such switch. It is the only one on the path if it
    is the nearest one of **both** devices.
    Afterwards: NCCL finds the same by following every link of the machine and keeping the worst kind on the way
    (`ncclTopoSetPaths`). It allows GPU Direct RDMA up to PXB, unless NCCL_NET_GDR_LEVEL says otherwise; since 2.27 also
    through a CPU that NVLink-C2C joins to the GPU (Grace).
    """
    if mine[-1] != theirs[-1]:
        return "SYS"
    if not set(mine[:-1]) & set(theirs[:-1]):
        return "PHB"
    return "PIX" if mine[0] == theirs[0] else "PXB"


def _servers(n: int) -> list[Case]:
    bundled = map(topology.find, ("p4d", "ndv4", "h100-1453", "v100", "ndv5", "ncv4"))
    asked = [([[server.path(gpu, nic) for nic in server.nics] for gpu in server.gpus],) for server in bundled]
    asked.append(([["PHB", "PXB", "NODE"], ["SYS", "NODE", "PHB"], ["PXB", "PXB", "PIX"]],))
    asked.append(([["NODE", "SYS"], ["SYS", "PHB"], ["PXB", "PHB"]],))
    return _dealt(n, asked, "eight servers", -(-len(asked) // n))


@exercise(
    "A network card for each GPU",
    lambda xs: [choose_nics(rows) for (rows,) in xs],
    minutes=8,
    difficulty=2,
    inputs=_servers,
    picture=lambda: [([["PIX", "PIX", "SYS"], ["PIX", "PIX", "SYS"], ["SYS", "SYS", "PHB"]],)] * 2,
)
def choose_nics(rows):
    """Return the number of each GPU's NIC.

    `rows[g][i]` is the path from GPU g to NIC i of one server, a word of `nvidia-smi topo -m`. Return a list: the
    number of each GPU's NIC, in the order of the GPUs. Take the nearest NIC. From near to far, the words are `PIX`,
    `PXB`, `PHB`, `NODE`, `SYS`. If several NICs are equally near, take the one that the fewest GPUs before this one
    have taken; if several are left, the first of them. Every rank is asked about a different server; six of them are
    real ones, bundled with the workbook.
    Hint: Alphabetical order does not tell which path is nearer. Write the five words in their order, and use `.index`.
    Hint: Keep a list that counts how many GPUs have taken each NIC.
    Hint: Tuples compare from left to right: the smallest (distance, taken, number) is the NIC that you want.
    Afterwards: Where the network joins NIC i of every server through a switch of its own, these NICs are **rail** i. A
    GPU that sends through its own NIC stays on its rail. NCCL builds its rings and trees so that the traffic of each
    channel does, too.
    """
    order = ["PIX", "PXB", "PHB", "NODE", "SYS"]
    taken = [0] * len(rows[0])
    chosen = []
    for row in rows:
        far = [(order.index(path), taken[i], i) for i, path in enumerate(row)]
        nic = min(far)[2]
        taken[nic] += 1
        chosen.append(nic)
    return chosen


def _pats(n: int) -> list[Case]:
    asked = [
        (place, size, step)
        for size in (2, 3, 4, 5, 7, 8)
        for step in range((size - 1).bit_length())
        for place in range(size)
    ]
    return _dealt(n, [*asked[:2], *_mixed(asked[2:])], "steps with 2 to 8 ranks", 10)


@exercise(
    "A step of PAT",
    lambda xs: [pat_sends(*x) for x in xs],
    minutes=12,
    difficulty=3,
    inputs=_pats,
    picture=lambda: [(0, 8, 1), (1, 8, 2)],
)
def pat_sends(place, n, step):
    """Return the receiver and the chunks that rank `place` sends in this step of PAT's all-gather.

    An all-gather over `n` ranks: rank r brings chunk r. In PAT chunk c goes down a binomial tree from rank c, the
    **farthest** jump first, and all n trees run at once. With d = 2^(L - 1 - step), where L is the number of steps,
    ⌈log2 n⌉, every rank sends to the rank d **before** it, modulo n, in step 0, 1, 2, …

    It sends all chunks that it has by then and that the receiver still lacks. These are its own chunk and those that
    came with the longer jumps before: the chunks of the ranks 0, 2d, 4d, … after it, modulo n.
    Leave out a chunk whose owner is n or more ranks after the receiver: it would have gone all the way round.

    Return what rank `place` sends in `step` as a list: the receiver, and the sorted list of chunks.
    Hint: For n = 8 the distances are 4, 2, 1. In step 0, a rank has only its own chunk.
    Hint: In step 1 (d = 2), it has its own and the one that came from 4 ranks after it: `place` and `place + 4`.
    Hint: `range(0, n - d, 2 * d)` gives the distances from `place` to the chunks' owners.
    Afterwards: Bruck's algorithm has the same steps from near to far, so its largest message travels the farthest. PAT
    reverses them: the message with n/2 chunks goes to a neighbour. With little buffer space NCCL sends fewer chunks at
    a time: the far steps first, then the near trees one after the other.
    """
    steps = (n - 1).bit_length()
    d = 2 ** (steps - 1 - step)
    chunks = [(place + far) % n for far in range(0, n - d, 2 * d)]
    return [(place - d) % n, sorted(chunks)]


def _places(n: int) -> list[Case]:
    asked = [(place, size) for size in (2, 3, 4, 5, 6, 7, 8, 13, 16) for place in range(size)]
    return _dealt(n, [*asked[:5], *_mixed(asked[5:])], "places in trees of 2 to 16 nodes", 10)


@exercise(
    "The parent in each of NCCL's trees",
    lambda xs: [[tree[place] for tree in schedules.parents(n)] for place, n in xs],
    minutes=12,
    difficulty=2,
    inputs=_places,
    picture=lambda: [(3, 8), (5, 8)],
)
def tree_parents(place, n):
    """Return the parent of a node in each of NCCL's two trees over n nodes, -1 for none.

    Return the parents of node `place` in NCCL's two trees over `n` nodes, as a list of two integers; the root's parent
    is -1.

    **First tree.** Node 0 is the root. For any other node, let `bit` be the lowest bit that is set in its number. Its
    parent is the number with `bit` cleared and the next higher bit set; if that is not below n, it is the number with
    only `bit` cleared. The stub has this tree.

    **Second tree.** For even n it is the first one mirrored: node i takes the place of node n - 1 - i. For odd n it is
    shifted by one: node i takes the place of node i - 1, and node 0 that of node n - 1.

    Every rank is asked about a different node; `n` is not the number of your ranks.
    Hint: `first` is the first tree. For the second, ask it about a different node, and translate the answer back.
    Hint: Mirrored: ask about n - 1 - place. The answer is mirrored, too: its node is n - 1 - answer. -1 stays -1.
    Hint: Shifted: ask about (place - 1) % n, and add 1 to the answer, modulo n.
    Afterwards: A node that has children in one tree has none in the other: for even n always, for odd n with at most
    one exception. Each half of the buffer takes one tree, and every node's links are busy in both directions.
    """

    def first(r):
        if r == 0:
            return -1
        bit = r & -r
        up = (r ^ bit) | (bit << 1)
        return up if up < n else r ^ bit

    # yours
    if n % 2 == 0:
        up = first(n - 1 - place)
        return [first(place), n - 1 - up if up >= 0 else -1]
    up = first((place - 1) % n)
    return [first(place), (up + 1) % n if up >= 0 else -1]
    # end


def _jobs(n: int) -> list[Case]:
    asked = [
        (algorithm, *schedules.parents(nodes), gpus, nbytes)
        for nodes, gpus, nbytes in ((2, 8, 1.6e9), (4, 2, 800.0), (5, 4, 1e6), (8, 1, 64.0), (3, 8, 2.4e7))
        for algorithm in ("tree", "ring", "CollNet")
    ]
    return _dealt(n, asked, "fifteen jobs", -(-len(asked) // n) + 1)


@exercise(
    "What leaves each node",
    lambda xs: [leaves_node(*x) for x in xs],
    difficulty=2,
    inputs=_jobs,
    tolerance=1e-9,
    picture=lambda: [(algorithm, *schedules.parents(3), 2, 6.0) for algorithm in ("tree", "ring")],
)
def leaves_node(algorithm, first, second, gpus, nbytes):
    """Return the bytes that each node sends to the outside, a list of floats.

    An all-reduce of `nbytes` bytes over several nodes with `gpus` ranks each. `first` and `second` are NCCL's two
    trees: lists with the parent of each node, -1 at the root. Return a list of floats: for each node, how many bytes it
    sends to other nodes or to the network's switch.

    `"ring"`: one ring through all ranks that leaves each node once; it is the ring of lesson 06. `"tree"`: each half of
    the buffer goes up one tree and its sum comes down. `"CollNet"`: the nodes' sums go to a switch in the network,
    which adds them up and sends the total back.
    Hint: What leaves a node in the ring is what one rank sends: lesson 06 has it.
    Hint: In a tree a node sends its half of the buffer up once, unless it is the root, and down once to each child.
    `tree.count(m)` is the number of m's children.
    Hint: With CollNet each of the `gpus` ranks sends its share of the node's sum, nbytes / gpus. All of them together?
    Afterwards: Two nodes are special: the double tree sends S where the ring sends nearly 2 S. So a benchmark on two
    nodes can show up to twice the network's bandwidth. Force NCCL_ALGO=Ring if you want to test the network. With many
    nodes, tree and ring send about the same; only with a switch that adds up does a node send half.
    """
    nodes = len(first)
    if algorithm == "ring":
        n = nodes * gpus
        return [2 * nbytes * (n - 1) / n] * nodes
    if algorithm == "CollNet":
        return [float(nbytes)] * nodes
    return [sum(nbytes / 2 * ((tree[m] >= 0) + tree.count(m)) for tree in (first, second)) for m in range(nodes)]


LINES = tuple(
    f"{before}NCCL INFO {op}: {size} Bytes -> Algo {algorithm} proto {protocol} channel{{Lo..Hi}}={{{low}..{high}}}"
    for before, op, size, algorithm, protocol, low, high in (
        ("gpubox:5605:5605 [0] ", "Broadcast", 2**20, "RING", "SIMPLE", 0, 1),  # as four ranks on one H200 have it
        ("", "AllReduce", 4, "TREE", "LL", 0, 0),
        ("node7:177787:177787 [0] ", "AllReduce", 16777216, "TREE", "LL128", 0, 15),
        ("1: node7:177787:177790 [3] ", "AllReduce", 33554432, "NVLS", "SIMPLE", 0, 15),
        ("node7:177787:177787 [0] ", "ReduceScatter", 1048576, "PAT", "SIMPLE", 4, 5),
        ("", "AllGather", 579600, "NVLS", "SIMPLE", 8, 23),
    )
)


@exercise(
    "Read how it ran",
    lambda xs: [ran_as(line) for (line,) in xs],
    minutes=7,
    inputs=lambda n: _dealt(n, [(line,) for line in LINES], "six lines", -(-len(LINES) // n)),
)
def ran_as(line):
    """Return the operation, its bytes, the algorithm, the protocol and the number of channels.

    `line` is a line of NCCL's log as `NCCL_DEBUG_SUBSYS=TUNING` writes it (version 2.27 and later), with whatever
    stands before `NCCL INFO`. In the picture, rank 0's line is `gpubox:5605:5605 [0] NCCL INFO Broadcast: 1048576 Bytes
    -> Algo RING proto SIMPLE channel{Lo..Hi}={0..1}`.

    Return a list: the operation as one of `all-reduce`, `all-gather`, `reduce-scatter`, `broadcast`; the bytes, an
    integer; the algorithm and the protocol in small letters; and **how many** channels it used, an integer.
    Hint: Whatever stands before `NCCL INFO ` can be cut off: `line.split("NCCL INFO ")[1]`. What is left, `.split()`
    takes apart into words.
    Hint: There are nine words: `AllReduce:`, the bytes, `Bytes`, `->`, `Algo`, the algorithm, `proto`, the protocol,
    and the channels.
    Hint: Channels are counted from Lo to Hi, both included.
    Afterwards: This is all that NCCL prints about an operation. The lines that it prints when it makes the
    communicator say which rank talks to which. `nccl_log.read` puts the two together.
    """
    names = {
        "AllReduce": "all-reduce",
        "AllGather": "all-gather",
        "ReduceScatter": "reduce-scatter",
        "Broadcast": "broadcast",
    }
    words = line.split("NCCL INFO ")[1].split()
    op, size, algorithm, protocol = words[0].rstrip(":"), words[1], words[5], words[7]
    low, high = words[8].partition("={")[2].rstrip("}").split("..")
    return [names[op], int(size), algorithm.lower(), protocol.lower(), int(high) - int(low) + 1]


fact_in_the_log = ask("""
Two servers, each with 8 A100s and four network cards. Their owner expected a busbw of more than 40 GB/s, and did not
get it. Which fact in these lines explains that?
( ) `2 coll channels`: two channels are too few for 16 GPUs
    > There are few of them, and there is a reason. A channel needs a way to the network, and you can see how many
    ways NCCL has found.
(x) every connection between the servers is `via NET/AWS Libfabric/0`
( ) `P2P/IPC/read`: inside a server the GPUs go through the CPU's memory
    > P2P means that one GPU reads the memory of another directly. Through the CPU's memory it would be `SHM`.
( ) `9 -> 0`: the ranks of the two servers alternate in the ring
    > Rank 9 is in the second server, and rank 0 in the first. A ring has to come back once. It would be bad to see
    such lines for most ranks.
Why: **`/0` in every line.** The number after the network's name is that of the card. Cards 1, 2 and 3 do nothing.
And there is no `/GDRDMA` after it: the card does not read the GPU's memory itself, so every byte takes a detour
through the CPU's memory.
""")

busbw_of_one_card = ask("""
Each of the four cards has 100 Gb/s. NCCL uses a single one in each server, for rings that leave each server once. Which
busbw can an all-reduce over the two servers reach at most?
= 12.5 GB/s +- 5 %
( ) 50
    > That is what all four cards have together.
( ) 100
    > These are gigabits. A byte has eight of them.
( ) 25
    > This counts both directions of a link. busbw counts one of them.
( ) 6.25
    > An all-reduce sends nearly 2 S, but busbw has this factor in it already (lesson 07).
( ) 6.7
    > An all-reduce sends nearly 2 S, but busbw has this factor in it already (lesson 07).
Why: **12.5 GB/s**: 100 Gb/s are 12.5 GB/s, and the busbw of a ring is what its slowest link carries. NCCL's engineers
count on 12 GB/s for each card of 100 Gb/s in practice (nccl issue 307). All four cards would make 50. On two such
servers, 57 GB/s were reported later (nccl issue 527): more than 50, and you will see below how that can be.
""")

gpus_that_cards_read = ask("""
By default NCCL lets a card read a GPU's memory directly (GPU Direct RDMA) if the path between them is PXB or nearer.
For how many of the seven GPUs in this matrix?
= 2.0 +- 1 %
( ) 4
    > These are the GPUs on the cards' CPU. NODE is farther than PXB: it goes through the CPU.
( ) 7
    > Some of them are SYS away: over the link between two CPUs.
Why: **2**: GPU2 and GPU3, which are PIX from both cards. The two on the same CPU are NODE away, and the others SYS.
What they send to another server is copied into the CPU's memory first, or handed to GPU2 or GPU3 over NVLink. (The
owner of this server found that GPU Direct RDMA was switched off, and got twice the bandwidth with it: nccl-tests issue
29.) Since NCCL 2.27, there is one way through a CPU by default: where NVLink-C2C joins it to the GPU, as in Grace
servers (`NCCL_NET_GDR_C2C`).
""")

way_to_a_far_card = ask("""
GPU0 has to send data to GPU5 of **another** server of this kind, over that GPU's rail: through NIC3, GPU5's own card.
From GPU0 to NIC3 the path is SYS. Which way does NCCL send the data?
( ) through both CPUs to NIC3
    > NCCL could. But there is a faster way inside this server.
( ) through NIC8, which is GPU0's own card, and then through the network to the other rail
    > Where each rail has switches of its own, data climbs to the next level of switches to get from one to another,
    and the traffic of all rails meets there.
(x) over NVLink to GPU5 of its own server, and from there through NIC3
( ) it cannot: a GPU uses its own card only
    > Nothing forbids another card. It is a question of the path.
Why: **Over NVLink, and then through NIC3.** NCCL calls this path PXN. It is taken where the relay is joined by NVLink,
is PXB or nearer to the card, and the direct path is slower or goes through a CPU (`paths.cc`). The data stays on that
rail all the way. An all-to-all makes good use of it.
""")

tree_on_two_nodes = ask("""
Two nodes (servers) of 8 GPUs. A ring through all 16 sends 2 S · 15/16 = 1.875 S out of each node. How much does the
double tree send out of each node, as a multiple of S?
= 1.0 S +- 2 %
( ) 2
    > 2 S is right for a node with two children in one of the trees. Here no node has more than one child.
( ) 0.5
    > One tree carries half of the buffer. There are two.
( ) 1.875
    > That would be true if each of the 16 GPUs had a place in the tree. The tree joins the two nodes.
Why: **1 S.** Over two nodes a tree has one edge. In one tree a half of the buffer goes up from node 1 to node 0 and its
total comes down, in the other tree it is the other way round: each node sends S/2 twice. So two nodes can show a busbw
of nearly twice what the network carries, 57 GB/s over 50, say. Force `NCCL_ALGO=Ring` if you want to test the network.
""")

collnet_out_of_a_node = ask("""
16 nodes of 8 GPUs. A ring sends 2 S · 127/128 = 1.98 S out of each node. With CollNet the nodes add up inside, and the
switches of the network (SHARP) add up what the nodes send. How much does each node send, as a multiple of S?
= 1.0 S +- 2 %
( ) 1.984
    > In a ring, a node passes on the sums of others and then their totals. Here the switch does that.
( ) 2
    > It sends S and receives S. One direction of its links carries one S.
( ) 8
    > The node adds up inside first: each GPU sends an eighth.
( ) 0.0625
    > Each node brings a whole buffer. No other node has its sum.
Why: **1 S**, and it receives S. A node sends its sum once. The switch adds all 16 up and sends the total to each. No
node has to pass anything on. CollNet direct takes four steps here, and just as many with 1,000 nodes. CollNet chain
hands the sum from GPU to GPU inside a node: 7 steps, one to the switch, and the same way back.
""")

steps_of_nvls = ask("""
72 GPUs on one set of NVSwitches. A ring all-reduce takes 2 · 71 = 142 steps. How many does NVLS take, if each way to or
from the switch is a step?
= 4.0 +- 1 %
( ) 2
    > The data goes up to the switch and down again twice: GPU r gets the sum before it goes to all GPUs.
( ) 14
    > 2 · ⌈log2 72⌉ = 14 would be a tree. The switch is joined to all of them at once.
( ) 142
    > That is the ring.
Why: **4**, whatever the number of GPUs: all copies of chunk r go to the switch, the sum goes to GPU r, GPU r sends it
back once, and the switch writes it to all.
""")

when_algo_is_read = ask("""
A program has all-reduced on the GPUs. Then it sets `os.environ["NCCL_ALGO"] = "Ring"` on all ranks, and all-reduces
again in the same process group. What happens?
( ) it runs as a ring from now on
    > That would be true if NCCL read the variable in every call. It makes its table of times once.
(x) nothing changes; a new process group would run as a ring
( ) nothing changes until the program is started again
    > That is true of the settings that NCCL keeps once per process, such as the number of channels. This one is read
    more often.
( ) the ranks hang, because they disagree
    > They would if they chose differently. All ranks set the same value, and none of them reads it now.
Why: **Nothing, before a new group.** NCCL reads `NCCL_ALGO` and `NCCL_PROTO` when it makes a communicator, and prices
all algorithms then (`graph/tuning.cc`). torch makes a group's communicator at the group's first operation, at the
latest. So `dist.new_group()` switches them in a running program.
""")

forced_low_latency = ask("""
Somebody broadcast 128 MiB between two ranks that share one GPU. NCCL's own choice, a ring with the protocol Simple,
took 35.5 ms. `NCCL_PROTO=LL` forces the low-latency protocol, which sends a flag of 4 bytes with every 4 bytes of data.
Between nodes, as these two are for NCCL, a thread of the CPU also looks at every flag before a message leaves
(`transport/net.cc`). How long did it take then?
( ) less: latency is lower
    > LL saves some µs in each step. At 128 MiB it is the bytes that count.
( ) about the same
    > That would be true if flags were free. Half of what LL sends is flags.
( ) twice as long
    > That is what the flags alone would cost, and what NCCL's own table in that log expects: 1.2 GB/s instead of 2.4.
(x) more than five times as long
Why: **195.8 ms, 5.5 times as long** (published, eunomia-bpf/nccl-eBPF). Flags double the bytes, and NCCL's tables
expect just that (so does the table that was recorded on the H200: 0.8 GB/s for an all-reduce with Simple, 0.4 with
LL). In the published run LL was slower still. A forced setting holds for *all* sizes and operations. Use it to find out
something, not in production.
""")
