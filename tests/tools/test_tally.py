"""A table of what ranks sent and received in a few lines, without a lab."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from workbook.tools.tally import tally

MIB = 2**20


def counting(**wires: tuple[list[int] | None, list[int] | None, str]) -> Any:
    """A lab that has counted these bytes for these lines."""
    told = {code: SimpleNamespace(n=2, sent=a, received=b, why=why) for code, (a, b, why) in wires.items()}
    return SimpleNamespace(wire=lambda code: told[code])


def test_each_line_has_a_row_and_each_rank_a_column():
    lab = counting(give=([4 * MIB, 0], [0, 4 * MIB], ""), take=([0, 3 * MIB + 48], [3 * MIB + 48, 0], ""))
    assert repr(tally(lab, "take", "give")).splitlines() == [
        "MiB sent · MiB received  rank 0          rank 1",
        "take                     0.0 · 3.0       3.0 · 0.0",
        "give                     4.0 · 0.0       0.0 · 4.0",
    ]


def test_what_nothing_has_counted_is_a_dash_and_the_reason_stands_below_once():
    lab = counting(give=([4 * MIB, 0], None, "it went over NVLink"), take=(None, None, "it went over NVLink"))
    table = tally(lab, "give", "take")
    *_, give, take, why = repr(table).splitlines()
    assert (give.split(maxsplit=1)[1], take.split(maxsplit=1)[1]) == (
        "4.0 · –         0.0 · –",
        "– · –           – · –",
    )
    assert why == "– was not counted: it went over NVLink."
    assert table._repr_html_().count(why) == 1
