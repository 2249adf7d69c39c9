"""Exercises of lesson 12b: a vocabulary in parts with its gradients, and a matrix that is cut anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, Least, exercise
from labkit.grading.promises import Calls, Once

if TYPE_CHECKING:
    from labkit.rank.cell_names import comms, dist, rank, torch, world_size

    class AddUp(torch.autograd.Function):  # Megatron's g: the sum forward, the gradient as it is backward
        @staticmethod
        def forward(ctx, x):
            return comms.all_reduce(x)

        @staticmethod
        def backward(ctx, gradient):
            return gradient


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
        case(2, 1, [2 * n - 2] * 3 + [1, 1], "ids that come again", 3),
        case(3, 2, rng.integers(0, 3 * n, (2, 3)), "two rows of text", 4),
        case(1, 2, list(range(n)), "one row a rank", 5),
        case(3, 1, [3 * n - 1], "an id of the last rank alone", 6),
    ]


@exercise(
    "Look up in a table that is cut, and train it",
    lambda xs: [np.concatenate([part for part, _ in xs])[ids] for _, ids in xs],
    minutes=8,
    difficulty=2,
    inputs=_tables,
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
    `ids` are the numbers of rows in the **whole** table, in any shape, and the same on all ranks. Return `table[ids]`
    on every rank. `AddUp`, which is given, adds up over the ranks; **one** call communicates.

    Megatron does it without indexing by a mask: it looks up row 0 for an id that is not here, and makes zeros of what
    it found. Every rank then calls `backward()` on the same **one** loss and wants the gradient of its own part: an id
    whose row is on another rank must leave no gradient here.
    Hint: Subtract the number of the first row that is here. Which of the results are rows of `part`?
    Hint: `here = (place >= 0) & (place < len(part))`, and `torch.where(here, place, 0)` is a row that exists.
    Hint: Multiply what you found by `here.unsqueeze(-1)`: that makes zeros of numbers **and** of their gradients.
    Afterwards: The backward pass communicates nothing. All ranks have the same ids and the same gradient of the rows,
    and each one adds up what belongs to its own part: this is why the table's gradient needs no all-reduce.
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
        case(2, 2 * n, 2, "two words a rank"),
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
    _head,
    minutes=20,
    difficulty=3,
    inputs=_heads,
    tolerance=1e-5,
    forbids=("all_gather", "gather", "reduce_scatter", "all_to_all"),
    promises=(Calls(3),),
    counts_memory=False,
    setup=lambda x, part, target, words: (x.requires_grad_(), part.requires_grad_(), target, words),
    collect=graded,
)
def vocab_head(x, part, target, words):
    """Return the mean loss of all tokens, on every rank.

    `x`, the same on all ranks, has one row a token. `part` has this rank's rows of the output layer's weights, one for
    each word, as many on each rank, in the order of the ranks. From word number `words` on, the rows are padding: no
    word, whatever they hold. `target`, the same on all ranks, has each token's word. Return the mean loss of all
    tokens, on every rank.

    Every rank calls `backward()` on this **one** loss. It wants the **whole** gradient of `x`, as one process would
    have it, and the gradient of its own `part`. Write both passes: two all-reduces forward (lesson 08), one backward;
    gather nothing. `ctx.save_for_backward` and `ctx.saved_tensors` carry tensors from one to the other.

    In the picture, `x`, the part and the targets on the left; on the right the loss and both gradients.
    Hint: Forward is `split_loss` of lesson 08, once the columns that are no words have the logit `-torch.inf`. They
    begin at column `words - first` of this rank, or at 0 where that is negative.
    Hint: Backward: the gradient of a token's logits is its shares, minus 1 for the target, divided by the number of
    tokens. All of it is here already.
    Hint: Each rank's `d_logits @ part` is the gradient through **its** words. The gradient of `x` is the sum of them
    over the ranks; the gradient of `part` needs nobody else.
    Afterwards: Three numbers a token travel forward, and one row of the gradient of `x` a token backward. No rank has
    seen the logits of the others. The all-reduce of `d_x` is Megatron's f: every layer that is cut by columns ends its
    backward pass with it.
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
        case(n, n, "one row a rank", 8),
        case(2 * n, 3 * n, f"{2 * n} × {3 * n}", 9),
        case(2 * n - 1, n, "rows that do not divide", 10, "float64"),
        case(n, n + 1, "columns that do not divide", 11),
        case(n + 1, 2 * n + 1, "neither divides", 12),
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
    Hint: Rank r wants from you the columns of its block, for all of your rows. Who sends you what, then? Begin with two
    lists: how many rows and how many columns the block of each rank has.
    Hint: With `high = -(-rows // world_size)`, rank r has `max(0, min(rows, (r + 1) * high) - r * high)` rows; columns
    in the same way.
    Hint: `x.split(widths, dim=1)` are the blocks for rank 0, 1, …; each one flattened, one after the other, is what you
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
