"""Tell the atlas in HTML: the tables with their machines and sources, and the verdict on one's own log."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from labkit.floor.words import seconds
from labkit.show.table import cell, row, table
from workbook.tools.atlas.likeness import Verdict
from workbook.tools.atlas.plot import LETTERS
from workbook.tools.published import Table
from workbook.tools.sweep.plot import rate


def sources(tables: Sequence[Table], fitting: int) -> str:
    """List the tables with their figures and sources; `fitting` says how many there would be."""
    rows = []
    for letter, t in zip(LETTERS, tables, strict=False):
        machine = f"<b>{escape(t.name)}</b>: {escape(_about(t))}<br>Source: {escape(t.source)}"
        cells = [machine, *map(_kept, figures(t))]
        rows.append(row(letter, [cell(c, "told") for c in cells]))
    more = fitting - len(tables)
    rest = f" {more} more fit: choose others of these, a number of GPUs or a generation." if more else ""
    heads = ("", "table, machine and source", "least time", "most busbw")
    caption = f'<span style="white-space: normal">Published by others; nothing was run here.{rest}</span>'
    return table("atlas", caption, heads, rows) if rows else ""


def figures(t: Table) -> tuple[str, str]:
    """Say a table's least time and most bus bandwidth."""
    return seconds(min(us for _, us in t.rows) * 1e-6), rate(max(t.busbw(size) for size, _ in t.rows))


def _kept(text: str) -> str:
    """Return HTML that is not broken between words."""
    return f'<span style="white-space: nowrap">{escape(text)}</span>'


def _about(t: Table) -> str:
    stated = "" if t.nccl.startswith("unstated") else t.nccl if t.nccl.startswith("RCCL") else f"NCCL {t.nccl}"
    return "; ".join(filter(None, [t.hardware, stated, t.launch, t.note]))


def told_of(verdict: Verdict) -> str:
    """Return a verdict as HTML."""
    log = verdict.log
    bands = [row(escape(name), [cell(escape(c), "told") for c in cells]) for name, *cells in verdict.beside]
    found = "".join(f"<li>{escape(finding)}</li>" for finding in verdict.findings)
    head = "<br>".join(map(escape, repr(log).splitlines()))
    heads = ("messages", "beside the best published of its kind", "beside the model")
    return (
        f"<p>{head}</p><p><b>{escape(verdict.resemblance)}</b></p>"
        + table("bands", "How long your log takes", heads, bands)
        + (f"<ul>{found}</ul>" if found else "<p>Nothing odd was found in its shape.</p>")
    )
