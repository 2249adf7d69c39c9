"""What the doctor says of machines, most of which we do not have, and how its command line ends."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import labkit.starting
from labkit.__main__ import main
from labkit.cluster.memory_check import NO_SMI
from labkit.cluster.process_limit import Limit
from labkit.commands import doctor, machine
from labkit.commands.findings import Finding, judge, numbers, outside, split, worst
from labkit.commands.machine import Gpu, Machine, Torch
from labkit.faces import current_lab
from labkit.floor.errors import JoinError, LabError

ROOT = Path(__file__).resolve().parents[2]
MiB, GiB = 1 << 20, 1 << 30
WANTED = {
    "ipykernel": ">=6.29,<8",
    "ipython": ">=8.20,<10",
    "ipywidgets": ">=8.1,<9",
    "ipyparallel": ">=8.8,<10",
    "torch": ">=2.11,<2.16",
    "jupyterlab": ">=4.4,<5",
}
INSTALLED = {
    "collectives-workbook": "0.1.0",
    "ipykernel": "7.4.0",
    "ipython": "9.18.1",
    "ipywidgets": "8.1.9",
    "ipyparallel": "9.2.0",
    "torch": "2.13.0",
    "jupyterlab": "4.6.6",
}
CPU = Torch("2.13.0+cpu", gpus=0)
CUDA = Torch("2.13.0+cu130", gpus=1, nccl=(2, 28, 9))
UNUSABLE = replace(CUDA, gpus=0)
H200 = Gpu("NVIDIA H200", 139 * GiB)
T4 = Gpu("Tesla T4", 14 * GiB)
WELL = Machine(
    wanted=WANTED, installed=INSTALLED, torch=CPU, memory=((8 * GiB, "This machine"),), no_gpus=NO_SMI
)  # fmt: skip
GPU = replace(WELL, torch=CUDA, torch_build="CUDA 13.0", driver="580.159", gpus=(H200,), no_gpus="", mps=True)


def has(**versions: str | None) -> dict[str, str]:
    """The packages of a machine that is well, with other versions of some, or without them."""
    return {name: version for name, version in {**INSTALLED, **versions}.items() if version is not None}


def wrong(m: Machine) -> list[Finding]:
    return [f for f in judge(m) if f.level != "ok"]


def test_a_machine_that_is_well_is_said_to_be():
    assert wrong(WELL) == wrong(GPU) == []
    assert worst(judge(WELL)) == "ok"


@pytest.mark.parametrize(
    ("m", "level", "about", "says", "do"),
    [
        (replace(WELL, system="Darwin"), "warn", "system", "has run on Linux alone", "Linux in a container"),
        (replace(WELL, release="4.18.0", pidfds=False), "fail", "system", "pidfd_open", "Linux 5.3 or newer"),
        (replace(WELL, wsl=True, pidfds=False), "fail", "system", "(WSL)", "WSL 2"),
        (replace(WELL, python="3.10.12"), "fail", "python", "needs >=3.11", "make lab PYTHON=python3.12"),
        (replace(WELL, installed=has(ipykernel="6.17.1")), "fail", "ipykernel", "6.17.1 is", "'ipykernel>=6.29,<8'"),
        (replace(WELL, installed=has(ipython="7.34.0")), "fail", "ipython", "is older", "'ipython>=8.20,<10'"),
        (replace(WELL, installed=has(ipywidgets=None)), "fail", "packages", "not installed: ipywidgets", "make lab"),
        (replace(WELL, installed=has(jupyterlab="5.0.0")), "warn", "front end", "is newer", "was not tried"),
        (replace(WELL, installed=has(jupyterlab=None)), "warn", "front end", "no JupyterLab", "/venv/bin/python"),
        (
            replace(WELL, installed=has(jupyterlab=None, notebook="7.4.1")),
            "warn", "front end", "Notebook 7.4.1", "as their kernel",
        ),
        (
            replace(WELL, installed=has(**{"collectives-workbook": None})),
            "fail", "workbook", "does not find what starts its ranks", "pip install -e '.[lab]'",
        ),
        (replace(WELL, installed=has(torch="2.8.0")), "fail", "torch", "2.8.0 is older", "'torch>=2.11,<2.16'"),
        (replace(WELL, installed=has(torch="2.16.0a0+git1")), "warn", "torch", "is newer", "was not tried"),
        (replace(WELL, torch_build="", torch=None), "fail", "torch", "not installed", "make lab"),
        (
            replace(WELL, torch=None, no_torch="OSError: libcudart.so.13"),
            "fail", "torch", "cannot be imported: OSError: libcudart.so.13", "--force-reinstall",
        ),
        (replace(WELL, torch=replace(CPU, gloo=False)), "fail", "torch", "no Gloo", "--force-reinstall"),
    ],
)  # fmt: skip
def test_python_and_packages_outside_what_the_workbook_takes_are_named_with_what_to_install(m, level, about, says, do):
    (found,) = wrong(m)
    assert (found.level, found.about) == (level, about)
    assert says in found.says
    assert do in found.do


OLD = "550.54.15"


@pytest.mark.parametrize(
    ("m", "level", "about", "says", "do"),
    [
        (
            replace(GPU, torch=UNUSABLE, driver=OLD),
            "warn", "gpu", "1 × NVIDIA H200, driver 550.54.15; but torch is built for CUDA 13.0, which needs driver",
            "Driver 550.54.15 takes one for CUDA 12.",
        ),
        (
            replace(GPU, torch=UNUSABLE, driver="440.33"),
            "warn", "gpu", "needs driver 580", "Its driver has to be updated as well.",
        ),
        (replace(GPU, torch=None, gpus=(), driver=OLD), "warn", "gpu", "an NVIDIA driver, driver 550", "for CUDA 12"),
        (
            replace(GPU, torch=replace(UNUSABLE, warned="CUDA initialization: out of memory")),
            "warn", "gpu", "torch cannot use it: CUDA initialization: out of memory", "docker run --gpus all",
        ),
        (
            replace(GPU, torch=replace(CUDA, warned="Found GPU0 Tesla P100 which is of cuda capability 6.0")),
            "warn", "gpu", "torch warns: Found GPU0", 'start(backend="gloo")',
        ),
        (
            replace(WELL, no_gpus="nvidia-smi did not answer in 10 s"),
            "warn", "gpu", "nvidia-smi did not answer in 10 s: ranks run on CPUs", "restart the machine",
        ),
        (
            replace(GPU, torch=UNUSABLE, gpus=(), no_gpus="nvidia-smi failed: Driver/library version mismatch"),
            "warn", "gpu", "nvidia-smi failed: Driver/library version mismatch: ranks run", "restart the machine",
        ),
        (replace(GPU, torch=CPU, torch_build="cpu"), "warn", "gpu", "built for CPUs alone", "takes one for CUDA 13"),
        (
            replace(WELL, torch_build="ROCm 6.4", torch=replace(CUDA, nccl=())),
            "warn", "gpu", "ROCm 6.4; the workbook was never run with it", 'start(backend="gloo")',
        ),
        (
            replace(GPU, gpus=(replace(H200, left=4000 * MiB),)),
            "warn", "gpu memory", "A GPU has 3.906 GiB of its memory left", "Call start(3)",
        ),
        (
            replace(GPU, gpus=(replace(H200, left=100 * MiB),)),
            "fail", "gpu memory", "A GPU has 100 MiB", "nvidia-smi names it",
        ),
        (
            replace(GPU, memory=((1500 * MiB, "This machine"),)),
            "warn", "memory", "4 ranks need about 2.238 GiB", "call start(2)",
        ),
        (
            replace(GPU, gpus=(T4, T4), torch=replace(CUDA, gpus=2), shared_memory=64 * MiB),
            "warn", "shared memory", "/dev/shm holds 64 MiB", "--shm-size=1g",
        ),
    ],
)  # fmt: skip
def test_a_gpu_that_ranks_cannot_use_well_is_a_warning_with_a_way_out(m, level, about, says, do):
    (found,) = wrong(m)
    assert (found.level, found.about) == (level, about)
    assert says in found.says
    assert do in found.do


@pytest.mark.parametrize(
    ("m", "about", "says"),
    [
        (replace(WELL, no_gpus=NO_SMI), "gpu", "no NVIDIA GPU: ranks run on CPUs"),
        (replace(GPU, settings={"CUDA_VISIBLE_DEVICES": ""}, torch=UNUSABLE), "gpu", "hidden by CUDA_VISIBLE_DEVICES"),
        (replace(GPU, gpus=(T4, T4), torch=replace(CUDA, gpus=2)), "gpu", "2 × Tesla T4, driver 580.159"),
        (GPU, "torch", "2.13.0+cu130, built for CUDA 13.0, NCCL 2.28.9"),
        (replace(GPU, driver="525.60"), "gpu", "1 × NVIDIA H200, driver 525.60"),
        (replace(WELL, settings={"LABKIT_PROFILE": "gpu"}), "environment", "LABKIT_PROFILE=gpu"),
        (replace(WELL, labs=(12, 34)), "labs", "2 labs of yours run, of processes 12, 34"),
    ],
)  # fmt: skip
def test_what_is_no_trouble_is_told_and_wants_nothing(m, about, says):
    assert wrong(m) == []
    (found,) = [f for f in judge(m) if f.about == about]
    assert says in found.says
    assert found.do == ""


CONTAINER = "This notebook's container"


@pytest.mark.parametrize(
    ("m", "level", "about", "says", "do"),
    [
        (
            replace(WELL, memory=((8 * GiB, "This machine"), (362 * MiB, CONTAINER))),
            "warn", "memory", "This notebook's container has 362 MiB of memory left", "call start(2)",
        ),
        (replace(WELL, memory=((300 * MiB, CONTAINER),)), "fail", "memory", "2 ranks need about 320 MiB", "start(1)"),
        (replace(WELL, cores=1), "warn", "cores", "1 core: 4 ranks take turns", "Give the machine"),
        (replace(WELL, cores=0.5), "warn", "cores", "0.5 core", "Give the machine"),
        (
            replace(WELL, tasks=(Limit(CONTAINER, "pids.max", 100, 60),)),
            "warn", "processes", "may have 100 processes and threads, and 60 of them are left", "or call start(2)",
        ),
        (
            replace(WELL, tasks=(Limit("this user", "ulimit -u", 50, 5),)),
            "fail", "processes", "5 of them are left", "have the limit raised (ulimit -u)",
        ),
        (replace(WELL, files=(64, 64)), "fail", "open files", "no more than 64 files open", "ulimit -n"),
        (replace(WELL, files=(64, 170)), "warn", "open files", "no more than 170 files open", "ulimit -n"),
        (
            replace(WELL, refused="The path /t/labkit-a is too long for a socket. Set TMPDIR to a shorter one."),
            "fail", "temporary files", "The path /t/labkit-a is too long for a socket", "Set TMPDIR to a shorter one.",
        ),
        (
            replace(WELL, place="/mnt/c/t", sockets="[Errno 95] Operation not supported"),
            "fail", "temporary files", "/mnt/c/t holds no Unix socket", "Set TMPDIR",
        ),
        (replace(WELL, loopback="[Errno 101] unreachable"), "fail", "loopback", "127.0.0.1", "ip link set lo up"),
        (replace(WELL, shared_memory=0), "warn", "shared memory", "/dev/shm is not there", "--shm-size=1g"),
        (replace(WELL, jupyter="/nonexistent/x"), "warn", "jupyter", "cannot write to /nonexistent/x", "Set HOME"),
        (replace(WELL, settings={"PYTHONOPTIMIZE": "2"}), "fail", "environment", "PYTHONOPTIMIZE=2", "Unset"),
        (replace(WELL, copies=0), "warn", "lessons", "no copies of the lessons in my-notebooks", "python -m labkit"),
        (replace(WELL, left=("/tmp/labkit-1",)), "warn", "labs", "left behind", "rm -r /tmp/labkit-1"),
    ],
)  # fmt: skip
def test_a_place_that_is_too_narrow_says_how_narrow_and_what_to_do(m, level, about, says, do):
    (found,) = wrong(m)
    assert (found.level, found.about) == (level, about)
    assert says in found.says
    assert do in found.do


def test_a_quick_look_warns_of_a_driver_that_is_too_old_without_asking_torch():
    """It knows the driver from /proc, and torch's build from its files."""
    quick = replace(WELL, torch=None, torch_build="CUDA 13.0", no_gpus="")
    assert wrong(quick) == wrong(replace(quick, driver="580.65")) == []
    assert [f.about for f in wrong(replace(quick, driver="570.86"))] == ["gpu"]


