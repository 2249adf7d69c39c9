"""The what-if widget, driven without a browser: what it says, what it draws, what its controls do."""

from __future__ import annotations

import json
import re
import xml.dom.minidom
from base64 import b64encode
from itertools import product

import pytest

import labkit
from labkit.content import view
from labkit.floor.errors import LabError
from labkit.plot.sheet import FULL, extent
from workbook.tools.costs import H100, RENTED, choose, estimate, flat
from workbook.tools.costs.predict import OPS, times
from workbook.tools.whatif.face import WhatIf
from workbook.tools.whatif.plot import COLUMNS
from workbook.tools.whatif.tables import RANKS


@pytest.fixture
def w():
    return WhatIf("all_reduce", n=8, nbytes=2**20, alpha=1e-5, beta=1e-10)


def test_it_is_one_of_labkits_public_names():
    assert labkit.WhatIf is WhatIf


def test_its_numbers_are_those_of_the_textbook(w):
    assert w.seconds == pytest.approx({k: float(t) for k, t in flat("all_reduce", 2**20, 8, 1e-5, 1e-10).items()})
    assert list(w.seconds.values()) == sorted(w.seconds.values())
    assert w.winner == next(iter(w.seconds))


def test_on_a_cluster_they_are_those_of_its_algorithms_and_what_nccl_takes_stands_beside(subtests):
    for op in OPS:
        with subtests.test(op):
            w = WhatIf(op, n=1024, nbytes=2**27, cluster="H100")
            assert w.seconds == pytest.approx({k: float(t) for k, t in times(op, 2**27, 1024, H100).items()})
            assert w.nccl is not None
            way, seconds = w.nccl
            assert seconds == pytest.approx(estimate(op, 2**27, 1024, H100))
            assert f"NCCL, estimated: {way}" in repr(w)
            assert "NCCL" not in repr(WhatIf(op)), "it does not run on links that are all alike"
    way, _ = WhatIf("all_reduce", n=100_000, nbytes=2**30, cluster="H100").nccl or ("", 0)
    assert way == "NVLSTree, Simple", "it has the name that `choose` gives it between nodes"
    assert choose("all_reduce", 2**30, 100_000, H100).algorithm == "NVLSTree"


def test_every_cluster_that_costs_names_can_be_chosen(w, subtests):
    for name in RENTED:
        with subtests.test(name):
            w.go(cluster=name)
            assert w.cluster == RENTED[name]


def test_where_nccl_is_ahead_of_every_letter_the_map_is_hatched():
    w = WhatIf("all_reduce", n=8, nbytes=2**30, cluster="H100")
    assert w.nccl is not None
    assert w.nccl[1] < min(w.seconds.values()), "NVLS, which no letter has"
    assert "the fastest letter" in w.svg.decode()
    ahead = w.scene.ahead
    assert ahead is not None
    assert ahead[w.scene.ranks.index(8), abs(w.scene.sizes - 2**30).argmin()]
    assert not ahead[w.scene.ranks.index(1024), abs(w.scene.sizes - 2**30).argmin()]
    assert "hatched" in w.svg.decode()
    assert "hatched" not in WhatIf("all_reduce", n=8).svg.decode()


def test_the_crossing_moves_with_alpha_times_bandwidth(w):
    """Doubling both lets four times as many bytes pass in the time of α; doubling α and halving 1/β as many as now."""
    assert "a link carries 97.66 KiB" in w.links
    w.go(alpha=2e-5, beta=5e-11)
    assert "a link carries 390.6 KiB" in w.links
    w.go(beta=2e-10)
    assert "a link carries 97.66 KiB" in w.links


def test_no_line_of_the_legend_runs_into_the_next_or_off_the_page(subtests):
    for op, cluster in product(OPS, (None, "H100", "A100 EFA", "B200 RoCE")):
        with subtests.test(op, cluster=cluster):
            scene = WhatIf(op, n=100_000, nbytes=2**34, cluster=cluster).scene
            for i, line in enumerate([*scene.legend, *([scene.extra[0]] if scene.extra else [])]):
                assert extent(line, 8) < (COLUMNS[1] - COLUMNS[0] if i % 2 == 0 else FULL - COLUMNS[1]) - 1.2
            assert extent(scene.links, 8) < FULL - 1


def test_all_of_it_is_seen_beside_the_file_browser_of_a_narrow_window(w):
    (least,) = re.findall(r"min-width: (\d+)px", w._repr_html_())
    assert int(least) < 740


def test_on_100_000_gpus_neither_faster_nvlink_nor_more_network_helps_alone_as_lesson_07_says():
    def fastest(cluster):
        w = WhatIf("all_reduce", n=100_000, nbytes=2**30, cluster=cluster)
        assert w.winner == "hierarchical, PAT between nodes"
        return w.seconds[w.winner]

    before = fastest("H100")
    assert fastest("B200") == pytest.approx(before)
    assert fastest(H100.but(name="16 cards", rails=16)) / before == pytest.approx(0.95, abs=0.005)
    assert fastest("GB200") / before == pytest.approx(0.65, abs=0.02)


