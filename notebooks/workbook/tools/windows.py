"""`lab.moves`: the puts, accumulates and gets of the last cell, or what kernels did, drawn from memory to memory.

An arrow says: these numbers were copied, into a window or out of one. An update is lost where two ranks read the same
number, and the later write overwrites the earlier one. In symmetric memory (lesson 06c) kernels write and read, and
what no flag has ordered is told as a race. No torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any

from labkit.faces import arguments
from labkit.floor.errors import LabError
from labkit.floor.words import count, ranks, seconds, spans
from labkit.plot import steps as plot
from labkit.plot.tiles import Tile
from labkit.show.picture import Picture
from labkit.show.tiles import short
from workbook.tools.kernels import races

SIGN = {"window": {"put": "put", "accumulate": "+=", "get": "get"}, "buffer": {"put": "store", "get": "load"}}
VERB = {
    "window": {"put": "puts {} into", "accumulate": "adds {} to", "get": "gets {} from"},
    "buffer": {"put": "stores {} in", "get": "loads {} from"},
}
MOST = 24  # moves that are drawn and told one by one
Cell = tuple[float, dict[int, int]]  # a number in a window, and how many times each rank is in it


def moves(lab: Any, window: str) -> Moves:
    """Draw what the last cell put into the ranks' windows, added to them and got from them, and who took part.

    >>> lab.moves("window")           # %%px: window = open_window(4)
    >>> lab.moves("window").lost()    # an update that two ranks made of the same number
    >>> lab.moves("memory")           # %%px: memory = open_symmetric(4): what kernels stored and loaded there

    Raises `LabError` where a rank has no such window, and no such memory.
    """
    arguments.text('lab.moves("window")', window)
    told = lab._console.call("labkit.rank.agent.pull", f"{window}.told()")
    if lack := {r: error for r, (error, _) in enumerate(told) if error}:
        raise LabError(
            f"{ranks(lack)}: {next(iter(lack.values()))}. lab.moves draws a window, or symmetric memory, that every "
            "rank has open. In a %%px cell: "
            "from workbook.tools.rank.window import open_window; window = open_window(4)."
        )
    return Moves([value for _, value in told])


@dataclass(frozen=True)
class Move:
    """Rank `rank` put `numbers` into rank `of`'s window from place `at` on, added them to it, or got them from it."""

    rank: int
    what: str
    of: int
    at: int
    size: int
    numbers: list[float] | None  # None where they are too many to be kept
    before: list[float] | None  # what stood there
    began: float
    ended: float
    fences: int  # that the rank had passed
    noun: str = "window"  # or "buffer", where a kernel did it

    @property
    def told(self) -> str:
        """ "rank 0 puts [7] into rank 2's window, place 1"."""
        what = numbers(self.numbers, self.size)
        whose = f"its own {self.noun}" if self.of == self.rank else f"rank {self.of}'s {self.noun}"
        return f"rank {self.rank} {VERB[self.noun][self.what].format(what)} {whose}, {_places(self.at, self.size)}"


@dataclass(frozen=True)
class Lost(Picture):
    """An update that was lost: `second` had read its number before `first` was written, and wrote after it."""

    first_read: Move
    first: Move
    second_read: Move
    second: Move

    @property
    def moves(self) -> list[Move]:
        """All four moves, in the order in which they happened."""
        return sorted((self.first_read, self.first, self.second_read, self.second), key=lambda m: m.ended)

    def __repr__(self) -> str:
        start = self.moves[0].ended
        first, *later = self.moves
        lines = [f"0: {first.told}", *(f"+{seconds(m.ended - start)}: {m.told}" for m in later)]
        return "\n".join([f"An update of rank {self.first.of}'s window that was lost.", *lines])

    @property
    def alt(self) -> str:
        """The picture in words."""
        return repr(self).replace("\n", ". ")

    def _drawn(self) -> Any:
        """Return the picture: one line a move, below one another as they happened, each in the column of its rank."""
        n, start = max(m.rank for m in self.moves) + 1, self.moves[0].ended
        slots: list[plot.Slot] = []
        for m in self.moves:
            tiles: list[list[Tile]] = [[] for _ in range(n)]
            said = f"{m.what} {', '.join(map(short, m.numbers or []))}"
            tiles[m.rank] = [Tile(said, shares=((m.rank, 1),), wrong=m is self.second, width=plot.WIDTH)]
            slots.append(plot.Slot(f"+{seconds(m.ended - start)}" if slots else "0", tiles))
        title = f"rank {self.first.of}'s window, place {self.first.at}: rank {self.first.rank}'s update is lost"
        return plot.draw([plot.Picture(title, slots, [])])


