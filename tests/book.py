"""The book, built once for all tests of a run, and its pages as they can be asked."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

BOOK = Path(__file__).resolve().parent.parent / "book"


def built(folder: Path) -> Path:
    """Build the book below a folder, unless another worker has; returns the site, and raises with what a build said."""
    site, said = folder / "book", folder / "book.said"
    with open(folder / "book.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not said.exists():
            made = subprocess.run([sys.executable, BOOK, site, "--quiet"], capture_output=True, text=True)
            said.write_text(made.stdout + made.stderr if made.returncode else "")
        assert not said.read_text(), said.read_text()
    return site


def shared(folder: Path) -> Path:
    """The folder that all workers of a run share, from a worker's own."""
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@contextmanager
def served(site: Path) -> Iterator[str]:
    """Serve a site on loopback alone, on a port that is free; gives its address."""

    class Quiet(SimpleHTTPRequestHandler):
        def __init__(self, *given, **named) -> None:
            super().__init__(*given, directory=str(site), **named)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@dataclass
class Page(HTMLParser):
    """A page's elements with their attributes, its ids, and its text."""

    path: Path
    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    text: str = ""

    @property
    def beside(self) -> list[str]:
        """Where the links of the list beside the page lead."""
        return [
            each["href"] or ""
            for tag, each in self.elements
            if tag == "a" and each.get("class") == "reference internal"
        ]

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text(encoding="utf-8"))
        self.ids = {attributes["id"] for _, attributes in self.elements if "id" in attributes}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str, attribute: str) -> list[str]:
        """That attribute of all such elements that have it."""
        return [each[attribute] or "" for name, each in self.elements if name == tag and attribute in each]


@cache
def pages(site: Path) -> dict[str, Page]:
    """All pages of the site by their paths in it."""
    return {
        str(path.relative_to(site)): Page(path) for path in sorted(site.rglob("*.html")) if "_static" not in path.parts
    }
