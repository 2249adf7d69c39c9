"""What a learner has done is kept, whatever happens to the file."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import nbformat
import pytest
from cells import on_the_way

from labkit.content import exercises, predictions, series
from labkit.faces import progress, task
from labkit.floor.errors import LabError
from labkit.grading import defined_names
from labkit.grading.exercise import Exercise
from labkit.grading.prediction import Prediction
from labkit.show.card import Card
from tests.notebooks import FOLDER, cells
from workbook.tools.progress import ways
from workbook.tools.progress.face import progress as overview

NAMES = list(exercises.every())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABKIT_PROGRESS", str(tmp_path / "work"))
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    return tmp_path / "work"


def solve(*names: str) -> None:
    for name in names:
        progress.change(name, state="solved")


def take(stops: Iterable[ways.Stop]) -> None:
    """Do all that the stops ask."""
    for name in [name for stop in stops for name in ways.asked(stop)]:
        solve(name) if name in NAMES else progress.predict(name, "", right=False)


def told(name: str) -> str:
    """What the verdict on a right function says is next."""
    return task._next(exercises.find(name), "right", {})


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
    solve("gradient_back")
    every, one = overview(None), overview(None, "02")
    assert [row.link for row in every.rows] == [stop.link for stop in ways.lessons()]
    assert (every.solved, one.solved) == (1, 1)
    assert every.next == one.next == "Next: ring_shift, in lesson 02."
    assert every.caption == f"1 of {len(NAMES)} exercises solved. Next: ring_shift, in lesson 02."
    assert len(repr(every).splitlines()) == 2 + len(every.rows)
    assert one._repr_html_().count("←&nbsp;next") == 1
    assert {e.lesson for e in overview(None, 2).exercises} == {"02"}
    with pytest.raises(LabError, match="no exercises in lesson"):
        overview(None, "100")


def test_the_next_exercise_stands_on_the_way_through_a_lesson_and_in_a_main_one_before_others(place: Path):
    solve("average_gradients")
    assert told("average_gradients") == "Next: average_in_team, in lesson 01.", "hello_sum is one of 00's Exercises"
    solve("overlapped")
    assert told("overlapped") == "Next: data_parallel, in lesson 09.", "on the way through the same lesson"
    solve("data_parallel", "average_in_buckets")
    assert told("data_parallel") == "Next: asynchronous_sgd, in lesson 10.", "09b is a side lesson"
    solve("vocab_embedding", "plan_dispatch")
    assert told("plan_dispatch") == "Next: exchange_tokens, in lesson 13d.", "a side lesson that was begun goes on"


def test_the_rest_comes_when_the_way_is_done_and_the_end_is_said(place: Path):
    on = [name for stop in ways.lessons() for name in ways.asked(stop) if name in NAMES]
    solve(*on)
    rest = [name for name in NAMES if name not in on]
    assert re.match(r"Next: (\w+), in lesson", overview(None).next)[1] in rest
    solve(*rest)
    assert overview(None).next == told(NAMES[0]) == "You have solved every exercise of the workbook."


def test_the_next_exercise_is_one_of_the_open_notebook(place: Path, monkeypatch: pytest.MonkeyPatch):
    solve("average_gradients")
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/me/my-notebooks/05-barriers-and-clocks.ipynb")
    assert overview(None).next == "Next on this page: save_then_load."
    solve("save_then_load", "bench_by_hand")
    assert overview(None).next == "After this lesson: naive_all_reduce, in lesson 06.", "it may go on"
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/me/my-notebooks/index.ipynb")
    assert overview(None).next == "Next: naive_all_reduce, in lesson 06."


def test_a_stop_asks_what_stands_before_its_end_outside_the_optional_sections_and_exercises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    v4 = nbformat.v4
    texts = ["# Lesson", 'one = Predict("one")', "## First\n\nWhat is there.", 'lab.exercise("two")',
             'lab.exercise("two").hint()', "## Optional: more", 'lab.exercise("three")', "## Second, and last",
             'six = Choose("six_surprises")', "### Below", 'lab.exercise("four")', "## Exercises",
             'lab.exercise("five")', "## Third", 'lab.use("two")', 'late = Predict("late")']  # fmt: skip
    made = [(v4.new_markdown_cell if text.startswith("#") else v4.new_code_cell)(text) for text in texts]
    nbformat.write(v4.new_notebook(cells=made), tmp_path / "99-lesson.ipynb")
    monkeypatch.setattr(ways, "INDEX", tmp_path / "index.ipynb")
    surprises = ["surprise_order", "surprise_unused", "surprise_join", "surprise_penalty", "surprise_dropout"]
    six = [*surprises, "surprise_epoch"]
    assert ways.asked(ways.Stop("", "99-lesson", "#First")) == ["one", "two"]
    assert ways.asked(ways.Stop("", "99-lesson", "#Second,-and-last")) == ["one", "two", *six, "four"]
    assert ways.asked(ways.Stop("", "99-lesson")) == ["one", "two", *six, "four", "late"]


def test_the_way_through_a_lesson_is_the_one_that_the_lint_measures():
    for stop in ways.lessons():
        way = on_the_way(cells(FOLDER / f"{stop.file}.ipynb"))
        shown = re.findall(ways.ASKS, "\n".join(cell.source for cell in way if cell.cell_type == "code"))
        parts = [[p.name for p in series.every()[name].parts] if name in series.every() else [name] for name in shown]
        assert ways.asked(stop) == list(dict.fromkeys(chain(*parts))), stop.says


def test_a_way_shows_its_stops_the_learners_place_and_the_next_stop(place: Path, monkeypatch: pytest.MonkeyPatch):
    assert "lab.progress(way=…) takes '90 minutes'" in overview(None).notes[0]
    stops = ways.ways()["90 minutes"]
    assert [stop.says for stop in stops[:3]] == ["00 Start here", "01 Who is who", "02 Close the ring"]
    table = overview(None, way="90 Minutes")
    assert [(row.says, row.link, row.here) for row in table.rows] == [(s.says, s.link, s is stops[0]) for s in stops]
    assert table.caption == "Your way: 90 minutes. 0 of 4 exercises solved. Next: average_gradients, in lesson 00."
    assert [row.counts for row in table.rows[:2]] == [("0 of 1 solved", "0 of 3 answered"), ("–", "–")]
    progress.change("ring_shift", state="tried")
    assert [row.here for row in overview(None).rows] == [False, False, True, False], "where anything was done"
    assert overview(None)._repr_html_().count("you&nbsp;are&nbsp;here") == 1
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/me/my-notebooks/01-meet-the-ranks.ipynb")
    assert [row.here for row in overview(None).rows] == [False, True, False, False], "the open notebook"
    with pytest.raises(LabError, match=r"no way 'a year'.*Choose '90 minutes', 'half a day'.*'all'"):
        overview(None, way="a year")
    assert overview(None, way="all").caption.startswith("0 of 2")


def test_on_a_way_the_next_thing_is_an_open_exercise_of_the_stop_or_else_the_next_stop(
    place: Path, monkeypatch: pytest.MonkeyPatch
):
    overview(None, way="90 minutes")
    solve("average_gradients")
    stop = "After this stop: [01 Who is who](01-meet-the-ranks.ipynb#Who-is-who)."
    assert told("average_gradients") == overview(None).next == stop, "hello_sum is not part of the way"
    assert (
        'After this stop: <a href="01-meet-the-ranks.ipynb#Who-is-who">01 Who is who</a>.'
        in overview(None)._repr_html_()
    )
    assert overview(None, "00").caption == f"1 of 2 exercises solved. {stop}"
    assert '<a href="01-meet-the-ranks.ipynb#Who-is-who">' in overview(None, "00")._repr_html_()
    assert overview(None, "01").next.startswith("After this stop: [02 Close the ring]"), "as in that lesson's notebook"
    monkeypatch.setenv("JPY_SESSION_NAME", "02-send-and-receive.ipynb")
    assert overview(None).next == "Next on this page: gradient_back."
    solve("gradient_back")
    assert told("gradient_back") == "Next on this page: ring_shift."
    solve("ring_shift")
    assert told("ring_shift").startswith("After this stop: [04 Reduce-scatter and all-gather](04-everyone.ipynb#")


def test_a_stop_is_done_when_all_that_it_asks_is_done_and_then_the_way(place: Path):
    overview(None, way="90 minutes")
    stops = ways.ways()["90 minutes"]
    solve("average_gradients")
    assert [row.done for row in overview(None).rows] == [False] * 4, "three predictions are open"
    take(stops[:1])
    assert [row.done for row in overview(None).rows] == [True, False, False, False]
    take(stops[3:])
    assert [row.done for row in overview(None).rows] == [True, True, False, True], "nothing is asked in 01's section"
    assert overview(None).next.startswith("After this stop: [02 Close the ring]"), "one that was left out"
    assert "✓&nbsp;done&nbsp;←&nbsp;you&nbsp;are&nbsp;here" in overview(None)._repr_html_()
    take(stops)
    assert repr(overview(None)).count("✓ done") == 4
    end = "You have done all that your way asks. At its end, [choose another](index.ipynb#Ways-through-the-workbook)."
    assert overview(None).caption == f"Your way: 90 minutes. 4 of 4 exercises solved. {end}"
    assert told("sharded_step") == end


def test_a_last_stop_that_asks_nothing_is_the_next_one_until_it_is_open(place: Path, monkeypatch: pytest.MonkeyPatch):
    *stops, sheet = ways.ways()["two days"]
    overview(None, way="two days")
    take(stops)
    assert overview(None).next == "After this stop: [Cheat sheet](cheat-sheet.ipynb)."
    monkeypatch.setenv("JPY_SESSION_NAME", sheet.link)
    assert overview(None).next.startswith("You have done all that your way asks")


def test_the_week_stops_at_every_lesson():
    assert ways.ways()["a week"] == ways.lessons()


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
    return any(not isinstance(x, tuple) or x for x in Card(exercise).case.xs)


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
