"""What there is to say of a function that is right: forbidden calls, a card's promises, bytes and steps that cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from labkit.floor.words import listed, ranks
from labkit.grading import run_cost
from labkit.grading.attempt import Attempt
from labkit.grading.evidence import never_waited, unreached
from labkit.grading.exercise import Exercise
from labkit.grading.finding import Finding, setting
from labkit.grading.inputs import Case
from labkit.grading.score import Score
from labkit.theory.log import Op
from labkit.theory.primitives import find
from labkit.theory.record import Record

WHERE_FROM = "Where did the others' numbers come from? Let them travel by messages: see the card."
STATES = ("forbidden", "costly", "not as asked")  # of a function that is right, what weighs most first


def remarks(exercise: Exercise, case: Case, attempt: Attempt) -> list[Finding]:
    """Make a finding of each; none where all is well, or where a rank has not told what it did."""
    record = attempt.record
    if record is None:
        return []
    sentences = [("forbidden", _forbidden(exercise, record))]
    for says in never_waited(record, range(case.n)):
        sentences.append(("not as asked", f"{_in(case, says)} Only by chance was the data there in time."))
    sentences += [("not as asked", _in(case, p.broken(record))) for p in exercise.promises]
    budget = exercise.budget
    if budget and budget.sent:
        sentences.append(("costly", _bytes(case, record, budget.sent)))
    if budget and budget.link:
        sentences.append(("costly", _link(case, record, budget.link)))
    if budget and budget.steps and (steps := run_cost.steps(record)) > (enough := budget.steps(case.n)):
        sentences.append(("costly", f"It takes {steps} steps {setting(case)}, and {enough:.0f} are enough."))
    return [Finding(state, [says], case=case, records=attempt.records) for state, says in sentences if says]


def unheard(exercise: Exercise, case: Case, attempt: Attempt, want: Sequence[Any]) -> list[Finding]:
    """Find right results that need other ranks' numbers, on ranks that no message reached."""
    record = attempt.record
    if record is None or not exercise.counts_messages or not exercise.needs_messages:
        return []
    found = [r for r in unreached(record) if exercise.needs_others(case, want, r)]
    if not found:
        return []
    ends = "ends with numbers of other ranks, and has" if len(found) == 1 else "end with others' numbers, and have"
    says = f"{ranks(found).capitalize()} {ends} received no message"
    return [Finding("not as asked", [f"{_in(case, says)} {WHERE_FROM}"], case=case, records=attempt.records)]


def below(exercise: Exercise, score: Score, case: Case) -> str:
    """Say that fewer bytes were seen than there can be; "" where not so, or where more steps saved some."""
    least, rounds = score.below(exercise).get("sent"), score.least(exercise).get("rounds")
    if least is None or (score.sent and rounds is not None and (score.rounds or 0) > rounds):
        return ""
    figures = f"Its busiest rank sends {score.sent:,.0f} bytes, and {least:,.0f} is the least that there can be"
    return f"{_in(case, figures)} {WHERE_FROM}"


def _in(case: Case, sentence: str) -> str:
    return f"{sentence.rstrip('.')} ({setting(case)})." if sentence else ""


def _forbidden(exercise: Exercise, record: Record) -> str:
    """Name the calls that the exercise forbids, in any spelling."""
    primitives = [p for p in map(find, exercise.forbids) if p is not None]
    names = {p.name for p in primitives if p.kind == "collective"}
    kinds = {p.kind for p in primitives if p.kind != "collective"}  # a message is one, whatever it carries
    if "collectives" in exercise.forbids:
        kinds.add("collective")
    banned: dict[str, Op] = {}
    for op in record.calls:
        if op.kind in kinds or op.name in exercise.forbids or (op.primitive and op.primitive.name in names):
            banned.setdefault(op.called, op)
    first = min(banned.values(), key=lambda op: op.line or 0, default=None)
    return f"It calls {listed(sorted(banned))}{first.at}." if first else ""


def _bytes(case: Case, record: Record, budget: Callable[[int, float], float]) -> str:
    """Say how many bytes are over the budget; what a last chunk is longer than the others is forgiven.

    What the calls carry counts, and what the kernel has counted on the wire, without what is put around data there.
    """
    size = case.size
    allowed = budget(case.n, size)
    enough = 1.02 * allowed + 2 * case.n * case.item
    carried, wire = max(run_cost.sent(record)), run_cost.wired(record)
    if not size or max(carried, wire or 0.0) <= enough:
        return ""
    figure, why = carried, " Counted by its calls: the bytes on the wire cannot be counted here." * (wire is None)
    if carried <= enough:
        figure = wire or 0.0
        why = f" That is counted on the wire; by the textbook its calls take {_share(carried / size)}."
    says = f"Its busiest rank sends {_share(figure / size)}, and {_share(allowed / size)} is possible"
    return f"{says} ({setting(case)}; S: the {size} bytes of a rank's input).{why}"


def _link(case: Case, record: Record, budget: Callable[[int, float], float]) -> str:
    """Say how many bytes are over the budget of one link, between ranks or hosts; rounding is forgiven."""
    hosts = case.options.get("hosts")
    home = {r: h for h, ranks in enumerate(hosts or [[r] for r in range(case.n)]) for r in ranks}
    carried: dict[tuple[int, int], float] = {}
    for op in record.calls:
        if op.kind == "send" and op.peer is not None and home[op.rank] != home[op.peer]:
            link = home[op.rank], home[op.peer]
            carried[link] = carried.get(link, 0.0) + (op.bytes or 0)
    allowed = budget(case.n, case.size)
    link, most = max(carried.items(), key=lambda item: item[1], default=((0, 0), 0.0))
    if not case.size or most <= 1.02 * allowed + 2 * case.n * case.item:
        return ""
    way = "from one host to the other" if hosts else f"from rank {link[0]} to rank {link[1]}"
    figures = f"{_share(most / case.size)} go {way}, and {_share(allowed / case.size)} is possible"
    return f"{figures} ({setting(case)}; S: the {case.size} bytes of a rank's input)."


def _share(x: float) -> str:
    """Write so many times S, in two decimals where one is not enough.

    >>> _share(0.75), _share(3.0)
    ('0.75 S', '3.0 S')
    """
    return f"{x:.2f}".removesuffix("0") + " S"
