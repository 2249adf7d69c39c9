"""The Dockerfile, Binder's files and the offline bundle install what `make lab` does; nothing is built here."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.test_project import LOCKED_ON, ROOT, lock

DOCKER = (ROOT / "Dockerfile").read_text()
BINDER = yaml.safe_load((ROOT / ".binder/environment.yml").read_text())["dependencies"]
POST_BUILD = ROOT / ".binder/postBuild"
PYTHON_OF = {"debian:bookworm-slim": "3.11"}


def extras(command: str) -> list[str]:
    """The extras in each `.[…]` of a command."""
    return [extra for found in re.findall(r"'\.\[(.+?)\]'", command) for extra in found.split(",")]


def test_images_have_the_python_that_the_pins_were_tested_on():
    (base,) = re.findall(r"^FROM (\S+)", DOCKER, re.MULTILINE)
    assert PYTHON_OF[base] == LOCKED_ON["python_version"]
    assert f"python={LOCKED_ON['python_version']}" in BINDER


def test_binder_takes_the_tested_torch_and_none_of_pips():
    (pin,) = lock()["torch"].specifier
    assert [line for line in BINDER if "torch" in line] == [f"pytorch-cpu={pin.version.rpartition('.')[0]}"]
    assert "grep -v ^torch==" in POST_BUILD.read_text()


def test_images_have_the_mpi_of_lessons_02b_and_06b_and_binder_its_own_jupyterlab():
    assert extras(DOCKER) == ["lab", "mpi"]
    assert extras(POST_BUILD.read_text()) == ["mpi"]


def test_what_the_dockerfile_copies_is_not_ignored():
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {name for line in re.findall(r"^COPY (.+) \./$", DOCKER, re.MULTILINE) for name in line.split()}
    assert copied <= sent
    assert {name for name in sent if not (ROOT / name).exists()} == set()


def test_the_bundle_holds_what_make_lab_installs():
    bundle, lab = (
        subprocess.check_output(
            ["make", "-n", "-B", "PINS=constraints.txt", target],
            cwd=ROOT,
            text=True,
            env=os.environ | {"MAKEFLAGS": ""},
        )
        for target in ("bundle", "lab")
    )
    assert extras(bundle) == extras(lab) == ["lab"]
    assert "-c constraints.txt" in bundle


@pytest.mark.parametrize("script", [".ci/bundle/install.sh", ".binder/postBuild"])
def test_the_script_parses(script):
    shell = (ROOT / script).read_text().splitlines()[0].removeprefix("#!")
    subprocess.run([shell, "-n", ROOT / script], check=True)


def test_binder_may_run_its_script():
    assert os.access(POST_BUILD, os.X_OK)


def test_the_recipe_for_jupyterhub_is_python():
    (recipe,) = re.findall(r"^```python\n(.*?)^```", Path(ROOT / "book/run-anywhere.md").read_text(), re.M | re.S)
    ast.parse(recipe)
