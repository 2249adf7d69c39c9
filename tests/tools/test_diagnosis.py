"""The diagnosis tree names cases that there are, reads as text and as HTML, and is saved over nobody's file."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from labkit.floor.errors import LabError
from tests.notebooks import NOTEBOOKS, cells
from workbook.tools.diagnosis.page import tree
from workbook.tools.diagnosis.questions import TREE

QUESTIONS = [question for branch in TREE for question in branch.questions]


class Words(HTMLParser):
    """The text of a page, without its style."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, "every element is closed where it belongs"

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words += data.split()


def plain(text: str) -> list[str]:
    """A sentence's words without Markdown's marks."""
    return re.sub(r"[`*]", "", text).split()


def cases() -> set[str]:
    """The numbers of the cases that lessons 14 and 14b ask about."""
    found = set()
    for lesson in ("14", "14b"):
        for cell in cells(NOTEBOOKS[lesson]):
            for text in (output.get("data", {}).get("text/plain", "") for output in cell.get("outputs", [])):
                found |= set(re.findall(r"^Predict: \*\*Case (\d+)\.", text))
    return found


def test_every_case_of_the_clinic_is_a_leaf_and_every_leaf_with_a_number_is_a_case():
    named = {number for question in QUESTIONS for number in question.case.split(", ") if number.isdigit()}
    assert named == cases()
    assert len(named) == 12


def test_each_of_the_three_symptoms_has_questions_and_something_left_if_all_are_answered_with_no():
    assert [branch.symptom for branch in TREE] == ["It hangs", "It raises, or a process dies", "It lies"]
    for branch in TREE:
        assert len(branch.questions) >= 4
        assert branch.otherwise.endswith(".")
        assert all(question.ask.endswith("?") for question in branch.questions)


def test_text_and_html_say_the_same():
    text, words = plain(repr(tree)), Words(tree._repr_html_()).words
    for question in QUESTIONS:
        for told in (question.ask, question.tool, question.cause, question.remedy):
            for all_words in (text, words):
                joined = " ".join(all_words)
                assert "".join(plain(told)).replace('"', "") in joined.replace(" ", "").replace('"', ""), told


def test_no_colour_carries_a_meaning_and_none_is_fixed_for_a_light_page():
    style = tree._repr_html_().partition("</style>")[0]
    assert set(re.findall(r"#[0-9a-f]{3,6}", style)) <= {"#8a8a84"}, "a grey that shows on black and on white"
    assert "background: none" in style


def test_a_saved_tree_is_a_page_of_its_own_and_may_be_saved_again(tmp_path: Path):
    path = tree.save(str(tmp_path / "tree.html"))
    assert "@page" in path.read_text("utf-8")
    assert tree.save(str(path)) == path


def test_a_file_of_the_learners_is_kept(tmp_path: Path):
    mine = tmp_path / "mine.html"
    mine.write_text("mine")
    with pytest.raises(LabError, match="overwrite=True"):
        tree.save(str(mine))
    assert mine.read_text() == "mine"
    tree.save(str(mine), overwrite=True)
    with pytest.raises(LabError, match=r"Choose a name such as diagnosis-tree\.html"):
        tree.save(str(tmp_path / "tree.pdf"))
