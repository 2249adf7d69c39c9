"""Every label of every kind of picture can be read: it is large enough, lies in the picture and covers no other."""

from __future__ import annotations

from itertools import combinations

import pytest

from labkit.plot.sheet import LEAST, extent, shortened, wrapped
from tests import pictures


@pytest.mark.slow
def test_no_label_is_cut_off_too_small_or_on_another(subtests):
    for name in pictures.names():
        with subtests.test(name):
            picture = pictures.drawn(name)
            width, height = pictures.size(picture)
            words = pictures.words(picture)
            assert words
            outside = [w for w in words if w.left < 0 or w.top < 0 or w.right > width or w.bottom > height]
            small = [w for w in words if w.size * 96 / 72 < 9]
            touching = [
                (a.text, b.text)
                for a, b in combinations(words, 2)
                if min(a.right, b.right) - max(a.left, b.left) > 0.5 and min(a.bottom, b.bottom) - max(a.top, b.top) > 2
            ]
            assert (outside, small, touching) == ([], [], [])


def test_a_long_text_is_cut_to_its_room_and_a_short_one_is_not():
    assert shortened("dist.barrier()", 9, 8, mono=True) == "dist.barrier()"
    cut = shortened("dist.barrier()" * 9, 9, 8, mono=True)
    assert cut.endswith("…")
    assert 8.5 < extent(cut, 8, mono=True) <= 9


def test_lines_are_broken_between_words_and_keep_to_their_room():
    lines = wrapped("one two three four five six seven", 3, LEAST)
    assert " ".join(lines) == "one two three four five six seven"
    assert len(lines) > 1
    assert all(extent(line, LEAST) <= 3 for line in lines)
    assert wrapped("unbreakable" * 3, 3, LEAST) == ["unbreakable" * 3]
