"""Reads NCCL's log line by line: each kind of line as a plain value. Knows no machine and draws nothing.

NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH,TUNING. Formats: NCCL 2.4 to 2.30 (src/init.cc, enqueue.cc,
debug.cc, graph/connect.cc, graph/rings.cc, transport/*.cc), and what RCCL has instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from labkit.floor.words import ANSI, nbytes

# What NCCL calls them, in the order of the numbers that older versions print (src/include/nccl_common.h, nccl_tuner.h).
ALGORITHMS = {
    "TREE": "tree",
    "RING": "ring",
    "COLLNET_DIRECT": "CollNet direct",
    "COLLNET_CHAIN": "CollNet chain",
    "NVLS": "NVLS",
    "NVLS_TREE": "NVLS tree",
    "PAT": "PAT",
}
PROTOCOLS = {"LL": "LL", "LL128": "LL128", "SIMPLE": "Simple"}
OPS = {
    "AllReduce": "all-reduce",
    "AllGather": "all-gather",
    "ReduceScatter": "reduce-scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "AlltoAll": "all-to-all",
    "SendRecv": "send and receive",
}

PREFIX = re.compile(
    r"(?:(\w[\w.-]*)?:(\d{1,9}):(\d{1,9}) )?(?:\[-?\d+\] )?(?:[\d.]+ )?(?:[^\s:]+:\d+ )?"
    r"NCCL (INFO|WARN|CALL|TRACE) +(.{,4000})"
)
TAIL = re.compile(r" comm (0x\w+) nRanks (\d{1,6})(?: busId \w+)?$")  # which RCCL adds to many lines
COMM = re.compile(r"(?:\[Rank \d+\] )?(?:\w+ )?comm (\w+) rank (\d{1,6}) n[rR]anks (\d{1,6}) (.*)")
FIELD = re.compile(r"(\w+) (-?\w+)")
VERSION = re.compile(r"([NR]CCL) version(?: *:)? *(\d+\.\d+\.\d+)\S*(?: \w+:\S*)?")
NETWORK = re.compile(r"Using network (.+)")
CARD = re.compile(r"\[(\d+)\](\S+?):(?:\d+/(\S+)|\S*<\d+>)")  # InfiniBand has a port and a kind, a socket an address
RING = re.compile(r"Channel (\d+)(?:/(\d+))? :((?: +\d+)+)(?: *\.\.\.)?\s*")
NEXT = re.compile(r"Ring (\d+) : (-?\d+) -> (\d+) -> (-?\d+)")
TREE = re.compile(r"\[(\d+)\] (-?\d+)((?:/-?\d+)*)->(-?\d+)->(-?\d+)((?:/-?\d+)*)")
LINK = re.compile(
    r"(?:Channel|Ring) (\d+)(?:/\d+)? : (\d+)(?:\[\w+\])? -> (\d+)(?:\[\w+\])? "
    r"(?:\[(send|receive)\] )?via (?:([A-Z0-9]+)/?(.*)|direct shared memory)"
)
CHANNELS = re.compile(
    r"(\d{1,3}) coll channels, (?:(\d+) collnet channels, )?(?:(\d+) nvls channels, )?(\d+) p2p channels.*"
)
CALL = re.compile(r"(\w+): (\d+) Bytes *-> Algo (\S+) proto (\S+) channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}")
OLD_CALL = re.compile(r"(?:(\w+): )?(\d+) Bytes -> Algo (\d{1,3}) proto (\d{1,3}) time (\d+(?:\.\d+)?)")
KERNEL = re.compile(r"(\w+) \[(Symmetric|Copy Engine|Hierarchical CE)\]: (\d+) Bytes -> (.*)")
ENV = re.compile(r"([NR]CCL_\w+) set (?:by environment )?to (.*?)\.?")
GDR = re.compile(r".*GPU Direct RDMA Disabled for (.+?) \((.*)\)")
RETRIED = re.compile(r"(?:Call to|.*: connect to) .* (?:returned|failed) .*")  # a connection that does not come about


@dataclass(frozen=True)
class Line:
    """What stands before a line's message: the host, the process and the thread, None where they were cut off.

    RCCL ends many lines with the communicator, which here is `comm`, and its number of ranks.
    """

    host: str | None
    pid: int | None
    thread: int | None
    level: str
    message: str
    comm: str = ""
    ranks: int = 0


@dataclass(frozen=True)
class Comm:
    """A communicator as one rank sees it; nodes are 0 where the version does not say.

    `at` is its address in the rank's process. `name` is the same on all of its ranks: commId, or where it was split
    off the communicator at `parent`, how. Versions before 2.17 have neither.
    """

    rank: int
    ranks: int
    nodes: int = 0
    local_ranks: int = 0
    local_rank: int = -1
    at: str = ""
    name: str = ""
    parent: str = ""


@dataclass(frozen=True)
class Ring:
    """A channel's ring, in order; cut off where it was too long for NCCL's line of 128 characters."""

    channel: int
    channels: int
    order: tuple[int, ...]


@dataclass(frozen=True)
class Hop:
    """A rank's place in a channel's ring: the ranks that it receives from and sends to."""

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
    by: int = field(default=-1, compare=False)  # the rank whose line it is

    @property
    def card(self) -> str | None:
        """The number of the NIC; None where the connection does not go over the network."""
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
        """Its bytes in words, and which rank's they are."""
        return nbytes(self.nbytes) + {"all-gather": " from each rank", "reduce-scatter": " for each rank"}.get(
            self.op, ""
        )

    @property
    def how(self) -> str:
        """Its algorithm, protocol and channels, in words."""
        several = f"s {self.first}–{self.last}" if self.last > self.first else f" {self.first}"
        channels = f", channel{several}" if self.first >= 0 else ""
        return f"{self.algorithm}, {self.protocol}{channels}"


