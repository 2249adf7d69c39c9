"""A learner's copies of the lessons: made without outputs, renewed, kept, put back, and never in git's way."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from labkit.__main__ import main
from labkit.faces import my_notebooks
from labkit.floor import files
from labkit.floor.errors import LabError

ROOT = Path(__file__).resolve().parent.parent
LESSONS = ("00-start-here", "02-send-and-receive", "cheat-sheet")
TWO = "02-send-and-receive.ipynb"
NEW = "02-send-and-receive.new.ipynb"
MINE = "02-send-and-receive.mine-1.ipynb"


def write(file: Path, *sources: str) -> None:
    """An executed notebook with a text cell and these code cells."""
    nb = new_notebook(cells=[new_markdown_cell("# A lesson")])
    for number, source in enumerate(sources, 1):
        cell = new_code_cell(source, execution_count=number, outputs=[new_output("stream", text="the answer")])
        cell.metadata = nbformat.from_dict({"tags": ["exercise"], "scrolled": True})
        nb.cells.append(cell)
    nbformat.write(nb, file)


def change(file: Path, *sources: str) -> None:
    """What a learner does: put other sources into the code cells, and add cells for what is over."""
    nb = nbformat.read(file, as_version=4)
    code = [cell for cell in nb.cells if cell.cell_type == "code"]
    for cell, source in zip(code, sources, strict=False):
        cell.source = source
    nb.cells += [new_code_cell(source) for source in sources[len(code) :]]
    nbformat.write(nb, file)


def run_only(file: Path) -> None:
    """What JupyterLab saves after a run: outputs, numbers, widgets' state, its own metadata, an empty last cell."""
    nb = nbformat.read(file, as_version=4)
    for cell in nb.cells:
        cell.metadata["trusted"] = True
        if cell.cell_type == "code":
            cell.execution_count = 7
            cell.outputs = [new_output("stream", text="what came of it")]
    nb.cells.append(new_code_cell(""))
    nb.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    nb.metadata["language_info"]["version"] = "3.11.7"
    nbformat.write(nb, file)


def sources(file: Path) -> list[str]:
    return [cell.source for cell in nbformat.read(file, as_version=4).cells if cell.cell_type == "code"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


@pytest.fixture
def workbook(tmp_path: Path) -> Path:
    folder = tmp_path / "notebooks"
    folder.mkdir()
    for lesson in LESSONS:
        write(folder / f"{lesson}.ipynb", "one", "two")
    return folder


@pytest.fixture
def mine(tmp_path: Path, workbook: Path) -> Path:
    my_notebooks.renew(tmp_path / "mine", workbook)
    return tmp_path / "mine"


# -- what a copy is -------------------------------------------------------------------------------------------------


def test_a_copy_of_each_lesson_is_the_lesson_without_what_a_run_left(subtests: pytest.Subtests):
    for file in sorted((ROOT / "notebooks").glob("*.ipynb")):
        with subtests.test(file.name):
            text = my_notebooks.without_outputs(file.read_text(encoding="utf-8"))
            copy, lesson = nbformat.reads(text, as_version=4), nbformat.read(file, as_version=4)
            nbformat.validate(copy)
            assert text == nbformat.writes(copy) + "\n", "as JupyterLab would save it"
            assert copy.metadata == lesson.metadata
            for mine, its in zip(copy.cells, lesson.cells, strict=True):
                assert (mine.id, mine.source, mine.metadata) == (its.id, its.source, its.metadata)
                assert mine.cell_type == "markdown" or (mine.outputs, mine.execution_count) == ([], None)


def test_every_link_in_the_copies_leads_to_something_in_their_folder(tmp_path: Path):
    folder = tmp_path / "mine"
    my_notebooks.renew(folder)
    text = {}
    for file in folder.glob("*.ipynb"):
        cells = nbformat.read(file, as_version=4).cells
        text[file.name] = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    links = [(name, link) for name in text for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text[name])]
    inside = [(name, unquote(link)) for name, link in links if "://" not in link]
    assert len(inside) > 100
    assert [(name, link) for name, link in inside if not (folder / link).exists()] == []


def test_the_list_of_lessons_that_earlier_versions_wrote_goes_and_a_page_of_ones_own_stays(mine: Path, workbook: Path):
    page = mine / "README.md"
    for text, stays in (f"{my_notebooks.OURS} They are copies.", False), ("# My project", True):
        page.write_text(text, encoding="utf-8")
        my_notebooks.renew(mine, workbook)
        assert page.exists() == stays


# -- renewing -------------------------------------------------------------------------------------------------------


