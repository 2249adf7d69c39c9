"""A learner's function on live ranks: each verdict names what it is, and leaves the ranks well."""

from __future__ import annotations

import re

import numpy as np
import pytest

import labkit
from labkit.cluster.engines import Engines
from labkit.floor import time_limits
from labkit.grading import judge
from labkit.grading.exercise import Budget, Case
from labkit.theory import collectives
from tests.live.checked import RIGHT, SOME, checked
from tests.live.versions import GLOO_ALL_TO_ALL


@pytest.fixture(scope="module")
def lab():
    with labkit.start(4, timeout=2) as lab:
        yield lab


def test_what_is_not_there_or_still_empty_is_not_attempted(lab):
    lab.run("globals().pop('f', None)")
    assert lab.check("f", means=collectives.all_reduce).state == "not attempted"
    for body in ("...", "'''Doc.'''", "pass", "'''Doc.'''\n    raise NotImplementedError('later')"):
        lab.run(f"def f(x):\n    {body}")
        verdict = lab.check("f", means=collectives.all_reduce)
        assert (verdict.state, verdict.right, verdict.ok) == ("not attempted", 0, False)


def test_three_dots_among_other_lines_are_still_to_be_written(lab):
    lab.run(f"{SOME}    if rank:\n        ...\n    return y")
    verdict = lab.check("f", means=collectives.all_reduce)
    assert verdict.state == "not attempted"
    assert verdict.says == [
        "f is still to be written: write what belongs in place of the … in line 4, and run its cell."
    ]
    lab.run("def f(x):\n    y = x[..., :]\n    dist.all_reduce(y := y.clone())\n    return y")
    assert lab.check("f", means=collectives.all_reduce).ok, "an index is not a blank"


def test_right_counts_the_inputs_over_two_three_and_four_ranks(lab):
    verdict = checked(lab, RIGHT)
    assert repr(verdict) == "✓ f: right on 24 inputs."
    assert verdict.ok


def test_wrong_names_the_first_input_and_rank_and_shows_both_sides(lab):
    verdict = checked(lab, SOME + "    dist.all_reduce(y)\n    return y + (rank == 2)")
    assert verdict.state == "wrong"
    assert verdict.right == 8, "with two ranks it was right"
    assert verdict.says[0] == "With 3 ranks: on rank 2 element 0 is 31, and should be 30."
    assert "rank 2 │ [20, 21, 22, 23, 24, 25] → [31, 34" in repr(verdict)
    assert "should be: [30, 33" in repr(verdict)
    assert "The ranks disagree" in repr(verdict)
    assert 'alt="What f does with 3 ranks. rank 0 │' in verdict._repr_html_()


@pytest.mark.parametrize(
    ("call", "results"),
    [("dist.gather(x, parts if rank == 0 else None)", "Rank 0 gives gather"),
     ("dist.all_gather(parts, x)", "Ranks 0, 1 give all_gather"),
     pytest.param(
         "dist.all_to_all(parts, [x] * world_size)", "Ranks 0, 1 give all_to_all", marks=GLOO_ALL_TO_ALL)],
)  # fmt: skip
def test_a_list_with_one_tensor_for_all_results_is_named(lab, call, results):
    code = "def f(x):\n    parts = [torch.empty_like(x)] * world_size\n    {}\n    return sum(parts)"
    gathered = {"means": lambda xs: [sum(xs), *[judge.ANY] * (len(xs) - 1)]}
    verdict = checked(lab, code.format(call), **gathered)
    assert verdict.state == "wrong"
    assert (
        f"{results} a list with the same tensor in it 2 times (line 4): each result overwrites the one before."
        in verdict.says
    )
    own = code.replace("[torch.empty_like(x)] * world_size", "[torch.empty_like(x) for _ in range(world_size)]")
    assert checked(lab, own.format(call), **gathered).ok


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("    dist.all_reduce(y)", "None comes back"),
        ("    dist.all_reduce(y)\n    return y[:-1]", "the shape is (3,), and should be (4,)"),
        ("    dist.all_reduce(y)\n    return [y]", "comes back, and"),
        (
            "    dist.all_reduce(y)\n    return y.long()",
            "there are integers (int64), and should be floats (float32)",
        ),
        ("    dist.all_reduce(y)\n    return dist", "TypeError: a module cannot leave its rank"),
        ("    return y", "on rank 0 element 0 is 0, and should be 10"),
        ("    return dist.all_reduce(y) + 0", "A call of dist.all_reduce returns None"),
    ],
)
def test_other_wrong_results_are_told_in_words(lab, body, says):
    assert says in repr(checked(lab, SOME + body))


