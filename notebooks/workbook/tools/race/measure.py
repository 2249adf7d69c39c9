"""Let all-reduces race over sizes: they take turns, in one run, and one that is wrong or stuck does not count."""

from __future__ import annotations

import ast
import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from labkit.cluster.console import Console
from labkit.cluster.stop_button import STOP
from labkit.floor import time_limits
from labkit.floor.errors import CellError, LabError, StoppedError
from labkit.floor.words import nbytes
from workbook.tools import mpi
from workbook.tools.race.show import COPY, MPI, REFERENCE, Lap, Race
from workbook.tools.sweep.measure import DTYPES, PASSES, Bar, fits, where

RACE_TURN = 20.0  # seconds that a turn may take, large sizes more: a rank that waits in memory looks busy to the lab
SIZES = (4, 64, 2**10, 2**14, 2**16, 2**18, 2**20, 2**22, 2**24, 2**26)


@STOP
def race(
    lab: Any, *contestants: str, sizes: Sequence[int] | None = None, repeat: int = 9, dtype: str = "float32"
) -> Race:
    """Let all-reduces race against `dist.all_reduce` by size, and against MPI where it is installed: a scoreboard.

    >>> lab.race("ring_all_reduce(x)", "halving_doubling(x)")
    >>> lab.race("shared_all_reduce(x, room)", sizes=[4, 2**20])

    A contestant is an expression of `x`, a tensor with one dimension: it leaves the sum in `x` or returns it. All
    take turns in one run, by the clock of `timed`; a result that is wrong does not count, on odd lengths and other
    dtypes too. `sizes` are bytes, by default 4 B to 64 MiB. Stop keeps what was measured so far.
    """
    console: Console = lab._console
    engines = console.engines
    names, sizes = _checked(console, contestants, sizes, repeat, dtype)
    race = Race(names, sizes, engines.n, where(engines, range(engines.n)), dtype)
    here = {m.host for m in engines.members} == {os.uname().nodename}
    shares = [len(range(i, repeat, PASSES)) for i in range(min(PASSES, repeat))]
    bar = Bar("race", len(shares) * len(sizes))
    calls: dict[tuple[str, int], int] = {}

    try:
        with _mpi(race, here) as others:
            console.call("workbook.tools.rank.race.enter", names, COPY)
            for name in names:
                bar.show(0, f"{name}, other dtypes and odd lengths")
                with _named(race, name):
                    if why := console.call("workbook.tools.rank.race.odd", name, limit=RACE_TURN)[0]:
                        race.out[name] = f"does not count, because of {why}"
            everyone = [*race.names, COPY]
            for i, share in enumerate(shares):
                for j, size in enumerate(sizes):
                    at = (i + j) % len(everyone)  # the one that goes first changes
                    for name in everyone[at:] + everyone[:at]:
                        lap = race.laps.get((name, size))
                        if name in race.out or (lap and lap.why):
                            continue
                        bar.show(i * len(sizes) + j, f"{nbytes(size)}, {name}")
                        if name == MPI:
                            assert others
                            _turn_of_mpi(race, others, size, share, calls)
                            continue
                        with _named(race, name, size):
                            order = (name, size, dtype, share, calls.get((name, size), 0), not i)
                            limit = RACE_TURN * (1 + size / 2**25)
                            told = console.call("workbook.tools.rank.race.turn", *order, limit=limit)
                            why, calls[name, size], samples = told[0]
                            race.add(name, size, Lap(tuple(map(max, samples)), why))
            console.call("workbook.tools.rank.race.leave")
    except StoppedError:
        done = sum(len(lap.samples) for lap in race.laps.values())
        if not done:
            raise
        race.note = f"You stopped the race after {done} of {repeat * len(sizes) * (len(race.names) + 1)} repetitions."
    finally:
        bar.clear()
    return race


@contextlib.contextmanager
def _named(race: Race, name: str, size: int | None = None) -> Iterator[None]:
    """Take a contestant out of the race where its turn ends in an error, or not at all; the ranks are healed then."""
    try:
        yield
    except StoppedError:
        raise
    except CellError as error:
        if name in (REFERENCE, COPY):
            raise
        race.out[name] = f"did not finish{f' at {nbytes(size)}' if size else ''}: {error}"


@contextlib.contextmanager
def _mpi(race: Race, here: bool) -> Iterator[mpi.Mpi | None]:
    """Start MPI's ranks where there is MPI and the lab's ranks are CPUs of this host; else note in the race why not."""
    why = mpi.missing()
    if not why and not (here and race.dtype == "float32"):
        why = "MPI races in float32, and on this host alone."
    if why:
        race.out[MPI] = why
        yield None
        return
    race.names = [*race.names, MPI]
    with mpi.Mpi(race.n) as others:
        yield others


def _turn_of_mpi(race: Race, others: mpi.Mpi, size: int, share: int, calls: dict[tuple[str, int], int]) -> None:
    try:
        told = others.turn(nbytes=size, repeat=share, calls=calls.get((MPI, size), 0), lasts=time_limits.REPETITION)
    except LabError as error:
        race.out[MPI] = str(error)
        return
    calls[MPI, size] = told["calls"]
    race.add(MPI, size, Lap(tuple(map(max, told["samples"])), "" if told["right"] else "its sum is not the sum"))


def _checked(
    console: Console, codes: Sequence[str], sizes: Sequence[int] | None, repeat: int, dtype: str
) -> tuple[list[str], list[int]]:
    """Return the contestants, the reference first, and the sizes in order. Raises `LabError` for what cannot race."""
    if console.engines.members[0].device.startswith("cuda"):
        raise LabError(
            "The race is for CPU ranks: shared memory is not a GPU's. Start them with start(backend='gloo')."
        )
    if console.engines.n < 2:
        raise LabError("One rank has no other to race with. Start two ranks or more, with start(2) for instance.")
    if not codes or not all(isinstance(code, str) for code in codes):
        raise LabError('Say in quotes who races against dist.all_reduce: lab.race("ring_all_reduce(x)").')
    if dtype not in DTYPES:
        raise LabError(f"dtype={dtype!r} is unknown here. Choose one of {', '.join(DTYPES)}.")
    if not isinstance(repeat, int) or repeat < 1:
        raise LabError(f"repeat={repeat!r} is not a number of repetitions. Give 1 or more, such as repeat=9.")
    wanted = list(SIZES if sizes is None else sizes)
    if not wanted or not all(isinstance(s, int) and not isinstance(s, bool) and s >= DTYPES[dtype] for s in wanted):
        raise LabError(f"sizes={sizes!r}: give whole numbers of bytes, {DTYPES[dtype]} or more, such as [4, 2**20].")
    fits(console.engines, max(wanted), console.engines.n)
    expressions = [f"{code.strip()}(x)" if code.strip().isidentifier() else code.strip() for code in codes]
    for code in expressions:
        try:
            names = {node.id for node in ast.walk(ast.parse(code, mode="eval")) if isinstance(node, ast.Name)}
        except SyntaxError:
            names = set()
        if "x" not in names:
            raise LabError(
                f'{code!r} is not an expression of x. Write what you would call: lab.race("ring_all_reduce(x)").'
            )
    return list(dict.fromkeys([REFERENCE, *expressions])), sorted({s // DTYPES[dtype] * DTYPES[dtype] for s in wanted})
