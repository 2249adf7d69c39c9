"""How Triton takes kernels is set before it is imported, and what has imported it otherwise imports it again."""

from __future__ import annotations

import os
import sys
from types import ModuleType

import pytest

from labkit.rank import triton_mode

NAMES = ("triton", "triton.language", "triton.runtime.interpreter", "triton._C", "triton._C.libtriton", "tritonic")


@pytest.fixture(autouse=True)
def _imported(monkeypatch):
    """Modules of these names stand among the imported ones, and nothing is set."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
        monkeypatch.delitem(sys.modules, name)
    for name in NAMES:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.delenv(triton_mode.INTERPRET, raising=False)
    monkeypatch.setattr(os, "environ", os.environ.copy())


def imported():
    return {name for name in NAMES if name in sys.modules}


def test_what_has_taken_kernels_otherwise_is_imported_again_but_for_what_is_compiled():
    triton_mode.choose(interpret=True)
    assert os.environ[triton_mode.INTERPRET] == "1"
    assert imported() == {"triton._C", "triton._C.libtriton", "tritonic"}


def test_a_rank_that_gets_a_gpu_compiles_again():
    os.environ[triton_mode.INTERPRET] = "1"
    triton_mode.choose(interpret=False)
    assert triton_mode.INTERPRET not in os.environ
    assert "triton" not in sys.modules


@pytest.mark.parametrize("interpret", [True, False])
def test_where_it_takes_them_so_already_nothing_is_imported_again(interpret):
    """A cell's kernels are of the modules that are there: each time that ranks join a group, this is called anew."""
    if interpret:
        os.environ[triton_mode.INTERPRET] = "1"
    triton_mode.choose(interpret)
    assert imported() == set(NAMES)


@pytest.mark.parametrize("said", ["0", ""])
def test_what_a_learner_has_set_otherwise_is_the_same_as_not_set(said):
    os.environ[triton_mode.INTERPRET] = said
    triton_mode.choose(interpret=False)
    assert imported() == set(NAMES)
