"""A whole log of NCCL's: its lines put together, and told in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from labkit.errors import LabError
from labkit.theory.nccl_log.lines import Branch, Call, Comm, Hop, Link, Ring, Said, events, line
from labkit.words import count, listed, ranks

PASTE = "Set NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH,TUNING before the process group is made."


@dataclass(frozen=True)
class Log:
    """What a log says.

    Args:
        ranks, nodes: of the communicator with the most ranks; 0 where the log does not say.
        hosts: how many hosts wrote lines of it.
        home: the node of each rank, as far as it is known.
        rings: channel → ranks in order; `whole(channel)` says whether all of them are there.
        trees: channel → each rank's parent, -1 at the root.
        links: connections. calls: operations, and how many lines each has.
        settings: what the environment set, all of its values. network, cards, version: as NCCL says them.
        warnings: what NCCL warns of.
        read, skipped: lines of NCCL's that were understood, and of other kinds.
    """

    ranks: int
    nodes: int
    hosts: int
    home: Mapping[int, int]
    rings: Mapping[int, tuple[int, ...]]
    trees: Mapping[int, Mapping[int, int]]
    links: tuple[Link, ...]
    calls: Mapping[Call, int]
    settings: Mapping[str, tuple[str, ...]]
    network: str
    cards: Mapping[str, str]
    channels: int
    version: str
    warnings: tuple[str, ...]
    read: int
    skipped: int

    def whole(self, channel: int) -> bool:
        """Whether a channel's ring has all ranks."""
        return bool(self.ranks) and len(self.rings.get(channel, ())) == self.ranks

    def crossings(self, channel: int) -> int | None:
        """How many times a channel's ring goes from node to node; None where the log does not say all of it."""
        if not self.whole(channel) or len(self.home) < self.ranks:
            return None
        order = self.rings[channel]
        return sum(self.home[a] != self.home[b] for a, b in zip(order, (*order[1:], order[0]), strict=True))

    @property
    def sentences(self) -> list[str]:
        """The log, told."""
        return [s for s in (*self._who(), *self._ways(), *self._orders(), *self._ran(), *self._rest()) if s]

    def __repr__(self) -> str:
        return "\n".join(self.sentences)

    # -- in words -------------------------------------------------------------------------------------------------

    def _who(self) -> Iterable[str]:
        if self.version:
            yield f"NCCL {self.version}."
        if self.ranks:
            seen = f", lines of {count(self.hosts, 'host')}" if self.hosts else ""
            nodes = f" on {count(self.nodes, 'node')}" if self.nodes else seen
            each = f", {count(self.channels, 'channel')}" if self.channels else ""
            yield f"{count(self.ranks, 'rank')}{nodes}{each}."
        if self.nodes > self.hosts and len(self.settings.get("NCCL_HOSTID", ())) == self.nodes:
            yield f"NCCL_HOSTID makes {self.nodes} nodes of {count(self.hosts, 'host')}."

    def _ways(self) -> Iterable[str]:
        over = [a for a in self.links if a.how == "NET"]
        if over:
            kinds = sorted({a.what.split("/")[0] for a in over})
            cards = sorted({a.card for a in over if a.card is not None}, key=int)
            gdr = {a.direct for a in over}
            direct = "with GPU Direct RDMA" if gdr == {True} else "without GPU Direct RDMA" if gdr == {False} else ""
            some = direct or "with GPU Direct RDMA on some connections only"
            named = [f"{c}, {self.cards[c]}" if c in self.cards else c for c in cards]
            yield f"Between nodes: {listed(kinds)}, {'card' if len(cards) == 1 else 'cards'} {listed(named)}, {some}."
        elif self.network:
            yield f"Between nodes NCCL would use {self.network}."
        inside = Counter(f"{a.how}/{a.what}".rstrip("/") for a in self.links if a.how != "NET")
        if inside:
            yield f"Inside a node: {listed(sorted(inside))}."

    def _orders(self) -> Iterable[str]:
        for channel, order in sorted(self.rings.items()):
            if self.whole(channel):
                crossed = self.crossings(channel)
                leaves = "" if crossed is None else f"; it goes from node to node {count(crossed, 'time')}"
                yield f"Ring of channel {channel}: {' '.join(map(str, order))}{leaves}."
            else:
                yield f"Ring of channel {channel}, its first {len(order)} ranks: {' '.join(map(str, order))} …"
        for channel, parents in sorted(self.trees.items()):
            if self.ranks and len(parents) == self.ranks:
                told = ", ".join(f"{r} below {p}" for r, p in sorted(parents.items()) if p >= 0)
                yield f"Tree of channel {channel}: {told}."
        if self.trees and not any(len(p) == self.ranks for p in self.trees.values()):
            known = sorted({r for p in self.trees.values() for r in p})
            yield f"Trees: only the places of {ranks(known)} are told."

    def _ran(self) -> Iterable[str]:
        for call, lines in self.calls.items():
            how = f"{call.algorithm}, {call.protocol}"
            if call.first >= 0:
                several = f"s {call.first}–{call.last}" if call.last > call.first else f" {call.first}"
                how += f", channel{several}"
            if call.expected is not None:
                how += f", expected to take {call.expected:,.1f} µs"
            op = call.op or "operation"
            times = f" ({lines} lines)" if lines > 1 else ""
            yield f"{'An' if op[0] in 'ao' else 'A'} {op} of {call.size} ran as {how}{times}."

    def _rest(self) -> Iterable[str]:
        if alike := [f"{key}={values[0]}" for key, values in self.settings.items() if len(values) == 1]:
            yield f"The environment sets {listed(alike)}."
        for key, values in self.settings.items():
            if len(values) > 1:
                yield f"It sets {key} to {listed(values)}, which differ."
        for warning in self.warnings:
            yield f"NCCL warns: {warning}"
        yield f"{count(self.read, 'line')} read; {self.skipped:,} of other kinds skipped."


