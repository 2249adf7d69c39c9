"""What one rank kept of one cell: its calls, what its small buffers held, and what it computed in between."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from labkit.theory.primitives import Primitive, find


@dataclass(slots=True)
class View:
    """Where an operation's tensor lies: `count` elements of a small buffer, from `offset` on.

    `since` and `until` are places in the rank's journal: what had changed before the call, and what a receive left.
    """

    buffer: int
    offset: int
    count: int
    since: int = 0
    until: int | None = None


@dataclass(slots=True)
class Op:
    """One call of one rank. A rank makes it when the call begins and fills it in.

    Times are seconds of the rank's own clock; in a `theory.record.Record`, since the cell's first operation.
    `left` is None while the call runs. `kind` is "send", "recv", "collective" or "flag"; `peer` the other rank, or the
    root; `nth` counts a group's collectives. `waited` is (entered, left, line) of the `.wait()` that ended one which is
    asynchronous, and `wait_in` the learner's function that it stands in, as `function` is that of the call.
    `issued` and `done` order the rank's own calls: positions in its program, `done` None where it did not wait.
    `witnessed`: only the process group's own record has it, which notes when a call begins, not when it ends.
    `shared`: how many times one tensor stands in the list that the results go into; 0 where all are different.
    `there`: when the data of an asynchronous collective was there, where that was noted: only if spans are used.
    `enqueued`: it is on a GPU, and the call returns before the data has moved. `ran`: from when to when the GPU was at
    it, or stood in the `.wait()` for it, by CUDA events; in a `Record`, these are its times.
    `asked`: the learner may know its end otherwise than by its `Work.wait()`: by `is_completed()`, or by a future.
    `group`: torch's name for its group, the same on all its ranks; two groups may have the same ranks.
    """

    rank: int
    issued: float
    op: str
    kind: str
    ranks: tuple[int, ...]
    peer: int | None = None
    tag: int = 0
    nth: int = 0
    reduce: str | None = None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    bytes: int | None = None
    line: int | None = None
    function: tuple[str, int] | None = None
    asynchronous: bool = False
    batch: bool = False
    enqueued: bool = False
    witnessed: bool = False
    entered: float = 0.0
    left: float | None = None
    waited: tuple[float, float, int | None] | None = None
    done: float | None = None
    error: str = ""
    shared: int = 0
    there: float | None = None
    group: str = ""
    ran: tuple[float, float] | None = None
    wait_in: tuple[str, int] | None = None
    asked: bool = False
    view: View | None = None

    @property
    def ended(self) -> float | None:
        """The time at which its data was there: the end of its `.wait()`, or of the call itself."""
        return self.waited[1] if self.waited else None if self.asynchronous else self.left

    @property
    def arrived(self) -> float | None:
        """The time at which its data was there as exactly as it was noted, else `ended`."""
        return self.ended if self.there is None else min(self.there, self.ended or self.there)

    @property
    def within(self) -> tuple[tuple[int, ...], str]:
        """Its group: the ranks, and torch's name for it."""
        return self.ranks, self.group

    @property
    def name(self) -> str:
        """The operation without the module that it was called from."""
        return self.op.rpartition(".")[2]

    @property
    def called(self) -> str:
        """The operation as a learner calls it: "dist.all_reduce", "comms.send", "ProcessGroup.broadcast"."""
        return self.op if "." in self.op else f"dist.{self.op}"

    @property
    def place(self) -> str:
        """The place in the cell: "line 2", "line 4 of ring, called in line 9"; "" where it is not known."""
        return place(self.line, self.function)

    @property
    def at(self) -> str:
        """Its place, to stand behind its name: " (line 2)"; "" where it is not known."""
        return f" ({self.place})" if self.place else ""

    @property
    def wait_place(self) -> str:
        """The place of its `.wait()`: "line 9", "line 14 of ring"; with the call of ring where that is another line."""
        line = self.waited and self.waited[2]
        return place(line, self.wait_in, called=not (self.function and line == self.line))

    @property
    def primitive(self) -> Primitive | None:
        """The primitive that it is, under any name."""
        return find(self.op)


