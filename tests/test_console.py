"""The line under a running cell, on ranks that are made up."""

from __future__ import annotations

from types import SimpleNamespace

from labkit.cluster.console import Progress


def test_the_line_under_a_running_cell_tells_who_has_died_from_who_is_done(monkeypatch):
    reply = SimpleNamespace(output=SimpleNamespace(metadata={"stdout": "epoch 1\n"}))
    running = SimpleNamespace(
        ranks=SimpleNamespace(dead=lambda: {1: "SIGKILL"}),
        replies=dict.fromkeys(range(3), reply),
        where={0: {"state": "computing", "line": 4}},
    )
    line = Progress(after=2.0)
    shown = []
    monkeypatch.setattr(line, "write", shown.append)
    line.show(1.9, running)
    line.show(3.1, running)
    assert shown == ["3 s\nrank 0 │ computing, line 4 · epoch 1\nrank 1 │ died (SIGKILL)\nrank 2 │ done · epoch 1\n"]
