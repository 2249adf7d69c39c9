"""Exercises of lesson 12b on products of matrices that are cut: a partial sum, a grid, a chain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.floor.words import count
from labkit.grading.exercise import Case, Least, exercise
from labkit.grading.inputs import options
from labkit.grading.promises import Calls
from workbook.harnesses import my_group
from workbook.lesson12b import part_of

if TYPE_CHECKING:
    from labkit.rank.cell_names import dist, torch, world_size

    def panel(p, panels, group):
        """Piece p of k: the place of the rank in this group that has it, and which piece of its tile it is."""
        return divmod(p, panels // dist.get_world_size(group))


def _activated(xs: Sequence[Any]) -> list[Any]:
    x = np.concatenate([mine for mine, _, _ in xs], axis=1)
    w = np.concatenate([mine for _, mine, _ in xs])
    y = np.maximum(x @ w + xs[0][2], 0)
    return [part_of(y, len(xs), r) for r in range(len(xs))]


def _cut_on_k(n: int) -> list[Case]:
    def case(m: int, k: int, wide: int, about: str, seed: int, bias: float = 1.0) -> Case:
        rng = np.random.default_rng([122, seed, n])
        x, w = (rng.integers(-4, 5, shape).astype("float32") for shape in ((m, k), (k, wide)))
        b = (bias * rng.integers(4, 9, wide)).astype("float32")
        return Case([(part_of(x, n, r, 1), part_of(w, n, r), b) for r in range(n)], about)

    return [
        case(n, n, 2, "one column a rank, no bias", 20, bias=0.0),
        case(n, n, 2, "with a bias", 24),
        case(2 * n, 2 * n, 3, "two columns a rank", 22),
        case(8 * n, 4 * n, 6, "a larger product", 23),
    ]


def broken_product_on_k(x, w, bias):
    y = torch.relu(x @ w + bias)
    mine = y.new_empty(len(y) // world_size, y.shape[1])
    dist.reduce_scatter_single(mine, y)
    return mine


@exercise(
    "Repair a layer whose result is a partial sum",
    _activated,
    minutes=5,
    inputs=_cut_on_k,
    tolerance=1e-5,
    forbids=("all_reduce", "all_gather"),
    promises=(Calls(1),),
    least=Least(rounds=lambda n: 1),
)
def product_on_k(x, w, bias):
    """Return this rank's rows of relu(X W + bias), where X is cut into columns and W into rows.

    X is cut into columns and W into rows, so `x @ w` on each rank is a part of the sum X W. Return this rank's block of
    **rows** of relu(X W + bias); the number of ranks divides the rows of X, and `bias` is the same on all ranks.
    **One** call that communicates; nobody needs all of X W.

    The specimen has two mistakes. Both are right on one rank.
    Hint: relu(a + b) is not relu(a) + relu(b). When may a rank apply it?
    Hint: The bias belongs into the sum once, and the specimen adds it on every rank.
    Hint: Both go into the last line: `torch.relu(mine + bias)`.
    Afterwards: A partial sum may be added to another one and multiplied by a number, for both can wait. Everything else
    has to come after the reduction. DTensor knows this, and reduces before a `relu`; with plain tensors you have to.
    """
    y = x @ w
    mine = y.new_empty(len(y) // world_size, y.shape[1])
    dist.reduce_scatter_single(mine, y)
    return torch.relu(mine + bias)


def tiles(whole: np.ndarray, n: int, rows: int) -> list[np.ndarray]:
    """Return each rank's tile of a matrix on a grid of n ranks with so many rows."""
    across = n // rows
    return [part_of(part_of(whole, rows, r // across), across, r % across, 1) for r in range(n)]


def _product(xs: Sequence[Any], rows: int, panels: int) -> list[Any]:
    lines = [xs[i : i + len(xs) // rows] for i in range(0, len(xs), len(xs) // rows)]
    x, w = (np.block([[mine[which] for mine in line] for line in lines]) for which in range(2))
    return tiles(x @ w, len(xs), rows)


def _grids(n: int) -> list[Case]:
    def case(rows: int, panels: int, m: int, k: int, wide: int, seed: int, dtype: str = "float32") -> Case:
        rng = np.random.default_rng([122, seed, n])
        x, w = (tiles(rng.integers(-4, 5, shape).astype(dtype), n, rows) for shape in ((m, k), (k, wide)))
        about = f"a grid of {rows} × {n // rows}, {panels} panels"
        return Case([*zip(x, w)], about, {"rows": rows, "panels": panels})

    lines = [case(1, n, 2, 2 * n, n, 33), case(n, n, n, 2 * n, 2, 34)]
    if n != 4:
        return [*lines, case(1, 2 * n, 4, 8 * n, 4 * n, 35)]
    square = [case(2, 2, 2, 2, 2, 30), case(2, 2, 4, 6, 8, 31, "float64"), case(2, 4, 4, 8, 4, 32)]
    return [*square, *lines, case(2, 4, 16, 32, 24, 35)]


def on_grid(x, w, rows, panels):
    """Return the arguments, with the groups of this rank's row and column."""
    table = torch.arange(world_size).view(rows, -1)
    return x, w, my_group(table.tolist()), my_group(table.T.tolist()), panels


@exercise(
    "Multiply on a grid of ranks",
    _product,
    minutes=20,
    difficulty=3,
    inputs=_grids,
    tolerance=1e-5,
    keeps_input=True,
    forbids=("all_gather", "gather", "all_reduce", "reduce_scatter", "all_to_all"),
    given="panel",
    setup=on_grid,
)
def summa(x, w, row, column, panels):
    """Return this rank's tile of the product of two matrices that lie in tiles on a grid of ranks.

    The ranks form a grid. X and W are cut into as many blocks of rows as the grid has rows, and each of these into as
    many blocks of columns as it has columns: `x` and `w` are this rank's tiles. Return its tile of X W.

    The sum over k is taken in `panels` pieces of equal length, one after the other. Piece p of X is a strip of columns,
    and one rank of each `row` of the grid has this row's part of it; piece p of W is a strip of rows, and one rank of
    each `column` has its part. The tiles divide into pieces, and `panel` is there: with whom a piece lies, and where in
    the tile. **Broadcast** the two pieces, multiply, add. Gather nothing: a rank has room for one piece of each.

    `row` and `column` are process groups. Their ranks are in the order of the grid.
    Hint: Your tile of the result needs the whole strip of X of your grid row, and the whole strip of W of your grid
    column: but never at once. For each piece, who has it?
    Hint: `owner, piece = panel(p, panels, row)`; `x.chunk(pieces of a tile, dim=1)[piece]` is it on the owner, and has
    the right shape on all others. Broadcast a `.clone()` of it.
    Hint: `dist.broadcast(left, group=row, group_src=owner)`, the same for W with `dim=0` and `column`, and then `y +=
    left @ right`.
    Afterwards: This is SUMMA (van de Geijn and Watts, 1997), which ScaLAPACK multiplies with. On a grid of √N × √N
    ranks, each one receives less than 2/√N of a matrix. With both matrices cut in one dimension, a rank has to receive
    nearly all of one of them, however many ranks there are. DTensor on a 2 × 2 mesh gathers the strips instead.
    """
    y = x.new_zeros(len(x), w.shape[1])
    for p in range(panels):
        # yours
        owner, piece = panel(p, panels, row)
        left = x.chunk(panels // dist.get_world_size(row), dim=1)[piece].clone()
        dist.broadcast(left, group=row, group_src=owner)
        owner, piece = panel(p, panels, column)
        right = w.chunk(panels // dist.get_world_size(column), dim=0)[piece].clone()
        dist.broadcast(right, group=column, group_src=owner)
        y += left @ right
        # end
    return y


CHAINS = (
    ([8, 32, 8], 4, 4),
    ([8, 32], 4, 4),
    ([32, 8], 4, 4),
    ([8, 32, 32, 8], 10, 2),
    ([4096, 16384, 4096, 16384, 4096], 2048, 8),
    ([1024, 64, 1024, 16, 512], 100, 3),
    ([64, 8, 8, 8, 64, 512, 8], 32, 16),
    ([64, 64, 64, 32, 8], 1, 4),
)


@exercise(
    "The cheapest cuts of a chain of layers",
    lambda xs, **chain: [cheapest_chain(**chain)] * len(xs),
    minutes=12,
    difficulty=2,
    inputs=options(
        "widths tokens ranks",
        *((f"widths {w}, {count(t, 'token')}, {count(r, 'rank')}", w, t, r) for w, t, r in CHAINS),
    ),
    ranks=(2,),
    tolerance=1e-9,
    promises=(Calls(0),),
)
def cheapest_chain(widths, tokens, ranks):
    """Return how many numbers each rank has to send, for the best choice of cuts.

    A chain of layers multiplies `tokens` rows by one matrix after the other: layer i's has `widths[i]` rows and
    `widths[i + 1]` columns. **Every** matrix is cut over the `ranks`, either into columns or into rows. After each
    layer comes an activation function, so a partial sum has to be added up at once, by an all-reduce. `X` is whole
    on every rank to begin with, and the last result has to be whole on every rank.

    Return the smallest amount of **numbers** that each rank has to send, over all choices of cuts:

    - a matrix cut into **columns** needs its input whole (an all-gather where it is not), and leaves columns;
    - one cut into **rows** takes its input whole or in columns, and leaves a sum: an all-reduce makes it whole.

    Collectives send the least: (N − 1)/N · S for an all-gather of S numbers in all, twice that for an all-reduce.
    Communicate nothing.
    Hint: With a handful of layers you may try all choices: `itertools.product(('columns', 'rows'), repeat=layers)`.
    Only one thing has to be carried from layer to layer.
    Hint: That one thing is whether the last result is whole or in columns. Keep the least sum for each of the two.
    Hint: By columns: `min(whole, cut + gather(before))`. By rows: `min(whole, cut) + all_reduce(after)`. At the end,
    columns have to be gathered.
    Afterwards: Columns, then rows: with wide layers in between, Megatron's pairs are the best choice, one all-reduce
    for two matrices. Where a layer in the middle is narrow, another choice wins. Alpa (2022) searches such choices for
    whole models, operation by operation.
    """
    share = (ranks - 1) / ranks * tokens
    whole, cut = 0.0, float("inf")  # the least so far, where the last result is whole, and where it is in columns
    for layer in range(len(widths) - 1):
        by_columns = min(whole, cut + share * widths[layer])
        by_rows = min(whole, cut) + 2 * share * widths[layer + 1]
        whole, cut = by_rows, by_columns
    return min(whole, cut + share * widths[-1])
