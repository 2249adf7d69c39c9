"""A Gantt chart says what each rank computed, how long nothing was computed, and shows no rank's colour on a pass."""

from __future__ import annotations

import re

import pytest

from labkit import draw
from labkit.plot.sheet import RANKS
from labkit.show.gantt import of_record
from labkit.show.timeline import Timeline
from labkit.theory.log import Log, Op, Span
from tests.pictures import words
from workbook.tools import pipeline


def send(rank: int, entered: float, left: float, kind: str = "recv") -> Op:
    return Op(rank, entered, kind, kind, (0, 1), peer=1 - rank, entered=entered, left=left)


def recorded(*each: tuple[list[tuple[str, float, float | None]], list[tuple[float, float]]]) -> Timeline:
    """A run in which rank r has these spans, and stands in receives from when to when."""
    logs = []
    for r, (spans, calls) in enumerate(each):
        made = [Span(r, name, name.split()[0] if name[:4] in ("forw", "back") else "", a, b) for name, a, b in spans]
        ends = [b for _, _, b in spans if b is not None]
        log = Log([send(r, a, b) for a, b in calls], began=0.0, ended=max(ends, default=1.0), host="here")
        log.spans = made
        logs.append(log.plain())
    return Timeline(logs)


def test_a_pass_counts_as_far_as_its_rank_did_not_stand_in_a_call():
    run = recorded(
        ([("forward 0", 0.0, 1.0), ("backward 0", 2.0, 5.0)], [(2.0, 4.0)]),
        ([("forward 0", 0.0, 2.0), ("backward 0", 2.0, 4.0)], [(0.0, 1.0)]),
    )
    first, second = run.gantt.bars
    assert [(b.of, b.names[0], b.start, b.end) for b in first] == [("forward", "F0", 0, 1), ("backward", "B0", 4, 5)]
    assert [(b.start, b.end) for b in second] == [(1, 2), (2, 4)]
    assert run.gantt.whole == pytest.approx(5)
    assert run.gantt.idle == pytest.approx([3 / 5, 2 / 5])
    assert run.gantt.bubble == pytest.approx(0.5)


def test_the_bubble_begins_with_the_first_pass_and_not_with_the_cell():
    late = recorded(([("forward 0", 7.0, 8.0)], []), ([("forward 0", 8.0, 9.0)], [])).gantt
    assert (late.whole, late.bubble) == (pytest.approx(2), pytest.approx(0.5))
    assert "F0" in repr(late)
    assert "bubble 50.0 % (50.0 50.0)" in repr(late)


def test_a_span_that_never_ended_or_lies_in_another_one_is_no_pass_of_its_own():
    run = recorded(([("forward 0", 0.0, 2.0), ("inner", 0.5, 1.0), ("backward 0", 2.0, None)], []))
    assert [bar.names[0] for bar in run.gantt.bars[0]] == ["F0"]


def test_a_letter_behind_the_number_is_the_chunk():
    run = recorded(([("forward 3b", 0.0, 1.0), ("weights 3", 1.0, 2.0), ("forward", 2.0, 3.0), ("else", 3.0, 4.0)], []))
    bars = run.gantt.bars[0]
    assert [bar.chunk for bar in bars] == [1, 0, 0, 0]
    assert [bar.of for bar in bars] == ["forward", "weights", "forward", ""]
    assert [bar.names for bar in bars] == [("F3b", "3b", "3"), ("W3", "3"), ("forward",), ("else",)]


def test_without_spans_the_chart_is_empty_and_says_so():
    empty = recorded(([], []), ([], [])).gantt
    assert (empty.whole, empty.bubble) == (0, 0)
    assert repr(empty).startswith("ranks 0, 1 │ nothing")
    assert empty._repr_html_().startswith("<img")
    assert of_record(recorded(([], [])).record).idle == [0]


@pytest.mark.parametrize("name", pipeline.SCHEDULES)
def test_a_schedule_is_drawn_as_it_would_run(name):
    schedule = pipeline.SCHEDULES[name](4, 8)
    chart = draw(schedule)
    assert chart.bubble == pytest.approx(schedule.bubble)
    assert [len(mine) for mine in chart.bars] == [len(order) for order in schedule.orders]
    assert "Computed, not run" in repr(chart)
    assert f"{100 * schedule.bubble:.1f} %" in repr(chart)
    kept = ", ".join(f"{pairs / schedule.chunks:g}" for pairs in schedule.alive)
    assert f"keep at their peaks: {kept}." in repr(chart)


def test_the_picture_tells_passes_apart_by_hatching_and_ranks_by_colour():
    picture = pipeline.zero_bubble(4, 8).drawn().svg.decode()
    assert len(set(re.findall(r'<pattern id="(\w+)"', picture))) == 2, "backward, and the weights' half"
    filled = re.findall(r"fill:(#[0-9a-f]{6})", picture.lower())
    assert {colour.lower() for colour in RANKS[:4]} == set(filled), "the ranks' chips, and nothing else"
    for said in ("forward pass", "backward pass", "gradients of the weights", "nothing is computed"):
        assert f">{said}<" in picture
    assert "second chunk" not in picture
    assert "second chunk" in pipeline.interleaved(4, 8).drawn().svg.decode()


def test_all_of_a_chart_is_seen_beside_the_file_browser_of_a_window_1200_px_wide():
    html = pipeline.interleaved(4, 8).drawn()._repr_html_()
    assert int(re.search(r"min-width: (\d+)px", html)[1]) < 765  # beyond it, the output scrolls


def test_labels_keep_to_their_boxes():
    picture = pipeline.interleaved(4, 8).drawn().svg
    boxes = [[int(v) / 10 for v in box] for box in re.findall(rb'd="m(\d+) (\d+)h(\d+)v(\d+)h-\d+z"', picture)]
    labels = [word for word in words(picture) if re.fullmatch(r"[FB]\d+[ab]?|\d+[ab]", word.text)]
    assert labels
    for word in labels:
        assert any(x < word.left and word.right < x + w and y < word.top < y + h for x, y, w, h in boxes), word


def test_the_picture_says_in_words_what_it_shows():
    html = draw(pipeline.one_f_one_b(2, 2))._repr_html_()
    assert 'alt="Gantt chart. 1F1B, 2 ranks, 2 micro-batches' in html
    assert "rank 1 │ F0 B0 F1 B1" in html
