"""How far a process's own clock is from the one on the wall."""

from __future__ import annotations

import itertools

import pytest

from labkit.floor import timestamps

APART = 1_000_000.0  # seconds from this clock's moments to the wall's


class Clocks:
    """Two clocks, of a process that stands still now and then for some seconds after it has read one."""

    def __init__(self, stalls) -> None:
        self.at, self._stalls = 5.0, itertools.chain(stalls, itertools.repeat(0.0))

    def _read(self) -> float:
        seen = self.at
        self.at += 1e-7 + next(self._stalls)
        return seen

    now = _read

    def time(self) -> float:
        return self._read() + APART


@pytest.mark.parametrize("stalled", range(4))
def test_a_stall_between_two_looks_at_two_clocks_does_not_put_them_apart(monkeypatch, stalled):
    clocks = Clocks([0.0] * stalled + [0.03])
    monkeypatch.setattr(timestamps, "now", clocks.now)
    monkeypatch.setattr(timestamps, "time", clocks)
    assert timestamps.wall() == pytest.approx(APART, abs=1e-6)


def test_where_every_look_stalls_the_shortest_counts(monkeypatch):
    clocks = Clocks([0.03, 0.03, 0.002, 0.002] + [0.03] * 100)
    monkeypatch.setattr(timestamps, "now", clocks.now)
    monkeypatch.setattr(timestamps, "time", clocks)
    assert timestamps.wall() == pytest.approx(APART, abs=0.0021)
