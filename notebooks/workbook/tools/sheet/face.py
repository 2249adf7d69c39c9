"""`lab.sheet`: run every primitive in its shortest form on the ranks and lay all of them out on two pages."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from labkit.floor.errors import LabError
from labkit.plot import svg
from labkit.plot.flow import Drawing
from labkit.plot.tiles import Tile
from labkit.show import markdown
from labkit.theory.primitives import MEANINGS
from workbook.tools import saving
from workbook.tools.sheet import plot
from workbook.tools.sheet.cheats import CHEATS, Cheat

BACKENDS = {"gloo": "Gloo", "nccl": "NCCL"}
MOST = 4  # ranks whose pictures fit two pages
NAMES = ("x", "y", "left", "right", "ops", "work")  # that the entries' codes use
KEEP = f"""
_kept = {{name: globals()[name] for name in {NAMES} if name in globals()}}
right, left = (rank + 1) % world_size, (rank - 1) % world_size
"""
GIVE_BACK = f"""
for name in {NAMES}:
    globals().pop(name, None)
globals().update(_kept)
del _kept, name
"""
NAME = "Collectives: the cheat sheet"
SCALE = 0.78  # of the pictures: their letters of 9 pt are 7 pt then, and four tiles beside four fit a column
# Two pages of A4 or of Letter, whichever the printer has: no card is torn in two.
STYLE = """
.labkit-sheet { columns: 2; column-gap: 4mm; max-width: 190mm;
  font: 8pt/1.3 'DejaVu Sans', Verdana, Arial, sans-serif; }
.labkit-sheet h1 { font-size: 13pt; margin: 0 0 1mm; }
.labkit-sheet h1, .labkit-sheet .about { column-span: all; }
.labkit-sheet .about { margin: 0 0 2mm; }
.labkit-sheet .card { break-inside: avoid; border: 0.6pt solid #8a8a84; border-radius: 4px; padding: 1.2mm 1.5mm;
  margin: 0 0 2mm; }
.labkit-sheet .name { font-size: 10pt; font-weight: 700; }
.labkit-sheet pre, .labkit-sheet code { font: 7.5pt/1.25 'DejaVu Sans Mono', Menlo, monospace; background: none;
  padding: 0; margin: 0; color: inherit; white-space: pre-wrap; }
.labkit-sheet pre { margin: 0.6mm 0; }
.labkit-sheet .body { display: flex; flex-wrap: wrap; gap: 1mm 3mm; align-items: center; margin: 0.6mm 0; }
.labkit-sheet .costs { flex: 1; min-width: 32mm; }
.labkit-sheet p { display: inline; margin: 0; }
.labkit-sheet .mistake { margin-top: 0.6mm; }
.labkit-sheet .mistake::before { content: '✗ '; font-weight: 700; }
"""
PRINT = """
@page { size: auto; margin: 9mm; }
html { color-scheme: light dark; }
body { margin: 0 auto; max-width: 190mm; }
@media print { html, .labkit-picture { color-scheme: light; } body { max-width: none; }
  .labkit-sheet { max-width: none; } }
