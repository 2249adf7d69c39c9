"""Lesson 06c on real ranks: memory that kernels share, what is seen of them, and how one that spins is freed.

Ranks without a GPU run them in Triton's interpreter, which `workbook.tools.rank.interpreter` watches.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

import labkit
from labkit import CellError, StoppedError, StuckError
from tests.live.processes import Trace, eventually

SHM = Path("/dev/shm")
FREED = "the process group is joined again; all variables are kept"
KERNELS = """
import triton
import triton.language as tl
from workbook.tools.rank.symmetric import open_symmetric

memory = open_symmetric(6)
from workbook.tools.rank.kernels import buffer, flag, meet

@triton.jit
def plus_one(x, out, size, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < size) + 1, mask=at < size)

@triton.jit
def put_right(x, out, buffers, flags, size, rank, world_size, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    mask = at < size
    tl.store(buffer(buffers, (rank + 1) % world_size, x) + at, tl.load(x + at, mask=mask), mask=mask)
    meet(flags, rank, world_size)
    tl.store(out + at, tl.load(buffer(buffers, rank, x) + at, mask=mask), mask=mask)

@triton.jit
def gather(out, buffers, size, world_size, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    for r in range(world_size):
        found = tl.load(buffer(buffers, r, out) + at, mask=at < size)
        tl.store(out + r * size + at, found, mask=at < size)

@triton.jit
def spin(flags, of, by, world_size):
    while tl.atomic_cas(flag(flags, of, by, world_size), 1, 0, sem="acquire", scope="sys") != 1:
        pass

@triton.jit
def spin_adding(flags, of, by, world_size):
    while tl.atomic_add(flag(flags, of, by, world_size), 0, sem="acquire", scope="sys") != 1:
        pass

@triton.jit
def spin_loading(flags, of, by, world_size):
    while tl.load(flag(flags, of, by, world_size), volatile=True) != 1:
        pass

def around(memory, x):
    out = torch.full_like(x, -1)
    put_right[(1,)](x, out, memory.buffers, memory.flags, x.numel(), rank, world_size, 8)
    return out
"""
RIGHT = "got = around(memory, 10.0 * rank + torch.arange(3.0)).tolist()"
GOT = [[20, 21, 22], [0, 1, 2], [10, 11, 12]]


@pytest.fixture(scope="module")
def kernels(lab):
    """Three ranks that have the kernels above."""
    lab.run(KERNELS)
    return lab


@pytest.fixture(autouse=True)
def _memory(request):
    """For each test that has these ranks, a memory of its own, of six numbers."""
    if "kernels" in request.fixturenames:
        request.getfixturevalue("kernels").run("memory, keep = open_symmetric(6), 100 + rank")


def well(lab, lost=()):
    """The next cell is right, in a memory of its own, and whoever lived on has its variables."""
    lab.run(f"memory = open_symmetric(6)\n{RIGHT}")
    assert lab.pull("got") == GOT
    assert lab.pull("globals().get('keep')") == [None if r in lost else 100 + r for r in range(3)]


def moved(lab):
    """The bytes that each rank's kernels read and wrote in the last cell; None where they were not counted."""
    return [log.moved for log in lab.last.timeline().record.logs]


# -- the memory -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "uint8"])
def test_each_rank_reads_the_others_numbers_at_their_addresses(kernels, dtype):
    kernels.run(f"""
memory = open_symmetric(5, torch.{dtype})
zeros = memory.mine.tolist()
memory.fill(10 * rank + torch.arange(5).to(torch.{dtype}))
dist.barrier()
out = torch.zeros(world_size * 5, dtype=torch.{dtype})
gather[(1,)](out, memory.buffers, 5, world_size, 8)
""")
    assert kernels.pull("zeros") == [[0] * 5] * 3
    assert kernels.pull("out.view(3, 5).tolist()") == [[[10 * r + i for i in range(5)] for r in range(3)]] * 3
    assert kernels.pull("int(memory.buffers[rank]) == memory.mine.data_ptr()") == [True] * 3
    assert kernels.pull("memory.mine.tolist()") == [[10 * r + i for i in range(5)] for r in range(3)]


def test_flags_are_whole_numbers_of_which_each_program_has_one_for_each_rank(kernels):
    kernels.run("""
@triton.jit
def raise_flags(flags, rank, world_size):
    for other in range(world_size):
        tl.atomic_xchg(flag(flags, other, rank, world_size), 100 * tl.program_id(0) + rank + 1, scope="sys")

raise_flags[(3,)](memory.flags, rank, world_size)
dist.barrier()
""")
    assert kernels.pull("memory.seen.flags[rank][:10].tolist()") == [[1, 2, 3, 101, 102, 103, 201, 202, 203, 0]] * 3
    assert kernels.pull("memory.mine.tolist()") == [[0] * 6] * 3


def test_kernels_of_two_memories_do_not_disturb_one_another(kernels):
    kernels.run("""
other = open_symmetric(4, torch.int64)
there = around(other, torch.arange(4) + 100 * rank).tolist()
here = around(memory, torch.arange(3.0) + 10 * rank).tolist()
""")
    assert kernels.pull("there") == [[200, 201, 202, 203], [0, 1, 2, 3], [100, 101, 102, 103]]
    assert kernels.pull("here") == GOT
    assert kernels.pull("other.told()['made'], memory.told()['made']") == [[2, 2]] * 3


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("open_symmetric(0)", r"at least one number, not 0\. Write open_symmetric"),
        ("memory.fill(torch.zeros(7))", r"x has 7 numbers of torch.float32, and a buffer 6 .* Open a larger memory"),
        ("memory.fill(torch.zeros(2, dtype=torch.int64))", r"of torch.int64, and a buffer 6 of torch.float32"),
        ("plus_one[(1,)](memory.mine, torch.zeros(6), 6, 8)", r"The argument x lies in symmetric .* memory\.buffers"),
        ("plus_one[(1,)](x=torch.zeros(2), out=memory.mine[4:], size=2, BLOCK=8)", "argument out lies in symmetric"),
        ("plus_one[(1,)](torch.zeros(5), torch.zeros(6), 6, 8)", r"tl.load reads.* argument x.* has 5 numbers.* mask"),
        ("plus_one[(1,)](torch.zeros(6), torch.zeros(5), 6, 8)", r"tl.store writes.* argument out.* mask"),
        ("plus_one[(1,)](torch.zeros(9)[::2], torch.zeros(99), 10, 16)", r"tl.load reads.* the argument x"),
        ("around(memory, torch.zeros(7))", r"tl.store writes.* rank \d's buffer.* has 6 numbers"),
        ("spin[(1,)](0 * memory.flags + 64, rank, rank, world_size)", r"an atomic .* where there is no tensor"),
    ],
    ids=[
        *("no number", "too long", "another dtype", "as an argument", "a part of it, by its name", "read beyond"),
        *("written beyond", "read beyond a view", "written beyond a buffer", "nowhere"),
    ],
)
def test_what_a_gpu_would_let_pass_is_refused_with_what_to_do(kernels, code, says):
    with pytest.raises(CellError, match=says):
        kernels.run(code)
    assert kernels.pull("memory.mine.tolist()") == [[0] * 6] * 3
    well(kernels)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8"])
