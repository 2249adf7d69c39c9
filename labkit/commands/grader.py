"""Run the checks of one learner's copy on ranks of its own, each with a limit, whatever the code does."""

from __future__ import annotations

import contextlib
import io
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from labkit.cluster import check
from labkit.cluster.console import Console
from labkit.content import exercises
from labkit.floor import time_limits
from labkit.floor.errors import LabError
from labkit.grading import submission
from labkit.grading.exercise import Exercise
from labkit.grading.finding import Finding
from labkit.grading.graded import UNGRADED, Copy, Graded
from labkit.grading.submission import Defining, Submission
from labkit.show.verdict import Verdict
from labkit.starting import start_engines

RANKS = 4
WAIT = 5.0  # seconds that a rank may wait in a collective while others compute; what computes has twice as long
SEED = 1  # of all that is left to chance: a copy that is graded again is graded alike
BEYOND = 60.0  # seconds after its limit in which a check ends and heals the ranks; then the ranks are given up
GIVEN = (
    "Beside the function's own cell, the ranks get imports, functions, classes and constants of other %%px cells. "
    "Write what else it needs into its own cell."
)
NOT_ITS_OWN = "It is the workbook's solution, word for word."


class _GivenUp(Exception):
    """A check has not come back long after its limit."""


class Grader:
    """Grades one copy after the other.

    `timeout` are the seconds for an exercise, `until` is the time (`time.monotonic`) after which none is begun; with
    `exam` what is told of each is right or wrong alone.
    """

    def __init__(self, timeout: float = time_limits.CHECK, until: float = float("inf"), exam: bool = False) -> None:
        self.timeout, self.until, self.exam = timeout, until, exam

    def copy(self, name: str, path: Path, chosen: Sequence[Exercise] | None = None) -> Copy:
        """Grade the exercises of a copy, or those that are `chosen`; its note says what is wrong with the file."""
        try:
            read = submission.read(path)
        except LabError as error:
            return Copy(name, (), str(error))
        asked = read.exercises(exercises.every()) if chosen is None else chosen
        if not asked:
            return Copy(name, (), f"{path.name} names no exercise of the workbook. Say which to grade: --exercises.")
        with _aside(), contextlib.closing(_Ranks(read, asked)) as ranks:
            return Copy(name, tuple(self._graded(ranks, exercise) for exercise in asked))

    def _graded(self, ranks: _Ranks, exercise: Exercise) -> Graded:
        began = time.monotonic()
        finding = self._found(ranks, exercise)
        taken = time.monotonic() - began
        if finding.state == UNGRADED:
            head, says = f"○ {exercise.name}: {UNGRADED}", finding.says
        else:
            verdict = Verdict(exercise, finding.in_an_exam() if self.exam else finding)
            head, says = verdict.head, verdict.says
        return Graded(exercise.name, exercise.title, finding.state, head, tuple(says), taken, finding.score)

    def _found(self, ranks: _Ranks, exercise: Exercise) -> Finding:
        defining = ranks.read.defining(exercise.name)
        if defining is None:
            return Finding("not attempted", [f"No cell of the notebook defines {exercise.name}."])
        if defining.error:
            return Finding("raises", [f"The last cell that defines {exercise.name} is no Python, {defining.error}."])
        if defining.is_of(exercise.stub):
            return Finding("not attempted", [f"{exercise.name} is as the workbook gives it."])
        left = self.until - time.monotonic()
        if left <= 0:
            return Finding(UNGRADED, ["The time for all exercises was over."])
        return ranks.found(exercise, defining, min(self.timeout, left))


class _Ranks:
    """The ranks of one copy: started when a function is first run, and anew where they cannot be healed."""

    def __init__(self, read: Submission, asked: Sequence[Exercise]) -> None:
        self.read = read
        self._cells = read.for_ranks([exercise.name for exercise in asked])
        self._console: Console | None = None

    def close(self) -> None:
        """End the ranks and all that they have started."""
        console, self._console = self._console, None
        if console is not None:
            console.engines.stop()

    def found(self, exercise: Exercise, defining: Defining, limit: float) -> Finding:
        """Check one function, once more on new ranks where the check itself does not come to its end."""
        why = ""
        for _ in range(2):
            try:
                with _no_longer_than(limit + BEYOND):
                    return self._checked(exercise, defining, limit)
            except Exception as error:  # what the learner's code does to the ranks must not end the grading of others
                why = f"{type(error).__name__}: {error}".removeprefix("LabError: ")
                with contextlib.suppress(Exception):
                    self.close()
        return Finding(UNGRADED, [f"The check itself did not come to its end, twice: {why}"])

    def _checked(self, exercise: Exercise, defining: Defining, limit: float) -> Finding:
        console = self._started()
        why = "" if defining.alone else _run(console, defining, exercise.name, limit)
        known = exercises.every()
        finding = check.check(console, exercise, lambda cell: None, lambda *_: None, (), known, SEED, limit)
        if finding.state == "stopped":
            raise KeyboardInterrupt
        if finding.state == "not attempted" and why:
            return Finding("raises", [f"The cell that defines {exercise.name} does not run: {why}."])
        if finding.state == "raises" and "NameError" in finding.says[0]:
            finding.says.append(f"Its cell does not run to its end: {why}." if why else GIVEN)
        if defining.is_of(exercise.answer):
            finding.says.append(NOT_ITS_OWN)
        return finding

    def _started(self) -> Console:
        """Return the console of ranks that have the copy's definitions."""
        if self._console is None:
            self._console = Console(start_engines(RANKS, WAIT))
            for cell in self._cells:
                self._console.engines.remember(cell)
            self._console.call("labkit.rank.definitions.replay", self._cells)
        return self._console


def _run(console: Console, defining: Defining, name: str, limit: float) -> str:
    """Run a function's whole cell, and return why it does not come to its end; its definitions are there already."""
    try:
        ended = console.call("labkit.rank.definitions.define", defining.source, name, limit=limit)
    except LabError as error:
        return str(error).partition("\n")[0].rstrip(".")
    return next(filter(None, ended), "")


@contextlib.contextmanager
def _aside() -> Iterator[None]:
    """Let ranks start in an empty folder, and show nothing of what the lab says."""
    folder = tempfile.TemporaryDirectory(prefix="labkit-grade-", ignore_cleanup_errors=True)
    with folder as place, contextlib.chdir(place), contextlib.redirect_stdout(io.StringIO()):
        yield


@contextlib.contextmanager
def _no_longer_than(seconds: float) -> Iterator[None]:
    """Raise in the block when it has not ended after so many seconds."""

    def given_up(signum: int, frame: FrameType | None) -> None:
        raise _GivenUp(f"it has not come back after {seconds:.0f} seconds")

    before = signal.signal(signal.SIGALRM, given_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
