"""Reach the ranks of one lab, each an engine; know which have died, let them leave what they wait in, end them.

A rank is a position in `members`; the id of its engine changes when the rank is replaced.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from labkit.cluster import requests
from labkit.cluster.hosts import FarProcess
from labkit.cluster.oom_kills import Memory
from labkit.cluster.process import Process
from labkit.cluster.process_limit import Refusals
from labkit.cluster.processes import Processes
from labkit.cluster.requests import Question
from labkit.cluster.state import State
from labkit.floor import time_limits
from labkit.floor.errors import JoinError, LabError


@dataclass(frozen=True)
class Member:
    """One rank: its engine, its process and where it computes; `memory` is its proportional set size in bytes."""

    rank: int
    engine: int
    pid: int
    host: str
    device: str
    backend: str
    memory: int
    place: str

    @property
    def processor(self) -> tuple[str, str | int]:
        """What equals that of another rank only where both compute on the same GPU."""
        return (self.place, self.device if self.device.startswith("cuda") else self.rank)


class Ranks:
    """The ranks of one lab. `members[r]` is rank r; everything here speaks in ranks."""

    def __init__(self, limit: float, processes: Processes) -> None:
        self.limit = limit
        self.processes = processes
        self.members: list[Member] = []
        self.backend = "gloo"
        self.state = State()
        self.refusals = Refusals()  # of processes and threads, since a cell was sent
        self._ids: list[int] = []
        self._held: dict[int, Process | FarProcess] = {}  # others are only reached through their agents
        self._memory = Memory()
        self._calm = False  # nothing runs on a shared GPU since all ranks have left their group
        self._why = ""  # the ranks could not be joined, in their own words

    # -- reaching them ------------------------------------------------------------------------------------------

    @property
    def client(self) -> Any:
        """ipyparallel's client."""
        return self.processes.client

    @property
    def n(self) -> int:
        return len(self._ids)

    @property
    def group_timeout(self) -> float:
        """Seconds after which torch itself gives a wait up, long after the lab has freed a rank that waits."""
        return max(time_limits.GROUP_TIMEOUT, 10 * self.limit)

    def ids(self, ranks: Iterable[int]) -> list[int]:
        return [self._ids[r] for r in ranks]

    def ask(self, do: str, ranks: Iterable[int], timeout: float, *args: Any) -> dict[int, Any]:
        """Ask the ranks' agents, which also answer while the main thread is blocked; None for one that is silent."""
        return {r: question and question.answer(timeout) for r, question in self.put(do, ranks, *args).items()}

    def put(self, do: str, ranks: Iterable[int], *args: Any) -> dict[int, Question | None]:
        """Ask the ranks' agents, and return the questions without waiting; None for a rank that has died."""
        dead = self.dead()
        return {r: requests.ask(self.client, do, self._ids[r], *args) if r not in dead else None for r in ranks}

    # -- health -------------------------------------------------------------------------------------------------

    def dead(self) -> dict[int, str]:
        """Return the ranks whose process has ended, each with how ("SIGKILL", "exit code 1"), by the kernel."""
        ended = self.state.ended
        for r, process in self._held.items():
            if r not in ended and not process.runs():
                how = self.processes.how_ended(process)
                ended[r] = (how == "SIGKILL" and self._memory.ran_out(r)) or how
        for r, eid in enumerate(self._ids):
            if not isinstance(self._held.get(r), Process) and eid not in self.client.ids:
                ended.setdefault(r, "no heartbeat")
        return dict(ended)

    def signal(self, ranks: Iterable[int], sig: str | int) -> None:
        """Send a signal, by name or number, to the processes of these ranks; LabError for those on other hosts."""
        number = sig if isinstance(sig, int) else signal.Signals[sig]
        ranks = list(ranks)
        for r in ranks:
            if r in self._held:
                self._held[r].send(number)
        if far := [r for r in ranks if r not in self._held]:
            where = ", ".join(f"rank {r} runs on {self.members[r].host}" for r in far)
            raise LabError(f"{where}: no signal is sent there from here. Call lab.heal(), or lab.stop() and start().")

    def lost(self) -> bool:
        """Tell whether the controller has died: the ranks may live, but nothing reaches them."""
        return self.processes.lost()

    def is_stopped(self, rank: int) -> bool:
        """Tell whether the process of a rank is stopped (SIGSTOP): it will never answer by itself."""
        return rank in self._held and self._held[rank].stands_still()

    def kill(self, rank: int) -> None:
        """End a rank that neither answers nor lets itself be interrupted; on another host, by its agent."""
        self.calm()
        if rank in self._held:
            self._held[rank].send(signal.SIGKILL)
            self.await_end(rank)
        elif self.ask("end", [rank], time_limits.AGENT_ANSWERS)[rank]:
            self.state.ended[rank] = "SIGKILL"
        elif not self.members:
            raise JoinError(self._why)
        else:
            m = self.members[rank]
            raise LabError(
                f"rank {rank} does not answer and cannot be ended from here: it is process {m.pid} on {m.host}. "
                "End it there, then call lab.stop() and start() for new ranks."
            )

    def release(
        self,
        waiting: Iterable[int],
        inside: Iterable[int],
        left: Callable[[], bool] = lambda: False,
        silent: Collection[int] = (),
    ) -> bool:
        """Let ranks leave what they are in: shut the sockets of those `waiting`, then interrupt those `inside`.

        Return True where all have `left` after the first: then `inside` is not even read. What `silent` ranks answer is
        not waited for.
        """

        def tell(do: str, ranks: list[int]) -> None:
            self.ask(do, [r for r in ranks if r in silent], 0)
            self.ask(do, [r for r in ranks if r not in silent], time_limits.AGENT_ANSWERS)

        if who := list(waiting):
            tell("abort", who)
            if left():
                return True
        if who := list(inside):
            tell("interrupt", who)
        return False

    def calm(self) -> None:
        """Under MPS, before a rank is ended: abort on all ranks, and wait until their kernels are over, for a moment.

        A process that ends while the GPU works for it can leave the other clients of its daemon hanging. A rank that
        does not answer is not waited for.
        """
        if self.processes.mps is None or self._calm:
            return
        self._calm = True
        busy = [r for r in range(self.n) if not self.is_stopped(r)]
        self.ask("abort", busy, time_limits.RELEASE_STEP)
        deadline = time.monotonic() + time_limits.KERNELS_OVER
        while busy and time.monotonic() < deadline:
            # more than a rank takes to say that they are not over
            told = self.ask("kernels", busy, 2 * time_limits.RELEASE_STEP)
            busy = [r for r, its in told.items() if its is not None and not its["over"]]

    def wrote(self, rank: int) -> str:
        """Return the last that a rank on another host wrote into its log before it ended; "" for one on this host."""
        held = self._held.get(rank)
        return held.log() if isinstance(held, FarProcess) else ""

    def await_end(self, rank: int) -> None:
        """Wait until the process of a rank that is ending has ended, or does not end."""
        if rank in self._held:
            self._held[rank].wait(time_limits.PROCESS_ENDS)
