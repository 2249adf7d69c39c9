"""The rings and trees that a log of NCCL's tells, drawn over the nodes. No torch, no cluster."""

from __future__ import annotations

from functools import cached_property
from html import escape

from labkit.floor.errors import LabError
from labkit.floor.words import count, spans
from labkit.plot import svg
from workbook.tools.hosts import plot
from workbook.tools.nccl_log import Log

MOST = 32  # ranks that are drawn


class Heard:
    """A log of NCCL's that shows itself: its sentences, and a picture of the rings and trees that are told whole."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def __repr__(self) -> str:
        return repr(self.log)

    def _repr_html_(self) -> str:
        words = "".join(f"<li>{escape(s)}</li>" for s in self.log.sentences)
        picture = svg.img(self.svg, "\n".join([self.title, *(p.title for p in self._panels)])) if self._panels else ""
        return f"{picture}<ul>{words}</ul>"

    @property
    def title(self) -> str:
        """The picture's title."""
        nodes = f" on {count(self.log.nodes, 'node')}" if self.log.nodes else ""
        return f"{count(self.log.ranks, 'rank')}{nodes}, as NCCL's log has them"

    @cached_property
    def svg(self) -> bytes:
        """The picture. Raises `LabError` where the log tells no ring and no tree whole."""
        if not self._panels:
            raise LabError(
                "This log tells no whole ring or tree. Set NCCL_DEBUG_SUBSYS=INIT,GRAPH, and paste all of it."
            )
        picture = plot.Picture(self.title, [self.log.home[r] for r in range(self.log.ranks)], self._panels)
        return svg.svg(plot.draw(picture))

    @cached_property
    def _panels(self) -> list[plot.Panel]:
        log = self.log
        if not log.ranks or len(log.home) < log.ranks or log.ranks > MOST:
            return []
        ways: dict[tuple[str, tuple[tuple[int, int], ...]], list[int]] = {}
        for channel, order in sorted(log.rings.items()):
            if log.whole(channel) and log.ranks > 1:
                pairs = tuple(sorted(zip(order, (*order[1:], order[0]), strict=True)))
                ways.setdefault(("ring", pairs), []).append(channel)
        for channel, parents in sorted(log.trees.items()):
            if len(parents) == log.ranks:
                pairs = tuple(sorted((r, p) for r, p in parents.items() if p >= 0))
                ways.setdefault(("tree", pairs), []).append(channel)
        panels = []
        for (kind, pairs), channels in ways.items():
            crossing = sum(log.home[a] != log.home[b] for a, b in pairs)
            said = f"{count(crossing, 'arrow')} from node to node" if log.nodes > 1 else "one node"
            plural = "s" * (len(channels) > 1)
            panels.append(plot.Panel(f"{kind} of channel{plural} {spans(channels, ', ')}", pairs, said))
        return panels
