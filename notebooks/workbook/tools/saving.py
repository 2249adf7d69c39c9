"""Save what a learner asks for under a name, as a page to print or a program, and never over a file of theirs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from labkit.floor import files
from labkit.floor.errors import LabError

MARK = "<!-- written by labkit"  # how a page begins that `save_page` may write over


def save(path: Path, text: str, how: str, theirs: Callable[[str], str], overwrite: bool = False) -> None:
    """Write the file that a learner's call of `how` names, and leave alone one that is theirs, unless they `overwrite`.

    `theirs` says why the text that a file holds is the learner's, such as "has been changed"; "" where it is ours.
    Raises `LabError`.
    """
    try:
        why = theirs(path.read_text("utf-8", "replace"))
    except (FileNotFoundError, NotADirectoryError):
        why = ""
    except OSError:  # what cannot be read is not ours
        why = theirs("")
    if why and not overwrite:
        raise LabError(
            f"{path.name} {why}. Choose another name, or lose what is in it: {how}({path.name!r}, overwrite=True)."
        )
    try:
        files.write(path, text)
    except OSError as error:
        raise LabError(
            f"{path} could not be written ({error.strerror}). Choose another place: {how}('/tmp/{path.name}')."
        ) from error


def save_page(file: str, title: str, style: str, body: str, how: str, like: str, overwrite: bool = False) -> Path:
    """Save HTML as a page to print under a name such as `like`; its path. Raises `LabError` as `save` does."""
    path = Path(file)
    if path.suffix not in (".html", ".htm"):
        raise LabError(f"{file!r} is not a page. Choose a name such as {like}.")
    head = f"<meta charset='utf-8'><title>{title}</title><style>{style}</style>"
    page = f"{MARK} --><!doctype html><html lang='en'><head>{head}</head><body>{body}</body></html>\n"
    save(path, page, how, lambda text: "" if text.startswith(MARK) else f"was not written by {how}", overwrite)
    return path
