"""What to do about a rank that asked for more memory than it may have. Pure."""

from __future__ import annotations

from labkit.outcome.outcome import Outcome
from labkit.words import ranks

TORCH = "can't allocate memory"  # what torch says on a CPU, in a RuntimeError


def memory(outcome: Outcome) -> list[str]:
    """A note where ranks were refused memory: they live on, and what they have is kept."""
    short = [r for r, e in outcome.errors.items() if e.ename == "MemoryError" or TORCH in e.evalue]
    return [f"{ranks(short)} may not have so much memory: use smaller tensors, or fewer ranks"] * bool(short)
