"""`make notebooks` runs, normalises and keeps what did not change; here on small notebooks without a lab."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
import normal_form
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parent.parent
TOOL = ROOT / ".ci" / "notebooks.py"


def tool(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


def write(path: Path, *sources: str, tags: dict[int, str] | None = None) -> Path:
    cells = [new_code_cell(source, id=f"cell-{i}") for i, source in enumerate(sources)]
    for index, tag in (tags or {}).items():
        cells[index].metadata["tags"] = [tag]
    nbformat.write(new_notebook(cells=cells), path)
    return path


def test_it_runs_normalises_and_writes_the_same_bytes_the_second_time(tmp_path: Path):
    path = write(
        tmp_path / "lesson.ipynb",
        "import os, time\nprint('\\x1b[31mpid', os.getpid(), '\\x1b[0m')\nprint('same')",
        "import ipywidgets\nipywidgets.IntSlider()",
        "time.perf_counter()",
        "1 / 0",
        "os.path.basename(os.getcwd()), os.environ['LABKIT_QUIET']",
        "display({'text/plain': 'x'}, raw=True, metadata={'labkit': {'kind': 'k'}, 'isolated': True})",
        tags={2: "nbval-ignore-output", 3: "raises-exception"},
    )
    first = tool(path, cwd=ROOT)
    assert first.returncode == 0, first.stderr
    assert "written" in first.stdout
    text = path.read_text()
    cells = nbformat.reads(text, as_version=4).cells
    assert [cell.execution_count for cell in cells] == [1, 2, 3, 4, 5, 6]
    assert [cell.id for cell in cells] == [f"cell-{i}" for i in range(6)]
    assert cells[2].metadata == {"tags": ["nbval-ignore-output"]}
    assert set(cells[1].outputs[0].data) == {"text/plain"}
    assert cells[3].outputs[0].traceback == ["ZeroDivisionError: division by zero"]
    assert cells[4].outputs[0].data["text/plain"] == f"('{tmp_path.name}', '1')"
    assert cells[5].outputs[0].metadata == {"labkit": {"kind": "k"}}
    assert "\x1b" not in text
    assert "\\u001b" not in text

    second = tool(path, cwd=ROOT)
    assert "unchanged" in second.stdout, second.stderr
    assert path.read_text() == text
    assert tool("--check", path, cwd=ROOT).returncode == 0


def test_a_cell_that_raises_without_its_tag_fails_and_leaves_the_file(tmp_path: Path):
    path = write(tmp_path / "lesson.ipynb", "x = 1", "1 / 0", "print(x)")
    before = path.read_bytes()
    ran = tool(path, cwd=ROOT)
    assert ran.returncode == 1
    assert f"{path}: cell [2] raises ZeroDivisionError: division by zero" in ran.stderr
    assert path.read_bytes() == before


def test_check_names_the_file_the_cell_and_the_remedy(tmp_path: Path):
    path = write(tmp_path / "lesson.ipynb", "x = 1\nx")
    ran = tool("--check", path, cwd=ROOT)
    assert ran.returncode == 1
    assert f"{path}: cell [1] has no output" in ran.stderr
    assert "run `make notebooks`" in ran.stderr


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def test_what_git_has_stays_until_an_output_says_something_else(tmp_path: Path):
    """A measurement stays as committed with its source, and is taken anew when its source changed."""
    path = write(
        tmp_path / "lesson.ipynb",
        "import os, time\nprint(f'pid={os.getpid()} rank=0')",
        "time.perf_counter()",
        tags={1: "nbval-ignore-output"},
    )
    git(tmp_path, "init", "-q")
    assert tool(path, cwd=ROOT).returncode == 0
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "lesson")
    committed = path.read_bytes()

    nb = nbformat.read(path, as_version=4)
    nb.cells[0].outputs[0].text = "pid=1 rank=0\n"  # as after running the cell in JupyterLab
    nbformat.write(nb, path)
    assert tool(path, cwd=ROOT).returncode == 0
    assert path.read_bytes() == committed

    nb.cells[0].source += "  # rank"
    nb.cells[1].source += " * 1.0"
    nbformat.write(nb, path)
    old = [cell.outputs for cell in nbformat.reads(committed.decode(), as_version=4).cells]
    assert tool(path, cwd=ROOT).returncode == 0
    new = [cell.outputs for cell in nbformat.read(path, as_version=4).cells]
    assert new[0] == old[0]
    assert new[1] != old[1]


@pytest.mark.parametrize(("tag", "kept"), [("", "new"), ("nbval-ignore-output", "old")])
def test_what_moves_without_a_kernel_is_renewed_and_that_of_a_measurement_stays(tag: str, kept: str):
    def shown(kind: str) -> nbformat.NotebookNode:
        output = nbformat.v4.new_output("display_data", {"text/plain": "5 s"}, metadata={"labkit": {"kind": kind}})
        return new_notebook(cells=[new_code_cell("x", id="a", outputs=[output], metadata={"tags": [tag] * bool(tag)})])

    nb = shown("new")
    normal_form.keep_committed(nb, shown("old"))
    assert nb.cells[0].outputs[0].metadata == {"labkit": {"kind": kept}}
    bare = shown("old")
    bare.cells[0].outputs[0].metadata = {}
    normal_form.keep_committed(nb := shown("new"), bare)
    assert nb.cells[0].outputs[0].metadata == {"labkit": {"kind": "new"}}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('<td class="pid">12</td>', '<td class="pid">4711</td>'),
        ('<td class="memory" title="rss">61 MiB</td>', '<td class="memory" title="rss">7.5 GiB</td>'),
        (
            "rank=0 pid=12 memory=61 MiB host=foo engine=4",
            "rank=0 pid=4711   memory=7 GiB host=b.c  engine=11",
        ),
        ("rank 2 (pid 12) died", "rank 2 (pid 4711) died"),
        ("at /tmp/ipykernel_12/34.py", "at /tmp/ipykernel_56/78.py"),
        ("<object at 0x7f00aa11bb22>", "<object at 0x7f00aa11bb99>"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        (
            "  · rank 3 waited in barrier (line 14, in save_mesh, its line 9) and was freed\n  · rank 1 was",
            "  · rank 1 was",
        ),
    ],
)
def test_what_differs_between_honest_runs_is_no_difference(one: str, other: str):
    assert normal_form.sanitized(one) == normal_form.sanitized(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('<td class="rank">0</td>', '<td class="rank">1</td>'),
        ("rank=0 pid=12 memory=61 MiB", "rank=1 pid=12 memory=61 MiB"),
        ("6.0 MiB each", "3.0 MiB each"),
        ("4 processes", "3 processes"),
        ("rank 2 died", "rank 3 died"),
        ("[10, 9, 7, 4]", "[10, 9, 7, 5]"),
    ],
)
def test_what_a_lesson_says_is_compared_as_it_stands(one: str, other: str):
    assert normal_form.sanitized(one) != normal_form.sanitized(other)


def test_the_order_of_streams_and_pictures_is_kept_and_their_pieces_joined():
    pieces = [
        new_output("stream", name="stdout", text="a\n"),
        new_output("stream", name="stdout", text="b\n"),
        new_output("display_data", {"text/plain": "c"}),
        new_output("stream", name="stderr", text="d\n"),
        new_output("stream", name="stdout", text="e\n"),
    ]
    joined = normal_form.normal_outputs(pieces, 1)
    assert [o.get("text") for o in joined] == ["a\nb\n", None, "d\n", "e\n"]


def test_of_an_error_its_message_and_notes_are_kept_and_not_its_frames():
    frames = "This cell, line 2\n----> 2 f(x)"
    shown = f"\x1b[31m{frames}\x1b[0m\nCellError: rank 1 died\n  · rank 1 was started anew\n  · the others keep theirs"
    raw = new_output("error", ename="CellError", evalue="rank 1 died", traceback=[shown])
    once = normal_form.normal_output(raw, 1)
    assert once.traceback == ["CellError: rank 1 died\n  · rank 1 was started anew\n  · the others keep theirs"]
    assert normal_form.normal_output(once, 1) == once
