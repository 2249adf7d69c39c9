"""Switches that add up, and trees with chains: what their collective means, in the steps and bytes of the formulas."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from labkit.floor.errors import LabError
from labkit.theory import collectives
from labkit.theory.origin import Origin
from workbook.tools import schedules
from workbook.tools.schedules import Schedule

SIZES = [*range(1, 10), 13, 16, 33]
WORLDS = [*((nodes, gpus) for nodes in (1, 2, 3, 4, 5, 8) for gpus in (1, 2, 3, 4)), (2, 8), (7, 8)]


def tokens(schedule: Schedule, k: int) -> list:
    """What each rank brings: k tokens, or a tensor of k for each rank where it brings chunks."""
    n = schedule.n
    if schedule.op == "reduce_scatter":
        return [[[Origin(r, c * k + i) for i in range(k)] for c in range(n)] for r in range(n)]
    return [[Origin(r, i) for i in range(k)] for r in range(n)]


def assert_means(schedule: Schedule) -> None:
    for k in (1, 3):
        xs = tokens(schedule, k)
        assert schedule.run(xs) == getattr(collectives, schedule.op)(xs), (schedule.name, schedule.op)


def assert_switches_hold_nothing_at_first(schedule: Schedule) -> None:
    """A switch never sends what has not reached it, and what reaches it first is not added to anything."""
    held: dict[int, set[int]] = {schedule.n + i: set() for i in range(len(schedule.switches))}
    for step in schedule.steps:
        for send in step:
            if send.src in held:
                assert set(send.chunks) <= held[send.src]
        for send in step:
            if send.dst in held:
                held[send.dst] |= set(send.chunks)


def test_nvls_does_what_its_collective_means_in_steps_that_do_not_depend_on_n(subtests):
    for op, n in product(("all_reduce", "all_gather", "reduce_scatter"), SIZES):
        with subtests.test(op, n=n):
            schedule = schedules.nvls(op, n)
            assert_means(schedule)
            assert_switches_hold_nothing_at_first(schedule)
            up, down = op != "all_gather", op != "reduce_scatter"
            assert len(schedule.steps) == 2 * up + 2 * down
            assert schedule.sent() == pytest.approx([up + down / n] * n)
            assert schedule.received() == pytest.approx([up / n + down] * n)


def test_collnet_means_all_reduce_and_a_node_sends_s_and_receives_s(subtests):
    for nodes, gpus in WORLDS:
        with subtests.test(nodes=nodes, gpus=gpus):
            for make, steps in (
                (schedules.collnet_direct, 2 + 2 * (gpus > 1)),
                (schedules.collnet_chain, 2 + 2 * (gpus - 1)),
            ):
                schedule = make("all_reduce", nodes, gpus)
                assert_means(schedule)
                assert_switches_hold_nothing_at_first(schedule)
                assert len(schedule.steps) == steps
                assert schedule.crossing(gpus) == pytest.approx([1.0] * nodes)
                switch = schedule.n
                into = schedule.traffic()[switch, : schedule.n].reshape(nodes, gpus).sum(axis=1)
                assert into == pytest.approx([1.0] * nodes)
                assert schedule.sent() == pytest.approx([2 * (gpus - 1) / gpus + 1 / gpus] * schedule.n)


def test_nvls_tree_means_all_reduce_and_takes_the_double_trees_steps_between_the_nodes(subtests):
    for nodes, gpus in WORLDS:
        with subtests.test(nodes=nodes, gpus=gpus):
            schedule = schedules.nvls_tree("all_reduce", nodes, gpus)
            assert_means(schedule)
            assert_switches_hold_nothing_at_first(schedule)
            between = schedules.double_tree("all_reduce", nodes)
            assert len(schedule.steps) == 4 + len(between.steps)
            assert schedule.crossing(gpus) == pytest.approx(between.sent())  # each head a gpus-th of it
            own = np.array(schedule.traffic()[: schedule.n, schedule.n :].sum(axis=1))
            assert own == pytest.approx([1 + 1 / gpus] * schedule.n)


def test_a_double_tree_with_chains_means_all_reduce_and_only_heads_leave_a_node(subtests):
    for (nodes, gpus), pieces in product(WORLDS, (1, 3)):
        with subtests.test(nodes=nodes, gpus=gpus, pieces=pieces):
            n = nodes * gpus
            schedule = schedules.double_tree("all_reduce", n, pieces, gpus)
            assert_means(schedule)
            between = schedules.double_tree("all_reduce", nodes)
            assert len(schedule.steps) == (len(between.steps) + 2 * (gpus - 1) + pieces - 1 if n > 1 else 0)
            assert schedule.crossing(gpus) == pytest.approx(between.sent())
            for step in schedule.steps:
                for send in step:
                    assert send.src // gpus == send.dst // gpus or send.src % gpus == send.dst % gpus == 0


def test_two_nodes_send_s_by_the_double_tree_and_more_nodes_up_to_two():
    leaving = {nodes: max(schedules.double_tree("all_reduce", 8 * nodes, gpus=8).crossing(8)) for nodes in range(2, 65)}
    assert leaving[2] == pytest.approx(1)
    assert all(leaving[nodes] == pytest.approx(2) for nodes in range(4, 65, 2))
    assert all(1.5 <= leaving[nodes] <= 2.5 for nodes in range(3, 65))


def test_the_rings_the_trees_and_pats_results_hold_up_to_64_ranks(subtests):
    for n in range(2, 65):
        with subtests.test(n=n):
            for schedule in (
                schedules.double_tree("all_reduce", n),
                schedules.pat("all_gather", n),
                schedules.nvls("all_reduce", n),
            ):
                xs = [np.arange(3) + 7 * r for r in range(n)]
                wanted = getattr(collectives, schedule.op)(xs)
                for got, want in zip(schedule.run(xs), wanted, strict=True):
                    assert np.array_equal(np.ravel(got), np.ravel(want)), schedule.name
            assert len(schedules.pat("all_gather", n).steps) == (n - 1).bit_length()
            assert schedules.pat("all_gather", n).received() == pytest.approx([(n - 1) / n] * n)


def test_only_a_switch_may_be_sent_what_it_has_not_to_add_up():
    wrong = Schedule("wrong", "broadcast", 2, 1, ((schedules.Send(0, 1, (0,), True),),))
    with pytest.raises(KeyError):
        wrong.run([[1], [2]])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: schedules.nvls("broadcast", 4), "It does all_gather"),
        (lambda: schedules.collnet_direct("all_gather", 2, 2), "It does all_reduce"),
        (lambda: schedules.collnet_chain("all_reduce", 2, 0), "Choose 1 or more"),
        (lambda: schedules.double_tree("all_reduce", 6, gpus=4), "Choose a divisor of 6"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(wrong, says):
    with pytest.raises(LabError, match=says):
        wrong()
