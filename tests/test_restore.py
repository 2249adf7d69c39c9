"""The button that puts a notebook back, driven without a browser."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import labkit
from labkit.faces import my_notebooks, restore
from labkit.floor.errors import LabError

TWO = "02-send-and-receive.ipynb"
MINE = "02-send-and-receive.mine-1.ipynb"


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of copies, and a kernel that was started for lesson 02 in it."""
    my_notebooks.renew(tmp_path)
    monkeypatch.setattr(restore, "HERE", tmp_path)
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / TWO))
    return tmp_path


def save(file: Path, source: str) -> None:
    """What JupyterLab does with Ctrl+S."""
    notebook = json.loads(file.read_text(encoding="utf-8"))
    notebook["cells"][0]["source"] = source
    file.write_text(json.dumps(notebook), encoding="utf-8")


def shown(button: restore.PutBack) -> dict[str, bool]:
    """Which buttons are there to be pressed."""
    asked = button._choice.layout.display != "none"
    return {"ask": button._ask.layout.display != "none", "yes": asked, "no": asked}


def test_it_asks_wants_what_is_typed_saved_and_keeps_it(mine: Path):
    button = labkit.put_back()
    assert button._ask.description == f"Put {TWO} back…"
    assert shown(button) == {"ask": True, "yes": False, "no": False}
    button._ask.click()
    assert shown(button) == {"ask": False, "yes": True, "no": True}
    button._yes.click()
    assert "Save this notebook first" in button._said.value
    assert not (mine / MINE).exists()
    save(mine / TWO, "mine")
    button._yes.click()
    assert f"Yours is kept as {MINE}. This page still shows yours: choose File ▸ Reload" in button._said.value
    assert shown(button) == {"ask": False, "yes": False, "no": False}
    assert json.loads((mine / MINE).read_text())["cells"][0]["source"] == "mine"
    assert "up to date" in str(my_notebooks.renew(mine))


def test_leaving_it_as_it_is_changes_nothing(mine: Path):
    button = labkit.put_back()
    save(mine / TWO, "mine")
    button._ask.click()
    button._no.click()
    assert shown(button) == {"ask": True, "yes": False, "no": False}
    assert json.loads((mine / TWO).read_text())["cells"][0]["source"] == "mine"


def test_another_notebook_is_put_back_by_its_number(mine: Path):
    save(mine / "00-start-here.ipynb", "mine")
    assert "If it is open, choose File ▸ Reload" in labkit.put_back("00").confirm()
    assert (mine / "00-start-here.mine-1.ipynb").exists()


def test_a_session_that_is_told_by_a_path_from_where_the_kernel_started(mine: Path, monkeypatch):
    monkeypatch.setenv("JPY_SESSION_NAME", TWO)
    button = labkit.put_back("02")
    with pytest.raises(LabError, match="Save this notebook first"):
        button.confirm()


@pytest.mark.parametrize("session", ["", "console-1-ab12"])
def test_where_the_server_does_not_say_which_notebook_it_is_it_must_be_named(mine: Path, monkeypatch, session: str):
    monkeypatch.setenv("JPY_SESSION_NAME", session)
    with pytest.raises(LabError, match=r'put_back\("02"\)'):
        labkit.put_back()
    save(mine / TWO, "mine")
    assert MINE in labkit.put_back("02").confirm()


def test_a_notebook_that_is_no_lesson_and_the_workbooks_own_are_refused(mine: Path, monkeypatch):
    monkeypatch.setenv("JPY_SESSION_NAME", str(mine / "notes.ipynb"))
    with pytest.raises(LabError, match=r"no notebook 'notes.ipynb'. Choose one of these: 00-start-here"):
        labkit.put_back()
    monkeypatch.setenv("JPY_SESSION_NAME", str(my_notebooks.WORKBOOK / TWO))
    with pytest.raises(LabError, match="Choose another folder"):
        labkit.put_back()


def test_without_a_page_it_says_what_to_do_instead(mine: Path):
    assert repr(labkit.put_back()) == f"A button that puts {TWO} back. In a terminal: make back NOTEBOOK=02"
    assert "make back NOTEBOOK=cheat-sheet" in repr(labkit.put_back("cheat-sheet"))
    assert labkit.put_back()._repr_mimebundle_()["text/plain"] == repr(labkit.put_back())
