"""What a flow says: where numbers came from, what is wrong, and the same in plain text, HTML and words."""

from __future__ import annotations

import pytest

from labkit.floor.errors import LabError
from labkit.show.arrows import arrows
from labkit.show.flow import Flow, check
from labkit.theory import collectives
from labkit.theory.mistakes import expected
from labkit.theory.origin import Origin
from labkit.theory.probing import Seen
from labkit.theory.provenance import Part


def told(values, groups=None, shape=None):
    if values is None:
        return {"size": 0, "groups": [], "values": [], "shape": None}
    return {"size": len(values), "groups": groups or [len(values)], "values": values, "shape": shape}


def seen(before, after, parts, y="y", why="", code="y = f(x)"):
    """A run over ranks that each bring `before[r]`; `parts[r]` are the origins of what rank r got."""
    rows = [[(i, i + 1, Part("sum" if len(o.counts) > 1 else "copy", o)) for i, o in enumerate(row)] for row in parts]
    sources = [(r, i, i + 1) for r, values in enumerate(before) for i in range(len(values or []))]
    return Seen(code, "x", y, [told(b) for b in before], [told(a) for a in after], sources, rows, why)


BOTH = Origin(0) + Origin(1)
SUMS = seen([[1.0], [10.0]], [[11.0], [11.0]], [[BOTH], [BOTH]])


def test_the_plain_text_names_every_value_and_its_origins():
    assert repr(Flow(SUMS)) == "x → y\nrank 0 │ 1 (0·0) → 11 (Σ 0,1·0)\nrank 1 │ 10 (1·0) → 11 (Σ 0,1·0)"


def test_the_picture_carries_its_story_as_alternative_text():
    html = Flow(SUMS)._repr_html_()
    assert html.startswith('<img alt="Before, x: rank 0 holds [1]; rank 1 holds [10]. After, y: every rank holds [11]')
    assert "the sum over ranks 0, 1 of element 0" in html
    assert 'src="data:image/svg+xml;base64,' in html


@pytest.mark.parametrize(
    ("code", "over"),
    [
        ("y = x.clone()\ndist.all_reduce(y)\ny += 0", "dist.all_reduce(y)"),
        ("y = x\n# dist.barrier() is not needed", "y = x"),
        ("try:\n    dist.all_reduce(y)\nexcept ValueError:\n    pass", "dist.all_reduce(y)"),
        ("if r == 0:\n    dist.send(x, 1)\nelse:\n    dist.recv(y, 0)", "dist.send(x, 1) · dist.recv(y, 0)"),
    ],
)
def test_over_the_picture_stands_the_line_that_communicates(code, over):
    picture = Flow(seen([[1.0], [10.0]], [[11.0], [11.0]], [[BOTH], [BOTH]], code=code)).svg.decode()
    assert f">{over}</text>" in picture


def test_what_was_meant_and_came_is_said_to_be_right():
    for means in ("all_reduce", collectives.all_reduce, "all_reduce_coalesced"):
        flow = Flow(SUMS, means=means)
        assert flow.mistakes == []
        assert "This is what all_reduce" in repr(flow)


def test_a_function_of_ones_own_may_be_meant():
    def swapped(xs):
        return xs[::-1]

    assert Flow(SUMS, means=swapped).mistakes == [
        "rank 0 holds element 0 of ranks 0, 1 where rank 1's element 0 belongs",
        "rank 1 holds element 0 of ranks 0, 1 where rank 0's element 0 belongs",
    ]
    assert "as swapped means it" in Flow(SUMS, means=swapped).svg.decode()


def test_a_missing_contribution_is_named_and_shown_beside_what_was_meant():
    flow = Flow(seen([[1.0], [10.0]], [[1.0], [11.0]], [[Origin(0)], [BOTH]]), means="all_reduce")
    assert flow.mistakes == ["rank 0 lacks rank 1's element 0"]
    assert "rank 0 │ 1 (0·0) → 1 (0·0)   wanted: Σ 0,1·0" in repr(flow)
    assert "as all_reduce means it" in flow.svg.decode()


