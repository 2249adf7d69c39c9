"""A cell as a learner sees it: output in rank order, one error with its cause, the group healed behind it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from IPython.display import publish_display_data

from labkit.cluster.cell import Running, wait_out
from labkit.cluster.engines import Engines
from labkit.cluster.healing import heal
from labkit.cluster.live_line import Line
from labkit.errors import LabError, StoppedError
from labkit.outcome.outcome import Outcome
from labkit.outcome.sentences import judge
from labkit.outcome.text import merge
from labkit.words import sentence


class Console:
    """Runs cells on the engines and shows what came of them."""

    def __init__(self, engines: Engines) -> None:
        self.engines = engines
        self.unhealed = False  # Stop was pressed while healing
        self.ran: list[int] = []  # the ranks that the last cell was sent to

    def run(self, code: str, ranks: Sequence[int]) -> Outcome:
        """Run `code`, show its output, heal what it broke, and raise its error if it has one."""
        return self.collect(self.send(code, ranks))

    def send(self, code: str, ranks: Sequence[int]) -> Any:
        """Bring back what died since the last cell, then send this one; ipyparallel's AsyncResult."""
        self.recover()
        self.ran = list(ranks)
        return self.engines.view(ranks).execute(code, silent=False, block=False)

    def collect(
        self, result: Any, progress_after: float = 2.0, by_rank: bool = False, signal: str | int | None = None
    ) -> Outcome:
        """Wait for a cell that was sent, show its output, heal what it broke, raise its error if it has one."""
        progress = Progress(progress_after)
        try:
            report = wait_out(Running(self.engines, result), progress.show, signal)
        except BaseException as error:
            self.unhealed = True  # the ranks may still be in the cell
            if not isinstance(error, KeyboardInterrupt) and not isinstance(error.__context__, KeyboardInterrupt):
                raise
            later = "its ranks were not yet free; the next cell, or lab.heal(), sees to it"  # Stop was pressed twice
            raise StoppedError("You stopped the cell.", notes=[later]) from None
        finally:
            progress.clear()
        show(report, by_rank)
        self.finish(report)
        return report

    def finish(self, report: Outcome) -> None:
        """Heal after a cell and raise the error that it ended with."""
        error = judge(report)
        if error is not None:
            try:
                error.notes += heal(self.engines, report)
            except KeyboardInterrupt:  # a second Stop
                self.unhealed = True
                error.notes.append("healing was stopped; the next cell, or lab.heal(), does it")
            raise error

    def heal(self) -> None:
        """By hand: free whoever waits, replace whoever died, join all again; a healthy lab is left alone."""
        engines = self.engines
        if engines.lost():
            return self.recover()
        where = engines.ask("where", range(engines.n), 1.0)
        for r in [r for r, w in where.items() if w is None and engines.is_stopped(r)]:
            engines.kill(r)
        waiting = {r: w for r, w in where.items() if w and w["state"] != "idle"}
        if waiting or self.unhealed:
            engines.ask("abort", range(engines.n), 1.0)
        if waiting:
            engines.ask("interrupt", waiting, 1.0)
        report = Outcome([], dead=engines.dead(), waiting=waiting, stopped=self.unhealed)
        if notes := heal(engines, report):
            print(sentence(notes))
        self.unhealed = False

    def recover(self) -> None:
        """Before a cell: bring back what died since the last one, and say so."""
        if self.engines.stopped:
            raise LabError("The lab was stopped, so there are no ranks. Run lab = start() for new ones.")
        if self.engines.lost():
            print(sentence(self.engines.restore()))
        elif self.unhealed:
            self.heal()
        elif dead := self.engines.dead():
            died = ", ".join(f"rank {r} had died ({how})" for r, how in sorted(dead.items()))
            notes = heal(self.engines, Outcome([], dead=dead))
            print(sentence([died, *notes]))


def show(report: Outcome, by_rank: bool = False) -> None:
    """Print the ranks' output in rank order, equal ones once; rich outputs follow, each under its rank."""
    out = {r.rank: _joined(r.stdout, r.value) for r in report.ranks}
    err = {r.rank: r.stderr for r in report.ranks}
    for stream, texts in ((sys.stdout, out), (sys.stderr, err)):
        for group in [{r: t} for r, t in texts.items()] if by_rank else [texts]:
            if merged := merge(group):
                stream.write(merged)
    sys.stdout.flush()
    for r in report.ranks:
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
        said = {r: f"{doing(running.where.get(r))}{_last_line(reply)}" for r, reply in running.replies.items()}
        self.write(f"{elapsed:.0f} s\n{merge(said)}")


def doing(where: dict[str, Any] | None) -> str:
    """What a rank does, in words."""
    if where is None:
        return "done"
    if where["state"] == "collective":
        return f"in {where['op']}, line {where['line']}"
    return f"computing, line {where['line']}" if where["state"] == "computing" else where["state"]


def _last_line(reply: Any) -> str:
    lines = (reply.output.metadata["stdout"] or "").strip().splitlines()
    return f" · {lines[-1][:100]}" if lines else ""