def place(line: int | None, function: tuple[str, int] | None, called: bool = True, short: bool = False) -> str:
    """Say where in the cell: "line 4 of ring, called in line 9"; without the caller, or in `short` "ring line 4"."""
    if function:
        name, inner = function
        return f"{name} line {inner}" if short else f"line {inner} of {name}{f', called in line {line}' * called}"
    return f"line {line}" if line else ""


@dataclass(slots=True)
class Span:
    """A named piece of what a rank computes, from `entered` to `left`, which is None while it runs.

    `of` is "forward" or "backward" where it is of such a pass, else "". `error` names the exception that left it.
    `ran` is an operation's: from when to when the GPU was at it.
    """

    rank: int
    name: str
    of: str
    entered: float
    left: float | None = None
    error: str = ""
    ran: tuple[float, float] | None = None


@dataclass(slots=True)
class Buffer:
    """A small piece of memory of a rank: its name, elements, and the first call (kind and line) that used it.

    `gone` is the place in the journal where it had been let go.
    """

    name: str
    size: int
    line: int | None
    first: str
    gone: int | None = None


@dataclass
class Log:
    """What one rank kept of one cell: its calls in their order, and what its small buffers held.

    `journal` has (buffer, values), one for each change. `began`, `ended` are the cell's own times, each a timestamp
    of the `clock`. `gpu` is the one of its host that the rank uses, "" where it uses none; ranks that share it compute
    `together` under MPS, else by turns. `dropped` calls are too many to be kept; `unnamed` ones were counted by a
    process group and not noted. `sent` are the bytes on the wire to other ranks meanwhile, None where they are not
    counted; `moved` those that kernels have read and written, where that is counted.
    `spans` are in the order in which they began, `cut` earlier ones are not kept. `stood` has (from, to) for each
    backward pass: from when its graph was computed until what waits for other ranks behind it was done.
    `made` has the ranks of each group that this rank has begun to make, of those that all ranks have to make.
    """

    ops: list[Op] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    journal: list[tuple[int, list[Any]]] = field(default_factory=list)
    began: float = 0.0
    ended: float | None = None
    clock: tuple[str, float] = ("", 0.0)
    host: str = ""
    gpu: str = ""
    together: bool = False
    dropped: int = 0
    unnamed: int = 0
    sent: int | None = None
    moved: int | None = None
    spans: list[Span] = field(default_factory=list)
    cut: int = 0
    stood: list[tuple[float, float]] = field(default_factory=list)
    made: list[tuple[int, ...]] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """Return it as JSON carries it; `Log.of` reads it back."""
        rows = [[*_row(op)[:-1], op.view and _row(op.view)] for op in self.ops]
        rest = {"buffers": [_row(b) for b in self.buffers], "spans": [_row(s) for s in self.spans]}
        return {**vars(self), "ops": rows, **rest}

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Log:
        """Read what `plain` made."""
        ops = [Op(*row) for row in plain["ops"]]
        for op in ops:
            op.ranks = tuple(op.ranks)
            op.shape = None if op.shape is None else tuple(op.shape)
            op.function, op.wait_in = op.function and (*op.function,), op.wait_in and (*op.wait_in,)
            op.waited = None if op.waited is None else (op.waited[0], op.waited[1], op.waited[2])
            op.view = None if op.view is None else View(*op.view)  # type: ignore[misc]  # a row until here
        spans, stood = [Span(*row) for row in plain["spans"]], [(a, b) for a, b in plain["stood"]]
        buffers, made = [Buffer(*row) for row in plain["buffers"]], [tuple(ranks) for ranks in plain["made"]]
        return cls(**{**plain, "ops": ops, "buffers": buffers, "spans": spans, "stood": stood, "made": made})


_NAMES = {cls: [f.name for f in fields(cls)] for cls in (Op, View, Buffer, Span)}


def _row(value: Op | View | Buffer | Span) -> list[Any]:
    return [getattr(value, name) for name in _NAMES[type(value)]]
