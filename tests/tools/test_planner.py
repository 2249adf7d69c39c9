"""A plan shows itself with its reasons, and the planner keeps the best of what the learner has tried."""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path

import pytest

import labkit
from labkit import LabError
from labkit.faces import progress
from workbook.tools.planning import JOBS, Plan, Price, best, plot
from workbook.tools.planning.planner import Planner
from workbook.tools.planning.show import Links, Planned
from workbook.tools.progress.face import progress as overview

CAPSTONE = Plan(4, 8, 2, 64, zero=1, sequence=True)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABKIT_PROGRESS", str(tmp_path))
    return tmp_path


def test_labkit_has_it():
    assert labkit.Planner is Planner


def test_where_the_sliders_begin_nothing_is_kept_and_every_move_is_judged(place: Path):
    planner = Planner(job="66B", tensor=8, pipe=2, micro=64, zero="ZeRO-1", sequence="on")
    assert planner.planned.ratio == pytest.approx(1.08, abs=0.005)
    assert progress.planned() == {}
    assert not (place / "progress.json").exists()
    planner.go(order="tensor data pipe")
    assert progress.planned()["66B"] == pytest.approx(2.48, abs=0.01)


def test_the_least_is_kept_for_each_job_and_nothing_for_what_does_not_fit():
    planner = Planner()
    planner.go(job="7B", micro=4)
    planner.go(pipe=64)
    assert progress.planned() == {}
    planner.go(pipe=1, tensor=4)
    first = progress.planned()["7B"]
    planner.go(zero="ZeRO-1", tensor=1)
    assert progress.planned()["7B"] < first
    kept = progress.planned()
    planner.go(tensor=4)
    assert progress.planned() == kept
    assert f"Your best so far: {kept['7B']:.2f} times the best plan." in repr(planner)


def test_what_was_kept_stands_beside_exercises_and_predictions(place: Path):
    progress.plan("66B", 1.5)
    progress.change("mates", state="solved")
    progress.predict("longer_pipeline", "they stay the same", True)
    progress.plan("66B", 2.0)
    assert progress.planned() == {"66B": 1.5}
    assert progress.read()["mates"]["state"] == "solved"
    assert progress.predicted()["longer_pipeline"]["right"]
    assert json.loads((place / "progress.json").read_text())["plans"] == {"66B": {"least": 1.5}}


def test_progress_says_what_the_best_plans_took():
    assert "Plans" not in repr(overview(None, "15c"))
    progress.plan("66B", 1.081)
    progress.plan("7B", 1.0)
    said = "Plans: 66B in 1.08 and 7B in 1.00 times the best plan's time"
    for table in (overview(None), overview(None, "15c")):
        assert repr(table).endswith(said)
        assert said in table._repr_html_()
    assert "Plans" not in repr(overview(None, "07"))


def test_data_is_what_is_left_and_a_team_too_large_is_said_to_be():
    planner = Planner(job="1T", tensor=8, pipe=16)
    assert planner.planned.verdict.plan.data == 8
    planner.go(job="7B")
    assert "tensor 8 x pipe 16 is 128 GPUs, and there are 16." in repr(planner)


def test_a_slider_that_is_none_is_refused():
    with pytest.raises(LabError, match="no 'copies'"):
        Planner(copies=3)


@pytest.mark.parametrize(
    "its", [CAPSTONE, CAPSTONE.but(sequence=False), CAPSTONE.but(order="tensor data pipe"), Plan(64), Plan(1, 8, 64)]
)
def test_what_it_says_is_in_its_text_and_on_its_page(its: Plan):
    planned = Planned("66B", its, record=1.25)
    words = unescape(planned._repr_html_())
    for line in [planned.title, *planned.says]:
        assert line in repr(planned)
        assert line in words
    assert "Your best so far: 1.25 times" in repr(planned)


def test_its_picture_has_every_figure_in_words_and_none_for_an_impossible_plan():
    planned = Planned("66B", CAPSTONE)
    price, top = Price(JOBS["66B"], CAPSTONE), best(JOBS["66B"])
    assert top is not None
    for figure in (f"{price.total:.3g} s", f"{price.memory / 1e9:.0f} GB", "3,029 GB", "100 GB", "8.59 GB"):
        assert figure in repr(planned)
    svg = planned.svg.decode()
    for figure in (f"best plan {top.total:.3g} s", "room for 80 GB", "3,029 GB", "which fits"):
        assert figure in svg
    assert planned.svg == Planned("66B", CAPSTONE).svg
    assert "<img" not in Planned("66B", Plan(1, 8, 64))._repr_html_()


def test_links_have_each_way_twice_and_the_time_to_compute():
    links = Links("66B")
    assert repr(links).count("over NVLink") == 4
    assert f"computing takes {links.computing:.0f} s" in repr(links)
    assert links.computing == pytest.approx(6 * 66.6e9 * 256 * 8192 / 64 / 400e12, rel=0.01)
    svg = links.svg.decode()
    assert all(a.way in svg for a in links.ways)
    assert "powers of ten" in svg


@pytest.mark.parametrize("whole", [40.0, 68.0, 72.0, 76.0, 79.9, 80.0, 120.0])
def test_the_mark_does_not_go_through_the_total(whole: float):
    ax = plot.draw([plot.Stack("A GPU", {"weights": whole}, "GB", 80.0, "room for 80 GB")], ["a", "b", "c"], [])
    (total,) = [t for t in ax.texts if t.get_text() == f"{plot.figure(whole)} GB"]
    at = ax.lines[-1].get_xdata()[0]
    left = total.get_position()[0]
    assert not left < at < left + plot.extent(total.get_text(), 9, True)
