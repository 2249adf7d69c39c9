"""A lab starts, reduces and stops wherever a learner's shell, folder or cluster has left things in an odd state."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.live.notebook import Notebook

SCRIPT = """
from IPython.core.interactiveshell import InteractiveShell
from labkit import start
with start(2) as lab:
    said = lab.run("x = torch.ones(1) + rank\\ndist.all_reduce(x)\\nprint(x.item(), rank, world_size)")
print(said)
"""
NOBODY = "203.0.113.1"  # an address that is nobody's
SURROUNDINGS = {
    "warnings are errors": {
        "PYTHONWARNINGS": "error",
        "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
        "TORCH_SHOW_CPP_STACKTRACES": "1",
        "PYTHONHASHSEED": "0",
    },
    "another job's variables": {
        "MASTER_ADDR": NOBODY,
        "MASTER_PORT": "1",
        "RANK": "7",
        "LOCAL_RANK": "7",
        "WORLD_SIZE": "9",
        "GLOO_SOCKET_IFNAME": "nosuch0",
        "NCCL_SOCKET_IFNAME": "nosuch0",
        "OMP_NUM_THREADS": "64",
        "TORCHELASTIC_RUN_ID": "other",
        "SLURM_PROCID": "3",
        "OMPI_COMM_WORLD_RANK": "3",
    },
    "a plain locale, odd folders, startup files that raise": {
        "LC_ALL": "C",
        "PYTHONSTARTUP": "{folder}/raises.py",
        "HOME": "{folder}/nowhere",
        "IPYTHONDIR": "{folder}/ipython",
        "XDG_RUNTIME_DIR": "{folder}/nowhere",
        "PYTHONDONTWRITEBYTECODE": "1",
    },
    "proxies, strict paths": {
        **dict.fromkeys(("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY"), f"http://{NOBODY}:1"),
        "no_proxy": "",
        "PYTHONSAFEPATH": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONUNBUFFERED": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONDEVMODE": "1",
    },
}


@pytest.mark.parametrize("surroundings", SURROUNDINGS)
def test_a_lab_starts_reduces_and_stops_with(surroundings):
    with tempfile.TemporaryDirectory(prefix="o d'd é") as place:  # short: a socket's path has 107 bytes
        _starts_reduces_and_stops(SURROUNDINGS[surroundings], Path(place))


def _starts_reduces_and_stops(surroundings: dict[str, str], folder: Path) -> None:
    startup = folder / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    for raises in (folder / "raises.py", startup / "00-raises.py", startup.parent / "ipython_config.py"):
        raises.write_text("raise RuntimeError('a startup file')")
    odd = {name: value.format(folder=folder) for name, value in surroundings.items()}
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "TMPDIR": str(folder), **odd},
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert "['3.0 0 2\\n', '3.0 1 2\\n']" in ran.stdout
    assert not list(folder.glob("labkit-*"))
    assert "unclosed" not in ran.stderr, ran.stderr


def test_assertions_hold_for_cells_and_checks_where_python_would_leave_them_out():
    with Notebook(PYTHONOPTIMIZE="1") as notebook:
        notebook.value("from labkit import start\nlab = start(2, timeout=30)")
        assert notebook.run("%%px\nassert rank == 0").error == "CellError: rank 1: AssertionError"
        notebook.value("%%px\ndef average_gradients(model):\n    for p in model.parameters(): p.data.zero_()")
        assert "It changes the weights" in notebook.value("lab.check('average_gradients')")


def test_a_notebook_whose_python_drops_docstrings_is_told_so():
    with Notebook(PYTHONOPTIMIZE="2") as notebook:
        error = notebook.run("from labkit import start\nlab = start(2)").error
    assert error.startswith("LabError: Python drops docstrings here (PYTHONOPTIMIZE=2, or -OO)")
    assert error.endswith("Unset PYTHONOPTIMIZE, and start the notebook again.")


IN_DETAIL = {  # what a cell ends with in torch's detail mode, as in any other
    "if rank == 2: os._exit(1)\ndist.barrier()": "CellError: rank 2 died (exit code 1)",
    "if rank == 2: os._exit(1)\ndist.all_reduce(x)": "CellError: rank 2 died (exit code 1)",
    "if rank == 1: 1 / 0\ndist.barrier()": "CellError: rank 1: ZeroDivisionError: division by zero",
    "if rank != 2: dist.all_reduce(x)": (
        "StuckError: rank 2 is missing: it finished the cell, while ranks 0, 1 wait in all_reduce (line 3)"
    ),
    "if rank: dist.broadcast(x, 0)": (
        "StuckError: rank 0 is missing: it finished the cell, while ranks 1, 2 wait in broadcast (line 3)"
    ),
    "g = dist.new_group([0, 1])\nif rank == 0: dist.all_reduce(x, group=g)": (
        "StuckError: rank 1 is missing: it finished the cell, "
        "while rank 0 waits in all_reduce among ranks 0, 1 (line 4)"
    ),
    "if rank == 1: dist.recv(x, 2)": (
        "StuckError: rank 2 is missing: it finished the cell, while rank 1 waits in recv (line 3)"
    ),
}


def test_torchs_detail_mode_changes_no_word_of_what_deaths_and_hangs_are_told_as():
    with Notebook(TORCH_DISTRIBUTED_DEBUG="DETAIL") as notebook:
        notebook.value("from labkit import start\nlab = start(3, timeout=2)")
        said = {code: notebook.run(f"%%px\nimport os; x = torch.ones(1)\n{code}").error for code in IN_DETAIL}
    assert said == IN_DETAIL
