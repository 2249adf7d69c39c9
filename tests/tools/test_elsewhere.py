"""The ten lines in other systems' words: run where these are installed and equal to the record, told well where not."""

from __future__ import annotations

import importlib.util
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from labkit import Elsewhere, LabError, Phrasebook
from tests.live.processes import eventually
from tests.scripts import printed as torchs_printed
from workbook.tools import mpi
from workbook.tools.elsewhere import programs as elsewhere
from workbook.tools.elsewhere import ten_lines
from workbook.tools.elsewhere.phrasebook import RAN
from workbook.tools.elsewhere.phrases import CALLS
from workbook.tools.elsewhere.ten_lines import SYSTEMS, expected, read


def printed(script: str, n: int = ten_lines.N) -> list[str]:
    """What another system's program prints, which may listen where it likes; skipped where the system is missing."""
    (system,) = (s for s in SYSTEMS.values() if s.program == script)
    if not elsewhere.python(system):
        pytest.skip(f"{system.title} is not installed: {system.install}")
    return elsewhere.run(system, n).splitlines()


def same_as_recorded(lines: list[str], name: str) -> None:
    told, record = read("\n".join(lines)), elsewhere.record(SYSTEMS[name])
    assert told.wrong == []
    assert told.rows == record.rows


@pytest.mark.live
@pytest.mark.slow
def test_torchs_program_prints_what_was_recorded(tmp_path: Path):
    same_as_recorded(torchs_printed("ten_lines_torch.py", 4, tmp_path), "torch")


@pytest.mark.live
@pytest.mark.slow
def test_torchs_program_is_right_on_another_number_of_ranks(tmp_path: Path):
    assert read("\n".join(torchs_printed("ten_lines_torch.py", 3, tmp_path))).wrong == []


@pytest.mark.live
def test_mpis_program_prints_what_was_recorded():
    same_as_recorded(printed("ten_lines_mpi.py", 4), "mpi")


# -- where it is not installed, or fails --------------------------------------------------------------------------


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with no environment in it or above."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["tensorflow", "deepspeed"])
def test_without_the_system_the_record_is_shown_and_how_to_get_it(bare: Path, name: str):
    shown = Elsewhere(name)
    told = repr(shown)
    assert f"recorded on {elsewhere.record(SYSTEMS[name]).recorded}" in told
    assert "It did not run just now." in told
    assert SYSTEMS[name].install in told
    assert "ran just now" not in told
    assert "w" in ten_lines.ten_lines(shown.source)
    html = shown._repr_html_()
    assert SYSTEMS[name].install.replace("&&", "&amp;&amp;") in html
    assert html.index("recorded on") < html.index("<pre"), "whose lines they are stands above them"
    assert html.count("<tr>") == 1 + len(expected(4))
    with pytest.raises(LabError, match="not installed"):
        elsewhere.run(SYSTEMS[name])


def test_an_environment_is_found_in_a_folder_above_once_it_has_the_package(bare: Path, monkeypatch):
    package = bare / ".venv-tf" / "lib" / "python3.11" / "site-packages" / "tensorflow"
    inner = bare / "notebooks"
    inner.mkdir()
    monkeypatch.chdir(inner)
    package.mkdir(parents=True)
    assert elsewhere.python(SYSTEMS["tensorflow"]) == "", "pip is not through yet"
    (package / "__init__.py").touch()
    assert elsewhere.python(SYSTEMS["tensorflow"]) == str(bare / ".venv-tf" / "bin" / "python")


def test_without_mpi_the_record_is_shown(bare: Path, monkeypatch):
    monkeypatch.setattr(mpi, "missing", lambda: "MPI is not installed.")
    assert "pip install mpi4py mpich" in repr(Elsewhere("mpi"))


def test_a_wrong_number_is_said(bare: Path):
    shown = Elsewhere("torch", recorded=True)
    assert "All results are the same as in the other systems." in repr(shown)
    shown.told.rows["all_reduce"] = [[99.0]] * 4
    assert "Different from the other systems: all_reduce." in repr(shown)


def program(folder: Path, source: str) -> None:
    """The learner's own version of torch's program."""
    (folder / "scripts").mkdir()
    (folder / "scripts" / SYSTEMS["torch"].program).write_text(source, encoding="utf-8")


