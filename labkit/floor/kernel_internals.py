"""Name the private names of ipykernel, ipyparallel and ipywidgets, each once, by what it means.

A rank uses some and the notebook others: this lies under everything, and imports none of the three. Their public names
do not reach what is needed; each function says what for. Where a newer version has a name no more, or means something
else by it, tests/live/test_kernel_internals.py tells which, and who uses it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

LOOP_ENDS = 1.0  # seconds in which the thread of a cluster's event loop ends where it does nothing

# -- ipykernel ----------------------------------------------------------------------------------------------------


def is_outstream(stream: Any) -> bool:
    """Tell whether a stream is ipykernel's, which sends what is printed to the notebook."""
    return hasattr(stream, "pub_thread")


def has_unsent(stream: Any) -> bool:
    """Tell whether an outstream holds text: to flush is public, and wakes a thread where there is none."""
    return bool(stream._buffers if hasattr(stream, "_buffers") else stream._buffer.getvalue())  # ipykernel 6.17 has one


def pipe(stream: Any) -> int | None:
    """Return the descriptor from which an outstream reads what programs and C++ write; None where it reads none."""
    return getattr(stream, "_fid", None)


def way_in(stream: Any) -> int | None:
    """Return the descriptor by which programs write into an outstream's pipe; None where no thread reads it to its end.

    A cell may have led the descriptor elsewhere.
    """
    by_name = {"stdout": 1, "stderr": 2}.get(getattr(stream, "name", ""))  # ipykernel 6.17 notes none
    out, into = pipe(stream), getattr(stream, "_original_stdstream_fd", by_name)
    if out is None or into is None or not stream.watch_fd_thread.is_alive():
        return None
    try:
        return int(into) if os.path.samestat(os.fstat(out), os.fstat(into)) else None
    except OSError:  # closed by a cell
        return None


def log_descriptor(stream: Any) -> int:
    """Return the descriptor to which an outstream copies what comes through its pipe; AttributeError without a pipe."""
    return stream._original_stdstream_copy


def cell_awaits(kernel: Any) -> bool:
    """Tell whether a cell awaits something and lets the main thread do other things, as it can from ipykernel 7 on."""
    lock = getattr(kernel, "_main_asyncio_lock", None)
    return lock is not None and lock.locked()


def takes_input(kernel: Any) -> bool:
    """Tell whether who sent the cell that runs lets it ask for what is typed: not where a program runs a notebook."""
    return bool(getattr(kernel, "_allow_stdin", False))


def answer_where_asked(comm: Any) -> None:
    """Let the thread handle a widget's message that it was sent to, not the one that last answered for the widget.

    Only ipykernel 7.4 and later would do the latter.
    """
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda data, subshell: subshell


# -- ipywidgets ---------------------------------------------------------------------------------------------------


def hear_clicks(button: Any, heard: Callable[..., None]) -> None:
    """Have `heard` called with a button's messages in place of what acts on each click at once."""
    button.on_msg(button._handle_button_msg, remove=True)
    button.on_msg(heard)


# -- ipyparallel: its views send more than is wanted with a message, and none to an agent --------------------------


def engines(client: Any) -> Mapping[int, str]:
    """Return the engines that a client knows, by id, each with the name that it has in messages."""
    return client._engines


def ask_hub(client: Any, kind: str, content: dict[str, Any]) -> Any:
    """Send a message to the hub; the future of its reply."""
    return client._send(client._query_stream, kind, content=content)


def learn_engines(client: Any, known: Mapping[str, str]) -> None:
    """Let a client know the engines that the hub has told of when it was asked, as it learns those that register."""
    client._io_loop.add_callback(client._update_engines, known)


def ask_agent(client: Any, engine: int, kind: str, content: dict[str, Any]) -> Any:
    """Send a message on an engine's control channel, which it answers while it runs a cell; the future of its reply."""
    return client._send(client._control_stream, kind, content=content, ident=client._engines[engine].encode())


def execute(client: Any, engine: int, content: dict[str, Any], metadata: dict[str, Any] | None = None) -> Any:
    """Send an engine a cell with these settings; the future of its reply."""
    to = {"ident": client._engines[engine].encode(), "metadata": metadata or {}, "track_outstanding": True}
    return client._send(client._mux_stream, "execute_request", content=content, **to)


def apply(client: Any, engine: int, function: Callable[..., Any], args: list[Any]) -> Any:
    """Send an engine the call of a function; the future of what it returns."""
    ident = client._engines[engine].encode()
    return client.send_apply_request(client._mux_stream, function, args, ident=ident)


def replies(result: Any) -> Iterator[tuple[int, Any]]:
    """Yield each engine that an AsyncResult is of, and the future of this engine's reply."""
    return zip(result._targets, result._children, strict=True)


def content(reply: Any) -> dict[str, Any]:
    """Return all that the reply to a cell says, the values of its expressions too; nothing of the reply to a call."""
    return getattr(reply, "_content", {})


def connection_info(cluster: Any) -> dict[str, Any]:
    """Return how clients and engines reach a cluster's controller; its own way is a coroutine, on a loop of its own."""
    return cluster._synchronize(cluster.controller.get_connection_info)


def save_engines_whole(hub: Any) -> None:
    """Let a hub replace its file of engines in one step: killed meanwhile, it leaves the old one."""
    save = hub._save_engine_state

    def replace() -> None:
        if file := hub.engine_state_file:
            hub.engine_state_file = f"{file}.new"
            try:
                save()
            finally:
                hub.engine_state_file = file
            os.replace(f"{file}.new", file)

    hub._save_engine_state = replace


def end_loop(cluster: Any) -> None:
    """End the thread that a cluster has made beside a notebook's event loop, which ipyparallel keeps for ever."""
    thread, cluster._async_thread = cluster._async_thread, None
    if thread is not None:
        loop = cluster._thread_loop
        loop.add_callback(loop.stop)
        thread.join(LOOP_ENDS)
        if not thread.is_alive():
            loop.close()
