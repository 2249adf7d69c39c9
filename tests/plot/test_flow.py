"""The picture of a flow: small, the same bytes for the same data, with its words as words."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
from matplotlib.colors import to_rgb

from labkit.plot import flow, svg
from labkit.plot.flow import Arrow, Drawing
from labkit.plot.sheet import RANKS, on
from labkit.plot.svg import INK, PAGE
from labkit.plot.tiles import Tile, needed
from tests.pictures import flow_of


def drawing(n: int, k: int) -> Drawing:
    """An all-reduce over n ranks of k elements."""
    before = [[[Tile(str(10 * r + i), f"{r}·{i}", ((r, 1),)) for i in range(k)]] for r in range(n)]
    everyone = tuple((r, 1) for r in range(n))
    after = [[[Tile(str(100 + i), f"Σ 0–{n - 1}·{i}", everyone) for i in range(k)]] for _ in range(n)]
    pairs = [Arrow(s, d) for s in range(n) for d in range(n)]
    return Drawing(["x before", "x after"], [before, after], pairs, ["A note."], "dist.all_reduce(x)")


def drawn(d: Drawing) -> bytes:
    return svg.svg(flow.draw(d))


@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 3), (4, 4), (8, 8)])
def test_every_size_that_a_learner_uses_is_below_60_kilobytes(n, k):
    assert len(drawn(drawing(n, k))) < 60_000


@pytest.mark.slow
def test_equal_data_give_equal_bytes_in_another_process():
    code = "import sys; from tests.plot.test_flow import drawing, drawn; sys.stdout.buffer.write(drawn(drawing(3, 2)))"
    elsewhere = {**os.environ, "PYTHONHASHSEED": "7"}
    ran = subprocess.run([sys.executable, "-c", code], env=elsewhere, capture_output=True)
    assert ran.stdout == drawn(drawing(3, 2)), ran.stderr


def test_text_stays_text_and_numbers_stay_whole():
    d = Drawing(["x"], [[[[Tile("0.0321", "0·0", ((0, 1),))]]]], notes=["a < b"], code="x = 'é'")
    texts = [e.text for e in ET.fromstring(drawn(d)).iter() if e.tag.endswith("text")]
    assert {"0.0321", "0·0", "rank 0", "x = 'é'", "a < b"} <= set(texts)


def test_every_tile_lies_on_the_sheet():
    d = drawing(4, 3)
    ax = flow.draw(d)
    width, height = ax.get_xlim()[1], ax.get_ylim()[0]
    for patch in ax.patches:
        box = patch.get_path().transformed(patch.get_patch_transform()).get_extents()
        assert -0.01 <= box.x0 <= box.x1 <= width + 0.01
        assert -0.01 <= box.y0 <= box.y1 <= height + 0.01


def test_arrows_keep_clear_of_tiles():
    """What leaves a part of a row or comes to one runs between the rows: only its first and its last point touch."""
    tiles = [[Tile(str(i), f"{r}·{i}", ((r, 1),)) for i in range(4)] for r in range(4)]
    arrows = [Arrow(s, 1, (1, 1), (s, s)) for s in range(4)] + [Arrow(2, r, (r, r)) for r in range(4)]
    d = Drawing(["x before", "x after"], [[[row] for row in tiles]] * 2, arrows)
    ax = flow.draw(d)
    lines = [p.get_path() for p in ax.patches if p.get_alpha() == 0.75]
    assert len(lines) == len(arrows)
    for line in lines:
        for x, y in line.interpolated(20).vertices[1:-1]:
            row, within = divmod(y - d.top, d.row)
            in_a_column = any(d.starts[c] < x < d.starts[c] + 3.9 for c in (0, 1))
            assert not (in_a_column and 0 <= row < 4 and 0.001 < within < 0.899), (x, y)


def test_tiles_are_as_wide_as_their_words():
    short, long = drawing(2, 2), flow_of(2, 2)
    assert {t.width for column in short.fitted for row in column for group in row for t in group} == {1.0}
    tiles = [t for column in long.fitted for row in column for group in row for t in group]
    assert len({t.width for t in tiles}) == 1
    assert all(needed(t) <= t.width for t in tiles)


def test_titles_over_narrow_columns_do_not_touch():
    titles = ["x before", "mine after", "as reduce_scatter means it"]
    column = [[[Tile("0", "0·0", ((0, 1),))]]]
    d = Drawing(titles, [column] * 3, wrong=["rank 0 lacks rank 1's element 0"])
    ax = flow.draw(d)
    boxes = [t.get_window_extent() for title in titles for t in ax.texts if t.get_text() == title]
    assert len(boxes) == 3
    assert boxes[0].x1 < boxes[1].x0
    assert boxes[1].x1 < boxes[2].x0
    assert boxes[2].x1 < ax.get_window_extent().x1


def test_a_value_can_be_read_on_every_rank_s_colour():
    def light(color: str) -> float:
        channels = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
        return 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]

    def contrast(a: str, b: str) -> float:
        bright, dark = sorted((light(a), light(b)), reverse=True)
        return (bright + 0.05) / (dark + 0.05)

    assert all(contrast(color, on(r)) >= 4.5 for r, color in enumerate(RANKS))
    assert contrast(PAGE, INK) > 12


def test_two_contributions_of_one_rank_are_two_stripes():
    once = drawn(Drawing(["y"], [[[[Tile("3", "Σ", ((0, 1), (1, 1)))]]]]))
    twice = drawn(Drawing(["y"], [[[[Tile("4", "Σ", ((0, 1), (1, 2)), badge="2×")]]]]))
    stripes = [sum(e.get("d", "").count("m") for e in ET.fromstring(svg_).iter()) for svg_ in (once, twice)]
    assert stripes[1] >= stripes[0] + 1


def test_the_alternative_text_cannot_break_the_html():
    assert svg.img(b"<svg/>", 'a "b" <c>').startswith('<img alt="a &quot;b&quot; &lt;c&gt;"')
