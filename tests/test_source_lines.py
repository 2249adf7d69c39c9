"""The line that code is in where Python knows none, and an interrupt that is raised in one."""

from __future__ import annotations

import signal
import sys
import threading
import traceback

import pytest

from labkit.floor import source_lines


def loop_with_a_line() -> None:
    while True:
        pass


def loop_without() -> None:
    """Before Python 3.12; it is interrupted in the jump back from its end."""
    for i in range(10**12):
        if i < 0:
            pass


def interrupted(loop):
    """What is seen of a loop when it is interrupted: (its line, what Python says of it), and the traceback's lines."""
    seen = []

    def press():
        threading.Timer(0.01, signal.raise_signal, (signal.SIGINT,)).start()

    def handle(signum, frame):
        if frame.f_code is not loop.__code__:  # on a busy machine it has not begun yet
            return press()
        seen.append((source_lines.line(frame), frame.f_lineno))
        source_lines.interrupt(frame)

    before = signal.signal(signal.SIGINT, handle)
    try:
        press()
        loop()
    except KeyboardInterrupt as error:
        return seen, [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.name == loop.__name__]
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("loop", [loop_with_a_line, loop_without])
def test_a_loop_is_seen_and_interrupted_in_one_of_its_lines(loop):
    ((line, known),), shown = interrupted(loop)
    first = loop.__code__.co_firstlineno
    assert line in range(first + 1, first + 6)
    assert known == (None if loop is loop_without and sys.version_info < (3, 12) else line)
    assert len(shown) == 1
    assert shown[0] in range(first + 1, first + 6)
    assert sys.gettrace() is None


def test_an_interrupt_in_nobodys_frame_is_raised_at_once():
    with pytest.raises(KeyboardInterrupt):
        source_lines.interrupt(None)
