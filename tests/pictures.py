"""Every kind of picture that labkit draws, with words as long as lessons bring; and where a picture's words stand."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np

from labkit import Atlas, Painter, WhatIf, draw
from labkit.content import exercises
from labkit.grading.finding import Finding
from labkit.grading.inputs import Case
from labkit.grading.judge import Difference
from labkit.outcome.outcome import Did, Instead, Outcome, Waiting
from labkit.plot import flow, svg, wire
from labkit.plot.flow import Arrow, Drawing
from labkit.plot.sheet import extent
from labkit.plot.tiles import Tile
from labkit.show.bars import Bars
from labkit.show.card import Card
from labkit.show.curves import Curves
from labkit.show.message_diff import Beside
from labkit.show.overlay import Overlay
from labkit.show.steps import Steps
from labkit.show.timeline import Timeline
from labkit.show.times import Times
from labkit.show.verdict import Verdict
from labkit.show.waits import Waits
from tests.nccl_log import printed
from tests.recorded import Told, told
from workbook.tools import events, nccl_log, pipeline, schedules, topology
from workbook.tools.events.show import Spent
from workbook.tools.histogram.show import Histogram
from workbook.tools.late import plot as late
from workbook.tools.painter import placements
from workbook.tools.painter.show import Run
from workbook.tools.planning import Plan
from workbook.tools.planning.show import Links, Planned
from workbook.tools.published import TABLES
from workbook.tools.sweep import plot as sweep
from workbook.tools.windows import Lost, Move, Moves

SVG = "{http://www.w3.org/2000/svg}"
LONG = ["-0.0321", "1.23e-05", "12345.6", "-1e+08"]


def flow_of(n: int, k: int, wrong: bool = False) -> Drawing:
    """An all-reduce over n ranks of k elements; where it is wrong, beside what was meant, with rank 1 left out."""
    before = [[[Tile(LONG[(r + i) % 4], f"{r}·{i}", ((r, 1),)) for i in range(k)]] for r in range(n)]
    some = tuple((r, 1 + (wrong and r == 0)) for r in range(n) if not wrong or r != 1)
    badge = "2×" if wrong else ""
    missing = (1,) if wrong else ()
    sums = [Tile(LONG[i % 4], f"Σ 0–{n - 1}·{i}", some, missing, badge=badge, wrong=wrong) for i in range(k)]
    every = [Tile("", f"Σ 0–{n - 1}·{i}", tuple((r, 1) for r in range(n))) for i in range(k)]
    other = [[sums], [[Tile("None", kind="empty")]], [[Tile("3", kind="plain"), Tile("7", "·", wrong=wrong)]]]
    after = [other[r % 3] for r in range(n)]
    titles = ["gradients before", "gradients after", "as reduce_scatter means it"]
    lines = ["rank 0 holds rank 0's element 0 twice, and lacks rank 1's: " * 3] if wrong else []
    notes = ["1·0 stands for rank 1's element 0 before the cell.", "x has the shape (2, 3) and is drawn row by row."]
    code = "dist.reduce_scatter_tensor(gradients, everything, op=dist.…"
    columns = [before, after, [[every]] * n] if wrong else [before, after]
    return Drawing(titles, columns, [Arrow(s, d) for s in range(n) for d in range(n)], notes, code, lines)


def wire_of(n: int, unit: str = "MiB") -> wire.Drawing:
    matrix = [[0.0 if s == d else 12.5 * (s + 1) for d in range(n)] for s in range(n)]
    panels = [("seen", matrix), ("by the textbook", matrix)]
    notes = ["Seen: what the textbook has for all_reduce of the same buffer, to 1 %: reduce_scatter ran as that." * 2]
    return wire.Drawing(n, unit, panels, [("sent", [123.4] * n), ("textbook", [1234.0] * n)], notes)


def late_of(n: int) -> bytes:
    calls = ["dist.barrier()", "dist.reduce_scatter_tensor(shard, torch.cat(chunks), op=dist.ReduceOp.AVG, group=g)"]
    rows = [(call, [("late", "waits", "goes on", "")[(r + i) % 4] for r in range(n)]) for i, call in enumerate(calls)]
    return svg.svg(late.draw(rows, n, 1))


def sweep_of() -> bytes:
    sizes = [2.0**k for k in range(3, 29)]
    times = [(0.9 * t, t, 1.4 * t) for t in (5e-5 + 3e-10 * s for s in sizes)]
    rates = [s / t / 1e9 for s, (_, t, _) in zip(sizes, times, strict=True)]
    title = "reduce_scatter_tensor, bfloat16: NCCL, 16 ranks, NVIDIA H100 80GB HBM3, on 2 hosts of 8"
    curves = sweep.Curves(title, sizes, times, rates, [9.0] * len(sizes), 5e-5, 3e-10, 1.75)
    return svg.svg(sweep.draw(curves))


def curves_of(n: int, panels: int) -> Curves:
    """Losses that fall, on every rank a little differently; the last panel's name is longer than its room."""
    names = ["losses", "validation", "[loss_of_the_last_step for loss_of_the_last_step in everything['history']]"]
    lines = {r: [12345.678 / (i + 1) + r for i in range(30)] for r in range(n)}
    return Curves(dict.fromkeys(names[-panels:], lines), every=2500)


