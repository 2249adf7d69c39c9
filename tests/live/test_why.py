"""Why a cell is stuck, on live ranks: the sentence names the cause first, in an error and in `lab.why`."""

from __future__ import annotations

import re
import time

import pytest

from labkit import CellError, StuckError
from tests.live.processes import eventually

# What a cell does, and why it is stuck; N stands for seconds, which `lab.why` tells and the error does not.
HANGS = {
    "a rank is absent": (
        "x = torch.ones(1)\nif rank != 2:\n    dist.all_reduce(x)",
        "rank 2 is missing: it finished the cell, while ranks 0, 1 wait in all_reduce (line 3)",
        "Rank 2 is missing: it finished the cell, while ranks 0, 1 waited N s in all_reduce (line 3).",
    ),
    "two collectives are swapped": (
        "x = torch.ones(1)\nif rank == 0:\n    dist.barrier()\n    dist.all_reduce(x)\n"
        "else:\n    dist.all_reduce(x)\n    dist.barrier()",
        "ranks 0–2 call collectives in different orders: rank 0 waits in barrier (line 3) and ranks 1, 2 wait in "
        "all_reduce (line 6)",
        "Ranks 0–2 call collectives in different orders: rank 0 waited N s in barrier (line 3) and ranks 1, 2 waited "
        "N s in all_reduce (line 6).",
    ),
    "two groups' collectives are swapped": (
        "g, x = dist.new_group([0, 1]), torch.ones(1)\n"
        "if rank == 0:\n    dist.all_reduce(x, group=g)\n    dist.all_reduce(x)\n"
        "if rank == 1:\n    dist.all_reduce(x)\n    dist.all_reduce(x, group=g)",
        "ranks 0, 1 call collectives in different orders: rank 0 waits in all_reduce among ranks 0, 1 (line 3) and "
        "rank 1 waits in all_reduce (line 6)",
        "Ranks 0, 1 call collectives in different orders: rank 0 waited N s in all_reduce among ranks 0, 1 (line 3) "
        "and rank 1 waited N s in all_reduce (line 6).",
    ),
    "two ranks send first": (
        "x = torch.ones(1)\nif rank < 2:\n    dist.send(x, 1 - rank)\n    dist.recv(x, 1 - rank)",
        "ranks 0, 1 wait for one another in a cycle, 0 → 1 → 0: each waits in send (line 3)",
        "Ranks 0, 1 wait for one another in a cycle, 0 → 1 → 0: each waited N s in send (line 3).",
    ),
    "all receive first": (
        "dist.recv(torch.ones(1), (rank + 1) % world_size)",
        "ranks 0–2 wait for one another in a cycle, 0 → 1 → 2 → 0: each waits in recv (line 1)",
        "Ranks 0–2 wait for one another in a cycle, 0 → 1 → 2 → 0: each waited N s in recv (line 1).",
    ),
    "a rank loops for ever": (
        "def spin():\n    while True: pass\n\nif rank == 1: spin()\ndist.all_reduce(torch.ones(1))",
        "rank 1 went on computing (line 4, in spin, its line 2), while ranks 0, 2 wait in all_reduce (line 5)",
        "Rank 1 went on computing for N s (line 4, in spin, its line 2), while ranks 0, 2 waited N s in all_reduce "
        "(line 5).",
    ),
    "rank 0 validates": (
        "import time\ndef validate(batches):\n    for batch in range(batches): time.sleep(0.01)\n\n"
        "if rank == 0: validate(10**6)\ndist.barrier()",
        "rank 0 went on computing (line 5, in validate, its line 3), while ranks 1, 2 wait in barrier (line 6)",
        "Rank 0 went on computing for N s (line 5, in validate, its line 3), while ranks 1, 2 waited N s in barrier "
        "(line 6).",
    ),
    "a sub-group lacks a member": (
        "group = dist.new_group([0, 1])\nif rank == 0:\n    dist.all_reduce(torch.ones(1), group=group)",
        "rank 1 is missing: it finished the cell, while rank 0 waits in all_reduce among ranks 0, 1 (line 3)",
        "Rank 1 is missing: it finished the cell, while rank 0 waited N s in all_reduce among ranks 0, 1 (line 3).",
    ),
    "two groups have the same ranks": (
        "g, h = dist.new_group([0, 1]), dist.new_group([0, 1])\n"
        "if rank < 2:\n    dist.all_reduce(torch.ones(1), group=h if rank else g)",
        "ranks 0, 1 call collectives of different groups that have the same ranks: each waits in all_reduce among "
        "ranks 0, 1 (line 3)",
        "Ranks 0, 1 call collectives of different groups that have the same ranks: each waited N s in all_reduce among "
        "ranks 0, 1 (line 3).",
    ),
    "a group lacks a member while it is made": (
        "if rank != 1:\n    dist.new_group([0, 1])",
        "rank 1 is missing: it finished the cell, while rank 0 waits in new_group (line 2)",
        "Rank 1 is missing: it finished the cell, while rank 0 waits in new_group (line 2).",
    ),
    "a handle's collective lacks a rank": (
        "if rank:\n    work = dist.all_reduce(torch.ones(1), async_op=True)\n    work.wait()",
        "rank 0 is missing: it finished the cell, while ranks 1, 2 wait for the handle of all_reduce (line 3)",
        "Rank 0 is missing: it finished the cell, while ranks 1, 2 waited N s for the handle of all_reduce (line 3).",
    ),
    "a handle that nobody waits for is one call too many": (
        "x = torch.ones(1)\nif rank == 0:\n    work = dist.all_reduce(x, async_op=True)\ndist.all_reduce(x)",
        "ranks 1, 2 are missing: they finished the cell, while rank 0 waits in all_reduce (line 4); rank 0 had not "
        "waited for the handle of all_reduce (line 3)",
        "Ranks 1, 2 are missing: they finished the cell, while rank 0 waited N s in all_reduce (line 4); rank 0 had "
        "not waited for the handle of all_reduce (line 3).",
    ),
    "a result is gathered by one rank": (
        "from torch.distributed.tensor import DTensor, Shard, init_device_mesh\n"
        "d = DTensor.from_local(torch.ones(1), init_device_mesh('cpu', (3,)), [Shard(0)])\n"
        "if rank == 0: d.full_tensor()",
        "ranks 1, 2 are missing: they finished the cell, while rank 0 waits in full_tensor (line 3)",
        "Ranks 1, 2 are missing: they finished the cell, while rank 0 waited N s in full_tensor (line 3).",
    ),
    "sub-groups cross": (
        "from torch.distributed._functional_collectives import all_reduce\n"
        "g, h = dist.new_group([0, 1]), dist.new_group([1, 2])\n"
        "if rank < 2:\n    y = all_reduce(torch.ones(1), 'sum', h if rank else g)\n    print(y)",
        "rank 2 is missing: it finished the cell, while rank 0 waits in all_reduce among ranks 0, 1 (line 5) "
        "and rank 1 waits in all_reduce among ranks 1, 2 (line 5)",
        "Rank 2 is missing: it finished the cell, while rank 0 waited N s in all_reduce among ranks 0, 1 (line 5) "
        "and rank 1 waited N s in all_reduce among ranks 1, 2 (line 5).",
    ),
    "tags differ": (
        "t = torch.ones(1)\nif rank == 0: dist.send(t, 1, tag=1)\nif rank == 1: dist.recv(t, 0, tag=2)",
        "rank 0 sends to rank 1 with tag 1, and rank 1 receives from rank 0 with tag 2: rank 0 waits in send (line 2) "
        "and rank 1 waits in recv (line 3)",
        "Rank 0 sends to rank 1 with tag 1, and rank 1 receives from rank 0 with tag 2: rank 0 waited N s in send "
        "(line 2) and rank 1 waited N s in recv (line 3).",
    ),
    "tags of a batch differ": (
        "P, t = dist.P2POp, torch.ones(1)\n"
        "if rank < 2:\n    other = 1 - rank\n"
        "    batch = [P(dist.isend, t, other, tag=rank), P(dist.irecv, torch.ones(1), other, tag=rank)]\n"
        "    for work in dist.batch_isend_irecv(batch): work.wait()",
        "rank 0 sends to rank 1 with tag 0, and rank 1 receives from rank 0 with tag 1; rank 1 sends to rank 0 with "
        "tag 1, and rank 0 receives from rank 1 with tag 0: ranks 0, 1 wait for the handle of isend (line 5)",
        "Rank 0 sends to rank 1 with tag 0, and rank 1 receives from rank 0 with tag 1; rank 1 sends to rank 0 with "
        "tag 1, and rank 0 receives from rank 1 with tag 0: ranks 0, 1 waited N s for the handle of isend (line 5).",
    ),
    "a rank waits behind another": (
        "if rank == 0: dist.barrier()\nif rank == 1: dist.recv(torch.ones(1), 2)",
        "rank 2 is missing: it finished the cell, while rank 0 waits in barrier (line 1) and rank 1 waits in recv "
        "(line 2)",
        "Rank 2 is missing: it finished the cell, while rank 0 waited N s in barrier (line 1) and rank 1 waited N s "
        "in recv (line 2).",
    ),
}