"""


class CheatSheet:
    """The sheet as it came from the ranks: `lab.sheet()` shows it, and its `save` writes it as a page to print."""

    def __init__(self, entries: Sequence[tuple[Cheat, Drawing, str]], n: int, backend: str) -> None:
        self.entries = list(entries)
        self.n, self.backend = n, backend

    def __repr__(self) -> str:
        lines = [self._about]
        for cheat, _, _ in self.entries:
            lines += [f"{cheat.name}: {cheat.does}", f"  {cheat.costs}", f"  ✗ {cheat.mistake}".replace("**", "")]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        cards = "".join(map(_card, *zip(*self.entries, strict=True)))
        head = f"<h1>{NAME}</h1><div class='about'>{escape(self._about)}</div>"
        return f"<style>{STYLE}</style><div class='labkit-sheet'>{head}{cards}</div>"

    def save(self, file: str = "cheat-sheet.html", overwrite: bool = False) -> Path:
        """Write the sheet as a page that a browser prints on two sheets of A4 or Letter; its path.

        Raises `LabError` where there is a file of this name that labkit has not written, unless `overwrite`.
        """
        html = self._repr_html_()
        return saving.save_page(file, NAME, PRINT, html, "lab.sheet().save", "cheat-sheet.html", overwrite)

    @property
    def _about(self) -> str:
        return (
            f"Pictures from a run on {self.n} ranks with {BACKENDS[self.backend]}: colours say which rank a number "
            "came from. S is the bytes of one rank's input (of a scatter: the root's), N the number of ranks. Bytes "
            "and steps are those of the algorithm in brackets; a library may use a different one."
        )


def _card(cheat: Cheat, drawing: Drawing, alt: str) -> str:
    image = svg.svg(plot.draw(drawing), SCALE)
    also = f"<div class='also'>{markdown.html(cheat.also)}</div>" if cheat.also else ""
    return (
        f"<div class='card'><div><span class='name'>{escape(cheat.name)}</span> {markdown.html(cheat.does)}</div>"
        f"<pre>{escape(cheat.code)}</pre>"
        f"<div class='body'>{svg.img(image, alt)}<div class='costs'>{escape(cheat.costs)}</div></div>"
        f"{also}<div class='mistake'>{markdown.html(cheat.mistake)}</div></div>"
    )


def sheet(lab: Any) -> CheatSheet:
    """Run every primitive in its shortest form, and lay all of them out on two pages: picture, bytes, one mistake.

    >>> lab.sheet().save("cheat-sheet.html")    # open it in a browser and print it

    For two to four ranks. Your variables on the ranks stay as they are.
    """
    engines = lab._console.engines
    if not 2 <= lab.n <= MOST:
        raise LabError(f"The sheet is drawn for 2 to {MOST} ranks, and this lab has {lab.n}. Run lab = start({MOST}).")
    ran = engines.cells.copy()
    try:
        lab.run(KEEP)
        try:
            drawn = [_drawn(lab, cheat) for cheat in CHEATS]
        finally:
            lab.run(GIVE_BACK)
    finally:
        engines.cells = ran  # the sheet's calls are not cells of the learner's
    return CheatSheet(drawn, lab.n, lab.backend)


def _drawn(lab: Any, cheat: Cheat) -> tuple[Cheat, Drawing, str]:
    """Run an entry; return it with its picture and the same in words."""
    if not cheat.x:
        return cheat, *_waiting(lab, cheat)
    lab.run(f"x = {cheat.x}" + (f"\ny = {cheat.y}" if cheat.y else ""))
    if "object" in cheat.name:
        return cheat, *_objects(lab, cheat)
    flow = lab.flow(cheat.code, "x", cheat.shows, cheat.name if cheat.name in MEANINGS else None)
    return cheat, flow.small, flow.alt


def _waiting(lab: Any, cheat: Cheat) -> tuple[Drawing, str]:
    """Let rank 1 come late; return a picture of the ranks that wait for it, and the same in words."""
    waits = lab.late(cheat.code, 1).waiting("barrier")
    come = [[[Tile("late" if r == 1 else "here", kind="plain")]] for r in range(lab.n)]
    go = [[[Tile("waits" if r in waits else "goes", kind="plain")]] for r in range(lab.n)]
    return Drawing(["before", "in it"], [come, go]), f"Rank 1 comes late: ranks {waits} wait in the barrier."


def _objects(lab: Any, cheat: Cheat) -> tuple[Drawing, str]:
    """Draw the objects before and after; an object's colour is that of the rank that brought it."""
    brought = lab.pull("x")
    lab.run(cheat.code)
    held = lab.pull("y")

    def tile(value: Any) -> Tile:
        return Tile(str(value), shares=((brought.index(value), 1),))

    columns = [[[[tile(x)]] for x in brought], [[[tile(y)] for y in ys] for ys in held]]
    said = "; ".join(f"rank {r} brought {x!r} and has {y}" for r, (x, y) in enumerate(zip(brought, held, strict=True)))
    return Drawing(["before", "after"], columns), f"{said}."
