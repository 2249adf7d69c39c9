"""The shard painter without a browser and without ranks: what it shows, what it refuses, what it would run."""

from __future__ import annotations

import ast
import gzip
import json
from base64 import b64decode

import pytest

import labkit
from labkit.content import view
from labkit.floor.errors import LabError
from labkit.plot.sheet import RANKS
from tests import pictures
from workbook.tools.painter.face import Painter
from workbook.tools.painter.show import Painting, Run


def words(painter: Painter) -> list[str]:
    return [word.text for word in pictures.words(painter.painting.svg)]


def colours(painter: Painter) -> set[str]:
    drawn = painter.painting.svg.decode().lower()
    return {colour for colour in RANKS if f"fill:{colour.lower()}" in drawn}


def test_it_is_one_of_labkits_public_names():
    assert labkit.Painter is Painter


def test_it_says_how_the_result_lies_and_what_it_takes():
    painter = Painter(4, x="columns", w="rows")
    assert repr(painter).splitlines() == [
        "X: columns, W: rows",
        "X @ W on 4 ranks",
        "X (4 × 4: columns): rank 0 column 0; rank 1 column 1; rank 2 column 2; rank 3 column 3",
        "W (4 × 4: rows): rank 0 row 0; rank 1 row 1; rank 2 row 2; rank 3 row 3",
        "Y (4 × 4: partial sum): all of it is the sum over ranks 0–3",
        "Every rank can begin with what it holds: no communication.",
        "Y is then a partial sum, still to be added up.",
        "To become whole, Y needs an all-reduce (96 B from each rank).",
        "To be cut into rows, it needs a reduce-scatter (48 B from each rank).",
        "Each rank holds 4 of X's 16 numbers and 4 of W's 16, and does an equal share of the work.",
    ]


def test_it_says_why_something_has_to_be_sent_first():
    few = "Without that, the ranks hold both factors of only 16 of the 64 terms."
    assert few in Painter(4, x="rows", w="columns").painting.notes
    idle = Painter((2, 2), x=("columns", "whole"), w=("whole", "rows")).painting.notes
    assert idle[1] == "Without that, some ranks would have nothing to do: they hold no two factors of the same term."
    assert not any("Without" in note for note in Painter(4, x="columns", w="rows").painting.notes)


def test_a_move_shows_another_picture():
    painter = Painter(4)
    before = painter.replied
    painter.go(x="rows", w="columns")
    assert painter.replied != before
    assert "First: an all-gather of" in repr(painter)
    assert painter.painting.product.x == ("rows",)


def test_on_two_dimensions_each_has_its_own_buttons_and_go_takes_both_at_once():
    painter = Painter((2, 2), x=("rows", "whole"), w="columns")
    buttons = painter.data["controls"]
    assert [b["label"] for b in buttons] == [
        "X over dimension 0",
        "X over dimension 1",
        "W over dimension 0",
        "W over dimension 1",
    ]
    assert [b["options"][painter.at[b["name"]]] for b in buttons] == ["rows", "whole", "columns", "columns"]
    painter.go(w=("whole", "columns"), x1="columns")
    assert painter.values == {"x0": "rows", "x1": "columns", "w0": "whole", "w1": "columns"}


def test_what_a_click_chooses_is_what_is_painted():
    painter = Painter(3)
    assert painter.data["controls"][1] == {
        "name": "w", "label": "W", "options": ["rows", "columns", "whole"], "form": "buttons",
    }  # fmt: skip
    painter.said = {"w": 1, "nth": 1}  # as the page says it
    assert painter.painting.product.w == ("columns",)
    assert "W: columns" in repr(painter)
    assert painter.replied == painter.painting._repr_html_()


def test_a_colour_is_a_rank_that_holds_a_tile_alone_and_what_is_shared_has_none():
    """Apart from the mesh itself and the chips, in which every rank stands once."""
    whole = Painter(4, x="whole", w="whole").painting.matrices
    assert all(len(teams) == 4 for m in whole for teams in m.tiles.values())
    drawn = Painter(4, x="whole", w="whole").painting.svg.decode()
    cut = Painter(4, x="rows", w="whole").painting.svg.decode()
    assert drawn.count('fill="url(#h') == 3, "all three are hatched"
    assert cut.count('fill="url(#h') == 1
    assert {"rank 0", "rank 1", "rank 2", "rank 3"} <= set(words(Painter(4, x="rows")))
    assert not any(word.startswith("rank") for word in words(Painter(4, x="whole", w="whole")))
    assert colours(Painter(4)) == set(RANKS[:4])


def test_parts_of_a_sum_have_a_plus_between_them_and_sums_stand_apart():
    assert words(Painter(4, x="columns", w="rows")).count("+") == 3
    assert words(Painter((2, 2), x=("whole", "columns"), w=("whole", "rows"))).count("+") == 2
    assert words(Painter(4, x="rows")).count("+") == 0


