"""A signal reaches the process that is meant or none: not its number's next owner, nor its namesake on this host."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

import labkit
from labkit import LabError
from labkit.cluster.process import Process
from labkit.cluster.reaper import environment, send, tagged
from labkit.cluster.rundir import TAG
from tests.live.processes import SOON, Trace, eventually

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
SUM = "x = torch.ones(1)\ndist.all_reduce(x)\nint(x)"


@pytest.fixture
def sleeper():
    """Start processes that sleep, in a run or in none; they are ended afterwards."""
    started = []

    def start(
        tag: str = "", env: dict[str, str] | None = None, command: Sequence[str] = ("sleep", "1000")
    ) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(command, env={**os.environ, TAG: tag} if tag else env))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_process_of_the_run_is_held_and_hears_signals(sleeper):
    process = Process(sleeper("mine").pid, "mine")
    assert process.held
    assert process.runs()
    process.send(signal.SIGSTOP)
    assert eventually(process.stands_still)
    process.send(signal.SIGKILL)
    assert process.wait(SOON)
    assert not process.stands_still()


def test_a_process_that_is_just_becoming_another_program_is_not_passed_over(sleeper):
    started = [sleeper("mine").pid for _ in range(10)]
    fresh = [Process(sleeper("mine").pid, "mine").held for _ in range(100)]
    assert fresh == [True] * 100
    assert set(started) < set(tagged(f"{TAG}=mine".encode()))


def test_nor_is_one_that_becomes_another_program_all_the_time(sleeper):
    again = 'exec sh -c "$1" x "$1"'
    pid = sleeper("mine", command=["sh", "-c", again, "x", again]).pid
    entry = f"{TAG}=mine".encode()
    assert sum(entry not in environment(pid).split(b"\0") for _ in range(10_000)) == 0


def test_an_empty_environment_is_not_waited_for(sleeper):
    assert environment(sleeper(env={}).pid) == b""


@pytest.mark.parametrize("tag", ["", "another"])
def test_a_process_of_no_run_or_of_another_is_not_held_and_survives(sleeper, tag):
    bystander = sleeper(tag)
    process = Process(bystander.pid, "mine")
    process.send(signal.SIGKILL)
    assert not process.held
    assert not process.runs()
    assert not process.stands_still()
    assert send(b"mine", signal.SIGKILL) == 0
    assert bystander.poll() is None


def test_a_process_that_nobody_has_collected_has_ended(sleeper):
    mine = sleeper("mine")
    process = Process(mine.pid, "mine")
    mine.kill()
    assert process.wait(SOON)
    assert not Process(mine.pid, "mine").held


@pytest.mark.skipif(not os.access(LAST_PID, os.W_OK), reason="only root can choose the next process's number")
def test_who_gets_the_number_of_a_process_that_ended_is_not_signalled(sleeper):
    for _ in range(1000):  # others start processes and threads too: one of them may get the number, and keep it
        mine = sleeper("mine")
        process = Process(mine.pid, "mine")
        mine.kill()
        mine.wait()
        LAST_PID.write_text(str(mine.pid - 1))
        heir = sleeper("mine")  # of the same run even
        if heir.pid == mine.pid:
            break
        heir.kill()
        heir.wait()
    assert heir.pid == process.pid
    process.send(signal.SIGKILL)
    process.send(signal.SIGSTOP)
    assert not process.runs()
    assert not process.stands_still()
    assert Process(heir.pid, "mine").runs()


# -- ranks on another host ----------------------------------------------------------------------------------------


@pytest.fixture
def far(sleeper):
    """A lab whose rank 1 says that it runs elsewhere, under the number of a bystander here that has the run's tag."""
    with labkit.start(2, timeout=5) as lab:
        bystander = sleeper(Trace.of(lab._address).tag)
        real = lab._engines.members[1].pid
        says = f"'host': 'elsewhere', 'place': 'elsewhere', 'pid': {bystander.pid}"
        lab.run(
            "from labkit.rank import group\njoin = group.join\n"
            f"if rank == 1: group.join = lambda *args: {{**join(*args), {says}}}"
        )
        engines = lab._console.engines
        engines._held.pop(1)  # as if it had never been here
        engines.join()
        assert (engines.members[1].host, engines.members[1].pid) == ("elsewhere", bystander.pid)
        yield lab, engines, bystander, real


def test_no_signal_is_sent_for_a_rank_on_another_host_which_its_own_agent_ends(far):
    lab, engines, bystander, real = far
    bystander.send_signal(signal.SIGSTOP)
    assert not engines.is_stopped(1)
    bystander.send_signal(signal.SIGCONT)
    with pytest.raises(LabError, match=r"^rank 1 runs on elsewhere: no signal is sent there from here\. Call .*\.$"):
        engines.signal([0, 1], signal.SIGCONT)
    engines.kill(1)
    assert eventually(lambda: not Path(f"/proc/{real}").exists())
    assert bystander.poll() is None
    assert lab.run(SUM) == ["2", "2"]
    assert lab._engines.members[1].pid not in (real, bystander.pid)


def test_a_rank_on_another_host_that_does_not_answer_is_left_alone_and_the_error_says_where_it_is(far):
    _, engines, bystander, real = far
    os.kill(real, signal.SIGSTOP)
    with pytest.raises(LabError, match=rf"it is process {bystander.pid} on elsewhere\. End it there, then call lab"):
        engines.kill(1)
    assert bystander.poll() is None
    assert Path(f"/proc/{real}").exists()
