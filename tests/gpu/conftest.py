"""What `make test-gpu` runs beside what, until when, and the one table that it ends with.

A check is one test and one row. Those that want the GPU for themselves come first, one after another; then all others
run side by side in lanes, each lane's one after another, with a notebook of its own. Nothing new is begun once the
time is up, and what was not run is named. The row says what pytest says: what was skipped is never counted as right.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from labkit.floor import words

SECONDS = 530.0  # after so many nothing is begun: what runs then, and its end, have a minute
WRONG_ENOUGH = 3  # times: a check that hangs each time would take all that there is
ALONE, BESIDE, LAST = 0, 1, 2  # when a check runs: all that is alone, then what is beside, then what is last
ABOUT = pytest.StashKey[Callable[[], str]]()  # what the table is about: set by the module with the checks
ROWS = pytest.StashKey[list[tuple[str, str]]]()  # of all checks that were asked for


class NotRun(Exception):
    """What has not been seen to be right is not run, and why."""


class OutOfTime(NotRun):
    """The time is up."""


@dataclass(frozen=True)
class Check:
    """One row of the table; `run(lane)` is one time, and raises where something is wrong.

    Args:
        what: what is checked.
        ranks: on which ranks: the name of its lane as well.
        run: it returns the seconds that count, or None for those that it took.
        times: how often.
        when: ALONE, BESIDE or LAST.
        cannot: why it cannot be run here.
    """

    what: str
    ranks: str
    run: Callable[[Any], float | None]
    times: int = 1
    when: int = BESIDE
    cannot: str = ""

    def __str__(self) -> str:
        return f"{self.what}, {self.ranks}"


@dataclass
class Seen:
    """What came of a check: `seconds` of each time that was right, and what was wrong."""

    times: int
    seconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    left_out: str = ""  # why it was not run as often as it should
    note: str = ""


class Runner:
    """Runs checks in lanes. `lane(ranks)` is what a thread's checks share: it has `note`, `until` and `close()`."""

    def __init__(self, checks: list[Check], lane: Callable[[str], Any], width: Callable[[str], int]) -> None:
        self.until = time.monotonic() + SECONDS
        self._checks = checks
        self._lane = lane
        self._width = width
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._seen: dict[Check, Future[Seen]] = {}
        self._own = threading.local()
        self._lanes: list[Any] = []

    def seen(self, check: Check) -> Seen:
        """What came of a check, run now or by now."""
        if check not in self._seen:
            if check.when == LAST:
                self.close()
            together = [c for c in self._checks if c.when == BESIDE and c not in self._seen]
            for each in together if check.when == BESIDE else [check]:
                if each.ranks not in self._pools:
                    self._pools[each.ranks] = ThreadPoolExecutor(self._width(each.ranks))
                self._seen[each] = self._pools[each.ranks].submit(self._run, each)
        return self._seen[check].result()

    def close(self, now: bool = False) -> None:
        """End all lanes, after what they have to do, or as soon as they can."""
        for each in [self, *self._lanes] if now else []:
            each.until = 0.0
        for pool in self._pools.values():
            pool.shutdown(cancel_futures=now)
        self._pools.clear()
        lanes, self._lanes = self._lanes, []
        with contextlib.ExitStack() as ends:  # each is ended, whatever another one says
            for lane in lanes:
                ends.callback(lane.close)

    def _run(self, check: Check) -> Seen:
        seen = Seen(check.times)
        lane = getattr(self._own, "lane", None)
        if lane is None:
            lane = self._own.lane = self._lane(check.ranks)
            self._lanes.append(lane)
        lane.until, lane.note = self.until, ""
        try:
            while len(seen.seconds) + len(seen.wrong) < check.times:
                if time.monotonic() > self.until and check.when != LAST:
                    raise OutOfTime("no time was left")
                if len(seen.wrong) == WRONG_ENOUGH:
                    seen.left_out = f"given up after {WRONG_ENOUGH} that were wrong"
                    break
                began = time.monotonic()
                try:
                    counted = check.run(lane)
                    seen.seconds.append(time.monotonic() - began if counted is None else counted)
                except NotRun:
                    raise
                except Exception as error:
                    kind = "" if isinstance(error, AssertionError) and str(error) else f"{type(error).__name__}: "
                    seen.wrong.append(f"{kind}{error}{_end(lane)}")
        except NotRun as error:
            seen.left_out = str(error)
        seen.note = lane.note
        return seen


def _end(lane: Any) -> str:
    """End what a lane has after something was wrong; what is wrong with that too."""
    try:
        lane.close()
    except Exception as error:
        return f"\n{error}"
    return ""


