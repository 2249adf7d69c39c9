"""A notebook for tests: a real IPython kernel, started, interrupted and killed as Jupyter does it.

with Notebook() as nb:
    nb.run("from labkit import start; lab = start(2)")
    cell = nb.run("%%px\\nprint(rank)")     # cell.stdout, cell.error, cell.displays
    pending = nb.send("%%px\\nwhile True: pass")
    nb.interrupt()
    cell = nb.wait(pending)
"""

from __future__ import annotations

import os
import queue
import re
import signal
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

from jupyter_client.manager import KernelManager

ANSI = re.compile(r"\x1b\[[0-9;]*m")
ENOUGH = 60.0  # seconds after which a cell counts as hung


@dataclass
class Cell:
    """What one cell showed."""

    stdout: str = ""
    stderr: str = ""
    error: str = ""  # "CellError: rank 2: …", or nothing where the cell ended well
    traceback: str = ""
    result: str = ""  # text/plain of a trailing expression
    displays: list[dict[str, Any]] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)  # "stdout", "stderr" or the kind of output, in their order
    status: str = ""  # "ok", "error" or "aborted", as the kernel answered


class Notebook:
    """A kernel and the cells run in it, one after another; the kernel ends with the `with` block."""

    enough = ENOUGH

    def __init__(self, **environment: str) -> None:
        self._place = tempfile.TemporaryDirectory(prefix="kernel-")
        # No TCP ports: Jupyter only looks for free ones, and somebody else may have one before the kernel does.
        self.manager = KernelManager(kernel_name="python3", transport="ipc", ip=f"{self._place.name}/k")
        self.manager.start_kernel(env={**os.environ, **environment})
        self._connect()

    def _connect(self) -> None:
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=ENOUGH)

    @property
    def pid(self) -> int:
        return int(self.manager.provisioner.pid)

    def run(self, code: str) -> Cell:
        """Run a cell to its end, whatever the end."""
        return self.wait(self.send(code))

    def value(self, code: str) -> str:
        """Run a cell that must succeed; the text of its last expression."""
        cell = self.run(code)
        assert cell.status == "ok", cell.traceback or cell
        return cell.result

    def subshell(self) -> str | None:
        """A new thread of the kernel, as JupyterLab has one for widgets' messages; None where it cannot have any."""
        client = self.client
        asked = client.kernel_info()
        while (reply := client.get_shell_msg(timeout=ENOUGH))["parent_header"]["msg_id"] != asked:
            pass
        if "kernel subshells" not in reply["content"].get("supported_features", ()):
            return None
        client.control_channel.send(client.session.msg("create_subshell_request", {}))
        return str(client.get_control_msg(timeout=ENOUGH)["content"]["subshell_id"])

    def send(self, code: str) -> str:
        """Start a cell; `wait` takes what this returns."""
        return self.client.execute(code, stop_on_error=False)

    def wait(self, message: str) -> Cell:
        """Collect the outputs of a cell that was sent."""
        cell = Cell()
        deadline = time.monotonic() + self.enough
        while True:
            try:
                heard = self.client.get_iopub_msg(timeout=max(0.1, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"the cell hangs; so far it showed {cell}") from None
            if heard["parent_header"].get("msg_id") != message:
                continue
            if heard["msg_type"] == "status" and heard["content"]["execution_state"] == "idle":
                break
            _take(cell, heard["msg_type"], heard["content"])
        while True:
            reply = self.client.get_shell_msg(timeout=ENOUGH)
            if reply["parent_header"].get("msg_id") == message:
                cell.status = reply["content"]["status"]
                return cell

    def until_begun(self, message: str) -> None:
        """Wait until the kernel has begun with a cell that was sent; what it shows until then is lost."""
        heard = {"parent_header": {}, "msg_type": ""}
        while (heard["parent_header"].get("msg_id"), heard["msg_type"]) != (message, "execute_input"):
            heard = self.client.get_iopub_msg(timeout=ENOUGH)

    def until_shown(self, message: str, text: str) -> None:
        """Wait until a cell that was sent has shown this text; what it shows until then is lost."""
        cell = Cell()
        while text not in cell.stdout + str(cell.displays):
            heard = self.client.get_iopub_msg(timeout=ENOUGH)
            if heard["parent_header"].get("msg_id") == message:
                assert heard["content"].get("execution_state") != "idle", f"it ended without {text!r}: {cell}"
                _take(cell, heard["msg_type"], heard["content"])

    def prompt(self) -> str:
        """Wait until a cell asks for a line, and return what it asks with."""
        return str(self.client.get_stdin_msg(timeout=ENOUGH)["content"]["prompt"])

    def type(self, line: str) -> None:
        """Type a line where a cell asks for one."""
        self.client.input(line)

    def interrupt(self) -> None:
        """The Stop button."""
        self.manager.interrupt_kernel()

    def restart(self, now: bool = True) -> None:
        """Jupyter's Restart, which kills the kernel; where `now` is false, it is stopped and asked to end before."""
        self.client.stop_channels()
        self.manager.restart_kernel(now=now)
        self._connect()

    def kill(self) -> None:
        """What an out-of-memory killer does."""
        os.kill(self.pid, signal.SIGKILL)

    def close(self, now: bool = True) -> None:
        """End the kernel, politely where `now` is false."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=now)
        self._place.cleanup()

    def __enter__(self) -> Notebook:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _take(cell: Cell, kind: str, content: dict[str, Any]) -> None:
    if kind in ("stream", "error", "display_data", "execute_result"):
        shape = content.get("name", kind)
        if shape not in ("stdout", "stderr") or cell.shapes[-1:] != [shape]:  # Jupyter joins these
            cell.shapes.append(shape)
    if kind == "stream":
        setattr(cell, content["name"], getattr(cell, content["name"]) + content["text"])
    elif kind == "error":
        cell.error = f"{content['ename']}: {content['evalue']}"
        cell.traceback = ANSI.sub("", "\n".join(content["traceback"]))
    elif kind == "display_data":
        cell.displays.append(content["data"])
    elif kind == "execute_result":
        cell.result = content["data"].get("text/plain", "")