def test_where_a_mask_is_false_a_load_finds_no_zero_that_a_gpu_does_not_promise(kernels, dtype):
    kernels.run(f"""
@triton.jit
def copy(x, out, size, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < size))
    tl.store(out + BLOCK + at, tl.load(x + at, mask=at < size, other=7.0))

out = torch.zeros(8, dtype=torch.{dtype})
copy[(1,)](torch.ones(2, dtype=torch.{dtype}), out, 2, 4)
""")
    for found in kernels.pull("out.double().tolist()"):
        assert found[:2] == [1, 1]
        assert not [number for number in found[2:4] if abs(number) < 80], "it would hardly be seen in a sum"
        assert found[4:] == [1, 1, 7, 7]


def test_a_mask_made_of_a_comparison_of_scalars_masks(kernels):
    """The interpreter gives such a mask as whole numbers."""
    kernels.run("""
@triton.jit
def others(x, out, size, rank, world_size, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK) - 1
    for r in range(world_size):
        mask = (at >= 0) & (at < size) & (r != rank)
        tl.store(out + r * size + at, tl.load(x + at, mask=mask), mask=mask)

out = torch.zeros(9)
others[(1,)](torch.ones(3), out, 3, rank, world_size, 4)
""")
    assert kernels.pull("out.view(3, 3).sum(1).tolist()") == [[0, 3, 3], [3, 0, 3], [3, 3, 0]]


