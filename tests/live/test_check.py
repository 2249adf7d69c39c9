"""A learner's function on live ranks: each verdict names what it is, and leaves the ranks well."""

from __future__ import annotations

import re
import signal

import numpy as np
import pytest

import labkit
from labkit.cluster.engines import Engines
from labkit.content import exercises
from labkit.faces import progress
from labkit.floor import time_limits
from labkit.floor.errors import LabError, StoppedError
from labkit.grading import inputs, judge
from labkit.grading.exercise import Budget, Case
from labkit.show.verdict import _drawing
from labkit.theory import collectives
from tests.live.notebook import Notebook
from tests.live.processes import eventually
from tests.live.versions import GLOO_ALL_TO_ALL

RIGHT = "def f(x):\n    y = x.clone()\n    dist.all_reduce(y)\n    return y"
SOME = "def f(x):\n    y = x.clone()\n"
WELL = "y = torch.ones(1)\ndist.all_reduce(y)\nprint(rank, world_size, dist.get_world_size(), int(y), keep)"


@pytest.fixture(scope="module")
def lab():
    with labkit.start(4, timeout=2) as lab:
        yield lab


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_PROGRESS", str(tmp_path))
    return tmp_path


def checked(lab, code: str, **given):
    """The verdict on a function; whatever it is, the next cell works and variables are kept."""
    lab.run(f"keep = 100 + rank\n{code}")
    verdict = lab.check("f", **{"means": collectives.all_reduce, **given})
    assert lab.run(WELL) == [f"{r} 4 4 4 {100 + r}\n" for r in range(4)]
    html = verdict._repr_html_()
    assert verdict.head in html
    assert html.count("<img ") == len(re.findall(r'<img alt="[^"]+"', html))
    return verdict


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
    assert lab.check("f", means=collectives.all_reduce).ok, "an index is no blank"


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
        f"{results} a list with the same tensor in it 2 times (line 4): each result overwrites the last."
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
    assert "0 → 1 → 0 is a cycle: nobody can go on." in verdict._repr_html_()


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
    assert verdict.says == ["Rank 0 sends to rank 1 (line 5), and nobody receives it (with 2 ranks)."]


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
        "Destroy none but those that the function has made."
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
    assert "no gradient reaches argument 0, for nothing connects the result with it" in verdict.says[0]
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


def test_where_ranks_differ_all_that_they_printed_is_shown_by_rank(lab):
    verdict = checked(lab, "def f(x):\n    print('I hold', len(x))\n    print('as rank', rank)\n    return x")
    assert "it printed: rank 0 │ I hold 4\nit printed: rank 0 │ as rank 0\nit printed: rank 1 │ I hold 4" in repr(
        verdict
    )


def test_a_function_that_differs_between_ranks_is_told(lab):
    lab.run(RIGHT)
    lab.run(RIGHT + " * 1", ranks=[2, 3])
    verdict = lab.check("f", means=collectives.all_reduce)
    assert verdict.says == ["Ranks 2, 3 hold another f than rank 0. Run its cell on all ranks."]
    lab.run("del f", ranks=[0])
    assert lab.check("f", means=collectives.all_reduce).says[0].startswith("Only ranks 1–3 have f.")
    lab.run("f = 3")
    assert "no function but a value (int)" in repr(lab.check("f", means=collectives.all_reduce))


def test_in_place_kept_inputs_options_and_no_argument(lab):
    assert checked(lab, "def f(x):\n    dist.all_reduce(x)", in_place=True).ok
    verdict = checked(lab, "def f(x):\n    dist.all_reduce(x)\n    return x", keeps_input=True)
    assert "the argument is changed" in verdict.says[0]
    code = "def f(x, root):\n    y = x.clone()\n    dist.broadcast(y, root)\n    return y"
    assert checked(lab, code, means=collectives.broadcast, inputs=inputs.with_roots(inputs.vectors)).ok
    assert checked(lab, "def f():\n    return rank", means=lambda xs: list(range(len(xs))), inputs=inputs.nothing).ok


def test_the_gradient_that_is_shown_is_that_of_the_argument_that_is_wrong(lab):
    code = "def f(a, b):\n    y = a + 2 * b.detach()\n    return y + 0 * b"
    two = [Case([(x, x + 1) for x in inputs.counting(n, 2)]) for n in (2,)]
    given = {"means": lambda xs: [a + 2 * b for a, b in xs], "inputs": lambda n: two, "ranks": (2,), "gradients": True}
    verdict = checked(lab, code, **given)
    assert "the gradient of argument 1 is wrong" in verdict.says[0]
    assert "→ gradient of argument 1: [0, 0]   should be: [2.0, 0.535]" in repr(verdict)


