"""Exercises of lesson 15c about what a plan must not do: too few micro-batches, and cuts that do not come out even."""

from __future__ import annotations

from labkit.grading.exercise import NOTHING
from labkit.grading.inputs import options
from workbook.lesson15c import on_paper

FEWEST_SLIPS = {
    "forgets that the copies share the batch": ("rows // data", "rows"),
    "makes micro-batches that are not equal": ("mine % micro == 0 and", ""),
    "divides by the micro-batches alone": ("/ (micro + pipe - 1)", "/ micro"),
    "counts all stages as idle": ("(pipe - 1) / (", "pipe / ("),
    "wants less than the limit": ("<= most", "< most"),
    "leaves out one sequence each": ("range(1, mine + 1)", "range(1, mine)"),
    "takes as many as there are": ("return None", "return mine"),
}


@on_paper(
    "Micro-batches for a small bubble",
    lambda xs, **numbers: [fewest_micro(**numbers) or NOTHING] * len(xs),
    minutes=5,
    inputs=options(
        "rows data pipe most",
        ("64 rows, 4 stages, half the time", 64, 1, 4, 0.5),
        ("two copies", 64, 2, 4, 0.1),
        ("8 stages, 10 %, 256 rows, 4 copies", 256, 4, 8, 0.1),
        ("96 rows: 27 micro-batches would do", 96, 1, 4, 0.1),
        ("exactly the limit", 36, 1, 5, 0.1),
        ("too few rows", 64, 4, 8, 0.1),
        ("no pipeline", 64, 4, 1, 0.1),
        ("1T: 16 stages", 1024, 8, 16, 0.11),
    ),
    slips=FEWEST_SLIPS,
)
def fewest_micro(rows, data, pipe, most):
    """Return the smallest number of equal micro-batches with a bubble of at most `most`, or None.

    A batch has `rows` sequences, which `data` copies share equally. Each copy is a pipeline of `pipe` equal stages, and
    cuts its share into equal micro-batches of whole sequences. With m micro-batches the bubble is (pipe - 1) / (m +
    pipe - 1) of the time.

    Return the **smallest** number of micro-batches with which the bubble is at most `most`, or None if a copy has too
    few sequences for that. Communicate nothing.
    Hint: A copy has `rows // data` sequences. Try 1, 2, 3 … micro-batches, and skip what does not divide that.
    Hint: The first one whose bubble is at most `most` is the answer. If the loop ends without one, return None.
    Afterwards: More micro-batches shrink the bubble. But each of them costs a message over every boundary, and a GPU
    computes smaller products less efficiently. With one sequence per micro-batch there is nothing left to cut.
    """
    mine = rows // data
    for micro in range(1, mine + 1):
        if mine % micro == 0 and (pipe - 1) / (micro + pipe - 1) <= most:
            return micro
    return None


BIG = (64, 8, 64, 80, 256)  # GPUs, of which 8 in a host, heads, layers, and rows in a batch


WRONG_SLIPS = {
    "stops at the first fault": ("if is_there]", "if is_there][:1]"),
    "accepts a mesh that leaves GPUs idle": ("!= gpus", "> gpus"),
    "wants more heads than ranks only": ("heads % tensor != 0", "heads < tensor"),
    "checks the layers against tensor": ("layers % pipe", "layers % tensor"),
    "forgets the copies": ("rows % (data * micro)", "rows % micro"),
    "wants enough sequences only": ("rows % (data * micro) != 0", "rows < data * micro"),
    "lets a group lie across two hosts": ("per_host % tensor != 0", "per_host < tensor"),
}


@on_paper(
    "What is wrong with this plan?",
    lambda xs, **numbers: [what_is_wrong(**numbers)] * len(xs),
    minutes=6,
    inputs=options(
        "gpus per_host heads layers rows data tensor pipe micro",
        ("nothing is wrong", *BIG, 4, 8, 2, 64),
        ("32 GPUs of 64", *BIG, 2, 8, 2, 1),
        ("GPT-3 by 14", 112, 14, 96, 96, 64, 8, 14, 1, 8),
        ("80 layers in 32 stages", *BIG, 2, 1, 32, 16),
        ("two hosts for one tensor group", *BIG, 4, 16, 1, 64),
        ("128 micro-batches of 64 sequences", *BIG, 4, 8, 2, 128),
        ("72 micro-batches would need 288 sequences", *BIG, 4, 8, 2, 72),
        ("tensor 4 in hosts of 6", 24, 6, 32, 24, 48, 3, 4, 2, 4),
        ("everything at once", *BIG, 3, 24, 3, 7),
        ("fewer heads than ranks", 16, 8, 4, 32, 16, 2, 8, 1, 1),
        ("one rank in a host", 4, 1, 32, 24, 48, 4, 1, 1, 4),
    ),
    slips=WRONG_SLIPS,
)
def what_is_wrong(gpus, per_host, heads, layers, rows, data, tensor, pipe, micro):
    """Return the names of everything that is wrong with a plan, in the order of the card.

    A model has `layers` layers with `heads` heads each; a batch has `rows` sequences. There are `gpus` GPUs,
    `per_host` in each host. A plan says `data`, `tensor`, `pipe` and `micro`, the number of micro-batches into which
    each copy cuts its share. The ranks of a tensor group are neighbours.

    Return a list of what is wrong, in this order: `"gpus"` if the mesh does not use exactly all GPUs; `"heads"` if the
    heads cannot be shared equally along tensor; `"layers"` if the stages cannot have equally many layers; `"rows"` if
    not every micro-batch of every copy can have equally many whole sequences; `"host"` if a tensor group has ranks in
    more than one host. Return an empty list for a plan without a fault. Communicate nothing.
    Hint: Each fault is one line: a product that is not `gpus`, or a remainder that is not 0.
    Hint: A micro-batch of a copy has `rows / data / micro` sequences. When is that a whole number?
    Hint: Tensor groups are 0 … tensor-1, tensor … 2·tensor-1 and so on. None of them lies across two hosts if `tensor`
    divides `per_host`.
    Afterwards: Frameworks differ in what they accept: some pad the vocabulary, or give one stage a layer less. A
    planner that names every fault at once saves you from finding them one by one, in a queue for 1,024 GPUs.
    """
    faults = {
        "gpus": data * tensor * pipe != gpus,
        "heads": heads % tensor != 0,
        "layers": layers % pipe != 0,
        "rows": rows % (data * micro) != 0,
        "host": per_host % tensor != 0,
    }
    return [name for name, is_there in faults.items() if is_there]