# -- what is seen -----------------------------------------------------------------------------------------------------


def test_what_kernels_did_is_told_of_the_last_cell_alone(kernels):
    kernels.run(RIGHT)
    told = kernels.pull("memory.told()")
    kinds = [[tuple(move[:5]) for move in mine["moves"]] for mine in told]  # what, of whom, place, size, numbers
    assert kinds == [
        [("put", (r + 1) % 3, 0, 3, [10 * r, 10 * r + 1, 10 * r + 2]), ("get", r, 0, 3, GOT[r])] for r in range(3)
    ]
    assert [mine["now"][:3] for mine in told] == GOT
    assert [[row[0] for row in mine["events"]][:3] for mine in told] == [["launch", "store", "barrier"]] * 3
    tickets = [row[6] for mine in told for row in mine["events"] if row[0] == "atomic"]
    assert sorted(tickets) == list(range(1, 19)), "three ranks set three flags and take three down"
    said = repr(kernels.moves("memory"))
    assert "rank 0 stores [0, 1, 2] in rank 1's buffer, places 0–2" in said
    assert "race" not in said
    kernels.run("pass")
    assert [mine["events"] + mine["moves"] for mine in kernels.pull("memory.told()")] == [[], [], []]


def test_the_lines_that_are_told_are_the_learners_also_where_a_kernel_calls_another(kernels):
    kernels.run("def twice():\n    for _ in range(2):\n        around(memory, torch.zeros(2))\ntwice()")
    lines = {tuple(row[5]) for mine in kernels.pull("memory.told()['events']") for row in mine}
    assert {name for name, _ in lines} == {"put_right", "meet", "around"}


def test_numbers_are_counted_as_moved_and_addresses_and_flags_are_not(kernels):
    kernels.run(RIGHT)
    assert moved(kernels) == [4 * 3 * 4] * 3, "three numbers: read, put, read and written"
    kernels.run("plus_one[(1,)](torch.zeros(5, dtype=torch.float16), torch.zeros(5, dtype=torch.float16), 3, 8)")
    assert moved(kernels) == [2 * 3 * 2] * 3
    kernels.run("pass")
    assert moved(kernels) == [None] * 3


def test_a_race_is_told_though_the_numbers_are_right(kernels):
    kernels.run("memory.fill(torch.full((6,), 7.0))\ndist.barrier()\nout = torch.zeros(18)")
    kernels.run("memory.fill(torch.full((6,), 7.0))\ngather[(1,)](out, memory.buffers, 6, world_size, 8)")
    assert kernels.pull("out.tolist()") == [[7.0] * 18] * 3
    assert "race: " in repr(kernels.moves("memory"))
    assert "no flag orders the two" in repr(kernels.moves("memory"))


# -- who waits for a flag ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spin", ["spin", "spin_adding", "spin_loading"])
def test_a_rank_that_spins_in_a_kernel_is_freed_and_waits_for_the_flag_of_its_rank(kernels, spin):
    with pytest.raises(StuckError) as caught:
        kernels.run(f"if rank != 1:\n    {spin}[(1,)](memory.flags, rank, 1, world_size)")
    line = next(i for i, line in enumerate(KERNELS.strip().splitlines(), 1) if line.startswith(f"def {spin}(")) + 1
    assert str(caught.value) == (
        "rank 1 is missing: it finished the cell, while ranks 0, 2 wait in a kernel for the flag of rank 1 "
        f"(line {line} of {spin}, called in line 2)"
    )
    assert caught.value.notes == [FREED]
    why = kernels.why()
    assert why.why.startswith("Rank 1 is missing")
    assert "Ranks 0, 2 wait for rank 1 in a kernel for the flag of rank 1" in why.alt
    well(kernels)


