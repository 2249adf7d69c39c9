"""Find a tool under the name that lessons' cells had for it before it moved: learners keep copies of those cells."""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {  # in labkit → in workbook.tools
    "diagnosis": "diagnosis.page",
    "nccl": "nccl",
    "rank.link": "rank.link",
    "rank.shared": "rank.shared",
    "rank.stragglers": "rank.stragglers",
    "rank.window": "rank.window",
    "show.planned": "planning.show",
    "theory.costs": "costs",
    "theory.events": "events",
    "theory.formulas": "formulas",
    "theory.nccl_log": "nccl_log",
    "theory.pipeline": "pipeline",
    "theory.plan": "plan",
    "theory.planning": "planning",
    "theory.published": "published",
    "theory.schedules": "schedules",
    "theory.sharding": "sharding",
    "theory.timing": "timing",
    "theory.topology": "topology",
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
    """Return the name that a module has now; empty where it has not moved."""
    within = name.removeprefix("labkit.")
    found = (new + within[len(old) :] for old, new in MOVED.items() if f"{within}.".startswith(f"{old}."))
    return next((f"workbook.tools.{new}" for new in found if within != name), "")


sys.meta_path.insert(0, Moved())
