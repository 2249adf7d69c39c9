"""Judge a plan in sentences: why it is impossible, by how much it does not fit, what it loses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from workbook.tools.planning.job import Job, Plan, found, impossible
from workbook.tools.planning.price import Price
from workbook.tools.planning.search import best, in_best_order

LARGE = 0.10  # a bubble that is worth a word
CLOSE = 1.005  # times the best: nothing to win


@dataclass(frozen=True)
class Verdict:
    """A plan held against its job and against the best plan.

    >>> print(Verdict.of("7B", Plan(data=16, micro=4)).says[0])
    A GPU would hold 126 GB, and it has 80: 46 GB too much.
    """

    job: Job
    plan: Plan

    @classmethod
    def of(cls, job: Job | str, plan: Plan) -> Verdict:
        """Judge a plan for a job, which may be given by its name."""
        return cls(found(job), plan)

    @cached_property
    def price(self) -> Price | None:
        """The price of the plan; None where it is impossible."""
        return None if impossible(self.job, self.plan) else Price(self.job, self.plan)

    @property
    def state(self) -> str:
        """ "impossible", "does not fit" or "fits"."""
        if self.price is None:
            return "impossible"
        return "fits" if self.price.fits else "does not fit"

    @cached_property
    def ratio(self) -> float | None:
        """The time it takes, in times of the best plan's; None where it does not fit."""
        top = best(self.job)
        return self.price.total / top.total if self.price and self.price.fits and top else None

    @cached_property
    def says(self) -> list[str]:
        """Sentences: first what matters most."""
        if self.price is None:
            return impossible(self.job, self.plan)
        return self._too_much(self.price) if self.ratio is None else self._loses(self.price, self.ratio)

    def _too_much(self, price: Price) -> list[str]:
        """Say by how much it does not fit, what takes the most, and what one change would do about that."""
        stage, job = price.stages[price.fullest], self.job
        too_much = (price.memory - job.room) / 1e9
        where = f" of stage {price.fullest}" if self.plan.pipe > 1 else ""
        said = [
            f"A GPU{where} would hold {price.memory / 1e9:,.0f} GB, and it has {job.room / 1e9:.0f}: "
            f"{too_much:,.0f} GB too much."
        ]
        kind = max(stage, key=lambda kind: stage[kind])
        named = {"optimizer": "The optimizer's states", "activations": "Activations", "weights": "Weights"}
        said.append(f"{named.get(kind, 'Gradients')} take the most, {stage[kind] / 1e9:,.0f} GB. {self._remedy(kind)}")
        return said

    def _remedy(self, kind: str) -> str:
        plan = self.plan
        stage = {"optimizer": 1, "gradients": 2, "weights": 3}
        if kind in stage and plan.zero < stage[kind] and plan.data > 1:
            return self._with(
                plan.but(zero=stage[kind]), f"ZeRO-{stage[kind]} would shard them over {plan.data} copies"
            )
        if kind == "activations":
            return self._fewer_activations()
        return "Cut the model into more parts, along tensor or pipe."

    def _fewer_activations(self) -> str:
        """Say which change makes activations smallest: smaller micro-batches, or sequence parallelism."""
        plan = self.plan
        rows = self.job.rows // plan.data // plan.micro
        single = plan.but(micro=plan.micro * rows)
        ways = [(single, f"A micro-batch has {rows} sequences; with one each it would be less")] if rows > 1 else []
        if plan.tensor > 1 and not plan.sequence:
            ways.append((plan.but(sequence=True), "Sequence parallelism would cut all of them"))
        possible = [way for way in ways if not impossible(self.job, way[0])]
        if possible:
            return self._with(*min(possible, key=lambda way: Price(self.job, way[0]).memory))
        return "Along tensor they are cut; a longer pipeline keeps more micro-batches and gains nothing here."

    def _with(self, other: Plan, words: str) -> str:
        if impossible(self.job, other):
            return f"{words}."
        return f"{words}: {Price(self.job, other).memory / 1e9:,.0f} GB in all."

    def _loses(self, price: Price, ratio: float) -> list[str]:
        """Say how it compares with the best plan, and where its time goes."""
        job, plan, spent = self.job, self.plan, price.seconds
        if ratio <= CLOSE:
            said = [f"This is the fastest plan of the model, or as good: {price.total:.3g} s a training step."]
        else:
            said = [f"A training step takes {price.total:.3g} s: {ratio:.2f} times the best plan."]
        said.append(f"{gigabytes(price.across)} leave the busiest host in a training step.")
        if (flow := price.flows["tensor"]).across:
            said.append(
                f"Tensor parallelism leaves the host: {gigabytes(flow.across)} of these are its own, and a GPU spends "
                f"{flow.seconds:.3g} s on it."
            )
        if price.bubble > LARGE:
            few = f"{plan.micro:,} micro-batches are few for {plan.pipe} stages"
            said.append(f"The bubble is {price.bubble:.0%} of the time in the pipeline: {few}.")
        if plan.zero >= 2 and plan.micro > 1:
            each = "gathers the weights twice and " if plan.zero == 3 else ""
            said.append(f"ZeRO-{plan.zero} {each}scatters the gradients for each of {plan.micro:,} micro-batches.")
        other = in_best_order(job, plan)
        if other.total < 0.99 * price.total:
            said.append(f"With its dimensions in a different order, the same plan takes {other.total:.3g} s.")
        top = best(job)
        if top and ratio > CLOSE:
            more = {name: spent[name] - top.seconds[name] for name in spent}
            worst = max(more, key=lambda name: more[name])
            said.append(f"Compared with the best plan, it loses the most time on {_part(worst)}: {more[worst]:.2g} s.")
        return said


def gigabytes(size: float) -> str:
    """Say how many GB these bytes are, with three digits or all that stand before the point."""
    return f"{size / 1e9:,.3g} GB" if size < 1e12 else f"{size / 1e9:,.0f} GB"


def _part(name: str) -> str:
    return {"computing": "computing in its slowest stage", "bubble": "the bubble"}.get(
        name, f"what it sends along {name}"
    )
