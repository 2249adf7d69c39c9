"""Show a line of text under a running cell, which changes while the cell runs and vanishes with it."""

from __future__ import annotations

import os
from typing import Any

from IPython.core.getipython import get_ipython
from IPython.display import display

QUIET = "LABKIT_QUIET"  # set where no learner looks: nbval, the notebook normaliser


class Line:
    """The line; it says nothing outside a notebook, and where QUIET is set."""

    def __init__(self) -> None:
        self.seen = getattr(get_ipython(), "kernel", None) is not None and QUIET not in os.environ
        self._handle: Any = None

    def write(self, text: str) -> None:
        """Show this text in place of the last."""
        if not self.seen:
            return
        data = {"text/plain": text}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)

    def clear(self) -> None:
        """Leave nothing behind."""
        if self._handle is not None:
            self._handle.update({"text/plain": ""}, raw=True)
