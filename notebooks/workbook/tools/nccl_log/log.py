"""A log of NCCL's as a value, and in sentences. `gather` puts it together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.floor.words import count, listed, ranks
from workbook.tools.nccl_log.lines import Call, Link

MOST = 10  # warnings that are told


@dataclass(frozen=True)
class Log:
    """What a log says of the communicator with the most ranks, and of the hosts that wrote it.

    Args:
        ranks, nodes: 0 where the log does not say.
        hosts: the hosts that wrote lines of it.
        home: the node of each rank, as far as it is known. assumed: whether that is so only if each node's ranks are
            consecutive, which the log does not say.
        rings: channel → ranks in order; `whole(channel)` says whether all of them are there. closed: the channels
            whose ring the log leads back to its first rank.
        trees: channel → each rank's parent, -1 at the root.
        links: connections. calls: operations of all communicators, and how many lines each has.
        others: the other communicators, without what is said of the hosts.
        said: (kind, name) → value → the hosts that say so: settings, versions, networks, cards, warnings.
        doubts: what cannot be told, in sentences.
        read, skipped: lines of NCCL's that were understood, and of other kinds.
    """

    ranks: int
    nodes: int
    hosts: tuple[str, ...]
    home: Mapping[int, int]
    assumed: bool
    rings: Mapping[int, tuple[int, ...]]
    closed: frozenset[int]
    trees: Mapping[int, Mapping[int, int]]
    links: tuple[Link, ...]
    channels: int
    doubts: tuple[str, ...]
    calls: Mapping[Call, int] = field(default_factory=dict)
    others: tuple[Log, ...] = ()
    said: Mapping[tuple[str, str], Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    read: int = 0
    skipped: int = 0

    @property
    def settings(self) -> Mapping[str, tuple[str, ...]]:
        """The variables that the environment sets, each with all of its values."""
        return {name: tuple(values) for (kind, name), values in self.said.items() if kind == "env"}

    @property
    def version(self) -> str:
        """NCCL's version; more than one where hosts differ."""
        return listed([v for (kind, _), values in self.said.items() if kind == "version" for v in values])

    @property
    def cards(self) -> Mapping[str, str]:
        """The network cards by number, as far as the hosts agree."""
        return {name: next(iter(vs)) for (kind, name), vs in self.said.items() if kind == "card" and len(vs) == 1}

    def whole(self, channel: int) -> bool:
        """Tell whether a channel's ring has all ranks."""
        order = self.rings.get(channel, ())
        return len(order) == self.ranks == len(set(order)) if self.ranks else channel in self.closed

    def crossings(self, channel: int) -> int | None:
        """Count how many times a channel's ring goes from node to node; None where the log does not say all of it."""
        order = self.rings.get(channel, ())
        if not self.whole(channel) or not set(order) <= set(self.home):
            return None
        return sum(self.home[a] != self.home[b] for a, b in zip(order, (*order[1:], order[0]), strict=True))

    @property
    def sentences(self) -> list[str]:
        """The log in sentences."""
        parts = (self._who(), self._ways(), self._finds(), self._orders(), self._ran(), self._rest())
        return [s for part in parts for s in part]

    def drawn(self, between: tuple[str, str] | None = None) -> Any:
        """Return what `labkit.draw` shows."""
        from workbook.tools.nccl_log.show import Heard  # matplotlib

        return Heard(self)

    def __repr__(self) -> str:
        return "\n".join(self.sentences)

    # -- in words -------------------------------------------------------------------------------------------------

    def _who(self) -> Iterable[str]:
        for name in ("NCCL", "RCCL"):
            if values := self.said.get(("version", name)):
                yield f"{name} {_by_host(values)}."
        if self.said.get(("library", "")) and not self.version:
            yield "RCCL; its version is not told."
        if self.ranks:
            seen = f", lines of {count(len(self.hosts), 'host')}" if self.hosts else ""
            nodes = f" on {count(self.nodes, 'node')}" if self.nodes else seen
            each = f", {count(self.channels, 'channel')}" if self.channels else ""
            yield f"{count(self.ranks, 'rank')}{nodes}{each}."
        if self.nodes > len(self.hosts) and len(self.settings.get("NCCL_HOSTID", ())) == self.nodes:
            yield f"NCCL_HOSTID makes {self.nodes} nodes of {count(len(self.hosts), 'host')}."
        for size in dict.fromkeys(other.ranks for other in self.others):
            alike = [other for other in self.others if other.ranks == size]
            many = "a communicator" if len(alike) == 1 else f"{len(alike)} communicators"
            hosts = dict.fromkeys(host for other in alike for host in other.hosts)
            of = f" of {count(size, 'rank')}" if size else ""
            yield f"Beside it {many}{of}{f' on {some(sorted(hosts))}' if hosts else ''}."

    def _ways(self) -> Iterable[str]:
        over = [a for a in self.links if a.how == "NET"]
        if over:
            kinds = sorted({a.what.split("/")[0] for a in over})
            cards = sorted({a.card for a in over if a.card is not None}, key=int)
            gdr = {a.direct for a in over}
            direct = f"with{'' if True in gdr else 'out'} GPU Direct RDMA{' on some connections only' * (len(gdr) > 1)}"
            named = [f"{c}, {self.cards[c]}" if c in self.cards else c for c in cards]
            card = f"{'card' if len(cards) == 1 else 'cards'} {listed(named)}, " if cards else ""
            where = "Over the network, inside the one node" if self.nodes == 1 else "Between nodes"
            yield f"{where}: {listed(kinds)}, {card}{direct}."
        networks = self.said.get(("network", ""), {})
        if networks and (len(networks) > 1 or not over):
            yield f"Between nodes NCCL would use {_by_host(networks)}."
        inside = {re.sub(r"/\d+\[\w+\]", "", f"{a.how}/{a.what}").rstrip("/") for a in self.links if a.how != "NET"}
        if inside:
            yield f"Inside a node: {listed(sorted(inside))}."

    def _finds(self) -> Iterable[str]:
        found: dict[str, list[str]] = {}
        for (kind, _), values in self.said.items():
            for value, hosts in values.items() if kind in ("card", "no card") else ():
                for host in hosts or ("NCCL",):
                    found.setdefault(host, []).append(value)
        if any(a.how == "NET" for a in self.links) and len({tuple(sorted(cards)) for cards in found.values()}) < 2:
            found = {}  # they are told with the connections
        alike: dict[str, list[str]] = {}
        for host, cards in found.items():
            none = [card for card in cards if card.startswith("no ")]
            names = [card for card in cards if card not in none]
            told = f"the card{'s' * (len(names) > 1)} {listed(names)}" if names else ""
            alike.setdefault(", but ".join([*none, *filter(None, [told])]), []).append(host)
        for told, who in alike.items():
            yield f"{some(who)} {'finds' if len(who) == 1 else 'find'} {told}."
        off = [f"{name} ({why})" for (kind, name), whys in self.said.items() if kind == "no gdr" for why in whys]
        if off:
            yield f"GPU Direct RDMA is disabled for {some(off)}."

    def _orders(self) -> Iterable[str]:
        for channel, order in sorted(self.rings.items()):
            if self.whole(channel):
                crossed = self.crossings(channel)
                leaves = "" if crossed is None else f"; it goes from node to node {count(crossed, 'time')}"
                seen = "" if self.ranks else ", whole as far as the log says"
                yield f"Ring of channel {channel}: {' '.join(map(str, order))}{seen}{leaves}."
            elif len(order) < self.ranks:
                yield f"Ring of channel {channel}, its first {len(order)} ranks: {' '.join(map(str, order))} …"
            else:
                row = f"Ring of channel {channel}: {' '.join(map(str, order))}"
                yield f"{row}; whether these are all ranks the log does not say."
        if self.assumed and any(self.crossings(c) is not None for c in self.rings):
            yield "The log does not say which ranks each node has; they are assumed to be consecutive."
        for channel, parents in sorted(self.trees.items()):
            if self.ranks and len(parents) == self.ranks:
                told = ", ".join(f"{r} below {p}" for r, p in sorted(parents.items()) if p >= 0)
                yield f"Tree of channel {channel}: {told}."
        if self.trees and not any(len(p) == self.ranks for p in self.trees.values()):
            known = sorted({r for p in self.trees.values() for r in p})
            yield f"Trees: only the places of {ranks(known)} are told."

    def _ran(self) -> Iterable[str]:
        for call, lines in self.calls.items():
            how = call.how
            if call.expected is not None:
                how += f", expected to take {call.expected:,.1f} µs"
            op = call.op or "operation"
            times = f" ({lines} lines)" if lines > 1 else ""
            yield f"{'An' if op[0] in 'ao' else 'A'} {op} of {call.size} ran as {how}{times}."

    def _rest(self) -> Iterable[str]:
        env = {name: values for (kind, name), values in self.said.items() if kind == "env"}
        hosts = {host for values in env.values() for who in values.values() for host in who}
        alike = []
        for name, values in env.items():
            if len(values) == 1:
                ((value, who),) = values.items()
                alike.append(f"{name}={value}" + (f" (only {some(who)} says so)" if 0 < len(who) < len(hosts) else ""))
        if alike:
            yield f"The environment sets {listed(alike)}."
        for name, values in env.items():
            if len(values) > 1:
                yield f"It sets {name} to {_by_host(values)}."
        warnings = [each for (kind, _), values in self.said.items() if kind == "warning" for each in values.items()]
        for text, who in warnings[:MOST]:
            yield f"NCCL warns{f' on {some(who)}' if who else ''}: {text}"
        if len(warnings) > MOST:
            yield f"NCCL warns of {len(warnings) - MOST} more things."
        yield from self.doubts
        if self.read or self.skipped:
            yield f"{count(self.read, 'line')} read; {self.skipped:,} of other kinds skipped."


def some(names: Sequence[str], most: int = 4) -> str:
    """List names, and count those beyond the first few."""
    return listed([*names[:most], f"{len(names) - most} more"] if len(names) > most + 1 else list(names))


def _by_host(values: Mapping[str, tuple[str, ...]]) -> str:
    """List the values, each with the hosts that say it where hosts differ."""
    if len(values) == 1:
        return next(iter(values))
    apart = len(set(map(frozenset, values.values()))) > 1
    return some([f"{v} on {some(who)}" if apart and who else v for v, who in values.items()]) + ", which differ"