def test_a_contribution_counted_twice_is_marked_whatever_was_meant():
    twice = seen([[1.0], [10.0]], [[21.0], [11.0]], [[BOTH + Origin(1)], [BOTH]])
    assert "21 (Σ 0,1·0 2×)" in repr(Flow(twice))
    assert "Rank 0 counts rank 1's element 0 twice." in repr(Flow(twice))
    assert "2×" in Flow(twice).svg.decode()
    assert Flow(twice, means="all_reduce").mistakes == ["rank 0 counts rank 1's element 0 twice"]


def test_what_a_primitive_leaves_undefined_is_no_mistake():
    flow = Flow(seen([[1.0], [10.0]], [[11.0], [10.0]], [[BOTH], [Origin(1)]]), means="reduce")
    assert flow.mistakes == []
    assert "10 (undefined)" in repr(flow)


def test_a_rank_without_a_result_holds_none_and_an_empty_one_is_drawn_as_empty():
    for held, shown, said in ((None, "None", "holds nothing"), ([], "[]", "holds []")):
        gathered = seen([[1.0], [2.0]], [[1.0, 2.0], held], [[Origin(0), Origin(1)], []])
        assert Flow(gathered, means="gather").mistakes == []
        assert f"rank 1 │ 2 (1·0) → {shown}" in repr(Flow(gathered))
        assert f">{shown}</text>" in Flow(gathered).svg.decode()
        assert f"rank 1 {said}." in Flow(gathered).alt


def test_where_the_origins_are_unknown_the_values_remain_and_the_reason_is_said():
    flow = Flow(seen([[1.0], [2.0]], [[3.0], [3.0]], [[], []], why="It got stuck."), means="all_reduce")
    assert repr(flow) == "x → y\nrank 0 │ 1 (0·0) → 3\nrank 1 │ 2 (1·0) → 3\nIt got stuck."
    assert flow.mistakes == []
    assert "It got stuck." in flow.alt


def test_long_rows_become_blocks_of_one_origin():
    n, k = 4, 8
    before = [[float(10 * r + i) for i in range(k)] for r in range(n)]
    everything = [Origin(r, i) for r in range(n) for i in range(k)]
    flow = Flow(seen(before, [[v for b in before for v in b]] * n, [everything] * n))
    assert repr(flow).splitlines()[1].endswith("→ 0…7 (0·0–7)  10…17 (1·0–7)  20…27 (2·0–7)  30…37 (3·0–7)")


def arrows_of(means, sizes, root=0):
    """The arrows of a primitive over ranks that bring so many numbers, as (source, tiles, result, tiles)."""
    wanted = [row or [] for row in expected(means, [[size] for size in sizes], root)]
    found, notes = arrows([[o.counts for o in row] for row in wanted], sizes)
    return [(a.source, a.of, a.result, a.into) for a in found], " ".join(notes)


def test_where_everything_depends_on_everyone_one_rank_has_arrows_and_each_primitive_another_picture():
    pictures = {}
    for means in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all"):
        pictures[means], said = arrows_of(means, [4] * 4)
        assert said.endswith("They are drawn for rank 1 only: every rank's result depends on all ranks.")
    assert pictures["all_reduce"] == [(s, None, 1, None) for s in range(4)]
    assert pictures["reduce_scatter"] == [(s, (1, 1), 1, None) for s in range(4)]
    assert pictures["all_gather"] == [(s, None, 1, (4 * s, 4 * s + 3)) for s in range(4)]
    assert pictures["all_to_all"] == [(s, (1, 1), 1, (s, s)) for s in range(4)]


def test_an_arrow_leads_from_the_chunk_to_where_it_went_and_is_said_to_be_no_message():
    assert arrows_of("scatter", [4, 4, 4, 4], root=2)[0] == [(2, (r, r), r, None) for r in range(4)]
    assert arrows_of("gather", [2, 2], root=1)[0] == [(0, None, 1, (0, 1)), (1, None, 1, (2, 3))]
    found, said = arrows_of("broadcast", [1] * 4)
    assert found == [(0, None, r, None) for r in range(4)]
    assert said == "Arrows show what a result depends on, not messages."
    assert said in Flow(SUMS).svg.decode()


def test_an_unknown_primitive_or_root_is_refused_before_anything_runs():
    with pytest.raises(LabError, match="'median' is not a primitive"):
        check("median", 0, 4)
    with pytest.raises(LabError, match="ranks 0 to 3"):
        check("reduce", 4, 4)
