"""A slow link between hosts: the kernel paces this rank's connections to ranks of other hosts; and what went over them.

Linux keeps a TCP connection to a rate that its program asks for (SO_MAX_PACING_RATE), without privileges and on
loopback, too. So ranks of one host can play two hosts with a slow link between them.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from labkit.floor import pid_namespace, words
from labkit.floor.errors import LabError
from labkit.rank import group, recorder, wire
from labkit.rank.group import Socket
from labkit.theory import traffic

PACING = 47  # SO_MAX_PACING_RATE (Linux, asm-generic/socket.h), for which Python has no name: bytes per second
UNPACED = 2**32 - 1  # the rate of a connection that is not slowed down


@dataclass(frozen=True)
class Link:
    """How this rank is joined to those of other hosts: their numbers, its connections to them, each one's rate.

    `rate` is in bytes per second, None where nothing slows the connections down.
    """

    ranks: tuple[int, ...]
    connections: int
    rate: float | None

    def __repr__(self) -> str:
        if self.rate is None:
            return "no connection is slowed down"
        if not self.ranks:
            return "no rank is on another host"
        where = f"{words.ranks(self.ranks)} on {'another host' if len(self.ranks) == 1 else 'other hosts'}"
        return f"{words.count(self.connections, 'connection')} to {where}, {self.rate / 1e6:.4g} MB/s each"


def slow_link(rate: float | None, hosts: Sequence[Sequence[int]] | None = None, share: int = 1) -> Link:
    """Let no connection of this rank to a rank of another host send faster than `rate / share` bytes per second.

    >>> slow_link(25e6, [[0, 1], [2, 3]])           # 25 MB/s for each connection between the two
    >>> slow_link(25e6, [[0, 1], [2, 3]], share=2)  # where two of them use the link at once, the same way
    >>> slow_link(None)                             # as fast as it goes again

    Every rank of the group calls this. `hosts` says which ranks play which host; by default they are where they are.
    The rate holds for each connection, so one link that several connections share at the same time and in the same
    direction is only modelled: `share` is how many they are, and each gets its fair part beforehand, whether the others
    are busy or not. Messages start as fast as before: bandwidth is taken away, and no latency added.

    What is set holds for the connections of this moment. A group that is made later has connections of its own, and so
    has one that was joined again after a hang: call this again then. Raises `LabError` where the kernel cannot pace:
    outside Linux, and on NCCL, whose data does not go through these connections.
    """
    if rate is not None and (not isinstance(rate, (int, float)) or isinstance(rate, bool) or not 0 < rate < UNPACED):
        raise LabError(f"rate={rate!r} is not a number of bytes per second. Give one, as 25e6, or None for no limit.")
    if not isinstance(share, int) or isinstance(share, bool) or share < 1:
        raise LabError(f"share={share!r} is not a number of connections. Give 1 or more.")
    if sys.platform != "linux":
        raise LabError(f"{sys.platform} paces no connection; Linux does. Go on without the slow link.")
    if dist.is_initialized() and "nccl" in dist.get_backend_config():
        raise LabError("NCCL's data does not go through connections that can be paced. Use start(4, 'gloo').")
    ends = dict.fromkeys(group.noted_sockets(only_living=True), -1) if rate is None else connections(hosts)
    each = UNPACED if rate is None else max(1, round(rate / share))
    for noted in ends:
        with group.opened(noted) as s:
            s.setsockopt(socket.SOL_SOCKET, PACING, struct.pack("I", each))
    return Link(tuple(sorted(set(ends.values()))), len(ends), None if rate is None else rate / share)


def connections(hosts: Sequence[Sequence[int]] | None = None) -> dict[Socket, int]:
    """Find this rank's connections to ranks of other hosts: socket → that rank. Every rank of the group calls this.

    A connection is known by the names of both its ends: one name alone may be another connection's, too.
    """
    rank = dist.get_rank()
    mine = _names()
    told: list[dict[str, Any]] = [{}] * dist.get_world_size()
    with recorder.paused():
        dist.all_gather_object(
            told, {"place": pid_namespace.here(), "sockets": [(*ends, 0, 0) for ends in mine.values()]}
        )
    home = _home(hosts, [t["place"] for t in told])
    leads = traffic.flows(told)
    found = {noted: leads[ends][1] for noted, ends in mine.items() if ends in leads}
    return {noted: r for noted, r in found.items() if home[r] != home[rank]}


def sent(ends: Collection[Socket]) -> int | None:
    """Return the bytes that have gone out over these connections so far; None where the kernel does not count them."""
    return wire.sent_over(ends) if _counted() else None


def _counted() -> bool:
    """Tell whether the kernel counts what the group sends: known from a lab's start, else seen on some connection."""
    if sys.platform != "linux" or "nccl" in dist.get_backend_config():
        return False
    return group.counted() or any(done for *_, done, _ in wire.sockets())


def _names() -> dict[Socket, tuple[str, str]]:
    """Return the local and the peer's name of each connection between this rank and others."""
    names = {}
    for noted in group.noted_sockets(only_living=True):
        try:
            with group.opened(noted) as s:
                names[noted] = wire.name(s.getsockname()), wire.name(s.getpeername())
        except OSError:
            continue
    return names


def _home(hosts: Sequence[Sequence[int]] | None, places: Sequence[str]) -> list[int]:
    """Return the host of each rank by number: as given, or where the ranks are."""
    n = len(places)
    if hosts is None:
        known = list(dict.fromkeys(places))
        if len(known) == 1:
            raise LabError(
                "All ranks are on one host, so there is no link between hosts. Say which ranks play which host, such "
                "as hosts=[[0, 1], [2, 3]]."
            )
        return [known.index(where) for where in places]
    return traffic.home(hosts, n)
