"""Show a plan: whether it fits, what it takes beside the best one, and what every link carries."""

from __future__ import annotations

from functools import cached_property
from html import escape

from labkit.plot import svg
from workbook.tools import planning
from workbook.tools.planning import Job, Plan, Price, Verdict, best, plot
from workbook.tools.planning.verdict import gigabytes

SIGNS = {"impossible": "✗", "does not fit": "✗", "fits": "✓"}
NOTE = "Seconds are a model: nothing overlaps, and every GPU does {:.0f} TFLOP/s."


class Planned:
    """A plan for a job, judged: it displays itself as sentences and a picture.

    >>> planned = Planned("66B", Plan(data=4, tensor=8, pipe=2, micro=64, zero=1))
    >>> planned.verdict.state
    'does not fit'

    Args:
        job: a job, or the name of one: "7B", "66B", "1T".
        plan: a plan for it.
        record: the least that any plan of the learner's took, in times of the best one's time; None for none.
    """

    def __init__(self, job: Job | str, plan: Plan, record: float | None = None) -> None:
        self.verdict = Verdict.of(job, plan)
        self.record = record

    @property
    def ratio(self) -> float | None:
        """The time it takes, in times of the best plan's; None where it does not fit."""
        return self.verdict.ratio

    @property
    def says(self) -> list[str]:
        """The verdict's sentences, and the personal best."""
        mine = [f"Your best so far: {self.record:.2f} times the best plan."] if self.record is not None else []
        return [*self.verdict.says, *mine]

    @property
    def title(self) -> str:
        """The job and the plan in a line."""
        return f"{SIGNS[self.verdict.state]} {self.verdict.job.name}: {self.verdict.plan}"

    def __repr__(self) -> str:
        price = self.verdict.price
        lines = [self.title, *(f"  {line}" for line in self.says)]
        if price is None:
            return "\n".join(lines)
        for stack in self._stacks(price):
            parts = ", ".join(f"{name} {plot.figure(size)}" for name, size in stack.parts.items())
            lines.append(f"{stack.title} ({stack.unit}): {parts}")
        rows = [("sent in a step", HEAD), *self._rows(price)]
        lines += ["  ".join([f"{name:<14}", *(f"{cell:>{len(h)}}" for cell, h in zip(cells, HEAD, strict=True))])
                  for name, cells in rows]  # fmt: skip
        return "\n".join([*lines, NOTE.format(self.verdict.job.flops / 1e12)])

    def _stacks(self, price: Price) -> list[plot.Stack]:
        job, top = self.verdict.job, best(self.verdict.job)
        memory = {kind: size / 1e9 for kind, size in price.stages[price.fullest].items()}
        fits = "fits" if price.fits else "does not fit"
        stage = f" of stage {price.fullest}" if price.plan.pipe > 1 else ""
        room = plot.Stack(
            f"A GPU{stage} holds {price.memory / 1e9:,.0f} GB, which {fits}", memory, "GB", job.room / 1e9,
            f"room for {job.room / 1e9:g} GB", not price.fits,
        )  # fmt: skip
        title = f"A training step takes {price.total:.3g} s"
        time = plot.Stack(
            title, price.seconds, "s", top.total if top else None, f"best plan {top.total:.3g} s" if top else ""
        )
        return [room, time]

    def _rows(self, price: Price) -> list[tuple[str, list[str]]]:
        return [
            (f"along {name}", [_gb(flow.inside), _gb(flow.across), f"{flow.seconds:.2f} s" if flow.sent else "–"])
            for name, flow in price.flows.items()
        ]

    @cached_property
    def svg(self) -> bytes:
        """The picture of a plan that can be laid out."""
        price = self.verdict.price
        assert price is not None, "an impossible plan has no picture"
        picture = plot.Picture(self._stacks(price), HEAD, self._rows(price))
        return svg.svg(plot.draw(picture))

    def _repr_html_(self) -> str:
        said = "".join(f"<li>{escape(line)}</li>" for line in self.says)
        head = f"<div><b>{escape(self.title)}</b><ul style='margin: 4px 0 8px'>{said}</ul></div>"
        if self.verdict.price is None:
            return head
        note = NOTE.format(self.verdict.job.flops / 1e12)
        return f"{head}{svg.img(self.svg, repr(self))}<div style='font-size: 90%'>{escape(note)}</div>"


HEAD = ["by a GPU over NVLink", "out of a host, by all its GPUs", "time on the links"]


def _gb(size: float) -> str:
    return gigabytes(size) if size else "–"


class Links:
    """What each parallelism would send by itself, and how long that takes over NVLink and over a NIC."""

    def __init__(self, job: Job | str, gpus: int = 8) -> None:
        self.job, self.gpus = planning.found(job), gpus
        self.ways = planning.alone(self.job, gpus)
        m = self.job
        self.computing = 6 * m.model.parameters * m.rows * m.tokens / m.gpus / m.flops

    @property
    def title(self) -> str:
        """The line above the picture."""
        c = self.job.cluster
        own = c.network / c.gpus_per_node
        return (
            f"{self.job.name}: each parallelism by itself over {self.gpus} GPUs, one training step. "
            f"NVLink {c.nvlink:g} GB/s, a GPU's own NIC {own:g} GB/s; computed"
        )

    def __repr__(self) -> str:
        lines = [
            f"{a.way:<7} sends {a.sent / 1e9:>7,.1f} GB: {a.nvlink:>6.2f} s over NVLink, {a.network:>6.2f} s over a NIC"
            for a in self.ways
        ]
        return "\n".join([self.title, *lines, f"computing takes {self.computing:.0f} s"])

    @cached_property
    def svg(self) -> bytes:
        """The picture."""
        rows = [(a.way, f"sends {gigabytes(a.sent)}", a.nvlink, a.network) for a in self.ways]
        race = plot.Race(
            rows, "over NVLink", "over a GPU's own NIC", self.computing, f"computing {self.computing:.0f} s"
        )
        return svg.svg(plot.draw_race(race))

    def _repr_html_(self) -> str:
        return f"<div>{escape(self.title)}</div>{svg.img(self.svg, repr(self))}"
