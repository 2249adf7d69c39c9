"""A program of `notebooks/scripts` in another system's words, run as processes of its own; or what it printed once.

TensorFlow and DeepSpeed are large, so each runs in an environment of its own, beside the lab's.
The processes end with the process that asks for them (`workbook.tools.child_command`).
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from labkit.floor.errors import LabError
from workbook.tools import mpi
from workbook.tools.child_command import Tied, end, tied
from workbook.tools.elsewhere import ten_lines
from workbook.tools.elsewhere.ten_lines import System, Told

OTHER_SYSTEM = 240.0  # seconds that a program of another system may take: DeepSpeed builds an operator on its first run
OTHER_SYSTEM_LOOK = 0.1  # seconds between two looks at all its processes
SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
SAID = 1200  # characters of a failed program's last words
OURS = (  # variables that tell a rank its place
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "INIT_METHOD", "MASTER_ADDR", "MASTER_PORT", "TF_CONFIG",
)  # fmt: skip


def source(system: System) -> str:
    """Return the program: the learner's copy in `scripts` beside the notebook, else the workbook's own."""
    return _program(system).read_text(encoding="utf-8")


def record(system: System) -> Told:
    """Return what the program printed when it was recorded, with the versions and the day."""
    return ten_lines.read((SCRIPTS / system.record).read_text(encoding="utf-8"))


def python(system: System) -> str:
    """Return the interpreter that has this system; "" where there is none.

    >>> python(ten_lines.find("torch")) == sys.executable
    True
    """
    if not system.folder:
        return "" if system.name == "mpi" and mpi.missing() else sys.executable
    for place in (Path.cwd(), *Path.cwd().parents):
        its = place / system.folder
        if any(its.glob(f"lib/python*/site-packages/{system.name}/__init__.py")):
            return str(its / "bin" / "python")
    return ""


def run(system: System, n: int = ten_lines.N) -> str:
    """Run the program on n ranks of its own on this host; what it prints. Raises `LabError` where it fails or hangs."""
    its = python(system)
    if not its:
        raise LabError(f"{system.title} is not installed here. Make an environment for it: {system.install}")
    with (
        tempfile.TemporaryDirectory(prefix="labkit-elsewhere-") as made,
        tied(_commands(system, its, n, Path(made, "meet")), Path(made), Path(made)) as started,
    ):
        deadline = time.monotonic() + OTHER_SYSTEM
        while running := [each for each in started if each.code is None]:
            if any(each.code for each in started):
                break  # the others may wait for it for ever
            if time.monotonic() > deadline:
                raise LabError(
                    f"{system.program} did not end within {OTHER_SYSTEM:.0f} s: a rank waits for one that "
                    "makes a different call, or none. Compare the calls of the ranks, and run the cell again."
                    + _said(started)
                )
            running[0].wait(OTHER_SYSTEM_LOOK)
        failed = [(rank, each.code) for rank, each in enumerate(started) if each.code]
        if failed:
            end(started)
            rank, code = failed[0]
            raise LabError(f"{system.program}: rank {rank} ended with exit code {code}. Mend it:{_said(started)}")
        return started[0].out


def _commands(system: System, its: str, n: int, meet: Path) -> list[tuple[list[str], dict[str, str]]]:
    """Return the commands with their environments. -P: the program must not import the scripts beside it."""
    kept = {k: v for k, v in os.environ.items() if k not in OURS and not k.startswith("LABKIT_")}
    kept |= {"OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    command = [its, "-P", str(_program(system))]
    if system.name == "mpi":
        return [([*mpi.launcher(n), *command], kept | mpi.SHARED)]
    if system.name == "tensorflow":
        places = [f"127.0.0.1:{port}" for port in _ports(n)]
        tasks = [{"cluster": {"worker": places}, "task": {"type": "worker", "index": r}} for r in range(n)]
        return [(command, kept | {"TF_CONFIG": json.dumps(task)}) for task in tasks]
    told = {"WORLD_SIZE": str(n), "INIT_METHOD": f"file://{meet}"}
    return [(command, kept | told | {"RANK": str(r)}) for r in range(n)]


def _ports(n: int) -> list[int]:
    """Return ports that are free at the moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _program(system: System) -> Path:
    own = Path("scripts", system.program).resolve()
    return own if own.is_file() else SCRIPTS / system.program


def _said(started: Sequence[Tied]) -> str:
    """Return the end of the longest error that a rank has written."""
    said = max((each.err for each in started), key=len).strip()
    return f"\n{said[-SAID:]}" if said else ""
