"""Hold the notebooks against the workbook's rules and against ruff, their %%px and %%flow cells too.

    python .ci/lint_notebooks.py [--fix] [notebook or folder ...]

Prints one line a fault and exits with 1 where there is one. `--fix` formats the cells that run on the ranks.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import re
import sys
from collections.abc import Iterator

import nbformat
from cells import OPTIONAL, Code, code_cells, named, notebook_paths, on_the_way
from ruff_cells import calls, formatted, kernel_tree, lint

# Of what every learner takes, on the way: all but a lesson's optional sections and its Exercises.
MOST_CELLS = 40
MOST_WORDS = 1600  # in text
MOST_CARD_WORDS = 1200  # on exercises' cards
MOST_LINES = 15  # of a code cell


def imported(tree: ast.AST) -> Iterator[str]:
    """Every module that the code imports, in full: `torch.nn` for `import torch.nn`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def too_much(nb: nbformat.NotebookNode) -> Iterator[tuple[None, str]]:
    """What a lesson has more of on the way than fits into 45 minutes."""
    way = on_the_way(nb.cells)
    text = " ".join(cell.source for cell in way if cell.cell_type == "markdown")
    shown = [o.get("data", {}).get("text/html", "") for cell in way for o in cell.get("outputs", ())]
    cards = " ".join(html for html in shown if "labkit-card" in html)
    for many, most, what in (
        (len(way), MOST_CELLS, "cells"),
        (len(text.split()), MOST_WORDS, "words of text"),
        (len(re.sub(r"(?s)<svg.*?</svg>|<[^>]+>", " ", cards).split()), MOST_CARD_WORDS, "words of exercises' cards"),
    ):
        if many > most:
            yield None, f"has {many} {what} on the way; at most {most} fit: cut, or begin a section with {OPTIONAL!r}"


def only_optional(nb: nbformat.NotebookNode) -> Iterator[tuple[Code, str]]:
    """The names that cells on the way use, and that only an optional section makes."""
    if any(cell.source.startswith(OPTIONAL) for cell in nb.cells):
        way = nbformat.from_dict({**nb, "cells": on_the_way(nb.cells)})
        for on_ranks in (False, True):
            for cell, rule, message in lint(way, on_ranks):
                if rule == "F821":
                    yield cell, f"{message}: only an optional section makes it (cells are counted without those)"


def broken_rules(nb: nbformat.NotebookNode) -> Iterator[tuple[Code | None, str]]:
    """The workbook's rules that the notebook breaks, each with its cell, or None for the whole notebook."""
    cells = code_cells(nb)
    trees = {}
    if cells:  # else it is a page to look things up in
        yield from too_much(nb)
        yield from only_optional(nb)
    for cell in cells:
        lines = cell.source.strip("\n").count("\n") + 1
        if lines > MOST_LINES:
            yield cell, f"has {lines} lines; a cell has at most {MOST_LINES}: cut it in two"
        if "nbval-skip" in cell.tags or re.search(r"#\s*(NBVAL|PYTEST_VALIDATE)_", cell.source):
            yield cell, "switches its own check off: tag it nbval-ignore-output at most, and assert in it"
        if cell.on_ranks:
            continue
        try:
            tree = trees[cell] = kernel_tree(cell)
        except SyntaxError:
            continue  # ruff reports it
        torchy = [m for m in imported(tree) if re.match(r"(torch|labkit\.rank|workbook\.tools\.rank)(\.|$)", m)]
        if torchy:
            yield cell, f"imports {torchy[0]} in the notebook's own process: only %%px cells use torch"
    starts = any(calls(tree, "start") for tree in trees.values())
    if starts and not (cells[-1] in trees and calls(trees[cells[-1]], "stop")):
        yield cells[-1], "is the last, and does not stop the lab: end with lab.stop()"


def faults(nb: nbformat.NotebookNode) -> Iterator[tuple[Code | None, str]]:
    """All that is wrong with one notebook: its rules, its lint and the format of its cells on ranks."""
    yield from broken_rules(nb)
    parses = True
    for on_ranks in (False, True):
        for cell, rule, message in lint(nb, on_ranks):
            parses = parses and rule != "invalid-syntax"
            yield cell, message
    for cell, source in formatted(nb).items() if parses else ():
        changed = difflib.unified_diff(cell.source.split("\n"), source.split("\n"), lineterm="", n=0)
        yield cell, "is not formatted (make format):\n    " + "\n    ".join(list(changed)[2:])


def main() -> int:
    """Check the notebooks named on the command line, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--fix", action="store_true", help="format the cells that run on ranks, in place")
    parser.add_argument("paths", nargs="*")
    arguments = parser.parse_args()
    status = 0
    for path in notebook_paths(arguments.paths):
        nb = nbformat.read(path, as_version=4)
        if arguments.fix and (changes := formatted(nb)):
            for cell, source in changes.items():
                nb.cells[cell.index].source = source
            nbformat.write(nb, path)
        for fault in faults(nb):
            status = 1
            print(named(path, *fault))
    return status


if __name__ == "__main__":
    sys.exit(main())
