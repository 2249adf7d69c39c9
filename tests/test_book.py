"""The book builds without a warning, and its reader finds everything in it, and nothing on other hosts."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

import labkit
from labkit import content
from tests.book import Page, pages
from tests.notebooks import FOLDER, NOTEBOOKS, cells
from workbook.tools.progress.ways import lessons

pytestmark = [pytest.mark.slow, pytest.mark.pinned]

LOADED = (("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("object", "data"))
ELSEWHERE = re.compile(r"\s*(?:https?:)?//")


@pytest.fixture
def site(book: Path) -> dict[str, Page]:
    """All pages by their paths. The build was strict: with a warning there are none."""
    return pages(book)


def test_every_notebook_and_every_program_is_a_page(site: dict[str, Page]):
    assert {f"lessons/{path.stem}.html" for path in NOTEBOOKS.values()} <= site.keys()
    programs = list((FOLDER / "scripts").glob("*.py"))
    assert programs
    for path in programs:
        assert path.read_text(encoding="utf-8").strip() in site[f"lessons/scripts/{path.stem}.html"].text


def test_the_lessons_stand_beside_each_page_in_their_order(site: dict[str, Page]):
    linked = dict.fromkeys(Path(link).stem for link in site["index.html"].beside if re.match("lessons/[^/]*$", link))
    assert [name for name in linked if name not in ("index", "glossary")] == [stop.file for stop in lessons()]


def test_every_page_can_be_reached_from_beside_the_first_one(site: dict[str, Page]):
    listed = {*site["index.html"].beside, *site["scripts.html"].all("a", "href")}
    assert site.keys() - listed == {"search.html", "genindex.html"}


def test_every_picture_has_alternative_text(site: dict[str, Page]):
    shown = [(name, each) for name, page in site.items() for tag, each in page.elements if tag == "img"]
    assert len(shown) > 300
    assert [(name, str(each)[:200]) for name, each in shown if not each.get("alt")] == []


def test_no_page_loads_anything_from_another_host(site: dict[str, Page], book: Path):
    asked = [(name, url) for name, page in site.items() for tag, key in LOADED for url in page.all(tag, key)]
    assert [(name, url) for name, url in asked if ELSEWHERE.match(url)] == []
    styles = [style.read_text(encoding="utf-8") for style in book.rglob("*.css")]
    assert styles
    assert [
        url
        for style in styles
        for url in re.findall(r"(?:url\(|@import)\s*['\"]?([^'\")]+)", style)
        if ELSEWHERE.match(url)
    ] == []


def test_every_link_within_the_book_leads_somewhere(site: dict[str, Page], book: Path):
    wrong, seen = [], 0
    for name, page in site.items():
        for link in page.all("a", "href"):
            if re.match(r"[a-z]+:|//", link):
                continue
            seen += 1
            url, anchor = urldefrag(link)
            path = (book / name).parent / unquote(url) if url else book / name
            there = site.get(str(path.resolve().relative_to(book.resolve())))
            if not path.is_file() or (anchor and there and unquote(anchor) not in there.ids):
                wrong.append((name, link))
    assert seen > 1000
    assert wrong == []


def test_every_output_that_can_move_without_a_kernel_is_a_view(site: dict[str, Page]):
    for path in NOTEBOOKS.values():
        outputs = [output for cell in cells(path) for output in cell.get("outputs", ())]
        moving = [output for output in outputs if output.get("metadata", {}).get("labkit")]
        views = [each for _, each in site[f"lessons/{path.stem}.html"].elements if each.get("class") == "labkit-view"]
        assert len(views) == len(moving), path.name


def test_every_call_has_an_entry(site: dict[str, Page]):
    ids = site["calls.html"].ids
    public = [name for name in (*dir(labkit.Lab), *content.methods()) if not name.startswith("_")]
    named = [*labkit.__all__, *(f"lab.{name}" for name in public), *(f"%%{m}" for m in ("px", "flow", "late", "mpi"))]
    assert [name for name in named if name not in ids] == []
