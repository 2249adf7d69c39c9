"""A notebook with ranks on this machine's GPU, and the two ways in which ranks share one.

Side by side they run under the lab's own MPS daemon; in turns they run where the lab finds no program for a daemon.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import tempfile
from pathlib import Path

import torch
from chaos_lab import Learner, learner

from tests.live.notebook import ENOUGH

N = 4
LIMIT = 2  # seconds that a rank may wait
HANGS = 30.0  # seconds after which a cell counts as hung, but for the start
CPU = os.environ.get("DEVICE") == "cpu"
GPUS = 0 if CPU else torch.cuda.device_count()
MARK = "LABKIT_TEST_GPU"
MPS = "nvidia-cuda-mps-control"
SIDE, TURNS, OWN, ON_CPU = "side by side", "in turns", "a GPU each", "CPU ranks"
MODES = [ON_CPU] if CPU else [OWN] if GPUS >= N else [SIDE, TURNS]
SYNC = "" if CPU else "torch.cuda.synchronize()"
FINDS_NONE = (
    f"torch {torch.__version__} finds no NVIDIA GPU here" if shutil.which("nvidia-smi") else "no NVIDIA GPU here"
)
NO_GPU = "" if CPU or GPUS else FINDS_NONE
ONLY_GPU = "only a GPU has it" if CPU else ""


def cannot(mode: str) -> str:
    """Why ranks cannot run in this mode here, or nothing."""
    return NO_GPU or (f"no {MPS} here" if mode == SIDE and not shutil.which(MPS) else "")


@functools.cache
def environment(mode: str) -> dict[str, str]:
    """What a kernel's environment says, so that `start()` does as the mode asks."""
    always = {"LABKIT_QUIET": "1", "LABKIT_SHARED": "", "LABKIT_PROFILE": ""}
    if mode == ON_CPU:
        return always | {"CUDA_VISIBLE_DEVICES": ""}
    return always | ({"PATH": path_without(MPS)} if mode == TURNS else {})


def path_without(program: str) -> str:
    """PATH, with a folder of links in the place of each that has the program, which this folder lacks."""
    folders = []
    for folder in map(Path, os.get_exec_path()):
        if (folder / program).exists():
            links = Path(tempfile.mkdtemp(prefix="test-gpu-", dir="/tmp"))
            atexit.register(shutil.rmtree, links)
            for file in folder.iterdir():
                if file.name != program:
                    (links / file.name).symlink_to(file)
            folder = links
        folders.append(str(folder))
    return os.pathsep.join(folders)


class OnDevice(Learner):
    """A learner whose ranks are on the GPU, or on CPUs in a rehearsal."""

    n = N
    STARTS = f'from labkit import start\nlab = start({N}, "{"gloo" if CPU else "nccl"}", timeout={LIMIT})'

    def start(self) -> None:
        self.notebook.enough = ENOUGH
        super().start()
        self.notebook.enough = HANGS


class Lane:
    """A notebook with ranks for the checks of one mode: begun when it is first asked for, anew after what was wrong."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.note = ""
        self.until = 0.0
        self._who: OnDevice | None = None
        self._open = contextlib.ExitStack()
        self._failed = 0  # times in a row that no lab was to be had

    @property
    def who(self) -> OnDevice:
        """The learner at the notebook, whose lab has started."""
        if self._who is None:
            assert self._failed < 3, "no lab has started, three times in a row"
            self._failed += 1
            self._who = self._open.enter_context(learner(MARK, OnDevice, **environment(self.mode)))
            self._failed = 0
        return self._who

    def close(self) -> None:
        """End the notebook and its lab; AssertionError where something of them is left."""
        self._who = None
        self._open.close()
