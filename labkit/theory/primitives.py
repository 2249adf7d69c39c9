"""The primitives, a row each: what every rank brings and gets, what it costs, and what torch calls it.

>>> PRIMITIVES["scatter"]
scatter: the root brings n parts, each rank gets one part
>>> find("nccl:_all_gather_base").name, find("comms.gather").name, find("isend").name
('all_gather', 'gather', 'send')

One rule for the rank that is named: the meanings in `theory.collectives`, and what compares with them (`lab.flow`,
schedules), take `root`, a place in `xs`; what runs on ranks takes torch's own argument, `src` or `dst`, which
`Primitive.other` has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from labkit.floor.errors import LabError
from labkit.theory import collectives, routes

WHOLE, PART, PARTS = "a whole buffer", "one part", "n parts"  # S bytes; S/n; n times S/n

Means = Callable[..., Sequence[Any]]


@dataclass(frozen=True)
class Function:
    """A function of torch.distributed: its names, the newest first, and the argument that tells what travels.

    `since` is the torch that first had the newest name; the older ones are in every torch from 2.11 to 2.15.
    """

    names: tuple[str, ...]
    data: str = ""  # "": an object, or nothing
    since: tuple[int, int] = (2, 11)


@dataclass(frozen=True, repr=False)
class Primitive:
    """One primitive. S is its whole buffer: what one rank holds at most, as in `workbook.tools.formulas`.

    Args:
        kind: "collective", "send", "recv", or "pair": a send and its receive as one event.
        brings, gets: WHOLE, PART, PARTS or "" for nothing; where there is a root, of it alone on its side.
        other: torch's argument for the root of a collective or the peer of a message: "src", whose data goes out,
            or "dst", which takes it; "" where all ranks are alike.
        reduces: what arrives is combined.
        objects: what travels is pickled, so that its bytes are not known beforehand.
        functions: torch's; `comms` is the argument that tells what travels in comms' own, None where it has none.
        also: what functional collectives, process groups and their flight recorders call it.
        meaning: the function in `theory.collectives`.
        busbw: what makes busbw of algbw in nccl-tests, in words and for n ranks.
        textbook: the way that textbooks and Gloo's source take, in words and as `matrix(n, S, root)`.
    """

    name: str
    kind: str
    brings: str = ""
    gets: str = ""
    other: str = ""
    reduces: bool = False
    objects: bool = False
    functions: tuple[Function, ...] = ()
    comms: str | None = None
    also: tuple[str, ...] = ()
    meaning: Means | None = None
    busbw: tuple[str, Callable[[int], float]] | None = None
    textbook: tuple[str, routes.Matrix] | None = None

    @property
    def rooted(self) -> bool:
        """Whether one rank of a collective is special."""
        return self.kind == "collective" and bool(self.other)

    @property
    def chunked(self) -> bool:
        """Whether a rank brings a chunk for each rank."""
        return self.brings == PARTS

    @property
    def cut(self) -> bool:
        """Whether the buffer is cut into one part per rank."""
        return PART in (self.brings, self.gets) or self.chunked

    @property
    def partial(self) -> bool:
        """Whether the tensor that tells what travels is one rank's part: S is n times its bytes."""
        return (self.gets if self.from_root else self.brings) == PART

    @property
    def from_root(self) -> bool:
        """Whether only the root brings something."""
        return self.rooted and self.other == "src"

    @property
    def to_root(self) -> bool:
        """Whether only the root gets something."""
        return self.rooted and self.other == "dst"

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every name that it has."""
        return tuple(dict.fromkeys([self.name, *(n for f in self.functions for n in f.names), *self.also]))

    def needs(self, rank: int, root: int | None, ranks: Iterable[int]) -> set[int]:
        """Return the ranks whose data a rank needs before it can leave: all others, the root, or none.

        >>> PRIMITIVES["gather"].needs(0, 0, range(3)), PRIMITIVES["gather"].needs(1, 0, range(3))
        ({1, 2}, set())
        """
        others = set(ranks) - {rank}
        if self.from_root:
            return others & {root}
        return set() if self.to_root and rank != root else others

    def traffic(self, n: int, nbytes: float, root: int = 0) -> np.ndarray:
        """Return the textbook's bytes from each rank to each other one, `matrix[src, dst]`; `nbytes` is S.

        >>> PRIMITIVES["all_reduce"].traffic(4, 4.0).sum(axis=1).tolist(), PRIMITIVES["all_reduce"].route
        ([6.0, 6.0, 6.0, 6.0], 'ring: 2S(N-1)/N from each rank')
        """
        if self.textbook is None:
            raise LabError(f"{self.name!r} has no textbook figure. Use one of {', '.join(TEXTBOOK)}.")
        if n < 1 or root not in range(n):
            raise LabError(f"n={n}, root={root}: there is no such root. Choose one of 0 to n - 1.")
        return self.textbook[1](n, nbytes, root)

    @property
    def route(self) -> str:
        """The textbook's way in words."""
        return self.textbook[0] if self.textbook else ""

    def __repr__(self) -> str:
        def who(side: str) -> str:
            if self.kind != "collective":
                return "a rank"
            return "the root" if self.other == side else "each rank"

        told = [f"{who('src')} brings {self.brings}"] if self.brings else []
        told += [f"{who('dst')} gets {self.gets}{', reduced' * self.reduces}"] if self.gets else []
        return f"{self.name}: {', '.join(told) or 'no data'}"


