"""What there is to say of a function that is right: calls that are forbidden, bytes and steps over the budget."""

from __future__ import annotations

from collections.abc import Callable

from labkit.grading import spent
from labkit.grading.attempt import Attempt
from labkit.grading.exercise import Exercise
from labkit.grading.finding import Finding, setting
from labkit.grading.inputs import Case, arrays
from labkit.theory.record import Record

WIDTHS = {"bfloat16": 2, "float16": 2}  # bytes of an element, of dtypes that a case names


def remarks(exercise: Exercise, case: Case, attempt: Attempt) -> list[Finding]:
    """Each of them as a finding; none where all is well, or where a rank has not told what it did."""
    record = attempt.record
    if record is None:
        return []
    said = [("forbidden", _forbidden(exercise, record))]
    budget = exercise.budget
    if budget and budget.sent:
        said.append(("costly", _bytes(case, max(spent.sent(record)), budget.sent)))
    if budget and budget.steps and (steps := spent.steps(record)) > (enough := budget.steps(case.n)):
        said.append(("costly", f"It takes {steps} steps {setting(case)}, and {enough:.0f} are enough."))
    return [Finding(state, [says], case=case, records=attempt.records) for state, says in said if says]


def _forbidden(exercise: Exercise, record: Record) -> str:
    """The calls that the exercise forbids."""
    called = {op.op.removeprefix("comms."): op for mine in record.ops for op in mine}
    banned = [
        op
        for name, op in sorted(called.items())
        if name in exercise.forbids or (op.kind == "collective" and "collectives" in exercise.forbids)
    ]
    names = " and ".join(op.op if op.op.startswith("comms.") else f"dist.{op.op}" for op in banned)
    return f"It calls {names} (line {banned[0].line})." if banned else ""


def _bytes(case: Case, spent: float, budget: Callable[[int, float], float]) -> str:
    """Bytes over the budget; what a last chunk is longer than the others is forgiven."""
    given = [a for x in case.xs for a in arrays(x)]
    item = WIDTHS.get(case.dtype) or max((a.itemsize for a in given), default=0)
    size = max(sum(a.size for a in arrays(x)) for x in case.xs) * item
    allowed = budget(case.n, size)
    if not size or spent <= 1.02 * allowed + 2 * case.n * item:
        return ""
    said = f"Its busiest rank sends {spent / size:.1f} S, and {allowed / size:.1f} S is possible"
    return f"{said} ({setting(case)}; S: the {size} bytes of a rank's input)."