def told(why):
    """The sentence, with N for seconds."""
    return re.sub(r"[\d.,]+ [mµn]?s\b", "N s", why)


@pytest.mark.parametrize("what", HANGS)
def test_the_sentence_names_the_cause(lab, what):
    code, error, why = HANGS[what]
    lab.guard = what != "two collectives are swapped"  # it would name them before they hang
    with pytest.raises(StuckError) as caught:
        lab.run(code)
    lab.guard = True
    assert str(caught.value) == error
    assert told(lab.why().why) == why
    assert lab.last.waits().why == lab.why().why


def test_whoever_waits_has_waited_for_as_long_as_the_lab_takes_to_be_sure_and_no_longer_than_the_cell(lab):
    began = time.monotonic()
    with pytest.raises(StuckError):
        lab.run("import time\nif rank == 0: time.sleep(0.5)\nif rank != 2: dist.barrier()")
    took = time.monotonic() - began
    seconds = lab.why().seconds
    assert set(seconds) == {0, 1}
    assert all(0.9 < s < took for s in seconds.values())
    assert seconds[1] - seconds[0] > 0.3


def test_a_rank_that_computes_is_shown_with_the_lines_that_it_is_in(lab):
    lab.run("def spin(n):\n    while n:\n        pass\n\ndef epoch():\n    spin(1)")
    with pytest.raises(StuckError):
        lab.run("if rank == 1:\n    epoch()\ndist.barrier()")
    (first, *lines) = lab.why().stacks[1]
    assert [first, lines[0]] == ["line 2: epoch()", "line 6 of epoch: spin(1)"]
    assert lines[1] in ("line 2 of spin: while n:", "line 3 of spin: pass")
    assert list(lab.why().stacks) == [1]
    assert all(line in repr(lab.why()) and line in lab.why()._repr_html_() for line in lab.why().stacks[1])


