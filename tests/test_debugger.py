"""What a `%%px --debug` cell asks for, and the limits of a wait beside a prompt, without ranks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from labkit.cluster.debugger import Debugger, has_breakpoint
from labkit.cluster.magic import _debug
from labkit.cluster.run import Running

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
