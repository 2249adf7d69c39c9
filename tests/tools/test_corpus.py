"""The readers of what NCCL, nccl-tests and the driver print, over a corpus of texts and over damaged ones.

Beside each text of tests/corpus lies a `.right`: what the reader must say, a phrase a line, and after `not: ` what it
must not say. A first line `error` says that it must refuse the text; a line that begins with `# ` is a comment.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.floor.errors import LabError
from workbook.tools import nccl_log, topology
from workbook.tools.atlas import nccl_tests

CORPUS = Path(__file__).parents[1] / "corpus"
READERS = {"log": nccl_log.read, "tests": nccl_tests.read, "topo": topology.read, "xml": topology.read}
INPUTS = sorted(p for p in CORPUS.glob("*/*") if p.suffix in (".txt", ".xml"))
BUNDLED = [
    *((nccl_log.read, nccl_log.text(name)) for name in nccl_log.bundled()),
    *((topology.read, topology.text(file)) for file in topology.BUNDLED),
]
TEXTS = [*((READERS[p.parent.name], p.read_text(encoding="utf-8")) for p in INPUTS), *BUNDLED]


def told(read, text: str) -> tuple[bool, str]:
    """Whether a reader refuses a text, and what it says of it."""
    try:
        return False, repr(read(text))
    except LabError as error:
        return True, str(error)


@pytest.mark.parametrize("path", INPUTS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_a_text_is_read_for_what_it_says(path):
    lines = path.with_suffix(".right").read_text(encoding="utf-8").splitlines()
    right = [line for line in lines if line.strip() and not line.startswith("# ")]
    refuses = right[0] == "error"
    refused, said = told(READERS[path.parent.name], path.read_text(encoding="utf-8"))
    assert refused == refuses, said
    for phrase in right[refuses:]:
        wrong = phrase.removeprefix("not: ")
        assert (wrong in said) == (wrong == phrase), f"{phrase}\n--- is not so of what was said:\n{said}"


def test_each_right_reading_has_its_text():
    assert {p.with_suffix("") for p in CORPUS.glob("*/*.right")} == {p.with_suffix("") for p in INPUTS}


def cut(lines: list[str], rng: random.Random) -> list[str]:
    """Lines cut off somewhere, at their beginning or end."""
    halves = [line[: rng.randint(0, len(line))] if rng.random() < 0.5 else line for line in lines]
    return [line[rng.randint(0, len(line)) :] if rng.random() < 0.1 else line for line in halves]


PREFIXES = ["3: ", "[rank0]:", "> ", "[1,2]<stderr>:", "\x1b[36m", "(RayWorker pid=12, ip=10.0.0.2) ", "node-a: "]
DAMAGES = {
    "lost": lambda lines, rng: [line for line in lines if rng.random() < 0.6],
    "cut": cut,
    "ended early": lambda lines, rng: "\n".join(lines)[: rng.randint(0, 1 + sum(map(len, lines)))].split("\n"),
    "prefixed": lambda lines, rng: [rng.choice(PREFIXES) + line for line in lines],
    "twice": lambda lines, rng: [line for line in lines for _ in range(rng.randint(1, 2))],
    "reversed": lambda lines, rng: lines[::-1],
    "shuffled": lambda lines, rng: rng.sample(lines, len(lines)),
    "of Windows": lambda lines, rng: [line + "\r" for line in lines],
    "of other numbers": lambda lines, rng: [
        "".join(rng.choice("0123456789") if c.isdigit() and rng.random() < 0.2 else c for c in line) for line in lines
    ],
    "mixed": lambda lines, rng: rng.sample(both := [*lines, *rng.choice(TEXTS)[1].split("\n")], len(both)),
    "with another behind": lambda lines, rng: [*lines, *rng.choice(TEXTS)[1].split("\n")],
}  # fmt: skip


@settings(max_examples=300)
@given(st.sampled_from(TEXTS), st.lists(st.sampled_from(sorted(DAMAGES)), min_size=1, max_size=3), st.randoms())
def test_a_damaged_text_is_read_or_refused_with_a_lab_error(source, damages, rng):
    read, text = source
    lines = text.split("\n")
    for damage in damages:
        lines = DAMAGES[damage](lines, rng)
    told(read, "\n".join(lines))
