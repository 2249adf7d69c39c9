"""A JupyterHub as a browser uses it: a user's server, the files and kernels on it, and a kernel's messages."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from nbformat.v4 import output_from_msg
from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

AsyncHTTPClient.configure(None, max_clients=1000)
OUTPUTS = ("stream", "display_data", "execute_result", "error")
Message = dict[str, Any]
UP = 300.0  # seconds that a server may take


@dataclass(frozen=True)
class Hub:
    """A hub's address and a token of it."""

    url: str
    token: str

    async def ask(self, method: str, path: str, /, **body: Any) -> Any:
        """Send one request and return what is in the answer; raises `tornado.httpclient.HTTPError`."""
        request = HTTPRequest(
            f"{self.url}{path}", method, self.headers, json.dumps(body) if body else None,
            allow_nonstandard_methods=True, request_timeout=UP, connect_timeout=UP,
        )  # fmt: skip
        answer = await AsyncHTTPClient().fetch(request)
        return json.loads(answer.body) if answer.body else None

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries."""
        return {"Authorization": f"token {self.token}"}

    async def start(self, user: str) -> None:
        """Start a user's server, as after a login, and return when it answers."""
        if user not in {each["name"] for each in await self.ask("GET", "/hub/api/users")}:
            await self.ask("POST", f"/hub/api/users/{user}")
        await self.ask("POST", f"/hub/api/users/{user}/server")
        until = time.monotonic() + UP
        while not (await self.ask("GET", f"/hub/api/users/{user}"))["servers"].get("", {}).get("ready"):
            if time.monotonic() > until:
                raise TimeoutError(f"the server of {user} was not up after {UP:g} s")
            await asyncio.sleep(0.5)

    async def stop(self, user: str) -> None:
        """End a user's server, with its kernels."""
        await self.ask("DELETE", f"/hub/api/users/{user}/server")

    async def notebook(self, user: str, path: str) -> Any:
        """Return a notebook of the user's."""
        return (await self.ask("GET", f"/user/{user}/api/contents/{quote(path)}"))["content"]

    async def names(self, user: str) -> list[str]:
        """Return the names of the files in the user's folder."""
        return [each["name"] for each in (await self.ask("GET", f"/user/{user}/api/contents"))["content"]]

    async def open(self, user: str, path: str) -> Kernel:
        """Start a kernel for a notebook of the user's, and connect to it."""
        session = await self.ask(
            "POST", f"/user/{user}/api/sessions", path=path, name=path, type="notebook", kernel={"name": "python3"}
        )
        kernel = Kernel(self, user, session["id"], session["kernel"]["id"])
        await kernel.connect()
        return kernel


@dataclass
class Seen:
    """What stands below a cell, as a notebook keeps it."""

    outputs: list[Any] = field(default_factory=list)
    _clear: bool = False  # before the next output
    _named: dict[str, Any] = field(default_factory=dict)  # outputs that may be replaced, by their names

    def add(self, told: Message) -> None:
        """Take in one message about the cell."""
        kind, content = told["header"]["msg_type"], told["content"]
        name = content.get("transient", {}).get("display_id")
        if kind == "update_display_data" and name in self._named:
            self._named[name].data = content["data"]
        elif kind in OUTPUTS or kind == "clear_output":
            if self._clear or (kind == "clear_output" and not content["wait"]):
                self.outputs.clear()
            self._clear = kind == "clear_output" and content["wait"]
            if kind in OUTPUTS:
                self.outputs.append(output_from_msg(told))
                self._named[name] = self.outputs[-1]


@dataclass
class Kernel:
    """A kernel of a user's: runs cells as a page does, over the hub's websocket."""

    hub: Hub
    user: str
    session: str
    id: str
    _socket: WebSocketClientConnection = field(init=False, repr=False)

    async def connect(self) -> None:
        """Open the websocket, and wait until the kernel answers."""
        address = self.hub.url.replace("http", "ws", 1)
        request = HTTPRequest(f"{address}/user/{self.user}/api/kernels/{self.id}/channels", headers=self.hub.headers)
        self._socket = await websocket_connect(request, max_message_size=2**27)
        await self.run("")

    async def run(self, code: str) -> list[Any]:
        """Run one cell and return its outputs, as a notebook keeps them."""
        asked = uuid.uuid4().hex
        header = {"msg_id": asked, "msg_type": "execute_request", "username": self.user, "session": self.session,
                  "version": "5.3", "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}  # fmt: skip
        content = {"code": code, "silent": not code, "store_history": bool(code), "user_expressions": {},
                   "allow_stdin": False, "stop_on_error": True}  # fmt: skip
        message = {"channel": "shell", "header": header, "parent_header": {}, "metadata": {}, "content": content}
        await self._socket.write_message(json.dumps(message))
        seen, missing = Seen(), {"execute_reply", "idle"}
        while missing:
            said = await self._socket.read_message()
            if said is None:
                raise ConnectionError(f"the kernel of {self.user} is gone")
            told: Message = {} if isinstance(said, bytes) else json.loads(said)  # bytes: a widget's, with buffers
            if told.get("parent_header", {}).get("msg_id") == asked:
                seen.add(told)
                missing -= {told["header"]["msg_type"], told["content"].get("execution_state")}
        return seen.outputs

    async def interrupt(self) -> None:
        """Press Stop."""
        await self._do("interrupt")

    async def restart(self) -> None:
        """Restart the kernel, and wait until it answers."""
        await self._do("restart")
        self._socket.close()
        await self.connect()

    async def _do(self, what: str) -> None:
        await self.hub.ask("POST", f"/user/{self.user}/api/kernels/{self.id}/{what}")

    async def close(self) -> None:
        """Shut the kernel down."""
        self._socket.close()
        await self.hub.ask("DELETE", f"/user/{self.user}/api/sessions/{self.session}")
