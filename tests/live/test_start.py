"""labkit.start: what it starts, what it refuses, and that each refusal ends with what to do next."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

import labkit
from labkit import LabError
from labkit.cluster import processes
from labkit.faces import current_lab
from labkit.floor import time_limits
from tests.live.notebook import Notebook
from tests.live.processes import Trace, eventually

SUM = "x = torch.ones(1)\ndist.all_reduce(x)\nint(x)"


@pytest.fixture(autouse=True)
def _nothing_runs():
    yield
    if (lab := current_lab.running()) is not None:
        lab.stop()


@pytest.fixture(scope="module")
def no_ranks():
    """A notebook that has imported labkit and nothing more."""
    with Notebook() as notebook:
        notebook.value("import labkit")
        yield notebook


# -- what it starts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 16])
def test_so_many_ranks_are_joined(n):
    with labkit.start(n, "gloo", timeout=30) as lab:
        assert lab.n == n
        assert lab.run(SUM) == [str(n)] * n
        assert lab.pull("(rank, world_size, str(device))") == [[r, n, "cpu"] for r in range(n)]


def test_it_says_what_it_did_and_the_ranks_have_what_the_lessons_use(capsys):
    with labkit.start(2, "gloo") as lab:
        assert capsys.readouterr().out == f"{current_lab.started()}\n"
        assert str(current_lab.started()).startswith("2 CPU ranks with Gloo: ")
        lab.run("torch, dist, rank, world_size, device, comms, timed, tiny, footprint, peak, span;")
        first, second = lab.pull("torch.rand(4).tolist()")
        assert first != second
        lab.run("import numpy, random;")
        assert len({tuple(x) for x in lab.pull("numpy.random.rand(4).tolist()")}) == 2
        assert len(set(lab.pull("random.random()"))) == 2


def pretend_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch be said to have found a GPU, on a machine where NCCL cannot have one."""
    start = processes.Processes.start
    monkeypatch.setattr(processes.Processes, "start", lambda self, say: [1 for _ in start(self, say)])


def test_where_nccl_cannot_join_the_ranks_they_are_joined_on_cpus_and_it_is_said_why(monkeypatch):
    pretend_a_gpu(monkeypatch)
    with labkit.start(2) as lab:
        said = str(current_lab.started())
        assert said.startswith("2 CPU ranks with Gloo: NCCL could not join ranks on GPUs: ranks 0, 1: ")
        assert lab.run(SUM) == ["2", "2"]


def test_whoever_asks_for_nccl_gets_its_error(monkeypatch):
    pretend_a_gpu(monkeypatch)
    with pytest.raises(LabError, match=r"cannot be joined: ranks 0, 1: .*\. Call lab\.stop\(\)"):
        labkit.start(2, "nccl")


def test_a_second_start_with_the_same_wish_returns_the_lab_and_with_another_replaces_it():
    first = labkit.start(2)
    assert labkit.start(2) is first
    trace = Trace.of(first._address)
    second = labkit.start(1)
    assert second is not first
    assert eventually(trace.gone, 5), trace.left()
    with pytest.raises(LabError, match=r"was stopped\. Call lab = start\(\)"):
        first.run("1")
    assert second.run(SUM) == ["1"]


def test_a_second_start_heals_the_lab():
    first = labkit.start(2)
    os.kill(first._engines.members[1].pid, 9)
    assert labkit.start(2) is first
    assert first.run(SUM) == ["2", "2"]


def test_an_address_tells_its_files_and_a_lab_stopped_twice_says_what_to_do():
    lab = labkit.start(1)
    address = Path(lab._address)
    told = json.loads(address.read_text())
    assert Path(told["path"]) == address.parent
    assert Path(told["file"]).exists()
    lab.stop()
    lab.stop()
    assert "start()" in repr(lab)
    for use in (lambda: lab.run("1"), lambda: lab.pull("rank"), lab.heal, lambda: lab.n, lambda: lab.last):
        with pytest.raises(LabError, match=r"start\(\)"):
            use()


