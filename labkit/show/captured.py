"""Keep what a function printed, displayed and returned, as text and as HTML: as a cell would show it, anywhere."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from IPython.core.formatters import DisplayFormatter
from IPython.core.getipython import get_ipython
from IPython.utils.capture import capture_output

from labkit.plot import svg
from labkit.show import markdown

CODES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\r")  # what only a terminal understands, such as clear_output() prints
PRE = '<pre style="margin: 0; white-space: pre-wrap; color: inherit; font-family: monospace">{}</pre>'


@dataclass(frozen=True)
class Shown:
    """An output in two forms: `text` for a terminal, `html` for a page."""

    text: str
    html: str


def shown(function: Callable[[], Any]) -> Shown:
    """Call a function and keep what it printed, what it displayed and what it returned, in this order.

    >>> shown(lambda: print("losses") or 3.5).text
    'losses\\n3.5'

    A string is shown as it is, anything else as a cell shows its last line. Raises what the function raises.
    """
    with capture_output() as captured:
        value = function()
    parts = [_text(t) for t in (captured.stdout, captured.stderr) if t.strip()]
    parts += map(_formatted, _displayed(captured.outputs))
    if value is not None:
        parts.append(_text(value) if isinstance(value, str) else _formatted(_bundle(value)))
    parts = [part for part in parts if part.text or part.html]
    return Shown("\n".join(part.text for part in parts), "".join(f"<div>{part.html}</div>" for part in parts))


def _displayed(outputs: Any) -> list[Mapping[str, Any]]:
    """Return the bundles that were displayed; one that was updated, such as a line of progress, as it was at last."""
    last = {output.transient.get("display_id", nth): output.data for nth, output in enumerate(outputs)}
    return list(last.values())


def _bundle(value: Any) -> Mapping[str, Any]:
    formatter = getattr(get_ipython(), "display_formatter", None) or DisplayFormatter()
    data, _ = formatter.format(value)
    return data or {"text/plain": repr(value)}


def _formatted(data: Mapping[str, Any]) -> Shown:
    """Return a MIME bundle in the richest form that a widget can show."""
    plain = _text(str(data.get("text/plain", "")))
    if "text/html" in data:
        return Shown(plain.text, data["text/html"])
    if "text/markdown" in data:
        return Shown(plain.text, markdown.html(data["text/markdown"]))
    if "image/svg+xml" in data:
        return Shown(plain.text, svg.img(data["image/svg+xml"].encode(), plain.text))
    for kind in ("image/png", "image/jpeg"):
        if kind in data:
            image = data[kind] if isinstance(data[kind], str) else b64encode(data[kind]).decode()
            src = f"data:{kind};base64,{image}"
            return Shown(plain.text, f'<img alt="{escape(plain.text)}" style="max-width: 100%" src="{src}">')
    return plain


def _text(text: str) -> Shown:
    text = CODES.sub("", text).strip("\n")
    return Shown(text, PRE.format(escape(text)) if text else "")
