"""Find a tool under the name that lessons' cells had for it before it moved: learners keep copies of those cells."""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {
    "labkit.diagnosis": "workbook.tools.diagnosis.page",
    "labkit.nccl": "workbook.tools.nccl",
    "labkit.rank.link": "workbook.tools.rank.link",
    "labkit.rank.shared": "workbook.tools.rank.shared",
    "labkit.rank.window": "workbook.tools.rank.window",
    "labkit.show.planned": "workbook.tools.planning.show",
    "labkit.theory.costs": "workbook.tools.costs",
    "labkit.theory.events": "workbook.tools.events",
    "labkit.theory.nccl_log": "workbook.tools.nccl_log",
    "labkit.theory.plan": "workbook.tools.plan",
    "labkit.theory.planning": "workbook.tools.planning",
    "labkit.theory.published": "workbook.tools.published",
    "labkit.theory.timing": "workbook.tools.timing",
    "labkit.theory.topology": "workbook.tools.topology",
}


class Moved(MetaPathFinder, Loader):
    """Import a module of `MOVED`, or one inside it, as the module that it is now."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if _now(name) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(_now(spec.name))
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own  # which the import under the old name has replaced


def _now(name: str) -> str:
    """The name that a module has now; empty where it has not moved."""
    return next((new + name[len(old) :] for old, new in MOVED.items() if f"{name}.".startswith(f"{old}.")), "")


sys.meta_path.insert(0, Moved())
