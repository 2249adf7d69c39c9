"""From what became of a cell to one sentence: what went wrong, and for whom."""

from __future__ import annotations

from collections.abc import Iterable

from labkit.errors import CellError, StoppedError, StuckError
from labkit.outcome import text
from labkit.outcome.outcome import Outcome
from labkit.words import alike, ranks


def judge(report: Outcome) -> CellError | None:
    """The error that the cell ends with, or None where every rank finished."""
    causes, consequences = text.root_cause(
        {r: text.Error(e.ename, e.evalue, e.traceback) for r, e in report.errors.items()}
    )
    notes = [f"{ranks(rs)}: {what}" for what, rs in alike(consequences).items()]
    if report.lost:
        return CellError("the controller died, and with it what the ranks answered")
    if report.stopped:
        return StoppedError(f"You stopped the cell{_while(report)}.", notes=[])
    if causes:
        cause = causes[0]
        notes = [str(c) for c in causes[1:]] + waited(report)
        return CellError(str(cause), text.trim(cause.traceback), notes)
    if report.dead:
        return CellError(", ".join(_died(report, r) for r in sorted(report.dead)), notes=waited(report))
    if report.waiting:
        return StuckError(_stuck(report))
    if consequences:
        first = min(consequences)
        return CellError(notes[0], text.trim(report.errors[first].traceback), notes[1:])
    return None


def _died(report: Outcome, rank: int) -> str:
    """How a rank ended: by itself, or by us because it would neither answer nor leave its cell."""
    if rank in report.waiting:
        ((place, _),) = _places(report, [rank])
        return f"rank {rank} could not be freed from {place} and was ended"
    instead = report.elsewhere.get(rank, "died")
    if instead.startswith("died"):
        return f"rank {rank} died ({report.dead[rank]})"
    return f"rank {rank} {instead} and was ended"


def _stuck(report: Outcome) -> str:
    parts = [f"{ranks(rs)} {'waits' if len(rs) == 1 else 'wait'} in {what}" for what, rs in _places(report)]
    parts += [f"{ranks(rs)} {what}" for what, rs in alike(report.elsewhere).items()]
    return "; ".join(parts)


def _while(report: Outcome) -> str:
    return f" while {_stuck(report)}" if report.waiting else ""


def waited(report: Outcome) -> list[str]:
    """Who waited where until it was freed, in sentences."""
    return [
        f"{ranks(rs)} waited in {what} and {'was' if len(rs) == 1 else 'were'} freed" for what, rs in _places(report)
    ]


def _places(report: Outcome, which: Iterable[int] | None = None) -> list[tuple[str, list[int]]]:
    """Where ranks waited, all that did or those named, with the ranks that waited there."""

    def place(w: dict[str, object]) -> str:
        function = f", in {w['function']}" if w.get("function") else ""
        return f"{w['op']} (line {w['line']}{function})"

    freed = set(report.waiting) - set(report.dead) if which is None else which
    return list(alike({r: place(report.waiting[r]) for r in freed}).items())
