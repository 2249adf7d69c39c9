"""Which cell defined a function last, and whether a function with nearly its name was meant."""

from __future__ import annotations

from labkit.grading import defined_names

ON_RANKS = "%%px\ndef swap(x):\n    return x"
HERE = "def swap(x):\n    return -x"


def test_a_function_that_was_written_last_in_the_notebook_is_misplaced():
    assert defined_names.misplaced([HERE], "swap", "")
    assert defined_names.misplaced([ON_RANKS, HERE, "lab.check('swap')"], "swap", ON_RANKS)
    assert defined_names.misplaced([ON_RANKS, f"%matplotlib inline\n{HERE}"], "swap", ON_RANKS)


def test_it_is_not_where_the_ranks_have_what_was_written_last():
    assert not defined_names.misplaced([HERE, ON_RANKS, "lab.check('swap')"], "swap", ON_RANKS)
    assert not defined_names.misplaced([HERE, "%%px --local\ndef swap(x):\n    return x"], "swap", "")
    assert not defined_names.misplaced([ON_RANKS, "text = '''\ndef swap(x): ...\n'''"], "swap", ON_RANKS)
    assert not defined_names.misplaced([ON_RANKS, "%%writefile swap.py\ndef swap(x): ..."], "swap", ON_RANKS)
    assert not defined_names.misplaced([ON_RANKS, "def swap(x) return"], "swap", ON_RANKS)
    assert not defined_names.misplaced([HERE], "swap", "%%px\ndef swap(x):\n    return 2 * x"), (
        "lab.run may have brought it"
    )


def test_a_newer_function_with_nearly_the_name_is_named():
    assert "swpa" in defined_names.misspelt([ON_RANKS, ON_RANKS.replace("swap", "swpa")], "swap", ON_RANKS)
    assert "swpa" in defined_names.misspelt([ON_RANKS.replace("swap", "swpa")], "swap", "")


def test_older_ones_helpers_and_other_exercises_are_no_misspelling():
    swpa = ON_RANKS.replace("swap", "swpa")
    assert not defined_names.misspelt([swpa, ON_RANKS], "swap", ON_RANKS)
    assert not defined_names.misspelt([ON_RANKS, swpa], "swap", ON_RANKS, known=["swpa"])
    assert not defined_names.misspelt([ON_RANKS, HERE.replace("swap", "swpa")], "swap", ON_RANKS)
    uses = "%%px\ndef swap(x):\n    return swpa(x)"
    assert not defined_names.misspelt([uses, swpa], "swap", uses)
    assert not defined_names.misspelt([ON_RANKS, "%%px\ndef ring(x): ..."], "swap", ON_RANKS)


def test_a_function_that_the_cell_before_has_not_defined_is_said_to_be_as_old_as_it_is():
    check = "lab.check('swap')"
    assert defined_names.older(["", ON_RANKS, check], "swap", ON_RANKS) == ""
    assert "as cell [1] has defined it" in defined_names.older(["", ON_RANKS, check, check], "swap", ON_RANKS)
    assert "as cell [2] has defined it" in defined_names.older(["", ON_RANKS, ON_RANKS, check, check], "swap", ON_RANKS)
    assert defined_names.older(["", check, check], "swap", "%%px\ndef swap(x):\n    return x") == "", (
        "lab.run brought it"
    )
    assert defined_names.older(["", check, check], "swap", "") == ""
    assert defined_names.older([], "swap", ON_RANKS) == ""