def read(text: str) -> Log:
    """A log, as pasted: of one process or of several, with whatever a launcher put before its lines.

    >>> print(read("NCCL INFO AllReduce: 4194304 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..1}"))
    An all-reduce of 4 MiB ran as tree, LL, channels 0–1.
    1 line read; 0 of other kinds skipped.

    Lines of other kinds are skipped and counted, never guessed at. Raises `LabError` where no line is NCCL's.
    """
    comms: dict[int, Comm] = {}
    hosts: dict[int, str | None] = {}
    rings: dict[int, tuple[int, ...]] = {}
    channels = 0
    after: dict[int, dict[int, int]] = {}
    trees: dict[int, dict[int, int]] = {}
    links: dict[Link, None] = {}
    calls: Counter[Call] = Counter()
    said: dict[tuple[str, str], str] = {}
    settings: dict[str, dict[str, None]] = {}
    warnings: dict[str, None] = {}
    understood = skipped = 0
    for each in text.splitlines():
        told = line(each)
        if told is None:
            continue
        if told.level == "WARN":
            warnings[told.message] = None
            understood += 1
            continue
        found = events(told.message)
        understood, skipped = (understood + 1, skipped) if found else (understood, skipped + 1)
        for event in found:
            match event:
                case Comm():
                    known = comms.get(event.rank)
                    if known is None or event.nodes or event.ranks > known.ranks:
                        comms[event.rank] = event
                    hosts[event.rank] = told.host
                case Ring():
                    rings[event.channel] = event.order
                    channels = max(channels, event.channels)
                case Hop():
                    after.setdefault(event.channel, {})[event.rank] = event.after
                case Branch():
                    trees.setdefault(event.channel, {})[event.rank] = event.parent
                case Link():
                    links[event] = None
                case Call():
                    calls[event] += 1
                case Said("env"):
                    settings.setdefault(event.key, {})[event.value] = None
                case Said():
                    said[event.kind, event.key] = event.value
    if not understood and not skipped:
        raise LabError(f"No line of this is NCCL's. {PASTE}")
    for channel, following in after.items():
        if (order := _around(following)) and len(order) > len(rings.get(channel, ())):
            rings[channel] = order
    world = max((c.ranks for c in comms.values()), default=0)
    nodes = max((c.nodes for c in comms.values()), default=0)
    home = _home(comms, hosts, world, nodes)
    return Log(
        world,
        nodes or (len(set(home.values())) if len(home) == world else 0),
        len({host for host in hosts.values() if host}),
        home,
        rings,
        trees,
        tuple(links),
        dict(calls),
        {key: tuple(values) for key, values in settings.items()},
        said.get(("network", ""), ""),
        {key: value for (kind, key), value in said.items() if kind == "card"},
        int(said.get(("channels", "coll"), 0)) or channels or len(rings),
        said.get(("version", ""), ""),
        tuple(warnings),
        understood,
        skipped,
    )


def _around(after: Mapping[int, int]) -> tuple[int, ...]:
    """The ring of ranks that follow one another, from the lowest one on; empty where a piece is missing."""
    start = min(after)
    order = [start]
    while (following := after.get(order[-1])) != start:
        if following is None or len(order) > len(after):
            return ()
        order.append(following)
    return tuple(order)


def _home(comms: Mapping[int, Comm], hosts: Mapping[int, str | None], ranks: int, nodes: int) -> dict[int, int]:
    """The node of each rank: by how many a node has, where the log says so, else by the hosts' names."""
    local = max((c.local_ranks for c in comms.values()), default=0)
    if nodes and local * nodes == ranks:
        return {r: r // local for r in range(ranks)}
    names = list(dict.fromkeys(hosts[r] for r in sorted(hosts) if hosts[r]))
    return {r: names.index(host) for r, host in hosts.items() if host}
