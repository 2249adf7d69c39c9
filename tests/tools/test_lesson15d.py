"""What lesson 15d asks and says, worked out again."""

from __future__ import annotations

import numpy as np
import pytest

from labkit import draw
from labkit.content import predictions
from labkit.floor.errors import LabError
from tests import pictures
from workbook.lesson15d import expected_wait, hierarchical_seconds, steps_between_checkpoints
from workbook.tools import events
from workbook.tools.events import Step, engine, failures, program, slowest
from workbook.tools.events.failures import DAY
from workbook.tools.events.show import Spent
from workbook.tools.formulas import figures

N, SIZE, FABRIC = 100_000, 14e9, events.H100S.but(over=4)
MTBF = 54 * DAY * 16_384 / 419


def answer(name: str):
    return predictions.find(name).answer


@pytest.fixture(scope="module")
def steps() -> dict[str, Step]:
    ready = events.drawn(N, seconds=2.0, spread=0.04)
    ways = ("ring", "hierarchical, ring", "hierarchical, PAT", "hierarchical, Bruck")
    return {way: events.all_reduce(way, FABRIC, N, SIZE, ready) for way in ways}


def test_failures_take_most_of_the_job_as_it_is_and_it_computes_for_a_quarter_of_its_time(steps):
    run = events.train(steps["ring"], MTBF, checkpoint=60, restart=600, every=1800)
    assert 0.22 < run.computing < 0.28
    failing = run.parts["lost work"] + run.parts["down"]
    others = {k: v for k, v in run.parts.items() if k not in ("computing", "lost work", "down")}
    assert failing > 0.5 * run.seconds > 2 * max(others.values())
    assert run.parts["latency"] / run.seconds == pytest.approx(0.12, abs=0.01)
    assert sum(run.parts.values()) == pytest.approx(run.seconds)


def test_the_hosts_ring_waits_for_latency_as_long_as_the_prediction_says(steps):
    assert answer("latency_of_the_hosts_ring") == pytest.approx(2 * 12_499 * 14e-3, rel=1e-3)
    near = 14 * FABRIC.near
    assert steps["hierarchical, ring"].parts["latency"] - near == pytest.approx(0.35, rel=0.001)
    assert steps["ring"].parts["latency"] == pytest.approx(0.945, rel=0.001)


def test_the_exercises_on_paper_find_what_the_tools_do():
    near, nvlink, far, nic = 3e-6, 400e9, 14e-6, 50e9
    for hosts, gpus in ((1, 8), (5, 1), (2, 4), (12_500, 8)):
        inside, between = (figures("all_reduce", "ring", n) for n in (gpus, hosts))
        seconds = inside.seconds(near, SIZE / nvlink) + between.seconds(far, SIZE / gpus / nic)
        assert hierarchical_seconds(SIZE, hosts, gpus, near, nvlink, far, nic) == pytest.approx(seconds)
    for ranks in (1, 2, 1000, N):
        assert expected_wait(0.02, ranks) == pytest.approx(0.02 * (slowest.harmonic(ranks) - 1))
    for ranks in (1, 16_384, N):
        every = failures.young(60, failures.between_failures(ranks, MTBF))
        assert steps_between_checkpoints(MTBF, ranks, 60, 5) == round(every / 5)


def test_four_messages_on_one_link_are_through_when_the_prediction_says():
    fabric = events.Fabric(gpus=1, nics=1, leaf=4, over=4, far=1e-9)
    dst = np.array([[[4, 5, 6, 7, -1, -1, -1, -1]]])
    made = program.Program("four", dst, np.ones(dst.shape))
    finish = engine.play(made, fabric, np.arange(8), 8, np.zeros(8), 10e9).finish
    assert finish[4:].mean() == pytest.approx(answer("four_at_once"))


def test_a_ring_in_random_order_goes_at_the_pace_of_the_busiest_link():
    ranks = 8 * 256
    ordered, scattered = (
        events.all_reduce("hierarchical, ring", f, ranks, SIZE) for f in (FABRIC, FABRIC.but(scattered=1))
    )
    assert ordered.parts["bytes between hosts"] == pytest.approx(0.070, rel=0.01)
    assert ordered.parts["queues"] == 0
    took = scattered.parts["queues"] + scattered.parts["bytes between hosts"]
    every = np.arange(ranks)
    links = FABRIC.but(scattered=1).paths(every, (every + 8) % ranks, ranks).links[1:3]
    busiest = np.bincount(links[links >= 0]).max()
    assert busiest == 9
    assert took == pytest.approx(busiest * ordered.parts["bytes between hosts"], rel=0.02)


