"""Values that add: how ranks' values combine, and how flat buffers are cut into chunks and joined again.

A value is a number, anything else that adds (an `Origin` token), a numpy array, or a list of such values,
which is combined element by element. Nothing is modified. Imports neither torch nor a cluster.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
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
    "PREMUL_SUM": operator.add,  # after every rank's value was multiplied by a factor
    "PRODUCT": operator.mul,
    "MIN": _smaller,
    "MAX": _larger,
    "BAND": operator.and_,
    "BOR": operator.or_,
    "BXOR": operator.xor,
}
ALIASES = {"MEAN": "AVG", "PROD": "PRODUCT"}


def combine(xs: Sequence[Any], op: Op = "SUM", factor: Any = None) -> Any:
    """All ranks' values combined in rank order, element by element; the shapes must agree.

    `op` is SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR or PREMUL_SUM in any case, torch's own ReduceOp, or a
    function of two values. PREMUL_SUM multiplies by `factor` first, which is one number or one a rank.

    >>> combine([3, 4], "AVG"), combine([3, 4], "PREMUL_SUM", factor=[10, 1])
    (3.5, 34)
    """
    if len(xs) == 0:
        raise LabError("There is no rank to combine. Give one value a rank.")
    _check_shapes(xs)
    if callable(op):
        return functools.reduce(functools.partial(_each, op), xs[1:], copy(xs[0]))
    name = str(getattr(op, "name", op)).upper()
    name = ALIASES.get(name, name)
    if name not in PAIRWISE:
        raise LabError(f"{op!r} is no reduction. Use one of {', '.join(PAIRWISE)}.")
    if (name == "PREMUL_SUM") != (factor is not None):
        raise LabError(f"{name} got factor={factor}. Give a factor to PREMUL_SUM, and to no other reduction.")
    if factor is not None:
        factors = factor if isinstance(factor, Sequence) else [factor] * len(xs)
        xs = [_each(lambda v, f=f: v * f, x) for x, f in zip(xs, factors, strict=True)]
    try:
        total = functools.reduce(functools.partial(_each, PAIRWISE[name]), xs[1:], copy(xs[0]))
        return _each(lambda v: v / len(xs), total) if name == "AVG" else total
    except TypeError as error:
        raise LabError(f"{name} cannot combine these values ({error}). Use another op or type.") from error


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
    """The shape of a value; a list is one more dimension, and a ragged one ends in the list of its shapes."""
    if not isinstance(x, (list, tuple)):
        return tuple(getattr(x, "shape", ()))
    inner = [shape_of(v) for v in x]
    if not inner or inner.count(inner[0]) == len(inner):
        return (len(x), *(inner[0] if inner else ()))
    return (len(x), inner)


def _each(f: Callable[..., Any], *values: Any) -> Any:
    """f of values, or of their elements where they are lists."""
    if any(isinstance(v, (list, tuple)) for v in values):
        return [_each(f, *elements) for elements in zip(*values, strict=True)]
    return f(*values)


def copy(x: Any) -> Any:
    """A value that shares no list and no array with x."""
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


def leaves(value: Any) -> list[Any]:
    """The numbers, words and other atoms in a value, in order: of an array or a tensor, a list, a tuple or a dict.

    >>> leaves([np.array([1, 2]), {"a": (3, "x")}])
    [1, 2, 3, 'x']
    """
    if hasattr(value, "ravel"):  # numpy's and torch's alike
        return list(value.ravel().tolist())
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for v in value for leaf in leaves(v)] if isinstance(value, (list, tuple)) else [value]
