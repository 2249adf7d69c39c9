"""A log of NCCL's put together: which communicator each line belongs to, and what the lines of one say.

A rank's communicator has an address in its process. Ranks' addresses are put together by name (commId, or how it was
split off); versions before 2.17 name nothing: there, ranks of communicators of the same size are put together in the
order of the log, if every rank stays on its host, and otherwise `Log.doubts` says that it is not known. Rings and
trees are written while a communicator is made, by the thread that makes it; connections also later, by any thread.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from labkit.errors import LabError
from labkit.theory.nccl_log.lines import Branch, Call, Comm, Event, Hop, Line, Link, Ring, Said, events, line
from labkit.theory.nccl_log.log import Log
from labkit.words import count, listed

PASTE = "Set NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH,TUNING before the process group is made."
ELSEWHERE = (  # what else is pasted, by what stands in it
    (re.compile(r"out-of-place|busbw|# nThread"), "a table of nccl-tests: labkit.theory.nccl_tests.read reads it"),
    (re.compile(r"^\W*GPU0\s+(?:GPU|X)", re.M), "nvidia-smi's matrix: labkit.theory.topology.read reads it"),
    (re.compile(r"<system\b"), "NCCL's XML of a machine: labkit.theory.topology.read reads it"),
)


@dataclass
class Member:
    """A rank's communicator, as its process knows it: the first and the last line that name it, and what they say."""

    told: Line
    first: int
    last: int
    ranks: int
    rank: int = -1
    name: str = ""
    split: bool = False
    begun: bool = False  # whether a line says when it began, and not only when it was complete
    nodes: int = 0
    local: int = 0
    place: int = -1  # its rank in its node


@dataclass(eq=False)
class Group:
    """The members that make up one communicator, and what their lines say, with each value that they say."""

    ranks: int = 0
    members: list[Member] = field(default_factory=list)
    mixed: int = 1  # how many communicators it is, if the log does not say who is in which
    said: dict[tuple[str, int, int], dict[Any, None]] = field(default_factory=lambda: defaultdict(dict))
    links: dict[Link, None] = field(default_factory=dict)
    channels: int = 0
    read: int = 0

    def take(self, host: str | None, event: Event) -> None:
        """Keep what a line says, and the host of the rank that wrote it."""
        if host and (by := _speaker(event)) >= 0:
            self.said["host", 0, by][host] = None
        match event:
            case Ring():
                self.said["ring", event.channel, 0][event.order] = None
                self.channels = max(self.channels, event.channels)
            case Hop():
                self.said["hop", event.channel, event.rank][event.after] = None
            case Branch():
                self.said["tree", event.channel, event.rank][event.parent] = None
            case Link():
                self.links[event] = None
            case Said("channels"):
                self.channels = max(self.channels, int(event.value))


def read(text: str) -> Log:
    """A log, as pasted: of one process or of several, with whatever a launcher put before its lines.

    >>> print(read("NCCL INFO AllReduce: 4194304 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..1}"))
    An all-reduce of 4 MiB ran as tree, LL, channels 0–1.
    1 line read; 0 of other kinds skipped.

    Lines of other kinds are skipped and counted, never guessed at. Raises `LabError` where no line is NCCL's.
    """
    lines = [(told, events(told.message)) for told in map(line, text.splitlines()) if told]
    if all(told.thread is None and told.message.find("CCL version") == 1 for told, _ in lines):
        if what := next((what for pattern, what in ELSEWHERE if pattern.search(text)), ""):
            raise LabError(f"This is no log of NCCL's but {what}.")
        if not lines:
            raise LabError(f"No line of this is NCCL's. {PASTE}")
    members, named = _members(lines)
    groups = _grouped(members) or {-1: Group()}
    calls: Counter[Call] = Counter()
    said: dict[tuple[str, str], dict[str, dict[str, None]]] = {}
    understood = lost = 0
    for i, (told, found) in enumerate(lines):
        if told.level == "WARN":
            found = [Said("warning", told.message, told.message)]
        understood += bool(found)
        if told.comm:
            said.setdefault(("library", ""), {})["RCCL"] = {}
        for event in found:
            match event:
                case Call():
                    calls[event] += 1
                case Said(kind, key, value) if kind != "channels":
                    said.setdefault((kind, key), {}).setdefault(value, {}).update(
                        {told.host: None} if told.host else {}
                    )
                case Comm():
                    groups[id(named[i])].read += 1
                case _:
                    group = groups[id(named[i])] if i in named else _whose(i, told, event, members, groups)
                    if group:
                        group.take(told.host, event)
                        group.read += event is found[0]
                    lost += not group
    doubts = (
        []
        if not lost
        else [f"{count(lost, 'line')} may be of several communicators and {'is' if lost == 1 else 'are'} left out."]
    )
    first, *others = sorted({id(g): g for g in groups.values()}.values(), key=lambda g: -g.ranks)
    logs = [(_log(group), group.mixed) for group in (first, *others)]
    others_told = [log for log, many in logs for _ in range(many)][1:]
    more = [*doubts, *(d for log, _ in logs[1:] for d in log.doubts)]
    log = logs[0][0]
    return replace(
        log,
        calls=dict(calls),
        others=tuple(others_told),
        said={key: {value: tuple(hosts) for value, hosts in values.items()} for key, values in said.items()},
        doubts=(*log.doubts, *more),
        read=understood,
        skipped=len(lines) - understood,
    )


