"""Bring the ranks back from whatever state they are in, and say what was done."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.cluster.engines import Engines
from labkit.cluster.run import ANSWER
from labkit.words import ranks


def heal(engines: Engines, ran: Sequence[int], free: bool = False) -> list[str]:
    """Look at what is: a dead controller or rank, a rank without the group, or out of step in it; mend that.

    `ran` are the ranks that the last cell ran on. With `free` whoever is still in a cell is made to leave it.
    Returns the sentences that say what was done, none where all is well.
    """
    notes = []
    lost = engines.lost()
    if lost:
        engines.restore()
        notes.append("the controller had died and was started anew")
    where = engines.ask("where", range(engines.n), ANSWER) if free else {}
    for r in [r for r, w in where.items() if w is None and engines.is_stopped(r)]:
        engines.kill(r)
    busy = [r for r, w in where.items() if w and w["state"] != "idle"]
    engines.free(busy)
    groups = {r: g for r, g in engines.ask("groups", range(engines.n), ANSWER).items() if g}
    out_of_step = len({groups[r]["steps"] for r in ran if r in groups}) > 1  # one has missed a call
    if not (lost or busy or out_of_step or engines.dead() or not all(g["joined"] for g in groups.values())):
        return []
    replaced = engines.heal()
    if replaced:
        what = "was started anew, without its variables" if len(replaced) == 1 else "were started anew, without theirs"
        notes.append(f"{ranks(replaced)} {what}")
    kept = {0: "; all variables are kept", engines.n: ""}.get(len(replaced), "; the other ranks keep theirs")
    notes.append(f"the process group is joined again{kept}")
    if any(g["groups"] > 1 for g in groups.values()):
        notes.append("sub-groups are gone with the old group: run the cell that made them again")
    return notes
