"""Definitions come back from the sources of the cells that made them; what else they made is said to be lost."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from IPython.core.compilerop import CachingCompiler
from IPython.core.inputtransformer2 import TransformerManager

from labkit.rank import definitions, namespace


@pytest.fixture
def space(monkeypatch):
    """The namespace of a rank that has just been started."""
    names = {"torch": torch, "dist": dist, "rank": 2, "world_size": 4}
    shell = SimpleNamespace(
        user_ns={"__name__": "__main__", **names},
        compile=CachingCompiler(),
        transform_cell=TransformerManager().transform_cell,
    )
    monkeypatch.setattr(definitions, "shell", lambda: shell)
    monkeypatch.setattr(namespace, "_given", names)
    return shell.user_ns


def replay(*cells):
    fate = definitions.replay(cells)
    return fate["back"], fate["lost"]


def test_imports_functions_classes_and_constants_come_back_and_values_are_lost(space):
    cell = """
import math
LR = 0.1
right = (rank + 1) % world_size
SIZES = (2, 3)
x = torch.ones(3)
def area(r): return math.pi * r
class Model(torch.nn.Module):
    rate = LR
model = Model()
"""
    assert replay(cell) == (["math", "LR", "SIZES", "area", "Model"], ["right", "x", "model"])
    assert space["SIZES"] == (2, 3)
    assert space["area"](1) > 3
    assert space["Model"]().rate == 0.1
    assert "x" not in space


def test_a_kernel_comes_back_as_its_decorator_makes_it(space):
    space["triton"] = SimpleNamespace(jit=lambda function: SimpleNamespace(fn=function))
    assert replay("@triton.jit\ndef kernel(x):\n    pass") == (["kernel"], [])
    assert space["kernel"].fn.__name__ == "kernel"


def test_a_kernel_is_a_function_for_who_checks_it(space):
    space["triton"] = SimpleNamespace(jit=lambda function: SimpleNamespace(fn=function))
    assert definitions.define("@triton.jit\ndef kernel(x):\n    return x", "kernel") == ""
    assert "which the ranks do not have" in definitions.define("@triton.jit\ndef kernel():\n    tl.load(1)", "kernel")
    assert definitions.define("kernel = 3", "kernel") == "its cell defines no function kernel"
    assert definitions.decorated(len) is len


def test_nothing_that_communicates_or_writes_is_run_again(space, tmp_path):
    file = tmp_path / "written"
    cell = f"""
def f(x): dist.all_reduce(x)
f(torch.ones(1))
dist.barrier()
open({str(file)!r}, "w").write("x")
!touch {file}
%cd /nowhere
"""
    assert replay(cell) == (["f"], [])
    assert not file.exists()


def test_the_last_definition_counts(space):
    assert replay("def f(): return 1", "def f(): return 2") == (["f"], [])
    assert space["f"]() == 2


def test_a_name_that_was_a_function_and_became_a_value_is_lost(space):
    assert replay("def f(): return 1", "f = torch.ones(1)") == ([], ["f"])
    assert "f" not in space
    assert replay("f = torch.ones(1)", "def f(): return 1") == (["f"], [])


def test_a_redefinition_that_needs_what_is_lost_does_not_leave_the_old_one(space):
    assert replay("def f(n=1): return n", "w = torch.ones(1)\ndef f(n=w): return n") == ([], ["w", "f"])
    assert "f" not in space


def test_a_constant_that_was_counted_on_is_lost(space):
    assert replay("STEP = 0\nSEEN = 0\nLIMIT = 3", "STEP += 1", "def see():\n    global SEEN\n    SEEN += 1") == (
        ["LIMIT", "see"],
        ["SEEN", "STEP"],
    )


def test_a_list_is_lost_since_it_may_have_been_filled_and_a_tuple_is_not(space):
    assert replay("LOSSES = []\nSHAPE = (2, 3)\nNAMES = ('a', [])") == (["SHAPE"], ["LOSSES", "NAMES"])


def test_a_deleted_name_is_neither_back_nor_lost(space):
    assert replay("def f(): pass\nx = torch.ones(1)", "del f, x") == ([], [])
    assert "f" not in space


def test_an_import_that_fails_is_lost(space):
    assert replay("import no_such_module_anywhere as m\nimport math") == (["math"], ["m"])


def test_what_stands_in_a_branch_comes_back_where_this_rank_takes_it(space):
    cell = "if rank == 2:\n    def mine(): return 2\nelse:\n    def others(): return 0"
    assert replay(cell) == (["mine"], [])


def test_the_names_that_the_lab_gives_stay_the_labs(space):
    assert replay("import torch\nrank = 7\ndist = None\ndef f(): return rank") == (["f"], [])
    assert space["rank"] == space["f"]() == 2
    assert space["dist"] is dist


def test_a_cell_that_cannot_be_read_defines_nothing(space):
    assert replay("def f(:", "%%bash\ndef g(): pass", "def h(): pass") == (["h"], [])


def test_annotations_that_a_future_import_leaves_alone_need_no_names(space):
    assert replay("from __future__ import annotations", "def f(x: Unknown): return 1")[0] == ["f"]


def test_the_source_of_what_came_back_is_the_learners(space):
    replay("x = 1\n\n@torch.no_grad()\ndef f(n):\n    # by hand\n    return n + 1\n", "def g():\n    return 2")
    assert inspect.getsource(space["g"]) == "def g():\n    return 2\n"
    assert "# by hand" in inspect.getsource(inspect.unwrap(space["f"]))
