"""The cheat sheet: every primitive with its picture, its bytes and the one mistake to avoid, on two printed pages."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from labkit.plot import flow as picture
from labkit.plot import svg
from labkit.plot.flow import Drawing
from labkit.show import markdown
from workbook.tools.sheet.cheats import Cheat

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


def html(entries: Sequence[tuple[Cheat, Drawing, str]], about: str) -> str:
    """Lay out the sheet: each entry with its picture and the same in words, under a line about all of them."""
    cards = "".join(map(_card, *zip(*entries, strict=True)))
    head = f"<h1>{NAME}</h1><div class='about'>{escape(about)}</div>"
    return f"<style>{STYLE}</style><div class='labkit-sheet'>{head}{cards}</div>"


def _card(cheat: Cheat, drawing: Drawing, alt: str) -> str:
    image = svg.svg(picture.small(drawing), SCALE)
    also = f"<div class='also'>{markdown.html(cheat.also)}</div>" if cheat.also else ""
    return (
        f"<div class='card'><div><span class='name'>{escape(cheat.name)}</span> {markdown.html(cheat.does)}</div>"
        f"<pre>{escape(cheat.code)}</pre>"
        f"<div class='body'>{svg.img(image, alt)}<div class='costs'>{escape(cheat.costs)}</div></div>"
        f"{also}<div class='mistake'>{markdown.html(cheat.mistake)}</div></div>"
    )
