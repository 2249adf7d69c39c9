"""What came, held against what should have come: the first difference, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from labkit.floor.errors import LabError
from labkit.theory import values

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


ROOM = 2**20  # bytes that any result may have to be told


class Large(Sentinel):
    """A result that stayed on its rank: it is far larger than the right one, and its name is what it is."""


def most(want: Any) -> int:
    """Return how many bytes a result may have to be held against this one: far more than a right one has."""
    free = sum(64 * ROOM for atom in values.atoms(want) if atom is None or atom is ANY)
    return max(ROOM, free + sum(4 * atom.nbytes for atom in values.atoms(want) if isinstance(atom, np.ndarray)))


@dataclass(frozen=True)
class Difference:
    """Where a result first differs: in which words, and which element of the flat value (-1: no single one)."""

    says: str
    place: int = -1


@dataclass(frozen=True)
class Rule:
    """How exactly a result must be the right one.

    Args:
        tolerance: relative error that is forgiven; None goes by the dtypes.
        dtype: the coarsest dtype of the inputs, where numpy cannot tell ("bfloat16").
        floor: the largest number that an error is relative to, where the result's own are smaller.
        dtypes: whether a tensor must have the right one's dtype, and not its kind alone.
    """

    tolerance: float | None = None
    dtype: str = ""
    floor: float = 0.0
    dtypes: bool = False


BY_DTYPES = Rule()
SAME, NEAR = Rule(1e-6), Rule(1e-3)  # the same but for rounding; near enough to tell a slip


def first_difference(got: Any, want: Any, rule: Rule = BY_DTYPES, path: str = "") -> Difference | None:
    """Find where a result is first not what it should be, or None; `path` names the result in words.

    Numbers and arrays of one element count as the same; integers where floats belong do not.

    >>> first_difference([1, 5], [1, 2]).says
    'element 1 is 5, and should be 2'
    """
    at = f" in {path}" if path else ""
    if want is ANY or (isinstance(want, Sentinel) and repr(got) == repr(want)):
        return None
    if want is NOTHING or want is None:
        return None if got is None else Difference(f"{kind(got)} comes back{at}, and None should")
    if got is None or isinstance(got, Large):
        return Difference(f"{kind(got)} comes back{at}, and {kind(want)} should")
    if isinstance(want, dict):
        if not isinstance(got, dict):
            return Difference(f"{kind(got)} comes back{at}, and a dict should")
        if set(got) != set(want):
            lacks, more = sorted(map(str, set(want) - set(got))), sorted(map(str, set(got) - set(want)))
            return Difference(f"the dict{at} {f'lacks {lacks[0]!r}' if lacks else f'has {more[0]!r} too many'}")
        pairs = [(f"[{key!r}]", got[key], want[key]) for key in want]
        return _first(pairs, rule, path)
    came_listed, listed = isinstance(got, (list, tuple)), isinstance(want, (list, tuple))
    nested = listed and not _flat_numbers(want)
    if nested and not came_listed:
        return Difference(f"{kind(got)} comes back{at}, and a list of {len(want)} should")
    if listed and came_listed and len(got) != len(want):
        has = "1 entry" if len(got) == 1 else f"{len(got)} entries"
        return Difference(f"the list{at} has {has}, and should have {len(want)}")
    if nested:
        return _first([(f"[{i}]", g, w) for i, (g, w) in enumerate(zip(got, want, strict=True))], rule, path)
    if not _numeric(want):
        return None if got == want else Difference(f"{got!r:.60} comes back{at}, and {want!r:.60} should")
    if not _numeric(got) or (rule.dtypes and came_listed and isinstance(want, np.ndarray)):
        return Difference(f"{kind(got)} comes back{at}, and {kind(want)} should")
    typed, tensor = isinstance(want, (np.ndarray, np.generic)), isinstance(got, np.ndarray)
    exact = rule.dtypes and typed and tensor
    got, want = np.asarray(got), np.asarray(want)
    if not tensor and want.dtype.kind == "f" and not rule.dtype:  # what was a float32 once, and made of integers
        rule = replace(rule, dtype="float32")
    return _numbers(got, want, rule, at, typed, exact)


def factor(pairs: Sequence[tuple[Any, Any]], n: int) -> str:
    """Say whether results of n ranks differ by one factor that a usual slip makes; "" where not.

    `pairs` are what came and what should have come.

    >>> factor([([2.0, 6.0, 5.0], [1.0, 3.0, 5.0])], 2)
    'What differs is 2 times what it should be: the sum over 2 ranks, and not their mean?'
    """
    off = [pair for got, want in pairs for pair in _off(got, want)]
    if len({w for _, w in off}) < 2 or not all(isinstance(w, float) for _, w in off):
        return ""  # one number may be anything
    if not any(first_difference(g, n * w, NEAR) for g, w in off):
        return f"What differs is {n} times what it should be: the sum over {n} ranks, and not their mean?"
    if not any(first_difference(n * g, w, NEAR) for g, w in off):
        return f"What differs is 1/{n} of what it should be: divided by the number of ranks once too often?"
    if not any(first_difference(-g, w, NEAR) for g, w in off):
        return "What differs has the wrong sign."
    return ""


def rounded(pairs: Sequence[tuple[Any, Any]]) -> bool:
    """Tell whether what came are the right float64 numbers, rounded to float32 on the way; pairs as in `factor`.

    >>> rounded([([float(np.float32(1 / 3)), 2.0], [1 / 3, 2.0])])
    True
    """
    both = [(values.leaves(got), values.leaves(want)) for got, want in pairs]
    if not all(isinstance(v, float) for came, meant in both for v in [*came, *meant]):
        return False
    alike = all(came == np.array(meant, "float32").tolist() for came, meant in both)
    return alike and any(came != meant for came, meant in both)


def own(results: Sequence[tuple[Any, Any, Any]]) -> bool:
    """Tell whether all that differs are numbers that the same rank brought; a result is (what came, what should, x).

    >>> own([([12.0, 3.0], [2.0, 3.0], (11.0, 12.0))])
    True
    """
    return all((off := _off(got, want)) and {g for g, _ in off} <= set(values.leaves(x)) for got, want, x in results)


def _off(got: Any, want: Any) -> list[tuple[float, float]]:
    """Pair the numbers that differ with what they should be; none where the two are not alike."""
    came, meant = values.leaves(got), values.leaves(want)
    if len(came) != len(meant) or not all(isinstance(v, (int, float)) or v is ANY for v in [*came, *meant]):
        return []
    return [(g, w) for g, w in zip(came, meant, strict=True) if first_difference(g, w, NEAR)]


def kind(value: Any) -> str:
    """Say what a value is: "a tensor of shape (3,)", "a list of 2"."""
    if value is None or isinstance(value, Large):
        return repr(value)
    if isinstance(value, np.ndarray):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}" if value else f"an empty {type(value).__name__}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _first(pairs: Sequence[tuple[str, Any, Any]], rule: Rule, path: str) -> Difference | None:
    before = 0
    for key, got, want in pairs:
        difference = first_difference(got, want, rule, f"{path or 'result'}{key}")
        if difference:
            place = before + difference.place if difference.place >= 0 else -1
            return Difference(difference.says, place)
        before += size(got)
    return None


def size(value: Any) -> int:
    """Count the numbers, words and other single things in a value."""
    return sum(int(a.size) if isinstance(a, np.ndarray) else 1 for a in values.atoms(value))


def in_order(got: Any, want: Any) -> Any:
    """Put a dict's keys in the order of the right one, so that both are drawn alike.

    >>> in_order({"b": 2, "a": 1}, {"a": 0, "b": 0})
    {'a': 1, 'b': 2}
    """
    alike = isinstance(got, dict) and isinstance(want, dict) and set(got) == set(want)
    return {key: got[key] for key in want} if alike else got


def _numbers(got: Any, want: Any, rule: Rule, at: str, typed: bool, exact: bool) -> Difference | None:
    if got.shape != want.shape and not got.size == want.size == 1:
        return Difference(f"the shape{at} is {got.shape}, and should be {want.shape}")
    kinds = KINDS.get(got.dtype.kind), KINDS.get(want.dtype.kind)
    if typed and kinds[0] != kinds[1] and got.size:
        return Difference(f"there are {kinds[0]} ({got.dtype}){at}, and should be {kinds[1]} ({want.dtype})")
    g, w = got.ravel(), want.ravel()
    same = _same(g, w, _relative(got, want, rule), rule.floor)
    if same.all():
        if exact and got.dtype != want.dtype:
            return Difference(f"the numbers{at} are right, their dtype is {got.dtype} and should be {want.dtype}")
        return None
    place = int(np.flatnonzero(~same)[0])
    index = place if got.ndim < 2 else [int(i) for i in np.unravel_index(place, got.shape)]
    a, b = _text(g[place]), _text(w[place])
    if a == b:
        a, b = repr(g[place].item()), repr(w[place].item())
    return Difference(f"element {index}{at} is {a}, and should be {b}", place)


def largest(value: Any) -> float:
    """Return the largest finite number in a value's arrays, without its sign; 0 where there is none."""
    arrays = [a for a in values.atoms(value) if isinstance(a, np.ndarray) and a.dtype.kind in "biuf"]
    return max((float(np.abs(a[np.isfinite(a)].astype(float)).max(initial=0.0)) for a in arrays), default=0.0)


