"""Put sliders, lists and buttons on a page that moves by itself; what they show is a view's own, or one of pictures."""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

from labkit.floor.errors import LabError
from labkit.floor.words import listed
from labkit.show.view import HERE, View


def module(*tools: Path) -> str:
    """Return one JavaScript module with the kinds of views that are here and those of tools, as a page loads it.

    What a tool names stays in a block of its own; it adds to KINDS.
    """
    view, default = (HERE / "view.mjs").read_text().rsplit("export default", 1)
    kinds = [(HERE / "controls.mjs").read_text(), *(f"{{\n{tool.read_text()}}}\n" for tool in tools)]
    return "\n".join([view, *kinds, f"export default{default}"])


def style(*tools: Path) -> str:
    """Return the looks of all of them."""
    return "\n".join(file.read_text() for file in (HERE / "view.css", HERE / "controls.css", *tools))


@dataclass(frozen=True)
class Control:
    """A control: `values` to choose from, and the `texts` that say them."""

    name: str
    label: str
    values: Sequence[Any]
    texts: Sequence[str]
    form: Literal["slider", "list", "buttons"] = "slider"


class Controls(View):
    """A view with controls: where each of them stands is known here and on the page, and either may move it.

    The controls' state is `said`, once one has moved: of each name, which of its values is chosen. What they show is
    drawn by the module of a tool; or, for the kind `grid`, it is a picture for each choice (`pictures`), which is what
    a kernel has `replied` where there is one.
    """

    _esm: Any = module()
    _css: Any = style()

    def __init__(self, kind: str, controls: Sequence[Control], start: Mapping[str, Any], **data: Any) -> None:
        self._controls = {control.name: control for control in controls}
        offered = [{"name": c.name, "label": c.label, "options": [*c.texts], "form": c.form} for c in controls]
        at = {c.name: [*c.values].index(start[c.name]) if c.name in start else 0 for c in controls}
        super().__init__(kind=kind, data={"controls": offered, "at": at, **data})

    @property
    def at(self) -> dict[str, int]:
        """The place of each control's value among those that can be chosen."""
        said = self.said or {}
        return {name: said.get(name, first) for name, first in self.data["at"].items()}

    @property
    def values(self) -> dict[str, Any]:
        """The values that the controls have."""
        return {name: self._controls[name].values[nth] for name, nth in self.at.items()}

    def move(self, **values: Any) -> None:
        """Move controls, here and on the page. Raises `LabError` for one that is not there, or has no such value."""
        at = self.at
        for name, value in values.items():
            if name not in self._controls:
                raise LabError(f"There is no control {name!r} here. Choose one of: {', '.join(self._controls)}.")
            choices = [*self._controls[name].values]
            if value not in choices:
                raise LabError(f"{name}={value!r} cannot be chosen. Choose {listed([*map(repr, choices)], 'or')}.")
            at[name] = choices.index(value)
        self.said = at

    def heard(self, said: dict[str, Any]) -> None:
        """Show what the controls say now, where the page cannot do it by itself."""


def pictures(controls: Sequence[Control], draw: Any) -> dict[str, Any]:
    """Return the data of a `grid` that needs no kernel: `draw` makes HTML of each choice of values, by their names.

    Equal pictures are there once. All of them are packed together, since they are alike: 81 paintings of matrices, with
    2 MB of HTML, take 270 kB.
    """
    names = [control.name for control in controls]
    every: dict[str, int] = {}
    which = [
        every.setdefault(draw(**dict(zip(names, chosen, strict=True))), len(every))
        for chosen in product(*(control.values for control in controls))
    ]
    return {"which": which, "pictures": b64encode(gzip.compress(json.dumps([*every]).encode(), mtime=0)).decode()}
