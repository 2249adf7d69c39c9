"""The atlas, driven without a browser: what it shows, what its controls do, what becomes of a pasted log."""

from __future__ import annotations

import re
import xml.dom.minidom
from dataclasses import replace

import pytest

import labkit
from labkit.floor.errors import LabError
from tests.nccl_log import printed, rows
from workbook.tools import costs, timing
from workbook.tools.atlas import plot as picture
from workbook.tools.atlas.face import Atlas
from workbook.tools.published import TABLES, find

DELL = find("16 × H100, 2 × Dell")


@pytest.fixture
def a() -> Atlas:
    return Atlas()


@pytest.fixture
def pasted() -> Atlas:
    return Atlas(log=printed(DELL, slower=2.0))


def test_it_is_one_of_labkits_public_names():
    assert labkit.Atlas is Atlas


def test_every_table_can_be_found_by_the_controls(a):
    a._quiet = True  # nothing need be drawn
    for table in TABLES:
        a.go(op=table.op, n=table.n, generation=table.generation)
        assert table in a.matching


def test_the_picture_has_every_table_shown_in_gb_s_and_in_seconds(a):
    scene = a.scene
    assert scene is not None
    assert len(scene.tables) == len(a.tables) > 3
    for line, table in zip(scene.tables, a.tables, strict=True):
        assert list(line.values) == pytest.approx([table.busbw(size) for size, _ in table.rows])
    a.go(show="time")
    assert list(a.scene.tables[0].values) == pytest.approx([us * 1e-6 for _, us in a.tables[0].rows])


def test_every_shown_table_is_named_with_its_source(a):
    html = a._repr_mimebundle_()["text/html"]
    for letter, table in zip(picture.LETTERS, a.tables, strict=False):
        assert f"{letter}  {table.name}" in repr(a)
        assert table.source in repr(a)
        assert table.source in html


