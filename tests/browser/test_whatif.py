"""The what-if in JupyterLab and on a page without a kernel: it moves by itself, and its numbers are Python's."""

from __future__ import annotations

import math
import random
from itertools import product

import browse
import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from labkit.content import view
from labkit.floor import words
from tests.alone import shown
from workbook.tools.costs import A100, RENTED
from workbook.tools.costs.estimate import times as ways
from workbook.tools.costs.predict import OPS
from workbook.tools.whatif.face import WhatIf
from workbook.tools.whatif.tables import RANKS

pytestmark = pytest.mark.browser

START = "from labkit import start\n\nlab = start(timeout=600)"
ENDLESS = "%%px\nprint('begun', flush=True)\nwhile True:\n    pass"
SUM = "%%px\nx = torch.ones(1)\ndist.all_reduce(x)\nx"
MADE = "from labkit import WhatIf\n\nw = WhatIf('all_reduce', n=8, nbytes=2**20, alpha=1e-5, beta=1e-10)\nw"
SAID = """every => every.map(at => {
    model.set("said", at);
    return {
        legend: [...document.querySelectorAll(".labkit-legend li > span")].map(line => line.textContent),
        title: document.querySelector("[role=status]").textContent,
        links: document.querySelector(".labkit-quiet").textContent,
        regions: document.querySelectorAll("svg[role=img]")[1].getAttribute("aria-label"),
    };
})"""


def title(widget: Locator) -> Locator:
    return widget.get_by_role("status")


