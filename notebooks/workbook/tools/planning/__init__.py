"""Plan jobs in three dimensions: what a plan holds, sends and takes, and which plan is the best.

    job     a model, its batch and its GPUs; a plan; why a plan is impossible
    places  which ranks form which group, and which messages leave a host
    price   memory, bytes by dimension and link, and time by an α–β model: every formula with its source; and what each
            parallelism sends by itself
    search  all plans of a job, the fastest first
    verdict what there is to say of a plan, beside the best one

>>> price = Price(JOBS["66B"], Plan(data=4, tensor=8, pipe=2, micro=64, zero=1, sequence=True))
>>> round(price.memory / 1e9), round(price.bubble, 3)
(52, 0.015)
"""

from workbook.tools.planning.job import JOBS, ORDERS, Job, Plan, found, impossible, small
from workbook.tools.planning.price import Price, alone
from workbook.tools.planning.search import best, orders, plans, ranking
from workbook.tools.planning.verdict import Verdict

__all__ = [
    "JOBS",
    "ORDERS",
    "Job",
    "Plan",
    "Price",
    "Verdict",
    "alone",
    "best",
    "found",
    "impossible",
    "orders",
    "plans",
    "ranking",
    "small",
]