def test_more_tables_than_letters_come_by_pages():
    a = Atlas(n=None)
    assert len(a.tables) == len(picture.LETTERS) < len(a.matching)
    assert f"and {len(a.matching) - len(a.tables)} more" in repr(a)
    seen = list(a.tables)
    for page in range(2, 2 + (len(a.matching) - 1) // len(picture.LETTERS)):
        a.go(page=page)
        seen += a.tables
    assert seen == list(a.matching)
    a.go(n=64)
    assert a.tables == a.matching
    assert a._page.layout.display == "none"


def test_every_control_redraws(a):
    seen = [a._picture.value]
    for move in (
        {"show": "time"}, {"limits": True}, {"model": "Dell"}, {"generation": "hopper"}, {"n": 64}, {"n": None},
        {"op": "all_gather"},
    ):  # fmt: skip
        a.go(**move)
        seen.append(a._picture.value)
    assert len(set(seen)) == len(seen)


def test_the_models_curve_is_the_estimates(a):
    a.go(model="Dell")
    line = a.scene.model
    assert line is not None
    seconds = costs.estimate("all_reduce", line.sizes[-1], 16, DELL.cluster)
    assert line.values[-1] == pytest.approx(timing.busbw("all_reduce", 16, line.sizes[-1], float(seconds)))
    assert a.scene.model.said.startswith("the model for 16 GPUs")
    a.go(op="all_gather")
    assert a.scene.model is None, "Dell's table is not shown any more"


@pytest.mark.parametrize(
    ("name", "limit"), [("16 × H100, 2 × Dell", 400.0), ("8 × H100, p5", 450.0), ("16 × A100, 2 × p4de", 50.0)]
)
def test_the_limits_are_those_of_the_data_sheets(name, limit):
    table = find(name)
    a = Atlas(table.op, n=table.n, generation=table.generation, limits=True)
    a.go(page=1 + a.matching.index(table) // len(picture.LETTERS))
    assert any(list(line.values) == pytest.approx([limit] * len(line.values)) for line in a.scene.limits)


def test_where_nothing_was_published_it_says_so(a):
    a.go(op="broadcast", n=1440)
    assert a.svg is None
    assert "No published table" in a._picture.value
    assert "No published table" in a._repr_mimebundle_()["text/html"]


def test_a_log_sets_the_controls_and_is_drawn_beside_the_tables_most_like_it(pasted):
    assert (pasted.op, pasted._n.value) == ("all_reduce", 16)
    assert pasted.scene.own is not None
    assert list(pasted.scene.own.values) == pytest.approx(list(pasted.log.busbw))
    assert pasted.tables[0] is pasted.verdict.likenesses[0].table
    assert pasted.scene.model is not None, "the model's curve for the log's machine"
    assert pasted.verdict.resemblance in repr(pasted)
    pasted.go(op="all_gather")
    assert pasted.scene.own is None


def test_the_button_reads_the_field(a):
    a._text.value = printed(find("8 × H200"))
    a._button.click()
    assert a.log.n == 8
    assert "Resembles 8 × H200" in a._said.value
    a._text.value = " "
    a._button.click()
    assert a.log is None
    assert a.scene.own is None


def test_what_cannot_be_read_says_why_and_takes_nothing_away(pasted):
    before = pasted.log
    pasted._text.value = "<b>no log</b>"
    pasted._button.click()
    assert "is a row of nccl-tests" in pasted._said.value
    assert pasted._text.value == "<b>no log</b>"
    assert pasted.log is before
    with pytest.raises(LabError, match="Nothing was pasted"):
        pasted.paste("")
    assert pasted.log is before


def test_what_a_log_does_not_say_is_taken_from_the_controls_and_told(a):
    a.go(op="all_gather")
    a._text.value = rows("all_gather", 16, find("16 × B200, a4, all-gather").rows, "N/A")  # or all_to_all
    a._button.click()
    assert (a.log.op, a.log.n) == ("all_gather", 16)
    assert "read as all_gather, as chosen above" in a._said.value
    a.go(op="broadcast", n=None)
    a._text.value = rows("broadcast", 8, find("8 × A100, broadcast").rows)
    a._button.click()
    assert a.log.op == "all_gather", "the number of GPUs is nowhere"
    assert "choose it above" in a._said.value
    a.go(op="broadcast", n=8)
    a._button.click()
    assert (a.log.op, a.log.n) == ("broadcast", 8)
    assert "read as 8 GPUs" in a._said.value


def test_what_a_log_says_is_escaped(a):
    a.paste(printed(DELL, gpu="<script>H100</script>"))
    for html in (a._said.value, a._repr_mimebundle_()["text/html"]):
        assert "<script" not in html


def test_a_log_of_an_operation_that_no_table_has_is_still_judged(a):
    a.paste(printed(replace(DELL, op="reduce_scatter")))
    assert a.op == a.log.op == "reduce_scatter"
    assert a.scene.own is not None
    assert a.scene.model is not None
    assert "Resembles" in a._said.value


@pytest.mark.parametrize(
    "where", [{}, {"n": 8, "show": "time"}, {"n": None, "limits": True}, {"op": "all_to_all", "n": 8}]
)
def test_every_picture_is_well_formed_small_and_the_same_twice(where):
    a = Atlas(**where)
    first, again = a.svg, a.svg
    assert first == again
    assert len(first) < 60_000
    xml.dom.minidom.parseString(first)


def test_it_shows_without_a_kernel_and_carries_its_words(pasted):
    bundle = pasted._repr_mimebundle_()
    assert bundle["text/plain"] == repr(pasted)
    (alt,) = re.findall(r'<img alt="([^"]*)"', bundle["text/html"])
    assert "16 × H100, 2 × Dell" in alt
    assert "application/vnd.jupyter.widget-view+json" in bundle


def test_keys_pressed_in_it_do_not_reach_the_notebook(a):
    assert "stopPropagation" in a.children[0].value


@pytest.mark.parametrize(
    "wrong",
    [{"op": "barrier"}, {"n": 7}, {"show": "speed"}, {"generation": "V100"}, {"model": "nobody"}, {"log": "nothing"}],
)
def test_what_it_cannot_show_is_refused_with_what_it_can(wrong):
    with pytest.raises(LabError):
        Atlas(**wrong)


def test_an_unknown_control_is_refused(a):
    with pytest.raises(LabError, match="limits"):
        a.go(gpus=4)
