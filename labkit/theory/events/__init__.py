"""What 100,000 ranks would do: discrete events on a described fabric, stragglers, failures. No torch, no cluster.

    fabric     hosts, NICs, leaf and spine switches, and the links that a message takes
    program    schedules for very many ranks, as arrays
    engine     every message through the queues of its links, in batches that are exact
    chain      rings in which no link is shared, as longest paths
    step       one training step: computing, an all-reduce, and where the time goes
    slowest    how long ranks compute, and the slowest of n
    training   many such steps, with checkpoints, while ranks die
    failures   a job that loses ranks, and how often it should save

>>> from labkit.theory import events
>>> step = events.all_reduce("hierarchical, double tree", events.H100S, n=4096, nbytes=1e9)
>>> round(step.seconds, 4), step.parts["queues"] > 0
(0.0121, False)

Nothing here has run on machines: it is computed, from the numbers that describe the fabric.
"""

from labkit.theory.events.fabric import H100S, Fabric, of
from labkit.theory.events.slowest import drawn
from labkit.theory.events.step import PARTS, WAYS, Step, all_reduce
from labkit.theory.events.training import Training, train

__all__ = ["H100S", "PARTS", "WAYS", "Fabric", "Step", "Training", "all_reduce", "drawn", "of", "train"]
