"""A backend that does on CPUs what NCCL was seen to do on a GPU, so that the lab can be held to it without one.

It stands beside Gloo in each group, and
- listens while the group is made and connects later: at the first collective around a ring, and for each pair of ranks
  at their first send, without an event loop;
- returns from a call once it is enqueued, and carries calls out on a thread of its own, in order;
- lets `synchronize` wait in C, where no signal ends it: all calls must be done, or aborted from another thread;
- tells like NCCL's flight recorder which calls are enqueued and not complete.

A lab whose fork server imports this module (`LABKIT_PRELOAD`) can join with the backend "standin".
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import pickle
import queue
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d

from labkit.rank import call_facts, group

ABORTED = (  # what a call of NCCL's says that was aborted while it set up
    "/pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, internal error - please report this issue to the NCCL "
    "developers, NCCL version 2.28.9\nncclInternalError: Internal check failed.\nLast error:\n"
)
HELLO = struct.Struct("II")  # who connects, and whether for a pair rather than for the ring
libc = ctypes.CDLL(None)
_gate = ctypes.create_string_buffer(64)  # all zeros: a lock of pthread's that nobody holds; the stream's in its calls
_stream: queue.SimpleQueue[tuple[Standin, Callable[[], None], dict[str, Any]]] = queue.SimpleQueue()
broken = False  # this process can join no group any more
sets_up = False  # an all-reduce waits for the other ranks in the call itself, as NCCL's first one, and fails there
_shut, _turn = threading.Event(), threading.Lock()
_entries: list[dict[str, Any]] = []  # the flight recorder's

# Waits until all enqueued calls are done, as `torch.cuda.synchronize` does, in one call of C that no signal ends.
synchronize = item = functools.partial(libc.pthread_rwlock_rdlock, ctypes.byref(_gate))


class Enqueued(dist.Work):
    """The handle of an enqueued call; on a GPU only the stream waits for it."""

    def wait(self, timeout: Any = None) -> bool:
        return True


class Standin(dist.ProcessGroup):
    """One group of ranks: Gloo's part, and the stand-in's own."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        if broken:
            raise RuntimeError("not in a group call")
        gloo = distributed_c10d.ProcessGroupGloo(dist.PrefixStore("gloo/", store), rank, size, timeout=timeout)
        if hasattr(gloo, "_set_sequence_number_for_group"):  # before torch 2.14
            gloo._set_sequence_number_for_group()
        self._register_backend(torch.device("cuda"), dist.ProcessGroup.BackendType.GLOO, gloo)
        self._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        self.gloo, self.me, self.n, self.store = gloo, rank, size, store
        self.listening = socket.create_server(("127.0.0.1", 0))
        store.set(f"standin/{rank}", str(self.listening.getsockname()[1]))
        self.came: dict[tuple[int, int], socket.socket] = {}
        self.sockets: dict[tuple[int, int], socket.socket] = {}
        self.aborted, self.number = threading.Event(), 0
        if "standin" not in {thread.name for thread in threading.enumerate()}:
            threading.Thread(target=_carry_out, daemon=True, name="standin").start()

    # -- calls --------------------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None) -> Enqueued:
        if sets_up:
            self._set_up()
        return self._enqueue("all_reduce", tensors[0], lambda: self._around(tensors[0]))

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Enqueued:
        return self._enqueue(f"send {self.me}->{dst}", tensors[0], lambda: self._give(self._to(dst, 1), tensors[0]))

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Enqueued:
        return self._enqueue(f"recv {self.me}<-{src}", tensors[0], lambda: self._take(self._from(src, 1), tensors[0]))

    def barrier(self, opts: Any = None) -> Any:
        return self.gloo.barrier()

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        return self.gloo.broadcast(tensors, opts)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self.gloo.allgather(outputs, inputs)

    def abort(self) -> None:
        """End every call that is due: nothing raises, and results are wrong."""
        self.aborted.set()
        for s in (*self.sockets.values(), *self.came.values(), self.listening):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)

    def _get_sequence_number_for_group(self) -> int:
        return self.number

    def getBackendName(self) -> str:
        return "standin"

    # -- the stream ---------------------------------------------------------------------------------------------------

    def _enqueue(self, op: str, tensor: torch.Tensor, carry_out: Callable[[], None]) -> Enqueued:
        self.number += 1
        frames, frame = [], sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            frames.append({"name": code.co_name, "filename": code.co_filename, "line": frame.f_lineno})
            frame = frame.f_back
        sizes, dtypes = [list(tensor.shape)], ["Float"]
        entry = {
            "profiling_name": f"nccl:{op}", "frames": frames, "process_group": (self.group_name, ""),
            "collective_seq_id": self.number, "op_id": self.number, "is_p2p": "all" not in op, "state": "scheduled",
            "input_sizes": sizes, "output_sizes": sizes, "input_dtypes": dtypes, "output_dtypes": dtypes,
            "time_created_ns": time.time_ns(),
        }  # fmt: skip
        _entries.append(entry)
        with _turn:
            _stream.put((self, carry_out, entry))
        _shut.wait()
        return Enqueued()

    def _set_up(self) -> None:
        try:
            self.gloo.barrier().wait()
        except RuntimeError:
            raise dist.DistBackendError(f"NCCL error in: {ABORTED}") from None

    def _around(self, tensor: torch.Tensor) -> None:
        to, of = self._to((self.me + 1) % self.n, 0), self._from((self.me - 1) % self.n, 0)
        passed, total = tensor.clone(), tensor.clone()
        for _ in range(self.n - 1):
            self._give(to, passed)
            self._take(of, passed)
            total += passed
        tensor.copy_(total)

    def _to(self, rank: int, pair: int) -> socket.socket:
        if (rank, pair) not in self.sockets:
            port = int(self.store.get(f"standin/{rank}"))
            self.sockets[rank, pair] = s = socket.create_connection(("127.0.0.1", port))
            s.sendall(HELLO.pack(self.me, pair))
        return self.sockets[rank, pair]

    def _from(self, rank: int, pair: int) -> socket.socket:
        while (rank, pair) not in self.came:
            s, _ = self.listening.accept()
            self.came[HELLO.unpack(s.recv(HELLO.size, socket.MSG_WAITALL))] = s  # type: ignore[index]
        return self.came[rank, pair]

    @staticmethod
    def _give(to: socket.socket, tensor: torch.Tensor) -> None:
        to.sendall(tensor.contiguous().numpy().tobytes())

    @staticmethod
    def _take(of: socket.socket, tensor: torch.Tensor) -> None:
        data = of.recv(tensor.nbytes, socket.MSG_WAITALL)
        if len(data) < tensor.nbytes:
            raise OSError("the other side is gone")
        tensor.copy_(torch.frombuffer(bytearray(data), dtype=tensor.dtype).reshape(tensor.shape))


def _carry_out() -> None:
    """Carry out one call after the other; the gate is shut from when one is enqueued until none is due."""
    while True:
        its, carry_out, entry = _stream.get()
        if not _shut.is_set():
            ctypes.memset(_gate, 0, len(_gate))
            libc.pthread_rwlock_wrlock(_gate)
            _shut.set()
        entry["state"] = "started"
        if not its.aborted.is_set():
            try:
                carry_out()
            except OSError:  # the sockets are shut: where the other side is gone, NCCL's kernels go on until an abort
                its.aborted.wait()
        entry["state"] = "completed"
        with _turn:
            if _stream.empty():
                _shut.clear()
                libc.pthread_rwlock_unlock(_gate)


def _dump(collectives: bool, stacks: bool, active: bool) -> bytes:
    return pickle.dumps({"entries": [e for e in _entries if not active or e["state"] != "completed"]})


dist.Backend.register_backend("standin", Standin, devices=["cpu"])
vars(_distributed_c10d)["_dump_nccl_trace"] = _dump
group.BACKENDS["standin"] = "cpu:standin"
group.ABORTED.add("standin")
call_facts.ENQUEUES.add("cpu")
