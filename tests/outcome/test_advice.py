"""What is said behind the error of a cell on the ranks, so that the learner's next try is the right one."""

from __future__ import annotations

import math
from typing import Any

import pytest

from labkit.grading.prediction import Prediction
from labkit.lab import Lab
from labkit.outcome.advice import advice
from labkit.outcome.outcome import Outcome, RankOutcome

NONE = "a call of {} returns None: what it brings is in the tensors that it was given."
HERE = {"lab": object.__new__(Lab), "n": 5, "sums": [1, 2], "math": math, "Prediction": Prediction, "mine": lambda: 0}


def of(ename: str, evalue: str, *cells: str, marked: int = 0) -> list[str]:
    """What is said of an error that both ranks raised in the last cell, where a line of it is marked."""
    lines = [""] + (cells[-1].splitlines() if cells else [])
    at = f"Cell In[7], line {marked}\n----> {marked} {lines[marked]}"
    traceback = f"{'-' * 75}\n{ename}    Traceback (most recent call last)\n{at}\n\n{ename}: {evalue}"
    ranks = [RankOutcome(r, ename=ename, evalue=evalue, traceback=traceback) for r in range(2)]
    return advice(Outcome(ranks), {1}, cells, HERE)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lab", "lab lives in the notebook: run this line in a cell of its own, without %%px"),
        ("n", "n lives in the notebook, and this cell ran on the ranks: give it to them with lab.push(n=n)"),
        ("sums", "give it to them with lab.push(sums=sums)"),
        ("math", "import it in a %%px cell too"),
        ("Prediction", "run this line in a cell of its own, without %%px"),
        ("mine", "make or import it in a %%px cell"),
        ("all_reduce", "write dist.all_reduce"),
        ("ReduceOp", "write dist.ReduceOp"),
        ("np", "begin the cell with import numpy as np, below %%px"),
        ("itertools", "begin the cell with import itertools, below %%px"),
        ("x", "if an earlier cell makes x, run that cell first"),
    ],
)
def test_a_name_that_the_ranks_lack_is_said_to_be_where_it_is(name: str, said: str):
    (told,) = of("NameError", f"name '{name}' is not defined")
    assert told.endswith(said)


def test_a_root_that_is_not_in_the_group_is_told_how_to_count_in_it():
    (told,) = of("ValueError", "Global rank 0 is not part of group <torch.distributed.ProcessGroup object at 0x7f>")
    assert told.endswith("to count within the group, write group_src=0 or group_dst=0")


SUBSCRIPT = "'NoneType' object is not subscriptable"


@pytest.mark.parametrize(
    ("call", "evalue", "cells", "marked"),
    [
        (
            "dist.all_reduce",
            "unsupported operand type(s) for +: 'NoneType' and 'int'",
            ["y = dist.all_reduce(x) + 1"],
            1,
        ),
        ("dist.broadcast", SUBSCRIPT, ["print(dist.broadcast(x, src=0)[0])"], 1),
        ("dist.all_gather", "'NoneType' object is not iterable", ["for v in dist.all_gather(xs, x):\n    pass"], 1),
        ("dist.reduce", "'NoneType' object has no attribute 'sum'", ["x = dist.reduce(x, 0)\ny = x.sum()"], 2),
        (
            "torch.distributed.all_reduce",
            "unsupported operand",
            ["x = torch.distributed.all_reduce(x)", "x + None  # NoneType"],
            1,
        ),
        (
            "dist.scatter",
            "Expected parameter `tensor` … got <class 'NoneType'>",
            ["x = dist.scatter(x)\ndist.send(x, 1)"],
            2,
        ),
    ],
)
def test_a_none_that_came_from_a_call_of_torch_s_is_said_to(call: str, evalue: str, cells: list[str], marked: int):
    evalue += "" if "NoneType" in evalue else " NoneType"
    (told,) = of("TypeError", evalue, *cells, marked=marked)
    assert told.startswith(NONE.format(call))
    assert told.endswith("Call it on a line of its own, and use those after it")


@pytest.mark.parametrize("call", ["send(x.grad, 0, tag=1)", "dist.send(x, 0)", "dist.barrier()"])
def test_what_brings_nothing_has_nothing_to_wait_for(call: str):
    (told,) = of("AttributeError", "'NoneType' object has no attribute 'wait'", f"{call}.wait()", marked=1)
    named = call.partition("(")[0]
    assert told.startswith(f"a call of {named} returns None: there is nothing in it to use or to wait for.")


