"""What a run of a learner's function shows: in which way it is wrong, told in sentences."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from labkit.floor.words import alike, ranks, sentence
from labkit.grading import evidence, gradients, judge
from labkit.grading.attempt import Attempt
from labkit.grading.exercise import Exercise
from labkit.grading.inputs import Case, arrays
from labkit.grading.score import Score
from labkit.outcome import advice, text
from labkit.outcome.outcome import Did, Instead, Note, Outcome
from labkit.outcome.phrases import did, inside
from labkit.outcome.sentences import TOGETHER, waited
from labkit.outcome.text import merge
from labkit.outcome.why import exchanged_singly
from labkit.theory.fingerprint import OPERATION, ROOT
from labkit.theory.origin import Origin

HANGS = (OPERATION, ROOT)  # what differs where ranks wait for messages that no rank sends
FLOOR = 0.01  # of the largest number of any rank: an error is relative to that at least, where a rank has small ones
CRASHES = ("SIGABRT", "SIGSEGV", "SIGBUS")
WHY = (
    "Gloo ends a process like this when it gets other bytes than it expects: the sender's tensor has a different "
    "length or dtype."
)
ADDED = "the backward pass adds up the gradients of all ranks, and their losses are one and the same"
ROUNDED = "These are the right numbers, rounded to float32: convert to float64 before you add and divide, not after."
GUARDED = (
    "The lab's guard has stopped the ranks before this call ran. In a job of your own it would hang, crash or give "
    "wrong numbers."
)


@dataclass
class Finding:
    """What a check found. `says` are sentences, the first one the verdict; `case` the input that it is about.

    `outs[r]` and `want[r]` are what came and what should have come there: gradients of the argument `gradient`, where
    it is named, and where `kept` the arguments after the call. `wrong` are the ranks that differ (rank → difference),
    `origins[r]` is where the elements came from, if that is known. `records` are the ranks' own, `report` what became
    of a run that did not end well; `right` is how many inputs were right before, `score` what a right function cost.
    """

    state: str
    says: list[str] = field(default_factory=list)
    right: int = 0
    case: Case | None = None
    outs: list[Any] = field(default_factory=list)
    want: list[Any] = field(default_factory=list)
    wrong: dict[int, judge.Difference] = field(default_factory=dict)
    gradient: str = ""
    kept: bool = False
    records: list[dict[str, Any] | None] = field(default_factory=list)
    report: Outcome | None = None
    printed: str = ""
    origins: list[list[Origin]] | None = None
    healed: list[Note] = field(default_factory=list)
    score: Score | None = None

    def in_an_exam(self) -> Finding:
        """Return one that says right or wrong, and not what is wrong; that nothing was judged, it says as it is."""
        if self.state in ("wrong", "raises", "deadlock", "slow"):
            return Finding("wrong")
        return Finding(self.state, right=self.right) if self.right else self


def judged(exercise: Exercise, case: Case, attempt: Attempt, want: list[Any], mode: str) -> Finding | None:
    """Find what is wrong with a run; None where it is right."""
    attempt = replace(attempt, report=_as_finished(attempt.report))
    finding = _broken(exercise, case, attempt)
    if finding is None:
        outs = [attempt.answers[r]["out"] for r in range(case.n)]
        finding = Finding("wrong", case=case, outs=outs, want=want, records=attempt.records)
        if mode:
            _gradients(exercise, case, attempt, finding, mode)
        else:
            _compare(exercise, case, attempt, finding)
        if finding.wrong:
            finding.says += _contradictions(attempt)
        elif not mode:
            _leftover(attempt, finding)
        if not finding.says:
            return None
    finding.printed = merge({r: answer.get("printed", "") for r, answer in attempt.answers.items()})
    return finding


def _as_finished(report: Outcome) -> Outcome:
    """Take ranks that wait in no line of the learner's, but in what the check does behind it, for finished ones."""
    behind = {r: Instead(Did.FINISHED) for r, w in report.waiting.items() if w.line is None}
    waiting = {r: w for r, w in report.waiting.items() if r not in behind}
    return replace(report, waiting=waiting, elsewhere={**report.elsewhere, **behind}) if waiting else report


def setting(case: Case) -> str:
    """Name an input: "with 3 ranks, one element"."""
    return f"with {case.n} ranks" + (f", {case.about}" if case.about else "")