def _same(g: Any, w: Any, relative: float, floor: float) -> Any:
    if not relative or (g.dtype.kind in "biu" and w.dtype.kind in "biu"):
        return (g == w) | ((g != g) & (w != w))
    finite = w[np.isfinite(w)]
    scale = max(float(np.abs(finite).max()) if finite.size else 0.0, floor)
    with np.errstate(invalid="ignore"):
        near = np.abs(g.astype(complex) - w.astype(complex)) <= relative * max(scale, 1e-30)
    return near & np.isfinite(g) & np.isfinite(w) | (g == w) | ((g != g) & (w != w))


def _relative(got: Any, want: Any, rule: Rule) -> float:
    if rule.tolerance is not None:
        return rule.tolerance
    dtypes = (str(want.dtype), rule.dtype) if rule.dtypes else (str(got.dtype), str(want.dtype), rule.dtype)
    return max(RELATIVE.get(name, 0.0) for name in dtypes)


def _text(value: Any) -> str:
    number = value.item()
    return f"{number:.6g}" if isinstance(number, float) else str(number)


def _numeric(value: Any) -> bool:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.kind in KINDS
    return isinstance(value, (bool, int, float, complex)) or (isinstance(value, (list, tuple)) and _flat_numbers(value))


def _flat_numbers(value: Sequence[Any]) -> bool:
    return all(_single(v) for v in value)


def _single(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.shape == () and value.dtype.kind in KINDS
    return isinstance(value, (bool, int, float, complex, np.generic))


def check_length(outs: Sequence[Any], n: int) -> None:
    """Refuse a meaning that does not say what every rank must end with."""
    if not isinstance(outs, (list, tuple)) or len(outs) != n:
        raise LabError(f"means(xs) returned {kind(outs)} for {n} ranks. Return a list with one result for each rank.")
