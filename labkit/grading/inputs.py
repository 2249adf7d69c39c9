"""Inputs for a learner's function: for n ranks, cases from the readable to the odd, the empty and the large.

Arrays become tensors on the ranks. Deterministic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np

from labkit.theory.values import atoms, mapped

WIDTHS = {"bfloat16": 2, "float16": 2}  # bytes of a float, of the dtypes that a case names


@dataclass(frozen=True)
class Case:
    """One run: rank r calls the function with `xs[r]`.

    A tuple is spread into several arguments, () is none; arrays become tensors. `options` are keyword arguments,
    equal on all ranks, for the function and for its meaning. `dtype` names what numpy lacks ("bfloat16").
    `about` says in words what is special.
    """

    xs: Sequence[Any]
    about: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = ""

    @property
    def n(self) -> int:
        """The number of ranks that run it."""
        return len(self.xs)

    @property
    def item(self) -> int:
        """The bytes of its widest element."""
        return max((self._width(a) for x in self.xs for a in arrays(x)), default=0)

    @property
    def size(self) -> int:
        """The bytes of the largest rank's input."""
        return max((sum(a.size * self._width(a) for a in arrays(x)) for x in self.xs), default=0)

    def _width(self, a: np.ndarray) -> int:
        return WIDTHS.get(self.dtype, a.itemsize) if a.dtype.kind == "f" else a.itemsize


def times(x: Any, factor: float | Callable[[np.ndarray], float]) -> Any:
    """Multiply every floating-point array in a value by a factor, or by what a function says of that array.

    A float64 gets some more digits, which float32 cannot hold.

    >>> times({"weight": np.array([1, 2], "float32"), "labels": np.array([1, 2])}, 1.5)
    {'weight': array([1.5, 3. ], dtype=float32), 'labels': array([1, 2])}
    """

    def multiplied(a: Any) -> Any:
        if not isinstance(a, np.ndarray) or a.dtype.kind != "f":
            return a
        by = factor(a) if callable(factor) else factor
        return np.asarray(a * (by + (by - 1) / 2**18 * (a.dtype == "float64")), a.dtype)

    return mapped(multiplied, x)


def varied(case: Case, factors: Sequence[float], chance: Random) -> Case:
    """Multiply every floating-point array of each rank by one of the factors.

    What is equal on two ranks stays so. A case whose dtype numpy lacks, or without such an array, stays as it is.

    >>> varied(Case(counting(2, 2)), [1.5], Random(0)).xs
    [array([0. , 1.5], dtype=float32), array([15. , 16.5], dtype=float32)]
    """
    floats = [{_content(a) for a in arrays(x) if a.dtype.kind == "f" and a.size} for x in case.xs]
    on_ranks = Counter(content for mine in floats for content in mine)
    if case.dtype or not on_ranks:
        return case
    common = chance.choice(factors)
    own = [chance.choice(factors) for _ in case.xs]

    def by(own: float) -> Callable[[np.ndarray], float]:
        return lambda a: own if on_ranks[_content(a)] == 1 else common

    xs = [times(x, by(f)) for x, f in zip(case.xs, own, strict=True)]
    used = {f for f, mine in zip(own, floats, strict=True) if any(on_ranks[content] == 1 for content in mine)}
    used |= {common} if max(on_ranks.values()) > 1 else set()
    about = f"its numbers times {' or '.join(f'{f:.10g}' for f in sorted(used))}"
    return replace(case, xs=xs, about=", ".join(filter(None, [case.about, about])))


def _content(a: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    return a.dtype.name, a.shape, a.tobytes()


def counting(n: int, size: int, dtype: str = "float32") -> list[np.ndarray]:
    """Make readable numbers: rank r's element i is 10·r + i (100·r + i where there are more than ten).

    >>> [x.tolist() for x in counting(2, 3)]
    [[0.0, 1.0, 2.0], [10.0, 11.0, 12.0]]
    """
    step = 10 if size <= 10 else 100
    return [(np.arange(size) + step * r).astype(dtype) for r in range(n)]


def draws(n: int, sizes: int | Sequence[int], dtype: str = "float32", seed: int = 0) -> list[np.ndarray]:
    """Draw whole numbers from -50 to 50 for every rank; sums of them are exact in every order and dtype."""
    rng = np.random.default_rng([seed, n])
    each = [sizes] * n if isinstance(sizes, int) else sizes
    return [rng.integers(-50, 51, size).astype(dtype) for size in each]


def normals(
    n: int, rng: np.random.Generator, shapes: Iterable[Any], dtype: str = "float32"
) -> list[tuple[np.ndarray, ...]]:
    """Draw from a normal distribution: for each rank a tuple of arrays of these shapes."""
    return [tuple(rng.normal(size=shape).astype(dtype) for shape in shapes) for _ in range(n)]


def vectors(n: int) -> list[Case]:
    """Make flat buffers of one size on all ranks: sizes that n divides and others, one, none, several dtypes.

    >>> [len(case.xs[0]) for case in vectors(2)]
    [4, 3, 1, 0, 7, 4, 6, 514]
    """
    return [
        Case(counting(n, 2 * n)),
        Case(counting(n, n + 1), f"{n + 1} elements, which {n} does not divide"),
        Case(counting(n, 1), "one element"),
        Case(counting(n, 0), "no element"),
        Case(draws(n, 3 * n + 1), "negative numbers"),
        Case(draws(n, 2 * n, "int64", 1), "integers"),
        Case(draws(n, 3 * n, "float64", 2), "float64"),
        Case(draws(n, 257 * n, seed=3), f"{257 * n} elements"),
    ]


def divisible(n: int) -> list[Case]:
    """Make the cases of `vectors` whose size n divides."""
    return [case for case in vectors(n) if len(case.xs[0]) % n == 0]


def chunked(n: int) -> list[Case]:
    """Make a list of n chunks on every rank, which are of equal length everywhere."""
    return [Case([np.split(x, n) for x in case.xs], case.about) for case in divisible(n)]


def uneven(n: int) -> list[Case]:
    """Make flat buffers of a different size on each rank; some of them bring nothing."""
    sizes = [r + 1 for r in range(n)]
    return [
        Case([np.arange(float(s), dtype="float32") + 10 * r for r, s in enumerate(sizes)], "uneven sizes"),
        Case(draws(n, sizes[::-1], seed=4), "the last rank brings least"),
        Case(draws(n, [0, *sizes[1:]], seed=5), "rank 0 brings nothing"),
        Case(draws(n, [3] + [0] * (n - 1), seed=6), "only rank 0 brings something"),
        Case(draws(n, [7 * s for s in sizes], "float64", 7), "float64"),
    ]


def options(names: str, *rows: Sequence[Any]) -> Callable[[int], list[Case]]:
    """Make cases without an argument: a row is what is special about one, and its options in the order of their names.

    >>> options("rows data", ("two copies", 64, 2), ("no copies", 64, 1))(2)[0]
    Case(xs=[(), ()], about='two copies', options={'rows': 64, 'data': 2}, dtype='')
    """
    return lambda n: [Case([()] * n, row[0], dict(zip(names.split(), row[1:], strict=True))) for row in rows]


def arrays(x: Any) -> list[np.ndarray]:
    """List all arrays in an input.

    >>> len(arrays({"weight": np.ones(2), "bias": [np.ones(1)]}))
    2
    """
    return [a for a in atoms(x) if isinstance(a, np.ndarray)]