def test_the_notebooks_kernel_never_imports_torch():
    with Notebook() as notebook:
        notebook.value("from labkit import start\nlab = start(1)")
        notebook.value("lab.run('x = torch.ones(3)'); lab.pull('x'); lab.look('x'); lab.hosts; repr(lab)")
        assert notebook.value("import sys; [m for m in sys.modules if m.split('.')[0] == 'torch']") == "[]"


def test_an_engine_whose_registration_was_not_heard_is_found_all_the_same(monkeypatch):
    monkeypatch.setattr(time_limits, "ENGINES_UP", 20.0)
    monkeypatch.setattr(time_limits, "HUB_ASKED", 0.1)
    lab = labkit.start(1)
    client = lab._engines.processes.client
    monkeypatch.setitem(client._notification_handlers, "registration_notification", lambda _: None)
    (new,) = lab._engines.processes.new_engines(1)
    assert client[new].apply_sync(os.getpid) != lab._engines.members[0].pid


def test_where_an_engine_hangs_while_it_starts_is_told(monkeypatch):
    hang = "--IPEngine.startup_command=import threading; threading.Event().wait()"
    monkeypatch.setattr(processes, "ENGINE_ARGS", [*processes.ENGINE_ARGS, hang])
    monkeypatch.setattr(time_limits, "ENGINES_UP", 3.0)
    with pytest.raises(LabError) as caught:
        labkit.start(2)
    told = str(caught.value)
    assert told.startswith("Only 0 of 2 engines came up in 3 s. Is this machine overloaded?\nShould it happen again, ")
    assert 'threading.py", line' in told
    assert told.count("_run_module_as_main") == 1
    assert told.endswith("\nRun start() again, with fewer ranks.")


# -- what it refuses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, -1, 17, 1000, True, 2.5, "4", [2]])
def test_a_number_of_ranks_that_is_none_is_refused(n):
    with pytest.raises(LabError, match=r"Choose 1 to 16, such as start\(4\)\.$"):
        labkit.start(n)


def test_an_unknown_backend_is_refused():
    with pytest.raises(LabError, match=r"Choose 'gloo' \(CPUs\) or 'nccl' \(GPUs\), or leave it out\.$"):
        labkit.start(2, backend="mpi")


@pytest.mark.parametrize("timeout", [0, -3, None, "10", True, float("nan"), float("inf")])
def test_a_time_to_wait_that_is_none_is_refused(timeout):
    with pytest.raises(LabError, match=r"Give seconds, such as start\(timeout=10\)\.$"):
        labkit.start(1, timeout=timeout)


def test_nccl_without_gpus_is_refused_and_leaves_nothing():
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine may have GPUs")
    with pytest.raises(LabError, match=r"torch finds no GPU here\. Call start\(\) for CPU ranks with Gloo\.$"):
        labkit.start(2, backend="nccl")
    assert not list(Path(tempfile.gettempdir()).glob("labkit-*"))


def test_an_unknown_launcher_is_refused_and_leaves_nothing():
    with pytest.raises(LabError, match="start"):
        labkit.start(2, engines="carrier pigeons")
    assert not list(Path(tempfile.gettempdir()).glob("labkit-*"))


def test_a_full_disk_is_refused(monkeypatch):
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1 << 20))
    with pytest.raises(LabError, match=r"has 1 MiB left .* or set TMPDIR to .*, and start again\.$"):
        labkit.start(1)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount")
def test_a_disk_that_is_really_full_is_refused(tmp_path, monkeypatch):
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", tmp_path], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        with pytest.raises(LabError, match=r"MiB left .* and start again\.$"):
            labkit.start(1)
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_folder_that_cannot_be_written_is_refused(monkeypatch):
    """A file stands where the folder should be: root, too, is refused."""
    with tempfile.NamedTemporaryFile() as file:
        monkeypatch.setattr(tempfile, "tempdir", file.name)
        with pytest.raises(LabError, match=r"Set TMPDIR to a directory that you may write to, and start again\.$"):
            labkit.start(1)


def test_a_folder_that_is_gone_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(LabError, match=r"TMPDIR"):
        labkit.start(1)


def test_a_path_too_long_for_a_socket_is_refused(tmp_path, monkeypatch):
    deep = tmp_path / ("x" * 90)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(LabError, match=r"Set TMPDIR to a shorter one, such as /tmp\.$"):
        labkit.start(1)
    assert list(deep.iterdir()) == []


