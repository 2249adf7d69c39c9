"""The workbook's scripts as processes that meet in a file, one a rank."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

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


def run(program: Path, world_size: int, meet: Path, limit: float = LIMIT) -> list[list[str]]:
    """The lines that each rank printed; all ranks end well, with no thread of Gloo left, and within the limit."""
    kept = {key: value for key, value in os.environ.items() if key not in PLACE}
    kept |= {"WORLD_SIZE": str(world_size), "INIT_METHOD": f"file://{meet}", "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    command, end = [sys.executable, "-X", "faulthandler", TO_ITS_END, program], time.monotonic() + limit
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in range(2 * world_size)]
        pairs = list(zip(files[::2], files[1::2], strict=True))
        ranks: list[subprocess.Popen[bytes]] = []
        late = []
        try:
            for rank, (out, err) in enumerate(pairs):
                ranks.append(subprocess.Popen(command, env={**kept, "RANK": str(rank)}, stdout=out, stderr=err))
            for rank, process in enumerate(ranks):
                try:
                    process.wait(max(0, end - time.monotonic()))
                except subprocess.TimeoutExpired:
                    late.append(rank)
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        said = [tuple(file.seek(0) or file.read() for file in pair) for pair in pairs]
    codes = [process.returncode for process in ranks]
    assert codes == [0] * world_size, _all_said(codes, late, said, limit)
    return [out.splitlines() for out, _ in said]


def _all_said(codes: list[int], late: list[int], said: list[tuple[str, ...]], limit: float) -> str:
    """How each rank ended, and all that it said: what is needed to understand a failure that does not come back."""
    lines = []
    for rank, (code, (out, err)) in enumerate(zip(codes, said, strict=True)):
        how = f"still ran after {limit:g} s" if rank in late else f"ended with {code}"
        lines.append(f"rank {rank} {how}\n--- stdout\n{out}--- stderr\n{err}")
    return "\n".join(lines)


def printed(script: str, world_size: int, folder: Path, limit: float = LIMIT) -> list[str]:
    """What a script printed, which rank 0 alone does."""
    first, *others = run(SCRIPTS / script, world_size, folder / "meet", limit)
    assert others == [[]] * (world_size - 1)
    return first
