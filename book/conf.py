"""Sphinx's settings for the book: the executed notebooks and the pages beside them as one static site."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "notebooks"), str(HERE.parent / ".ci")]

# The address that the pages name, as `git clone` takes it; with none they say REPOSITORY.
workbook_repository = os.environ.get("WORKBOOK_REPOSITORY", "")

project = "Collectives Workbook"
author = copyright = "Collectives Workbook developers"
html_title = project

extensions = ["myst_nb", "sphinx_book_theme", "workbook_pages"]
suppress_warnings = [
    "misc.highlighting_failure",  # a lesson shortens XML with "…"
    "myst.header",  # the glossary has no level between its title and its words
]

# What is shown is what is committed: the build runs no cell.
nb_execution_mode = "off"
nb_ipywidgets_js = {}  # nothing is loaded from other hosts
nb_render_error_lexer = "text"
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 6
myst_heading_slug_func = "workbook_pages.slug"
myst_links_external_new_tab = False

html_theme = "sphinx_book_theme"
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_show_copyright = False
html_permalinks = True
html_search_scorer = str(HERE / "scorer.js")
html_favicon = "_static/favicon.svg"
html_context = {"default_mode": "auto"}
html_theme_options = {
    "navbar_persistent": [],
    "show_navbar_depth": 1,
    "show_toc_level": 1,
    "home_page_in_toc": False,
    "use_download_button": True,
    "use_fullscreen_button": False,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
if workbook_repository:
    html_theme_options |= {"repository_url": workbook_repository, "use_repository_button": True}
