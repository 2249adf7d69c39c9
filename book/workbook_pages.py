"""Turn the workbook into pages: a Sphinx extension.

Notebooks are read as they are committed and never run, programs become pages with their source, and the page of all
calls is made of their docstrings. Changes no file.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import calls
import hosted_copies
from docutils import nodes
from IPython.lib.lexers import IPython3Lexer
from pygments.lexer import bygroups, using
from pygments.lexers import PythonLexer
from pygments.token import Keyword, Operator, Text
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.parsers import Parser

from labkit import content
from labkit.show.view import page
from workbook.tools.whatif.face import WhatIf

HERE = Path(__file__).resolve().parent
LEXER = "workbook-cell"
MOVED = {
    "../notebooks/": "lessons/",
    "../benchmarks/": "benchmarks/",
    "../.ci/": "",
}  # as __main__.py gathers them
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


def read(app: Sphinx, docname: str, source: list[str]) -> None:
    """Change a page's source before it is parsed: a notebook, the page of all calls, links that the repository has."""
    repository, file = app.config.workbook_repository, Path(app.env.doc2path(docname))
    if docname == "calls":
        source[0] += calls.markdown()
    for there, here in MOVED.items():
        source[0] = source[0].replace(f"]({there}", f"]({here}")
    if file.suffix == ".ipynb":
        source[0] = json.dumps(notebook(json.loads(source[0]), hosted_copies.opened(repository, file.name)))
    elif repository:
        source[0] = source[0].replace("REPOSITORY", repository)
        source[0] = source[0].replace("OWNER/NAME", hosted_copies.on_github(repository) or "OWNER/NAME")


def notebook(nb: dict[str, Any], hosts: dict[str, str] | None = None) -> dict[str, Any]:
    """Return the notebook as a page: its outputs link to pages, and those that can move without a kernel do.

    A lesson says below its title where it can be run; `hosts` are links to hosts that open it.
    """
    nb["metadata"]["language_info"]["pygments_lexer"] = LEXER
    if any("start()" in "".join(cell["source"]) for cell in nb["cells"] if cell["cell_type"] == "code"):
        title, _, rest = "".join(nb["cells"][0]["source"]).partition("\n")
        nb["cells"][0]["source"] = f"{title}\n\n{where_it_runs(hosts or {})}{rest}"
    for cell in nb["cells"]:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "text/html" in data:
                html = re.sub(r"""(href=["'][\w-]+)\.ipynb""", r"\1.html", "".join(data["text/html"]))
                meta = output.get("metadata", {}).get("labkit")
                state = page(meta, content.question, content.view) if meta else None
                data["text/html"] = moving(state, html) if state else html
    return nb


def where_it_runs(hosts: dict[str, str]) -> str:
    """Return the note at the head of a lesson, in MyST's Markdown."""
    ways = "".join(f", or [on {name}]({link})" for name, link in hosts.items())
    return (
        ":::{note}\nThis page shows the lesson as it ran. Questions, tiles and steppers work here; cells do not run. "
        f"To run them: [on your machine](../install.md){ways}.\n:::\n"
    )


def moving(state: dict[str, Any], static: str) -> str:
    """Return the HTML of a view: its state for loader.js, and what is shown without scripts."""
    data = json.dumps(state, ensure_ascii=False).replace("<", "\\u003c")
    return f'<div class="labkit-view"><script type="application/json">{data}</script>{static}</div>'


def write_scripts(app: Sphinx) -> None:
    """Write the views' module and loader.js as one plain script: pages opened from a disk may load no module.

    The what-if's module has all kinds of views.
    """
    exports = re.compile(r"^export (default )?", re.MULTILINE)
    module = exports.sub(lambda found: "return " if found[1] else "", WhatIf._esm)
    loader = (HERE / "loader.js").read_text(encoding="utf-8")
    folder = Path(app.outdir, "_static")
    folder.mkdir(parents=True, exist_ok=True)
    script = f"(() => {{\n'use strict';\nconst view = (() => {{\n{module}}})();\n{loader}}})();\n"
    (folder / "views.js").write_text(script, encoding="utf-8")
    (folder / "view.css").write_text(WhatIf._css, encoding="utf-8")


def fold(app: Sphinx, doctree: nodes.document) -> None:
    """Fold the sections of a lesson that a first reading leaves out, below their headings."""
    for section in list(doctree.findall(nodes.section)):
        if section[0].astext().startswith(FOLDED) and app.env.docname.startswith("lessons/"):
            summary = "<details class='folded'><summary>Show this section</summary>"
            section.insert(1, nodes.raw("", summary, format="html"))
            section += nodes.raw("", "</details>", format="html")


def setup(app: Sphinx) -> dict[str, Any]:
    """Tell Sphinx of all this."""
    app.add_lexer(LEXER, CellLexer)
    app.add_source_suffix(".py", "program")
    app.add_source_parser(ProgramParser)
    app.add_config_value("workbook_repository", "", "env", str)
    app.add_css_file("view.css")
    app.add_js_file("views.js", loading_method="defer")
    app.connect("builder-inited", write_scripts)
    app.connect("source-read", read)
    app.connect("doctree-read", fold)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
