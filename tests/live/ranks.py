"""Real ranks for tests: processes forked once for a test module, which run code as a `%%px` cell does.

    ranks = Ranks(4)
    ranks("comms.all_reduce(x)", x=Each([1, 2, 3, 4]))      # → [10, 10, 10, 10]
    ranks.refused("comms.all_reduce(x, op)", x=1, op="median")  # → the LabError's text, equal on all ranks

They meet in a file, talk over the loopback only, and give up soon: a case that hangs costs LIMIT seconds,
then its ranks are killed and new ones forked for the next case. A warning on a rank is an error.
"""

from __future__ import annotations

import ast
import multiprocessing
import os
import pickle
import tempfile
import traceback
import warnings
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

LIMIT = 15.0  # seconds a case may take; a call between ranks gives up after half of that


class Each(list):
    """A value for each rank, where a plain one is the same on all of them."""


class RankError(AssertionError):
    """A case raised on some rank; the text is that rank's traceback."""


class Ranks:
    """n processes in one process group. Use as a context manager, or call `stop`."""

    def __init__(self, n: int) -> None:
        self.n = n
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self._generation = 0
        self._workers: list[tuple[Any, Connection]] = []

    def __call__(self, code: str, **names: Any) -> list[Any]:
        """Run the code on every rank; the value of its last line from each. Names are set beforehand."""
        results = self._run(code, names)
        failed = [f"rank {rank}: {text}" for rank, (kind, _, text) in enumerate(results) if kind != "value"]
        if failed:
            self.stop()  # the group may be out of step
            raise RankError("\n".join(failed))
        return [value for _, value, _ in results]

    def refused(self, code: str, **names: Any) -> str:
        """The text of the LabError that the code raises on every rank; anything else fails."""
        results = self._run(code, names)
        kinds = {kind for kind, _, _ in results}
        texts = {value for _, value, _ in results}
        if kinds != {"LabError"} or len(texts) != 1:
            self.stop()
            raise RankError(f"not one LabError on all ranks but {[result[:2] for result in results]}")
        return str(texts.pop())

    def outcomes(self, code: str, **names: Any) -> list[Any]:
        """The value or the error's text from each rank, for what fails on some of them only."""
        return [value for _, value, _ in self._run(code, names)]

    def _run(self, code: str, names: dict[str, Any]) -> list[tuple[str, Any, str]]:
        if not self._workers:
            self._start()
        for rank, (_, pipe) in enumerate(self._workers):
            mine = {name: value[rank] if isinstance(value, Each) else value for name, value in names.items()}
            pipe.send_bytes(pickle.dumps((code, mine)))
        results = []
        for rank, (_, pipe) in enumerate(self._workers):
            try:
                if not pipe.poll(LIMIT):
                    raise TimeoutError(f"no answer after {LIMIT:g} s")
                results.append(pickle.loads(pipe.recv_bytes()))
            except (EOFError, OSError) as error:
                self.stop()
                raise RankError(f"rank {rank} hangs or died ({error!r}) in\n{code}") from error
        return results

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch.distributed", "labkit.rank.comms", "labkit.rank.clock"])
        self._generation += 1
        meeting = str(Path(self._folder.name) / f"store-{self._generation}")
        for rank in range(self.n):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, self.n, meeting, theirs), daemon=True)
            process.start()
            theirs.close()
            self._workers.append((process, ours))

    def stop(self) -> None:
        """Kill the processes; the next case starts new ones."""
        for process, pipe in self._workers:
            pipe.close()
            process.kill()
        for process, _ in self._workers:
            process.join(5)
        self._workers = []

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        self._folder.cleanup()


def _serve(rank: int, n: int, meeting: str, pipe: Connection) -> None:
    """What one process does: join the group, then run what comes down the pipe until it is killed."""
    os.environ.update(GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
    import torch
    import torch.distributed as dist

    from labkit.rank import comms, tiny
    from labkit.rank.clock import timed
    from labkit.rank.footprint import footprint
    from labkit.rank.memory import peak

    torch.set_num_threads(1)
    limit = timedelta(seconds=LIMIT / 2)
    dist.init_process_group("gloo", store=dist.FileStore(meeting, n), rank=rank, world_size=n, timeout=limit)
    space = {"torch": torch, "dist": dist, "comms": comms, "timed": timed, "tiny": tiny}
    space |= {"rank": rank, "world_size": n, "footprint": footprint, "peak": peak}
    warnings.simplefilter("error")  # a deprecation is a failure
    while True:
        try:
            code, names = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        try:
            result = ("value", _last_value(code, {**space, **names}), "")
        except Exception as error:
            result = (type(error).__name__, str(error), traceback.format_exc())
        try:
            answer = pickle.dumps(result)
        except Exception as error:
            answer = pickle.dumps((type(error).__name__, str(error), f"the result cannot be sent: {error}"))
        pipe.send_bytes(answer)


def _last_value(code: str, names: dict[str, Any]) -> Any:
    """Run the code; the value of its last line where that is an expression."""
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<case>", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "<case>", "eval"), names)
