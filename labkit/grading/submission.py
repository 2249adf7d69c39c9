"""Read a learner's copy of a lesson: which exercises it has, and which of its cells define their functions.

Nothing is run here. A cell is its source as it was typed, with its magic.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.floor.errors import LabError
from labkit.grading.defined_names import ON_RANKS
from labkit.grading.exercise import Exercise
from labkit.theory.definitions import Reader

CALL = re.compile(r"""lab\.(exercise|check)\(\s*["'](\w+)["']\s*\)""")


@dataclass(frozen=True)
class Defining:
    """The cell that a function is graded from.

    `error` says why it is no Python, empty where it is. `alone` is whether its definitions are all that the function
    can need of it: else it makes variables too, and has to run as a whole.
    """

    source: str
    error: str = ""
    alone: bool = True

    def is_of(self, cell: str) -> bool:
        """Tell whether the cell is this one, its first line with the magic aside."""
        return self.source.partition("\n")[2].strip() == cell.partition("\n")[2].strip()


@dataclass(frozen=True)
class Submission:
    """The code cells of a learner's copy, in their order."""

    cells: tuple[str, ...]

    def exercises(self, known: Mapping[str, Exercise]) -> list[Exercise]:
        """Return the exercises to grade, in the lessons' order.

        Those of the lesson, where all that the cells name are of one lesson: also those whose cells were deleted.
        """
        named = {name for cell in self.cells for _, name in CALL.findall(cell) if name in known}
        lessons = {known[name].lesson for name in named}
        return [e for e in known.values() if e.name in named or (len(lessons) == 1 and e.lesson in lessons)]

    def defining(self, name: str) -> Defining | None:
        """Return the last cell that defines the function at its top level, with `%%px` or without; None for none."""
        for cell in reversed(self.cells):
            if (source := _for_ranks(cell, plain=True)) is None:
                continue
            try:
                tree = ast.parse(source)
            except SyntaxError as error:
                if re.search(rf"^(?:async )?def {name}\b", source, re.MULTILINE):
                    return Defining(source, f"line {error.lineno}: {error.msg}")
                continue
            if any(_defines(node, name) for node in tree.body):
                needed = (s.safe or isinstance(s.node, ast.Expr) for s in Reader().read(tree))
                return Defining(source, alone=all(needed))
        return None

    def for_ranks(self, names: Collection[str]) -> list[str]:
        """Return the cells whose definitions the ranks get: those that ran there, and those of these functions."""
        last = {d.source for name in names if (d := self.defining(name))}
        sources = [(_for_ranks(cell), _for_ranks(cell, plain=True)) for cell in self.cells]
        return [source for of_ranks, any_ in sources if (source := of_ranks or (any_ if any_ in last else None))]


def _defines(node: ast.stmt, name: str) -> bool:
    """Tell whether a statement makes a function of this name; one that gives another's to it does not."""
    if isinstance(node, ast.Assign):
        made = isinstance(node.value, (ast.Lambda, ast.Call))
        return made and any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name


def _for_ranks(cell: str, plain: bool = False) -> str | None:
    """Return a cell as ranks run it, with its lines where they were; None where it runs elsewhere, or is `plain`."""
    first, _, rest = cell.partition("\n")
    magic = re.match(r"\s*%%(\w+)", first)
    if magic is None:
        return _without_magics(cell) if plain and cell.strip() else None
    return f"# {first.strip()}\n{_without_magics(rest)}" if magic[1] in ON_RANKS else None


def _without_magics(source: str) -> str:
    """Blank the lines that IPython alone understands, where the source is no Python with them."""
    try:
        ast.parse(source)
    except SyntaxError:
        return re.sub(r"^\s*[%!?].*$|^[^#\n]*\?\s*$", "", source, flags=re.MULTILINE)
    return source


def read(path: Path) -> Submission:
    """Read a notebook's file; a LabError says what is wrong with it."""
    try:
        cells: Sequence[Mapping[str, object]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
        return Submission(tuple("".join(source) for source in code))  # type: ignore[arg-type]  # text, or lines of it
    except OSError as error:
        raise LabError(
            f"{path} cannot be read ({error.strerror}). Name a notebook, such as 04-everyone.ipynb."
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise LabError(f"{path} is not a notebook. Name a file that Jupyter has saved.") from error
