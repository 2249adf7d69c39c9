"""`lab.flow` and `%%flow` on four real ranks: the origins that probing finds are those that theory says."""

from __future__ import annotations

import pytest

import labkit
from labkit.floor.errors import CellError, LabError
from labkit.theory.mistakes import expected

X = "x = torch.arange(4.) + 10 * rank"
ROOM = "parts = [torch.zeros(4) for _ in range(world_size)]"
RING = """
def pass_on(out, n):
    got = torch.empty_like(out)
    for request in [dist.isend(out.clone(), (rank + 1) % n), dist.irecv(got, (rank - 1) % n)]:
        request.wait()
    return got

def ring(x, forget=0, twice=False, shift=0):
    n = world_size
    c = [chunk.clone() for chunk in x.chunk(n)]
    for s in range(n - 1):
        got = pass_on(c[(rank - s) % n], n)
        c[(rank - s - 1) % n] += got * (2 if twice and s == 1 and rank == 2 else 1)
    for s in range(n - 1 - forget):
        c[(rank - s) % n] = pass_on(c[(rank + 1 - s - shift) % n], n)
    return torch.cat(c)
"""


@pytest.fixture(scope="module")
def lab():
    with labkit.start(4) as four:
        four.run(RING)
        yield four


@pytest.mark.parametrize(
    ("means", "root", "setup", "code", "x", "y"),
    [
        ("broadcast", 1, X, "dist.broadcast(x, src=1)", "x", "x"),
        (
            "scatter",
            2,
            "chunks = [torch.tensor([1., 2.]) + 10 * i for i in range(4)] if rank == 2 else None; y = torch.zeros(2)",
            "dist.scatter(y, chunks, src=2)",
            "chunks",
            "y",
        ),
        ("gather", 0, X + f"\n{ROOM} if rank == 0 else None", "dist.gather(x, parts, dst=0)", "x", "parts"),
        ("reduce", 3, X, "dist.reduce(x, dst=3)", "x", "x"),
        ("all_reduce", 0, X, "dist.all_reduce(x)", "x", "x"),
        ("all_gather", 0, X + f"\n{ROOM}", "dist.all_gather(parts, x)", "x", "parts"),
        ("all_gather", 0, X, "y = torch.zeros(16)\ndist.all_gather_single(y, x)", "x", "y"),
        ("reduce_scatter", 0, X, "y = torch.zeros(1)\ndist.reduce_scatter(y, list(x.chunk(4)))", "x", "y"),
        ("reduce_scatter", 0, X, "y = torch.zeros(1)\ndist.reduce_scatter_single(y, x)", "x", "y"),
        ("all_to_all", 0, X, "y = torch.zeros(4)\ndist.all_to_all_single(y, x)", "x", "y"),
        ("all_reduce", 0, X, "y = ring(x)", "x", "y"),
    ],
)
def test_the_origins_found_on_the_ranks_are_those_of_the_meaning(lab, means, root, setup, code, x, y):
    lab.run(setup)
    flow = lab.flow(code, x, y, means=means, root=root)
    groups = [told["groups"] for told in flow.seen.before]
    for came, wanted in zip(flow.origins, expected(means, groups, root), strict=True):
        assert wanted is None or came == wanted
    assert flow.mistakes == []
    assert flow.why == ""


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        *[("SUM", "sum"), ("AVG", "mean"), ("PRODUCT", "product"), ("MIN", "min"), ("MAX", "max")],
        *[("BAND", "and"), ("BOR", "or"), ("BXOR", "xor")],
    ],
)
def test_every_reduction_is_recognised(lab, op, kind):
    dtype = "float32" if op == "AVG" else "int64"
    lab.run(f"x = torch.tensor([3, 1, 4, 1], dtype=torch.{dtype}) * (rank + 1) % 5")
    flow = lab.flow(f"dist.all_reduce(x, op=dist.ReduceOp.{op})", "x", means="all_reduce")
    assert {part.kind for row in flow.seen.parts for *_, part in row} == {kind}
    assert flow.mistakes == []


