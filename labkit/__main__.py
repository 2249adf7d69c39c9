"""`python -m labkit`: make or renew a learner's copies of the lessons, or put one of them back."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from labkit.faces import my_notebooks
from labkit.floor.errors import LabError

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; 1 where it cannot be done."""
    parser = argparse.ArgumentParser(
        "python -m labkit", description=ABOUT, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    here = Path()
    default = here if my_notebooks.is_copies(here) else here / my_notebooks.FOLDER
    parser.add_argument("folder", nargs="?", type=Path, default=default, help=f"default: {default}")
    parser.add_argument("--back", metavar="NOTEBOOK", help="put one notebook back: 02, 02-send-and-receive or its file")
    given = parser.parse_args(arguments)
    try:
        if given.back is None:
            print(my_notebooks.renew(given.folder))
            print(f"Open them with: jupyter lab {given.folder}")
        else:
            print(my_notebooks.put_back(given.folder, given.back))
            print(f"If it is open, {my_notebooks.RELOAD}")
    except LabError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
