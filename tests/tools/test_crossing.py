"""What lesson 15 prints and draws of the bytes between hosts: counted, in units of S, and by formulas."""

from __future__ import annotations

import re

import pytest

from labkit.show.wire import Wire
from labkit.theory.traffic import Counted
from tests.recorded import Told, told
from workbook.tools import crossing, schedules
from workbook.tools.draw import draw
from workbook.tools.hosts.plot import ROOM
from workbook.tools.schedules import Schedule

HOSTS = [[0, 1], [2, 3]]


def counted(matrix: list[list[int]] | None) -> Wire:
    return Wire(Counted(4, matrix, "" if matrix else "nobody counts"), told(*(Told(4) for _ in range(4))))


def test_what_leaves_the_hosts_is_told_in_units_of_s():
    ring = [[0, 0, 0, 150], [150, 0, 0, 0], [0, 150, 0, 0], [0, 0, 150, 0]]
    assert crossing.told(counted(ring), HOSTS, 100) == "1.50 S out of each host, busiest rank: 1.50 S"
    ring[0][2] = 100
    assert crossing.told(counted(ring), HOSTS, 100) == "2.50 S and 1.50 S out of the hosts, busiest rank: 2.50 S"
    assert crossing.told(counted(None), HOSTS, 100) == "not counted"


def test_the_table_says_what_the_schedules_send_and_how_many_steps_they_take(capsys):
    crossing.ring_beside_hierarchical((2, 4), each=2)
    _, *rows = capsys.readouterr().out.splitlines()
    for h, row in zip((2, 4), rows, strict=True):
        ring, both = schedules.ring("all_reduce", 2 * h), schedules.hierarchical("all_reduce", h, 2)
        shares = [max(s.crossing(2, 1.0)) for s in (ring, both)]
        assert [float(x) for x in re.findall(r"([\d.]+) S", row)] == pytest.approx(shares, abs=1e-3)
        assert [int(x) for x in re.findall(r"(\d+) steps", row)] == [len(ring.steps), len(both.steps)]


@pytest.mark.parametrize(
    "schedule", [schedules.hierarchical("all_reduce", 2, 2), schedules.halving_doubling("all_reduce", 8)]
)
def test_all_of_a_picture_of_hosts_is_seen_beside_the_file_browser(schedule: Schedule):
    assert draw(schedule, hosts=2)._drawn().get_xlim()[1] <= ROOM


def test_a_caption_of_several_steps_is_of_each_of_them():
    said = repr(draw(schedules.hierarchical("all_reduce", 2, 2), hosts=2)).splitlines()
    assert said[-1] == "steps 2, 3, each: 2 messages at once, 0.5 S in all, through a host's link"