def test_a_python_beside_the_one_that_has_the_workbook_is_told_to_ask_that_one_and_nothing_else():
    (found,) = judge(replace(WELL, made="/clone/.venv/bin/python", installed={}, torch_build=""))
    assert (found.level, found.do) == ("fail", "Ask with that one: /clone/.venv/bin/python -m labkit doctor.")
    assert judge(replace(WELL, made="/clone/.venv/bin/python")) == judge(WELL), "another environment that has it, too"


def test_versions_are_compared_by_their_numbers():
    assert outside("10.0", ">=9.2") == outside("2.13", ">=2.13.0") == outside("2.15.9+cu130", ">=2.11,<2.16") == ""
    assert (outside("6.17.1", ">=6.29,<8"), outside("8", ">=6.29,<8")) == ("older", "newer")
    assert numbers("unknown") == (0, 0, 0, 0)


def test_an_error_is_split_into_what_is_the_matter_and_what_to_do():
    assert split("It failed (exit code 1):\nTraceback …\nOSError: no. Never.\nMend that, then start() again.") == (
        "It failed (exit code 1):\nTraceback …\nOSError: no. Never",
        "Mend that, then start() again.",
    )
    assert split("All is lost.") == ("All is lost", "")


def test_every_advice_is_a_sentence_and_only_what_is_wrong_has_one():
    narrow = replace(WELL, system="Darwin", memory=(), cores=1, copies=0, loopback="no", refused="No room. Make some.")
    for m in (WELL, GPU, narrow, replace(GPU, files=(64, 64))):
        for f in judge(m):
            assert bool(f.do) == (f.level != "ok")
            assert not f.do or f.do.rstrip(").")[0].isupper()


