"""Show an expression on every rank, one row per rank, differences marked, for `lab.look`. No torch, no cluster."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from labkit.floor.words import alike, ranks
from labkit.show.compare import Leaf, Piece, laid_out, odd_ones
from labkit.show.table import cell, row, table

FACTS = ("shape", "type", "device")
CODE = "white-space: pre; font-family: monospace"
ODD = "font-weight: bold; text-decoration: underline; background-color: rgba(230, 159, 0, 0.25)"


class Look:
    """An expression's value on every rank as a table: of a long tensor the first part; `lab.pull` fetches all."""

    def __init__(self, expression: str, descriptions: Sequence[dict[str, Any]]) -> None:
        self.expression = expression
        self._all = list(descriptions)
        self._held = {r: d for r, d in enumerate(self._all) if "kind" in d}
        self._pieces = laid_out(self._held)
        self._facts = {r: _facts(d) for r, d in self._held.items()}
        self._odd = _odd_facts(self._facts)

    @property
    def note(self) -> str:
        """The ranks' agreement in one phrase: "same on all ranks", "rank 2 differs"."""
        if not self._held:
            missing = next((d for d in self._all if "missing" in d), None)
            return f"no rank has {_name(missing, self.expression)}; a %%px cell can make it" if missing else ""
        groups = alike({r: d.get("digest") or json.dumps(d, sort_keys=True) for r, d in self._held.items()})
        *others, most = sorted(groups.values(), key=len)
        everyone = len(self._held) == len(self._all)
        if len(self._held) == 1:
            return ""
        if not others:
            return f"same on {'all ranks' if everyone else ranks(most)}"
        if len(most) == 1:
            said = f"different on {'every rank' if everyone else ranks(self._held)}"
        elif len(most) > len(others[-1]):
            odd = [r for group in others for r in group]
            said = f"{ranks(odd)} {'differs' if len(odd) == 1 else 'differ'}"
        else:
            said = "; ".join(f"{ranks(g)} {'agree' if len(g) > 1 else 'alone'}" for g in groups.values())
        rows = {"".join(map(_plain, self._pieces[r])) + str(self._facts[r]) for r in self._held}
        return said + " beyond the part shown" * (len(rows) == 1)

    def __repr__(self) -> str:
        first = next(iter(self._facts.values()), {})
        common = {k: v for k, v in first.items() if v and all(f[k] == v for f in self._facts.values())}
        lines = [" · ".join(filter(None, [self.expression, *map(_said, common.items()), self.note]))]
        label = len(f"rank {len(self._all) - 1}")
        for r, d in enumerate(self._all):
            if r in self._held:
                facts = [(k, v) for k, v in self._facts[r].items() if k not in common]
                own = ["≠" * (r in self._odd[k]) + _said((k, v)) for k, v in facts]
                own = list(filter(None, own))
                text = "".join(map(_plain, self._pieces[r])) + f"  ({', '.join(own)})" * bool(own)
            else:
                text = _absence(d, r, self.expression)
            lines += [f"{f'rank {r}':<{label}} │ {line}" for line in text.split("\n")]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        columns = [k for k in FACTS if any(f[k] for f in self._facts.values())]
        leaves = [p for pieces in self._pieces.values() for p in pieces if isinstance(p, Leaf)]
        marks = any(leaf.hint for leaf in leaves) or any(self._odd.values())
        note = " · ".join(filter(None, [escape(self.note), "≠ marks what differs" * marks]))
        caption = f'<code style="white-space: nowrap">{escape(self.expression)}</code> {note}'
        rows = (row(str(r), self._cells(r, columns)) for r in range(len(self._all)))
        return table("look", caption, ["rank", "value", *columns], rows)

    def _cells(self, r: int, columns: list[str]) -> list[str]:
        if r not in self._held:
            said = escape(_absence(self._all[r], r, self.expression))
            return [cell(f"<em>{said}</em>", "value", 1 + len(columns))]
        value = "".join(map(_html, self._pieces[r]))
        facts = {k: (escape(self._facts[r][k]), self._odd[k].get(r)) for k in columns}
        return [
            cell(f'<span style="{CODE}">{value}</span>', "value"),
            *(cell(_bold(f"≠{text}", hint) if hint else text, k) for k, (text, hint) in facts.items()),
        ]


def _facts(d: dict[str, Any]) -> dict[str, str]:
    """Return what a description says besides the value."""
    shape = f"({', '.join(map(str, d['shape']))}{',' * (len(d['shape']) == 1)})" if "shape" in d else ""
    kind = d.get("dtype") or d.get("type", "")
    if "parameters" in d:
        kind += f", {d['parameters']} parameters"
    elif "length" in d and d["kind"] != "string":
        kind += f" of {d['length']}"
    if d.get("requires_grad"):
        kind += ", requires grad"
    if "note" in d and "values" in d:
        kind += f", {d['note']}"
    return {"shape": shape, "type": kind, "device": d.get("device", "")}


def _odd_facts(facts: dict[int, dict[str, str]]) -> dict[str, dict[int, str]]:
    """Return where a rank's shape, type or kind of device is not that of most; cuda:0 and cuda:1 are alike."""
    return {k: odd_ones({r: f[k].split(":")[0] if k == "device" else f[k] for r, f in facts.items()}) for k in FACTS}


def _said(fact: tuple[str, str]) -> str:
    return f"shape {fact[1]}" if fact[0] == "shape" and fact[1] else fact[1]


def _name(d: dict[str, Any], expression: str) -> str:
    return d.get("name") or expression


def _absence(d: dict[str, Any], r: int, expression: str) -> str:
    if "missing" in d:
        return f"rank {r} has no {_name(d, expression)}"
    if "dead" in d:
        return f"rank {r} is dead"
    return str(d.get("error", f"rank {r} does not answer"))


def _plain(piece: Piece) -> str:
    return piece if isinstance(piece, str) else piece.text


def _html(piece: Piece) -> str:
    text = escape(_plain(piece))
    return _bold(text, piece.hint) if isinstance(piece, Leaf) and piece.hint else text


def _bold(text: str, hint: str) -> str:
    return f'<b title="{escape(hint)}" style="{ODD}">{text}</b>'