def test_a_flag_in_another_ranks_memory_is_waited_for_until_that_rank_takes_it_down(kernels):
    with pytest.raises(StuckError, match="while rank 0 waits in a kernel for the flag of rank 2"):
        kernels.run("if rank == 0: spin[(1,)](memory.flags, 2, 0, world_size)")
    well(kernels)


def test_a_flag_that_a_rank_would_have_to_set_itself_is_its_own(kernels):
    with pytest.raises(StuckError, match="rank 1 waits in a kernel for its own flag"):
        kernels.run("if rank == 1: spin[(1,)](memory.flags, rank, rank, world_size)")
    well(kernels)


def test_a_wait_that_was_cut_off_stands_in_the_cells_timeline(kernels):
    with pytest.raises(StuckError):
        kernels.run("dist.barrier()\nif rank != 1: spin[(1,)](memory.flags, rank, 1, world_size)")
    timeline = kernels.last.timeline()
    assert timeline.svg
    assert "a kernel for the flag of rank 1" in repr(timeline)
    assert "root" not in repr(timeline), "nobody is the root of a kernel"


def test_ranks_that_wait_for_one_anothers_flags_are_a_cycle(kernels):
    with pytest.raises(StuckError, match="in a cycle, 0 → 1 → 2 → 0: rank 0 waits in a kernel for the flag of rank 1"):
        kernels.run("spin[(1,)](memory.flags, rank, (rank + 1) % world_size, world_size)")
    well(kernels)


def test_a_rank_in_a_kernel_and_one_in_a_collective_wait_for_one_another(kernels):
    with pytest.raises(StuckError) as caught:
        kernels.run("if rank == 0: dist.barrier()\nelse: spin[(1,)](memory.flags, rank, 0, world_size)")
    assert "rank 0 waits in barrier (line 1)" in str(caught.value)
    assert "ranks 1, 2 wait in a kernel for the flag of rank 0" in str(caught.value)
    well(kernels)


def test_a_flag_that_comes_late_is_waited_for_and_the_cell_is_right(kernels):
    """Rank 0 sets it when rank 1 is recorded as waiting, and rank 1 goes on as if nothing had been."""
    kernels.run("""
from labkit.rank import flags as waiting

@triton.jit
def set_flag(flags, of, by, world_size):
    tl.atomic_xchg(flag(flags, of, by, world_size), 1, sem="release", scope="sys")

if rank == 1:
    spin[(1,)](memory.flags, 1, 0, world_size)
if rank == 0:
    before = memory.seen.room.flags[0]
    set_flag[(1,)](memory.flags, 1, 0, world_size)
left = waiting.waits_in()
""")
    assert kernels.pull("left") == [None] * 3
    assert [*map(len, kernels.last.timeline().record.ops)] == [0, 0, 0], "nothing is left of the wait"


def test_stop_ends_a_kernel_that_spins(kernels, tmp_path):
    """Rank 0 computes for ever, so that no hopeless wait ends the cell before Stop does."""

    def press():
        assert eventually(lambda: len(list(tmp_path.iterdir())) == 3)
        os.kill(os.getpid(), signal.SIGINT)

    stop = threading.Thread(target=press)
    stop.start()
    with pytest.raises(StoppedError, match="You stopped the cell"):
        kernels.run(
            f"open(f'{tmp_path}/{{rank}}', 'w').close()\nwhile rank == 0: pass\n"
            "spin[(1,)](memory.flags, rank, 0, world_size)"
        )
    stop.join()
    well(kernels)


