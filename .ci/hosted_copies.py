"""Write copies of the lessons for hosted notebooks: without outputs, and each with a first cell that installs labkit.

python .ci/hosted_copies.py FOLDER URL     URL: the repository's, as `git clone` takes it
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from labkit.faces.my_notebooks import without_outputs

ROOT = Path(__file__).resolve().parent.parent
LESSONS = ("00", "01", "02", "03", "04", "05", "09")  # what `make test-hosted` runs
# The clone's name is not the package's, which a folder `workbook` would hide on the ranks. What is installed constrains
# pip: it adds what is missing, or ends with an error, and never replaces torch or Jupyter. The clone stays, as
# `lab.progress()` reads the lessons; Python finds it by itself from its next start on. Colab shows widgets that are not
# its own only when asked to.
FIRST_CELL = """\
# Run this cell first, and again after a restart: it installs what is missing, and replaces nothing that is here.
import importlib, os, sys

if not os.path.isdir("collectives"):
    !git clone -q --depth 1 "URL" collectives
if not os.path.isdir("collectives"):
    raise SystemExit(
        "The workbook was not downloaded. Check its address and the internet (on Kaggle: Settings, Internet on). "
        "Then run this cell again."
    )
!pip list --format=freeze > /tmp/here.txt
%pip install -q -c /tmp/here.txt -e ./collectives
sys.path[:0] = [os.path.abspath(folder) for folder in ("collectives", "collectives/notebooks")]
importlib.invalidate_caches()
try:
    from google.colab import output
    output.enable_custom_widget_manager()
except ImportError:
    pass  # this is not Colab

from labkit import start

lab = start()"""


def first_cell(url: str) -> str:
    """Return the cell that installs the workbook from `url`, starts ranks, and says which."""
    return FIRST_CELL.replace("URL", url)


def hosted(notebook: str, url: str) -> str:
    """Return a notebook's text without outputs and with that cell in front."""
    nb = json.loads(without_outputs(notebook))
    source = first_cell(url).splitlines(keepends=True)
    cell = {
        "cell_type": "code",
        "execution_count": None,
        "id": "hosted",
        "metadata": {},
        "outputs": [],
        "source": source,
    }
    nb["cells"].insert(0, cell)
    return json.dumps(nb, ensure_ascii=False, indent=1) + "\n"


def main(folder: str, url: str) -> None:
    """Write the copies."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for number in LESSONS:
        (lesson,) = (ROOT / "notebooks").glob(f"{number}-*.ipynb")
        (Path(folder) / lesson.name).write_text(hosted(lesson.read_text(encoding="utf-8"), url), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