# -- pytest ---------------------------------------------------------------------------------------------------------


def pytest_collection_finish(session: pytest.Session) -> None:
    """Note the rows that were asked for."""
    session.config.stash[ROWS] = [(c.what, c.ranks) for c in _checks(session)]


def _checks(session: pytest.Session) -> list[Check]:
    given = (item.callspec.params.get("check") for item in session.items if hasattr(item, "callspec"))
    return [check for check in given if isinstance(check, Check)]


@pytest.fixture(scope="session")
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    """Runs the checks that were asked for and can be run here; `lane` and `width` are those of the module's."""
    module = request.session.items[0].getparent(pytest.Module).obj
    request.config.stash[ABOUT] = module.about
    runner = Runner([c for c in _checks(request.session) if not c.cannot], module.Lane, module.width)
    yield runner
    runner.close(now=True)


@pytest.fixture
def seen(check: Check, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Seen:
    """What came of this test's check; skipped where it cannot be run here, or was not."""
    record_property("row", (check.what, check.ranks))
    if check.cannot:
        pytest.skip(check.cannot)
    seen = request.getfixturevalue("runner").seen(check)
    record_property("seen", seen)
    if not seen.seconds and not seen.wrong:
        pytest.skip(f"not run: {seen.left_out}")
    return seen


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int) -> None:
    """Print the table, and write it into the file that the environment variable TABLE names."""
    config = terminalreporter.config
    asked = config.stash.get(ROWS, [])
    if not asked or config.option.collectonly or exitstatus == pytest.ExitCode.USAGE_ERROR:
        return
    reports = {}
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, []):
            if (row := dict(report.user_properties).get("row")) is not None:
                reports[tuple(row)] = (outcome, report)
    about = config.stash.get(ABOUT, lambda: "Nothing was run.")()
    text = table(about, [(row, *reports.get(row, ("skipped", None))) for row in asked])
    terminalreporter.section("for an issue")
    terminalreporter.write(text)
    if file := os.environ.get("TABLE"):
        Path(file).write_text(text, encoding="utf-8")


# -- the table ------------------------------------------------------------------------------------------------------

HEAD = "| what | ranks | times | right | wrong | median | worst | |\n|---|---|---|---|---|---|---|---|\n"


def table(about: str, rows: list[tuple[tuple[str, str], str, Any]]) -> str:
    """All rows in Markdown below what they are about, and how many are of which kind.

    A row is what was checked and on which ranks, pytest's outcome, and its report: None where the run was ended before.
    """
    lines, count = [], {"right": 0, "wrong": 0, "not run as often as they should be": 0, "skipped": 0}
    for (what, ranks), outcome, report in rows:
        seen: Seen | None = dict(report.user_properties).get("seen") if report else None
        cells = ["0", "0", "0", "", ""]
        if seen is not None:
            right, wrong = len(seen.seconds), len(seen.wrong)
            of = f" of {seen.times}" if right + wrong < seen.times else ""
            span = (statistics.median(seen.seconds), max(seen.seconds)) if right else ()
            cells = [f"{right + wrong}{of}", str(right), str(wrong), *(map(_said, span) if span else ("", ""))]
        if outcome in ("failed", "error"):
            kind, note = "wrong", f"**wrong**: {seen.wrong[0].splitlines()[0] if seen and seen.wrong else _why(report)}"
        elif outcome == "skipped":
            kind, note = "skipped", f"skipped: {_why(report)}"
        else:
            assert seen is not None, f"{what} has passed and nothing was seen"
            kind, note = ("not run as often as they should be" if seen.left_out else "right"), ""
        more = [seen.left_out, seen.note] if seen is not None and outcome != "skipped" else []
        count[kind] += 1
        lines.append(
            "| " + " | ".join(map(_cell, [what, ranks, *cells, "; ".join(filter(None, [note, *more]))])) + " |"
        )
    counted = ", ".join(f"{n} {kind}" for kind, n in count.items())
    return f"{about}\n\n{HEAD}" + "\n".join(lines) + f"\n\n{words.count(len(rows), 'check')}: {counted}.\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")[:300]


def _said(seconds: float) -> str:
    return words.seconds(seconds) if seconds >= 0 else f"−{words.seconds(-seconds)}"


def _why(report: Any) -> str:
    """Why something was skipped, or how it failed without having been seen."""
    if report is None:
        return "the run was ended before"
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return str(report.longrepr).strip().splitlines()[-1]
