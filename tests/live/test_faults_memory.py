"""Memory that runs out on a rank: refused by a limit of its own, or the rank killed by Linux, it is told as such."""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path

import psutil
import pytest

from labkit import CellError
from labkit.cluster import cgroups, oom_kills
from tests.live.notebook import Notebook
from tests.live.processes import eventually

ALIVE = "y = torch.ones(1)\ndist.all_reduce(y)\nprint(int(y), globals().get('keep'))"
TAKE = "held = bytearray(1 << 30)"  # zeros that are really there
LIMITS = ("memory.max", "memory.limit_in_bytes")


class Group:
    """A control group of this test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.limit_file = next(folder / name for name in LIMITS if (folder / name).exists())

    def take(self, pid: int) -> None:
        (self.folder / "cgroup.procs").write_text(str(pid))

    def limit(self, size: int) -> None:
        self.limit_file.write_text(str(size))

    def used(self) -> int:
        names = ("memory.current", "memory.usage_in_bytes")
        return int(next((self.folder / name).read_text() for name in names if (self.folder / name).exists()))


@pytest.fixture
def group():
    groups = cgroups.groups()
    if not groups:
        pytest.skip("no control group counts memory here")
    own = groups[-1].folder
    folder = own / f"labkit-{secrets.token_hex(4)}"
    try:
        folder.mkdir()
        made = Group(folder)
    except (OSError, StopIteration) as error:
        pytest.skip(f"no control group with a limit of memory can be made in {own} ({error})")
    yield made
    with contextlib.suppress(OSError):
        eventually(lambda: not (folder / "cgroup.procs").read_text())
    eventually(lambda: _removed(folder))


def _removed(folder):
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not folder.exists()


def ended(lab, code):
    lab.run("keep = 100 + rank")
    with pytest.raises(CellError) as caught:
        lab.run(code)
    return caught.value


def alive(lab, lost=()):
    assert lab.run(ALIVE) == [f"{lab.n} {None if r in lost else 100 + r}\n" for r in range(lab.n)]


def test_a_rank_killed_at_the_limit_of_its_control_group_is_told_so_and_replaced(lab, group, monkeypatch):
    monkeypatch.setattr(lab._engines, "limit", 60.0)  # on a busy machine it takes seconds to come to its limit
    group.limit(600 << 20)
    group.take(lab._engines.members[2].pid)
    error = ended(lab, f"if rank == 2: {TAKE}\ndist.barrier()")
    assert str(error) == (
        "rank 2 died (killed because memory ran out: rank 2 may use 600 MiB; use smaller tensors or fewer ranks)"
    )
    alive(lab, {2})


def test_a_rank_killed_by_hand_in_such_a_group_is_not_said_to_have_run_out_of_memory(lab, group):
    group.limit(600 << 20)
    group.take(lab._engines.members[1].pid)
    ended(lab, f"if rank == 1: {TAKE}")
    group.take(lab._engines.members[1].pid)
    error = ended(lab, "import os, signal\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)\ndist.barrier()")
    assert str(error) == "rank 1 died (SIGKILL)"
    alive(lab, {1})


def test_where_notebook_and_ranks_share_a_limit_it_is_said_and_the_notebook_lives_on(group):
    with Notebook() as notebook:
        group.take(notebook.pid)
        notebook.value("from labkit import start\nlab = start(2)")
        notebook.run("%%px\nkeep = 100 + rank")
        group.limit(group.used() + (300 << 20))
        cell = notebook.run(f"%%px\nif rank == 1: {TAKE}\ndist.barrier()")
        assert cell.error.startswith(
            "CellError: rank 1 died (killed because memory ran out: ranks 0, 1 and the notebook"
        )
        assert "together; use smaller tensors or fewer ranks)" in cell.error
        assert notebook.run(f"%%px\n{ALIVE}").stdout == "rank 0 │ 2 100\nrank 1 │ 2 None\n"


def test_ranks_are_killed_before_the_notebook_and_the_fork_server(lab):
    told = lab.run("print(open('/proc/self/oom_score_adj').read().strip())")
    servers = [psutil.Process(lab._engines.members[r].pid).ppid() for r in range(lab.n)]
    others = [int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in ("self", *servers)]
    assert all(int(rank) > max(others) for rank in told)


@pytest.mark.parametrize(
    ("ask", "says"), [("torch.ones(1 << 34)", "can't allocate memory"), ("[0] * (1 << 33)", "MemoryError")]
)
def test_a_rank_that_may_not_have_so_much_memory_lives_on_and_is_told_what_to_do(lab, ask, says):
    rlimit = "import resource\nwhole = resource.getrlimit(resource.RLIMIT_AS)\n"
    lab.run(f"{rlimit}if rank == 1: resource.setrlimit(resource.RLIMIT_AS, (6 << 30, whole[1]))")
    try:
        error = ended(lab, f"if rank == 1: big = {ask}\ndist.barrier()")
        assert str(error).startswith("rank 1: ")
        assert says in str(error)
        assert "rank 1 could not get that much memory: use smaller tensors, or fewer ranks" in error.notes
        alive(lab)
    finally:
        lab.run("resource.setrlimit(resource.RLIMIT_AS, whole)")


# -- what is read, in folders that look like Linux's --------------------------------------------------------------


@pytest.fixture
def linux(tmp_path, monkeypatch):
    """Make a process with this line in its cgroup file, and files of control groups."""
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)

    def make(line, **files):
        (tmp_path / "proc" / "7").mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc" / "7" / "cgroup").write_text(f"5:cpu:/x\n{line}\n")
        for name, text in files.items():
            write(name, text)
        return tmp_path / "sys/fs/cgroup"

    def write(name, text):
        file = (
            tmp_path / "sys/fs/cgroup" / name.replace("__", "/").replace("_events", ".events").replace("_max", ".max")
        )
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    make.write = write
    return make


NONE, ONE = "low 0\nmax 9\noom 3\noom_kill 0\n", "low 0\nmax 9\noom 3\noom_kill 1\n"


def test_the_second_version_of_control_groups_is_read_with_the_least_limit_above(linux):
    top = linux("0::/a/b", a__b__memory_events=NONE, a__b__memory_max="max\n", a__memory_max=f"{300 << 20}\n")
    watch = oom_kills.Memory()
    watch.note({0: 7, 1: 7})
    assert cgroups.groups(7)[-1].folder == top / "a/b"
    assert watch.ran_out(1) == ""
    linux.write("a__b__memory_events", ONE)
    said = "killed because memory ran out: ranks 0, 1 may use 300 MiB together; use smaller tensors or fewer ranks"
    assert watch.ran_out(1) == said
    assert watch.ran_out(0) == ""  # one end was counted


def test_in_a_container_the_root_is_the_group_and_without_a_limit_the_machine_is_named(linux):
    assert cgroups.groups(7) == []
    top = linux("0::/docker/123", memory_events=NONE, memory_max="max\n")
    assert [group.folder for group in cgroups.groups(7)] == [top]
    watch = oom_kills.Memory()
    watch.note({0: 7})
    linux.write("memory_events", ONE)
    assert "memory ran out: this machine has " in watch.ran_out(0)


def test_an_end_before_the_cell_explains_none_in_it(linux):
    linux("0::/a", a__memory_events=ONE)
    watch = oom_kills.Memory()
    watch.note({0: 7})
    assert watch.ran_out(0) == ""


def test_the_first_version_of_control_groups_is_read(linux):
    top = linux("4:memory:/a")
    (top / "memory/a").mkdir(parents=True)
    (top / "memory/a/memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    (top / "memory/a/memory.limit_in_bytes").write_text(f"{200 << 20}\n")
    (top / "memory/memory.limit_in_bytes").write_text("9223372036854771712\n")
    above, own = cgroups.groups(7)
    assert own.folder == top / "memory/a"
    assert own.killed() == 2
    assert own.limit() == 200 << 20
    assert above.limit() is None
