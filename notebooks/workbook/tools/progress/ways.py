"""Read the lessons in their order, and the ways through them, from the first page, `index.ipynb`.

A lesson is a row of the page's table that begins with a link to it. A way is a heading of the third level; its stops
are the numbered links under it, each to a lesson or to one section of it, or all lessons where it links their table.
What a stop asks is read from the lesson's notebook.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from labkit.content import series

INDEX = Path(__file__).resolve().parents[3] / "index.ipynb"
LINK = r"\[([^\]]+)\]\(([^()#\s]+)\.ipynb(#[^()\s]*)?\)"
ASKS = r'\b(?:Predict|Choose|lab\.exercise)\("(\w+)"'


@dataclass(frozen=True)
class Stop:
    """A lesson, or a lesson up to a section's end: what its link says ("02 Close the ring"), and where it leads."""

    says: str
    file: str
    section: str = ""

    @property
    def lesson(self) -> str:
        """The lesson as exercises name it.

        >>> Stop("04 All-reduce", "04-everyone", "#All-reduce").lesson, Stop("Capstone", "capstone").lesson
        ('04', 'capstone')
        """
        return self.file.partition("-")[0] if self.file[:1].isdigit() else self.file

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
        if "(#All-lessons)" in text:
            stops = lessons()
        if stops:
            found[heading.partition(":")[0].strip().lower()] = stops
    return found


@cache
def asked(stop: Stop) -> list[str]:
    """Return the exercises and questions of a stop, in order, without the optional sections and *Exercises*."""
    found: dict[str, None] = {}
    section = ""
    for cell in json.loads(INDEX.with_name(f"{stop.file}.ipynb").read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            for heading in re.findall(r"^## (.+)$", source, re.MULTILINE):
                if stop.section == f"#{section.replace(' ', '-')}":
                    return list(found)
                section = heading
        elif section != "Exercises" and not section.startswith("Optional: "):
            for name in re.findall(ASKS, source):
                parts = series.every()[name].parts if name in series.every() else ()
                found |= dict.fromkeys([part.name for part in parts] or [name])
    return list(found)
