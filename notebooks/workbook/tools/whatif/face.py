"""Let a learner ask what if there were more ranks, another network, larger messages: controls over `tools.costs`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from labkit.floor import words
from labkit.floor.errors import LabError
from labkit.plot import svg
from labkit.show.controls import Control, Controls, module, style
from workbook.tools.costs import estimate, flat
from workbook.tools.costs.estimate import times as ways
from workbook.tools.costs.machine import RENTED, Cluster
from workbook.tools.costs.predict import OPS, times
from workbook.tools.whatif import plot as whatif
from workbook.tools.whatif.tables import FINE, MAP_RANKS, OVER, RANKS, SIZES, tables

HERE = Path(__file__).parent
ONE = "one kind of link: α and β"
MICROSECONDS = [m * 10.0**k for k in range(-1, 4) for m in (1, 2, 5)]
GIGABYTES = [m * 10.0**k for k in range(-2, 4) for m in (1, 2, 5)]


class WhatIf(Controls):
    """Move the number of ranks, the size, the links: curves of all algorithms, and a map of who is fastest where.

    >>> w = WhatIf("all_reduce", n=8, nbytes=2**20, alpha=1e-5, beta=1e-10)
    >>> w.winner
    'halving-doubling'

    Args:
        op: "all_reduce", "all_gather", "reduce_scatter", "broadcast" or "all_to_all".
        n, nbytes: ranks, and S in bytes as nccl-tests counts it.
        alpha, beta: seconds per message and seconds per byte.
        cluster: "A100", "H100", "H200", "B200", "GB200", "H100 EFA" or another name of `costs.RENTED`, or a `Cluster`,
            in place of one α and β.

    It needs no ranks and no GPU: every picture is computed from closed formulas, and the page draws it by itself, from
    tables that are computed once. `seconds` has the numbers, `go(n=100_000)` moves a control. The algorithms are those
    of `costs.flat` and `costs.predict`, by their steps and bytes alone; on a cluster `nccl` is beside them, what
    `costs.estimate` says that NCCL itself takes, with all that the steps and bytes leave out.
    """

    _esm = module(HERE / "view.mjs")
    _css = style(HERE / "view.css")

    def __init__(
        self,
        op: str = "all_reduce",
        n: int = 8,
        nbytes: float = 2**20,
        alpha: float = 1e-5,
        beta: float = 1e-10,
        cluster: str | Cluster | None = None,
    ) -> None:
        if not (alpha > 0 and beta > 0):
            raise LabError("α and β must be above zero. Give seconds, such as alpha=1e-5, beta=1e-10.")
        self._clusters: dict[str, Cluster] = dict(RENTED)
        self._own = isinstance(cluster, Cluster)
        if isinstance(cluster, Cluster):
            others = {key: c for key, c in RENTED.items() if c.name != cluster.name}
            self._clusters = {cluster.name: cluster, **others}
            cluster = cluster.name
        _one_of("op", op, OPS)
        if cluster is not None:
            _one_of("cluster", cluster, self._clusters)
        alphas = sorted({*(m * 1e-6 for m in MICROSECONDS), float(alpha)})
        betas = sorted({*(1e-9 / g for g in GIGABYTES), float(beta)}, reverse=True)
        names = [ONE, *(c.name for c in self._clusters.values())]
        super().__init__(
            "whatif",
            [
                Control("op", "operation", OPS, OPS, "list"),
                Control("cluster", "links", [None, *self._clusters], names, "list"),
                Control("n", "ranks N", RANKS, [f"{n:,}" for n in RANKS]),
                Control("nbytes", "size S", SIZES, [words.nbytes(s) for s in SIZES]),
                Control("alpha", "latency α", alphas, [words.seconds(a) for a in alphas]),
                Control("beta", "bandwidth 1/β", betas, [f"{1e-9 / b:.3g} GB/s" for b in betas]),
                Control("oversubscription", "oversubscribed", OVER, [f"{o:g}:1" for o in OVER]),
            ],
            {
                "op": op, "cluster": cluster, "n": _near(RANKS, n), "nbytes": _near(SIZES, nbytes),
                "alpha": float(alpha), "beta": float(beta),
            },
            **tables([*self._clusters.values()], alphas, betas),
        )  # fmt: skip

    # -- what it says -----------------------------------------------------------------------------------------------

    @property
    def op(self) -> str:
        """The operation."""
        return str(self.values["op"])

    @property
    def n(self) -> int:
        """The number of ranks."""
        return int(self.values["n"])

    @property
    def nbytes(self) -> float:
        """S in bytes."""
        return float(self.values["nbytes"])

    @property
    def cluster(self) -> Cluster | None:
        """The cluster, with its oversubscription; None where all links are alike."""
        at = self.values
        if at["cluster"] is None:
            return None
        found = self._clusters[at["cluster"]]
        return found.but(oversubscription=found.oversubscription * at["oversubscription"])

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each algorithm, the fastest first."""
        found = {name: float(t) for name, t in self._times(self.nbytes, self.n).items()}
        return dict(sorted(found.items(), key=lambda item: item[1]))

    @property
    def winner(self) -> str:
        """The fastest algorithm."""
        return next(iter(self.seconds))

    @property
    def nccl(self) -> tuple[str, float] | None:
        """NCCL's way, such as "Tree, LL", and its seconds, as estimated; None where all links are alike."""
        if (cluster := self.cluster) is None:
            return None
        found = {way: float(t) for way, t in ways(self.op, self.nbytes, self.n, cluster).items()}
        way = min(found, key=lambda name: found[name])
        named = way.replace("NVLS,", "NVLSTree,") if self.n > cluster.gpus_per_node else way  # as NCCL names it there
        return named, found[way]

    def go(self, **where: Any) -> None:
        """Move controls: `go(n=100_000, nbytes=2**30, op=…, cluster="H100", alpha=…, beta=…, oversubscription=2)`.

        Ranks, sizes, α and β go to the nearest value that the slider has. Raises `LabError` for an unknown control.
        """
        for name, value in where.items():
            _one_of("control", name, self._controls)
            if name in ("op", "cluster"):
                known = self._controls[name].values
                if value not in known:
                    _one_of(name, value, known[known[0] is None :])
            else:
                where[name] = _near(self._controls[name].values, value)
        self.move(**where)

    def _times(self, nbytes: Any, n: Any) -> dict[str, Any]:
        cluster = self.cluster
        if cluster is None:
            return flat(self.op, nbytes, n, self.values["alpha"], self.values["beta"])
        return times(self.op, nbytes, n, cluster)

    @property
    def links(self) -> str:
        """The links, in words."""
        if self.cluster is not None:
            return repr(self.cluster)
        alpha, beta = self.values["alpha"], self.values["beta"]
        said = f"every pair of ranks: α = {words.seconds(alpha)}, 1/β = {1e-9 / beta:.3g} GB/s"
        return f"{said}; in the time of α a link carries {words.nbytes(alpha / beta)}"

    def __repr__(self) -> str:
        lines = [f"{self.op} of {words.nbytes(self.nbytes)} on {self.n:,} ranks; {self.links}"]
        lines += [f"{name:<46}{words.seconds(t):>10}" for name, t in self.seconds.items()]
        if (found := self.nccl) is not None:
            way, seconds = found
            lines.append(f"{'NCCL, estimated: ' + way:<46}{words.seconds(seconds):>10}")
        return "\n".join(lines)

    # -- how it shows itself ----------------------------------------------------------------------------------------

    @property
    def scene(self) -> whatif.Scene:
        """The scene of the picture."""
        curves = self._times(FINE, self.n)
        grid = np.stack(list(self._times(FINE, np.array(MAP_RANKS)[:, None]).values()))
        now, fastest = self.seconds, self.winner
        mark = "  ◀ the fastest" if self.cluster is None else "  ◀ the fastest letter"
        legend = [f"{name}: {words.seconds(now[name])}{mark * (name == fastest)}" for name in curves]
        extra, ahead = None, None
        if (found := self.nccl) is not None and self.cluster is not None:
            way, seconds = found
            extra = (
                f"NCCL, estimated: {words.seconds(seconds)} ({way})",
                estimate(self.op, FINE, self.n, self.cluster),
            )
            ahead = estimate(self.op, FINE, np.array(MAP_RANKS)[:, None], self.cluster) < grid.min(0)
        title = f"{self.op} of {words.nbytes(self.nbytes)} on {self.n:,} ranks"
        here = (self.nbytes, self.n)
        return whatif.Scene(title, self.links, FINE, MAP_RANKS, curves, grid.argmin(0), here, legend, extra, ahead)

    @property
    def svg(self) -> bytes:
        """The picture of what the controls say now."""
        return svg.svg(whatif.draw(self.scene))

    def _repr_html_(self) -> str:
        return svg.img(self.svg, repr(self))

    @property
    def meta(self) -> dict[str, Any] | None:
        """What a page without a kernel makes this view from: where the controls stand; none for one's own cluster."""
        return None if self._own else {"kind": "whatif", **self.values}


def page(meta: dict[str, Any]) -> dict[str, Any]:
    """Return what `view.mjs` shows without a kernel, of an output with this metadata."""
    where = {name: value for name, value in meta.items() if name != "kind"}
    shown = WhatIf(alpha=where["alpha"], beta=where["beta"])
    shown.go(**where)
    return {"kind": "whatif", "data": {**shown.data, "at": shown.at}}


def _near(options: Any, value: Any) -> Any:
    """Choose the option nearest to a value on a logarithmic scale."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not value > 0:
        raise LabError(f"{value!r} is not a place on this slider. Give a number above zero.")
    return min(options, key=lambda o: abs(np.log(o / value)))


def _one_of(what: str, value: Any, known: Any) -> Any:
    if value not in known:
        raise LabError(f"{value!r} is no {what} here. Choose one of: {', '.join(known)}.")
    return value
