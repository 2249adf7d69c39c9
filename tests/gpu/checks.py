"""All that a CPU cannot tell, checked on an NVIDIA GPU in under ten minutes; `make test-gpu` alone runs it.

make test-gpu                   # or, in an environment of your own: python -m pytest tests/gpu/checks.py
make test-gpu DEVICE=cpu        # a rehearsal of the same checks on CPU ranks with Gloo
DEVICE=cpu python -m pytest tests/gpu/checks.py -k "killed and CPU"
"""

from __future__ import annotations

import ast
import ipaddress
import os
import platform
import re
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import psutil
import pytest
import torch
from cells import DIFFERS, ROOT, code_cells
from chaos_lab import nothing_left

from tests.gpu import kernels
from tests.gpu.conftest import ALONE, LAST, Check, OutOfTime, Seen
from tests.gpu.faults import MISFITS, WAYS, absent, asserted, endless, killed, misfit, stopped
from tests.gpu.lane import (
    CPU,
    GPUS,
    LIMIT,
    MARK,
    MODES,
    MPS,
    NO_GPU,
    ONLY_GPU,
    SIDE,
    Lane,
    N,
    cannot,
    environment,
)  # fmt: skip
from tests.gpu.primitives import GIVEN, NOT_ON_GLOO, PRIMITIVES, primitive
from tests.live.notebook import ENOUGH, Notebook
from tests.live.processes import carrying, eventually
from workbook.tools import nccl

CONTEXT = 1300  # MiB that a rank needs on the GPU, and some more
TEN = 3 if CPU else 10  # times each fault


def _gpu_used() -> int:
    """MiB in use on all GPUs."""
    return sum(map(int, _smi("memory.used").split()))


