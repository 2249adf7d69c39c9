"""What ranks recorded becomes text, words and a picture; no rank is started."""

from __future__ import annotations

import re
from math import nan
from xml.etree import ElementTree

import numpy as np
import pytest

from labkit.floor.errors import LabError
from labkit.plot.curves import figure, ticks
from labkit.plot.overlay import MOST
from labkit.plot.sheet import RANKS
from labkit.show.curves import Curves
from labkit.show.overlay import Overlay
from tests.pictures import words

FALLING = [3.0, 2.5, 2.25]


def test_the_text_says_how_many_different_curves_there_are_and_where_each_begins_and_ends():
    assert repr(Curves({"apart": {0: FALLING, 1: [3.0, 2.0, 2.5]}, "together": {0: FALLING, 1: FALLING}})) == (
        "apart · 2 different curves\n"
        "rank 0 │ 3.00 → 2.25 (3 values)\n"
        "rank 1 │ 3.00 → 2.50 (3 values)\n"
        "together · ranks 0, 1: one curve\n"
        "rank 0 │ 3.00 → 2.25 (3 values)\n"
        "rank 1 │ 3.00 → 2.25 (3 values)"
    )


@pytest.mark.parametrize(
    ("lines", "note"),
    [
        ({0: FALLING, 1: [*FALLING[:2], 2.2501]}, "ranks 0, 1: one curve"),
        ({0: FALLING, 1: [*FALLING[:2], 2.26]}, "2 different curves"),
        ({0: FALLING, 1: [4, 4, 4], 2: FALLING, 3: FALLING[:2]}, "3 different curves, ranks 0, 2 alike"),
        ({2: FALLING}, "rank 2"),
        ({0: FALLING, 1: [3.0, nan, nan]}, "2 different curves; rank 1: not all finite"),
        ({0: [nan, nan], 1: [nan, nan]}, "ranks 0, 1: one curve; ranks 0, 1: not all finite"),
    ],
)
def test_lines_that_nobody_can_tell_apart_are_one_curve(lines: dict[int, list[float]], note: str):
    curves = Curves({"x": lines})
    assert repr(curves).splitlines()[0] == f"x · {note}"
    assert note in curves.alt
    assert ElementTree.fromstring(curves.svg).tag.endswith("svg")


def test_lines_are_one_curve_where_the_scale_of_the_picture_hides_what_they_differ_by():
    close = {0: [0.02, 0.02, 0.021], 1: [0.0202, 0.0204, 0.021]}
    assert "x · 2 different curves" in repr(Curves({"x": close}))
    beside = Curves({"x": close, "y": {0: FALLING}})
    assert "x · ranks 0, 1: one curve" in repr(beside)
    assert beside.svg == Curves({"x": {0: close[0], 1: close[0]}, "y": {0: FALLING}}).svg


def test_the_picture_is_the_same_for_equal_values_and_carries_its_words():
    one, other = (Curves({"loss": {0: FALLING, 1: np.array(FALLING)}}, every=5) for _ in range(2))
    assert one.svg == other.svg
    assert one._repr_html_().startswith(
        '<img alt="Values over steps, a line per rank. loss, ranks 0, 1: one curve: rank 0'
    )


def test_a_legend_names_all_ranks_where_there_is_room_for_them():
    four, sixteen = ({*(w.text for w in words(Curves({"x": dict.fromkeys(range(n), FALLING)}).svg))} for n in (4, 16))
    assert {"rank 0", "rank 1", "rank 2", "rank 3"} <= four
    assert {"rank 0", "… rank 15"} <= sixteen


@pytest.mark.parametrize("value", [3.0, [], "losses", [[1.0], [2.0]], None, [FALLING, [1.0]]])
def test_what_is_no_list_of_numbers_is_said_with_the_next_action(value: object):
    with pytest.raises(LabError, match=r"'x' on rank 1 is not a list of numbers to draw. Append one number per step"):
        Curves({"x": {0: FALLING, 1: value}})


@pytest.mark.parametrize(("low", "high"), [(0, 0), (5, 5), (-3.2, 1.1), (1e-7, 3e-7), (1, 1e30), (2.4999, 2.5001)])
def test_ticks_enclose_the_values_and_are_few(low: float, high: float):
    found = ticks(low, high)
    assert 2 <= len(found) <= 8
    assert found[0] <= low + 1e-9 * abs(low)
    assert found[-1] >= high - 1e-9 * abs(high)
    assert len(set(found)) == len(found)


