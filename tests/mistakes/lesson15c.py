"""Planted mistakes of lesson 15c, in the form that `tests.mistakes` tells."""

from labkit.exercises import lesson15c, lesson15c_limits
from tests.mistakes import named

stage_memory = (
    named(lesson15c.MEMORY_SLIPS)
    + """
forbidden | asks the other ranks | It calls dist.barrier
    alive = min(pipe, micro) → dist.barrier(); alive = min(pipe, micro)
"""
)

mates = (
    named(lesson15c.MATES_SLIPS)
    + """
forbidden | asks the other ranks | It calls dist.barrier
    step = 1  # from a rank of the group to the next → dist.barrier(); step = 1  # from a rank of the group to the next
"""
)

leaves_host = (
    named(lesson15c.LEAVES_SLIPS)
    + """
raises | fails where nothing leaves | Ranks 0, 1: ValueError | max(out.values(), default=0.0) → max(out.values())
"""
)

fewest_micro = (
    named(lesson15c_limits.FEWEST_SLIPS)
    + """
forbidden | asks the other ranks | It calls dist.barrier | mine = rows // data → dist.barrier(); mine = rows // data
"""
)

what_is_wrong = (
    named(lesson15c_limits.WRONG_SLIPS)
    + """
forbidden | asks the other ranks | It calls dist.barrier | faults = { → dist.barrier(); faults = {
"""
)
