"""ZeRO's arithmetic against the figures that its paper prints, and against the collectives that it is made of."""

from __future__ import annotations

import pytest

from labkit.floor.errors import LabError
from labkit.theory.primitives import PRIMITIVES
from workbook.tools import sharding
from workbook.tools.sharding import FLOAT32, MIXED, fewest, held, sent


def gigabytes(parameters: float, ranks: int, stage: int) -> float:
    return sum(held(parameters, ranks, stage, MIXED).values()) / 1e9


def test_7_5_billion_parameters_on_64_gpus_take_what_the_papers_figure_1_says():
    assert [round(gigabytes(7.5e9, 64, stage), 1) for stage in range(4)] == [120.0, 31.4, 16.6, 1.9]


def test_a_trillion_parameters_take_16_terabytes_and_16_gigabytes_on_each_of_1024_gpus():
    assert gigabytes(1e12, 1, 0) == 16_000
    assert round(gigabytes(1e12, 1024, 3)) == 16


@pytest.mark.parametrize("recipe", [FLOAT32, MIXED])
def test_a_stage_never_holds_more_than_the_one_before_and_stage_3_an_nth(recipe):
    for n in (1, 2, 4, 64):
        totals = [sum(held(1e6, n, stage, recipe).values()) for stage in range(4)]
        assert totals == sorted(totals, reverse=True)
        assert totals[3] == pytest.approx(totals[0] / n)
        assert totals[0] == 16 * 1e6, "the paper's, for both recipes"


def textbook(call: str, n: int, size: float) -> float:
    """What a rank sends in a collective over n ranks, `size` the bytes of the whole buffer, as the textbook has it."""
    return float(PRIMITIVES[call].traffic(n, size, 0)[0].sum())


@pytest.mark.parametrize("n", [2, 3, 4, 64])
def test_the_bytes_are_those_of_the_collectives(n):
    buffer = 4 * 1e6  # the gradients, and the weights
    ring, scatter, gather = (textbook(call, n, buffer) for call in ("all_reduce", "reduce_scatter", "all_gather"))
    assert sent(1e6, n, 0) == pytest.approx(ring)
    assert sent(1e6, n, 1) == sent(1e6, n, 2) == pytest.approx(scatter + gather)
    assert sent(1e6, n, 3) == pytest.approx(scatter + 2 * gather) == pytest.approx(1.5 * sent(1e6, n, 0))
    assert sent(1e6, n, 3, reshards=False) == sent(1e6, n, 2)


def test_hsdp_sends_a_shard_across_and_the_rest_within():
    within = sent(1e6, 2, 3)
    assert sent(1e6, 2, 3, replicas=2) - within == pytest.approx(textbook("all_reduce", 2, 4e6 / 2))


def test_the_fewest_ranks_are_enough_and_one_less_is_not():
    for parameters, room, stage in ((1e12, 80e9, 3), (7e9, 80e9, 3), (7e9, 80e9, 1), (1e9, 80e9, 2), (4.9e9, 80e9, 0)):
        n = fewest(parameters, room, stage)
        assert n is not None
        assert gigabytes(parameters, n, stage) * 1e9 <= room
        assert n == 1 or gigabytes(parameters, n - 1, stage) * 1e9 > room
    assert fewest(1e12, 80e9, 0) is None
    assert fewest(1e12, 80e9, 2) is None


@pytest.mark.parametrize(("parameters", "ranks", "stage"), [(1e9, 4, 4), (1e9, 0, 1), (0, 4, 1), (1e9, 4, "2")])
def test_what_there_is_not_is_said(parameters, ranks, stage):
    with pytest.raises(LabError, match=r"Choose 0|Give numbers"):
        held(parameters, ranks, stage)


def test_a_stage_is_its_place_in_the_names():
    assert sharding.STAGES.index("ZeRO-2") == 2
