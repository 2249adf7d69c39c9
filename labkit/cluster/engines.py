"""Start an engine a rank, run cells and functions on them, replace those that died, join all in a group."""

from __future__ import annotations

import itertools
import math
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from IPython.core.getipython import get_ipython

from labkit.cluster import requests
from labkit.cluster.oom_kills import Memory
from labkit.cluster.process import Process
from labkit.cluster.processes import Processes
from labkit.cluster.ranks import Member, Ranks
from labkit.cluster.run import Running, Watch, run
from labkit.cluster.shared_gpu import SharedGpu
from labkit.cluster.stop_button import STOP, Press
from labkit.floor import kernel_internals, time_limits, words
from labkit.floor.errors import JoinError, LabError
from labkit.outcome.outcome import Outcome
from labkit.outcome.text import Cause, root_cause
from labkit.theory import gpu_sharing
from labkit.theory.cells import Cell

COUNT = itertools.count(1000, 1000)  # from which groups are numbered anew, on all ranks: no number comes again
CELLS = 500  # whose definitions a rank that is started anew is given
Choose = Callable[[list[int]], tuple[int, str, list[int]]]  # GPUs of each host → ranks, backend, each rank's host
SAID = 300  # characters of a rank's reason why it cannot join


class Engines(Ranks):
    """The ranks of one lab, which it starts and joins in a group."""

    def __init__(self, limit: float, processes: Processes) -> None:
        super().__init__(limit, processes)
        self.guarded = True  # ranks compare their calls before they make them
        self.cells: deque[Cell] = deque(maxlen=CELLS)  # that were sent
        self.were: list[int] = []  # the numbers that the ranks had before they were joined for the last time
        self._at: list[int] = []  # the number of each rank's host, where there are several
        self._local: list[int] = []  # the number of each rank on its host, which chooses its GPU
        self.left: list[tuple[int, int]] = []  # host and number there of ranks that were left out
        self._store: Path | None = None
        self._failing: list[int] = []  # ranks that could not join by themselves, and not for what a learner can mend
        self.gpu = SharedGpu(self)

    # -- coming and going ---------------------------------------------------------------------------------------

    @classmethod
    def start(cls, limit: float, processes: Processes, choose: Choose, say: Callable[[str], None]) -> Engines:
        """Start ranks, in a cluster of their own or in a shared one; there they take the place of its other engines.

        `choose(gpus)` decides on the ranks once torch has told the GPUs of each host.
        """
        self = cls(limit, processes)
        try:
            gpus = self.processes.start(say) if processes.owner else self.processes.gpus()
            n, self.backend, self._at = choose(gpus)
            at = self._at or [0] * n
            self._local = [at[:r].count(h) for r, h in enumerate(at)]
            self.gpu.begin(at, gpus)
            say(f"Starting {n} ranks …")
            old = self.client.ids
            self._ids = self.processes.new_engines(n, self._at)
            requests.end(self.client, old)
            say("Joining the process group …")
            self.rejoin()
        except BaseException as error:
            failed = isinstance(error, Exception)
            disk = self.processes.full_disk() if failed else None
            refused = self.refusals.told() if failed else ""
            self.stop()
            if disk:
                raise LabError(
                    f"The disk under {disk} is full. "
                    "Free some room there, or set TMPDIR to a directory on another disk, and start again."
                ) from error
            if refused:
                raise LabError(f"The ranks cannot be started: {refused}. Then start again.") from error
            raise
        return self

    def stop(self) -> None:
        """End every process of the run and remove its files; of a shared run only this notebook's engines."""
        with STOP:
            try:
                self.state.stop()
                self._held.clear()
                if not self.processes.owner:
                    requests.end(self.client, self._ids)
                self.processes.stop()
            finally:
                STOP.taken()  # to its end, however often Stop is pressed meanwhile

    # -- running something --------------------------------------------------------------------------------------

    def execute(
        self, code: str, ranks: Sequence[int], part_of: Cell | None = None, metadata: dict[str, Any] | None = None
    ) -> Any:
        """Send a cell to these ranks, or a part of one that is known already, and return ipyparallel's AsyncResult."""
        cell = part_of or self.remember(code, ranks)
        cell.well = None
        self.refusals.note()
        self._memory.note({r: held.pid for r, held in self._held.items() if isinstance(held, Process)})
        self.processes.guard()
        result = requests.execute(self.client, code, self.ids(ranks), metadata)
        cell.sent = list(result.msg_ids)
        return result

    def remember(self, code: str, ranks: Sequence[int] | None = None, well: bool | None = True) -> Cell:
        """Let a rank that is started anew have the definitions of this cell again; by default any rank.

        `lab.script` writes it into a program as well, where it ran `well`.
        """
        self.cells.append(Cell(code, list(range(self.n) if ranks is None else ranks), *_of_the_notebook(), well))
        return self.cells[-1]

    def ended(self, result: Any, well: bool) -> None:
        """Note of the cell that was sent with this result whether all its ranks have run it to its end."""
        for cell in self.cells:
            if cell.sent == list(result.msg_ids):
                cell.well = well

    def running(self, result: Any) -> Running:
        """Return a cell that was sent, by rank."""
        by_engine = {engine: r for r, engine in enumerate(self._ids)}
        replies = kernel_internals.replies(result)
        return Running(self, {by_engine[e]: reply for e, reply in replies if e in by_engine}, prints=True)

    def call(
        self,
        path: str,
        args: dict[int, tuple[Any, ...]],
        limit: float = math.inf,
        watch: Watch = lambda *_: None,
        press: Press = "ends it",
    ) -> Outcome:
        """Call a function of `labkit.rank` by name, with its own arguments on each rank: see `run`."""
        self.refusals.note()
        replies = {r: requests.call(self.client, self._ids[r], path, a) for r, a in args.items()}
        return run(Running(self, replies), limit, watch, press=press)

    # -- joining ------------------------------------------------------------------------------------------------

    def restore(self) -> None:
        """Start a new controller where the dead one listened; engines and their variables come back to it."""
        dead = self.dead()
        living = [r for r in range(self.n) if r not in dead]
        self.processes.restore(self.ids(living))
        where = self._until_heard(living)
        busy = [r for r, w in where.items() if w is None or w["state"] != "idle"]
        self.release(range(self.n) if busy else (), busy)
        requests.until_reached(self.client, self.ids(living))

    def _until_heard(self, ranks: list[int]) -> dict[int, Any]:
        """Ask where the ranks are until all have answered: what a new controller is given too early is lost.

        A heart comes back on a connection of its own, up to 0.2 s before those on which an engine is spoken to.
        """
        deadline = time.monotonic() + time_limits.SOCKETS_CONNECT
        where: dict[int, Any] = dict.fromkeys(ranks)
        while (silent := [r for r in ranks if where[r] is None]) and time.monotonic() < deadline:
            where |= self.ask("where", silent, 0.1)
        return where

    def _replace(self, shrink: bool) -> None:
        """Start a new engine for each dead rank, or leave it out with `shrink`; the group is joined separately."""
        gone = sorted(self.dead())
        if not gone:
            return
        for r in gone:
            requests.forget(self.client, self._ids[r])
        if shrink and len(gone) < self.n:
            self._leave_out(gone)
            return
        at = [self._at[r] for r in gone] if self._at else []
        self.processes.revive(at)
        for r, eid in zip(gone, self.processes.new_engines(len(gone), at), strict=True):
            self._ids[r] = eid
            if (old := self._held.pop(r, None)) and old.runs():  # on a host that was out of reach for a while
                old.send(signal.SIGKILL)
            self.state.started_anew(r)

    def _leave_out(self, gone: list[int]) -> None:
        """Number the ranks that are left anew, in their order; each keeps its process, its variables and its GPU."""
        kept = [r for r in range(self.n) if r not in gone]
        for r in gone:
            if (old := self._held.pop(r, None)) and old.runs():
                old.send(signal.SIGKILL)
            self.left.append((self._at[r] if self._at else 0, self._local[r]))
        self._ids, self._local = self.ids(kept), [self._local[r] for r in kept]
        self._at = [self._at[r] for r in kept] if self._at else []
        self._held = {i: self._held[r] for i, r in enumerate(kept) if r in self._held}
        self._memory = Memory()
        for cell in self.cells:
            cell.ranks = [i for i, r in enumerate(kept) if r in cell.ranks]
        self.cells = deque((cell for cell in self.cells if cell.ranks), CELLS)
        self.were = [self.were[r] for r in kept]
        self.state.left_out(kept)

    def grow(self) -> None:
        """Start an engine for each rank that was left out, after the others; the group is joined separately."""
        n, at = self.n, [host for host, _ in self.left] if self._at else []
        self.processes.revive(at)
        self._ids += self.processes.new_engines(len(self.left), at)
        self._at += at
        self._local += [local for _, local in self.left]
        self.left = []
        for cell in self.cells:
            if len(cell.ranks) == n:  # all ranks have its definitions
                cell.ranks = range(self.n)
        for r in range(n, self.n):
            self.state.started_anew(r)

    def join(self) -> bool:
        """Let all ranks leave their group and join a new one, refresh `members`, and tell whether they have joined."""
        self.state.parted()
        store = self._meeting_place()
        if store is None:
            return False
        at = self._at or [0] * self.n
        shares, timeout = self.gpu.shares(at), self.group_timeout
        count = next(COUNT) if self.members else 1
        alike, last = (self.n, self.backend, store, timeout), (self.gpu.direct, count)
        args = {r: (self.guarded, r, *alike, local, shares[r], *last) for r, local in enumerate(self._local)}
        outcome = self.call("labkit.rank.agent.prepare", args, time_limits.RANKS_JOIN, self.together, "waits")
        if not outcome.well:
            causes = [c for c in root_cause(outcome)[0] if c.ename != "KeyboardInterrupt"]
            told = [c for c in causes if c.ename == LabError.__name__]  # they say what is to be done; the rest follows
            self._why = self.why_not(told or causes)
            self._failing = [] if told else [r for c in causes for r in c.ranks]
            return False
        if self._store is not None:  # the old group's, and its boards; sub-groups of the new one meet in the new one's
            for file in self._store.parent.glob(f"{self._store.name}*"):
                file.unlink(missing_ok=True)
        self._store = None if self._at else Path(store)
        self.members = [Member(rank=r, engine=self._ids[r], **facts) for r, facts in outcome.answers.items()]
        for m in self.members:
            if m.rank not in self._held and (process := self.processes.hold(m.engine, m.pid, m.place)):
                self._held[m.rank] = process
        self.state.joined()
        self._calm = False
        self.gpu.joined()
        return True

    def why_not(self, causes: list[Cause]) -> str:
        """Say, after a colon, why the ranks cannot be joined: a limit that was reached, or what they said; or ""."""
        refused = self.refusals.told()
        return f": {refused}" if refused else _reason(causes)

    def _meeting_place(self) -> str | None:
        """Return where the ranks of a new group meet: in a file on one host, else at rank 0, unless that has died."""
        if not self._at:
            return self.processes.run.store()
        outcome = self.call("labkit.rank.store.open_at", {0: ()}, time_limits.RANKS_JOIN, self.together, "waits")
        return str(outcome.answers[0]) if outcome.well else None

    def together(self, elapsed: float, running: Running) -> None:
        """Release all ranks where one fails or dies on its way, and those whose cell began when all had to leave."""
        failed = self.dead() or any(map(running.error, running.replies))
        in_cell = [r for r, where in running.where.items() if where.get("line")]
        running.release(running.pending() if failed else (), in_cell)

    def rejoin(self, shrink: bool = False) -> list[int]:
        """Replace dead ranks, join all to a new group, and return the replaced; the others keep their variables.

        With `shrink` the others go on without those that are dead, unless all are.
        """
        failing = set(range(self.n))  # the ranks that failed by themselves in every attempt
        self.were = list(range(self.n))
        for attempt in range(4):
            self.gpu.end_lost()
            self._replace(shrink)
            replaced = sorted(self.state.fresh)
            if self.join():
                return replaced
            self.gpu.try_otherwise(self._why, again=attempt > 0)
            failing &= set(self._failing)
            if attempt > 0 and len(failing) < self.n:  # one may hold on to what lets it join no group again
                for r in failing - set(self.dead()):
                    self.kill(r)
        if disk := self.processes.full_disk():
            raise LabError(
                f"The ranks cannot be joined: the disk under {disk} is full. "
                "Free some room there, then run lab.heal(): the ranks keep their variables until then."
            )
        raise JoinError(self._why)

    def table(self) -> list[dict[str, Any]]:
        """Return one dict for each rank, with the memory that it takes now, and whether it lives."""
        memory, dead = self.ask("memory", range(self.n), time_limits.AGENT_ANSWERS), self.dead()
        facts = [asdict(m) for m in self.members]
        on = [m.processor for m in self.members]
        for row, its in zip(facts, on, strict=True):
            how = gpu_sharing.how(self.gpu.under_mps)
            row["device"] += f" (shared by {on.count(its)} ranks {how})" if on.count(its) > 1 else ""
        states = ["dead" if m.rank in dead else "alive" for m in self.members]
        return [{**row, **(memory[row["rank"]] or {}), "state": its} for row, its in zip(facts, states, strict=True)]


def _reason(causes: list[Cause]) -> str:
    """Return what the first of the causes says, at most its last SAID characters; "" where there is none."""
    if not causes:
        return ""
    said = " ".join(causes[0].evalue.split())
    return f": {words.ranks(causes[0].ranks)}: {causes[0].ename}: {said[-SAID:]}".rstrip(".")


def _of_the_notebook() -> tuple[int, str]:
    """Return the number of the notebook's cell that runs, and its front end's name for it; 0 and "" outside."""
    shell = get_ipython()
    history = None if shell is None else shell.history_manager
    number = 0 if history is None else len(history.input_hist_raw) - 1  # execution_count may be one ahead by now
    parent = shell.get_parent() if shell is not None and hasattr(shell, "get_parent") else None
    return number, str(((parent or {}).get("metadata") or {}).get("cellId") or "")
