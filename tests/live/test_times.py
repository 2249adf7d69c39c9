"""`lab.times` on live ranks: lists, tensors, what `timed` returns, and what is none of these."""

from __future__ import annotations

import pytest

from labkit import LabError


def test_a_list_of_seconds_on_every_rank_is_drawn(lab):
    lab.run("readings = [0.001 * (rank + 1), 0.002 * (rank + 1)]")
    times = lab.times("readings", warmup=1)
    assert times.seconds["readings"] == [[pytest.approx(1e-3 * k * (r + 1)) for k in (1, 2)] for r in range(3)]
    assert times.medians["readings"] == [pytest.approx(2e-3 * (r + 1)) for r in range(3)]


def test_a_tensor_and_a_part_of_it_are_drawn(lab):
    lab.run("readings = torch.arange(1., 5.)")
    assert lab.times("readings[1:]").seconds["readings[1:]"] == [[2.0, 3.0, 4.0]] * 3


def test_what_timed_returns_is_drawn_with_each_rank_s_own_times(lab):
    lab.run("honest = timed(lambda: dist.barrier(), repeat=5)\nmine = [row[rank] for row in honest.samples]")
    times = lab.times("honest")
    assert [len(mine) for mine in times.seconds["honest"]] == [5, 5, 5]
    assert times.seconds["honest"] == lab.pull("mine")


def test_what_is_no_time_is_refused_in_words(lab):
    lab.run("if rank: readings = [1.0]\nwords = ['long']\nhalf = timed(lambda: None, repeat=2) if False else None")
    with pytest.raises(LabError, match="ranks 0–2: ValueError: could not convert string to float: 'long'"):
        lab.times("words")
    with pytest.raises(LabError, match="ranks 0–2: TypeError"):
        lab.times("half")
    lab.run("if rank == 1: del readings")
    with pytest.raises(LabError, match="rank 1: NameError"):
        lab.times("readings")


def test_a_list_in_place_of_its_name_is_refused(lab):
    with pytest.raises(LabError, match="Say in quotes which times to draw"):
        lab.times([0.001, 0.002])


def test_times_of_some_ranks_belong_to_nobody_known(lab):
    lab.run("pair = dist.new_group([0, 1])\nsome = None\nif rank < 2: some = timed(lambda: None, group=pair, repeat=2)")
    with pytest.raises(LabError, match="timed by a group of 2 ranks"):
        lab.times("some")
