"""`Phrasebook("torch", "nccl")`: each call in the words of these systems, what was run, and the traps."""

from __future__ import annotations

import re
from html import escape

from labkit.show import markdown
from labkit.show.table import cell, row, table
from workbook.tools.elsewhere import programs, ten_lines
from workbook.tools.elsewhere.phrases import CALLS, TONGUES, TRAPS, Tongue, find

RAN = "●"
NBSP = "\N{NO-BREAK SPACE}"
BREAKS = re.compile(r", |\.(?=\w)|\((?!\))")  # what a line may end with


class Phrasebook:
    """A table with a row for each call and a column for each system; without a name all eight.

    >>> Phrasebook("torch", "nccl").ran("all_reduce", find("torch"))
    True

    Args:
        systems: among torch, mpi, mpi4py, nccl, rccl, horovod, tensorflow, deepspeed.

    Raises `LabError` for another system.
    """

    def __init__(self, *systems: str) -> None:
        self.tongues = [find(name) for name in systems or TONGUES]
        self._programs = {
            name: ((programs.SCRIPTS / system.program).read_text(encoding="utf-8"), programs.record(system))
            for name, system in ten_lines.SYSTEMS.items()
        }

    def ran(self, call: str, tongue: Tongue) -> bool:
        """Tell whether this was run: its program makes the call, and the record has the result."""
        if not tongue.program:
            return False
        source, told = self._programs[tongue.program]
        called = re.findall(r"[\w.]+\.\w+", CALLS[call][tongue.name].partition("=")[0])
        made = bool(called) and all(name in source for name in called)
        return made and not isinstance(told.rows.get(call, []), str)

    @property
    def about(self) -> list[str]:
        """For each column a sentence: when it was run, or where it was read."""
        return [
            f"{tongue.title}: {RAN} was run on {self._programs[tongue.program][1].recorded}."
            if tongue.program
            else f"{tongue.title}: read in {tongue.read}; not run."
            for tongue in self.tongues
        ]

    @property
    def traps(self) -> list[str]:
        """The traps of these columns, each with the systems that it is about: "NCCL: **In place** means …"."""
        about = [([t.title for t in self.tongues if t.name in names], text) for names, text in TRAPS]
        return [f"{', '.join(titles)}: {text}" for titles, text in about if titles]

    def __repr__(self) -> str:
        lines = []
        for call, said in CALLS.items():
            lines.append(call)
            for t in self.tongues:
                lines.append(f"  {t.title:18} {RAN if self.ran(call, t) else ' '} {said[t.name] or '–'}")
        return "\n".join([*lines, "", *self.about, *(f"✗ {text}".replace("**", "") for text in self.traps)])

    def _repr_html_(self) -> str:
        rows = [row(escape(call), [self._cell(call, tongue) for tongue in self.tongues]) for call in CALLS]
        columns = ["call", *(escape(tongue.title) for tongue in self.tongues)]
        traps = markdown.html("\n".join(f"- {text}" for text in self.traps))
        about = "<br>".join(map(escape, self.about))
        return f"<div class='labkit-phrasebook'>{table('phrasebook', '', columns, rows)}<p>{about}</p>{traps}</div>"

    def _cell(self, call: str, tongue: Tongue) -> str:
        """Return the phrase as code that may break behind a comma, a dot and an opening bracket."""
        phrase = CALLS[call][tongue.name]
        if not phrase:
            return cell("–", "phrase")
        code = BREAKS.sub(r"\g<0><wbr>", escape(phrase))
        return cell(f"{RAN + NBSP if self.ran(call, tongue) else ''}<code>{code}</code>", "phrase")
