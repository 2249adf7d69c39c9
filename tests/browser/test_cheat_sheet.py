"""The cheat sheet, as the notebook shows it, printed: two pages, no letter too small, no primitive lost."""

import re
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import BrowserContext, Page

from workbook.tools import saving
from workbook.tools.sheet.cheats import CHEATS
from workbook.tools.sheet.face import NAME, PRINT

pytestmark = pytest.mark.browser

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "cheat-sheet.ipynb"
LEAST = 7.0  # points
LETTERS = """() => [...document.querySelectorAll('.labkit-sheet *')]
    .filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()))
    .map(e => [e.textContent.trim().slice(0, 40), parseFloat(getComputedStyle(e).fontSize) * 0.75])"""
SHOWN = "() => [...document.querySelectorAll('.labkit-sheet img')].map(i => i.clientWidth / i.naturalWidth)"


@pytest.fixture(scope="module")
def sheet() -> str:
    outputs = [output for cell in nbformat.read(NOTEBOOK, 4).cells for output in cell.get("outputs", [])]
    shown = [output.get("data", {}).get("text/html", "") for output in outputs]
    return next(html for html in shown if "labkit-sheet" in html)


@pytest.fixture
def page(chromium: BrowserContext, sheet: str, tmp_path: Path):
    saved = saving.save_page(str(tmp_path / "sheet.html"), NAME, PRINT, sheet, "save", "sheet.html")
    page = chromium.new_page()
    page.goto(saved.as_uri())
    yield page
    page.close()


@pytest.mark.parametrize("paper", ["A4", "Letter"])
def test_it_prints_on_two_pages(page: Page, paper: str) -> None:
    pdf = page.pdf(format=paper)
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) == 2


def test_every_letter_can_be_read_on_paper(page: Page) -> None:
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 726, "height": 1050})  # what A4 leaves between the margins, at 96 px an inch
    small = [(text, points) for text, points in page.evaluate(LETTERS) if points < LEAST]
    assert small == []
    assert min(page.evaluate(SHOWN)) > 0.97, "no picture is shrunk to fit its card"


def test_every_entry_is_on_it(page: Page) -> None:
    names = page.locator(".labkit-sheet .name").all_inner_texts()
    assert names == [cheat.name for cheat in CHEATS]
    assert all(alt for alt in page.eval_on_selector_all(".labkit-sheet img", "all => all.map(i => i.alt)"))
