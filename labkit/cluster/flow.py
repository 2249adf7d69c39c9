"""`%%flow`: run a cell as `%%px` does, then find out on the ranks where every number of its result came from."""

from __future__ import annotations

import time
from typing import Any

from labkit.cluster.console import Console
from labkit.cluster.stop_button import STOP
from labkit.floor import time_limits
from labkit.floor.errors import CellError, LabError, StoppedError
from labkit.floor.words import ranks
from labkit.theory import probing, provenance
from labkit.theory.probing import Seen
from labkit.theory.provenance import ADD, FAMILIES, Part

LOOKS = 3  # runs that are all too slow for that: one alone may have waited for a processor
NOT_DRAWN = "Where the numbers came from is not drawn"


class Unknown(Exception):
    """Why the origins of a result stay unknown, in a sentence."""


@STOP
def observe(console: Console, code: str, x: str, y: str) -> Seen:
    """Run the cell once for the learner, then again and again for the picture, on copies of the variables."""
    everyone = range(console.engines.n)
    before = console.call("labkit.rank.probe.remember", code, x, y)
    _need(x, before, f"Make {x} on every rank in a %%px cell first.")
    try:
        began = time.perf_counter()
        console.run(code, everyone)
        seconds = time.perf_counter() - began
        after = console.call("labkit.rank.probe.told", y)
        if all("error" in a for a in after):
            _need(y, after, f"Name what the cell leaves: %%flow {x} -> result.")
        sources, why = probing.sources(before), ""
        parts: list[list[tuple[int, int, Part]]] = [[] for _ in everyone]
        try:
            parts = _parts(console, y, before, after, sources, seconds)
        except Unknown as unknown:
            why = str(unknown)
        return Seen(code, x, y, before, after, sources, parts, why)
    finally:
        console.call("labkit.rank.probe.forget")


def _need(name: str, values: list[dict[str, Any]], remedy: str) -> None:
    lacking = {r: v["error"] for r, v in enumerate(values) if "error" in v}
    if lacking:
        raise LabError(f"{ranks(lacking)}: {next(iter(lacking.values()))}. {remedy}")


def _parts(
    console: Console,
    y: str,
    before: list[dict[str, Any]],
    after: list[dict[str, Any]],
    sources: list[tuple[int, int, int]],
    seconds: float,
) -> list[list[tuple[int, int, Part]]]:
    """Probe, and read every stretch of every rank's result."""
    n = console.engines.n
    if not sources:
        raise Unknown("There is nothing to follow: no rank brings a number.")
    runs = (len(sources) + 2) * len(FAMILIES)
    for _ in range(LOOKS):
        once = _ask(console, "labkit.rank.probe.again", (y,), 2.0 + 10 * seconds)
        if changed := [r for r, o in enumerate(once) if not o["steady"]]:
            raise Unknown(f"{NOT_DRAWN}: when it ran again, the cell left different numbers on {ranks(changed)}.")
        slowest = max(0.001, *(o["seconds"] for o in once))
        if slowest * runs <= time_limits.PROBES:
            break
    else:
        raise Unknown(f"{NOT_DRAWN}: that takes {runs} more runs of this cell, and one takes {slowest:.1f} s.")
    fine = all(stop - start == 1 for _, start, stop in sources)
    large = any(a["size"] > 64 for a in after)
    families: list[tuple[int, int]] = list(FAMILIES) if large else [ADD]
    while True:
        answers = _ask(console, "labkit.rank.probe.respond", (y, families, sources), 2.0 + 10 * slowest * runs)
        parts = [
            probing.read(answer, families, sources, after[r], probing.values(sources, before) if fine else None, n)
            for r, answer in enumerate(answers)
        ]
        if len(families) == len(FAMILIES) or all(part is not None for row in parts for _, _, part in row):
            return [[(a, b, part or provenance.OWN) for a, b, part in row] for row in parts]
        families = list(FAMILIES)


def _ask(console: Console, path: str, args: tuple[Any, ...], limit: float) -> list[dict[str, Any]]:
    """Run something on all ranks that may hang, raise or take too long: then free and heal, and say why."""
    engines = console.engines
    outcome = engines.call(path, dict.fromkeys(range(engines.n), args), limit)
    try:
        console.finish(outcome)
    except StoppedError:
        raise Unknown(f"{NOT_DRAWN}: you stopped it.") from None
    except CellError as error:
        refused = [e.evalue for e in outcome.errors.values() if e.ename == "Refused"]
        slow = "on other numbers, the cell takes more than ten times as long"
        fails = f"on other numbers, the cell fails ({error})"
        raise Unknown(f"{NOT_DRAWN}: {[*refused, slow if outcome.ended == 'slow' else fails][0]}.") from None
    return [outcome.answers[r] for r in range(engines.n)]
