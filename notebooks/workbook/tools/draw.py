"""Draw what lessons compute: a schedule's steps, a pipeline, a server, NCCL's log, where simulated time goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.floor.errors import LabError
from workbook.tools.hosts.show import OnHosts
from workbook.tools.schedules.schedule import Schedule
from workbook.tools.schedules.show import Drawn, OneStep


def draw(
    schedule: Any, hosts: int | None = None, between: tuple[str, str] | None = None, step: int | None = None
) -> Any:
    """Draw the steps of a schedule: a row for each rank, a cell for each of its chunks, an arrow for each send.

    With `step`, draw that one alone, counted from 1, and what it leaves; after the last one, the last.
    With `hosts`, draw instead where the ranks sit, as many on each host, and what goes through a host's link at once.
    A schedule of `workbook.tools.pipeline` becomes a Gantt chart: a lane for each rank, a box for each pass. A server
    of `workbook.tools.topology` becomes its devices and what joins them, the path `between` two of them bold; a log of
    `workbook.tools.nccl_log` its rings and trees. A step or a training run of `workbook.tools.events`, or several by
    name, becomes bars that say where its time goes.

    >>> from labkit import draw
    >>> from workbook.tools import schedules
    >>> draw(schedules.ring("all_reduce", 2))
    ring, all_reduce on 2 ranks: 2 chunks, 2 steps, each rank sends 1 S
    step 1: 0→1 +1 · 1→0 +0
    step 2: 0→1 =0 · 1→0 =1
    """
    if hasattr(schedule, "drawn"):  # a value that says itself how it is drawn
        return schedule.drawn(between)
    if isinstance(schedule, Mapping) and len({type(run) for run in schedule.values()}) == 1:
        first = next(iter(schedule.values()))
        if hasattr(first, "drawn_beside"):
            return first.drawn_beside(schedule)
    if not isinstance(schedule, Schedule):
        raise LabError(f"{type(schedule).__name__} is not a schedule. Draw one of schedules.of('all_reduce', 4).")
    if step is not None and schedule.steps:
        return OneStep(schedule, step)
    return Drawn(schedule) if hosts is None else OnHosts(schedule, hosts)
