"""Bring the ranks back from any state that they can be in, and note what was done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.cluster.engines import Engines
from labkit.floor import time_limits
from labkit.floor.words import alike
from labkit.outcome.counts import differ
from labkit.outcome.outcome import Healed, Note


def heal(
    engines: Engines, ran: Sequence[int], broken: bool = False, free: bool = False, shrink: bool = False
) -> list[Note]:
    """Find and mend a dead controller or rank, a rank without the group, or out of step in it; return what was done.

    `ran` are the ranks that the last cell ran on. With `broken` a group counts as out of step; with `free` ranks that
    are still in a cell are released from it. With `shrink` the others go on without ranks that are dead.
    """
    notes: list[Note] = []
    lost = engines.lost()
    if lost:
        engines.restore()
        notes.append(Note(Healed.CONTROLLER))
    where = engines.ask("where", range(engines.n), time_limits.AGENT_ANSWERS) if free else {}
    _end_stopped(engines, where)
    busy = [r for r, w in where.items() if w and w["state"] != "idle"]
    engines.release(range(engines.n) if busy else (), busy)
    answers = engines.ask("groups", range(engines.n), time_limits.AGENT_ANSWERS)
    _end_stopped(engines, answers)
    groups = {r: g for r, g in answers.items() if g}
    out_of_step = broken or differ([groups[r] for r in ran if r in groups])
    apart = not all(g["joined"] for g in groups.values())
    gone = engines.dead() or engines.gpu.lost() or engines.gpu.daemon_died()
    if not (lost or busy or out_of_step or gone or apart):
        engines.state.settled()
        return []
    n, replaced = engines.n, engines.rejoin(shrink)
    were = tuple(engines.were)
    notes += given_back(engines, replaced)
    engines.state.settled()
    if engines.n < n:
        notes.append(Note(Healed.SHRUNK, were, engines.n))
    kept = tuple(r for r in range(engines.n) if r not in replaced)
    notes.append(Note(Healed.JOINED, kept, engines.n))
    return notes + [Note(Healed.SUBGROUPS)] * any(g["groups"] > 1 for g in groups.values())


def _end_stopped(engines: Engines, answers: dict[int, Any]) -> None:
    """End the ranks that have not answered and never will (SIGSTOP): they are replaced."""
    for r in [r for r, answer in answers.items() if answer is None and engines.is_stopped(r)]:
        engines.kill(r)


def given_back(engines: Engines, replaced: Sequence[int]) -> list[Note]:
    """Give replaced ranks the definitions of the cells that ran on them; return what they have, and why they ended."""
    why = engines.gpu.told()
    if not replaced:
        return why
    cells = {r: ([cell.code for cell in engines.cells if r in cell.ranks],) for r in replaced}
    outcome = engines.call(
        "labkit.rank.definitions.replay", cells, time_limits.DEFINITIONS_BACK, press="ends it and more"
    )
    if outcome.ended:
        engines.rejoin()
    told = {r: outcome.answers.get(r, {"back": [], "lost": []}) for r in replaced}
    anew = alike({r: (tuple(its["back"]), tuple(its["lost"])) for r, its in told.items()})
    return why + [Note(Healed.ANEW, tuple(rs), back=back, lost=lost) for (back, lost), rs in anew.items()]
