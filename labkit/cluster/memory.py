"""Whether Linux has killed a rank because memory ran out: it counts such ends for every control group (cgroup)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from labkit.words import nbytes, ranks

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
UNLIMITED = 1 << 60  # bytes: where nothing is limited, the first version of cgroups tells a number like this


def group_of(pid: int) -> Path | None:
    """The folder of the control group that counts a process's memory, in either version of them; None where none does.

    In a container that folder may be the root itself, whatever the process's own path says.
    """
    try:
        lines = (PROC / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return None
    for _, kinds, path in (line.split(":", 2) for line in lines):
        top, counter = {"memory": (CGROUPS / "memory", "memory.oom_control"), "": (CGROUPS, "memory.events")}.get(
            kinds, (CGROUPS, "")
        )
        for folder in (top / path.lstrip("/"), top):
            if counter and (folder / counter).exists():
                return folder
    return None


def killed_in(group: Path) -> int:
    """How many processes of a control group Linux has killed because memory ran out, there or on the whole machine."""
    for name in ("memory.events", "memory.oom_control"):
        with contextlib.suppress(OSError):
            counts = dict(line.split() for line in (group / name).read_text().splitlines())
            return int(counts.get("oom_kill", 0))
    return 0


def limit_of(group: Path) -> int | None:
    """The bytes that the processes of a group may use; the least of it and those that it is part of."""
    limits = []
    for folder in (group, *group.parents):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):  # "max"
                limits.append(int((folder / name).read_text()))
    return min((limit for limit in limits if limit < UNLIMITED), default=None)


class Memory:
    """The control groups of the ranks and of the notebook, and how many were killed in each when a cell was sent."""

    def __init__(self) -> None:
        self._groups: dict[int, Path] = {}
        self._killed: dict[Path, int] = {}

    def note(self, pids: Mapping[int, int]) -> None:
        """A cell is sent to ranks with these processes."""
        self._groups |= {r: group for r, pid in pids.items() if (group := group_of(pid))}
        self._killed = {group: killed_in(group) for group in set(self._groups.values())}

    def ran_out(self, rank: int) -> str:
        """That memory ran out, in words, if that may be why a rank was sent SIGKILL since; else "".

        Each end that was counted explains one rank's.
        """
        group = self._groups.get(rank)
        if group is None or killed_in(group) <= self._killed[group]:
            return ""
        self._killed[group] += 1
        limit = limit_of(group)
        if limit is None:
            much = f"this machine has {nbytes(os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE'))}"
        else:
            those = [r for r, g in self._groups.items() if g == group]
            whose = f"{ranks(those)} and the notebook" if group_of(os.getpid()) == group else ranks(those)
            much = f"{whose} may use {nbytes(limit)}{' together' * (len(those) > 1 or 'and' in whose)}"
        return f"killed because memory ran out: {much}; use smaller tensors or fewer ranks"