def test_a_second_run_writes_no_notebook(mine: Path, workbook: Path):
    before = {file.name: file.stat().st_mtime_ns for file in mine.glob("*.ipynb")}
    told = my_notebooks.renew(mine, workbook)
    assert str(told) == f"Everything in {mine}/ is up to date."
    assert {file.name: file.stat().st_mtime_ns for file in mine.glob("*.ipynb")} == before


def test_outputs_stay_as_long_as_the_workbooks_version_does(mine: Path, workbook: Path):
    run_only(mine / TWO)
    before = (mine / TWO).read_bytes()
    write(workbook / "cheat-sheet.ipynb", "other")
    told = my_notebooks.renew(mine, workbook)
    assert (mine / TWO).read_bytes() == before
    assert told.renewed == ["cheat-sheet.ipynb"]


def test_a_lesson_that_was_only_run_is_renewed(mine: Path, workbook: Path):
    run_only(mine / TWO)
    write(workbook / TWO, "better")
    told = my_notebooks.renew(mine, workbook)
    assert "Updated, because you had not changed it: 02-send-and-receive." in str(told)
    assert sources(mine / TWO) == ["better"]
    assert "the answer" not in (mine / TWO).read_text()
    assert NEW not in names(mine)


@pytest.mark.parametrize(
    "typed",
    [("one", "mine"), ("one", "two", "mine"), ("one", "")],
    ids=["another source", "a new cell", "an emptied one"],
)
def test_what_the_learner_changed_is_kept_and_the_new_version_lies_beside_it(mine: Path, workbook: Path, typed):
    change(mine / TWO, *typed)
    before = (mine / TWO).read_bytes()
    assert "up to date" in str(my_notebooks.renew(mine, workbook))
    assert NEW not in names(mine), "the workbook's version is the one that the learner has"
    for better in ("better", "better still"):
        write(workbook / TWO, better)
        told = my_notebooks.renew(mine, workbook)
        assert f"{TWO} has your changes and was kept. The workbook's new version: {NEW}" in str(told).splitlines()
        assert (mine / TWO).read_bytes() == before
        assert sources(mine / NEW) == [better]


def test_a_deleted_cell_and_cells_in_another_order_are_changes(mine: Path, workbook: Path):
    for lesson, order in ((TWO, [0, 1]), ("cheat-sheet.ipynb", [0, 2, 1])):
        nb = nbformat.read(mine / lesson, as_version=4)
        nb.cells = [nb.cells[i] for i in order]
        nbformat.write(nb, mine / lesson)
        write(workbook / lesson, "better")
    told = my_notebooks.renew(mine, workbook)
    assert [name for name, _ in told.beside] == [TWO, "cheat-sheet.ipynb"]


def test_a_new_version_in_which_the_learner_works_is_not_overwritten(mine: Path, workbook: Path):
    change(mine / TWO, "mine")
    write(workbook / TWO, "better")
    my_notebooks.renew(mine, workbook)
    change(mine / NEW, "mine too")
    write(workbook / TWO, "better still")
    my_notebooks.renew(mine, workbook)
    assert sources(mine / NEW) == ["mine too"]
    assert sources(mine / "02-send-and-receive.new-2.ipynb") == ["better still"]
    my_notebooks.put_back(mine, "02", workbook)
    assert NEW in names(mine)
    assert "02-send-and-receive.new-2.ipynb" not in names(mine)


def test_a_new_version_that_the_learner_deleted_comes_back_only_as_a_newer_one(mine: Path, workbook: Path):
    change(mine / TWO, "mine")
    write(workbook / TWO, "better")
    my_notebooks.renew(mine, workbook)
    (mine / NEW).unlink()
    assert my_notebooks.renew(mine, workbook).beside == []
    assert NEW not in names(mine)
    write(workbook / TWO, "better still")
    assert my_notebooks.renew(mine, workbook).beside == [(TWO, NEW)]


def test_the_new_version_goes_when_the_learner_has_taken_it_over(mine: Path, workbook: Path):
    change(mine / TWO, "mine")
    write(workbook / TWO, "better")
    my_notebooks.renew(mine, workbook)
    shutil.copy(mine / NEW, mine / TWO)
    run_only(mine / TWO)
    my_notebooks.renew(mine, workbook)
    assert NEW not in names(mine)


def test_a_copy_that_was_deleted_is_made_again(mine: Path, workbook: Path):
    (mine / TWO).unlink()
    assert my_notebooks.renew(mine, workbook).made == [TWO]
    assert sources(mine / TWO) == ["one", "two"]


