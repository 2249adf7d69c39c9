"""The stepper over records written by hand, driven without a browser."""

from __future__ import annotations

import json
import xml.dom.minidom

import pytest
from matplotlib.patches import FancyArrowPatch

from labkit.floor.errors import LabError
from labkit.plot import steps as plot
from labkit.plot.sheet import extent, shortened
from labkit.plot.tiles import Tile, needed
from labkit.show.steps import Steps
from labkit.show.view import page
from tests.pictures import shift
from tests.recorded import Told, told


def chain(n=3):
    """Rank 0's x goes to rank 1 and on to rank 2 …, in place."""
    ranks = [Told(n) for _ in range(n)]
    for r, rank in enumerate(ranks):
        if r:
            x = rank.buffer("x", [0.0, 0.0], first="recv")
            rank.recv(r - 1, view=(x, 0, 2), landed=[3.0, 4.0])
        else:
            x = rank.buffer("x", [3.0, 4.0])
        if r < n - 1:
            rank.send(r + 1, view=(x, 0, 2))
    return told(*ranks)


@pytest.fixture
def steps():
    return Steps(chain())


def test_the_text_lists_the_messages_of_each_step(steps):
    assert repr(steps).splitlines() == [
        "step 1: 0→1 [3, 4]",
        "step 2: 1→2 [3, 4]",
        "after step 2: ranks 0–2: x = [3, 4]",
    ]


def test_without_messages_it_says_what_to_do():
    with pytest.raises(LabError, match=r"lab\.last\.timeline\(\) draws collectives"):
        Steps(told(Told(2).meet("barrier"), Told(2).meet("barrier")))


def test_it_goes_to_the_ends_and_no_further(steps):
    seen = [steps.step]
    for step in (1, 2, 3, 1, 0, -1):
        steps.go(step)
        seen.append(steps.step)
    assert seen == [0, 1, 2, 2, 1, 0, 0]


def test_each_step_has_a_picture_and_words_of_its_own_once_it_is_shown(steps):
    assert steps.data["frames"] == []
    steps._repr_mimebundle_()
    frames = steps.data["frames"]
    assert len(set(frames)) == 3
    for step, frame in enumerate(frames):
        assert steps.film.told(step) in frame.replace("&#x27;", "'")


def test_of_a_long_film_the_page_gets_the_first_steps_and_asks_for_those_that_it_comes_to(steps, monkeypatch):
    monkeypatch.setattr("labkit.show.steps.AT_ONCE", 1)
    steps._repr_mimebundle_()
    assert [frame is not None for frame in steps.data["frames"]] == [True, False, False]
    steps.said = {"step": 2, "nth": 1}
    assert [frame is not None for frame in steps.data["frames"]] == [True, False, True]


@pytest.mark.parametrize("film", [chain(), chain(2), told(*(Told(2).send(1), Told(2)))])
def test_what_a_notebook_keeps_of_it_is_plain_small_and_draws_the_same_frames(film):
    steps = Steps(film)
    meta = steps._repr_mimebundle_()[1]["labkit"]
    assert page(json.loads(json.dumps(meta)), None) == {"kind": "steps", "data": {"frames": steps.data["frames"]}}
    assert len(json.dumps(meta)) < 1000
    assert meta == Steps(film).meta, "no times and no ids"


def test_of_a_ring_over_eight_ranks_a_notebook_keeps_little():
    assert len(json.dumps(shift(8, 7).meta)) < 15_000


def test_where_no_buffer_has_a_name_what_came_is_told_at_last():
    ranks = [Told(2), Told(2)]
    for r, rank in enumerate(ranks):
        sent, room = rank.buffer("", [r, r]), rank.buffer("", [9, 9], "recv", 2)
        rank.send(1 - r, view=(sent, 0, 2)).recv(1 - r, view=(room, 0, 2), landed=[1 - r] * 2)
    assert repr(Steps(told(*ranks))).splitlines()[-1] == (
        "after step 2: rank 0: inbox = [1, 1]; rank 1: inbox = [0, 0]"
    )


def test_all_steps_have_one_size_so_that_nothing_jumps(steps):
    assert len({steps.film.svg(k).split(b"viewBox", 1)[0] for k in range(3)}) == 1


def test_the_still_picture_has_all_steps_and_the_same_bytes_every_time():
    first, again = Steps(chain()).film.still, Steps(chain()).film.still
    assert first == again
    xml.dom.minidom.parseString(first)
    assert all(words in first.decode() for words in ("step 1 of 2", "step 2 of 2", "after step 2"))


def test_it_shows_without_a_front_end_and_carries_its_words(steps):
    bundle, _ = steps._repr_mimebundle_()
    assert bundle["text/plain"] == repr(steps)
    assert "step 1: 0→1 [3, 4]" in bundle["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in bundle


def test_a_message_whose_numbers_were_not_recorded_is_told_by_its_size():
    steps = Steps(told(Told(2).send(1, shape=[1000]), Told(2).recv(0, shape=[1000])))
    assert repr(steps).startswith("step 1: 0→1 1000 float32\n")
    assert "at most 64 elements" in repr(steps)
    assert b"1000 float32" in steps.film.svg(0)


def test_a_message_that_nobody_took_is_told():
    assert "0→1 1 float32 (never received)" in repr(Steps(told(Told(2).send(1), Told(2))))


@pytest.mark.parametrize("n", [2, 8])
def test_two_to_eight_ranks_have_a_picture(n):
    xml.dom.minidom.parseString(Steps(chain(n)).film.still)


def test_the_still_picture_of_many_steps_has_the_first_and_the_last_and_bears_its_size():
    steps = Steps(chain(8))
    steps.film.replay.steps *= 5
    steps.film.count *= 5

    assert len(steps.film.still) < 150_000
    assert all(words in steps.film.still.decode() for words in ("step 1 of 35", "step 35 of 35", "after step 35"))


def test_the_words_of_a_tile_fit_into_it():
    for steps in (shift(4, 3), shift(3, 1), shift(2, 40)):
        tiles = [t for slot in steps.film._draw(0).slots for row in slot.tiles for t in row]
        assert any(t.text for t in tiles)
        assert all(needed(t) <= t.width for t in tiles)


@pytest.mark.parametrize("name", ["x", "inbox [2]", "a name that is cut off"])
@pytest.mark.parametrize("lanes", [1, 5])
def test_an_arrow_that_comes_around_to_rank_0_passes_beside_the_names(name, lanes):
    tiles = [[Tile("0", width=plot.WIDTH)] for _ in range(4)]
    arrows = [plot.Arrow((2 + i % 2, 0, 0, 1), (0, 1, 0, 1)) for i in range(lanes)]
    picture = plot.Picture("step 1", [plot.Slot("out", tiles), plot.Slot(name, tiles)], arrows)
    ax = plot.draw([picture])
    leftmost = min(float(a._path_original.vertices[:, 0].min()) for a in ax.findobj(FancyArrowPatch))
    names_end = plot.NAME + extent(shortened(name, plot.LEFT - 0.5, 8, mono=True), 8, mono=True)
    assert names_end < leftmost
    assert name != "x" or plot.margin([picture]) == plot.LEFT
