"""The column of fields, buttons and sliders that every widget of the workbook is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import ipywidgets


class Box(ipywidgets.VBox):
    """Widgets one below the other; what is done in them is handled in the order in which it was done.

    JupyterLab has a thread of the kernel (a subshell) handle all that widgets tell it. ipykernel 7.4 sends a widget's
    messages to the thread that last answered for this widget instead: a field that has been written into to one, a
    button that has never changed to another. So a click overtook the text typed before it, which the kernel then read
    without the last line (`ipykernel.comm.comm.BaseComm._reply_subshell_for`). Here every message goes where it was
    sent to, as with older versions.
    """

    def __init__(self, children: Sequence[ipywidgets.Widget]) -> None:
        super().__init__(children)
        for widget in _within(self):
            if hasattr(widget.comm, "_reply_subshell_for"):
                widget.comm._reply_subshell_for = _as_sent


def _as_sent(data: Any, subshell: str | None) -> str | None:
    return subshell


def _within(widget: ipywidgets.Widget) -> Iterator[ipywidgets.Widget]:
    yield widget
    for child in getattr(widget, "children", ()):
        yield from _within(child)
