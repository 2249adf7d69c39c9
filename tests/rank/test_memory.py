"""The peak of a function's memory: what its operations make counts while it lives, its arguments do not."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from labkit.rank import objects
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
        "from labkit.rank.memory import Peak\n"
        "peak = Peak()\n"
        "peak.around(lambda x: x + 1)(torch.ones(100))\n"
        "print(peak.bytes, 'torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["400", "False"]
