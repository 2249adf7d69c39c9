"""Find all plans of a job, and the fastest ones that fit: the oracle that a learner's plan is held against."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from workbook.tools.planning.job import ORDERS, Job, Plan, impossible
from workbook.tools.planning.price import Price


def plans(job: Job) -> Iterator[Plan]:
    """Yield every plan that can be laid out, in the first order; ZeRO only with copies, sequence only with tensor."""
    for tensor in _divisors(job.gpus):
        for pipe in _divisors(job.gpus // tensor):
            data = job.gpus // tensor // pipe
            for micro in _divisors(job.rows // data) if job.rows % data == 0 else []:
                plan = Plan(data, tensor, pipe, micro)
                if impossible(job, plan):
                    continue
                for zero in range(4 if data > 1 else 1):
                    for sequence in (False, True) if tensor > 1 else (False,):
                        if not sequence or job.tokens % tensor == 0:
                            yield plan.but(zero=zero, sequence=sequence)


def orders(plan: Plan) -> list[Plan]:
    """Return the plan in every order of its dimensions that makes a difference."""
    found: dict[tuple[str, ...], Plan] = {}
    for order in ORDERS:
        kept = tuple(name for name in order.split() if getattr(plan, name) > 1)
        found.setdefault(kept, plan.but(order=order))
    return list(found.values())


@cache
def ranking(job: Job) -> tuple[Price, ...]:
    """Price every plan that fits, each in its best order, the fastest first."""
    fit = [plan for plan in plans(job) if Price(job, plan).fits]
    return tuple(sorted((in_best_order(job, plan) for plan in fit), key=lambda price: price.total))


def best(job: Job) -> Price | None:
    """Return the fastest plan that fits; None where none does."""
    return next(iter(ranking(job)), None)


def in_best_order(job: Job, plan: Plan) -> Price:
    """Price the plan with its dimensions in the order that takes the least time."""
    return min((Price(job, its) for its in orders(plan)), key=lambda price: price.total)


def _divisors(number: int) -> list[int]:
    """Return what divides a number, from 1 up."""
    return [k for k in range(1, number + 1) if number % k == 0]
