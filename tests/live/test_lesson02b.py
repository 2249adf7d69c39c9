"""Lesson 02b on real ranks: what a window promises, what its pictures say, its cells, its script, and `%%mpi`."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import labkit
from labkit import CellError, LabError
from tests.live.lesson_cells import code, run_cells
from tests.live.processes import eventually
from tests.scripts import printed
from workbook.tools import mpi

SHM = Path("/dev/shm")

OTHER_WAYS = {
    "push_gradient": [
        """
def push_gradient(window, gradient, lr):
    with window.lock(0):
        weights = window.get(0)
        window.put(weights - lr * gradient, to=0)
""",
        """
def push_gradient(window, gradient, lr):
    for place, slope in enumerate(gradient.tolist()):
        window.accumulate(-lr * slope, 0, place)
    window.flush()
""",
    ],
    "take_ticket": [
        """
def take_ticket(window):
    window.lock(0)
    try:
        ticket = window.get(0)
        window.accumulate(torch.ones_like(ticket), to=0)
        window.flush()
    finally:
        window.unlock(0)
    return int(ticket)
"""
    ],
    "read_whole": [
        """
def read_whole(window, of):
    old = window.get(of)
    while True:
        new = window.get(of)
        if old[0] == new[0] and old[0] % 2 == 0:
            return old[1:]
        old = new
""",
        """
def read_whole(window, of):
    before = 1
    while before % 2 or window.get(of, 0, 1) != before:
        before = int(window.get(of, 0, 1))
        numbers = window.get(of, 1)
    return numbers
""",
    ],
    "ring_by_puts": [
        """
def ring_by_puts(window, x, steps):
    for _ in range(steps):
        window.mine.copy_(x)
        window.fence()
        x = window.get((rank - 1) % world_size)
        window.fence()
    return x
"""
    ],
    "all_reduce_by_puts": [
        """
def all_reduce_by_puts(window, x):
    sizes = [len(chunk) for chunk in x.tensor_split(world_size)]
    first = sum(sizes[:rank])
    window.mine.copy_(x)
    window.fence()
    mine = sum(window.get(r, first, sizes[rank]) for r in range(world_size))
    window.fence()
    for r in range(world_size):
        window.put(mine, r, first)
    window.fence()
    return window.get(rank)
"""
    ],
}


@pytest.fixture
def window(lab):
    """A window of three places on each of three ranks, all 0."""
    lab.run("from workbook.tools.rank.window import open_window\n\nwindow = open_window(3)")


def test_a_put_is_there_after_a_flush_and_not_before(lab, window):
    lab.run("""
window.mine.fill_(rank)
window.fence()
if rank == 1:
    window.put(7.0, to=2, at=1)
    before = window.get(2).tolist()
    window.flush()
    after = window.get(2).tolist()
window.fence()
seen = window.mine.tolist()
""")
    assert lab.pull("seen") == [[0, 0, 0], [1, 1, 1], [2, 7, 2]]
    lab.run("early, late = (before, after) if rank == 1 else (0, 0)")
    assert (lab.pull("early")[1], lab.pull("late")[1]) == ([2, 2, 2], [2, 7, 2])


def test_a_fence_shows_everybody_what_anybody_has_put(lab, window):
    lab.run("window.put([rank + 1.0, 10.0], to=(rank + 1) % world_size)\nwindow.fence()\nseen = window.mine.tolist()")
    assert lab.pull("seen") == [[3, 10, 0], [1, 10, 0], [2, 10, 0]]


def test_what_is_put_and_what_was_got_are_copies(lab, window):
    lab.run("""
x = torch.ones(3)
window.put(x, to=rank)
x.fill_(5)
window.flush()
got = window.get(rank)
window.mine.fill_(9)
""")
    assert lab.pull("got.tolist()") == [[1, 1, 1]] * 3


def test_no_addition_is_lost_and_none_is_seen_half_done(lab, window):
    lab.run("""
for _ in range(300):
    window.accumulate([1.0, 1.0, 1.0], to=0)
    window.flush()
