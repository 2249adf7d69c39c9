"""Compute once what a page needs to move the what-if by itself: tables for a short formula, which `view.mjs` has.

Where all links are alike, an algorithm takes steps·α + serial·S·β seconds, and one that is cut into pieces the best
number of them (`predict.seconds`). On a cluster every algorithm, and every way that NCCL has, takes L + m + 2·√(P·m)
with m = S·k, by the protocol that suits S: L, P and k are read off what `predict.times` and `estimate.times` say of no
byte, of one and of very many. So the formulas stay where they are, and the page has the same numbers to 1 %.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from labkit.plot import sheet
from workbook.tools.costs.estimate import launch
from workbook.tools.costs.estimate import times as ways
from workbook.tools.costs.machine import Cluster
from workbook.tools.costs.predict import ALGORITHMS, LINKS, OPS, times
from workbook.tools.formulas import PIPELINED, figures
from workbook.tools.sweep.plot import LETTERS

RANKS = sorted({*(2**k for k in range(1, 18)), *(3 * 2**k for k in range(16)), 5, 7, 1000, 10_000, 100_000})
SIZES = [2**k for k in range(3, 35)]
MAP_RANKS = [2**k for k in range(1, 18)]
FINE = np.geomspace(SIZES[0], SIZES[-1], 63)  # two points a doubling
OVER = [1.0, 1.5, 2.0, 3.0, 4.0, 8.0]

MOST = max(map(len, ALGORITHMS.values()))  # letters
MANY = 1e40  # bytes, beside which no latency is seen
FINENESS = 10_000  # numbers of a table are so many parts of a decade: to 0.012 %
NONE = -1_000_000  # one that stands for zero

Row = tuple[int, ...]  # for each of RANKS
Way = tuple[Row, Row, tuple[Row, ...]]  # L, P, and k for each of OVER


def tables(clusters: Sequence[Cluster], alphas: Sequence[float], betas: Sequence[float]) -> dict[str, Any]:
    """Return what `view.mjs` needs to know of all that the controls can choose, but for the words on them."""
    every: dict[Row, int] = {}

    def numbered(way: Way) -> list[int]:
        latency, fill, slopes = way
        return [every.setdefault(row, len(every)) for row in (latency, fill, *slopes)]

    described = []
    for cluster in clusters:
        plain = cluster.but(name="")
        by_op = {
            op: {
                "letters": [[name, [numbered(way) for way in by]] for name, by in _letters(plain, op)],
                "nccl": [[name, numbered(way)] for name, way in _nccl(plain, op)],
                "start": _start(plain, op),
            }
            for op in OPS
        }
        said = [repr(_over(cluster, over)) for over in OVER]
        described.append({"name": cluster.name, "says": said, "node": cluster.gpus_per_node, "ops": by_op})
    return {
        "ops": list(OPS),
        "ranks": RANKS,
        "map": [RANKS.index(n) for n in MAP_RANKS],
        "fine": FINE.tolist(),
        "alphas": list(alphas),
        "betas": list(betas),
        "marks": [[LETTERS[i], sheet.color(i), sheet.on(i), _stroke(i)] for i in range(MOST)],
        "flat": {op: _flat(op) for op in OPS},
        "clusters": described,
        "fineness": FINENESS,
        "rows": [np.diff(row, prepend=0).tolist() for row in every],  # each number as what it is more than the last
    }


def _stroke(i: int) -> str:
    """Return the colour of the i-th curve, a darker yellow on a light page and a lighter one on a dark page."""
    paint = sheet.color(i)
    return paint if sheet.stroke(i) == paint else f"color-mix(in srgb, {paint} 72%, currentColor)"


def _over(cluster: Cluster, over: float) -> Cluster:
    return cluster.but(oversubscription=cluster.oversubscription * over)


@cache
def _flat(op: str) -> list[list[Any]]:
    """Return of each algorithm: its name, whether it is cut into pieces, and steps and serial for each of RANKS."""
    found = []
    for name in ALGORITHMS[op]:
        piped = (op, name) in PIPELINED
        each = figures(op, name, np.array(RANKS), 1 if piped else None)
        serial = [float(f"{share:.6g}") for share in np.broadcast_to(each.serial, len(RANKS)).tolist()]
        found.append([name, piped, np.broadcast_to(each.steps, len(RANKS)).tolist(), serial])
    return found


@cache
def _letters(cluster: Cluster, op: str) -> list[tuple[str, list[Way]]]:
    """Return each algorithm with its way by each protocol."""
    ranks = np.array(RANKS)

    def by(protocol: str) -> dict[str, Way]:
        return _read(cluster, lambda size, c: times(op, size, ranks, c, (protocol,)))

    each = [by(protocol) for protocol in LINKS]
    return [(name, [found[name] for found in each]) for name in each[0]]


@cache
def _nccl(cluster: Cluster, op: str) -> list[tuple[str, Way]]:
    ranks = np.array(RANKS)
    return [*_read(cluster, lambda size, c: ways(op, size, ranks, c)).items()]


def _start(cluster: Cluster, op: str) -> list[float]:
    """Return the seconds that NCCL's launching takes at least, for each of FINE; nothing where all sizes take as long.

    It takes longer for larger ones where a process launches for several GPUs of an older generation.
    """
    least = np.broadcast_to((launch(op, FINE, 2, cluster) + cluster.call_overhead) * 1e-6, FINE.shape)
    return least.tolist() if np.ptp(least) else []


def _read(cluster: Cluster, seconds: Callable[[Any, Cluster], dict[str, Any]]) -> dict[str, Way]:
    """Read L, P and k off the seconds that each way takes; oversubscription changes k alone."""
    at = np.array([[0.0], [1.0], [MANY]])
    each = [seconds(at if over == 1 else at[-1:], _over(cluster, over)) for over in OVER]
    found = {}
    for name, (latency, one, most) in each[0].items():
        k = most / MANY
        fill = ((one - latency - k) / 2) ** 2 / k
        slopes = tuple(_row(by[name][-1] / MANY) for by in each)
        found[name] = _row(latency), _row(np.where(fill > 1e-6 * latency, fill, 0)), slopes
    return found


def _row(values: npt.NDArray[np.float64]) -> Row:
    with np.errstate(divide="ignore"):
        logs = np.where(values > 0, np.round(FINENESS * np.log10(values)), NONE)
    return tuple(np.broadcast_to(logs, len(RANKS)).astype(int).tolist())
