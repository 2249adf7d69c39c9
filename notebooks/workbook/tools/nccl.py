"""Ask NCCL and the driver of this machine, where there is an NVIDIA GPU; else quote what was recorded on one.

A trial is one all-reduce under several NCCL_ALGO and NCCL_PROTO, in processes of its own. With fewer GPUs than ranks
several share one (`labkit.theory.gpu_sharing`). So it ran with 2 ranks on one H200 (NCCL 2.28.9): Ring, Tree, LL and
Simple stood in the log as they had been asked for. Tests run it with Gloo.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.floor import words
from labkit.floor.errors import LabError
from labkit.theory import gpu_sharing
from workbook.tools import costs, nccl_log, topology
from workbook.tools.child_command import Tied, tied
from workbook.tools.nccl_log import Call, Log

NVIDIA_SMI_LINKS = 30.0  # seconds in which nvidia-smi tells how GPUs are linked; it loads the driver first
NCCL_TRIAL = 120.0  # seconds for all runs of NCCL with other settings
SAY = "INIT,ENV,GRAPH,TUNING"
QUOTED = "h200-shared"
FROM = "4 ranks share one NVIDIA H200: driver 580.159, torch 2.11.0+cu130, NCCL 2.28.9"


def machine(otherwise: str) -> topology.Topology:
    """Read this machine by its own `nvidia-smi topo -m`; without an NVIDIA GPU, return a bundled one that says so."""
    told = nvidia_smi("topo", "-m")
    return topology.read(told) if "GPU0" in told else topology.find(otherwise)


@dataclass(frozen=True)
class Tried:
    """One setting: its environment, bytes, the slowest rank's median seconds, whether sums were right, its calls.

    `forecast` is how many seconds NCCL itself expects; None where it does not say.
    """

    setting: Mapping[str, str]
    nbytes: int
    seconds: float
    right: bool
    calls: tuple[Call, ...]
    forecast: float | None = None


class Trials:
    """One all-reduce under several settings of NCCL: how it ran, as NCCL's log has it, and how long it took.

    `Trials([{"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"}])` runs two. Without a GPU nothing is run,
    and a log that was recorded on one is quoted instead. `ranks` processes are started for it and end with it; the
    lab's own ranks are not asked. Times are the GPU's own. With fewer GPUs than ranks they share a GPU over sockets:
    times then say nothing about NCCL's bandwidth. `log` is what NCCL logged (or the quoted log), for `labkit.draw`.
    Beside a time stand NCCL's own forecast (torch asks it for one), and what `costs.estimate` has for as many of this
    machine's GPUs, each rank on its own. Without a GPU there is neither.
    """

    def __init__(self, settings: Sequence[Mapping[str, str]], ranks: int = 2, size: int = 2**20) -> None:
        self.settings = [dict(s) for s in settings]
        self.ranks = ranks
        self.gpus = gpus()
        self.tried: list[Tried] = []
        self.log: Log = nccl_log.find(QUOTED)
        if self.gpus:
            self.tried, heard = run(self.settings, ranks, size, seen=self.gpus)
            self.log = heard or self.log

    def __repr__(self) -> str:
        if not self.gpus:
            here = "No NVIDIA GPU here: nothing was run, and NCCL forecasts nothing."
            lines = [f"{here} Recorded elsewhere, with no algorithm forced ({FROM}):"]
            return "\n".join([*lines, *(_told(call) for call in self.log.calls)])
        shared = gpu_sharing.said([r % self.gpus for r in range(self.ranks)]) or f"{self.ranks} ranks, each on its GPU"
        lines = [f"{shared}, NCCL {self.log.version or 'of an unknown version'}"]
        for one in self.tried:
            asked = " ".join(f"{k}={v}" for k, v in one.setting.items()) or "NCCL's own choice"
            how = "; ".join(_told(call) for call in one.calls) or "not in the log"
            wrong = "" if one.right else " WRONG SUMS"
            told = [
                words.seconds(one.seconds),
                *(f"{who} {words.seconds(s)}" for who, s in expected(one, self.ranks, self.gpus).items()),
            ]
            lines.append(f"{asked}: {how}, {'; '.join(told)}{wrong}")
        return "\n".join(lines)


def expected(one: Tried, ranks: int, gpus: int) -> dict[str, float]:
    """Return the seconds that models have for an all-reduce, by their names; those that say nothing are absent."""
    found = {} if one.forecast is None else {"NCCL forecasts": one.forecast}
    if gpus >= ranks and not one.setting and (cluster := modelled()) is not None:
        found["costs.estimate has"] = costs.estimate("all_reduce", one.nbytes, ranks, cluster)
    return found


def modelled() -> costs.Cluster | None:
    """Return the cluster of `costs` that has GPUs such as this machine's; None where no such is known."""
    names = nvidia_smi("-L")
    return costs.RENTED[max(known, key=len)] if (known := [name for name in costs.RENTED if name in names]) else None


