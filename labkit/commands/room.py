"""`python -m labkit room`: show an instructor who is at which exercise, and who is stuck there. It only reads."""

from __future__ import annotations

import argparse
import hmac
import json
import os
import secrets
import stat
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from labkit.content import exercises, predictions
from labkit.floor.errors import LabError
from labkit.floor.words import count

ABOUT = """\
Show in a browser, on this machine alone, at which exercise or question each learner is, and who is stuck there.
"""
HOW = """\
Learners are seen only where LABKIT_ROOM names the folder, in the environment of their Jupyter; each is told so.
A learner without LABKIT_NAME has a random number for a name. A folder that all may write into, and you alone list:

  install -d -m 1733 /srv/room

The page listens at 127.0.0.1 and wants the token of the address that is printed (or of LABKIT_ROOM_TOKEN). As a service
of JupyterHub it takes its address and prefix from the hub: c.JupyterHub.services = [{"name": "room",
"url": "http://127.0.0.1:9999", "command": ["python", "-m", "labkit", "room", "/srv/room"], "environment":
{"LABKIT_ROOM_TOKEN": "…"}}], and the page is at /services/room/?token=….
"""
CHECKS = 3  # that are not right, before one counts as stuck,
MINUTES = 10.0  # or spent on one exercise that has been checked
AWAY = 60.0  # minutes after which one who has done nothing is not shown as working
LARGEST = 4096  # bytes of a learner's file; a larger one is none of ours
STYLE = (
    ":root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;margin:2rem;max-width:60rem}"
    "table{border-collapse:collapse}th,td{text-align:left;padding:.25rem 1.2rem .25rem 0}caption{text-align:left}"
)
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
}


@dataclass(frozen=True)
class Seat:
    """Where one learner is: the lesson, the exercise or question, since when (minutes), and how it stands."""

    who: str
    lesson: str
    what: str
    state: str
    checks: int
    hints: int
    minutes: float  # at this exercise or question, up to the last sign
    idle: float  # minutes since the last sign
    done: int

    @property
    def stuck(self) -> bool:
        """Tell whether several checks, or many minutes after a first one, have not led to a right one."""
        at_it = self.state == "tried" and self.idle < AWAY
        return at_it and self.checks > 0 and (self.checks >= CHECKS or self.minutes + self.idle >= MINUTES)


def seats(folder: Path, now: float) -> list[Seat]:
    """Read the learners' files, those who are stuck first; what is not such a file is left out.

    Raises `LabError` where the folder cannot be listed.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise LabError(f"{folder} cannot be listed ({error.strerror}). Name the folder of LABKIT_ROOM.") from error
    found = [seat for name in names if name.endswith(".json") and (seat := _seat(folder / name, now))]
    return sorted(found, key=lambda seat: (not seat.stuck, seat.lesson, seat.who))


def _seat(file: Path, now: float) -> Seat | None:
    """Read one file, which another user may have written: a plain small one, of the form that labkit gives it."""
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                return None
            told: Mapping[str, Any] = json.loads(opened.read(LARGEST))
        what = str(told["what"])
        known = exercises.every().get(what) or predictions.every().get(what)
        since, when = float(told["since"]), float(told["when"])
        return Seat(
            str(told.get("name") or file.stem)[:40],
            known.lesson if known else "?",
            what[:60],
            str(told.get("state", ""))[:20],
            int(told.get("checks", 0)),
            int(told.get("hints", 0)),
            max(0.0, when - since) / 60,
            max(0.0, now - when) / 60,
            int(told["done"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return None


def page(found: Sequence[Seat]) -> str:
    """Return the page: how many are at which lesson, and a row for each learner."""
    lessons = Counter(seat.lesson for seat in found if seat.idle < AWAY)
    stuck = sum(seat.stuck for seat in found)
    at = "; ".join(f"{escape(lesson)}: {k}" for lesson, k in sorted(lessons.items()))
    head = f"{count(len(found), 'learner')}, {stuck} stuck. {f'At lesson {at}.' if at else ''}"
    columns = ("learner", "lesson", "exercise or question", "how it stands", "minutes there", "last sign", "done")
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in _cells(seat))}</tr>" for seat in found)
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><meta http-equiv='refresh' content='10'>"
        f"<title>The room</title><style>{STYLE}</style></head><body><h1>The room</h1><p role='status'>{head}</p>"
        f"<table><thead><tr>{''.join(f'<th scope=col>{c}</th>' for c in columns)}</tr></thead><tbody>{rows}</tbody>"
        "</table></body></html>"
    )


def _cells(seat: Seat) -> list[str]:
    tries = f"{count(seat.checks, 'check')}, {count(seat.hints, 'hint')}" if seat.checks or seat.hints else ""
    mark = "● stuck: " if seat.stuck else ""
    stands = f"{mark}{', '.join(filter(None, [seat.state, tries]))}" or "answered"
    ago = "now" if seat.idle < 1 else f"{seat.idle:.0f} min ago"
    return [seat.who, seat.lesson, seat.what, stands, f"{seat.minutes:.0f}", ago, str(seat.done)]


def server(folder: Path, token: str, port: int = 0, prefix: str = "/") -> ThreadingHTTPServer:
    """Return a server of the page at 127.0.0.1, which answers whoever knows the token; port 0 takes a free one."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            given = parse_qs(asked.query).get("token", [""])[0]
            if not hmac.compare_digest(given.encode(), token.encode()):
                self._answer(403, "The address needs the token that `python -m labkit room` has printed.")
            elif asked.path != prefix:
                self._answer(404, f"The page is at {escape(prefix)}.")
            else:
                try:
                    self._answer(200, page(seats(folder, time.time())))
                except LabError as error:
                    self._answer(500, escape(str(error)))

        def _answer(self, status: int, text: str) -> None:
            self.send_response(status)
            for name, value in HEADERS.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass  # a line of the log would hold the token

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def main(arguments: Sequence[str]) -> int:
    """Serve the page until Ctrl-C."""
    parser = argparse.ArgumentParser(
        "python -m labkit room", description=ABOUT, epilog=HOW, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="what LABKIT_ROOM names")
    parser.add_argument("--port", type=int, default=0, help="default: a free one")
    given = parser.parse_args(arguments)
    prefix = os.environ.get("JUPYTERHUB_SERVICE_PREFIX", "/")
    port = given.port or urlsplit(os.environ.get("JUPYTERHUB_SERVICE_URL", "")).port or 0
    token = os.environ.get("LABKIT_ROOM_TOKEN") or secrets.token_urlsafe(16)
    seats(given.folder, time.time())  # says now that a folder cannot be listed
    try:
        with server(given.folder, token, port, prefix) as serving:
            print(f"http://127.0.0.1:{serving.server_port}{prefix}?token={token}", flush=True)
            serving.serve_forever()
    except OSError as error:
        raise LabError(f"Port {port} cannot be had ({error.strerror}). Give another with --port.") from error
    except KeyboardInterrupt:
        pass
    return 0
