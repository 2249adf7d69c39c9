"""Bring the group back after a cell that ended badly, and say what was done."""

from __future__ import annotations

from labkit.cluster.engines import EngineGone, Engines
from labkit.outcome.outcome import Outcome
from labkit.words import ranks


def heal(engines: Engines, report: Outcome) -> list[str]:
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
        notes.append(f"{ranks(replaced)} {what}")
    kept = "the other ranks keep theirs" if replaced else "all variables are kept"
    notes.append(f"the process group is joined again; {kept}")
    if any(a["groups"] > 1 for a in before.values()):
        notes.append("sub-groups are gone with the old group: run the cell that made them again")
    return notes