def test_an_exception_names_its_rank_and_line_and_who_waited(lab):
    verdict = checked(
        lab, SOME + "    if rank == 1:\n        raise ValueError('no.')\n    dist.all_reduce(y)\n    return y"
    )
    assert verdict.state == "raises"
    assert verdict.says == [
        "Rank 1: ValueError: no (with 2 ranks).",
        "Line 5 of the cell: raise ValueError('no.')",
        "Rank 0 waited in all_reduce (line 6) and was freed.",
    ]
    assert "all variables are kept" in repr(verdict)


@pytest.mark.parametrize("head", ["f()", "f(x, y)"])
def test_a_function_with_other_arguments_is_told_how_it_is_called(lab, head):
    verdict = checked(lab, f"def {head}:\n    return 1")
    assert (verdict.state, verdict.says[1:]) == ("raises", ["The check calls f(x)."])
    inner = checked(lab, SOME + "    return f()")
    assert "The check calls" not in repr(inner), "it is not the check that calls it wrongly"


def test_a_deadlock_names_who_waits_for_whom_at_which_line(lab):
    body = "    dist.send(y, (rank + 1) % world_size)\n    dist.recv(y, (rank - 1) % world_size)\n    return y"
    verdict = checked(lab, SOME + body)
    assert verdict.state == "deadlock"
    assert verdict.says == [
        "It hangs with 2 ranks.",
        "Rank 0 waits for rank 1 to receive (send, line 4): dist.send(y, (rank + 1) % world_size).",
        "Rank 1 waits for rank 0 to receive (send, line 4): dist.send(y, (rank + 1) % world_size).",
    ]
    assert "0 → 1 → 0 is a cycle: no rank can go on." in verdict._repr_html_()


def test_a_rank_that_went_without_the_others_is_told(lab):
    verdict = checked(lab, SOME + "    if rank:\n        dist.all_reduce(y)\n    return y")
    assert verdict.state == "deadlock"
    assert "Rank 0 finished the function without it." in verdict.says
    assert "Rank 1 waits for rank 0 in all_reduce (line 5). Rank 0 finished the function" in verdict._repr_html_()


def test_a_wait_in_a_group_that_the_function_made_is_a_deadlock_too(lab):
    body = "    pair = dist.new_group([0, 1])\n    if rank == 1:\n        dist.recv(y, 0, group=pair)\n    return y"
    verdict = checked(lab, SOME + body)
    assert verdict.state == "deadlock", "no error in Gloo: connection closed by peer"
    assert "Rank 0 finished the function without it." in verdict.says


def test_ranks_that_made_different_numbers_of_groups_are_checked_as_others_are(lab):
    """Groups meet under their number: the check's own would look for each other in vain."""
    lab.run("_ = dist.new_group([0, 1])", ranks=[0, 1])
    lab.run("keep = 100 + rank")
    assert checked(lab, RIGHT).ok
    assert lab.pull("keep") == [100, 101, 102, 103]
    lab.run("everyone = dist.new_group()")


def test_a_rank_that_has_finished_does_not_take_its_groups_from_one_that_still_joins_them(lab):
    lab.run("""
        import time
        from labkit.rank.store import MeetingStore
        look = MeetingStore.get

        def late(store, key):
            time.sleep(0.02 * rank)
            return look(store, key)

        def f(x):
            MeetingStore.get = late
            try:
                dist.new_group(range(world_size))
            finally:
                MeetingStore.get = look
            return x
    """)
    verdict = lab.check("f", means=lambda xs: xs)
    assert verdict.ok, repr(verdict)


