"""Records as the ranks tell them, written by hand: `Told` is one rank's cell, call by call."""

from __future__ import annotations

from typing import Any


class Told:
    """One rank's record. Times are milliseconds; `send`, `recv` and `meet` add a call."""

    def __init__(self, n: int = 4, host: str = "here") -> None:
        self.ranks = list(range(n))
        self.ops: list[dict[str, Any]] = []
        self.buffers: list[dict[str, Any]] = []
        self.journal: list[tuple[int, list[Any]]] = []
        self.host = host
        self.clock = 0

    def buffer(self, name: str, values: list[Any], first: str = "send", line: int = 1) -> int:
        facts = {"name": name, "size": len(values), "line": line, "first": first, "gone": None}
        self.buffers.append(facts)
        self.write(len(self.buffers) - 1, values)
        return len(self.buffers) - 1

    def write(self, buffer: int, values: list[Any]) -> None:
        self.journal.append((buffer, list(values)))

    def send(self, peer: int, start: float = 0, end: float | None = 1, **more: Any) -> Told:
        return self._call("send", "send", start, end, peer=peer, **more)

    def recv(self, peer: int | None, start: float = 0, end: float | None = 1, **more: Any) -> Told:
        return self._call("recv", "recv", start, end, peer=peer, **more)

    def meet(self, op: str, start: float = 0, end: float | None = 1, **more: Any) -> Told:
        return self._call(op, "collective", start, end, **more)

    def _call(self, op: str, kind: str, start: float, end: float | None, **more: Any) -> Told:
        view = more.pop("view", None)
        landed = more.pop("landed", None)
        ranks = more.get("ranks", self.ranks)
        nth = sum(o["kind"] == "collective" and o["ranks"] == ranks for o in self.ops)
        call = {
            "sequence": self.clock, "op": op, "kind": kind, "ranks": ranks, "peer": None, "tag": 0, "nth": nth,
            "reduce": None, "dtype": "float32", "shape": [1], "bytes": 4, "line": 2, "function": None, "async": False,
            "batch": False, "enqueued": False, "entered": int(start * 1e6), "waited": None, "error": "",
            "left": None if end is None else int(end * 1e6), "done": None if end is None else self.clock + 1,
            "view": None, **more,
        }  # fmt: skip
        self.clock += 2
        if view is not None:
            call["view"] = {**dict(zip(("buffer", "offset", "count"), view, strict=True)), "from": len(self.journal)}
            if landed is not None:
                self.write(view[0], landed)
            call["view"]["until"] = len(self.journal)
        self.ops.append(call)
        return self

    def __call__(self) -> dict[str, Any]:
        return {
            "ops": self.ops, "dropped": 0, "began": 0, "buffers": self.buffers, "journal": self.journal,
            "host": self.host, "wall": 0,
        }  # fmt: skip


def told(*ranks: Told) -> list[dict[str, Any]]:
    """What the ranks tell, index = rank."""
    return [rank() for rank in ranks]
