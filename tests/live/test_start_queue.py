"""A notebook whose lab has to wait for its turn to start says so, and Stop ends the waiting."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys

import pytest

from labkit.cluster import start_queue
from tests.live.notebook import Notebook
from tests.live.processes import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets are Linux's")
START = "from labkit import start\nlab = start(2)"


@pytest.fixture
def before(monkeypatch):
    """As many labs as this machine starts at a time came before; they count only where they are asked for."""
    monkeypatch.setattr(start_queue, "NAMES", f"labkit-test-{secrets.token_hex(4)}-")
    with contextlib.ExitStack() as starting:
        for _ in range(start_queue.EACH_CORE * len(os.sched_getaffinity(0))):
            starting.enter_context(start_queue._name())
        yield starting


@pytest.fixture
def notebook(before):
    with Notebook() as opened:
        opened.run(
            "from labkit.floor import time_limits\nfrom labkit.cluster import start_queue\n"
            f"start_queue.NAMES = {start_queue.NAMES!r}"
        )
        opened.run("time_limits.TURN_MOVES = 600")
        yield opened


def test_a_lab_that_waits_for_its_turn_says_how_many_came_before_it(notebook, before):
    sent = notebook.send(START)
    many = start_queue.EACH_CORE * len(os.sched_getaffinity(0))
    notebook.until_shown(sent, f"{many} labs came before this one, and this machine starts {many} at a time …\n")
    before.close()
    cell = notebook.wait(sent)
    assert (cell.status, "came before" in cell.stdout) == ("ok", False)
    assert notebook.run("%%px\nprint(rank)").stdout == "rank 0 │ 0\nrank 1 │ 1\n"


def test_stop_ends_the_waiting_and_gives_the_turn_away(notebook, before):
    sent = notebook.send(START)
    notebook.until_shown(sent, "came before this one")
    notebook.interrupt()
    assert notebook.wait(sent).error.startswith("KeyboardInterrupt")
    before.close()
    assert eventually(lambda: not start_queue._waiting(f"{start_queue.NAMES}9"))
    assert notebook.run(START).status == "ok"
