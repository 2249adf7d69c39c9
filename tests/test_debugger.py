"""What a `%%px --debug` cell asks for, and the limits of a wait beside a prompt, without ranks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from labkit.cluster.debugger import Debugger, has_breakpoint
from labkit.cluster.magic import _debug
from labkit.cluster.run import Running
from labkit.outcome.outcome import fate_of

WAITS = {"state": "collective", "op": "all_reduce", "line": 3, "moved": 8, "steps": [1, 1]}
COMPUTES = {"state": "computing", "op": None, "line": 2, "moved": 8, "steps": [0, 1]}


@pytest.mark.parametrize(
    ("line", "ranks", "rest"),
    [
        ("", None, ""),
        ("--debug 1", "1", ""),
        ("--debug=0,2", "0,2", ""),
        ("--targets 0:2 --debug 0:2 --group-outputs type", "0:2", "--targets 0:2  --group-outputs type"),
        ("--debug", "", ""),
        ("--debug --targets 1", "", "--targets 1"),
        ("--debugger 1", None, "--debugger 1"),
        ("--targets=1", None, "--targets=1"),
    ],
)
def test_the_option_is_taken_out_of_the_line(line, ranks, rest):
    assert _debug(line) == (ranks, rest)


@pytest.mark.parametrize(
    ("code", "has"),
    [
        ("x = 1\nbreakpoint()", True),
        ("if rank == 1:\n    import pdb; pdb.set_trace()", True),
        ("%time x = 1\nbreakpoint()", True),
        ("x = 1  # breakpoint()", False),
        ("breakpoints()", False),
        ("%time x = 1", False),
    ],
)
def test_without_a_breakpoint_of_its_own_a_cell_stops_at_its_first_line(code, has):
    assert has_breakpoint(code) is has
    assert Debugger([1, 2]).request(code) == {"labkit_debug": {"ranks": [1, 2], "first": not has}}


def test_a_wait_counts_anew_once_no_rank_stands_at_a_prompt(monkeypatch):
    running = Running(SimpleNamespace(limit=10), {})
    now = [0.0]
    monkeypatch.setattr(running, "awake", lambda: now[0])
    monkeypatch.setattr(running, "look", lambda *_: None)
    running.where = {0: WAITS, 1: COMPUTES}

    def stuck(at):
        now[0] = at
        return running.stuck()

    assert [stuck(0), stuck(9), stuck(11)] == [False, False, True]
    running.rest()
    assert [stuck(100), stuck(109), stuck(111)] == [False, False, True]


class Rank:
    """Rank 1 as its agent answers; None stands for an answer that does not come in time."""

    def __init__(self, *answers):
        self.answers, self.heard = [*answers], []

    def put(self, do, ranks, known, *lines):
        self.heard.append((known, *lines))
        answer = self.answers.pop(0)
        told = answer and dict(zip(("stands", "stop", "said", "left"), answer, strict=True))
        return {1: SimpleNamespace(answer=lambda _: told)}

    def lost(self):
        return False

    def dead(self):
        return {}


def talked(monkeypatch, rank, *typed):
    """What `talk` returns, until the rank has no more to answer; `typed` are what is typed at its prompts."""
    lines, prompts = [*typed], []
    monkeypatch.setattr("builtins.input", lambda prompt: prompts.append(prompt) or lines.pop(0))
    running = SimpleNamespace(
        ranks=rank,
        pending=lambda: [1],
        look=lambda _: None,
        where={0: WAITS, 1: COMPUTES | {"state": "prompt"}},
        fate=lambda: {"waiting": {0: fate_of(WAITS)}, "elsewhere": {}},
    )
    debugger = Debugger([1])
    ends = []
    while rank.answers:
        ends.append(debugger.talk(running))
    return ends, prompts


def test_an_answer_that_does_not_come_leaves_nothing_unsaid_and_no_prompt_is_shown_twice(monkeypatch, capsys):
    first, step = "> line 2\n-> x = 1\n(Pdb) ", "> line 3\n-> y = x\n(Pdb) "
    rank = Rank(None, (True, 1, first, False), None, (True, 2, step, False), (False, 2, "", False), None)
    ends, prompts = talked(monkeypatch, rank, "n", "c")
    assert ends == [None, "", "", None]
    assert prompts == ["rank 1 (Pdb) "] * 2
    told = len(first)
    assert rank.heard == [(0,), (0,), (told, "n\n"), (told,), (told + len(step), "c\n"), (told + len(step),)]
    shown = capsys.readouterr().out
    assert shown.startswith("> line 2\n-> x = 1\nrank 0 waits in all_reduce (line 3)\nn next line")
    assert shown.endswith("end the cell\n> line 3\n-> y = x\n")


def test_a_rank_that_was_told_to_quit_ends_the_cell(monkeypatch):
    stop = (True, 1, "> line 2\n-> x = 1\n(Pdb) ", False)
    rank = Rank(stop, (False, 1, "", False), (True, 1, "(Pdb) ", True))
    assert talked(monkeypatch, rank, "q")[0] == ["", "left"]