Factor = tuple[str, Callable[[int], float]]
ONCE: Factor = ("1", lambda n: 1.0)
SHARE: Factor = ("(n-1)/n", lambda n: (n - 1) / n)
TWICE: Factor = ("2(n-1)/n", lambda n: 2 * (n - 1) / n)
_RING = "ring: S(N-1)/N from each rank"

_BROADCAST = Primitive(
    "broadcast", "collective", WHOLE, WHOLE, "src", comms="x", meaning=collectives.broadcast, busbw=ONCE,
    functions=(Function(("broadcast",), "tensor"),),
    textbook=("binomial tree: S into each rank but the root", routes.binomial_tree),
)  # fmt: skip
_GATHER = Primitive(
    "gather", "collective", PART, PARTS, "dst", comms="x", meaning=collectives.gather, busbw=SHARE,
    functions=(
        Function(("gather",), "tensor"),
        Function(("gather_single",), "tensor", (2, 15)),
        Function(("gather_into_tensor",), "tensor", (2, 15)),
    ),
    textbook=("each rank sends S/N to the root", routes.to_root),
)  # fmt: skip
_ALL_GATHER = Primitive(
    "all_gather", "collective", PART, PARTS, comms="x", meaning=collectives.all_gather, busbw=SHARE,
    functions=(
        Function(("all_gather",), "tensor"),
        Function(("all_gather_single", "all_gather_into_tensor"), "input_tensor", (2, 13)),
        Function(("all_gather_coalesced",), "input_tensor_list"),
    ),
    also=("all_gather_tensor", "_all_gather_base", "allgather", "allgather_base", "allgather_into_tensor"),
    textbook=(_RING, routes.ring(1, 1)),
)  # fmt: skip
_SCATTER = Primitive(
    "scatter", "collective", PARTS, PART, "src", comms="", meaning=collectives.scatter, busbw=SHARE,
    functions=(Function(("scatter",), "tensor"),),
    textbook=("the root sends S/N to each rank", routes.from_root),
)  # fmt: skip
_SEND = Primitive(
    "send", "send", WHOLE, "", "dst", comms="x",
    functions=(Function(("send",), "tensor"), Function(("isend",), "tensor")),
)  # fmt: skip
_RECV = Primitive(
    "recv", "recv", "", WHOLE, "src", comms="",
    functions=(Function(("recv",), "tensor"), Function(("irecv",), "tensor")),
    also=("recv_anysource", "recv_any_source", "recvAnySource"),
)  # fmt: skip


def _of_objects(primitive: Primitive, name: str) -> Primitive:
    """Make the same primitive of objects that are pickled, which have no parts and no known bytes."""
    return replace(primitive, name=name, functions=(Function((name,)),), objects=True, comms=None, also=(), busbw=None)


