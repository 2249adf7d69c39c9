"""The control groups (cgroups) in which Linux counts, and may limit, the memory of a process: both versions of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
UNLIMITED = 1 << 60  # bytes: where nothing is limited, version 1 tells a number like this


@dataclass(frozen=True)
class Version:
    """Where the groups lie, and what their files are called."""

    top: str
    limit: str
    used: str
    cache: str  # a line of memory.stat
    ends: str  # counts the processes that were killed because memory ran out


VERSIONS = {
    "": Version("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file", "memory.events"),
    "memory": Version(
        "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
        "memory.oom_control",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Group:
    """A control group that counts memory."""

    folder: Path
    version: Version

    def limit(self) -> int | None:
        """The bytes that its processes may use; None where that is as they like."""
        said = self._number(self.version.limit)
        return said if said is not None and said < UNLIMITED else None

    def free(self) -> int | None:
        """How many of them are left, what Linux would give back among them; None without a limit."""
        limit, used = self.limit(), self._number(self.version.used)
        if limit is None or used is None:
            return None
        return limit - used + counts(self.folder / "memory.stat").get(self.version.cache, 0)

    def killed(self) -> int:
        """How many of its processes Linux has killed because memory ran out, in the group or on the whole machine."""
        return counts(self.folder / self.version.ends).get("oom_kill", 0)

    def _number(self, name: str) -> int | None:
        lines = _lines(self.folder / name)
        return int(lines[0]) if lines and lines[0].isdigit() else None  # version 2 says "max" where there is none


def groups(pid: int | str = "self") -> list[Group]:
    """The groups that count a process's memory: the outermost first, its own last.

    A container may see only its own, at the top, whatever path the process has.
    """
    found = []
    for line in _lines(ROOT / "proc" / str(pid) / "cgroup"):
        _, kinds, path = line.split(":", 2)
        for version in (v for kind, v in VERSIONS.items() if kind in kinds.split(",")):
            folder = ROOT / version.top
            for name in ["", *filter(None, path.split("/"))]:
                folder = folder / name
                if (folder / version.limit).exists() or (folder / version.ends).exists():
                    found.append(Group(folder, version))
    return found


def counts(file: Path) -> dict[str, int]:
    """The numbers of a file of Linux's whose lines are a name and a number, and maybe a unit."""
    return {name: int(count) for name, count, *_ in (line.split() for line in _lines(file))}


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
