"""What the committed notebooks keep of what moves without a kernel: each says what its cell shows, and can be drawn."""

from __future__ import annotations

import re

import nbformat
import pytest

from labkit.content import question, view
from labkit.show.view import page
from tests.notebooks import NOTEBOOKS

# The 81 paintings of this mesh take seconds: tests/tools/test_painter.py has them.
SQUARES = {"kind": "painter", "mesh": [2, 2], "x": ["rows", "whole"], "w": ["whole", "columns"], "shape": [4, 4, 4]}
ASKS = re.compile(r'(\w+) = (Predict|Choose)\("(\w+)"\)')


def test_every_question_and_answer_in_a_notebook_names_itself(subtests: pytest.Subtests):
    for path in NOTEBOOKS.values():
        with subtests.test(path.stem):
            asked: dict[str, tuple[str, str]] = {}
            wanted, kept = [], []
            for cell in nbformat.read(path, as_version=4).cells:
                if cell.cell_type != "code":
                    continue
                for variable, kind, name in ASKS.findall(cell.source):
                    asked[variable] = kind, name
                    wanted.append({"kind": kind.lower(), "name": name})
                for variable in re.findall(r"(\w+)\.reveal\(\)", cell.source):
                    kind, name = asked[variable]
                    wanted.append({"kind": {"Predict": "answer", "Choose": "answers"}[kind], "name": name})
                kept += [o.metadata["labkit"] for o in cell.outputs if "labkit" in o.get("metadata", {})]
            assert [meta for meta in kept if "name" in meta] == wanted


def test_everything_that_a_notebook_keeps_can_be_shown_again(subtests: pytest.Subtests):
    kinds = set()
    for path in NOTEBOOKS.values():
        for cell in nbformat.read(path, as_version=4).cells:
            for output in cell.get("outputs", ()):
                if meta := output.get("metadata", {}).get("labkit"):
                    with subtests.test(path.stem, kind=meta["kind"]):
                        assert meta == SQUARES or page(meta, question, view)
                        assert len(str(meta)) < 15_000
                    kinds.add(meta["kind"])
    assert kinds == {"predict", "answer", "choose", "answers", "tiles", "steps", "painter", "whatif"}
