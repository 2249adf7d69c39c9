"""Lists that ranks recorded, drawn against other lists of theirs and in one panel."""

from __future__ import annotations

import pytest

from labkit.floor.errors import LabError

RECORD = """
losses, seconds, samples = [3.0, 2.0 + rank], [0.5, 1.0 + rank], torch.tensor([8000, 16000])
apart, apart_s = [4.0, 1.0], [0.1, 0.2]
"""


@pytest.fixture(scope="module", autouse=True)
def recorded(lab):
    lab.run(RECORD)
    lab.run("alone = [1.0, 2.0]", ranks=1)


def test_one_list_serves_every_expression_and_several_one_each(lab):
    curves = lab.curves("losses", "apart", over="seconds", unit="s")
    assert curves.places == {name: {r: [0.5, 1.0 + r] for r in range(3)} for name in ("losses", "apart")}
    assert curves.axis("losses") == "seconds (s)"
    curves = lab.curves("losses", "apart", over=["samples", "apart_s"])
    assert curves.places["losses"][2] == [8000, 16000]
    assert curves.places["apart"][2] == [0.1, 0.2]
    assert curves.axis("losses", "apart") == "samples, apart_s"


def test_only_the_ranks_that_have_the_values_need_the_other_list(lab):
    assert lab.curves("alone", over="seconds").places == {"alone": {1: [0.5, 2.0]}}
    with pytest.raises(LabError, match="Rank 0 has 'losses' and lacks 'alone'"):
        lab.curves("losses", over="alone")
    with pytest.raises(LabError, match=r"never.*in a %%px cell first"):
        lab.curves("losses", over="never")


def test_an_overlay_has_a_line_an_expression(lab):
    overlay = lab.curves("losses", "apart", overlay=True, over=["seconds", "apart_s"], unit="s")
    assert [line.note.partition(",")[0] for line in overlay.lines.values()] == ["mean of ranks 0–2", "ranks 0–2 alike"]
    assert overlay.lines["losses"].ys[-1] == 3.0


def test_one_rank_can_be_picked(lab):
    overlay = lab.curves("losses", overlay=True, rank=2)
    assert (overlay.lines["losses"].ys, overlay.lines["losses"].note) == ([3.0, 4.0], "rank 2")
    assert lab.curves("losses", rank=0).values == {"losses": {0: [3.0, 2.0]}}
    with pytest.raises(LabError, match=r"rank 0: NameError.*alone"):
        lab.curves("alone", rank=0)
    for rank in (3, -1):
        with pytest.raises(LabError, match="0 to 2"):
            lab.curves("losses", rank=rank)


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({"over": ["seconds"]}, "over= names 1 list for 2 expressions"),
        ({"over": 5}, 'such as over="seconds"'),
        ({"over": [["seconds"], "apart_s"]}, 'such as over="seconds"'),
        ({"over": "seconds", "every": 5}, "every=5 counts steps"),
        ({"unit": "s"}, "Name it: over="),
    ],
)
def test_wishes_that_do_not_fit_together_are_refused(lab, wish, said):
    with pytest.raises(LabError, match=said):
        lab.curves("losses", "apart", **wish)
