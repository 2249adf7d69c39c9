"""In a course's exam, lab.check says right or wrong and keeps the mistake to itself; lab.use goes on working."""

from __future__ import annotations

import pytest

from labkit.content import exercises
from labkit.faces import progress

EXAM = "solutions = false\nhints = false\ndiagnosis = false\n"
HANGS = "def ring_shift(x):\n    print('here')\n    dist.recv(x, src=rank - 1 if rank else 1)\n    return x"


@pytest.fixture(autouse=True)
def exam(tmp_path, monkeypatch, own_progress):
    monkeypatch.setattr(progress, "HERE", tmp_path)
    (tmp_path / "course.toml").write_text(EXAM)


def test_a_mistake_is_wrong_and_no_more(lab):
    lab.run(HANGS)
    verdict = lab.check("ring_shift")
    assert repr(verdict) == "✗ ring_shift: wrong."
    assert (verdict.state, verdict.says, verdict.score) == ("wrong", [], None)
    assert "<img" not in verdict._repr_html_()
    assert progress.read()["ring_shift"]["state"] == "tried"


def test_what_is_right_is_right_without_an_afterword(lab):
    exercise = exercises.find("ring_shift")
    lab.run(exercise.answer.removeprefix("%%px\n"))
    verdict = lab.check("ring_shift")
    assert verdict.ok
    assert exercise.after not in repr(verdict)
    assert progress.read()["ring_shift"]["state"] == "solved"


def test_later_cells_get_the_workbooks_function_all_the_same(lab):
    assert "The ranks use" in repr(lab.use("prefix_sum"))
    assert lab.run("print(prefix_sum(torch.ones(1)).shape)")[0].startswith("torch.Size")
