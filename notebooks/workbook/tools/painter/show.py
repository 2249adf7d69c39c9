"""What the shard painter shows: a product painted over a mesh, and what the ranks did with it. No torch, no cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from labkit.floor.words import count, listed, nbytes, ranks
from labkit.show.picture import Picture
from workbook.tools.painter import placements, plot
from workbook.tools.painter.placements import ALONG, PARTIAL, WHOLE, Layout, Mesh, Move

OPS = {"all_gather_into_tensor": "all-gather", "reduce_scatter_tensor": "reduce-scatter", "all_reduce": "all-reduce"}
OPS |= {"shard_dim_alltoall": "all-to-all", "all_to_all_single": "all-to-all"}


class Painting(Picture):
    """X @ W, laid out over a mesh: possible at once, or what has to travel first, and how the result lies.

    `product` is the `workbook.tools.painter.placements.Product`, `whole` and `cut` are the moves that make its result
    whole, or leave no partial sum; `shape` is (m, k, n).
    """

    def __init__(self, x: Layout, w: Layout, shape: tuple[int, int, int], mesh: Mesh) -> None:
        self.shape, self.mesh = shape, mesh
        self.product = placements.multiplied(x, w, shape, mesh)
        m, _, n = shape
        self.whole = placements.moves(self.product.y, (WHOLE,) * len(mesh), (m, n), mesh)
        self.cut = placements.finished(self.product.y, shape, mesh)

    @property
    def notes(self) -> list[str]:
        """Sentences on the product, the result first."""
        product = self.product
        if product.possible:
            notes = ["Every rank can begin with what it holds: no communication."]
        else:
            notes = [f"First: {_told(product.collectives, self.mesh)}.", self._lacking]
        notes.append(f"Y is then {self._lies}.")
        if self.whole:
            notes.append(f"To become whole, Y needs {_told([('', move) for move in self.whole], self.mesh)}.")
        else:
            notes.append("Y is whole already.")
        if self.cut:
            target = _of(self.cut[-1].after, self.mesh)
            notes.append(f"To be cut into {target}, it needs {_told([('', move) for move in self.cut], self.mesh)}.")
        return [*notes, self._work]

    @property
    def _lacking(self) -> str:
        """The reason why what the ranks hold is not enough."""
        product, every = self.product, prod(self.shape)
        some = placements.terms(product.x, product.w, self.shape, self.mesh)
        if some == every:
            return "Without that, some ranks would have nothing to do: they hold no two factors of the same term."
        return f"Without that, the ranks hold both factors of only {some} of the {every} terms."

    @property
    def _lies(self) -> str:
        y, mesh = self.product.y, self.mesh
        if PARTIAL not in y:
            return "whole on every rank" if set(y) == {WHOLE} else f"cut into {_of(y, mesh)}"
        partial = [str(d) for d, p in enumerate(y) if p == PARTIAL]
        over = f" over dimension{'s' * (len(partial) > 1)} {listed(partial)}" if len(mesh) > 1 else ""
        rest = [f"cut into {p} over dimension {d}" for d, p in enumerate(y) if p in ALONG]
        return ", and ".join([*rest, f"a partial sum{over}, still to be added up"])

    @property
    def _work(self) -> str:
        share = placements.work(self.product, self.shape, self.mesh)
        m, k, n = self.shape
        x, w = (
            placements.numbers(s, own, self.mesh) for s, own in (((m, k), self.product.x), ((k, n), self.product.w))
        )
        holds = f"Each rank holds {x} of X's {m * k} numbers and {w} of W's {k * n}"
        does = "an equal share of the work" if share <= 1 else f"{share:.3g} times an equal share of the work"
        return f"{holds}, and does {does}."

    @cached_property
    def matrices(self) -> list[plot.Matrix]:
        """X, W and Y as they are painted."""
        m, k, n = self.shape
        p, found = self.product, []
        for name, shape, layout in (("X", (m, k), p.x), ("W", (k, n), p.w), ("Y", (m, n), p.y)):
            words = f"{shape[0]} × {shape[1]}: {', '.join(layout).replace(PARTIAL, 'partial sum')}"
            found.append(plot.Matrix(name, shape, words, placements.held(shape, layout, self.mesh)))
        return found

    def _drawn(self) -> Any:
        x, w, y = self.matrices
        return plot.draw(self.mesh, x, w, y, self.notes)

    def __repr__(self) -> str:
        said = [f"{m.name} ({m.words}): {_who(m)}" for m in self.matrices]
        return "\n".join([f"X @ W on {' × '.join(map(str, self.mesh))} ranks", *said, *self.notes])

    @property
    def alt(self) -> str:
        """The picture in words."""
        said = [f"{m.name} ({m.words}): {_who(m)}." for m in self.matrices]
        return " ".join(["Two matrices and their product, painted in the ranks' colours.", *said, *self.notes])


class Run(Picture):
    """What the ranks did with a painted product: their real tiles, and the collectives that torch counted.

    `results[r]` is what rank r found: "X", "W" and "Y" are pairs of its numbers and their places, `y` how torch says
    that the result lies, `counted` the collectives up to the product, `torch` what `X @ W` took when torch chose.
    """

    def __init__(self, planned: Painting, results: Sequence[Mapping[str, Any]]) -> None:
        self.planned, self.results = planned, results

    @property
    def y(self) -> str:
        """The result's placements, as torch writes them."""
        return str(self.results[0]["y"])

    @property
    def counted(self) -> dict[str, int]:
        """The collectives that CommDebugMode counted, the planned moves and the product together."""
        return dict(self.results[0]["counted"])

    @property
    def torch(self) -> dict[str, int]:
        """The collectives that torch made when it was given X and W as they were painted."""
        return dict(self.results[0]["torch"])

    @property
    def notes(self) -> list[str]:
        """Sentences on what the ranks did."""
        product = self.planned.product
        notes = [f"Y has the placements {self.y}; counted: {_counts(self.counted)}."]
        if not product.possible:
            own = f"{self.results[0]['torch_y']}; counted: {_counts(self.torch)}"
            notes.append(f"That was the painted way. Left to itself, torch's X @ W gives {own}.")
        return notes

    def _drawn(self) -> Any:
        parts = [
            [
                plot.Part(m.shape, np.asarray(mine[m.name][0]), np.asarray(mine[m.name][1]))
                for m in self.planned.matrices
            ]
            for mine in self.results
        ]
        return plot.draw_parts(["What each rank holds: X @ W = Y", *self.notes], parts)

    def __repr__(self) -> str:
        lines = list(self.notes)
        for r, mine in enumerate(self.results):
            held = {name: np.asarray(mine[name][0]).tolist() for name in ("X", "W", "Y")}
            lines.append(f"rank {r} │ " + "  ".join(f"{name} {_numbers(value)}" for name, value in held.items()))
        return "\n".join(lines)

    @property
    def alt(self) -> str:
        """The picture in words."""
        return f"The numbers that each rank holds of X, W and Y, at their places. {self!r}"


