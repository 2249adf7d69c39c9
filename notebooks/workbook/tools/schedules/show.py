"""What `labkit.draw` shows of a schedule: its steps side by side, or one of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from labkit.show.picture import Picture
from labkit.theory.origin import Origin
from labkit.theory.primitives import PART, PARTS, PRIMITIVES
from workbook.tools import schedules
from workbook.tools.schedules import plot
from workbook.tools.schedules.schedule import Schedule, carried, title, told

MOST = 16  # ranks that are drawn
CELLS = 900  # of all panels; where there are more, only the arrows are drawn
PANELS = 16  # steps that are drawn; of more the first and the last ones


class Drawn(Picture):
    """A schedule that displays itself; its text is the schedule's own."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule

    def __repr__(self) -> str:
        return repr(self.schedule)

    def _repr_html_(self) -> str | None:  # type: ignore[override]
        if self.schedule.n + len(self.schedule.switches) > MOST:
            return None
        return super()._repr_html_()

    def _drawn(self) -> Any:
        s = self.schedule
        rows = s.n + len(s.switches)
        cells = s.op != "all_to_all" and rows * s.chunks * (self._most() + 1) <= CELLS
        states = self._states() if cells else [[[]] * rows] * (len(s.steps) + 1)
        panels = [
            plot.Panel(f"step {k + 1}", states[k], [(a.src, a.dst, carried(s, a)) for a in step])
            for k, step in enumerate(s.steps)
        ]
        panels.append(plot.Panel("in the end", states[-1] if cells else []))
        panels = self._chosen(panels)
        if not cells and panels[-1].title == "in the end":
            panels.pop()
        trees = schedules.parents(s.n) if s.name == "double tree" and s.n > 1 else ()
        names = [f"switch {i}" if len(s.switches) > 1 else "switch" for i in range(len(s.switches))]
        return plot.draw(title(s), rows, panels, trees, self._notes(cells, bool(trees)), names)

    def _most(self) -> int:
        """Return how many steps are drawn."""
        return min(len(self.schedule.steps), PANELS)

    def _chosen(self, panels: list[plot.Panel]) -> list[plot.Panel]:
        """Choose the panels to draw, of all steps and the end."""
        return [*panels[: PANELS - 3], *panels[-4:]] if len(panels) > PANELS + 1 else panels

    def _states(self) -> list[list[list[plot.Cell]]]:
        """Return whose data is in each chunk of each rank, before every step and in the end."""
        s = self.schedule
        moving = not PRIMITIVES[s.op].reduces
        states = s.states(_tokens(s))
        ends = [{c for c, v in mine.items() if self._final(r, c, v[0])} for r, mine in enumerate(states[-1])]
        out = []
        for k, state in enumerate(states):
            rows = []
            for r, mine in enumerate(state):
                row = []
                for c in range(s.chunks):
                    if c not in mine:
                        row.append(plot.Cell())
                        continue
                    origin: Origin = mine[c][0]
                    text = str(origin.ranks[0]) if moving else str(sum(origin.counts.values()))
                    done = c in ends[r] and origin == states[-1][r][c][0] and (not moving or k > 0)
                    row.append(plot.Cell(tuple(origin.ranks), text, done))
                rows.append(row)
            out.append(rows)
        return out

    def _final(self, r: int, c: int, origin: Origin) -> bool:
        s, primitive = self.schedule, PRIMITIVES[self.schedule.op]
        if r >= s.n or (primitive.to_root and r != s.root):
            return False
        if primitive.gets == PART and c * s.n // s.chunks != r:
            return False
        return not primitive.reduces or len(origin.ranks) == s.n

    def _notes(self, cells: bool, trees: bool) -> list[str]:
        s = self.schedule
        notes = []
        if cells:
            adds = PRIMITIVES[s.op].reduces
            number = "how many contributions are in it" if adds else "the rank that it came from"
            what = f"a chunk, in the order 0 to {s.chunks - 1}" if s.chunks > 1 else "the whole buffer, chunk 0"
            notes.append(f"A cell is {what}; its number: {number}. Bold: final.")
        if s.op != "all_to_all":
            notes.append("On an arrow: +0, chunk 0 is added to the receiver's; =0, chunk 0 is put in its place.")
        if s.switches:
            what = "a node's NVSwitch" if s.switches[0] >= 0 else "the switch between the nodes"
            notes.append(f"A square is {what}: it has no buffer of its own, and adds what is sent to it.")
        if trees:
            first, second = (set(parent) - {-1} for parent in schedules.parents(s.n))
            shared = "".join(f"; only rank {r} is one in both" for r in first & second)
            notes.append(f"Bold circles are inner ranks, which add and send on: each in one tree{shared}.")
        if len(s.steps) > PANELS and self._most() > 1:
            notes.append(f"{len(s.steps)} steps; only the first and the last ones are drawn.")
        return notes


class OneStep(Drawn):
    """One step of a schedule, counted from 1, and what it leaves."""

    def __init__(self, schedule: Schedule, step: int) -> None:
        super().__init__(schedule)
        self.step = min(max(step, 1), len(schedule.steps))

    def __repr__(self) -> str:
        s = self.schedule
        return f"{title(s)}\nstep {self.step} of {len(s.steps)}: {told(s, s.steps[self.step - 1])}"

    def _most(self) -> int:
        return 1

    def _chosen(self, panels: list[plot.Panel]) -> list[plot.Panel]:
        now, then = panels[self.step - 1], panels[self.step]
        return [replace(now, title=f"step {self.step} of {len(panels) - 1}"), plot.Panel("after it", then.cells)]


def _tokens(s: Schedule) -> list[Any]:
    """Return a token for each chunk that a rank brings, as the schedule wants them."""
    brings = PRIMITIVES[s.op].brings
    if brings == PART:
        return [[Origin(r, i) for i in range(s.chunks // s.n)] for r in range(s.n)]
    if brings == PARTS:
        each = s.chunks // s.n
        return [[[Origin(r, q * each + i) for i in range(each)] for q in range(s.n)] for r in range(s.n)]
    return [[Origin(r, i) for i in range(s.chunks)] for r in range(s.n)]
