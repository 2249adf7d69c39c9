"""Run one cell on the ranks: wait for it, notice when it cannot finish, free the ranks, collect what each one said."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from labkit.cluster.engines import Engines
from labkit.outcome.outcome import Outcome, RankOutcome

LOOK_EVERY = 0.25  # seconds between two looks at ranks that have not finished
SURE = 1.0  # seconds without a byte or a step after which a wait that nobody can end counts as a deadlock
ANSWER = 1.0  # seconds in which an agent answers, however busy the machine
STOPPED = {"state": "stopped"}  # a process that was sent SIGSTOP
SILENT = {"state": "silent"}  # an agent that cannot answer: its rank is in a C call that keeps the interpreter
NOT_RUN = "a cell sent earlier with --noblock failed and took this one with it. Run this cell again"
FREEING = 2.0  # seconds in which a freed rank must leave its cell


class Running:
    """A cell on its way: poll it with `wait`, watch it with `look`, end it with `free`."""

    def __init__(self, engines: Engines, result: Any) -> None:
        self.engines = engines
        self.result = result
        by_engine = {engine: r for r, engine in enumerate(engines.ids(range(engines.n)))}
        replies = zip(result._targets, result._children, strict=True)
        self.replies = {by_engine[engine]: reply for engine, reply in replies if engine in by_engine}
        self._since: dict[int, tuple[tuple[Any, ...], float]] = {}
        self.where: dict[int, dict[str, Any]] = {}

    def pending(self) -> list[int]:
        """The ranks that live and have not finished."""
        dead = self.engines.dead()
        return [r for r, reply in self.replies.items() if not reply.done() and r not in dead]

    def wait(self, seconds: float) -> bool:
        """Wait at most so long; True when no living rank is left in the cell."""
        if self.result.wait(seconds):
            return True
        return not self.pending()

    def error(self, rank: int) -> Exception | None:
        """What a rank's cell raised; ipyparallel delivers it as the reply's result."""
        reply = self.replies[rank]
        if not reply.done():
            return None
        outcome = reply.exception() or reply.result()
        return outcome if isinstance(outcome, Exception) else None

    def stuck(self) -> float:
        """Look at the unfinished ranks; the seconds that the longest waiter has waited, once that is too long.

        A rank waits while it stays in the same call and neither takes a step nor moves a byte. It waits too long
        after the lab's limit; after a second already when nobody is computing who could still come.
        """
        now = time.monotonic()
        pending = self.pending()
        stopped = [r for r in pending if self.where.get(r) == STOPPED and self.engines.is_stopped(r)]
        answers = self.engines.ask("where", [r for r in pending if r not in stopped], ANSWER)
        self.where = {r: w or (STOPPED if self.engines.is_stopped(r) else SILENT) for r, w in answers.items()}
        self.where |= dict.fromkeys(stopped, STOPPED)
        waits = []
        for r, w in self.where.items():
            here = (w["state"], w.get("op"), w.get("line"), w.get("sequence"), w.get("moved"))
            if r not in self._since or self._since[r][0] != here:
                self._since[r] = (here, now)
            if w["state"] in ("collective", "stopped"):
                waits.append(now - self._since[r][1])
        if not waits:
            return 0.0
        hopeless = len(waits) == len(self.where)  # nobody is left who computes
        bound = min(SURE, self.engines.limit) if hopeless else self.engines.limit
        return max(waits) if (min(waits) if hopeless else max(waits)) > bound else 0.0

    def free(self, signal: str | int | None = None) -> None:
        """Make every unfinished rank leave the cell: shut its sockets, interrupt it, at last end it.

        `signal`, where given, is sent to the unfinished ranks first, as `%%px --signal-on-interrupt` asks.
        """
        if signal not in (None, 0, "SIGINT"):
            self.engines.signal(self.pending(), signal)
        for r, w in self.where.items():
            if w == STOPPED:
                self.engines.kill(r)
        self.engines.ask("abort", range(self.engines.n), ANSWER)
        if not self.wait(0.3):
            self.engines.ask("interrupt", self.pending(), ANSWER)
        deadline = time.monotonic() + FREEING
        while not self.wait(0.05):
            if time.monotonic() > deadline:
                for r in self.pending():
                    self.engines.kill(r)

    def report(self, **fate: Any) -> Outcome:
        """Collect what every rank printed, returned or raised; a living rank's output arrives just after its reply."""
        for r in self.replies:
            if getattr(self.error(r), "ename", "") == "EngineError":  # ipyparallel may know before the kernel does
                self.engines.await_end(r)
        dead = {r: how for r, how in self.engines.dead().items() if r in self.replies}
        self.result.wait_for_output(0.1 if dead else 1.0)
        reports = [self._rank_report(r, reply, r in dead) for r, reply in self.replies.items()]
        return Outcome(reports, dead=dead, **fate)

    def _rank_report(self, rank: int, reply: Any, dead: bool) -> RankOutcome:
        said = reply.output.metadata
        result = said["execute_result"] or {}
        error = None if dead else self.error(rank)
        if error is not None and type(error).__name__ == "TaskAborted":  # the engine emptied its queue unread
            return RankOutcome(rank, ename="NotRun", evalue=NOT_RUN)
        return RankOutcome(
            rank,
            stdout=said["stdout"] or "",
            stderr=said["stderr"] or "",
            value=(result.get("data") or {}).get("text/plain", ""),
            displays=[o["data"] for o in said["outputs"]],
            ename=getattr(error, "ename", type(error).__name__) if error else "",
            evalue=str(getattr(error, "evalue", error)) if error else "",
            traceback=getattr(error, "traceback", "") or "" if error else "",
        )


def wait_out(running: Running, watch: Callable[[float, Running], None], signal: str | int | None = None) -> Outcome:
    """Wait for a cell to its end, or free its ranks when it cannot end; `watch` is called now and then meanwhile.

    Stop (KeyboardInterrupt) ends the cell as well; the report says so. The group is not healed here.
    """
    engines = running.engines
    began = looked = time.monotonic()
    try:
        while not running.wait(0.05):
            now = time.monotonic()
            if engines.lost():
                return running.report(lost=True)
            if now - looked < LOOK_EVERY:
                continue
            waited = running.stuck()
            looked = time.monotonic()
            watch(now - began, running)
            if waited:
                fate = explain(running)
                running.free()
                return running.report(**fate)
    except KeyboardInterrupt:
        running.stuck()
        fate = explain(running)
        running.free(signal)
        return running.report(stopped=True, **fate)
    return running.report()


def explain(running: Running) -> dict[str, Any]:
    """Who waits where, and what everybody else does instead."""
    engines = running.engines
    dead = engines.dead()
    waiting = {r: w for r, w in running.where.items() if w["state"] == "collective"}
    elsewhere = {}
    for r in range(engines.n):
        if r in waiting:
            continue
        if r in dead:
            elsewhere[r] = f"died ({dead[r]})"
        elif r not in running.replies:
            elsewhere[r] = "never ran the cell"
        elif r in running.where:
            w = running.where[r]
            elsewhere[r] = {
                "silent": "did not answer",
                "stopped": "stood still (SIGSTOP)",
            }.get(w["state"], f"went on computing (line {w.get('line')})")
        elif (error := running.error(r)) is not None:
            elsewhere[r] = f"raised {getattr(error, 'ename', type(error).__name__)}"
        else:
            elsewhere[r] = "finished the cell without it"
    return {"waiting": waiting, "elsewhere": elsewhere}
