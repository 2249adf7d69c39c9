"""All plans of a job, and the fastest ones that fit: the oracle that a learner's plan is held against."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from workbook.tools.plan import divisors
from workbook.tools.planning.job import ORDERS, Job, Plan, impossible
from workbook.tools.planning.places import places
from workbook.tools.planning.price import Price


def plans(job: Job) -> Iterator[Plan]:
    """Every plan that can be laid out, in the first order; ZeRO only with copies, sequence only with tensor."""
    for tensor in divisors(job.gpus):
        for pipe in divisors(job.gpus // tensor):
            data = job.gpus // tensor // pipe
            for micro in divisors(job.rows // data) if job.rows % data == 0 else []:
                plan = Plan(data, tensor, pipe, micro)
                if impossible(job, plan):
                    continue
                for zero in range(4 if data > 1 else 1):
                    for sequence in (False, True) if tensor > 1 else (False,):
                        if not sequence or job.tokens % tensor == 0:
                            yield plan.but(zero=zero, sequence=sequence)


def orders(plan: Plan) -> list[Plan]:
    """The same plan in every order of its dimensions that makes a difference."""
    found: dict[tuple[str, ...], Plan] = {}
    for order in ORDERS:
        kept = tuple(name for name in order.split() if getattr(plan, name) > 1)
        found.setdefault(kept, plan.but(order=order))
    return list(found.values())


@cache
def ranking(job: Job) -> tuple[Price, ...]:
    """Every plan that fits, each in its best order, the fastest first."""
    fit = [plan for plan in plans(job) if Price(job, plan).fits]
    priced = [min((Price(job, its) for its in orders(plan)), key=lambda price: price.total) for plan in fit]
    return tuple(sorted(priced, key=lambda price: price.total))


def best(job: Job) -> Price | None:
    """The fastest plan that fits; None where none does."""
    return next(iter(ranking(job)), None)


def best_order(job: Job, plan: Plan) -> Plan:
    """The same plan with its dimensions in the order that takes the least time."""
    return min(orders(plan), key=lambda its: Price(job, its).total)


def leaves(job: Job, plan: Plan, along: str) -> bool:
    """Whether any message along a dimension leaves a host."""
    edges = places(plan, job.cluster.gpus_per_node).edges
    return any(bool(edges[name].leaves.any()) for name in (("next", "before") if along == "pipe" else (along,)))
