"""A sealed flow: what it shows before and after the learner has filled in, without a browser and without ranks."""

from __future__ import annotations

import json

import pytest

from labkit.floor.errors import LabError
from labkit.show.flow import Flow
from labkit.show.guess import Nothing, Place, read
from labkit.show.sealed import MOST, SealedFlow
from labkit.show.view import page
from labkit.theory.origin import Origin
from tests.page import live
from tests.test_flow_value import BOTH, SUMS, seen

INF, NAN = float("inf"), float("nan")
SWAPPED = seen(
    [[1.0, 2.0], [3.0, 4.0]], [[3.0, 4.0], [1.0, 2.0]], [[Origin(1), Origin(1, 1)], [Origin(0), Origin(0, 1)]]
)


def sealed(run=SWAPPED, **meant):
    return SealedFlow(Flow(run, **meant))


def typed(flow, *rows):
    """What the page says when its reader presses the button."""
    flow.said = {"rows": list(rows), "nth": (flow.said or {"nth": 0})["nth"] + 1}


def test_before_it_is_filled_in_only_the_static_page_has_the_answer_and_that_one_folded():
    hidden = sealed(seen([[4000.0], [321.0]], [[4321.0]] * 2, [[BOTH], [BOTH]]))
    plain = "x before → y after: what does each rank hold?\nrank 0 │ 4000 (0·0) → ?\nrank 1 │ 321 (1·0) → ?"
    bundle, _ = hidden._repr_mimebundle_()
    assert repr(hidden) == bundle["text/plain"] == plain
    above, folded = bundle["text/html"].split("<details><summary>What the ranks hold</summary>")
    assert "rank 0 holds [4000]; rank 1 holds [321]. y after: every rank holds 1 value to fill in." in above
    assert "every rank holds [4321]" in folded
    assert hidden.svg.decode().count(">?</text>") == 2
    for before in (above, hidden.svg.decode(), live(hidden)):
        assert "4321" not in before
    hidden.fill([1, 1])
    assert "4321" in live(hidden)


def test_every_tile_has_a_field_with_a_name_row_by_row():
    rows = [row["names"] for row in sealed().data["rows"]]
    assert rows == [["rank 0, place 0", "rank 0, place 1"], ["rank 1, place 0", "rank 1, place 1"]]
    assert [row["names"] for row in sealed(SUMS).data["rows"]] == [["rank 0"], ["rank 1"]]


def test_the_entries_of_a_list_stand_apart():
    run = seen([[1.0], [2.0]], [[1.0, 2.0], [1.0, 2.0]], [[Origin(0), Origin(1)]] * 2)
    for told in run.after:
        told["groups"] = [1, 1]
    assert [row["groups"] for row in sealed(run).data["rows"]] == [[1], [1]]
    assert [row["groups"] for row in sealed().data["rows"]] == [[], []]
    assert "rank 0 │ 1 (0·0) → [?]  [?]" in repr(sealed(run))


def test_the_button_compares_what_was_typed_with_the_ranks():
    flow = sealed()
    typed(flow, ["3", "4.0"], ["1", "3"])
    result = flow.data["result"]
    assert "3 of 4 tiles are right." in result
    assert "Rank 1, place 1: you said 3, but it holds 2." in result
    assert result.count("✓") == 3
    assert result.count("✗") == 1
    assert flow.flow._repr_html_() in result


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([["abc", "1"], ["", ""]], "Rank 0, place 0: &#x27;abc&#x27; is not a number."),
        ([["", ""], ["", ""]], "Fill in at least one."),
        ([["<b>", "1"]], "Write one row for each of the 2 ranks"),
    ],
)
def test_what_cannot_be_read_costs_a_sentence_and_nothing_else(rows, said):
    flow = sealed()
    typed(flow, *rows)
    assert said in flow.replied
    assert "result" not in flow.data, "still sealed"


@pytest.mark.parametrize(
    ("run", "means"),
    [
        (SWAPPED, None),
        (SUMS, "all_reduce"),
        (seen([[1.0], [INF]], [[1.0, NAN], None], [[Origin(0), BOTH], []]), "gather"),
    ],
)
def test_what_a_notebook_keeps_of_it_is_plain_and_small_and_makes_the_same_flow(run, means):
    flow = sealed(run, means=means)
    _, meta = flow._repr_mimebundle_()
    kept = json.dumps(meta["labkit"], allow_nan=False)
    assert len(kept) < 1000
    shown = page(json.loads(kept), None)
    live_ = {name: value for name, value in flow.data.items() if name != "kernel"}
    assert shown["data"].items() >= live_.items()
    assert shown["data"]["flow"] == flow.flow._repr_html_()
    assert sealed(run, means=lambda xs: xs)._repr_mimebundle_()[1] == {}, "a function is no data"


