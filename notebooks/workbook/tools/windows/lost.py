"""Updates that were lost: two ranks read the same number, and the later write overwrites the earlier one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from labkit.floor.words import seconds
from labkit.plot import steps as plot
from labkit.plot import svg
from labkit.plot.tiles import Tile
from labkit.show.tiles import short
from workbook.tools.windows.move import Move


@dataclass(frozen=True)
class Lost:
    """An update that was lost: `second` had read its number before `first` was written, and wrote after it."""

    first_read: Move
    first: Move
    second_read: Move
    second: Move

    @property
    def moves(self) -> list[Move]:
        """All four moves, in the order in which they happened."""
        return sorted((self.first_read, self.first, self.second_read, self.second), key=lambda m: m.ended)

    @property
    def alt(self) -> str:
        """The picture in words."""
        start = self.moves[0].ended
        first, *later = self.moves
        lines = [f"0: {first.told}", *(f"+{seconds(m.ended - start)}: {m.told}" for m in later)]
        return "\n".join([f"An update of rank {self.first.of}'s window that was lost.", *lines])

    @cached_property
    def svg(self) -> bytes:
        """The picture: one line a move, below one another as they happened, each in the column of its rank."""
        n, start = max(m.rank for m in self.moves) + 1, self.moves[0].ended
        slots: list[plot.Slot] = []
        for m in self.moves:
            tiles: list[list[Tile]] = [[] for _ in range(n)]
            said = f"{m.what} {', '.join(map(short, m.numbers or []))}"
            tiles[m.rank] = [Tile(said, shares=((m.rank, 1),), wrong=m is self.second, width=plot.WIDTH)]
            slots.append(plot.Slot(f"+{seconds(m.ended - start)}" if slots else "0", tiles))
        title = f"rank {self.first.of}'s window, place {self.first.at}: rank {self.first.rank}'s update is lost"
        picture = plot.Picture(title, slots, [])
        return svg.svg(plot.draw([picture]))

    def __repr__(self) -> str:
        return self.alt

    def _repr_html_(self) -> str:
        return svg.img(self.svg, self.alt.replace("\n", ". "))


def found_in(moves: Iterable[Move]) -> tuple[Lost, ...]:
    """Find every put of a number that had been read before another rank's put, which it overwrote."""
    found = []
    read: dict[tuple[int, int, int], Move] = {}
    last: dict[tuple[int, int], tuple[Move, Move]] = {}
    for move in moves:
        place = (move.of, move.at)
        if move.what == "get":
            read[(move.rank, *place)] = move
        elif move.what == "put" and (mine := read.get((move.rank, *place))):
            before = last.get(place)
            if before and before[1].rank != move.rank and mine.ended < before[1].began < before[1].ended < move.began:
                found.append(Lost(*before, mine, move))
            last[place] = (mine, move)
    return tuple(found)
