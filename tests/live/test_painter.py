"""What the shard painter claims, held against torch's DTensor on real ranks: every way to cut two matrices."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest

import labkit
from labkit import Painter
from labkit.floor.errors import LabError
from workbook.tools.painter.placements import CUTS, PARTIAL, TORCH, Move, finished, moves, tile
from workbook.tools.painter.show import Painting

SHAPE = (8, 4, 12)
# What CommDebugMode calls them. On CPUs torch gathers and cuts, in place of an all-to-all.
COUNTED = {
    "all_gather": "all_gather_into_tensor",
    "all_to_all": "all_gather_into_tensor",
    "all_reduce": "all_reduce",
    "reduce_scatter": "reduce_scatter_tensor",
    "": None,
}

RANKS_SIDE = """
import logging
logging.disable(logging.WARNING)  # torch says once that it gathers where all-to-all was meant
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

PLACEMENTS = {"rows": Shard(0), "columns": Shard(1), "whole": Replicate(), "partial": Partial()}


def counts(mode):
    return {str(op).rpartition(".")[2]: k for op, k in mode.get_comm_counts().items() if k}


def words(t):
    return [next(word for word, p in PLACEMENTS.items() if p == placement) for placement in t.placements]


def walk(t, layouts):
    seen = []
    for layout in layouts:
        with CommDebugMode() as mode:
            t = t.redistribute(placements=[PLACEMENTS[cut] for cut in layout])
        seen.append(counts(mode))
    return t, seen


def try_out(mesh, job):
    m, k, n = job["shape"]
    x, w = torch.arange(m * k * 1.0).view(m, k) % 7 - 3, torch.arange(k * n * 1.0).view(k, n) % 5 - 2
    lay = lambda t, layout: distribute_tensor(t, mesh, [PLACEMENTS[cut] for cut in layout])
    X, W = lay(x, job["x"]), lay(w, job["w"])
    held = [list(t.to_local().shape) for t in (X, W)]
    at = [lay(torch.arange(t.numel()).view(t.shape), layout).to_local().tolist()
          for t, layout in ((x, job["x"]), (w, job["w"]))]
    with CommDebugMode() as mode:
        own = X @ W
    alone = counts(mode)
    X, steps_x = walk(X, job["x_moves"])
    W, steps_w = walk(W, job["w_moves"])
    with CommDebugMode() as mode:
        Y = X @ W
    whole, steps_whole = walk(Y, job["whole"])
    cut, steps_cut = walk(Y, job["cut"])
    right = all(torch.equal(t.full_tensor(), x @ w) for t in (own, Y, whole, cut))
    return {"held": held, "at": at, "own": alone, "own_y": words(own), "x": steps_x, "w": steps_w,
            "product": counts(mode), "y": words(Y), "whole": steps_whole, "cut": steps_cut,
            "whole_is": words(whole), "cut_is": words(cut), "right": right}
"""


@pytest.fixture(scope="module")
def lab():
    with labkit.start(4, timeout=60) as lab:
        lab.run(RANKS_SIDE)
        yield lab


def ways(mesh: tuple[int, ...]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    cuts = list(product(CUTS, repeat=len(mesh)))
    return list(product(cuts, cuts))


def job(x: tuple[str, ...], w: tuple[str, ...], mesh: tuple[int, ...], shape: tuple[int, int, int]) -> dict[str, Any]:
    """A painted product, as plain data for the ranks."""
    plan = Painting(x, w, shape, mesh)

    def after(steps: list[Move]) -> list[list[str]]:
        return [list(move.after) for move in steps]

    its = {name: [move for which, move in plan.product.first if which == name] for name in ("X", "W")}
    return {
        "shape": list(shape), "x": list(x), "w": list(w), "x_moves": after(its["X"]), "w_moves": after(its["W"]),
        "whole": after(plan.whole), "cut": after(plan.cut),
    }  # fmt: skip


def counted(steps: list[Move]) -> list[dict[str, int]]:
    return [{COUNTED[move.op]: 1} if move.op else {} for move in steps]


@pytest.mark.parametrize("mesh", [(4,), (2, 2)], ids=str)
def test_every_painting_is_what_the_ranks_find(lab, mesh):
    """9 and 81 ways: who holds what, each collective before the product and after it, how the result lies."""
    every = ways(mesh)
    assert len(every) == 9 ** len(mesh)
    lab.push(jobs=[job(x, w, mesh, SHAPE) for x, w in every], mesh_shape=list(mesh))
    lab.run("mesh = init_device_mesh(device.type, tuple(mesh_shape))\nfound = [try_out(mesh, job) for job in jobs]")
    found = lab.pull("found")
    m, k, n = SHAPE
    for i, (x, w) in enumerate(every):
        plan = Painting(x, w, SHAPE, mesh)
        p = plan.product
        for rank in range(prod(mesh)):
            got = found[rank][i]
            where = (mesh, x, w, rank, got)
            for which, (size, layout) in enumerate([((m, k), x), ((k, n), w)]):
                (a, b), (c, d) = tile(size, layout, mesh, rank)
                assert got["held"][which] == [b - a, d - c], where
                assert got["at"][which] == [[r * size[1] + j for j in range(c, d)] for r in range(a, b)], where
            assert got["right"], where
            assert got["y"] == list(p.y), where
            assert got["product"] == {}, where
            assert got["x"] == counted([move for name, move in p.first if name == "X"]), where
            assert got["w"] == counted([move for name, move in p.first if name == "W"]), where
            assert got["whole"] == counted(plan.whole), where
            assert got["cut"] == counted(plan.cut), where
            assert got["whole_is"] == ["whole"] * len(mesh), where
            assert PARTIAL not in got["cut_is"], where
            # And torch alone: no message where none is needed, and never fewer than the plan.
            assert p.possible == (got["own"] == {}), where
            assert sum(got["own"].values()) >= len(p.collectives), where
            if p.possible:
                assert got["own_y"] == list(p.y), where


def test_every_change_of_layout_takes_the_collective_that_is_claimed(lab):
    kinds = [*CUTS, PARTIAL]
    pairs = [(a, b) for a in kinds for b in CUTS]
    lab.push(pairs=[list(pair) for pair in pairs])
    lab.run(
        """