def _of(layout: Layout, mesh: Mesh) -> str:
    """Describe how a matrix is cut."""
    if len(mesh) == 1:
        return layout[0]
    return listed([f"{cut} over dimension {dim}" for dim, cut in enumerate(layout) if cut in ALONG])


def _told(steps: Sequence[tuple[str, Move]], mesh: Mesh) -> str:
    """List collectives with their bytes: "an all-gather of W (48 B from each rank)"."""
    said = []
    for name, move in steps:
        of = f" of {name}" * bool(name)
        over = f" over dimension {move.dim}" if len(mesh) > 1 else ""
        a = "an" if move.op[0] == "a" else "a"
        said.append(f"{a} {move.op.replace('_', '-')}{of}{over} ({nbytes(move.sent)} from each rank)")
    return ", then ".join(said)


def _who(matrix: plot.Matrix) -> str:
    """Describe which ranks hold what of a matrix."""

    def place(rows: tuple[int, int], columns: tuple[int, int]) -> str:
        sides = [("row", rows, matrix.shape[0]), ("column", columns, matrix.shape[1])]
        cut = [
            f"{side} {a}" if b - a == 1 else f"{side}s {a}–{b - 1}" for side, (a, b), whole in sides if b - a < whole
        ]
        return listed(cut) or "all of it"

    said = []
    for where, teams in matrix.tiles.items():
        if any(len(team) > 1 for team in teams):
            each = " and ".join(f"the sum over {ranks(team)}" for team in teams)
            said.append(f"{place(*where)} is {each}")
        else:
            who = [rank for team in teams for rank in team]
            said.append(f"{ranks(who)} {place(*where)}{', the same' * (len(who) > 1)}")
    return "; ".join(said)


def _counts(counts: Mapping[str, int]) -> str:
    return listed([count(k, OPS.get(op, op)) for op, k in counts.items()]) or "no collective"


def _numbers(value: Any) -> str:
    """Write rows of numbers in brackets, whole ones without a point."""
    if isinstance(value, list):
        return f"[{', '.join(map(_numbers, value))}]"
    return f"{value:.4g}"