def test_a_matrix_is_shown_with_its_shape(lab):
    cases = [Case([x.reshape(2, 3) for x in inputs.counting(2, 6)])]
    verdict = checked(lab, "def f(x):\n    return x", inputs=lambda n: cases, ranks=(2,))
    assert "rank 0 │ [[0, 1, 2], [3, 4, 5]] → [[0, 1, 2], [3, 4, 5]]   should be: [[10, 12, 14], " in repr(verdict)
    drawing = _drawing(verdict._exercise, verdict._finding)
    assert [[len(group) for group in row] for column in drawing.columns for row in column] == [[3, 3]] * 6
    assert drawing.notes == ["Shapes of the input: (2, 3) on ranks 0, 1."]


def test_a_meaning_may_be_named(lab):
    assert checked(lab, RIGHT, means="all_reduce").ok
    chunks = "def f(xs):\n    return comms.reduce_scatter(xs)"
    assert checked(lab, chunks, means="reduce_scatter").ok
    with pytest.raises(LabError, match="'all_redcue' is no primitive"):
        lab.check("f", means="all_redcue")


def test_lists_dicts_and_bfloat16_cross(lab):
    def cases(n):
        return [Case([{"a": x, "b": [x, 3]} for x in inputs.counting(n, 2)], dtype="bfloat16")]

    code = "def f(s):\n    assert s['a'].dtype == torch.bfloat16\n    return [s['b'][0] + 1, s['a'], s['b'][1]]"
    assert checked(lab, code, means=lambda xs: [[x["a"] + 1, x["a"], 3] for x in xs], inputs=cases).ok


def test_groups_of_the_function_and_of_the_learner_live_on_their_own(lab):
    lab.run("pair = dist.new_group([0, 1])\nlater = [dist.new_group([2, 3]) for _ in range(2)]")
    own = "def f(x):\n    groups = [dist.new_group([r]) for r in range(world_size)]\n    y = x.clone()\n"
    assert checked(lab, own + "    dist.all_reduce(y)\n    return y").ok
    told = lab.run("y = torch.ones(1)\nif rank < 2:\n    dist.all_reduce(y, group=pair)\nprint(int(y))")
    assert told == ["2\n", "2\n", "1\n", "1\n"]
    assert (
        lab.run("g = dist.new_group([1, 3])\nif rank % 2:\n    dist.all_reduce(y, group=g)\nprint(int(y))")[3] == "3\n"
    )


def test_a_wrong_sum_says_what_it_is_made_of(lab):
    """The function runs again on numbers that tell where they came from, as tokens would."""
    body = "    dist.all_reduce(y)\n    return y + (x if rank == 1 else 0)"
    verdict = checked(lab, SOME + body)
    assert verdict.says[0] == "With 2 ranks: on rank 1 element 0 is 20, and should be 10."
    assert verdict.says[-1] == "Rank 1 counts rank 1 twice."
    assert "Rank 0 lacks rank 1's numbers." in checked(lab, SOME + "    return y").says
    assert "all_reduce" not in repr(checked(lab, SOME + "    dist.all_reduce(y)\n    return y / 2").says)


def test_afterwards_timeline_and_steps_show_the_last_run(lab):
    checked(lab, SOME + "    dist.all_reduce(y)\n    return y")
    lab.run(RIGHT)
    lab.check("f", means=collectives.all_reduce)
    assert "all_reduce(sum)" in repr(lab.last.timeline())


def test_what_a_function_prints_is_shown_where_it_is_wrong_and_only_there(lab, capfd):
    assert "it printed" not in repr(checked(lab, RIGHT.replace("    return", "    print('noise')\n    return")))
    verdict = checked(lab, "def f(x):\n    print('I hold', x.tolist())\n    return x")
    assert "it printed: rank 0 │ I hold [0.0, 1.0, 2.0, 3.0]" in repr(verdict)


def test_what_cannot_be_checked_is_a_lab_error(lab):
    with pytest.raises(LabError, match="There is no exercise 'nonsense'"):
        lab.check("nonsense")
    with pytest.raises(LabError, match="needs a meaning"):
        lab.check("f", forbids=("send",))
    with pytest.raises(LabError, match="no option of a check"):
        lab.check("f", means=collectives.all_reduce, colour="red")
    with pytest.raises(LabError, match="needs 8 ranks or more"):
        lab.check("f", means=collectives.all_reduce, ranks=(8,))

    def my_sum(x):
        return x

    with pytest.raises(LabError, match=r"my_sum is the notebook's\. Write it in a %%px cell and pass its name"):
        lab.check(my_sum, means=collectives.all_reduce)


