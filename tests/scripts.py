"""The workbook's scripts as processes that meet in a file, one a rank, forked with torch in place."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from tests.forked import context
from tests.to_its_end import LISTENS, become

SCRIPTS = Path(__file__).resolve().parent.parent / "notebooks" / "scripts"
LIMIT = 100  # seconds: busy cores
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
    kept |= {"WORLD_SIZE": str(world_size), "INIT_METHOD": f"file://{meet}", "OMP_NUM_THREADS": "1"}
    end = time.monotonic() + limit
    with tempfile.TemporaryDirectory(prefix="script-") as place:
        pairs = [(Path(place, f"{rank}.out"), Path(place, f"{rank}.err")) for rank in range(world_size)]
        ranks = []
        try:
            for rank, pair in enumerate(pairs):
                its = {**kept, "RANK": str(rank)}
                given = [str(program), *words], its, str(meet.parent), *map(str, pair)
                ranks.append(context().Process(target=become, args=given, daemon=True))
                ranks[-1].start()
            for process in ranks:
                process.join(max(0, end - time.monotonic()))
            late = [rank for rank, process in enumerate(ranks) if process.exitcode is None]
        finally:
            for process in ranks:
                process.kill()
                process.join()
        said = [tuple(path.read_text("utf-8") if path.exists() else "" for path in pair) for pair in pairs]
    codes = [process.exitcode for process in ranks]
    assert codes == [0] * world_size, _all_said(codes, late, said, limit)
    if sys.platform.startswith("linux"):
        listens = [[line for line in err.splitlines() if line.startswith(LISTENS)] for _, err in said]
        assert listens == [[f"{LISTENS} 127.0.0.1"]] * world_size
    return [out.splitlines() for out, _ in said]


def _all_said(codes: list[int | None], late: list[int], said: list[tuple[str, ...]], limit: float) -> str:
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
