"""Let values show themselves as a picture, with the same told in words. No torch, no cluster."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from labkit.outcome.text import merge
from labkit.plot import svg


class Picture:
    """A value that shows itself: as text by `repr`, on a page as a picture; a subclass says it, and draws it."""

    def _drawn(self) -> Any:
        """Return the axes of the picture, as a module of `labkit.plot` draws them."""
        raise NotImplementedError

    @property
    def alt(self) -> str:
        """The picture in words."""
        return repr(self)

    @cached_property
    def svg(self) -> bytes:
        """The picture as SVG; equal values give equal bytes."""
        return svg.svg(self._drawn())

    def _repr_html_(self) -> str:
        return svg.img(self.svg, self.alt)


class EachRank(Picture):
    """A picture of what each rank has under one or more expressions."""

    what: str  # the picture shows, as its alternative text begins
    shared = ""  # that ranks share a GPU, where that matters

    @property
    def says(self) -> dict[str, dict[int, str]]:
        """Each rank's data in words, by expression."""
        raise NotImplementedError

    def _heading(self, name: str) -> str:
        return name

    def __repr__(self) -> str:
        told = [f"{self._heading(name)}\n{merge(said)}".rstrip("\n") for name, said in self.says.items()]
        return "\n".join([*told, *[f"{self.shared}."] * bool(self.shared)])

    @property
    def alt(self) -> str:
        """The picture in words."""
        each = [
            f"{self._heading(name)}: " + " ".join(f"Rank {r}: {words}." for r, words in said.items())
            for name, said in self.says.items()
        ]
        return " ".join([self.what, *each, *[f"{self.shared}."] * bool(self.shared)])
