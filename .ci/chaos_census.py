"""What a lab has at a moment: processes, their descriptors and threads, and files; and what of it has grown since."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.live.processes import Trace, descriptors

FONT = ".ttf"  # which matplotlib keeps open once it has drawn with it: a handful
# By each lab.check and each flood in turn, and by torch, which keeps what it compiles.
WRITTEN_OVER = ("last-words-", "stdout-", "stderr-", "torchinductor_")


@dataclass(frozen=True)
class Who:
    """The processes of a lab, by what they do; `kernel` is the notebook's own."""

    kernel: int
    controller: int
    ranks: list[int]


@dataclass
class Census:
    """Counts by name: "descriptors of the controller" → 41."""

    counts: Counter[str] = field(default_factory=Counter)
    open: dict[str, Counter[str]] = field(default_factory=dict)  # what the descriptors are, to be read by people

    def __str__(self) -> str:
        return ", ".join(f"{n} {name}" for name, n in sorted(self.counts.items()) if n)

    def grown(self, before: Census) -> list[str]:
        """What there is more of than before, in words."""
        more = []
        for name in sorted(self.counts.keys() | before.counts.keys()):
            now, was = self.counts[name], before.counts[name]
            if now > was:
                kinds = self.open.get(name, Counter()) - before.open.get(name, Counter())
                more.append(f"{name}: {was} → {now}{f' ({dict(kinds)})' if kinds else ''}")
        return more


def take(who: Who, trace: Trace, place: Path) -> Census:
    """Count; of the ranks' descriptors and threads the most that one of them has."""
    census = Census()
    ours = {p.pid for p in trace.processes() if p.is_running()} - {who.kernel}
    servers = ours - {who.controller, *who.ranks}  # the fork server and the reaper
    roles = {"the kernel": [who.kernel], "the controller": [who.controller], "a rank": who.ranks}
    roles |= {"the fork server or reaper": sorted(servers)}
    for role, pids in roles.items():
        for pid in pids:
            with contextlib.suppress(OSError):
                what = Counter({kind: n for kind, n in descriptors(pid).items() if not kind.endswith(FONT)})
                if what.total() > census.counts[f"descriptors of {role}"]:
                    census.counts[f"descriptors of {role}"] = what.total()
                    census.open[f"descriptors of {role}"] = what
                threads = len(os.listdir(f"/proc/{pid}/task"))
                census.counts[f"threads of {role}"] = max(threads, census.counts[f"threads of {role}"])
    census.counts["processes"] = len(ours)
    children = psutil.Process(who.kernel).children()
    census.counts["ended children of the kernel"] = sum(c.status() == psutil.STATUS_ZOMBIE for c in children)
    for folder, name in ((trace.path, "files of the run"), (place, "files in TMPDIR")):
        beside = {trace.path, place / "ipython"} - {folder}
        found = [p for p in folder.rglob("*") if not beside & {p, *p.parents} and not p.name.startswith(WRITTEN_OVER)]
        census.counts[name] = len(found)
        census.open[name] = Counter(p.name.rstrip("0123456789abcdef.log") or p.name for p in found)
    census.counts["files in /dev/shm"] = sum(_ours(p.name, {who.kernel, *ours}) for p in Path("/dev/shm").iterdir())
    return census


def _ours(name: str, pids: set[int]) -> bool:
    return any(str(pid) in name.replace("-", "_").split("_") for pid in pids)