def over_of(kind: type[Curves], n: int, scale: float, unit: str) -> Curves:
    """Ways of training against time or samples, a rank a little slower than the one before; names as lessons have."""
    names = ["sync", "async_", "local_sgd", "[loss for loss in everything['history'] if loss is not None]"]
    lines = {name: {r: [k + 3 / (i + 1) + r / 9 for i in range(30)] for r in range(n)} for k, name in enumerate(names)}
    times = {r: [scale * (i + 1) * (1 + r / 9) for i in range(30)] for r in range(n)}
    return kind(lines, over={name: (f"{name}_seconds", times) for name in names}, unit=unit)


def _svg(*how: Any) -> bytes:
    return over_of(*how).svg


def shift(n: int, k: int) -> Steps:
    """Each rank sends its numbers to the next one but one, and then to the next."""
    ranks = []
    for r in range(n):
        rank = Told(n)
        x = rank.buffer("parameters", [-0.03125 * (r + 1) - i for i in range(k)])
        y = rank.buffer("inbox", [0.0] * k)
        for hop in (2, 1):
            rank.send((r + hop) % n, view=(x, 0, k), asynchronous=True)
            landed = [-0.03125 * ((r - hop) % n + 1) - i for i in range(k)]
            rank.recv((r - hop) % n, view=(y, 0, k), landed=landed)
        ranks.append(rank)
    return Steps(told(*ranks))


def beside(n: int, k: int) -> Beside:
    """What `shift` sends, the second hop before the first, and without the last rank's last message."""
    right, mine = [shift(n, k).film.record for _ in range(2)]
    late = replace(mine, ops=tuple(ops[2:] + ops[:2] if r % 2 else ops[:2] for r, ops in enumerate(mine.ops)))
    return Beside("ring_shift", late, right, "**It hangs with 4 ranks.**", "Mend your cell.")


def crossing() -> Timeline:
    """Messages both ways, a wait in vain, an error, a late rank."""
    a = Told(3).send(1, 0, 3, line=2).recv(1, 4, 9, line=3).meet("all_reduce", 10, 210, reduce="sum", line=12)
    b = Told(3).recv(0, 1, 3, line=2).send(0, 4, 9, line=3).meet("all_reduce", 200, 210, reduce="sum", line=12)
    inside = {"function": ("ring_all_reduce", 3), "line": 14}
    c = Told(3).meet("reduce_scatter_tensor", 0, 900, error="RuntimeError", **inside)
    return Timeline(told(a, b, c))


def waiting() -> bytes:
    """A rank that comes late to an all-reduce, and those that wait for it."""
    return Timeline(
        told(*(Told(4).meet("all_reduce", start, 205, reduce="sum", line=3) for start in (0, 1, 2, 200)))
    ).svg


