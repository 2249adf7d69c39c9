"""Name the known mistake that gives the same wrong result, for harnesses of exercises.

A budget for what is sent counts what `everyones` sends: not for exercises that have one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch.distributed as dist

from labkit.grading import judge
from labkit.grading.exercise import Exercise
from labkit.rank import agent, recorder
from labkit.rank.copies import shell


def everyones(mine: Any) -> list[Any]:
    """Gather a value from every rank, by rank, and leave nothing in the record."""
    # Called after the learner's function it would wait for its mistakes.
    with recorder.paused():
        each: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(each, agent.plain(mine))
    return [agent.made(theirs, "", shell().user_ns["device"]) for theirs in each]


def name_it(out: Any, right: Any, slips: Mapping[str, Any], of: str = "") -> None:
    """Raise an AssertionError that names the slips which give the same wrong result; return where none does."""

    def off(wanted: Any) -> judge.Difference | None:
        return judge.first_difference(agent.plain(out), agent.plain(wanted), 1e-5, path=of)

    if wrong := off(right):
        _tell(wrong, [why for why, gives in slips.items() if not off(gives)])


def by_slips(exercise: Exercise, theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the function to name the slips of the exercise that give the same wrong result on the same input."""
    right = exercise.function
    assert right is not None

    def same(out: Any, version: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
        try:
            return judge.first_difference(out, version(*args, **options), 1e-6) is None
        except Exception:  # this mistake comes to no result on this input
            return False

    def called(*args: Any, **options: Any) -> Any:
        out = theirs(*args, **options)
        if off := judge.first_difference(out, right(*args, **options), 1e-6):
            # A slip that an earlier input would have shown is not named.
            versions = {why: _edited(exercise, old, new) for why, (old, new) in exercise.slips.items()}
            cases = [(case.xs[0], dict(case.options)) for case in exercise.inputs(2)]
            earlier = cases[: cases.index((args, options))] if (args, options) in cases else []
            shown = [(a, right(*a, **o), o) for a, o in earlier]
            _tell(
                off,
                [
                    why
                    for why, version in versions.items()
                    if same(out, version, args, options) and all(same(want, version, a, o) for a, want, o in shown)
                ],
            )
        return out

    return called


def _edited(exercise: Exercise, old: str, new: str) -> Callable[..., Any]:
    """Run the edited solution's source with what the solution sees."""
    space = dict(getattr(exercise.function, "__globals__", {}))
    exec(exercise.before + exercise.code.replace(old, new), space)
    edited: Callable[..., Any] = space[exercise.name]
    return edited


def _tell(wrong: judge.Difference, whys: Iterable[str]) -> None:
    if named := list(whys)[:3]:
        raise AssertionError(f"{wrong.says}. You get this if the function {', or if it '.join(named)}")
