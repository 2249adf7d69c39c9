"""Cut descriptions of one value per rank into pieces of text, align them, and mark where the ranks disagree.

Plain data in, plain data out: no torch, no cluster, no HTML.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

from labkit.floor.words import ranks

DIGITS = 4  # significant ones; more only where two ranks would look alike and are not
WIDE = 72  # characters from which on nested values go one entry a line
BRACKETS = {"list": "[]", "tuple": "()", "dict": "{}", "set": "{}", "frozenset": "{}"}

Path = tuple[Hashable, ...]


@dataclass(frozen=True)
class Leaf:
    """One number or word of a value: its place, itself, its text, and the hint of one that stands out."""

    path: Path
    value: Any
    column: Path = ()  # leaves of one column are aligned
    text: str = ""
    hint: str = ""  # what the others hold; empty where the leaf does not stand out


Piece = str | Leaf
Rows = dict[int, list[Piece]]


def laid_out(descriptions: dict[int, dict[str, Any]]) -> Rows:
    """Cut each rank's value into pieces of text; concatenated they read like Python, with columns aligned."""
    flat = {r: _pieces(d, (), None) for r, d in descriptions.items()}
    long = any(sum(map(_length, row)) > WIDE for row in flat.values())
    nested = any("entries" in d for d in descriptions.values())
    rows = flat if nested and not long else {r: _pieces(d, (), 0) for r, d in descriptions.items()}
    marked = _marked(rows)
    widths: dict[Path, int] = {}
    for leaf in _leaves(marked):
        widths[leaf.column] = max(widths.get(leaf.column, 0), len(leaf.text))
    return {r: [part for p in row for part in _padded(p, widths)] for r, row in marked.items()}


def odd_ones(values: dict[int, Any]) -> dict[int, str]:
    """Return the ranks whose value differs from that of most ranks, with what most hold.

    >>> odd_ones({0: "a", 1: "a", 2: "b"})
    {2: 'ranks 0, 1: a'}

    Where no one value is the commonest, all ranks are odd.
    """
    counts = Counter(values.values()).most_common(2)
    if len(counts) < 2:
        return {}
    (most, count), (_, second) = counts
    if count == second:
        return dict.fromkeys(values, "the ranks disagree")
    hint = f"{ranks(r for r, v in values.items() if v == most)}: {most}"
    return {r: hint for r, v in values.items() if v != most}


def number(value: Any, digits: int = DIGITS) -> str:
    """Write a number in as few characters as say enough, the same on every machine.

    >>> number(3), number(3.0), number(0.33333334), number(12345.678), number(1.5e-8), number("nan")
    ('3', '3.0', '0.3333', '12345.7', '1.5e-08', 'nan')
    """
    if not isinstance(value, float):
        return str(value)
    if digits > 16 or not math.isfinite(value) or (value.is_integer() and abs(value) < 1e9):
        return repr(value)
    if not 1e-4 <= abs(value) < 1e6:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{exponent}"
    decimals = max(1, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}".rstrip("0")
    return text + "0" * text.endswith(".")


def _pieces(d: dict[str, Any], path: Path, indent: int | None) -> list[Piece]:
    """Cut a description into pieces; `indent` is the column where it starts, None where all goes on one line."""
    if d["kind"] in ("tensor", "array"):
        if "values" not in d:
            return [f"({d.get('note', 'no values')})"]
        opening = f"{d['kind']}(" if path else ""
        start = None if indent is None else indent + len(opening)
        body = _array(d["values"], d["shape"], path, path, start)
        return [opening, *body, ")" * bool(opening), *([] if path else _range(d))]
    if "entries" in d:
        return _container(d, path, indent)
    if d["kind"] == "object":
        return [Leaf(path, d["repr"], path)]
    if d["kind"] == "string" and d["dtype"] == "str":
        return [Leaf(path, repr(d["values"]), path)]
    return [Leaf(path, d.get("values", "None"), path)]


