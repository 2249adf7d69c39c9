"""Torch's private names, each once, under a name that says what it means: the rest of labkit uses no other.

Written for torch 2.8 to 2.15. What has no public way says nothing of one; where there seems to be one, it is said why
it does not do. Where a newer torch has a name no more, or means something else by it,
tests/rank/test_torch_internals.py tells which, and who uses it. Functions look names up when they are called: some are
replaced while the lab runs.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, _ops, overrides
from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d
from torch.nn.modules import module
from torch.nn.parallel import distributed as ddp
from torch.utils import _device, _python_dispatch

# -- process groups -----------------------------------------------------------------------------------------------


def groups() -> dict[Any, tuple[str, Any]]:
    """Return torch's own table of its process groups, oldest first: each with its backend and its store."""
    # Nothing public lists the groups, and no public name gives one another place to meet.
    return distributed_c10d._world.pg_map


def group_names() -> set[str]:
    """Return the names of all process groups: C++ finds a group by its name, Python publicly does not."""
    return set(distributed_c10d._world.pg_names.values())


def group_ranks() -> dict[Any, dict[int, int]]:
    """Return torch's own table of the ranks of each group: the rank in the world → the rank in the group."""
    # A group comes to this table last. `dist.get_process_group_ranks` raises for one that has not or is gone.
    return distributed_c10d._world.pg_group_ranks


def made() -> list[Any]:
    """Return the groups that are made: a thread may be making one, which has no ranks yet."""
    ranks = group_ranks()
    return [group for group in list(groups()) if group in ranks]


def backend_config(group: Any) -> str:
    """Return a group's backends ("cpu:gloo,cuda:nccl"); "" for one that is gone, where the public name raises."""
    return str(distributed_c10d._world.pg_backend_config.get(group, ""))


def group_count() -> int:
    """Return the number of the next group that is made, under which its ranks meet."""
    return distributed_c10d._world.group_count


def number_groups_from(count: int) -> None:
    """Number the groups that are made from now on from `count`."""
    distributed_c10d._world.group_count = count


def set_default_group(group: Any) -> None:
    """Make this group the default one, on which `dist.…` works that is given no group."""
    distributed_c10d._update_default_pg(group)


def set_timeout(limit: timedelta, group: Any = None) -> None:
    """Let calls in a group, the default one, give up after `limit`; it has a public name since torch 2.14."""
    set_it = dist.set_timeout if hasattr(dist, "set_timeout") else distributed_c10d._set_pg_timeout
    set_it(limit, group)


def timeout_of(group: Any) -> timedelta | None:
    """Return after how long calls in a group give up; None where its backends do not tell."""
    for kind in ("cpu", "cuda"):
        with contextlib.suppress(RuntimeError, AttributeError):
            return backend_of(group, kind).options._timeout
    return None


def abort_groups() -> None:
    """Abort the communicators of all groups in one call: publicly they go one after the other, which could lock up."""
    distributed_c10d._abort_process_group()


def group_maker() -> Callable[..., Any]:
    """Return the function that makes every process group but those that are split off another one."""
    return distributed_c10d._new_process_group_helper


def set_group_maker(make_group: Callable[..., Any]) -> None:
    """Have all groups made by this function, in the place of `group_maker`'s."""
    distributed_c10d._new_process_group_helper = make_group


