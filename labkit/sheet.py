"""`lab.sheet`: run every primitive in its shortest form on the ranks and lay all of them out on two pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit.errors import LabError
from labkit.plot.flow import Drawing
from labkit.plot.tiles import Tile
from labkit.show.cheatsheet import CheatSheet
from labkit.show.flow import Flow
from labkit.theory.cheats import CHEATS, Cheat
from labkit.theory.primitives import MEANINGS

if TYPE_CHECKING:
    from labkit.lab import Lab

MOST = 4  # ranks whose pictures fit two pages
KEEP = """
_kept = {name: globals()[name] for name in ("x", "y", "left", "right", "ops", "work") if name in globals()}
right, left = (rank + 1) % world_size, (rank - 1) % world_size
"""
GIVE_BACK = """
for name in ("x", "y", "left", "right", "ops", "work"):
    globals().pop(name, None)
globals().update(_kept)
del _kept, name
"""


def run(lab: Lab) -> CheatSheet:
    """Every entry, run once. Raises `LabError` where the lab has one rank, or more than there is room for."""
    if not 2 <= lab.n <= MOST:
        raise LabError(f"The sheet is drawn for 2 to {MOST} ranks, and this lab has {lab.n}. Run lab = start({MOST}).")
    lab.run(KEEP)
    try:
        drawn = [_drawn(lab, cheat) for cheat in CHEATS]
    finally:
        lab.run(GIVE_BACK)
    return CheatSheet(drawn, lab.n, lab.backend)


def _drawn(lab: Lab, cheat: Cheat) -> tuple[Cheat, Drawing, str]:
    """An entry, with its picture and the same in words."""
    if not cheat.x:
        return cheat, *_waiting(lab, cheat)
    lab.run(f"x = {cheat.x}" + (f"\ny = {cheat.y}" if cheat.y else ""))
    if "object" in cheat.name:
        return cheat, *_objects(lab, cheat)
    flow = lab.flow(cheat.code, "x", cheat.shows, cheat.name if cheat.name in MEANINGS else None)
    assert isinstance(flow, Flow), "nothing is predicted"
    return cheat, flow.small, flow.alt


def _waiting(lab: Lab, cheat: Cheat) -> tuple[Drawing, str]:
    """Who waits for rank 1, which comes late."""
    waits = lab.late(cheat.code, 1).waiting("barrier")
    come = [[[Tile("late" if r == 1 else "here", kind="plain")]] for r in range(lab.n)]
    go = [[[Tile("waits" if r in waits else "goes", kind="plain")]] for r in range(lab.n)]
    return Drawing(["before", "in it"], [come, go]), f"Rank 1 comes late: ranks {waits} wait in the barrier."


def _objects(lab: Lab, cheat: Cheat) -> tuple[Drawing, str]:
    """What everyone brought and has; an object's colour is that of the rank that brought it."""
    brought = lab.pull("x")
    lab.run(cheat.code)
    held = lab.pull("y")

    def tile(value: Any) -> Tile:
        return Tile(str(value), shares=((brought.index(value), 1),))

    columns = [[[[tile(x)]] for x in brought], [[[tile(y)] for y in ys] for ys in held]]
    said = "; ".join(f"rank {r} brought {x!r} and has {y}" for r, (x, y) in enumerate(zip(brought, held, strict=True)))
    return Drawing(["before", "after"], columns), f"{said}."
