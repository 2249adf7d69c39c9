"""Import torch once and fork every engine, so that four ranks start and weigh like one: the fork server.

`python -m labkit.cluster.forkserver` is given a listening Unix socket in the private run directory and answers
one JSON object a line: `fork` a controller or an engine, `preload` torch, `exits` of children, `gpus`. It has one
thread and never touches CUDA or ZeroMQ itself, because neither survives a fork. It may be given pidfds of processes as
well, the run's owner and its reaper: once all of these have ended it does the reaper's work.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from labkit.cluster.process import STACKS
from labkit.cluster.rundir import TAG, reaper_command

NOBODY = -1  # the number of an owner that has ended
APPS = {
    "controller": ("labkit.cluster.controller", "Controller"),
    "engine": ("ipyparallel.engine.app", "IPEngine"),
}
# What engines and the learner's first cells need, by name: this room must not depend on the rooms of the ranks.
# debugpy is kept out: no debugger reaches a rank, and it would cost each of them 40 ms. LABKIT_PRELOAD names more of
# them: tests that train in many notebooks import torch._dynamo once instead of once a rank.
PRELOAD = (
    "torch",
    "torch.distributed",
    "ipyparallel.engine.app",
    "ipykernel.debugger",
    "IPython.core.completerlib",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
    "stack_data",  # from IPython 8 on
    "tornado.platform.asyncio",
    "encodings.idna",
    "labkit.rank.agent",
)


class ForkServer:
    """Children by pid, and what became of the ended ones; `serve` runs until it is told to end."""

    def __init__(self, listener: socket.socket, guards: Iterable[int] = ()) -> None:
        self.listener = listener
        self.guards = set(guards)  # pidfds of processes of which one must live
        self.selector = selectors.DefaultSelector()
        self.children: set[int] = set()
        self.exits: dict[int, int] = {}
        self.ending = False

    def serve(self) -> None:
        wake, woken = os.pipe()
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self.end)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.selector.register(wake, selectors.EVENT_READ, lambda: os.read(wake, 4096))
        self.selector.register(self.listener, selectors.EVENT_READ, self.accept)
        for guard in self.guards:
            self.selector.register(guard, selectors.EVENT_READ, functools.partial(self.ended, guard))
        told = False
        while not (self.ending and not self.children):
            for key, _ in self.selector.select():
                key.data()
            self.reap()
            if self.ending and not told:
                told = True
                for pid in self.children:
                    os.kill(pid, signal.SIGTERM)

    def end(self, *_: Any) -> None:
        self.ending = True

    def ended(self, guard: int) -> None:
        """Note that the process behind this pidfd has ended."""
        self.selector.unregister(guard)
        self.guards.remove(guard)
        os.close(guard)
        if not self.guards:
            self.become_reaper()

    def become_reaper(self) -> NoReturn:
        """End and remove everything of the run: its owner has ended, and its reaper was killed."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # until the reaper has its own handler
        tag, written = os.pipe()
        os.write(written, f"{TAG}={os.environ.pop(TAG)}\n".encode())
        os.close(written)
        os.dup2(tag, 0)
        os.execv(sys.executable, reaper_command(NOBODY, Path(self.listener.getsockname()).parent))

    def reap(self) -> None:
        """End what ended children left in their process groups; then collect them, which frees their numbers."""
        while self.children and (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)):
            pid = ended.si_pid
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            self.exits[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            self.children.discard(pid)

    def accept(self) -> None:
        connection, _ = self.listener.accept()
        reader = connection.makefile("rb")

        def answer() -> None:
            line = reader.readline()
            if not line:
                self.selector.unregister(connection)
                reader.close()
                connection.close()
                return
            try:
                request = json.loads(line)
                reply = getattr(self, "do_" + request.pop("do"))(**request)
            except Exception as error:
                reply = {"error": f"{type(error).__name__}: {error}"}
            connection.sendall(json.dumps(reply).encode() + b"\n")

        self.selector.register(connection, selectors.EVENT_READ, answer)

    def do_import(self, kind: str) -> dict[str, Any]:
        importlib.import_module(APPS[kind][0])
        return {}

    def do_preload(self) -> dict[str, Any]:
        """Import what engines need; freeze it, so that the garbage collector of a child copies none of it."""
        sys.modules.setdefault("debugpy", None)  # type: ignore[arg-type]  # ipykernel then goes without a debugger
        for name in (*PRELOAD, *os.environ.get("LABKIT_PRELOAD", "").split()):
            if name != "stack_data" or find_spec(name):
                importlib.import_module(name)
        gc.freeze()
        return {"torch": sys.modules["torch"].__version__}

    def do_gpus(self) -> dict[str, Any]:
        """Count the GPUs in a child, since asking CUDA here would spoil every later fork."""
        if not sys.modules["torch"].backends.cuda.is_built():
            return {"gpus": 0}
        read, write = os.pipe()
        pid = self.fork(lambda: os.write(write, str(sys.modules["torch"].cuda.device_count()).encode()))
        os.close(write)
        with os.fdopen(read, "rb") as f:
            count = f.read()
        os.waitpid(pid, 0)
        return {"gpus": int(count or 0)}

    def do_exits(self) -> dict[str, Any]:
        self.reap()
        return {"exits": self.exits}

    def do_fork(self, kind: str, args: list[str], env: dict[str, str], log: str) -> dict[str, Any]:
        """Become an ipyparallel controller or engine in a child of its own process group; reply with pid and tag."""
        module, name = APPS[kind]
        importlib.import_module(module)

        def become() -> None:
            os.setsid()
            with open(os.devnull, "rb") as null, open(log, "ab") as out:
                os.dup2(null.fileno(), 0)
                os.dup2(out.fileno(), 1)
                os.dup2(out.fileno(), 2)
                faulthandler.register(STACKS, file=os.dup(out.fileno()))  # ipykernel takes 1 and 2 away
            os.environ.update(env)
            sys.argv = [f"ip{kind}", *args]
            for drawing in {"numpy.random", "torch"} & sys.modules.keys():
                sys.modules[drawing].seed()  # or all forks would draw the same "random" numbers
            getattr(sys.modules[module], name).launch_instance(args)

        pid = self.fork(become)
        self.children.add(pid)
        return {"pid": pid, "tag": os.environ.get(TAG, "")}

    def fork(self, become: Callable[[], Any]) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            gc.enable()
            signal.set_wakeup_fd(-1)
            for sig in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
                signal.signal(sig, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for key in list(self.selector.get_map().values()):
                fd = key.fd
                if fd != self.listener.fileno():
                    os.close(fd)
            self.selector.close()
            self.listener.close()
            become()
            code = 0
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


if __name__ == "__main__":
    gc.disable()  # it would search 200,000 objects that imports make, and find no garbage
    listening, *watched = map(int, sys.argv[1:])
    ForkServer(socket.socket(fileno=listening), watched).serve()
    os._exit(0)  # taking torch's modules apart would last 0.1 s, on a busy machine 0.4
