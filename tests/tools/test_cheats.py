"""The cheat sheet's bytes and steps are those of the formulas, and no primitive is left out."""

import re
from itertools import product

import pytest

from labkit.theory.primitives import PART, PRIMITIVES
from workbook.tools.formulas import figures, log2_up
from workbook.tools.sheet.cheats import CHEATS, pretty

COUNTED = [cheat for cheat in CHEATS if cheat.sent]


def test_bytes_and_steps_are_the_formulas(subtests: pytest.Subtests) -> None:
    for cheat, n in product(COUNTED, (2, 3, 4, 7, 8, 64)):
        with subtests.test(cheat.name, n=n):
            op, _ = cheat.by
            right = figures(*cheat.by, n)
            part = (
                n if PRIMITIVES[op].brings == PART else 1
            )  # the formulas' S is n parts there, the sheet's is one rank's input
            takes = right.serial if "receives" in cheat.moves else right.sent
            names = {"S": 1.0, "N": n, "log2": lambda k: log2_up(int(k))}
            assert eval(cheat.sent, names) == pytest.approx(part * takes)
            assert eval(cheat.steps, names) == right.steps


def test_every_primitive_is_on_the_sheet() -> None:
    said = re.findall(r"\w+", " ".join(f"{c.name} {c.code} {c.also}" for c in CHEATS))
    assert set(PRIMITIVES) - set(said) == {"send_recv"}, "give it an entry in CHEATS of workbook/tools/sheet/cheats.py"


def test_each_entry_says_what_it_costs_and_what_to_avoid() -> None:
    for cheat in CHEATS:
        assert cheat.mistake.endswith(".")
        assert cheat.costs.endswith(".")
        assert len(cheat.mistake) <= 110, "one plain sentence or two short ones"


def test_a_formula_is_printed_without_breaks() -> None:
    assert " " not in pretty("2 * S * (N - 1) / N")
