"""`%%px` in a real notebook: the standard magic's options, in ranks; output in rank order, one error, its line."""

from __future__ import annotations

import pytest

from labkit.floor.errors import LabError


def shown(notebook, code):
    """The text of a cell that must end well and write to stdout alone."""
    cell = notebook.run(code)
    assert cell.status == "ok", cell.traceback
    assert set(cell.shapes) <= {"stdout"}, cell.shapes
    assert cell.stderr == ""
    return cell.stdout


def failed(notebook, code):
    cell = notebook.run(code)
    assert cell.status == "error", cell
    return cell


# -- output -------------------------------------------------------------------------------------------------------


def test_equal_outputs_are_told_once(notebook):
    assert shown(notebook, "%%px\nprint('hello')") == "ranks 0–2 │ hello\n"


def test_different_outputs_come_in_rank_order_however_late(notebook):
    code = "%%px\nimport time\ntime.sleep(0.3 * (world_size - rank))\nprint('I am', rank)"
    assert shown(notebook, code) == "rank 0 │ I am 0\nrank 1 │ I am 1\nrank 2 │ I am 2\n"


def test_interleaved_output_is_the_same_five_times(notebook):
    code = "%%px\nimport time\nfor i in range(3):\n    print(rank, i, flush=True)\n    time.sleep(0.005 * rank)\nrank"
    assert len({shown(notebook, code) for _ in range(5)}) == 1


def test_a_trailing_expression_is_shown_like_printed_text(notebook):
    assert shown(notebook, "%%px\nprint('a')\n[rank // 2]") == (
        "ranks 0, 1 │ a\nranks 0, 1 │ [0]\nrank 2     │ a\nrank 2     │ [1]\n"
    )


def test_a_trailing_expression_ended_by_a_semicolon_is_not_shown(notebook):
    assert shown(notebook, "%%px\nrank;") == ""


def test_a_cell_without_output_shows_nothing(notebook):
    assert shown(notebook, "%%px\nx = 1") == ""


def test_every_line_stands_behind_its_rank(notebook):
    assert shown(notebook, "%%px --targets 1\nprint('a\\n\\nb')") == "rank 1 │ a\nrank 1 │\nrank 1 │ b\n"


def test_a_progress_bar_is_shown_in_its_last_state(notebook):
    assert shown(notebook, "%%px\nfor i in range(3): print(f'\\r{i}/2', end='')") == "ranks 0–2 │ 2/2\n"


def test_all_the_worlds_letters_arrive(notebook):
    text = "αβ → 🦆 中文 é\\u200b"
    assert shown(notebook, f"%%px\nprint('{text}')") == f"ranks 0–2 │ {text}\n".replace("\\u200b", "\u200b")


def test_twenty_thousand_lines_arrive_whole_and_in_order(notebook):
    code = "%%px --targets 0,1\nfor i in range(20_000): print(i)"
    lines = shown(notebook, code).splitlines()
    assert lines == [f"ranks 0, 1 │ {i}" for i in range(20_000)]


def test_stderr_goes_to_stderr_and_is_no_error(notebook):
    cell = notebook.run("%%px\nimport sys\nprint('odd', file=sys.stderr) if rank % 2 else print('even')")
    assert cell.status == "ok"
    assert cell.stdout == "ranks 0, 2 │ even\n"
    assert cell.stderr == "rank 1 │ odd\n"


def test_output_of_a_childs_print_after_an_error_is_kept(notebook):
    cell = failed(notebook, "%%px\nprint('before')\nif rank: raise ValueError('no')")
    assert cell.stdout == "ranks 0–2 │ before\n"
    assert cell.error == "CellError: ranks 1, 2: ValueError: no"


def test_rich_outputs_follow_under_their_ranks(notebook):
    code = "%%px --targets 0,2\nfrom IPython.display import HTML, display\ndisplay(HTML(f'<b>{rank}</b>'))\nprint('x')"
    cell = notebook.run(code)
    assert [d["text/html"] for d in cell.displays] == ["<b>0</b>", "<b>2</b>"]
    assert cell.stdout == "ranks 0, 2 │ x\nrank 0 │\nrank 2 │\n"
    assert cell.shapes == ["stdout", "display_data", "stdout", "display_data"]


def test_a_figure_is_shown_under_its_rank(notebook):
    code = "%%px --targets 1\nimport matplotlib.pyplot as plt\nfig, ax = plt.subplots()\nax.plot([rank])\nplt.show()"
    notebook.value("%px import matplotlib; matplotlib.use('module://matplotlib_inline.backend_inline')")
    cell = notebook.run(code)
    assert ["image/png" in data for data in cell.displays if "│" not in data["text/plain"]] == [True]  # no progress


# -- await --------------------------------------------------------------------------------------------------------

