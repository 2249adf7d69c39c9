"""Planted mistakes of lesson 15c, in the form that `tests.mistakes` tells."""

from labkit.content import exercises
from tests.mistakes import named

stage_memory = (
    named(exercises.find("stage_memory").slips)
    + """
forbidden | asks the other ranks | It calls dist.barrier
    alive = min(pipe, micro) → dist.barrier(); alive = min(pipe, micro)
"""
)

mates = (
    named(exercises.find("mates").slips)
    + """
forbidden | asks the other ranks | It calls dist.barrier
    step = 1  # from a rank of the group to the next → dist.barrier(); step = 1  # from a rank of the group to the next
"""
)

leaves_host = (
    named(exercises.find("leaves_host").slips)
    + """
raises | fails where nothing leaves | Ranks 0, 1: ValueError | max(out.values(), default=0.0) → max(out.values())
"""
)

fewest_micro = (
    named(exercises.find("fewest_micro").slips)
    + """
forbidden | asks the other ranks | It calls dist.barrier | mine = rows // data → dist.barrier(); mine = rows // data
"""
)

what_is_wrong = (
    named(exercises.find("what_is_wrong").slips)
    + """
forbidden | asks the other ranks | It calls dist.barrier | faults = { → dist.barrier(); faults = {
"""
)
