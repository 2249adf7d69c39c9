"""NCCL's own model, told anew: what it chooses where, and its laws."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from labkit.floor.errors import LabError
from workbook.tools.costs import A100, B200, GB200, H100, RENTED, choose
from workbook.tools.costs import nccl as nccl_model

SIZES = 2 ** np.arange(3, 35)


def test_on_eight_h200_it_changes_where_the_published_run_saw_nccl_change():
    # stas00/ml-engineering, all-reduce-8xH200.md: "Ring with the LL protocol up to 1 MiB, NVLS with SIMPLE from 2 MiB".
    chosen = {int(s): choose("all_reduce", s, 8, H100) for s in SIZES if s >= 2**15}
    assert {(c.algorithm, c.protocol) for s, c in chosen.items() if s <= 2**20} == {("Ring", "LL")}
    assert {(c.algorithm, c.protocol) for s, c in chosen.items() if s >= 2**21} == {("NVLS", "Simple")}


def test_many_nodes_want_a_tree_for_small_messages_and_a_ring_only_where_latency_no_longer_counts():
    algorithms = [choose("all_reduce", float(s), 64, RENTED["A100 EFA"]).algorithm for s in 2 ** np.arange(3, 39)]
    assert algorithms[0] == "Tree"
    assert algorithms[-1] == "Ring"
    assert algorithms == sorted(algorithms, reverse=True), "one change, from the tree to the ring"


def test_the_ring_gets_its_bandwidth_at_last():
    (ring,) = (t for (a, p, t) in choose("all_reduce", 1e13, 8, A100).table if (a, p) == ("Ring", "Simple"))
    assert 1e13 / ring / 1e9 == pytest.approx(A100.nvlink * 8 / 14, rel=1e-3)


def test_every_operation_has_the_algorithms_that_nccl_has_for_it():
    def names(op, n, cluster=H100):
        return {a for a, _, _ in choose(op, 1e6, n, cluster).table}

    assert names("all_reduce", 8) == {"Ring", "Tree", "NVLS"}
    assert names("all_reduce", 64) == {"Ring", "Tree", "NVLSTree"}
    assert names("broadcast", 64) == names("reduce", 64) == {"Ring"}
    assert names("all_gather", 8) == {"Ring", "NVLS"}
    assert names("all_gather", 64) == {"Ring"}
    assert names("all_gather", 64, H100.but(gpus_per_node=1)) == {"Ring", "PAT"}, "PAT: one GPU a node"
    assert names("all_reduce", 8, A100) == {"Ring", "Tree"}, "NVLS came with Hopper"


def test_only_simple_adds_up_in_the_switch():
    assert {p for a, p, _ in choose("all_reduce", 1e6, 64, H100).table if a.startswith("NVLS")} == {"Simple"}


def test_times_are_finite_somewhere_never_negative_and_grow_with_the_size_but_for_the_trees_bend(subtests):
    for cluster, op, n in product((A100, H100, GB200), nccl_model.OPS, (2, 8, 16, 72, 1440, 100_000)):
        with subtests.test(cluster.name, op=op, n=n):
            times = nccl_model.times(op, SIZES.astype(float), n, cluster)
            assert np.isfinite(np.min(list(times.values()), axis=0)).all()
            for (algorithm, _), t in times.items():
                if np.isfinite(t).all() and algorithm != "Tree":
                    assert (np.diff(t) > 0).all()
                    assert (t > 0).all()


def test_arrays_give_what_single_calls_give():
    ranks = np.array([8, 64, 1024])[:, None]
    grid = nccl_model.times("all_reduce", SIZES.astype(float), ranks, H100)
    best = np.min(list(grid.values()), axis=0)
    for i, n in enumerate((8, 64, 1024)):
        assert [choose("all_reduce", float(s), n, H100).seconds for s in SIZES] == pytest.approx(best[i].tolist())


def test_an_oversubscribed_network_is_as_slow_as_it_says_where_the_network_decides():
    def slope(c):
        a, b = (choose("all_reduce", s, 1024, c).seconds for s in (1e12, 2e12))
        return b - a

    narrow = H100.but(nvls=False, rails=2)
    assert slope(narrow.but(oversubscription=4)) == pytest.approx(4 * slope(narrow), rel=1e-6)


@pytest.mark.parametrize(
    ("nccl", "hop", "ring", "tree", "bends"),
    [  # src/graph/tuning.cc of these tags
        ("2.28.3", 14.0, (73.4, 73.4, 73.4), 43.1, False),
        ("2.28.7", 14.0, (73.4, 34.6, 73.4), 43.1, False),
        ("2.28.9", 20.9, (73.4, 34.6, 73.4), 43.8, False),
        ("2.29.3", 20.9, (34.5, 34.6, 34.5), 43.8, True),
        ("2.29.7", 20.9, (40.0, 40.0, 40.0), 43.8, True),
        ("2.30.7", 20.9, (40.0, 40.0, 40.0), 80.0, True),
    ],
)
def test_a_version_has_the_constants_of_its_tag(nccl, hop, ring, tree, bends):
    def time(cluster, n, way, size):
        return nccl_model.times("all_reduce", size, n, cluster.but(nccl=nccl))[way].item()

    hops = (time(H100, n, ("NVLSTree", "Simple"), 0.0) for n in (32, 16))
    assert next(hops) - next(hops) == pytest.approx(2e-6 * hop)
    wide = B200.but(rail=1e6, nvlink=1e6)  # nothing limits but the channels' caps
    for nodes, cap in zip((1, 2, 4), ring, strict=True):
        n = 8 * nodes
        slope = (time(wide, n, ("Ring", "LL128"), 2e15) - time(wide, n, ("Ring", "LL128"), 1e15)) / 1e15
        assert 2 * (n - 1) / n / slope == pytest.approx(32e9 * cap)
    slope = (time(wide, 32, ("NVLSTree", "Simple"), 2e15) - time(wide, 32, ("NVLSTree", "Simple"), 1e15)) / 1e15
    assert 62 / 32 / slope == pytest.approx(32e9 * tree)
    mib, on_arm = (time(wide.but(cpu=cpu), 32, ("NVLSTree", "Simple"), 2**20) for cpu in ("intel", "arm"))
    assert (mib > on_arm) == bends


def test_where_the_newer_latency_of_nvls_tree_turns_the_choice(subtests):
    for n, size in ((24, 2**22), (64, 2**24), (1024, 2**26)):
        with subtests.test(n=n):
            older, newer = (choose("all_reduce", size, n, H100.but(nccl=v)).algorithm for v in ("2.28.3", "2.28.9"))
            assert (older, newer) == ("NVLSTree", "Tree")


def test_a_choice_names_the_version_and_an_older_one_is_refused():
    assert "NCCL 2.28.9" in repr(choose("all_reduce", 1e6, 64, H100))
    with pytest.raises(LabError, match=r"Give 2\.28\.3"):
        choose("all_reduce", 1e6, 64, H100.but(nccl="2.27.7"))
    with pytest.raises(LabError, match=r"such as 2\.28\.9"):
        H100.but(nccl="new")


def test_what_it_does_not_know_is_refused():
    with pytest.raises(LabError, match="all_to_all"):
        choose("all_to_all", 1e6, 8, H100)
    with pytest.raises(LabError, match="two or more"):
        choose("all_reduce", 1e6, 1, H100)


def test_a_cluster_that_cannot_be_is_refused():
    for wrong in ({"nvlink": 0}, {"oversubscription": 0.5}, {"generation": "kepler"}, {"rails": -1}, {"gpus": 8}):
        with pytest.raises(LabError):
            H100.but(**wrong)
