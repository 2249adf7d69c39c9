"""Run a cell or a function of `labkit.rank` on the ranks: wait, see when it cannot finish, free the ranks, collect."""

from __future__ import annotations

import ast
import concurrent.futures
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from labkit.cluster.live_line import QUIET
from labkit.cluster.ranks import Ranks
from labkit.cluster.requests import Question
from labkit.cluster.stop_button import STOP, Press
from labkit.floor import kernel_internals, time_limits, timestamps
from labkit.floor.errors import MismatchError
from labkit.outcome.outcome import Did, Instead, Outcome, RankOutcome, Waiting, fate_of

MISMATCH = MismatchError.__name__
STOPPED = {"state": "stopped"}  # a process that was sent SIGSTOP
SILENT = {"state": "silent"}  # an agent that does not answer: its rank is in a C call that keeps the interpreter, say


class Awake:
    """Seconds, but for those in which this process stood still; asked again and again."""

    def __init__(self) -> None:
        self._asked, self._awake = time.monotonic(), 0.0

    def __call__(self) -> float:
        now = time.monotonic()
        self._awake += min(now - self._asked, time_limits.ASLEEP)
        self._asked = now
        return self._awake


Watch = Callable[[float, "Running"], Any]  # is called now and then with the seconds so far
# Lets ranks that stand at a prompt have a line, or waits for it. Returns None where none stands, or why the cell ends.
Talk = Callable[["Running"], str | None]


