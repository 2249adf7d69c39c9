"""Bring the ranks back from whatever state they are in, and say what was done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit import time_limits
from labkit.cluster.engines import Engines
from labkit.outcome.counts import differ
from labkit.words import alike, listed, ranks

MANY = 8  # names that are shown one by one


def heal(engines: Engines, ran: Sequence[int], broken: bool = False, free: bool = False) -> list[str]:
    """Look at what is: a dead controller or rank, a rank without the group, or out of step in it; mend that.

    `ran` are the ranks that the last cell ran on. With `broken` a group counts as out of step; with `free` whoever is
    still in a cell is released from it.
    Returns the sentences that say what was done, none where all is well.
    """
    notes = []
    lost = engines.lost()
    if lost:
        engines.restore()
        notes.append("the controller had died and was started anew")
    where = engines.ask("where", range(engines.n), time_limits.AGENT_ANSWERS) if free else {}
    _end_stopped(engines, where)
    busy = [r for r, w in where.items() if w and w["state"] != "idle"]
    engines.release(range(engines.n) if busy else (), busy)
    answers = engines.ask("groups", range(engines.n), time_limits.AGENT_ANSWERS)
    _end_stopped(engines, answers)
    groups = {r: g for r, g in answers.items() if g}
    out_of_step = broken or differ([groups[r]["steps"] for r in ran if r in groups])
    apart = not all(g["joined"] for g in groups.values())
    gone = engines.dead() or engines.gpu.lost() or engines.gpu.daemon_died()
    if not (lost or busy or out_of_step or gone or apart):
        engines.state.settled()
        return []
    replaced = engines.rejoin()
    notes += given_back(engines, replaced)
    kept = {0: "; all variables are kept", engines.n: ""}.get(len(replaced), "; the other ranks keep their variables")
    notes.append(f"the process group is joined again{kept}")
    if any(g["groups"] > 1 for g in groups.values()):
        notes.append("sub-groups are gone with the old group: make them again")
    engines.state.settled()
    return notes


def _end_stopped(engines: Engines, answers: dict[int, Any]) -> None:
    """End the ranks that have not answered and never will (SIGSTOP): they are replaced."""
    for r in [r for r, answer in answers.items() if answer is None and engines.is_stopped(r)]:
        engines.kill(r)


def given_back(engines: Engines, replaced: Sequence[int]) -> list[str]:
    """Let replaced ranks have the definitions of the cells that ran on them; why they were ended, what they have."""
    why = engines.gpu.told()
    if not replaced:
        return why
    cells = {r: ([cell.code for cell in engines.cells if r in cell.ranks],) for r in replaced}
    outcome = engines.call(
        "labkit.rank.definitions.replay", cells, time_limits.DEFINITIONS_BACK, press="ends it and more"
    )
    if outcome.ended:
        engines.rejoin()
    anew = alike({r: _anew(**outcome.answers.get(r, {"back": [], "lost": []})) for r in replaced})
    return why + [f"{ranks(rs)} {'was' if len(rs) == 1 else 'were'} {what}" for what, rs in anew.items()]


def _anew(back: list[str], lost: list[str]) -> str:
    """What a rank that was started anew has and lacks, in words.

    >>> _anew(["step", "Model"], ["x"])
    'started anew, with step and Model again, without variables (x is lost)'
    """
    again = f", with {_named(back)} again" if back else ""
    gone = f" ({_named(lost)} {'is' if len(lost) == 1 else 'are'} lost)" if lost else ""
    return f"started anew{again}, without variables{gone}"


def _named(names: list[str]) -> str:
    return listed(names if len(names) <= MANY else [*names[: MANY - 1], f"{len(names) - MANY + 1} more"])
