"""Say in words what a flow's picture shows, for a screen reader."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from labkit.floor.words import alike, ranks
from labkit.plot.tiles import Tile, flat
from labkit.show.tiles import short
from labkit.theory.provenance import Part

WORDS = {"sum": "sum", "mean": "mean", "product": "product", "mix": "mixture", "max": "maximum", "min": "minimum"}


def by_rank(said: dict[int, str]) -> str:
    """Put ranks that say the same together: "every rank holds …", "rank 0 holds …; ranks 1–3 hold nothing"."""
    groups = alike(said)
    if len(groups) == 1 and len(said) > 1:
        return f"every rank {next(iter(groups))}"
    return "; ".join(f"{ranks(rs)} {t.replace('holds', 'hold', 1) if len(rs) > 1 else t}" for t, rs in groups.items())


def listed(told: dict[str, Any], verb: str) -> str:
    """List the values that a rank holds, the first eight of them: "holds [1, 2]"."""
    if not told["size"]:
        return f"{verb} {'[]' if told['groups'] else 'nothing'}"
    values = ", ".join(short(v) for v in told["values"][:8])
    return f"{verb} [{values}{', …' if told['size'] > 8 else ''}]"


def story(
    groups: Sequence[Sequence[Tile]], parts: Sequence[tuple[int, int, Part]], told: dict[str, Any], noun: str
) -> str:
    """Say what a rank holds in the end."""
    if not told["size"]:
        return listed(told, "holds")
    if any(t.label == "undefined" for t in flat(groups)):
        return "holds nothing that is defined"
    words = []
    for (kind, who), run in groupby((p for _, _, p in parts), lambda p: (p.kind, tuple(p.origin.ranks))):
        members = list(run)
        places = sorted({i for p in members for _, i in p.origin.counts})
        twice = sorted(
            {f"rank {s} counted {t} times" for p in members for (s, _), t in p.origin.counts.items() if t > 1}
        )
        where = f"{noun}s {places[0]} to {places[-1]}" if len(places) > 1 else f"{noun} {(*places, '')[0]}"
        if kind == "own":
            words.append("values of its own")
        elif kind == "copy":
            words.append(f"rank {who[0]}'s {where}")
        else:
            counted = f", with {' and '.join(twice)}" if twice else ""
            words.append(f"the {WORDS.get(kind, kind)} over {ranks(who)} of {where}{counted}")
    shown = words[:8] + (["…"] if len(words) > 8 else [])
    return listed(told, "holds") + (f", that is {', then '.join(shown)}" if words else "")
