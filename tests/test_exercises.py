"""Every exercise is complete: text, hints, inputs whose meaning is known, clean sources."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

from labkit import content
from labkit.content import exercises
from labkit.faces.task import wanted
from labkit.floor.errors import LabError
from labkit.grading import inputs, judge
from labkit.show.card import Card
from labkit.theory import collectives
from tests.notebooks import NOTEBOOKS, cells

ROOT = Path(__file__).resolve().parent.parent
EVERY = exercises.every().values()


def test_what_python_finds_in_the_place_of_the_lessons_is_named(tmp_path, monkeypatch):
    (tmp_path / content.PACKAGE).mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, content.PACKAGE)
    with pytest.raises(LabError, match=rf"{tmp_path / content.PACKAGE} has the name .* Rename it"):
        content.methods()


def test_it_says_what_to_do_how_long_and_how_hard(subtests: pytest.Subtests):
    for exercise in EVERY:
        with subtests.test(exercise.name):
            assert exercise.title
            assert not exercise.title.endswith(".")
            assert len(exercise.statement) > 100
            kernel = "@triton.jit\n" in exercise.solution  # it stores what another function would return
            assert "eturn" in exercise.statement or (kernel and re.search('"""(Store|Return) ', exercise.solution))
            assert exercise.after
            assert 3 <= exercise.minutes <= 45
            assert exercise.difficulty in (1, 2, 3)
            assert len(exercise.hints) >= 2


def test_an_input_is_said_to_have_one_thing_and_not_one_things(subtests: pytest.Subtests):
    plural = re.compile(r"(?<![\w.])(?<!rank )(?<!worker )(?<!\+ )1 (?![nµm]s\b)[a-z-]+s\b")
    for exercise in EVERY:
        with subtests.test(exercise.name):
            cases = [case for n in exercise.ranks for case in exercise.inputs(n)]
            assert not [case.about for case in cases if plural.search(case.about)]


def test_its_texts_use_only_what_the_card_shows(subtests: pytest.Subtests):
    """`code` and **bold**; single stars and links would be shown as they stand."""
    for exercise in EVERY:
        with subtests.test(exercise.name):
            for text in (exercise.statement, exercise.after, *exercise.hints):
                plain = re.sub(r"`[^`]*`", "", text)
                assert plain.count("**") % 2 == 0
                assert "*" not in plain.replace("**", "")
                assert "`" not in plain
                assert not re.search(r"\]\(|  |^ | $", text)


def test_its_inputs_have_a_meaning_for_every_number_of_ranks(subtests: pytest.Subtests):
    for exercise in EVERY:
        with subtests.test(exercise.name):
            for n in exercise.ranks:
                cases = list(exercise.inputs(n))
                assert len(cases) >= 3
                assert [case.about for case in cases[1:] if not case.about] == []
                for case in cases:
                    assert case.n == n
                    judge.check_length(list(exercise.means(list(case.xs), **case.options)), n)


def test_the_stub_is_a_specimen_or_leaves_out_what_is_to_be_written(subtests: pytest.Subtests):
    for exercise in EVERY:
        with subtests.test(exercise.name):
            assert exercise.stub.startswith("%%px\n")
            functions = [n for n in ast.parse(exercise.stub[5:]).body if isinstance(n, ast.FunctionDef)]
            (function,) = [n for n in functions if n.name == exercise.name]
            assert ast.get_docstring(function)
            blanks = [n for n in ast.walk(function) if isinstance(n, ast.Expr) and ast.unparse(n) == "..."]
            if exercise.specimen:
                assert not blanks, "it runs, and goes wrong"
            elif "# yours" in exercise.solution:
                assert len(blanks) == exercise.solution.count("# yours")
                assert ast.unparse(function.body[1:]) != "...", "what stands around it is kept"
            else:
                assert len(function.body) == 2
                assert len(functions) == len(blanks) == 1
            assert "# yours" not in exercise.stub + exercise.answer
            assert "# end" not in exercise.stub + exercise.answer


def test_its_picture_is_seen_whole_on_its_card_in_a_window_of_1200_pixels(subtests: pytest.Subtests):
    """Beside JupyterLab's file browser a card has room for 706 pixels; what cannot shrink to that scrolls."""
    for exercise in EVERY:
        with subtests.test(exercise.name):
            widest = max(map(int, re.findall(r"min-width: (\d+)px", Card(exercise)._repr_html_())), default=0)
            assert widest <= 706, "give it a smaller `picture`: fewer ranks, fewer numbers, or words (workbook.cards)"


def test_it_stands_in_its_lesson_as_card_stub_and_check(subtests: pytest.Subtests):
    for exercise in EVERY:
        with subtests.test(exercise.name):
            its_cells = cells(NOTEBOOKS[exercise.lesson])
            sources = [cell.source for cell in its_cells]
            card = f'lab.exercise("{exercise.name}")'
            assert card in sources, f"put its three cells into {NOTEBOOKS[exercise.lesson].name}"
            at = sources.index(card)
            assert sources[at + 1] == exercise.stub, "the cell below its card is its stub: copy that anew"
            assert sources[at + 2] == f'lab.check("{exercise.name}")'
            assert all("exercise" in cell.metadata.get("tags", ()) for cell in its_cells[at : at + 3])


def test_every_exercise_cell_in_a_lesson_is_one_of_ours(subtests: pytest.Subtests):
    for lesson, path in NOTEBOOKS.items():
        ours = [e for e in EVERY if e.lesson == lesson]
        tagged = [cell for cell in cells(path) if "exercise" in cell.metadata.get("tags", ())]
        if not ours + tagged:
            continue
        with subtests.test(lesson):
            sources = [cell.source for cell in tagged if cell.cell_type == "code"]
            assert [source for source in sources if not source.startswith("lab.use(")] == [
                *(
                    source
                    for exercise in ours
                    for source in (f'lab.exercise("{exercise.name}")', exercise.stub, f'lab.check("{exercise.name}")')
                ),
                "lab.progress()" if lesson == "00" else f'lab.progress("{lesson}")',
            ], "cells tagged `exercise` follow the functions in the modules, in their order"
            (heading,) = [cell for cell in tagged if cell.source.startswith(("## Exercises", "## Repair"))]
            below = [cell.source for cell in tagged[tagged.index(heading) :]]  # those above are written in their place
            minutes = sum(e.minutes for e in ours if f'lab.check("{e.name}")' in below)
            assert f"about {minutes} minutes" in heading.source, "correct the minutes below this heading"


@pytest.mark.parametrize("means", ["reduce_scatter", "reduce_scatter_tensor", collectives.reduce_scatter])
def test_a_check_takes_what_is_meant_as_a_name_or_as_a_function(means):
    exercise = wanted("mine", means=means)
    assert exercise.means is collectives.reduce_scatter
    assert exercise.inputs is inputs.chunked
    with pytest.raises(LabError, match="Use one of broadcast"):
        wanted("mine", means="all_sum")
