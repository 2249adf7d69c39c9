"""The workbook's scripts as processes that meet in a file, one a rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent.parent / "notebooks" / "scripts"
LIMIT = 100  # seconds: three imports of torch on busy cores
PLACE = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "INIT_METHOD",
    "MASTER_ADDR",
    "MASTER_PORT",
    "GLOO_SOCKET_IFNAME",
)


def run(program: Path, world_size: int, meet: Path, limit: float = LIMIT) -> list[list[str]]:
    """The lines that each rank printed; all ranks end well and within the limit."""
    kept = {key: value for key, value in os.environ.items() if key not in PLACE}
    kept |= {"WORLD_SIZE": str(world_size), "INIT_METHOD": f"file://{meet}", "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8"}
    ranks: list[subprocess.Popen[str]] = []
    try:
        for rank in range(world_size):
            ranks.append(subprocess.Popen([sys.executable, program], env={**kept, "RANK": str(rank)}, **pipes))
        said = [process.communicate(timeout=limit) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert [process.returncode for process in ranks] == [0] * world_size, said
    return [out.splitlines() for out, _ in said]


def printed(script: str, world_size: int, folder: Path, limit: float = LIMIT) -> list[str]:
    """What a script printed, which rank 0 alone does."""
    first, *others = run(SCRIPTS / script, world_size, folder / "meet", limit)
    assert others == [[]] * (world_size - 1)
    return first
