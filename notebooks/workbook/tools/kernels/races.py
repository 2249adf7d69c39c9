"""Find races in what the ranks' kernels did: two accesses to one number that nothing has ordered, one of them a write.

The order is *happens before*, of Lamport (1978). It holds between two accesses of one program of a kernel, from a
launch to its programs, from them to what the rank does after the kernel, and from a flag that is written with *release*
to whoever reads it with *acquire*, among all GPUs (`scope="sys"`). Whether the numbers were right does not matter: a
race that went well this time is found, too, and so is a missing fence, which no x86 processor ever shows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

from labkit.floor.words import count

MOST = 3  # races that are told
KEPT = 4000  # events of a rank that are kept; of more, what orders them would be missing
Thread = tuple[int, tuple[int, ...]]  # a rank, and a program of its kernel; () for the rank itself, the host
Clock = dict[Thread, int]
READS, BOTH = ("load", "load flag"), ("acq_rel", "acquire_release")
RULES = {
    "sem": 'the order of the flags\' operations is too weak: sem="release" where one is set, "acquire" where one waits',
    "scope": 'flags of scope "gpu", which is the default, order nothing on another GPU: scope="sys"',
    "fence": "only one of a program's threads sets a flag: tl.debug_barrier() before it, so that all have come",
}
DOES = {
    "load": "reads", "store": "writes", "fill": "fills", "accumulate": "adds to",
    "load flag": "reads, with tl.load,", "store flag": "writes, with tl.store,", "atomic": "sets",
}  # fmt: skip


@dataclass(frozen=True)
class Access:
    """A row of `workbook.tools.rank.interpreter.Seen.events`, and the rank that it is of.

    >>> Access(0, "store", 1, 4, 6, (0, 0, 0), ("ring", 7)).what
    'store'
    """

    rank: int
    what: str
    owner: int
    first: int
    end: int
    program: tuple[int, ...]
    line: tuple[str, int]
    ticket: int = 0
    sem: str = ""
    scope: str = ""
    launch: int = 0  # of the rank's kernels: which one it is in

    @property
    def thread(self) -> Thread:
        return self.rank, self.program

    @property
    def flag(self) -> bool:
        """Whether it is an access to a flag, not to a number of a buffer."""
        return self.what in ("atomic", "load flag", "store flag")

    def at(self, place: int, launch: bool = False) -> str:
        """ "rank 0 reads number 4 of rank 2's buffer (line 7 of one_shot)"; "in launch 2, line 7 of …" where asked."""
        in_ = f"in launch {self.launch}, " * launch
        line = "" if self.what == "fill" else f" ({in_}line {self.line[1]} of {self.line[0]})"
        whose = "its own" if self.owner == self.rank else f"rank {self.owner}'s"
        what = f"flag {place} in {whose} memory" if self.flag else f"number {place} of {whose} buffer"
        return f"rank {self.rank} {DOES[self.what]} {what}{line}"


@dataclass(frozen=True)
class Race:
    """Two accesses to the same place that nothing has ordered; `place` is the first number, or flag, of both."""

    one: Access
    other: Access
    place: int

    def __str__(self) -> str:
        apart = self.one.launch != self.other.launch
        both = f"{self.one.at(self.place, apart)}, and {self.other.at(self.place, apart)}"
        return f"{both}: no flag orders the two"


@dataclass
class _Place:
    """The last accesses to one number, or to one flag."""

    writes: dict[Thread, tuple[int, Access]] = field(default_factory=dict)
    reads: dict[Thread, tuple[int, Access]] = field(default_factory=dict)


class _Order:
    """The clocks of all threads, as far as the events have been gone through; `lenient` names rules not to keep."""

    def __init__(self, lenient: Collection[str] = ()) -> None:
        self.lenient = lenient
        self.clocks: dict[Thread, Clock] = {}
        self.released: dict[tuple[int, int], Clock] = {}  # by flag: what its writers had done
        self.fenced: dict[Thread, int] = {}  # up to when the threads of a program had all come to a barrier

    def clock(self, thread: Thread) -> Clock:
        """Return a thread's clock; a program begins where its rank is."""
        if thread not in self.clocks:
            host = self.clocks.get((thread[0], ()), {})
            self.clocks[thread] = {**host, thread: host.get(thread, 0) + 1}
        return self.clocks[thread]

    def over(self, rank: int) -> None:
        """Order a kernel's programs before all that the rank does next."""
        host = self.clock((rank, ()))
        for thread in [t for t in self.clocks if t[0] == rank and t[1]]:
            _join(host, self.clocks.pop(thread))
            self.fenced.pop(thread, None)
        host[rank, ()] += 1

    def barrier(self, thread: Thread) -> None:
        """Order what all threads of a program have done."""
        mine = self.clock(thread)
        self.fenced[thread] = mine[thread]
        mine[thread] += 1

    def meeting(self, ranks: Sequence[int]) -> None:
        """Order what these ranks did before a collective call before all that they do after it."""
        hosts = [self.clock((r, ())) for r in ranks]
        all_: Clock = {}
        for host in hosts:
            _join(all_, host)
        for r, host in zip(ranks, hosts, strict=True):
            _join(host, all_)
            host[r, ()] += 1

    def meets(self, access: Access) -> None:
        """Let an atomic operation on a flag order what it orders."""
        thread, flag = access.thread, (access.owner, access.first)
        mine, sem = self.clock(thread), "acq_rel" if "sem" in self.lenient else access.sem
        everywhere = access.scope in ("sys", "system") or "scope" in self.lenient
        if sem in ("acquire", *BOTH) and everywhere:
            _join(mine, self.released.get(flag, {}))
        if sem in ("release", *BOTH) and everywhere:
            # Up to Triton 3.8 a release speaks for one of the program's threads, and a barrier for all of them.
            done = mine[thread] if "fence" in self.lenient else self.fenced.get(thread, 0)
            _join(self.released.setdefault(flag, {}), {**mine, thread: done})
        mine[thread] += 1