def test_lines_fit_a_terminal_and_the_level_stands_first():
    finding = Finding("warn", "temporary files", "word " * 40, "Do this. " * 20)
    found = list(doctor.lines(finding, 80))
    assert max(map(len, found)) <= 80
    assert found[0].startswith("warn   temporary files  word")
    assert sum("→ Do this." in line for line in found) == 1


# -- the command line -----------------------------------------------------------------------------------------------


@pytest.fixture
def on(monkeypatch):
    """Let the command look at a machine that is made up, and its ranks do as they are told."""

    def made(m: Machine, ranks: Finding | None = None):
        monkeypatch.setattr(machine, "ask", lambda quick: m)
        monkeypatch.setattr(doctor, "try_ranks", lambda *_: ranks or Finding("ok", "2 ranks", "3 on both"))

    return made


def test_the_exit_status_is_1_where_something_fails_and_0_with_warnings(on, capsys):
    on(WELL)
    assert main(["doctor"]) == 0
    assert "Nothing here keeps the workbook from running." in capsys.readouterr().out
    on(replace(WELL, cores=1))
    assert main(["doctor"]) == 0
    assert "Nothing here keeps the workbook from running; 1 warning." in capsys.readouterr().out
    on(WELL, Finding("fail", "2 ranks", "ranks cannot be joined", "Run this once more."))
    assert main(["doctor"]) == 1
    assert "1 failure: what to do stands below each." in capsys.readouterr().out


