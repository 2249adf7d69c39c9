"""What several lessons put around a learner's function. It is imported without torch; ranks call it.

What is built of torch's classes stands in `on_ranks.py`, which ranks alone import.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labkit.rank.cell_names import dist, everyones, rank, recorder, torch

BETAS, EPS = (0.9, 0.999), 1e-8  # Adam's, as torch has them


def calls():
    """Return how many calls that communicate this rank has made so far in the learner's function."""
    return len(recorder.records()["ops"])


def in_a_folder(harness):
    """Give the harness a `folder`, the same one on all ranks, which rank 0 removes at the end."""

    @functools.wraps(harness)
    def run(*args, **options):
        folder = everyones(tempfile.mkdtemp() if rank == 0 else "")[0]
        try:
            return harness(*args, **options, folder=folder)
        finally:
            if rank == 0:
                shutil.rmtree(folder, ignore_errors=True)

    return run


def my_group(lists):
    """Make a group of each list of ranks, which every rank has to do; return the one of this rank, or None."""
    groups = [(ranks, dist.new_group(list(ranks))) for ranks in lists]
    return next((group for ranks, group in groups if rank in ranks), None)


def as_many_groups(out=None, *_):
    """Return what was given, unless some ranks have made more groups than others."""
    made = everyones(dist.distributed_c10d._world.group_count)
    assert len(set(made)) == 1, "Some ranks have made more groups than others: the next new_group would hang."
    return out


def with_gradients(*gradients):
    """Make a model of parameters that are ones and have these gradients."""
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.ones_like(g)) for g in gradients])
    for p, g in zip(model, gradients):
        p.grad = g.clone()
    return model


def adam_step(mean, square, gradient, count):
    """Return Adam's two moments after its step number `count`, and by what it moves weights, before the learning rate.

    >>> adam_step(0.0, 0.0, 2.0, 1)[2]
    0.999999995
    """
    mean = BETAS[0] * mean + (1 - BETAS[0]) * gradient
    square = BETAS[1] * square + (1 - BETAS[1]) * gradient**2
    return mean, square, mean / (1 - BETAS[0] ** count) / ((square / (1 - BETAS[1] ** count)) ** 0.5 + EPS)


def kept(refs):
    """Wait until nothing refers to these tensors; return which of them something refers to after all turns.

    Gloo's threads let go of a tensor a little after the collective has returned: once they get a core and Python's
    lock. So does the thread that looks at where a rank is: as long as it has a function's frame, all of its variables
    live. They are given turns for it, not seconds: a machine that stands still for a while costs one turn.
    """
    for _ in range(500):
        if all(ref() is None for ref in refs):
            return []
        time.sleep(0.002)
    return [i for i, ref in enumerate(refs) if ref() is not None]
