"""NCCL's log, line by line: what each kind of line says, as plain values. Knows no machine and draws nothing.

NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH,TUNING. Formats: NCCL 2.27 to 2.30 (src/init.cc, enqueue.cc,
graph/connect.cc, graph/rings.cc, transport/*.cc), and what published logs of 2.4 to 2.22 have instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from labkit.words import nbytes

# Numbers that older versions print (src/include/nccl_common.h, nccl_tuner.h), and what newer ones call them.
ALGORITHMS = ("tree", "ring", "CollNet direct", "CollNet chain", "NVLS", "NVLS tree", "PAT")
PROTOCOLS = ("LL", "LL128", "Simple")
CALLED = {
    "TREE": "tree",
    "RING": "ring",
    "COLLNET_DIRECT": "CollNet direct",
    "COLLNET_CHAIN": "CollNet chain",
    "NVLS": "NVLS",
    "NVLS_TREE": "NVLS tree",
    "PAT": "PAT",
    "SIMPLE": "Simple",
}
OPS = {
    "AllReduce": "all-reduce",
    "AllGather": "all-gather",
    "ReduceScatter": "reduce-scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "AlltoAll": "all-to-all",
    "SendRecv": "send and receive",
}

PREFIX = re.compile(r"(?:(\S+):(\d+):\d+ )?(?:\[(\d+)\] )?(?:\S+:\d+ )?NCCL (INFO|WARN|CALL|TRACE) +(.*)")
COMM = re.compile(r"comm \S+ rank (\d+) nRanks (\d+) nNodes (\d+) localRanks (\d+) localRank (\d+)")
DONE = re.compile(r".*comm \S+ rank (\d+) nranks (\d+) cudaDev (\d+).*Init COMPLETE")
VERSION = re.compile(r"(?:NCCL )?(?:NCCL )?version (\d+\.\d+\.\d+)\S*")
NETWORK = re.compile(r"Using network (.+)")
CARD = re.compile(r"\[(\d+)\](\S+?):(?:\d+/(\S+)|\S*<\d+>)")  # InfiniBand has a port and a kind, a socket an address
RING = re.compile(r"Channel (\d+)(?:/(\d+))? :((?: +\d+)+)(?: *\.\.\.)?\s*")
NEXT = re.compile(r"Ring (\d+) : (-?\d+) -> (\d+) -> (-?\d+)")
TREE = re.compile(r"\[(\d+)\] (-?\d+)((?:/-?\d+)*)->(-?\d+)->(-?\d+)((?:/-?\d+)*)")
LINK = re.compile(
    r"(?:Channel|Ring) (\d+)(?:/\d+)? : (\d+)(?:\[\w+\])? -> (\d+)(?:\[\w+\])? "
    r"(?:\[(send|receive)\] )?via ([A-Z0-9]+)/?(.*)"
)
CHANNELS = re.compile(r"(\d+) coll channels, (?:(\d+) collnet channels, )?(?:(\d+) nvls channels, )?(\d+) p2p channels")
CALL = re.compile(r"(\w+): (\d+) Bytes *-> Algo (\S+) proto (\S+) channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}")
OLD_CALL = re.compile(r"(\d+) Bytes -> Algo (\d+) proto (\d+) time ([\d.]+)")
KERNEL = re.compile(r"(\w+) \[(Symmetric|Copy Engine)\]: (\d+) Bytes -> (.*)")
ENV = re.compile(r"(NCCL_\w+) set (?:by environment )?to (.*?)\.?")
HEAD = re.compile(r"NVLS Head +(\d+):((?: +\d+)+)")
GDR = re.compile(r".*GPU Direct RDMA (Enabled|Disabled) for GPU (\w+).*?distance (\d+) .*")


@dataclass(frozen=True)
class Line:
    """What stands before a line's message: the host and the process, None where they were cut off; and the message."""

    host: str | None
    pid: int | None
    level: str
    message: str


@dataclass(frozen=True)
class Comm:
    """A communicator as one rank sees it; nodes are 0 where the version does not say."""

    rank: int
    ranks: int
    nodes: int = 0
    local_ranks: int = 0
    local_rank: int = -1


@dataclass(frozen=True)
class Ring:
    """A channel's ring, in order; cut off where it was too long for NCCL's line of 128 characters."""

    channel: int
    channels: int
    order: tuple[int, ...]


@dataclass(frozen=True)
class Hop:
    """A rank's place in a channel's ring: whom it receives from and sends to."""

    channel: int
    before: int
    rank: int
    after: int


@dataclass(frozen=True)
class Branch:
    """A rank's place in a channel's tree: its parent and its children, -1 for none."""

    channel: int
    rank: int
    parent: int
    children: tuple[int, ...]


