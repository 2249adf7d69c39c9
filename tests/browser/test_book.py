"""The book in Chromium: search, themes, folded sections and questions, by keyboard, without a kernel or an error."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from playwright.sync_api import BrowserContext, Page, expect

from labkit import content
from labkit.grading.prediction import Prediction
from tests.book import BOOK, served

pytestmark = [pytest.mark.browser, pytest.mark.pinned]

QUESTION = "where_is_x"
HERE = re.compile(r"http://127\.0\.0\.1:|data:")


@pytest.fixture(scope="session")
def address(book: Path) -> Iterator[str]:
    with served(book) as url:
        yield url


@pytest.fixture(scope="session")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a book of one page: a question, and its answer."""
    folder = tmp_path_factory.mktemp("asked")
    cells = [new_markdown_cell("# A question"), moving("predict", "the question"), moving("answer", "the answer")]
    language = {"language_info": {"name": "python"}}
    (folder / "pages").mkdir()
    nbformat.write(new_notebook(cells=cells, metadata=language), folder / "pages" / "index.ipynb")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-c", BOOK, folder / "pages", folder / "site"]
    subprocess.run(command, check=True)
    with served(folder / "site") as url:
        yield f"{url}/index.html"


def moving(kind: str, shows: str) -> nbformat.NotebookNode:
    """A cell with an output that moves without a kernel."""
    meta = {"labkit": {"kind": kind, "name": QUESTION}}
    return new_code_cell(kind, outputs=[new_output("display_data", {"text/html": f"<p>{shows}</p>"}, metadata=meta)])


@pytest.fixture
def page(chromium: BrowserContext) -> Iterator[Page]:
    """A page that must not complain, nor ask another host than its own for anything."""
    page = chromium.new_page()
    page.set_viewport_size({"width": 1280, "height": 900})
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request",
        lambda asks: None if asks.url.startswith(("http://127.0.0.1:", "data:")) else complaints.append(asks.url),
    )
    yield page
    page.close()
    assert complaints == []


def test_search_finds_a_word_of_the_glossary(page: Page, address: str):
    page.goto(f"{address}/index.html")
    page.keyboard.press("Control+K")
    page.keyboard.type("straggler")
    page.keyboard.press("Enter")
    found = page.locator("#search-results a", has_text="Straggler").first
    found.click()
    expect(page).to_have_url(re.compile(r"/lessons/glossary\.html.*#straggler$"))


def test_the_pictures_follow_the_theme_that_a_reader_chooses(page: Page, address: str):
    page.goto(f"{address}/lessons/00-start-here.html")
    for name, theme in ("Dark", "dark"), ("Light", "light"):
        page.get_by_role("button", name="Color mode").press("Enter")
        page.get_by_role("button", name=name, exact=True).press("Enter")
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
        expect(page.locator("img.labkit-picture").first).to_have_css("color-scheme", theme)


@pytest.mark.parametrize("width", [1280, 400])
def test_no_page_is_wider_than_the_screen(page: Page, address: str, book: Path, width: int):
    page.set_viewport_size({"width": width, "height": 900})
    wide = []
    for path in sorted(book.rglob("*.html")):
        if "_static" not in path.parts:
            page.goto(f"{address}/{path.relative_to(book)}", wait_until="domcontentloaded")
            if page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
                wide.append(path.name)
    assert wide == []


def test_an_optional_section_is_folded_until_a_reader_opens_it(page: Page, address: str):
    page.goto(f"{address}/lessons/02-send-and-receive.html")
    folded = page.locator("details.folded").first
    expect(folded).not_to_have_attribute("open", "")
    folded.locator("summary").first.press("Enter")
    expect(folded).to_have_attribute("open", "")


def test_a_question_is_locked_in_and_answered_by_keyboard_alone(page: Page, asked: str):
    question = content.predictions.find(QUESTION)
    assert isinstance(question, Prediction)
    wrong = next(k for k, option in enumerate(question.options) if option.text != question.answer)
    page.goto(asked)
    predict, answer = page.locator(".labkit-live").all()
    expect(answer.get_by_text("lock it in")).to_be_visible()
    expect(answer.locator("details")).not_to_have_attribute("open", "")
    page.locator("h1 a").focus()
    while not predict.evaluate("each => each.contains(document.activeElement)"):
        page.keyboard.press("Tab")
    page.keyboard.press("Space")
    for _ in range(wrong):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(predict.get_by_role("status")).to_contain_text("Locked in")
    expect(answer).to_contain_text("but the answer is")
    expect(page.locator("body")).not_to_contain_text("the question")
