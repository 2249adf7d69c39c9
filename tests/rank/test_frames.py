"""Where another thread is, as it was at one moment."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

from labkit.rank import frames


def waits_for(event: threading.Event) -> None:
    event.wait()


def test_the_frames_of_a_thread_are_innermost_first_and_none_are_left_when_it_has_ended():
    event = threading.Event()
    thread = threading.Thread(target=waits_for, args=(event,))
    thread.start()
    while "waits_for" not in (names := [frame.f_code.co_name for frame in frames.stack(thread.ident)]):
        pass
    assert names.index("waits_for") < names.index("_bootstrap")
    event.set()
    thread.join()
    assert frames.stack(thread.ident) == []


def test_frames_that_lead_to_something_else_because_their_thread_went_on_are_taken_again(monkeypatch):
    here, seen = sys._getframe(), []
    answers = iter([waits_for, SimpleNamespace(f_back=here), here])  # a function was seen there, once, in Python 3.11

    def current() -> dict[int, object]:
        seen.append(next(answers))
        return {1: seen[-1]}

    monkeypatch.setattr(sys, "_current_frames", current)
    found = frames.stack(1)
    assert found == list(frames.callers(here))
    assert len(seen) == 3