def test_fill_tells_the_same_without_a_page():
    assert repr(sealed().fill([[3, 4], [1, 2]])).splitlines() == [
        "All 4 tiles are right.", "rank 0 │ 3 ✓  4 ✓", "rank 1 │ 1 ✓  2 ✓", "", *repr(Flow(SWAPPED)).splitlines(),
    ]  # fmt: skip
    again = sealed().fill([[0, 0], [0, 0]]).fill([[3, 4], [1, 2]])  # `_.fill`, a second time
    assert repr(again).startswith("All 4 tiles are right.")
    half = repr(sealed().fill([[3, ...], ["", 4]])).splitlines()
    assert half[:4] == [
        "1 of 2 tiles is right, 2 left empty.",
        "Rank 1, place 1: you said 4, but it holds 2.",
        "rank 0 │ 3 ✓  4",
        "rank 1 │ 1  4 ✗ 2",
    ]


@pytest.mark.parametrize(
    ("rows", "expects"),
    [
        ([[3, 4]], r"one row for each of the 2 ranks: fill\(\[\[…, …\], \[…, …\]\]\)"),
        (3, "one row for each of the 2 ranks"),
        ([[3, 4], [1, 2, 3]], "Rank 1 has 2 tiles, but its row has 3 values"),
        ([..., ...], "Fill in at least one"),
        ([[3, "?!"], [1, 2]], r"Rank 0, place 1: '\?!' is not a number"),
    ],
)
def test_rows_that_do_not_fit_are_refused_with_what_is_expected(rows, expects):
    with pytest.raises(LabError, match=expects):
        sealed().fill(rows)


@pytest.mark.parametrize(
    ("said", "value", "right"),
    [
        ("3", 3.0, True), ("3.0", 3, True), ("1e-3", 0.001, True), (" -inf ", -INF, True), ("nan", NAN, True),
        ("−2", -2, True), ("1/3", 0.33333334, True), ("0.333", 0.33333334, True), ("0.3", 0.33333334, False),
        ("1000", 1001.0, False), ("inf", -INF, False), ("0", NAN, False), ("nan", 0.0, False), ("True", True, True),
        ("0", Nothing.NONE, False), ("None", 0.0, False), ("–", Nothing.NONE, True), ("[]", Nothing.NONE, True),
        ("?", 0.0, False), (3, 3.0, True), (None, Nothing.NONE, True), ("r1", "r1", True), ("r2", "r1", False),
    ],
)  # fmt: skip
def test_what_counts_as_right(said, value, right):
    place = Place(0, 0, value)
    assert place.holds(read(said, place, words=isinstance(value, str))) is right


def test_what_a_primitive_leaves_undefined_is_what_nobody_can_rely_on():
    reduced = seen([[1.0], [10.0]], [[11.0], [10.0]], [[BOTH], [Origin(1)]])
    flow = sealed(reduced, means="reduce")
    assert repr(flow.fill([11, "?"])).startswith("All 2 tiles are right.")
    said = repr(flow.fill([11, 10]))
    assert "Rank 1: you said 10, but reduce leaves nothing there that you can rely on." in said
    assert "rank 1 │ 10 ✗ undefined" in said
    assert "1 of 2 tiles is right" in repr(sealed(reduced).fill([11, "?"])), "nobody said that a reduce is meant"


def test_a_rank_that_ends_with_nothing_has_a_tile_too():
    gathered = seen([[1.0], [2.0]], [[1.0, 2.0], None], [[Origin(0), Origin(1)], []])
    for nothing in (None, "None", [None], [], "–"):
        assert repr(sealed(gathered, means="gather").fill([[1, 2], nothing])).startswith("All 3 tiles are right.")
    assert "Rank 1: you said 2, but it holds nothing." in repr(sealed(gathered).fill([[1, 2], 2]))


def test_what_nobody_would_fill_in_is_refused():
    k = MOST // 2 + 1
    long = seen([[0.0] * k] * 2, [[0.0] * k] * 2, [[Origin(r, i) for i in range(k)] for r in (0, 1)])
    with pytest.raises(LabError, match=f"left {2 * k} numbers.*Use a smaller tensor"):
        sealed(long)