def _array(values: Any, shape: list[int], path: Path, column: Path, indent: int | None) -> list[Piece]:
    if not shape:
        return [Leaf(path, values, column)]
    between = ", " if len(shape) == 1 or indent is None else ",\n" + " " * (indent + 1)
    inner = None if indent is None else indent + 1
    found: list[Piece] = ["["]
    for i, value in enumerate(values):
        where = (*column, i) if len(shape) == 1 else column
        found += [between * (i > 0), *_array(value, shape[1:], (*path, i), where, inner)]
    more = [between * bool(values) + "…"] if len(values) < shape[0] else []
    return [*found, *more, "]"]


def _range(d: dict[str, Any]) -> list[Piece]:
    names = ("mean",) if d["dtype"] == "bool" else ("min", "max", "mean")
    found: list[Piece] = []
    for name in names:
        if name in d:
            found += [f"  {name} " if found else f"\n{name} ", Leaf((name,), d[name], (name,))]
    return found


def _container(d: dict[str, Any], path: Path, indent: int | None) -> list[Piece]:
    known = BRACKETS.get(d["kind"] if d["type"] in ("list", "tuple", "dict") else d["type"])
    opening, closing = (known[0], known[1]) if known else (f"{d['type']}(", ")")
    entries = d["entries"]
    nested = any(e["kind"] in ("tensor", "array") or "entries" in e for e in entries)
    split = indent is not None and nested
    start = (indent or 0) + len(opening)
    found: list[Piece] = [opening]
    for i, entry in enumerate(entries):
        name = "" if entry["key"] is None else entry["key"] + (": " if known else "=")
        between = (",\n" + " " * start if split else ", ") * (i > 0)
        key = entry["key"] if entry["key"] is not None else i
        found += [between + name, *_pieces(entry, (*path, key), start + len(name) if split else None)]
    left = d["length"] - len(entries)
    if left:
        found.append(f"{', ' * bool(entries)}… {left} more" if entries else "…")
    one = d["kind"] == "tuple" and known is not None and d["length"] == 1
    return [*found, "," * one + closing]


def _length(piece: Piece) -> int:
    return len(piece if isinstance(piece, str) else number(piece.value))


def _leaves(rows: Rows) -> list[Leaf]:
    return [p for row in rows.values() for p in row if isinstance(p, Leaf)]


def _marked(rows: Rows) -> Rows:
    """Give every leaf its text, and a hint where it stands out."""
    held: dict[Path, dict[int, Any]] = {}
    for r, row in rows.items():
        for leaf in _leaves({r: row}):
            held.setdefault(leaf.path, {})[r] = leaf.value
    texts = {path: _distinct(values) for path, values in held.items()}
    odd = {path: odd_ones(texts[path]) for path in held}
    if all(len(odd[path]) == len(rows) for path in held):  # where everything differs, marks say nothing
        odd = {path: {} for path in held}
    return {
        r: [
            replace(p, text="≠" * (r in odd[p.path]) + texts[p.path][r], hint=odd[p.path].get(r, ""))
            if isinstance(p, Leaf)
            else p
            for p in row
        ]
        for r, row in rows.items()
    }


def _distinct(values: dict[int, Any]) -> dict[int, str]:
    """Write the ranks' numbers with as many digits as tell them apart."""
    different = len({repr(v) for v in values.values()})
    texts: dict[int, str] = {}
    for digits in range(DIGITS, 18):
        texts = {r: number(v, digits) for r, v in values.items()}
        if len(set(texts.values())) == different:
            break
    return texts


def _padded(piece: Piece, widths: dict[Path, int]) -> list[Piece]:
    if isinstance(piece, str):
        return [piece] if piece else []
    is_number = isinstance(piece.value, (int, float)) or piece.value in ("nan", "inf", "-inf")
    space = " " * (widths[piece.column] - len(piece.text)) if is_number else ""
    return [space, piece] if space else [piece]