PRIMITIVES: dict[str, Primitive] = {
    primitive.name: primitive
    for primitive in (
        _BROADCAST,
        Primitive(
            "reduce", "collective", WHOLE, WHOLE, "dst", True, comms="x", meaning=collectives.reduce, busbw=ONCE,
            functions=(Function(("reduce",), "tensor"),),
            textbook=(f"{_RING}, then S/N from each to the root", routes.ring_then_to_root),
        ),
        Primitive(
            "all_reduce", "collective", WHOLE, WHOLE, "", True, comms="x", meaning=collectives.all_reduce, busbw=TWICE,
            functions=(Function(("all_reduce",), "tensor"), Function(("all_reduce_coalesced",), "tensors")),
            also=("allreduce", "sparse_all_reduce"),
            textbook=("ring: 2S(N-1)/N from each rank", routes.ring(2, -1)),
        ),
        _GATHER,
        _ALL_GATHER,
        _SCATTER,
        Primitive(  # Gloo runs an all-reduce under torch's and sends twice what the ring would
            "reduce_scatter", "collective", PARTS, PART, "", True, comms="xs", meaning=collectives.reduce_scatter,
            busbw=SHARE,
            functions=(
                Function(("reduce_scatter",), "input_list"),
                Function(("reduce_scatter_single", "reduce_scatter_tensor"), "input", (2, 13)),
            ),
            also=("_reduce_scatter_base",),
            textbook=(_RING, routes.ring(1, -1)),
        ),
        Primitive(
            "all_to_all", "collective", PARTS, PARTS, comms="xs", meaning=collectives.all_to_all, busbw=SHARE,
            functions=(
                Function(("all_to_all",), "input_tensor_list"),
                Function(("all_to_all_single",), "input"),
            ),
            also=("alltoall", "alltoall_base"),
            textbook=("pairwise: S/N from each rank to each other one", routes.each_to_each),
        ),
        Primitive(
            "barrier", "collective", comms="", meaning=collectives.barrier,
            functions=(Function(("barrier",)), Function(("monitored_barrier",))),
            also=("all_reduce_barrier",),
            textbook=("no data", routes.nothing),
        ),
        _SEND,
        _RECV,
        Primitive(
            "send_recv", "pair", WHOLE, WHOLE, meaning=collectives.send_recv, busbw=ONCE,
            also=("batch_isend_irecv", "batch_p2p_ops"),
        ),
        _of_objects(_BROADCAST, "broadcast_object_list"),
        _of_objects(_GATHER, "gather_object"),
        _of_objects(_ALL_GATHER, "all_gather_object"),
        _of_objects(_SCATTER, "scatter_object_list"),
        _of_objects(_SEND, "send_object_list"),
        _of_objects(_RECV, "recv_object_list"),
    )
}  # fmt: skip
MEANINGS = tuple(name for name, p in PRIMITIVES.items() if p.kind == "collective" and p.gets and not p.objects)
TEXTBOOK = tuple(name for name, p in PRIMITIVES.items() if p.textbook and not p.objects)
OBJECTS = tuple(name for name, p in PRIMITIVES.items() if p.objects and p.kind == "collective")
MESSAGES = tuple(name for p in (_SEND, _RECV) for f in p.functions for name in f.names)

_BY_SPELLING = {spelling.strip("_"): p for p in PRIMITIVES.values() for spelling in p.spellings}
_HOW = re.compile(r"(_(coalesced|autograd|inplace|out|oop))+$")  # says how a call is made, and not what it does


def find(name: str) -> Primitive | None:
    """Find the primitive of any name: torch's, comms', a functional collective's, a group's, a flight recorder's.

    >>> [find(name).name for name in ("dist.isend", "all_gather_tensor", "c10d::allreduce_", "nccl:send 0->1")]
    ['send', 'all_gather', 'all_reduce', 'send']
    """
    bare = re.split("[.:]", name.partition(" ")[0].removesuffix(".default"))[-1].strip("_")
    return _BY_SPELLING.get(bare) or _BY_SPELLING.get(_HOW.sub("", bare).strip("_"))


def meant(means: str | Means) -> Primitive | None:
    """Find the primitive that a name or a function of `theory.collectives` stands for; None for another function.

    Raises `LabError` for a name whose result is not known.
    """
    if callable(means):
        return next((PRIMITIVES[name] for name in MEANINGS if PRIMITIVES[name].meaning is means), None)
    found = find(means)
    if found is None or found.name not in MEANINGS:
        raise LabError(f"{means!r} is not a primitive whose result is known. Use one of {', '.join(MEANINGS)}.")
    return found


def meaning(means: str | Means) -> Means:
    """Return `means(xs)` of a primitive's name, or the function itself.

    >>> meaning("all_reduce") is meaning(collectives.all_reduce)
    True
    """
    if callable(means):
        return means
    found = meant(means)
    assert found is not None, "a name that is not known raises"
    assert found.meaning is not None, f"{found.name} has no meaning"
    return found.meaning
