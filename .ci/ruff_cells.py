"""ruff on a notebook's cells, in two readings: what the ranks run, and what the notebook's own process runs.

ruff alone skips cells with a cell magic, so it is given, for each reading, a notebook of the bodies.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
from cells import ROOT, Code, code_cells
from IPython.core.inputtransformer2 import TransformerManager

from labkit.theory.cells import GIVEN

# These hold for a file, not for a lesson: a cell ends in a bare name, a name is imported where it is first
# needed, a function is shown and then improved, the text cells document it, the formatter sets blank lines, a loop's
# body, or the use of a value, is left to the learner.
NOT_IN_LESSONS = "B007,B018,D1,E402,F811,F841,I001"
# Where an error is the lesson, an unknown name may be it.
WHERE_AN_ERROR_IS_THE_LESSON = ("F821",)


def kernel_tree(cell: Code) -> ast.Module:
    """The syntax tree of a cell of the notebook's own process, magics turned into plain calls."""
    return ast.parse(TransformerManager().transform_cell(cell.source))


def calls(tree: ast.AST, name: str) -> list[ast.Call]:
    """The calls of `name` or of `something.name`."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [call for call in found if getattr(call.func, "id", getattr(call.func, "attr", None)) == name]


def pushed(nb: nbformat.NotebookNode) -> set[str]:
    """The names that `lab.push(name=...)` puts on the ranks."""
    names: set[str] = set()
    for cell in code_cells(nb):
        if not cell.on_ranks and ".push(" in cell.source:
            try:
                found = calls(kernel_tree(cell), "push")
            except SyntaxError:
                continue  # ruff reports it
            names |= {keyword.arg for call in found for keyword in call.keywords if keyword.arg}
    return names


def used(nb: nbformat.NotebookNode) -> set[str]:
    """The names of functions that `lab.use("…")` puts on the ranks."""
    names: set[str] = set()
    for cell in code_cells(nb):
        if not cell.on_ranks and "lab.use(" in cell.source:
            try:
                found = calls(kernel_tree(cell), "use")
            except SyntaxError:
                continue  # ruff reports it
            names |= {name.value for call in found for name in call.args if isinstance(name, ast.Constant)}
    return names


def reading(nb: nbformat.NotebookNode, on_ranks: bool) -> nbformat.NotebookNode:
    """The notebook as the ranks see it (%%px and %%flow bodies, %px lines), or as its own process does."""
    seen = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell() for _ in nb.cells])
    for cell in code_cells(nb):
        source = cell.body if cell.on_ranks == on_ranks else ""
        if on_ranks and not cell.on_ranks:
            lines = [line[4:] if line.startswith("%px ") else "" for line in cell.source.split("\n")]
            source = "\n".join(lines)
        if source.strip():
            seen.cells[cell.index] = nbformat.v4.new_code_cell(source)
    return seen


def ruff(command: str, file: Path, *arguments: str) -> str:
    """What ruff prints about one file, with the project's configuration; raises where it could not run."""
    ours = ("--config", str(ROOT / "pyproject.toml"), "--no-cache")
    whole = [sys.executable, "-m", "ruff", command, *ours, *arguments, str(file)]
    ran = subprocess.run(whole, capture_output=True, text=True)
    if ran.returncode > 1:
        raise RuntimeError(ran.stderr)
    return ran.stdout


def lint(nb: nbformat.NotebookNode, on_ranks: bool) -> Iterator[tuple[Code, str, str]]:
    """What ruff finds in one reading of the notebook: cell, rule, message with its line."""
    by_index = {cell.index: cell for cell in code_cells(nb)}
    known = sorted(GIVEN | pushed(nb) | used(nb)) if on_ranks else []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "reading.ipynb")
        nbformat.write(reading(nb, on_ranks), file)
        options = ("--output-format=json", f"--extend-ignore={NOT_IN_LESSONS}")
        found = json.loads(ruff("check", file, *options, "--config", f"builtins={json.dumps(known)}"))
    for fault in found:
        cell = by_index[fault["cell"] - 1]
        if not ("raises-exception" in cell.tags and fault["code"] in WHERE_AN_ERROR_IS_THE_LESSON):
            yield cell, fault["code"], f"line {fault['location']['row']}: {fault['code']} {fault['message']}"


def formatted(nb: nbformat.NotebookNode) -> dict[Code, str]:
    """The cells on ranks that ruff would format otherwise, each with its formatted source."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "reading.ipynb")
        nbformat.write(reading(nb, on_ranks=True), file)
        ruff("format", file)
        after = nbformat.read(file, as_version=4)
    pairs = [(cell, after.cells[cell.index].source) for cell in code_cells(nb) if cell.on_ranks]
    wanted = {cell: f"{cell.magic}\n{body.strip(chr(10))}" for cell, body in pairs if body.strip()}
    return {cell: source for cell, source in wanted.items() if source != cell.source}