def training(n: int, layers: int = 4, buckets: int = 14) -> Timeline:
    """A training step as DDP takes it, a bucket leaving every few ms; the last rank is the slowest."""
    ranks = []
    for r in range(n):
        slow, rank = 1 + 0.3 * r / n, Told(n)
        each = 200 / layers * slow
        rank.span("forward", 0, 100 * slow, "forward").span("backward", 100 * slow, 340 * slow + 2, "backward")
        for k in range(layers):
            rank.span(f"blocks.{k}", k * each / 2 + 0.2, (k + 1) * each / 2 - 0.2, "forward")
            rank.span(f"blocks.{layers - 1 - k}", 100 * slow + k * each, 100 * slow + (k + 1) * each - 0.2, "backward")
        rank.span("embedding", 300.2 * slow, 300.9 * slow, "backward").stand(302 * slow, 340 * slow)
        for k in range(buckets):
            left = 110 * slow + 190 * slow * k / buckets
            rank.start("all_reduce", left, max(left + 2 + 6 * r, 340 * k / buckets), (302 * slow, 340 * slow))
        rank.span("step", 341 * slow, 345 * slow)
        ranks.append(rank)
    return Timeline(told(*ranks))


def computing() -> Timeline:
    """All that the two lanes can show: deep spans and long names, errors, messages, waits, ends that nobody knows."""
    a = Told(3).span("the whole training step, with everything in it", 0, 400).span("forward", 1, 150, "forward")
    a.span("encoder", 2, 140, "forward").span("encoder.layers.0", 3, 100, "forward").span("too deep", 4, 90)
    a.span("backward", 151, 399, "backward", error="ZeroDivisionError").send(1, 20, 60).meet("all_reduce", 200, 300)
    a.meet("broadcast", 380, 381, asynchronous=True, witnessed=True).meet("barrier", 390, 391, asynchronous=True)
    b = Told(3).span("x", 0, 30).recv(0, 30, 62).span("y", 80, None).meet("all_reduce", 100, 300, error="RuntimeError")
    b.start("broadcast", 310, None, (390, 395)).meet("barrier", 398, None)
    c = Told(3).meet("all_reduce", 290, 300)
    return Timeline(told(a, b, c))


def measured(n: int, warm: int, many: int = 20) -> Times:
    """Times that spread, and the first ones of which are long."""
    kept = [[(1.5 + 0.1 * r + 0.8 * math.sin(7 * i + r) ** 4) * 1e-4 for i in range(many)] for r in range(n)]
    kept = [[s * (1 + 40 * (i < warm) / (i + 1)) for i, s in enumerate(mine)] for mine in kept]
    return Times({"readings": kept}, warm)


def held(n: int, many: int) -> Bars:
    """Bytes of many kinds, some of them none, beside a formula that is not far off."""
    kinds = ["weights", "gradients", "optimizer", "buffers", "activations", "full_precision_master_copies", "b", "c"]
    names = ["ddp", "[footprint_of_the_last_step for footprint_of_the_last_step in everything['history']]"]
    bars = [{kind: (i + r) % 5 * 300e3 for i, kind in enumerate(kinds[:many])} for r in range(n)]
    return Bars(dict.fromkeys(names, bars), {name: [0.98 * sum(b.values()) for b in bars] for name in names})


PAINTED = [
    (2, "whole", "whole", None),
    (4, "rows", "whole", None),
    (4, "columns", "rows", None),
    (3, "columns", "rows", (4, 8, 5)),
    (8, "whole", "columns", (4, 8, 16)),
    ((2, 2), ("rows", "columns"), ("columns", "rows"), None),
    ((2, 4), ("whole", "columns"), ("whole", "rows"), None),
]


def painted(n: int, shape: tuple[int, int, int]) -> Run:
    """What ranks would have found of a product whose X is cut into rows."""
    plan = Painter(n, x="rows", w="whole", shape=shape).painting
    m, k, many = shape

    def part(size: tuple[int, int], layout: tuple[str, ...], rank: int) -> list[Any]:
        rows, columns = (range(*span) for span in placements.tile(size, layout, (n,), rank))
        places = [[i * size[1] + j for j in columns] for i in rows]
        return [[[-12.5 * place for place in line] for line in places], places]

    results = [
        {
            "X": part((m, k), ("rows",), r), "W": part((k, many), ("whole",), r), "Y": part((m, many), ("rows",), r),
            "y": "[Shard(dim=0)]", "torch_y": "[Shard(dim=0)]", "counted": {}, "torch": {},
        }
        for r in range(n)
    ]  # fmt: skip
    return Run(plan, results)


