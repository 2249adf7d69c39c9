"""Make, renew and put back the learner's own copies of the lessons, without outputs, and of their scripts.

A copy in which the learner has changed no cell is renewed when the workbook's version has changed. A changed one is
never written to: the workbook's new version lies beside it. Outputs, execution counts, widgets' state, tags and empty
cells are no change. What a copy was made from stands in a hidden file; where that is lost, whatever differs counts as
changed. Needs Python's own library alone: `python -m labkit` starts at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.floor import files
from labkit.floor.errors import LabError
from labkit.floor.words import count, listed

WORKBOOK = Path(__file__).resolve().parents[2] / "notebooks"  # where labkit is used from a clone of the repository
FOLDER = "my-notebooks"
FIRST = "00-start-here.ipynb"
SCRIPTS = "scripts"  # programs that run outside a notebook, in a folder of this name in both places
WORK = "my-work"  # progress and attempts (labkit/faces/progress.py)
MADE = ".copies.json"  # by file name, a digest of the cells that a copy was made with
ABOUT = "What each notebook here was copied from, so that those which you have not changed can be renewed."
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
KEPT = ("jupyter", "tags", "jp-MarkdownHeadingCollapsed")  # of a cell's metadata
OURS = "> **These notebooks are yours.**"  # how a page began that earlier versions put into the folder


@dataclass
class Renewal:
    """The names of notebooks and scripts in a learner's folder to which something has happened."""

    folder: Path
    made: list[str] = field(default_factory=list)
    renewed: list[str] = field(default_factory=list)
    beside: list[tuple[str, str]] = field(default_factory=list)  # changed by both, and the workbook's version
    removed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # the learner's; the workbook has no such lesson any more
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = []
        notebooks = [name for name in self.made if name.endswith(".ipynb")]
        if notebooks:
            lines.append(f"{count(len(notebooks), 'notebook')} copied to {self.folder}/, without outputs.")
        if scripts := len(self.made) - len(notebooks):
            lines.append(f"{count(scripts, 'script')} copied to {self.folder}/{SCRIPTS}/.")
        if self.renewed:
            them = "them" if len(self.renewed) > 1 else "it"
            lines.append(f"Updated, because you had not changed {them}: {_listed(self.renewed)}.")
        if self.removed:
            them = "them" if len(self.removed) > 1 else "it"
            why = f"the workbook no longer has {them} and you had not changed {them}"
            lines.append(f"Removed, because {why}: {_listed(self.removed)}.")
        lines += [
            f"{mine} has your changes and was kept. The workbook's new version: {new}" for mine, new in self.beside
        ]
        lines += [f"{mine} has your changes and was kept. {_where_now(mine, self.made)}" for mine in self.left]
        return "\n".join([*lines, *self.notes] or [f"Everything in {self.folder}/ is up to date."])


def _where_now(gone: str, made: Sequence[str]) -> str:
    """Say what has become of a lesson that has no copy under its old name: its number may have changed.

    >>> _where_now("13-pipelines.ipynb", ["12-pipelines.ipynb"])
    'In the workbook it is 12-pipelines.ipynb now.'
    """
    now = [name for name in made if name.partition("-")[2] == gone.partition("-")[2]]
    return f"In the workbook it is {now[0]} now." if now else "The workbook no longer has it."


def _listed(names: Sequence[str]) -> str:
    return listed([name.removesuffix(".ipynb") for name in names])


def renew(folder: Path, workbook: Path = WORKBOOK) -> Renewal:
    """Make a copy of every lesson and script in the folder, or renew those there, and return what has happened."""
    wanted = _lessons(workbook, folder) | _scripts(workbook)
    told = Renewal(folder)
    with _writing(folder):
        _take_work_over(workbook / WORK, folder / WORK, told)
        _drop_readme(folder / "README.md")
        made = _made(folder)
        for name, text in wanted.items():
            _renew(folder, name, text, made, told)
        for name in [name for name in made if name not in wanted and not _lesson_of(name)]:
            _let_go(folder, name, made, told)
        _write_made(folder, made)
    return told


def put_back(folder: Path, which: str, workbook: Path = WORKBOOK) -> str:
    """Put the workbook's version in the place of a copy, keep the learner's, and say so in a sentence or two.

    `which` is a lesson's number ("02"), its name or its file.
    """
    lessons = _lessons(workbook, folder)
    name = find(which, list(lessons))
    copy, kept = folder / name, "There was no change of yours to keep."
    with _writing(folder):
        if copy.is_file() and copy.read_bytes() != lessons[name].encode():
            kept = f"Yours is kept as {_keep(copy)}."
        made = _made(folder)
        _copy(folder, name, lessons[name], made)
        _drop_new(folder, name, digest(lessons[name]), made)
        _write_made(folder, made)
    return f"{name} is the workbook's version again. {kept}"


