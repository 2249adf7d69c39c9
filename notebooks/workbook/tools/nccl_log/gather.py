"""Puts a log of NCCL's together: which communicator each line belongs to, and what the lines of one say.

A rank's communicator has an address in its process. Ranks' addresses are put together by name (commId, or how it was
split off); versions before 2.17 name nothing: there, ranks of communicators of the same size are put together in the
order of the log, if every rank stays on its host, and otherwise `Log.doubts` says that it is not known. Rings and
trees are written while a communicator is made, by the thread that makes it; connections also later, by any thread.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any

from labkit.floor.errors import LabError
from labkit.floor.words import count
from workbook.tools.nccl_log.lines import VERSION, Branch, Call, Comm, Event, Hop, Line, Link, Ring, Said, events, line
from workbook.tools.nccl_log.log import Log, some

PASTE = "Set NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH,TUNING before the process group is made."
ELSEWHERE = (  # what else is pasted, by what stands in it
    (
        re.compile(r"out-of-place|busbw|# nThread"),
        "a table of nccl-tests: workbook.tools.atlas.nccl_tests.read reads it",
    ),
    (re.compile(r"^\W*GPU0\s+(?:GPU|X)", re.M), "nvidia-smi's matrix: workbook.tools.topology.read reads it"),
    (re.compile(r"<system\b"), "NCCL's XML of a machine: workbook.tools.topology.read reads it"),
)


@dataclass
class Member:
    """A communicator as a rank's process knows it; first and last are the lines between which it was made."""

    told: Line
    comm: Comm
    first: int
    last: int
    begun: bool = False  # whether a line says when that began, and not only that it is complete
    above: Member | None = None  # what it was split off

    @property
    def name(self) -> str:
        """The communicator's name, the same on all ranks; "" where it is not known."""
        if not self.comm.parent or self.comm.name.startswith("0x"):
            return self.comm.name
        return f"{self.comm.name} of {self.above.name}" if self.above and self.above.name else ""


Processes = dict[tuple[str | None, int | None], list[Member]]


@dataclass(eq=False)
class Group:
    """The members that make up one communicator, and what their lines say, with each value that they say."""

    ranks: int = 0
    mixed: int = 1  # how many communicators it is, where the log does not say who is in which
    members: list[Member] = field(default_factory=list)
    said: dict[tuple[str, int, int], dict[Any, None]] = field(default_factory=lambda: defaultdict(dict))
    links: dict[Link, None] = field(default_factory=dict)
    channels: int = 0

    def take(self, host: str | None, event: Event) -> None:
        """Note what a line says, and the host of the rank that wrote it."""
        if host and (by := _ranks(event)[0]) >= 0:
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
            case Said():
                self.channels = max(self.channels, int(event.value))


def read(text: str) -> Log:
    """Read a log, as pasted: of one process or of several, with what a launcher put before its lines.

    >>> print(read("NCCL INFO AllReduce: 4194304 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..1}"))
    An all-reduce of 4 MiB ran as tree, LL, channels 0–1.
    1 line read; 0 of other kinds skipped.

    Lines of other kinds are skipped and counted, never guessed at. Raises `LabError` where no line is NCCL's.
    """
    lines = [(told, events(told.message, told.level)) for told in map(line, text.splitlines()) if told]
    if all(VERSION.fullmatch(told.message) for told, _ in lines):
        if what := next((what for pattern, what in ELSEWHERE if pattern.search(text)), ""):
            raise LabError(f"This is not a log of NCCL's but {what}.")
        if not lines:
            raise LabError(f"No line of this is NCCL's. {PASTE}")
    processes, named = _members(lines)
    groups = _grouped([m for process in processes.values() for m in process]) or {-1: Group()}
    calls: Counter[Call] = Counter()
    said: dict[tuple[str, str], dict[str, dict[str, None]]] = defaultdict(lambda: defaultdict(dict))
    lost: set[int] = set()
    for i, (told, found) in enumerate(lines):
        if told.comm:
            said["library", ""]["RCCL"] = {}
        for event in found:
            match event:
                case Call():
                    calls[event] += 1
                case Said(kind, key, value) if kind != "channels":
                    said[kind, key][value].update({told.host: None} if told.host else {})
                case _:
                    group = groups[id(named[i])] if i in named else _whose(i, told, event, processes, groups)
                    if group:
                        group.take(told.host, event)
                    else:
                        lost.add(i)
    first, *rest = sorted({id(g): g for g in groups.values()}.values(), key=lambda g: -g.ranks)
    log, others = _log(first), [_log(g) for g in rest]
    doubts = [f"{count(len(lost), 'line')} left out: the log does not say of which communicator."] if lost else []
    return replace(
        log,
        calls=dict(calls),
        others=(*[log] * (first.mixed - 1), *(o for g, o in zip(rest, others, strict=True) for _ in range(g.mixed))),
        said={key: {value: tuple(hosts) for value, hosts in values.items()} for key, values in said.items()},
        doubts=tuple(dict.fromkeys((*log.doubts, *doubts, *(doubt for o in others for doubt in o.doubts)))),
        read=sum(bool(found) for _, found in lines),
        skipped=sum(not found for _, found in lines),
    )


