"""A race's laps become text, a table, a picture and plain data; no rank is started."""

from __future__ import annotations

from xml.etree import ElementTree

from workbook.tools.race.show import COPY, REFERENCE, Lap, Race

MINE = "mine(x)"


def raced(**facts) -> Race:
    """dist.all_reduce takes 400 and 800 µs, `mine` 100 and 1600, a copy 10 and 80; the repetitions lie around that."""
    race = Race([REFERENCE, MINE], [4, 2**20], 2, "Gloo, 2 CPU ranks", **facts)
    for name, times in {REFERENCE: (400, 800), MINE: (100, 1600), COPY: (10, 80)}.items():
        for size, time in zip(race.sizes, times, strict=True):
            race.add(name, size, Lap((0.9e-6 * time, 1e-6 * time, 5e-6 * time)))
    return race


def test_the_text_has_a_line_a_size_with_ratios_and_marks_the_fastest():
    assert repr(raced()).splitlines() == [
        "A race of all-reduces, float32: Gloo, 2 CPU ranks",
        " size  dist.all_reduce(x)         mine(x)  one copy of S",
        "  4 B              400 µs  ★ 100 µs (4 ×)          10 µs",
        "1 MiB            ★ 800 µs  1.6 ms (0.5 ×)          80 µs",
        "★ the fastest; median time of the slowest rank; (2 ×): twice as fast as dist.all_reduce(x). "
        "one copy of S: all ranks at once copy as many bytes in their own memory.",
        "Every result was checked, outside the clock, and is right.",
    ]


def test_what_is_wrong_at_a_size_has_no_time_there_and_cannot_win():
    race = raced()
    race.add(MINE, 4, Lap(why="rank 0: element 3 is 8, and the sum is 7"))
    told = repr(race)
    assert "4 B            ★ 400 µs               ✗" in told
    assert "✗ mine(x): wrong at 4 B: rank 0: element 3 is 8, and the sum is 7" in told
    assert "is right." not in told
    assert [race.ratio(MINE, size) for size in race.sizes] == [None, 0.5]


def test_who_does_not_count_counts_nowhere_and_is_named():
    race = raced(out={MINE: "did not finish at 4 B", "MPI": "MPI is not installed."})
    assert "✗ mine(x): did not finish at 4 B" in repr(race)
    assert "MPI is not installed." in repr(race)
    assert "✗ MPI" not in repr(race), "it is not a fault of the learner's"
    assert race.ratio(MINE, 4) is None
    assert not race.right


def test_a_race_that_was_stopped_says_so_and_shows_what_there_is():
    race = Race([REFERENCE, MINE], [4, 64], 2, "", note="You stopped the race after 5 of 9 repetitions.")
    race.add(REFERENCE, 4, Lap((1e-3,)))
    told = repr(race)
    assert "You stopped the race" in told
    assert told.splitlines()[3].split() == ["64", "B", "–", "–", "–"]
    assert race._repr_html_()


def test_the_picture_is_the_same_for_equal_laps_and_carries_its_words():
    one, other = raced(), raced()
    assert one.svg == other.svg
    assert ElementTree.fromstring(one.svg).tag.endswith("svg")
    assert "mine(x): 4 times at 4 B, 0.5 times at 1 MiB" in one.alt
    html = one._repr_html_()
    assert html.startswith('<img alt="A race of all-reduces')
    assert "<b>★\u00a0100\u00a0µs (4\u00a0×)</b>" in html