line, seen = init_device_mesh(device.type, (world_size,)), []
for a, b in pairs:
    t = torch.ones(8, 8)
    t = DTensor.from_local(t, line, [Partial()]) if a == "partial" else distribute_tensor(t, line, [PLACEMENTS[a]])
    t, steps = walk(t, [[b]])
    seen.append([steps[0], float(t.full_tensor().sum())])
""".replace("\nline,", "\nfrom torch.distributed.tensor import DTensor\nline,")
    )
    for (a, b), (count, total) in zip(pairs, lab.pull("seen")[0], strict=True):
        steps = moves((a,), (b,), (8, 8), (4,))
        assert [count] == (counted(steps) or [{}]), (a, b)
        assert total == (4 if a == PARTIAL else 1) * 64


def test_uneven_blocks_lie_as_torch_cuts_them(lab):
    shape, mesh = (5, 7, 6), (4,)
    every = [(x, w) for x, w in ways(mesh) if Painting(x, w, shape, mesh).product.possible]
    lab.push(jobs=[job(x, w, mesh, shape) for x, w in every])
    lab.run("mesh = init_device_mesh(device.type, (4,))\nfound = [try_out(mesh, job) for job in jobs]")
    for rank, mine in enumerate(lab.pull("found")):
        for (x, w), got in zip(every, mine, strict=True):
            for size, layout, held in zip([(5, 7), (7, 6)], (x, w), got["held"], strict=True):
                (a, b), (c, d) = tile(size, layout, mesh, rank)
                assert held == [b - a, d - c]
            assert got["right"]


@pytest.mark.parametrize(
    ("mesh", "x", "w"),
    [(4, "columns", "rows"), (4, "rows", "rows"), ((2, 2), ("rows", "columns"), ("rows", "columns"))],
)
def test_run_draws_what_the_ranks_hold(lab, mesh, x, w):
    painter = Painter(mesh, x=x, w=w)
    run = painter.run(lab)
    p = painter.painting.product
    named = [f"{TORCH[cut]}" for cut in p.y]
    said = run.y.replace("dim=", "").replace("Partial(sum)", "Partial()")
    assert said == f"[{', '.join(named)}]"
    assert sum(run.counted.values()) == len(p.collectives)
    assert run.counted == {name: k for name, k in run.counted.items() if name in COUNTED.values()}
    total = np.zeros(16)
    held = np.zeros(16)
    for mine in run.results:
        values, places = (np.array(v).ravel() for v in mine["Y"])
        np.add.at(total, places.astype(int), values)
        np.add.at(held, places.astype(int), 1)
    a, b = np.arange(16.0).reshape(4, 4) % 3 + 1, np.arange(16.0).reshape(4, 4) % 4 + 1
    assert (total / (held if PARTIAL not in p.y else 1)).tolist() == (a @ b).ravel().tolist()
    assert lab.run("print(list(Y.shape))") == ["[4, 4]\n"] * 4, "the ranks have it as a DTensor"
    assert "rank 3" in repr(run)
    assert run.svg.startswith(b"<svg")


def test_a_lab_with_another_number_of_ranks_is_refused(lab):
    with pytest.raises(LabError, match=r"has 3 ranks, and this lab has 4"):
        Painter(3).run(lab)


def test_finished_is_what_ends_the_sum():
    assert [move.op for move in finished(("partial", "partial"), SHAPE, (2, 2))] == ["reduce_scatter"] * 2
