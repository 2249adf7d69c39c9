"""`%%flow`: run a cell as `%%px` does, then find out on the ranks where every number of its result came from."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, magics_class

from labkit.cluster.cell import Running, wait_out
from labkit.cluster.console import Console
from labkit.cluster.healing import heal
from labkit.cluster.processes import call_by_name
from labkit.errors import LabError, StoppedError
from labkit.outcome.sentences import judge
from labkit.theory import probing, provenance
from labkit.theory.probing import Seen
from labkit.theory.provenance import ADD, FAMILIES, Part
from labkit.words import ranks

PATIENCE = 15.0  # seconds that all the probes of a cell may take
NOT_DRAWN = "Where the numbers came from is not drawn"
LINE = re.compile(r"^(?P<what>.*?)(?:\s+--means[ =](?P<means>\w+))?(?:\s+--root[ =](?P<root>\d+))?\s*$")


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
        sources, why = probing.sources(before), ""
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
    once = _ask(console, "labkit.rank.probe.again", (y,), 2.0 + 10 * seconds)
    runs = (len(sources) + 2) * len(FAMILIES)
    slowest = max(0.001, *(o["seconds"] for o in once))
    if slowest * runs > PATIENCE:
        raise Unknown(f"{NOT_DRAWN}: that takes {runs} more runs of this cell, and one took {slowest:.1f} s.")
    if changed := [r for r, o in enumerate(once) if not o["steady"]]:
        raise Unknown(f"{NOT_DRAWN}: run again, the cell left other ones on {ranks(changed)}.")
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


def _ask(console: Console, path: str, args: tuple[Any, ...], patience: float) -> list[dict[str, Any]]:
    """Run something on all ranks that may hang, raise or take too long: then free and heal, and say why."""
    engines = console.engines
    running = Running(engines, engines.view(range(engines.n)).apply_async(call_by_name, path, *args))
    try:
        report = wait_out(running, lambda elapsed, _: _hurry(elapsed, patience))
    except TimeoutError:
        running.free()
        heal(engines, running.report(stopped=True))
        raise Unknown(f"{NOT_DRAWN}: run again on other numbers, the cell takes more than ten times as long.") from None
    answers = {r: reply.result() for r, reply in running.replies.items() if reply.done() and not running.error(r)}
    for rank in report.ranks:
        rank.ename, rank.evalue = answers.get(rank.rank, {}).get("error", (rank.ename, rank.evalue))
    error = judge(report)
    if error is None:
        return [answers[r] for r in range(engines.n)]
    heal(engines, report)
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