# -- against something else than steps ------------------------------------------------------------------------------


def over(pulled: dict, seconds: dict, unit: str = "s", kind: type[Curves] = Curves) -> Curves:
    return kind(pulled, over=dict.fromkeys(pulled, ("seconds", seconds)), unit=unit)


def test_another_list_takes_the_place_of_steps_and_is_named_with_its_unit():
    curves = over({"loss": {0: FALLING, 1: FALLING}}, {0: [0.0031, 0.0087, 0.013], 1: [0.0031, 0.0087, 0.013]})
    assert repr(curves) == (
        "loss · over seconds (s) · ranks 0, 1: one curve\n"
        "rank 0 │ 3.00 → 2.25 (3 values, 0.0031 to 0.013 s)\n"
        "rank 1 │ 3.00 → 2.25 (3 values, 0.0031 to 0.013 s)"
    )
    assert curves.alt.startswith("Values over seconds (s), a line per rank.")
    said = [word.text for word in words(curves.svg)]
    assert {"seconds (s)", "0.002", "0.014"} <= {*said}
    assert "step" not in said


def test_counts_of_samples_are_readable_on_the_axis_and_in_the_text():
    curves = Curves({"loss": {0: FALLING}}, over={"loss": ("samples", {0: [8000, 16000, 24123]})})
    assert repr(curves).endswith("(3 values, 8,000 to 24,123)")
    assert {"samples", "5,000", "20,000"} <= {word.text for word in words(curves.svg)}


def test_each_panel_may_have_a_list_of_its_own_on_one_scale():
    each = {"one": ("one_s", {0: [1, 2, 3]}), "other": ("other_s", {0: [10, 20, 30]})}
    curves = Curves({"one": {0: FALLING}, "other": {0: FALLING}}, over=each, unit="s")
    said = [word.text for word in words(curves.svg)]
    assert {"one_s (s)", "other_s (s)"} <= {*said}
    assert said.count("30") == 2, "the longer one's end is on both axes"


def test_equal_values_reached_at_different_times_are_different_curves():
    assert "one curve" in repr(over({"x": {0: FALLING, 1: FALLING}}, {0: [1, 2, 3], 1: [1.001, 2.001, 3.001]}))
    assert "2 different curves" in repr(over({"x": {0: FALLING, 1: FALLING}}, {0: [1, 2, 3], 1: [2, 4, 6]}))


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        ({0: [1, 2, 3]}, "Rank 1 has 'x' and lacks 'seconds'. Append to both"),
        ({0: [1, 2, 3], 1: [1, 2]}, "'x' on rank 1 has 3 values and 'seconds' has 2. Append one to each"),
        ({0: [1, 2, 3], 1: [1, 3, 2]}, "'seconds' on rank 1 goes back, from 3 to 2. Measure all of it from the"),
        ({0: [1, 2, 3], 1: "late"}, "'seconds' on rank 1 is not a list of numbers to draw 'x' against. Append one"),
        ({0: [1, 2, 3], 1: [1, nan, 2]}, "'seconds' on rank 1 is not a list of numbers"),
        ({0: [1, 2, 3], 1: [1, None, 2]}, "'seconds' on rank 1 is not a list of numbers"),
        ({0: [1, 2, 3], 1: []}, "'seconds' on rank 1 is not a list of numbers"),
        ({0: [1, 2, 3], 1: 4.0}, "'seconds' on rank 1 is not a list of numbers"),
    ],
)
def test_what_nothing_can_be_drawn_against_is_said_with_the_next_action(seconds: dict, said: str):
    with pytest.raises(LabError, match=said):
        over({"x": {0: FALLING, 1: FALLING}}, seconds)


def test_values_at_the_same_moment_are_no_step_back():
    assert over({"x": {0: FALLING}}, {0: [1, 1, 2]}).places == {"x": {0: [1, 1, 2]}}


@pytest.mark.parametrize(
    ("along", "said"), [(0, "0"), (0.013, "0.013"), (75, "75"), (24000, "24,000"), (1234.5, "1,234.5"), (3e12, "3e+12")]
)
def test_a_figure_on_an_axis_is_said_as_one_says_it(along: float, said: str):
    assert figure(along) == said


# -- in one panel ---------------------------------------------------------------------------------------------------