def _speaker(event: Event) -> int:
    """The rank whose line says this, -1 where it is not known. Rank 0 writes down the rings."""
    match event:
        case Ring():
            return 0
        case Hop() | Branch():
            return event.rank
        case Link():
            return event.by
    return -1


def _most(event: Event) -> int:
    """The highest rank that a line names."""
    match event:
        case Ring():
            return max(event.order)
        case Hop():
            return max(event.before, event.rank, event.after)
        case Branch():
            return max(event.rank, event.parent, *event.children)
        case Link():
            return max(event.src, event.dst)
    return -1


def _members(lines: Sequence[tuple[Line, list[Event]]]) -> tuple[list[Member], dict[int, Member]]:
    """The members in their order, and which one a line names by its address."""
    at: dict[tuple[str | None, int | None, str], list[Member]] = defaultdict(list)
    named: dict[int, Member] = {}
    for i, (told, found) in enumerate(lines):
        if not (comm := next((e for e in found if isinstance(e, Comm)), None)) and not told.comm:
            continue
        comm = comm or Comm(next(map(_speaker, found), -1), told.ranks, at=told.comm)
        name = comm.name
        if comm.parent:
            parents = at[told.host, told.pid, comm.parent]
            name += f" of {parents[-1].name if parents else comm.parent}"
        here = at[told.host, told.pid, comm.at]
        for member in reversed(here):
            alike = member.rank in (-1, comm.rank) or comm.rank == -1
            if member.ranks == comm.ranks and alike and (not name or member.name in ("", name)):
                break
        else:
            here.append(member := Member(told, i, i, comm.ranks))
        named[i] = member
        member.rank = max(member.rank, comm.rank)
        member.name, member.split = name or member.name, member.split or bool(comm.parent)
        member.nodes, member.local = max(member.nodes, comm.nodes), max(member.local, comm.local_ranks)
        member.place = max(member.place, comm.local_rank)
        if not told.comm:
            member.last = i
            member.begun |= "COMPLETE" not in told.message
    return list({id(m): m for m in named.values()}.values()), named


def _grouped(members: Sequence[Member]) -> dict[int, Group]:
    """The communicator of each member, by the member's id."""
    ranks: dict[tuple[str, int], set[int]] = defaultdict(set)
    for m in members:
        if m.name:
            ranks[m.name, m.ranks].add(m.rank)
    for m in members:  # whose line with the name is lost, joins the one of its size that lacks it
        lacks = [(name, those) for (name, size), those in ranks.items() if size == m.ranks and m.rank not in those]
        if not m.name and len(lacks) == 1:
            m.name = lacks[0][0]
            lacks[0][1].add(m.rank)
    keyed: dict[tuple[str, str | None, int], list[Member]] = defaultdict(list)
    for m in members:
        keyed[m.name, m.told.host if m.nodes == 1 and not m.name else None, m.ranks].append(m)
    groups: dict[int, Group] = {}
    for alike in keyed.values():
        hosts: dict[int, set[str | None]] = defaultdict(set)
        for m in alike:
            hosts[m.rank].add(m.told.host)
        sure = all(len(names) == 1 for rank, names in hosts.items() if rank >= 0)
        fixed = bool(alike[0].name) and not alike[0].split
        several: dict[int, Group] = {}
        seen: Counter[int] = Counter()
        for m in alike:
            which = seen[m.rank] if sure and not fixed and m.rank >= 0 else 0
            seen[m.rank] += m.rank >= 0
            group = groups[id(m)] = several.setdefault(which, Group(m.ranks))
            group.members.append(m)
            if m.told.host and m.rank >= 0:
                group.said["host", 0, m.rank][m.told.host] = None
        if not sure and not fixed:
            several[0].mixed = max(seen.values())
    return groups


