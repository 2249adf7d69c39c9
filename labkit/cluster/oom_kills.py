"""Tell whether Linux has killed a rank because memory ran out: it counts such ends for every control group (cgroup)."""

from __future__ import annotations

import os
from collections.abc import Mapping

from labkit.cluster import cgroups
from labkit.floor.words import nbytes, ranks


class Memory:
    """The control groups of the ranks and of the notebook, and how many were killed in each when a cell was sent."""

    def __init__(self) -> None:
        self._groups: dict[int, list[cgroups.Group]] = {}  # of each rank: the outermost first
        self._killed: dict[cgroups.Group, int] = {}

    def note(self, pids: Mapping[int, int]) -> None:
        """Remember the counts as they are when a cell is sent to ranks with these processes."""
        self._groups |= {r: groups for r, pid in pids.items() if (groups := cgroups.groups(pid))}
        self._killed = {groups[-1]: groups[-1].killed() for groups in self._groups.values()}

    def ran_out(self, rank: int) -> str:
        """Say that memory ran out, if that may be why a rank was sent SIGKILL since; else "".

        Each end that was counted explains one rank's.
        """
        groups = self._groups.get(rank, [])
        if not groups or groups[-1].killed() <= self._killed[groups[-1]]:
            return ""
        self._killed[groups[-1]] += 1
        limit = min((limit for group in groups if (limit := group.limit()) is not None), default=None)
        if limit is None:
            much = f"this machine has {nbytes(os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE'))}"
        else:
            those = [r for r, others in self._groups.items() if others == groups]
            whose = f"{ranks(those)} and the notebook" if cgroups.groups() == groups else ranks(those)
            much = f"{whose} may use {nbytes(limit)}{' together' * (len(those) > 1 or 'and' in whose)}"
        return f"killed because memory ran out: {much}; use smaller tensors or fewer ranks"