def test_a_function_that_computes_for_ever_ends_at_the_limit(lab, monkeypatch):
    monkeypatch.setattr(time_limits, "RUN", 0.5)
    monkeypatch.setattr(lab._engines, "limit", 0.5)
    monkeypatch.setattr(time_limits, "CHECK", 3.0)
    verdict = checked(lab, "def f(x):\n    while True:\n        pass")
    assert verdict.state == "slow"
    assert "ranks 0, 1 went on computing" in verdict.says[0]


def test_a_rank_that_dies_is_replaced_and_what_is_known_is_told(lab):
    lab.run(SOME + "    import os\n    if rank == 1:\n        os._exit(3)\n    dist.all_reduce(y)\n    return y")
    verdict = lab.check("f", means=collectives.all_reduce)
    assert verdict.state == "raises"
    assert verdict.says[0] == "With 2 ranks: rank 1 died (exit code 3)."
    assert re.search(r"Rank 0 (called|waited in) all_reduce\b.* \(line 6\)", repr(verdict))
    assert "Rank 1 was started anew" in repr(verdict)
    assert checked(lab, RIGHT).ok


def test_what_a_rank_lost_that_was_started_anew_is_named(lab):
    helper = "def other(x):\n    return x"
    lab.run(f"{helper}\ndef f(x):\n    import os\n    if rank == 1:\n        os._exit(3)\n    return x")
    lab.check("f", means=collectives.all_reduce)
    lab.run(f"{helper}\n{RIGHT}")
    lab.run("del f", ranks=[1])
    assert lab.check("f", means=collectives.all_reduce).says == [
        "Only ranks 0, 2, 3 have f.",
        "Rank 1 has been started anew, and not all that it had came back.",
        "Run the cell of f once more, on all ranks.",
    ]
    lab.run(RIGHT.replace("return y", "return other(y)"))
    lab.run("del other", ranks=[1])
    verdict = lab.check("f", means=collectives.all_reduce)
    assert verdict.says[:4] == [
        "Rank 1: NameError: name 'other' is not defined (with 2 ranks).",
        "other is not defined on rank 1, and it is on the others.",
        "Rank 1 has been started anew, and not all that it had came back.",
        "Run the cell that defines other once more, on all ranks.",
    ]
    lab.run("del other", ranks=[0, 2, 3])
    assert "other once more" not in repr(lab.check("f", means=collectives.all_reduce)), "nobody ever had it"
    assert checked(lab, RIGHT).ok


EVEN = "    y = y[:2] if rank == 0 else y\n"


