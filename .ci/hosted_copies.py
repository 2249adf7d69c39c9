"""Write copies of the lessons for hosted notebooks: without outputs, and each with a first cell that installs labkit.

python .ci/hosted_copies.py FOLDER REPOSITORY     the repository's address, as `git clone` takes it
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from labkit.faces.my_notebooks import without_outputs

ROOT = Path(__file__).resolve().parent.parent
LESSONS = ("00", "01", "02", "03", "04", "05", "09")  # what `make test-hosted` runs
BRANCH = "hosted"  # where .github/workflows/book.yml puts the copies
LINK = re.compile(r"\]\((?!https?:|#)")  # to another file of notebooks/, which a host does not have
# The clone's name is not the package's, which a folder `workbook` would hide on the ranks. What is installed constrains
# pip: it adds what is missing, or ends with an error, and never replaces torch or Jupyter. The clone stays, as
# `lab.progress()` reads the lessons; Python finds it by itself from its next start on. Colab shows widgets that are not
# its own only when asked to.
FIRST_CELL = """\
# Run this cell first, and again after a restart: it installs what is missing, and replaces nothing that is here.
import importlib, os, sys

if not os.path.isdir("collectives"):
    !git clone -q --depth 1 "REPOSITORY" collectives
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


def on_github(repository: str) -> str:
    """Return the OWNER/NAME of a repository on GitHub, "" for one elsewhere: hosts open notebooks from there alone.

    >>> on_github("https://github.com/ann/workbook.git")
    'ann/workbook'
    """
    found = re.fullmatch(r"https://github\.com/([^/]+/[^/]+?)(\.git)?/?", repository)
    return found[1] if found else ""


def opened(repository: str, lesson: str) -> dict[str, str]:
    """Return, for each host that opens a link, the address at which it opens this lesson's copy."""
    name = on_github(repository)
    if not name or lesson.partition("-")[0] not in LESSONS:
        return {}
    there = f"{name}/blob/{BRANCH}/{lesson}"
    return {
        "Colab": f"https://colab.research.google.com/github/{there}",
        "Kaggle": f"https://www.kaggle.com/kernels/welcome?src=https://github.com/{there}",
    }


def hosted(notebook: str, repository: str) -> str:
    """Return a notebook's text without outputs, with the cell that installs in front, and links to the repository."""
    nb = json.loads(without_outputs(notebook))
    source = FIRST_CELL.replace("REPOSITORY", repository).splitlines(keepends=True)
    there = f"{repository.rstrip('/').removesuffix('.git')}/blob/HEAD/notebooks/"
    for each in nb["cells"]:
        if each["cell_type"] == "markdown":
            each["source"] = [LINK.sub(f"]({there}", line) for line in each["source"]]
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


def main(folder: str, repository: str) -> None:
    """Write the copies."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for number in LESSONS:
        (lesson,) = (ROOT / "notebooks").glob(f"{number}-*.ipynb")
        copy = hosted(lesson.read_text(encoding="utf-8"), repository)
        (Path(folder) / lesson.name).write_text(copy, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