def _join(mine: Clock, other: Mapping[Thread, int]) -> None:
    for thread, time in other.items():
        mine[thread] = max(mine.get(thread, 0), time)


def races(events: Sequence[Sequence[Sequence[Any]]], lenient: Collection[str] = ()) -> list[Race]:
    """Return the races among what the ranks did, `events[r]` being rank r's rows: one for each pair of lines.

    `lenient` names what is not looked at: "sem" and "scope" of the flags' operations, a "fence" before a release.

    >>> def row(what, owner, *more):
    ...     return [what, owner, 0, 1, (0,), ("f", 2), *more]
    >>> alone = [[row("store", 0)], [row("load", 0)]]
    >>> print(races(alone)[0].one.at(0), "|", races(alone)[0].other.at(0))
    rank 0 writes number 0 of its own buffer (line 2 of f) | rank 1 reads number 0 of rank 0's buffer (line 2 of f)
    >>> told = [row("store", 0), row("barrier", 0), row("atomic", 1, 1, "release", "sys")]
    >>> races([told, [row("atomic", 1, 2, "acquire", "sys"), row("load", 0)]])
    []
    """
    order = _Order(lenient)
    places: dict[tuple[bool, int, int], _Place] = {}
    found: dict[Any, Race] = {}
    accesses = [_read(r, mine) for r, mine in enumerate(events)]
    begins = _begins(access for mine in accesses for access in mine)
    for access, met in _in_order(accesses):
        if access.what in ("launch", "over"):
            order.over(access.rank)
        elif access.what == "meeting":
            order.meeting(met)
        elif access.what == "barrier":
            order.barrier(access.thread)
        else:
            mine = begins[access.flag, access.owner]
            runs = mine[bisect_left(mine, access.first) : bisect_left(mine, access.end)]
            for race in _at(access, order, places, runs):
                key = frozenset((a.rank == a.owner, a.what, a.line) for a in (race.one, race.other))
                found.setdefault(key, race)
            if access.what == "atomic":
                order.meets(access)
    return list(found.values())