def test_numbers_of_hosts_that_suit_the_switches_leave_only_the_tree_a_queue():
    flat = FABRIC.but(over=1)
    for way, queued in (("PAT", False), ("Bruck", False), ("halving-doubling", False), ("double tree", True)):
        fits = events.all_reduce(f"hierarchical, {way}", flat, 131_072, SIZE)
        odd = events.all_reduce(f"hierarchical, {way}", flat, N, SIZE)
        assert odd.parts["queues"] > 1e-3
        assert (fits.parts["queues"] > 1e-6) == queued


def test_brucks_queues_are_much_longer_than_pats_where_the_spine_is_short_and_about_as_short_where_not(steps):
    bruck, pat = steps["hierarchical, Bruck"], steps["hierarchical, PAT"]
    assert bruck.seconds > pat.seconds + 0.1
    assert bruck.parts["queues"] > 5 * pat.parts["queues"]
    assert answer("bruck_or_pat") == "Bruck's"


def test_the_slowest_of_100_000_is_as_late_as_the_prediction_says():
    late = {n: 1e3 * (slowest.expected(n, 2.0, 0.04) - 2) for n in (8, 1024, N)}
    assert [round(ms) for ms in late.values()] == [57, 129, 175]
    assert answer("slowest_in_sigmas") == pytest.approx(late[N], rel=0.01)
    assert 1e3 * (slowest.expected(N, 2.0, 0.04, "exponential") - 2) == pytest.approx(444, abs=1)


def test_the_minutes_between_failures_are_the_published_ones_scaled():
    assert answer("minutes_between_failures") == pytest.approx(failures.between_failures(N, MTBF) / 60, rel=0.01)
    assert pytest.approx(MTBF / failures.YEAR, abs=0.05) == 5.8


def test_cheaper_checkpoints_shorten_the_interval_as_the_prediction_says():
    between = failures.between_failures(N, MTBF)
    assert failures.young(60, between) / failures.young(5, between) == pytest.approx(3.46, abs=0.01)
    every = failures.best(60, between)
    assert every == pytest.approx(failures.young(60, between), rel=0.12)


def test_the_restart_brings_most(steps):
    step = steps["hierarchical, PAT"]
    before = events.train(step, MTBF, 60, 600).computing
    ready = events.drawn(N, 2.0, 0.04)
    gains = {
        "restart": events.train(step, MTBF, 60, 120).computing,
        "checkpoint": events.train(step, MTBF, 5, 600).computing,
    }
    other = {"links": FABRIC.but(nic=2 * FABRIC.nic, nvlink=2 * FABRIC.nvlink), "spine": FABRIC.but(over=1)}
    for name, fabric in other.items():
        gains[name] = events.train(
            events.all_reduce("hierarchical, PAT", fabric, N, SIZE, ready), MTBF, 60, 600
        ).computing
    assert sorted(gains, key=lambda name: -gains[name])[:2] == ["restart", "checkpoint"]
    assert 0.10 < gains["restart"] - before < 0.16
    assert max(gains["links"], gains["spine"]) - before < 0.035


def test_a_step_and_a_run_draw_themselves_and_their_words_hold_every_part(steps):
    drawn = draw({"ring": steps["ring"], "PAT": steps["hierarchical, PAT"]})
    assert [line.split(":")[0] for line in repr(drawn).splitlines()] == ["ring", "PAT"]
    assert "latency 945 ms" in repr(drawn)
    alone = repr(draw(steps["ring"]))
    assert f"{alone}, queues 0 s" == repr(drawn).splitlines()[0], "beside one with queues, it says that it has none"
    run = draw(events.train(steps["ring"]))
    assert "% computing" in repr(run)
    assert "lost work" in run._repr_html_()
    with pytest.raises(LabError, match="is not a schedule"):
        draw({"a": 1})


def test_the_bars_begin_behind_the_longest_name_and_are_as_long_whatever_the_names():
    step = events.all_reduce("hierarchical, ring", events.H100S, 64, 1e9)
    widths = [pictures.size(Spent({name: step}).svg)[0] for name in ("ring", "… saves at Young's interval", "x" * 99)]
    assert widths == sorted(set(widths)), "no room is kept for names that are not there"
    assert all(w.right <= width for w in pictures.words(Spent({"x" * 99: step}).svg) for width in widths[2:])
