"""What harnesses share that name a mistake by the result that it gives, where this needs the other ranks' numbers.

`labkit.grading.slips` does it for functions that only compute, and whose slips are edits of the solution.
"""

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