def wrap_group_splitter(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Wrap the method that splits a group off another one, as is done for meshes on GPUs; torch 2.8 has none."""
    if hasattr(dist.ProcessGroup, "split_group"):
        dist.ProcessGroup.split_group = wrap(dist.ProcessGroup.split_group)  # type: ignore[method-assign]


def wrap_model_verifier(wrap: Callable[[Callable[..., None]], Callable[..., None]]) -> None:
    """Wrap what DistributedDataParallel's `__init__` has a model compared by, before it sends any of it."""
    ddp._verify_param_shape_across_processes = wrap(ddp._verify_param_shape_across_processes)


def mesh_groups(mesh: dist.DeviceMesh) -> Iterable[str]:
    """Return the names of a mesh's groups; `mesh.get_all_groups()` raises where one is gone."""
    return getattr(mesh, "_dim_group_names", ())


# -- calls in a group ---------------------------------------------------------------------------------------------

RECV_ANYSOURCE = 14  # as torch's C++ numbers its operations


def backend_of(group: Any, device: str) -> Any:
    """Return the backend that does a group's calls on a kind of device; RuntimeError where it has none."""
    return group._get_backend(torch.device(device))


def calls_counted(group: Any) -> int:
    """Return how many calls a group, or a backend of it, has counted; RuntimeError where torch does not count them."""
    return int(group._get_sequence_number_for_group())


def forecast(call: Callable[[], Any], group: Any, device: torch.device) -> float | None:
    """Return the seconds that a group's backend itself forecasts for what `call` calls, of which nothing is run.

    NCCL alone does, and not for every call; None where there is no forecast.
    """
    try:
        with distributed_c10d._time_estimator(group, device) as told:
            call()
    except NotImplementedError:
        return None
    return told.estimated_time / 1e6 if told.estimated_time is not None and told.estimated_time >= 0 else None


def receives_from_any(work: Any) -> bool:
    """Tell whether a Work is a receive that takes from whichever rank sends."""
    return bool(work._get_op_type() == RECV_ANYSOURCE)


def source_rank(work: Any) -> int:
    """Return the rank in the group that a received message came from; the public `source_rank` warns that it goes."""
    return int(work._source_rank())


# -- operations ---------------------------------------------------------------------------------------------------

BACKEND_SELECT = torch._C.DispatchKey.BackendSelect  # under which the dispatcher passes every call first
BETWEEN_RANKS = ("c10d", "_c10d_functional", "_dtensor")  # how names in torch.ops begin of what ranks do together
DISPATCHER = _ops.__file__  # where Python hands an operation to C++
FUNCTIONAL = str(Path(dist.__file__).with_name("_functional_collectives.py"))  # where those are
DTENSOR = str(Path(dist.__file__).with_name("tensor") / "_api.py")  # where a DTensor's methods are


class OperationMode(_python_dispatch.TorchDispatchMode):
    """A mode that is told of every operation."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch imports its compiler at the first operation, which takes longer than a run may compute


def argument_names(operation: Any) -> list[str]:
    """Return the names of an operation's arguments, one of `torch.ops`: those have no signature for `inspect`."""
    return [argument.name for argument in operation._schema.arguments]


REDUCING = (  # the methods of a group that reduce
    "allreduce", "allreduce_coalesced", "reduce",
    "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced",
)  # fmt: skip
_asked = threading.local()  # the number of the reduction that Python asks for, while a method of a group runs


def reduction(op: Any) -> int | None:
    """Return the number of the reduction that an operation was given; None where torch 2.8 keeps it to C++."""
    return op.op() if op._has_method("op") else getattr(_asked, "number", None)


def _number(op: Any) -> int:
    return int(getattr(op, "op", op))  # a ReduceOp, or one of its kinds


def note_reductions() -> None:
    """Let `reduction` know what Python asks for where operations do not tell, as up to torch 2.9."""

    def noting(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def noted(*given: Any, **named: Any) -> Any:
            asked = [getattr(each, "reduceOp", each) for each in (*given, *named.values())]
            ops = [op for op in asked if isinstance(op, (dist.ReduceOp, dist.ReduceOp.RedOpType))]
            _asked.number = _number(ops[0] if ops else dist.ReduceOp.SUM)
            try:
                return method(*given, **named)
            finally:
                _asked.number = None

        return noted

    if torch.torch_version.TorchVersion(torch.__version__) < "2.10":
        for name in REDUCING:
            setattr(dist.ProcessGroup, name, noting(getattr(dist.ProcessGroup, name)))


def take_out(library: torch.library.Library) -> None:
    """Take a library's implementations out of the dispatcher now, not when the garbage collector comes to it."""
    library._destroy()


# -- what can be set for the whole process ------------------------------------------------------------------------

PRINT_OPTIONS = vars(torch._tensor_str.PRINT_OPTS)  # `torch.set_printoptions` sets these, and nothing public reads them
MODULE_HOOKS: list[dict[Any, Any]] = [  # of all modules; each is public to add to, one's own hooks alone to remove
    hooks for name, hooks in sorted(vars(module).items()) if name.startswith("_global_") and name.endswith("hooks")
]


def default_device() -> torch.device | None:
    """Return what `torch.set_default_device` was told; None where nothing was, where its getter says "cpu"."""
    return _device.CURRENT_DEVICE


def modes() -> tuple[int, int]:
    """Return how many of torch's modes have been entered and not left: of functions, of operations."""
    return torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()


def leave_modes(left: tuple[int, int]) -> None:
    """Leave the modes that were entered last, until so many of functions and of operations are left."""
    for _ in range(modes()[0] - left[0]):
        overrides._pop_mode()
    for _ in range(modes()[1] - left[1]):
        _held = _python_dispatch._get_current_dispatch_mode()  # up to 2.10 it would be freed while it is taken off
        _python_dispatch._pop_mode()


def saved_hooks() -> Any:
    """Return the pair that packs and unpacks what a backward pass will need; None where there is none."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False)


def leave_saved_hooks(before: Any) -> None:
    """Leave the pairs that were entered last, until this one is the last."""
    while (top := saved_hooks()) is not None and top != before:
        torch._C._autograd._pop_saved_tensors_default_hooks()


# -- autograd -----------------------------------------------------------------------------------------------------

RUN_BACKWARD = "_engine_run_backward"  # the function of torch.autograd.graph that runs every backward pass


def backward_number() -> int:
    """Return the number of the backward pass that this thread works for; -1 where it works for none."""
    return int(getattr(torch._C, "_current_graph_task_id", lambda: -1)())


def at_backwards_end(callback: Callable[[], Any]) -> None:
    """Call this behind the backward pass that runs, after what was queued before; RuntimeError where none runs."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def is_view(tensor: Tensor) -> bool:
    """Tell whether a tensor looks into another one's memory, as autograd sees it."""
    return tensor._is_view()


# -- memory -------------------------------------------------------------------------------------------------------

COO_PARTS = ("_indices", "_values")  # a sparse tensor's methods: the public ones refuse one that is not coalesced


def storage_id(storage: torch.UntypedStorage) -> int:
    """Return a number that a storage alone has while it lives, also one without memory; `id` is its Python object's."""
    return int(storage._cdata)


def storage_behind(weak: Any) -> Any:
    """Return the storage that a `StorageWeakRef` is of; None where it is gone."""
    return torch.UntypedStorage._new_with_weak_ptr(weak.cdata)


def held_by_fully_shard(model: torch.nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield what `fully_shard` holds beside the parameters that a model has just now: its shards, or the whole ones.

    Each comes as "weights" or "gradients". A module has a list of groups, in an older torch one group. Where a later
    torch has other names, the optimizer still has the shards.
    """
    for part in model.modules():
        get_state: Any = getattr(part, "_get_fsdp_state", None)
        state = get_state() if get_state else None
        found: Iterable[Any] = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
        for parameter in (p for group in found for p in getattr(group, "fsdp_params", ())):
            for name in ("sharded_param", "_sharded_post_forward_param", "_unsharded_param"):
                tensor = getattr(parameter, name, None)
                if tensor is not None:
                    yield "weights", tensor
                    if tensor.grad is not None:
                        yield "gradients", tensor.grad
            for tensor in getattr(parameter, "all_gather_outputs", ()):
                yield "weights", tensor
            if (gradient := getattr(parameter, "unsharded_accumulated_grad", None)) is not None:
                yield "gradients", gradient


# -- the flight recorder ------------------------------------------------------------------------------------------

READERS = {"gloo": "_dump_fr_trace", "nccl": "_dump_nccl_trace"}  # torch with NCCL keeps its calls apart


def flight_recorder(*backends: str, active: bool = False, frames: bool = True) -> list[dict[str, Any]]:
    """Return its entries of these backends' calls, by default with stacks; `active`: of calls not complete."""
    # To find names for compiled code, torch looks for `torch._inductor`, and so imports it: 2 s and 70 MiB.
    stub = "_inductor" not in vars(torch)
    if stub:
        vars(torch)["_inductor"] = None
    try:
        dumps = [getattr(_distributed_c10d, READERS[backend], None) for backend in backends]
        return [e for dump in dumps if dump for e in pickle.loads(dump(True, frames, active)).get("entries", ())]
    finally:
        if stub and vars(torch).get("_inductor") is None:
            vars(torch).pop("_inductor", None)
