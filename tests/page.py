"""All that a widget gives to a page, as text without the ids of its models.

An id is drawn by chance, and some look like numbers: 4321 stands in the ids of one in some three hundred pages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import ipywidgets


def page(widget: ipywidgets.Widget) -> str:
    """What a front end and a saved notebook get of a widget and of those in it."""
    return _text([widget._repr_mimebundle_(), repr(widget)]) + live(widget)


def live(widget: ipywidgets.Widget) -> str:
    """What a front end gets while the kernel runs, without the program that all views share."""
    states = [each.get_state() for each in _tree(widget)]
    return _text([{name: value for name, value in s.items() if name not in ("_esm", "_css")} for s in states])


def _text(seen: Any) -> str:
    return re.sub("IPY_MODEL_[0-9a-f]+|[0-9a-f]{32}", "id", json.dumps(seen, default=str))


def _tree(widget: ipywidgets.Widget) -> Iterator[ipywidgets.Widget]:
    yield from (w for w in (widget, widget.layout, getattr(widget, "style", None)) if isinstance(w, ipywidgets.Widget))
    for child in getattr(widget, "children", ()):
        yield from _tree(child)