def moved(n: int) -> Moves:
    """Every rank but 0 puts a number, adds two and gets what is there; each window has four places."""
    ranks = [{"moves": [], "made": 3 * (r > 0), "size": 4, "now": [-1234.5] * 4, "handed": 0} for r in range(n)]
    for r in range(1, n):
        ranks[r]["moves"] = [
            ["put", 0, 0, 1, [-1234.5], [0.0], r, r + 0.5, 0],
            ["accumulate", n - r, 1, 2, [12.25, 1e-3], [0.0, 0.0], n + r, n + r + 0.5, 1],
            ["get", 0, 0, 4, [-1234.5] * 4, [-1234.5] * 4, 3 * n + r, 3 * n + r + 0.5, 2],
        ]
    return Moves(ranks)


def raced(n: int) -> Lost:
    """The last two ranks read the same number, and both write."""
    one, two = (
        (
            Move(r, "get", 0, 0, 1, [1234.5], [1234.5], r, r + 0.1, 0),
            Move(r, "put", 0, 0, 1, [1e6 + r], None, t, t + 1, 0),
        )
        for r, t in ((n - 2, n + 1.0), (n - 1, n + 3.0))
    )
    return Lost(*one, *two)


def counted(n: int, largest: int) -> Histogram:
    """Staleness that differs between ranks; one rank has none."""
    lists = {r: [(i * i + 3 * r) % (largest + 1) for i in range(40 * r)] for r in range(n)}
    return Histogram({"staleness": lists, "a_longer_name_for_it['with an index', " * 4: lists})


def simulated() -> dict[str, dict[str, Any]]:
    """Steps of every way, with and without stragglers, and training runs that lose nearly nothing and nearly all."""
    fabric, ready = events.H100S.but(over=4), events.drawn(512, 0.01, 0.004, "exponential")
    steps = {way: events.all_reduce(way, fabric, 512, 1e8, ready) for way in events.WAYS}
    quick = {"8 bytes": events.all_reduce("hierarchical, PAT", fabric, 64, 8.0)}
    runs = {f"{years:g} years": events.train(steps["ring"], years * 3e7, work=1e5) for years in (0.02, 1, 1e6)}
    return {"steps": steps, "quick": quick, "runs": runs}


def verdict() -> bytes:
    """What came of an exercise where nothing was done, beside what should have."""
    exercise = exercises.find("ring_shift")
    xs = [np.array(LONG[:2], dtype="float32") * (r + 1) for r in range(3)]
    want = list(exercise.means(xs))
    wrong = dict.fromkeys(range(3), Difference("holds what it brought", 0))
    return Verdict(exercise, Finding("wrong", case=Case(xs), outs=xs, want=want, wrong=wrong))._picture[0]


def ring(n: int) -> Waits:
    """Each rank sends to the next one first, and none receives."""
    inside = {"function": ("ring_all_reduce", 3), "line": 14} if n == 5 else {"line": 7}
    return Waits(told(*(Told(n).send((r + 1) % n, 0, 900, error="RuntimeError", **inside) for r in range(n))))


def lacking() -> Waits:
    """A collective that rank 2 never comes to, and rank 3 cannot come to any more."""
    meet = {"start": 0, "end": 900, "error": "RuntimeError", "line": 3}
    went = {
        2: Instead(Did.FINISHED, without=True),
        3: Instead(Did.DIED, "SIGKILL"),
        4: Instead(Did.WENT_ON, line=12),
    }
    where = Waiting("all_reduce", 3)
    outcome = Outcome([], "stuck", waiting=dict.fromkeys((0, 1, 5), where), elsewhere=went)
    return Waits(told(*(Told(6) if r in went else Told(6).meet("all_reduce", **meet) for r in range(6))), outcome)


@cache
def names() -> tuple[str, ...]:
    """Every picture there is; the first word says of what kind."""
    return tuple(sorted(_makers()))


@cache
def drawn(name: str) -> bytes:
    """One picture, as SVG."""
    return _makers()[name]()