# JupyterLab does not see that a file has changed until it saves: then it asks whether to overwrite it.
RELOAD = "choose File ▸ Reload Notebook from Disk. If JupyterLab asks, choose Reload or Revert, not Overwrite."


def find(which: str, names: Sequence[str]) -> str:
    """Return the notebook that is meant.

    >>> find("2", ["01-one.ipynb", "02-two.ipynb"]), find("02-two", ["01-one.ipynb", "02-two.ipynb"])
    ('02-two.ipynb', '02-two.ipynb')
    """
    said = Path(which).name.removesuffix(".ipynb")
    number = said.zfill(2) if said.isdigit() else said
    found = [n for n in names if n == f"{said}.ipynb"] or [n for n in names if n.startswith(f"{number}-") and said]
    if len(found) != 1:
        raise LabError(f"The workbook has no notebook {which!r}. Choose one of these: {_listed(names)}.")
    return found[0]


def copy_of(folder: Path, which: str, workbook: Path = WORKBOOK) -> str:
    """Return the file name of the copy that is meant; raises `LabError` where the workbook has no such notebook."""
    return find(which, list(_lessons(workbook, folder)))


def is_copies(folder: Path) -> bool:
    """Tell whether the folder holds a learner's copies."""
    return (folder / MADE).is_file()


def default_folder(here: Path) -> Path:
    """Return the folder of the copies of somebody who names none: this one where it holds them, or one in it."""
    return here if is_copies(here) else here / FOLDER


def without_outputs(text: str) -> str:
    """Return a notebook's file as its copy begins: no outputs or execution counts, metadata in their normal form."""
    notebook = json.loads(text)
    for cell in notebook["cells"]:
        cell["metadata"] = {key: cell["metadata"][key] for key in KEPT if cell["metadata"].get(key)}
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    notebook["metadata"] = METADATA
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def digest(text: str) -> str:
    """Digest what a learner can change in a notebook: the kind and the source of each cell that is not empty.

    JupyterLab adds an empty cell where the last one is run with Shift+Enter. Raises ValueError for anything else.
    """
    try:
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError("not a notebook") from error
    written = json.dumps([cell for cell in cells if cell[1].strip()])
    return hashlib.sha256(written.encode()).hexdigest()


# -- one notebook or script -----------------------------------------------------------------------------------------


def _renew(folder: Path, name: str, text: str, made: dict[str, str], told: Renewal) -> None:
    has, was, wanted = _digest_of(folder / name), made.get(name), _digest(name, text)
    if has not in (None, was, wanted):  # the learner's own
        if was == wanted:
            _drop_new(folder, name, wanted, made)
        elif beside := _put_beside(folder, name, text, made):
            told.beside.append((name, beside))
        return
    if has == wanted:
        made[name] = wanted
    else:
        (told.made if has is None else told.renewed).append(name)
        _copy(folder, name, text, made)
    _drop_new(folder, name, wanted, made)


def _let_go(folder: Path, name: str, made: dict[str, str], told: Renewal) -> None:
    """Remove the copy of a lesson that the workbook no longer has, unless the learner has changed it."""
    was, has = made.pop(name), _digest_of(folder / name)
    if has == was:
        (folder / name).unlink()
        told.removed.append(name)
    elif has is not None:
        told.left.append(name)
    _drop_new(folder, name, "", made)


def _put_beside(folder: Path, name: str, text: str, made: dict[str, str]) -> str:
    """Put the workbook's version beside the learner's and return its name; empty where the learner has removed it."""
    for number in itertools.count(1):
        stem, dot, kind = name.rpartition(".")
        new = f"{stem}.new{'' if number == 1 else f'-{number}'}{dot}{kind}"
        has, wanted = _digest_of(folder / new), _digest(name, text)
        if has == wanted:
            return new
        if has is None and made.get(new) == wanted:
            return ""
        if has in (None, made.get(new)):
            _copy(folder, new, text, made)
            return new
    raise AssertionError("numbers do not end")


