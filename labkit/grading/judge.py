"""What came, held against what should have come: the first difference, in words. Neither torch nor a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.errors import LabError

KINDS = {"b": "booleans", "i": "integers", "u": "integers", "f": "floats", "c": "complex numbers"}
RELATIVE = {"float16": 1e-2, "bfloat16": 5e-2, "float32": 1e-5, "float64": 1e-9}


class Sentinel:
    """A mark that stands in an expected result."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


ANY = Sentinel("ANY")  # may be what it likes
NOTHING = Sentinel("NOTHING")  # must be None


@dataclass(frozen=True)
class Difference:
    """Where a result first differs: in which words, and which element of the flat value (-1: no single one)."""

    says: str
    place: int = -1


def first_difference(
    got: Any, want: Any, tolerance: float | None = None, dtype: str = "", path: str = ""
) -> Difference | None:
    """The first place where a result is not what it should be, or None.

    `dtype` is the coarsest that the inputs or the result have, where numpy cannot tell ("bfloat16"). Numbers and
    arrays of one element count as the same; integers where floats belong do not.

    >>> first_difference([1, 5], [1, 2]).says
    'element 1 is 5, and 2 belongs there'
    """
    at = f" in {path}" if path else ""
    if want is ANY:
        return None
    if want is NOTHING or want is None:
        return None if got is None else Difference(f"{kind(got)} comes back{at}, and None belongs there")
    if got is None:
        return Difference(f"None comes back{at}, and {kind(want)} belongs there")
    if isinstance(want, dict):
        if not isinstance(got, dict):
            return Difference(f"{kind(got)} comes back{at}, and a dict belongs there")
        if set(got) != set(want):
            lacks, more = sorted(map(str, set(want) - set(got))), sorted(map(str, set(got) - set(want)))
            return Difference(f"the dict{at} {f'lacks {lacks[0]!r}' if lacks else f'has {more[0]!r} too many'}")
        pairs = [(f"[{key!r}]", got[key], want[key]) for key in want]
        return _first(pairs, tolerance, dtype, path)
    if isinstance(want, (list, tuple)) and not _flat_numbers(want):
        if not isinstance(got, (list, tuple)):
            return Difference(f"{kind(got)} comes back{at}, and a list of {len(want)} belongs there")
        if len(got) != len(want):
            return Difference(f"the list{at} has {len(got)} entries, and {len(want)} belong there")
        return _first(
            [(f"[{i}]", g, w) for i, (g, w) in enumerate(zip(got, want, strict=True))], tolerance, dtype, path
        )
    if isinstance(got, (list, tuple)) and isinstance(want, (list, tuple)) and len(got) != len(want):
        return Difference(f"the list{at} has {len(got)} entries, and {len(want)} belong there")
    if not _numeric(want):
        return None if got == want else Difference(f"{got!r:.60} comes back{at}, and {want!r:.60} belongs there")
    if not _numeric(got):
        return Difference(f"{kind(got)} comes back{at}, and {kind(want)} belongs there")
    return _numbers(
        np.asarray(got), np.asarray(want), tolerance, dtype, at, typed=isinstance(want, (np.ndarray, np.generic))
    )


def kind(value: Any) -> str:
    """What a value is, in words: "a tensor of shape (3,)", "a list of 2"."""
    if value is None:
        return "None"
    if isinstance(value, np.ndarray):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _first(pairs: Sequence[tuple[str, Any, Any]], tolerance: float | None, dtype: str, path: str) -> Difference | None:
    before = 0
    for key, got, want in pairs:
        difference = first_difference(got, want, tolerance, dtype, f"{path or 'result'}{key}")
        if difference:
            place = before + difference.place if difference.place >= 0 else -1
            return Difference(difference.says, place)
        before += size(got)
    return None


def size(value: Any) -> int:
    """How many leaves a value has."""
    if isinstance(value, np.ndarray):
        return int(value.size)
    if isinstance(value, dict):
        return sum(size(v) for v in value.values())
    return sum(size(v) for v in value) if isinstance(value, (list, tuple)) else 1


def in_order(got: Any, want: Any) -> Any:
    """A dict with its keys in the order of the right one, so that both are drawn alike; anything else as it is.

    >>> in_order({"b": 2, "a": 1}, {"a": 0, "b": 0})
    {'a': 1, 'b': 2}
    """
    alike = isinstance(got, dict) and isinstance(want, dict) and set(got) == set(want)
    return {key: got[key] for key in want} if alike else got


def _numbers(got: Any, want: Any, tolerance: float | None, dtype: str, at: str, typed: bool) -> Difference | None:
    if got.shape != want.shape and not got.size == want.size == 1:
        return Difference(f"the shape{at} is {got.shape}, and {want.shape} belongs there")
    kinds = KINDS.get(got.dtype.kind), KINDS.get(want.dtype.kind)
    if typed and kinds[0] != kinds[1] and got.size:
        return Difference(f"there are {kinds[0]} ({got.dtype}){at}, and {kinds[1]} ({want.dtype}) belong there")
    g, w = got.ravel(), want.ravel()
    same = _same(g, w, _relative(got, want, tolerance, dtype))
    if same.all():
        return None
    place = int(np.flatnonzero(~same)[0])
    index = place if got.ndim < 2 else [int(i) for i in np.unravel_index(place, got.shape)]
    a, b = _text(g[place]), _text(w[place])
    if a == b:
        a, b = repr(g[place].item()), repr(w[place].item())
    return Difference(f"element {index}{at} is {a}, and {b} belongs there", place)


def _same(g: Any, w: Any, relative: float) -> Any:
    if not relative or (g.dtype.kind in "biu" and w.dtype.kind in "biu"):
        return (g == w) | ((g != g) & (w != w))
    finite = w[np.isfinite(w)]
    scale = float(np.abs(finite).max()) if finite.size else 0.0
    with np.errstate(invalid="ignore"):
        near = np.abs(g.astype(complex) - w.astype(complex)) <= relative * max(scale, 1e-30)
    return near & np.isfinite(g) & np.isfinite(w) | (g == w) | ((g != g) & (w != w))


def _relative(got: Any, want: Any, tolerance: float | None, dtype: str) -> float:
    if tolerance is not None:
        return tolerance
    return max(RELATIVE.get(name, 0.0) for name in (str(got.dtype), str(want.dtype), dtype))


def _text(value: Any) -> str:
    number = value.item()
    return f"{number:.6g}" if isinstance(number, float) else str(number)


def _numeric(value: Any) -> bool:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.kind in KINDS
    return isinstance(value, (bool, int, float, complex)) or (isinstance(value, (list, tuple)) and _flat_numbers(value))


def _flat_numbers(value: Sequence[Any]) -> bool:
    return bool(value) and all(_single(v) for v in value)


def _single(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.shape == () and value.dtype.kind in KINDS
    return isinstance(value, (bool, int, float, complex, np.generic))


def check_length(outs: Sequence[Any], n: int) -> None:
    """Refuse a meaning that does not say what every rank must end with."""
    if not isinstance(outs, (list, tuple)) or len(outs) != n:
        raise LabError(f"means(xs) returned {kind(outs)} for {n} ranks. Return a list with one result a rank.")