@pytest.mark.parametrize(
    ("body", "state", "says"),
    [
        ("    dist.recv(y, rank)\n", "raises", "Ranks 0, 1 receive from themselves (line 4), with 2 ranks."),
        (
            "    if rank == 1:\n        dist.recv(y, 1)\n    dist.all_reduce(y)\n",
            "deadlock",
            "Rank 1 receives from itself (line 5).",
        ),
        (
            f"{EVEN}    dist.all_reduce(y)\n",
            "raises",
            "With 2 ranks: ranks disagree on the number of elements: rank 0 calls all_reduce(SUM, float32[2]) "
            "(line 5); rank 1 calls all_reduce(SUM, float32[4]) (line 5). Give every rank what the others expect of "
            "it.",
        ),
        (
            "    if rank == 0:\n        dist.isend(y, 1)\n    dist.barrier()\n    dist.recv(y, 0) if rank else None\n",
            "deadlock",
            "Rank 0 started isend (line 5) and never waited for it.",
        ),
        (
            "    dist.broadcast(y, rank)\n",
            "deadlock",
            "With 2 ranks: ranks disagree on the root: rank 0 calls broadcast(src=0, float32[4]) (line 4); rank 1 "
            "calls broadcast(src=1, float32[4]) (line 4). Make the same call with the same arguments on every rank.",
        ),
        (
            f"{EVEN}    dist.send(y, 1) if rank == 0 else dist.recv(y, 0)\n",
            "wrong",
            "Rank 0 sends 2 elements (line 5), and rank 1 makes room for 4 elements (line 5).",
        ),
    ],
)
def test_calls_that_cannot_fit_are_named(lab, body, state, says):
    """Who waits is not always who is wrong: what the ranks called says more."""
    verdict = checked(lab, f"{SOME}{body}    return y")
    assert (verdict.state, says in verdict.says) == (state, True), repr(verdict)
    assert "without it" not in repr(verdict), "every rank made its call"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (f"{EVEN}    dist.all_reduce(y)\n", "Rank 0 brings 2 elements to all_reduce (line 5), and rank 1 brings 4."),
        (
            "    dist.broadcast(y, rank)\n",
            "Rank 0 names rank 0 as the root of broadcast (line 4), and rank 1 names rank 1.",
        ),
    ],
)
def test_calls_that_cannot_fit_are_named_without_the_guard_as_well(lab, body, says):
    lab.guard = False
    try:
        verdict = checked(lab, f"{SOME}{body}    return y")
        assert (verdict.state, says in verdict.says) == ("deadlock", True), repr(verdict)
        assert "without it" not in repr(verdict), "every rank made its call"
    finally:
        lab.guard = True


def test_a_message_that_nobody_receives_is_a_mistake_even_where_the_result_is_right(lab):
    body = "    if rank == 0:\n        globals()['w'] = dist.isend(y, 1)\n    dist.all_reduce(y)\n    return y"
    verdict = checked(lab, SOME + body)
    assert verdict.state == "wrong"
    assert verdict.says == ["Rank 0 sends to rank 1 (line 5), and no rank receives it (with 2 ranks)."]


def test_a_peer_that_does_not_exist_is_refused_in_a_check_and_only_there(lab):
    verdict = checked(lab, SOME + "    dist.send(y, rank + 1)\n    return y")
    assert verdict.state == "raises"
    assert "Rank 1: ValueError: there is no rank 2 among 2 ranks" in verdict.says[0]
    batch = "    ops = [dist.P2POp(dist.isend, y, rank + 1)]\n    dist.batch_isend_irecv(ops)\n    return y"
    assert "there is no rank 2 among 2 ranks" in repr(checked(lab, SOME + batch))
    assert lab.run("if rank < 2:\n    dist.send(y, 3) if rank == 0 else None\nif rank == 3:\n    dist.recv(y, 0)")


def test_what_is_forbidden_or_too_costly_is_right_with_a_but(lab):
    verdict = checked(lab, RIGHT, forbids=("all_reduce",))
    assert repr(verdict) == "≈ f: right on 24 inputs, but forbidden.\nIt calls dist.all_reduce (line 4)."
    assert checked(lab, RIGHT, forbids=("collectives",)).state == "forbidden"
    assert checked(lab, RIGHT, forbids=("send",)).ok
    around = """    part = y.clone()
    for _ in range(world_size - 1):
        got = torch.empty_like(part)
        sending = dist.isend(part, (rank + 1) % world_size)
        dist.recv(got, (rank - 1) % world_size)
        sending.wait()
        part = got
        y += part
    return y"""
    budget = Budget(sent=lambda n, S: 2 * (n - 1) / n * S)
    verdict = checked(lab, SOME + around, budget=budget)
    assert verdict.state == "costly"
    assert "sends 3.0 S, and 1.5 S is possible" in verdict.says[0]
    assert checked(lab, SOME + around, budget=Budget(steps=lambda n: n - 1)).ok
    verdict = checked(lab, SOME + around, budget=Budget(steps=lambda n: n - 2))
    assert "It takes 3 steps with 4 ranks" in verdict.says[0]
    assert checked(lab, RIGHT, budget=budget).ok, "torch's own all-reduce keeps to the ring's bytes"


