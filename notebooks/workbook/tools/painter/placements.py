"""How matrices lie on a mesh of ranks, how the product of two of them lies, and which collectives it takes.

A *layout* has one word for each dimension of the mesh: how a matrix is cut over it.

    "rows"      cut into blocks of rows                        torch: Shard(0)
    "columns"   cut into blocks of columns                     torch: Shard(1)
    "whole"     not cut: every rank along it holds the same    torch: Replicate()
    "partial"   every rank along it holds a part of the sum    torch: Partial()

Ranks fill a mesh row by row: on a mesh (2, 2), rank 1 is at (0, 1) and rank 2 at (1, 0). Where two dimensions cut the
same way, the first one cuts, and the second one cuts each block again. Blocks are those of `torch.chunk`: as long as
the quotient rounded up, so that the last ones may be shorter, or empty.

`multiplied` finds the collectives by a table for each mesh dimension. A test holds it to the definition of a product,
and to torch. Pure Python.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product as choices
from math import prod

from labkit.floor.errors import LabError

WHOLE, ROWS, COLUMNS, PARTIAL = "whole", "rows", "columns", "partial"
CUTS = (ROWS, COLUMNS, WHOLE)  # what a learner may choose
ALONG = {ROWS: 0, COLUMNS: 1}  # the dimension of the matrix that is cut
TORCH = {WHOLE: "Replicate()", ROWS: "Shard(0)", COLUMNS: "Shard(1)", PARTIAL: "Partial()"}
# What a rank can multiply without any communication, over one mesh dimension: X, W, and how the result lies then.
TABLE = (
    (WHOLE, WHOLE, WHOLE),  # all ranks compute the same
    (ROWS, WHOLE, ROWS),
    (WHOLE, COLUMNS, COLUMNS),
    (COLUMNS, ROWS, PARTIAL),  # both cut where they meet: each rank has some of the terms of every sum
)
ITEM = 4  # bytes of a float32

Layout = tuple[str, ...]
Mesh = tuple[int, ...]
Span = tuple[int, int]  # from, to (exclusive)


@dataclass(frozen=True)
class Move:
    """One step from a layout to another one along one mesh dimension.

    `op` is "all_reduce", "reduce_scatter", "all_gather", "all_to_all", or "" where a rank only drops what is not its
    own. `sent` are the bytes that each rank sends, with a collective that sends the least.
    """

    op: str
    dim: int
    before: Layout
    after: Layout
    sent: float


@dataclass(frozen=True)
class Product:
    """How the ranks multiply X, laid out as `x`, by W, laid out as `w`.

    `first` are the moves that either needs before: ("X", move). Then they lie as `x_used` and `w_used`, and the result
    as `y`. `possible` says whether no collective is needed for that.
    """

    x: Layout
    w: Layout
    first: tuple[tuple[str, Move], ...]
    x_used: Layout
    w_used: Layout
    y: Layout

    @property
    def collectives(self) -> tuple[tuple[str, Move], ...]:
        """The moves before the product that communicate."""
        return tuple((name, move) for name, move in self.first if move.op)

    @property
    def possible(self) -> bool:
        """Whether every rank can begin with what it holds, before any collective."""
        return not self.collectives


def coordinates(rank: int, mesh: Mesh) -> tuple[int, ...]:
    """Return where a rank is on the mesh.

    >>> [coordinates(r, (2, 2)) for r in range(4)]
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    """
    place = []
    for size in reversed(mesh):
        rank, at = divmod(rank, size)
        place.append(at)
    return tuple(reversed(place))


def tile(shape: Sequence[int], layout: Layout, mesh: Mesh, rank: int) -> tuple[Span, Span]:
    """Return the rows and the columns that a rank holds.

    >>> tile((8, 6), ("rows",), (4,), 1), tile((8, 6), ("rows", "columns"), (2, 2), 1)
    (((2, 4), (0, 6)), ((0, 4), (3, 6)))
    """
    spans = [(0, size) for size in shape]
    for size, cut, at in zip(mesh, layout, coordinates(rank, mesh), strict=True):
        if cut in ALONG:
            start, end = spans[ALONG[cut]]
            step = -(-(end - start) // size)
            spans[ALONG[cut]] = (min(end, start + at * step), min(end, start + (at + 1) * step))
    rows, columns = spans
    return rows, columns


def held(shape: Sequence[int], layout: Layout, mesh: Mesh) -> dict[tuple[Span, Span], list[list[int]]]:
    """Return the tiles of a matrix, each with the ranks that hold it: one alone, or those whose parts add up to it.

    >>> held((4, 4), ("rows", "whole"), (2, 2))
    {((0, 2), (0, 4)): [[0], [1]], ((2, 4), (0, 4)): [[2], [3]]}
    >>> held((4, 4), ("rows", "partial"), (2, 2))
    {((0, 2), (0, 4)): [[0, 1]], ((2, 4), (0, 4)): [[2, 3]]}

    Empty tiles are left out.
    """
    teams: dict[tuple[Span, Span], dict[Layout, list[int]]] = {}
    for rank in range(prod(mesh)):
        (a, b), (c, d) = where = tile(shape, layout, mesh, rank)
        if a < b and c < d:
            place = zip(layout, coordinates(rank, mesh), strict=True)
            team = tuple("" if cut == PARTIAL else str(at) for cut, at in place)
            teams.setdefault(where, {}).setdefault(team, []).append(rank)
    return {where: list(found.values()) for where, found in teams.items()}


def numbers(shape: Sequence[int], layout: Layout, mesh: Mesh) -> int:
    """Return how many numbers rank 0 holds, which holds the most."""
    return prod(b - a for a, b in tile(shape, layout, mesh, 0))


def moves(source: Layout, target: Layout, shape: Sequence[int], mesh: Mesh) -> list[Move]:
    """Find the moves from one layout to another with the fewest collectives, and of these the ones that send the least.

    >>> [move.op for move in moves(("partial",), ("rows",), (4, 4), (4,))]
    ['reduce_scatter']
    >>> [move.op for move in moves(("whole",), ("rows",), (4, 4), (4,))]
    ['']
    """
    queue: list[tuple[int, float, int, int, Layout, list[Move]]] = [(0, 0.0, 0, 0, source, [])]
    done: set[Layout] = set()
    pushed = 0
    while queue:
        calls, sent, cuts, _, layout, way = heapq.heappop(queue)
        if layout == target:
            return way
        if layout in done:
            continue
        done.add(layout)
        for move in _steps(layout, shape, mesh):
            pushed += 1
            new = (calls + bool(move.op), sent + move.sent, cuts + (not move.op), pushed, move.after, [*way, move])
            heapq.heappush(queue, new)
    raise LabError(f"There is no way from {', '.join(source)} to {', '.join(target)}. Only sums can be partial.")


def _steps(layout: Layout, shape: Sequence[int], mesh: Mesh) -> list[Move]:
    """Return every move from a layout. A mesh dimension can change a cut only if no later one cuts its blocks again."""
    size, found = numbers(shape, layout, mesh) * ITEM, []
    for dim, (n, now) in enumerate(zip(mesh, layout, strict=True)):
        later = layout[dim + 1 :]
        if now in later and now in ALONG:
            continue
        for new in CUTS:
            if new == now or (new in ALONG and new in later):
                continue
            op, sent = {
                (False, False): ("all_gather", (n - 1) * size),
                (False, True): ("all_to_all", (n - 1) / n * size),
                (True, False): ("all_reduce", 2 * (n - 1) / n * size),
                (True, True): ("reduce_scatter", (n - 1) / n * size),
            }[now == PARTIAL, new in ALONG]
            if now == WHOLE:
                op, sent = "", 0.0
            found.append(Move(op, dim, layout, (*layout[:dim], new, *later), sent))
    return found


def terms(x: Layout, w: Layout, shape: tuple[int, int, int], mesh: Mesh) -> int:
    """Count the terms X[i, k] W[k, j], of m · k · n, for which some rank holds both factors.

    >>> terms(("rows",), ("columns",), (4, 4, 4), (4,)), terms(("columns",), ("rows",), (4, 4, 4), (4,))
    (16, 64)
    """
    # Blocks of one cut are equal or apart, and so are these boxes: each counts once.
    return sum(prod(b - a for a, b in box) for box in set(boxes(x, w, shape, mesh)))


def boxes(x: Layout, w: Layout, shape: tuple[int, int, int], mesh: Mesh) -> list[tuple[Span, Span, Span]]:
    """Return for each rank of which i, k and j it holds both X[i, k] and W[k, j]."""
    m, k, n = shape
    found = []
    for rank in range(prod(mesh)):
        rows, mine = tile((m, k), x, mesh, rank)
        its, columns = tile((k, n), w, mesh, rank)
        start = max(mine[0], its[0])
        found.append((rows, (start, max(start, min(mine[1], its[1]))), columns))
    return found


def multiplied(x: Layout, w: Layout, shape: tuple[int, int, int], mesh: Mesh) -> Product:
    """Find the product of X and W with the fewest collectives before it, and of these the one that sends the least.

    What turns a partial sum into parts of the result (reduce-scatters) is sent, too: a way that leaves the adding up
    to others is not cheaper.

    >>> multiplied(("columns",), ("rows",), (4, 4, 4), (4,)).y
    ('partial',)
    >>> [(name, move.op) for name, move in multiplied(("rows",), ("rows",), (4, 4, 4), (4,)).first]
    [('W', 'all_gather')]
    """
    m, k, n = shape
    best: tuple[tuple[float, ...], Product] | None = None
    for ways in choices(TABLE, repeat=len(mesh)):
        x_used, w_used, y = zip(*ways, strict=True)
        first = [("X", move) for move in moves(x, x_used, (m, k), mesh)]
        first += [("W", move) for move in moves(w, w_used, (k, n), mesh)]
        sent = sum(move.sent for _, move in first)
        calls = sum(bool(move.op) for _, move in first)
        end = sum(move.sent for move in finished(y, shape, mesh))
        cost = (calls, sent + end if calls else 0.0, len(first), y.count(PARTIAL))
        if best is None or cost < best[0]:
            best = cost, Product(x, w, tuple(first), x_used, w_used, y)
    assert best is not None, "a mesh has a dimension"
    return best[1]


def finished(y: Layout, shape: tuple[int, int, int], mesh: Mesh) -> list[Move]:
    """Find the moves that leave no partial sum and send the least: a reduce-scatter for each dimension that has one."""
    m, _, n = shape
    if PARTIAL not in y:
        return []
    options = [
        moves(y, tuple(target), (m, n), mesh)
        for target in choices(*[(ROWS, COLUMNS) if cut == PARTIAL else (cut,) for cut in y])
    ]
    return min(options, key=lambda way: (sum(move.sent for move in way), len(way)))


def work(product: Product, shape: tuple[int, int, int], mesh: Mesh) -> float:
    """Return each rank's part of the product's multiplications, where 1 is an equal share.

    >>> work(multiplied(("whole",), ("whole",), (4, 4, 4), (4,)), (4, 4, 4), (4,))
    4.0
    """
    m, k, n = shape
    own = numbers((m, k), product.x_used, mesh) * numbers((k, n), product.w_used, mesh)
    depth = numbers((k, 1), tuple(cut if cut == ROWS else WHOLE for cut in product.w_used), mesh)
    return own / depth * prod(mesh) / (m * k * n) if depth else 0.0


def placements(layout: Layout) -> str:
    """Write a layout as torch does.

    >>> placements(("rows", "whole"))
    '[Shard(0), Replicate()]'
    """
    return f"[{', '.join(TORCH[cut] for cut in layout)}]"


def layout(said: str | Sequence[str], mesh: Mesh, name: str = "X") -> Layout:
    """Return the layout that was asked for: one word for each dimension of the mesh, or one for all of them.

    Raises `LabError` for anything else.

    >>> layout("rows", (4,)), layout(["rows", "whole"], (2, 2))
    (('rows',), ('rows', 'whole'))
    """
    words = (said,) * len(mesh) if isinstance(said, str) else tuple(said) if isinstance(said, (tuple, list)) else ()
    if len(words) != len(mesh) or any(word not in CUTS for word in words):
        wanted = "rows" if len(mesh) == 1 else tuple([ROWS, WHOLE, COLUMNS][i % 3] for i in range(len(mesh)))
        raise LabError(
            f"{name.lower()}={said!r} is not a layout on a mesh of {' × '.join(map(str, mesh))} ranks. Give "
            f'"rows", "columns" or "whole" for each of its dimensions: {name.lower()}={wanted!r}.'
        )
    return words
