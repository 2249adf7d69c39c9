"""Read the control groups (cgroups), of both versions, in which Linux limits memory, cores, processes and threads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
TASKS = {"": VERSIONS[""].top, "pids": "sys/fs/cgroup/pids"}  # where the groups lie that count processes and threads
CORES = {"": VERSIONS[""].top, "cpu": "sys/fs/cgroup/cpu"}  # and those that share out the cores' time


@dataclass(frozen=True)
class Group:
    """A control group that counts memory."""

    folder: Path
    version: Version

    def limit(self) -> int | None:
        """Return the bytes that its processes may use; None where there is no limit."""
        said = _number(self.folder / self.version.limit)
        return said if said is not None and said < UNLIMITED else None

    def free(self) -> int | None:
        """Return how many of them are left, with what Linux would give back; None without a limit."""
        limit, used = self.limit(), _number(self.folder / self.version.used)
        if limit is None or used is None:
            return None
        return limit - used + counts(self.folder / "memory.stat").get(self.version.cache, 0)

    def killed(self) -> int:
        """Count its processes that Linux has killed because memory ran out, in the group or on the whole machine."""
        return counts(self.folder / self.version.ends).get("oom_kill", 0)


@dataclass(frozen=True)
class Tasks:
    """How many processes and threads, which Linux counts alike, a control group has and may have.

    `refused` counts how many times one more was asked for and refused.
    """

    used: int
    most: int
    refused: int


def groups(pid: int | str = "self") -> list[Group]:
    """Return the groups that count a process's memory: the outermost first, its own last."""
    found = []
    for kind, folder in _folders(pid, {kind: version.top for kind, version in VERSIONS.items()}):
        version = VERSIONS[kind]
        if (folder / version.limit).exists() or (folder / version.ends).exists():
            found.append(Group(folder, version))
    return found


def tasks() -> list[Tasks]:
    """Return the limits of processes and threads in the groups of this process; none where nothing is limited."""
    found = []
    for _, folder in _folders("self", TASKS):
        most, used = _number(folder / "pids.max"), _number(folder / "pids.current")
        if most is not None and used is not None:
            found.append(Tasks(used, most, counts(folder / "pids.events").get("max", 0)))
    return found


def cores() -> float | None:
    """Return how many cores' time this process may use, with the others of its groups; None where nothing is limited.

    A group tells microseconds of all cores together, and in which period: "150000 100000" is a core and a half.
    """
    found = []
    for kind, folder in _folders("self", CORES):
        if kind:
            said = [_number(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        else:
            said = [int(n) if n.isdigit() else None for n in " ".join(_lines(folder / "cpu.max")).split()]
        if len(said) == 2 and said[0] and said[1]:
            found.append(said[0] / said[1])
    return min(found, default=None)


def _folders(pid: int | str, tops: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Yield the folders of a process's groups with their kinds, the outermost first; `tops` has each kind's place.

    A container may see only its own, at the top, whatever path the process has.
    """
    for line in _lines(ROOT / "proc" / str(pid) / "cgroup"):
        _, named, path = line.split(":", 2)
        for kind in (kind for kind in named.split(",") if kind in tops):
            folder = ROOT / tops[kind]
            for name in ["", *filter(None, path.split("/"))]:
                folder = folder / name
                yield kind, folder


def counts(file: Path) -> dict[str, int]:
    """Read a file of which each line is a name and a number, and maybe a unit."""
    return {name: int(count) for name, count, *_ in (line.split() for line in _lines(file))}


def _number(file: Path) -> int | None:
    lines = _lines(file)
    return int(lines[0]) if lines and lines[0].isdigit() else None  # it says "max" where there is none


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
