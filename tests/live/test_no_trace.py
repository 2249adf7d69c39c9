"""However a lab or its notebook ends, no process and no file of it is left."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from labkit.cluster.reaper import __file__ as reaper_file
from labkit.cluster.reaper import tagged
from labkit.cluster.rundir import TAG
from tests.live.notebook import Notebook
from tests.live.processes import Trace, carrying, descriptors, eventually

AFTER = 5.0  # seconds in which everything must be gone
START = "from labkit import start\nlab = start(2, timeout=30)\nlab._address"


@pytest.fixture
def notebook():
    notebook = Notebook()
    yield notebook
    if notebook.manager.has_kernel:
        notebook.close()


def started(notebook):
    """Start a lab there whose rank 0 has a child that nobody waits for."""
    trace = Trace.of(notebook.value(START).strip("'"))
    notebook.value("%px import subprocess; child = subprocess.Popen(['sleep', '1000'], start_new_session=True)")
    assert len([p for p in trace.processes() if p.name() == "sleep"]) == 2
    assert trace.path.exists()
    return trace


def gone(trace):
    assert eventually(trace.gone, AFTER), trace.left()


def test_stopping_the_lab_leaves_nothing(notebook):
    trace = started(notebook)
    notebook.value("lab.stop()")
    gone(trace)


def test_a_with_block_left_by_an_error_leaves_nothing(notebook):
    cell = notebook.run(f"{START}\nwith lab:\n    print(lab._address)\n    lab.run('1 / 0')")
    assert cell.error.startswith("CellError")
    gone(Trace("no tag is known any more", Path(cell.stdout.splitlines()[-1]).parent))


@pytest.mark.parametrize("now", [False, True], ids=["politely", "at once"])
def test_shutting_the_kernel_down_leaves_nothing(notebook, now):
    trace = started(notebook)
    notebook.close(now)
    gone(trace)


def test_restarting_the_kernel_leaves_nothing_and_a_new_lab_starts(notebook):
    trace = started(notebook)
    notebook.restart()
    gone(trace)
    new = Trace.of(notebook.value(START).strip("'"))
    assert new.path != trace.path


@pytest.mark.parametrize(
    "code",
    [
        "if rank == 0:\n    while True: pass\ndist.barrier()",
        "import os, signal\nif rank == 0:\n    signal.pause()\nos.kill(os.getpid(), 19)",
    ],
    ids=["waiting and computing", "sleeping and standing still"],
)
def test_killing_the_kernel_during_a_cell_leaves_nothing(notebook, code, tmp_path):
    trace = started(notebook)
    notebook.send(f"%%px\nopen(f'{tmp_path}/{{rank}}', 'w').close()\n{code}")
    assert eventually(lambda: len(list(tmp_path.iterdir())) == 2)
    notebook.kill()
    gone(trace)


def test_killing_the_kernel_after_ranks_were_replaced_leaves_nothing(notebook):
    trace = started(notebook)
    assert "died" in notebook.run("%%px\nimport os\nif rank: os._exit(1)").error
    notebook.kill()
    gone(trace)


def helper(trace, name):
    """The lab's reaper or fork server; the server's name is also that of what it has forked."""
    return min(
        (p for p in trace.processes() if any(name in word for word in p.cmdline())), key=psutil.Process.create_time
    )


def killed(process):
    with contextlib.suppress(psutil.NoSuchProcess):  # it has ended by itself
        process.kill()
    assert eventually(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.parametrize("busy", ["", "if rank == 0:\n    while True: pass\ndist.barrier()"], ids=["idle", "busy"])
@pytest.mark.parametrize("first", ["reaper", "kernel"])
def test_killing_the_reaper_and_the_kernel_leaves_nothing(notebook, first, busy, tmp_path):
    trace = started(notebook)
    notebook.send(f"%%px\nopen(f'{tmp_path}/{{rank}}', 'w').close()\n{busy}")
    assert eventually(lambda: len(list(tmp_path.iterdir())) == 2)
    reaper = helper(trace, "reaper")
    if first == "kernel":
        reaper.suspend()  # later it may have ended the fork server, and be about to remove the last files
        notebook.kill()
    killed(reaper)
    if first == "reaper":
        notebook.kill()
    gone(trace)


def test_a_fork_server_that_was_started_anew_does_the_reapers_work_as_well(notebook):
    trace = started(notebook)
    killed(helper(trace, "forkserver"))
    assert "died" in notebook.run("%%px\nimport os\nif rank: os._exit(1)").error
    killed(helper(trace, "reaper"))  # before the kernel: later it may be about to remove the last files
    notebook.kill()
    gone(trace)


def test_a_reaper_that_was_killed_is_back_with_the_next_cell(notebook):
    trace = started(notebook)
    killed(helper(trace, "reaper"))
    assert notebook.run("%%px\nrank").stdout == "rank 0 │ 0\nrank 1 │ 1\n"
    killed(helper(trace, "forkserver"))
    notebook.kill()
    gone(trace)


def test_a_reaper_that_was_killed_is_missed_by_nothing_when_the_lab_is_stopped(notebook):
    trace = started(notebook)
    killed(helper(trace, "reaper"))
    assert notebook.run("%%px\nrank").stdout == "rank 0 │ 0\nrank 1 │ 1\n"
    notebook.value("lab.stop()")
    gone(trace)


def test_a_process_that_the_killed_owner_had_only_forked_is_ended_too(tmp_path):
    """Between fork and exec it has its parent's environment: the reaper cannot know it yet."""
    owner = subprocess.Popen(["sleep", "1000"])
    folder, tag = tmp_path / "labkit-run", "LABKIT_RUN=forked-but-not-yet-executed"
    reaper = subprocess.Popen(
        [sys.executable, "-I", "-S", reaper_file, str(owner.pid), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    reaper.stdin.write(tag.encode() + b"\n")
    reaper.stdin.close()
    assert reaper.stdout.readline() == b"ready\n"
    reaper.stdout.close()
    late = subprocess.Popen(["/bin/sh", "-c", f"sleep 0.3; exec env {tag} sleep 1000"])
    owner.kill()
    owner.wait()
    try:
        assert late.wait(AFTER) != 0
    finally:
        late.kill()
    assert reaper.wait(AFTER) == 0
    assert not folder.exists()


@pytest.mark.parametrize("now", [False, True], ids=["politely", "at once"])
def test_restarting_the_kernel_in_the_middle_of_a_hang_leaves_nothing_and_a_new_lab_starts(notebook, now, tmp_path):
    trace = started(notebook)
    notebook.send(f"%%px\nopen(f'{tmp_path}/{{rank}}', 'w').close()\nif rank:\n    while True: pass\ndist.barrier()")
    assert eventually(lambda: len(list(tmp_path.iterdir())) == 2)
    notebook.restart(now)
    gone(trace)
    assert notebook.value(START)
    assert notebook.run("%%px\ny = torch.ones(1)\ndist.all_reduce(y)\nprint(int(y))").stdout == "ranks 0, 1 │ 2\n"


def run_directory():
    return next(iter(Path(tempfile.gettempdir()).glob("labkit-*")), None)


@pytest.mark.parametrize("file", ["", "fork.sock", "cluster.json", "log/ipengine*"])
def test_killing_the_kernel_while_a_lab_starts_leaves_nothing(notebook, file):
    """At its first sign, with the fork server, with the controller, with the first engine."""
    notebook.send(START)
    assert eventually(lambda: run_directory() and (not file or list(run_directory().glob(file))))
    path = run_directory()
    tags = {p.environ()[TAG] for p in carrying(str(path)) if TAG in p.environ()}
    notebook.kill()
    for tag in tags or {str(path)}:
        gone(Trace(tag, path))
    assert run_directory() is None


@pytest.mark.parametrize("now", [False, True], ids=["politely", "at once"])
@pytest.mark.parametrize("file", ["fork.sock", "cluster.json"])
def test_restarting_the_kernel_while_a_lab_starts_leaves_nothing_and_a_new_lab_starts(notebook, file, now):
    notebook.send(START)
    assert eventually(lambda: run_directory() and list(run_directory().glob(file)))
    path = run_directory()
    notebook.restart(now)
    gone(Trace(str(path), path))
    assert notebook.value(START)
    assert notebook.run("%%px\ny = torch.ones(1)\ndist.all_reduce(y)\nprint(int(y))").stdout == "ranks 0, 1 │ 2\n"


def test_a_start_that_was_stopped_leaves_nothing(notebook):
    starting = notebook.send(START)
    assert eventually(lambda: run_directory() and list(run_directory().glob("cluster.json")))
    path = run_directory()
    notebook.interrupt()
    assert notebook.wait(starting).status == "error"
    gone(Trace(str(path), path))
    assert notebook.value("lab.n" if notebook.run(START).status == "ok" else "0") == "2"


PRESSED = """
from labkit.cluster import processes
from ipyparallel import Client
import os, signal
where, name = {"reaper": (processes, "start_reaper"), "client": (Client, "_start_io_thread")}[WHAT]
begins = getattr(where, name)
def pressed(*args):
    setattr(where, name, begins)
    begun = begins(*args)
    os.kill(os.getpid(), signal.SIGINT)
    return begun
setattr(where, name, pressed)
"""


@pytest.mark.parametrize("what", ["reaper", "client"])
def test_a_start_that_is_stopped_as_it_begins_something_leaves_nothing_of_it(notebook, what):
    """Stop is pressed when it has begun, and before start() could know that."""
    notebook.value("from labkit import start\nstart(2).stop()")
    before = held(notebook)
    notebook.value(PRESSED.replace("WHAT", repr(what)))
    assert notebook.run("lab = start(2)").error.startswith("KeyboardInterrupt")
    assert eventually(lambda: run_directory() is None, AFTER)
    notebook.run("1 / 0")  # the last error is kept, with all that it came through
    now = held(notebook)
    assert not now[0] - before[0]
    assert now[1] <= before[1]


def test_a_program_in_any_folder_that_forgets_to_stop_its_lab_leaves_nothing(tmp_path):
    code = "from labkit import start; lab = start(2); lab.run('import os; print(os.getcwd())'); print(lab._address)"
    told = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stderr
    assert f"ranks 0, 1 │ {tmp_path}\n" in told.stdout, "the ranks work where the program does"
    assert list(tmp_path.iterdir()) == []
    path = Path(told.stdout.splitlines()[-1]).parent
    gone(Trace(str(path), path))


def test_a_reaper_that_was_told_no_tag_spares_everybody():
    """Its owner may be killed between starting it and telling it; an empty tag is in every environment."""
    assert tagged(b"") == {}
    assert os.getpid() not in tagged(b"LABKIT_RUN=none")


def test_a_killed_reaper_is_not_missed_by_stop(notebook):
    trace = started(notebook)
    reaper = next(p for p in carrying(str(trace.path)) if any("reaper.py" in word for word in p.cmdline()))
    reaper.kill()
    notebook.value("lab.stop()")
    gone(trace)


def held(notebook):
    """The descriptors and the threads of the kernel."""
    notebook.value("import gc\ngc.collect()")
    return descriptors(notebook.pid), len(os.listdir(f"/proc/{notebook.pid}/task"))


def test_a_lab_that_was_stopped_leaves_no_thread_no_descriptor_and_no_object_in_the_kernel(notebook):
    seen = []
    for _ in range(4):
        notebook.value("from labkit import start\nlab = start(2)")
        notebook.value("lab.stop()")
        seen.append(held(notebook))
    assert seen[2:] == seen[1:3], "what the first one makes for good is not a leak"
    count = "from labkit.lab import Lab\nsum(isinstance(its, Lab) for its in gc.get_objects())"
    assert notebook.value(count) == "1", "nobody holds the labs before the last"


def test_ranks_that_were_started_anew_leave_no_descriptor_and_no_file(notebook):
    """Whether in the kernel or in the fork server, which must not keep a connection for each of them."""
    trace = Trace.of(notebook.value(START).strip("'"))
    servers = [p for p in trace.processes() if any("forkserver" in word for word in p.cmdline())]
    server = next(p for p in servers if p.num_threads() == 1)  # those that it forked have more
    seen = []
    for _ in range(3):
        assert "died" in notebook.run("%%px\nimport os\nif rank: os._exit(1)").error
        seen.append((held(notebook), descriptors(server.pid), len(list(trace.path.glob("log/ipengine*")))))
    assert seen[1:] == seen[:2]
