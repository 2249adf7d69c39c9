"""Let a learner browse published tables of nccl-tests, with a log of their own beside them. Needs no ranks, no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from typing import Any

import ipywidgets
import numpy as np

from labkit.floor.errors import LabError
from labkit.floor.words import seconds
from labkit.plot import svg
from labkit.show.box import Box
from labkit.show.keys import DEAF
from labkit.show.table import cell, row, table
from workbook.tools import timing
from workbook.tools.atlas import likeness, nccl_tests, shapes
from workbook.tools.atlas import plot as atlas
from workbook.tools.atlas.nccl_tests import Log
from workbook.tools.published import TABLES, Table, find
from workbook.tools.sweep.plot import rate

ANY, OWN = "any", "your log"
SHOWS = {"bus bandwidth": "busbw", "time": "time"}
NAMES = {  # of generations
    "volta": "V100", "ampere": "A100 (Ampere)", "hopper": "H100, H200 (Hopper)", "blackwell": "B200, GB200 (Blackwell)",
    "cdna3": "MI300X (CDNA 3)",
}  # fmt: skip
HINT = "Paste here all that all_reduce_perf printed: the header, the lines '# Rank' and the table."
UNBROKEN = "<style>.labkit-log textarea{white-space:pre;overflow-x:auto}</style>"  # rows of a table stay rows
FEW = 8  # rows: tables of less come last
MOST = len(atlas.LETTERS)


class Atlas(Box):
    """Published nccl-tests tables over sizes; paste your own log, see what it resembles and where it falls short.

    >>> a = Atlas("all_reduce", n=32, generation="ampere")
    >>> sorted({t.op for t in a.tables}), sorted({t.n for t in a.tables})
    (['all_reduce'], [32])

    Args:
        op: "all_reduce", "all_gather", "broadcast", "all_to_all" or another one that a table has.
        n: the number of GPUs, None for any.
        generation: "ampere", "hopper", "blackwell", "cdna3", "" for any.
        show: "busbw" in GB/s, or "time".
        model: a table's name, or a part of it, whose machine the model's curve is drawn for; True for the log's.
        limits: whether to draw what the data sheets promise.
        log: what nccl-tests printed, as text or as a `Log`; op and n are then the log's.

    `tables` are those shown, `log` and `verdict` one's own, `paste(text)` takes another log, `go(…)` moves a control.
    """

    def __init__(
        self,
        op: str = "all_reduce",
        n: int | None = 16,
        generation: str = "",
        show: str = "busbw",
        model: str | bool = False,
        limits: bool = False,
        log: str | Log | None = None,
    ) -> None:
        look: dict[str, Any] = {"style": {"description_width": "8em"}, "layout": {"width": "23em", "max_width": "98%"}}
        ops = list(dict.fromkeys(t.op for t in TABLES))
        counts = [(ANY, 0), *((f"{k:,}", k) for k in sorted({t.n for t in TABLES}))]
        kinds = [(ANY, ""), *((NAMES[g], g) for g in dict.fromkeys(t.generation for t in TABLES))]
        self._op = ipywidgets.Dropdown(options=ops, description="operation", **look)
        self._n = ipywidgets.Dropdown(options=counts, description="GPUs", **look)
        self._kind = ipywidgets.Dropdown(options=kinds, description="generation", **look)
        self._what = ipywidgets.Dropdown(options=list(SHOWS.items()), description="show", **look)
        self._model = ipywidgets.Dropdown(options=[("none", "")], description="model's curve", **look)
        self._page = ipywidgets.Dropdown(options=[("all", 0)], description="of these", **look)
        self._limits = ipywidgets.Checkbox(description="data sheets' limits", indent=True, **look)
        self._picture, self._sources, self._said = (ipywidgets.HTML() for _ in range(3))
        self._text = ipywidgets.Textarea(
            placeholder=HINT, continuous_update=False, layout={"width": "98%", "height": "9em"}, rows=8
        )
        self._text.add_class("labkit-log")
        self._button = ipywidgets.Button(description="Hold it against the tables", layout={"width": "16em"})
        self._button.on_click(lambda _: self.attempt(self._press, self._said))
        self.verdict: likeness.Verdict | None = None
        self._quiet = True
        self._controls = (self._op, self._n, self._kind, self._page, self._what, self._model, self._limits)
        for control in self._controls:
            control.observe(lambda _: self._show(), "value")
        boxes = [ipywidgets.VBox(self._controls[:4]), ipywidgets.VBox(self._controls[4:])]
        super().__init__(
            [
                ipywidgets.HTML(DEAF + UNBROKEN),
                ipywidgets.HBox(boxes, layout={"flex_flow": "row wrap"}), self._picture,
                ipywidgets.HTML("<b>Your own log</b>"), self._text, self._button, self._said, self._sources,
            ]
        )  # fmt: skip
        self.add_class("labkit-atlas")
        if log is not None:
            self._take(nccl_tests.read(log) if isinstance(log, str) else log)
            if isinstance(log, str):
                self._text.value = log
            model = True if model is False else model
        else:
            self.go(op=op, n=n)
        self.go(generation=generation, show=show, limits=limits)
        self._quiet = False
        self._show()
        self.go(model=model)

    # -- what it says -----------------------------------------------------------------------------------------------

    @property
    def op(self) -> str:
        """The operation."""
        return str(self._op.value)

    @property
    def matching(self) -> tuple[Table, ...]:
        """The tables that the controls name: those most like a log first, else the fastest of each kind."""
        n, kind = self._n.value, self._kind.value
        found = [t for t in TABLES if t.op == self.op and t.n == (n or t.n) and t.generation == (kind or t.generation)]
        found.sort(key=lambda t: (t.n, len(t.rows) < FEW, -max(t.busbw(size) for size, _ in t.rows)))
        alike = [like.table.name for like in self.verdict.likenesses] if self.verdict else []
        place = {name: i for i, name in enumerate(alike)}
        kinds = [(t.generation, t.n, t.cluster.fabric if t.cluster else "") for t in found]
        nth = {t.name: kinds[:i].count(kinds[i]) for i, t in enumerate(found)}
        return tuple(sorted(found, key=lambda t: (place.get(t.name, len(place)), nth[t.name])))

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables shown: those that the controls name, six at a time."""
        return self.matching[self._page.value :][:MOST]

    @property
    def log(self) -> Log | None:
        """One's own log."""
        return self.verdict.log if self.verdict else None

    def paste(self, text: str, op: str = "", n: int = 0) -> likeness.Verdict:
        """Take a log in place of the one that is there; `op` and `n` where it does not say them.

        Raises `LabError` for a text that cannot be read; what was there before stays.
        """
        verdict = self._take(nccl_tests.read(text, op, n))
        self._text.value = text
        return verdict

    def go(self, **where: Any) -> None:
        """Move controls: `go(op="all_gather", n=16, generation="hopper", show="time", model="2 × Dell", limits=True)`.

        `page=2` shows the tables that the first page has no room for.

        Raises `LabError` for what no control has.
        """
        known = {
            "op": self._op, "n": self._n, "generation": self._kind, "page": self._page, "show": self._what,
            "limits": self._limits,
        }  # fmt: skip
        for name, value in where.items():
            if name == "model":
                self._model.value = self._modelled(value)
                continue
            control = known.get(name)
            if control is None:
                raise LabError(f"{name!r} is not a control here. Choose one of: {', '.join(known)}, model.")
            value = 0 if name == "n" and value is None else MOST * (value - 1) if name == "page" else value
            if name == "limits":
                control.value = bool(value)
                continue
            options = [o[1] if isinstance(o, tuple) else o for o in control.options]
            if value not in options:
                told = ", ".join(str(o or ("None" if name == "n" else '""')) for o in options)
                raise LabError(f"No published table has {name}={value!r}. Choose one of: {told}.")
            control.value = value

    def _modelled(self, value: str | bool) -> str:
        """Find the option of the model's control that is meant."""
        options = [name for _, name in self._model.options]
        if value is True:
            return options[1] if len(options) > 1 else ""
        if not value:
            return ""
        name = find(str(value)).name
        if name not in options and name in (shown := [t.name for t in self.matching]):  # on another page
            self.go(page=1 + shown.index(name) // MOST)
            options = [found for _, found in self._model.options]
        if name not in options:
            raise LabError(
                f"No model's curve for {name!r}: it is not shown, or not NCCL's. Choose among {options[1:]}."
            )
        return name

    def __repr__(self) -> str:
        lines = [self._title]
        for letter, t in zip(atlas.LETTERS, self.tables, strict=False):
            least, most = _figures(t)
            lines.append(f"{letter}  {t.name:<28}{least:>9} at least{most:>12} at most   {t.source}")
        if rest := len(self.matching) - len(self.tables):
            lines.append(f"… and {rest} more: choose others of these, a number of GPUs or a generation.")
        if not self.tables:
            lines.append("No published table here fits these controls.")
        return "\n".join([*lines, *([repr(self.verdict)] if self.verdict else [])])

    # -- how it shows itself ----------------------------------------------------------------------------------------

    @property
    def _title(self) -> str:
        n = f"{self._n.value:,} GPUs" if self._n.value else "any number of GPUs"
        return f"{self.op} on {n}: published {'times' if self._what.value == 'time' else 'bus bandwidths'}"

    @property
    def scene(self) -> atlas.Scene | None:
        """The scene of the picture; None where there is nothing to draw."""
        own = self.log if self.log is not None and self.log.op == self.op else None
        if not self.tables and own is None:
            return None
        time = self._what.value == "time"

        def line(said: str, op: str, n: int, sizes: Any, us: Any) -> atlas.Line:
            values = [t * 1e-6 if time else timing.busbw(op, n, s, t * 1e-6) for s, t in zip(sizes, us, strict=True)]
            return atlas.Line(said, list(sizes), values)

        tables = [line(f"{t.name}: {t.hardware}", t.op, t.n, *zip(*t.rows, strict=True)) for t in self.tables]
        drawn = (
            line(f"your log: {own.n} × {own.gpu or 'GPU'}", own.op, own.n, *zip(*own.rows, strict=True))
            if own
            else None
        )
        sizes = [s for found in [*tables, *filter(None, [drawn])] for s in found.sizes]
        fine = np.geomspace(min(sizes), max(sizes), 61) if max(sizes) > min(sizes) else np.array(sizes[:1], float)
        model = None
        if (asked := self._asked) is not None:
            n, cluster = asked
            if (told := likeness.estimated(self.op, fine, n, cluster)) is not None:
                model = line(f"the model for {n} GPUs: {cluster.name}", self.op, n, fine, told)
        limits = [
            line(f"data sheet: {said}, {limit:.4g} GB/s", op, n, fine, fine * timing.busbw_factor(op, n) / limit / 1e3)
            for said, limit, op, n in self._sheets()
        ]
        _, factor = timing.convention(self.op)
        note = (
            "time of a call; α, β and protocols show below 1 MiB"
            if time
            else f"busbw = S / t × {factor}"
            if factor != "1"
            else "busbw = S / t"
        )
        if (
            not time
            and limits
            and any(max(t.values) > 1.02 * max(v for limit in limits for v in limit.values) for t in tables)
        ):
            note += "; above a limit: NVLS and the trees of two nodes send less than busbw counts"
        return atlas.Scene(self._title, note, time, tables, drawn, model, limits)

    @property
    def _asked(self) -> tuple[int, likeness.Cluster] | None:
        """The number of GPUs and the machine that the model's curve is for."""
        if not self._model.value:
            return None
        if self._model.value == OWN:
            assert self.verdict is not None
            assert self.verdict.cluster is not None
            return self.verdict.log.n, self.verdict.cluster
        t = find(self._model.value)
        return (t.n, t.cluster) if t.cluster else None

    def _sheets(self) -> list[tuple[str, float, str, int]]:
        """Look up what data sheets promise for the machines shown: words, GB/s of bus bandwidth, and for what."""
        if not self._limits.value:
            return []
        found: dict[float, tuple[str, float, str, int]] = {}
        for t in self.tables:
            if t.cluster and (limit := shapes.sheet(t.op, t.n, t.cluster)):
                found.setdefault(round(limit[1], 1), (*limit, t.op, t.n))
        return [found[key] for key in sorted(found)][:4]

    @property
    def svg(self) -> bytes | None:
        """The picture of what the controls say now; None where no table fits them."""
        scene = self.scene
        return svg.svg(atlas.draw(scene)) if scene else None

    def _take(self, log: Log) -> likeness.Verdict:
        self.verdict = verdict = likeness.verdict(log)
        quiet, self._quiet = self._quiet, True
        if log.op not in self._op.options:
            self._op.options = [*self._op.options, log.op]
        self._op.value = log.op
        self._n.value = log.n if any(t.n == log.n and t.op == log.op for t in TABLES) else 0
        self._kind.value = ""
        self._page.value = 0
        self._said.value = _told_of(verdict)
        self._quiet = quiet
        self._show()
        if verdict.cluster and OWN in [name for _, name in self._model.options]:
            self._model.value = OWN
        return verdict

    def _press(self) -> None:
        text = self._text.value
        if not text.strip() and self.verdict:
            self.verdict = None
            self._said.value = "Your log is taken off."
            self._show()
            return
        try:
            log = nccl_tests.read(text)
        except nccl_tests.Unsaid as unsaid:
            log = self._completed(text, unsaid)
        self._take(log)

    def _completed(self, text: str, unsaid: nccl_tests.Unsaid) -> Log:
        """Read a log that does not say its operation or number of GPUs as the controls have it, and note that."""
        chosen = {"op": self.op} if unsaid.what == "op" else {"n": self._n.value}
        if not chosen.get(unsaid.what):
            raise LabError(f"{unsaid} Or choose it above and press the button again.")
        try:
            log = nccl_tests.read(text, **chosen)
        except nccl_tests.Unsaid:
            if not self._n.value:
                raise
            chosen = {"op": self.op, "n": self._n.value}
            log = nccl_tests.read(text, **chosen)
        said = " on ".join(str(v) + " GPUs" * (k == "n") for k, v in chosen.items())
        return replace(log, notes=(*log.notes, f"The text does not say it: read as {said}, as chosen above."))

    def _show(self) -> None:
        if self._quiet:
            return
        self._quiet = True
        fit, page = len(self.matching), self._page.value
        pages = [(f"{i + 1} to {min(i + MOST, fit)} of {fit}", i) for i in range(0, fit, MOST)] or [("none", 0)]
        self._page.options = pages
        self._page.value = page if page < fit else 0
        self._page.layout.display = "" if fit > MOST else "none"
        chosen = self._model.value
        options = [("none", "")]
        if self.verdict and self.verdict.cluster and self.verdict.log.op == self.op:
            options.append(("for your log", OWN))
        options += [(f"for {t.name}", t.name) for t in self.tables if t.cluster]
        self._model.options = options
        self._model.value = chosen if chosen in [name for _, name in options] else ""
        self._quiet = False
        drawn = self.svg
        self._picture.value = svg.img(drawn, repr(self)) if drawn else f"<p>{escape(repr(self))}</p>"
        self._sources.value = _sources(self.tables, len(self.matching))

    def _repr_html_(self) -> str:
        return self._picture.value + (_told_of(self.verdict) if self.verdict else "") + self._sources.value


def _sources(tables: Sequence[Table], fitting: int) -> str:
    """List the tables with their figures and sources; `fitting` says how many there would be."""
    rows = []
    for letter, t in zip(atlas.LETTERS, tables, strict=False):
        machine = f"<b>{escape(t.name)}</b>: {escape(_about(t))}<br>Source: {escape(t.source)}"
        cells = [machine, *map(_kept, _figures(t))]
        rows.append(row(letter, [cell(c, "told") for c in cells]))
    more = fitting - len(tables)
    rest = f" {more} more fit: choose others of these, a number of GPUs or a generation." if more else ""
    heads = ("", "table, machine and source", "least time", "most busbw")
    caption = f'<span style="white-space: normal">Published by others; nothing was run here.{rest}</span>'
    return table("atlas", caption, heads, rows) if rows else ""


def _figures(t: Table) -> tuple[str, str]:
    """Say a table's least time and most bus bandwidth."""
    return seconds(min(us for _, us in t.rows) * 1e-6), rate(max(t.busbw(size) for size, _ in t.rows))


def _kept(text: str) -> str:
    """Return HTML that is not broken between words."""
    return f'<span style="white-space: nowrap">{escape(text)}</span>'


def _about(t: Table) -> str:
    stated = "" if t.nccl.startswith("unstated") else t.nccl if t.nccl.startswith("RCCL") else f"NCCL {t.nccl}"
    return "; ".join(filter(None, [t.hardware, stated, t.launch, t.note]))


def _told_of(verdict: likeness.Verdict) -> str:
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
