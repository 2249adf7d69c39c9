"""Write a learner's files: all of a file or nothing, and one program at a time."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


def write(file: Path, text: str) -> None:
    """Give the file this text; a reader meanwhile sees the old text or the new one. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    half = file.with_name(f".{file.name}-{secrets.token_hex(4)}")
    try:
        with open(half, "x", encoding="utf-8", newline="\n") as written:
            written.write(text)
        os.replace(half, file)
    except BaseException:
        half.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Let programs write in a folder one after the other, where the system can lock files."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            folder.mkdir(parents=True, exist_ok=True)
            fcntl.flock(stack.enter_context(open(folder / ".lock", "w")), fcntl.LOCK_EX)
        yield
