"""`%%flow`: run a cell as `%%px` does, then find out on the ranks where every number of its result came from."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, magics_class

from labkit.cluster import text, verdict
from labkit.cluster.cell import Running, wait_out
from labkit.cluster.console import Console
from labkit.cluster.processes import call_by_name
from labkit.errors import LabError, StoppedError
from labkit.theory import provenance
from labkit.theory.provenance import ADD, FAMILIES, Part, Response
from labkit.theory.values import split

MOST = 8  # ranks, and elements a rank, up to which every element is probed on its own
PATIENCE = 15.0  # seconds that all the probes of a cell may take
NOT_DRAWN = "Where the numbers came from is not drawn"
LINE = re.compile(r"^(?P<what>.*?)(?:\s+--means[ =](?P<means>\w+))?(?:\s+--root[ =](?P<root>\d+))?\s*$")


@dataclass(frozen=True)
class Seen:
    """What a cell did to a value: `before[r]` and `after[r]` as `labkit.rank.probe.told` has them.

    `sources[j]` is (rank, start, stop): the stretch of rank's x that was changed as one. `parts[r]` are stretches
    (start, stop, part) of rank r's result, empty where `why` says that nobody knows where its numbers came from.
    """

    code: str
    x: str
    y: str
    before: list[dict[str, Any]]
    after: list[dict[str, Any]]
    sources: list[tuple[int, int, int]]
    parts: list[list[tuple[int, int, Part]]]
    why: str = ""


class Unknown(Exception):
    """Why the origins of a result stay unknown, in a sentence."""


def observe(console: Console, code: str, x: str, y: str) -> Seen:
    """Run the cell once for the learner, then again and again for the picture, on copies of the variables."""
    engines = console.engines
    console.recover()
    everyone = range(engines.n)
    before = list(engines.call("labkit.rank.probe.remember", dict.fromkeys(everyone, (code, x, y)), 60).values())
    _need(x, before, f"Make {x} on every rank in a %%px cell first.")
    try:
        began = time.perf_counter()
        console.collect(console.send(code, everyone))
        seconds = time.perf_counter() - began
        after = list(engines.call("labkit.rank.probe.outcome", dict.fromkeys(everyone, (y,)), 60).values())
        if all("error" in a for a in after):
            _need(y, after, f"Name what the cell leaves: %%flow {x} -> result.")
        sources, why = _sources(before), ""
        parts: list[list[tuple[int, int, Part]]] = [[] for _ in everyone]
        try:
            parts = _parts(console, y, before, after, sources, seconds)
        except Unknown as unknown:
            why = str(unknown)
        return Seen(code, x, y, before, after, sources, parts, why)
    finally:
        with contextlib.suppress(Exception):  # a dead rank has nothing to forget
            engines.call("labkit.rank.probe.forget", dict.fromkeys(everyone, ()), 5)


def _need(name: str, values: list[dict[str, Any]], remedy: str) -> None:
    lacking = {r: v["error"] for r, v in enumerate(values) if "error" in v}
    if lacking:
        raise LabError(f"{text.ranks(lacking)}: {next(iter(lacking.values()))}. {remedy}")


def _sources(before: Sequence[dict[str, Any]]) -> list[tuple[int, int, int]]:
    """Element by element where that can be drawn; else a rank's x in as many blocks as ranks, or whole."""
    n = len(before)
    fine = n <= MOST and all(b["size"] <= MOST for b in before)
    sources = []
    for r, b in enumerate(before):
        size = b["size"]
        blocks = size if fine else min(size, n) if n <= MOST else min(size, 1)
        start = 0
        for block in split(range(size), blocks) if blocks else []:
            sources.append((r, start, start + len(block)))
            start += len(block)
    return sources


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
    once = _ask(console, "labkit.rank.probe.again", (y,), 2.0 + 10 * seconds)
    runs = (len(sources) + 2) * len(FAMILIES)
    slowest = max(0.001, *(o["seconds"] for o in once))
    if slowest * runs > PATIENCE:
        raise Unknown(f"{NOT_DRAWN}: that takes {runs} more runs of this cell, and one took {slowest:.1f} s.")
    if changed := [r for r, o in enumerate(once) if not o["steady"]]:
        raise Unknown(f"{NOT_DRAWN}: run again, the cell left other ones on {text.ranks(changed)}.")
    fine = all(stop - start == 1 for _, start, stop in sources)
    large = any(a["size"] > 64 for a in after)
    families: list[tuple[int, int]] = list(FAMILIES) if large else [ADD]
    while True:
        answers = _ask(console, "labkit.rank.probe.respond", (y, families, sources), 2.0 + 10 * slowest * runs)
        parts = [
            _read(answer, families, sources, after[r], _values(sources, before) if fine else None, n)
            for r, answer in enumerate(answers)
        ]
        if len(families) == len(FAMILIES) or all(part is not None for row in parts for _, _, part in row):
            return [[(a, b, part or provenance.OWN) for a, b, part in row] for row in parts]
        families = list(FAMILIES)


