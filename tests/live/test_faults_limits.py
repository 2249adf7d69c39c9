"""Processes, threads and open files that are fewer than a lab needs: it says whose limit that is, and blames nobody."""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path

import pytest

from labkit.cluster import cgroups
from tests.live.notebook import Notebook
from tests.live.processes import eventually

ALIVE = "%%px\nx = torch.ones(1)\ndist.all_reduce(x)\nprint(int(x))"
SUM = "%%px\ndef my_sum(x):\n    dist.all_reduce(x)\n    return x"
FEW_FILES = """import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (128, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))"""
CHECK = "lab.check('my_sum', means='all_reduce')"


class Group:
    """A control group of this test's own, which counts processes and threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def take(self, pid: int) -> None:
        (self.folder / "cgroup.procs").write_text(str(pid))

    def leave(self, free: int) -> None:
        """Let there be so many more than there are now."""
        (self.folder / "pids.max").write_text(str(int((self.folder / "pids.current").read_text()) + free))


@pytest.fixture
def group():
    tops = (cgroups.ROOT / top for top in cgroups.TASKS.values())
    folder = next((top for top in tops if (top / "cgroup.procs").exists()), cgroups.ROOT) / secrets.token_hex(4)
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here ({error})")
    if not (folder / "pids.max").exists():
        folder.rmdir()
        pytest.skip("no control group counts processes here")
    yield Group(folder)
    assert eventually(lambda: _removed(folder))


def _removed(folder):
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not folder.exists()


def told(text):
    return "this notebook's container may have" in text and "have the limit raised (pids.max)" in text


def test_a_container_with_too_few_processes_and_threads_is_told_before_anything_starts(group):
    with Notebook() as notebook:
        group.take(notebook.pid)
        group.leave(60)
        error = notebook.run("from labkit import start\nlab = start(4)").error
        assert error.startswith("LabError: This notebook's container may have ")
        assert "4 ranks need about 96." in error
        assert error.endswith("or call start(2).")
        assert notebook.run("lab = start(2)").error == ""
        assert notebook.run(ALIVE).stdout == "ranks 0, 1 │ 2\n"


@pytest.mark.parametrize("free", [0, 3, 9, 16])
def test_a_check_for_which_no_more_threads_are_left_says_so_and_does_not_blame_the_function(group, free):
    with Notebook() as notebook:
        group.take(notebook.pid)
        notebook.value("from labkit import start\nlab = start(4, timeout=2)")
        notebook.value(SUM)
        group.leave(free)
        checked = notebook.run(CHECK)
        assert checked.error.startswith("LabError: No group of all ranks can be made"), checked
        assert told(checked.error)
        assert notebook.run(ALIVE).stdout == "ranks 0–3 │ 4\n"
        group.leave(100)
        assert "✓" in notebook.value(CHECK)


@pytest.mark.parametrize(
    "code",
    [
        "import threading, time\nfor _ in range(99): threading.Thread(target=time.sleep, args=(1,)).start()",
        "import subprocess\nheld = [subprocess.Popen(['sleep', '1']) for _ in range(99)]",
        "groups = [dist.new_group() for _ in range(99)]",
    ],
    ids=["threads", "processes", "groups"],
)
def test_a_cell_that_wants_more_than_there_may_be_is_told_the_limit_and_the_next_one_works(group, code):
    with Notebook() as notebook:
        group.take(notebook.pid)
        notebook.value("from labkit import start\nlab = start(2, timeout=2)")
        group.leave(20)
        ended = notebook.run(f"%%px\n{code}")
        assert ended.error.startswith("CellError: rank")
        assert told(ended.traceback)
        assert eventually(lambda: notebook.run(ALIVE).stdout.endswith("ranks 0, 1 │ 2\n"))


def test_a_lab_starts_where_a_process_may_have_few_open_files_until_it_raises_that_limit():
    with Notebook() as notebook:
        notebook.value(FEW_FILES)
        notebook.value("from labkit import start\nlab = start(4, timeout=2)")
        assert notebook.run(ALIVE).stdout == "ranks 0–3 │ 4\n"
