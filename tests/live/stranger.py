"""A program of another user, which tries what it can against a lab; it says as JSON lines what it could do.

`python stranger.py look` reads process numbers and paths from stdin and tries to read, enter, reach and signal them.
`python stranger.py doors HOW` connects to whatever that user listens at on the loopback, until stdin ends.
Start it as root: it becomes nobody first, since nobody may not be able to run the tests' Python.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

NOBODY = 65534
LISTENS = "0A"
AT_ONCE = 0.01  # seconds in which a door on this host opens, if it does
GARBAGE = bytes(range(256)) * 4
RANK_NUMBERS = [struct.pack("<q", k) for k in range(8)]  # how a rank of Gloo's introduces itself


def say(what: object) -> None:
    print(json.dumps(what), flush=True)


def look() -> None:
    """Try everything on the processes and paths that stdin names; say what could be done."""
    told = json.loads(sys.stdin.read())
    say([what for what in _tries(told["pids"], told["paths"]) if what])


def _tries(pids: list[int], paths: list[str]) -> Iterator[str]:
    for path in paths:
        for seen in (path, *(f"/proc/{pid}/root{path}" for pid in pids)):
            yield _done("read", lambda seen=seen: Path(seen).open("rb").close())
            yield _done("write", lambda seen=seen: Path(seen).open("r+b").close())
            yield _done("list", lambda seen=seen: os.listdir(seen))
            yield _done("enter", lambda seen=seen: os.chdir(seen))
            yield _done("reach", lambda seen=seen: _reach(seen))
    for pid in pids:
        for name in ("environ", "mem", "maps", "fd", "cwd", "root", "fdinfo"):
            seen = f"/proc/{pid}/{name}"
            yield _done("read", lambda seen=seen: _byte(seen))
            yield _done("list", lambda seen=seen: os.listdir(seen))
        for sig in (0, signal.SIGSTOP, signal.SIGTERM):
            yield _done(f"send {sig} to", lambda pid=pid, sig=sig: os.kill(pid, sig), pid)
    with open("/proc/net/unix") as f:
        names = [line.split()[7] for line in f if line.count(" ") > 6 and line.split()[-1].startswith("@")]
    for name in names:
        yield _done("reach", lambda name=name: _reach(f"\0{name[1:]}"), name)


def _done(what: str, do, to: object = None) -> str:  # type: ignore[no-untyped-def]
    try:
        do()
    except OSError:
        return ""
    return f"{what} {do.__defaults__[0] if to is None else to}"


def _byte(path: str) -> None:
    with open(path, "rb") as f:
        f.read(1)


def _reach(name: str) -> None:
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(name)


def doors(how: str, user: int) -> None:
    """Go to each door that is open; say of each whether it was, and at the end how much came out of them.

    `how` "rank" goes to each once, as a rank does, and "one rank" to none any more once it was let in.
    """
    held: list[socket.socket] = []
    tried: set[str] = set()
    came = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        for address, port in _open_doors(user):
            if "rank" in how and (address in tried or ("one" in how and held)):
                continue
            greetings = RANK_NUMBERS if "rank" in how else [b""] if how == "hold" else [GARBAGE]
            let_in = [s for greeting in greetings if (s := _go_in(port, greeting)) is not None]
            if address not in tried:
                say({"port": port, "open": bool(let_in)})
            tried.add(address)
            if how == "garbage":
                for s in let_in:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", port % 2, 0))  # or a reset
                    s.close()
            else:
                held += let_in
        for s in held:
            with contextlib.suppress(OSError):
                came += len(s.recv(1 << 16, socket.MSG_DONTWAIT))
    say({"came": came})


def _open_doors(user: int) -> Iterator[tuple[str, int]]:
    with open("/proc/net/tcp") as f:
        for fields in map(str.split, f.readlines()[1:]):
            if fields[3] == LISTENS and int(fields[7]) == user:
                yield fields[1], int(fields[1].rpartition(":")[2], 16)


def _go_in(port: int, greeting: bytes) -> socket.socket | None:
    s = socket.socket()
    s.settimeout(AT_ONCE)
    try:
        s.connect(("127.0.0.1", port))
        s.sendall(greeting)
        return s
    except OSError:
        s.close()
        return None


if __name__ == "__main__":
    user = os.getuid()
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    look() if sys.argv[1] == "look" else doors(sys.argv[2], user)
