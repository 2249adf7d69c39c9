"""Lesson 06c's kernels compile for GPUs, and their machine code keeps the order that the interpreter is told of."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.content import exercises

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("compile_kernels.py")
LESSON = {name: each for name, each in exercises.every().items() if each.lesson == "06c"}

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


@pytest.fixture(scope="module")
def compiled() -> dict[str, list[str]]:
    """What each kernel does with memory, by its name and the GPU that it is compiled for."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "notebooks")])
    kept = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    ran = subprocess.run([sys.executable, PROGRAM], env=kept | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    failed = [f"{name}: {why}" for name, why in told.items() if isinstance(why, str)]
    assert not failed, "\n".join(failed)
    return told


@pytest.mark.slow
def test_every_kernel_compiles_for_each_gpu_and_for_ranks_whose_number_is_a_constant(compiled):
    for name, exercise in LESSON.items():
        assert {f"{name} of fp32, sm_{sm}" for sm in (75, 80, 90)} <= set(compiled)
        assert {f"{name}, {one} 1, sm_90" for one in ("rank", "world_size")} <= set(compiled)
        assert (f"broken {name}, sm_90" in compiled) == (exercise.specimen is not None)
    assert {f"{name} of {numbers}, sm_90" for name in ("one_shot", "two_shot") for numbers in ("bf16", "i64")} <= set(
        compiled
    )


@pytest.mark.slow
def test_what_a_right_kernel_does_to_a_flag_is_released_or_acquired_among_all_gpus(compiled):
    for name, does in compiled.items():
        flags = [set(each.split(".")) for each in does if "." in each]
        assert flags, name
        fit = all("sys" in each and each & {"release", "acquire", "acq_rel"} for each in flags)
        assert fit or name.startswith("broken "), f"{name}: {does}"
    assert not any("sys" in each for each in compiled["broken tell_all, sm_90"]), "its mistake is to be seen"


@pytest.mark.slow
def test_all_threads_have_stored_before_a_release_and_none_loads_before_it_has_met_the_one_that_acquired(compiled):
    for name, does in compiled.items():
        stored = acquired = False
        for each in does:
            if each == "meet":
                stored = acquired = False
            elif "release" in each:
                assert not stored, f"{name}: a thread may store after the release: {does}"
            assert not (acquired and each in ("load", "store")), f"{name}: a thread may not know of the flag: {does}"
            stored |= each == "store"
            acquired |= "acquire" in each