def test_the_words_of_the_picture_say_what_the_text_says():
    painter = Painter((2, 2), x=("rows", "columns"), w="rows")
    alt = painter.painting.alt
    for note in painter.painting.notes:
        assert note in alt
        assert note in repr(painter)
    assert "<img" in painter.painting._repr_html_()
    assert "First:" in " ".join(words(painter))


def test_where_no_module_runs_the_page_shows_the_picture_of_the_moment():
    painter = Painter(4)
    painter.go(x="columns")
    bundle, _ = painter._repr_mimebundle_()
    assert "partial sum" in bundle["text/plain"]
    assert "<img" in bundle["text/html"]


@pytest.mark.parametrize("painter", [Painter(2), Painter(2, x="columns", w="columns", shape=(2, 4, 2))])
def test_a_page_without_a_kernel_has_every_painting_and_begins_where_the_output_stands(painter):
    painter.go(w="rows")
    _, metadata = painter._repr_mimebundle_()
    meta = json.loads(json.dumps(metadata["labkit"]))
    assert len(json.dumps(meta)) < 200
    shown = view("painter")(meta)
    assert shown["kind"] == "grid"
    data = shown["data"]
    assert not data["kernel"]
    assert data["at"] == painter.at
    every = json.loads(gzip.decompress(b64decode(data["pictures"])))
    cuts = ("rows", "columns", "whole")
    wanted = [Painting((x,), (w,), painter.shape, (2,))._repr_html_() for x in cuts for w in cuts]
    assert [every[nth] for nth in data["which"]] == wanted
    assert len(every) == len(set(wanted))


@pytest.mark.slow
def test_all_81_paintings_of_two_dimensions_are_small_enough_for_a_page():
    squares = view("painter")(Painter((2, 2), x=("rows", "whole"), w=("whole", "columns")).meta)
    assert len(squares["data"]["which"]) == 81
    assert len(json.dumps(squares)) < 400_000


def test_equal_layouts_give_equal_pictures():
    assert Painter(4).painting.svg == Painter(4).painting.svg


@pytest.mark.parametrize("mesh", [0, 1, 9, True, (2, 1), (2, 2, 2), (3, 3), "4", (2.0,), ()])
def test_what_is_no_mesh_is_refused(mesh):
    with pytest.raises(LabError, match="is not a mesh to paint"):
        Painter(mesh)


@pytest.mark.parametrize("shape", [(4, 4), (4, 4, 0), (4, 4, 65), "444", (4, 4, 4.0), 4])
def test_what_is_no_shape_is_refused(shape):
    with pytest.raises(LabError, match="is not a shape to paint"):
        Painter(4, shape=shape)


@pytest.mark.parametrize("cut", ["cols", "partial", ("rows", "rows")])
def test_what_is_no_layout_is_refused(cut):
    with pytest.raises(LabError, match="x='rows'"):
        Painter(4, x=cut)
    painter = Painter(4)
    with pytest.raises(LabError, match="is not a layout"):
        painter.go(x=cut)
    assert painter.painting.product.x == ("rows",), "and it stays as it was"


def test_the_cell_that_it_would_run_is_torchs_own_and_has_the_painted_placements():
    code = Painter((2, 2), x=("rows", "whole"), w=("columns", "columns")).code
    ast.parse(code)
    assert "init_device_mesh(device.type, (2, 2))" in code
    assert "distribute_tensor(X, painted, [Shard(0), Replicate()])" in code
    assert "distribute_tensor(W, painted, [Shard(1), Shard(1)])" in code
    assert code.splitlines()[-1].strip().endswith(("X @ W", "X_ @ W", "X @ W_", "X_ @ W_"))
    assert "redistribute" not in Painter(4, x="rows").code
    assert ".redistribute(placements=[Replicate()])" in Painter(4, x="rows", w="rows").code


def test_a_run_shows_what_each_rank_held_where_it_lies():
    painter = Painter(2, x="columns", w="rows", shape=(2, 2, 2))
    results = [
        {
            "X": [[[1.0], [3.0]], [[0], [2]]],
            "W": [[[5.0, 6.0]], [[0, 1]]],
            "Y": [[[5.0, 6.0], [15.0, 18.0]], [[0, 1], [2, 3]]],
            "y": "[Partial(sum)]",
            "torch_y": "[Partial(sum)]",
            "counted": {},
            "torch": {},
        }
    ] * 2
    run = Run(painter.painting, results)
    assert "rank 1 │ X [[1], [3]]  W [[5, 6]]  Y [[5, 6], [15, 18]]" in repr(run)
    assert "counted: no collective" in run.alt
    drawn = [word.text for word in pictures.words(run.svg)]
    assert drawn.count("15") == drawn.count("18") == 2
    assert "rank 0" in drawn
