"""Gloo's threads as Linux sees them, with the two ranks of a group in this process."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from labkit.floor import time_limits
from labkit.rank import gloo, memory
from tests.live.processes import eventually
from tests.live.versions import GLOOS_LOOP

pytestmark = pytest.mark.skipif(gloo.at_work() is None, reason="only Linux tells what a thread waits for")
LIMIT = 60  # seconds


def becomes(expected: int) -> bool:
    """Whether so many threads are at work some day."""
    return eventually(lambda: gloo.at_work() == expected, LIMIT)


@pytest.fixture
def ranks() -> Iterator[list[dist.ProcessGroupGloo]]:
    store = dist.HashStore()

    def join(rank: int) -> dist.ProcessGroupGloo:
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=LIMIT)
        return dist.ProcessGroupGloo(store, rank, 2, options)

    with ThreadPoolExecutor(2) as pool:
        yield list(pool.map(join, range(2)))


def test_a_thread_is_at_work_until_its_collective_is_done_and_let_go(ranks: list[dist.ProcessGroupGloo]):
    assert becomes(0)
    works = [ranks[0].allreduce([torch.ones(2)])]
    assert becomes(1), "rank 1 has not called yet"
    works.append(ranks[1].allreduce([torch.ones(2)]))
    for work in works:
        work.wait()
    assert becomes(0)


def test_a_thread_that_waits_sleeps_and_one_that_computes_does_not():
    asleep, wake = [], threading.Event()
    waits = threading.Thread(target=lambda: (asleep.append(str(threading.get_native_id())), wake.wait()))
    waits.start()
    try:
        assert eventually(lambda: asleep and gloo.sleeps(asleep[0]))
        assert not gloo.sleeps(str(threading.get_native_id()))
    finally:
        wake.set()
        waits.join()
    assert not gloo.sleeps(asleep[0])  # it has ended


def test_a_rank_without_a_descriptor_left_cannot_say_that_a_thread_sleeps():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        told = gloo.sleeps(str(threading.get_native_id()))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert told is False


def test_gloos_threads_sleep_once_nothing_is_under_way(ranks: list[dist.ProcessGroupGloo]):
    def names() -> set[str]:
        return {gloo._told(thread, "comm").strip() for thread in gloo.threads(("pt_gloo", "gloo_tcp"))}

    assert eventually(lambda: names() == {"pt_gloo_runloop"} | GLOOS_LOOP), "each names itself when it first runs"
    assert eventually(gloo.all_sleep)


def test_a_peak_waits_for_what_only_gloo_still_holds(
    ranks: list[dist.ProcessGroupGloo], monkeypatch: pytest.MonkeyPatch
):
    at_work: Callable[[], int | None] = gloo.at_work
    looks: list[int | None] = []

    def look() -> int | None:
        if not looks:
            ranks[1].allreduce([torch.ones(100)])  # rank 1 calls as late as that
        looks.append(at_work())
        return looks[-1]

    with memory.peak() as p:
        ranks[0].allreduce([torch.ones(100)])
        assert becomes(1)
        monkeypatch.setattr(gloo, "at_work", look)
        p._communicates = True  # these groups are no ProcessGroup of the dispatcher's
        y = torch.ones(50)
    assert looks[-1] == 0
    assert p.bytes == 400, "and not 600: the 400 bytes that were given to Gloo are gone when y is made"
    assert y.nbytes == 200


def test_a_collective_that_cannot_be_done_is_waited_for_in_vain_once(
    ranks: list[dist.ProcessGroupGloo], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(time_limits, "GLOO_WORKS", 0.01)
    with memory.peak() as p:
        work = ranks[0].allreduce([torch.ones(100)])
        assert becomes(1)
        p._communicates = True
        kept = [torch.ones(50), torch.ones(50)]
    assert p.bytes == 400 + sum(y.nbytes for y in kept) == 800
    assert p._patience == 0
    ranks[1].allreduce([torch.ones(100)])
    work.wait()


def test_a_collective_holds_up_the_thread_that_waits_for_it_and_nobody_else(ranks: list[dist.ProcessGroupGloo]):
    begun = ranks[0].allreduce([torch.ones(2)])
    waits = threading.Thread(target=begun.wait)
    waits.start()
    try:
        assert eventually(lambda: gloo.holds_up(str(waits.native_id)))
        assert not gloo.holds_up(str(threading.get_native_id())), "this one runs"
    finally:
        ranks[1].allreduce([torch.ones(2)]).wait()
        waits.join()


def test_a_lock_holds_up_no_thread_while_no_collective_is_under_way(ranks: list[dist.ProcessGroupGloo]):
    assert becomes(0)
    wake = threading.Event()
    waits = threading.Thread(target=wake.wait)
    waits.start()
    try:
        assert eventually(lambda: gloo.waits_for_thread(str(waits.native_id)))
        assert not gloo.holds_up(str(waits.native_id))
    finally:
        wake.set()
        waits.join()
