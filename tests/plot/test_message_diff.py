"""Pictures are drawn beside whatever else draws: JupyterLab runs widgets' callbacks in another thread than cells."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import matplotlib as mpl
import pytest

from labkit import Atlas, WhatIf
from labkit.plot import flow, svg
from tests import pictures

pytestmark = pytest.mark.slow

MINE = {
    "font.size": 30, "font.family": "monospace", "lines.linewidth": 9, "patch.linewidth": 9, "hatch.linewidth": 9,
    "text.color": "red", "axes.facecolor": "black", "figure.dpi": 300, "savefig.dpi": 300, "path.simplify": True,
    "path.sketch": (1, 100, 2), "axes.linewidth": 9, "svg.fonttype": "path", "figure.constrained_layout.use": True,
}  # fmt: skip


def drawn() -> dict[str, bytes]:
    drawing = pictures.flow_of(3, 2, True)
    return {
        "flow": svg.svg(flow.draw(drawing)),
        "late": pictures.late_of(3),
        "sweep": pictures.sweep_of(),
        "timeline": pictures.crossing().svg,
        "steps": pictures.shift(3, 1).film.still,
        "whatif": WhatIf(n=8).svg,
        "atlas": Atlas(limits=True).svg or b"",
    }


@pytest.fixture(scope="module")
def expected() -> dict[str, bytes]:
    return drawn()


def test_a_learners_own_style_changes_nothing_in_a_picture(expected):
    with mpl.rc_context(MINE):
        assert drawn() == expected


def test_drawing_changes_no_setting_while_it_draws(expected, monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("a setting of everybody's was changed")

    monkeypatch.setattr(mpl.RcParams, "__setitem__", refuse)
    monkeypatch.setattr(mpl.RcParams, "_set", refuse)
    assert drawn() == expected


def test_threads_that_draw_at_once_draw_what_they_would_alone(expected):
    together = threading.Barrier(4)

    def draw_with_the_others(_: int) -> dict[str, bytes]:
        together.wait()
        return drawn()

    with ThreadPoolExecutor(4) as pool:
        assert all(pictures_ == expected for pictures_ in pool.map(draw_with_the_others, range(4)))
