"""Run a cell as a learner sees it: output in rank order, one error with its cause, the group healed behind it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from IPython.core.getipython import get_ipython
from IPython.display import publish_display_data

from labkit.cluster.engines import Engines
from labkit.cluster.healing import heal
from labkit.cluster.live_line import Line
from labkit.cluster.run import Running, Talk, run
from labkit.cluster.state import Condition
from labkit.cluster.stop_button import STOP
from labkit.floor import file_limit, time_limits
from labkit.floor.errors import LabError, StoppedError, StuckError
from labkit.floor.words import alike, ranks, sentence
from labkit.outcome.advice import advice
from labkit.outcome.outcome import Healed, Note, Outcome
from labkit.outcome.phrases import healed
from labkit.outcome.sentences import judge
from labkit.outcome.text import merge
from labkit.theory.cells import Cell

FILES = {  # who has too many of them open, and what to do
    "who": "This notebook",
    "instead": ". Close some, restart the kernel, or raise the limit with ulimit -n where Jupyter is started.",
}


class Console:
    """Runs cells on the engines and shows what came of them."""

    def __init__(self, engines: Engines, draw: Callable[[Sequence[Any], Outcome], None] = lambda *_: None) -> None:
        self.engines = engines
        self.draw = draw  # shows who waited for whom, beside the error of a cell that was cut short
        self.ran: list[int] = []  # the ranks that the last cell was sent to
        self.elastic = False  # the others go on without a rank that dies in a cell, or between two
        self._now: list[int | None] = []  # the number that each rank of the last cell has by now
        self.outcome: Outcome | None = None  # what became of the last cell; None while it runs
        self.sent: Any = None  # ipyparallel's result of the last cell

    @STOP
    def run(self, code: str, ranks: Sequence[int], part_of: Cell | None = None, makes_group: bool = False) -> Outcome:
        """Run `code`, show its output, heal what it broke, and raise its error if it has one."""
        return self.collect(self.send(code, ranks, part_of, makes_group))

    @STOP
    def send(
        self,
        code: str,
        ranks: Sequence[int],
        part_of: Cell | None = None,
        makes_group: bool = False,
        metadata: dict[str, Any] | None = None,
    ) -> Any:
        """Bring back what died since the last cell, then send this one, and return ipyparallel's AsyncResult.

        Ranks are not joined before a cell that `makes_group`: a learner may leave the lab's to make one by hand.
        """
        if not makes_group:
            self.recover()
        n = self.engines.n
        if not (ranks := [r for r in ranks if r < n]):
            raise LabError(f"This lab has only the ranks 0 to {n - 1} now. Choose among them, or call lab.grow().")
        self.ran, self.outcome, self._now = ranks, None, list(range(n))
        self.sent = self.engines.execute(code, ranks, part_of, metadata)
        return self.sent

    @STOP
    def collect(
        self,
        result: Any,
        progress_after: float = 2.0,
        by_rank: bool = False,
        signal: str | int | None = None,
        talk: Talk = lambda _: None,
    ) -> Outcome:
        """Wait for a cell that was sent, show its output, heal what it broke, raise its error if it has one."""
        progress = Progress(progress_after)
        self.engines.state.in_cell()
        try:
            outcome = run(self.engines.running(result), watch=progress.show, signal=signal, talk=talk)
        finally:
            progress.clear()
        if outcome.behind:  # a pool's thread may have been about to begin with what it was given
            told = self.engines.ask("groups", [r.rank for r in outcome.ranks], time_limits.AGENT_ANSWERS)
            for r in outcome.ranks:
                r.groups = told[r.rank] or r.groups
        self.outcome = outcome
        self.engines.ended(result, outcome.well)
        show(outcome, by_rank)
        logs = self.records() if outcome.behind or outcome.ended in ("stuck", "stopped") else []
        self.finish(outcome, logs, shrink=self.elastic)
        return outcome

    def records(self) -> list[dict[str, Any] | None]:
        """Return what each rank recorded of the last cell: {} where it had no part, None where it does not answer."""
        here = {r: now for r in self.ran if (now := self._now[r]) is not None}
        told = self.engines.ask("records", here.values(), time_limits.RECORDS_COME)
        of = {r: told[now] for r, now in here.items() if isinstance(told[now], dict)}
        return [of.get(r, None if r in self.ran else {}) for r in range(len(self._now) or self.engines.n)]

    def seen(self) -> Outcome | None:
        """Return what became of the last cell, or what becomes of it where it still runs, or was not waited for."""
        return self.outcome or (self.sent and self.engines.running(self.sent).seen())

    @STOP
    def call(
        self, path: str, *args: Any, ranks: Sequence[int] | None = None, limit: float = time_limits.CALL_RETURNS
    ) -> list[Any]:
        """Call a function of `labkit.rank` by name on these ranks, or all, and return what they return, in rank order.

        A failure, Stop, or more than `limit` seconds frees the ranks, heals them and raises, as a cell does.
        """
        self.recover()
        which = range(self.engines.n) if ranks is None else ranks
        outcome = self.engines.call(path, dict.fromkeys(which, args), limit)
        self.finish(outcome)
        return [outcome.answers[r] for r in which]

    def finish(self, outcome: Outcome, logs: Sequence[dict[str, Any] | None] = (), shrink: bool = False) -> None:
        """Raise the error that a cell or a call ended with, once the ranks are healed."""
        engines, state = self.engines, self.engines.state
        state.in_cell()  # should anything below fail, the next cell heals
        error = judge(outcome, logs or [None] * self.engines.n)
        if logs and isinstance(error, (StuckError, StoppedError)):
            self.draw(logs, outcome)
        if error is None:
            state.settled(apart=any(r.apart for r in outcome.ranks))
        else:
            here = getattr(get_ipython(), "user_ns", {})
            error.notes += advice(outcome, state.replaced, [cell.code for cell in engines.cells], here)
            error.notes += filter(None, [engines.refusals.told()])
            broken = bool(outcome.misfit or outcome.behind)
            error.notes += map(healed, self._heal([r.rank for r in outcome.ranks], broken, shrink=shrink))
            raise error

    @STOP
    def recover(self, by_hand: bool = False) -> None:
        """Before a cell, or `by_hand`: bring back what died, waits or has left the group, and say so."""
        file_limit.spare(**FILES)
        engines, condition = self.engines, self.engines.state.condition
        if condition is Condition.STOPPED:
            raise LabError("The lab was stopped, so there are no ranks. Run lab = start() for new ones.")
        if condition is Condition.WELL and not (by_hand or engines.lost() or engines.dead()):
            return
        found = [f"{ranks(rs)} had died ({how})" for how, rs in alike(engines.dead()).items()]
        if condition is Condition.APART:
            found.append("the lab's process group no longer joined all ranks")  # which rank left first is not known
        here = [now for r in self.ran if (now := self._now[r]) is not None]
        free = by_hand or condition is Condition.UNHEALED
        if notes := self._heal(here, free=free, shrink=self.elastic):
            print(sentence([*([] if by_hand else found), *map(healed, notes)]))

    def _heal(self, ran: Sequence[int], broken: bool = False, free: bool = False, shrink: bool = False) -> list[Note]:
        notes = heal(self.engines, ran, broken, free, shrink)
        for were in (note.ranks for note in notes if note.what is Healed.SHRUNK):
            self._now = [were.index(r) if r in were else None for r in self._now]
        return notes

    @STOP
    def grow(self) -> None:
        """Start a rank for each that was left out, and join all, as many as there were at first."""
        self.call("labkit.rank.agent.memory")  # it comes behind a cell that runs still
        if self.engines.left:
            self.engines.state.in_cell()  # should anything below fail, the next cell heals
            self.engines.grow()
            print(sentence([*map(healed, self._heal((), broken=True))]))


def show(outcome: Outcome, by_rank: bool = False) -> None:
    """Print the ranks' output in rank order, equal ones once; rich outputs follow, each under its rank."""
    out = {r.rank: _joined(r.stdout, r.value) for r in outcome.ranks}
    err = {r.rank: r.stderr for r in outcome.ranks}
    for stream, texts in ((sys.stdout, out), (sys.stderr, err)):
        for group in [{r: t} for r, t in texts.items()] if by_rank else [texts]:
            if merged := merge(group):
                stream.write(merged)
    sys.stdout.flush()
    for r in outcome.ranks:
        for data in r.displays:
            print(f"rank {r.rank} │")
            publish_display_data(data)


def _joined(stdout: str, value: str) -> str:
    gap = "\n" if stdout and value and not stdout.endswith("\n") else ""
    return stdout + gap + value


class Progress(Line):
    """What each rank does, in a line that appears late."""

    def __init__(self, after: float) -> None:
        super().__init__()
        self.after = after

    def show(self, elapsed: float, running: Running) -> None:
        if self.after < 0 or elapsed < self.after:
            return
        dead = running.ranks.dead()
        said = {
            r: f"died ({dead[r]})" if r in dead else f"{doing(running.where.get(r))}{_last_line(reply)}"
            for r, reply in running.replies.items()
        }
        self.write(f"{elapsed:.0f} s\n{merge(said)}")


def doing(where: dict[str, Any] | None) -> str:
    """Say what a rank does."""
    if where is None:
        return "done"
    at = f", line {where['line']}" if where.get("line") else ""
    if where["state"] == "collective":
        return f"in {where['op']}{at}"
    return f"{where['state']}{at}"


def _last_line(reply: Any) -> str:
    lines = (reply.output.metadata["stdout"] or "").strip().splitlines()
    return f" · {lines[-1][:100]}" if lines else ""
