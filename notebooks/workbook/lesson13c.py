"""Exercises of lesson 13c: a vocabulary in parts with its gradients, a matrix cut anew, and products of cut ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.floor.words import count
from labkit.grading.exercise import Case, Least, exercise
from labkit.grading.inputs import options
from labkit.grading.promises import Calls, Once
from workbook.cards import in_words, no_numbers
from workbook.harnesses import my_group

if TYPE_CHECKING:
    from labkit.rank.cell_names import comms, dist, rank, torch, world_size

    class AddUp(torch.autograd.Function):  # Megatron's g: the sum forward, the gradient as it is backward
        @staticmethod
        def forward(ctx, x):
            return comms.all_reduce(x)

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    def panel(p, panels, group):
        """Return which rank of this group has piece p, and which piece of that rank's tile it is."""
        return divmod(p, panels // dist.get_world_size(group))


def part_of(whole: np.ndarray, n: int, rank: int, axis: int = 0) -> np.ndarray:
    """Return a rank's block along an axis, as torch.chunk cuts: the last blocks may be shorter, or empty."""
    size = whole.shape[axis]
    step = -(-size // n)
    return np.ascontiguousarray(whole.take(range(min(size, rank * step), min(size, (rank + 1) * step)), axis))


def _tables(n: int) -> list[Case]:
    def case(rows: int, width: int, ids: Any, about: str, seed: int) -> Case:
        table = np.random.default_rng([122, seed, n]).integers(-9, 10, (n * rows, width)).astype("float64")
        return Case([(part_of(table, n, r), np.array(ids)) for r in range(n)], about)

    rng = np.random.default_rng([122, 1, n])
    return [
        case(2, 2, [0, 3, 2 * n - 1], "three ids", 2),
        case(2, 1, [2 * n - 2] * 3 + [1, 1], "ids that repeat", 3),
        case(3, 2, rng.integers(0, 3 * n, (2, 3)), "two rows of text", 4),
        case(1, 2, list(range(n)), "one row per rank", 5),
        case(3, 1, [3 * n - 1], "an id of the last rank alone", 6),
    ]


@exercise(
    "Look up in a table that is cut, and train it",
    lambda xs: [np.concatenate([part for part, _ in xs])[ids] for _, ids in xs],
    minutes=8,
    difficulty=2,
    inputs=_tables,
    picture=lambda: [(part, ids[1:]) for part, ids in _tables(3)[0].xs],
    gradients="one",
    tolerance=1e-5,
    forbids=("all_gather", "gather", "broadcast", "all_to_all"),
    promises=(Once(("all_reduce",)),),
    least=Least(rounds=lambda n: 1),
    given="AddUp",
)
def vocab_embedding(part, ids):
    """Return the rows of the whole table for these ids, on every rank.

    Each rank has a `part` of the embedding table: the same number of rows on every rank, in the order of the ranks.
    `ids` are row numbers of the **whole** table, in any shape, and the same on all ranks. Return `table[ids]`
    on every rank. `AddUp`, which is given, adds up over the ranks; **one** call communicates.

    Megatron does it without indexing by a mask: it looks up row 0 for an id that is not here, and then sets what it
    found to zero. Every rank then calls `backward()` on the same **one** loss and wants the gradient of its own part:
    an id whose row is on another rank must leave no gradient here.
    Hint: Subtract the number of the first row that is here. Which of the results are rows of `part`?
    Hint: `here = (place >= 0) & (place < len(part))`, and `torch.where(here, place, 0)` is a row that exists.
    Hint: Multiply what you found by `here.unsqueeze(-1)`: that sets numbers **and** their gradients to zero.
    Afterwards: The backward pass communicates nothing. All ranks have the same ids and the same gradient of the rows,
    and each one adds up what belongs to its own part. So the table's gradient needs no all-reduce.
    """
    # yours
    place = ids - rank * len(part)
    here = (place >= 0) & (place < len(part))
    rows = part[torch.where(here, place, 0)] * here.unsqueeze(-1)
    # end
    return AddUp.apply(rows)


def _head(xs: Sequence[Any], words: int) -> list[Any]:
    x, target = xs[0][0].astype("float64"), xs[0][2]
    table = np.concatenate([part for _, part, _ in xs]).astype("float64")
    logits, tokens = x @ table[:words].T, np.arange(len(target))
    top = logits.max(1, keepdims=True)
    powers = np.exp(logits - top)
    loss = float((np.log(powers.sum(1)) + top[:, 0] - logits[tokens, target]).mean())
    shares = powers / powers.sum(1, keepdims=True)
    shares[tokens, target] -= 1
    d_logits = np.pad(shares / len(target), ((0, 0), (0, len(table) - words)))
    d_rows = [part_of(d_logits.T @ x, len(xs), r) for r in range(len(xs))]
    return [{"loss": loss, "gradient of x": d_logits @ table, "gradient of my rows": mine} for mine in d_rows]


def _heads(n: int) -> list[Case]:
    rng = np.random.default_rng([122, 7, n])

    def case(rows: int, words: int, tokens: int, about: str, level: float = 1.0, target: Any = None) -> Case:
        table = rng.integers(-4, 5, (n * rows, 3)) * 0.25
        table[words:] = rng.integers(1, 5, (n * rows - words, 3)) * 1.0  # whatever was there
        x = level * rng.integers(-4, 5, (tokens, 3))
        goal = rng.integers(0, words, tokens) if target is None else np.array(target)
        return Case([(x, part_of(table, n, r), goal) for r in range(n)], about, {"words": words})

    return [
        case(2, 2 * n, 2, "two words per rank"),
        case(3, 3 * n - 2, 4, "two rows of padding"),
        case(2, 2 * n - 2, 3, "the last rank has nothing but padding"),
        case(2, 2 * n, 2 * n, "every word is a target", target=range(2 * n)),
        case(4, 4 * n - 1, 5, "large logits", level=200.0),
        case(2, 2 * n, 3, "all targets on rank 0", target=[0, 1, 0]),
    ]


def graded(loss, x, part, *_):
    """Return the loss and its gradients."""
    assert loss.requires_grad, "The loss has no gradient: it was computed from what autograd does not see."
    loss.backward()
    assert x.grad is not None, "x has no gradient after `backward()`."
    assert part.grad is not None, "`part` has no gradient after `backward()`."
    return {"loss": loss.detach(), "gradient of x": x.grad, "gradient of my rows": part.grad}


@exercise(
    "The output layer and its loss, forward and backward",
    in_words(_head, "the mean loss; after `backward()` the whole gradient of x, and the gradient of my rows"),
    minutes=20,
    difficulty=3,
    inputs=_heads,
    picture=no_numbers,
    tolerance=1e-5,
    forbids=("all_gather", "gather", "reduce_scatter", "all_to_all"),
    promises=(Calls(3),),
    counts_memory=False,
    setup=lambda x, part, target, words: (x.requires_grad_(), part.requires_grad_(), target, words),
    collect=graded,
)
def vocab_head(x, part, target, words):
    """Return the mean loss of all tokens, on every rank.

    `x`, the same on all ranks, has one row per token. `part` has this rank's rows of the output layer's weights, one
    for each word, equally many on each rank, in the order of the ranks. From row `words` of the whole matrix on, the
    rows are padding: they stand for no word, whatever they hold. `target`, the same on all ranks, has each token's
    word. Return the mean loss of all tokens, on every rank.

    Every rank calls `backward()` on this **one** loss. It wants the **whole** gradient of `x`, as one process would
    have it, and the gradient of its own `part`. Write both passes: two all-reduces forward (lesson 08), one backward;
    gather nothing. `ctx.save_for_backward` and `ctx.saved_tensors` carry tensors from one to the other.
    Hint: Forward is `split_loss` of lesson 08, once the columns that stand for no word have the logit `-torch.inf`.
    They begin at column `words - first` of this rank, or at 0 where that is negative.
    Hint: Backward: the gradient of a token's logits is its shares, minus 1 for the target, divided by the number of
    tokens. All of it is here already.
    Hint: Each rank's `d_logits @ part` is the gradient through **its** words. The gradient of `x` is the sum of them
    over the ranks; the gradient of `part` needs no other rank.
    Afterwards: Forward, three numbers per token are reduced; backward, one row of the gradient of `x` per token. No
    rank has seen the logits of the others. The all-reduce of `d_x` is Megatron's f: every layer that is cut by columns
    ends its backward pass with it.
    """

    class Head(torch.autograd.Function):
        """Two static methods: forward(ctx, x, part), and backward(ctx, d_loss), which returns d_x and d_part."""

        # yours
        @staticmethod
        def forward(ctx, x, part):
            first = rank * len(part)
            logits = x @ part.T
            logits[:, max(0, words - first) :] = -torch.inf
            top = logits.max(dim=1).values
            dist.all_reduce(top, op=dist.ReduceOp.MAX)
            logits -= top[:, None]
            column = target - first
            here = (column >= 0) & (column < len(part))
            sums = logits.new_zeros(2, len(target))
            sums[0] = logits.exp().sum(dim=1)
            sums[1, here] = logits[here, column[here]]
            dist.all_reduce(sums)
            ctx.save_for_backward(x, part, logits.exp() / sums[0][:, None], here, column)
            return (sums[0].log() - sums[1]).mean()

        @staticmethod
        def backward(ctx, d_loss):
            x, part, shares, here, column = ctx.saved_tensors
            d_logits = shares.clone()
            d_logits[here, column[here]] -= 1
            d_logits *= d_loss / len(x)
            d_x = d_logits @ part
            dist.all_reduce(d_x)
            return d_x, d_logits.T @ x

        # end

    return Head.apply(x, part)


def _matrices(n: int) -> list[Case]:
    def case(rows: int, columns: int, about: str, seed: int, dtype: str = "float32") -> Case:
        whole = np.random.default_rng([122, seed, n]).integers(-9, 10, (rows, columns)).astype(dtype)
        if seed == 8:
            whole = (np.arange(rows)[:, None] * 10 + np.arange(columns)).astype(dtype)
        return Case([(part_of(whole, n, r), rows) for r in range(n)], about)

    return [
        case(n, n, "one row per rank", 8),
        case(2 * n, 3 * n, f"{2 * n} × {3 * n}", 9),
        case(2 * n - 1, n, "rows that do not divide evenly", 10, "float64"),
        case(n, n + 1, "columns that do not divide evenly", 11),
        case(n + 1, 2 * n + 1, "neither divides evenly", 12),
        case(8 * n, 16 * n, "a larger matrix", 13),
    ]


@exercise(
    "From rows to columns",
    lambda xs: [part_of(np.concatenate([x for x, _ in xs]), len(xs), r, axis=1) for r in range(len(xs))],
    minutes=15,
    difficulty=3,
    inputs=_matrices,
    keeps_input=True,
    forbids=("all_gather", "gather", "broadcast", "all_reduce", "reduce_scatter"),
    promises=(Calls(1),),
    least=Least(sent=lambda n, S: (n - 1) / n * S, rounds=lambda n: 1),
)
def rows_to_columns(x, rows):
    """Return this rank's block of columns of the matrix that lies on the ranks in blocks of rows.

    A matrix is cut into rows: `x` is this rank's block of them. Return this rank's block of its **columns**. `rows` is
    the number of rows of the whole matrix.

    Blocks are those of `torch.chunk`, as in DTensor: as long as the quotient rounded **up**, so the last blocks may be
    shorter, or empty. **One** call that communicates, and no rank receives what it does not keep:
    `dist.all_to_all_single(out, all_that_i_send, receive_sizes, send_sizes)` on flat tensors takes blocks of different
    lengths.
    Hint: Rank r wants from you the columns of its block, for all of your rows. What does each rank send you, then?
    Begin with two lists: how many rows and how many columns the block of each rank has.
    Hint: With `high = -(-rows // world_size)`, rank r has `max(0, min(rows, (r + 1) * high) - r * high)` rows; columns
    in the same way.
    Hint: `x.split(widths, dim=1)` are the blocks for rank 0, 1, …; flattened and one after the other, they are what you
    send. From rank r you receive `heights[r]` rows of `widths[rank]` numbers.
    Hint: What arrives is in the order of the ranks, so in the order of the rows: `received.view(rows, mine)`.
    Afterwards: Each rank sends its rows once, without its own part: (N − 1)/N · S, however large the matrix. Gathering
    sends N times as much. DTensor does the same with NCCL; on CPUs it gathers and cuts, as its warning says.
    """
    high, wide = -(-rows // world_size), -(-x.shape[1] // world_size)
    heights = [max(0, min(rows, (r + 1) * high) - r * high) for r in range(world_size)]
    widths = [max(0, min(x.shape[1], (r + 1) * wide) - r * wide) for r in range(world_size)]
    mine = widths[rank]
    send = torch.cat([block.flatten() for block in x.split(widths, dim=1)])
    received = x.new_empty(rows * mine)
    dist.all_to_all_single(received, send, [h * mine for h in heights], [len(x) * w for w in widths])
    return received.view(rows, mine)


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
        case(n, n, 2, "one column per rank, no bias", 20, bias=0.0),
        case(n, n, 2, "with a bias", 24),
        case(2 * n, 2 * n, 3, "two columns per rank", 22),
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
    **One** call that communicates; no rank needs all of X W.

    The function below has two mistakes, which do no harm on one rank.
    Hint: relu(a + b) is not relu(a) + relu(b). When may a rank apply it?
    Hint: The bias belongs in the sum once, and the function adds it on every rank.
    Hint: Apply both in the last line: `torch.relu(mine + bias)`.
    Afterwards: Only what is linear may come before the reduction, such as adding partial sums or multiplying them by a
    number. DTensor knows this, and reduces before a `relu`; with plain tensors you have to.
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
    many blocks of columns as the grid has columns: `x` and `w` are this rank's tiles. Return its tile of X W.

    The sum over k is taken in `panels` pieces of equal length, one after the other. Piece p of X is a strip of columns,
    and one rank of each `row` of the grid has this row's part of it; piece p of W is a strip of rows, and one rank of
    each `column` has its part. The tiles divide into pieces; `panel`, which is given, says which rank has a piece, and
    where in its tile. **Broadcast** the two pieces, multiply, add. Gather nothing: a rank has room for one piece of
    each.

    `row` and `column` are process groups. Their ranks are in the order of the grid.
    Hint: Your tile of the result needs the whole strip of X of your grid row, and the whole strip of W of your grid
    column, but only a piece at a time. Which rank has each piece?
    Hint: `owner, piece = panel(p, panels, row)`; `x.chunk(pieces of a tile, dim=1)[piece]` is the piece on its owner,
    and has the right shape on all others. Broadcast a `.clone()` of it.
    Hint: `dist.broadcast(left, group=row, group_src=owner)`, the same for W with `dim=0` and `column`, and then `y +=
    left @ right`.
    Afterwards: This is SUMMA (van de Geijn and Watts, 1997), with which ScaLAPACK multiplies matrices. On a grid of √N
    × √N ranks, each one receives less than 2/√N of a matrix. With both matrices cut in one dimension, a rank has to
    receive nearly all of one of them, however many ranks there are. DTensor on a 2 × 2 mesh gathers the strips instead.
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

    Count **numbers**, not bytes, and return the fewest that each rank has to send, over all choices of cuts:

    - a matrix cut into **columns** needs its input whole (an all-gather where it is not), and leaves columns;
    - one cut into **rows** takes its input whole or in columns, and leaves a sum: an all-reduce makes it whole.

    Collectives send as little as they can: (N − 1)/N · S for an all-gather of S numbers in all, twice that for an
    all-reduce. Communicate nothing.
    Hint: With a handful of layers you may try all choices: `itertools.product(('columns', 'rows'), repeat=layers)`.
    From layer to layer, only one thing matters.
    Hint: It is whether the last result is whole or in columns. Keep the least sum for each of the two.
    Hint: By columns: `min(whole, cut + gather(before))`. By rows: `min(whole, cut) + all_reduce(after)`. At the end,
    columns have to be gathered.
    Afterwards: Columns, then rows: with wide layers in between, Megatron's pairs are the best choice, one all-reduce
    for two matrices. Where a layer in the middle is narrow, another choice wins. Alpa (2022) searches among such
    choices for whole models, operation by operation.
    """
    share = (ranks - 1) / ranks * tokens
    whole, cut = 0.0, float("inf")  # the least so far, where the last result is whole, and where it is in columns
    for layer in range(len(widths) - 1):
        by_columns = min(whole, cut + share * widths[layer])
        by_rows = min(whole, cut) + 2 * share * widths[layer + 1]
        whole, cut = by_rows, by_columns
    return min(whole, cut + share * widths[-1])