def _broken(exercise: Exercise, case: Case, attempt: Attempt) -> Finding | None:
    """Judge a run that did not end by itself, or that raised."""
    report = attempt.report
    there = setting(case)
    base: dict[str, Any] = {"case": case, "records": attempt.records}
    if report.ended == "stopped":
        return Finding("stopped", ["You stopped the check."], **base)
    if report.ended == "lost":
        lost = "The controller died, and the ranks' answers were lost with it. Check again."
        return Finding("raises", [lost], **base)
    if (misfit := report.misfit) is not None:
        state = "deadlock" if misfit.differs in HANGS else "raises"
        said = f"W{there[1:]}: {misfit.evalue[0].lower()}{misfit.evalue[1:]}"
        return Finding(state, [said, *_contradictions(attempt), GUARDED], case=case)  # who waited, is chance
    if report.ended == "slow":
        doing = "; ".join([*_waits(attempt), *_others(_done(report))])
        return Finding("slow", [f"It takes too long {there}{': ' if doing else ''}{doing}."], **base)
    causes, consequences = text.root_cause(report)
    unfit = _contradictions(attempt)
    alone = evidence.with_themselves(attempt.told)
    if alone and report.ended != "stuck":  # torch raises, in words that say nothing of it
        return Finding("raises", [f"{alone[0][:-1]}, {there}.", *unfit[1:]], **base)
    if causes and not alone:
        return _raises(exercise, attempt, there, causes, unfit, base)
    deaf = report.ended == "stuck" and set(report.dead) <= set(report.waiting)  # they waited, and the lab ended them
    if report.dead and not deaf:
        return Finding("raises", [*_died(attempt, there), *unfit, *_sentences(waited(report))], **base)
    if report.ended == "stuck" or consequences:
        says = [f"It hangs {there}.", *unfit, *_sentences(_waits(attempt))]
        if report.dead:
            its = "its process" if len(report.dead) == 1 else "their processes"
            says.append(sentence([f"{ranks(report.dead)} could not be freed, so the lab ended {its}"]))
        instead = _instead(attempt)
        says += _sentences([*_others(instead), *[TOGETHER] * exchanged_singly(attempt.told, report)])
        return Finding("deadlock", says, report=replace(report, elsewhere=instead), **base)
    return None


def _raises(
    exercise: Exercise, attempt: Attempt, there: str, causes: list[text.Cause], unfit: list[str], base: dict[str, Any]
) -> Finding:
    """Say what was raised, on which ranks and in which line; a harness's own assertion is a wrong result."""
    cause = causes[0]
    at = attempt.answers.get(cause.ranks[0], {}).get("error", ("", "", {}))[2]
    if exercise.module and cause.ename == "AssertionError" and not at.get("line"):
        return Finding("wrong", [sentence([f"{ranks(cause.ranks)} {there}: {cause.evalue}"]), *unfit], **base)
    line = [f"Line {at['line']} of the cell: {at['source']}"] if at.get("line") else []
    if not line and cause.ename == "TypeError" and f"{exercise.name}()" in cause.evalue:  # it takes other arguments
        line = [f"The check calls {_called(exercise, base['case'])}."]
    hints = _sentences(advice.hints(cause.ename, cause.evalue, at.get("source", "")))
    others = [*_sentences(map(_flat, causes[1:])), *unfit, *_sentences(waited(attempt.report))]
    others += _sentences([TOGETHER] * exchanged_singly(attempt.told, attempt.report))
    return Finding("raises", [sentence([f"{_flat(cause).rstrip('.')} ({there})"]), *line, *hints, *others], **base)


def _called(exercise: Exercise, case: Case) -> str:
    """Write how the check calls the function: "halo(x)"; "f(x0, x1, root=0)" where no names are known."""
    x = case.xs[0]
    names = [f"x{i}" for i in range(len(x))] if isinstance(x, tuple) else ["x"]
    names = exercise.arguments if exercise.solution else [*names, *(f"{k}={v!r}" for k, v in case.options.items())]
    return f"{exercise.name}({', '.join(names)})"


def _died(attempt: Attempt, there: str) -> list[str]:
    """Say which processes ended, and in which line, where they could still tell."""
    died = {r: f"rank {r} died ({how})" for r, how in attempt.report.dead.items()}
    died |= {r: f"{died[r]} {words}" for r, words in attempt.last_words.items()}
    crashed = [r for r, how in attempt.report.dead.items() if how in CRASHES]
    on_gpu = any(op.enqueued for ops in attempt.told.ops for op in ops)  # then NCCL carried the data, and not Gloo
    gloo = not on_gpu and any(r not in attempt.last_words or not attempt.last_words[r].own for r in crashed)
    says = [f"W{there[1:]}: {', '.join(died.values())}.", *[WHY] * gloo]
    by_themselves = {r for r, words in attempt.last_words.items() if words.own}
    if not set(died) <= by_themselves:
        says += evidence.with_others(attempt.told, set(died), but=attempt.report.waiting)
    return says


