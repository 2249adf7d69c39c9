"""Asks NCCL and the driver of this machine, where there is an NVIDIA GPU; else quotes what was recorded on one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from labkit.floor.words import seconds
from labkit.theory import gpu_sharing
from workbook.tools import nccl_log, nccl_trial, topology
from workbook.tools.nccl_log import Call, Log
from workbook.tools.nccl_trial import Tried

QUOTED = "h200-shared"
FROM = "4 ranks share one NVIDIA H200: driver 580.159, torch 2.11.0+cu130, NCCL 2.28.9"


def machine(otherwise: str) -> topology.Topology:
    """Read this machine by its own `nvidia-smi topo -m`; without an NVIDIA GPU, return a bundled one that says so."""
    told = nccl_trial.nvidia_smi("topo", "-m")
    return topology.read(told) if "GPU0" in told else topology.find(otherwise)


class Trials:
    """One all-reduce under several settings of NCCL: how it ran, as NCCL's log has it, and how long it took.

    `Trials([{"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"}])` runs two. Without a GPU nothing is run,
    and a log that was recorded on one is quoted instead. `ranks` processes are started for it and end with it; the
    lab's own ranks are not asked. Times are the GPU's own. With fewer GPUs than ranks they share a GPU over sockets:
    times then say nothing about NCCL's bandwidth. `log` is what NCCL logged (or the quoted log), for `labkit.draw`.
    """

    def __init__(self, settings: Sequence[Mapping[str, str]], ranks: int = 2, size: int = 2**20) -> None:
        self.settings = [dict(s) for s in settings]
        self.ranks = ranks
        self.gpus = nccl_trial.gpus()
        self.tried: list[Tried] = []
        self.log: Log = nccl_log.find(QUOTED)
        if self.gpus:
            self.tried, heard = nccl_trial.run(self.settings, ranks, size, seen=self.gpus)
            self.log = heard or self.log

    def __repr__(self) -> str:
        if not self.gpus:
            lines = [f"No NVIDIA GPU here: nothing was run. Recorded elsewhere, with no algorithm forced ({FROM}):"]
            return "\n".join([*lines, *(_told(call) for call in self.log.calls)])
        shared = gpu_sharing.said([r % self.gpus for r in range(self.ranks)]) or f"{self.ranks} ranks, each on its GPU"
        lines = [f"{shared}, NCCL {self.log.version or 'of an unknown version'}"]
        for one in self.tried:
            asked = " ".join(f"{k}={v}" for k, v in one.setting.items()) or "NCCL's own choice"
            how = "; ".join(_told(call) for call in one.calls) or "not in the log"
            wrong = "" if one.right else " WRONG SUMS"
            lines.append(f"{asked}: {how}, {seconds(one.seconds)}{wrong}")
        return "\n".join(lines)


def _told(call: Call) -> str:
    return f"{call.op or 'operation'} of {call.size}: {call.how}"
