"""Offer a button with which a notebook puts itself back to the workbook's version; it needs no ranks."""

from __future__ import annotations

import os
from html import escape
from pathlib import Path

import ipywidgets

from labkit.faces import my_notebooks
from labkit.faces.progress import HERE
from labkit.floor.errors import LabError
from labkit.show.box import Box
from labkit.show.keys import DEAF

SESSION = "JPY_SESSION_NAME"  # Jupyter's server tells a kernel in it which notebook it was started for


def put_back(notebook: str = "") -> PutBack:
    """Return a button that puts this notebook back to the workbook's version, or the one that you name.

    >>> put_back("02")
    A button that puts 02-send-and-receive.ipynb back. In a terminal: make back NOTEBOOK=02

    It asks once more. What you had is kept beside it, as `02-send-and-receive.mine-1.ipynb`.
    Raises `LabError` for what is not a copy of one of the workbook's notebooks.
    """
    session = HERE / os.environ.get(SESSION, "")
    if session.suffix == ".ipynb":
        return PutBack(session.parent, notebook or session.name, open_here=session.name)
    if not notebook:
        raise LabError('Jupyter does not say which notebook this is. Name it: put_back("02").')
    return PutBack(HERE, notebook)


class PutBack(Box):
    """A button, a question and what came of it; `confirm()` does what the second button does."""

    def __init__(self, folder: Path, which: str, open_here: str = "") -> None:
        self._folder = folder
        self._name = my_notebooks.copy_of(folder, which)
        self._open_here = self._name == open_here
        self._unsaved = self._version() if self._open_here else None
        wide = ipywidgets.Layout(width="max-content")
        self._ask = ipywidgets.Button(description=f"Put {self._name} back…", layout=wide)
        self._yes = ipywidgets.Button(description="Put it back", button_style="warning")
        self._no = ipywidgets.Button(description="Leave it as it is")
        self._choice = ipywidgets.HBox([self._yes, self._no])
        self._said = ipywidgets.HTML()
        question = (
            f"This replaces {self._name} with the workbook's version, without outputs. "
            "Yours is kept beside it under another name. Save it first (Ctrl+S)."
        )
        self._ask.on_click(lambda _: self._say(question, asking=True))
        self._yes.on_click(lambda _: self.attempt(self.confirm, self._said))
        self._no.on_click(lambda _: self._say(""))
        super().__init__([ipywidgets.HTML(DEAF), self._ask, self._said, self._choice])
        self._say("")

    def confirm(self) -> str:
        """Put the notebook back and say under which name the learner's is kept.

        Raises `LabError` where it has not been saved since the button is there: only what is saved can be kept.
        """
        # Running the cell with this button has changed the page, so that it cannot be saved yet.
        if self._unsaved and self._version() == self._unsaved:
            raise LabError("Save this notebook first (Ctrl+S), then put it back: only what is saved can be kept.")
        said = my_notebooks.put_back(self._folder, self._name)
        where = "This page still shows yours:" if self._open_here else "If it is open,"
        told = f"{said} {where} {my_notebooks.RELOAD}"
        self._say(told)
        self._ask.layout.display = "none"
        return told

    def _version(self) -> tuple[int, int] | None:
        """Return what tells one saved state of the notebook's file from the next."""
        try:
            file = (self._folder / self._name).stat()
        except OSError:
            return None
        return file.st_mtime_ns, file.st_size

    def _say(self, said: str, asking: bool = False) -> None:
        """Say something beside the buttons: the first one, or when `asking` those for yes and no."""
        self._ask.layout.display = "none" if asking else ""
        self._choice.layout.display = "" if asking else "none"
        self._said.value = escape(said)

    def __repr__(self) -> str:
        first, _, _ = self._name.partition("-")
        number = first if first.isdigit() else Path(self._name).stem
        return f"A button that puts {self._name} back. In a terminal: make back NOTEBOOK={number}"