@dataclass(frozen=True)
class Said:
    """A setting, a fact about a card, a network or a version: `kind` and what was said."""

    kind: str
    key: str
    value: str


Event = Comm | Ring | Hop | Branch | Link | Call | Said


def line(text: str) -> Line | None:
    """Read a line of NCCL's, also behind a launcher's prefix; None for a line of another program."""
    text = ANSI.sub("", text).rstrip()
    if (found := PREFIX.search(text) if "NCCL " in text else None) is None:
        version = re.search(rf"\b{VERSION.pattern}$", text)
        return Line(None, None, None, "INFO", version[0]) if version else None
    host, pid, thread, level, message = found.groups()
    tail = TAIL.search(message)
    return Line(
        host,
        int(pid) if pid else None,
        int(thread) if thread else None,
        level,
        message[: tail.start()] if tail else message,
        tail[1] if tail else "",
        int(tail[2]) if tail else 0,
    )


def events(message: str, level: str = "INFO") -> list[Event]:
    """Read a message; an empty list where it is of a kind that is not read.

    >>> events("AllReduce: 4194304 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..1}")
    [Call(op='all-reduce', nbytes=4194304, algorithm='tree', protocol='LL', first=0, last=1, expected=None)]
    """
    if level == "WARN":
        return [Said("warning", message, message)]
    if " NCCL INFO " in message:
        return []  # two lines that were written into one another
    if message.startswith("Trees "):
        return [_branch(m) for m in TREE.finditer(message)]
    for pattern, make in READS:
        if m := pattern.fullmatch(message):
            return make(m)
    return []


def _branch(m: re.Match[str]) -> Branch:
    """Read a place in a tree: child/child/child->rank->parent, until 2.6 parent->rank->child/child/child."""
    left, right = m[2] + m[3], m[5] + m[6]
    up, down = (left, right) if "/" in right and "/" not in left else (right, left)
    return Branch(int(m[1]), int(m[4]), int(up), tuple(int(c) for c in down.split("/") if c != "-1"))


def _comm(m: re.Match[str]) -> list[Event]:
    said = dict(FIELD.findall(m[4]))
    if "nNodes" not in said and said.get("Init") not in ("START", "COMPLETE"):
        return []
    nodes, local, which = (
        int(said[key]) if said.get(key, "").isdecimal() else unsaid
        for key, unsaid in (("nNodes", 0), ("localRanks", 0), ("localRank", -1))
    )
    split = f"{said.get('splitCount', '')} {said.get('color', '')}" if "parent" in said else ""
    name = said.get("commId", split)
    return [Comm(int(m[2]), int(m[3]), nodes, local, which, m[1], name, said.get("parent", ""))]


def _link(m: re.Match[str]) -> list[Event]:
    src, dst = int(m[2]), int(m[3])
    return [Link(int(m[1]), src, dst, m[5] or "SHM", m[6] or "", dst if m[4] == "receive" else src)]


def _call(m: re.Match[str]) -> list[Event]:
    algorithm, protocol = ALGORITHMS.get(m[3].upper(), m[3]), PROTOCOLS.get(m[4].upper(), m[4])
    return [Call(OPS.get(m[1], m[1]), int(m[2]), algorithm, protocol, int(m[5]), int(m[6]))]


def _old_call(m: re.Match[str]) -> list[Event]:
    algorithm, protocol = (
        [*names.values()][int(k)] if int(k) < len(names) else k for names, k in ((ALGORITHMS, m[3]), (PROTOCOLS, m[4]))
    )
    return [Call(OPS.get(m[1], m[1] or ""), int(m[2]), algorithm, protocol, expected=float(m[5]))]


def _cards(m: re.Match[str]) -> list[Event]:
    return [Said("card", number, f"{name} ({kind})" if kind else name) for number, name, kind in CARD.findall(m[1])]


READS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], list[Event]]], ...] = (
    (CALL, _call),
    (OLD_CALL, _old_call),
    (KERNEL, lambda m: [Call(OPS.get(m[1], m[1]), int(m[3]), m[2].lower(), m[4])]),
    (COMM, _comm),
    (RING, lambda m: [Ring(int(m[1]), int(m[2] or 0), tuple(map(int, m[3].split())))]),
    (NEXT, lambda m: [Hop(*map(int, m.groups()))]),
    (LINK, _link),
    (CHANNELS, lambda m: [Said("channels", "", m[1])]),
    (NETWORK, lambda m: [Said("network", "", m[1])]),
    (re.compile(r"NET/\w+ ?: Using (.*)"), _cards),
    (re.compile(r"NET/IB ?: No device found\..*"), lambda m: [Said("no card", "", "no InfiniBand card")]),
    (GDR, lambda m: [Said("no gdr", m[1], m[2])]),
    (ENV, lambda m: [Said("env", m[1], m[2])]),
    (VERSION, lambda m: [Said("version", m[1], m[2])]),
    (RETRIED, lambda m: [Said("warning", m[0], m[0])]),
)