def _ranks(event: Event) -> tuple[int, int]:
    """Return the rank whose line says this (-1: unknown; rank 0 writes rings), and the highest rank that it names."""
    match event:
        case Ring():
            return 0, max(event.order)
        case Hop():
            return event.rank, max(event.before, event.rank, event.after)
        case Branch():
            return event.rank, max(event.rank, event.parent, *event.children)
        case Link():
            return event.by, max(event.src, event.dst)
    return -1, -1


def _members(lines: Sequence[tuple[Line, list[Event]]]) -> tuple[Processes, dict[int, Member]]:
    """Return the members of each process, and for each line that has an address the member that it names."""
    processes: Processes = defaultdict(list)
    named: dict[int, Member] = {}
    for i, (told, found) in enumerate(lines):
        comm = next((e for e in found if isinstance(e, Comm)), None)
        if comm is None and not told.comm:
            continue
        new = comm or Comm(_ranks(found[0])[0] if found else -1, told.ranks, at=told.comm)
        process = processes[told.host, told.pid]
        for member in reversed(process):
            old = member.comm
            if (old.at, old.ranks) == (new.at, new.ranks) and all(
                -1 in pair or "" in pair or pair[0] == pair[1] for pair in ((old.rank, new.rank), (old.name, new.name))
            ):
                member.comm = Comm(*map(max, astuple(old), astuple(new)))
                break
        else:
            above = next((m for m in reversed(process) if new.parent and m.comm.at == new.parent), None)
            process.append(member := Member(told, new, i, i, above=above))
        named[i] = member
        if comm:
            member.last, member.begun = i, member.begun or "COMPLETE" not in told.message
    return processes, named


def _grouped(members: Sequence[Member]) -> dict[int, Group]:
    """Put members together to communicators; each one's, by the member's id."""
    ranks: dict[tuple[str, int], set[int]] = defaultdict(set)
    alike: dict[tuple[str, int, str | None], list[Member]] = defaultdict(list)
    for m in sorted(members, key=lambda m: (not m.name, m.first)):
        name, on = m.name, m.told.host if m.comm.nodes == 1 else None
        if not name:  # where the line with its name is lost, it is of the only one of its size that lacks its rank
            lack = [n for (n, size), those in ranks.items() if n and size == m.comm.ranks and m.comm.rank not in those]
            name = lack[0] if len(lack) == 1 else ""
        ranks[name, m.comm.ranks].add(m.comm.rank)
        alike[name, m.comm.ranks, None if name else on].append(m)
    groups: dict[int, Group] = {}
    for (name, size, _), those in alike.items():
        hosts = {(m.comm.rank, m.told.host) for m in those if m.comm.rank >= 0}
        sure = size == 1 or len(hosts) == len({rank for rank, _ in hosts})  # every rank stays on its host
        unique = bool(name) and not those[0].comm.parent
        several: dict[int, Group] = {}
        seen: Counter[int] = Counter()
        for m in those:
            group = several.setdefault(0 if unique or not sure else seen[m.comm.rank], Group(size))
            seen[m.comm.rank] += m.comm.rank >= 0
            group.members.append(m)
            if m.told.host and m.comm.rank >= 0:
                group.said["host", 0, m.comm.rank][m.told.host] = None
            groups[id(m)] = group
        if not sure and not unique:
            several[0].mixed = max(seen.values())
    return groups


