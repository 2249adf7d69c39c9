"""What two threads of one backward pass note at once: autograd's own one, and the main thread beside it."""

from __future__ import annotations

from types import SimpleNamespace

from labkit.rank import backward_pass
from labkit.rank.group_counters import Tally


def test_a_call_that_nobody_recorded_is_missed_though_two_threads_were_in_calls_at_once():
    tally = Tally()
    counts = SimpleNamespace(made=0)
    group = SimpleNamespace(_get_sequence_number_for_group=lambda: counts.made)
    first = tally.begun(group, "both")
    counts.made = 1
    second = tally.begun(group, "both")
    counts.made = 2
    tally.done(group, "both", first)
    tally.done(group, "both", second)
    tally._ended = {"both": (2,)}
    assert tally.missing(0.0, 1.0) == ([], 0)
    tally._ended = {"both": (3,)}
    assert tally.missing(0.0, 1.0) == ([], 1)


def test_the_end_of_a_pass_is_told_to_all_that_wait_for_it_though_two_threads_asked_at_once(monkeypatch):
    queued, told = [], []

    def queue(callback):
        queued.append(callback)
        if len(queued) == 1:  # the other thread asks just now
            backward_pass.at_end(lambda computed, done: told.append("other"))

    monkeypatch.setattr(backward_pass, "_ends", {})
    monkeypatch.setattr(backward_pass, "backward_number", lambda: 7)
    monkeypatch.setattr(backward_pass, "at_backwards_end", queue)
    backward_pass.at_end(lambda computed, done: told.append("one"))
    for callback in queued:  # and what that queues
        callback()
    assert sorted(told) == ["one", "other"]
    assert backward_pass._ends == {}