def test_a_shift_around_the_ring_comes_from_the_neighbour(lab):
    lab.run(X)
    flow = lab.flow("y = pass_on(x, world_size)", "x", "y")
    assert [repr(origins[0]) for origins in flow.origins] == ["r3[0]", "r0[0]", "r1[0]", "r2[0]"]


def test_three_wrong_rings_make_three_different_mistakes(lab):
    said = []
    for fault in ("forget=1", "twice=True", "shift=1"):
        lab.run(X)
        said.append(lab.flow(f"y = ring(x, {fault})", "x", "y", means="all_reduce").mistakes)
    assert said[0] == [f"rank {r} lacks rank {(r + 1) % 4}'s element {(r + 2) % 4}" for r in range(4)]
    assert said[1] == ["ranks 0–3 count rank 0's element 0 and rank 1's element 0 twice"]
    assert said[2][0].startswith("rank 0 holds rank 3's element 3 where element 0 of ranks 0–3 belongs, ")


def test_probing_leaves_the_learner_s_variables_alone(lab):
    lab.run(X)
    lab.run(
        """
calls, log, extra = [0], [], torch.zeros(2)
def noted(t):
    calls[0] += 1
    extra.add_(1)
    log.append(t)
torch.manual_seed(rank)"""
    )
    flow = lab.flow("noted(x)\nr = torch.rand(1)\ndist.all_reduce(x)", "x")
    assert flow.why == ""
    assert (
        lab.pull("(x.tolist(), calls, extra.tolist(), len(log))")
        == [[[60.0, 64.0, 68.0, 72.0], [1], [1.0, 1.0], 1]] * 4
    )
    lab.run("drawn = torch.rand(1); torch.manual_seed(rank); torch.rand(1); same = torch.equal(drawn, torch.rand(1))")
    assert lab.pull("same") == [True] * 4


def test_a_cell_that_prints_prints_once(lab, capsys):
    lab.run(X)
    lab.flow("print('hello'); dist.all_reduce(x)", "x")
    assert capsys.readouterr().out == "ranks 0–3 │ hello\n"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("if x.sum() == 0 and rank == 1:\n    pass\nelse:\n    dist.all_reduce(x)", "wait in all_reduce"),
        ("assert x.sum() > 0\ndist.all_reduce(x)", "AssertionError"),
        ("import time\nwhile x.sum() < 1:\n    time.sleep(.01)\ndist.all_reduce(x)", "ten times as long"),
        ("import time\ntime.sleep(.6)\ndist.all_reduce(x)", "30 more runs of this cell"),
        ("import time\ny = time.time_ns()\ndist.all_reduce(x.fill_(y % 1000003))", "different numbers"),
        ("big = torch.zeros(1) if 'big' not in dir() else big\nheavy.add_(0)\ndist.all_reduce(x)", "64 MiB"),
    ],
)
def test_a_probe_that_fails_costs_the_colours_and_nothing_else(lab, code, reason):
    lab.run("x = torch.arange(2.) + rank + 1; kept = rank; heavy = torch.empty(17 << 20, device='meta')")
    if "heavy" in code:
        lab.run("heavy = torch.zeros(17 << 20)")
    flow = lab.flow(code, "x")
    assert reason in flow.why
    assert reason in repr(flow)
    assert flow.origins == [None] * 4
    assert lab.pull("kept") == [0, 1, 2, 3]
    lab.run("ones = torch.ones(1); dist.all_reduce(ones); del heavy")
    assert [float(one[0]) for one in lab.pull("ones")] == [4.0] * 4


def test_a_run_that_had_to_wait_once_costs_no_colours(lab):
    lab.run("x = torch.arange(2.); torch.runs = 0")
    once = "import time\ntorch.runs += 1\ntime.sleep(.6 * (torch.runs == 2))"  # the first one after the learner's
    assert lab.flow(f"{once}\ndist.all_reduce(x)", "x").why == ""
    lab.run("assert torch.runs > 3\ndel torch.runs")


