"""`lab.sweep` on real ranks: what it measures, refuses, shows and keeps; never how fast anything is."""

from __future__ import annotations

import pytest

from labkit.floor.errors import LabError, StuckError
from labkit.theory.primitives import PRIMITIVES
from tests.live.processes import eventually
from workbook.tools import timing


@pytest.fixture(scope="module")
def swept(lab):
    return lab.sweep("all_reduce", sizes=[2**20, 64, 1024], repeat=4)


def test_each_size_has_a_row_in_order_with_all_repetitions(swept):
    assert [r.nbytes for r in swept.rows] == [64, 1024, 2**20]
    assert [len(r.timing.samples) for r in swept.rows] == [4, 4, 4]
    assert swept.right
    assert swept.note == ""
    assert swept.where.startswith("Gloo, 3 CPU ranks on one host")


def test_bandwidths_follow_nccl_tests(swept):
    for r in swept.rows:
        assert r.algbw == pytest.approx(r.nbytes / r.median / 1e9)
        assert r.busbw == pytest.approx(r.algbw * 2 * 2 / 3)
        assert r.min <= r.median <= r.p90


def test_the_fit_goes_through_the_rows(swept):
    assert swept.fit.sizes == (64.0, 1024.0, 2.0**20)
    assert swept.fit.seconds == tuple(r.median for r in swept.rows)


def test_it_shows_itself_as_a_table_and_a_picture(swept):
    assert "1 MiB" in repr(swept)
    assert "busbw = algbw × 2(n-1)/n" in repr(swept)
    html = swept._repr_html_()
    assert html.startswith("<img alt=")
    assert "1/b" in swept.alt or "b = 0" in swept.alt
    assert html.count("<tr>") == 4
    assert swept.svg == swept.svg
    assert b"xlink" not in swept.svg  # its namespace is cut away


@pytest.mark.parametrize("op", timing.OPS)
def test_every_operation_is_measured_and_its_result_is_right(lab, op):
    sweep = lab.sweep(op, sizes=[100, 4096], repeat=1)
    assert sweep.right
    step = 4 * (3 if PRIMITIVES[op].cut else 1)  # float32; a part for each of three ranks
    assert [r.nbytes for r in sweep.rows] == [100 // step * step, 4096 // step * step]


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float64"])
def test_another_dtype_is_measured(lab, dtype):
    sweep = lab.sweep("reduce_scatter", sizes=[4096], dtype=dtype, repeat=1)
    assert (sweep.right, sweep.dtype) == (True, dtype)


def test_a_barrier_has_one_row_and_no_bandwidth(lab):
    sweep = lab.sweep("barrier", repeat=2)
    (row,) = sweep.rows
    assert (row.nbytes, row.algbw, row.busbw, row.copy, row.right) == (0, None, None, None, True)
    assert "GB/s" not in repr(sweep)
    assert "<img" not in sweep._repr_html_()
    with pytest.raises(LabError, match="no bytes to fit"):
        _ = sweep.fit


def test_some_ranks_are_measured_in_a_group_of_their_own(lab):
    sweep = lab.sweep("broadcast", sizes=[64], ranks=[2, 0], repeat=1)
    assert (sweep.n, sweep.right) == (2, True)
    assert sweep.where.startswith("Gloo, 2 CPU ranks")
    assert lab.run("print(len(dist.distributed_c10d._world.pg_map))") == ["1\n"] * 3


def test_a_sweep_leaves_the_learners_variables_and_record_alone(lab):
    lab.run("x = torch.ones(1)\ndist.all_reduce(x)")
    lab.sweep(sizes=[64], repeat=1)
    assert lab.pull("x.item()") == [3.0] * 3
    assert [[op.op for op in mine] for mine in lab.last.timeline().record.ops] == [["all_reduce"]] * 3


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        ({"op": "all_reduces"}, "is not an operation to sweep. Choose one of broadcast"),
        ({"op": "barrier", "sizes": [4]}, "Call lab.sweep\\('barrier'\\)"),
        ({"sizes": [0]}, "whole numbers of bytes above zero"),
        ({"sizes": []}, "whole numbers of bytes above zero"),
        ({"sizes": [2**50]}, "Give sizes of up to"),
        ({"dtype": "float8"}, "Choose one of float32"),
        ({"ranks": [0, 3]}, "ranks 0 to 2"),
        ({"ranks": [1, 1]}, "each once"),
        ({"ranks": [1]}, "no other to talk to"),
        ({"repeat": 0}, "Give 1 or more"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_a_rank_is_asked(lab, wish, told):
    with pytest.raises(LabError, match=told):
        lab.sweep(**wish)


def test_a_bar_under_the_cell_says_how_far_the_sweep_is(notebook):
    cell = notebook.run("lab.sweep(sizes=[64, 128], repeat=1)")
    (bar,) = cell.displays  # its updates are told apart from it, and the last one empties it
    assert bar == {"text/plain": f"all_reduce {'░' * 20} now 64 B"}
    assert cell.result.startswith("all_reduce, float32: Gloo, 3 CPU ranks on one host")


def test_a_sweep_to_which_a_rank_does_not_come_ends_at_the_limit(lab):
    lab.run("from workbook.tools.rank import sweep\nkept = sweep.CALLS['all_reduce']")
    lab.run("if rank == 1: sweep.CALLS['all_reduce'] = lambda b: __import__('time').sleep(600)")
    try:
        with pytest.raises(StuckError, match="ranks 0, 2 wait in all_reduce"):
            lab.sweep("all_reduce", sizes=[64])
    finally:
        lab.run("sweep.CALLS['all_reduce'] = kept")


PATCHED = """
import os, pathlib
from workbook.tools.rank import sweep
true = getattr(sweep, "true", sweep.row)
def row(op, elements, dtype, repeat, calls=None):
    if elements > 16:
        {then}
    return true(op, elements, dtype, repeat if elements > 16 else 1, calls)
sweep.row, sweep.true = row, true
"""


def test_stop_keeps_what_was_measured_and_the_ranks(notebook, tmp_path):
    patch = PATCHED.format(then=f"pathlib.Path({str(tmp_path)!r}, str(rank)).touch()")
    notebook.value(f"lab.run({patch!r})")
    running = notebook.send("sweep = lab.sweep(sizes=[64, 128, 256], repeat=30000)\nlen(sweep.rows), sweep.note")
    assert eventually(lambda: len(list(tmp_path.iterdir())) == 3)
    notebook.interrupt()
    cell = notebook.wait(running)
    assert cell.status == "ok", cell.error
    assert cell.result == "(1, 'You stopped the sweep after 1 of 3 sizes, 1 of 90000 repetitions.')"
    after = notebook.run("%%px\nx = torch.ones(1)\ndist.all_reduce(x)\nprint(x.item())")
    assert (after.error, after.stdout) == ("", "ranks 0–2 │ 3.0\n")


def test_a_sweep_that_a_dying_rank_ends_keeps_its_rows_and_heals(lab):
    lab.run(PATCHED.format(then="os._exit(1)"), ranks=2)
    lab.run(PATCHED.format(then="pass"), ranks=[0, 1])
    sweep = lab.sweep(sizes=[64, 128], repeat=3)
    assert sweep.note.startswith("The sweep ended early, rank 2 died (exit code 1) after 1 of 2 sizes")
    assert lab.run("print(dist.get_world_size())") == ["3\n"] * 3
