"""`lab.race` and the memory that ranks share, on real ranks: who counts, who does not; never how fast anybody is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from labkit.content import exercises
from labkit.floor.errors import LabError
from workbook.tools import mpi
from workbook.tools.race import measure
from workbook.tools.race.show import COPY, MPI, REFERENCE

SHM = Path("/dev/shm")


@pytest.fixture(scope="module")
def contestants(lab):
    lab.run(exercises.find("shared_all_reduce").answer.removeprefix("%%px\n"))
    lab.run(
        """
from workbook.tools.rank.shared import open_room

room, wide = open_room(2**12), open_room(2**16)

def returns_it(x):
    total = x.clone()
    dist.all_reduce(total)
    return total

def off_by_one(x):
    dist.all_reduce(x)
    x[-1:] += len(x) > 2000

def floats_only(x):
    total = x.float()
    dist.all_reduce(total)
    return total

def raises_at_64(x):
    if len(x) == 16:
        raise ValueError("sixteen")
    dist.all_reduce(x)

def leaves_rank_1_alone(x):
    if rank == 1:
        room.flags[rank] = room.flags[rank]
        while True:
            pass
"""
    )
    return lab


def counting(race, size: int) -> set[str]:
    return {name for name in race.names if race.median(name, size)}


def test_in_place_and_returned_sums_race_in_one_scoreboard(contestants):
    race = contestants.race("shared_all_reduce(x, room)", "returns_it", sizes=[2**15, 4], repeat=2)
    assert race.names[:3] == [REFERENCE, "shared_all_reduce(x, room)", "returns_it(x)"]
    assert race.sizes == [4, 2**15]
    assert {name: why for name, why in race.out.items() if name != MPI} == {}
    for name in [*race.names[:3], COPY]:
        assert [len(race.laps[name, s].samples) for s in race.sizes] == [2, 2]
    assert {REFERENCE, "shared_all_reduce(x, room)", "returns_it(x)"} <= counting(race, 4)
    assert "Every result was checked" in repr(race)


def test_whoever_is_wrong_does_not_count_and_is_told_why(contestants):
    race = contestants.race("off_by_one", "floats_only", "nobody", sizes=[4], repeat=1)
    assert "4097 × float32: rank 0: element 4096" in race.out["off_by_one(x)"]
    assert "float32" in race.out["floats_only(x)"]
    assert "name 'nobody' is not defined" in race.out["nobody(x)"]
    assert counting(race, 4) - {MPI} == {REFERENCE}


def test_one_that_fails_at_a_size_counts_at_the_others(contestants):
    race = contestants.race("raises_at_64", sizes=[4, 64], repeat=1)
    assert "raises_at_64(x)" in counting(race, 4)
    assert "raises_at_64(x)" not in counting(race, 64)
    assert "✗ raises_at_64(x): wrong at 64 B: rank 0: ValueError: sixteen" in repr(race)


def test_one_that_does_not_end_is_named_and_the_others_race_on(contestants, monkeypatch):
    monkeypatch.setattr(measure, "RACE_TURN", 3.0)
    race = contestants.race("leaves_rank_1_alone", "returns_it", sizes=[4], repeat=1)
    assert "did not finish" in race.out["leaves_rank_1_alone(x)"]
    assert counting(race, 4) - {MPI} == {REFERENCE, "returns_it(x)"}
    assert contestants.pull("rank") == [0, 1, 2], "the lab is well"


def test_mpi_races_where_it_is_installed_and_else_the_board_says_so(contestants):
    race = contestants.race("returns_it", sizes=[4], repeat=1)
    if mpi.missing():
        assert "MPI is not installed" in repr(race)
    else:
        assert MPI in counting(race, 4)


@pytest.mark.skipif(bool(mpi.missing()), reason="needs mpi4py and mpich")
def test_what_mpis_transport_logs_does_not_stand_among_the_answers(monkeypatch):
    """UCX logs to stdout, where it is not told otherwise: in a container without /sys, an error of each rank."""
    monkeypatch.setenv("UCX_LOG_LEVEL", "info")
    with mpi.Mpi(2) as others:
        assert others.turn(nbytes=4, repeat=1, calls=1, lasts=0.0)["right"]


@pytest.mark.parametrize(
    ("codes", "options", "says"),
    [
        ([], {}, "Say in quotes who races"),
        (["dist.barrier()"], {}, "not an expression of x"),
        (["x +"], {}, "not an expression of x"),
        (["f"], {"sizes": [2]}, "whole numbers of bytes, 4 or more"),
        (["f"], {"repeat": 0}, "not a number of repetitions"),
        (["f"], {"dtype": "complex3"}, "unknown here"),
        (["f"], {"sizes": [2**45]}, "GiB are free"),
    ],
)
def test_what_cannot_race_is_refused_before_a_rank_is_asked(lab, codes, options, says):
    with pytest.raises(LabError, match=says):
        lab.race(*codes, **options)


def test_a_room_is_one_memory_and_leaves_no_file(lab):
    before = set(os.listdir(SHM)) if SHM.is_dir() else set()
    lab.run(
        """
from workbook.tools.rank.shared import open_room

one = open_room(24)
one.slots[rank][0] = rank + 1
one.meet()
seen = [int(slot[0]) for slot in one.slots]
one.meet()
"""
    )
    assert lab.pull("seen") == [[1, 2, 3]] * 3
    assert lab.pull("list(one.flags)") == [[2, 2, 2]] * 3
    assert not {name for name in (os.listdir(SHM) if SHM.is_dir() else ()) if name not in before}


def test_chunks_begin_at_the_same_byte_whatever_the_length(lab):
    lab.run(
        """
from workbook.tools.rank.shared import open_room

one = open_room(40)
starts = {
    (length, str(dtype)): [
        [c.data_ptr() - one.slots[0].data_ptr() for c in one.chunks(torch.zeros(length, dtype=dtype))[0] if len(c)]
        for _ in "ab"
    ]
    for length, dtype in [(10, torch.float32), (3, torch.float64), (40, torch.uint8), (1, torch.int16)]
}
lengths = [[len(c) for c in mine] for mine in one.chunks(torch.zeros(10))]
"""
    )
    assert lab.pull("lengths")[0] == [[4, 3, 3]] * 3
    (starts,) = {str(told) for told in lab.pull("list(starts.values())")}
    longest = eval(starts)[0][0]
    assert all(mine == longest[: len(mine)] for each in eval(starts) for mine in each)


def test_what_does_not_fit_into_a_slot_is_refused(lab):
    lab.run("from workbook.tools.rank.shared import open_room\none = open_room(24)")
    with pytest.raises(LabError, match="a slot takes 1 and 24"):
        lab.run("one.places(torch.zeros(7))")
    with pytest.raises(LabError, match="x has 2 dimensions"):
        lab.run("one.chunks(torch.zeros(2, 2))")


def test_more_shared_memory_than_there_is_is_refused_on_every_rank(lab):
    with pytest.raises(LabError, match=r"of shared memory .* Ask for smaller slots"):
        lab.run("from workbook.tools.rank.shared import open_room\nopen_room(2**50)")
    assert lab.pull("rank") == [0, 1, 2]