@pytest.mark.parametrize(
    "lasting",
    [
        "open(f'{folder}/{rank}', 'a').write('once ')",
        "with __import__('pathlib').Path(f'{folder}/{rank}').open('a') as f:\n    f.write('once ')",
        "__import__('subprocess').run(['sh', '-c', f'printf \"once \" >> {folder}/{rank}'])",
    ],
)
def test_what_would_last_beyond_the_variables_happens_once(lab, lasting, tmp_path):
    lab.run(f"x = torch.tensor([1., 2.]) + rank\nfolder = {str(tmp_path)!r}")
    flow = lab.flow(f"dist.all_reduce(x)\n{lasting}", "x")
    assert [(tmp_path / str(r)).read_text() for r in range(4)] == ["once "] * 4
    assert "the cell changes files or reaches other programs, and that is not done again" in flow.why
    lab.run(lasting)  # a cell of the learner's may go on writing
    assert [(tmp_path / str(r)).read_text() for r in range(4)] == ["once once "] * 4


def test_the_runs_for_the_picture_leave_no_group(lab):
    count = "groups = len(dist.distributed_c10d._world.pg_map)"
    lab.run(f"{X}\n{count}")
    before = lab.pull("groups")
    flow = lab.flow("pair = dist.new_group([0, 1])\nif rank < 2:\n    dist.all_reduce(x, group=pair)", "x")
    assert flow.why == ""
    lab.run(f"{count}\nif rank < 2:\n    dist.all_reduce(x, group=pair)")
    assert lab.pull("groups") == [n + (r < 2) for r, n in enumerate(before)]


def test_a_cell_that_raises_ends_as_a_px_cell_does(lab):
    lab.run(X)
    with pytest.raises(CellError, match="rank 2: ZeroDivisionError"):
        lab.flow("1 / (rank - 2)", "x")
    assert lab.flow("dist.all_reduce(x)", "x").why == ""


def test_a_name_that_is_missing_is_said_before_the_cell_runs(lab):
    lab.run("ran = False")
    with pytest.raises(LabError, match=r"ranks 0–3: NameError.*Make nowhere on every rank"):
        lab.flow("ran = True", "nowhere")
    assert lab.pull("ran") == [False] * 4
    lab.run(X)
    with pytest.raises(LabError, match=r"Name what the cell leaves"):
        lab.flow("pass", "x", "nowhere")


def test_a_long_tensor_is_followed_in_blocks(lab):
    lab.run("x = torch.arange(64.) + 100 * rank")
    flow = lab.flow("y = torch.zeros(64)\ndist.all_to_all_single(y, x)", "x", "y", means="all_to_all")
    assert flow.mistakes == []
    assert "rank 1 │ 100…115 (1·0)  116…131 (1·1)" in repr(flow)
    assert "→ 16…31 (0·1)  116…131 (1·1)  216…231 (2·1)  316…331 (3·1)" in repr(flow)


def test_a_table_is_drawn_row_by_row_and_says_so(lab):
    lab.run("x = (torch.arange(4.) + 10 * rank).reshape(2, 2)")
    assert "x has the shape (2, 2) and is drawn row by row." in repr(lab.flow("dist.all_reduce(x)", "x"))


def test_objects_are_followed_too(lab):
    lab.run("mine, out = {'loss': 0.5 * rank, 'name': f'r{rank}'}, [None] * world_size")
    flow = lab.flow("dist.all_gather_object(out, mine)", "mine", "out", means="all_gather")
    assert flow.mistakes == []
    assert "[0.5 (1·0)  r1 (1·1)]" in repr(flow)


def test_equal_runs_give_equal_bytes(lab):
    pictures = []
    for _ in range(2):
        lab.run(X)
        flow = lab.flow("dist.all_reduce(x)", "x")
        pictures.append((flow.svg, repr(flow), flow._repr_html_()))
    assert pictures[0] == pictures[1]


