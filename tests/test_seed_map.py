"""tests/seed_map.md says where each item of the workbook's five source documents is taught: the places exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest

from tests.notebooks import FOLDER, NOTEBOOKS, cells, sources
from workbook.tools.progress.ways import lessons, page, ways

HERE = Path(__file__).parent
PAGE = (HERE / "seed_map.md").read_text("utf-8")
LINK = re.compile(r"\[[^\]]*\]\(([^()\s]*)\)")
LATER = re.compile(r"in a later lesson \((\d\d)\)")
LAST = 15  # the workbook's last lesson
ITEMS = {  # documents, and how many items of each are mapped at least: a row that gets lost is missed
    "Synchronization Primitives in Distributed Training": 23,
    "Essential Distributed Communication Primitives": 22,
    "Synchronization in Distributed AI": 17,
    "Collective Communication Operations, a book's third chapter": 32,
    "GPU Collective Communication Operations": 42,
}


def headings(lines: list[str]) -> list[tuple[int, str]]:
    """The level and the text of every heading; what stands in a fenced block is none."""
    found, fenced = [], False
    for line in lines:
        fenced ^= line.lstrip().startswith("```")
        if not fenced and (heading := re.match(r"(#{1,6}) +(.*?) *$", line)):
            found.append((len(heading[1]), heading[2]))
    return found


@cache
def anchors(path: Path) -> set[str]:
    """What may follow # in a link to this file: JupyterLab's names in notebooks, those of git's sites in pages."""
    if path.suffix == ".ipynb":
        lines = [line for source in sources(path, "markdown") for line in source.splitlines()]
        return {heading.replace(" ", "-") for _, heading in headings(lines)}
    words = [re.sub(r"[^\w\- ]", "", heading.lower()) for _, heading in headings(path.read_text("utf-8").splitlines())]
    return {word.replace(" ", "-") for word in words}


@cache
def running(path: Path) -> set[str]:
    """The anchors of a notebook's sections, at any level, that have a cell to run, other than the last one."""
    under: list[tuple[int, str]] = []
    found: set[str] = set()
    for cell in cells(path):
        if cell.cell_type == "markdown":
            for level, heading in headings(cell.source.splitlines()):
                under = [*((above, text) for above, text in under if above < level), (level, heading)]
        elif "lab.stop()" not in cell.source:
            found |= {heading.replace(" ", "-") for _, heading in under}
    return found


def only_told(text: str, folder: Path) -> Iterator[str]:
    """Items that no place runs, in words alone, and that no later lesson is to run."""
    for item, where in (row for found in rows(text).values() for row in found):
        places = [target.partition("#") for target in LINK.findall(where)]
        scripts = [name for name, *_ in places if name.endswith(".py")]
        runs = [a for name, _, a in places if name.endswith(".ipynb") and unquote(a) in running(folder / name)]
        if not (scripts or runs or LATER.findall(where) or item.startswith("Link: ")):
            yield item


