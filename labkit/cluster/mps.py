"""Start a lab's own MPS daemon, under which ranks that share a GPU run at the same time; without one they take turns.

CUDA's Multi-Process Service comes with the driver. An environment variable names the folder in which a CUDA
program finds the daemon, so a private one needs no rights and meets no other user's. Its folder lies in the run's; once
the ranks have ended, the reaper ends it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from pathlib import Path

from labkit.cluster.reaper import MPS, ask_mps, end_mps
from labkit.cluster.rundir import LAUNCHED, SOCKET_PATH_LIMIT, RunDir
from labkit.floor import time_limits

NAMES = PIPES, LOGS, PART = (
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
)
LONGEST = "/control_privileged"  # of the sockets that the daemon makes in its folder
SHORT = "/tmp"  # where the folder is made whose path would be too long in the run's


class NoDaemonError(Exception):
    """No daemon can be had; the message says why, as a part of a sentence."""


class Mps:
    """The daemon of a run."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self.folder = Path(os.path.realpath(run.mps))

    def answers(self) -> bool:
        """Tell whether it answers: a daemon that does not is of no use to a rank that is started."""
        return ask_mps(str(self.folder), "get_server_list")

    def environment(self, ranks: int) -> dict[str, str]:
        """Return the variables that a rank's process needs before it uses CUDA, where so many ranks share a GPU.

        The kernels of a collective wait for one another, so all must fit on the GPU at once: each gets its part of it.
        """
        return {PIPES: str(self.folder), LOGS: str(_logs(self._run)), PART: str(max(1, 100 // ranks - 1))}

    def end(self) -> None:
        """Tell it to quit, end it where it does not, and remove its folder; its ranks must have ended before."""
        end_mps(self._run.mps, f"{LAUNCHED}={self._run.tag}".encode())


def begin(run: RunDir) -> Mps:
    """Start a run's daemon, unless one answers there already; raises `NoDaemonError` where that cannot be."""
    if shutil.which(MPS) is None:
        raise NoDaemonError(f"{MPS}, which comes with NVIDIA's driver, is not on this machine")
    mps = Mps(run)
    if mps.folder.is_dir():
        if mps.answers():
            return mps
        mps.end()
    try:
        mps.folder = _made(run)
        _start(mps, run)
        deadline = time.monotonic() + time_limits.MPS_ANSWERS
        while not mps.answers():
            if time.monotonic() > deadline:
                raise NoDaemonError("the MPS daemon does not answer")
            time.sleep(0.05)
    except OSError as error:
        mps.end()
        raise NoDaemonError(f"an MPS daemon cannot be started ({error})") from error
    except BaseException:
        mps.end()
        raise
    return mps


def _start(mps: Mps, run: RunDir) -> None:
    """Run the control program, which leaves the daemon behind.

    The daemon carries the tag of what ends after the ranks. GPUs that the learner has chosen by number are chosen by
    the ranks alone: they would be counted anew among those that the daemon sees.
    """
    said = _logs(run) / "said"
    environment = {**os.environ, **mps.environment(1), LAUNCHED: run.tag}
    del environment[PART]
    if environment.get("CUDA_VISIBLE_DEVICES", "")[:1].isdigit():
        del environment["CUDA_VISIBLE_DEVICES"]
    with open(said, "wb") as out:  # no pipe: the daemon may keep it open
        try:
            ended = subprocess.run(
                [MPS, "-d"], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment,
                timeout=time_limits.MPS_STARTS,
                start_new_session=True, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise NoDaemonError(f"{MPS} did not start a daemon in {time_limits.MPS_STARTS:.0f} s") from None
    if ended.returncode:
        last = said.read_text(errors="replace").strip().splitlines()[-1:]
        raise NoDaemonError(f"{MPS} failed ({last[0] if last else f'exit code {ended.returncode}'})")


def _made(run: RunDir) -> Path:
    """Make the daemon's folder and that of its logs, which only this user may enter, and return the first.

    Where the path of its sockets would be too long, a link in the run's folder says where it is instead. The link comes
    first, so that the reaper finds the folder whenever this process ends.
    """
    _logs(run).mkdir(mode=0o700, exist_ok=True)
    folder = Path(run.mps)
    if len(os.fsencode(folder)) + len(LONGEST) > SOCKET_PATH_LIMIT:
        folder = Path(SHORT, f"labkit-mps-{secrets.token_hex(6)}")
        os.symlink(folder, run.mps)
    folder.mkdir(mode=0o700)
    return folder


def _logs(run: RunDir) -> Path:
    return Path(run.path, "mps-log")