class Moves(Picture):
    """What the last cell moved in and out of a window on every rank; `moves.all` has each of it, in order of time.

    A picture for each kind of call between two fences, as the windows were before it, and one of what they hold now.
    """

    def __init__(self, told: Sequence[dict[str, Any]]) -> None:
        self.n = len(told)
        self.noun = told[0].get("what", "window")
        self.races = races.told([mine.get("events", []) for mine in told])
        self.now = [mine["now"] for mine in told]
        self.size = max(mine["size"] for mine in told)
        self.handed = [mine["handed"] for mine in told]
        self.made = sum(mine["made"] for mine in told)
        found = [Move(*(r, *row, self.noun)) for r, mine in enumerate(told) for row in mine["moves"]]
        self.all = self._as_they_came(found)

    def _as_they_came(self, found: list[Move]) -> list[Move]:
        """Order moves by time; of puts that overlapped in time, the one whose number stands there came last."""
        moves = sorted(found, key=lambda m: m.ended)
        for r, now in enumerate(self.now):
            for i, value in enumerate(now or []):
                wrote = [m for m in moves if m.of == r and m.what != "get" and m.at <= i < m.at + m.size]
                puts = [m for m in wrote if m.what == "put" and wrote[-1].what == "put" and m.ended > wrote[-1].began]
                stands = [m for m in puts if m.numbers and m.numbers[i - m.at] == value]
                if stands and stands[-1] is not wrote[-1]:
                    moves.remove(stands[-1])
                    moves.insert(moves.index(wrote[-1]) + 1, stands[-1])
        return moves

    @cached_property
    def updates_lost(self) -> tuple[Lost, ...]:
        """The updates that another rank overwrote without having read them."""
        return found_in(self.all)

    def lost(self) -> Lost:
        """Return an update that was lost, if possible one of equal numbers. Raises `LabError` where none was seen."""
        if not self.updates_lost:
            raise LabError(
                "No update was lost: no rank overwrote a number that another rank had written after it read. "
                "Run the cell again, with more rounds."
            )

        def plain(lost: Lost) -> tuple[bool, float]:
            return lost.first_read.numbers != lost.second_read.numbers, lost.moves[-1].ended - lost.moves[0].ended

        return min(self.updates_lost, key=plain)

    # -- words ----------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        groups = [[m.told for m in sorted(group, key=lambda m: (m.rank, m.began))] for group in self._groups]
        lines = [line for group in groups for line in group]
        if len(lines) > MOST:
            lines = [f"{self._counted}, among them", *(m.told for m in self.all[:MOST])]
        quiet = sorted(set(range(self.n)) - {m.rank for m in self.all})
        lines += [f"{ranks(quiet)} {'makes' if len(quiet) == 1 else 'make'} no call"] if quiet and self.all else []
        lines += [] if self.all else ["nothing was moved in the last cell"]
        lines += [f"rank {r} has not flushed {count(k, 'call')}" for r, k in enumerate(self.handed) if k]
        held = [f"rank {r} [{', '.join(map(short, now))}]" for r, now in enumerate(self.now) if now is not None]
        return "\n".join([*lines, *([f"afterwards: {', '.join(held)}"] if held else []), *self._raced])

    @property
    def _raced(self) -> list[str]:
        return [f"race: {one}" for one in self.races]

    def _repr_html_(self) -> str:
        return super()._repr_html_() + "".join(f"<p>{escape(one)}</p>" for one in self._raced)

    @property
    def _counted(self) -> str:
        """ "800 puts, 800 gets"; how many moves there were where the first are no longer kept."""
        if self.made > len(self.all):
            return f"{count(self.made, 'move')} in and out of {self.noun}s"
        made = {sign: sum(m.what == what for m in self.all) for what, sign in self._names.items()}
        return ", ".join(count(k, sign) for sign, k in made.items() if k)

    @property
    def _names(self) -> dict[str, str]:
        return SIGN["buffer"] if self.noun == "buffer" else {what: what for what in SIGN["window"]}

    # -- pictures -------------------------------------------------------------------------------------------------

    @cached_property
    def _groups(self) -> list[list[Move]]:
        """The moves of one kind between two fences, in the order of time."""
        found: dict[tuple[int, str], list[Move]] = {}
        for move in self.all:
            found.setdefault((move.fences, move.what), []).append(move)
        return [found[key] for key in sorted(found, key=lambda k: (k[0], found[k][0].began))]

    def _drawn(self) -> Any:
        held = self._at_first()
        pictures, drawn = [], 0
        for group in self._groups:
            if drawn + len(group) > MOST:
                break
            drawn += len(group)
            pictures.append(self._picture(group, held))
            for move in group:
                _apply(held, move)
        left = (
            "afterwards" if drawn == len(self.all) else f"afterwards; of {self._counted}, {drawn or 'none'} are drawn"
        )
        pictures.append(plot.Picture(left, [self._window(self._at_last(held))], []))
        return plot.draw(pictures)

    def _at_first(self) -> dict[tuple[int, int], Cell]:
        """Return what each place held before the first move: what it holds now, but for what was overwritten."""
        held = {(r, i): (v, {r: 1}) for r, now in enumerate(self.now) for i, v in enumerate(now or [])}
        for move in reversed([m for m in self.all if m.what != "get"]):
            for i, value in enumerate(move.before or []):
                held[move.of, move.at + i] = (value, {move.of: 1})
        return held

    def _at_last(self, held: dict[tuple[int, int], Cell]) -> dict[tuple[int, int], Cell]:
        """Return what each place holds now, in the colours of what moved there, or of the owner that wrote it."""
        now = {(r, i): v for r, now in enumerate(self.now) for i, v in enumerate(now or [])}
        return {place: held[place] if held[place][0] == v else (v, {place[0]: 1}) for place, v in now.items()}

    def _picture(self, group: Sequence[Move], held: dict[tuple[int, int], Cell]) -> plot.Picture:
        what = group[0].what
        callers, others = {m.rank for m in group}, {m.of for m in group} - {m.rank for m in group}
        title = f"{self._names[what]}: {ranks(callers)} {'calls' if len(callers) == 1 else 'call'} it"
        if self.noun == "buffer":
            group = sorted(group, key=lambda m: (m.rank, m.began))  # kernels of all ranks run at the same time
            title = f"{self._names[what]}, in the kernels of {ranks(callers)}"
        title += f", {ranks(others)} {'takes' if len(others) == 1 else 'take'} no part" if others else ""
        arrows = []
        for move in (m for m in group if m.rank != m.of):
            mine = [m for m in group if m.rank == move.rank]
            first = sum(_tiles(m) for m in mine[: mine.index(move)])
            own, shown = (move.rank, 1, first, _tiles(move)), self._place(move)
            src, dst = (shown, own) if what == "get" else (own, shown)
            arrows.append(plot.Arrow(src, dst, SIGN[self.noun][what]))
        return plot.Picture(title, [self._window(held), self._own(group, held)], arrows)

    @cached_property
    def _known(self) -> bool:
        """True where windows are small enough to be drawn place by place."""
        return all(now is not None for now in self.now)

    def _place(self, move: Move) -> tuple[int, int, int, int]:
        return (move.of, 0, move.at, move.size) if self._known else (move.of, 0, 0, 1)

    def _window(self, held: dict[tuple[int, int], Cell]) -> plot.Slot:
        if not self._known:
            tile = Tile(count(self.size, "number"), kind="plain", width=plot.WIDTH)
            return plot.Slot(self.noun, [[tile] for _ in range(self.n)])
        return plot.Slot(self.noun, [[_tile(*held[r, i]) for i in range(self.size)] for r in range(self.n)])

    def _own(self, group: Sequence[Move], held: dict[tuple[int, int], Cell]) -> plot.Slot:
        """Return the tiles of what ranks bring, or of what they got."""
        tiles: list[list[Tile]] = [[] for _ in range(self.n)]
        for m in group:
            owner = {m.of if m.what == "get" else m.rank: 1}
            if m.numbers is None:
                tiles[m.rank].append(Tile(numbers(None, m.size), shares=tuple(owner.items()), width=plot.WIDTH))
            for i, value in enumerate(m.numbers or []):
                place = (m.of, m.at + i)
                whose = held[place][1] if m.what == "get" and place in held else owner
                tiles[m.rank].append(Tile(short(value), shares=tuple((r, 1) for r in sorted(whose)), width=plot.WIDTH))
        return plot.Slot("its own", tiles)

    @property
    def alt(self) -> str:
        """The picture in words."""
        return f"What moved between the ranks' {self.noun}s. " + ". ".join(repr(self).splitlines()) + "."