def test_a_lesson_that_got_another_name_leaves_only_what_the_learner_changed(mine: Path, workbook: Path):
    change(mine / TWO, "mine")
    (workbook / TWO).rename(workbook / "02-talk.ipynb")
    (workbook / "cheat-sheet.ipynb").rename(workbook / "summary.ipynb")
    told = my_notebooks.renew(mine, workbook)
    assert (told.made, told.removed, told.left) == (["02-talk.ipynb", "summary.ipynb"], ["cheat-sheet.ipynb"], [TWO])
    assert names(mine) == ["00-start-here.ipynb", TWO, "02-talk.ipynb", "summary.ipynb"]
    assert my_notebooks.renew(mine, workbook).left == [], "it is said once"
    assert sources(mine / TWO)[0] == "mine"


def test_notebooks_of_the_learners_own_are_left_alone(mine: Path, workbook: Path):
    write(mine / "my-notes.ipynb", "notes")
    write(mine / "09-mine.ipynb", "mine")
    write(workbook / "09-mine.ipynb", "a lesson")
    told = my_notebooks.renew(mine, workbook)
    assert told.beside == [("09-mine.ipynb", "09-mine.new.ipynb")]
    assert (sources(mine / "my-notes.ipynb"), sources(mine / "09-mine.ipynb")) == (["notes"], ["mine"])


@pytest.mark.parametrize("known", [None, "", "[]", '{"made from": 3}', '{"made from": {"../x.ipynb": "1"}}', "\x00"])
def test_without_the_hidden_file_whatever_differs_is_kept(mine: Path, workbook: Path, known: str | None):
    change(mine / TWO, "mine")
    write(workbook / "cheat-sheet.ipynb", "better")
    if known is None:
        (mine / my_notebooks.MADE).unlink()
    else:
        (mine / my_notebooks.MADE).write_text(known)
    told = my_notebooks.renew(mine, workbook)
    assert [name for name, _ in told.beside] == [TWO, "cheat-sheet.ipynb"]
    assert (told.renewed, told.removed) == ([], [])
    my_notebooks.put_back(mine, "cheat-sheet", workbook)
    assert names(mine) == sorted(["00-start-here.ipynb", TWO, NEW, "cheat-sheet.ipynb", "cheat-sheet.mine-1.ipynb"])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cells": 3}', '{"cells": [{"cell_type": "code"}]}', "\udcff"])
def test_a_copy_that_is_no_notebook_any_more_is_kept(mine: Path, workbook: Path, text: str):
    (mine / TWO).write_bytes(text.encode(errors="surrogateescape"))
    write(workbook / TWO, "better")
    assert my_notebooks.renew(mine, workbook).beside == [(TWO, NEW)]
    assert (mine / TWO).read_bytes() == text.encode(errors="surrogateescape")