ASYNC = """import asyncio, contextlib
async def f(x):
    await asyncio.sleep(0.01)
    return x
async def counted():
    for i in range(3):
        yield await f(i)
@contextlib.asynccontextmanager
async def opened():
    yield await f(5)
async def reduced():
    x = await f(torch.ones(1))
    dist.all_reduce(x)
    return int(x)
"""


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("await f(4)", "4"),
        ("print(await f(4))", "4"),
        ("await asyncio.gather(f(1), f(2))", "[1, 2]"),
        ("[i async for i in counted()]", "[0, 1, 2]"),
        ("async with opened() as x: print(x)", "5"),
        ("async with asyncio.timeout(20): print(await f(6))", "6"),
        ("await asyncio.wait_for(f(7), 20)", "7"),
        ("await asyncio.to_thread(int, '8')", "8"),
        ("task = asyncio.create_task(f(9))\nawait task", "9"),
        ("await reduced()", "3"),
        ("await asyncio.gather(reduced(), f(1))", "[3, 1]"),
    ],
)
def test_a_cell_may_await(notebook, code, value):
    notebook.value(f"%%px\n{ASYNC}")
    assert shown(notebook, f"%%px\n{code}") == f"ranks 0–2 │ {value}\n"


def test_a_task_that_a_cell_makes_is_awaited_by_a_later_one(notebook):
    notebook.value(f"%%px\n{ASYNC}task = asyncio.create_task(f('later'))")
    notebook.value("%%px\nother = asyncio.create_task(f('another'))\nawait f(1)")
    assert shown(notebook, "%%px\n[await task, await other]") == "ranks 0–2 │ ['later', 'another']\n"


def test_an_error_behind_an_await_has_the_editors_line_numbers(notebook):
    cell = failed(notebook, "%%px\nimport asyncio\nawait asyncio.sleep(0)\n1 / 0")
    assert cell.error == "CellError: ranks 0–2: ZeroDivisionError: division by zero"
    assert cell.traceback.count("----> 4 1 / 0") == 1


@pytest.mark.parametrize("magic", ["%%flow x", "%%late 1"])
def test_a_cell_that_is_drawn_may_await(notebook, magic):
    notebook.value(f"%%px\n{ASYNC}x = torch.ones(1)")
    cell = notebook.run(f"{magic}\nx = await f(x)\ndist.all_reduce(x)")
    assert (cell.error, cell.stderr) == ("", "")
    assert "rank 1" in cell.result
    assert "SyntaxError" not in cell.result


# -- options ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("targets", "ranks"),
    [
        ("1", [1]),
        ("0,2", [0, 2]),
        ("2,0", [0, 2]),
        ("[0,2]", [0, 2]),
        ("1,1", [1]),
        ("1:", [1, 2]),
        ("::2", [0, 2]),
        ("[1:3]", [1, 2]),
        ("-1", [2]),
        ("all", [0, 1, 2]),
    ],
)
def test_targets_are_ranks(notebook, targets, ranks):
    assert shown(notebook, f"%%px --targets={targets}\nrank") == "".join(f"rank {r} │ {r}\n" for r in ranks)


@pytest.mark.parametrize("targets", ["3", "7", "0,9", "[]", "two", "5:9", "1.5", "{}", "rank"])
def test_targets_that_are_no_ranks_are_refused_and_say_which_there_are(notebook, targets):
    cell = notebook.run(f"%%px --targets {targets}\nprint('ran')")
    assert "UsageError" in cell.stderr + cell.error
    assert f"--targets {targets}" in cell.stderr + cell.error
    assert "ranks" in cell.stderr + cell.error
    assert "ran\n" not in cell.stdout


def test_targets_hold_for_one_cell_only(notebook):
    shown(notebook, "%%px -t 0\nx = 5")
    assert shown(notebook, "%%px\n'x' in globals() and rank == 0") != ""
    assert shown(notebook, "%%px\nprint('all')") == "ranks 0–2 │ all\n"


def test_a_cell_without_block_is_collected_by_pxresult(notebook):
    cell = notebook.run("%%px --noblock\nprint('later')\nrank * 2")
    assert cell.status == "ok"
    assert "AsyncResult" in cell.result
    assert shown(notebook, "%pxresult").splitlines()[-1] == "rank 2 │ 4"


def test_pxresult_of_a_cell_that_failed_is_its_one_error_and_the_next_cell_works(notebook):
    notebook.value("%%px --noblock\nif rank == 1: raise ValueError('late')\ndist.barrier()")
    assert failed(notebook, "%pxresult").error == "CellError: rank 1: ValueError: late"
    assert shown(notebook, "%%px\ndist.barrier()\nprint('on')") == "ranks 0–2 │ on\n"


