"""A disk that is full before, while and after a lab starts: nothing is lost, nothing hangs, and the error says it."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest

import labkit
from labkit import LabError
from labkit.cluster import rundir
from tests.live.notebook import Notebook
from tests.live.processes import SOON, eventually

PAGE = 4096
ALIVE = "%%px\ny = torch.ones(1)\ndist.all_reduce(y)\nprint(int(y), globals().get('keep'))"


@pytest.fixture
def disk():
    """Mount a small disk of so many bytes, at a short path; it is gone after the test."""
    place = Path(tempfile.mkdtemp(prefix="d-"))

    def mount(size):
        command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "none", place]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("no small disk can be mounted here: that takes root, and a system that lets it")
        return place

    yield mount
    if os.path.ismount(place):  # its reaper ends a lab a moment after its notebook, and leaves the disk then
        assert eventually(lambda: not subprocess.run(["umount", place], capture_output=True).returncode)
    place.rmdir()


def fill(disk):
    """Leave no byte of a disk; the file that takes it."""
    with contextlib.suppress(OSError), open(disk / "filler", "wb", buffering=0) as f:
        while True:
            f.write(bytes(PAGE))
    return disk / "filler"


@pytest.mark.parametrize("pages", [1, 3, 6, 10])
def test_a_disk_that_fills_up_while_a_lab_starts_ends_the_start_which_says_so_and_leaves_nothing(
    disk, monkeypatch, pages
):
    """With one page more each, other files are those that cannot be written."""
    small = disk(pages * PAGE)
    monkeypatch.setattr(rundir, "NEEDED", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(small))
    with pytest.raises(LabError, match=rf"^The disk under {small} is full\. Free some .* TMPDIR .* start again\.$"):
        labkit.start(2)
    assert list(small.iterdir()) == []


@pytest.fixture
def notebook(disk, monkeypatch):
    """A notebook as Jupyter starts it, whose lab has its files on a small disk, and that disk."""
    small = disk(rundir.NEEDED + (8 << 20))
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # else ipykernel does not catch what programs of a cell write
    with Notebook(TMPDIR=str(small), LABKIT_PROGRESS=str(small / "my-work")) as notebook:
        notebook.value("from labkit import start\nlab = start(3, timeout=3)")
        notebook.run(
            "%%px\nimport os, signal, time\nkeep = 100 + rank\ndef mine(x):\n    dist.all_reduce(x)\n    return x"
        )
        notebook.small = small
        yield notebook


def test_on_a_full_disk_cells_print_and_what_is_checked_is_told_and_only_not_written_down(notebook):
    fill(notebook.small)
    cell = notebook.run("%%px\nfor _ in range(8): done = os.system('seq 3000; seq 3000 >&2')\nprint('done')")
    assert cell.status == "ok"
    assert "done" in cell.stdout  # in whatever order: what a program writes comes through a pipe, which holds less
    assert "3000" in cell.stderr
    cell = notebook.run("%%px\nprint('\\n'.join(map(str, range(300_000))))")
    assert re.search(r"lines \(1.*\) left out here; none of it is kept \(the disk has no room for more\)", cell.stdout)
    assert cell.stdout.endswith("ranks 0–2 │ 299999\n")
    cell = notebook.run("lab.check('mine', means='all_reduce')")
    assert cell.status == "ok"
    assert cell.result.startswith("✓ mine: right")
    told = notebook.run(
        "%%px\nfrom labkit.rank import guard\ng = dist.new_group()\ndist.all_reduce(torch.ones(1), group=g)\n"
        "print(g.group_name in guard._groups)"
    )
    assert told.stdout == "ranks 0–2 │ True\n", "its calls are compared there too"
    assert "Your progress could not be written (No space left on device: " in cell.stdout + cell.stderr
    assert notebook.run(ALIVE).stdout == "rank 0 │ 3 100\nrank 1 │ 3 101\nrank 2 │ 3 102\n"


FULL = "LabError: The ranks cannot be joined: the disk under {} is full. Free some room there, then run lab.heal()"


@pytest.mark.parametrize(
    ("ill", "lost"),
    [
        ("%%px\nif rank: dist.barrier()", ""),
        ("%%px\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)\ndist.barrier()", "1"),
        ("import os, signal\nos.kill(lab._engines.processes.cluster.controller.pids[0], signal.SIGKILL)", ""),
    ],
    ids=["joined anew", "rank killed", "controller killed"],
)
def test_ranks_that_cannot_be_joined_on_a_full_disk_wait_until_there_is_room(notebook, ill, lost):
    filler = fill(notebook.small)
    cell = notebook.run(ill)
    if cell.status == "ok":  # the controller, which is missed a moment later
        lab = "lab._engines.lost()"
        assert eventually(lambda: notebook.value(lab) == "True", SOON)
        cell = notebook.run(ALIVE)
    assert cell.error.startswith(FULL.format(notebook.small)), cell
    assert notebook.run(ALIVE).error.startswith(FULL.format(notebook.small))
    filler.unlink()
    told = notebook.run(ALIVE).stdout
    each = [f"rank {r} │ 3 {None if str(r) in lost else 100 + r}" for r in range(3)]
    assert told.splitlines()[-3:] == each
    assert "joined again" in told
    assert not lost or told.startswith(
        "Rank 1 was started anew, with os, signal, time and mine again, without variables (keep is"
    )
    assert notebook.run("lab.stop()").status == "ok"
    assert eventually(lambda: not list(Path(notebook.small).glob("labkit-*")))
