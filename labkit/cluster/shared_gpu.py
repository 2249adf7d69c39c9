"""How ranks share a GPU: together under an MPS daemon, or by turns; and what becomes of them where the GPU is lost.

`engines` calls this when it starts ranks and joins them.
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit.cluster.mps import NoDaemonError
from labkit.cluster.ranks import Ranks
from labkit.floor import time_limits
from labkit.outcome.outcome import Healed, Note

WAYS = ("direct", "sockets", "turns")  # two under MPS, by NCCL's own paths and by sockets; each follows one that fails


class SharedGpu:
    """The GPUs of a lab whose ranks use NCCL; where each rank has one of its own there is little to do."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._gpus: Sequence[int] = ()  # of each host
        self.way = ""  # of `WAYS`; "" where each rank has a GPU of its own, or none
        self._why = ""  # ranks take turns
        self._each = 1  # ranks on one GPU
        self._proven = False  # ranks have joined in this way
        self._reasons: list[Note] = []  # why ranks were ended, until `told` is called

    @property
    def under_mps(self) -> bool:
        """Whether ranks that share a GPU compute at the same time, under a daemon of this lab."""
        return self._ranks.processes.mps is not None

    @property
    def direct(self) -> int:
        """The number of ranks of one GPU that are to use NCCL's own paths between them; 0 for none."""
        return self._each if self.way == "direct" else 0

    def shares(self, at: Sequence[int]) -> list[bool]:
        """Tell for each rank, by the numbers of their hosts, whether it shares a GPU with others."""
        return [self._ranks.backend == "nccl" and at.count(h) > self._gpus[h] for h in at]

    def begin(self, at: Sequence[int], gpus: Sequence[int]) -> None:
        """Start a daemon, before ranks are started on these hosts, where they share a GPU and there can be one."""
        self._gpus = gpus
        if not any(self.shares(at)):
            return
        self._each = max(-(-at.count(h) // gpus[h]) for h in set(at))
        self.way = "direct"
        if self._ranks.processes.hosts:
            self._take_turns("a lab on several hosts has no MPS daemon")
        self._begin_daemon()

    def said(self) -> str:
        """Say how ranks share a GPU, in a sentence for `start()`; "" where they do not."""
        if self.under_mps:
            return "They compute at the same time, under this lab's own daemon of NVIDIA's Multi-Process Service (MPS)."
        return f"They take turns on the GPU, which makes small messages slow: {self._why}." if self.way else ""

    def told(self) -> list[Note]:
        """Return why ranks were ended since this was last called."""
        told, self._reasons = self._reasons, []
        return told

    # -- what ends ranks ----------------------------------------------------------------------------------------

    def lost(self) -> list[int]:
        """Return the ranks that can no longer compute: an error has spoiled what CUDA keeps for their process."""
        ranks = self._ranks
        if ranks.backend != "nccl" or not ranks.members:
            return []
        old = [r for r in range(ranks.n) if r not in ranks.state.fresh]  # those that have joined before
        told = ranks.ask("kernels", old, time_limits.AGENT_ANSWERS)
        return [r for r, its in told.items() if its is not None and its["lost"]]

    def daemon_died(self) -> bool:
        """Tell whether a daemon of this lab does not answer: a rank that is started would not reach it."""
        mps = self._ranks.processes.mps
        return mps is not None and not mps.answers()

    def end_lost(self) -> None:
        """End the ranks that have lost the GPU; under MPS all, with the daemon, which takes no client after a fault."""
        lost, died = self.lost(), self.daemon_died()
        if not (lost or died):
            return
        why = Healed.DAEMON if died else Healed.FAULT if self.under_mps else Healed.LOST_GPU
        self._reasons.append(Note(why, tuple(lost)))
        if self.under_mps:
            self._all_anew()
        for r in set(lost) - set(self._ranks.dead()):
            self._ranks.kill(r)

    def try_otherwise(self, why: str, again: bool) -> None:
        """End all ranks after they could not join under MPS, which is `why`, so that they try it once more.

        They try the next way where this one failed `again`, or never worked. A rank that has died is replaced first.
        """
        if not self.under_mps or (self._ranks.dead() and not again):
            return
        if again or not self._proven:
            self.way, self._proven = WAYS[WAYS.index(self.way) + 1], False
            if self.way == "turns":
                self._take_turns(f"NCCL could not join them under an MPS daemon{why}")
        self._all_anew()

    def joined(self) -> None:
        """Note that the ranks have joined."""
        self._proven = True

    def _all_anew(self) -> None:
        """End all ranks, and the daemon behind them, and begin what the next ones need."""
        ranks = self._ranks
        for r in sorted(set(range(ranks.n)) - set(ranks.dead())):
            ranks.kill(r)
        self._begin_daemon()

    def _begin_daemon(self) -> None:
        """Begin the daemon that this way needs and end the one before; where none can be had, ranks take turns."""
        processes = self._ranks.processes
        if self.way == "turns":
            processes.take_turns()
            return
        try:
            processes.share(self._each)
        except NoDaemonError as error:
            self._take_turns(str(error))

    def _take_turns(self, why: str) -> None:
        self.way, self._why = "turns", why
        if self._ranks.members:
            self._reasons.append(Note(Healed.TURNS, why=why))
