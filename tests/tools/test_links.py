"""What a schedule puts on the links of hosts, counted a second way, and what that costs."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from labkit.floor.errors import LabError
from workbook.tools import formulas, schedules
from workbook.tools.schedules.links import Load, loads, seconds

WAYS = [make("all_reduce", n) for make in (schedules.ring, schedules.halving_doubling, schedules.tree) for n in (8, 12)]


def test_a_steps_load_is_what_crosses_the_busiest_hosts_link(subtests):
    for schedule, hosts in product(WAYS, (2, 4)):
        with subtests.test(schedule.name, n=schedule.n, hosts=hosts):
            gpus = schedule.n // hosts
            for step, load in zip(schedule.steps, loads(schedule, hosts), strict=True):
                out, into = np.zeros(hosts), np.zeros(hosts)
                for send in step:
                    if send.src // gpus != send.dst // gpus:
                        out[send.src // gpus] += len(send.chunks)
                        into[send.dst // gpus] += len(send.chunks)
                assert load.share == pytest.approx(max([*out, *into]) / schedule.chunks)
                assert (load.messages == 0) == (load.share == 0)


def test_with_a_link_for_every_rank_it_is_the_closed_formula(subtests):
    for schedule in WAYS:
        with subtests.test(schedule.name, n=schedule.n):
            told = formulas.figures("all_reduce", schedule.name, schedule.n)
            alone = seconds(schedule, 1e9, 1e-5, 1e-10)
            assert alone == pytest.approx(told.seconds(1e-5, 0.1))
            assert seconds(schedule, 1e9, 1e-5, 1e-10, hosts=schedule.n) == pytest.approx(alone), (
                "a rank a host shares nothing"
            )


def test_a_ring_loses_nothing_on_shared_links_and_halving_doubling_does():
    """The lesson's claim, for all its sizes."""
    for n, hosts in ((8, 2), (32, 8), (128, 32)):
        ring, halving = schedules.ring("all_reduce", n), schedules.halving_doubling("all_reduce", n)
        assert {load.messages for load in loads(ring, hosts)} == {1}
        assert max(load.messages for load in loads(halving, hosts)) == n // hosts
        assert seconds(ring, 2**30, 0, 1, hosts) == seconds(ring, 2**30, 0, 1)
        assert seconds(halving, 2**30, 0, 1) == pytest.approx(seconds(ring, 2**30, 0, 1))
        assert seconds(halving, 2**30, 0, 1, hosts) > 1.4 * seconds(halving, 2**30, 0, 1)


def test_the_figures_of_the_predictions():
    ring, halving = schedules.ring("all_reduce", 8), schedules.halving_doubling("all_reduce", 8)
    assert loads(ring, 2) == [Load(1, 0.125)] * 14
    assert [load.messages for load in loads(halving, 2)] == [0, 0, 4, 4, 0, 0]
    assert (seconds(ring, 1, 0, 1, 2), seconds(halving, 1, 0, 1, 2)) == (1.75, 2.5)
    ms = {
        (n, way): 1e3 * formulas.figures("all_reduce", way, n).seconds(1e-5, 2**30 * 1e-10)
        for n in (1000, 1024)
        for way in ("ring", "halving-doubling")
    }
    assert {key: round(value) for key, value in ms.items()} == {
        (1000, "ring"): 235,
        (1000, "halving-doubling"): 429,
        (1024, "ring"): 235,
        (1024, "halving-doubling"): 215,
    }


def test_ranks_that_cannot_be_dealt_out_evenly_are_refused():
    with pytest.raises(LabError, match=r"8 ranks cannot be dealt out evenly to 3 hosts\. Choose a divisor"):
        loads(schedules.ring("all_reduce", 8), 3)
