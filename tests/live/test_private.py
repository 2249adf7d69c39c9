"""Nobody else reaches a lab: sockets and files are its user's, ranks meet on the loopback, strangers get no answer."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import zmq
import zmq.utils.monitor

import labkit
from tests.live.processes import Trace, listening, unix_listening

HANDSHAKES = {zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.EVENT_HANDSHAKE_FAILED_AUTH}


def all_listeners(lab):
    """What each process of the run listens on: IP addresses, and names of Unix sockets."""
    trace = Trace.of(lab._address)
    processes = trace.processes()
    assert len(processes) >= lab.n + 3  # the ranks, the fork server, the controller's two, the reaper
    return [a for p in processes for a in listening(p)], [a for p in processes for a in unix_listening(p)]


def test_every_process_listens_on_the_loopback_or_in_the_private_directory(lab):
    addresses, names = all_listeners(lab)
    assert set(addresses) == {"127.0.0.1"}
    place = Path(lab._address).parent
    assert {name.rpartition(":")[0] or name for name in names} == {f"{place}/fork.sock", f"{place}/zmq"}


def test_a_start_takes_no_tcp_port_that_another_program_could_take_meanwhile(lab):
    """Only Gloo listens at TCP ports, and it lets the kernel choose one while it binds."""
    ranks = {m.pid for m in lab._engines.members}
    assert {p.pid for p in Trace.of(lab._address).processes() if listening(p)} == ranks


def test_sub_groups_and_transfers_open_nothing_beyond(lab):
    before = set(all_listeners(lab)[1])
    lab.run("""group = dist.new_group([0, 1])
x = torch.ones(1 << 20)
dist.all_reduce(x)
if rank < 2: dist.all_reduce(x, group=group)
if rank == 0: dist.send(x, 2)
if rank == 2: dist.recv(x, 0)""")
    assert set(all_listeners(lab)[0]) == {"127.0.0.1"}
    assert set(all_listeners(lab)[1]) == before


def test_a_listener_beyond_the_loopback_would_be_found(lab):
    lab.run("import socket\nif rank == 0: wide = socket.create_server(('0.0.0.0', 0))")
    try:
        assert "0.0.0.0" in all_listeners(lab)[0]
    finally:
        lab.run("if rank == 0: wide.close()")


def test_the_run_directory_is_its_users_alone(lab):
    path = Path(lab._address).parent
    info = path.stat()
    assert stat.S_IMODE(info.st_mode) == 0o700
    assert info.st_uid == os.getuid()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_another_user_reads_none_of_its_files_and_reaches_none_of_its_sockets(lab):
    path = Path(lab._address).parent
    files = [str(p) for p in path.rglob("*")]
    assert str(path / "fork.sock") in files
    code = 'for f; do if [ -r "$f" ] || [ -w "$f" ]; then echo "$f"; fi; done'
    # The test's own folder, above the run's, hides it already: let the stranger pass that far.
    parents = [p for p in path.parents if not p.stat().st_mode & stat.S_IXOTH]
    modes = {p: stat.S_IMODE(p.stat().st_mode) for p in parents}
    try:
        for p in parents:
            p.chmod(0o755)
        stranger = subprocess.run(
            ["/bin/sh", "-c", code, "sh", *files],
            cwd="/",
            capture_output=True,
            text=True,
            user=65534,
            group=65534,
            extra_groups=[],
        )
    finally:
        for p, mode in modes.items():
            p.chmod(mode)
    assert (stranger.returncode, stranger.stdout) == (0, ""), stranger.stderr


def handshakes(url, keys=None):
    """What becomes of a connection, with the server's key or without one."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as mine:
        if keys:
            mine.curve_publickey, mine.curve_secretkey = zmq.curve_keypair()
            mine.curve_serverkey = keys["IPP_CURVE_PUBLICKEY"].encode()
        with mine.get_monitor_socket() as monitor:
            mine.connect(url)
            while monitor.poll(10_000):
                event = zmq.utils.monitor.recv_monitor_message(monitor)["event"]
                if event in HANDSHAKES:
                    mine.disable_monitor()
                    return event
    return None


def test_a_client_without_the_key_is_turned_away_at_every_socket_of_the_controller(lab):
    folder = Path(lab._address).parent
    info = json.loads((folder / "security" / "ipcontroller-lab-client.json").read_text())
    keys = json.loads((folder / "keys.json").read_text())
    ports = {v for v in info.values() if isinstance(v, int) and not isinstance(v, bool)}
    assert len(ports) >= 5
    for port in ports:
        assert handshakes(f"{info['interface']}:{port}") == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    assert handshakes(f"{info['interface']}:{info['registration']}", keys) == zmq.EVENT_HANDSHAKE_SUCCEEDED


def test_two_learners_labs_share_no_meeting_place(lab):
    """Ranks meet in a file of their own run, whose name is random; nothing in their environment leads elsewhere."""
    lab.run("import os")
    assert lab.pull("[name for name in os.environ if name.startswith('MASTER_')]") == [[]] * lab.n
    script = (
        "from labkit import start\nwith start(2) as lab:\n"
        "    lab.run('x = torch.ones(1); dist.all_reduce(x)')\n"
        "    print(lab.pull('x'), lab.pull('world_size'), lab._address)\n"
        "    input()"
    )
    other = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    lines = [other.stdout.readline() for _ in range(2)]
    lab.run("x = torch.ones(1)\ndist.all_reduce(x)")
    assert [float(x[0]) for x in lab.pull("x")] == [3.0] * 3
    assert "[array([2.], dtype=float32), array([2.], dtype=float32)] [2, 2]" in lines[1]
    theirs = Path(lines[1].split()[-1]).parent
    assert theirs != Path(lab._address).parent
    assert {p.name for p in theirs.glob("store-*")}.isdisjoint(
        p.name for p in Path(lab._address).parent.glob("store-*")
    )
    other.communicate("\n", timeout=30)
    assert other.returncode == 0
    assert labkit.start(3, timeout=2) is lab  # undisturbed
