"""Show the numbers that every rank recorded over its steps, for `lab.curves`. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from labkit.floor.errors import LabError
from labkit.floor.words import alike, count, ranks
from labkit.plot import curves as picture
from labkit.show.picture import Picture

NEAR = 1e-2  # lines that lie apart by less than this part of an axis, a line's width, are drawn as one, and called one

Over = Mapping[str, tuple[str, Mapping[int, Any]]]  # for each expression the list to draw it against, and the ranks'


class Curves(Picture):
    """Lists of numbers from the ranks; `values[expression][r]` is rank r's, and `places[expression][r]` where they lie.

    They lie over steps, or over other lists of the ranks: `over[expression]` is such a list's name, with the ranks'.
    """

    def __init__(
        self, pulled: Mapping[str, Mapping[int, Any]], every: int = 1, over: Over | None = None, unit: str = "",
        xlabel: str = "", ylabel: str = "",
    ) -> None:  # fmt: skip
        self.values = {name: {r: _numbers(name, r, v) for r, v in held.items()} for name, held in pulled.items()}
        self.every = every
        self.unit = unit
        self.xlabel, self.ylabel = xlabel, ylabel
        self.over = {name: of for name, (of, _) in over.items()} if over is not None else {}
        self.places = {
            name: {
                r: picture.steps(len(line), every) if over is None else _ascending(name, r, line, *over[name])
                for r, line in lines.items()
            }
            for name, lines in self.values.items()
        }

    def __repr__(self) -> str:
        width = max(len(f"rank {r}") for lines in self.values.values() for r in lines)
        told = []
        for name in self.values:
            told.append(" · ".join([name, *[f"over {self.axis(name)}"] * bool(self.over), self._note(name)]))
            told += [f"{f'rank {r}':<{width}} │ {self._ends(name, r)}" for r in self.values[name]]
        return "\n".join(told)

    def _drawn(self) -> Any:
        up = f"{self.ylabel} · " * bool(self.ylabel)
        panels = [(name, self._shared(name, lines), up + self._note(name)) for name, lines in self.values.items()]
        against = [
            (self.axis(name), self._shared(name, self.places[name])) for name in self.values if self.over or self.xlabel
        ]
        return picture.draw(panels, self.every, against)

    @property
    def alt(self) -> str:
        """The picture in words."""
        told = [
            f"{name}, {self._note(name)}: " + "; ".join(f"rank {r} {self._ends(name, r)}" for r in lines)
            for name, lines in self.values.items()
        ]
        return f"{self.up} over {self.axis(*self.values)}, a line per rank. {'. '.join(told)}."

    @property
    def up(self) -> str:
        """The word for the values: "Values", or "Values (ms per step)"."""
        return "Values" + f" ({self.ylabel})" * bool(self.ylabel)

    def axis(self, *names: str) -> str:
        """Name the axis of these expressions: "steps", or "seconds (s)", also for a.seconds and b.seconds."""
        against = list(dict.fromkeys(self.over[name] for name in names if self.over))
        last = {name.rpartition(".")[2] for name in against}
        said = ", ".join(last if len(last) == 1 < len(against) else against)
        return (self.xlabel or said or "steps") + f" ({self.unit})" * bool(self.unit)

    def alike(self, name: str) -> dict[int, int]:
        """Return for each rank the first one whose line cannot be told apart from its own in this picture."""
        lines, places = self.values[name], self.places[name]
        up, along = _width(self.values), _width(self.places)

        def near(one: int, other: int) -> bool:
            if len(lines[one]) != len(lines[other]):
                return False
            alike = np.allclose(lines[one], lines[other], rtol=0, atol=up, equal_nan=True)
            return bool(alike and np.allclose(places[one], places[other], rtol=0, atol=along))

        first: dict[int, int] = {}
        for r in lines:
            first[r] = next((q for q in first.values() if near(q, r)), r)
        return first

    def _shared(self, name: str, of: Mapping[int, Any]) -> dict[int, Any]:
        """Return for each rank what the first one has whose line cannot be told apart from its own."""
        return {r: of[q] for r, q in self.alike(name).items()}

    def _note(self, name: str) -> str:
        """Say how many different lines there are, and where one stops being a number."""
        lines = self.values[name]
        groups = list(alike({r: str(q) for r, q in self.alike(name).items()}).values())
        if len(groups) == 1:
            said = f"{ranks(lines)}: one curve" if len(lines) > 1 else ranks(lines)
        else:
            together = [f"{ranks(group)} alike" for group in groups if len(group) > 1]
            said = ", ".join([count(len(groups), "different curve"), *together])
        return said + self._lost(name)

    def _lost(self, name: str) -> str:
        lost = [r for r, line in self.values[name].items() if not all(map(math.isfinite, line))]
        return f"; {ranks(lost)}: not all finite" * bool(lost)

    def _ends(self, name: str, rank: int) -> str:
        line, places = self.values[name][rank], self.places[name][rank]
        where = f", {self.reach(places)}" if self.over else ""
        return f"{line[0]:.2f} → {line[-1]:.2f} ({count(len(line), 'value')}{where})"

    def reach(self, places: Sequence[float]) -> str:
        """Say where values lie on the axis: "0.013 to 2.5 s"."""
        said = [picture.figure(x if abs(x) >= 1000 else float(f"{x:.3g}")) for x in (places[0], places[-1])]
        return " to ".join(said) + f" {self.unit}" * bool(self.unit)


def _width(axis: Mapping[str, Mapping[int, Sequence[float]]]) -> float:
    """Return what a line's width is on an axis that has room for these lists."""
    seen = [v for of in axis.values() for values in of.values() for v in values if math.isfinite(v)]
    return NEAR * (max(seen, default=0.0) - min(seen, default=0.0))


def _numbers(name: str, rank: int, value: Any) -> list[float]:
    numbers = _floats(value)
    if not numbers:
        raise LabError(
            f"{name!r} on rank {rank} is not a list of numbers to draw. Append one number per step, such as "
            "loss.item()."
        )
    return numbers


def _floats(value: Any) -> list[float]:
    """Return a list of numbers as such; an empty one for what is none."""
    try:
        numbers = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        return []
    return [float(number) for number in numbers] if numbers.ndim == 1 else []


def _ascending(name: str, rank: int, line: Sequence[float], of: str, held: Mapping[int, Any]) -> list[float]:
    """Return where a rank's values lie: its list of that name, which must be as long and may not go back."""
    if rank not in held:
        raise LabError(
            f"Rank {rank} has {name!r} and lacks {of!r}. Append to both in the same step, then draw them again."
        )
    places = _floats(held[rank])
    if not places or not all(map(math.isfinite, places)):
        raise LabError(
            f"{of!r} on rank {rank} is not a list of numbers to draw {name!r} against. Append one number for each "
            f"of its values, such as time.perf_counter() - began."
        )
    if len(places) != len(line):
        raise LabError(
            f"{name!r} on rank {rank} has {count(len(line), 'value')} and {of!r} has {len(places):,}. Append one to "
            "each of them in the same step, and empty both before a new run."
        )
    back = next((i for i in range(1, len(places)) if places[i] < places[i - 1]), None)
    if back is not None:
        raise LabError(
            f"{of!r} on rank {rank} goes back, from {places[back - 1]:.6g} to {places[back]:.6g}. Measure all of it "
            "from the same start, and empty the list before a new run."
        )
    return places
