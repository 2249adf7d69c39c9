"""What pyproject.toml asks for, constraints.txt pins, and environment.yml and make install: one statement."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text())
# The lock is made on Linux and Python 3.11; it is judged as such wherever the tests run.
LOCKED_ON = {
    "sys_platform": "linux",
    "platform_system": "Linux",
    "os_name": "posix",
    "python_version": "3.11",
    "python_full_version": "3.11.7",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
}
PLATFORM_ONLY = re.compile(r"nvidia-|cuda-|pytorch-triton|intel-|appnope|pywin")


def asked(*extras: str) -> list[Requirement]:
    """The requirements in pyproject.toml, with those of the extras named."""
    lines = PROJECT["dependencies"] + [r for e in extras for r in PROJECT["optional-dependencies"][e]]
    return [Requirement(line) for line in lines]


def lock(file: str = "constraints.txt") -> dict[str, Requirement]:
    lines = (ROOT / file).read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(pin.name): pin for pin in pins}


def needed(requirements: list[Requirement]) -> set[str]:
    """Every package that installing these brings, by what the installed ones say of themselves."""
    extras: dict[str, set[str]] = {}
    todo = [(r.name, set(r.extras)) for r in requirements]
    while todo:
        name, wanted = todo.pop()
        name = canonicalize_name(name)
        if name in extras and wanted <= extras[name]:
            continue
        extras.setdefault(name, set()).update(wanted)
        try:
            lines = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # one of another platform
        for r in map(Requirement, lines):
            if r.marker is None or any(r.marker.evaluate(LOCKED_ON | {"extra": e}) for e in ("", *wanted)):
                todo.append((r.name, set(r.extras)))
    return set(extras)


def foreign(folder: str) -> Iterator[tuple[str, str]]:
    """Every import of somebody else's package below a folder: (distribution, file)."""
    distributions = metadata.packages_distributions()
    ours = {"labkit", "workbook", "conftest", "tests", "measure", "programs"}
    ours |= {p.stem for place in (".ci", "benchmarks/programs", "book") for p in (ROOT / place).glob("*.py")}
    for file in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [str(node.module)]
            for name in {name.split(".")[0] for name in names} - ours - sys.stdlib_module_names:
                yield canonicalize_name(distributions.get(name, [name])[0]), str(file.relative_to(ROOT))


def test_every_range_asked_for_holds_its_pinned_version():
    pins = lock()
    for r in asked("lab", "test", "mpi", "kernels", "book"):
        (pin,) = pins[canonicalize_name(r.name)].specifier
        assert r.specifier.contains(Version(pin.version)), f"{r} excludes the tested {pin}"


def test_each_range_begins_with_the_lowest_version_that_is_run():
    """By `make test-oldest`, which runs the whole workbook, or by `make test-hosted`."""
    lower = {
        canonicalize_name(r.name): Version(s.version) for r in asked("lab") for s in r.specifier if s.operator == ">="
    }
    sets = [lock(str(file.relative_to(ROOT))) for file in (ROOT / ".ci/oldest.txt", *(ROOT / ".ci/hosted").iterdir())]
    assert all(next(iter(pin.specifier)).operator == "==" for pins in sets for pin in pins.values())
    run = {name: [Version(next(iter(p[name].specifier)).version) for p in sets if name in p] for name in lower}
    assert {name: min(versions, default=None) for name, versions in run.items()} == lower
    assert lower.keys() <= sets[0].keys(), "the whole workbook runs on a set that names each"


def test_every_range_has_both_ends():
    for r in asked("lab", "test", "mpi", "kernels", "book"):
        operators = {s.operator for s in r.specifier}
        assert ">=" in operators, f"{r} says no oldest version"
        assert "<" in operators or r.name == "packaging", f"{r} says no end"


@pytest.mark.pinned
def test_the_lock_pins_exactly_what_installing_brings():
    brought = {name for name in needed(asked("lab", "test", "mpi", "kernels", "book")) if not PLATFORM_ONLY.match(name)}
    assert set(lock()) == brought