def test_a_quick_look_starts_nothing_and_prints_what_is_wrong_alone(on, capsys, monkeypatch):
    on(WELL)
    monkeypatch.setattr(doctor, "try_ranks", lambda *_: pytest.fail("ranks were started"))
    assert main(["doctor", "--quick"]) == 0
    assert capsys.readouterr().out == ""
    on(replace(WELL, files=(64, 64)))
    monkeypatch.setattr(doctor, "try_ranks", lambda *_: pytest.fail("ranks were started"))
    assert main(["doctor", "--quick"]) == 1
    assert [line[:4] for line in capsys.readouterr().out.splitlines() if line[0] != " "] == ["fail"]


def test_json_is_one_object_with_keys_that_stay(on, capsys):
    on(replace(WELL, cores=1))
    assert main(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert list(told) == ["status", "seconds", "quick", "findings", "machine"]
    assert (told["status"], told["quick"]) == ("warn", False)
    assert {tuple(f) for f in told["findings"]} == {("level", "about", "says", "do")}
    assert [f["about"] for f in told["findings"] if f["level"] == "warn"] == ["cores"]
    assert told["findings"][-1]["about"] == "2 ranks"
    assert told["machine"]["files"] == [1024, None]
    assert told["machine"]["torch"]["version"] == "2.13.0+cpu"


def test_help_tells_the_exit_status_and_a_wrong_option_has_its_own(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--help"])
    assert ended.value.code == 0
    assert "1  something fails" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--quik"])
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("error", "says", "do"),
    [
        (LabError("This machine has no room. Close notebooks."), "This machine has no room", "Close notebooks."),
        (JoinError(": rank 1: RuntimeError: no route"), "rank 1: RuntimeError: no route", "Run this once more"),
        (ImportError("No module named 'zmq'"), "start() cannot be imported: No module named 'zmq'", "make lab"),
        (OSError(28, "No space left on device"), "start() ended in OSError: [Errno 28]", "Report these lines"),
    ],
)  # fmt: skip
def test_ranks_that_do_not_start_say_what_start_said(monkeypatch, error, says, do):
    def start(n):
        raise error

    monkeypatch.setattr(labkit.starting, "start", start)
    found = doctor.try_ranks()
    assert found.level == "fail"
    assert says in found.says
    assert do in found.do


@pytest.fixture
def started(monkeypatch):
    """Let start() make ranks that are made up: what it says, their backend, how they share a GPU, their sums."""

    def made(said: str, backend: str, way: str, *sums: str):
        lab = contextlib.nullcontext(SimpleNamespace(run=lambda code: sums))
        told = type("Started", (), {"__str__": lambda self: said})()
        told.engines = SimpleNamespace(backend=backend, gpu=SimpleNamespace(way=way))
        monkeypatch.setattr(labkit.starting, "start", lambda n: lab)
        monkeypatch.setattr(current_lab, "started", lambda: told)

    return made


@pytest.mark.parametrize(
    ("ranks", "expected", "level", "says", "do"),
    [
        (("2 CPU ranks with Gloo.", "gloo", "", "3.0\n", "3.0\n"), (False, False), "ok", "is 3 on both", ""),
        (("2 ranks with NCCL.", "nccl", "direct", "3.0", "3.0"), (True, True), "ok", "NCCL. An all-reduce", ""),
        (("They take turns: no.", "nccl", "turns", "3.0", "3.0"), (True, False), "warn", "turns: no.", "compute,util"),
        (("They take turns: no.", "nccl", "turns", "3.0", "3.0"), (True, True), "warn", "turns: no.", "keeps MPS from"),
        (("Gloo: NCCL could not.", "gloo", "", "3.0", "3.0"), (True, True), "warn", "NCCL could not", "what to mend"),
        (("2 CPU ranks.", "gloo", "", "3.0", "2.0"), (False, False), "fail", "of 1 and 2 is 3.0, 2.0", "as an issue"),
    ],
)  # fmt: skip
def test_ranks_that_started_add_up_and_use_the_gpu_or_it_is_said(started, ranks, expected, level, says, do):
    started(*ranks)
    found = doctor.try_ranks(*expected)
    assert found.level == level
    assert says in found.says
    assert do in found.do
    assert bool(found.do) == bool(do)


# -- this machine ---------------------------------------------------------------------------------------------------


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'notebooks'}", **environment}
    command = [sys.executable, "-m", "labkit", "doctor", *arguments]
    return subprocess.run(command, env=given, capture_output=True, text=True)