class Running:
    """A cell or a call on its way: `replies[r]` is ipyparallel's future of what rank r answers."""

    def __init__(self, ranks: Ranks, replies: dict[int, Any], prints: bool = False) -> None:
        self.ranks = ranks
        self.replies = replies
        self.prints = prints  # its output is wanted as well
        self.where: dict[int, dict[str, Any]] = {}  # what the ranks that had not finished did, when last looked at
        self.importing = False  # a rank imports a library, when last looked at for a hang
        self.freed = math.inf  # the timestamp when the lab began to free its ranks
        self.awake = Awake()
        self._asked: dict[int, Question] = {}  # where a rank is, as long as it has not answered
        self._since: dict[int, tuple[tuple[Any, ...], float]] = {}
        self._imports: dict[int, float] = {}  # since when a rank imports a library
        self._interrupted: dict[int, float] = {}  # when a rank was sent its last interrupt

    def pending(self) -> list[int]:
        """Return the ranks that live and have not finished."""
        left = [r for r, reply in self.replies.items() if not reply.done()]
        dead = self.ranks.dead() if left else {}
        return [r for r in left if r not in dead]

    def wait(self, seconds: float) -> bool:
        """Wait at most so long; return True when no living rank is left in it."""
        concurrent.futures.wait(self.replies.values(), seconds)
        return not self.pending()

    def error(self, rank: int) -> Exception | None:
        """Return what a rank raised; ipyparallel delivers it as the reply's result."""
        reply = self.replies[rank]
        if not reply.done():
            return None
        result = reply.exception() or reply.result()
        return result if isinstance(result, Exception) else None

    def mismatch(self) -> bool:
        """Tell whether a rank has found that the calls do not fit; while one imports a library, that can wait."""
        if not any(_raised(reply) == MISMATCH for reply in self.replies.values() if reply.done()):
            return False
        self.look()
        return not self._import(self.awake())

    def stuck(self) -> bool:
        """Look at the unfinished ranks, and tell whether one has waited for too long.

        A rank waits while it stays in the same call and neither takes a step nor moves a byte. It waits too long
        after the lab's limit; after a second already when no rank computes that could still come, and bytes are counted
        on every rank. While a rank imports a library, which says nothing about the learner's code, none waits too long.
        """
        now = self.awake()
        self.look(time_limits.AGENT_GLANCE)
        self.importing = self._import(now)
        if self.importing:
            self._since.clear()
            return False
        waits, counted = [], True
        for r, w in _heard(self.where).items():
            here = (w["state"], w.get("op"), w.get("line"), *_steps(w))
            if r not in self._since or self._since[r][0] != here:
                self._since[r] = (here, now)
            if w["state"] in ("collective", "stopped"):
                waits.append(now - self._since[r][1])
                counted &= w == STOPPED or w["moved"] is not None
        if not waits:
            return False
        hopeless = counted and len(waits) == len(self.where)  # no rank is left that computes
        limit = self.ranks.limit
        return min(waits) > min(time_limits.DEADLOCK_SURE, limit) if hopeless else max(waits) > limit

    def rest(self) -> None:
        """Let all waits count from now on alone: a rank stands at a prompt."""
        self._since.clear()

    def _import(self, now: float) -> bool:
        """Tell whether a rank imports a library, and not for ever; one that does not answer does what it did before."""
        since = self._imports
        imports = [r for r, w in self.where.items() if w.get("imports", w == SILENT and r in since)]
        self._imports = {r: since.get(r, now) for r in imports}
        return any(now - began < time_limits.LIBRARY_IMPORT for began in self._imports.values())

    def look(self, seconds: float = time_limits.AGENT_ANSWERS) -> None:
        """Ask the unfinished ranks where they are, and await each answer so long after its question.

        One that has not answered yet is not asked again: what it says at last counts.
        """
        ranks, pending = self.ranks, self.pending()
        still = [r for r in pending if self.where.get(r) == STOPPED and ranks.is_stopped(r)]
        awaited = [r for r in pending if r not in still]
        asked = self._asked | ranks.put("where", [r for r in awaited if r not in self._asked])
        answers = {r: (question := asked[r]) and question.answer(seconds) for r in awaited}
        self._asked = {r: question for r, question in asked.items() if question and question.open}
        self.where = {r: w or (STOPPED if ranks.is_stopped(r) else SILENT) for r, w in answers.items()}
        self.where |= dict.fromkeys(still, STOPPED)

    def fate(self) -> dict[str, Any]:
        """Return who waits where, what the others do instead and in which of the learner's lines, and when that was."""
        told = {r: fate_of(w) for r, w in self.where.items()}
        waiting = {r: w for r, w in told.items() if isinstance(w, Waiting)}
        elsewhere = {r: w for r, w in told.items() if isinstance(w, Instead)}
        elsewhere |= {r: Instead(Did.DIED, how) for r, how in self.ranks.dead().items() if r not in waiting}
        for r in set(range(self.ranks.n)) - set(told) - set(elsewhere):
            if r not in self.replies:
                elsewhere[r] = Instead(Did.NEVER_RAN)
            elif (error := self.error(r)) is not None:
                elsewhere[r] = Instead(Did.RAISED, _name(error))
            else:
                elsewhere[r] = Instead(Did.FINISHED, without=True)
        stacks = {r: w["stack"] for r, w in self.where.items() if w.get("stack")}
        return {"waiting": waiting, "elsewhere": elsewhere, "stacks": stacks, **_now()}

    def seen(self) -> Outcome:
        """Return what becomes of the cell, while it still runs; what came of it, where it has ended."""
        self.look()
        if not self.pending():
            return self.outcome("")
        return Outcome([], "runs", self.ranks.dead(), **self.fate())

    def release(self, waiting: Iterable[int], inside: Iterable[int], left: Callable[[], bool] = lambda: False) -> bool:
        """Let ranks leave the cell: see `Ranks.release`. None is interrupted while its last one may be on its way."""

        def due() -> Iterator[int]:
            now = time.monotonic()
            for r in inside:
                if now - self._interrupted.get(r, -math.inf) > time_limits.INTERRUPT_LOST:
                    self._interrupted[r] = now
                    yield r

        return self.ranks.release(waiting, due(), left, [r for r, w in self.where.items() if w == SILENT])

    def end(self, signal: str | int | None = None) -> None:
        """Make every unfinished rank leave: shut its sockets where a rank waits, interrupt it, at last end it.

        Where none waits the group lives on, but for a rank that does not hear the interrupt. A rank that did not answer
        when last looked at is ended at once; one that falls silent from now on has much to do, and is not ended before
        its time is over, if it has left its cell or has not begun with it yet.
        `signal`, where given, is sent first to the unfinished ranks, as `%%px --signal-on-interrupt` asks.
        """
        ranks, self.freed = self.ranks, timestamps.now()
        if signal not in (None, 0, "SIGINT"):
            ranks.calm()
            ranks.signal(self.pending(), signal)
        for r in self.pending():
            if self.where.get(r) in (STOPPED, SILENT):
                ranks.kill(r)
        broken = any(w["state"] == "collective" for w in self.where.values())
        if broken and self._settle():
            return
        began = time.monotonic()
        since: dict[int, float] = {}  # when a rank was first seen in the cell; the others have not begun or are leaving

        def inside() -> Iterator[int]:
            nonlocal since
            now = time.monotonic()
            since = {r: since.get(r, now) for r in self._inside()}
            yield from since

        def left() -> bool:
            return self.wait(time_limits.RELEASE_STEP)

        while True:
            if self.release(range(ranks.n) if broken else (), inside(), left) or left():
                return
            self.look(time_limits.RELEASE_STEP)
            if ranks.lost():  # they hear nothing, and are freed when they are reached again
                return
            broken = True
            now, still = time.monotonic(), self._inside()
            for r in self.pending():
                if now > (since.get(r, now) + time_limits.CELL_LEFT if r in still else began + time_limits.ERROR_TOLD):
                    ranks.kill(r)

    def _settle(self) -> bool:
        """Interrupt the ranks that go from call to call until all wait or have left; True when none is left in it.

        Gloo loses a send that begins in the moment in which its connection fails, and then no longer lets its rank go.
        """
        began = time.monotonic()
        before: dict[int, dict[str, Any]] = {}  # as last heard: silence does not tell that a rank has gone on
        while time.monotonic() < began + time_limits.RANKS_SETTLE:
            before |= _heard(self.where)
            if self.wait(time_limits.STOP_LOOK):
                return True
            self.look()
            moving = [r for r, w in _heard(self.where).items() if r in before and _steps(w) != _steps(before[r])]
            if not moving:
                return False
            self.release((), moving)
        return False

    def _inside(self) -> list[int]:
        """Return the unfinished ranks that still run their cell, as far as was seen."""
        return [r for r in self.pending() if self.where.get(r, SILENT)["state"] not in ("idle", "silent")]

    def outcome(self, ended: str, **fate: Any) -> Outcome:
        """Collect what every rank printed, returned or raised; a living rank's output arrives just after its reply."""
        for r in self.replies:
            if getattr(self.error(r), "ename", "") == "EngineError":  # ipyparallel may know before the kernel does
                self.ranks.await_end(r)
        dead = {r: how for r, how in self.ranks.dead().items() if r in self.replies}
        if self.prints:
            concurrent.futures.wait([reply.output for reply in self.replies.values()], 0.1 if dead else 1.0)
        outcome = Outcome([self._of(r, r in dead) for r in self.replies], ended, dead, **fate)
        self._trace(outcome)
        return outcome

    def _of(self, rank: int, dead: bool) -> RankOutcome:
        reply = self.replies[rank]
        output = reply.output.metadata
        result = output["execute_result"] or {}
        error = None if dead else self.error(rank)
        answer = reply.result() if reply.done() and not error and not dead else None
        groups = kernel_internals.content(answer).get("user_expressions", {}).get("groups", {}).get("data", {})
        return RankOutcome(
            rank,
            stdout=output["stdout"] or "",
            stderr=output["stderr"] or "",
            value=(result.get("data") or {}).get("text/plain", ""),
            displays=[o["data"] for o in output["outputs"]],
            answer=answer,
            ename=_name(error) if error else "",
            evalue=str(getattr(error, "evalue", error)) if error else "",
            traceback=getattr(error, "traceback", "") or "" if error else "",
            groups=json.loads(ast.literal_eval(groups.get("text/plain", "'{}'"))),
        )

    def _trace(self, outcome: Outcome) -> None:
        """Note of every error when it was raised and by whom, as the rank recorded it.

        What a rank raises that was freed counts as the lab's, through whichever frames it came.
        """
        raised = list(outcome.errors)
        ask = raised and outcome.ended != "lost"
        told = self.ranks.ask("ended", raised, time_limits.AGENT_ANSWERS) if ask else {}
        here = timestamps.clock()
        for r in outcome.ranks:
            if isinstance(r.answer, dict) and "ended" in r.answer:  # a function that tells its error rather
                r.ename, r.evalue = r.answer["error"][:2]
                end = r.answer["ended"]
            else:
                end = told.get(r.rank)
                if not end or end["request"] != self.replies[r.rank].msg_id:
                    continue
            r.at = end["at"] + timestamps.apart(end["clock"], here)
            freed = r.at > self.freed and (end["raised"] == "operation" or r.rank in outcome.waiting)
            r.raised, r.forgotten, r.differs = "lab" if freed else end["raised"], end["forgotten"], end["differs"]


