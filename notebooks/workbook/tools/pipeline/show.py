"""What `labkit.draw` shows of a pipeline's schedule: a Gantt chart."""

from __future__ import annotations

from labkit.plot.gantt import Bar
from labkit.show import gantt
from workbook.tools.pipeline import NAMES, Schedule


def of_schedule(schedule: Schedule) -> gantt.Gantt:
    """Return the chart of a schedule that is played by arithmetic alone."""

    def names(kind: str, micro: int, chunk: int) -> tuple[str, ...]:
        return gantt.short(kind, f"{micro}{gantt.LETTERS[chunk]}" if schedule.chunks > 1 else str(micro))

    lanes = [
        [Bar(NAMES[b.kind], names(b.kind, b.micro, b.chunk), b.start, b.end, b.chunk) for b in mine]
        for mine in schedule.played
    ]
    kept = ", ".join(f"{pairs / schedule.chunks:g}" for pairs in schedule.alive)
    passes = "and the two halves of a backward pass 1 each" if schedule.split else "and a backward pass 2"
    notes = [
        f"Micro-batches whose activations ranks 0 to {schedule.ranks - 1} keep at their peaks: {kept}.",
        f"Computed, not run: a forward pass takes 1, {passes}, and messages take no time.",
    ]
    return gantt.Gantt(lanes, f"{schedule.name}, {schedule.ranks} ranks, {schedule.micro} micro-batches", notes)
