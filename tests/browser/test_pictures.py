"""Every kind of picture is readable in both themes, trusted or not, and takes the page's ground: no light card."""

from __future__ import annotations

import io
import re
from pathlib import Path

import browse
import matplotlib.image
import nbformat
import numpy as np
import pytest
from playwright.sync_api import BrowserContext, expect

from labkit.plot import svg
from tests import pictures

pytestmark = pytest.mark.browser

CONTRASTS = (Path(__file__).parent / "contrasts.js").read_text()
MADE = """from labkit import Painter, draw
from labkit.content import exercises
from workbook.tools import schedules

draw(schedules.tree("broadcast", 4))"""


def contrast(a: tuple[int, ...], b: tuple[int, ...]) -> float:
    """As WCAG counts: 1 to 21."""

    def light(colour: tuple[int, ...]) -> float:
        shares = [v / 255 / 12.92 if v <= 10 else ((v / 255 + 0.055) / 1.055) ** 2.4 for v in colour[:3]]
        return 0.2126 * shares[0] + 0.7152 * shares[1] + 0.0722 * shares[2]

    dark, bright = sorted((light(a), light(b)))
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_of_every_picture_stands_out(chromium: BrowserContext, scheme):
    """The SVGs stand on the page itself, where their shapes can be asked for; in JupyterLab they are images."""
    page = chromium.new_page()
    page.emulate_media(color_scheme=scheme)
    faint = []
    kinds = {name.split()[0]: name for name in pictures.names()}  # the last one of each
    assert len(kinds) > 7
    for name in kinds.values():
        page.set_content(pictures.drawn(name).decode())
        texts = page.evaluate(f"() => {{{CONTRASTS} return inPictures()}}")
        assert texts, name
        faint += [(name, *text) for text in texts if text[1] < 4.5]
    page.close()
    assert faint == [], "WCAG asks for 4.5 at least"


@pytest.mark.parametrize("preferred", ["light", "dark"])
def test_a_picture_takes_the_theme_that_its_page_says_or_else_the_browsers(chromium: BrowserContext, preferred):
    """JupyterLab and Jupyter Book set a colour scheme, nbconvert and VS Code mark their pages, GitHub says nothing."""
    page = chromium.new_page()
    page.emulate_media(color_scheme=preferred)
    grounds = {"light": (255, 255, 255), "dark": (17, 17, 17)}
    says = {"": preferred}
    for theme in grounds:
        says |= dict.fromkeys((f'style="color-scheme:{theme}"', f'class="vscode-{theme}"'), theme)
        says[f'data-jp-theme-light="{str(theme == "light").lower()}"'] = theme
    for body, theme in says.items():
        page.set_content(f"<body {body}>{svg.img(pictures.drawn('flow 1 1 False'), 'a flow')}</body>")
        page.wait_for_function("document.images[0].complete")
        image = matplotlib.image.imread(io.BytesIO(page.locator("img").screenshot()))
        assert tuple((255 * image[2, 2, :3]).round()) == grounds[theme], body
    page.close()


def test_a_picture_takes_the_theme_trusted_or_not(opened, lab_server):
    untrusted = nbformat.v4.new_code_cell("'never run here'", execution_count=1)
    html = svg.img(pictures.drawn("flow 3 2 True"), "a picture that somebody else made")
    untrusted.outputs = [nbformat.v4.new_output("execute_result", {"text/html": html}, execution_count=1)]
    nb: browse.Notebook = opened(lab_server.write("pictures.ipynb", [untrusted, MADE, "Painter(4)"]))
    nb.theme(browse.DARK)
    # Alone at first: the style that a trusted picture brings along holds for the whole page.
    assert_takes(nb, 0, browse.DARK)
    nb.run_cell(1)
    nb.run_cell(2)
    for theme in (browse.DARK, browse.LIGHT):
        nb.theme(theme)
        for index in range(3):
            assert_takes(nb, index, theme)
    assert not nb.cells.nth(0).locator("style").count(), "JupyterLab took it for untrusted"
    assert nb.errors() == []


def assert_takes(nb: browse.Notebook, index: int, theme: str) -> None:
    """The picture of a cell takes the page's ground in this theme, and its ink stands out from it."""
    ground = nb.page.locator(".jp-Notebook").first.evaluate("element => getComputedStyle(element).backgroundColor")
    page = tuple(map(int, re.findall(r"\d+", ground)))
    image = nb.cells.nth(index).locator("img.labkit-picture")
    expect(image).to_be_visible()
    shot = image.screenshot()
    pixels = (255 * matplotlib.image.imread(io.BytesIO(shot))[..., :3]).round().astype(int)
    assert tuple(pixels[2, 2]) == page, "the picture's ground is the page's"
    assert (pixels == page).all(axis=2).mean() > 0.3
    colours = np.unique(pixels.reshape(-1, 3), axis=0)
    assert max(contrast(tuple(colour), page) for colour in colours) > 12, "the ink stands out"
