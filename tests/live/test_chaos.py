"""A short chaos soak: every kind of fault once, a right answer after each, and nothing leaked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from chaos_faults import FAULTS

ROOT = Path(__file__).resolve().parent.parent.parent
SEED = 14  # the same faults each time: what fresh seeds find is for `make soak`


@pytest.mark.slow
def test_every_kind_of_fault_is_recovered_from_and_nothing_leaks():
    command = [sys.executable, str(ROOT / ".ci" / "chaos.py"), f"--seed={SEED}", f"--faults={len(FAULTS)}"]
    ran = subprocess.run(command, capture_output=True, text=True)
    told = ran.stdout + ran.stderr
    assert f"\n{len(FAULTS)} faults, 0 unrecovered, 0 leaked (seed {SEED})" in told, told
    assert ran.returncode == 0, told
    assert told.startswith(f"seed {SEED}\n"), "the seed is known whatever happens then"
    assert all(f" {name}" in told for name in FAULTS)
