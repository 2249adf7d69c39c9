"""Labs that are started together start a few at a time, in order; whoever is killed or hangs holds up nobody."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading

import pytest

from labkit.cluster import start_queue
from labkit.floor import time_limits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets are Linux's")

HOLD = """
import sys
from labkit.cluster import start_queue as turn
turn.NAMES = sys.argv[1]
with turn.turn(print, 99):
    print("starting", flush=True)
    input()
"""


@pytest.fixture(autouse=True)
def names(monkeypatch, request):
    """Names of these tests' own: other labs of this machine may be starting."""
    monkeypatch.setattr(start_queue, "NAMES", f"labkit-test-{threading.get_native_id()}-{request.node.name[:20]}-")


@contextlib.contextmanager
def starting(n):
    """So many processes that are starting a lab."""
    with contextlib.ExitStack() as stack:
        held = []
        for _ in range(n):
            process = subprocess.Popen(
                [sys.executable, "-c", HOLD, start_queue.NAMES],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            assert process.stdout.readline() == "starting\n"
            held.append(process)
        yield held


def test_a_lab_starts_at_once_where_few_others_do_and_waits_where_many_do_until_one_is_up():
    said = []
    with starting(2) as held:
        with start_queue.turn(said.append, at_once=3):
            assert said == []
        with waiting(said) as came:
            assert not came.wait(0.5)
            assert said == ["2 labs came before this one, and this machine starts 2 at a time …"]
            held[0].communicate("\n")
            assert came.wait(20)
        assert len(said) == 1


@contextlib.contextmanager
def waiting(said, at_once=2):
    """One that wants to start, two at a time; yields what is set when it does."""
    came = threading.Event()

    def start():
        with start_queue.turn(said.append, at_once):
            came.set()

    thread = threading.Thread(target=start)
    thread.start()
    try:
        yield came
    finally:
        thread.join()


def test_whoever_is_killed_while_it_starts_keeps_nobody_waiting():
    with starting(2) as held, waiting([]) as came:
        assert not came.wait(0.5)
        held[1].kill()
        assert came.wait(20)


def test_those_who_came_later_do_not_count():
    with start_queue.turn(print, at_once=1), starting(0):
        mine = start_queue._waiting(f"{start_queue.NAMES}9")
        assert len(mine) == 1
        assert start_queue._waiting(min(mine)) == set()


def test_one_that_hangs_while_it_starts_keeps_nobody_waiting_for_ever(monkeypatch):
    monkeypatch.setattr(time_limits, "TURN_MOVES", 0.3)
    said = []
    with starting(2), waiting(said) as came:
        assert came.wait(20)
    assert len(said) == 1


def test_a_start_that_fails_gives_its_turn_away():
    with pytest.raises(ZeroDivisionError), start_queue.turn(print):
        raise ZeroDivisionError
    assert start_queue._waiting(f"{start_queue.NAMES}9") == set()