@pytest.mark.parametrize(
    ("cells", "marked"),
    [
        (["dist.all_reduce(x.grad.mean())"], 1),
        (["y = dist.all_reduce(x.grad[0])"], 1),
        (["work = dist.all_reduce(x, async_op=True) + x.grad"], 1),
        (["y = dist.recv(x) + x.grad"], 1),
        (["x = dist.all_reduce(x)\nx = torch.ones(1)\nx + x.grad"], 3),
        (["x + 1\nx = dist.all_reduce(x)"], 1),
        (["x = foo(dist.all_reduce(x))", "x[0]"], 1),
    ],
)
def test_a_none_that_came_from_elsewhere_is_blamed_on_no_call(cells: list[str], marked: int):
    assert of("TypeError", SUBSCRIPT, *cells, marked=marked) == []


@pytest.mark.parametrize(
    ("ename", "evalue", "said"),
    [
        ("AttributeError", "'Tensor' object has no attribute 'look'", 'in the notebook: lab.look("x"), in a cell'),
        ("AttributeError", "module 'torch.distributed' has no attribute 'allreduce'", "write dist.all_reduce"),
        ("AttributeError", "'Tensor' object has no attribute 'all_reduce'", "no method: write dist.all_reduce(x)"),
        ("AttributeError", "'torch._C._distributed_c10d.Work' object has no attribute 'sum'", "call its wait()"),
        ("AttributeError", "module 'torch.distributed' has no attribute 'AllGather'", "write dist.all_gather"),
        ("AttributeError", "type object 'torch._C._distributed_c10d.ReduceOp' has no attribute 'sum'", "ReduceOp.SUM"),
        (
            "TypeError",
            "Expected parameter `tensor` of type torch.Tensor\n  but got <class 'int'> instead",
            "put the int",
        ),
        ("TypeError", "(): incompatible function arguments. … ReduceOp) -> None", "op=dist.ReduceOp.SUM"),
        ("UsageError", "Cell magic `%%flow` not found.", "leave out the %%px above"),
    ],
)
def test_what_torch_says_of_a_usual_slip_is_followed_by_what_to_write(ename: str, evalue: str, said: str):
    (told,) = of(ename, evalue)
    assert said in told


@pytest.mark.parametrize(
    ("ename", "evalue"),
    [
        ("ValueError", "no"),
        ("AttributeError", "'Tensor' object has no attribute 'weights'"),
        ("AttributeError", "module 'torch.distributed' has no attribute 'xyz'"),
        ("NameError", "free variable 'x' referenced before assignment"),
    ],
)
def test_of_other_errors_nothing_is_said(ename: str, evalue: str):
    assert of(ename, evalue) == []


def test_a_rank_that_was_started_anew_may_have_lost_the_name():
    outcome = Outcome([RankOutcome(1, ename="NameError", evalue="name 'x' is not defined")])
    here: dict[str, Any] = {}
    assert advice(outcome, {1}, (), here) == [
        "rank 1 was started anew and may have lost x: run the cell that makes it again"
    ]


@pytest.mark.parametrize(
    "says",
    [
        "Check failed: outputTensors[i].dtype() == inputTensors[i].dtype() (float vs. double).",
        "invalid tensor type at index 0 (expected TensorOptions(dtype=float, device=cpu), "
        "got TensorOptions(dtype=double, device=cpu))",
        "Invalid usage of tensors with different dtypesFound torch.float32 and  torch.float64",
    ],
)
def test_tensors_of_two_dtypes_in_one_call_are_told_apart(says: str):
    (told,) = of("RuntimeError", says, "dist.all_gather_single(new, x)", marked=1)
    assert told.startswith("one tensor of this call is float32, and another float64: `torch.empty_like(x)` makes room")


def test_a_tensor_that_autograd_watches_is_to_be_detached():
    says = "A view was created in no_grad mode and is being modified inplace with grad mode enabled."
    (told,) = of("RuntimeError", says, "dist.all_gather_single(new, x)", marked=1)
    assert "`x.detach()`" in told
