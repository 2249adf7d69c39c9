"""A live strip of what the ranks do, made of ipywidgets; it follows them without a front end too."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import ipywidgets

# Colour (Okabe–Ito's), shape in a box of 16 × 16, words: no state is told by its colour alone.
STATES = {
    "idle": ("#999999", '<circle cx="8" cy="8" r="5.5" fill="none" stroke-width="2"/>', "idle"),
    "computing": ("#009E73", '<path d="M3.5 2 L14 8 L3.5 14 Z"/>', "computing"),
    "collective": ("#0072B2", '<rect x="2.5" y="2.5" width="11" height="11"/>', "in a collective"),
    "silent": ("#E69F00", '<path d="M8 2 L14 13.5 H2 Z" fill="none" stroke-width="2"/>', "does not answer"),
    "dead": ("#D55E00", '<path d="M3 3 L13 13 M13 3 L3 13" stroke-width="3"/>', "dead"),
}


class Strip(ipywidgets.HTML):
    """A live strip: what each rank does right now.

    `poll` returns a dict for each rank with "rank", "state" ("idle", "computing", "collective", "silent" or
    "dead"), "op", "line" and "seconds"; it is asked every `period` seconds until `stop()` or `close()`, or
    until it raises.
    """

    value: str  # ipywidgets' trait

    def __init__(self, poll: Callable[[], Sequence[dict[str, Any]]], n: int, period: float = 0.25) -> None:
        super().__init__(value=_strip([{"rank": r, "state": "silent"} for r in range(n)]))
        self._n = n
        self._poll = poll
        self._period = period
        self._over = threading.Event()
        threading.Thread(target=self._watch, name="labkit-strip", daemon=True).start()

    def refresh(self) -> None:
        """Ask once, and draw only if something has changed."""
        value = _strip(self._poll())
        if value != self.value and not self._over.is_set():
            self.value = value

    def stop(self) -> None:
        """Leave the strip as it is from now on."""
        self._over.set()

    def close(self) -> None:
        """Stop, and take the strip off the page."""
        self.stop()
        super().close()

    def _watch(self) -> None:
        try:
            while not self._over.is_set():
                self.refresh()
                self._over.wait(self._period)
        except Exception as error:
            if not self._over.is_set():
                self.value = f"<em>The strip has stopped: {escape(str(error) or type(error).__name__)}</em>"
                self.stop()

    def __repr__(self) -> str:
        return f"a live strip of {self._n} ranks"


def _strip(statuses: Sequence[dict[str, Any]]) -> str:
    said = [(s, _words(s)) for s in sorted(statuses, key=lambda s: s["rank"])]
    label = "; ".join(f"rank {s['rank']}: {words}" for s, words in said)
    chips = "".join(_chip(s, words) for s, words in said)
    style = "display: flex; flex-wrap: wrap; gap: 6px; line-height: 1.5"
    return f'<div role="img" aria-label="{escape(label)}" style="{style}">{chips}</div>'


def _words(status: dict[str, Any]) -> str:
    words = STATES[status["state"]][2]
    if status["state"] == "collective" and status.get("op"):
        words = f"in {status['op']}"
    seconds = int(status.get("seconds") or 0)
    at = f"line {status['line']}" if status.get("line") else ""
    busy = status["state"] in ("computing", "collective")
    since = f"{seconds} s" if busy and seconds else ""
    return ", ".join(filter(None, [words, at * busy, since]))


def _chip(status: dict[str, Any], words: str) -> str:
    colour, shape, _ = STATES[status["state"]]
    line = "dashed" if status["state"] in ("dead", "silent") else "solid"
    style = (
        "display: inline-flex; align-items: center; gap: 6px; padding: 2px 10px 2px 8px; border-radius: 4px; "
        f"border: 2px {line} {colour}; color: var(--jp-ui-font-color1, inherit)"
    )
    svg = f'<svg width="14" height="14" viewBox="0 0 16 16" fill="{colour}" stroke="{colour}">{shape}</svg>'
    return f'<span style="{style}">{svg}<b>rank {status["rank"]}</b> {escape(words)}</span>'