def _whose(i: int, told: Line, event: Event, members: Sequence[Member], groups: Mapping[int, Group]) -> Group | None:
    """The communicator of a line that names none; None where it may be of several."""
    if not members:
        return groups[-1]
    process = [m for m in members if (m.told.host, m.told.pid) == (told.host, told.pid)]
    thread = [m for m in process if m.told.thread == told.thread]
    made = [m for m in thread if m.first <= i <= m.last]
    later = [m for m in thread if m.first > i]
    if not made and later and not later[0].begun:
        made = later[:1]
    if not made and not isinstance(event, Link):
        made = [m for m in thread if m.first < i] or thread[:1]
    if made:
        return groups[id(made[-1])]
    near = [m for m in process if m.first < i] or process or members
    fits = [m for m in near if _most(event) < m.ranks]
    own = [m for m in fits if m.rank == _speaker(event)] if process else []
    found = {id(groups[id(m)]): groups[id(m)] for m in own or fits}
    return next(iter(found.values())) if len(found) == 1 else None


def _log(group: Group) -> Log:
    """What the lines of a communicator say, without that on which they contradict one another."""
    doubts: dict[str, None] = {}
    ways: dict[str, dict[int, dict[int, Any]]] = {"ring": {}, "hop": {}, "tree": {}, "host": {}}
    for (kind, channel, rank), values in group.said.items():
        value = max(values, key=lambda v: len(v) if kind == "ring" else 0)
        if all(v == value or (kind == "ring" and v == value[: len(v)]) for v in values):
            ways[kind].setdefault(channel, {})[rank] = value
        else:
            what = {"hop": "ring"}.get(kind, kind)
            doubts[f"the host of rank {rank}" if kind == "host" else f"the {what} of channel {channel}"] = None
    rings = {channel: each[0] for channel, each in ways["ring"].items()}
    closed = set()
    for channel, after in ways["hop"].items():
        if (order := _around(after)) and len(order) > len(rings.get(channel, ())):
            rings[channel] = order
            closed.add(channel)
    closed |= {a.channel for a in group.links if (o := rings.get(a.channel)) and (o[-1], o[0]) == (a.src, a.dst)}
    hosts = ways["host"].get(0, {})
    nodes = max((m.nodes for m in group.members), default=0)
    if not nodes and 0 < group.ranks == len(hosts):
        nodes = len(set(hosts.values()))
    home, in_a_row = _home(group, hosts, nodes)
    told = [f"Lines contradict one another on {listed(list(doubts))}, which is left out."] if doubts else []
    if group.mixed > 1:
        those = f"{group.mixed} communicators of {count(group.ranks, 'rank')}"
        told.append(f"Of the {those} the log does not say which ranks are in which.")
    return Log(
        group.ranks,
        nodes,
        tuple(dict.fromkeys(m.told.host for m in group.members if m.told.host)) or tuple(dict.fromkeys(hosts.values())),
        home,
        in_a_row,
        rings,
        frozenset(closed),
        ways["tree"],
        tuple(group.links),
        group.channels,
        {},
        (),
        {},
        tuple(told),
        group.read,
        0,
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


def _home(group: Group, hosts: Mapping[int, str], nodes: int) -> tuple[dict[int, int], bool]:
    """The node of each rank, and whether that holds only if each node's ranks follow one another."""
    names = list(dict.fromkeys(hosts[r] for r in sorted(hosts)))
    told = {r: names.index(host) for r, host in hosts.items()}
    local = max((m.local for m in group.members), default=0)
    if (len(hosts) == group.ranks and len(names) == nodes) or local * nodes != group.ranks or not nodes:
        return told, False
    pairs = {(host, r // local) for r, host in hosts.items()}
    placed = all(m.place in (-1, m.rank % local) for m in group.members)
    if nodes > 1 and local > 1 and not (placed and len(pairs) == len(names) == len({block for _, block in pairs})):
        return told, False
    return {r: r // local for r in range(group.ranks)}, nodes > 1 and local > 1
