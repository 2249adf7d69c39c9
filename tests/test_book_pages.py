"""What the book's extension makes of a notebook, a program and a docstring."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import calls
import pytest
import workbook_pages
from pygments.token import Keyword, Name, Operator

from labkit import content

ROOT = Path(__file__).resolve().parents[1]


def notebook(html: str, **meta: str) -> dict:
    output = {
        "output_type": "execute_result",
        "data": {"text/html": [html]},
        "metadata": {"labkit": meta} if meta else {},
    }
    cell = {"cell_type": "code", "source": "asked", "outputs": [output]}
    return {"metadata": {"language_info": {"name": "python"}}, "cells": [cell]}


def shown(nb: dict) -> str:
    """The HTML of the only output, as the book has it."""
    return "".join(workbook_pages.notebook(nb)["cells"][0]["outputs"][0]["data"]["text/html"])


def test_a_question_becomes_a_view_around_what_the_notebook_shows():
    html = shown(notebook("<p>Predict</p>", kind="predict", name="where_is_x"))
    assert html.startswith('<div class="labkit-view"><script type="application/json">{')
    assert html.endswith("</script><p>Predict</p></div>")
    assert html.count("<") == 6, "nothing in the state can end its script"


@pytest.mark.parametrize("meta", [{}, {"kind": "what nobody knows"}])
def test_what_cannot_move_is_shown_as_it_is(meta: dict[str, str]):
    assert shown(notebook("<img alt='a'>", **meta)) == "<img alt='a'>"


def test_a_table_of_lessons_links_to_pages():
    assert shown(notebook("<a href='02b-put.ipynb'>02b</a>")) == "<a href='02b-put.html'>02b</a>"


@pytest.mark.parametrize("line", ["%%px", "%%px --targets 0", "%%flow x -> y", "%%late 1", "%%mpi 4"])
def test_what_stands_under_a_magic_is_read_as_python(line: str):
    tokens = list(workbook_pages.CellLexer().get_tokens(f"{line}\nif rank == 0:\n    print(x)\n"))
    assert tokens[0] == (Operator, "%%")
    assert (Keyword, "if") in tokens
    assert (Name.Builtin, "print") in tokens


def test_a_lesson_says_below_its_title_where_it_runs_and_a_page_without_ranks_does_not():
    lesson = notebook("<p>ranks</p>")
    lesson["cells"] = [{"cell_type": "markdown", "source": "# 00\n\nYou will"}, *lesson["cells"]]
    assert workbook_pages.notebook(json.loads(json.dumps(lesson)))["cells"][0]["source"] == "# 00\n\nYou will"
    lesson["cells"][1]["source"] = "lab = start()"
    title, note = workbook_pages.notebook(lesson, {"Colab": "https://colab"})["cells"][0]["source"].split("\n\n", 1)
    assert title == "# 00"
    assert re.fullmatch(r":::\{note\}\n.*\[on Colab\]\(https://colab\)\.\n:::\n\nYou will", note)


@pytest.mark.parametrize(
    ("repository", "shown"), [("", "REPOSITORY"), ("https://github.com/a/b", "https://github.com/a/b")]
)
def test_a_page_names_the_repository_where_the_book_knows_it(repository, shown):
    page = ["git clone REPOSITORY"]
    app = SimpleNamespace(
        config=SimpleNamespace(workbook_repository=repository), env=SimpleNamespace(doc2path=lambda name: f"{name}.md")
    )
    workbook_pages.read(app, "install", page)
    assert page == [f"git clone {shown}"]


def test_a_headings_anchor_is_jupyterlabs():
    assert workbook_pages.slug("What it costs, and when to use which") == "What-it-costs,-and-when-to-use-which"


def test_a_docstring_becomes_markdown():
    def f(self, n, *, name="x"):
        """Do it.

        >>> f(1)
        <BLANKLINE>

        Args:
            n: how many,
                or none.
            name, other: what it is called.
        """

    assert calls.section("f", f, "lab.") == (
        "### lab.f\n\n```python\nlab.f(n, *, name='x')\n```\n\nDo it.\n\n```pycon\n>>> f(1)\n\n```\n\n"
        "- `n`: how many,\n    or none.\n- `name, other`: what it is called."
    )


def test_the_instructors_guide_names_cells_that_lessons_have():
    guide = (ROOT / "book" / "instructors.md").read_text(encoding="utf-8")
    plans = guide[: guide.index("## What goes wrong")]
    cells = "".join(
        "".join(cell["source"])
        for path in (ROOT / "notebooks").glob("*.ipynb")
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    )
    asked = set(re.findall(r'`Predict\("(\w+)"\)`', plans))
    posed = set(re.findall(r"`([a-z]\w*_\w+)`", plans)) - set(content.methods())
    assert len(asked) > 10
    assert len(posed) > 10
    assert {name for name in asked if f'Predict("{name}")' not in cells} == set()
    assert {name for name in posed if f'lab.exercise("{name}")' not in cells} == set()