def test_an_endless_recursion_of_the_learner_s_shows_its_innermost_lines_alone(lab):
    with pytest.raises(StuckError):
        lab.run("def deep(n):\n    while n == 50: pass\n    deep(n + 1)\n\nif rank == 1: deep(0)\ndist.barrier()")
    stack = lab.why().stacks[1]
    assert len(stack) == 6
    assert stack[-2:] == ["line 3 of deep: deep(n + 1)", "line 2 of deep: while n == 50: pass"]


def test_lines_of_torch_are_cut_from_what_an_absent_rank_is_in(lab):
    code = "class Slow(torch.nn.Module):\n    def forward(self, x):\n        while True: pass\n\n"
    with pytest.raises(StuckError):
        lab.run(f"{code}if rank == 1: Slow()(torch.ones(1))\ndist.barrier()")
    assert lab.why().stacks[1] == ["line 5: if rank == 1: Slow()(torch.ones(1))", "line 3 of forward: while True: pass"]


def test_an_exception_on_one_rank_is_why_the_others_waited(lab):
    with pytest.raises(CellError, match="ZeroDivisionError"):
        lab.run("def f(a):\n    return 1 / a\n\nif rank == 1: f(0)\ndist.barrier()")
    why = lab.why()
    assert told(why.why) == "Rank 1 raised ZeroDivisionError (line 4), while ranks 0, 2 waited N s in barrier (line 5)."
    assert "----> 2     return 1 / a" in why.stacks[1]


