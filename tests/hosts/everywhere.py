"""What holds on two hosts under every launcher: test_ssh.py, test_slurm.py and test_mpi.py run these tests.

`Everywhere` shares one lab among its tests, `Ends` starts one for each and looks for what is left of it. What the
processes on the hosts do by themselves is the same under every launcher, and tested in test_ssh.py alone.
"""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from tests.hosts.files import NODES
from tests.hosts.hosts import CHECKOUT, HOME, NAMES, Hosts, Process
from tests.hosts.notebook import HostNotebook
from tests.live.notebook import Cell
from tests.live.processes import STATES, eventually

CUT_OFF = 60.0  # seconds in which a host that is cut off has ended its part of the lab
GONE = 10.0  # seconds in which everything must be gone from every host, however a lab ends
ALIVE = """%%px
y = torch.ones(1)
dist.all_reduce(y)
print(rank, world_size, int(y), globals().get('keep'))"""
ABANDONED = "%px import subprocess; child = subprocess.Popen(['sleep', '1000'], start_new_session=True)"
REJOINED = "the process group is joined again; all variables are kept"


def begin(hosts: Hosts, notebook: HostNotebook, code: str) -> str:
    """Send a cell to the ranks and wait until all have begun with it."""
    pending = notebook.send(f"%%px\nimport pathlib\npathlib.Path(f'/tmp/begun{{rank}}').touch()\n{code}")
    begun = [hosts.path("nb" if r > 1 else "na", f"/tmp/begun{r}") for r in range(4)]
    assert eventually(lambda: all(file.exists() for file in begun))
    for file in begun:
        file.unlink()
    return pending


class Launcher:
    """How a test class starts its labs: `arguments` of start() for two ranks on na and two on nb."""

    arguments = ""
    by = ""  # "over ssh"

    def environment(self, hosts: Hosts) -> dict[str, str]:
        """What the notebook's environment needs beside that of every program."""
        return {}

    def open(self, hosts: Hosts, **more: str) -> HostNotebook:
        return HostNotebook(hosts, "head", **{**self.environment(hosts), **more})

    def start(self, notebook: HostNotebook, more: str = "timeout=5") -> Cell:
        return notebook.run(f"from labkit import start\nlab = start({self.arguments}, {more})")


def stop_agent(hosts: Hosts, host: str) -> None:
    """Let the process that started a host's ranks stand still."""
    (pid,) = [p.pid for p in hosts.processes(host) if re.search(r"python\S* -m labkit\.cluster\.host$", p.command)]
    os.kill(hosts.outside(host, pid), signal.SIGSTOP)


class Row(NamedTuple):
    """A rank in the lab's table."""

    host: str
    pid: int


def table(notebook: HostNotebook) -> list[Row]:
    """The lab's table, rank by rank."""
    return [Row(host, int(pid)) for pid, host in re.findall(r"pid=(\d+) +host=(\w+)", notebook.value("lab"))]


def states(notebook: HostNotebook) -> list[str]:
    return ast.literal_eval(notebook.value(STATES))


def alive(notebook: HostNotebook, lost: tuple[int, ...] = ()) -> None:
    """All ranks are there, on their hosts and in their order; only the lost ones come without their variables."""
    cell = notebook.run(ALIVE)
    assert cell.status == "ok", cell
    told = [f"rank {r} │ {r} 4 4 {None if r in lost else 100 + r}" for r in range(4)]
    assert [line for line in cell.stdout.splitlines() if line.startswith("rank ")] == told
    assert [row.host for row in table(notebook)] == ["na", "na", "nb", "nb"]


def left(hosts: Hosts) -> list[str]:
    """What is left on the hosts, the notebook, MPI's empty folders and torch's cache of compiled code excepted."""
    others = re.compile(r"kernel|: /tmp/ompi\.\w+\.0$|: /tmp/torchinductor_")
    return [what for what in hosts.left() if not others.search(what)]


def nothing_is_left(hosts: Hosts) -> None:
    assert eventually(lambda: not left(hosts), GONE), "\n".join(left(hosts))


