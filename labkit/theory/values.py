"""Values that add: how ranks' values combine, and how flat buffers are cut into chunks and joined again.

A value is a number, anything else that adds (an `Origin` token), a numpy array, or a list of such values,
which is combined element by element. Nothing is modified.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from labkit.floor.errors import LabError

Op = str | Callable[[Any, Any], Any]


def _smaller(a: Any, b: Any) -> Any:
    return np.minimum(a, b) if isinstance(a, np.ndarray) else min(a, b)


def _larger(a: Any, b: Any) -> Any:
    return np.maximum(a, b) if isinstance(a, np.ndarray) else max(a, b)


PAIRWISE: dict[str, Callable[[Any, Any], Any]] = {
    "SUM": operator.add,
    "AVG": operator.add,  # then divided by the number of ranks
    "PRODUCT": operator.mul,
    "MIN": _smaller,
    "MAX": _larger,
    "BAND": operator.and_,
    "BOR": operator.or_,
    "BXOR": operator.xor,
}
ALIASES = {"MEAN": "AVG", "PROD": "PRODUCT"}


def combine(xs: Sequence[Any], op: Op = "SUM") -> Any:
    """Combine all ranks' values in rank order, element by element; the shapes must agree.

    `op` is SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR or BXOR in any case, torch's ReduceOp, or a function of two values.

    >>> combine([3, 4], "AVG")
    3.5
    """
    if len(xs) == 0:
        raise LabError("There are no values to combine. Give one value for each rank.")
    _check_shapes(xs)
    if callable(op):
        return functools.reduce(functools.partial(_each, op), xs[1:], copy(xs[0]))
    name = str(getattr(op, "name", op)).upper()
    name = ALIASES.get(name, name)
    if name not in PAIRWISE:
        raise LabError(f"{op!r} is not a reduction. Use one of {', '.join(PAIRWISE)}.")
    try:
        total = functools.reduce(functools.partial(_each, PAIRWISE[name]), xs[1:], copy(xs[0]))
        return _each(lambda v: _divided(v, len(xs)), total) if name == "AVG" else total
    except TypeError as error:
        raise LabError(f"{name} cannot combine these values ({error}). Use another op or type.") from error


def _divided(x: Any, n: int) -> Any:
    """Divide by n. A float of numpy keeps its dtype, also where numpy 1 would make a 0-d float32 a float64."""
    mean = x / n
    return mean.astype(x.dtype) if isinstance(x, (np.ndarray, np.floating)) and x.dtype.kind == "f" else mean


def split(x: Any, n: int) -> list[Any]:
    """Cut a flat buffer into n chunks, the first ones an element longer where n does not divide it.

    >>> split([1, 2, 3, 4, 5], 2)
    [[1, 2, 3], [4, 5]]
    """
    return cut(x, [len(x) // n + (i < len(x) % n) for i in range(n)])


def cut(x: Any, splits: Sequence[int]) -> list[Any]:
    """Cut a flat buffer into chunks of the given lengths; an array's chunks are views of it.

    >>> cut([1, 2, 3], [1, 2])
    [[1], [2, 3]]
    """
    if sum(splits) != len(x) or any(s < 0 for s in splits):
        raise LabError(f"Splits {list(splits)} do not cut {len(x)} elements. Make their sum {len(x)}.")
    ends = [sum(splits[: i + 1]) for i in range(len(splits))]
    return [x[end - size : end] for size, end in zip(splits, ends, strict=True)]


def join(chunks: Sequence[Any]) -> Any:
    """Put flat chunks behind one another: `join(split(x, n))` is x.

    >>> join([[1, 2], [], [3]])
    [1, 2, 3]
    """
    if any(isinstance(chunk, np.ndarray) for chunk in chunks):
        return np.concatenate(chunks)
    return [element for chunk in chunks for element in chunk]


def shape_of(x: Any) -> tuple[Any, ...]:
    """Return the shape of a value; a list is one more dimension, and a ragged one ends in the list of its shapes."""
    if not isinstance(x, (list, tuple)):
        return tuple(getattr(x, "shape", ()))
    inner = [shape_of(v) for v in x]
    if not inner or inner.count(inner[0]) == len(inner):
        return (len(x), *(inner[0] if inner else ()))
    return (len(x), inner)


def _each(f: Callable[..., Any], *values: Any) -> Any:
    """Apply f to values, or to their elements where they are lists."""
    if any(isinstance(v, (list, tuple)) for v in values):
        return [_each(f, *elements) for elements in zip(*values, strict=True)]
    return f(*values)


def copy(x: Any) -> Any:
    """Return a value that shares no list and no array with x."""
    if isinstance(x, (list, tuple)):
        return [copy(v) for v in x]
    return x.copy() if isinstance(x, np.ndarray) else x


def _check_shapes(xs: Sequence[Any]) -> None:
    first = shape_of(xs[0])
    for r, x in enumerate(xs):
        if shape_of(x) != first:
            raise LabError(
                f"Ranks disagree on shape: rank {r} holds {shape_of(x)}, rank 0 holds {first}. "
                "Give every rank the same shape."
            )


def atoms(value: Any) -> Iterator[Any]:
    """Yield what is in a value's lists, tuples and dicts, in order: arrays, numbers, words.

    >>> list(atoms([1, {"a": (2, "x")}]))
    [1, 2, 'x']
    """
    if isinstance(value, (dict, list, tuple)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from atoms(inner)
    else:
        yield value


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Return the same structure of lists, tuples and dicts with every atom changed.

    >>> mapped(abs, [-1, {"a": (-2,)}])
    [1, {'a': (2,)}]
    """
    if isinstance(value, dict):
        return {key: mapped(change, inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(change, inner) for inner in value)
    return change(value)


def leaves(value: Any) -> list[Any]:
    """List the numbers, words and other single things in a value, in order; an array or a tensor has its elements.

    >>> leaves([np.array([1, 2]), {"a": (3, "x")}])
    [1, 2, 3, 'x']
    """
    has = (a.ravel().tolist() if hasattr(a, "ravel") else [a] for a in atoms(value))  # numpy's and torch's alike
    return [leaf for several in has for leaf in several]
