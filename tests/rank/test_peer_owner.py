"""Netlink and /proc name the same owner of each end of real connections, and /proc serves where netlink does not."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys

import pytest

from labkit.floor import time_limits
from labkit.floor.errors import LabError
from labkit.rank import peer_owner

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="netlink and /proc/net are Linux's")

ME = os.getuid()
NOBODY = 65534
WAYS = {"netlink": peer_owner.by_netlink, "proc": peer_owner.by_proc}
KINDS = {  # where the one listens, and how the other connects
    "IPv4": (socket.AF_INET, "127.0.0.1", socket.AF_INET, "127.0.0.1"),
    "IPv6": (socket.AF_INET6, "::1", socket.AF_INET6, "::1"),
    "IPv4-mapped": (socket.AF_INET6, "::", socket.AF_INET6, "::ffff:127.0.0.1"),
    "IPv4 to IPv4-mapped": (socket.AF_INET6, "::", socket.AF_INET, "127.0.0.1"),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def stack():
    with contextlib.ExitStack() as stack:
        yield stack


def listens(stack, kind):
    """A socket that listens, and where the other one goes."""
    family, address, _, there = KINDS[kind]
    try:
        listening = stack.enter_context(
            socket.create_server((address, 0), family=family, dualstack_ipv6=address == "::")
        )
    except OSError:
        pytest.skip("no IPv6 here")
    return listening, (there, listening.getsockname()[1])


def connects(stack, kind, to):
    connecting = stack.enter_context(socket.socket(KINDS[kind][2]))
    connecting.connect(to)
    return connecting


def connected(stack, kind):
    """Both sockets of a connection, and what listens."""
    listening, to = listens(stack, kind)
    connecting = connects(stack, kind, to)
    return connecting, stack.enter_context(listening.accept()[0]), listening


def found(*sockets):
    """What both ways say, which is the same."""
    ends = [peer_owner._ends(s) for s in sockets]
    said = {way: ask(ends) for way, ask in WAYS.items()}
    assert said["netlink"] == said["proc"]
    return said["netlink"]


@each_kind
def test_both_ways_name_the_user_of_both_ends(stack, kind):
    connecting, accepted, _ = connected(stack, kind)
    assert found(connecting, accepted) == [(ME, ME)] * 2


@each_kind
def test_an_end_that_no_process_holds_has_no_owner(stack, kind):
    """One that waits to be accepted, one that was closed; after that the kernel tells of what listens there."""
    listening, to = listens(stack, kind)
    connecting = connects(stack, kind, to)
    assert found(connecting) == [(ME, None)]
    accepted = stack.enter_context(listening.accept()[0])
    ends = peer_owner._ends(connecting)
    connecting.close()
    assert found(accepted) == [(ME, None)]
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # nothing is left of it
    accepted.close()
    assert peer_owner.owners([ends, ends[::-1]]) == [(None, None)] * 2


@each_kind
def test_a_socket_that_is_bound_to_an_interface_does_not_hide(stack, kind):
    listening, to = listens(stack, kind)
    hidden = stack.enter_context(socket.socket(KINDS[kind][2]))
    try:
        hidden.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
    except PermissionError:
        pytest.skip("this kernel lets only root do that")
    hidden.connect(to)
    accepted = stack.enter_context(listening.accept()[0])
    assert found(hidden, accepted) == [(ME, ME)] * 2


@pytest.mark.skipif(ME != 0, reason="only root can become somebody else")
@each_kind
def test_another_users_end_is_refused(stack, kind):
    listening, to = listens(stack, kind)
    become = f"import os, socket; os.setuid({NOBODY}); s = socket.socket({int(KINDS[kind][2])}); s.connect({to!r})"
    with subprocess.Popen([sys.executable, "-c", f"{become}; input()"], stdin=subprocess.PIPE) as other:
        accepted = stack.enter_context(listening.accept()[0])
        assert found(accepted) == [(ME, NOBODY)]
        with pytest.raises(LabError, match=f"user number {NOBODY}"):
            peer_owner.refuse_other_users([accepted])
        other.communicate(b"\n")
    peer_owner.refuse_other_users([accepted])


def refused(*_):
    raise PermissionError


def answering(stack, *replies):
    """What makes sockets that hold these replies, in place of the kernel's; two of them."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
    for _, far in pairs:
        stack.enter_context(far)
        for reply in replies:
            far.send(reply)
    return lambda *_: pairs.pop()[0]


def unknown(number):
    """An answer of the kernel's that is an error."""
    return peer_owner.HEADER.pack(36, peer_owner.NLMSG_ERROR, 0, 0, 0) + struct.pack("=i16x", -number)


@pytest.mark.parametrize("how", ["refuses", "is silent", "has no module for TCP", "may not", "talks nonsense"])
def test_proc_is_read_where_netlink_does_not_answer(stack, monkeypatch, how):
    connecting, accepted, _ = connected(stack, "IPv4")
    ends = [peer_owner._ends(s) for s in (connecting, accepted)]
    kernel = {
        "refuses": refused,
        "is silent": answering(stack),
        "has no module for TCP": answering(stack, *[unknown(2)] * 9),
        "may not": answering(stack, unknown(1)),
        "talks nonsense": answering(stack, b"?"),
    }[how]
    monkeypatch.setattr(time_limits, "NETLINK_ANSWERS", 0.01)
    monkeypatch.setattr(peer_owner.socket, "if_nameindex", lambda: [(1, "lo")])
    monkeypatch.setattr(peer_owner.socket, "socket", kernel)
    with pytest.raises((OSError, struct.error)):
        peer_owner.by_netlink(ends)
    assert peer_owner.owners(ends) == [(ME, ME)] * 2


def test_proc_is_not_read_where_netlink_answers(stack, monkeypatch):
    connecting, *_ = connected(stack, "IPv4")
    monkeypatch.setattr(peer_owner, "by_proc", refused)
    assert peer_owner.owners([peer_owner._ends(connecting)]) == [(ME, ME)]
    assert peer_owner.owners([]) == []