def test_a_learners_own_program_runs_in_place_of_the_workbooks(bare: Path):
    program(bare, "import os\nif os.environ['RANK'] == '0':\n    print('mine, 2 ranks')\n")
    assert elsewhere.run(SYSTEMS["torch"], 2) == "mine, 2 ranks\n"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_fails_is_named_with_its_error_and_nobody_waits_for_the_other(bare: Path, rank: int):
    fails = f"if os.environ['RANK'] == '{rank}':\n    raise OSError('no weights')\n"
    program(bare, f"import os, time\n{fails}time.sleep(600)\n")
    with pytest.raises(LabError, match=rf"(?s)rank {rank} ended with exit code 1\..*no weights"):
        elsewhere.run(SYSTEMS["torch"], 2)


def test_a_program_that_never_ends_is_ended(bare: Path, monkeypatch):
    monkeypatch.setattr(elsewhere, "OTHER_SYSTEM", 0.5)
    program(bare, "import time\ntime.sleep(60)\n")
    with pytest.raises(LabError, match="did not end within"):
        elsewhere.run(SYSTEMS["torch"], 2)


@pytest.mark.parametrize("stubborn", [False, True])
def test_its_processes_end_with_a_kernel_that_is_killed(bare: Path, stubborn: bool):
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" if stubborn else ""
    # a FIFO that every rank has open: it is at its end once there are no ranks
    alive = bare / "alive"
    os.mkfifo(alive)
    opens = f"os.write(os.open({str(alive)!r}, os.O_WRONLY), b'.')"
    program(bare, f"import os, time\n{deaf}\n{opens}\ntime.sleep(60)\n")
    asks = (
        "from workbook.tools.elsewhere import programs as e; from workbook.tools.elsewhere.ten_lines import find; "
        "e.run(find('torch'), 2)"
    )
    place = bare / "place"
    place.mkdir()
    kernel = subprocess.Popen([sys.executable, "-c", asks], cwd=bare, env=os.environ | {"TMPDIR": str(place)})
    try:
        with alive.open("rb") as pipe:
            assert pipe.read(2) == b".."
            kernel.kill()
            kernel.wait()
            assert select.select([pipe], [], [], 20)[0], "a rank still runs"
            assert pipe.read() == b""
        assert eventually(lambda: not list(place.iterdir())), "its files are left"
    finally:
        kernel.kill()
        kernel.wait()


def test_a_program_does_not_see_the_scripts_beside_it(bare: Path):
    program(bare, "import mesh\n")
    (bare / "scripts" / "mesh.py").touch()
    with pytest.raises(LabError, match="No module named 'mesh'"):
        elsewhere.run(SYSTEMS["torch"], 1)


# -- the phrasebook -----------------------------------------------------------------------------------------------


def test_what_is_marked_as_run_is_called_in_a_program_and_the_rest_is_not():
    book = Phrasebook()
    ran = {(call, t.name) for call in CALLS for t in book.tongues if book.ran(call, t)}
    assert {name for _, name in ran} == {"torch", "mpi4py", "tensorflow", "deepspeed"}
    for name in ("torch", "deepspeed"):
        assert {call for call, its in ran if its == name} == set(CALLS)
    assert {call for call, its in ran if its == "mpi4py"} == set(CALLS) - {"start"}
    assert ("reduce_scatter", "tensorflow") not in ran, "it was called, and there is none"
    assert ("all_to_all", "tensorflow") in ran


def test_it_says_what_was_run_and_when_and_what_was_read():
    told = repr(Phrasebook("torch", "nccl"))
    assert f"{RAN} dist.all_reduce(x)" in told
    assert f"was run on {elsewhere.record(SYSTEMS['torch']).recorded}" in told
    assert "NCCL: read in nccl.h of NCCL 2.30.7; not run." in told
    assert "hvd" not in told


def test_its_table_has_a_row_a_call_and_a_column_a_system():
    html = Phrasebook("torch", "mpi")._repr_html_()
    assert html.count('<th scope="row"') == len(CALLS)
    assert html.count('<th scope="col"') == 3
    assert "MPI_Bcast(<wbr>x" in html


@pytest.mark.skipif(not importlib.util.find_spec("mpi4py"), reason="mpi4py is not installed")
def test_mpi4py_has_the_names_that_the_phrasebook_gives_it():
    import re

    header = Path(mpi._mpiexec()).parent.parent / "include" / "mpi_proto.h"
    if not header.exists():
        pytest.skip("mpich's header is not installed")
    declared = header.read_text(encoding="utf-8", errors="replace")
    for said in CALLS.values():
        for name in re.findall(r"MPI_\w+(?=\()", said["mpi"]):
            assert re.search(rf"\b{name}\(", declared), name