@pytest.mark.parametrize(("code", "sizes"), [(RIGHT, [2, 3, 4]), ("def f(x):\n    return x", [2])])
def test_the_ranks_are_asked_nothing_twice_and_make_a_group_for_the_sizes_that_are_reached(
    lab, monkeypatch, code, sizes
):
    lab.run(f"keep = 100 + rank\n{code}")
    made, really = [], Engines.call

    def call(engines, path, args, *rest, **options):
        made.append((path.removeprefix("labkit.rank.function."), args[0][0]))
        return really(engines, path, args, *rest, **options)

    monkeypatch.setattr(Engines, "call", call)
    monkeypatch.setattr(Engines, "ask", lambda *_: pytest.fail("what was that good for?"))
    verdict = lab.check("f", means=collectives.all_reduce, ranks=(2, 3, 2, 4))
    monkeypatch.undo()
    runs = [what for what in made if what[0] == "run"]
    again = [("again", "f")] * verdict.ok
    assert [what for what in made if what not in runs][1:-1] == [*(("begin", n) for n in sizes), *again]
    assert made[0] == ("ready", "f")
    assert made[-1][0] == "finish"
    assert verdict.ok == (len(sizes) == 3)
    assert lab._engines.ask("groups", [0, 3], 5.0)[3]["groups"] == 1
    assert checked(lab, RIGHT).ok


@pytest.mark.parametrize("last", [2, 4])
def test_a_right_function_that_destroys_the_labs_group_is_told_so(lab, last):
    code = RIGHT.replace(
        "return y", f"if world_size == {last} and rank:\n        dist.destroy_process_group()\n    return y"
    )
    verdict = checked(lab, code, inputs=lambda n: [Case([np.arange(3.0)] * n)])
    who = "Rank 1" if last == 2 else "Ranks 1–3"
    assert verdict.state == "wrong"
    assert verdict.says == [
        f"{who} destroyed the process group (with {last} ranks), which the lab needs. "
        "Destroy only groups that the function itself has made."
    ]


def test_gradients_are_checked_beside_the_values(lab):
    right = "from torch.distributed.nn.functional import all_reduce\ndef f(x):\n    return all_reduce(x.clone())"
    assert checked(lab, right, gradients=True).ok
    lazy = "def f(x):\n    y = x.detach().clone()\n    dist.all_reduce(y)\n    return x + (y - x.detach())"
    assert checked(lab, lazy).ok
    verdict = checked(lab, lazy, gradients=True)
    assert verdict.state == "wrong"
    assert "The values are right, the gradients are not" in verdict.says[0]
    assert "rank 0 │ [0, 1, 2, 3] → gradient of argument 0: [1, 0.267, " in repr(verdict)
    verdict = checked(lab, RIGHT.replace("x.clone()", "x.detach().clone()"), gradients=True)
    assert "no gradient reaches argument 0, because nothing connects the result with it" in verdict.says[0]
    assert checked(lab, right, gradients="one").says[1].startswith("Everything is 2 times too large: the backward pass")


def test_an_exchange_by_single_calls_is_right_and_its_verdict_says_what_nccl_needs(lab):
    code = (
        "def f(x):\n    room = torch.empty_like(x)\n    n = world_size\n"
        "    works = [dist.isend(x, (rank + 1) % n), dist.irecv(room, (rank - 1) % n)]\n"
        "    for work in works:\n        work.wait()\n    return room"
    )
    verdict = checked(lab, code, means=lambda xs: [xs[-1], *xs[:-1]])
    assert verdict.ok
    assert verdict.says == ["With NCCL, make the transfers of one exchange one dist.batch_isend_irecv call."]