def _tiles(move: Move) -> int:
    """Count the tiles of what a rank brings, or of what it got: one a number."""
    return 1 if move.numbers is None else move.size


def _apply(held: dict[tuple[int, int], Cell], move: Move) -> None:
    """Change `held` as a move changes the window."""
    for i, value in enumerate(move.numbers or [] if move.what != "get" else []):
        place = move.of, move.at + i
        if place not in held:
            continue
        old, shares = held[place]
        if move.what == "put":
            held[place] = (value, {move.rank: 1})
        else:
            kept = shares if old else {}
            held[place] = (old + value, {**kept, move.rank: kept.get(move.rank, 0) + 1})


def _tile(value: float, shares: dict[int, int]) -> Tile:
    label = f"from {ranks(shares)}" if sum(shares.values()) == 1 else f"Σ {spans(shares, ', ')}"
    most = max(shares.values())
    badge = f"{most}×" if most > 1 else ""
    return Tile(short(value), label, tuple((r, 1) for r in sorted(shares)), badge=badge, width=plot.WIDTH)


def numbers(values: Iterable[float] | None, size: int) -> str:
    """Write numbers in brackets, or how many there are where they were not kept."""
    return count(size, "number") if values is None else f"[{', '.join(map(short, values))}]"


def _places(at: int, size: int) -> str:
    return f"place {at}" if size == 1 else f"places {at}–{at + size - 1}"


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
