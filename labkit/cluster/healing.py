"""Bring the ranks back from whatever state they are in, and note what was done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.cluster.engines import Engines
from labkit.cluster.run import ANSWER
from labkit.outcome.counts import differ
from labkit.outcome.outcome import Healed, Note
from labkit.words import alike

REPLAYING = 30.0  # seconds in which the definitions of earlier cells must be made again


def heal(engines: Engines, ran: Sequence[int], free: bool = False, broken: bool = False) -> list[Note]:
    """Look at what is: a dead controller or rank, a rank without the group, or out of step in it; mend that.

    `ran` are the ranks that the last cell ran on. With `free` whoever is still in a cell is made to leave it; with
    `broken` a group counts as out of step.
    Returns what was done, nothing where all is well.
    """
    notes: list[Note] = []
    lost = engines.lost()
    if lost:
        engines.restore()
        notes.append(Note(Healed.CONTROLLER))
    where = engines.ask("where", range(engines.n), ANSWER) if free else {}
    _end_stopped(engines, where)
    busy = [r for r, w in where.items() if w and w["state"] != "idle"]
    engines.free(busy)
    answers = engines.ask("groups", range(engines.n), ANSWER)
    _end_stopped(engines, answers)
    groups = {r: g for r, g in answers.items() if g}
    out_of_step = broken or differ([groups[r] for r in ran if r in groups])
    apart = not all(g["joined"] for g in groups.values())
    gone = engines.dead() or engines.gpu.lost() or engines.gpu.daemon_died()
    if not (lost or busy or out_of_step or gone or apart):
        return []
    replaced = engines.heal()
    notes += given_back(engines, replaced)
    kept = tuple(r for r in range(engines.n) if r not in replaced)
    notes.append(Note(Healed.JOINED, kept, engines.n))
    return notes + [Note(Healed.SUBGROUPS)] * any(g["groups"] > 1 for g in groups.values())


def _end_stopped(engines: Engines, answers: dict[int, Any]) -> None:
    """End the ranks that have not answered and never will (SIGSTOP): they are replaced."""
    for r in [r for r, answer in answers.items() if answer is None and engines.is_stopped(r)]:
        engines.kill(r)


def given_back(engines: Engines, replaced: Sequence[int]) -> list[Note]:
    """Let replaced ranks have the definitions of the cells that ran on them; why they were ended, what they have."""
    why = engines.gpu.told()
    if not replaced:
        return why
    cells = {r: ([cell.code for cell in engines.cells if r in cell.ranks],) for r in replaced}
    outcome = engines.call("labkit.rank.definitions.replay", cells, REPLAYING)
    if outcome.ended:
        engines.heal()
    told = {r: outcome.answers.get(r, {"back": [], "lost": []}) for r in replaced}
    anew = alike({r: (tuple(its["back"]), tuple(its["lost"])) for r, its in told.items()})
    return why + [Note(Healed.ANEW, tuple(rs), back=back, lost=lost) for (back, lost), rs in anew.items()]
