"""What runs and what is left of a lab: its processes, its listening sockets. Read from /proc, for tests."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

STATES = """[
    "dead" if r in lab._engines.dead() else (where or {"state": "silent"})["state"]
    for r, where in lab._engines.ask("where", range(lab.n), 1.0).items()
]"""
SOON = 20.0  # seconds after which a test gives up; no test measures time


def eventually(what: Callable[[], Any], seconds: float = SOON) -> Any:
    """Ask again and again until the answer is true; that answer, or the last one when time is up."""
    deadline = time.monotonic() + seconds
    while not (answer := what()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return answer


def states(lab: Any) -> list[str]:
    """What each rank does now: "idle", "computing", "collective", "stopped", "silent" or "dead"."""
    return list(eval(STATES, {"lab": lab}))


def carrying(text: str) -> list[psutil.Process]:
    """The processes whose environment or command line contains the text."""
    found = []
    for pid in psutil.pids():  # process_iter() keeps a process whose number another one has had since
        try:
            process = psutil.Process(pid)
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            if text.encode() in environment or any(text in word for word in process.cmdline()):
                found.append(process)
        except (OSError, psutil.Error):
            continue
    return [p for p in found if p.pid != os.getpid()]


@dataclass(frozen=True)
class Trace:
    """How to find one run again after its lab has gone: its tag and its directory."""

    tag: str
    path: Path

    @classmethod
    def of(cls, address: str) -> Trace:
        return cls(json.loads(Path(address).read_text())["tag"], Path(address).parent)

    def processes(self) -> list[psutil.Process]:
        """Everything that the run started; the reaper carries no tag but the directory's name."""
        return list({*carrying(self.tag), *carrying(str(self.path))})

    def left(self) -> list[str]:
        """What is still there, in words."""
        said = []
        for process in self.processes():
            try:
                if process.status() != psutil.STATUS_ZOMBIE:
                    said.append(f"{process.pid} {' '.join(process.cmdline())}")
            except psutil.Error:
                continue
        return said + [str(self.path)] * self.path.exists()

    def gone(self) -> bool:
        return not self.left()


def descriptors(pid: int) -> Counter[str]:
    """The open descriptors of a process, counted by kind: "socket", "anon_inode:[pidfd]", or a file's name.

    Left out are IPython's history, with its folder, and those with which ZeroMQ wakes its threads: they come and go.
    """
    kinds: Counter[str] = Counter()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            kinds[re.sub(r":\[\d+\]$", "", os.readlink(fd))] += 1
    del kinds["anon_inode:[eventfd]"]
    return Counter({kind: n for kind, n in kinds.items() if not re.search(r"history\.sqlite|/profile_default$", kind)})


def listening(process: psutil.Process) -> list[str]:
    """The IP addresses on which a process can be reached by others."""
    connections = process.net_connections if hasattr(process, "net_connections") else process.connections  # psutil 5
    return [
        c.laddr.ip
        for c in connections("inet")
        if c.laddr and (c.status == psutil.CONN_LISTEN or (c.type == socket.SOCK_DGRAM and not c.raddr))
    ]


def unix_listening(process: psutil.Process) -> list[str]:
    """The names of the Unix sockets on which a process listens; one without a directory begins with @."""
    accepting = {}
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[3], 16) & 0x10000:  # __SO_ACCEPTCON
            accepting[fields[6]] = fields[7] if len(fields) > 7 else ""
    names = []
    for fd in Path(f"/proc/{process.pid}/fd").iterdir():
        try:
            target = os.readlink(fd)
        except OSError:
            continue
        inode = target.removeprefix("socket:[").removesuffix("]")
        if target.startswith("socket:[") and inode in accepting:
            names.append(accepting[inode])
    return names