def test_where_ranks_agree_their_line_is_drawn_and_where_they_differ_their_mean():
    overlay = Overlay({"sync": {0: FALLING, 1: FALLING}, "alone": {0: [3, 2, 1], 1: [3, 4, 2]}})
    sync, alone = overlay.lines.values()
    assert (sync.ys, sync.band) == (FALLING, None)
    assert (alone.xs, alone.ys) == ([1, 2, 3], [3, 3, 1.5])
    assert alone.band == ([3, 2, 1], [3, 4, 2])
    assert repr(overlay) == (
        "over steps\n"
        "sync  │ 3.00 → 2.25 (3 values) · ranks 0, 1 alike\n"
        "alone │ 3.00 → 1.50 on average, at the end 1.00 to 2.00 (3 values) · "
        "mean of ranks 0, 1, shaded from lowest to highest"
    )


def test_a_mean_is_taken_at_the_same_time_of_each_rank():
    """Rank 1 is half as fast and halfway down at any time; rank 0 has ended at 2 s and keeps what it reached."""
    fast, slow = [4.0, 2.0, 0.0], [4.0, 2.0, 0.0]
    (line,) = over({"x": {0: fast, 1: slow}}, {0: [0, 1, 2], 1: [0, 2, 4]}, kind=Overlay).lines.values()
    assert line.xs == [0, 1, 2, 4]
    assert line.ys == [4, 2.5, 1, 0]
    assert line.band == ([4, 2, 0, 0], [4, 3, 2, 0])


def test_a_mean_begins_where_all_ranks_have_begun():
    (line,) = over({"x": {0: [3, 1], 1: [3, 2]}}, {0: [0, 4], 1: [2, 4]}, kind=Overlay).lines.values()
    assert line.xs == [2, 4]
    assert line.ys == [2.5, 1.5]


def test_one_rank_is_drawn_as_it_is_and_named():
    (line,) = Overlay({"x": {2: FALLING}}).lines.values()
    assert (line.ys, line.band, line.note) == (FALLING, None, "rank 2")


def test_a_long_run_is_drawn_with_as_many_points_as_can_be_seen():
    lines = {r: [1 / (i + r + 1) for i in range(5000)] for r in range(4)}
    (line,) = Overlay({"x": lines}).lines.values()
    assert len(line.xs) == 400
    assert line.ys[-1] == pytest.approx(np.mean([of[-1] for of in lines.values()]))
    assert len(Overlay({"x": lines}).svg) < 30_000


def test_text_words_and_picture_of_an_overlay_say_the_same_and_name_every_line():
    overlay = Overlay({"sync": {0: FALLING, 1: FALLING}, "alone": {0: [3, 2, 1], 1: [3, 4, nan]}})
    said = [word.text for word in words(overlay.svg)]
    for name, line in overlay.lines.items():
        assert {name, line.note} <= {*said}
        assert f"{name}: " in overlay.alt
        assert line.note in overlay.alt
        assert line.note in repr(overlay)
    assert "rank 1: not all finite" in repr(overlay)
    assert overlay.svg == Overlay({name: dict(v) for name, v in overlay.values.items()}).svg


def test_lines_of_an_overlay_differ_by_their_dashes_and_have_no_ranks_colour():
    picture = Overlay({f"x{k}": {0: [3, 2, 1 + k / 9]} for k in range(4)}).svg.decode()
    assert len({*re.findall(r"stroke-dasharray:[\d. ]+", picture)}) == 3, "and one without any"
    painted = {*re.findall(r"(?:fill|stroke):(#\w+)", picture)}
    assert not painted & {colour.lower() for colour in RANKS}


@pytest.mark.parametrize("kind", [Curves, Overlay])
def test_the_axes_say_what_they_are_told_to_in_the_picture_and_in_its_words(kind: type[Curves]):
    named = kind({"x": {0: FALLING}}, xlabel="training step", ylabel="ms per step")
    assert "Values (ms per step) over training step, a line" in named.alt
    against = kind({"x": {0: [3, 2]}}, 1, {"x": ("sizes", {0: [1, 8]})}, "GPUs", xlabel="ranks")
    assert "Values over ranks (GPUs), a line" in against.alt
    assert len({kind({"x": {0: FALLING}}, **of).svg for of in ({}, {"xlabel": "t"}, {"ylabel": "s"})}) == 3


def test_more_lines_than_can_be_told_apart_are_refused():
    Overlay({f"x{k}": {0: FALLING} for k in range(MOST)})
    with pytest.raises(LabError, match=r"cannot be told apart in one panel\. Give 8 expressions at most"):
        Overlay({f"x{k}": {0: FALLING} for k in range(MOST + 1)})
