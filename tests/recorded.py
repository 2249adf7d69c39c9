"""What ranks kept of a cell, written by hand: `Told` is one rank's log, call by call."""

from __future__ import annotations

from typing import Any

from labkit.theory.log import Buffer, Log, Op, Span, View


class Told:
    """One rank's log. Times are milliseconds; `send`, `recv` and `meet` add a call, `span` what it computes."""

    def __init__(self, n: int = 4, host: str = "here") -> None:
        self.ranks = tuple(range(n))
        self.log = Log(host=host)
        self.clock = 0

    def buffer(self, name: str, values: list[Any], first: str = "send", line: int = 1) -> int:
        self.log.buffers.append(Buffer(name, len(values), line, first))
        self.write(len(self.log.buffers) - 1, values)
        return len(self.log.buffers) - 1

    def write(self, buffer: int, values: list[Any]) -> None:
        self.log.journal.append((buffer, list(values)))

    def send(self, peer: int, start: float = 0, end: float | None = 1, **more: Any) -> Told:
        return self._call("send", "send", start, end, peer=peer, **more)

    def recv(self, peer: int | None, start: float = 0, end: float | None = 1, **more: Any) -> Told:
        return self._call("recv", "recv", start, end, peer=peer, **more)

    def meet(self, op: str, start: float = 0, end: float | None = 1, **more: Any) -> Told:
        return self._call(op, "collective", start, end, **more)

    def start(self, op: str, start: float, there: float | None, waits: tuple[float, float] | None = None) -> Told:
        """An asynchronous collective: when its data was there, and the `.wait()` for it."""
        waited = waits and (waits[0] / 1e3, waits[1] / 1e3, 9)
        data = None if there is None else there / 1e3
        return self.meet(op, start, start + 1, asynchronous=True, there=data, waited=waited)

    def span(self, name: str, start: float, end: float | None, of: str = "", error: str = "") -> Told:
        self.log.spans.append(Span(0, name, of, start / 1e3, None if end is None else end / 1e3, error))
        return self

    def stand(self, start: float, end: float) -> Told:
        """What waits behind a backward pass."""
        self.log.stood.append((start / 1e3, end / 1e3))
        return self

    def _call(self, op: str, kind: str, start: float, end: float | None, **more: Any) -> Told:
        place, landed = more.pop("view", None), more.pop("landed", None)
        ranks, group = tuple(more.pop("ranks", self.ranks)), more.pop("group", "")
        call = Op(
            rank=0, issued=self.clock, op=op, kind=kind, ranks=ranks, group=group, dtype="float32", shape=(1,),
            bytes=4, line=2, nth=sum(o.kind == "collective" and o.within == (ranks, group) for o in self.log.ops),
            entered=start / 1e3, left=None if end is None else end / 1e3, done=None if end is None else self.clock + 1,
        )  # fmt: skip
        for name, value in more.items():
            setattr(call, name, value)
        self.clock += 2
        if place is not None:
            call.view = View(*place, since=len(self.log.journal))
            if landed is not None:
                self.write(place[0], landed)
            call.view.until = len(self.log.journal)
        self.log.ops.append(call)
        return self

    def __call__(self, rank: int = 0) -> dict[str, Any]:
        for op in self.log.ops:
            op.rank = rank
        for span in self.log.spans:
            span.rank = rank
        return self.log.plain()


def told(*ranks: Told) -> list[dict[str, Any] | None]:
    """What the ranks send, index = rank."""
    return [log(r) for r, log in enumerate(ranks)]
