"""What a right solution cost: bytes, rounds, memory of one run, beside the least possible and the learner's best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from labkit.grading import run_cost
from labkit.grading.attempt import Attempt
from labkit.grading.exercise import Exercise
from labkit.grading.inputs import Case

COSTS = ("sent", "rounds", "memory", "moved")


@dataclass(frozen=True)
class Score:
    """What one run on n ranks cost, whose largest input took `size` bytes.

    `sent` are the bytes that its busiest rank sent and `rounds` how many messages and collectives followed one
    another, see `grading.run_cost`; `memory` the bytes of tensors that a rank had alive at once beside its arguments,
    at most, `moved` those that the kernels of its busiest rank read and wrote; None is what was not measured.
    `textbook`: bytes of collectives are among them, as the textbook has them.
    """

    n: int
    size: int
    sent: float | None
    rounds: float | None
    memory: float | None = None
    textbook: bool = False
    moved: float | None = None

    def least(self, exercise: Exercise) -> dict[str, float]:
        """Return the least that each cost can be here, as far as the exercise says so."""
        least = exercise.least
        if least is None:
            return {}
        known = {
            "sent": least.sent and least.sent(self.n, self.size),
            "rounds": least.rounds and least.rounds(self.n),
            "memory": least.memory and least.memory(self.n, self.size),
            "moved": least.moved and least.moved(self.n, self.size),
        }
        return {cost: float(value) for cost, value in known.items() if value is not None}

    def below(self, exercise: Exercise) -> dict[str, float]:
        """Return the least of each cost of which less was seen than there can be, a rounding aside."""
        mine = {cost: getattr(self, cost) for cost in COSTS}
        return {c: v for c, v in self.least(exercise).items() if mine[c] is not None and mine[c] < 0.98 * v}

    def believed(self, exercise: Exercise) -> Score | None:
        """Drop what is below the least: steps inside a collective and a thread's memory are not seen. None: all is."""
        nothing: dict[str, Any] = dict.fromkeys(self.below(exercise))
        left = replace(self, **nothing)
        return left if any(getattr(left, cost) is not None for cost in COSTS) else None

    def best(self, before: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Return the lowest of each, among this run and what `best` gave for earlier ones of the same size.

        None where the earlier ones had more ranks: those are kept, and do not compare.
        """
        mine = {"n": self.n, "size": self.size} | {c: v for c in COSTS if (v := getattr(self, c)) is not None}
        if not before or before["n"] < self.n or (before["n"] == self.n and before["size"] != self.size):
            return mine
        if before["n"] > self.n:
            return None
        return {key: min(value, before.get(key, value)) for key, value in {**before, **mine}.items()}


def scored(exercise: Exercise, case: Case, attempt: Attempt) -> Score | None:
    """Return what a run cost but its memory; None where a rank has not told it, or there is nothing to say."""
    record = attempt.record
    if record is None:
        return None
    if exercise.least and exercise.least.moved:
        moved = [log.moved for log in record.logs if log.moved is not None]  # on a GPU it is not counted
        return Score(case.n, case.size, None, None, moved=max(moved)) if moved else None
    if not exercise.counts_messages or not (exercise.least or (exercise.solution and any(record.ops))):
        return None
    textbook = any(op.kind == "collective" and op.bytes for op in record.calls)
    return Score(case.n, case.size, max(run_cost.sent(record)), run_cost.in_a_row(record), textbook=textbook)