@pytest.mark.parametrize(
    ("code", "state"),
    [
        ("def f(x):\n    dist.destroy_process_group()\n    return x", "wrong"),
        ("def f(x):\n    if rank:\n        dist.destroy_process_group()\n    dist.all_reduce(x)", "raises"),
        ("def f(x):\n    raise SystemExit(1)", "raises"),
        ("def f(x):\n    return f(x)", "raises"),
        ("def f(x):\n    yield x", "raises"),
        ("def f():\n    return 1", "raises"),
        ("class f:\n    def __init__(self, x): pass", "raises"),
        ("def f(x):\n    return x.to_sparse()", "raises"),
        ("def f(x):\n    global rank, world_size\n    rank, world_size = 7, 9\n    return x", "wrong"),
        ("import sys\ndef f(x):\n    sys.stdout = None\n    return x", "wrong"),
        ("def f(x):\n    globals()['w'] = dist.irecv(x.clone(), 1 - rank)\n    return x", "wrong"),
        ("import threading\n" + SOME + "    t = threading.Thread(target=lambda: dist.all_reduce(y))\n"
         "    t.start()\n    t.join()\n    return y", "right"),
    ],
)  # fmt: skip
def test_whatever_a_function_does_there_is_a_verdict_and_the_ranks_are_well(lab, code, state):
    assert checked(lab, code).state == state
    assert checked(lab, RIGHT).ok


def test_where_gloo_ends_a_process_the_verdict_names_the_call_and_says_what_that_means(lab):
    lab.run(SOME + "    if rank == 0:\n        dist.send(y, 1)\n    else:\n        dist.recv(y[:2], 0)\n    return y")
    verdict = lab.check("f", means=collectives.all_reduce)
    assert verdict.state == "raises"
    assert verdict.says[0] == "With 2 ranks: rank 1 died (SIGABRT) in recv (line 6)."
    assert "the sender's tensor has a different length or dtype" in verdict.says[1]
    assert verdict.says[2] == "Rank 0 called send with 4 elements of float32 (line 4)."
    assert checked(lab, RIGHT).ok


def test_a_crash_of_the_learners_own_names_its_line_and_does_not_blame_gloo(lab):
    lab.run(SOME + "    import ctypes\n    if rank == 1:\n        ctypes.string_at(0)\n    return y")
    verdict = lab.check("f", means=collectives.all_reduce)
    assert verdict.says[0] == "With 2 ranks: rank 1 died (SIGSEGV) in line 5."
    assert "Gloo" not in repr(verdict)
    assert checked(lab, RIGHT).ok


STANDING = """{
    "world": (dist.get_rank(), dist.get_world_size(), rank, world_size, comms.all_reduce(torch.ones(1)).item()),
    "groups": len(dist.distributed_c10d._world.pg_map),
    "environment": dict(__import__("os").environ),
    "stop": str(__import__("signal").getsignal(2)),
    "stdout": str(type(__import__("sys").stdout)),
    "dying": __import__("faulthandler").is_enabled(),
    "defaults": str(__import__("torch.distributed.nn.functional", fromlist=["_"]).all_reduce.__defaults__),
    "random": torch.rand(1).item(),
}"""


@pytest.mark.parametrize(
    ("body", "state"),
    [
        ("    dist.all_reduce(y)\n", "right"),
        ("", "wrong"),
        ("    1 / 0\n", "raises"),
        ("    dist.recv(y, 1 - rank)\n", "deadlock"),
        ("    dist.new_group([0])\n    while True: pass\n", "slow"),
    ],
)
def test_after_any_check_the_ranks_stand_as_before(lab, monkeypatch, body, state):
    """What a run among fewer ranks changes meanwhile is put back on all ranks, whatever its end."""
    monkeypatch.setattr(time_limits, "RUN", 0.5)
    monkeypatch.setattr(lab._engines, "limit", 0.5)
    monkeypatch.setattr(time_limits, "CHECK", 3.0 if state == "slow" else time_limits.CHECK)
    lab.run(f"{SOME}{body}    return y\ntorch.manual_seed(5)")
    lab.run("worlds = [dist.group.WORLD]")
    before = lab.pull(STANDING)
    lab.run("torch.manual_seed(5)")
    assert lab.check("f", means=collectives.all_reduce).state == state
    assert lab.pull(STANDING) == before
    if state in ("right", "wrong", "raises"):
        assert all(lab.pull("dist.group.WORLD is worlds[0]")), "nothing was broken, so nothing was joined anew"
