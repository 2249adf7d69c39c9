"""What figures of each rank's own data share: the same sentences as text, as HTML and for a screen reader. No torch."""

from __future__ import annotations

from labkit.outcome.text import merge
from labkit.plot import svg


class EachRank:
    """A picture of what each rank has under one or more expressions; a subclass says it in words, and draws it."""

    what: str  # the picture shows, as its alternative text begins
    shared = ""  # that ranks share a GPU, where that matters

    @property
    def says(self) -> dict[str, dict[int, str]]:
        """What each rank has in words, by expression."""
        raise NotImplementedError

    @property
    def svg(self) -> bytes:
        """The picture; equal data give an equal picture."""
        raise NotImplementedError

    def _heading(self, name: str) -> str:
        return name

    def __repr__(self) -> str:
        told = [f"{self._heading(name)}\n{merge(said)}".rstrip("\n") for name, said in self.says.items()]
        return "\n".join([*told, *[f"{self.shared}."] * bool(self.shared)])

    def _repr_html_(self) -> str:
        return svg.img(self.svg, self.alt)

    @property
    def alt(self) -> str:
        """The picture in words."""
        each = [
            f"{self._heading(name)}: " + " ".join(f"Rank {r}: {words}." for r, words in said.items())
            for name, said in self.says.items()
        ]
        return " ".join([self.what, *each, *[f"{self.shared}."] * bool(self.shared)])
