"""A schedule on hosts: how many messages of each step go through the link of a host. No torch, no cluster."""

from __future__ import annotations

from typing import Any

from labkit.floor.words import count, spans
from labkit.show.picture import Picture
from workbook.tools.hosts import plot
from workbook.tools.schedules import Schedule
from workbook.tools.schedules.links import Load, home, loads


class OnHosts(Picture):
    """The steps of a schedule whose ranks sit on hosts, those with the same messages together; it displays itself."""

    def __init__(self, schedule: Schedule, hosts: int) -> None:
        self.schedule = schedule
        self.home = home(schedule, hosts)
        ways: dict[tuple[tuple[tuple[int, int], ...], Load], list[int]] = {}
        for k, (step, load) in enumerate(zip(schedule.steps, loads(schedule, hosts), strict=True)):
            pairs = tuple(sorted((send.src, send.dst) for send in step))
            ways.setdefault((pairs, load), []).append(k + 1)
        self._ways = ways

    @property
    def _panels(self) -> list[plot.Panel]:
        panels = []
        for (pairs, load), numbers in self._ways.items():
            size = f"{load.share:.3g} S"
            at_once, in_all = (" at once", " in all") if load.messages > 1 else ("", "")
            told = f"{count(load.messages, 'message')}{at_once}, {size}{in_all}, through a host's link"
            said = f"{'each: ' * (len(numbers) > 1)}{told}" if load.messages else "nothing leaves a host"
            panels.append(plot.Panel(f"step{'s' * (len(numbers) > 1)} {spans(numbers, ', ')}", pairs, said))
        return panels

    @property
    def title(self) -> str:
        """Which schedule, on how many hosts."""
        s = self.schedule
        return f"{s.name}, {s.op} on {count(s.n, 'rank')}, {count(max(self.home) + 1, 'host')}"

    def __repr__(self) -> str:
        return "\n".join([self.title, *(f"{p.title}, {p.said}" for p in self._panels)])

    def _drawn(self) -> Any:
        return plot.draw(plot.Picture(self.title, self.home, self._panels))
