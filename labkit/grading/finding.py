"""What a run of a learner's function shows: in which way it is wrong, told in sentences."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from labkit.grading import gradients, judge
from labkit.grading.attempt import Attempt
from labkit.grading.exercise import Exercise
from labkit.grading.inputs import Case, arrays
from labkit.outcome import text
from labkit.outcome.sentences import waited
from labkit.outcome.text import merge
from labkit.theory.origin import Origin
from labkit.words import alike, ranks

CRASHES = ("SIGABRT", "SIGSEGV", "SIGBUS")
WHY = "Gloo ends a process like this when other bytes come than it expects: another length or dtype than the sender's."


@dataclass
class Finding:
    """What a check found. `says` are sentences, the first one the verdict; `case` the input that it is about.

    `outs[r]` and `want[r]` are what came and what should have come there (gradients where `slopes`), `wrong` the ranks
    that differ (rank → difference), `origins[r]` where the elements came from, if that is known. `told` is every
    rank's record, `right` how many inputs were right before.
    """

    state: str
    says: list[str] = field(default_factory=list)
    right: int = 0
    case: Case | None = None
    outs: list[Any] = field(default_factory=list)
    want: list[Any] = field(default_factory=list)
    wrong: dict[int, judge.Difference] = field(default_factory=dict)
    slopes: bool = False
    told: list[dict[str, Any] | None] = field(default_factory=list)
    printed: str = ""
    origins: list[list[Origin]] | None = None
    healed: list[str] = field(default_factory=list)


def judged(exercise: Exercise, case: Case, attempt: Attempt, want: list[Any], mode: str) -> Finding | None:
    """What is wrong with a run; None where it is right."""
    finding = _broken(exercise, case, attempt)
    if finding is None:
        outs = [attempt.answers[r]["out"] for r in range(case.n)]
        finding = Finding("wrong", case=case, outs=outs, want=want, told=attempt.records)
        if mode:
            _slopes(exercise, case, attempt, finding, mode)
        else:
            _compare(exercise, case, attempt, finding)
            if not finding.wrong:
                _leftover(attempt, finding)
        if not finding.says:
            return None
    for r in range(case.n):
        printed = attempt.answers.get(r, {}).get("printed", "")
        if printed and not finding.printed:
            finding.printed = merge({r: printed})
    return finding


def setting(case: Case) -> str:
    """An input in words: "with 3 ranks, one element"."""
    return f"with {case.n} ranks" + (f", {case.about}" if case.about else "")


def _broken(exercise: Exercise, case: Case, attempt: Attempt) -> Finding | None:
    """A run that did not end by itself, or that raised."""
    report = attempt.report
    there = setting(case)
    base: dict[str, Any] = {"case": case, "told": attempt.records}
    if report.ended == "stopped":
        return Finding("stopped", ["You stopped the check."], **base)
    if report.ended == "lost":
        return Finding("raises", ["The controller died, and with it what the ranks answered. Check again."], **base)
    causes, consequences = text.root_cause(report)
    if causes:
        cause = causes[0]
        at = attempt.answers.get(cause.ranks[0], {}).get("error", ("", "", {}))[2]
        if exercise.harness and cause.ename == "AssertionError" and not at.get("line"):
            return Finding("wrong", [f"{ranks(cause.ranks).capitalize()} {there}: {cause.evalue}."], **base)
        line = f"Line {at['line']} of the cell: {at['source']}" if at.get("line") else ""
        others = [f"{_flat(c)}." for c in causes[1:]]
        says = [f"{_flat(cause)} ({there}).", line, *others]
        says += _waited(attempt)
        return Finding("raises", [s[0].upper() + s[1:] for s in says if s], **base)
    if report.ended == "slow":
        doing = "; ".join([*_waits(attempt), *(f"{ranks(rs)} {w}" for w, rs in _groups(report.elsewhere))])
        return Finding("slow", [f"It takes too long {there}{': ' if doing else ''}{doing}."], **base)
    if report.dead:
        died = ", ".join(f"rank {r} died ({how})" for r, how in report.dead.items())
        crashed = any(how in CRASHES for how in report.dead.values())
        says = [f"W{there[1:]}: {died}.", *_waited(attempt), *[WHY] * crashed]
        return Finding("raises", says, **base)
    if report.ended == "stuck" or consequences:
        says = [f"It hangs {there}.", *(f"{w[0].upper()}{w[1:]}." for w in _waits(attempt))]
        says += [
            f"{ranks(rs).capitalize()} {what.replace('the cell', 'the function')}."
            for what, rs in _groups(report.elsewhere)
        ]
        return Finding("deadlock", says, **base)
    return None


def _flat(cause: text.Cause) -> str:
    return " ".join(str(cause).split()).rstrip(".")


def _waited(attempt: Attempt) -> list[str]:
    return [f"{w[0].upper()}{w[1:]}." for w in waited(attempt.report)]


def _groups(what: dict[int, str]) -> list[tuple[str, list[int]]]:
    return list(alike(what).items())


def _waits(attempt: Attempt) -> list[str]:
    """Who waits for whom, at which line."""
    said: dict[str, list[int]] = {}
    for r, w in sorted(attempt.report.waiting.items()):
        told = attempt.answers.get(r, {}).get("told")
        last = next((op for op in reversed(told["ops"] if told else []) if op["error"] or op["left"] is None), None)
        for_ = ""
        if last is not None and last["kind"] == "send":
            for_ = f" for rank {last['peer']} to receive"
        elif last is not None and last["kind"] == "recv":
            for_ = f" for rank {last['peer']} to send" if last["peer"] is not None else " for anybody to send"
        inside = f" (in {w['function']})" if w.get("function") else ""
        said.setdefault(f"{for_} in {w['op']}, line {w['line']}{inside}: {w['source']}", []).append(r)
    return [f"{ranks(rs)} {'waits' if len(rs) == 1 else 'wait'}{what}" for what, rs in said.items()]


def _compare(exercise: Exercise, case: Case, attempt: Attempt, finding: Finding) -> None:
    """The first rank that differs, and every other one that does."""
    for r, want in enumerate(finding.want):
        answer = attempt.answers[r]
        coarse = case.dtype or answer["dtype"]
        given = arrays(case.xs[r])
        if not coarse and given:
            coarse = max((str(a.dtype) for a in given), key=lambda d: judge.RELATIVE.get(d, 0.0))
        if want is not None:
            difference = judge.first_difference(answer["out"], want, exercise.tolerance, coarse)
            if difference:
                finding.wrong[r] = difference
        if exercise.keeps_input and r not in finding.wrong:
            brought = case.xs[r] if isinstance(case.xs[r], tuple) else (case.xs[r],)
            moved = judge.first_difference(list(answer["kept"]), list(brought), None, case.dtype)
            if moved:
                finding.wrong[r] = judge.Difference("the argument is changed, and must stay as it is")
    if finding.wrong:
        says = next(iter(finding.wrong.values())).says
        alike = [r for r, d in finding.wrong.items() if d.says == says]
        there = f", {case.about}" if case.about else ""
        finding.says = [f"With {case.n} ranks{there}: on {ranks(alike)} {says}."]
        others = sorted(set(range(case.n)) - set(finding.wrong))
        if others:
            finding.says.append(f"{ranks(others).capitalize()} {'is' if len(others) == 1 else 'are'} right.")
        equal = all(judge.first_difference(w, finding.want[0]) is None for w in finding.want)
        if equal and any(judge.first_difference(o, finding.outs[0]) for o in finding.outs):
            finding.says.append("The ranks disagree, and all of them should end with the same.")


def _leftover(attempt: Attempt, finding: Finding) -> None:
    """A message that nobody takes: the result is right by luck, and the next receive takes the wrong one."""
    record = attempt.record
    for message in record.messages if record else ():
        if message.send is not None and message.recv is None:
            op = message.send
            finding.says = [
                f"Rank {op.rank} sends to rank {op.peer} (line {op.line}), and nobody receives it "
                f"({setting(finding.case)})."  # type: ignore[arg-type]
            ]
            return


def _slopes(exercise: Exercise, case: Case, attempt: Attempt, finding: Finding, mode: str) -> None:
    expected = gradients.gradients(exercise.means, case.xs, case.options, one=mode == "one")
    names = [_floating(exercise, x) for x in case.xs]
    for r, grads in enumerate(expected):
        for i, want in enumerate(grads):
            got = attempt.answers[r]["gradients"][i]
            which = names[r][i]
            if got is None:
                says = f"no gradient reaches {which}"
            elif difference := judge.first_difference(got, want.astype(got.dtype), 2e-3):
                says = f"the gradient of {which} is wrong: {difference.says}"
            else:
                continue
            finding.wrong[r] = judge.Difference(says)
            break
    if finding.wrong:
        r, difference = next(iter(finding.wrong.items()))
        finding.slopes = True
        finding.outs = [a["gradients"][0] for _, a in sorted(attempt.answers.items())]
        finding.want = [grads[0] for grads in expected]
        finding.says = [f"The values are right, the gradients are not. Rank {r} {setting(case)}: {difference.says}."]


def _floating(exercise: Exercise, x: Any) -> list[str]:
    """The names of the arguments that gradients go to, in their order."""
    args = x if isinstance(x, tuple) else (x,)
    known = exercise.arguments if exercise.solution else []
    names = [known[i] if i < len(known) else f"argument {i}" for i in range(len(args))]
    return [name for name, a in zip(names, args, strict=True) if getattr(getattr(a, "dtype", None), "kind", "") == "f"]
