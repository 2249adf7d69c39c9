"""What the lessons own: their exercises and questions, one module a lesson or more, and the tools of one lesson alone.

labkit finds all of it through `labkit.content`; nothing here is imported by labkit in any other place.
"""

TOOLS: dict[str, str] = {
    "Atlas": "atlas.face:Atlas",
    "Elsewhere": "elsewhere.face:Elsewhere",
    "Painter": "painter.face:Painter",
    "Phrasebook": "elsewhere.phrasebook:Phrasebook",
    "Planner": "planning.planner:Planner",
    "WhatIf": "whatif.face:WhatIf",
    "draw": "draw:draw",
    "mpi": "mpi:show",
}
METHODS: dict[str, str] = {  # that a lab has: functions whose first argument it is
    "histogram": "histogram.show:histogram",
    "help": "help:show",
    "late": "late.face:late",
    "moves": "windows:moves",
    "progress": "progress.face:progress",
    "race": "race.measure:race",
    "script": "script.face:script",
    "sheet": "sheet.face:sheet",
    "sweep": "sweep.measure:sweep",
}
VIEWS: dict[str, str] = {  # that move on a page without a kernel, by kind: functions that make them from metadata
    "painter": "painter.face:page",
    "whatif": "whatif.face:page",
}
