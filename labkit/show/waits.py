"""Say in one sentence why a cell is stuck, and show which rank waits for which, for `lab.why`. No cluster."""

from __future__ import annotations

from html import escape
from typing import Any

from IPython.display import publish_display_data

from labkit.floor.words import alike, ranks, seconds, sentence
from labkit.outcome import text
from labkit.outcome.outcome import Did
from labkit.outcome.phrases import did, label
from labkit.outcome.sentences import ANYBODY, circles, graph, title, well, why
from labkit.outcome.story import Story
from labkit.plot import waits as picture
from labkit.show.picture import Picture

KINDS = {
    **dict.fromkeys((Did.FINISHED, Did.LEFT), "done"),
    **dict.fromkeys((Did.DIED, Did.RAISED, Did.NEVER_RAN), "failed"),
}  # the others are busy
LOOK = "margin: 0 0 0 1em; white-space: pre-wrap; color: inherit; background: none; font-family: monospace"
PRE = f'<pre style="{LOOK}">{{}}</pre>'
# JupyterLab breaks lines within words, also those of the error that stands beside the picture.
WORDS = "<style>.jp-OutputArea-output pre {word-break: normal}</style>"


class Waits(Story, Picture):
    """A wait-for graph: now, if the cell runs; when it was cut short; or in its longest wait, if it ended well.

    `arrows` are (waiting rank, awaited rank); `cycles` are lists of ranks, each of which waits for the next, the last
    one for the first; `waiting` and `others` say where each rank was: in a call, or elsewhere. `why` is the sentence.
    """

    @property
    def others(self) -> dict[int, str]:
        """What each rank that does not wait is doing, in words."""
        return {r: did(instead, live=self.live) for r, instead in self.instead.items()}

    @property
    def why(self) -> str:
        """The reason why the cell is stuck, in one sentence that begins with the cause; or that it ended well."""
        return sentence([why(self)]) if self.cut else well(self)

    @property
    def says(self) -> list[str]:
        """The waits, what the other ranks do, and which ranks wait in a cycle: a sentence each."""
        return graph(self)

    @property
    def stacks(self) -> dict[int, list[str]]:
        """The learner's lines in which each absent rank was, the innermost last."""
        if self.outcome is None:
            return {}
        found = {r: [_line(*row) for row in self.outcome.stacks.get(r, [])] for r in self.instead}
        for r, error in self.outcome.errors.items():
            if r in self.instead and not found[r]:
                found[r] = text.trim(error.traceback).splitlines()
        return {r: lines for r, lines in found.items() if lines}

    @property
    def alt(self) -> str:
        """The picture in words."""
        return " ".join([f"Wait-for graph of {self.record.n} ranks. {title(self)}.", *self.says])

    def __repr__(self) -> str:
        told = [line for rs, lines in self._told() for line in (f"{rs}:", *(f"    {line}" for line in lines))]
        return "\n".join([self.why, *(self.says if self.long else []), *told])

    def _told(self) -> list[tuple[str, list[str]]]:
        """Return what absent ranks do, and in which lines; those that do the same there once."""
        stacks = self.stacks
        same = alike({r: (self.instead[r], *lines) for r, lines in stacks.items()})
        return [
            (sentence([f"{ranks(rs)} {did(self.instead[rs[0]], len(rs), self.live)}"]).rstrip("."), stacks[rs[0]])
            for rs in same.values()
        ]

    # -- the picture --------------------------------------------------------------------------------------------------

    def _drawn(self) -> Any:
        nodes = [self._node(r) for r in range(self.record.n)]
        cycles = [pair for cycle in self.cycles for pair in zip(cycle, [*cycle[1:], cycle[0]], strict=True)]
        notes = [(line, True) for line in circles(self)]
        if self.waiting and not self.arrows:
            notes.append(("No arrows: the records do not say whose data is missing.", False))
        return picture.draw(picture.Graph(title(self), nodes, self.arrows, cycles, notes))

    def _node(self, rank: int) -> picture.Node:
        long = f", {seconds(self.seconds[rank])}" if rank in self.seconds else ""
        if (w := self.waiting.get(rank)) is not None:
            return picture.Node(f"in {label(w)}" + (f", for {ANYBODY}" if w.anybody else "") + long)
        return picture.Node(did(self.instead[rank], live=self.live) + long, KINDS.get(self.instead[rank].did, "busy"))

    def _repr_html_(self) -> str:
        return f"<div><b>{escape(self.why)}</b></div>{self._below}"

    @property
    def _below(self) -> str:
        """The picture, and the lines in which absent ranks are: what stands below the sentence."""
        told = "".join(f"<div>{escape(rs)}:</div>{PRE.format(escape(chr(10).join(ls)))}" for rs, ls in self._told())
        return super()._repr_html_() + told + WORDS

    def display(self) -> None:
        """Show the picture alone, where an error says the sentence."""
        publish_display_data({"text/html": self._below, "text/plain": "\n".join(self.says)})


def _line(function: str, line: int, source: str) -> str:
    return f"line {line}{f' of {function}' if function else ''}{f': {source}' if source else ''}"
