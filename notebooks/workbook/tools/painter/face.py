"""The shard painter: lay two matrices out over a mesh of ranks, see their product, and run it on the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import prod
from typing import TYPE_CHECKING, Any

from labkit.floor.errors import LabError
from labkit.show.controls import Control, Controls, pictures
from workbook.tools.painter import placements
from workbook.tools.painter.placements import CUTS, Mesh
from workbook.tools.painter.show import Painting, Run

if TYPE_CHECKING:
    from labkit.lab import Lab

MOST = 8  # ranks that have colours of their own


class Painter(Controls):
    """Choose how X and W are cut over a mesh of ranks: the picture says what X @ W takes and how the result lies.

    >>> painter = Painter(4, x="columns", w="rows")
    >>> painter.painting.product.y
    ('partial',)
    >>> painter.go(w="columns")  # as a click does; on a mesh (2, 2): go(x=("rows", "whole"))

    `painter.run(lab)` multiplies on the ranks, with torch's DTensor, and draws their real tiles.

    Args:
        mesh: the number of ranks, or a shape such as (2, 2).
        x, w: how they are cut to begin with: "rows", "columns" or "whole" (not cut), one for each mesh dimension.
        shape: (m, k, n): X is m × k, W is k × n, in float32. By default as many as the mesh divides.

    The picture is computed from `workbook.tools.painter.placements`, without any rank. Raises `LabError` for a mesh or
    a layout that does not exist.
    """

    def __init__(
        self,
        mesh: int | Sequence[int] = 4,
        x: str | Sequence[str] = "rows",
        w: str | Sequence[str] = "whole",
        shape: Sequence[int] | None = None,
    ) -> None:
        self.mesh = _mesh(mesh)
        self.shape = _shape(shape, prod(self.mesh))
        dims = range(len(self.mesh))
        self._names = {name: [f"{name}{dim}" if len(dims) > 1 else name for dim in dims] for name in ("x", "w")}
        controls: list[Control] = []
        start: dict[str, str] = {}
        for matrix, said in (("x", x), ("w", w)):
            cuts = placements.layout(said, self.mesh, matrix.upper())
            for dim, (name, cut) in enumerate(zip(self._names[matrix], cuts, strict=True)):
                start[name] = cut
                label = f"{matrix.upper()} over dimension {dim}" if len(dims) > 1 else matrix.upper()
                controls.append(Control(name, label, CUTS, CUTS, "buttons"))
        super().__init__("grid", controls, start, kernel=True)
        self.heard({})

    @property
    def painting(self) -> Painting:
        """The product that is painted now: `painting.product`, `painting.whole`."""
        return self._paint(**self.values)

    def go(self, **values: Any) -> None:
        """Cut otherwise: `painter.go(x="rows")`, on a mesh with two dimensions `painter.go(x=("rows", "whole"))`."""
        chosen: dict[str, Any] = {}
        for name, value in values.items():
            if name in self._names:
                cuts = placements.layout(value, self.mesh, name.upper())
                chosen.update(zip(self._names[name], cuts, strict=True))
            else:
                chosen[name] = value
        self.move(**chosen)

    @property
    def code(self) -> str:
        """The cell that `run` sends: the painted product with torch's DTensor."""
        product, (m, k, n) = self.painting.product, self.shape
        size = f"({', '.join(map(str, self.mesh))}{',' * (len(self.mesh) == 1)})"
        lines = [
            "from torch.distributed.device_mesh import init_device_mesh",
            "from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor",
            "from torch.distributed.tensor.debug import CommDebugMode",
            "",
            f"painted = init_device_mesh(device.type, {size})",
            f"X = torch.arange({m * k}.0, device=device).view({m}, {k}) % 3 + 1",
            f"W = torch.arange({k * n}.0, device=device).view({k}, {n}) % 4 + 1",
            f"X = distribute_tensor(X, painted, {placements.placements(product.x)})",
            f"W = distribute_tensor(W, painted, {placements.placements(product.w)})",
            "with CommDebugMode() as counted:",
        ]
        moved = {"X": "X", "W": "W"}
        for name, move in product.first:
            lines.append(f"    {name}_ = {moved[name]}.redistribute(placements={placements.placements(move.after)})")
            moved[name] = f"{name}_"
        return "\n".join([*lines, f"    Y = {moved['X']} @ {moved['W']}"])

    def run(self, lab: Lab) -> Run:
        """Multiply on the ranks as it is painted, and draw what each of them really holds afterwards.

        The ranks then have `X`, `W` and `Y` as DTensors; `painter.code` is the cell that made them. Raises `LabError`
        where the lab and the mesh have different numbers of ranks, and `CellError` as a `%%px` cell does.
        """
        if lab.n != prod(self.mesh):
            raise LabError(
                f"The mesh has {prod(self.mesh)} ranks, and this lab has {lab.n}. Run Painter({lab.n}) instead, "
                f"or start a lab with {prod(self.mesh)} ranks: start({prod(self.mesh)})."
            )
        planned = self.painting
        lab.run(self.code)
        lab.run(_READ)
        return Run(planned, lab.pull("_painted"))

    def _paint(self, **cuts: str) -> Painting:
        x, w = (tuple(cuts[name] for name in self._names[matrix]) for matrix in ("x", "w"))
        return Painting(x, w, self.shape, self.mesh)

    def heard(self, said: dict[str, Any]) -> None:
        """Paint what the buttons say now."""
        self.replied = self.painting._repr_html_()

    @property
    def _words(self) -> str:
        return ", ".join(f"{self._controls[name].label}: {cut}" for name, cut in self.values.items())

    def __repr__(self) -> str:
        return f"{self._words}\n{self.painting!r}"

    def _repr_html_(self) -> str:
        return f"<div>{escape(self._words)}</div><div>{self.replied}</div>"

    @property
    def meta(self) -> dict[str, Any]:
        """What a page without a kernel makes this view from: its arguments."""
        own = {name: [self.values[one] for one in names] for name, names in self._names.items()}
        return {"kind": "painter", "mesh": [*self.mesh], **own, "shape": [*self.shape]}

    @property
    def every(self) -> dict[str, Any]:
        """The data of the view with the picture of each choice, for a page without a kernel."""
        drawn = pictures([*self._controls.values()], lambda **cuts: self._paint(**cuts)._repr_html_())
        return {**self.data, "kernel": False, **drawn}


