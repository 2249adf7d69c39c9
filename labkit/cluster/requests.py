"""Send engines cells, calls and questions through ipyparallel's client, and wait until engines can be reached."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from labkit.floor import kernel_internals, time_limits

GROUPS = "__import__('labkit.rank.agent', fromlist=['told']).told()"  # asked where a cell has ended well


def call_by_name(path: str, *args: Any) -> Any:
    """Run on an engine: import `path` ("labkit.rank.agent.prepare") there and call it."""
    import importlib

    module, name = path.rsplit(".", 1)
    return getattr(importlib.import_module(module), name)(*args)


class Question:
    """What an engine's agent was asked: `do` is one of `labkit.rank.agent.ACTIONS`, `reply` ipyparallel's future."""

    def __init__(self, do: str, engine: int, reply: Any) -> None:
        self._what, self._reply, self._put = f"{do} on engine {engine}", reply, time.monotonic()

    @property
    def open(self) -> bool:
        """Whether an answer may still come."""
        return not self._reply.done()

    def answer(self, seconds: float) -> Any:
        """Return the answer, or None where none comes within `seconds` after the question was put.

        An agent that fails counts as one that does not answer: what the learner runs meanwhile goes on.
        """
        if not self._reply.wait(max(0.0, self._put + seconds - time.monotonic())):
            return None
        answer = self._reply.result()["content"]
        if answer["status"] == "ok":
            return answer["value"]
        warnings.warn(f"labkit's own mistake: {self._what}: {answer['value']}. Please report it.", stacklevel=2)
        return None


def ask(client: Any, do: str, engine: int, *args: Any) -> Question | None:
    """Ask an engine's agent on the control channel; None where there is no such engine any more."""
    if engine not in kernel_internals.engines(client):
        return None
    return Question(do, engine, kernel_internals.ask_agent(client, engine, "labkit_request", {"do": do, "with": args}))


def execute(client: Any, code: str, engines: list[int], metadata: dict[str, Any] | None = None) -> Any:
    """Send a cell, and return ipyparallel's AsyncResult. Where it fails, cells that wait behind it still run."""
    from ipyparallel import AsyncResult

    content = {"code": code, "silent": False, "user_expressions": {"groups": GROUPS}, "stop_on_error": False}
    sent = [kernel_internals.execute(client, e, content, metadata) for e in engines]
    return AsyncResult(client, sent, fname="%px", targets=engines, owner=True)


def call(client: Any, engine: int, path: str, args: tuple[Any, ...]) -> Any:
    """Send the call of a function of `labkit.rank`, by name, and return ipyparallel's future of its value."""
    return kernel_internals.apply(client, engine, call_by_name, [path, *args])


def end(client: Any, engines: Iterable[int]) -> None:
    """Ask engines to end, and wait a moment until they have heard it; they do once their cell has."""
    deadline = time.monotonic() + time_limits.ENGINES_HEAR
    known = [e for e in engines if e in kernel_internals.engines(client)]
    content = {"restart": False}
    for heard in [kernel_internals.ask_agent(client, e, "shutdown_request", content) for e in known]:
        heard.wait(max(0.0, deadline - time.monotonic()))


def forget(client: Any, engine: int) -> None:
    """Tell the hub that an engine is gone, rather than wait for its heart to be missed."""
    kernel_internals.ask_hub(client, "unregistration_request", {"id": engine})


def known_within(client: Any, seconds: float) -> Iterator[set[int]]:
    """Yield the engines that the client knows, again and again; it is told of them, and now and then asks the hub."""
    deadline = time.monotonic() + seconds
    ask_at = time.monotonic() + time_limits.HUB_ASKED
    yield set(client.ids)
    while time.monotonic() < deadline:
        if time.monotonic() > ask_at:
            asked = kernel_internals.ask_hub(client, "connection_request", {})
            if asked.wait(time_limits.HUB_ANSWERS):
                kernel_internals.learn_engines(client, asked.result()["content"]["engines"])
            ask_at = time.monotonic() + time_limits.HUB_ASKED
        time.sleep(0.005)
        yield set(client.ids)


def until_reached(client: Any, engines: list[int]) -> None:
    """Wait until requests arrive by both channels, for a while: one that is sent too early is lost."""
    deadline = time.monotonic() + time_limits.SOCKETS_CONNECT
    sent: dict[tuple[int, Any], list[Any]] = {(e, ask): [] for ask in (called, _asked) for e in engines}
    while (far := [k for k, s in sent.items() if not any(x.done() for x in s)]) and time.monotonic() < deadline:
        for engine, ask in far:
            sent[engine, ask].append(ask(client, engine))
        for channel in far:
            sent[channel][-1].wait(0.1)


def called(client: Any, engine: int) -> Any:
    """Ask an engine for its process's number on the channel of cells; the future of its answer."""
    return client[engine].apply_async(os.getpid)


def _asked(client: Any, engine: int) -> Any:
    return kernel_internals.ask_agent(client, engine, "kernel_info_request", {})