def test_two_at_once_leave_whole_files(tmp_path: Path, workbook: Path):
    told: list[my_notebooks.Renewal] = []
    folder = tmp_path / "mine"
    threads = [threading.Thread(target=lambda: told.append(my_notebooks.renew(folder, workbook))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(len(one.made) for one in told) == [0, 0, 0, 3], "the first made them, the others found them"
    assert names(folder) == ["00-start-here.ipynb", TWO, "cheat-sheet.ipynb"]
    assert {path.name for path in folder.glob(".*")} == {".lock", my_notebooks.MADE}


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path):
    (tmp_path / "file").write_text("old")
    with pytest.raises(UnicodeEncodeError):
        files.write(tmp_path / "file", "new \udcff")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "old"


# -- scripts ---------------------------------------------------------------------------------------------------------


SCRIPT = "scripts/mean.py"


@pytest.fixture
def scripts(mine: Path, workbook: Path) -> tuple[Path, Path]:
    """A script in the workbook and its copy, which differ in nothing."""
    (workbook / "scripts").mkdir()
    (workbook / SCRIPT).write_text("one")
    told = my_notebooks.renew(mine, workbook)
    assert (told.made, str(told)) == ([SCRIPT], f"1 script copied to {mine}/scripts/.")
    return workbook / SCRIPT, mine / SCRIPT


def test_a_script_is_copied_and_renewed_while_the_learner_has_not_changed_it(scripts, mine: Path, workbook: Path):
    its, copy = scripts
    assert my_notebooks.renew(mine, workbook).made == []
    its.write_text("better")
    assert my_notebooks.renew(mine, workbook).renewed == [SCRIPT]
    assert copy.read_text() == "better"
    its.unlink()
    assert my_notebooks.renew(mine, workbook).removed == [SCRIPT]
    assert names(mine / "scripts") == []


def test_a_script_that_the_learner_changed_is_kept_and_the_new_one_lies_beside_it(scripts, mine: Path, workbook: Path):
    its, copy = scripts
    (mine / "scripts" / "own.new.py").write_text("the learner's own")
    copy.write_text("mine")
    assert "up to date" in str(my_notebooks.renew(mine, workbook))
    for better in ("better", "better still"):
        its.write_text(better)
        assert my_notebooks.renew(mine, workbook).beside == [(SCRIPT, "scripts/mean.new.py")]
        assert (copy.read_text(), (mine / "scripts" / "mean.new.py").read_text()) == ("mine", better)
    shutil.copy(mine / "scripts" / "mean.new.py", copy)
    assert "up to date" in str(my_notebooks.renew(mine, workbook))
    assert names(mine / "scripts") == ["mean.py", "own.new.py"]


# -- putting back ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["02", "2", "02-send-and-receive", TWO, f"my-notebooks/{TWO}"])
def test_a_notebook_is_put_back_and_the_learners_is_kept(mine: Path, workbook: Path, which: str):
    change(mine / TWO, "mine")
    before = (mine / TWO).read_bytes()
    write(workbook / TWO, "better")
    my_notebooks.renew(mine, workbook)
    assert f"{TWO} is the workbook's version again. Yours is kept as {MINE}." == my_notebooks.put_back(
        mine, which, workbook
    )
    assert sources(mine / TWO) == ["better"]
    assert (mine / MINE).read_bytes() == before
    assert NEW not in names(mine)
    assert "up to date" in str(my_notebooks.renew(mine, workbook))
    assert (mine / MINE).read_bytes() == before


def test_every_version_that_was_put_back_is_kept(mine: Path, workbook: Path):
    for number in (1, 2, 3):
        change(mine / TWO, f"mine {number}")
        assert f"kept as 02-send-and-receive.mine-{number}.ipynb" in my_notebooks.put_back(mine, "02", workbook)
    assert sources(mine / "02-send-and-receive.mine-2.ipynb")[0] == "mine 2"
    assert "There was no change of yours to keep." in my_notebooks.put_back(mine, "02", workbook)
    run_only(mine / TWO)
    assert "kept as 02-send-and-receive.mine-4.ipynb" in my_notebooks.put_back(mine, "02", workbook), (
        "outputs are the learner's"
    )


@pytest.mark.parametrize("which", ["", "2x", "22", "send", ".", MINE])
def test_a_notebook_that_the_workbook_does_not_have_is_said_with_those_that_it_has(mine: Path, workbook: Path, which):
    before = names(mine)
    with pytest.raises(LabError, match="00-start-here, 02-send-and-receive and cheat-sheet"):
        my_notebooks.put_back(mine, which, workbook)
    assert names(mine) == before


def test_the_workbooks_own_notebooks_are_nobodys_copies(workbook: Path):
    before = (workbook / TWO).read_bytes()
    with pytest.raises(LabError, match="Choose another folder"):
        my_notebooks.renew(workbook, workbook)
    with pytest.raises(LabError, match="Choose another folder"):
        my_notebooks.put_back(workbook, "02", workbook)
    assert (workbook / TWO).read_bytes() == before


def test_labkit_without_the_workbooks_notebooks_says_so(tmp_path: Path):
    with pytest.raises(LabError, match="Clone the repository"):
        my_notebooks.renew(tmp_path / "mine", tmp_path / "site-packages" / "notebooks")
    assert not (tmp_path / "mine").exists()


def test_a_place_where_no_folder_can_be_is_said(tmp_path: Path, workbook: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match="choose another folder"):
        my_notebooks.renew(tmp_path / "file" / "mine", workbook)


# -- progress -------------------------------------------------------------------------------------------------------


def test_an_earlier_versions_progress_is_taken_over_once(tmp_path: Path, workbook: Path):
    (workbook / "my-work").mkdir()
    (workbook / "my-work" / "ring-1.py").write_text("one")
    told = my_notebooks.renew(tmp_path / "mine", workbook)
    assert "Your progress and attempts were copied" in str(told)
    assert (tmp_path / "mine" / "my-work" / "ring-1.py").read_text() == "one"
    (workbook / "my-work" / "ring-1.py").write_text("other")
    assert my_notebooks.renew(tmp_path / "mine", workbook).notes == []
    assert (tmp_path / "mine" / "my-work" / "ring-1.py").read_text() == "one"
    assert (workbook / "my-work" / "ring-1.py").read_text() == "other"


# -- from outside ---------------------------------------------------------------------------------------------------


def test_the_command_makes_the_copies_where_one_is_and_finds_them_from_inside(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([]) == 0
    lessons = sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))
    assert f"{len(lessons)} notebooks copied to my-notebooks/" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "my-notebooks").glob("*.ipynb")) == lessons
    monkeypatch.chdir(tmp_path / "my-notebooks")
    change(Path(TWO), "mine")
    assert main(["--back", "02"]) == 0
    assert f"Yours is kept as {MINE}" in capsys.readouterr().out
    assert not Path("my-notebooks").exists()
    assert main(["--back", "77"]) == 1
    assert "no notebook '77'" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_brings_in_nothing_slow(tmp_path: Path):
    code = "import runpy, sys; sys.argv = ['labkit', 'm']\ntry: runpy.run_module('labkit', run_name='__main__')\n"
    code += "except SystemExit as end: assert not end.code\nprint({'torch', 'numpy', 'IPython'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=here(), capture_output=True, text=True)
    assert ran.stdout.splitlines()[-1] == "set()", ran.stderr


