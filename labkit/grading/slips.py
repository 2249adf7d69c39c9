"""A check that names common mistakes: a wrong result is held against that of each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from labkit.grading.exercise import Exercise

# For the harness of an exercise whose results need the other ranks' numbers: `everyones` gathers these, and `name_it`
# says which of the slips give a wrong result.
# `everyones` is called before the function, so it waits for nobody's mistake, and leaves nothing in the record. But its
# bytes are on the wire, which a budget for what is sent counts: not for exercises that have one.
NAMING = """
def everyones(mine):
    from labkit.rank import agent, function, recorder

    with recorder.paused():
        each = [None] * world_size
        dist.all_gather_object(each, agent.plain(mine))
    return [function.made(theirs, "", device) for theirs in each]


def name_it(out, right, slips, of=""):
    from labkit.grading import judge
    from labkit.rank import agent

    def off(wanted):
        return judge.first_difference(agent.plain(out), agent.plain(wanted), 1e-5, path=of)

    wrong = off(right)
    same = [why for why, gives in slips.items() if not off(gives)] if wrong else []
    assert not same, f"{wrong.says}. You get this if the function {', or if it '.join(same[:3])}"
"""


def naming(exercise: Exercise, slips: Mapping[str, tuple[str, str]]) -> Exercise:
    """Give the exercise a harness that says of a wrong result which of the slips give the same.

    A slip is what a mistaken function does, and the edit of the solution, (old, new), that makes it do so:
    `{"forgets the division": ("total / world_size", "total")}`.

    It is for functions that only compute, from the same arguments on all ranks. The solution and the slips run on the
    same input, on the rank itself. A slip that an earlier input would have shown is not named. A wrong result that
    none of them gives is returned, and judged as ever.
    """
    versions = [(why, f"{exercise.given}{exercise.code.replace(old, new)}") for why, (old, new) in slips.items()]
    cases = [(case.xs[0], dict(case.options)) for case in exercise.inputs(2)]
    return replace(
        exercise,
        harness=f"""
def harness(theirs, *args, **options):
    from labkit.grading import judge

    def differs(out, source, args, options):
        space = dict(globals())
        exec(source, space)
        try:
            return judge.first_difference(out, space[{exercise.name!r}](*args, **options), 1e-6)
        except Exception as error:  # this mistake comes to no result on this input
            return error

    def right(args, options):
        space = dict(globals())
        exec({exercise.code!r}, space)
        return space[{exercise.name!r}](*args, **options)

    out = theirs(*args, **options)
    off = judge.first_difference(out, right(args, options), 1e-6)
    if off is not None:
        cases = {cases!r}
        earlier = cases[: cases.index((args, options))] if (args, options) in cases else []
        same = [
            why
            for why, source in {versions!r}
            if not differs(out, source, args, options)
            and not any(differs(right(*case), source, *case) for case in earlier)
        ]
        assert not same, f"{{off.says}}. You get this if the function {{', or if it '.join(same[:3])}}"
    return out
""",
    )
