"""Copies of a lesson as learners hand them in: the workbook's notebook, with cells in place of its stubs.

`python -m tests.copies 04 FOLDER` writes thirty of them, with planted mistakes, to try `python -m labkit grade`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from labkit.content import exercises
from labkit.faces.my_notebooks import WORKBOOK, without_outputs
from tests import mistakes

BROKEN = "%%px\ndef {name}(*args, **options)\n    return args[0]\n"
EXITS = "%%px\nimport sys\n\n\ndef {name}(*args, **options):\n    sys.exit(3)\n"
DIES = "%%px\nimport os\n\n\ndef {name}(*args, **options):\n    os._exit(3)\n"
ENDLESS = "%%px\ndef {name}(*args, **options):\n    while True:\n        pass\n"
HANGS = "%%px\ndef {name}(*args, **options):\n    dist.recv(torch.zeros(1), src=(rank + 1) % world_size)\n"


def solved(lesson: str, but: Mapping[str, str] | None = None) -> str:
    """Write a lesson's copy in which every stub is the solution, `but` those cells that are given by name."""
    (file,) = WORKBOOK.glob(f"{lesson}-*.ipynb")
    notebook = json.loads(without_outputs(file.read_text(encoding="utf-8")))
    cells = {
        e.stub.strip(): (but or {}).get(e.name, e.answer) for e in exercises.every().values() if e.lesson == lesson
    }
    for cell in notebook["cells"]:
        cell["source"] = cells.get("".join(cell["source"]).strip(), cell["source"])
    return json.dumps(notebook, indent=1)


def thirty(lesson: str, folder: Path) -> dict[str, dict[str, str]]:
    """Write thirty copies of a lesson into the folder, and return what each has in place of solutions, by exercise.

    In turn: all right, all stubs, and three planted mistakes with a cell that is no Python, that exits, ends its
    process, hangs or never ends.
    """
    chosen = [e for e in exercises.every().values() if e.lesson == lesson]
    endings = (BROKEN, EXITS, DIES, HANGS, ENDLESS)
    told = {}
    for i in range(30):
        but: dict[str, str] = {}
        if i % 6 == 1:
            but = {e.name: e.stub for e in chosen}
        elif i % 6:
            for k in range(4):
                e = chosen[(i + 2 * k) % len(chosen)]
                planted = mistakes.every()[e.name]
                ending = endings[i % len(endings)].format(name=e.name)
                but[e.name] = ending if k == 3 else f"%%px\n{planted[(i + k) % len(planted)].source}"
        learner = f"learner-{i + 1:02}"
        told[learner] = but
        path = folder / learner / f"{lesson}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_text(solved(lesson, but), encoding="utf-8")
    return told


if __name__ == "__main__":
    thirty(sys.argv[1], Path(sys.argv[2]))