@dataclass(frozen=True)
class Link:
    """A connection: over `how` ("P2P", "SHM", "NET"), with `what` NCCL says of it ("IB/0/GDRDMA", "IPC/read")."""

    channel: int
    src: int
    dst: int
    how: str
    what: str

    @property
    def card(self) -> str | None:
        """The number of the NIC, of a connection over the network."""
        found = re.match(r".+?/(\d+)(?:/|\(|$)", self.what) if self.how == "NET" else None
        return found[1] if found else None

    @property
    def direct(self) -> bool:
        """Whether the NIC reads and writes the GPU's memory itself (GPU Direct RDMA)."""
        return "GDRDMA" in self.what


@dataclass(frozen=True)
class Call:
    """One operation: what it was, its bytes, and how it ran. Older logs name neither it nor the channels.

    NCCL counts the bytes of an all-gather and of a reduce-scatter by their parts: what one rank brings, or gets.
    """

    op: str
    nbytes: int
    algorithm: str
    protocol: str
    first: int = -1
    last: int = -1
    expected: float | None = None  # µs, of NCCL's model

    @property
    def size(self) -> str:
        """Its bytes in words, and whose they are."""
        return nbytes(self.nbytes) + {"all-gather": " from each rank", "reduce-scatter": " for each rank"}.get(
            self.op, ""
        )


@dataclass(frozen=True)
class Said:
    """A setting, a fact about a card, a network or a version: `kind` and what was said."""

    kind: str
    key: str
    value: str


Event = Comm | Ring | Hop | Branch | Link | Call | Said


def line(text: str) -> Line | None:
    """A line of NCCL's, whatever a launcher wrote before it; None for other people's lines."""
    found = PREFIX.search(text)
    if found is None:
        version = re.fullmatch(r"NCCL version \S+", text.strip())
        return Line(None, None, "INFO", text.strip()) if version else None
    return Line(found[1], int(found[2]) if found[2] else None, found[4], found[5].rstrip())


def events(message: str) -> list[Event]:
    """What a message says; nothing where it is of a kind that is not read.

    >>> events("AllReduce: 4194304 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..1}")
    [Call(op='all-reduce', nbytes=4194304, algorithm='tree', protocol='LL', first=0, last=1, expected=None)]
    """
    if message.startswith("Trees "):
        return [_branch(m) for m in TREE.finditer(message)]
    for pattern, make in READS:
        if m := pattern.fullmatch(message):
            return make(m)
    return []


def _branch(m: re.Match[str]) -> Branch:
    """Newer: child/child/child->rank->parent. Until 2.6: parent->rank->child/child/child."""
    left, right = m[2] + m[3], m[5] + m[6]
    up, down = (left, right) if "/" in right and "/" not in left else (right, left)
    return Branch(int(m[1]), int(m[4]), int(up), tuple(int(c) for c in down.split("/") if c != "-1"))


def _call(m: re.Match[str]) -> list[Event]:
    algorithm, protocol = (CALLED.get(word.upper(), word) for word in m.group(3, 4))
    return [Call(OPS.get(m[1], m[1]), int(m[2]), algorithm, protocol, int(m[5]), int(m[6]))]


def _old_call(m: re.Match[str]) -> list[Event]:
    algorithm, protocol = (
        names[int(k)] if int(k) < len(names) else k for names, k in ((ALGORITHMS, m[2]), (PROTOCOLS, m[3]))
    )
    return [Call("", int(m[1]), algorithm, protocol, expected=float(m[4]))]


def _cards(m: re.Match[str]) -> list[Event]:
    return [Said("card", number, f"{name} ({kind})" if kind else name) for number, name, kind in CARD.findall(m[1])]


READS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], list[Event]]], ...] = (
    (CALL, _call),
    (OLD_CALL, _old_call),
    (KERNEL, lambda m: [Call(OPS.get(m[1], m[1]), int(m[3]), m[2].lower(), m[4])]),
    (re.compile(COMM.pattern + r".*"), lambda m: [Comm(*map(int, m.groups()))]),
    (DONE, lambda m: [Comm(int(m[1]), int(m[2]))]),
    (RING, lambda m: [Ring(int(m[1]), int(m[2] or 0), tuple(map(int, m[3].split())))]),
    (NEXT, lambda m: [Hop(*map(int, m.groups()))]),
    (LINK, lambda m: [Link(int(m[1]), int(m[2]), int(m[3]), m[5], m[6])]),
    (CHANNELS, lambda m: [Said("channels", "coll", m[1])]),
    (re.compile(CHANNELS.pattern + r".*"), lambda m: [Said("channels", "coll", m[1])]),
    (NETWORK, lambda m: [Said("network", "", m[1])]),
    (re.compile(r"NET/\w+ ?: Using (.*)"), _cards),
    (re.compile(r"NET/IB ?: No device found\..*"), lambda m: [Said("no card", "IB", "")]),
    (HEAD, lambda m: [Said("head", m[1], m[2].strip())]),
    (GDR, lambda m: [Said("gdr", m[2], m[1])]),
    (ENV, lambda m: [Said("env", m[1], m[2])]),
    (VERSION, lambda m: [Said("version", "", m[1])]),
)