def _whose(i: int, told: Line, event: Event, processes: Processes, groups: Mapping[int, Group]) -> Group | None:
    """Find the communicator of a line that names none; None where it may be of several."""
    if not processes:
        return groups[-1]
    by, most = _ranks(event)
    process = [m for m in processes.get((told.host, told.pid), []) if most < m.comm.ranks]
    thread = [m for m in process if m.told.thread == told.thread is not None]
    making = [m for m in thread if m.first <= i <= m.last] or [m for m in thread if m.first > i and not m.begun][:1]
    if not making and not isinstance(event, Link):
        making = [m for m in thread if m.first < i] or thread[:1]
    if making:
        return groups[id(making[-1])]
    known = [m for m in process if m.first < i] or process
    if not known:
        known = [m for each in processes.values() for m in each if most < m.comm.ranks]
    own = [m for m in known if process and m.comm.rank == by]
    found = {id(groups[id(m)]): groups[id(m)] for m in own or known}
    return next(iter(found.values())) if len(found) == 1 else None


def _log(group: Group) -> Log:
    """Put together what the lines of a communicator say, without that on which they contradict one another."""
    told: dict[str, dict[int, dict[int, Any]]] = {"ring": {}, "hop": {}, "tree": {}, "host": {}}
    apart: dict[str, None] = {}
    for (kind, channel, rank), values in group.said.items():
        longest = max(values, key=lambda v: len(v) if kind == "ring" else 0)
        if all(v == (longest[: len(v)] if kind == "ring" else longest) for v in values):
            told[kind].setdefault(channel, {})[rank] = longest
        else:
            what = {"hop": "ring"}.get(kind, kind)
            apart[f"the host of rank {rank}" if kind == "host" else f"the {what} of channel {channel}"] = None
    rings = {channel: order[0] for channel, order in told["ring"].items()}
    closed = {a.channel for a in group.links if (o := rings.get(a.channel)) and (o[-1], o[0]) == (a.src, a.dst)}
    for channel, after in told["hop"].items():
        if len(order := _around(after)) > len(rings.get(channel, ())):
            rings[channel] = order
            closed.add(channel)
    hosts: dict[int, str] = told["host"].get(0, {})
    nodes = max((m.comm.nodes for m in group.members), default=0)
    if not nodes and 0 < group.ranks == len(hosts):
        nodes = len(set(hosts.values()))
    home, assumed = _home(group, hosts, nodes)
    members = [m.told.host for m in group.members if m.told.host]
    doubts = [f"Lines contradict one another on {some(list(apart))}, which is left out."] if apart else []
    if group.mixed > 1:
        those = f"{group.mixed} communicators of {count(group.ranks, 'rank')}"
        doubts = [f"Of the {those} the log does not say which ranks are in which."]
    return Log(
        ranks=group.ranks,
        nodes=nodes,
        hosts=tuple(dict.fromkeys([*(hosts[r] for r in sorted(hosts)), *members])),
        home=home,
        assumed=assumed,
        rings=rings,
        closed=frozenset(closed),
        trees=told["tree"],
        links=tuple(group.links),
        channels=group.channels,
        doubts=tuple(doubts),
    )


def _around(after: Mapping[int, int]) -> tuple[int, ...]:
    """Follow a ring from its lowest rank on; empty where a piece is missing."""
    start = min(after)
    order = [start]
    while (following := after.get(order[-1])) != start:
        if following is None or len(order) > len(after):
            return ()
        order.append(following)
    return tuple(order)


def _home(group: Group, hosts: Mapping[int, str], nodes: int) -> tuple[dict[int, int], bool]:
    """Return the node of each rank, and whether that is so only if each node's ranks are consecutive."""
    names = list(dict.fromkeys(hosts[r] for r in sorted(hosts)))
    told = {r: names.index(host) for r, host in hosts.items()}
    local = max((m.comm.local_ranks for m in group.members), default=0)
    row = {r: r // local for r in range(group.ranks)} if local and local * nodes == group.ranks else {}
    if row and 1 in (nodes, local):
        return row, False
    if not nodes or (len(names) == nodes and len(told) == group.ranks):
        return told, False
    pairs = {(host, row.get(r)) for r, host in hosts.items()}
    placed = all(m.comm.local_rank in (-1, m.comm.rank % local) for m in group.members) if row else False
    if placed and len(pairs) == len(names) == len({node for _, node in pairs}):
        return row, True
    return {} if len(told) == group.ranks else told, False
