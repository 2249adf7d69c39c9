"""nbval leaves tracebacks out: with this plugin it compares the notes that stand below an error, word by word."""

from __future__ import annotations

from typing import Any

import pytest
from nbformat import NotebookNode
from normal_form import notes


def pytest_configure(config: pytest.Config) -> None:
    """Let nbval see notes as one field more of an error."""
    if not config.pluginmanager.hasplugin("nbval"):
        return
    from nbval.plugin import IPyNbCell

    compare = IPyNbCell.compare_outputs

    def with_notes(self: Any, test: Any, ref: Any, skip_compare: Any = None) -> Any:
        return compare(self, _told(test), _told(ref), skip_compare)

    IPyNbCell.compare_outputs = with_notes


def _told(outputs: list[Any]) -> list[NotebookNode]:
    """The outputs, each error with its notes as a field of their own."""
    return [
        NotebookNode({**output, "notes": notes(output)}) if output.output_type == "error" else output
        for output in outputs
    ]
