"""The base of pictures of each rank's own data: the same sentences as text and for a screen reader. No torch."""

from __future__ import annotations

from labkit.outcome.text import merge
from labkit.show.picture import Picture


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
