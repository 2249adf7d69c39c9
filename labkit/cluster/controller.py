"""Run ipyparallel's controller in one process, which knows an engine by its first heartbeat and is cheap when idle.

ipyparallel's own counts an engine after its second heartbeat, of which a process of its own sends one every period.
"""

from __future__ import annotations

import socket
import time
from typing import Any

import zmq
from ipyparallel.controller.app import IPController
from ipyparallel.controller.heartmonitor import HeartMonitor
from ipyparallel.controller.hub import Hub
from traitlets import Instance
from zmq.eventloop.zmqstream import ZMQStream


class Hearts(HeartMonitor):
    """Speaks to the hub directly, and asks a heart as soon as it listens."""

    hub = Instance(Hub)

    def start(self) -> None:
        self.ping_stream.on_recv(self.ask)
        self.pong_stream.on_recv(self.handle_pong)
        self.tic = time.monotonic()
        self.beat()

    def beat(self) -> None:
        super().beat()
        self.loop.call_later(self.period / 1000, self.beat)

    def ask(self, _: Any = None) -> None:
        """Repeat the last ping: an engine has subscribed to them. This counts no other heart as missed."""
        self.ping_stream.send(str(self.lifetime).encode())

    def handle_pong(self, msg: list[bytes]) -> None:
        super().handle_pong(msg)
        if new := self.responses - self.hearts:
            self.handle_new_hearts(new)

    def handle_new_hearts(self, hearts: set[bytes]) -> None:
        self.hearts |= hearts
        for heart in hearts:
            self.hub.handle_new_heart(heart)

    def handle_heart_failure(self, hearts: list[bytes]) -> None:
        self.hearts -= set(hearts)
        for heart in hearts:
            self.hub.handle_stopped_heart(heart)


class Controller(IPController):
    """The hub, its schedulers' threads and the heart monitor."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._kept: list[socket.socket] = []

    def next_port(self, pool_name: str = "common") -> int:
        """Return a free TCP port, where none are given, and keep it until ZeroMQ listens at it."""
        if self.ports or (pool_name == "client" and self.client_ports):
            return int(super().next_port(pool_name))
        kept = socket.socket()
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as ZeroMQ, which may then listen beside it
        kept.bind(("", 0))
        self._kept.append(kept)
        return int(kept.getsockname()[1])

    def construct_url(self, kind: str, channel: str, index: Any = None) -> str:
        """Spell an address as client and engine do: ipyparallel puts a "-" before the number of a Unix socket."""
        info = {"engine": self.engine_info, "client": self.client_info, "internal": self.internal_info}[kind]
        port = info[channel] if index is None else info[channel][index]
        return f"{info['interface']}:{port}"

    def init_hub(self) -> None:
        super().init_hub()
        self.log.setLevel(self.log_level)  # it would make records of each message, and write none of them
        self.hub.monitor_handlers[b"iopub"] = lambda *_: None  # kept for a database, and there is none
        ping, pong = self.context.socket(zmq.XPUB), self.context.socket(zmq.ROUTER)
        ping.setsockopt(zmq.XPUB_VERBOSE, 1)  # tells of each engine that subscribes, not only of the first
        self.bind(ping, self.engine_url("hb_ping"))
        self.bind(pong, self.engine_url("hb_pong"))
        self.heartmonitor_process = Hearts(  # what ipyparallel starts
            parent=self,
            hub=self.hub,
            ping_stream=ZMQStream(ping, self.loop),
            pong_stream=ZMQStream(pong, self.loop),
        )


if __name__ == "__main__":
    Controller.launch_instance()