def test_the_lock_names_one_version_each_for_every_platform():
    for name, pin in lock().items():
        (version,) = pin.specifier
        assert version.operator == "==", f"{pin} is not a pin"
        assert not Version(version.version).local, f"{pin} exists on one machine only"
        assert not PLATFORM_ONLY.match(name), f"{pin} does not exist everywhere"


@pytest.mark.pinned
def test_every_pin_can_be_had_on_the_first_python_that_the_project_allows():
    """Debian 12 has Python 3.11.2, and pip said nothing better there than that versions conflict."""
    first = PROJECT["requires-python"].removeprefix(">=") + ".0"
    wanted = {name: metadata.metadata(name)["Requires-Python"] or "" for name in lock()}
    assert {name: wants for name, wants in wanted.items() if first not in SpecifierSet(wants)} == {}


@pytest.mark.pinned
def test_these_tests_run_on_the_pinned_versions():
    """A result on other versions says nothing about the lock; torch's +cpu or +cu126 is the same version."""
    ours, tested = asked("lab", "test", "book"), asked("lab", "test", "mpi", "kernels", "book")
    without = set() if sys.platform == "linux" else {canonicalize_name(r.name) for r in tested if r not in ours}
    for name, pin in lock().items():
        if name in without:
            continue
        (specifier,) = pin.specifier
        installed = metadata.version(name).split("+")[0]
        assert installed == specifier.version, f"{name} {installed} runs here, {pin} is locked"


def test_conda_users_get_the_same_python_and_the_same_packages():
    plain = [line for line in CONDA["dependencies"] if isinstance(line, str)]
    (pip,) = [line["pip"] for line in CONDA["dependencies"] if isinstance(line, dict)]
    python = next(Requirement(line) for line in plain if line.startswith("python"))
    assert CONDA["name"] == PROJECT["name"]
    assert {Requirement(line).name for line in plain} == {"python", "pip"}, "pip alone brings packages"
    assert str(python.specifier) == PROJECT["requires-python"]
    assert pip == ["-c constraints.txt", "-e .[lab,test,mpi,kernels,book]"]


def test_no_target_of_the_makefile_is_made_in_two_ways():
    """Make takes the last and only warns: a merge once left the older half of the file behind the newer."""
    targets = re.findall(r"^([a-z-]+):(?! OTHER)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert len(targets) > 10
    assert sorted(set(targets)) == sorted(targets)


def test_make_installs_with_the_lock_unless_told_otherwise():
    makefile = (ROOT / "Makefile").read_text()
    installs = re.findall(r"^.*pip .*install.*$", makefile, re.MULTILINE)
    uses = re.findall(r"^\t\$\(INSTALL\) (.*)$", makefile, re.MULTILINE)
    assert len([line for line in installs if "$(if $(PINS),-c $(PINS)," in line]) == len(installs) == 1
    assert "\nPINS ?= constraints.txt\n" in makefile
    hosted = "-e . hypothesis nbval packaging pytest pytest-xdist pyyaml"
    assert uses == ["-e '.[lab]'", "-e '.[book]'", "-e '.[lab,test,mpi,kernels,book]'", hosted]


@pytest.mark.parametrize(
    ("folder", "extras"),  # labkit: MPI races where it is installed
    [
        ("labkit", ("mpi",)),
        ("tests", ("lab", "test", "mpi", "kernels", "book")),
        (".ci", ("lab", "test")),
        ("benchmarks", ("lab", "test", "mpi")),
        ("book", ("book",)),
    ],
)
def test_whatever_is_imported_is_asked_for(folder: str, extras: tuple[str, ...]):
    known = {canonicalize_name(r.name) for r in asked(*extras)}
    missing = {(name, file) for name, file in foreign(folder) if name not in known}
    assert not missing, "add to pyproject.toml and constraints.txt"
