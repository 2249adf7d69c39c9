"""The phrasebook as a table: a row a call, a column a system, what was run and when, and the traps under it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape

from labkit.show import markdown
from labkit.show.table import cell, row, table
from workbook.tools.elsewhere.ten_lines import Told
from workbook.tools.phrasebook.phrases import CALLS, TRAPS, Tongue, Trap

RAN = "●"
NBSP = "\N{NO-BREAK SPACE}"
BREAKS = re.compile(r", |\.(?=\w)|\((?!\))")  # what a line may end with


class Phrases:
    """Calls in the words of some systems.

    Args:
        tongues: the columns.
        calls: the rows.
        programs: by the name of a program, its source and what was recorded of it.
    """

    def __init__(
        self, tongues: Sequence[Tongue], calls: Sequence[str], programs: Mapping[str, tuple[str, Told]]
    ) -> None:
        self.tongues, self.calls, self._programs = list(tongues), list(calls), programs

    def ran(self, call: str, tongue: Tongue) -> bool:
        """Whether this was run: its program makes the call, and the record has the result."""
        if tongue.program not in self._programs:
            return False
        source, told = self._programs[tongue.program]
        called = re.findall(r"[\w.]+\.\w+", CALLS[call][tongue.name].partition("=")[0])
        made = bool(called) and all(name in source for name in called)
        return made and not isinstance(told.rows.get(call, []), str)

    @property
    def about(self) -> str:
        """What was run and when, and what was read, in a sentence each."""
        lines = []
        for tongue in self.tongues:
            if tongue.program in self._programs:
                lines.append(f"{tongue.title}: {RAN} was run on {self._programs[tongue.program][1].recorded}.")
            else:
                lines.append(f"{tongue.title}: read in {tongue.read}; not run.")
        return "\n".join(lines)

    @property
    def traps(self) -> list[Trap]:
        """Those that are about one of the columns."""
        shown = {tongue.name for tongue in self.tongues}
        return [trap for trap in TRAPS if shown & set(trap.tongues)]

    def __repr__(self) -> str:
        lines = []
        for call in self.calls:
            lines.append(call)
            for t in self.tongues:
                lines.append(f"  {t.title:18} {RAN if self.ran(call, t) else ' '} {CALLS[call][t.name] or '–'}")
        return "\n".join([*lines, "", self.about, *(f"✗ {trap.text}".replace("**", "") for trap in self.traps)])

    def _repr_html_(self) -> str:
        rows = [row(escape(call), [self._cell(call, tongue) for tongue in self.tongues]) for call in self.calls]
        columns = ["call", *(escape(tongue.title) for tongue in self.tongues)]
        traps = markdown.html("\n".join(f"- {trap.text}" for trap in self.traps))
        about = "<br>".join(map(escape, self.about.splitlines()))
        return f"<div class='labkit-phrasebook'>{table('phrasebook', '', columns, rows)}<p>{about}</p>{traps}</div>"

    def _cell(self, call: str, tongue: Tongue) -> str:
        phrase = CALLS[call][tongue.name]
        if not phrase:
            return cell("–", "phrase")
        return cell(f"{RAN + NBSP if self.ran(call, tongue) else ''}{_code(phrase)}", "phrase")


def _code(phrase: str) -> str:
    """The phrase as code that may break behind a comma, a dot and an opening bracket."""
    return f"<code>{BREAKS.sub(_then_break, escape(phrase))}</code>"


def _then_break(found: re.Match[str]) -> str:
    return f"{found[0]}<wbr>"