def test_what_a_rank_raises_since_it_was_freed_is_no_cause(lab):
    code = "try:\n    if rank != 1: dist.barrier()\nexcept RuntimeError:\n    raise ValueError('no barrier')"
    with pytest.raises(StuckError, match=r"^rank 1 is missing: it finished the cell, while ranks 0, 2 wait in barrier"):
        lab.run(code)


def test_a_rank_that_died_is_why_a_functional_collective_failed(lab):
    with pytest.raises(CellError, match=r"^rank 1 died \(SIGKILL\)$"):
        lab.run(
            "import os, signal\nfrom torch.distributed._functional_collectives import all_reduce\n"
            "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\nall_reduce(torch.ones(1), 'sum', dist.group.WORLD) + 1"
        )


def test_an_exception_on_all_ranks_made_nobody_wait(lab):
    with pytest.raises(CellError):
        lab.run("raise KeyError('weights')")
    assert lab.why().why == "No rank waits for another; ranks 0–2 raised KeyError (line 1)."


def test_a_rank_that_stands_still_is_why_the_others_waited(lab):
    with pytest.raises(CellError, match="SIGSTOP"):
        lab.run("import os, signal\nif rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\ndist.barrier()")
    assert told(lab.why().why) == "Rank 1 stood still (SIGSTOP), while ranks 0, 2 waited N s in barrier (line 3)."


def test_a_rank_that_died_is_why_the_others_waited(lab):
    with pytest.raises(CellError, match="SIGKILL"):
        lab.run("import os, signal\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)\ndist.barrier()")
    assert told(lab.why().why) == "Rank 1 died (SIGKILL), while ranks 0, 2 waited N s in barrier (line 3)."


def test_a_rank_whose_call_failed_because_another_died_is_not_the_cause(lab):
    code = """import os, signal
one, two = dist.new_group([0, 1]), dist.new_group([0, 2])
dist.barrier()  # else rank 1 may be gone before rank 0 has made its group with it
if rank == 1: os.kill(os.getpid(), signal.SIGKILL)
if rank == 0: dist.all_reduce(torch.ones(1), group=one)
dist.all_reduce(torch.ones(1), group=two)"""
    with pytest.raises(CellError, match="SIGKILL"):
        lab.run(code)
    assert told(lab.why().why) == (
        "Rank 1 died (SIGKILL), while rank 0 waited N s in all_reduce among ranks 0, 1 (line 5) "
        "and rank 2 waited N s in all_reduce among ranks 0, 2 (line 6)."
    )


def test_a_handle_that_nobody_waited_for_is_told_of_a_cell_that_ended_well(lab):
    lab.run("if rank == 1: work = dist.irecv(torch.ones(1), 0)")
    assert lab.why().why == (
        "Nothing was stuck. No rank waited for another. "
        "Rank 1 did not wait for the handle of irecv (line 1), and rank 0 never came to it."
    )
    lab.heal()
    lab.run("work = dist.all_reduce(torch.ones(1), async_op=True)\nwork.wait()")
    assert lab.why().why.startswith("Nothing was stuck.")
    assert "handle" not in lab.why().why