def _values(sources: list[tuple[int, int, int]], before: list[dict[str, Any]]) -> dict[tuple[int, int], float] | None:
    values = {(r, start): before[r]["values"][start] for r, start, _ in sources}
    return values if all(isinstance(v, (int, float)) for v in values.values()) else None


def _read(
    answer: dict[str, Any],
    families: list[tuple[int, int]],
    sources: list[tuple[int, int, int]],
    after: dict[str, Any],
    values: dict[tuple[int, int], float] | None,
    n: int,
) -> list[tuple[int, int, Part | None]]:
    names, counted = [], dict.fromkeys(range(n), 0)
    for r, _, _ in sources:
        names.append((r, counted[r]))
        counted[r] += 1
    stops = [*answer["starts"][1:], after["size"]][: len(answer["starts"])]
    row = []
    for i, (start, stop) in enumerate(zip(answer["starts"], stops, strict=True)):
        responses = {
            family: Response(
                answer["rest"][f][i],
                {s: answer["changes"][f][j][i] for j, s in enumerate(names)},
                answer["changes"][f][-1][i],
            )
            for f, family in enumerate(families)
        }
        value = after["values"][start] if values is not None and start < len(after["values"]) else None
        value = value if isinstance(value, (int, float)) else None
        row.append((start, stop, provenance.read(responses, n, value, values if value is not None else None)))
    return row


def _ask(console: Console, path: str, args: tuple[Any, ...], patience: float) -> list[dict[str, Any]]:
    """Run something on all ranks that may hang, raise or take too long: then free and heal, and say why."""
    engines = console.engines
    running = Running(engines, engines.view(range(engines.n)).apply_async(call_by_name, path, *args))
    try:
        report = wait_out(running, lambda elapsed, _: _hurry(elapsed, patience))
    except TimeoutError:
        running.free()
        verdict.heal(engines, running.report(stopped=True))
        raise Unknown(f"{NOT_DRAWN}: run again on other numbers, the cell takes more than ten times as long.") from None
    answers = {r: reply.result() for r, reply in running.replies.items() if reply.done() and not running.error(r)}
    for rank in report.ranks:
        rank.ename, rank.evalue = answers.get(rank.rank, {}).get("error", (rank.ename, rank.evalue))
    error = verdict.judge(report)
    if error is None:
        return [answers[r] for r in range(engines.n)]
    verdict.heal(engines, report)
    if isinstance(error, StoppedError):
        raise Unknown(f"{NOT_DRAWN}: you stopped it.")
    refused = [e.evalue for e in report.errors.values() if e.ename == "Refused"]
    if refused:
        raise Unknown(f"{NOT_DRAWN}: {refused[0]}.")
    raise Unknown(f"{NOT_DRAWN}: run again on other numbers, the cell fails ({error}).")


def _hurry(elapsed: float, patience: float) -> None:
    if elapsed > patience:
        raise TimeoutError


@magics_class
class FlowMagics(Magics):
    """`%%flow` over the function that draws: `draw(code, x, y, means, root)`."""

    def __init__(self, shell: Any, draw: Callable[..., Any]) -> None:
        super().__init__(shell)
        self._draw = draw

    @cell_magic
    def flow(self, line: str, cell: str) -> Any:
        """Run a cell on all ranks as %%px does, then draw what became of a value.

        %%flow x                             x before and after
        %%flow x -> y                        x before, y after
        %%flow x -> y --means all_reduce     with what an all-reduce would have left beside it
        %%flow x --means reduce --root 2     the same for a primitive with a root
        """
        match = LINE.match(line)
        assert match is not None, "the pattern takes any line"
        x, arrow, y = (part.strip() for part in match["what"].partition("->"))
        if not x or bool(arrow) != bool(y) or "--" in match["what"]:
            raise UsageError("Say which value to follow: %%flow x, or %%flow x -> y --means all_reduce --root 0.")
        code = f"# %%flow {line}".rstrip() + "\n" + cell  # a traceback's line numbers are the editor's
        return self._draw(code, x, y or x, match["means"], int(match["root"] or 0))