def broken_links(text: str, folder: Path, page: str = "README.md") -> Iterator[str]:
    """Links to a file, or to a heading in it, that is not there."""
    for target in LINK.findall(text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = folder / (name or page)
        if not path.is_file():
            yield f"{target}: there is no {name}"
        elif anchor and unquote(anchor) not in anchors(path):
            yield f"{target}: {path.name} has no such heading"


def rows(text: str) -> dict[str, list[tuple[str, str]]]:
    """(item, where) of every row, by the document's title."""
    sections = re.split(r"^### +(.*)$", text, flags=re.MULTILINE)[1:]
    row = re.compile(r"^\| (?!item \|)(.*?) \|(.*)\|$", re.MULTILINE)
    return {title: row.findall(body) for title, body in zip(sections[::2], sections[1::2], strict=True)}


def lost_items(text: str, folder: Path) -> Iterator[str]:
    """Items without a place, and items put off to a lesson that does not come or is there by now."""
    for item, where in (row for found in rows(text).values() for row in found):
        if not LINK.findall(where) and not LATER.findall(where):
            yield f"{item}: no place"
        for number in LATER.findall(where):
            if int(number) > LAST:
                yield f"{item}: there is no lesson {number}"
            elif there := sorted(folder.glob(f"{number}-*.ipynb")):
                yield f"{item}: {there[0].name} is there now; link the heading that teaches it"


def test_every_place_on_the_page_exists():
    assert list(broken_links(PAGE, HERE)) == []


def test_every_item_has_a_place():
    assert list(lost_items(PAGE, HERE)) == []


def test_every_item_has_a_place_that_runs_or_a_later_lesson():
    assert list(only_told(PAGE, HERE)) == []


def test_no_item_is_missing():
    mapped = {title: len(found) for title, found in rows(PAGE).items()}
    assert mapped.keys() == ITEMS.keys()
    assert [title for title, count in ITEMS.items() if mapped[title] < count] == []


def test_the_first_page_lists_every_lesson_in_order_and_its_ways_lead_to_lessons():
    listed = [stop.link for stop in lessons()]
    others = {"index.ipynb", "glossary.ipynb"}
    named = {path.name for path in NOTEBOOKS.values()} - others
    assert set(listed) == named
    assert [name for name, stops in ways().items() if {s.file for s in stops} - {s.file for s in lessons()}] == []
    assert list(ways())[:4] == ["90 minutes", "half a day", "two days", "a week"]


def test_a_lesson_has_its_number_and_its_time_and_ends_with_the_next_one_and_the_way_back():
    wrong = []
    for stop in lessons():
        first, *_, last = sources(FOLDER / f"{stop.file}.ipynb", "markdown")
        numbered = first.startswith(f"# {stop.lesson} · ") or not stop.lesson[0].isdigit()
        leads_on = "**Next:** " in last or stop == lessons()[-1]
        takes = re.search(r"\*\*Time:\*\* (\d+) minutes", first)
        timed = takes is None or re.search(rf"\({stop.file}\.ipynb\) \|[^|]*\| {takes[1]} min", page())
        if not (numbered and leads_on and timed and "](index.ipynb)" in last):
            wrong.append(stop.file)
    assert wrong == []


def test_every_term_of_the_glossary_is_linked_where_a_lesson_uses_it():
    terms = {
        text.replace(" ", "-")
        for level, text in headings(sources(FOLDER / "glossary.ipynb")[0].splitlines())
        if level == 3
    }
    text = "\n".join(source for path in NOTEBOOKS.values() for source in sources(path, "markdown"))
    assert set(re.findall(r"\]\(glossary\.ipynb#([^)]+)\)", text)) == terms


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_every_link_of_a_notebook_leads_somewhere(notebook: str):
    path = NOTEBOOKS[notebook]
    assert list(broken_links("\n".join(sources(path, "markdown")), FOLDER, path.name)) == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One lesson with one heading, and a page."""
    cell = nbformat.v4.new_markdown_cell("# Lesson\n\n## Broadcast: to all\n\n```python\n# no heading\n```")
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "03-one.ipynb")
    (tmp_path / "README.md").write_text("# Page\n\n## What's read, and where?\n")
    return tmp_path


@pytest.mark.parametrize(
    ("target", "fault"),
    [
        ("03-one.ipynb#Broadcast:-to-all", ""),
        ("#whats-read-and-where", ""),
        ("https://example.org/#x", ""),
        ("03-one.ipynb#Broadcast", "03-one.ipynb has no such heading"),
        ("03-one.ipynb#no-heading", "03-one.ipynb has no such heading"),
        ("04-two.ipynb", "there is no 04-two.ipynb"),
        ("#nowhere", "README.md has no such heading"),
    ],
)
def test_a_planted_link_is_judged(folder: Path, target: str, fault: str):
    text = f"### A\n\n| item | where |\n|---|---|\n| x | [here]({target}) |\n"
    assert list(broken_links(text, folder)) == ([f"{target}: {fault}"] if fault else [])
    assert list(lost_items(text, folder)) == []


@pytest.mark.parametrize(
    ("where", "fault"),
    [
        ("in a later lesson (05)", ""),
        ("somewhere", "x: no place"),
        ("", "x: no place"),
        ("in a later lesson (16)", "x: there is no lesson 16"),
        ("in a later lesson (03)", "x: 03-one.ipynb is there now; link the heading that teaches it"),
    ],
)
def test_a_planted_place_is_judged(folder: Path, where: str, fault: str):
    text = f"### A\n\n| item | where |\n|---|---|\n| x | {where} |\n"
    assert list(lost_items(text, folder)) == ([fault] if fault else [])


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("[03](03-one.ipynb#Lesson)", False),
        ("[03](03-one.ipynb#Broadcast:-to-all)", False),
        ("[03](03-one.ipynb#In-practice)", True),
        ("[03](03-one.ipynb#In-practice) · in a later lesson (09)", False),
        ("[03](03-one.ipynb#In-practice) · [mean.py](scripts/mean.py)", False),
    ],
)
def test_a_planted_item_in_words_alone_is_found(tmp_path: Path, where: str, told: bool):
    v4 = nbformat.v4
    cells = [v4.new_markdown_cell("# Lesson\n\n## Broadcast: to all"), v4.new_code_cell("x"),
             v4.new_markdown_cell("## In practice"), v4.new_code_cell("lab.stop()")]  # fmt: skip
    nbformat.write(v4.new_notebook(cells=cells), tmp_path / "03-one.ipynb")
    text = f"### A\n\n| item | where |\n|---|---|\n| x | {where} |\n"
    assert list(only_told(text, tmp_path)) == (["x"] if told else [])
