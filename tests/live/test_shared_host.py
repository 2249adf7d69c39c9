"""Another user of the machine reads nothing of a lab, reaches nothing, and takes no rank's place unnoticed.

The lab has a network of its own here, so that the attacks meet no other lab of this machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import labkit
from labkit import CellError
from labkit.floor.errors import JoinError
from tests.live.processes import Trace, listening

CLONE_NEWNET = 0x40000000
STRANGER = str(Path(__file__).with_name("stranger.py"))
ALL_REDUCE = "x = torch.full((1000,), rank + 1.0)\ndist.all_reduce(x)\nassert x.tolist() == [6.0] * 1000, x"
GROUP = (
    "g = dist.new_group(list(range(world_size)))\ny = torch.ones(1)\ndist.all_reduce(y, group=g)\nassert y.item() == 3"
)

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or not sys.platform.startswith("linux") or shutil.which("ip") is None,
    reason="only root can become somebody else, and needs `ip` for a network of its own",
)


@contextlib.contextmanager
def own_network():
    """This thread, and what it starts, in a network with a loopback of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net") as before:
        if libc.unshare(CLONE_NEWNET):
            pytest.skip("no network of its own here")
        try:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            yield
        finally:
            assert libc.setns(before.fileno(), CLONE_NEWNET) == 0


@pytest.fixture(scope="module")
def lab():
    with own_network(), labkit.start(3, timeout=5) as lab:
        yield lab


@contextlib.contextmanager
def stranger(how):
    """A stranger at the doors until the block ends; yields what reads its next line, and fills in what it got."""
    command = [sys.executable, STRANGER, "doors", how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/") as program:
        said = []

        def hear():
            said.append(json.loads(program.stdout.readline()))
            return said[-1]

        hear.said = said
        try:
            yield hear
        finally:
            rest = program.communicate("\n")[0]
            said += map(json.loads, rest.splitlines())


def pids(lab):
    return [m.pid for m in lab._engines.members]


def looked(lab, paths):
    given = json.dumps({"pids": [p.pid for p in Trace.of(lab._address).processes()] + [os.getpid()], "paths": paths})
    command = [sys.executable, STRANGER, "look"]
    program = subprocess.run(command, input=given, capture_output=True, text=True, cwd="/", check=True)
    return json.loads(program.stdout)


@contextlib.contextmanager
def passable(path):
    """The tests' own folder, above the run's, hides it already: let strangers pass that far."""
    modes = {p: stat.S_IMODE(p.stat().st_mode) for p in path.parents if not p.stat().st_mode & stat.S_IXOTH}
    for p in modes:
        p.chmod(0o755)
    try:
        yield
    finally:
        for p, mode in modes.items():
            p.chmod(mode)


def test_a_stranger_reads_enters_reaches_and_signals_nothing_of_a_lab(lab):
    place = Path(lab._address).parent
    paths = [str(place), *map(str, place.rglob("*"))]
    assert {"fork.sock", "keys.json", "address.json"} <= {Path(p).name for p in paths}
    before = pids(lab)
    with passable(place):
        assert looked(lab, paths) == []
        place.chmod(0o755)  # what would be seen if the folder were open
        try:
            seen = looked(lab, paths)
        finally:
            place.chmod(0o700)
    assert f"list {place}" in seen
    assert f"read {place}/keys.json" in seen or not (place / "keys.json").stat().st_mode & stat.S_IROTH
    lab.run(ALL_REDUCE)
    assert pids(lab) == before


def test_nobody_gets_in_where_ranks_listen_once_their_group_is_made(lab):
    doors = [len(found) for p in Trace.of(lab._address).processes() if (found := listening(p))]
    assert len(doors) == lab.n  # each rank listens
    with stranger("hold") as hear:
        heard = [hear() for _ in range(sum(doors))]
        lab.run(ALL_REDUCE)
    assert len({d["port"] for d in heard}) == sum(doors)
    assert not any(d["open"] for d in heard)


@pytest.mark.parametrize("how", ["garbage", "hold", "rank"])
def test_whatever_a_stranger_sends_the_ranks_compute_what_is_right_or_say_who_disturbs_them(lab, how):
    """While nothing runs, during collectives, and while groups are made and made again."""
    before = pids(lab)
    with stranger(how) as hear:
        for _ in range(lab.n):
            hear()
        lab.run("for _ in range(100):\n    x = torch.ones(5000)\n    dist.all_reduce(x)\n    assert x[7].item() == 3\n")
        for _ in range(5):
            with contextlib.suppress(CellError):  # that it was disturbed; never a number that is wrong
                lab.run(GROUP)
            disturbed = ""
            try:
                lab._engines.rejoin()
                lab.run(ALL_REDUCE)
            except JoinError as error:
                disturbed = str(error)
            assert not disturbed or "user number 65534" in disturbed  # it has come before a rank each time
    assert hear.said[-1] == {"came": 0}
    lab._engines.rejoin()
    lab.run(ALL_REDUCE)
    assert pids(lab) == before


def held_up(lab, tmp_path, code):
    """Run code in which rank 0 opens its door, and the others come when a stranger has gone in, who stays there."""
    flag = tmp_path / "in"
    with stranger("one rank") as hear:
        for _ in range(sum(len(listening(p)) for p in Trace.of(lab._address).processes())):
            assert not hear()["open"]  # those of groups that there are

        def watch():
            assert hear()["open"]
            flag.touch()

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            yield_to = f"import os, time\nwhile rank != 0 and not os.path.exists({str(flag)!r}): time.sleep(0.01)\n"
            return code(yield_to)
        finally:
            watching.join()
            held_up.said = hear.said


def test_a_stranger_in_the_place_of_a_rank_is_noticed_before_anything_is_sent_to_it(lab, tmp_path):
    before = pids(lab)
    with pytest.raises(CellError, match=r"another user of this machine \(user number 65534\)"):
        held_up(lab, tmp_path, lambda wait: lab.run(wait + GROUP))
    assert held_up.said[-1] == {"came": 0}
    lab.run(ALL_REDUCE + "\n" + GROUP)
    assert pids(lab) == before


def test_ranks_in_whose_join_a_stranger_took_part_are_joined_again_without_it(lab, tmp_path):
    before = pids(lab)

    def heal(wait):
        late = "\n    ".join(wait.splitlines())
        lab.run(
            "from labkit.rank import group\njoin = group.join\ndef late(*args, **kwargs):\n"
            f"    {late}\n    return join(*args, **kwargs)\ngroup.join = late"
        )
        try:
            return lab._engines.rejoin()
        finally:
            lab.run("group.join = join")

    assert held_up(lab, tmp_path, heal) == []
    assert "user number 65534" in lab._engines._why
    assert held_up.said[-1] == {"came": 0}
    lab.run(ALL_REDUCE)
    assert pids(lab) == before
