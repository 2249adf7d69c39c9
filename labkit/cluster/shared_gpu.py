"""How ranks share a GPU: together under an MPS daemon, or by turns; and what becomes of them where the GPU is lost.

Speaks in ranks, as `engines` does, which calls this when it starts, heals and ends ranks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from labkit import time_limits, words
from labkit.cluster.mps import NoDaemonError

if TYPE_CHECKING:
    from labkit.cluster.engines import Engines

WAYS = ("direct", "sockets", "turns")  # two under MPS, by NCCL's own paths and by sockets; each follows one that fails
AGAIN = "run the cells that make your variables again"


class SharedGpu:
    """The GPUs of a lab whose ranks use NCCL; where each rank has one of its own there is little to do."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._gpus: Sequence[int] = ()  # of each host
        self.way = ""  # of `WAYS`; "" where each rank has a GPU of its own, or none
        self._why = ""  # ranks take turns
        self._each = 1  # ranks on one GPU
        self._proven = False  # ranks have joined in this way
        self._calm = False  # nothing runs on the GPU since all ranks have left their group
        self._reasons: list[str] = []  # why ranks were ended, which nobody has been told yet

    @property
    def under_mps(self) -> bool:
        """Whether ranks that share a GPU compute at the same time, under a daemon of this lab."""
        return self._engines.processes.mps is not None

    @property
    def direct(self) -> int:
        """How many ranks of one GPU are to use NCCL's own paths between them; 0 for none."""
        return self._each if self.way == "direct" else 0

    def shares(self, at: Sequence[int]) -> list[bool]:
        """For each rank, by the numbers of their hosts, whether it shares a GPU with others."""
        return [self._engines.backend == "nccl" and at.count(h) > self._gpus[h] for h in at]

    def begin(self, at: Sequence[int], gpus: Sequence[int]) -> None:
        """Before ranks are started on these hosts: begin a daemon where they share a GPU and there can be one."""
        self._gpus = gpus
        if not any(self.shares(at)):
            return
        self._each = max(-(-at.count(h) // gpus[h]) for h in set(at))
        self.way = "direct"
        if self._engines.processes.hosts:
            self._take_turns("a lab on several hosts has no MPS daemon")
        self._begin_daemon()

    def said(self) -> str:
        """How ranks share a GPU, in a sentence for `start()`; "" where they do not."""
        if self.under_mps:
            return "They compute at the same time, under this lab's own daemon of NVIDIA's Multi-Process Service (MPS)."
        return f"They take turns on the GPU, which makes small messages slow: {self._why}." if self.way else ""

    def told(self) -> list[str]:
        """Why ranks were ended since somebody last asked, in sentences."""
        told, self._reasons = self._reasons, []
        return told

    # -- what ends ranks ----------------------------------------------------------------------------------------

    def lost(self) -> list[int]:
        """The ranks that can no longer compute: an error has spoiled what CUDA keeps for their process."""
        engines = self._engines
        if engines.backend != "nccl" or not engines.members:
            return []
        told = engines.ask("kernels", engines.old(), time_limits.AGENT_ANSWERS)
        return [r for r, its in told.items() if its is not None and its["lost"]]

    def daemon_died(self) -> bool:
        """Whether there is a daemon of this lab, and it does not answer: a rank that is started would not reach it."""
        mps = self._engines.processes.mps
        return mps is not None and not mps.answers()

    def end_lost(self) -> None:
        """End the ranks that have lost the GPU; under MPS all, with the daemon: it takes nobody new after a fault."""
        lost, died = self.lost(), self.daemon_died()
        if not (lost or died):
            return
        if died:
            why = "the MPS daemon under which the ranks share the GPU had died"
        elif self.under_mps:
            why = "such an error of one rank ends the use of the GPU for all ranks that share it under MPS"
        else:
            why = f"{words.ranks(lost)} lost the GPU: after such an error every CUDA call of the process fails"
        self._reasons.append(f"{why}; {AGAIN}")
        if self.under_mps:
            self._all_anew()
        for r in set(lost) - set(self._engines.dead()):
            self._engines.kill(r)

    def try_otherwise(self, why: str, again: bool) -> None:
        """After ranks could not join under MPS, which is `why`: end all of them, so that they try it once more.

        They try the next way where this one failed `again`, or never worked. A rank that has died is replaced first.
        """
        if not self.under_mps or (self._engines.dead() and not again):
            return
        if again or not self._proven:
            self.way, self._proven = WAYS[WAYS.index(self.way) + 1], False
            if self.way == "turns":
                self._take_turns(f"NCCL could not join them under an MPS daemon{why}")
        self._all_anew()

    def joined(self) -> None:
        """Note that the ranks have joined."""
        self._proven, self._calm = True, False

    def calm(self) -> None:
        """Under MPS, before a rank is ended: abort on all ranks, and wait until their kernels are over, for a moment.

        A process that ends while the GPU works for it can leave the other clients of its daemon hanging. A rank that
        does not answer is not waited for.
        """
        if not self.under_mps or self._calm:
            return
        self._calm = True
        engines = self._engines
        busy = [r for r in range(engines.n) if not engines.is_stopped(r)]
        engines.ask("abort", busy, time_limits.RELEASE_STEP)
        deadline = time.monotonic() + time_limits.KERNELS_OVER
        while busy and time.monotonic() < deadline:
            # more than a rank takes to say that they are not over
            told = engines.ask("kernels", busy, 2 * time_limits.RELEASE_STEP)
            busy = [r for r, its in told.items() if its is not None and not its["over"]]

    def _all_anew(self) -> None:
        """End all ranks, and the daemon behind them, and begin what the next ones need."""
        engines = self._engines
        for r in sorted(set(range(engines.n)) - set(engines.dead())):
            engines.kill(r)
        self._begin_daemon()

    def _begin_daemon(self) -> None:
        """Begin the daemon that this way needs and end the one before; where none can be had, ranks take turns."""
        processes = self._engines.processes
        if self.way == "turns":
            processes.take_turns()
            return
        try:
            processes.share(self._each)
        except NoDaemonError as error:
            self._take_turns(str(error))

    def _take_turns(self, why: str) -> None:
        self.way, self._why = "turns", why
        if self._engines.members:
            self._reasons.append(f"from now on the ranks take turns on the GPU: {why}")