def test_an_attempt_is_kept_before_it_runs_and_a_solution_counts(lab, place):
    lab.run("def hello_sum(x):\n    return x")
    verdict = lab.check("hello_sum")
    assert (verdict.state, progress.read()["hello_sum"]["state"]) == ("wrong", "tried")
    assert progress.last("hello_sum") == "%%px\ndef hello_sum(x):\n    return x\n"
    assert ".hint()" in repr(verdict)
    lab.run(lab.exercise("hello_sum").solution().code.removeprefix("%%px\n"))
    verdict = lab.check("hello_sum")
    assert progress.read()["hello_sum"]["state"] == "solved"
    assert progress.mine("hello_sum") == (exercises.find("hello_sum").answer, True), "what was found right is used"
    assert (place / "hello_sum-1.py").read_text() == "%%px\ndef hello_sum(x):\n    return x\n", "the first try is kept"
    assert "Next: " in repr(verdict)
    assert "● solved" in repr(lab.exercise("hello_sum"))
    assert lab.progress().solved == 1


def test_who_writes_what_the_workbook_has_and_has_not_seen_it_has_solved_it(lab, place):
    answer = exercises.find("hello_sum").answer
    lab.run(answer.removeprefix("%%px\n"))
    assert lab.check("hello_sum").state == "right"
    assert progress.mine("hello_sum") == (answer, True)
    assert repr(lab.use("hello_sum")) == "The ranks use your hello_sum."


def test_after_a_worse_attempt_ones_own_solution_comes_back(lab, place):
    for body in ("comms.all_reduce(x)", "-x"):
        lab.run(f"def hello_sum(x):\n    return {body}")
        lab.check("hello_sum")
    assert lab.exercise("hello_sum").mine().code == "%%px\ndef hello_sum(x):\n    return comms.all_reduce(x)\n"
    assert "brings your solution back" in repr(lab.exercise("hello_sum"))


def test_an_attempt_is_known_in_the_next_kernel(lab, place):
    code = "def hello_sum(x):\n    return -x\n"
    lab.run(code)
    assert lab.check("hello_sum").state == "wrong"
    with Notebook(LABKIT_PROGRESS=str(place)) as notebook:
        notebook.value("from labkit import start\nlab = start(1)")
        assert "◐ tried" in notebook.value("lab.exercise('hello_sum')")
        assert notebook.value("lab.exercise('hello_sum').mine().code") == repr(f"%%px\n{code}")


def test_a_small_lab_says_which_numbers_of_ranks_it_left_out(notebook):
    notebook.value("from labkit.theory import collectives")
    notebook.value(f"%%px\n{RIGHT}")
    told = notebook.value("lab.check('f', means=collectives.all_reduce)")
    assert told == "✓ f: right on 16 inputs.\nNot run on 4 ranks: this lab has 3."


def test_a_function_that_was_written_last_in_the_notebook_is_not_checked_as_the_ranks_have_it(notebook):
    notebook.value("from labkit.theory import collectives")
    notebook.value(f"%%px\n{RIGHT}")
    wrong = RIGHT.replace("return y", "return -y")
    check = "lab.check('f', means='all_reduce')"
    assert notebook.value(check).startswith("✓ f: right")
    notebook.value(wrong)
    assert notebook.value(check) == (
        "○ f: not on the ranks.\n"
        "f was last defined in the notebook, not on the ranks. Begin its cell with %%px and run it again."
    )
    notebook.value(f"%%px\n{wrong}")
    assert notebook.value(check).startswith("✗ f: wrong.")
    notebook.value("g = 3")
    notebook.value("def ring(x):\n    return x")
    assert "ring was last defined in the notebook" in notebook.value("lab.check('ring', means='all_reduce')")


def test_a_misspelt_function_is_named_beside_the_verdict_on_the_old_one(notebook):
    notebook.value("%%px\ndef my_sum(x):\n    ...")
    notebook.value("%%px\ndef my_smu(x):\n    return comms.all_reduce(x)")
    told = notebook.value("lab.check('my_sum', means='all_reduce')")
    assert "my_sum is still empty." in told
    assert "There is a newer function my_smu. If you meant my_sum, write its name so" in told
    notebook.value("%%px\ndef my_sum(x):\n    return comms.all_reduce(x)")
    assert "my_smu" not in notebook.value("lab.check('my_sum', means='all_reduce')")


def test_a_second_check_of_one_cell_says_which_it_was(notebook):
    cell = "%%px\ndef same_sum(x):\n    return comms.all_reduce(x)"
    notebook.value(cell)
    assert "Checked is" not in notebook.value("lab.check('same_sum', means='all_reduce')")
    number = int(notebook.value("len(In) - 3"))
    again = notebook.value("lab.check('same_sum', means='all_reduce')")
    assert again.startswith("✓ same_sum: right on 16 inputs.")
    assert f"Checked is same_sum as cell [{number}] has defined it. If you have changed that cell since, run" in again
    notebook.value(cell)
    assert "Checked is" not in notebook.value("lab.check('same_sum', means='all_reduce')")


