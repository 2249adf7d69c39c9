"""`python -m labkit`: make or renew a learner's copies of the lessons, put one of them back, or do another command."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from labkit.faces import my_notebooks
from labkit.floor.errors import LabError

# What may stand in the folder's place: what it does, and the module whose `main(arguments)` does it. That is named, not
# imported: `python -m labkit` starts at once, and the room of the commands stands above this one.
COMMANDS = {
    "doctor": ("say what this machine is, and what to do", "labkit.commands.doctor"),
    "grade": ("check the exercises in learners' notebooks", "labkit.commands.grade"),
    "release": ("prepare a lesson for nbgrader", "labkit.commands.release"),
    "room": ("show who is at which exercise", "labkit.commands.room"),
}

ABOUT = """\
Make copies of the workbook's notebooks, without outputs, in a folder of your own, or renew those that are there.
Copies that you have changed are kept, and the workbook's new version is put beside them (….new.ipynb).
"""
EXAMPLES = """\
examples:
  python -m labkit && jupyter lab my-notebooks    make or renew the copies and open them
  python -m labkit --back 02                      begin lesson 02 again; yours is kept as 02-….mine-1.ipynb
  python -m labkit ~/collectives                  keep the copies in another folder
"""
OTHERS = "other commands, which have a --help of their own:\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; 1 where it cannot be done."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if arguments and arguments[0] in COMMANDS:
            _, module = COMMANDS[arguments[0]]
            return int(importlib.import_module(module).main(arguments[1:]))
        return _copies(arguments)
    except LabError as error:
        print(error, file=sys.stderr)
        return 1


def _copies(arguments: Sequence[str]) -> int:
    others = "".join(f"  {f'python -m labkit {name}':<47} {does}\n" for name, (does, _) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        "python -m labkit",
        description=ABOUT,
        epilog="\n".join([EXAMPLES, *[f"{OTHERS}{others}"] * bool(others)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = my_notebooks.default_folder(Path())
    parser.add_argument("folder", nargs="?", type=Path, default=default, help=f"default: {default}")
    parser.add_argument("--back", metavar="NOTEBOOK", help="put one notebook back: 02, 02-send-and-receive or its file")
    given = parser.parse_args(arguments)
    if given.back is None:
        print(my_notebooks.renew(given.folder))
        print(f"Open them with: jupyter lab {given.folder}")
    else:
        print(my_notebooks.put_back(given.folder, given.back))
        print(f"If it is open, {my_notebooks.RELOAD}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