def seconds(said: str) -> float:
    number, unit = said.split()[:2]
    return float(number.replace(",", "")) * {"s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]


@pytest.fixture
def alone(chromium: BrowserContext):
    page = chromium.new_page()
    yield page
    page.close()


def compare(page: Page, w: WhatIf, every: list[dict[str, int]]) -> None:
    """The page and Python say the same, to 1 %, with each of these states of the controls."""
    for at, told in zip(every, page.evaluate(SAID, every), strict=True):
        w.said = at
        said = dict(line.rsplit(": ", 1) for line in told["legend"] if not line.startswith(("NCCL", "hatched")))
        assert {name: seconds(t) for name, t in said.items()} == pytest.approx(w.seconds, rel=0.01), (at, told)
        marked = [name for name, t in said.items() if "◀" in t]
        assert marked == [marked[0]]
        assert w.seconds[marked[0]] <= 1.001 * w.seconds[w.winner], at
        assert told["title"].startswith(
            f"{w.op} of {words.nbytes(w.nbytes)} on {w.n:,} ranks: {marked[0]} is the fastest"
        )
        assert told["links"] == w.links
        (nccl,) = [line for line in told["legend"] if line.startswith("NCCL")] or [""]
        if w.nccl is None:
            assert not nccl, at
        else:
            way, t = w.nccl
            assert seconds(nccl.removeprefix("NCCL, estimated: ")) == pytest.approx(t, rel=0.01), (at, way)
            first, second, *_ = [*sorted(ways(w.op, w.nbytes, w.n, w.cluster).values()), math.inf]
            assert nccl.endswith(f"({way})") or math.isclose(first, second, rel_tol=0.001), (at, nccl)


def test_a_page_without_a_kernel_has_pythons_numbers_for_every_operation_and_cluster(alone):
    """By each operation on each cluster a few places; all of them by chance, but the same ones in every run."""
    draw = random.Random(7)
    w = WhatIf()
    shown(alone, WhatIf, view("whatif")(w.meta))
    sizes = {name: len(control.values) for name, control in w._controls.items()}
    every = [
        {name: draw.randrange(size) for name, size in sizes.items()} | {"op": op, "cluster": cluster}
        for op in range(len(OPS))
        for cluster in range(len(RENTED) + 1)
        for _ in range(8)
    ]
    compare(alone, w, every)


def test_so_it_has_on_a_cluster_whose_processes_launch_for_eight_gpus(alone):
    """In older generations that takes longer for larger messages."""
    w = WhatIf(cluster=A100.but(name="mine", gpus_per_process=8, call_overhead=20.0, oversubscription=2))
    shown(alone, WhatIf, {"kind": "whatif", "data": w.data})
    compare(
        alone,
        w,
        [{**w.at, "op": op, "nbytes": s, "n": n} for op in range(len(OPS)) for s in range(0, 32, 3) for n in (2, 9)],
    )


def test_its_map_has_the_regions_of_pythons(alone):
    w = WhatIf()
    shown(alone, WhatIf, view("whatif")(w.meta))
    for op, cluster in product(("all_reduce", "all_gather", "broadcast"), (None, "H100", "GB200")):
        w.go(op=op, cluster=cluster)
        (told,) = alone.evaluate(SAID, [w.at])
        theirs = {*told["regions"].split(": ", 1)[1].split("; ")}
        cells = {name: (w.scene.map == k).sum() for k, name in enumerate(w.scene.curves)}
        assert {name for name, many in cells.items() if many > 30} <= theirs, (op, cluster)
        assert theirs <= {name for name, many in cells.items() if many}, (op, cluster)


def test_by_keys_alone_it_moves_at_once_without_a_kernel_and_only_what_counts_is_shown(alone):
    alone.set_viewport_size({"width": 400, "height": 1400})
    shown(alone, WhatIf, view("whatif")(WhatIf("all_reduce", n=8).meta))
    expect(title(alone)).to_have_text("all_reduce of 1 MiB on 8 ranks: halving-doubling is the fastest")
    ranks = alone.get_by_role("slider", name="ranks N")
    ranks.focus()
    alone.keyboard.press("ArrowRight")
    expect(title(alone)).to_contain_text("on 12 ranks")
    expect(ranks).to_have_attribute("aria-valuetext", "12")
    assert alone.evaluate("model.get('said').n") == RANKS.index(12)
    assert alone.get_by_role("slider").count() == 4
    alone.get_by_label("links").select_option("GB200 racks (NVL72)")
    expect(alone.get_by_text("NCCL, estimated:")).to_be_visible()
    expect(alone.get_by_role("slider", name="latency α")).to_be_hidden()
    expect(alone.get_by_role("slider", name="oversubscribed")).to_be_visible()
    assert alone.evaluate("document.documentElement.scrollWidth") <= 400, "nothing runs off a narrow page"


def test_a_slider_moves_keeps_its_keys_and_disturbs_no_cell_that_runs(opened, lab_server, shoot):
    """The page moves while a cell runs; the kernel hears of it beside the cell or behind it, as JupyterLab tells it."""
    cells = [START, MADE, ENDLESS, SUM, "w.n, w.winner", "w.go(n=100_000)", "w.n, w.cluster.name"]
    nb: browse.Notebook = opened(lab_server.write("whatif.ipynb", cells))
    nb.run_cell(0)
    widget = nb.run_cell(1)
    expect(title(widget)).to_have_text("all_reduce of 1 MiB on 8 ranks: halving-doubling is the fastest")
    expect(widget.get_by_role("img")).to_have_count(2)
    working = nb.start_cell(2)
    expect(working.locator(".jp-OutputArea")).to_contain_text("begun")
    widget.get_by_role("slider", name="ranks N").focus()
    nb.page.keyboard.press("ArrowRight")
    expect(title(widget)).to_contain_text("on 12 ranks")
    expect(working.locator(".jp-InputPrompt")).to_contain_text("[*]")
    nb.stop()
    nb.wait_idle()
    (error,) = nb.errors()
    assert "You stopped the cell" in error
    expect(nb.run_cell(3)).to_contain_text("4.")
    expect(nb.run_cell(4)).to_contain_text("(12, ")
    widget.get_by_role("slider", name="ranks N").focus()
    nb.page.keyboard.press("d")
    nb.page.keyboard.press("d")
    expect(nb.cells).to_have_count(7)
    widget.get_by_label("links").select_option("H100 servers, 8 × 400 Gb/s")
    expect(widget.get_by_text("NCCL, estimated:")).to_be_visible()
    expect(widget.get_by_text("latency α")).to_be_hidden()
    expect(widget.get_by_text("oversubscribed", exact=True)).to_be_visible()
    shoot(nb, "what-if")
    nb.run_cell(5)
    expect(title(widget)).to_contain_text("on 100,000 ranks")
    expect(nb.run_cell(6)).to_contain_text("(100000, 'H100 servers, 8 × 400 Gb/s')")
    assert nb.errors() == [error]