def test_stop_ends_a_check_and_the_ranks_are_well(notebook, tmp_path):
    notebook.value(f"%%px\ndef f(x):\n    open(f'{tmp_path}/{{rank}}', 'w').close()\n    while True: pass")
    notebook.value("from labkit.theory import collectives")
    running = notebook.send("lab.check('f', means=collectives.all_reduce)")
    assert eventually(lambda: len(list(tmp_path.iterdir())) == 2)
    notebook.interrupt()
    cell = notebook.wait(running)
    assert cell.status == "ok", cell.traceback
    assert cell.result.startswith("○ f: stopped.")
    after = notebook.run("%%px\ny = torch.ones(1)\ndist.all_reduce(y)\nprint(int(y), world_size)")
    assert (after.error, after.stdout) == ("", "ranks 0–2 │ 3 3\n")


def test_stop_ends_a_check_whose_ranks_wait(notebook, tmp_path):
    """Rank 0 computes for ever, so that no hopeless wait ends the run before Stop does."""
    begun = f"    open(f'{tmp_path}/{{rank}}', 'w').close()\n"
    code = f"{begun}    while rank == 0: pass\n    dist.all_reduce(y)\n    return y"
    notebook.value(f"%%px\n{SOME}{code}")
    running = notebook.send("from labkit.theory import collectives\nlab.check('f', means=collectives.all_reduce)")
    assert eventually(lambda: len(list(tmp_path.iterdir())) == 2)
    notebook.interrupt()
    cell = notebook.wait(running)
    assert (cell.status, cell.result.split(".")[0]) == ("ok", "○ f: stopped")
    after = notebook.run("%%px\ny = torch.ones(1)\ndist.all_reduce(y)\nprint(int(y), world_size)")
    assert (after.error, after.stdout) == ("", "ranks 0–2 │ 3 3\n")


@pytest.mark.parametrize(
    ("moment", "told"),
    [("begin", "You stopped the check."), ("finish", "You pressed Stop when the ranks had finished.")],
)
def test_stop_before_the_first_run_and_after_the_last_one_is_heard_and_tears_nothing_in_two(
    lab, monkeypatch, moment, told
):
    lab.run(f"keep = 100 + rank\n{RIGHT}")
    really = Engines.call

    def pressed(engines, path, *args, **options):
        if path == f"labkit.rank.function.{moment}":
            signal.raise_signal(signal.SIGINT)
        return really(engines, path, *args, **options)

    monkeypatch.setattr(Engines, "call", pressed)
    try:
        said = repr(lab.check("f", means=collectives.all_reduce))
    except StoppedError as error:
        said = str(error)
    assert told in said
    monkeypatch.undo()
    assert lab.run(WELL) == [f"{r} 4 4 4 {100 + r}\n" for r in range(4)]
    assert checked(lab, RIGHT).ok


def test_in_a_notebook_line_numbers_are_the_editors_and_code_comes_into_a_new_cell(notebook, place):
    notebook.value(f"import os; os.environ['LABKIT_PROGRESS'] = {str(place)!r}")
    notebook.value("%%px\n\ndef hello_sum(x):\n    if rank == 1:\n        raise KeyError(3)\n    return x")
    cell = notebook.run("lab.check('hello_sum')")
    assert "Line 5 of the cell: raise KeyError(3)" in cell.result
    assert cell.status == "ok"
    notebook.value("first = get_ipython().set_next_input; put = []")
    notebook.value("get_ipython().set_next_input = put.append")
    notebook.value("_ = lab.exercise('hello_sum').mine(), lab.exercise('hello_sum').solution()")
    assert notebook.value("put[0]") == repr(
        "%%px\n\ndef hello_sum(x):\n    if rank == 1:\n        raise KeyError(3)\n    return x"
    )
    assert notebook.value("put[1].startswith('%%px\\ndef hello_sum')") == "True"


@pytest.mark.parametrize("n", [2, 3])
def test_a_rank_that_dies_before_the_first_run_on_n_ranks_gets_its_functions_back_and_the_verdict_is_right(
    lab, monkeypatch, capsys, n
):
    lab.run(f"keep = 100 + rank\n{RIGHT}")
    really, killed = Engines.call, []

    def kills(engines, path, args, *rest, **options):
        if path == "labkit.rank.function.begin" and args[0][0] == n and not killed:
            killed.append(engines.kill(2))
        return really(engines, path, args, *rest, **options)

    monkeypatch.setattr(Engines, "call", kills)
    assert lab.check("f", means=collectives.all_reduce).state == "right"
    assert killed
    assert re.match(r"Rank 2 was started anew, with .*\bf again, without variables", capsys.readouterr().out)
    lab.run("f(torch.ones(1))")
