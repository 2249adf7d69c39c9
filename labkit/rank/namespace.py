"""Keep the names that a learner finds on a rank: what a cell does to them is put right before the next one needs them.

Within a cell they are the learner's: `for rank in range(4)` works there, and afterwards `rank` is the rank's number.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from labkit.rank.digest import one_line

_given: dict[str, Any] = {}


def give(shell: Any, values: dict[str, Any]) -> None:
    """Put these names into the learner's namespace, and see to it that they are there in every cell."""

    def put_back(_: Any = None) -> None:
        said = put_right(shell.user_ns)
        if said:
            print(said, file=sys.stderr)

    if not _given:
        for event in ("pre_run_cell", "post_run_cell"):
            shell.events.register(event, put_back)
    _given.update(values)
    shell.user_ns.update(values)


def put_right(space: dict[str, Any]) -> str:
    """Put back what was overwritten or deleted; return a sentence that says so, "" where nothing was."""
    lost = [name for name, value in _given.items() if not _same(value, space, name)]
    what = [f"{name} (it {f'held {one_line(space[name], 40)}' if name in space else 'was deleted'})" for name in lost]
    space.update({name: _given[name] for name in lost})
    return f"Put back for the next cell: {', '.join(what)}." if lost else ""


def _same(value: Any, space: dict[str, Any], name: str) -> bool:
    """Tell whether a name holds what was given, or what is as good: `rank = dist.get_rank()`, `device = "cpu"`."""
    held = space.get(name)
    if isinstance(value, torch.device) and isinstance(held, (str, torch.device)):
        return str(held) == str(value)
    return held is value or (type(held) is int and type(value) is int and held == value)


def is_given(name: str) -> bool:
    """Tell whether a name is one of those that the lab gave."""
    return name in _given
