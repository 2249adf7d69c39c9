"""The commands of `make lint` find nothing; ruff and mypy keep what they know between two runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

# `make quick` runs them by themselves; other versions of ruff and mypy find other things
pytestmark = [pytest.mark.slow, pytest.mark.pinned]
ROOT = Path(__file__).resolve().parent.parent
(RECIPE,) = re.findall(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("command", [line.strip().removeprefix("$(BIN)/") for line in RECIPE.splitlines()])
def test_make_lint_finds_nothing(command: str):
    ran = subprocess.run([f"{sys.prefix}/bin/{command}"], shell=True, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
