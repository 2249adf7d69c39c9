"""Bring what is typed under a `%%px --debug` cell to the rank that stands at its prompt, one prompt at a time."""

from __future__ import annotations

import ast
import contextlib
import re
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from labkit.cluster.run import Running
from labkit.cluster.stop_button import STOP
from labkit.floor import time_limits
from labkit.outcome.sentences import beside

REQUEST = "labkit_debug"  # what a rank looks for in the metadata of a cell's request
KEYS = "n next line · s step in · p x show x · c go on · q end the cell"
GO = re.compile(r"\s*rank\s+(\d+)\s*")  # to another rank's prompt


class Debugger:
    """The conversation with the ranks of one cell that may stop."""

    def __init__(self, chosen: Sequence[int]) -> None:
        self.chosen = list(chosen)
        self._at: int | None = None  # the rank whose prompt is shown
        self._told: dict[int, dict[str, Any]] = {}  # what each rank has said of itself, when last asked
        self._known = dict.fromkeys(chosen, 0)  # so many characters of a rank have come
        self._text: dict[int, str] = {}  # what it has said to the learner, and is not shown yet
        self._prompt: dict[int, str] = {}  # with which it asks
        self._place: dict[int, str] = {}  # what it said when it stopped last
        self._stop: tuple[int, int] | None = None  # the stop that the other ranks were told beside
        self._seen: tuple[int, int] | None = None
        self._beside = ""
        self._since = self._gave = 0.0  # when this stop was first seen; when the rank was given a line
        self._greeted = False

    def request(self, code: str) -> dict[str, Any]:
        """Return what the request of the cell tells the ranks."""
        return {REQUEST: {"ranks": self.chosen, "first": not has_breakpoint(code)}}

    def talk(self, running: Running) -> str | None:
        """Have one line typed, once a rank stands at a prompt; return "left" where the learner leaves the debugger.

        Return None where no rank stands, "" where one does and the cell goes on.
        """
        pending = [r for r in self.chosen if r in running.pending()]
        self._hear(running, dict.fromkeys(pending, ()))
        standing = [r for r in pending if r in self._told and self._told[r]["stands"]]
        if not standing:
            return None
        if any(its["left"] for its in self._told.values()):
            return "left"
        if self._at not in standing:
            if self._comes_back(running):
                return ""
            self._at = standing[0]
        stop = (self._at, self._told[self._at]["stop"])
        if stop != self._stop and not self._settled(running, stop):
            return ""
        self._stop = stop
        line = self._asked(running, self._at)
        if line is None:
            self._stop = None  # a rank may have died: where the others are is told again
            return ""
        if go := GO.fullmatch(line):
            self._go(running, int(go[1]))
            return ""
        self._hear(running, {self._at: (f"{line}\n",)})
        self._gave = time.monotonic()
        return ""

    def _hear(self, running: Running, lines: dict[int, tuple[str, ...]]) -> None:
        """Send ranks these lines, and take what they say; until one answers, it is not known to stand."""
        questions = {r: running.ranks.put("debug", [r], self._known[r], *typed)[r] for r, typed in lines.items()}
        self._told = {r: its | {"stands": its["stands"] and r not in lines} for r, its in self._told.items()}
        for r, question in questions.items():
            its = question.answer(time_limits.AGENT_ANSWERS) if question else None
            if its is None:
                continue
            said = its["said"]
            self._known[r] += len(said)
            if its["stands"] and said:
                said, end, self._prompt[r] = said.rpartition("\n")
                said += end
            if its["stop"] != self._told.get(r, {}).get("stop"):
                self._place[r] = said
            self._told[r] = its
            self._text[r] = self._text.get(r, "") + said

    def _comes_back(self, running: Running) -> bool:
        """Tell whether the rank that was given a line may stop again at once: it neither waits nor has ended."""
        if self._at not in running.pending() or time.monotonic() > self._gave + time_limits.PROMPT_BACK:
            return False
        running.look(time_limits.AGENT_GLANCE)
        return running.where.get(self._at, {}).get("state") != "collective"

    def _settled(self, running: Running, stop: tuple[int, int]) -> bool:
        """Say where the others are, once they have come to rest, or have had the time to."""
        if stop != self._seen:
            self._seen, self._since = stop, time.monotonic()
        running.look(time_limits.AGENT_GLANCE)
        rests = all(w["state"] in ("collective", "prompt", "stopped") for w in running.where.values())
        if not rests and time.monotonic() < self._since + time_limits.PROMPT_SETTLES:
            return False
        self._show(stop[0])
        said = beside(self._others(running, stop[0]))
        if said and said != self._beside:
            print(said)
        self._beside = said
        if not self._greeted:
            others = [f" · rank {r} go to rank {r}" for r in self.chosen if r != stop[0]]
            print(KEYS + "".join(others[:1]))
        self._greeted = True
        return True

    def _others(self, running: Running, at: int) -> dict[int, Any]:
        fate = running.fate()
        return {r: its for r, its in sorted((fate["waiting"] | fate["elsewhere"]).items()) if r != at}

    def _show(self, rank: int) -> None:
        """Print what a rank has said and was not shown."""
        print(self._text.pop(rank, ""), end="")

    def _asked(self, running: Running, rank: int) -> str | None:
        """Return what is typed at a rank's prompt; None where there is something to see to before."""
        self._show(rank)
        with _watched(running):
            return STOP.answer(lambda: _typed(f"rank {rank} {self._prompt[rank]}"))

    def _go(self, running: Running, rank: int) -> None:
        """Go to another rank's prompt, or say what that rank does instead."""
        if self._told.get(rank, {}).get("stands"):
            self._at, self._stop = rank, (rank, self._told[rank]["stop"])
            self._text[rank] = self._place[rank]
            return
        running.look(time_limits.AGENT_GLANCE)
        does = beside({r: its for r, its in self._others(running, -1).items() if r == rank})
        print(f"no prompt there: {does or f'rank {rank} has no part in this cell'}")


def has_breakpoint(code: str) -> bool:
    """Tell whether a cell itself says where to stop.

    >>> has_breakpoint("x = 1\\nbreakpoint()"), has_breakpoint("x = 1  # breakpoint()")
    (True, False)
    """
    with contextlib.suppress(SyntaxError):  # a line that is IPython's own
        called = [ast.unparse(node.func) for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
        return bool({"breakpoint", "pdb.set_trace", "set_trace"} & set(called))
    return "breakpoint()" in code


@contextlib.contextmanager
def _watched(running: Running) -> Iterator[None]:
    """Call the main thread away from a prompt where a rank dies meanwhile, or the controller."""
    dead, over = set(running.ranks.dead()), threading.Event()

    def look() -> None:
        while not over.wait(time_limits.RANKS_LOOK):
            if running.ranks.lost() or set(running.ranks.dead()) - dead:
                STOP.call_away()
                return

    watcher = threading.Thread(target=look, name="labkit-prompt", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _typed(prompt: str) -> str:
    """Ask for a line in the cell; the end of the input leaves the debugger."""
    try:
        return input(prompt)
    except EOFError:
        return "q"