def test_of_a_cell_that_ended_well_the_longest_wait_is_told(lab):
    lab.run("import time\nif rank == 0: time.sleep(0.5)\ndist.barrier()")
    why = repr(lab.why()).splitlines()
    assert re.fullmatch(r"Nothing was stuck\. The longest wait: \d+ ms\.", why[0]), why
    assert why[1] == "Ranks 1, 2 waited for rank 0 in barrier (line 3)."
    assert lab.why().seconds == {}


# -- in a notebook ------------------------------------------------------------------------------------------------


def pictures(cell):
    return [data for data in cell.displays if "text/html" in data]


def test_a_time_out_shows_its_picture_above_its_sentence(notebook):
    cell = notebook.run("%%px\nif rank != 2:\n    dist.all_reduce(torch.ones(1))")
    sentence = "rank 2 is missing: it finished the cell, while ranks 0, 1 wait in all_reduce (line 3)"
    assert cell.error == f"StuckError: {sentence}"
    (shown,) = pictures(cell)
    assert cell.shapes.index("display_data") < cell.shapes.index("error")
    assert (
        'alt="Wait-for graph of 3 ranks. Who waits for whom when the cell is cut short. Ranks 0, 1 wait'
        in shown["text/html"]
    )
    assert "is missing" not in shown["text/html"]  # the error says it
    assert notebook.value("lab.why()").startswith("Rank 2 is missing: it finished the cell, while ranks 0, 1 waited ")


def test_where_outputs_are_recorded_no_seconds_are_shown(notebook):
    code = "%%px\ndist.recv(torch.ones(1), (rank + 1) % world_size)"
    notebook.value("import os; os.environ['LABKIT_QUIET'] = '1'")
    try:
        cells = [notebook.run(code) for _ in range(2)]
        assert pictures(cells[0]) == pictures(cells[1]) != []
        assert notebook.value("lab.why()").endswith("each waits in recv (line 2).")
    finally:
        notebook.value("del os.environ['LABKIT_QUIET']")


def test_an_endless_loop_that_nobody_waits_for_is_told_with_its_lines_when_it_is_stopped(notebook, tmp_path):
    code = f"def spin():\n    while True: pass\n\nopen(f'{tmp_path}/{{rank}}', 'w').close()\nspin()"
    running = notebook.send(f"%%px\n{code}")
    assert eventually(lambda: len(list(tmp_path.iterdir())) == 3)
    notebook.interrupt()
    cell = notebook.wait(running)
    assert cell.error == (
        "StoppedError: You stopped the cell: no rank waits for another; "
        "ranks 0–2 went on computing (line 6, in spin, its line 3)."
    )
    (shown,) = pictures(cell)
    assert "line 6: spin()\nline 3 of spin: while True: pass" in shown["text/html"]


def test_why_says_what_a_cell_waits_for_that_still_runs_and_then_that_nothing_was_stuck(notebook, tmp_path):
    late = f"    while not os.path.exists('{tmp_path}/go'): time.sleep(0.01)"
    code = f"import os, time\nif rank == 1:\n{late}\ndist.barrier()"
    notebook.run(f"%%px --noblock\n{code}")
    assert eventually(lambda: "ranks 0, 2 have waited" in notebook.value("lab.why()"))
    now = notebook.value("lab.why()").splitlines()
    assert (
        told(now[0])
        == "Rank 1 has been computing for N s (line 4), while ranks 0, 2 have waited N s in barrier (line 5)."
    )
    assert now[1:] == [
        "Rank 1 is computing (line 4):",
        f"    line 4: {late.strip()}",
    ]
    (tmp_path / "go").touch()
    assert eventually(lambda: notebook.value("lab.why()").startswith("Nothing was stuck. The longest wait: "))
    assert notebook.run("%pxresult").error == ""
    assert notebook.value("lab.why()").startswith("Nothing was stuck. The longest wait: ")
