"""What the lessons own: their exercises and questions, one module a lesson or more, and the tools of one lesson alone.

labkit finds all of it through `labkit.content`; nothing here is imported by labkit in any other place.
"""

TOOLS: dict[str, str] = {
    "Atlas": "atlas.face:Atlas",
    "Elsewhere": "elsewhere.face:Elsewhere",
    "Late": "late.show:Late",
    "Moves": "windows.moves:Moves",
    "Painter": "painter.face:Painter",
    "Phrasebook": "phrasebook.face:Phrasebook",
    "Planner": "planning.planner:Planner",
    "Race": "race.show:Race",
    "Sweep": "sweep.show:Sweep",
    "WhatIf": "whatif.face:WhatIf",
    "draw": "draw:draw",
    "late": "late.observe:observe",
    "mpi": "mpi:show",
    "race": "race.measure:measure",
    "sheet": "sheet.face:run",
    "sweep": "sweep.measure:measure",
}
PLANS = "15c"  # the lesson of the Planner, whose best plans `lab.progress()` shows
