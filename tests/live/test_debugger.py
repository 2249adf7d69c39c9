"""`%%px --debug 1` in a real notebook: who stops, what is typed at the prompts, and every end that it may have."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.live.notebook import Notebook
from tests.live.processes import Trace, eventually

SUM = "%%px --debug 1\nx = torch.ones(2)\ndist.all_reduce(x)\nprint(int(x[0]), keep == 100 + rank)"
AFTER = "%%px\ny = torch.ones(1)\ndist.all_reduce(y)\nprint(int(y), keep == 100 + rank)"
WAIT = "ranks 0, 2 wait in all_reduce (line 3)\n"
GROUP = """%%px
from datetime import timedelta
pair = dist.new_group([0, 1], timeout=timedelta(seconds=0.5))
"""


@pytest.fixture(scope="module")
def notebook():
    with Notebook() as notebook:
        notebook.value("from labkit import start\nlab = start(3, timeout=20)")
        notebook.value("%px keep = int(torch.tensor(100 + rank))")
        yield notebook


def typed(notebook, code, *lines):
    """Run a cell and answer its prompts, each with a line or by calling a function; the cell, and all prompts."""
    running, prompts = notebook.send(code), []
    for line in lines:
        prompts.append(notebook.prompt())
        if callable(line):
            line()
        else:
            notebook.type(line)
    return notebook.wait(running), prompts


def healthy(notebook):
    after = notebook.run(AFTER)
    assert (after.error, after.stdout) == ("", "ranks 0–2 │ 3 True\n")


def member(notebook, rank):
    return int(notebook.value(f"lab._engines.members[{rank}].pid"))


# -- at the prompt ------------------------------------------------------------------------------------------------


def test_a_rank_stops_at_the_cells_first_line_and_the_others_wait_for_it(notebook):
    cell, prompts = typed(notebook, SUM, "n", "p x", "w", "n", "p x", "c")
    assert prompts == ["rank 1 (Pdb) "] * 6
    assert cell.error == ""
    shown = cell.stdout.splitlines(keepends=True)
    assert "".join(shown[:3]) == f"> line 2\n-> x = torch.ones(2)\n{WAIT}"
    assert shown[3].startswith("n next line")
    stepped = "> line 3\n-> dist.all_reduce(x)\n"
    assert "".join(shown[4:]) == (
        f"{stepped}tensor([1., 1.])\n{stepped}> line 4\n-> print(int(x[0]), keep == 100 + rank)\n"
        "ranks 0, 2 finished the cell\ntensor([3., 3.])\nranks 0–2 │ 3 True\n"
    )


def test_a_rank_stops_at_a_breakpoint_that_others_pass(notebook):
    code = "%%px --debug 1\nx = torch.ones(2)\nif rank:\n    breakpoint()\ndist.all_reduce(x)\nprint(int(x[0]))"
    cell, _ = typed(notebook, code, "p x + rank", "!x = x * 5", "c")
    assert cell.stdout.startswith("> line 4\n-> breakpoint()\nranks 0, 2 wait in all_reduce (line 5)\n")
    assert cell.stdout.endswith("tensor([2., 2.])\nranks 0–2 │ 7\n")


def test_a_breakpoint_in_a_function_of_an_earlier_cell_stops(notebook):
    notebook.value("%%px\nimport pdb\ndef halve(v):\n    pdb.set_trace()\n    return v / 2")
    cell, _ = typed(notebook, "%%px --debug 2\nprint(halve(3))", "c", "u", "d", "r", "c")
    assert "> line 4 of an earlier cell, in halve()\n-> pdb.set_trace()\n> line 2\n-> print(halve(3))\n" in cell.stdout
    assert "--Return--\n> line 5 of an earlier cell, in halve()->1.5\n" in cell.stdout
    assert cell.stdout.endswith("ranks 0–2 │ 1.5\n")


def test_of_several_ranks_one_prompt_is_shown_and_the_other_is_gone_to(notebook):
    cell, prompts = typed(notebook, SUM.replace("1", "0:2", 1), "rank 1", "n", "rank 2", "rank 0", "p rank", "c", "c")
    assert prompts == [f"rank {r} (Pdb) " for r in (0, 1, 1, 1, 0, 0, 1)]
    assert "rank 1 stands at the debugger's prompt (line 2) and rank 2 waits in all_reduce (line 3)\n" in cell.stdout
    assert "no prompt there: rank 2 waits in all_reduce (line 3)\n" in cell.stdout
    assert cell.stdout.endswith("ranks 0–2 │ 3 True\n")


def test_where_a_rank_waits_for_another_that_stands_that_ones_prompt_is_shown(notebook):
    cell, prompts = typed(notebook, SUM.replace("1", "0,1", 1), "n", "n", "c", "c")
    assert prompts[:3] == ["rank 0 (Pdb) ", "rank 0 (Pdb) ", "rank 1 (Pdb) "]
    assert "ranks 0, 2 wait in all_reduce (line 3)\n" in cell.stdout
    assert cell.stdout.endswith("ranks 0–2 │ 3 True\n")


def test_a_cell_that_awaits_is_stepped_through(notebook):
    cell, _ = typed(notebook, "%%px --debug 0\nimport asyncio\nawait asyncio.sleep(0)\nz = rank\nprint(z)", *"nnnc")
    assert cell.stdout.endswith("> line 4\n-> z = rank\n> line 5\n-> print(z)\n" + "".join(
        f"rank {r} │ {r}\n" for r in range(3)
    ))  # fmt: skip


def test_only_ranks_of_the_cell_may_stop(notebook):
    cell, _ = typed(notebook, "%%px --targets 0,2 --debug 2\nprint(rank)", "c")
    assert "rank 0 finished the cell\n" in cell.stdout
    assert cell.stdout.endswith("rank 0 │ 0\nrank 2 │ 2\n")


# -- no limit -----------------------------------------------------------------------------------------------------


def test_ranks_wait_for_one_at_a_prompt_longer_than_any_limit_of_the_labs(notebook):
    def thinks():
        time.sleep(4)  # a wait that nobody can end is freed after a second
        notebook.type("c")

    notebook.value("lab._engines.limit = 2")
    try:
        cell, _ = typed(notebook, SUM, thinks)
    finally:
        notebook.value("lab._engines.limit = 20")
    assert (cell.error, cell.stdout.splitlines()[-1]) == ("", "ranks 0–2 │ 3 True")
    healthy(notebook)


def test_torchs_own_limits_are_lifted_and_come_back(notebook):
    notebook.value(GROUP)
    limits = "[g._get_backend(torch.device('cpu')).options._timeout for g in (dist.group.WORLD, pair)]"
    told = f"%%px --targets 0\nprint({limits})"
    before = notebook.run(told).stdout
    assert before == "rank 0 │ [datetime.timedelta(seconds=200), datetime.timedelta(microseconds=500000)]\n"

    def thinks():
        time.sleep(1.5)
        notebook.type("c")

    # A receive knows only the limit with which its group was made, a collective the one that holds when it begins.
    code = "%%px --debug 1\na = torch.zeros(1)\nif rank == 1:\n    dist.send(a + 4, 0, group=pair)\n"
    code += f"if rank == 0:\n    dist.recv(a, 1, group=pair)\n    print(int(a))\n    print({limits})\n"
    cell, _ = typed(notebook, code, thinks)
    assert cell.error == ""
    assert cell.stdout.endswith("rank 0 │ 4\nrank 0 │ [datetime.timedelta(days=30), datetime.timedelta(days=30)]\n")
    code = "%%px --debug 1\na = torch.ones(1)\nif rank < 2:\n    dist.all_reduce(a, group=pair)\n    print(int(a))\n"
    cell, _ = typed(notebook, code, thinks)
    assert (cell.error, cell.stdout.splitlines()[-1]) == ("", "ranks 0, 1 │ 2")
    code = f"%%px --debug 1\nmore = dist.new_group([0, 1])\nif rank == 0: print({limits.replace('pair', 'more')})"
    cell, _ = typed(notebook, code, thinks)
    assert cell.stdout.endswith("rank 0 │ [datetime.timedelta(days=30), datetime.timedelta(days=30)]\n")
    assert notebook.run(told).stdout == before
    assert notebook.run(told.replace("pair", "more")).stdout == before.replace("microseconds=500000", "seconds=1800")


def test_a_rank_that_goes_on_is_held_to_the_limits_again(notebook):
    code = "%%px --debug 0\nx = torch.ones(2)\nif rank != 1: dist.all_reduce(x)"
    cell, _ = typed(notebook, code, "n", "n")
    assert cell.error.startswith("StuckError: rank 1 is missing: it finished the cell, while ranks 0, 2 wait")
    healthy(notebook)


# -- every end ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", ["q", "exit", "p rank;;q", "\x04"], ids=["q", "exit", "behind another", "Ctrl-D"])
def test_who_leaves_the_debugger_ends_the_cell_with_an_error_that_says_so(notebook, line):
    cell, _ = typed(notebook, SUM, line)
    assert cell.error.startswith("StoppedError: You left the debugger on rank 1, and the cell has ended there.")
    assert "  · ranks 0, 2 waited in all_reduce (line 3) and were freed\n" in cell.traceback
    assert "  · the process group is joined again; all variables are kept" in cell.traceback
    healthy(notebook)


def test_stop_at_the_prompt_ends_the_cell_as_anywhere(notebook):
    cell, _ = typed(notebook, SUM, notebook.interrupt)
    assert cell.error == (
        "StoppedError: You stopped the cell: rank 1 stood at the debugger's prompt (line 2), "
        "while ranks 0, 2 wait in all_reduce (line 3)."
    )
    healthy(notebook)


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("BEGUN\nwhile True: pass", ["c"]),
        ("def spin():\n    BEGUN\n    while True: pass\nspin()", ["n", "n"]),
        ("import time\nBEGUN; time.sleep(600)", ["n", "n"]),
        ("import time\ndist.barrier()", ["n", "BEGUN; time.sleep(600)"]),
    ],
    ids=["after c", "in a function that is stepped over", "in a line", "in what is typed"],
)
def test_stop_between_two_prompts_ends_the_cell(notebook, tmp_path, code, lines):
    begun = f"open('{tmp_path}/begun', 'w').close()"
    running = notebook.send(f"%%px --debug 1\n{code.replace('BEGUN', begun)}")
    for line in lines:
        notebook.prompt()
        notebook.type(line.replace("BEGUN", begun))
    assert eventually(lambda: (tmp_path / "begun").exists())
    notebook.interrupt()
    cell = notebook.wait(running)
    assert cell.error.startswith("StoppedError: You stopped the cell")
    healthy(notebook)


def test_a_rank_that_dies_at_its_prompt_is_told_at_once_and_replaced(notebook):
    pid = member(notebook, 1)
    cell, _ = typed(notebook, SUM.replace(", keep == 100 + rank", ""), lambda: os.kill(pid, signal.SIGKILL))
    assert cell.error == "CellError: rank 1 died (SIGKILL)"
    assert "rank 1 was started anew" in cell.traceback
    notebook.value("%%px --targets 1\nkeep = 101")
    healthy(notebook)


def test_another_rank_that_dies_is_told_at_the_prompt(notebook):
    pid = member(notebook, 0)
    cell, prompts = typed(notebook, SUM, lambda: os.kill(pid, signal.SIGKILL), "c")
    assert len(prompts) == 2
    assert "rank 0 died (SIGKILL)" in cell.stdout
    assert cell.error.startswith("CellError: rank 0 died (SIGKILL)")
    notebook.value("%%px --targets 0\nkeep = 100")
    healthy(notebook)


def test_a_kernel_that_is_restarted_at_the_prompt_leaves_no_process():
    with Notebook() as notebook:
        notebook.value("from labkit import start\nlab = start(2)")
        trace = Trace.of(notebook.value("lab._address").strip("'"))
        notebook.send(SUM)
        notebook.prompt()
        notebook.restart()
        assert eventually(trace.gone), trace.left()


# -- where nothing can be typed, and without --debug --------------------------------------------------------------


def test_where_no_input_can_be_had_nothing_runs_and_the_error_says_what_to_do(notebook):
    code = "%%px --debug 1\nnever = True"
    for cell in (
        notebook.wait(notebook.client.execute(code, allow_stdin=False)),
        notebook.run(code.replace("--debug", "--noblock --debug")),
        notebook.run(code.replace("--debug", "--local --debug")),
    ):
        assert cell.error.startswith("LabError: %%px --debug")
        assert "lab.why()" in cell.error
    assert notebook.run("%px print('never' in globals())").stdout == "ranks 0–2 │ False\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--debug", "Say which rank is to stop: %%px --debug 1."),
        ("--debug --targets 1", "Say which rank is to stop: %%px --debug 1."),
        ("--debug 3", "--debug 3: this lab has the ranks 0 to 2."),
        ("--debug=one", "--debug one: give ranks, such as"),
        ("--targets 0,2 --debug 1", "--debug 1: rank 1 would not run this cell."),
    ],
)
def test_an_option_that_names_no_rank_of_the_cell_is_refused(notebook, options, said):
    cell = notebook.run(f"%%px {options}\nprint('ran')")
    assert "UsageError" in cell.stderr
    assert said in cell.stderr
    assert cell.stdout == ""


@pytest.mark.parametrize("call", ["breakpoint()", "import pdb; pdb.set_trace()"])
def test_in_a_plain_cell_a_breakpoint_raises_and_says_what_to_write(notebook, call):
    cell = notebook.run(f"%%px\nif rank == 1:\n    {call}\ndist.barrier()")
    assert cell.error.startswith("CellError: rank 1: LabError: breakpoint() stops a rank in a cell that begins with")
    assert "Write %%px --debug 1" in cell.error
    healthy(notebook)


def test_a_thread_beside_the_cell_is_not_stopped_and_says_so(notebook):
    code = "from threading import Thread\nbeside = Thread(target=lambda: breakpoint())\nbeside.start()\nbeside.join()"
    cell = notebook.run(f"%%px --debug 1\n{code}\nprint('on')")
    assert "LabError: breakpoint() stops what a cell itself runs, not a thread beside it." in cell.stderr
    assert (cell.error, cell.stdout) == ("", "ranks 0–2 │ on\n")


def test_after_a_cell_that_was_debugged_a_plain_one_is_plain(notebook):
    typed(notebook, SUM, "b 4", "c", "c")
    assert notebook.run("%%px\nimport sys\nprint(sys.gettrace())").stdout == "ranks 0–2 │ None\n"
    assert "LabError: breakpoint()" in notebook.run("%%px\nbreakpoint()").error
    healthy(notebook)