@cache
def _makers() -> dict[str, Callable[[], bytes]]:
    """How each picture is drawn: drawing all of them takes ten seconds, and no test needs all."""
    makers: dict[str, Callable[[], bytes]] = {
        f"card {name}": lambda e=e: Card(e).svg for name, e in exercises.every().items()
    }
    for n, k, wrong in ((1, 1, False), (2, 3, True), (4, 4, False), (3, 2, True), (8, 8, False)):
        made = flow_of(n, k, wrong)
        makers[f"flow {n} {k} {wrong}"] = lambda d=made: svg.svg(flow.draw(d))
    for n in (2, 4, 8):
        sent = wire_of(n)
        makers[f"wire {n}"] = lambda d=sent: svg.svg(wire.draw(d))
        makers[f"late {n}"] = partial(late_of, n)
    makers["sweep"] = sweep_of
    for op, n in (("all_reduce", 2), ("reduce_scatter", 3), ("all_to_all", 4), ("all_reduce", 8), ("broadcast", 13)):
        makers |= {f"schedule {n} {op} {s.name}": lambda s=s: draw(s).svg for s in schedules.of(op, n)}
    for n, k in ((3, 1), (4, 3), (8, 2)):
        makers[f"steps {n} {k}"] = lambda n=n, k=k: shift(n, k).film.still
        makers[f"step {n} {k}"] = lambda n=n, k=k: shift(n, k).film.svg(0)
    for side in (0, 1):
        makers[f"beside {side}"] = lambda side=side: beside(4, 3).films[side].still
    for n, hosts in ((8, 2), (16, 4), (4, 4)):
        for way in (schedules.ring, schedules.halving_doubling):
            plan = way("all_reduce", n)
            makers[f"{plan.name} on {hosts} hosts"] = lambda plan=plan, hosts=hosts: draw(plan, hosts=hosts).svg
    for s in (
        schedules.nvls("all_reduce", 8),
        schedules.collnet_direct("all_reduce", 3, 2),
        schedules.collnet_chain("all_reduce", 2, 4),
        schedules.nvls_tree("all_reduce", 3, 2),
    ):
        makers[f"switch {s.name}"] = lambda s=s: draw(s).svg
        makers[f"one step {s.name}"] = lambda s=s: draw(s, step=2).svg
    for name in topology.BUNDLED:
        server = topology.find(name)
        makers[f"server {name}"] = lambda server=server: draw(server).svg
        for ends in [(server.gpus[0], nic) for nic in server.nics[-1:]]:
            makers[f"path in {name}"] = lambda server=server, ends=ends: draw(server, between=ends).svg
    for name in nccl_log.bundled():
        if draw(log := nccl_log.find(name))._panels:
            makers[f"log {name}"] = lambda log=log: draw(log).svg
    for n, panels in ((1, 1), (4, 2), (16, 3)):
        makers[f"curves {n} {panels}"] = lambda n=n, p=panels: curves_of(n, p).svg
    for n, scale, unit in ((1, 0.0004, "s"), (4, 0.07, "s"), (4, 43210.0, ""), (8, 987654321.0, "")):
        for kind in (Curves, Overlay):
            makers[f"{kind.__name__} over {n} {scale:g}"] = partial(_svg, kind, n, scale, unit)
    makers["timeline"] = lambda: crossing().svg
    makers["timeline of a wait"] = waiting
    for n, layers, buckets in ((1, 1, 1), (2, 4, 54), (8, 40, 100), (4, 4, 14)):
        name = f"lanes {n} {layers} {buckets}"
        makers[name] = lambda n=n, layers=layers, buckets=buckets: training(n, layers, buckets).svg
    makers["lanes of everything"] = lambda: computing().svg
    makers["verdict"] = verdict
    for n, warm in ((1, 0), (4, 3), (8, 0)):
        makers[f"times {n} {warm}"] = lambda n=n, warm=warm: measured(n, warm).svg
    for n, many in ((1, 1), (4, 3), (8, 8)):
        makers[f"bars {n} {many}"] = lambda n=n, many=many: held(n, many).svg
    for n, largest in ((2, 1), (4, 12), (8, 5000)):
        makers[f"histogram {n} {largest}"] = lambda n=n, largest=largest: counted(n, largest).svg
    for n in (2, 4, 8):
        makers[f"moves {n}"] = lambda n=n: moved(n).svg
        makers[f"lost {n}"] = lambda n=n: raced(n).svg
    for n, micro in ((2, 2), (4, 8), (8, 16), (4, 64)):
        for schedule in (plan(n, micro) for plan in pipeline.SCHEDULES.values()):
            makers[f"gantt {n} {micro} {schedule.name}"] = lambda s=schedule: s.drawn().svg
    for mesh, x, w, shape in PAINTED:
        name = f"painting {mesh} {x} {w}"
        makers[name] = lambda mesh=mesh, x=x, w=w, s=shape: Painter(mesh, x=x, w=w, shape=s).painting.svg
    for n, shape in ((2, (2, 1, 1)), (3, (4, 8, 5)), (4, (4, 4, 4)), (8, (16, 8, 24))):
        makers[f"painted {n} {shape}"] = lambda n=n, shape=shape: painted(n, shape).svg
    for job, its in (
        ("66B", Plan(4, 8, 2, 64, 1, True)), ("66B", Plan(8, 8)), ("66B", Plan(64, zero=3)), ("7B", Plan(16)),
        ("7B", Plan(16, micro=4, zero=1)), ("1T", Plan(8, 8, 16, 128, 1, True)), ("1T", Plan(1, 8, 128, 1024)),
        ("1T", Plan(8, 8, 16, 128, 3, True, "tensor data pipe")), ("1T", Plan(1024)),
    ):  # fmt: skip
        makers[f"planned {job} {its}"] = lambda job=job, its=its: Planned(job, its).svg
    for job, gpus in (("7B", 2), ("66B", 8), ("1T", 8)):
        makers[f"links {job} {gpus}"] = lambda job=job, gpus=gpus: Links(job, gpus).svg
    for n in (1, 2, 3, 5, 8, 16):
        makers[f"waits {n}"] = lambda n=n: ring(n).svg
    makers["waits for a rank that never comes"] = lambda: lacking().svg
    for op, cluster in (("all_reduce", None), ("all_reduce", "H100"), ("all_to_all", "GB200")):
        makers[f"whatif {op} {cluster}"] = lambda op=op, c=cluster: WhatIf(op, n=100_000, nbytes=2**30, cluster=c).svg
    for where in ({}, {"n": None, "show": "time"}, {"limits": True, "model": "Dell"}):
        makers[f"atlas {where}"] = lambda where=where: Atlas(**where).svg
    makers |= {f"spent {what}": lambda runs=runs: Spent(runs).svg for what, runs in simulated().items()}
    makers["atlas log"] = lambda: Atlas(log=printed(TABLES[0], slower=2), limits=True).svg
    return makers


