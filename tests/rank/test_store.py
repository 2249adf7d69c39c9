"""The store where ranks meet answers whatever torch's C++ asks of a store, as torch's own does."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch.distributed as dist

from labkit.rank.store import MeetingStore

SECOND = timedelta(seconds=1)
ASKED = {  # every method of a store, with what it is given: in this order, on one store
    "set": [("a", "1")],
    "get": [("a",)],
    "add": [("n", 2), ("n", 3)],
    "check": [(["a", "n"],), (["b"],)],
    "compare_set": [("a", "1", "2"), ("a", "1", "3")],
    "append": [("a", "x")],
    "multi_get": [(["a", "n"],)],
    "multi_set": [(["c", "d"], ["1", "2"])],
    "wait": [(["a"],), (["a"], SECOND)],
    "barrier": [("met", 1, SECOND)],
    "num_keys": [()],
    "delete_key": [("c",), ("e",)],
    "has_extended_api": [()],
    "set_timeout": [(SECOND,)],
    "queue_push": [("q", "1")],
    "queue_pop": [("q",)],
    "queue_len": [("q",)],
}
BY_PYTHON = {"clone", "timeout", "list_keys"}  # asked below; a property; no C++ of torch's asks it


def answers(store: dist.Store) -> list[object]:
    """What the store answers when it is asked by C++, as all of torch's is: a PrefixStore passes each question on."""
    asking, told = dist.PrefixStore("group", store), []
    for name, calls in ASKED.items():
        for given in calls if hasattr(asking, name) else ():
            try:
                told.append((name, getattr(asking, name)(*given)))
            except NotImplementedError:
                told.append((name, "not implemented"))
    return told


def test_a_meeting_store_answers_what_a_store_of_torchs_answers(tmp_path):
    methods = {name for name in dir(dist.Store) if not name.startswith("_")}
    assert not methods - set(ASKED) - BY_PYTHON
    assert answers(MeetingStore(str(tmp_path / "ours"), 1)) == answers(dist.FileStore(str(tmp_path / "torchs"), 1))


def test_its_clone_shares_what_it_has_and_an_abort_ends_the_waits_of_both(tmp_path):
    store = MeetingStore(str(tmp_path / "store"), 1)
    clone = dist.PrefixStore("group", store).clone()
    store.set("group/a", "1")
    assert clone.get("a") == b"1"
    store.abort()
    with pytest.raises(dist.DistError, match="broken off"):
        clone.get("never")


def test_it_waits_as_long_as_torch_tells_it_to(tmp_path):
    store = MeetingStore(str(tmp_path / "store"), 1)  # held: torch keeps only its C++ half
    asking = dist.PrefixStore("group", store)
    asking.set_timeout(timedelta(milliseconds=1))
    with pytest.raises(dist.DistError, match="wait timeout"):
        asking.get("never")
