"""The peak of a function's memory: what its operations make counts while it lives, its arguments do not."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate
from types import FrameType

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from labkit.rank import frames, memory, objects, tiny
from labkit.rank.memory import Peak


def peak(function, *args) -> int:
    counted = Peak()
    counted.around(function)(*args)
    return counted.bytes


X = torch.ones(100)  # 400 bytes


def in_a_row(x):
    y = x + 1
    y = y * 2  # the sum lives until the product is there
    return y - 1


@pytest.mark.parametrize(
    ("function", "nbytes"),
    [
        (lambda x: x, 0),
        (lambda x: x.view(10, 10)[2:].t(), 0),
        (lambda x: x.add_(0), 0),
        (lambda x: x.clone().view(10, 10).add_(1), 400),
        (lambda x: [x.clone() for _ in range(3)], 1200),
        (in_a_row, 800),
        (lambda x: torch.empty(5).resize_(100), 400),
        (lambda x: torch.tensor([1.0, 2.0]), 8),
        (lambda x: x.double().to(torch.float16), 1000),
        (lambda x: x.sum().item(), 4),
    ],
)
def test_what_an_operation_makes_counts_and_a_view_does_not(function, nbytes):
    assert peak(function, X) == nbytes


def test_what_is_inside_an_argument_is_given_as_well():
    assert peak(lambda state, xs: [state["w"].add_(0), xs[0].zero_()], {"w": X.clone()}, [X.clone()]) == 0


def test_each_call_begins_anew_and_the_highest_counts():
    counted = Peak()
    copies = counted.around(lambda k: [X.clone() for _ in range(k)])
    kept = [copies(2), copies(3), copies(1)]
    assert counted.bytes == 1200
    assert kept


def test_the_headers_of_comms_are_no_memory_of_the_learners(monkeypatch):
    monkeypatch.setattr(objects.dist, "get_backend_config", lambda group: "cpu:gloo")
    assert peak(lambda: objects.to_tensor(b"a thousand bytes" * 64)) == 0


def test_gradients_flow_through_a_function_that_is_counted():
    x = torch.ones(100, requires_grad=True)
    counted = Peak()
    counted.around(lambda x: (x * x).sum())(x).backward()
    assert x.grad.tolist() == [2.0] * 100
    assert counted.bytes == 404


def test_counting_does_not_make_torch_import_its_compiler():
    code = (
        "import sys, torch\n"
        "from labkit.rank.memory import Peak, peak\n"
        "function = Peak()\n"
        "function.around(lambda x: x + 1)(torch.ones(100))\n"
        "print('a function:', function.bytes, 'torch._dynamo' in sys.modules)\n"
        "with peak():\n"
        "    x = torch.ones(100, requires_grad=True)\n"
        "    (x * 2).sum().backward()\n"
        "print('a block:', 'torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines() == ["a function: 400 False", "a block: False"]


def held_for_a_moment():
    x = torch.ones(100)
    del x
    return [torch.ones(100), torch.ones(100)]


def test_a_block_counts_what_it_makes():
    with memory.peak() as counted:
        kept = held_for_a_moment()
    assert counted.bytes == 800
    assert repr(counted) == "at most 800 B at once"
    assert kept


def test_a_block_does_not_count_what_was_there_before_it_though_it_writes_there():
    x, flat = torch.ones(100), torch.zeros(300)
    with memory.peak() as counted:
        x.add_(1)
        torch.mul(x, 2, out=flat[:100])
        flat.view(3, 100)[1].copy_(x)
    assert counted.bytes == 0


def test_memory_that_torch_alone_knows_when_a_block_begins_is_none_of_the_blocks():
    parts = torch.ones(100).split(50)  # the tensor that they are parts of is gone, its storage is not
    with memory.peak() as counted:
        parts[0].add_(1)
    assert counted.bytes == 0


def test_what_only_a_look_at_the_frames_still_holds_does_not_count():
    looks, left = threading.Event(), threading.Event()

    def at(found: list[FrameType]) -> bool:
        looks.set()
        assert left.wait(60)
        time.sleep(0.1)  # meanwhile the block is in its next operation, unless that waits
        return any(frame.f_code.co_name == "leaves" for frame in found)

    def leaves() -> Future[bool]:
        x = torch.ones(100)
        seen = pool.submit(frames.look, threading.get_ident(), at)
        assert looks.wait(60)
        assert x.nbytes == 400
        return seen

    with ThreadPoolExecutor(1) as pool, memory.peak() as p:
        seen = leaves()
        left.set()
        y = torch.ones(50)
        assert seen.result()
    assert p.bytes == 400, "and not 600: nobody needs the 400 bytes when y is made"
    assert y.nbytes == 200


def test_an_address_that_becomes_free_within_a_block_counts_again():
    for _ in range(20):  # which of the free addresses comes next is malloc's affair
        x = torch.ones(10)
        with memory.peak() as counted:
            place = x.untyped_storage()._cdata
            del x
            kept = [torch.ones(10) for _ in range(100)]
        assert counted.bytes == 100 * 40
        if place in [y.untyped_storage()._cdata for y in kept]:
            return
    pytest.fail("no address was used again, so this shows nothing")


def test_a_storage_that_shrinks_and_grows_counts_by_what_it_has_grown():
    """As fully_shard does it: no operation of torch resizes a storage."""
    whole = torch.ones(1000)
    storage = whole.untyped_storage()
    storage.resize_(0)
    with memory.peak() as counted:
        for _ in range(3):
            storage.resize_(4000)
            whole.fill_(1)
            storage.resize_(0)
        other = torch.ones(500)
    assert counted.bytes == 4000, "not 6000: the storage was empty when the other was made"
    storage.resize_(4000)
    with memory.peak() as counted:
        whole.fill_(1)
        storage.resize_(0)
        storage.resize_(4000)
        whole.fill_(1)
    assert counted.bytes == 0, "it is no longer than it was at first"
    assert other.sum() == 500


def trained(model, steps=1) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(steps):
        train(model, optimizer, step)
    return optimizer


def train(model, optimizer, step=0) -> None:
    tiny.loss(model, tiny.batch(step, size=24)).backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("steps", [0, 1])
def test_a_training_step_has_the_peak_that_torchs_own_profiler_finds(steps, capfd):
    torch.manual_seed(0)
    model = tiny.Transformer(layers=1)
    optimizer = trained(model, steps)
    with memory.peak() as counted:
        train(model, optimizer)
    torch.manual_seed(0)
    model = tiny.Transformer(layers=1)
    optimizer = trained(model, steps)
    found = profiled(lambda: train(model, optimizer))
    capfd.readouterr()  # kineto says when it starts
    assert counted.bytes == found > 50_000


def profiled(function) -> int:
    """The most bytes that the allocator of the CPU had given away at once since the function began."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        function()
    events = [e for e in run.profiler.kineto_results.events() if e.name() == "[memory]"]
    return max(accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())))


def test_the_parts_of_a_sparse_tensor_count():
    with memory.peak() as counted:
        x = torch.eye(100).to_sparse()
    assert counted.bytes >= 40_000
    assert sum(s.nbytes() for s in memory.storages(x)) == 100 * (2 * 8 + 4)
    assert list(memory.storages(torch.ones(3, device="meta"))) == []
