"""pytest as `make test` runs it: a part of the tests, the long ones first, a quiet line of progress, and what it cost.

    pytest --turn=next            the part whose turn it is, and all that belongs to what changed since the last landing
    pytest --turn=2 --since=HEAD  the third of the four parts, and what belongs to uncommitted changes
    pytest --turn=all             everything

Without `--turn` pytest is as ever.
"""

from __future__ import annotations

import resource
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import parts
import psutil
import pytest

LINE_EVERY = 60.0  # seconds between two lines of progress where they do not take each other's place
RUNS = pytest.StashKey[tuple[int | None, list[str] | None]]()  # the turn, None for all; what changed, None for unknown
COLLECTED = pytest.StashKey[list[str]]()  # the ids of all tests, those of other parts as well


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--turn` and `--since`."""
    group = parser.getgroup("turns")
    group.addoption("--turn", metavar="all|next|N", help="which part of the tests to run (.ci/parts.py)")
    group.addoption("--slowest", metavar="N", type=int, default=10, help="how many files to name at the end")
    group.addoption(
        "--since", metavar="COMMIT", help="run what belongs to the changes since (default: the last landing)"
    )


@pytest.hookimpl(trylast=True)  # when there is a terminal to write to
def pytest_configure(config: pytest.Config) -> None:
    """Find out what runs, once for all workers of xdist."""
    turn = config.getoption("turn")
    if turn is None:
        return
    if hasattr(config, "workerinput"):
        config.stash[RUNS] = config.workerinput["runs"]
        return
    if turn not in ("all", "next") and not turn.isdecimal():
        raise pytest.UsageError(f"--turn={turn}: give all, next, or the number of a turn.")
    number, commit = parts.landed()
    since = config.getoption("since") or commit
    changed = parts.changed(since)
    runs = None if turn == "all" else number if turn == "next" else int(turn)
    config.stash[RUNS] = runs, None if changed is None else sorted(changed)
    config.pluginmanager.register(Progress(config, since), "suite-progress")


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's
def pytest_configure_node(node: Any) -> None:
    """Tell a worker what runs."""
    node.workerinput["runs"] = node.config.stash.get(RUNS, None)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the part, in the order in which the families start."""
    config.stash[COLLECTED] = ids = [item.nodeid for item in items]
    if RUNS not in config.stash:
        return
    turn, changed = config.stash[RUNS]
    if turn is not None:
        chosen = parts.part(ids, turn, None if changed is None else frozenset(changed))
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in chosen])
        items[:] = [item for item in items if item.nodeid in chosen]
    items.sort(key=lambda item: parts.FAMILIES.index(parts.family(item.nodeid)))


_spent = 0.0  # CPU seconds of this process, and of those that it has started and that have ended, when last asked


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def _busy() -> float:
    """CPU seconds of all processes since the machine started: some that tests start are adopted by others."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """Note in each report what was spent since the last one; a lab's ranks count when they have ended."""
    global _spent
    report: Any = yield
    now = _cpu()
    report.cpu, _spent = now - _spent, now
    return report


@dataclass
class Cost:
    """What some tests took: seconds from the first to the last line of each, and CPU seconds."""

    tests: int = 0
    seconds: float = 0.0
    cpu: float = 0.0

    def add(self, report: pytest.TestReport) -> None:
        """Count one report of a test's three: its set-up, its call and its tear-down."""
        self.tests += report.when == "teardown"
        self.seconds += report.duration if not isinstance(report, pytest.SubtestReport) else 0.0  # its test has it
        self.cpu += getattr(report, "cpu", 0.0)

    def __str__(self) -> str:
        return f"{self.tests:6,} {self.seconds:8.1f} {self.cpu:8.1f}"


class Progress:
    """Tell how far the run is in one line, a failure at once, and at the end what the run cost."""

    def __init__(self, config: pytest.Config, since: str) -> None:
        self.since = since
        self.terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
        self.live = self.terminal.isatty()  # a line may take the place of the one before
        self.began = self.told = time.monotonic()
        self.busy = _busy()
        self.all = self.ended = self.failed = 0
        self.files: dict[str, Cost] = defaultdict(Cost)
        self.families: dict[str, Cost] = defaultdict(Cost)

    def pytest_report_header(self, config: pytest.Config) -> str:
        """Say which part runs, and how to run another."""
        turn, changed = config.stash[RUNS]
        if turn is None:
            return "turn: all tests"
        what = f"{len(changed)} files" if changed is not None else "git cannot tell what, so everything"
        which = f"TURN={turn % parts.TURNS} of {parts.TURNS}"
        return f"turn: {which}, and what belongs to changes since {self.since[:9]} ({what})"

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count the tests where no xdist does."""
        self.all = self.all or len(session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Count the tests; every worker has the same."""
        self.all = len(ids)

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self) -> Iterator[None]:
        """Let pytest count a test and write no letter; what failed keeps its word, for the summary."""
        category, _, word = yield
        return category, "", "" if category == "passed" else word

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up what a test took, and tell how far the run is."""
        if report.failed:
            self.failed += 1
            within = (
                f" [{report.context.msg}]" if isinstance(report, pytest.SubtestReport) else f" in its {report.when}"
            )
            self._write(f"FAILED {report.nodeid}" + within.removesuffix(" in its call"))
        for cost in (self.files[report.nodeid.partition("::")[0]], self.families[parts.family(report.nodeid).name]):
            cost.add(report)
        self.ended += report.when == "teardown"
        now = time.monotonic()
        if now > self.told + (0.2 if self.live else LINE_EVERY):
            self.told = now
            self._write(self._line(), stays=False)

    def _line(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self.began), 60)
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{minutes:3d}:{seconds:02d}  {self.ended:,} of {self.all:,} tests{failed}"

    def _write(self, line: str, stays: bool = True) -> None:
        if self.live:
            self.terminal.rewrite(line, erase=True)
        if not self.live or stays:
            self.terminal.write_line("" if self.live else line)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Tell where the time went: by families, by the slowest files, and the CPU seconds of the whole run."""
        terminalreporter.section("where the time went")
        named = terminalreporter.config.getoption("slowest")
        slowest = sorted(self.files.items(), key=lambda item: -item[1].seconds)[:named]
        for title, costs in (("family", self.families.items()), ("the slowest files", slowest)):
            terminalreporter.write_line(f" tests  seconds    CPU s  {title}")
            for name, cost in costs:
                terminalreporter.write_line(f"{cost}  {name}")
        minutes = (time.monotonic() - self.began) / 60
        busy = _busy() - self.busy
        terminalreporter.write_line(
            f"{minutes:.1f} minutes, {busy:,.0f} CPU seconds of this machine, whatever else it did"
        )