class Everywhere(Launcher):
    """What a lab does while it runs."""

    @pytest.fixture
    def notebook(self, shared: HostNotebook) -> HostNotebook:
        return shared

    @pytest.fixture(autouse=True)
    def _variables(self, notebook) -> None:
        cell = notebook.run("%%px\nkeep = 100 + rank\nimport os, pathlib, signal, socket, time")
        assert cell.status == "ok", cell

    def test_ranks_are_numbered_host_by_host_and_speak_in_that_order(self, notebook):
        said = notebook.run("%%px\ntime.sleep(0.1 * (3 - rank))\nprint(rank, socket.gethostname())").stdout
        assert said == "rank 0 │ 0 na\nrank 1 │ 1 na\nrank 2 │ 2 nb\nrank 3 │ 3 nb\n"
        alive(notebook)

    def test_the_table_names_the_hosts_and_their_own_pids(self, three, notebook):
        rows = table(notebook)
        assert [row.host for row in rows] == ["na", "na", "nb", "nb"]
        for row in rows:
            assert "labkit" in dict(three.processes(row.host))[row.pid]

    def test_nobody_listens_where_strangers_are(self, three, notebook):
        """Slurm's and MPI's own programs listen everywhere; what labkit starts does not."""
        for name in NAMES:
            for found in three.listening(name):
                if "python" in found.program:
                    assert found.address in ("127.0.0.1", three.addresses[name]), found

    def test_a_hang_is_explained_and_freed(self, notebook):
        error = notebook.run("%%px\nif rank != 2:\n    dist.barrier()")
        assert (
            error.error
            == "StuckError: rank 2 is missing: it finished the cell, while ranks 0, 1, 3 wait in barrier (line 3)"
        )
        assert REJOINED in error.traceback
        alive(notebook)

    def test_calls_that_do_not_fit_are_everyones_error(self, notebook):
        swapped = "if rank == 3:\n    dist.all_reduce(b)\n    dist.all_reduce(a)\n"
        swapped += "else:\n    dist.all_reduce(a)\n    dist.all_reduce(b)"
        cell = notebook.run(f"%%px\na, b = torch.ones(3), torch.ones(3)\n{swapped}")
        assert cell.error == (
            "CellError: Ranks disagree on the order of their calls: rank 3 calls dist.all_reduce(b) first (line 4); "
            "ranks 0–2 call dist.all_reduce(a) first (line 7). Make the calls in the same order on every rank."
        )
        assert REJOINED in cell.traceback
        alive(notebook)

    def test_an_exception_on_another_host_frees_the_rest(self, notebook):
        error = notebook.run("%%px\nif rank == 3:\n    1 / 0\ndist.barrier()")
        assert error.error == "CellError: rank 3: ZeroDivisionError: division by zero"
        alive(notebook)

    @pytest.mark.parametrize("rank", [0, 3])
    def test_a_rank_killed_in_a_cell_is_named_and_replaced_on_its_host(self, notebook, rank):
        cell = notebook.run(f"%%px\nif rank == {rank}:\n    os.kill(os.getpid(), signal.SIGKILL)\ndist.barrier()")
        assert cell.error == f"CellError: rank {rank} died (SIGKILL)"
        assert f"rank {rank} was started anew, " in cell.traceback
        alive(notebook, (rank,))

    def test_a_rank_that_ends_itself_is_said_to_have_done_so(self, notebook):
        cell = notebook.run("%%px\nif rank == 2:\n    os._exit(3)\ndist.barrier()")
        assert cell.error == "CellError: rank 2 died (exit code 3)"
        alive(notebook, (2,))

    def test_all_ranks_of_a_host_killed_at_once_come_back(self, notebook):
        cell = notebook.run("%%px\nif rank > 1:\n    os.kill(os.getpid(), signal.SIGKILL)\ndist.barrier()")
        assert cell.error == "CellError: ranks 2, 3 died (SIGKILL)"
        alive(notebook, (2, 3))

    def test_a_rank_killed_between_cells_is_replaced_before_the_next(self, three, notebook):
        os.kill(three.outside(*table(notebook)[2]), signal.SIGKILL)
        assert eventually(lambda: states(notebook)[2] == "dead")
        alive(notebook, (2,))

    def test_an_elastic_lab_goes_on_without_a_rank_and_grows_on_its_host(self, notebook):
        notebook.run("lab.elastic = True")
        cell = notebook.run("%%px\nif rank == 2:\n    os.kill(os.getpid(), signal.SIGKILL)\ndist.barrier()")
        assert "ranks 0, 1, 3 go on as a group of 3, and are ranks 0–2 from now on" in cell.traceback
        assert [row.host for row in table(notebook)] == ["na", "na", "nb"]
        assert notebook.run("%%px\nassert keep == [100, 101, 103][rank]\nkeep = 100 + rank").status == "ok"
        assert notebook.run("lab.elastic = False\nlab.grow()").status == "ok"
        assert notebook.value("lab.pull('os.environ[\"LOCAL_RANK\"]')") == "['0', '1', '1', '0']"
        alive(notebook, (3,))

    @pytest.fixture
    def decoys(self, three, notebook) -> Iterator[list[Process]]:
        """On head, a process for each rank that has the same pid as that rank has on its host."""
        code = (
            "import subprocess, sys, pathlib\n"
            "for pid in map(int, sys.argv[1:]):\n"
            "    for _ in range(20):\n"
            "        pathlib.Path('/proc/sys/kernel/ns_last_pid').write_text(str(pid - 1))\n"
            "        child = subprocess.Popen(['sleep', '1000'])\n"
            "        if child.pid == pid: break\n"
            "        child.kill(); child.wait()\n"
            "print('here', flush=True)\ninput()"
        )
        pids = sorted({row.pid for row in table(notebook)})
        argv = [sys.executable, "-c", code, *map(str, pids)]
        with three.popen("head", argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
            assert program.stdout.readline() == "here\n"
            decoys = {Process(pid, "sleep 1000") for pid in pids}  # once they have become what they were started as
            assert eventually(lambda: decoys <= set(three.processes("head")))
            standing = [p for p in three.processes("head") if p.pid in pids]
            assert {p.pid for p in standing} == set(pids)
            yield standing
            now = three.processes("head")
            program.signal_group(signal.SIGKILL)
            assert [p for p in standing if p not in now] == []

    def test_a_rank_that_stands_still_is_replaced_and_no_process_here_of_its_pid(self, three, notebook, decoys):
        cell = notebook.run("%%px\nif rank == 3:\n    os.kill(os.getpid(), signal.SIGSTOP)\ndist.barrier()")
        assert cell.error == "CellError: rank 3 stood still (SIGSTOP) and was ended"
        alive(notebook, (3,))

    def test_a_rank_in_a_long_call_of_c_is_replaced_and_no_process_here_of_its_pid(self, three, notebook, decoys):
        cell = notebook.run("%%px\nimport ctypes\nif rank == 2:\n    ctypes.PyDLL(None).sleep(1000)\ndist.barrier()")
        assert cell.error == "CellError: rank 2 did not answer and was ended"
        alive(notebook, (2,))

    @pytest.mark.parametrize("code", ["if rank != 1: dist.barrier()\nelse: time.sleep(1000)", "while True: pass"])
    def test_stop_ends_a_cell_and_keeps_the_variables(self, three, notebook, code):
        pending = begin(three, notebook, code)
        notebook.interrupt()
        cell = notebook.wait(pending)
        assert cell.error.startswith("StoppedError: You stopped the cell"), cell
        alive(notebook)

    def test_a_hosts_process_that_stands_still_is_woken_when_a_rank_there_has_died(self, three, notebook):
        stop_agent(three, "nb")
        os.kill(three.outside(*table(notebook)[3]), signal.SIGKILL)
        cell = notebook.run(ALIVE)
        assert re.search(r"rank 3 (had )?died \(SIGKILL\)", cell.error + cell.stdout), cell  # before or in the cell
        alive(notebook, (3,))

    def test_stop_ends_a_cell_where_a_rank_and_its_hosts_process_stand_still(self, three, notebook):
        code = "if rank == 3:\n    os.kill(os.getpid(), signal.SIGSTOP)\ndist.barrier()"
        pending = begin(three, notebook, code)
        stop_agent(three, "nb")
        notebook.interrupt()
        cell = notebook.wait(pending)
        assert cell.error.startswith("StoppedError: You stopped the cell"), cell
        assert "rank 3 was started anew, " in cell.traceback
        alive(notebook, (3,))

    def test_a_controller_that_dies_comes_back(self, three, notebook):
        servers = [p.pid for p in three.processes("head") if "forkserver" in p.command]
        os.kill(three.outside("head", max(servers)), signal.SIGKILL)
        cell = notebook.run("%px print(keep)")
        alive(notebook)
        assert cell.status in ("ok", "error")

    def test_the_link_cut_for_a_moment_costs_nothing(self, three, notebook):
        three.cut("nb")
        pending = notebook.send(ALIVE)
        notebook.until_begun(pending)
        three.mend("nb")
        assert notebook.wait(pending).status == "ok"
        alive(notebook)

    def test_stop_leaves_nothing(self, three, notebook):
        """The last test here: it stops the lab that they share."""
        notebook.value(ABANDONED)
        notebook.value("lab.stop()")
        nothing_is_left(three)


class Ends(Launcher):
    """How a lab ends: nothing of it is left on any host, neither process nor file nor job."""

    @pytest.fixture
    def notebook(self, hosts: Hosts) -> Iterator[HostNotebook]:
        with self.open(hosts) as notebook:
            yield notebook

    @pytest.fixture
    def lab(self, notebook: HostNotebook) -> HostNotebook:
        """The notebook, with a lab whose ranks have children that they do not wait for."""
        cell = self.start(notebook)
        assert cell.status == "ok", cell
        notebook.value(ABANDONED)
        return notebook

    def test_a_kernel_killed_while_its_ranks_stand_still_leaves_nothing(self, hosts, lab):
        begin(hosts, lab, "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)")
        lab.kill()
        nothing_is_left(hosts)

    def test_a_kernel_killed_behind_a_cut_link_leaves_nothing(self, hosts, lab):
        """A host that is cut off waits for a while before it ends its part; sshd, orted and slurmd hear of it later."""
        hosts.cut("nb")
        lab.kill()
        assert eventually(lambda: not [what for what in self.mine(hosts) if what.startswith(("head", "na"))], GONE)
        assert eventually(lambda: not [what for what in self.mine(hosts) if "labkit" in what], CUT_OFF), left(hosts)
        hosts.mend("nb")
        assert eventually(lambda: not self.mine(hosts), CUT_OFF), left(hosts)

    def mine(self, hosts: Hosts) -> list[str]:
        """What labkit has to answer for, where a host or a link was lost."""
        return left(hosts)

    def test_stop_as_the_hosts_start_their_processes_leaves_nothing(self, hosts, notebook):
        self.stopped_while(hosts, notebook, "Starting a process on each host")

    def stopped_while(self, hosts: Hosts, notebook: HostNotebook, moment: str) -> None:
        """Press Stop at this moment of a start: nothing is left, and the next start is well."""
        pending = notebook.send(f"from labkit import start\nlab = start({self.arguments})")
        notebook.until_shown(pending, moment)
        assert eventually(lambda: hosts.processes("nb"))
        notebook.interrupt()
        cell = notebook.wait(pending)
        assert cell.status == "error", cell
        nothing_is_left(hosts)
        assert self.start(notebook).status == "ok"

    def test_a_kernel_killed_during_the_start_leaves_nothing(self, hosts, notebook):
        pending = notebook.send(f"from labkit import start\nlab = start({self.arguments})")
        notebook.until_begun(pending)
        assert eventually(lambda: hosts.processes("nb"))
        notebook.kill()
        nothing_is_left(hosts)

    def test_a_host_lost_during_a_cell_is_named_and_the_rest_ends(self, hosts, lab):
        # Who computes is on the lost host: the others may wait, or be told by Gloo that a connection is closed.
        pending = begin(hosts, lab, "if rank == 3:\n    while True: pass\ndist.barrier()")
        hosts.kill("nb")
        cell = lab.wait(pending)
        assert "nb" in cell.error, cell
        lab.value("lab.stop()")
        assert eventually(lambda: not self.mine(hosts), GONE), self.mine(hosts)

    def test_a_link_cut_for_long_is_told_and_after_it_is_mended_there_are_ranks_again(self, hosts, lab):
        lab.value("%px keep = 100 + rank")
        hosts.cut("nb")
        cell = lab.run(ALIVE)
        assert "nb" in cell.error, cell
        hosts.mend("nb")
        cell = lab.run(ALIVE)
        if self.by != "over ssh":  # which alone can start a process on one host again
            assert "Call start() for new ranks." in cell.error, cell  # Slurm may have ended the job meanwhile
            assert self.start(lab).status == "ok"
            lab.value("%px keep = 100 + rank")
            cell = lab.run(ALIVE)
        assert cell.status == "ok", cell
        lab.value("lab.stop()")
        nothing_is_left(hosts)

    def test_a_host_that_is_out_of_reach_fails_the_start_and_leaves_nothing(self, hosts, notebook):
        hosts.cut("nb")
        cell = self.start(notebook)
        assert cell.error.startswith("LabError"), cell
        assert "nb" in cell.error
        hosts.mend("nb")
        assert eventually(lambda: not self.mine(hosts), GONE), self.mine(hosts)
        assert self.start(notebook).status == "ok"


def write_profile(hosts: Hosts, node: str, name: str, settings: str) -> None:
    profile = hosts.path(node, f"{HOME}/.ipython/profile_{name}")
    profile.mkdir(parents=True, exist_ok=True)
    (profile / "ipcluster_config.py").write_text(f"c = get_config()\n{settings}\n")


@contextmanager
def ranks_on_both(hosts: Hosts) -> Iterator[None]:
    """Assert that each host has sent what a lesson's ranks send, and that nothing is left on any."""
    before = [hosts.bytes(node).sent for node in NODES]
    yield
    for node, first in zip(NODES, before, strict=True):
        assert hosts.bytes(node).sent > first + 1_000_000, f"no rank of this lesson was on {node}"
    assert eventually(lambda: not left(hosts)), left(hosts)


def lesson_passes(hosts: Hosts, lesson: str, settings: str, **more: str) -> None:
    """Run a lesson that knows nothing of several hosts: a profile's settings alone say where its ranks are."""
    write_profile(hosts, "head", "far", settings)
    with ranks_on_both(hosts):
        done = hosts.nbval(CHECKOUT / f"notebooks/{lesson}.ipynb", LABKIT_PROFILE="far", **more)
        assert done.returncode == 0, done.stdout + done.stderr