def page(meta: dict[str, Any]) -> dict[str, Any]:
    """Return what a page without a kernel shows of an output with this metadata: every painting of the mesh."""
    return {"kind": "grid", "data": Painter(**{name: value for name, value in meta.items() if name != "kind"}).every}


_READ = """
def _read():
    def part(t):
        at = [Replicate() if p.is_partial() else p for p in t.placements]
        places = torch.arange(t.numel(), device=device).view(t.shape)
        return [t.to_local().tolist(), distribute_tensor(places, painted, at).to_local().tolist()]

    def counts(mode):
        return {str(op).rpartition(".")[2]: k for op, k in mode.get_comm_counts().items() if k}

    with CommDebugMode() as alone:
        own = X @ W
    said = {"y": str(list(Y.placements)), "torch_y": str(list(own.placements))}
    return {**said, "X": part(X), "W": part(W), "Y": part(Y), "counted": counts(counted), "torch": counts(alone)}


_painted = _read()
"""


def _mesh(mesh: Any) -> Mesh:
    sizes = (mesh,) if isinstance(mesh, int) else tuple(mesh) if isinstance(mesh, (tuple, list)) else ()
    good = all(isinstance(size, int) and not isinstance(size, bool) and size > 1 for size in sizes)
    if not good or not 1 <= len(sizes) <= 2 or prod(sizes) > MOST:
        raise LabError(f"mesh={mesh!r} is not a mesh to paint. Give from 2 to {MOST} ranks, or a grid of them: (2, 2).")
    return sizes


def _shape(shape: Any, n: int) -> tuple[int, int, int]:
    if shape is None:
        side = n if n >= 4 else 2 * n
        return side, side, side
    sizes = tuple(shape) if isinstance(shape, (tuple, list)) else ()
    if len(sizes) != 3 or not all(isinstance(size, int) and 0 < size <= 64 for size in sizes):
        raise LabError(f"shape={shape!r} is not a shape to paint. Give (m, k, n) up to 64 each, as shape=(4, 8, 4).")
    return sizes
