"""The workbook's scripts as processes that meet in a file, one a rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from tests.to_its_end import LISTENS

TO_ITS_END = Path(__file__).with_name("to_its_end.py")
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


def run(program: Path, world_size: int, meet: Path, limit: float = LIMIT, *words: str) -> list[list[str]]:
    """The lines that each rank printed; all ranks end well, with no thread of Gloo left, and within the limit.

    As they leave their group they listen at loopback alone. The program gets these words, and runs in `meet`'s folder.
    """
    kept = {key: value for key, value in os.environ.items() if key not in PLACE}
    kept |= {"WORLD_SIZE": str(world_size), "INIT_METHOD": f"file://{meet}", "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    with tempfile.TemporaryDirectory(prefix="said-") as place:
        folder = Path(place)
        command = [sys.executable, "-X", "faulthandler", str(TO_ITS_END), str(world_size), place, str(program), *words]
        ranks = subprocess.Popen(command, env=kept, cwd=meet.parent, start_new_session=True)
        try:
            with suppress(subprocess.TimeoutExpired):
                ranks.wait(limit)
        finally:
            if ranks.returncode is None:  # else its number may be another's
                os.killpg(ranks.pid, signal.SIGKILL)
            ranks.wait()
        told = [[_read(folder / f"{what}-{rank}") for what in ("code", "out", "err")] for rank in range(world_size)]
    assert [code for code, *_ in told] == ["0"] * world_size, _all_said(told, limit)
    said = [(out, err) for _, out, err in told]
    if sys.platform.startswith("linux"):
        listens = [[line for line in err.splitlines() if line.startswith(LISTENS)] for _, err in said]
        assert listens == [[f"{LISTENS} 127.0.0.1"]] * world_size
    return [out.splitlines() for out, _ in said]


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""


def _all_said(told: list[list[str]], limit: float) -> str:
    """How each rank ended, and all that it said: what is needed to understand a failure that does not come back."""
    lines = []
    for rank, (code, out, err) in enumerate(told):
        how = f"ended with {code}" if code else f"still ran after {limit:g} s"
        lines.append(f"rank {rank} {how}\n--- stdout\n{out}--- stderr\n{err}")
    return "\n".join(lines)


def printed(script: str, world_size: int, folder: Path, limit: float = LIMIT, *words: str) -> list[str]:
    """What a script printed, which rank 0 alone does."""
    first, *others = run(SCRIPTS / script, world_size, folder / "meet", limit, *words)
    assert others == [[]] * (world_size - 1)
    return first
