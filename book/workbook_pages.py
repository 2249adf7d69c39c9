"""Turn the workbook into pages: a Sphinx extension.

Notebooks are read as they are committed and never run, programs become pages with their source, and the page of all
calls is made of their docstrings. Changes no file.
"""

from __future__ import annotations

import ast
import json
from html import escape
from pathlib import Path
from typing import Any

import calls
from docutils import nodes
from ipython_pygments_lexers import IPython3Lexer
from pygments.lexer import bygroups, using
from pygments.lexers import PythonLexer
from pygments.token import Keyword, Operator, Text
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.parsers import Parser

LEXER = "workbook-cell"
FOLDED = ("Optional: ", "Exercises")  # JupyterLab opens these sections folded, too


class CellLexer(IPython3Lexer):
    """Read a notebook's cell: what stands under a magic of the lab is Python."""

    name, aliases = "Workbook cell", (LEXER,)
    tokens = IPython3Lexer.tokens | {
        "root": [
            (r"(?s)(%%)(px|flow|late|mpi)\b([^\n]*\n)(.*)", bygroups(Operator, Keyword, Text, using(PythonLexer))),
            *IPython3Lexer.tokens["root"],
        ]
    }


class ProgramParser(Parser):
    """Make a page of a program: its name, what its docstring says, and its source."""

    supported = ("program",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        """Fill the document."""
        name = Path(document["source"]).name
        section = nodes.section("", nodes.title("", name), ids=[nodes.make_id(name)], names=[name])
        document.note_explicit_target(section)
        about = ast.get_docstring(ast.parse(inputstring)) or ""
        section += [nodes.paragraph("", paragraph) for paragraph in about.split("\n\n")]
        download = addnodes.download_reference("", "", nodes.Text(f"Download {name}"), reftarget=name)
        section += nodes.paragraph("", "", download)
        section += nodes.literal_block(inputstring, inputstring, language="python")
        document += section


def slug(heading: str) -> str:
    """Return a heading's anchor as JupyterLab makes it, since that is how notebooks link."""
    return heading.replace(" ", "-")


def read(app: Sphinx, docname: str, content: list[str]) -> None:
    """Change a page's source before it is parsed: a notebook, or the page of all calls."""
    if docname == "calls":
        content[0] += calls.markdown()
    elif app.env.doc2path(docname).suffix == ".ipynb":
        content[0] = json.dumps(notebook(json.loads(content[0])))


def notebook(nb: dict[str, Any]) -> dict[str, Any]:
    """Return the notebook with its cells' lexer named."""
    nb["metadata"]["language_info"]["pygments_lexer"] = LEXER
    return nb


def fold(app: Sphinx, doctree: nodes.document) -> None:
    """Fold the sections of a lesson that a first reading leaves out, below their headings."""
    for section in list(doctree.findall(nodes.section)):
        title = section[0].astext()
        if not title.startswith(FOLDED) or not app.env.docname.startswith("lessons/"):
            continue
        summary = f"<details class='folded'><summary>Show this section: {escape(title)}</summary>"
        section.insert(1, nodes.raw("", summary, format="html"))
        section += nodes.raw("", "</details>", format="html")


def setup(app: Sphinx) -> dict[str, Any]:
    """Tell Sphinx of all this."""
    app.add_lexer(LEXER, CellLexer)
    app.add_source_suffix(".py", "program")
    app.add_source_parser(ProgramParser)
    app.connect("source-read", read)
    app.connect("doctree-read", fold)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