def _others(instead: dict[int, Instead]) -> list[str]:
    return [f"{ranks(rs)} {did(what)}" for what, rs in alike(instead).items()]


def _instead(attempt: Attempt) -> dict[int, Instead]:
    """Return what the ranks did that do not wait; "without it" where a rank made no call that others wait in."""
    record = attempt.told
    pairs = [tuple(m.ops) for m in record.meetings] + [(m.send, m.recv) for m in record.messages if m.send and m.recv]
    taking_part = {op.rank for ops in pairs if any(op.rank in attempt.report.waiting for op in ops) for op in ops}
    instead = _done(attempt.report)
    instead |= {r: Instead(Did.RAISED, error.ename) for r, error in attempt.report.errors.items() if r in instead}
    return {r: replace(what, without=what.without and r not in taking_part) for r, what in instead.items()}


def _done(report: Outcome) -> dict[int, Instead]:
    return {r: replace(what, ran="function") for r, what in report.elsewhere.items()}


def _contradictions(attempt: Attempt) -> list[str]:
    return evidence.contradictions(attempt.told, attempt.finished)


def _flat(cause: text.Cause) -> str:
    return " ".join(str(cause).split())


def _sentences(notes: Iterable[str]) -> list[str]:
    return [sentence([note]) for note in notes]


def _waits(attempt: Attempt) -> list[str]:
    """Say who waits for whom, at which line."""
    places: dict[int, str] = {}
    record = attempt.told
    for r, w in sorted(attempt.report.waiting.items()):
        last = next((op for op in reversed(record.ops[r]) if op.error or op.left is None), None)
        whom = ""
        if last is not None and last.kind == "send":
            whom = f" for rank {last.peer} to receive"
        elif last is not None and last.kind == "recv":
            whom = f" for rank {last.peer} to send" if last.peer is not None else " for any rank to send"
        where = f"{w.call}, line {w.line}"
        where = f"{whom} ({where}{inside(w)})" if whom else f" in {where}{inside(w, ' ({})')}"
        places[r] = f"{where}: {w.source}"
    return [f"{ranks(rs)} wait{'s' * (len(rs) == 1)}{place}" for place, rs in alike(places).items()]


def _compare(exercise: Exercise, case: Case, attempt: Attempt, finding: Finding) -> None:
    """Compare each rank's result with the right one; where all are right, the arguments, if they must stay."""
    floor = FLOOR * max(map(judge.largest, finding.want))
    given = [str(a.dtype) for x in case.xs for a in arrays(x) if a.dtype.kind == "f"]
    exact = bool(given) and not case.dtype  # floats that are made of integers may have any width
    for r, want in enumerate(finding.want):
        answer = attempt.answers[r]
        coarse = case.dtype or max(given, key=lambda d: judge.RELATIVE.get(d, 0.0), default=answer["dtype"])
        if want is not None:
            rule = judge.Rule(exercise.tolerance, coarse, floor, exact)
            difference = judge.first_difference(answer["out"], want, rule)
            if not difference and exact and not answer["dtype"] and isinstance(answer["out"], np.ndarray):
                difference = judge.Difference("a numpy array comes back, and a tensor should")
            if not difference and case.dtype and answer["dtype"] not in ("", case.dtype):
                says = f"the numbers are right, their dtype is {answer['dtype']} and should be {case.dtype}"
                difference = judge.Difference(says)
            if difference:
                finding.wrong[r] = difference
    if exercise.keeps_input and not finding.wrong:
        _moved(case, attempt, finding)
    if finding.wrong:
        says, same = next(iter(alike({r: d.says for r, d in finding.wrong.items()}).items()))
        finding.says = [f"W{setting(case)[1:]}: on {ranks(same)} {says}."]
        others = sorted(set(range(case.n)) - set(finding.wrong))
        if others:
            finding.says.append(f"{ranks(others).capitalize()} {'is' if len(others) == 1 else 'are'} right.")
        if factor := judge.factor([(finding.outs[r], finding.want[r]) for r in finding.wrong], case.n):
            finding.says.append(factor)
        elif judge.rounded([(finding.outs[r], finding.want[r]) for r in finding.wrong]):
            finding.says.append(ROUNDED)
        elif exercise.module and _own(exercise, case, finding):
            finding.says.append("What differs there are numbers that the rank brought itself.")
            if set(finding.wrong) <= set(evidence.unreached(attempt.told)):
                finding.says[-1] += " No message has reached it."
        equal = all(judge.first_difference(w, finding.want[0]) is None for w in finding.want)
        if equal and any(judge.first_difference(o, finding.outs[0]) for o in finding.outs):
            finding.says.append("The ranks disagree, and all of them should end with the same result.")