def run(
    running: Running,
    limit: float = math.inf,
    watch: Watch = lambda *_: None,
    signal: Any = None,
    press: Press = "ends it",
    talk: Talk = lambda _: None,
) -> Outcome:
    """Wait for a cell or a call to its end, or free its ranks where it cannot end; the group is not healed here.

    Stop ends it as well, unless its `press` waits, and so does taking longer than `limit` seconds, in which a rank's
    import of a library does not count. The outcome says that it was stopped, and nothing else hears of the press then.
    While `talk` finds a rank at a prompt, no limit counts.
    """
    ended = _wait(running, limit, watch, press, talk)
    if ended in ("", "lost"):
        return running.outcome(ended, **_now())
    if ended != "stuck" or SILENT in running.where.values():
        running.look(time_limits.SILENT_ENDED)
    fate = running.fate()
    running.end(signal)
    return running.outcome(ended, **fate)


def _wait(running: Running, limit: float, watch: Watch, press: Press, talk: Talk) -> str:
    """Wait until all ranks have finished, or as long as that makes sense; return why it does not, or ""."""
    began = looked = running.awake()
    imported = 0.0
    presses = STOP.pressed
    while running.pending():
        if running.wait(time_limits.STOP_LOOK):
            break
        if running.ranks.lost():
            return "lost"
        if running.mismatch():
            return "stuck"
        now = running.awake()
        hurry = press != "waits" and STOP.pressed != presses  # asked first: a press in between is the next round's
        if STOP.taken() if press == "ends it" else press != "waits" and STOP.wished:
            return "stopped"
        if (why := talk(running)) is not None:
            running.rest()
            if why:
                return why
            continue
        if (hurry and now - began > time_limits.CELL_LEFT) or now - began - imported > limit:
            return "slow"
        if now - looked < time_limits.RANKS_LOOK:
            continue
        stuck, last = running.stuck(), looked
        looked = running.awake()
        if running.importing:
            imported += looked - last
        watch(now - began, running)
        if stuck:
            return "stuck"
    return ""


def _now() -> dict[str, Any]:
    """Return the time, where times may be told: recorded notebooks are compared word by word."""
    return {} if QUIET in os.environ else {"at": timestamps.now(), "clock": timestamps.clock()}


def _heard(where: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return of what the ranks do what their agents have told."""
    return {r: w for r, w in where.items() if w != SILENT}


def _steps(where: dict[str, Any]) -> tuple[Any, Any]:
    """Return how far a rank has come: the calls and the groups that it has made, the bytes that it has moved."""
    return where.get("steps"), where.get("moved")


def _raised(reply: Any) -> str:
    """Return the type of the error that a rank's answer is, or that the function which it ran tells of; "" for none."""
    result = reply.exception() or reply.result()
    if isinstance(result, Exception):
        return _name(result)
    return str(result["error"][0]) if isinstance(result, dict) and result.get("error") else ""


def _name(error: Exception) -> str:
    return str(getattr(error, "ename", type(error).__name__))
