"""What a card forbids, allows and promises, on real ranks: no way of calling passes unseen."""

from __future__ import annotations

import pytest

from labkit.grading.exercise import Budget
from labkit.grading.inputs import Case, draws
from labkit.grading.promises import Calls, OnlyTo
from labkit.theory import collectives
from labkit.theory.values import split
from workbook.lesson08 import Travels
from workbook.lesson14b import SameGroups

FUNCOL = "import torch.distributed._functional_collectives as funcol\n"
BY_OTHER_WAYS = {
    "funcol.all_reduce": "    return funcol.all_reduce(x, 'sum', dist.group.WORLD) + 0",
    "ProcessGroup.all_reduce": "    y = x.clone()\n    dist.group.WORLD.allreduce(y).wait()\n    return y",
    "comms.all_reduce": "    return comms.all_reduce(x)",
}
ROUND = """
def f(x):
    for _ in range(world_size - 1):
        got = torch.empty_like(x)
        works = [dist.isend(x, dst=(rank - 1) % world_size), dist.irecv(got, src=(rank + 1) % world_size)]
        for work in works:
            work.wait()
        x = got
    return x
"""


def checked(lab, code, means=collectives.all_reduce, **given):
    lab.run(FUNCOL + code)
    return lab.check("f", means=means, **given)


@pytest.mark.parametrize("called", BY_OTHER_WAYS)
def test_a_forbidden_collective_is_forbidden_by_every_way_of_calling_it(lab, called):
    verdict = checked(lab, f"def f(x):\n{BY_OTHER_WAYS[called]}", forbids=("all_reduce",))
    assert verdict.state == "forbidden"
    assert verdict.says[0].startswith(f"It calls {called} (line ")


def test_objects_do_not_pass_a_byte_budget(lab):
    body = "    all_of_it = [None] * world_size\n    dist.all_gather_object(all_of_it, x)\n    return sum(all_of_it)"
    verdict = checked(lab, f"def f(x):\n{body}", budget=Budget(sent=lambda n, S: 1.5 * S))
    assert verdict.state == "costly"
    assert "and 1.5 S is possible" in verdict.says[0]


def test_a_way_of_the_library_that_costs_more_than_the_textbooks_is_seen_on_the_wire(lab):
    body = """    chunks = [c.clone() for c in x.split(len(x) // world_size)]
    mine = torch.empty_like(chunks[0])
    dist.reduce_scatter(mine, chunks)
    return mine"""

    def halves(xs):
        return collectives.reduce_scatter([split(x, len(xs)) for x in xs])

    verdict = checked(
        lab, f"def f(x):\n{body}", halves, budget=Budget(sent=lambda n, S: (n - 1) / n * S),
        inputs=lambda n: [Case(draws(n, 2000 * n))],
    )  # fmt: skip
    counted = lab.run("from labkit.rank import wire\nprint(wire.sent() is not None)", 0)[0] == "True\n"
    assert verdict.state == ("costly" if counted else "right")
    if counted:
        assert "That is counted on the wire" in verdict.says[0]


def test_a_ring_to_the_left_is_right_and_not_as_asked(lab):
    def from_the_left(xs):
        return [xs[r - 1] for r in range(len(xs))]

    verdict = checked(lab, ROUND, from_the_left, promises=(OnlyTo(+1),))
    assert verdict.state == "not as asked"
    says = "Rank 0 sends to rank 2 (line 6), and may only send to the next rank (with 3 ranks"
    assert verdict.says[0].startswith(says)
    assert "but not as asked" in verdict.head
    assert checked(lab, ROUND, from_the_left, promises=(OnlyTo(-1),)).ok


def test_groups_that_only_their_members_make_are_not_as_asked_unless_torch_is_told_so(lab):
    own = "    group = dist.new_group([0, 1]{}) if rank < 2 else None\n    dist.all_reduce(x)\n    return x"
    verdict = checked(lab, f"def f(x):\n{own.format('')}", promises=(SameGroups(),))
    assert verdict.state == "not as asked"
    assert "Rank 0 makes a group of ranks 0, 1, and rank 2 no group." in verdict.says[0]
    alone = own.format(", use_local_synchronization=True")
    assert checked(lab, f"def f(x):\n{alone}", promises=(SameGroups(),)).ok


def test_one_call_and_its_dtype_are_held_to(lab):
    twice = "    low, high = x.tensor_split(2)\n    dist.all_reduce(low)\n    dist.all_reduce(high)\n    return x"
    verdict = checked(lab, f"def f(x):\n{twice}", promises=(Calls(1),))
    assert "makes 2 calls that communicate, dist.all_reduce (line 4; line 5), and 1 is enough" in verdict.says[0]
    once = "    dist.all_reduce(x)\n    return x"
    verdict = checked(lab, f"def f(x):\n{once}", promises=(Calls(1), Travels("float64")))
    assert (verdict.state, "float32 to dist.all_reduce (line 3)" in verdict.says[0]) == ("not as asked", True)