def nvidia_smi(*asked: str) -> str:
    """Return what nvidia-smi prints here; "" where there is none."""
    if shutil.which("nvidia-smi") is None:
        return ""
    return subprocess.run(
        ["nvidia-smi", *asked], capture_output=True, text=True, timeout=NVIDIA_SMI_LINKS, check=False
    ).stdout


def gpus() -> int:
    """Count the NVIDIA GPUs that nvidia-smi sees here; 0 where there is no nvidia-smi."""
    return sum(line.startswith("GPU ") for line in nvidia_smi("-L").splitlines())


def environment(rank: int, shared: bool, folder: Path) -> dict[str, str]:
    """Return what a rank has beside this process's own environment."""
    mine = {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": SAY,
        "NCCL_DEBUG_FILE": str(folder / "log.%h.%p"),
        "NCCL_SOCKET_IFNAME": "lo",
    }
    return mine | gpu_sharing.settings(rank) if shared else mine


def run(
    settings: Sequence[Mapping[str, str]], ranks: int = 2, nbytes: int = 2**20, backend: str = "nccl", seen: int = 1
) -> tuple[list[Tried], Log | None]:
    """Run each setting; return the results, and all of NCCL's log: None where NCCL logged nothing.

    `seen` is how many GPUs there are. Raises `LabError` where a process fails, or takes longer than two minutes.
    """
    with tempfile.TemporaryDirectory(prefix="labkit-nccl-") as made:
        folder = Path(made)
        order = {
            "ranks": ranks, "nbytes": nbytes, "backend": backend, "settings": [dict(s) for s in settings],
            "store": str(folder / "store"), "timeout": NCCL_TRIAL / 2,
        }  # fmt: skip
        commands = []
        for r in range(ranks):
            told = json.dumps({**order, "rank": r, "device": r % max(seen, 1)})
            env = {**os.environ, **environment(r, seen < ranks, folder)}
            commands.append(([sys.executable, "-m", "workbook.tools.rank.nccl_trial", told], env))
        with tied(commands, folder) as started:
            answers = _answers(started)
        log = "".join(path.read_text(errors="replace") for path in sorted(folder.glob("log.*")))
    heard = nccl_log.read(log) if log.strip() else None
    tried = []
    for k, setting in enumerate(settings):
        each = [answer["results"][k] for answer in answers]
        seconds = max(sorted(one["seconds"])[len(one["seconds"]) // 2] for one in each)
        size = each[0]["nbytes"]
        calls = tuple(c for c in heard.calls if c.nbytes == size) if heard else ()
        tried.append(Tried(setting, size, seconds, all(one["right"] for one in each), calls, each[0]["forecast"]))
    return tried, heard


def _answers(started: Sequence[Tied]) -> list[dict[str, Any]]:
    """Return what each process printed last. Raises `LabError` where one failed or took too long."""
    deadline = time.monotonic() + NCCL_TRIAL
    if not all(each.wait(max(0.0, deadline - time.monotonic())) for each in started):
        raise LabError(f"The trial's {len(started)} processes were not done in {NCCL_TRIAL:.0f} s.")
    answers = []
    for r, each in enumerate(started):
        lines = each.out.strip().splitlines()
        if each.code or not lines:
            why = (each.err.strip().splitlines() or ["it printed no error"])[-1]
            raise LabError(f"Rank {r} of the trial ended with code {each.code}: {why}")
        answers.append(json.loads(lines[-1]))
    if missing := [a["missing"] for a in answers if "missing" in a]:
        raise LabError(f"nvidia-smi sees a GPU, but {missing[0]}. Install a torch with CUDA, and run this again.")
    return answers


def _told(call: Call) -> str:
    return f"{call.op or 'operation'} of {call.size}: {call.how}"
