"""Check that a lab may have the processes and threads that it needs; Linux limits both alike, and calls both tasks."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from labkit.cluster import cgroups
from labkit.floor import words
from labkit.floor.errors import LabError

LAB = 16  # tasks of a lab without its ranks: the reaper, the fork server, the controller, the kernel's client
RANK = 20  # of a rank: 13 once it has joined, and 3 for each group that is made
USER = "ulimit -u"  # what sets a user's limit
EXEMPT = 1 << 21 | 1 << 24  # CAP_SYS_ADMIN, CAP_SYS_RESOURCE: with one of them a user's limit does not hold


@dataclass(frozen=True)
class Limit:
    """How many tasks there may be and how many are left, for whom, and the `name` of what sets that."""

    whose: str
    name: str
    most: int
    left: int
    refused: int = 0  # how often one more was asked for

    def __str__(self) -> str:
        return f"{self.whose} may have {self.most:,} processes and threads"


def limits() -> Iterator[Limit]:
    """Yield all limits that hold for this process and those that it starts: the containers', then the user's."""
    for group in cgroups.tasks():
        yield Limit("this notebook's container", "pids.max", group.most, max(0, group.most - group.used), group.refused)
    if (most := _users_most()) is not None:
        left = max(0, most - _users())
        # Linux does not count what a user is refused. A rank that was may have ended since.
        yield Limit("this user", USER, most, left, refused=left < 2 * RANK)


def check(ranks: int, known: Iterable[Limit] | None = None) -> None:
    """Raise `LabError` where so many ranks may not have what they need, by the limits that are `known` or hold here."""
    needed = LAB + ranks * RANK
    for limit in limits() if known is None else known:
        if limit.left < needed:
            fewer = next((n for n in (2, 1) if n < ranks and limit.left >= LAB + n * RANK), None)
            raise LabError(
                f"{words.sentence([f'{limit}, and {limit.left:,} of them are left'])} "
                f"{words.count(ranks, 'rank').capitalize()} need about {needed}. "
                f"Close other notebooks (Kernel, Shut Down Kernel), have the limit raised ({limit.name})"
                + (f", or call start({fewer})." if fewer else ", and call start() again.")
            )


class Refusals:
    """Whether this notebook or its ranks were refused a process or a thread since `note` was called last."""

    def __init__(self) -> None:
        self.note()

    def note(self) -> None:
        """Count from now on."""
        self._before = [*(group.refused for group in cgroups.tasks()), 0]

    def told(self) -> str:
        """Say which limit was reached and what to do; "" where none was, as far as can be seen."""
        for limit, before in zip(limits(), self._before, strict=False):
            if limit.refused > before:
                few = f"only {limit.left} of them are left" if limit.name == USER else "they were all in use"
                fewer = f"use fewer ranks, groups or threads, or have the limit raised ({limit.name})"
                return f"{limit}, and {few}: {fewer}"
        return ""


def _users_most() -> int | None:
    """Return how many tasks the user of this process may have; None where no such limit holds."""
    if sys.platform != "linux" or os.getuid() == 0:
        return None
    import resource  # Windows has none

    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    with open("/proc/self/status") as f:
        capabilities = next((int(line.split()[1], 16) for line in f if line.startswith("CapEff:")), 0)
    return None if most == resource.RLIM_INFINITY or capabilities & EXEMPT else most


def _users() -> int:
    """Count the tasks that the user of this process has."""
    found = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended
            if os.stat(f"/proc/{name}").st_uid == os.getuid():
                found += len(os.listdir(f"/proc/{name}/task"))
    return found
