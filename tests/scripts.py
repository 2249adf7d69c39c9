"""The workbook's scripts as processes that meet in a file, one a rank."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
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
    command = [sys.executable, "-X", "faulthandler", str(TO_ITS_END), str(program), *words]
    end = time.monotonic() + limit
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in range(2 * world_size)]
        pairs = list(zip(files[::2], files[1::2], strict=True))
        ranks: list[subprocess.Popen[bytes]] = []
        late = []
        try:
            for rank, (out, err) in enumerate(pairs):
                its = {**kept, "RANK": str(rank)}
                ranks.append(subprocess.Popen(command, env=its, cwd=meet.parent, stdout=out, stderr=err))
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
    if sys.platform.startswith("linux"):
        listens = [[line for line in err.splitlines() if line.startswith(LISTENS)] for _, err in said]
        assert listens == [[f"{LISTENS} 127.0.0.1"]] * world_size
    return [out.splitlines() for out, _ in said]


def _all_said(codes: list[int], late: list[int], said: list[tuple[str, ...]], limit: float) -> str:
    """How each rank ended, and all that it said: what is needed to understand a failure that does not come back."""
    lines = []
    for rank, (code, (out, err)) in enumerate(zip(codes, said, strict=True)):
        how = f"still ran after {limit:g} s" if rank in late else f"ended with {code}"
        lines.append(f"rank {rank} {how}\n--- stdout\n{out}--- stderr\n{err}")
    return "\n".join(lines)


def printed(script: str, world_size: int, folder: Path, limit: float = LIMIT, *words: str) -> list[str]:
    """What a script printed, which rank 0 alone does."""
    first, *others = run(SCRIPTS / script, world_size, folder / "meet", limit, *words)
    assert others == [[]] * (world_size - 1)
    return first
