"""Show the bytes from each rank to each other one, beside the textbook's, for `lab.wire`. No torch, no cluster."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from labkit.plot import wire as picture
from labkit.show.picture import Picture
from labkit.theory import traffic
from labkit.theory.record import read
from labkit.theory.traffic import Counted

UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
HEADED = 2**18  # bytes from rank to rank: of fewer, Gloo's headers, 48 bytes per message, may be over 1 %
PAST = "NCCL moved the data past the kernel's TCP counters, over NVLink, PCIe or shared memory"


class Wire(Picture):
    """Bytes from each rank (row) to each other one (column); it displays itself as a matrix and as arrows.

    `matrix[src][dst]` and `sent[r]`, `received[r]` are bytes as the kernel counted them, the group's own headers
    included; None where they were not counted, and `why` says why. Then `sent` may come from the GPUs' own counters.
    `total` is its sum. `textbook[src][dst]` is what the textbook has for the recorded calls, None where it has no
    figure; `form` names the pattern, "a ring, each rank to the next one", or is empty; `notes` say the rest.
    """

    def __init__(self, counted: Counted, told: Sequence[dict[str, Any] | None]) -> None:
        record = read(told)
        ops = [op for mine in record.ops for op in mine]
        self.n = counted.n
        self.matrix = counted.matrix
        self.why = counted.why
        self._asked = traffic.asked(record)
        self._book = self._asked.matrix() if self._asked.known else None
        if self.matrix is not None and any(op.enqueued for op in ops) and self._passed_by(self.matrix):
            self.matrix, self.why = None, PAST
        self.textbook: list[list[int]] | None = None if self._book is None else self._book.round().astype(int).tolist()
        self.sent, self.received, self.form = counted.sent, None, ""
        if self.matrix is not None:
            seen = np.array(self.matrix)
            self.sent, self.received = seen.sum(axis=1).tolist(), seen.sum(axis=0).tolist()
            self.form = traffic.form(seen)
        self.total = None if self.sent is None else sum(self.sent)
        self.notes = [*self._remarks(), *counted.notes]
        if any(op.asynchronous and not (op.waited or op.asked) for op in ops):
            self.notes.append("a call was never waited for: what it sends after the cell is not counted")

    def across(self, hosts: Sequence[Sequence[int]]) -> list[list[int]] | None:
        """Return what crossed from host to host: `across[src][dst]` bytes; None where they were not counted.

        >>> lab.wire("dist.all_reduce(x)").across([[0, 1], [2, 3]])     # ranks 0 and 1 on one host, 2 and 3 on another
        >>> lab.wire("dist.all_reduce(x)").across(lab.hosts)            # between the lab's own hosts

        Bytes that stay within a host are not counted. Raises `LabError` where a rank is on no host, or on two.
        """
        traffic.home(hosts, self.n)
        if self.matrix is None:
            return None
        return [
            [0 if h == t else sum(self.matrix[s][d] for s in here for d in there) for t, there in enumerate(hosts)]
            for h, here in enumerate(hosts)
        ]

    def _passed_by(self, matrix: list[list[int]]) -> bool:
        """Tell whether the data took another way than TCP."""
        return self._book is None or sum(map(sum, matrix)) < traffic.CLOSE * self._book.sum()

    # -- in words -------------------------------------------------------------------------------------------------

    def _remarks(self) -> list[str]:
        """Say what the figures tell, and what they lack."""
        lines = []
        if self.why:
            instead = "its GPU's NVLink counters are used" if self.sent is not None else ""
            lines.append(f"not counted: {self.why}" + (f"; {instead}" if instead else ""))
        elif not self.total:
            lines.append("nothing was sent")
        elif self.form:
            lines.append(f"form: {self.form}")
        if self._book is not None:
            lines.append(f"textbook: {self._asked.name}")
            lines += self._against()
        elif self._asked.unknown:
            lines.append(f"the textbook has no figure for {', '.join(self._asked.unknown)}")
        elif self.total:
            lines.append("no call was recorded: what sends inside C++, as DDP does, leaves no record")
        return lines

    def _against(self) -> list[str]:
        """Compare what was seen with the textbook."""
        if self.matrix is None or self._book is None or not self._book.any():
            return []
        seen, like = np.array(self.matrix), self._like
        if like == {}:
            return ["counted: for each pair the textbook's bytes, to 1 %"]
        if self._book.max() < HEADED:
            return ["counted: with Gloo's headers, 48 bytes per message; take 1 MiB or more to compare"]
        ratio = seen.sum() / self._book.sum()
        lines = [f"counted: {ratio:.1f} times the textbook's bytes"]
        if like:
            ((op, other),) = like.items()
            like_other = f"the textbook's bytes for {other} of the same buffer, to 1 %"
            lines.append(f"counted: {like_other}, so {op} ran as {other}")
        return lines

    @cached_property
    def _like(self) -> dict[str, str] | None:
        """What the textbook has the counted bytes for: {} for what was asked, else other operations."""
        return traffic.likeness(np.array(self.matrix), self._asked)

    @cached_property
    def _drawing(self) -> picture.Drawing:
        alike = self.matrix is not None and self._book is not None and self._like == {}
        panels = [("seen, as in the textbook" if alike else "seen", self.matrix)] if self.matrix is not None else []
        if self._book is not None and not alike:
            panels.append(("by the textbook", self._book.tolist()))
        unit, name = _unit([b for _, m in panels for row in m for b in row] or self.sent or [])
        columns = [("sent", self.sent)] if self.sent is not None else []
        if self._book is not None:
            columns.append(("textbook", self._book.sum(axis=1).tolist()))
        return picture.Drawing(
            self.n, name, [(t, _scaled(m, unit)) for t, m in panels], [(t, _scaled(c, unit)) for t, c in columns],
            [line[:1].upper() + line[1:] + "." for line in self.notes],
        )  # fmt: skip

    def __repr__(self) -> str:
        d = self._drawing
        head = [f"{d.unit} from row to column", *(f"rank {r}" for r in range(self.n)), *(t for t, _ in d.columns)]
        rows = [head if d.panels else [head[0], *head[self.n + 1 :]]]
        for r in range(self.n):
            cells = [picture.amount(v, d) for v in d.panels[0][1][r]] if d.panels else []
            rows.append([f"rank {r}", *cells, *(picture.amount(c[r], d) for _, c in d.columns)])
        wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
        title = "" if self.matrix is not None or not d.panels else "by the textbook:\n"
        table = [
            "  ".join([f"{row[0]:<{wide[0]}}", *(f"{c:>{w}}" for c, w in zip(row[1:], wide[1:], strict=True))])
            for row in rows
        ]
        return title + "\n".join([*table, *self.notes])

    @property
    def alt(self) -> str:
        d = self._drawing
        said = []
        for title, matrix in d.panels:
            moves = [
                f"rank {s} to rank {t} {picture.amount(v, d)} {d.unit}"
                for s, row in enumerate(matrix) for t, v in enumerate(row) if picture.counts(v, d.largest)
            ]  # fmt: skip
            said.append(f"{title}: {', '.join(moves) or 'nothing moves'}")
        return " ".join(f"{p.rstrip('.')}." for p in ["Bytes from rank to rank", *said, *self.notes])

    def _drawn(self) -> Any:
        return picture.draw(self._drawing)


def _unit(figures: Sequence[float]) -> tuple[int, str]:
    """Return the largest unit of which the largest figure has one."""
    largest = max(figures, default=0)
    return next(((size, name) for size, name in UNITS if largest >= size), (1, "bytes"))


def _scaled(values: Any, unit: int) -> Any:
    return [_scaled(v, unit) for v in values] if isinstance(values, list) else values / unit