def start_with(tmp_path, package):
    """Start a lab where `import torch` finds this text; what its error says, and whether anything is left."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(package)
    code = "import labkit\ntry: labkit.start(1)\nexcept labkit.LabError as error: print('LabError:', error)"
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    ran = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    assert eventually(lambda: not list(Path(tempfile.gettempdir()).glob("labkit-*")), 5)
    return ran.stdout.strip()


def test_no_torch_says_how_to_get_it(tmp_path):
    said = start_with(tmp_path, "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    assert said == f"LabError: {sys.executable} has no torch. Run `make lab`, or install torch into this environment."


def test_a_broken_torch_says_what_is_wrong_with_it(tmp_path):
    said = start_with(tmp_path, "raise OSError('libgomp.so.1: cannot open shared object file')")
    assert said.startswith("LabError: The ranks cannot be prepared: OSError: libgomp.so.1")
    assert said.endswith("Mend that, then start() again.")


def test_a_torch_that_ends_its_process_says_so(tmp_path):
    said = start_with(tmp_path, "import os; os.abort()")
    assert said.startswith("LabError: The fork server ended")


@pytest.mark.parametrize("launcher", [None, "local"])
def test_an_engine_that_ends_while_it_starts_is_noticed_and_quoted(monkeypatch, launcher):
    monkeypatch.setattr(processes, "ENGINE_ARGS", [*processes.ENGINE_ARGS, "--IPEngine.id=neither"])
    monkeypatch.setattr(time_limits, "ENGINES_UP", 600.0)
    with pytest.raises(LabError) as caught:
        labkit.start(1, engines=launcher)
    said = str(caught.value).splitlines()
    assert said[0].startswith("An engine ended while it started (")
    assert any("neither" in line for line in said[1:-1]), said
    assert said[-1] == "Mend that, then run start() again."
    assert not list(Path(tempfile.gettempdir()).glob("labkit-*"))


# -- %%px where there are no ranks --------------------------------------------------------------------------------


@pytest.mark.parametrize("magic", ["px", "flow x", "late 1"])
def test_a_magic_before_the_first_start_says_so(no_ranks, magic):
    assert no_ranks.run(f"%%{magic}\n1").error == "LabError: There are no ranks yet. Run lab = start() first."


def test_a_magic_after_a_failed_start_says_what_happened_and_what_to_do():
    with Notebook() as notebook:
        failed = notebook.run("import labkit\nlabkit.start(engines='carrier pigeons')").error
        assert failed.endswith("'local', 'ssh', 'slurm', 'mpi'.")
        told = failed.replace("LabError: ", "LabError: There are no ranks, since start() failed: ")
        assert notebook.run("%%px\n1").error == notebook.run("%px 1").error == told
        notebook.value("lab = labkit.start(1)")
        assert notebook.run("%%px\nrank").stdout == "rank 0 │ 0\n"
        notebook.value("%px import labkit")  # on a rank it changes nothing
        assert notebook.run("%%px\nrank").stdout == "rank 0 │ 0\n"


# -- several of them ----------------------------------------------------------------------------------------------


def test_two_labs_of_two_processes_do_not_disturb_each_other():
    with Notebook() as one, Notebook() as two:
        traces = [
            Trace.of(n.value("from labkit import start\nlab = start(2)\nlab._address").strip("'")) for n in (one, two)
        ]
        assert one.run("%%px\nx = torch.ones(1)\ndist.all_reduce(x)\nint(x)").stdout == "ranks 0, 1 │ 2\n"
        one.kill()
        assert eventually(traces[0].gone, 5)
        assert two.run("%%px\nx = torch.ones(1)\ndist.all_reduce(x)\nint(x)").stdout == "ranks 0, 1 │ 2\n"


def test_an_engine_that_its_launcher_has_seen_end_and_dropped_is_known_to_have_died():
    seen = SimpleNamespace(launchers={}, stop_data={"engines": {"0": {"pid": 7}}}, outputs={"0": "one\ntwo\n"})
    assert processes._died(seen) == {7: "one\ntwo\n"}
