"""What each collective means, written once: `xs[r]` is rank r's value before, `out[r]` its value after.

A value is a number, anything else that adds (an `Origin` token), a numpy array, or a list of such values.
A chunk is `xs[r][i]`. `None` in the result means that this rank gets nothing, or nothing that it may rely on.
Nothing is modified, and no two ranks share an array or a list.

>>> all_reduce([[1, 2], [10, 20]])
[[11, 22], [11, 22]]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.floor.errors import LabError
from labkit.theory.values import Op, combine, copy, cut, join


def broadcast(xs: Sequence[Any], root: int = 0) -> list[Any]:
    """Give every rank a copy of the root's value.

    >>> broadcast([7, None, None], root=0)
    [7, 7, 7]
    """
    _check_root(root, len(xs))
    return [copy(xs[root]) for _ in xs]


def scatter(xs: Sequence[Any], root: int = 0) -> list[Any]:
    """Give rank r the root's chunk r; what the other ranks bring is not read.

    >>> scatter([None, ["a", "b"]], root=1)
    ['a', 'b']
    """
    _check_root(root, len(xs))
    _check_chunks([xs[root]], len(xs), ranks=[root])
    return [copy(chunk) for chunk in xs[root]]


def gather(xs: Sequence[Any], root: int = 0) -> list[Any]:
    """Give the root the list of all ranks' values in rank order, and the others None.

    >>> gather([5, 6, 7], root=1)
    [None, [5, 6, 7], None]
    """
    _check_root(root, len(xs))
    return [[copy(x) for x in xs] if r == root else None for r in range(len(xs))]


def all_gather(xs: Sequence[Any]) -> list[Any]:
    """Give every rank the list of all ranks' values in rank order.

    >>> all_gather([5, 6])
    [[5, 6], [5, 6]]
    """
    return [[copy(x) for x in xs] for _ in xs]


def reduce(xs: Sequence[Any], root: int = 0, op: Op = "SUM") -> list[Any]:
    """Give the root all values combined, and the others None, since off the root the result is undefined.

    >>> reduce([1, 2, 3, 4], root=0)
    [10, None, None, None]
    """
    _check_root(root, len(xs))
    return [combine(xs, op) if r == root else None for r in range(len(xs))]


def all_reduce(xs: Sequence[Any], op: Op = "SUM") -> list[Any]:
    """Give every rank all values combined.

    >>> all_reduce([[1, 5], [2, 4]], op="MAX")
    [[2, 5], [2, 5]]
    """
    return [combine(xs, op) for _ in xs]


def reduce_scatter(xs: Sequence[Any], op: Op = "SUM", splits: Sequence[int] | None = None) -> list[Any]:
    """Give rank r all ranks' chunks r, combined. Chunks may differ in length, the same way on every rank.

    With `splits`, how many elements each rank keeps, `xs[r]` is one flat buffer instead of a list of chunks.

    >>> reduce_scatter([[1, 2], [10, 20]])
    [11, 22]
    >>> reduce_scatter([[1, 2, 3], [10, 20, 30]], splits=[2, 1])
    [[11, 22], [33]]
    """
    n = len(xs)
    if splits is not None:
        xs = [cut(x, splits) for x in xs]
    _check_chunks(xs, n)
    return [combine([x[r] for x in xs], op) for r in range(n)]


def all_to_all(xs: Sequence[Any], splits: Sequence[Sequence[int]] | None = None) -> list[Any]:
    """Give rank r all ranks' chunks r, in rank order: the transpose of a matrix of chunks of any lengths.

    With `splits`, where rank r sends `splits[r][q]` elements to rank q, `xs[r]` and the results are flat.

    >>> all_to_all([["a0", "a1"], ["b0", "b1"]])
    [['a0', 'b0'], ['a1', 'b1']]
    >>> all_to_all([[1, 2, 3], [4]], splits=[[1, 2], [0, 1]])
    [[1], [2, 3, 4]]
    """
    n = len(xs)
    if splits is not None:
        if len(splits) != n:
            raise LabError(f"There are {n} ranks and {len(splits)} rows of splits. Give one row per rank.")
        xs = [cut(x, row) for x, row in zip(xs, splits, strict=True)]
    _check_chunks(xs, n)
    out = [[copy(x[r]) for x in xs] for r in range(n)]
    return out if splits is None else [join(chunks) for chunks in out]


def barrier(xs: Sequence[Any]) -> list[None]:
    """Give no rank a value: each only learns that all of them have come.

    >>> barrier([1, 2])
    [None, None]
    """
    return [None for _ in xs]


def send_recv(xs: Sequence[Any], src: int = 0, dst: int = 1) -> list[Any]:
    """Give `dst` the value of `src`: a send and its receive are one event on two ranks.

    >>> send_recv([7, 8, 9], src=2, dst=0)
    [9, None, None]
    """
    _check_root(src, len(xs))
    _check_root(dst, len(xs))
    if src == dst:
        raise LabError(f"Rank {src} sends to itself. Choose another dst.")
    return [copy(xs[src]) if r == dst else None for r in range(len(xs))]


def _check_root(root: int, n: int) -> None:
    if root not in range(n):
        raise LabError(f"There is no rank {root!r} among {n}. Choose one of 0 to {n - 1}.")


def _check_chunks(xs: Sequence[Any], n: int, ranks: Sequence[int] | None = None) -> None:
    for r, x in zip(ranks or range(n), xs, strict=True):
        if not hasattr(x, "__len__") or len(x) != n:
            brings = f"{len(x)} chunks" if hasattr(x, "__len__") else f"{x!r}"
            raise LabError(f"Rank {r} brings {brings}. Give it one chunk for each of the {n} ranks: split(x, {n}).")