def _smi(query: str, units: str = ",nounits") -> str:
    command = ["nvidia-smi", f"--query-gpu={query}", f"--format=csv,noheader{units}"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout


def started(lane: Lane) -> float:
    """A start after a stop that has left nothing, and what it needs; ranks share the GPU as the mode asks."""
    who = lane.who
    who.stop()
    before = 0 if CPU else _gpu_used()
    began = time.monotonic()
    who.start()
    took = time.monotonic() - began
    who.right()
    table = who.cell("lab", "").result
    gpu = "" if CPU else f", {(_gpu_used() - before) / N:,.0f} MiB on the GPU"
    memory = ", ".join(sorted(set(re.findall(r"memory=(.*)", table))))
    lane.note = (
        f"{' '.join(sorted(set(re.findall('device=(.*) backend', table))))}; a rank has {memory} on the host{gpu}"
    )
    who.px("import os", "")
    pipes = ast.literal_eval(who.cell("lab.pull(\"os.environ.get('CUDA_MPS_PIPE_DIRECTORY', '')\")", "").result)
    if lane.mode != SIDE:
        assert pipes == [""] * N, f"ranks are with an MPS daemon, at {pipes}"
        return took
    assert pipes[0], f"ranks take turns, although {MPS} is here"
    assert pipes == [pipes[0]] * N, f"ranks are with several MPS daemons, at {pipes}"
    folder = os.stat(pipes[0])
    assert (folder.st_uid, stat.S_IMODE(folder.st_mode)) == (os.getuid(), 0o700), "others may enter the daemon's folder"
    asked = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": pipes[0]}
    said = subprocess.run([MPS], input="get_server_list\n", env=asked, capture_output=True, text=True, timeout=20)
    assert re.search(r"\d", said.stdout), f"the daemon has no server: {said.stdout}{said.stderr}"
    return took


def timed(size: int) -> Callable[[Lane], float]:
    """Seconds of an all-reduce, the mean of ten in a row on the slowest rank; its numbers are looked at afterwards."""

    def run(lane: Lane) -> float:
        lane.who.px(
            f"y = torch.zeros({size} // 4, device=device)\n"
            "took = timed(lambda: dist.all_reduce(y), repeat=1, calls=10).median\n"
            "y += rank + 1\ndist.all_reduce(y)\nright = bool((y == 10).all())",
            "",
        )
        took, right = zip(*ast.literal_eval(lane.who.cell('lab.pull("[took, right]")', "").result), strict=True)
        assert all(right), f"the sum is wrong on a rank: {right}"
        return max(took)

    return run


def forecast(lane: Lane) -> float:
    """Seconds of an all-reduce in processes of its own; NCCL's own forecast and labkit's model are noted."""
    (one,), _ = nccl.run([{}], 2, 2**24, "gloo" if CPU else "nccl", GPUS)
    assert one.right, "the sum is wrong"
    assert one.forecast is None or one.forecast > 0
    expected = nccl.expected(one, 2, GPUS)
    lane.note = "; ".join(f"{who} {1e6 * told:,.1f} µs" for who, told in expected.items()) or "nothing is forecast"
    return one.seconds


# -- what others could reach, and what is left ------------------------------------------------------------------------

RAS = 28028  # where NCCL tells anybody who asks what it does


def listeners(lane: Lane) -> None:
    """Whatever a lab's processes have opened, in groups of all kinds, can be reached from this machine alone."""
    who = lane.who
    for name in ("new_group", "send and recv", "batch_isend_irecv", "all_gather_object"):
        who.px(GIVEN.format(size=8) + PRIMITIVES[name][0], "")
    found = set()
    for process in who.trace.processes():
        for c in process.net_connections("inet"):
            if c.laddr and (c.status == psutil.CONN_LISTEN or (c.type == socket.SOCK_DGRAM and not c.raddr)):
                found.add((process.pid, *c.laddr))
    assert found, "ranks that are joined listen somewhere"
    wide = [each for each in found if not _loopback(each[1])]
    assert not wide, f"reached from other machines, as (process, address, port): {wide}"
    ras = [each for each in found if each[2] == RAS]
    assert not ras, f"NCCL answers whoever asks, as (process, address, port): {ras}"
    whose, where, _ = zip(*found, strict=True)
    lane.note = f"{len(found)} sockets of {len(set(whose))} processes, all at {', '.join(sorted(set(where)))}"


def _loopback(ip: str) -> bool:
    address = ipaddress.ip_address(ip.partition("%")[0])
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def kernel_killed(lane: Lane) -> float:
    """A kernel that is killed leaves nothing behind; the seconds count from its end."""
    who = lane.who
    trace = who.trace
    sent = who.notebook.send("%%px\nx = torch.zeros(4, device=device)\nwhile True: dist.all_reduce(x)")
    who.notebook.until_begun(sent)
    began = time.monotonic()
    who.notebook.kill()
    gone = eventually(trace.gone)
    took = time.monotonic() - began
    lane.close()
    assert gone, f"left after the kernel was killed: {trace.left()}"
    return took


def _there() -> set[str]:
    """This user's files in /dev/shm, and MPS daemons, by number."""
    ours = {str(p) for p in Path("/dev/shm").iterdir() if p.lstat().st_uid == os.getuid()}
    return ours | {f"{p.pid} {' '.join(p.cmdline())}" for p in carrying("nvidia-cuda-mps")}


BEFORE = _there()


def leftovers(lane: Lane) -> None:
    """What there is now, and was not there before, when all labs have ended."""
    assert eventually(lambda: not _there() - BEFORE), f"left at the end: {sorted(_there() - BEFORE)}"


# -- lessons ----------------------------------------------------------------------------------------------------------

LESSONS = "as start() does"
BOOKS = [*sorted((ROOT / "notebooks").glob("[0-9]*.ipynb")), ROOT / "notebooks" / "capstone.ipynb"]
REHEARSED = ("00", "04")
JOINED = """(lambda started: started is None or started.request.backend == "gloo" or "NCCL" in str(started))(
    __import__("labkit.faces.current_lab", fromlist=["started"]).started()
)"""


def lesson(path: Path) -> Callable[[Lane], None]:
    """A lesson whose cells end as they do in the committed notebook: well, or in an error of the same type."""

    def run(lane: Lane) -> None:
        nb = nbformat.read(path, as_version=4)
        cells, ended = code_cells(nb), {}
        with nothing_left(MARK, **environment(MODES[0])) as (place, its), Notebook(**its) as kernel:
            folder = place / "notebooks"  # of its own: lessons write files
            shutil.copytree(path.parent, folder, ignore=shutil.ignore_patterns("*.ipynb"))
            kernel.value(f"import os; os.chdir({str(folder)!r})")
            joined = True
            for cell in cells:
                kernel.enough = min(ENOUGH, lane.until - time.monotonic())
                try:
                    ended[cell.index] = kernel.run(cell.source).error
                except AssertionError:
                    if time.monotonic() > lane.until:
                        raise OutOfTime(f"{len(ended)} of {len(cells)} cells were run") from None
                    ended[cell.index] = f"never: {kernel.enough:.0f} s are over, and no cell after it was run"
                    break
            else:
                joined = CPU or kernel.value(JOINED) == "True"
        told = []
        for cell in cells[: len(ended)]:
            want = "".join(o.ename for o in nb.cells[cell.index].outputs if o.output_type == "error") or "well"
            got = ended[cell.index] or "well"
            if not got.startswith(want) and (CPU or DIFFERS not in cell.tags):
                told.append((f"cell {cell.index} ended {got.partition(':')[0]}, not {want}", got))
        in_full = "".join(f"\n{short}: {got}" for short, got in told)
        assert not told, f"{'; '.join(short for short, _ in told)}{in_full}"
        assert joined, "it ran on CPU ranks, not with NCCL"

    return run


# -- all of it ------------------------------------------------------------------------------------------------------


def width(ranks: str) -> int:
    """How many of these ranks' checks go on at once: of lessons as many as the GPU has room for, up to 4."""
    if ranks != LESSONS or CPU:
        return 1
    labs = sum(map(int, _smi("memory.total").split())) // (N * CONTEXT)
    return max(1, min(4, labs - len(MODES)))


COUNTED = (
    f"Ranks wait {LIMIT} s at most: where rank 2 is absent, calls do not fit or a loop has no end, seconds count from "
    "then to the end of the cell, and less than 0 is before. Of Stop and a killed kernel they count from that moment."
)


def checks() -> Iterator[Check]:
    """Every check, in the order in which they begin."""
    for mode in MODES:
        why = cannot(mode)
        yield Check("start", mode, started, 2, ALONE, why)
        for size, said in ((4, "4 B"), (2**16, "64 KiB"), (2**20, "1 MiB"), (2**24, "16 MiB")):
            yield Check(f"all_reduce of {said}", mode, timed(size), 5, ALONE, why)
        for size, said in kernels.TIMED:
            for name in (*kernels.MINE, *kernels.TORCHS_OWN):
                only = ONLY_GPU if name in kernels.TORCHS_OWN else ""
                run = kernels.timed(name, size)
                yield Check(f"all_reduce of {said} by {name}", mode, run, 1 if CPU else 5, ALONE, why or only)
    for mode in MODES:
        why = cannot(mode)
        for name, (code, wants) in PRIMITIVES.items():
            yield Check(name, mode, primitive(code, wants), cannot=why or (NOT_ON_GLOO.get(name, "") if CPU else ""))
        for name in kernels.KERNELS:
            yield Check(f"kernel {name}", mode, kernels.right(name), cannot=why)
        yield Check("listeners", mode, listeners, cannot=why)
        for name, way in WAYS.items():
            needs = ONLY_GPU if "synchronize" in name else ""
            yield Check(f"rank 2 is absent, seen {name}", mode, absent(way), TEN, cannot=why or needs)
        for name, given in MISFITS.items():
            yield Check(f"another {name}, without the guard", mode, misfit(given), TEN, cannot=why)
        yield Check("an endless loop", mode, endless, TEN, cannot=why)
        yield Check("Stop", mode, stopped, TEN, cannot=why)
        yield Check("a rank is killed", mode, killed, TEN, cannot=why)
        yield Check("a device-side assert", mode, asserted, TEN, cannot=why or ONLY_GPU)
        yield Check("a forecast of 16 MiB", mode, forecast, 1, ALONE, why)
        yield Check("the kernel is killed", mode, kernel_killed, 3, cannot=why)
    for path in BOOKS:
        left_out = CPU and not path.name.startswith(REHEARSED)
        yield Check(
            path.stem, LESSONS, lesson(path), cannot=NO_GPU or ("a rehearsal runs 00 and 04 alone" if left_out else "")
        )
    yield Check("leftovers", "all", leftovers, when=LAST, cannot=NO_GPU)


def about() -> str:
    """Say what was checked on, hardware and versions, or that it was no GPU; and what the seconds are."""
    on = f"{os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}"
    if CPU or not GPUS:
        return f"CPU ranks, Gloo: **no GPU was checked**. {on}. {COUNTED}"
    names = "; ".join(line.strip() for line in _smi("name,memory.total,driver_version", "").splitlines())
    return f"{names} (GPU, its memory, driver). {on}, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}. {COUNTED}"


@pytest.mark.parametrize("check", list(checks()), ids=str)
def test_is_right(check: Check, seen: Seen):
    if seen.wrong:
        pytest.fail("\n".join(seen.wrong), pytrace=False)