@dataclass(frozen=True)
class Words:
    """A text of a picture in points: its box, and the size of its letters."""

    text: str
    left: float
    top: float
    right: float
    bottom: float
    size: float


def words(picture: bytes) -> list[Words]:
    """Every text of a picture with its extents, by matplotlib's own letters."""
    root = ET.fromstring(picture)
    (style,) = (e.text or "" for e in root.iter(f"{SVG}style"))
    found = []
    for e in root.iter(f"{SVG}text"):
        (look,) = re.findall(rf"\.{e.get('class')}\{{([^}}]*)\}}", style)
        size = float(re.search(r"font-size:([\d.]+)px", look)[1]) / 10
        long = 36 * extent(e.text, size, bold="font-weight:700" in look, mono="Mono" in look)
        x, y = (float(e.get(k)) / 10 for k in "xy")
        left = x - long * {"start": 0, "middle": 0.5, "end": 1}[re.search(r"text-anchor:(\w+)", look)[1]]
        found.append(Words(e.text, left, y - 0.76 * size, left + long, y + 0.24 * size, size))
    return found


def size(picture: bytes) -> tuple[float, float]:
    """Width and height of a picture in points."""
    root = ET.fromstring(picture)
    return tuple(float(np.char.strip(root.get(k), "pt")) for k in ("width", "height"))
