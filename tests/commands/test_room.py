"""An instructor sees who is at which exercise; a learner is told, and is seen only where that was asked for."""

from __future__ import annotations

import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.__main__ import main
from labkit.commands import room
from labkit.faces import progress, seat
from labkit.floor.errors import LabError

NOW = 100_000.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A room in which one learner sits, whose own progress is elsewhere."""
    monkeypatch.setenv("LABKIT_PROGRESS", str(tmp_path / "work"))
    monkeypatch.setenv(seat.ROOM, str(tmp_path / "room"))
    monkeypatch.delenv(seat.NAME, raising=False)
    monkeypatch.setattr(seat, "_told", set())
    (tmp_path / "room").mkdir()
    return tmp_path / "room"


def sit(folder: Path, who: str, **facts: object) -> None:
    told = {"name": who, "what": "ring_shift", "state": "tried", "checks": 1, "hints": 0, "since": NOW - 60}
    (folder / f"{who}.json").write_text(json.dumps({**told, "when": NOW - 60, "done": 4, **facts}))


def only(folder: Path) -> room.Seat:
    (found,) = room.seats(folder, NOW)
    return found


def test_a_check_and_a_prediction_say_where_the_learner_is_without_name_code_or_answer(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    progress.save("hello_sum", "def hello_sum(x): return secret")
    progress.change("hello_sum", state="tried", checks=2)
    (file,) = folder.glob("*.json")
    assert "secret" not in file.read_text()
    assert json.loads(file.read_text())["name"] == ""
    assert f"under the name {file.stem}" in capsys.readouterr().out
    progress.predict("where_is_x", "four, one on each rank", True)
    assert (json.loads(file.read_text())["what"], json.loads(file.read_text())["done"]) == ("where_is_x", 1)
    assert "four" not in file.read_text()
    assert capsys.readouterr().out == "", "a learner is told once"


def test_nothing_is_written_where_no_room_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(seat.ROOM)
    progress.change("hello_sum", state="solved")
    assert list(folder.iterdir()) == []
    assert not (progress.folder() / seat.NUMBER).exists()


@pytest.mark.parametrize("before", ["", "[]", '{"what": "hello_sum", "since": "then"}', "[" * 4000])
def test_the_time_at_an_exercise_begins_with_its_first_check(
    folder: Path, monkeypatch: pytest.MonkeyPatch, before: str
):
    """Whatever another user has put in the file's place."""
    progress.folder().mkdir()
    (progress.folder() / seat.NUMBER).write_text("5eat")
    (folder / "5eat.json").write_text(before)
    for minute in (0, 4, 9):
        monkeypatch.setattr("labkit.faces.seat.time.time", lambda minute=minute: NOW + 60 * minute)
        progress.change("hello_sum", state="tried", checks=1)
    (found,) = room.seats(folder, NOW + 60 * 11)
    assert (found.minutes, found.idle, found.lesson) == (9, 2, "00")


def test_a_room_that_cannot_be_written_to_is_a_sentence_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (folder / "file").touch()
    monkeypatch.setenv(seat.ROOM, str(folder / "file" / "below"))
    progress.change("hello_sum", state="tried")
    progress.change("hello_sum", state="solved")
    assert capsys.readouterr().out.count("This course cannot see where you are") == 1
    assert progress.read()["hello_sum"]["state"] == "solved"


@pytest.mark.parametrize(
    ("facts", "stuck"),
    [
        ({}, False),
        ({"checks": 3}, True),
        ({"checks": 3, "state": "solved"}, False),
        ({"since": NOW - 700, "when": NOW - 60}, True),
        ({"since": NOW - 700, "when": NOW - 60, "checks": 0}, False),
        ({"checks": 3, "since": NOW - 9000, "when": NOW - 8000}, False),
    ],
)
def test_stuck_is_who_has_checked_several_times_or_long_ago_and_is_still_there(
    folder: Path, facts: dict[str, object], stuck: bool
):
    sit(folder, "ada", **facts)
    assert only(folder).stuck is stuck


def test_who_is_stuck_comes_first(folder: Path):
    sit(folder, "ada")
    sit(folder, "zoe", checks=5)
    assert [found.who for found in room.seats(folder, NOW)] == ["zoe", "ada"]
    page = room.page(room.seats(folder, NOW))
    assert "2 learners, 1 stuck. At lesson 02: 2." in page
    assert page.index("● stuck: tried, 5 checks, 0 hints") < page.index("tried, 1 check, 0 hints")


def test_a_file_of_another_form_is_left_out(folder: Path):
    sit(folder, "ada", name="<script>")
    (folder / "list.json").write_text("[1]")
    (folder / "half.json").write_text('{"what": "ring_sh')
    (folder / "deep.json").write_text("[" * 4000)
    (folder / "huge.json").write_text(json.dumps({"name": "x" * 5000, "what": "a", "since": 0, "when": 0, "done": 0}))
    (folder / "odd.json").write_text(json.dumps({"what": "a", "since": "then", "when": 0, "done": 0}))
    (folder / "link.json").symlink_to(folder / "ada.json")
    (folder / "folder.json").mkdir()
    os.mkfifo(folder / "pipe.json")
    assert only(folder).who == "<script>"
    assert "<script>" not in room.page([only(folder)])


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    sit(folder, "ada")
    with room.server(folder, "secret", prefix="/services/room/") as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()
        thread.join()


def answer(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url) as got:
            return got.status, got.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_page_is_for_who_knows_the_token(address: str):
    status, text = answer(f"{address}/services/room/?token=secret")
    assert status == 200
    assert "<td>ada</td>" in text
    for wrong in ("/services/room/", "/services/room/?token=", "/services/room/?token=Secret", "/?token=%C3%A9"):
        status, text = answer(address + wrong)
        assert status == 403
        assert "ada" not in text
    assert answer(f"{address}/?token=secret")[0] == 404


def test_a_folder_that_cannot_be_listed_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(LabError, match="Name the folder of LABKIT_ROOM"):
        room.seats(tmp_path / "none", NOW)
    assert main(["room", str(tmp_path / "none")]) == 1
    assert "cannot be listed" in capsys.readouterr().err
