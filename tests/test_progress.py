"""What a learner has done is kept, whatever happens to the file."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from labkit.content import exercises, predictions
from labkit.faces import progress, task
from labkit.floor.errors import LabError
from labkit.grading import defined_names
from labkit.grading.exercise import Exercise
from labkit.grading.prediction import Prediction
from labkit.show.card import Card
from workbook.tools.progress import ways
from workbook.tools.progress.face import progress as overview

NAMES = list(exercises.every())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABKIT_PROGRESS", str(tmp_path / "work"))
    return tmp_path / "work"


def test_nothing_is_written_before_there_is_something_to_keep(place: Path):
    assert progress.read() == {}
    assert repr(task.Task(None, NAMES[0])._card)
    assert overview(None).solved == 0
    assert not place.exists()


def test_the_file_says_what_it_holds_and_is_read_again(place: Path):
    progress.change("ring", state="tried", checks=2)
    progress.change("ring", hints=1)
    told = json.loads((place / "progress.json").read_text())
    assert "Nothing of this leaves your machine" in told["about"]
    assert progress.read()["ring"] == {"state": "tried", "checks": 2, "hints": 1}


def test_every_attempt_is_kept_once(place: Path):
    for cell in ("%%px\none", "%%px\none", "%%px\ntwo", ""):
        progress.save("ring", cell)
    assert progress.last("ring") == "%%px\ntwo"
    assert sorted(f.name for f in place.iterdir()) == ["ring-1.py", "ring-2.py"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"exercises": 3}',
        '{"exercises": {"ring": 1}}',
        '{"exercises": {}, "predictions": [1]}',
        "\x00" * 40,
    ],
)
def test_a_file_that_cannot_be_read_is_kept_aside_and_the_attempts_count(place: Path, capsys, text: str):
    progress.save("ring", "%%px\none")
    (place / "progress.json").write_text(text)
    assert progress.read()["ring"]["state"] == "tried"
    assert "kept as progress-broken-1.json" in capsys.readouterr().out
    assert (place / "progress-broken-1.json").read_text() == text
    progress.change("ring", state="solved")
    assert progress.read()["ring"]["state"] == "solved"
    (place / "progress.json").write_text("again")
    progress.read()
    assert (place / "progress-broken-2.json").read_text() == "again"


def test_facts_of_a_later_version_stay(place: Path):
    progress.change("ring", state="solved")
    told = json.loads((place / "progress.json").read_text())
    told["exercises"]["ring"] |= {"stars": 5, "state": "perfect"}
    (place / "progress.json").write_text(json.dumps(told))
    known = progress.change("ring", hints=2)
    assert (known["stars"], known["state"]) == (5, "tried")


def test_a_folder_that_takes_nothing_is_said_and_not_raised(tmp_path: Path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LABKIT_PROGRESS", str(tmp_path / "file" / "below"))
    progress.save("ring", "%%px\none")
    progress.change("ring", state="tried")
    assert "could not be written" in capsys.readouterr().out


def test_without_the_variable_it_lies_beside_the_notebooks_or_else_at_home(tmp_path: Path, monkeypatch):
    monkeypatch.delenv("LABKIT_PROGRESS", raising=False)
    monkeypatch.setattr(progress, "HERE", tmp_path)
    assert progress.folder() == tmp_path / "my-work"
    monkeypatch.setattr(progress, "HERE", tmp_path / "gone")
    assert progress.folder() == Path.home() / ".local" / "share" / "collectives-workbook"


def test_two_notebooks_at_once_lose_nothing(place: Path):
    def many(name: str) -> None:
        for checks in range(20):
            progress.change(name, checks=checks)

    threads = [threading.Thread(target=many, args=(f"f{i}",)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert {name: facts["checks"] for name, facts in progress.read().items()} == dict.fromkeys(
        ("f0", "f1", "f2", "f3"), 19
    )


def test_a_lesson_has_one_line_and_its_exercises_another_table(place: Path):
    progress.change(NAMES[0], state="solved")
    every, one = overview(None), overview(None, exercises.find(NAMES[0]).lesson)
    assert [row.link for row in every.rows] == [stop.link for stop in ways.lessons()]
    assert (every.solved, one.solved, every.next, one.next) == (1, 1, NAMES[1], NAMES[1])
    assert every.caption.startswith(f"1 of {len(NAMES)} exercises solved. Next: {NAMES[1]}")
    assert len(repr(every).splitlines()) == 2 + len(every.rows)
    assert "←&nbsp;next" in one._repr_html_()
    assert {e.lesson for e in overview(None, 2).exercises} == {"02"}
    with pytest.raises(LabError, match="no exercises in lesson"):
        overview(None, "100")


def test_the_next_exercise_is_the_same_whoever_says_it(place: Path):
    for name in NAMES[0], NAMES[7], NAMES[3]:
        progress.change(name, state="solved")
    assert overview(None).next == NAMES[4], "behind the one that was changed last"
    assert f"Next: {NAMES[4]}, in lesson" in task._next(exercises.find(NAMES[3]), "right", {})
    for name in NAMES:
        progress.change(name, state="solved")
    assert overview(None).next is None
    assert "Next" not in overview(None).caption


def test_a_way_shows_its_stops_the_learners_place_and_the_next_stop(place: Path):
    assert "lab.progress(way=…) takes '90 minutes'" in overview(None).notes[0]
    stops = ways.ways()["half a day"]
    table = overview(None, way="Half a day")
    assert [(row.says, row.link, row.here) for row in table.rows] == [(s.says, s.link, s is stops[0]) for s in stops]
    third = next(e for e in exercises.every().values() if e.lesson == stops[2].lesson)
    progress.change(third.name, state="tried")
    assert [row.here for row in overview(None).rows].index(True) == 2
    assert overview(None)._repr_html_().count("you&nbsp;are&nbsp;here") == 1
    assert overview(None, third.lesson).onward == f"Your way, half a day: next is {stops[3].says}."
    assert f'<a href="{stops[3].link}">' in overview(None, third.lesson)._repr_html_()
    assert "its last stop" in overview(None, stops[-1].lesson).onward
    with pytest.raises(LabError, match=r"no way 'a year'.*Choose '90 minutes', 'half a day'.*'all'"):
        overview(None, way="a year")
    assert overview(None, way="all").caption.startswith("0 of")


def test_the_first_choice_of_a_prediction_is_kept_beside_the_exercises(place: Path):
    progress.predict("late", "at once", False)
    progress.change("ring", state="tried")
    progress.predict("late", "later", True)
    progress.predict("bytes", 24.0, True)
    assert progress.predicted() == {
        "late": {"first": "at once", "right": False},
        "bytes": {"first": 24.0, "right": True},
    }
    assert progress.read()["ring"]["state"] == "tried"


def test_a_file_of_an_earlier_version_has_no_predictions_and_is_read_as_it_is(place: Path, capsys):
    place.mkdir()
    (place / "progress.json").write_text('{"about": "", "version": 1, "exercises": {"ring": {"state": "solved"}}}')
    assert progress.predicted() == {}
    progress.predict("late", "at once", False)
    assert progress.read()["ring"]["state"] == "solved"
    assert capsys.readouterr().out == ""


def test_predictions_are_counted_by_lesson(place: Path, monkeypatch: pytest.MonkeyPatch):
    asked = [Prediction("?", k, "", name=f"q{k}", lesson=lesson) for k, lesson in enumerate(["02", "02", "03", "04"])]
    monkeypatch.setattr(predictions, "every", lambda: {p.name: p for p in asked})
    for name, right in [("q0", True), ("q1", False), ("q3", True)]:
        progress.predict(name, 0, right)
    said = {row.link[:2]: row.counts[1] for row in overview(None).rows if row.predictions}
    assert said == {"02": "2 of 2 answered, 1 right", "03": "0 of 1 answered", "04": "1 of 1 answered, 1 right"}
    assert overview(None, "02").notes == ["Predictions: 1 right of 2 answered, 2 in all"]
    assert overview(None, "03").notes == []


def test_hints_come_one_by_one_and_the_last_one_names_the_solution(place: Path):
    name = next(n for n in NAMES if len(exercises.find(n).hints) >= 2)
    hints = exercises.find(name).hints
    first = repr(task.Task(None, name).hint())
    assert first.startswith(f"**Hint 1 of {len(hints)}.")
    assert "Hint 2" not in first
    for _ in hints:
        last = repr(task.Task(None, name).hint())
    assert f"Hint {len(hints)} of {len(hints)}." in last
    assert 'lab.exercise("' + name + '").solution()' in last


def test_the_solution_waits_for_an_attempt(place: Path):
    name = NAMES[0]
    assert "Try it first" in repr(task.Task(None, name).solution())
    progress.change(name, state="tried", checks=1)
    shown = task.Task(None, name).solution()
    assert exercises.find(name).code.strip() in repr(shown)
    assert "<pre" in shown._repr_html_()


def test_ones_own_attempt_comes_back_as_it_was_typed(place: Path):
    assert "No attempt" in repr(task.Task(None, NAMES[0]).mine())
    progress.save(NAMES[0], defined_names.as_typed("# %%px --targets 0\ndef ring(x):\n    return x\n"))
    assert task.Task(None, NAMES[0]).mine().code == "%%px --targets 0\ndef ring(x):\n    return x\n"
    assert defined_names.as_typed("def ring(x): ...") == "%%px\ndef ring(x): ..."


def test_ones_solution_comes_back_whatever_was_tried_after_it(place: Path):
    name = NAMES[0]
    numbers = [progress.save(name, cell) for cell in ("%%px\nwrong", "%%px\nright", "%%px\nright", "%%px\nworse")]
    assert numbers == [1, 2, 2, 3]
    assert progress.mine(name) == ("%%px\nworse", False)
    progress.change(name, state="solved", solved=2)
    assert progress.mine(name) == ("%%px\nright", True)
    assert repr(task.Task(None, name).mine()).startswith(f"Your solution of `{name}`.")
    (place / f"{name}-2.py").unlink()
    assert progress.mine(name) == ("%%px\nworse", False), "a solution that was deleted is not brought back"


def test_an_unknown_exercise_is_answered_with_the_nearest_one(place: Path):
    with pytest.raises(LabError, match=f"Did you mean '{NAMES[0]}'"):
        task.Task(None, NAMES[0][:-1])
    with pytest.raises(LabError, match=r"lab\.progress\(\)"):
        task.Task(None, "qqqq").hint()


def is_brought_something(exercise: Exercise) -> bool:
    """Whether ranks bring their own arguments: else the card shows a call, and there is nothing to draw."""
    xs = exercise.picture() if exercise.picture else next(iter(exercise.inputs(exercise.ranks[-1]))).xs
    return any(not isinstance(x, tuple) or x for x in xs)


def test_a_card_tells_every_exercise_and_has_a_picture(place: Path, monkeypatch, subtests: pytest.Subtests):
    monkeypatch.setattr(Card, "svg", b"<svg/>")  # tests/plot/test_labels.py draws all of them
    for exercise in exercises.every().values():
        if is_brought_something(exercise):
            with subtests.test(exercise.name):
                card = task.Task(None, exercise.name)._card
                assert card.facts.count("●") + card.facts.count("○") == 4
                assert f"about {card.exercise.minutes} minutes" in repr(card)
                assert "rank 1 │" in repr(card)
                assert card._repr_html_().count('<img alt="An example of') == 1
                assert "rank 1 │" in card.alt
                assert card.alt == task.Task(None, exercise.name)._card.alt, "its input is the same every time"


def test_equal_cards_have_equal_pictures(place: Path):
    assert task.Task(None, NAMES[0])._card.svg == task.Task(None, NAMES[0])._card.svg


def test_a_card_of_a_function_that_ranks_bring_nothing_to_shows_a_call_and_no_picture(place: Path):
    card = task.Task(None, "stage_price")._card
    call = "stage_price(parameters=7.5e+09, gpus=64, stage=0)"
    assert f"\n{call} → [1.2e+11, 3e+10]\n" in repr(card)
    assert f"<code>{call} → [1.2e+11, 3e+10]</code>" in card._repr_html_()
    assert "<img" not in card._repr_html_()


def test_the_best_of_an_exercise_is_shown_and_one_that_is_no_best_is_left_out(place: Path):
    best = {"n": 4, "size": 4112, "sent": 6168.0, "rounds": 1, "memory": 4112}
    progress.change(NAMES[0], state="solved", best=best)
    table = overview(None, exercises.find(NAMES[0]).lesson)
    assert "6,168 bytes sent, 1 step, 4,112 bytes of memory" in repr(table)
    assert "6,168 bytes sent" in table._repr_html_()
    assert table._repr_html_().count('<td class="best"') == len(table.exercises)
    assert "your best" not in overview(None, "08")._repr_html_(), "no column where there is nothing to show"
    for odd in (7, {"sent": 1}, {**best, "rounds": "one"}):
        told = json.loads((place / "progress.json").read_text())
        told["exercises"][NAMES[0]]["best"] = odd
        (place / "progress.json").write_text(json.dumps(told))
        assert "best" not in progress.read()[NAMES[0]]
        assert overview(None).solved == 1