def test_every_control_redraws_the_picture_and_its_words(w):
    seen = [w._repr_html_()]
    for move in (
        {"n": 100_000}, {"nbytes": 2**30}, {"op": "broadcast"}, {"alpha": 1e-3}, {"beta": 1e-9},
        {"cluster": "GB200"}, {"oversubscription": 4},
    ):  # fmt: skip
        w.go(**move)
        seen.append(w._repr_html_())
        assert w.winner in seen[-1]
    assert len(set(seen)) == len(seen)
    assert w.n == 100_000


def test_a_hundred_thousand_ranks_are_on_the_slider(w):
    w.go(n=100_000)
    assert w.n == 100_000


def test_a_move_in_the_page_reaches_python_and_a_go_reaches_the_page(w):
    w.said = {**w.at, "n": RANKS.index(12), "cluster": 1, "nth": 1}
    assert (w.n, w.cluster) == (12, RENTED["A100"])
    w.go(n=100_000, oversubscription=2)
    assert w.said == w.at == {**w.at, "n": RANKS.index(100_000), "cluster": 1, "oversubscription": 2}
    assert w.data["at"]["n"] == RANKS.index(8), "the tables do not go to the page again"


def test_oversubscription_slows_what_leaves_a_node():
    w = WhatIf("all_reduce", n=1024, nbytes=2**30, cluster="H100")
    before = w.seconds["flat ring"]
    w.go(oversubscription=4)
    assert w.seconds["flat ring"] > 2 * before
    assert w.cluster is not None
    assert w.cluster.network == 100


def test_a_cluster_of_ones_own_joins_the_list():
    mine = H100.but(name="mine", rails=1)
    w = WhatIf("all_reduce", n=64, cluster=mine)
    assert w.seconds == pytest.approx({k: float(t) for k, t in times("all_reduce", 2**20, 64, mine).items()})
    assert "mine" in w.data["controls"][1]["options"]
    assert w.meta is None, "a page without a kernel could not know it"


@pytest.mark.slow
def test_every_picture_is_well_formed_small_and_the_same_twice(subtests):
    for op, cluster in product(OPS, (None, "A100", "GB200")):
        with subtests.test(op, cluster=cluster):
            w = WhatIf(op, n=1024, cluster=cluster)
            first = w.svg
            assert b64encode(first).decode() in w._repr_html_(), "drawn once more"
            assert len(first) < 60_000
            xml.dom.minidom.parseString(first)
            for name in w.seconds:
                assert f"{name}: " in first.decode()


def test_the_map_names_the_winner_where_the_cross_is(w):
    for n, size in ((8, 2**5), (8, 2**30), (4096, 2**14)):
        w.go(n=n, nbytes=size)
        scene = w.scene
        row, column = scene.ranks.index(n), abs(scene.sizes - size).argmin()
        assert list(scene.curves)[scene.map[row][column]] == w.winner


def test_it_shows_where_no_module_runs_and_carries_its_words(w):
    bundle, _ = w._repr_mimebundle_()
    assert bundle["text/plain"] == repr(w)
    (alt,) = re.findall(r'<img alt="([^"]*)"', bundle["text/html"])
    assert "halving-doubling" in alt
    assert "application/vnd.jupyter.widget-view+json" in bundle


@pytest.mark.parametrize("made", [{}, {"cluster": "GB200", "n": 100_000}, {"op": "broadcast", "alpha": 3e-6}])
def test_a_page_without_a_kernel_begins_where_the_output_stands_and_is_small(made):
    w = WhatIf(**made)
    w.go(oversubscription=3)
    _, metadata = w._repr_mimebundle_()
    meta = json.loads(json.dumps(metadata["labkit"]))
    assert len(json.dumps(meta)) < 200
    shown = view("whatif")(meta)
    assert shown == {"kind": "whatif", "data": {**w.data, "at": w.at}}
    assert len(json.dumps(shown)) < 400_000
    assert len(shown["data"]["clusters"]) == len(RENTED)


@pytest.mark.parametrize(
    "wrong",
    [{"op": "barrier"}, {"n": 0}, {"n": "many"}, {"nbytes": -1}, {"alpha": 0}, {"cluster": "V100"}],
)
def test_what_it_cannot_show_is_refused_with_what_it_can(wrong):
    with pytest.raises(LabError):
        WhatIf(**wrong)


def test_an_unknown_control_is_refused(w):
    with pytest.raises(LabError, match="oversubscription"):
        w.go(ranks=4)
