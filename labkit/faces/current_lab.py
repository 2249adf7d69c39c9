"""Know the lab that runs, for what is not a method of it. Imports nothing of labkit."""

from __future__ import annotations

from typing import Any

_current: Any = None
_started: Any = None


def running() -> Any:
    """Return the lab that `start()` returned last, or None where it was stopped."""
    return _current


def started() -> Any:
    """Return what `start()` did when it returned that lab."""
    return _started


def begin(lab: Any, started: Any = None) -> None:
    """Let this lab be the one that runs; `started` tells what `start()` did."""
    global _current, _started
    _current, _started = lab, started


def end(lab: Any) -> None:
    """Forget this lab, if it is the one that runs."""
    global _current
    if _current is lab:
        _current = None


def backend() -> str:
    """Return the backend of the lab that runs, "gloo" or "nccl"; "gloo" where none does."""
    return _current.backend if _current is not None and _current.running else "gloo"