@pytest.mark.slow
def test_the_quick_part_imports_neither_torch_nor_what_starts_ranks():
    code = "import sys\nfrom labkit.__main__ import main\nmain(['doctor', '--quick'])\n"
    code += "print({'torch', 'numpy', 'IPython', 'zmq', 'ipyparallel', 'psutil'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ran.stdout.splitlines()[-1] == "set()", ran.stderr


@pytest.mark.slow
def test_a_temporary_folder_with_a_long_path_fails_as_start_would(tmp_path):
    long = tmp_path / ("d" * 110)
    long.mkdir()
    ran = run("--quick", "--json", TMPDIR=str(long), XDG_RUNTIME_DIR="")
    assert ran.returncode == 1, ran.stderr
    (found,) = [f for f in json.loads(ran.stdout)["findings"] if f["level"] == "fail"]
    assert found["about"] == "temporary files"
    assert "too long for a socket" in found["says"]
    assert found["do"] == "Set TMPDIR to a shorter one, such as /tmp."


def test_what_this_machine_says_of_itself_is_told_as_pyproject_and_its_packages_have_it():
    asked = machine.ask(quick=True)
    assert asked.wanted["torch"].startswith(">=2.")
    assert asked.wanted_python == ">=3.11"
    assert "jupyterlab" in asked.wanted
    assert asked.installed["ipyparallel"]
    assert asked.torch_build
    assert asked.torch is None


def test_without_a_clone_no_version_is_found_fault_with(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "PYPROJECT", tmp_path / "pyproject.toml")
    assert machine.ask(quick=True).wanted == {}
    assert wrong(replace(WELL, wanted={})) == []


def test_make_lab_asks_the_quick_part_and_starts_whatever_it_says():
    lines = (ROOT / "Makefile").read_text().splitlines()
    (line,) = [line for line in lines if "doctor" in line]
    assert "-m labkit doctor --quick || true" in line
