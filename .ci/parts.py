"""Which tests `make test` runs: all that is cheap, all that belongs to what changed, and of the rest a part in turn.

Each landing takes the next turn, and four landings in a row run everything. FAMILIES says which tests take turns, and
every other test runs each time. `.ci/landed` holds the number of the last landing and its commit: the number gives the
turn, and what differs from that commit, in later commits or in uncommitted files, has changed.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LANDED = ".ci/landed"
TURNS = 4  # the parts; no family's `every` is more


@dataclass(frozen=True)
class Family:
    """Tests that are alike in what they cost and when they run.

    Args:
        name: what they are, in the report at the end of a run.
        tests: a pattern that their ids begin with. A test belongs to the first family that fits.
        every: 1 for tests that always run; else each of these tests runs in every so-many-th turn.
        unit: a pattern in the id. Tests for which it finds the same text stay together; units take turns in order.
        within: a pattern in the id. Units are counted anew for each text that it finds.
        moved_by: a pattern of paths. Where a file that fits has changed, the whole family runs.
    """

    name: str
    tests: str
    every: int = 1
    unit: str = r"^[^:]+"  # a file
    within: str = r"^"
    moved_by: str = r"(?!)"


# Live tests that cost much, or are about what changes seldom; each of the others always runs.
SECOND = "exercise_cells|faults_(clock|disk|files|memory)|flow|footprint|limits|race|shared_host|stop_anywhere|sweep"
THIRD = r"faults_flood|guard_programs|lesson\d\w*|mps|painter|surroundings|use|waits|wire"
FOURTH = "capstone|chaos|faults_(sleep|two_notebooks)|launchers|lesson14|no_trace|script"
EXERCISES = r"tests/live/test_exercises\.py::"
# In the order in which they start: what waits long, or is long, comes first, so that nothing long is left at the end.
FAMILIES = (
    Family(
        "three hosts",
        r"tests/hosts/",
        every=3,
        moved_by=r"labkit/cluster/(engines|hosts?|launchers|process|processes|requests|spread)\.py"
        r"|labkit/rank/(group|membership|store|transport)\.py"
        r"|notebooks/workbook/tools/(elsewhere/programs|mpi|child_command|rank/(link|mpi\w*))\.py",
    ),
    Family("notebooks", r"notebooks/", every=3),
    Family(
        "book",
        r"tests/(browser/)?test_book\.py",
        every=3,
        moved_by=r"book/|notebooks/[^/]*\.ipynb|notebooks/scripts/|labkit/show/(view|prediction)\.",
    ),
    Family("browser", r"tests/browser/", every=3),
    Family("live, a quarter", rf"tests/live/test_({FOURTH})\.py", every=4),
    Family("live, a third", rf"tests/live/test_({THIRD})\.py|tests/(tools/test_elsewhere|test_scripts)\.py", every=3),
    Family("live, half", rf"tests/live/test_({SECOND})\.py", every=2),
    Family("live", r"tests/live/(?!test_exercises)"),
    Family("mistakes", EXERCISES + "test_the_mistake", every=4, unit=r"\[.*", within=r"\[\w+-\w+"),
    Family("solutions", EXERCISES + "test_the_solution", every=3, unit=r"\[.*"),
    Family("stubs, other ways", EXERCISES, every=4, unit=r"\[.*"),
    Family("not live", ""),
)
WHOLE = {"conftest.py", "constraints.txt", "pyproject.toml"}  # a change of one of these is a change of everything


def family(test: str) -> Family:
    """The family of a test, by its id, such as "tests/live/test_px.py::test_a_cell[2]"."""
    return next(f for f in FAMILIES if re.match(f.tests, test))


def part(tests: Iterable[str], turn: int, changed: frozenset[str] | None) -> set[str]:
    """Those of these tests that run in a turn after files have changed; `changed` is None where all may have.

    Turns that are `TURNS` apart are the same part.
    """
    chosen = set()
    lessons = _lessons(" ".join(changed or ()))
    units: dict[tuple[Family, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for test in tests:
        f = family(test)
        units[f, _found(f.within, test)][_found(f.unit, test)].append(test)
        if (
            changed is None
            or changed & WHOLE
            or lessons & _lessons(test)
            or _belongs(test.partition("::")[0], f, changed)
        ):
            chosen.add(test)
    for (f, _), ordered in units.items():
        for unit in list(ordered.values())[turn % TURNS % f.every :: f.every]:
            chosen.update(unit)
    return chosen


def _found(pattern: str, test: str) -> str:
    found = re.search(pattern, test)
    return found[0] if found else ""


@cache
def _belongs(file: str, f: Family, changed: frozenset[str]) -> bool:
    """Whether the tests of a file are about one that has changed, in what they name or import."""
    return any(re.search(f.moved_by, path) or _about(file, path) for path in changed)


def _lessons(text: str) -> set[str]:
    """The lessons in ids and paths, as in `notebooks/02b-…`, `[lesson02b-…]`, `test_lesson02b.py`, `capstone.py`."""
    return set(re.findall(r"(?:(?<=notebooks/)|(?<=lesson))\d\d[a-z]?(?![a-z])|capstone", text))


def _about(file: str, path: str) -> bool:
    """Whether a test file is that path, is named after it, imports it, or has its name in a string."""
    if file == path:
        return True
    if not file.endswith(".py"):
        return False
    if path.endswith("/conftest.py"):
        return file.startswith(path.removesuffix("conftest.py"))
    if not path.endswith(".py") or path.startswith("notebooks/scripts/"):  # a script is run, not imported
        return Path(path).name in _text(file)
    module = (
        path.removesuffix(".py")
        .removesuffix("/__init__")
        .replace("/", ".")
        .removeprefix(".ci.")
        .removeprefix("notebooks.")
    )
    room, _, name = module.rpartition(".")
    imported = rf"\b{re.escape(module)}\b|\bfrom {re.escape(room)} import .*\b{name}\b"
    named = {Path(path).stem, *Path(path).parts[3:-1]} - {"rank"}  # notebooks/workbook/tools/race/show.py: race
    return not named.isdisjoint(Path(file).stem.split("_")[1:]) or bool(re.search(imported, _text(file)))


@cache
def _text(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


def landed() -> tuple[int, str]:
    """The number of the last landing, and its commit."""
    number, commit = (ROOT / LANDED).read_text(encoding="utf-8").split()
    return int(number), commit


def changed(since: str) -> frozenset[str] | None:
    """The paths of files that differ from a commit, new ones included; None where git cannot tell."""
    try:
        different = _git("diff", "--name-only", "--no-renames", "-z", since)
        new = _git("ls-files", "--others", "--exclude-standard", "-z")
    except (OSError, subprocess.CalledProcessError):  # no git, no repository, or a clone without that commit
        return None
    return frozenset(path for path in (different + new).split("\0") if path)


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Note that what is checked out has landed: `make landed`, once, before new work begins."""
    number, last = landed()
    commit = _git("rev-parse", "HEAD").strip()
    if commit == last:
        print(f"Landing {number} is noted already, as {commit[:9]}.")
        return
    (ROOT / LANDED).write_text(f"{number + 1} {commit}\n", encoding="utf-8")
    print(f"Landing {number + 1} is noted in {LANDED}: {commit[:9]}. Commit that file with the new work.")


if __name__ == "__main__":
    main()