def test_a_failed_cell_without_block_does_not_skip_the_next_one_in_silence(notebook):
    notebook.value("%%px --noblock\nraise ValueError('unseen')")
    cell = notebook.run("%%px\nprint('ran')")
    assert cell.stdout == "ranks 0–2 │ ran\n" or "Run this cell again" in cell.error
    assert shown(notebook, "%%px\nprint('ran')") == "ranks 0–2 │ ran\n"


def test_a_result_can_be_kept_under_a_name(notebook):
    notebook.run("%%px -o kept\nrank * 10")
    assert notebook.value("[r for r in kept.get()] and len(kept.get())") == "3"


def test_local_runs_the_cell_in_the_notebook_as_well(notebook):
    cell = notebook.run(
        "%%px --local\nimport os\nwhere = os.getpid()\nprint('here' if 'rank' not in globals() else 'rank')"
    )
    assert cell.status == "ok", cell.traceback
    assert cell.stdout == "here\nranks 0–2 │ rank\n"
    assert int(notebook.value("where")) == notebook.pid


def test_local_cells_end_with_the_ranks_error(notebook):
    cell = failed(notebook, "%%px --local\nif 'rank' in globals(): 1 / 0")
    assert cell.error == "CellError: ranks 0–2: ZeroDivisionError: division by zero"
    assert shown(notebook, "%%px\nprint('on')") == "ranks 0–2 │ on\n"


def test_outputs_can_be_grouped_by_engine(notebook):
    cell = notebook.run("%%px --group-outputs=engine\nprint('same')")
    assert cell.stdout == "rank 0 │ same\nrank 1 │ same\nrank 2 │ same\n"


def test_px_runs_one_line(notebook):
    assert shown(notebook, "%px print(rank + 1)") == "rank 0 │ 1\nrank 1 │ 2\nrank 2 │ 3\n"


def test_a_cell_magic_for_the_ranks_stays_their_first_line(notebook):
    assert "Wall time" in shown(notebook, "%%px --targets 0\n%%time\nx = 1")


def test_an_unknown_option_is_refused(notebook):
    cell = notebook.run("%%px --nonsense\nprint('ran')")
    assert "unrecognized arguments: --nonsense" in cell.stderr + cell.error
    assert cell.stdout == ""


# -- errors -------------------------------------------------------------------------------------------------------


def test_an_error_is_one_traceback_with_the_editors_line_numbers(notebook):
    cell = failed(notebook, "%%px --targets 0,1\na = 1\n\nb = a / 0\nc = 2")
    assert cell.error == "CellError: ranks 0, 1: ZeroDivisionError: division by zero"
    assert cell.traceback.count("----> 4 b = a / 0") == 1
    assert cell.traceback.count("This cell, line 4") == 1
    assert cell.traceback.count("ZeroDivisionError") == 1
    assert "site-packages" not in cell.traceback


def test_a_hang_is_named_with_the_editors_line_numbers(notebook):
    cell = failed(notebook, "%%px\nx = torch.ones(2)\nif rank:\n    dist.all_reduce(x)")
    assert cell.error == (
        "StuckError: rank 0 is missing: it finished the cell, while ranks 1, 2 wait in all_reduce (line 4)"
    )


def test_consequences_are_folded(notebook):
    cell = failed(notebook, "%%px\nif rank == 1: raise ValueError('no')\ndist.barrier()")
    assert cell.error == "CellError: rank 1: ValueError: no"
    assert "ranks 0, 2 waited in barrier (line 3) and were freed" in cell.traceback
    assert "onnection" not in cell.traceback


def test_cells_that_were_run_together_after_a_failing_one_all_run(notebook):
    """As Run All does: the kernel holds them in its queue while the first fails."""
    codes = ["%%px\nraise ValueError", "%%px\nprint('one')", "%%px\ndist.barrier()\nprint('two')"]
    cells = [notebook.wait(message) for message in [notebook.send(code) for code in codes]]
    assert [cell.status for cell in cells] == ["error", "ok", "ok"]
    assert [cell.stdout for cell in cells[1:]] == ["ranks 0–2 │ one\n", "ranks 0–2 │ two\n"]


@pytest.mark.parametrize("begin", ["from labkit import start\nstart()", "import labkit\nlabkit.start(2, timeout=5)"])
def test_ranks_start_no_ranks_of_their_own(notebook, begin):
    cell = failed(notebook, f"%%px\n{begin}")
    assert "ranks 0–2: LabError: This cell runs on the ranks, and start() would start new ranks" in cell.error
    assert cell.error.endswith("lab lives in the notebook: run start() in a cell without %%px.")


def test_errors_of_the_lab_show_no_frames_of_labkit(notebook):
    cell = failed(notebook, "lab.pull('nowhere')")
    assert cell.error.startswith("LabError: ranks 0–2: NameError: name 'nowhere' is not defined.")
    assert "/labkit/" not in cell.traceback
    assert LabError.__name__ in cell.traceback
