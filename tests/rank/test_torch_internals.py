"""Torch has the private names that labkit uses, and they do what they are used for. One process, its own world."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from packaging.version import Version
from torch.autograd import graph
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules import module
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import BaseTorchFunctionMode

from labkit.cluster.forkclient import ENVIRONMENT
from labkit.rank import torch_internals as internals
from tests.internals import names, relies_on, tested, users


@pytest.fixture
def world():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    internals.set_default_group(next(iter(internals.groups()), None))
    if dist.is_initialized():
        dist.destroy_process_group()


def test_every_name_is_used_and_has_its_canary():
    by = users(internals)
    assert names(internals) == tested[internals.__name__]
    assert not [name for name in by if not by[name]]


# -- process groups -----------------------------------------------------------------------------------------------


@relies_on(internals, "groups", "group_names", "group_ranks", "made", "backend_config")
def test_torchs_tables_have_each_group_until_it_is_destroyed(world):
    half = dist.new_group([0])
    assert list(internals.groups()) == list(internals.group_ranks()) == internals.made() == [world, half]
    assert {group.group_name for group in (world, half)} == internals.group_names()
    assert internals.group_ranks()[half] == {0: 0}
    assert internals.backend_config(half) == dist.get_backend_config(half)
    dist.destroy_process_group(half)
    assert half not in {**internals.groups(), **internals.group_ranks()}
    assert half.group_name not in internals.group_names()
    assert internals.backend_config(half) == ""


@relies_on(internals, "groups")
def test_a_group_makes_groups_in_the_store_that_stands_in_the_table(world):
    backend, store = internals.groups()[world]
    internals.groups()[world] = backend, dist.PrefixStore("elsewhere/", store)
    before = store.num_keys()
    dist.new_group([0])
    assert internals.groups()[world][1] is not store
    assert store.num_keys() > before


@relies_on(internals, "group_count", "number_groups_from")
def test_groups_are_numbered_from_a_number(world):
    internals.number_groups_from(700)
    assert dist.new_group([0]).group_name == "700"
    assert internals.group_count() == 701


@relies_on(internals, "set_default_group")
def test_another_group_can_be_the_default_one_and_none(world):
    half = dist.new_group([0])
    internals.set_default_group(half)
    assert dist.group.WORLD is half
    internals.set_default_group(None)
    assert not dist.is_initialized()
    internals.set_default_group(world)
    assert dist.get_rank() == 0


@relies_on(internals, "set_timeout", "timeout_of", "backend_of")
def test_a_groups_time_out_can_be_set_once_it_is_made(world):
    internals.set_timeout(timedelta(seconds=77))
    assert internals.timeout_of(world) == internals.backend_of(world, "cpu").options._timeout == timedelta(seconds=77)
    internals.set_timeout(timedelta(seconds=78), world)
    assert internals.timeout_of(world) == timedelta(seconds=78)
    assert internals.timeout_of(None) is None
    with pytest.raises(RuntimeError):
        internals.backend_of(world, "mps")


@relies_on(internals, "group_maker", "set_group_maker")
def test_one_function_makes_every_group_and_can_be_replaced(world):
    torchs, said = internals.group_maker(), []
    asked = inspect.signature(torchs).parameters
    assert {"group_name", "group_size", "group_rank", "global_ranks_in_group", "store"} <= asked.keys()
    try:
        internals.set_group_maker(lambda *args, **kwargs: said.append("made") or torchs(*args, **kwargs))
        dist.new_group([0])
    finally:
        internals.set_group_maker(torchs)
    assert said == ["made"]


@relies_on(internals, "wrap_group_splitter")
def test_the_method_that_splits_groups_can_be_wrapped_where_there_is_one(monkeypatch):
    monkeypatch.setattr(dist.ProcessGroup, "split_group", lambda *_: "split", raising=False)
    internals.wrap_group_splitter(lambda split: lambda *given: f"{split(*given)} in sight")
    assert dist.ProcessGroup.split_group(None, [0]) == "split in sight"
    monkeypatch.delattr(dist.ProcessGroup, "split_group")
    internals.wrap_group_splitter(lambda split: split)
    assert not hasattr(dist.ProcessGroup, "split_group")


@relies_on(internals, "wrap_model_verifier")
def test_ddp_has_each_model_verified_in_its_constructor(world):
    before, seen = internals.ddp._verify_param_shape_across_processes, []

    def wrap(verify):
        def verified(group, *args):
            held = sys._getframe(1).f_locals["self"]
            seen.append((group, held.module, held.parameters_to_ignore))
            return inspect.unwrap(verify)(group, *args)

        return verified

    try:
        internals.wrap_model_verifier(wrap)
        model = torch.nn.Linear(2, 2)
        DistributedDataParallel(model)
    finally:
        internals.wrap_model_verifier(lambda _: before)
    assert seen == [(world, model, set())]


@relies_on(internals, "mesh_groups")
def test_a_mesh_knows_its_groups_by_their_names(world):
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("a", "b"))
    assert [group.group_name for group in mesh.get_all_groups()] == list(internals.mesh_groups(mesh))
    assert set(internals.mesh_groups(mesh)) <= internals.group_names()


@relies_on(internals, "abort_groups")
def test_all_groups_are_aborted_in_one_call(world):
    dist.new_group([0])
    internals.abort_groups()
    assert (internals.groups(), dist.is_initialized()) == ({}, False)


# -- calls in a group ---------------------------------------------------------------------------------------------


@relies_on(internals, "forecast")
def test_gloo_forecasts_nothing_and_nothing_is_run(world):
    ran = []
    assert internals.forecast(lambda: ran.append(1), world, torch.device("cpu")) is None
    assert ran == []


@relies_on(internals, "forecast")
@pytest.mark.parametrize(("said", "seconds"), [(12.5, 12.5e-6), (-1000.0, None), (None, None)])
def test_a_backends_forecast_is_in_seconds_and_nccls_sign_of_an_error_is_none(world, monkeypatch, said, seconds):
    @contextlib.contextmanager
    def estimator(group, device):
        told = internals.distributed_c10d._TimeEstimator()
        yield told
        told.estimated_time = said

    monkeypatch.setattr(internals.distributed_c10d, "_time_estimator", estimator)
    assert internals.forecast(lambda: None, world, torch.device("cpu")) == seconds


@relies_on(internals, "calls_counted", "backend_of")
def test_a_group_and_its_backend_count_their_calls(world):
    before = internals.calls_counted(world)
    dist.barrier()
    dist.all_reduce(torch.ones(1))
    counted = internals.calls_counted(world)
    assert counted > before
    assert internals.calls_counted(internals.backend_of(world, "cpu")) == counted


@pytest.fixture
def two():
    """The two ranks of a group, in this process."""
    store = dist.HashStore()

    def join(rank):
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        return dist.ProcessGroupGloo(store, rank, 2, options)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(join, range(2)))


@relies_on(internals, "receives_from_any", "RECV_ANYSOURCE", "source_rank")
def test_a_receive_from_any_rank_is_known_and_tells_whose_message_it_took(two):
    work = two[1].recv_anysource([x := torch.zeros(1)], 0)
    sent = two[0].send([torch.ones(1)], 1, 0)
    assert internals.receives_from_any(work)
    assert not internals.receives_from_any(sent)
    work.wait()
    assert (internals.source_rank(work), x.item()) == (0, 1)


# -- operations ---------------------------------------------------------------------------------------------------


@relies_on(internals, "reduction", "note_reductions", "REDUCING", "_asked", "_number")
@pytest.mark.parametrize("version", [torch.__version__, "2.8.0"], ids=["told by the operation", "noted of Python"])
def test_the_reduction_of_an_operation_is_known_by_its_number(world, monkeypatch, version):
    told = []

    class Untold:
        def _has_method(self, name):
            return False

    class Mode(internals.OperationMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            given = dict(zip(internals.argument_names(operation), args, strict=False))
            if "reduce_op" in given:
                told.append(internals.reduction(Untold() if version == "2.8.0" else given["reduce_op"]))
            return operation(*args, **(kwargs or {}))

    monkeypatch.setattr(torch, "__version__", version)
    for name in internals.REDUCING:  # so that they are put back
        monkeypatch.setattr(dist.ProcessGroup, name, vars(dist.ProcessGroup)[name])
    internals.note_reductions()
    x, y = torch.ones(2), torch.empty(2)
    with Mode():
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
        dist.reduce(x, 0, op=dist.ReduceOp.MIN)
        dist.reduce_scatter(y, [x], op=dist.ReduceOp.PRODUCT)
        dist.all_reduce(x)
        world.allreduce([x], dist.ReduceOp.MAX).wait()
    assert told == [int(getattr(dist.ReduceOp, name)) for name in ("MAX", "MIN", "PRODUCT", "SUM", "MAX")]
    assert internals.reduction(Untold()) is None


@relies_on(internals, "BACKEND_SELECT", "take_out", "argument_names")
def test_what_stands_under_the_first_key_sees_every_call_until_it_is_taken_out(world):
    operation, seen = torch.ops.c10d.allreduce_.default, []
    names = internals.argument_names(operation)

    def compare(keys, *args):
        seen.append(dict(zip(names, args, strict=False)))
        return operation.redispatch(keys.remove(internals.BACKEND_SELECT), *args)

    library = torch.library.Library("c10d", "IMPL")
    library.impl("allreduce_", compare, "BackendSelect", with_keyset=True)
    dist.all_reduce(x := torch.ones(2))
    internals.take_out(library)
    dist.all_reduce(torch.ones(2))
    (given,) = seen
    assert given["tensors"][0] is x
    assert dist.ProcessGroup.unbox(given["process_group"]).group_name == world.group_name


@relies_on(internals, "FUNCTIONAL", "DTENSOR", "DISPATCHER", "BETWEEN_RANKS")
def test_what_ranks_do_together_is_told_from_files_and_namespaces(world):
    from torch.distributed import _functional_collectives, tensor

    assert inspect.getsourcefile(_functional_collectives.all_reduce) == internals.FUNCTIONAL
    assert inspect.getsourcefile(tensor.DTensor.full_tensor) == internals.DTENSOR
    assert inspect.getsourcefile(type(torch.ops.c10d.allreduce_.default).__call__) == internals.DISPATCHER
    assert Path(internals.DISPATCHER).is_file()
    for operation in (torch.ops.c10d.allreduce_, torch.ops._c10d_functional.wait_tensor):
        assert str(operation.default).startswith(internals.BETWEEN_RANKS)
        assert operation.default.namespace in internals.BETWEEN_RANKS
    assert torch.ops._dtensor.shard_dim_alltoall


@relies_on(internals, "OperationMode")
def test_a_mode_is_told_of_every_operation():
    seen = []

    class Mode(internals.OperationMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    x = torch.ones(2)
    with Mode():
        _ = x + 1
    assert seen == ["aten.add.Tensor"]
    if Version(torch.__version__) >= Version("2.11"):
        asked = vars(internals._python_dispatch.TorchDispatchMode)
        assert "_should_skip_dynamo" in asked, "what is overridden is asked"


# -- what can be set for the whole process ------------------------------------------------------------------------


@relies_on(internals, "PRINT_OPTIONS")
def test_how_tensors_are_printed_is_read_and_put_back():
    before = dict(internals.PRINT_OPTIONS)
    torch.set_printoptions(precision=2)
    assert repr(torch.tensor(1 / 3)) == "tensor(0.33)"
    assert internals.PRINT_OPTIONS["precision"] == 2
    internals.PRINT_OPTIONS.update(before)
    assert repr(torch.tensor(1 / 3)) == "tensor(0.3333)"


@relies_on(internals, "MODULE_HOOKS")
def test_hooks_of_all_modules_are_found(monkeypatch):
    def held():
        return sum(map(len, internals.MODULE_HOOKS))

    for register in [f for name, f in vars(module).items() if name.startswith("register_module_") and "hook" in name]:
        monkeypatch.setattr(module, "_global_is_full_backward_hook", None)  # one kind of two at a time
        before = held()
        handle = register(lambda *_: None)
        assert held() == before + 1, register
        handle.remove()


@relies_on(internals, "default_device", "modes", "leave_modes")
def test_a_default_device_and_modes_that_were_entered_are_known_and_left():
    before = internals.modes()
    assert internals.default_device() is None
    torch.set_default_device("meta")
    assert str(internals.default_device()) == "meta"
    torch.set_default_device(None)
    assert (internals.default_device(), internals.modes()) == (None, before)
    BaseTorchFunctionMode().__enter__()
    internals.OperationMode().__enter__()
    assert internals.modes() == (before[0] + 1, before[1] + 1)
    internals.leave_modes(before)
    assert internals.modes() == before


@relies_on(internals, "saved_hooks", "leave_saved_hooks")
def test_hooks_of_saved_tensors_are_known_and_left():
    before, pair = internals.saved_hooks(), (lambda x: x, lambda x: x)
    for _ in range(2):
        graph.saved_tensors_hooks(*pair).__enter__()
    assert internals.saved_hooks() == pair
    internals.leave_saved_hooks(before)
    assert internals.saved_hooks() == before


# -- autograd -----------------------------------------------------------------------------------------------------


@relies_on(internals, "backward_number", "at_backwards_end")
def test_a_backward_pass_has_a_number_and_calls_behind_it_what_was_queued_in_turn():
    order = []
    x = torch.ones(1, requires_grad=True)

    def hook(_):
        order.append(internals.backward_number())
        internals.at_backwards_end(end)

    def end():
        order.append("end")
        internals.at_backwards_end(lambda: order.append("last"))

    x.register_hook(hook)
    x.sum().backward()
    assert order[0] >= 0
    assert order[1:] == ["end", "last"]
    assert internals.backward_number() == -1
    with pytest.raises(RuntimeError):
        internals.at_backwards_end(lambda: None)


@relies_on(internals, "RUN_BACKWARD")
def test_one_function_runs_every_backward_pass(monkeypatch):
    torchs, said = vars(graph)[internals.RUN_BACKWARD], []
    for place in (graph, torch.autograd):
        monkeypatch.setattr(place, internals.RUN_BACKWARD, lambda *a, **k: said.append("ran") or torchs(*a, **k))
    x = torch.ones(1, requires_grad=True)
    x.sum().backward()
    torch.autograd.grad(x.sum(), x)
    assert said == ["ran"] * 2


@relies_on(internals, "is_view")
def test_a_view_is_known():
    x = torch.ones(4)
    assert (internals.is_view(x[:2]), internals.is_view(x)) == (True, False)


# -- memory -------------------------------------------------------------------------------------------------------


@relies_on(internals, "storage_id", "storage_behind")
def test_a_storage_has_one_number_and_a_weak_reference_leads_to_it_while_it_lives():
    x = torch.ones(4)
    weak = StorageWeakRef(x.untyped_storage())
    assert internals.storage_id(x.untyped_storage()) == internals.storage_id(x[:2].untyped_storage())
    assert internals.storage_id(x.untyped_storage()) != internals.storage_id(torch.ones(4).untyped_storage())
    assert internals.storage_behind(weak).data_ptr() == x.data_ptr()
    del x
    assert internals.storage_behind(weak) is None


@relies_on(internals, "COO_PARTS")
def test_a_sparse_tensor_that_is_not_coalesced_gives_its_parts():
    x = torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (3,), check_invariants=True)
    assert [tuple(getattr(x, name)().shape) for name in internals.COO_PARTS] == [(1, 2), (2,)]


@relies_on(internals, "held_by_fully_shard")
def test_what_fully_shard_holds_is_found(world):
    model = torch.nn.Linear(4, 4, bias=False)
    assert list(internals.held_by_fully_shard(model)) == []
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    inside = []
    model.register_forward_hook(lambda *_: inside.extend(kind for kind, _ in internals.held_by_fully_shard(model)))
    model(torch.ones(1, 4)).sum().backward()
    assert len(inside) > 1, "the shard, and the whole weights while they are used"
    assert {"weights", "gradients"} == {kind for kind, _ in internals.held_by_fully_shard(model)}


# -- the flight recorder ------------------------------------------------------------------------------------------


@pytest.fixture(scope="session", autouse=True)
def as_on_ranks():
    """Have calls recorded, which torch decides at the first call of a process."""
    os.environ["TORCH_FR_BUFFER_SIZE"] = ENVIRONMENT["TORCH_FR_BUFFER_SIZE"]


@relies_on(internals, "flight_recorder", "READERS")
def test_the_flight_recorder_has_each_collective_with_its_stack_and_imports_no_compiler(world):
    compiler = "torch._inductor" in sys.modules
    dist.all_reduce(torch.ones(3))
    last = internals.flight_recorder("gloo", "nccl")[-1]
    assert (last["profiling_name"], last["input_sizes"], last["input_dtypes"]) == ("gloo:all_reduce", [[3]], ["Float"])
    assert last["process_group"][0] == world.group_name
    assert not last["is_p2p"]
    assert {"time_created_ns", "state", "op_id", "collective_seq_id", "output_sizes", "output_dtypes"} <= last.keys()
    assert any(frame["filename"] == __file__ and frame["line"] for frame in last["frames"])
    assert "frames" not in internals.flight_recorder("gloo", frames=False)[-1]
    assert ("torch._inductor" in sys.modules) == compiler