def here(root: Path = ROOT) -> dict[str, str]:
    """An environment in which labkit is that of the folder, and git asks nobody who commits."""
    who = {f"GIT_{role}_{what}": "learner" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GIT_", "LABKIT_"))}
    return {**kept, **who, "PYTHONPATH": str(root), "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}


def command(*arguments: str, cwd: Path, root: Path) -> str:
    ran = subprocess.run(arguments, cwd=cwd, env=here(root), capture_output=True, text=True)
    assert ran.returncode == 0, f"{arguments}\n{ran.stdout}{ran.stderr}"
    return ran.stdout


@pytest.mark.slow
def test_pulling_after_work_never_conflicts(tmp_path: Path):
    upstream, clone = tmp_path / "upstream", tmp_path / "clone"
    for path in subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).rstrip("\0").split("\0"):
        if (ROOT / path).is_file():
            (upstream / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, upstream / path)
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"], ["clone", "-q", ".", str(clone)]):
        command("git", *arguments, cwd=upstream, root=upstream)
    mine, labkit = clone / "my-notebooks", (sys.executable, "-m", "labkit")
    command(*labkit, cwd=clone, root=clone)
    touched, ran = TWO, "00-start-here.ipynb"
    change(mine / touched, "mine")
    run_only(mine / ran)
    solved = "from labkit.faces import progress as p; p.save('swap', 'a = 1'); p.change('swap', state='solved')"
    command(sys.executable, "-c", solved, cwd=mine, root=clone)
    assert (mine / "my-work" / "progress.json").is_file()
    assert command("git", "status", "--porcelain", cwd=clone, root=clone) == ""

    for name in (touched, ran):
        change(upstream / "notebooks" / name, "better")
    command("git", "commit", "-qam", "two", cwd=upstream, root=upstream)
    command("git", "pull", "-q", cwd=clone, root=clone)
    told = command(*labkit, cwd=clone, root=clone)
    assert "Updated, because you had not changed it: 00-start-here." in told
    assert f"{touched} has your changes and was kept. The workbook's new version: {NEW}" in told
    assert [sources(mine / name)[0] for name in (touched, NEW, ran)] == ["mine", "better", "better"]
    make = ("make", f"VENV={sys.prefix}", f"--assume-old={sys.prefix}/.lab")  # what runs this is installed
    assert f"Yours is kept as {MINE}" in command(*make, "back", "NOTEBOOK=02", cwd=clone, root=clone)
    assert [sources(mine / name)[0] for name in (touched, MINE)] == ["better", "mine"]
    assert NEW not in names(mine)
    assert json.loads((mine / "my-work" / "progress.json").read_text())["exercises"]["swap"]["state"] == "solved"
    assert command("git", "status", "--porcelain", cwd=clone, root=clone) == ""


@pytest.mark.slow
def test_make_clean_leaves_a_learners_folder_alone(tmp_path: Path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    for folder in ("my-notebooks/.ipynb_checkpoints", "my-notebooks/__pycache__", "notebooks/.ipynb_checkpoints"):
        (tmp_path / folder).mkdir(parents=True)
    command("make", "clean", cwd=tmp_path, root=ROOT)
    assert names(tmp_path / "notebooks") == []
    assert not (tmp_path / "notebooks" / ".ipynb_checkpoints").exists()
    assert {path.name for path in (tmp_path / "my-notebooks").iterdir()} == {".ipynb_checkpoints", "__pycache__"}


def test_a_lesson_between_two_others_has_a_letter_and_takes_no_ones_place():
    names = ["06-build.ipynb", "06b-race.ipynb", "07-tell.ipynb"]
    found = {which: my_notebooks.find(which, names) for which in ("6", "06", "06b", "06b-race")}
    assert found == {"6": names[0], "06": names[0], "06b": names[1], "06b-race": names[1]}
