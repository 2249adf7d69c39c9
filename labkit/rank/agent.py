"""Answer the lab's questions on the engine's control thread, also while the main thread is blocked.

`attach` is called once an engine; `prepare` makes a rank ready for the learner. What the agent knows of a blocked
cell it reads from the main thread's stack; what a cell did, the recorder remembers.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from labkit.floor import file_limit, kernel_internals, source_lines, timestamps
from labkit.floor.errors import LabError
from labkit.floor.source_lines import is_cell
from labkit.rank import (
    anysource,
    async_cells,
    cell_end,
    children,
    comms,
    debugger,
    deferred_interrupt,
    describe,
    flags,
    frames,
    gloo,
    group,
    group_counters,
    guard,
    namespace,
    output,
    recorder,
    settings,
    tiny,
    torch_internals,
    triton_mode,
)
from labkit.rank.clock import timed
from labkit.rank.copies import shell
from labkit.rank.footprint import footprint
from labkit.rank.memory import peak
from labkit.rank.spans import span
from labkit.rank.stream import kernels
from labkit.rank.torch_aliases import add_newest
from labkit.theory.samples import Timing

# Seconds in one call of C after which it may be one that waits for the GPU: less than `time_limits.RANKS_LOOK`.
RESTS = 0.2
FIRST = 500  # thousandths of the memory that there is: by so much larger a rank seems to Linux, which kills the largest
MAIN = threading.main_thread().ident or 0
NOWHERE = {"op": None, "line": None, "function": None, "source": "", "imports": False}  # in no cell, in no call


def attach() -> None:
    """Answer `labkit_request` messages on the engine's control channel."""
    _go_first()
    settings.let_old_names_be()
    kernel = shell().kernel  # type: ignore[attr-defined]  # an engine's shell has one
    if kernel.control_thread is None:
        _control_thread(kernel)
    kernel.log.setLevel(logging.WARNING)  # it would make records of each message, and write none of them
    shell().ask_exit = refuse_exit  # type: ignore[attr-defined]  # what exit() and quit() call

    def labkit_request(stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        content = parent["content"]
        try:
            reply = {"status": "ok", "value": ACTIONS[content["do"]](*content.get("with", ()))}
        except Exception as error:
            reply = {"status": "error", "value": f"{type(error).__name__}: {error}"}
        kernel.session.send(stream, "labkit_reply", reply, parent=parent, ident=ident)

    kernel.control_handlers["labkit_request"] = labkit_request
    kernel.pre_handler_hook = lambda: setattr(kernel, "saved_sigint_handler", signal.signal(signal.SIGINT, _sigint))
    shell().set_hook("show_in_pager", show, 0)
    for stream in (sys.stdout, sys.stderr):
        if kernel_internals.is_outstream(stream):
            stream.flush = functools.partial(_flush, stream)  # type: ignore[method-assign]
    for event, callback in (("pre_run_cell", _note_counts), ("post_run_cell", _put_back)):
        if callback not in shell().events.callbacks[event]:
            shell().events.register(event, callback)


def _go_first() -> None:
    """Have Linux kill this rank, and not the notebook or the fork server, should memory run out: it is replaced."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "r+") as f:
        f.write(str(min(int(f.read()) + FIRST, 1000)))


def _put_back(_: Any = None) -> None:
    with contextlib.suppress(OSError):  # no descriptor is left: it is told when the rank joins
        file_limit.put_back()


def _flush(stream: Any) -> None:
    """Flush what a rank has printed, if it has; ipykernel asks six times a message, each time by way of a thread."""
    if kernel_internals.has_unsent(stream):
        type(stream).flush(stream)


def _control_thread(kernel: Any) -> None:
    """Listen to the control channel on a thread, as later engines do: those of ipyparallel 8 hear it between cells."""
    from ipykernel.control import ControlThread
    from zmq.eventloop.zmqstream import ZMQStream

    stream = kernel.control_stream
    stream.stop_on_recv()
    stream.io_loop.remove_handler(stream.socket)
    kernel.control_thread = thread = ControlThread(daemon=True)
    kernel.left_queue = kernel.control_queue  # the main thread's loop waits there for ever, and complains if it goes
    kernel.control_queue = type(kernel.left_queue)()
    kernel.control_stream = ZMQStream(stream.socket, thread.io_loop)
    kernel.control_stream.on_recv(kernel.dispatch_control, copy=False)
    thread.io_loop.add_callback(kernel.poll_control_queue)
    thread.start()


def _sigint(signum: int, frame: FrameType | None) -> None:
    """Interrupt a cell, and nothing else: a request would go without its reply where the engine's own code is hit."""
    if async_cells.interrupt(frame):
        return
    if deferred_interrupt.runs(frames.callers(frame)) and not deferred_interrupt.postponed(frame):
        source_lines.interrupt(frame)


def show(_: Any, data: Any, start: int = 0, screen_lines: int = 0) -> None:
    """Print what `timed?` and `timed??` have to say: an engine has no pager."""
    print(data["text/plain"] if isinstance(data, dict) else data)


def refuse_exit() -> None:
    """Refuse exit() and quit(): a rank that left would die a moment later, in the middle of another cell."""
    raise LabError("exit() and quit() do not end a rank. Let the cell end, or call lab.stop() in the notebook.")


def prepare(guarded: bool, rank: int, world_size: int, *meeting: Any) -> dict[str, Any]:
    """Join the group (`group.join`) and give the learner's namespace the names in `labkit.theory.cells.GIVEN`."""
    file_limit.spare("this rank")
    attach()
    add_newest()
    anysource.install()
    async_cells.install(shell())
    children.install(shell())
    recorder.install(shell())
    cell_end.install(shell())
    (guard.on if guarded else guard.off)()
    output.install(shell(), rank)
    facts = group.join(rank, world_size, *meeting)
    _note_counts()
    device = torch.device(facts["device"])
    triton_mode.choose(interpret=device.type == "cpu")
    namespace.give(
        shell(),
        {
            "torch": torch,
            "dist": dist,
            "rank": rank,
            "world_size": world_size,
            "device": device,
            "comms": comms,
            "timed": timed,
            "tiny": tiny,
            "footprint": footprint,
            "peak": peak,
            "span": span,
        },
    )
    debugger.install(shell(), rank)
    return {**facts, **memory()}


def look(expression: str) -> dict[str, Any]:
    """Describe the value of an expression in the learner's namespace; a missing name is said, not raised."""
    return describe.find(expression, shell().user_ns)


def pull(expression: str) -> tuple[str, Any]:
    """Return (error, value): an expression's value as plain data, which is all that may cross to the notebook."""
    try:
        return "", plain(eval(expression, shell().user_ns))
    except Exception as error:
        return f"{type(error).__name__}: {error}", None


def readings(expression: str) -> tuple[str, Any]:
    """Return (error, seconds): the times that an expression holds on this rank; of a `Timing` the rank's own ones."""
    try:
        value = eval(expression, shell().user_ns)
        if isinstance(value, Timing):
            rank, ranks = dist.get_rank(), len(value.samples[0])
            if ranks != dist.get_world_size():
                raise TypeError(f"it was timed by a group of {ranks} ranks, and it is not known which group")
            return "", [repeat[rank] for repeat in value.samples]
        value = plain(value)
        return "", [float(v) for v in getattr(value, "flat", value)]
    except Exception as error:
        return f"{type(error).__name__}: {error}", None


def plain(value: Any) -> Any:
    """Turn tensors, also those in containers, into numpy arrays; numpy lacks bfloat16, which becomes float32."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    if isinstance(value, dict):
        return {plain(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)) or type(value).__module__ == "numpy":
        return value
    raise TypeError(f"a {type(value).__name__} cannot leave its rank; pull numbers, text or tensors of it")


def made(value: Any, dtype: str, device: torch.device) -> Any:
    """Turn numpy arrays, also those in containers, into tensors with memory of their own."""
    if isinstance(value, np.ndarray):
        tensor = torch.tensor(value)
        tensor = tensor.to(getattr(torch, dtype)) if dtype and tensor.is_floating_point() else tensor
        return tensor.to(device)
    if isinstance(value, dict):
        return {k: made(v, dtype, device) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(made(v, dtype, device) for v in value)
    return value


def push(values: dict[str, Any]) -> None:
    """Put variables into the learner's namespace."""
    shell().user_ns.update(values)


def where() -> dict[str, Any]:
    """Tell what this rank does: idle, computing, or inside a collective, and at which line of the cell."""
    did = frames.look(MAIN, _where)
    if debugger.stands():
        return {**did, "state": "prompt", "op": None}
    if did["state"] == "computing" and did["line"] and frames.look(MAIN, frames.blocks):
        # Where the main thread waits for one of the learner's threads, that is what this one waits in.
        for thread in threading.enumerate():
            if thread.ident not in (MAIN, threading.get_ident()):
                its = frames.look(thread.ident or 0, functools.partial(_in_cell, str(thread.native_id)))
                if its["state"] == "collective":
                    return its if its["line"] else {**its, "line": did["line"], "function": did["function"]}
    return did


def _where(found: list[FrameType]) -> dict[str, Any]:
    stack = [frame for frame in found if not frames.stands_between(frame)]
    runs = deferred_interrupt.runs(stack)
    within = any(is_cell(frame.f_code.co_filename) or frames.in_lesson(frame) for frame in stack)
    if runs and (within or group.joined()):
        return _in_cell(str(os.getpid()), found)  # not what joins a group: it waits in its own way
    return {"state": "computing" if runs else "idle", **NOWHERE, "imports": deferred_interrupt.imports(found)}


def _in_cell(thread: str, found: list[FrameType]) -> dict[str, Any]:
    """Tell what a thread does that runs a cell's code, or a function that labkit has called, from its frames."""
    did: dict[str, Any] = {**NOWHERE, "imports": deferred_interrupt.imports(found)}
    did |= {"steps": steps(), "moved": None if frames.connects(found) else group.moved()}
    stack = [frame for frame in found if not frames.stands_between(frame)]
    cells = [frame for frame in stack if is_cell(frame.f_code.co_filename)]
    if not stack:  # the thread has ended
        return {"state": "computing", **did, "stack": []}
    inner = cells[0] if cells else next((f for f in stack if frames.OWN.search(f.f_code.co_filename)), stack[-1])
    if cells:
        outer = cells[-1]
        did |= {"line": source_lines.line(outer), "source": frames.source(inner)}
        did["function"] = None if inner is outer else (inner.f_code.co_name, source_lines.line(inner))
    between = list(itertools.takewhile(lambda frame: frame is not inner, stack))
    op = frames.operation(between)
    main = thread == str(os.getpid())
    if op is None and main and _rests() and (call := _enqueued()):
        seen = (frames.calls(inner) or "the cell") + f" (line {did['line']})" * bool(cells)
        return {"state": "collective", **did, **call, "seen": seen, "moved": None}
    if op is None and cells and (frames.at_handle(found[0]) or (not between and frames.waits(inner))):
        op = "wait"
    if op is None and frames.in_backward(stack[0]) and gloo.rests(thread):  # C++ waits for another rank
        op = "backward"
    if op is None and (
        (frames.calls_torch(stack[0]) and gloo.holds_up(thread)) or (main and frames.in_ddp(stack[0]) and _rests())
    ):
        op = frames.machinery(between) or group_counters.newest()
    if op is None and main:
        op = flags.waits_in()
    learners = frames.learners(stack) if op is None and cells else []
    return {"state": "computing" if op is None else "collective", **did, "op": op, "stack": learners}


_asked: float | None = None  # when the main thread was asked for a sign that it runs Python; None where it gave it


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
def _sign(_: Any) -> int:
    global _asked
    _asked = None
    return 0


def _rests() -> bool:
    """Tell whether the main thread has run no Python for a while: it is in a call of C, which may wait for the GPU."""
    global _asked
    now, asked = timestamps.now(), _asked  # which the sign may take back at any moment
    if asked is None:
        _asked = asked = now
        # Python calls back in that thread as soon as the call is over, or at the next turn of a loop.
        ctypes.pythonapi.Py_AddPendingCall(_sign, None)
    return now - asked > RESTS


def _enqueued() -> dict[str, Any] | None:
    """Find the learner's first call that the GPU has not completed, and where it was made; None where there is none."""
    if not dist.is_initialized() or group.aborted() or (call := group_counters.enqueued(group.times()[0])) is None:
        return None
    made = [f for f in call.frames if is_cell(f["filename"])]
    return {
        "op": frames.named((f["filename"], f["name"]) for f in call.frames) or call.op.rpartition(".")[2],
        "line": made[-1]["line"] if made else None,
        "function": (made[0]["name"], made[0]["line"]) if len(made) > 1 else None,
    }


def abort() -> None:
    """Free this rank from a call that waits for others."""
    # A call that waits for the GPU returns as if all were well, with wrong numbers: its cell is interrupted first.
    if where().get("seen"):
        interrupt()
    group.abort()


def memory() -> dict[str, Any]:
    """Return the proportional set size of this process in bytes, 0 where Linux does not tell it."""
    with contextlib.suppress(OSError), open("/proc/self/smaps_rollup") as f:
        return {"memory": next(int(line.split()[1]) << 10 for line in f if line.startswith("Pss:"))}
    return {"memory": 0}


def steps() -> list[int]:
    """Count operations started in the world group, -1 where nothing counts them, groups made, and waits for flags."""
    started = guard.started(dist.group.WORLD) if dist.is_initialized() else -1
    return [started, torch_internals.group_count(), flags.waits()]


_at_cell_start: tuple[dict[str, int], dict[str, tuple[list[int], int]]] = {}, {}


def _counts() -> tuple[dict[str, int], dict[str, tuple[list[int], int]]]:
    return {pg.group_name: guard.started(pg) for pg in list(torch_internals.groups())}, guard.compared()


def _note_counts(_: Any = None) -> None:
    global _at_cell_start
    _at_cell_start = _counts()


def groups() -> dict[str, Any]:
    """Tell what this rank has begun in its groups, and whether it is in the one that the lab joined and that works.

    `steps` are the operations of each group that the last cell has started here. `compared` has, for each group whose
    calls are compared, its ranks and how many calls this rank has made: in the last cell, and ever. `beside` is whether
    the learner's code runs on beside the cell, and may make more. `groups` is how many groups there are; for `joined`
    see `group.joined`.
    """
    beside = _runs_beside()  # asked first: what ends now has made its calls
    started, compared = _counts()
    started_before, compared_before = _at_cell_start
    return {
        "steps": {name: n - started_before.get(name, 0) for name, n in started.items()},
        "compared": {
            name: (ranks, n - compared_before.get(name, ((), 0))[1], n) for name, (ranks, n) in compared.items()
        },
        "beside": beside,
        "groups": len(torch_internals.groups()),
        "joined": group.joined(),
    }


def told() -> str:
    """Return `groups()` as JSON, which a cell's reply takes along."""
    return json.dumps(groups())


def _runs_beside() -> bool:
    """Tell whether the learner's code runs in a thread, or in a task that goes on once another cell awaits."""
    with frames.looking:
        others = frames.others()
    return async_cells.unfinished() or any(frames.look(thread, _is_learners) for thread in others)


def _is_learners(found: list[FrameType]) -> bool:
    """Tell whether a thread runs the learner's code, or is about to: it has just begun, or is a timer."""
    files = {frame.f_code.co_filename for frame in found}
    return files == {threading.__file__} or any(map(frames.is_learners, found))


def interrupt() -> bool:
    """Raise KeyboardInterrupt in the learner's cell; tell whether there was one: an idle engine ignores it."""
    busy = where()["state"] != "idle"
    if busy:
        cell_end.interrupted()
        deferred_interrupt.interrupt_hooks()
        signal.pthread_kill(MAIN, signal.SIGINT)
    return busy


def end() -> bool:
    """End this process, as no signal from another host can; the answer leaves first."""
    threading.Timer(0.1, signal.raise_signal, (signal.SIGKILL,)).start()
    return True


ACTIONS: dict[str, Callable[..., Any]] = {
    "where": where,
    "abort": abort,
    "interrupt": interrupt,
    "end": end,
    "memory": memory,
    "groups": groups,
    "kernels": kernels,
    "ended": cell_end.last,
    "records": recorder.records,
    "debug": debugger.told,
}