def test_the_magic_reads_its_line(lab):
    from IPython.core.error import UsageError
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    from labkit.cluster.magic import PictureMagics

    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    magics = PictureMagics(shell, lambda *args: args, print, print)
    assert magics.flow("x", "pass\n") == ("# %%flow x\npass\n", "x", "x", None, 0, False)
    assert magics.flow("x -> y[0] --means reduce --root 2", "")[1:] == ("x", "y[0]", "reduce", 2, False)
    assert magics.flow("x -> y --predict --root=2 --means=reduce", "")[1:] == ("x", "y", "reduce", 2, True)
    for line in ("", "x ->", "-> y", "x --mean all_reduce", "--predict", "x --predicts"):
        with pytest.raises(UsageError, match="%%flow x"):
            magics.flow(line, "")


def test_a_flow_cell_shows_its_picture_and_its_text(notebook):
    notebook.value("%%px\nx = torch.ones(1) * rank")
    cell = notebook.run("%%flow x --means all_reduce\nprint('here')\ndist.all_reduce(x)")
    assert cell.status == "ok", cell.traceback
    assert cell.stdout == "ranks 0–2 │ here\n"
    assert cell.result.splitlines()[3:] == ["rank 2 │ 2 (2·0) → 3 (Σ 0–2·0)", "This is what all_reduce means."]
    assert "data:image/svg+xml;base64," in notebook.run("display(_)").displays[0]["text/html"]


def test_a_sealed_cell_runs_and_keeps_what_the_ranks_hold_until_it_is_filled_in(notebook):
    notebook.value("%%px\nx = torch.arange(2.) + 10 * rank")
    cell = notebook.run("%%flow x --predict\nprint('here')\ndist.all_reduce(x)")
    assert cell.status == "ok", cell.traceback
    assert cell.stdout == "ranks 0–2 │ here\n"
    assert cell.result.splitlines()[2] == "rank 1 │ 10 (1·0)  11 (1·1) → ?  ?"
    assert notebook.run("%%px\nprint(x.tolist())").stdout == "ranks 0–2 │ [30.0, 33.0]\n", "the cell has run"
    notebook.value("%%px\nx = torch.arange(2.) + 10 * rank")
    notebook.run("%%flow x --predict\ndist.all_reduce(x)")
    assert notebook.value("_.fill([[30, 33], [30, 32], [3, ...]])").splitlines()[:6] == [
        "3 of 5 tiles are right, 1 left empty.",
        "Rank 1, place 1: you said 32, but it holds 33.",
        "Rank 2, place 0: you said 3, but it holds 30.",
        "rank 0 │ 30 ✓  33 ✓",
        "rank 1 │ 30 ✓  32 ✗ 33",
        "rank 2 │ 3 ✗ 30  33",
    ]


def test_a_sealed_cell_fails_and_hangs_as_any_other_does(notebook):
    notebook.value("%%px\nx = torch.ones(1) * rank")
    assert notebook.run("%%flow x --predict\n1 / 0").error.startswith("CellError: ranks 0–2: ZeroDivisionError")
    stuck = notebook.run("%%flow x --predict\nif rank:\n    dist.all_reduce(x)").error
    assert stuck.startswith("StuckError: rank 0 is missing: it finished the cell, while ranks 1, 2 wait in all_reduce")


def test_a_reduce_is_undefined_off_its_root_where_it_is_meant(lab):
    lab.run("x = torch.ones(2) * (rank + 1)")
    sealed = lab.flow("dist.reduce(x, dst=2)", "x", means="reduce", root=2, predict=True)
    rows = [["?", "?"] if r != 2 else [10, 10] for r in range(4)]
    assert repr(sealed.fill(rows)).startswith("All 8 tiles are right.")


def test_a_flow_cell_that_fails_names_the_line_that_the_editor_shows(notebook):
    cell = notebook.run("%%flow x\nx = x + 0\nx = 1 / 0")
    assert cell.error.startswith("CellError: ranks 0–2: ZeroDivisionError")
    assert "----> 3 x = 1 / 0" in cell.traceback
