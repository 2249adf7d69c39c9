"""The diagnosis tree, printed: one page, no letter too small, black on white."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page

from workbook.tools.diagnosis.page import tree

pytestmark = pytest.mark.browser

LEAST = 7.0  # points
LETTERS = """() => [...document.querySelectorAll('.labkit-tree *')]
    .filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()))
    .map(e => [e.textContent.trim().slice(0, 40), parseFloat(getComputedStyle(e).fontSize) * 0.75])"""
CUT_OFF = """() => [...document.querySelectorAll('.labkit-tree *')]
    .filter(e => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline')
    .map(e => e.textContent.slice(0, 40))"""
INK = "() => getComputedStyle(document.querySelector('.labkit-tree .ask')).color"


@pytest.fixture
def page(chromium: BrowserContext, tmp_path: Path):
    page = chromium.new_page()
    page.goto(tree.save(str(tmp_path / "tree.html")).as_uri())
    yield page
    page.close()


@pytest.mark.parametrize("paper", ["A4", "Letter"])
def test_it_prints_on_one_page(page: Page, paper: str) -> None:
    pdf = page.pdf(format=paper)
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) == 1


def test_every_letter_can_be_read_on_paper(page: Page) -> None:
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 733, "height": 1062})  # what A4 leaves between the margins, at 96 px an inch
    assert [(text, points) for text, points in page.evaluate(LETTERS) if points < LEAST] == []
    assert page.evaluate(CUT_OFF) == []


def test_it_prints_black_on_white_also_for_whom_the_screen_is_dark(page: Page) -> None:
    page.emulate_media(media="screen", color_scheme="dark")
    assert page.evaluate(INK) == "rgb(255, 255, 255)"
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(INK) == "rgb(0, 0, 0)"