window.fence()
""")
    assert lab.pull("window.get(0).tolist()") == [[900, 900, 900]] * 3


def test_a_count_under_a_lock_is_exact_and_one_without_is_never_too_high(lab, window):
    """Without a lock, a rank that is held up between its get and its put writes an old number over all that was counted
    since, even in its last round. Before its last get it has put something itself: so it found 1 or more, and the last
    put of all wrote 2 or more.
    """
    lab.run("""
counter = open_window(1, torch.int64)
for _ in range(200):
    with counter.lock(1):
        counter.put(counter.get(1) + 1, to=1)
counter.fence()
exact = int(counter.get(1))
counter.fence()
for _ in range(200):
    counter.put(counter.get(2) + 1, to=2)
    counter.flush()
counter.fence()
raced = int(counter.get(2))
""")
    assert lab.pull("exact") == [600] * 3
    raced = lab.pull("raced")
    assert 2 <= raced[0] <= 600
    assert raced == raced[:1] * 3, "after the fence all ranks read the same"


def test_other_dtypes_are_kept(lab, window):
    lab.run("whole = open_window(2, torch.int64)\nwhole.put(2.0, to=rank, at=1)\nwhole.flush()\ngot = whole.get(rank)")
    assert lab.pull("str(got.dtype), got.tolist()") == [["torch.int64", [0, 2]]] * 3


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("window.put(1.0, to=3)", "open on ranks 0 to 2"),
        ("window.get(-1)", "open on ranks 0 to 2"),
        ("window.accumulate([1.0, 2.0], to=0, at=2)", "has the places 0 to 2"),
        ("window.get(0, at=4)", "has the places 0 to 2"),
        ("window.unlock(rank)", "does not hold the lock"),
        ("window.lock(rank)\nwindow.lock(rank)", "holds the lock of rank . already|holds the lock of rank .'s"),
        ("open_window(0)", "at least one number"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(lab, window, code, says):
    with pytest.raises(CellError, match=says):
        lab.run(code)


def test_who_waits_for_a_lock_in_vain_learns_who_holds_it(lab, window):
    lab.run("window.patience = 0.2\nif rank == 2: window.lock(0)\nwindow.fence()")
    with pytest.raises(CellError, match="rank 2 holds it and has not called unlock"):
        lab.run("window.lock(0)", ranks=[1])
    lab.run("window.unlock(0)", ranks=[2])
    lab.run("with window.lock(0): window.put(4.0, to=0)", ranks=[1])
    assert lab.pull("window.get(0).tolist()") == [[4, 0, 0]] * 3


def test_an_error_inside_lets_go_of_the_lock(lab, window):
    with pytest.raises(CellError, match="ZeroDivisionError"):
        lab.run("with window.lock(0): 1 / 0", ranks=[1])
    lab.run("with window.lock(0): window.put(5.0, to=0)", ranks=[2])
    assert lab.pull("window.get(0).tolist()")[0] == [5, 0, 0]


def test_a_window_leaves_no_file_and_goes_with_its_name(lab, window):
    before = {folder: set(os.listdir(folder)) for folder in (SHM, tempfile.gettempdir()) if Path(folder).is_dir()}
    files = lab.pull("len(__import__('os').listdir('/proc/self/fd'))") if Path("/proc/self/fd").is_dir() else None
    lab.run("one = open_window(4)\none.put(1.0, to=rank)\none.fence()")
    for folder, names in before.items():
        assert not [new for new in set(os.listdir(folder)) - names if new.startswith("labkit-")]
    lab.run("del one")
    if files:
        lab.run("import gc; gc.collect()")
        assert lab.pull("len(__import__('os').listdir('/proc/self/fd'))") == files


def test_the_moves_of_the_last_cell_are_told_and_no_others(lab, window):
    lab.run("window.put(1.0, to=0)\nwindow.fence()")
    lab.run("if rank == 1: window.accumulate(2.0, to=0, at=2)\nwindow.fence()")
    assert repr(lab.moves("window")).splitlines() == [
        "rank 1 adds [2] to rank 0's window, place 2",
        "ranks 0, 2 make no call",
        "afterwards: rank 0 [1, 0, 2], rank 1 [0, 0, 0], rank 2 [0, 0, 0]",
    ]
    lab.run("got = window.get(0) if rank == 2 else None")
    assert "rank 2 gets [1, 0, 2] from rank 0's window" in repr(lab.moves("window"))
    with pytest.raises(LabError, match="with more rounds"):
        lab.moves("window").lost()


def test_what_is_no_window_is_refused_in_words(lab):
    lab.run("nothing = 1")
    with pytest.raises(LabError, match=r"lab\.moves draws a window.*import open_window"):
        lab.moves("nothing")


# -- other right ways -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "source"), [(name, way) for name, ways in OTHER_WAYS.items() for way in ways])
def test_other_right_ways_are_right(lab, name, source):
    lab.run(source)
    verdict = lab.check(name)
    assert verdict.state == "right", repr(verdict)
    assert "bytes sent" not in repr(verdict), "what goes through memory is not sent"


# -- the lesson and its script, on ranks of their own ------------------------------------------------------------------


def test_a_rank_that_dies_holds_no_lock():
    with labkit.start(3, timeout=2) as lab:
        lab.run("from workbook.tools.rank.window import open_window\n\nwindow = open_window(1)")
        with pytest.raises(CellError, match="rank 2"):
            lab.run("import os\n\nwindow.lock(0)\nif rank == 2: os._exit(1)\nwindow.unlock(0)", ranks=[2])
        lab.run("with window.lock(0): window.put(3.0, to=0)", ranks=[1])
        assert lab.run("print(window.get(0).tolist())", ranks=[0]) == ["[3.0]\n"]


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 3])  # on four, nbval runs them
def test_the_cells_run_on_fewer_ranks_than_four(n):
    with labkit.start(n) as lab:
        for source, _ in run_cells(lab, "02b"):
            if "window = open_window(3)" in source:
                place = repr(lab.moves("window"))
                want = sum(range(n))
                held = re.search(r"afterwards: rank 0 \[7, (\d+), (\d+)\]", place)
                assert held, place
                assert int(held[1]) in range(1, n)
                assert int(held[2]) == want
            if "counter = open_window" in source:
                assert all(0 <= lost <= 400 * (n - 1) for lost in lab.pull("lost")[0])
        losses = lab.pull("losses")
        assert min(sum(mine[-10:]) for mine in losses) < min(sum(mine[:10]) for mine in losses), "it learns"


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 3])
def test_the_script_counts_exactly_but_where_it_races_and_learns(n, tmp_path):
    lines = dict(line.split(": ", 1) for line in printed("one_sided.py", n, tmp_path))
    assert int(lines["put"].split(",")[0]) in range(1, n + 1)
    assert int(lines["accumulated"]) == n * (n + 1) // 2
    reached = {how: int(re.match(r"counted to (\d+)", lines[how])[1]) for how in ("raced", "locked", "added")}
    assert reached["locked"] == reached["added"] == 500 * n
    assert 500 <= reached["raced"] <= 500 * n
    before, after = map(float, re.match(r"loss (.+) before, (.+) after", lines["trained"]).groups())
    assert lines["trained"].endswith(f"after {60 * n} updates")
    assert after < before - 0.2


# -- %%mpi ------------------------------------------------------------------------------------------------------------

installed = pytest.mark.skipif(bool(mpi.missing()), reason="MPI is not installed")

TOLD = """
from mpi4py import MPI
print("rank", MPI.COMM_WORLD.Get_rank(), "of", MPI.COMM_WORLD.Get_size())
"""


def test_without_mpi_the_cell_says_so(lab, monkeypatch, capsys):
    from labkit.cluster.magic import PictureMagics

    monkeypatch.setattr(mpi, "missing", lambda: "MPI is not installed (the packages mpi4py and mpich).")
    magics = PictureMagics(None, None, None, mpi.show)
    magics.mpi("4", TOLD)
    said = capsys.readouterr().out
    assert said.startswith("MPI is not installed (the packages mpi4py and mpich). This cell has done nothing. ")
    assert said.endswith("To run it: pip install mpi4py mpich, and run it again.\n")


@pytest.mark.parametrize("line", ["", "0", "17", "two"])
def test_a_number_of_mpi_ranks_is_asked_for(line):
    from IPython.core.error import UsageError

    from labkit.cluster.magic import PictureMagics

    with pytest.raises(UsageError, match="how many MPI ranks"):
        PictureMagics(None, None, None, None).mpi(line, TOLD)


@installed
def test_a_cell_runs_on_mpi_ranks_of_its_own():
    assert mpi.cell(TOLD, 3) == "".join(f"rank {r} │ rank {r} of 3\n" for r in range(3))


@installed
def test_an_error_of_one_mpi_rank_is_told():
    with pytest.raises(LabError, match=r"(?s)MPI's rank 1 failed.*line 4.*ZeroDivisionError"):
        mpi.cell(f"{TOLD}1 / (1 - MPI.COMM_WORLD.Get_rank())", 2)


@installed
def test_mpi_ranks_that_wait_for_ever_are_ended_and_named(monkeypatch):
    monkeypatch.setattr(mpi, "MPI_TURN", 4.0)
    with pytest.raises(LabError, match=r"MPI's rank 1 did not end within 4 s"):
        mpi.cell(f"{TOLD}MPI.COMM_WORLD.Get_rank() == 1 and MPI.COMM_WORLD.recv(source=0)", 3)


@installed
def test_mpi_ranks_end_with_a_notebook_that_is_killed(tmp_path: Path):
    alive, place = tmp_path / "alive", tmp_path / "place"
    os.mkfifo(alive)  # every rank has it open: it is at its end once there are no ranks
    place.mkdir()
    waits = f"import os, time\nos.write(os.open({str(alive)!r}, os.O_WRONLY), b'.')\ntime.sleep(60)"
    asks = f"from workbook.tools import mpi\nmpi.cell({waits!r}, 2)"
    environment = os.environ | {"TMPDIR": str(place)}
    with subprocess.Popen([sys.executable, "-c", asks], env=environment) as notebook, alive.open("rb") as pipe:
        assert pipe.read(2) == b".."
        notebook.kill()
        assert eventually(lambda: select.select([pipe], [], [], 0)[0]), "a rank still runs"
        assert pipe.read() == b""
    assert eventually(lambda: not list(place.iterdir())), "its files are left"


@installed
@pytest.mark.parametrize("others", ["", "while True:\n    pass"], ids=["are through", "are in the middle of it"])
def test_an_mpi_rank_that_ends_without_an_error_is_named(others: str):
    with pytest.raises(LabError, match=r"MPI's rank 1 ended in the middle of the cell.*Look for"):
        mpi.cell(f"import os\nfrom mpi4py import MPI\nMPI.COMM_WORLD.Get_rank() == 1 and os._exit(0)\n{others}", 2)


@installed
@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells what memory a process shares")
def test_no_file_of_mpi_ranks_can_stay_behind_however_they_end():
    asks = "print(*sorted({line.split(None, 5)[5] for line in open('/proc/self/maps') if '/dev/shm/mpich' in line}))"
    window = "from mpi4py import MPI\nwindow = MPI.Win.Allocate_shared(800, 8)\n"
    shared = mpi.cell(f"{window}MPI.COMM_WORLD.Barrier()\n{asks}", 2).splitlines()
    assert any("/dev/shm/mpich_shm_" in line for line in shared)
    assert all(line.endswith(" (deleted)") for line in shared if "/dev/shm" in line)


@installed
def test_a_cell_may_finalize_mpi():
    assert "ranks 0, 1 │ done" in mpi.cell("from mpi4py import MPI\nMPI.Finalize()\nprint('done')", 2)


@installed
def test_the_mpi_cells_of_the_lesson_find_what_the_lesson_says():
    first, race = [c.source.split("\n", 1)[1] for c in code("02b") if c.source.startswith("%%mpi 4\n")]
    said = mpi.cell(first, 4)
    assert sorted(map(int, re.findall(r"ticket (\d)", said))) == [0, 1, 2, 3]
    assert re.search(r"found \[[0-3]\. 6\.\]", said)
    assert 500 <= int(re.search(r"counted to (\d+)", mpi.cell(race, 4))[1]) <= 2000