def test_a_rank_that_dies_while_others_wait_for_its_flag_is_named_and_gets_its_kernels_again(kernels):
    with pytest.raises(CellError) as caught:
        kernels.run(
            "import os, signal\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
            "spin[(1,)](memory.flags, rank, 1, world_size)"
        )
    assert str(caught.value) == "rank 1 died (SIGKILL)"
    freed, anew, _ = caught.value.notes
    assert freed.startswith("ranks 0, 2 waited in a kernel for the flag of rank 1 (line 3, in spin")
    assert anew.startswith("rank 1 was started anew, with triton, tl, open_symmetric, buffer, flag, meet, plus_one")
    well(kernels, lost={1})


def test_a_kernel_that_raises_on_one_rank_is_told_and_the_others_are_freed(kernels):
    with pytest.raises(CellError, match=r"rank 2: LabError: tl\.load reads") as caught:
        kernels.run(
            "if rank == 2: plus_one[(1,)](torch.zeros(1), torch.zeros(9), 9, 16)\naround(memory, torch.ones(2))"
        )
    assert any("in a kernel for the flag of rank" in note for note in caught.value.notes)
    well(kernels)


# -- what is left, and what is never begun ----------------------------------------------------------------------------


def test_a_memory_leaves_no_file_and_goes_with_its_name(kernels):
    held = """
import gc, os
gc.collect()
files = [os.readlink(each.path) for each in os.scandir("/proc/self/fd") if each.is_file()]
held = str(files).count("labkit-"), open("/proc/self/maps").read().count("labkit-")
"""
    kernels.run(f"del memory\n{held}")
    files = kernels.pull("held")
    kernels.run("one = open_symmetric(4)\naround(one, torch.ones(2))")
    assert not any(Path(path).exists() for path in kernels.pull("one.seen.room.file.name"))
    kernels.run(held)
    assert kernels.pull("held") == [[files[r][0] + 1, files[r][1] + 1] for r in range(3)]
    kernels.run(f"del one\n{held}")
    assert kernels.pull("held") == files


def test_without_triton_a_rank_says_how_to_install_it(kernels):
    kernels.run("""
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "triton" else real(name, *more)
try:
    open_symmetric(4)
except Exception as error:
    kind, says = type(error).__name__, str(error)
finally:
    importlib.util.find_spec = real
""")
    assert set(kernels.pull("kind")) == {"LabError"}
    assert all("pip install" in says and "run this cell again" in says for says in kernels.pull("says"))


# -- labs of their own, which stop the one above -----------------------------------------------------------------------


def test_a_lab_that_spun_leaves_no_process_and_no_file():
    with labkit.start(2, timeout=1) as lab:
        trace = Trace.of(lab._address)
        lab.run(KERNELS)
        with pytest.raises(StuckError):
            lab.run("spin[(1,)](memory.flags, rank, 1 - rank, world_size)")
    assert eventually(trace.gone), trace.left()


def test_ranks_that_had_imported_a_compiler_before_still_interpret(monkeypatch):
    monkeypatch.setenv("LABKIT_PRELOAD", "torch._dynamo torch._inductor.runtime.triton_heuristics")
    with labkit.start(3, timeout=2) as lab:
        lab.run(KERNELS)
        lab.run(RIGHT)
        assert lab.pull("got") == GOT
        assert lab.pull("type(put_right).__name__") == ["InterpretedFunction"] * 3
        lab.run("f = torch.compile(lambda x: x + 1, backend='eager')\ny = f(torch.ones(2)).tolist()")
        assert lab.pull("y") == [[2, 2]] * 3


def test_no_other_lesson_and_no_check_imports_triton(own_progress):
    with labkit.start(2) as lab:
        lab.run("""
from workbook.tools.rank.window import open_window
window = open_window(2)
window.put(1.0, to=0)
window.fence()
x = comms.all_reduce(torch.ones(3))
with torch.no_grad():
    timed(lambda: dist.barrier(), repeat=2)
def hello_sum(x):
    return comms.all_reduce(x)
""")
        assert lab.check("hello_sum").state == "right"
        lab.moves("window")
        lab.last.timeline()
        assert lab.pull("[name for name in __import__('sys').modules if name.split('.')[0] == 'triton']") == [[], []]
