"""Say the dozen calls that lessons are made of, for `lab.help`."""

from __future__ import annotations

from html import escape
from typing import Any

from labkit.show.table import cell, row, table

CALLS = {
    "%%px": "run this cell on every rank; %%px --targets 0 or 1:3 on some of them",
    "%%flow x": "run this cell on every rank and draw x before and after; --predict lets you fill in the tiles first",
    'lab.look("x")': "what each rank holds in x",
    'lab.wire("dist.all_reduce(x)")': "run this on every rank and count the bytes from each rank to each other one",
    "lab.last.timeline()": "who did what when in the last cell that ran on the ranks",
    "lab.why()": "why a cell hangs, or hung, and who waits for whom",
    'lab.exercise("f")': "the card of an exercise; .hint() and .solution() help, .mine() brings your attempt back",
    'lab.check("f")': "run your function f on 2, 3 and 4 ranks, and say what is right or wrong",
    'lab.use("f")': "give all ranks your f if it was right, else the workbook's",
    "lab.progress()": "what you have done and what is next; lab.progress(way=…) shows your place on a way",
    "lab.heal()": "bring back every rank that hangs or has died; the others keep their variables",
    "lab.stop()": "end the ranks; lab = start() starts new ones, start(8) eight",
}


class Help:
    """The calls and what they do, a line each."""

    caption = "What a lesson's cells call. A name with ?? shows its code, as in timed??"

    def __repr__(self) -> str:
        wide = max(map(len, CALLS))
        return "\n".join([self.caption, *(f"{call:<{wide}}  {does}" for call, does in CALLS.items())])

    def _repr_html_(self) -> str:
        rows = [row(f"<code>{escape(call)}</code>", [cell(escape(does), "does")]) for call, does in CALLS.items()]
        return table("help", escape(self.caption), ["call", "what it does"], rows)


def show(_: Any) -> Help:
    """Show the dozen calls that matter, each with what it does."""
    return Help()
