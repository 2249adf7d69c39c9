"""What the notebook's cells define, and where: on the ranks or, where `%%px` was forgotten, in the notebook.

Cells are the source as it was typed, oldest first.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Sequence
from difflib import get_close_matches

ON_RANKS = ("px", "flow", "late")  # cell magics whose code the ranks run
ALIKE = 0.75  # of difflib's ratio: "swpa" for "swap"
USED = "# lab.use: "  # the first line of a cell that `lab.use` made, and whose function it holds
YOURS, WORKBOOKS = "yours", "the workbook's"


def as_typed(cell: str) -> str:
    """Return the cell of a function on the ranks as it was typed: labkit lets a comment stand for its %%px line."""
    first, _, rest = cell.partition("\n")
    return f"{first.removeprefix('# ')}\n{rest}" if first.startswith("# %%") else f"%%px\n{cell}" if cell else ""


def use(source: str, whose: str) -> str:
    """Write a cell for the ranks that holds a function of the learner's or the workbook's."""
    return f"{USED}{whose}\n{source}"


def used(cell: str) -> str:
    """Return whose function `lab.use` has put there with this cell; empty for a cell of the notebook."""
    first = cell.partition("\n")[0]
    return first.removeprefix(USED) if first.startswith(USED) else ""


def misplaced(cells: Sequence[str], name: str, on_ranks: str) -> str:
    """Say why what the ranks have is not what was written last; empty where it is.

    `on_ranks` is the cell, as typed, that their function comes from, empty where they have none.

    >>> misplaced(["def swap(x): ..."], "swap", "")
    'swap was last defined in the notebook, not on the ranks. Begin its cell with %%px and run it again.'
    """
    since = _since(cells, on_ranks)
    last = next((magic for cell in reversed(since) for magic, names in [_defines(cell)] if name in names), None)
    if last != "":
        return ""
    return f"{name} was last defined in the notebook, not on the ranks. Begin its cell with %%px and run it again."


def misspelt(cells: Sequence[str], name: str, on_ranks: str, known: Collection[str] = ()) -> str:
    """Note a function with nearly this name that was written since and is not used; `known` are not mistakes.

    >>> misspelt(["%%px\\ndef swpa(x): ..."], "swap", "")
    'There is a newer function swpa. If you meant swap, write its name so and run its cell again.'
    """
    since = [_defines(cell) for cell in _since(cells, on_ranks)]
    names = [other for magic, found in since if magic in ON_RANKS for other in found]
    used = set(re.findall(r"\w+", on_ranks))
    near = get_close_matches(name, [other for other in names if other not in {name, *known} | used], 1, ALIKE)
    if not near:
        return ""
    return f"There is a newer function {near[0]}. If you meant {name}, write its name so and run its cell again."


def older(cells: Sequence[str], name: str, on_ranks: str) -> str:
    """Note a function that was not defined by the cell right before this one: it may have been edited since.

    `cells[i]` is the notebook's cell [i], and the last one is that of the check.

    >>> cell, check = "%%px\\ndef swap(x): ...", "lab.check('swap')"
    >>> older(["", cell, check, check], "swap", cell)
    'Checked is swap as cell [1] has defined it. If you have changed that cell since, run it, and then check again.'
    """
    at = max((i for i, cell in enumerate(cells) if on_ranks and cell.strip() == on_ranks.strip()), default=len(cells))
    if at + 2 >= len(cells):
        return ""
    changed = "If you have changed that cell since, run it, and then check again."
    return f"Checked is {name} as cell [{at}] has defined it. {changed}"


def _since(cells: Sequence[str], on_ranks: str) -> Sequence[str]:
    """Return the cells after the one that the ranks' function comes from; none where that was not typed here."""
    if not on_ranks:
        return cells
    places = [i for i, cell in enumerate(cells) if cell.strip() == on_ranks.strip()]
    return cells[places[-1] + 1 :] if places else []


def _defines(cell: str) -> tuple[str, list[str]]:
    """Read a cell's magic ("" for none) and the functions that it defines."""
    magic = re.match(r"\s*%%(\w+)", cell)
    try:
        nodes = ast.parse(re.sub(r"^\s*[%!].*$", "", cell, flags=re.MULTILINE)).body
    except SyntaxError:
        nodes = []
    return magic[1] if magic else "", [node.name for node in nodes if isinstance(node, ast.FunctionDef)]
