"""Simulate 100,000 ranks: discrete events on a described fabric, stragglers, failures. No torch, no cluster.

    fabric     hosts, NICs, leaf and spine switches, and the links that a message takes
    program    schedules for very many ranks, as arrays
    engine     every message through the queues of its links, in batches that are exact
    chain      rings in which no link is shared, as longest paths
    step       one training step: computing, an all-reduce, and where the time goes
    slowest    how long ranks compute, and the slowest of n
    failures   a job that loses ranks, how often it should save, and a training run: many steps, with checkpoints

>>> from workbook.tools import events
>>> step = events.all_reduce("hierarchical, PAT", events.H100S.but(over=4), n=65_536, nbytes=1e9)
>>> {part: f"{1e3 * seconds:.2f} ms" for part, seconds in step.parts.items() if seconds}  # of the last rank's wait
{'latency': '0.41 ms', 'bytes inside hosts': '4.72 ms', 'bytes between hosts': '5.00 ms', 'queues': '0.47 ms'}

Nothing here has run on machines: it is computed, from the numbers that describe the fabric.
"""

from workbook.tools.events.fabric import H100S, Fabric
from workbook.tools.events.failures import Training, train
from workbook.tools.events.slowest import drawn
from workbook.tools.events.step import PARTS, WAYS, Step, all_reduce

__all__ = ["H100S", "PARTS", "WAYS", "Fabric", "Step", "Training", "all_reduce", "drawn", "train"]
