"""Let a learner ask what if there were more ranks, another network, larger messages: controls over `tools.costs`."""

from __future__ import annotations

from typing import Any

import ipywidgets
import numpy as np

from labkit.floor import words
from labkit.floor.errors import LabError
from labkit.plot import svg
from labkit.show.box import Box
from labkit.show.keys import DEAF
from workbook.tools.costs import estimate, flat
from workbook.tools.costs.estimate import times as ways
from workbook.tools.costs.machine import RENTED, Cluster
from workbook.tools.costs.predict import OPS, times
from workbook.tools.whatif import plot as whatif

ONE = "one kind of link: α and β"
RANKS = sorted({*(2**k for k in range(1, 18)), *(3 * 2**k for k in range(16)), 5, 7, 1000, 10_000, 100_000})
SIZES = [2**k for k in range(3, 35)]
MAP_RANKS = [2**k for k in range(1, 18)]
FINE = np.geomspace(SIZES[0], SIZES[-1], 63)  # two points a doubling
MICROSECONDS = [m * 10.0**k for k in range(-1, 4) for m in (1, 2, 5)]
GIGABYTES = [m * 10.0**k for k in range(-2, 4) for m in (1, 2, 5)]
OVER = [1.0, 1.5, 2.0, 3.0, 4.0, 8.0]


class WhatIf(Box):
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

    It needs no ranks and no GPU: every picture is computed from closed formulas, and without a kernel the page shows
    the one that was there last. `seconds` has the numbers, `go(n=100_000)` moves a control. The algorithms are those of
    `costs.flat` and `costs.predict`, by their steps and bytes alone; on a cluster `nccl` is beside them, what
    `costs.estimate` says that NCCL itself takes, with all that the steps and bytes leave out.
    """

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
        if isinstance(cluster, Cluster):
            others = {key: c for key, c in RENTED.items() if c.name != cluster.name}
            self._clusters = {cluster.name: cluster, **others}
            cluster = cluster.name
        look: dict[str, Any] = {"style": {"description_width": "8em"}, "layout": {"width": "27em", "max_width": "98%"}}

        def pick(name: str, options: list[tuple[str, Any]], value: Any) -> Any:
            return ipywidgets.SelectionSlider(
                options=options, value=value, description=name, **look, continuous_update=True
            )

        self._op = ipywidgets.Dropdown(options=OPS, value=_one_of("op", op, OPS), description="operation", **look)
        names = [ONE, *(c.name for c in self._clusters.values())]
        self._links = ipywidgets.Dropdown(options=names, value=self._named(cluster), description="links", **look)
        self._n = pick("ranks N", [(f"{r:,}", r) for r in RANKS], _near(RANKS, n))
        self._size = pick("size S", [(words.nbytes(s), s) for s in SIZES], _near(SIZES, nbytes))
        alphas = sorted({*(m * 1e-6 for m in MICROSECONDS), float(alpha)})
        betas = sorted({*(1e-9 / g for g in GIGABYTES), float(beta)}, reverse=True)
        self._alpha = pick("latency α", [(words.seconds(a), a) for a in alphas], float(alpha))
        self._beta = pick("bandwidth 1/β", [(f"{1e-9 / b:.3g} GB/s", b) for b in betas], float(beta))
        self._over = pick("oversubscribed", [(f"{o:g}:1", o) for o in OVER], 1.0)
        self._picture = ipywidgets.HTML()
        self._controls = (self._op, self._links, self._n, self._size, self._alpha, self._beta, self._over)
        for control in self._controls:
            control.observe(lambda _: self._show(), "value")
        left, right = ipywidgets.VBox(self._controls[:4]), ipywidgets.VBox(self._controls[4:])
        super().__init__(
            [ipywidgets.HBox([left, right, ipywidgets.HTML(DEAF)], layout={"flex_flow": "row wrap"}), self._picture]
        )
        self.add_class("labkit-whatif")
        self._show()

    # -- what it says -----------------------------------------------------------------------------------------------

    @property
    def op(self) -> str:
        """The operation."""
        return str(self._op.value)

    @property
    def n(self) -> int:
        """The number of ranks."""
        return int(self._n.value)

    @property
    def nbytes(self) -> float:
        """S in bytes."""
        return float(self._size.value)

    @property
    def cluster(self) -> Cluster | None:
        """The cluster, with its oversubscription; None where all links are alike."""
        if self._links.value == ONE:
            return None
        (found,) = (c for c in self._clusters.values() if c.name == self._links.value)
        return found.but(oversubscription=found.oversubscription * self._over.value)

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
        known = ("op", "n", "nbytes", "alpha", "beta", "cluster", "oversubscription")
        for name, value in where.items():
            _one_of("control", name, known)
            if name == "op":
                self._op.value = _one_of("op", value, OPS)
            elif name == "cluster":
                self._links.value = self._named(value)
            else:
                slider = {
                    "n": self._n, "nbytes": self._size, "alpha": self._alpha, "beta": self._beta,
                    "oversubscription": self._over,
                }[name]  # fmt: skip
                slider.value = _near([v for _, v in slider.options], value)

    def _named(self, cluster: Any) -> str:
        """Return what stands in the list of links for this cluster."""
        return ONE if cluster is None else self._clusters[_one_of("cluster", cluster, self._clusters)].name

    def _times(self, nbytes: Any, n: Any) -> dict[str, Any]:
        cluster = self.cluster
        if cluster is None:
            return flat(self.op, nbytes, n, self._alpha.value, self._beta.value)
        return times(self.op, nbytes, n, cluster)

    @property
    def links(self) -> str:
        """The links, in words."""
        if self.cluster is not None:
            return repr(self.cluster)
        alpha, beta = self._alpha.value, self._beta.value
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

    def _show(self) -> None:
        flat_links = self._links.value == ONE
        for control, shown in ((self._alpha, flat_links), (self._beta, flat_links), (self._over, not flat_links)):
            control.layout.display = "" if shown else "none"
        self._picture.value = self._html = svg.img(self.svg, repr(self))

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        return {**super()._repr_mimebundle_(**kwargs), "text/plain": repr(self), "text/html": self._html}


def _near(options: Any, value: Any) -> Any:
    """Choose the option nearest to a value on a logarithmic scale."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not value > 0:
        raise LabError(f"{value!r} is not a place on this slider. Give a number above zero.")
    return min(options, key=lambda o: abs(np.log(o / value)))


def _one_of(what: str, value: Any, known: Any) -> Any:
    if value not in known:
        raise LabError(f"{value!r} is no {what} here. Choose one of: {', '.join(known)}.")
    return value
