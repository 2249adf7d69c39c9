"""The table of primitives against the torch that is installed: nothing that communicates is missing in it."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
import warnings

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from labkit.rank import call_facts, comms, dispatched_calls, torch_aliases
from labkit.theory.fingerprint import disagreement
from labkit.theory.primitives import PRIMITIVES, find

VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
FUNCTIONS = [f for p in PRIMITIVES.values() for f in p.functions]

# What torch has beside the primitives, and why the table does not.
LEFT_OUT = {
    "answers from this process's memory": (
        "get_backend get_backend_config get_backend_impl get_default_backend_for_device get_global_rank get_group_rank "
        "get_group_store get_node_local_rank get_pg_count get_process_group_ranks get_rank get_reconfigure_handle "
        "get_world_size is_backend_available is_gloo_available is_initialized is_mpi_available is_nccl_available "
        "is_torchelastic_launched is_ucc_available is_xccl_available name rank size supports_abort_hooks "
        "supports_complex supports_completion_hooks supports_reconfigure supports_window"
    ),
    "makes, changes or ends a group; what ranks say meanwhile goes through the store": (
        "abort destroy_process_group init_process_group merge_remote_group new_group new_subgroups "
        "new_subgroups_by_enumeration reconfigure set_timeout shrink_group shutdown split_group"
    ),
    "ends, names, wraps or watches calls, which are counted themselves": (
        "allow_inflight_collective_as_graph_input_ctx boxed check_for_nan record_comm register_abort_hook "
        "register_post_hook register_pre_hook unbox unregister_abort_hook unregister_post_hook unregister_pre_hook "
        "use_pg_for_symm_mem_rendezvous wait_tensor wait_tensors _wrap_tensor_autograd"
    ),
    "runs all_to_all_single, which is in the table": "permute_tensor",
    "one-sided: no other rank takes part": "new_window",
}
MODULES = ("distributed_c10d", "_functional_collectives", "nn.functional")
OF_AUTOGRAD = ("_meta", "_backward", "_setup_context")  # parts of an operation that is walked itself


def communicating() -> list[tuple[str, str]]:
    """(where, name) of every public function of torch.distributed, of its operations, and of process groups."""
    found = []
    with warnings.catch_warnings(action="ignore"):  # some of them are deprecated
        for path in MODULES:
            module = importlib.import_module(f"torch.distributed.{path}")
            functions = [
                n for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__
            ]
            found += [(path, n) for n in functions if not n.startswith("_")]
    methods = [n for n in dir(dist.ProcessGroup) if not n.startswith("_") and not n.isupper()]
    found += [("ProcessGroup", n) for n in methods if inspect.isroutine(getattr(dist.ProcessGroup, n))]
    every = (name.split(".")[0].partition("::") for name in torch._C._dispatch_get_all_op_names())
    ops = {(space, n) for space, _, n in every if space in ("c10d", "_c10d_functional", "_c10d_functional_autograd")}
    return [(where, n) for where, n in [*found, *sorted(ops)] if not n.endswith(OF_AUTOGRAD)]


def test_every_function_that_communicates_is_in_the_table_or_named_as_left_out():
    out = {n for names in LEFT_OUT.values() for n in names.split()}
    walked = communicating()
    missing = [f"{where}.{n}" for where, n in walked if find(n) is None and n not in out]
    assert not missing, f"torch {torch.__version__}: give {missing} a row in labkit.theory.primitives, or a reason here"
    assert not [n for n in out if find(n)], "what is left out has no row"
    assert {"all_reduce", "allreduce", "allreduce_", "isend", "all_gather_tensor"} <= {n for _, n in walked}


def test_the_walk_would_find_a_function_that_is_new(monkeypatch):
    def all_shuffle(tensor, group=None): ...

    all_shuffle.__module__ = distributed_c10d.__name__
    monkeypatch.setattr(distributed_c10d, "all_shuffle", all_shuffle, raising=False)
    with pytest.raises(AssertionError, match=r"distributed_c10d\.all_shuffle"):
        test_every_function_that_communicates_is_in_the_table_or_named_as_left_out()


def test_a_function_has_the_names_and_the_arguments_that_the_table_says(subtests):
    for function in FUNCTIONS:
        with subtests.test(function.names[0]):
            primitive = find(function.names[0])
            newest, *older = function.names
            assert hasattr(dist, newest) == (function.since <= VERSION), "`since` says which torch has it first"
            for name in [newest] * (function.since <= VERSION) + older:
                arguments = inspect.signature(getattr(dist, name)).parameters
                assert {function.data, primitive.other} - {""} <= set(arguments)
                assert f"group_{primitive.other}" in arguments or not primitive.other


def test_every_collective_of_the_dispatcher_is_compared_between_ranks():
    collectives = {n for where, n in communicating() if where == "c10d" and (p := find(n)) and p.kind == "collective"}
    missing = collectives - dispatched_calls.CALLS.keys()
    assert not missing, f"say in labkit.rank.dispatched_calls.CALLS what ranks have to agree on in {missing}"
    assert {"allreduce_", "scatter_", "barrier"} <= collectives


def test_comms_has_the_functions_and_the_arguments_that_the_table_says():
    assert {p.name for p in PRIMITIVES.values() if p.comms is not None} == set(comms.__all__)
    for primitive in (p for p in PRIMITIVES.values() if p.comms is not None):
        arguments = inspect.signature(getattr(comms, primitive.name)).parameters
        assert {primitive.comms, primitive.other} - {""} <= set(arguments)
        assert not primitive.rooted or arguments[primitive.other].default == 0


def test_an_older_torch_gets_the_newest_names_and_keeps_its_functions(monkeypatch):
    for new, old in (
        ("all_gather_single", "all_gather_into_tensor"),
        ("reduce_scatter_single", "reduce_scatter_tensor"),
    ):
        for module in (dist, distributed_c10d):
            monkeypatch.delattr(module, new, raising=False)
        assert torch_aliases.torchs(new) is getattr(dist, old)
    torch_aliases.add_newest()
    assert dist.all_gather_single is distributed_c10d.all_gather_single is dist.all_gather_into_tensor
    assert dist.reduce_scatter_single is dist.reduce_scatter_tensor


@pytest.mark.slow
def test_a_torch_that_has_all_names_is_left_alone():
    code = (
        "import torch.distributed as dist\nfrom labkit.rank import torch_aliases as names\nbefore = dict(vars(dist))\n"
        "names.add_newest()\nnew = {n for n in vars(dist) if vars(dist)[n] is not before.get(n)}\n"
        "print(sorted(new - {f.names[0] for p in names.PRIMITIVES.values() for f in p.functions}), len(new))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split()[0] == "[]"
    assert VERSION < (2, 13) or done.stdout.split()[-1] == "0"


def test_what_stands_in_the_place_of_an_operation_is_not_called_one():
    assert [call_facts.reduction(op) for op in (None, dist.ReduceOp.MAX, object())] == ["sum", "max", ""]


def test_a_gather_into_one_tensor_is_compared_with_its_root_and_with_the_list_form():
    def call(rank, length, room):
        given = {"input_tensor": torch.ones(length), "output_tensor": torch.empty(room), "root_rank": 1}
        return dispatched_calls.CALLS["gather_into_tensor_"](given, dispatched_calls.Place(rank, [4, 5, 6]))

    def said(lengths, room):
        calls = {r: call(i, n, room if i == 1 else 0) for i, (r, n) in enumerate(zip((4, 5, 6), lengths, strict=True))}
        return disagreement(calls, [4, 5, 6])

    assert said([2, 2, 2], 6) == ""
    assert "number of elements" in said([2, 2, 3], 6)
    assert "Rank 6 gives 3 elements to rank 5, and rank 5 expects 2." in said([2, 2, 3], 6)
    assert said([2, 2, 2], 7) == (
        "Ranks disagree on the number of elements: rank 5 calls gather(dst=5, float32[2]) with 2 elements of input and "
        "7 of output; ranks 4, 6 call gather(dst=5, float32[2]). The root's output has to be 3 times as long as the "
        "input."
    )
    lists = {"input_tensors": [torch.ones(2)], "output_tensors": [], "root_rank": 1}
    listed = dispatched_calls.CALLS["gather_"](lists, dispatched_calls.Place(0, [4, 5, 6]))
    assert disagreement({4: listed, 5: call(1, 2, 6), 6: call(2, 2, 0)}, [4, 5, 6]) == ""
