"""Write tables that read well in JupyterLab, light or dark, trusted or not; and the lab's own, one row per rank.

An untrusted notebook keeps `class`, `title`, `scope` and plain inline styles; it loses `<style>`, CSS
variables and ARIA. So colours are left to the theme, and emphasis uses weight, lines and signs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

CELL = "text-align: left; vertical-align: top; padding: 2px 16px 2px 4px"
CAPTION = "caption-side: top; text-align: left; padding: 2px 4px; white-space: nowrap"
COLUMNS = ("engine", "pid", "host", "device", "backend", "memory", "state")


def table(kind: str, caption: str, columns: Sequence[str], rows: Iterable[str]) -> str:
    """Return an HTML table of ready rows with a caption, both HTML already, and a header for each column."""
    head = "".join(f'<th scope="col" style="{CELL}">{column}</th>' for column in columns)
    return (
        f'<table class="labkit-{kind}"><caption style="{CAPTION}">{caption}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def row(header: str, cells: Iterable[str]) -> str:
    """Return a row of ready cells behind its header."""
    return f'<tr><th scope="row" style="{CELL}">{header}</th>{"".join(cells)}</tr>'


def cell(content: str, kind: str, span: int = 1) -> str:
    """Return a cell; its class says what it holds, so that a test can mask what changes from run to run."""
    wide = f' colspan="{span}"' if span > 1 else ""
    return f'<td class="{kind}"{wide} style="{CELL}">{content}</td>'


class LabTable:
    """The lab at a glance: for each rank its engine, process, host, device, backend and memory.

    `rows` are dicts with "rank" and any of "engine", "pid", "host", "device", "backend", "memory" (bytes) and
    "state", which shows only where it is not "alive" on all; `caption` names the table.
    """

    def __init__(self, rows: Sequence[dict[str, Any]], caption: str = "") -> None:
        self.rows = sorted(rows, key=lambda r: r["rank"])
        self.caption = caption
        told = {c: {r.get(c) for r in self.rows} for c in COLUMNS}
        self._columns = [c for c in COLUMNS if told[c] - {None} and not (c == "state" and told[c] == {"alive"})]

    def __repr__(self) -> str:
        lines = [
            f"rank {r['rank']}  " + " ".join(f"{c}={_written(c, r.get(c))}" for c in self._columns) for r in self.rows
        ]
        return "\n".join(filter(None, [self.caption, *lines]))

    def _repr_html_(self) -> str:
        rows = [row(str(r["rank"]), [cell(escape(_written(c, r.get(c))), c) for c in self._columns]) for r in self.rows]
        return table("lab", escape(self.caption), ["rank", *self._columns], rows)


def _written(column: str, value: Any) -> str:
    if value is None or (column == "memory" and not value):
        return "–"
    return f"{value / 2**20:.0f} MiB" if column == "memory" else str(value)