def _drop_new(folder: Path, name: str, wanted: str, made: dict[str, str]) -> None:
    """Remove what was put beside a notebook, unless the learner has changed it."""
    for file in (folder / name).parent.glob("*.new*"):
        new = file.relative_to(folder).as_posix()
        if _lesson_of(new) == name and _digest_of(file) in (made.get(new), wanted):
            file.unlink()
    for new in [new for new in made if _lesson_of(new) == name]:
        del made[new]


def _lesson_of(new: str) -> str:
    """Return the notebook or script beside which a new version lies; empty for a name of another kind.

    >>> _lesson_of("02-two.new.ipynb"), _lesson_of("02-two.new-3.ipynb"), _lesson_of("02-two.ipynb")
    ('02-two.ipynb', '02-two.ipynb', '')
    """
    match = re.fullmatch(r"(.+)\.new(-\d+)?\.(ipynb|py)", new)
    return f"{match[1]}.{match[3]}" if match else ""


def _copy(folder: Path, name: str, text: str, made: dict[str, str]) -> None:
    files.write(folder / name, text)
    made[name] = _digest(name, text)


def _keep(copy: Path) -> str:
    """Keep the learner's notebook under the first name that is free, byte for byte."""
    for number in itertools.count(1):
        mine = copy.with_name(f"{copy.stem}.mine-{number}.ipynb")
        with contextlib.suppress(FileExistsError), open(mine, "xb") as kept:
            kept.write(copy.read_bytes())
            return mine.name
    raise AssertionError("numbers do not end")


def _digest(name: str, text: str) -> str:
    """Digest a notebook's cells, or all of a script."""
    return digest(text) if name.endswith(".ipynb") else hashlib.sha256(text.encode()).hexdigest()


def _digest_of(file: Path) -> str | None:
    """Digest a file; None where there is none, and a word that no digest is for one that cannot be read."""
    try:
        return _digest(file.name, file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return "unreadable"


# -- the folder -----------------------------------------------------------------------------------------------------


def _lessons(workbook: Path, folder: Path) -> dict[str, str]:
    """Return every notebook of the workbook as its copy begins, by file name."""
    if not (workbook / FIRST).is_file():
        raise LabError(
            f"The workbook's notebooks are not beside labkit (there is no {workbook / FIRST}). "
            "Clone the repository and install from there: pip install -e '.[lab]'."
        )
    if folder.resolve() == workbook.resolve():
        raise LabError(
            f"{folder} holds the workbook's own notebooks, executed for readers. Choose another folder for your copies."
        )
    return {file.name: without_outputs(file.read_text(encoding="utf-8")) for file in sorted(workbook.glob("*.ipynb"))}


def _scripts(workbook: Path) -> dict[str, str]:
    """Return every script of the workbook, by its name in the folder."""
    return {f"{SCRIPTS}/{f.name}": f.read_text(encoding="utf-8") for f in sorted((workbook / SCRIPTS).glob("*.py"))}


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with files.alone(folder):
            yield
    except OSError as error:
        raise LabError(
            f"{error.filename or folder} could not be written ({error.strerror}). Nothing of yours is lost. "
            "Free some space or choose another folder: python -m labkit FOLDER."
        ) from error


def _made(folder: Path) -> dict[str, str]:
    """Return what each copy was made from; nothing where that is not known any more."""
    try:
        known: Any = json.loads((folder / MADE).read_text(encoding="utf-8"))["made from"]
        return {name: str(made) for name, made in known.items() if name.removeprefix(f"{SCRIPTS}/") == Path(name).name}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _write_made(folder: Path, made: dict[str, str]) -> None:
    told = {"about": ABOUT, "version": 1, "made from": dict(sorted(made.items()))}
    files.write(folder / MADE, json.dumps(told, indent=1) + "\n")


def _take_work_over(old: Path, new: Path, told: Renewal) -> None:
    """Copy the progress that an earlier version kept beside the workbook's own notebooks."""
    if new.exists() or not old.is_dir():
        return
    half = new.with_name(f".{new.name}-{secrets.token_hex(4)}")
    try:
        shutil.copytree(old, half)
        half.rename(new)
    finally:
        shutil.rmtree(half, ignore_errors=True)
    told.notes.append(f"Your progress and attempts were copied from {old}/, which stays as it is.")


def _drop_readme(copy: Path) -> None:
    """Remove the list of lessons that earlier versions wrote here; `index.ipynb` has it now."""
    if copy.is_file() and copy.read_text(encoding="utf-8", errors="replace").startswith(OURS):
        copy.unlink()
