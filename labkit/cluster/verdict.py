"""From the ranks' reports to one sentence: what went wrong, for whom, and what was done about it."""

from __future__ import annotations

from collections.abc import Iterable

from labkit.cluster import text
from labkit.cluster.cell import CellReport
from labkit.cluster.engines import EngineGone, Engines
from labkit.errors import CellError, StoppedError, StuckError


def judge(report: CellReport) -> CellError | None:
    """The error that the cell ends with, or None where every rank finished."""
    causes, consequences = text.root_cause(
        {r: text.Error(e.ename, e.evalue, e.traceback) for r, e in report.errors.items()}
    )
    notes = [f"{text.ranks(rs)}: {what}" for what, rs in _group(consequences).items()]
    if report.lost:
        return CellError("the controller died, and with it what the ranks answered")
    if report.stopped:
        return StoppedError(f"You stopped the cell{_while(report)}.", notes=[])
    if causes:
        cause = causes[0]
        notes = [str(c) for c in causes[1:]] + _waited(report)
        return CellError(str(cause), text.trim(cause.traceback), notes)
    if report.dead:
        return CellError(", ".join(_died(report, r) for r in sorted(report.dead)), notes=_waited(report))
    if report.waiting:
        return StuckError(_stuck(report))
    if consequences:
        first = min(consequences)
        return CellError(notes[0], text.trim(report.errors[first].traceback), notes[1:])
    return None


def heal(engines: Engines, report: CellReport) -> list[str]:
    """Bring the group back after a cell that ended badly; the sentences that say what was done."""
    if report.lost or engines.lost():
        return engines.restore()
    before = {r: a for r, a in engines.ask("groups", range(engines.n), 1.0).items() if a}
    steps = {a["steps"] for a in before.values()}
    uneven = len(steps) > 1 or not all(a["joined"] for a in before.values())  # a rank missed a call, or left
    if not (report.cut_short or uneven or engines.dead()):
        try:
            engines.call("labkit.rank.agent.ready", dict.fromkeys(report.errors, ()), engines.limit)
            return []
        except EngineGone:
            pass
    replaced = engines.heal()
    notes = []
    if replaced:
        what = "was started anew, without its variables" if len(replaced) == 1 else "were started anew, without theirs"
        notes.append(f"{text.ranks(replaced)} {what}")
    kept = "the other ranks keep theirs" if replaced else "all variables are kept"
    notes.append(f"the process group is joined again; {kept}")
    if any(a["groups"] > 1 for a in before.values()):
        notes.append("sub-groups are gone with the old group: run the cell that made them again")
    return notes


def sentence(notes: list[str]) -> str:
    """The notes as one line that begins with a capital letter and ends with a full stop."""
    joined = "; ".join(notes)
    return f"{joined[:1].upper()}{joined[1:]}."


def _died(report: CellReport, rank: int) -> str:
    """How a rank ended: by itself, or by us because it would neither answer nor leave its cell."""
    if rank in report.waiting:
        ((place, _),) = _places(report, [rank])
        return f"rank {rank} could not be freed from {place} and was ended"
    instead = report.elsewhere.get(rank, "died")
    if instead.startswith("died"):
        return f"rank {rank} died ({report.dead[rank]})"
    return f"rank {rank} {instead} and was ended"


def _stuck(report: CellReport) -> str:
    parts = [f"{text.ranks(rs)} {'waits' if len(rs) == 1 else 'wait'} in {what}" for what, rs in _places(report)]
    parts += [f"{text.ranks(rs)} {what}" for what, rs in _group(report.elsewhere).items()]
    return "; ".join(parts)


def _while(report: CellReport) -> str:
    return f" while {_stuck(report)}" if report.waiting else ""


def _waited(report: CellReport) -> list[str]:
    return [
        f"{text.ranks(rs)} waited in {what} and {'was' if len(rs) == 1 else 'were'} freed"
        for what, rs in _places(report)
    ]


def _places(report: CellReport, ranks: Iterable[int] | None = None) -> list[tuple[str, list[int]]]:
    """Where ranks waited, all that did or those named, with the ranks that waited there."""

    def place(w: dict[str, object]) -> str:
        function = f", in {w['function']}" if w.get("function") else ""
        return f"{w['op']} (line {w['line']}{function})"

    freed = set(report.waiting) - set(report.dead) if ranks is None else ranks
    return list(_group({r: place(report.waiting[r]) for r in freed}).items())


def _group(what: dict[int, str]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for r in sorted(what):
        groups.setdefault(what[r], []).append(r)
    return groups
