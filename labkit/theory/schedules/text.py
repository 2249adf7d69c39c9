"""A schedule in words: one line on what it takes, then a line for each step. Imports neither torch nor a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.words import count, spans

if TYPE_CHECKING:
    from labkit.theory.schedules.schedule import Schedule, Send

LINES = 24  # steps that are told; of more the first and the last ones


def title(s: Schedule) -> str:
    """Its ranks, chunks and steps, and what the ranks send of a buffer of S bytes."""
    ranks, chunks, steps = (count(k, what) for k, what in ((s.n, "rank"), (s.chunks, "chunk"), (len(s.steps), "step")))
    sent = sorted({round(b, 9) for b in s.sent()})
    told = f"a rank sends {sent[0]:.4g} S to {sent[-1]:.4g} S" if len(sent) > 1 else f"each rank sends {sent[0]:.4g} S"
    return f"{s.name}, {s.op} on {ranks}: {chunks}, {steps}, {told}"


def text(s: Schedule) -> str:
    """The title, then who sends what to whom in each step: +2 is chunk 2, added; =2 is chunk 2, put in its place."""
    steps = [sorted(step, key=lambda a: (a.src, a.dst)) for step in s.steps]
    lines = [
        f"step {k + 1}: {' · '.join(f'{named(s, a.src)}→{named(s, a.dst)} {carried(s, a)}' for a in step)}"
        for k, step in enumerate(steps)
    ]
    if len(lines) > LINES:
        lines = [*lines[: LINES - 4], "…", *lines[-3:]]
    return "\n".join([title(s), *lines])


def named(s: Schedule, who: int) -> str:
    """A rank's number, or "switch", with a number where there are several."""
    if who < s.n:
        return str(who)
    return "switch" if len(s.switches) == 1 else f"switch{who - s.n}"


def carried(s: Schedule, send: Send) -> str:
    """What a send carries, in short."""
    if s.op == "all_to_all":
        if len(send.chunks) > 1:
            return f"{len(send.chunks)} chunks"
        src, dst = divmod(send.chunks[0], s.n)
        return f"({src}→{dst})" if (src, dst) != (send.src, send.dst) else "its own"
    return f"{'+' if send.reduce else '='}{spans(send.chunks)}"
