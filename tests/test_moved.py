"""Cells that learners keep from before the tools moved still import them."""

from __future__ import annotations

import importlib
import sys

import pytest

from labkit.floor.moved_modules import MOVED


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_the_old_name_is_the_module_itself(old: str, new: str):
    module = importlib.import_module(f"workbook.tools.{new}")
    spec = module.__spec__
    assert importlib.import_module(f"labkit.{old}") is module
    assert module.__spec__ is spec


def test_what_is_inside_a_package_is_not_loaded_twice():
    failures = importlib.import_module("labkit.theory.events." + "failures")
    assert failures is sys.modules["workbook.tools.events.failures"]