def _begins(accesses: Iterable[Access]) -> dict[tuple[bool, int], list[int]]:
    """Cut each rank's buffer, and its flags, where an access begins or ends; return where these runs begin."""
    cuts: dict[tuple[bool, int], set[int]] = {}
    for access in accesses:
        cuts.setdefault((access.flag, access.owner), set()).update((access.first, access.end))
    return {memory: sorted(places) for memory, places in cuts.items()}


def _read(rank: int, rows: Sequence[Sequence[Any]]) -> list[Access]:
    """Read a rank's rows, and count its launches."""
    launch, mine = 0, []
    for what, owner, first, end, program, line, *more in rows:
        launch += what == "launch"
        mine.append(Access(rank, what, owner, first, end, tuple(program), tuple(line), *more))
        mine[-1] = replace(mine[-1], launch=launch)
    return mine


def _in_order(accesses: Sequence[Sequence[Access]]) -> Iterator[tuple[Access, list[int]]]:
    """Go through what all ranks did in an order that agrees with each rank's own, with tickets and with meetings.

    A meeting comes once, with the ranks that take part in it, when all of them have come to it.
    """
    members: dict[tuple[str, int], list[int]] = {}
    for r, mine in enumerate(accesses):
        for access in mine:
            if access.what == "meeting":
                members.setdefault((access.sem, access.first), []).append(r)
    rows = [iter(mine) for mine in accesses]
    heads = [next(mine, None) for mine in rows]

    def waits_for(head: Access) -> list[int]:
        return members[head.sem, head.first] if head.what == "meeting" else [head.rank]

    def ready(head: Access) -> bool:
        return all(
            (h := heads[r]) and (h.what, h.sem, h.first) == (head.what, head.sem, head.first) for r in waits_for(head)
        )

    while left := [head for head in heads if head]:
        head = min(left, key=lambda h: (h.what == "meeting" and not ready(h), h.ticket))
        met = waits_for(head)
        yield head, met if ready(head) else []
        for r in met if ready(head) else [head.rank]:
            heads[r] = next(rows[r], None)


def _at(
    access: Access, order: _Order, places: dict[tuple[bool, int, int], _Place], runs: Sequence[int]
) -> Iterator[Race]:
    """Note an access, and yield the earlier ones at its places that nothing has ordered before it."""
    clock = order.clock(access.thread)
    now = clock[access.thread]
    for i in runs:
        place = places.setdefault((access.flag, access.owner, i), _Place())
        atomic = access.what in ("atomic", "accumulate")
        earlier = [*place.writes.items(), *(() if access.what in READS else place.reads.items())]
        for thread, (time, before) in earlier:
            both = atomic and before.what in ("atomic", "accumulate")
            if thread != access.thread and time > clock.get(thread, 0) and not both:
                yield Race(before, access, i)
        (place.reads if access.what in READS else place.writes)[access.thread] = now, access


def told(events: Sequence[Sequence[Sequence[Any]]]) -> list[str]:
    """Say the first races, how many more there are, and a rule that was broken, where keeping some would order them."""
    if any(len(mine) >= KEPT for mine in events):
        return [f"a rank took {KEPT:,} loads, stores and flags or more: races are looked for in fewer alone"]
    found = races(events)
    more = [f"and {count(len(found) - MOST, 'more race')} like these"] if len(found) > MOST else []
    some = (rules for many in (1, 2, 3) for rules in combinations(RULES, many) if found)
    broken = next((rules for rules in some if not races(events, rules)), ())
    alone = ["that alone is not enough here"] * (len(broken) > 1)
    return [*map(str, found[:MOST]), *more, *(RULES[rule] for rule in broken[:1]), *alone]
