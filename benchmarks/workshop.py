"""A class on one JupyterHub: learners log in, run two lessons and make mistakes. Who waits, and what does it take?

`HUB_TOKEN=… python benchmarks/workshop.py --hub http://127.0.0.1:8000` rehearses a workshop on the host that will hold
it: one learner alone for five minutes, then thirty at once for an hour. It needs root, a hub as book/run-anywhere.md
sets it up, the host's accounts learner01, learner02, …, and a token with the scopes admin:users, admin:servers and
access:servers.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pwd
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean, median

import psutil
from measure import options, table
from measure.hub import Hub
from measure.learner import CELL, CHECK, LESSONS, SLIPS, STARTS, Learner, Sent
from measure.processes import proportional
from measure.report import report

TITLE = "A class on one host: `benchmarks/workshop.py`"
LOGIN = "login, until the server answers"
KINDS = (LOGIN, STARTS, CELL, CHECK, *(slip.name for slip in SLIPS))
COLUMNS = ("seconds until it is done", "one learner alone", "all: median", "95 of 100 are below", "longest", "times")
EVERY = 30.0  # seconds between two looks at memory and cores


@dataclass
class Rehearsal:
    """What a class did, and what the host gave it."""

    sent: list[Sent] = field(default_factory=list)
    samples: list[dict[str, float]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def keep(self, sent: Sent) -> None:
        """Note what a learner has done."""
        self.sent.append(sent)
        if sent.wrong:
            print(f"{sent.who}, lesson {sent.lesson}, {sent.kind}: {sent.wrong}", flush=True)

    def seconds(self, kind: str) -> list[float]:
        """How long each of a kind took, the shortest first."""
        return sorted(each.seconds for each in self.sent if each.kind == kind)


def available() -> float:
    """Memory that the host could still give, in MiB."""
    return psutil.virtual_memory().available / 2**20


def busy() -> float:
    """CPU seconds of everything on the host since its start."""
    times = psutil.cpu_times()
    return times.user + times.nice + times.system + times.irq + times.softirq


def own(users: set[int]) -> float:
    """Memory that these users' processes have for themselves, in MiB."""
    theirs = [each.pid for each in psutil.process_iter(["uids"]) if each.info["uids"].real in users]
    return sum(proportional(pid, "Pss_Anon:") for pid in theirs) / 2**20


async def watch(users: set[int], samples: list[dict[str, float]]) -> None:
    """Note every half minute what the class takes, until cancelled."""
    began = since = time.monotonic()
    before = busy()
    while True:
        await asyncio.sleep(EVERY)
        memory, now, after = await asyncio.to_thread(own, users), time.monotonic(), busy()
        samples.append({"own": memory, "available": available(), "cores": (after - before) / (now - since)})
        told = ", ".join(f"{name} {value:.2f}" for name, value in samples[-1].items())
        print(f"minute {(now - began) / 60:.1f}: {told}", flush=True)
        since, before = now, after


async def rehearse(hub: Hub, names: Sequence[str], seconds: float) -> Rehearsal:
    """Let these learners go through the lessons at the same time, each in about so many seconds a lesson."""
    told = Rehearsal(samples=[{"own": 0.0, "available": available(), "cores": 0.0}])
    watching = asyncio.create_task(watch({pwd.getpwnam(name).pw_uid for name in names}, told.samples))

    async def learn(number: int, name: str) -> None:
        began = time.monotonic()
        await hub.start(name)
        told.keep(Sent(name, "", LOGIN, time.monotonic() - began))
        learner = Learner(hub, name, number, told.keep)
        for k, lesson in enumerate(LESSONS):
            await asyncio.sleep(max(0.0, began + k * seconds - time.monotonic()))  # the class begins it together
            await learner.go_through(lesson, seconds)

    try:
        ended = await asyncio.gather(*(learn(k, name) for k, name in enumerate(names)), return_exceptions=True)
        told.failures += [f"{name}: {error!r}" for name, error in zip(names, ended, strict=True) if error]
    finally:
        watching.cancel()
        await asyncio.gather(*(hub.stop(name) for name in names), return_exceptions=True)
    told.failures += [f"{s.who}, lesson {s.lesson}, {s.kind}: {s.wrong[:300]}" for s in told.sent if s.wrong]
    return told


def section(facts: dict[str, str], told: tuple[Rehearsal, Rehearsal], failures: Sequence[str]) -> str:
    """The benchmark's part of RESULTS.md."""
    alone, together = told
    rows = []
    for kind in KINDS:
        one, all_of_them = alone.seconds(kind), together.seconds(kind)
        if all_of_them:
            at = len(all_of_them) * 95 // 100
            figures = [median(one)] if one else []
            figures += [median(all_of_them), all_of_them[at], all_of_them[-1]]
            shown = [f"{value:.2f}" if value < 10 else f"{value:.0f}" for value in figures]
            rows.append((kind, *["–"] * (4 - len(shown)), *shown, str(len(all_of_them))))
    samples = together.samples
    cores = [sample["cores"] for sample in samples[1:]] or [0.0]
    facts["memory"] += (
        f"; the learners' processes had up to {max(s['own'] for s in samples) / 1024:.1f} GiB for themselves; of "
        f"{samples[0]['available'] / 1024:.1f} GiB available before, {min(s['available'] for s in samples) / 1024:.1f} "
        "GiB were left at the tightest"
    )
    facts["cores"] += f"; {mean(cores):.2f} busy on average, {max(cores):.2f} in the busiest half minute"
    return table.markdown(TITLE, facts, COLUMNS, rows, failures)


def main() -> int:
    """Rehearse and print the table; the exit code says whether anything went otherwise than it should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hub", default="", help="the hub's address, such as http://127.0.0.1:8000")
    parser.add_argument("--learners", type=options.count, default=30, help="how many (default 30)")
    parser.add_argument("--minutes", type=float, default=60.0, help="how long the class takes (default 60)")
    parser.add_argument("--alone", type=float, default=5.0, help="how long one learner takes before (default 5)")
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/RESULTS.md")
    given = parser.parse_args()
    if not given.hub or os.geteuid():
        print("Left out: it needs --hub=ADDRESS and root (see --help).")
        return 0
    hub = Hub(given.hub.rstrip("/"), os.environ["HUB_TOKEN"])
    names = [f"learner{k + 1:02}" for k in range(given.learners)]

    def both() -> tuple[tuple[Rehearsal, Rehearsal], list[str]]:
        alone, together = (
            asyncio.run(rehearse(hub, some, minutes * 60 / len(LESSONS)))
            for some, minutes in ((names[:1], given.alone), (names, given.minutes))
        )
        return (alone, together), alone.failures + together.failures

    method = (
        f"{given.learners} accounts of the host on one JupyterHub; each logs in, goes through lessons "
        f"{' and '.join(LESSONS)} in {given.minutes:g} minutes at a pace of its own, and in each makes a mistake in "
        "every exercise, four others, and, one in three, restarts the kernel; four CPU ranks each; one learner alone "
        f"goes first, in {given.alone:g} minutes; every text is held against the committed notebook's"
    )
    return report(
        "workshop",
        ["torch", "ipyparallel", "ipykernel"],
        {"method": method},
        both,
        section,
        given.write,
    )


if __name__ == "__main__":
    sys.exit(main())
