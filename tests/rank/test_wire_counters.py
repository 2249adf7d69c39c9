"""What a rank reads of its own connections and of its GPU's links."""

from __future__ import annotations

import os
import socket
import sys
from types import SimpleNamespace

import pytest
import torch

from labkit.rank import group, wire
from tests.live.processes import eventually

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts bytes a connection")


@pytest.fixture
def pair():
    with socket.create_server(("127.0.0.1", 0)) as door:
        one = socket.create_connection(door.getsockname())
        other, _ = door.accept()
    with one, other:
        yield one, other


@linux
def test_a_connections_bytes_are_counted_at_both_ends(pair):
    one, other = pair
    one.sendall(bytes(5000))
    other.sendall(bytes(70))
    assert len(other.recv(5000, socket.MSG_WAITALL)) == 5000
    assert len(one.recv(70, socket.MSG_WAITALL)) == 70
    ends = {local: (peer, sent, received) for local, peer, sent, received in wire.sockets()}
    here, there = (wire.name(end.getsockname()) for end in pair)
    assert ends[here] == (there, 5000, 70)
    assert ends[there] == (here, 70, 5000)


@linux
def test_what_the_kernel_holds_back_counts_as_sent(pair):
    one, other = pair
    one.setblocking(False)
    put = 0
    while True:
        try:
            put += one.send(bytes(2**20))
        except BlockingIOError:
            break
    (sent,) = (s for local, _, s, _ in wire.sockets() if local == wire.name(one.getsockname()))
    (received,) = (r for local, _, _, r in wire.sockets() if local == wire.name(other.getsockname()))
    assert sent == put > received


@linux
def test_what_has_come_and_nobody_has_read_is_seen(pair, monkeypatch):
    one, other = pair
    ends = [(end.fileno(), os.fstat(end.fileno()).st_ino) for end in pair]
    monkeypatch.setattr(group, "noted_sockets", lambda only_living: ends)
    assert not wire.unread()
    one.sendall(b"a message")
    assert eventually(wire.unread)
    other.recv(9, socket.MSG_WAITALL)
    assert not wire.unread()


def test_a_loopback_address_belongs_to_its_host_and_both_spellings_are_one():
    assert wire.name(("::ffff:10.0.0.1", 80, 0, 0)) == wire.name(("10.0.0.1", 80)) == "10.0.0.1 80"
    assert wire.name(("127.0.0.1", 80)) == f"{socket.gethostname()} 127.0.0.1 80"


def test_where_the_system_does_not_count_it_is_said(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    told = wire.read()
    assert told["why"] == "darwin does not count bytes per connection; Linux does"
    assert told["sockets"] == []


def test_a_gpu_is_asked_for_all_its_links_together(monkeypatch):
    asked = []

    def values(handle: str, fields: list[tuple[int, int]]) -> list[SimpleNamespace]:
        asked.append((handle, fields))
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(ullVal=3))]

    nvml = SimpleNamespace(
        nvmlInit=lambda: None, nvmlDeviceGetHandleByUUID=lambda uuid: uuid.decode(), nvmlDeviceGetFieldValues=values
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="a-b"))
    assert wire.nvlink() == 3 * 1024
    assert asked == [("GPU-a-b", [(138, 0xFFFFFFFF)])]
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert wire.nvlink() is None
