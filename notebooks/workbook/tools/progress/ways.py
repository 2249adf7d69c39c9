"""Read the lessons in their order, and the ways through them, from the first page, `index.ipynb`.

A lesson is a row of the page's table that begins with a link to it. A way is a heading of the third level; its stops
are the numbered links under it, each to a lesson or to one section of it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

INDEX = Path(__file__).resolve().parents[3] / "index.ipynb"
LINK = r"\[([^\]]+)\]\(([^()#\s]+)\.ipynb(#[^()\s]*)?\)"


@dataclass(frozen=True)
class Stop:
    """A lesson, or a section of it: what its link says ("04 One training step"), and where it leads."""

    says: str
    file: str
    section: str = ""

    @property
    def lesson(self) -> str:
        """The lesson as exercises name it.

        >>> Stop("04 All-reduce", "04-everyone", "#All-reduce").lesson, Stop("Capstone", "capstone").lesson
        ('04', 'capstone')
        """
        return self.file.partition("-")[0] if self.file[0].isdigit() else self.file

    @property
    def link(self) -> str:
        """The link's target, from any notebook: "04-everyone.ipynb#All-reduce"."""
        return f"{self.file}.ipynb{self.section}"


@cache
def page() -> str:
    """Return the text of the first page, which lies beside the workbook's package."""
    notebook = json.loads(INDEX.read_text(encoding="utf-8"))
    return "\n\n".join("".join(cell["source"]) for cell in notebook["cells"])


def lessons() -> list[Stop]:
    """Return every lesson in the order of the first page's table."""
    return [Stop(says, file) for says, file, _ in re.findall(rf"^\| {LINK}", page(), re.MULTILINE)]


def ways() -> dict[str, list[Stop]]:
    """Return the stops of every way by its name, which is its heading up to a colon: "90 minutes"."""
    found = {}
    for section in re.split(r"^### ", page(), flags=re.MULTILINE)[1:]:
        heading, _, text = re.split(r"^## ", section, flags=re.MULTILINE)[0].partition("\n")
        stops = [Stop(*parts) for parts in re.findall(rf"^\d+\. {LINK}", text, re.MULTILINE)]
        if stops:
            found[heading.partition(":")[0].strip().lower()] = stops
    return found
