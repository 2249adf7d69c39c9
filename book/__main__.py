"""Build the book: `python book FOLDER` gathers the pages and the notebooks beside FOLDER, and writes the site into it.

Any warning is an error. No cell is run and nothing is fetched.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import main as sphinx

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
GATHERED = {  # what the book is made of: which files, and the folder that they come into
    "book/*.md": ".",
    ".ci/*.png": ".",
    ".ci/*.svg": ".",
    "benchmarks/RESULTS.md": "benchmarks",
    "notebooks/*.ipynb": "lessons",
    "notebooks/scripts/*.py": "lessons/scripts",
    "notebooks/workbook/tools/published/tables.json": "lessons/workbook/tools/published",
}


def gather(into: Path) -> None:
    """Copy all that is read into one folder, with its times: what has not changed is not read anew."""
    shutil.rmtree(into, ignore_errors=True)
    for pattern, folder in GATHERED.items():
        (into / folder).mkdir(parents=True, exist_ok=True)
        for path in ROOT.glob(pattern):
            shutil.copy2(path, into / folder)


def build(site: Path, *options: str) -> int:
    """Write the site; returns 0, or 1 after a warning."""
    source = site.with_name(f"{site.name}-source")
    gather(source)
    # All pages are written anew: where one has not changed, its sidebar may have.
    strict = ("--fail-on-warning", "--keep-going", "--nitpicky", "--jobs=2", "--write-all")
    doctrees = site.with_name(f"{site.name}-doctrees")
    return sphinx([*strict, *options, "-c", str(HERE), "-d", str(doctrees), str(source), str(site)])


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1]).absolute(), *sys.argv[2:]))