def _own(exercise: Exercise, case: Case, finding: Finding) -> bool:
    """Tell whether all that is wrong are numbers of the ranks' own, in results that need other ranks' numbers."""
    own = judge.own([(finding.outs[r], finding.want[r], case.xs[r]) for r in finding.wrong])
    return own and all(exercise.needs_others(case, finding.want, r) for r in finding.wrong)


def _moved(case: Case, attempt: Attempt, finding: Finding) -> None:
    """Find the arguments that are not what the ranks brought."""
    brought = [x if isinstance(x, tuple) else (x,) for x in case.xs]
    after = [tuple(attempt.answers[r]["kept"]) for r in range(case.n)]
    for r, (came, mine) in enumerate(zip(after, brought, strict=True)):
        if judge.first_difference(list(came), list(mine), judge.Rule(dtype=case.dtype)):
            finding.wrong[r] = judge.Difference("the argument is changed, and must stay as it is")
    if finding.wrong:
        alone = all(len(mine) == 1 for mine in brought)
        finding.outs, finding.want = ([x[0] for x in xs] if alone else xs for xs in (after, brought))
        finding.kept = True


def _leftover(attempt: Attempt, finding: Finding) -> None:
    """Say what the next run would meet: no group any more, or a message that another receive takes."""
    if left := [r for r, answer in attempt.answers.items() if answer.get("left")]:
        who = ranks(left).capitalize()
        finding.says = [
            f"{who} destroyed the process group ({setting(finding.case)}), "  # type: ignore[arg-type]
            "which the lab needs. Destroy only groups that the function itself has made."
        ]
        return
    record = attempt.record
    for message in record.messages if record else ():
        if message.send is not None and message.recv is None:
            op = message.send
            finding.says = [
                f"Rank {op.rank} sends to rank {op.peer}{op.at}, and no rank receives it ({setting(finding.case)})."  # type: ignore[arg-type]
            ]
            return


def _gradients(exercise: Exercise, case: Case, attempt: Attempt, finding: Finding, mode: str) -> None:
    expected = gradients.gradients(exercise.means, case.xs, case.options, one=mode == "one")
    names = [_floating(exercise, x) for x in case.xs]
    wrong: dict[tuple[int, int], judge.Difference] = {}
    for r, grads in enumerate(expected):
        for i, want in enumerate(grads):
            got = attempt.answers[r]["gradients"][i]
            if got is None:
                wrong[r, i] = judge.Difference(
                    f"no gradient reaches {names[r][i]}, because nothing connects the result with it"
                )
            elif difference := _off(got, want):
                wrong[r, i] = replace(difference, says=f"the gradient of {names[r][i]} is wrong: {difference.says}")
    if wrong:
        (r, i), difference = next(iter(wrong.items()))
        finding.gradient = names[r][i]
        finding.wrong = {rank: d for (rank, argument), d in wrong.items() if argument == i}
        finding.outs = [attempt.answers[rank]["gradients"][i] for rank in range(case.n)]
        finding.want = [grads[i] for grads in expected]
        finding.says = [f"The values are right, the gradients are not. Rank {r} {setting(case)}: {difference.says}."]
        pairs = list(zip(finding.outs, finding.want, strict=True))
        if mode == "one" and not any(g is None or _off(g, case.n * w) for g, w in pairs):
            finding.says.append(f"Everything is {case.n} times too large: {ADDED}.")


def _off(got: Any, want: Any) -> judge.Difference | None:
    return judge.first_difference(got, want.astype(got.dtype), judge.Rule(2e-3))


def _floating(exercise: Exercise, x: Any) -> list[str]:
    """Name the arguments that gradients go to, in their order."""
    args = x if isinstance(x, tuple) else (x,)
    known = exercise.arguments if exercise.solution else []
    names = [known[i] if i < len(known) else f"argument {i}" for i in range(len(args))]
    return [name for name, a in zip(names, args, strict=True) if getattr(getattr(a, "dtype", None), "kind", "") == "f"]
