"""The Stop button, as Jupyter presses it: the cell ends, the next one works, variables are kept."""

from __future__ import annotations

import pytest

from tests.live.processes import eventually

ALIVE = "%%px\ny = torch.ones(1)\ndist.all_reduce(y)\nprint(int(y), keep == 100 + rank)"


def stopped(notebook, folder, code):
    """Run a cell that never ends, press Stop once all ranks are in it, and run another one."""
    notebook.value("%px keep = 100 + rank")
    running = notebook.send(f"%%px\nopen(f'{folder}/{{rank}}', 'w').close()\n{code}")
    assert eventually(lambda: len(list(folder.iterdir())) == 3)
    notebook.interrupt()
    cell = notebook.wait(running)
    assert cell.status == "error"
    assert cell.error.startswith("StoppedError: You stopped the cell"), cell.error
    after = notebook.run(ALIVE)
    assert (after.error, after.stdout) == ("", "ranks 0–2 │ 3 True\n")
    return cell


@pytest.mark.parametrize(
    "code", ["while True: pass", "import time; time.sleep(600)", "import os; os.read(os.pipe()[0], 1)"]
)
def test_stop_ends_a_cell_that_computes_or_sleeps(notebook, tmp_path, code):
    stopped(notebook, tmp_path, code)


def test_stop_ends_a_cell_whose_ranks_wait_in_a_collective(notebook, tmp_path):
    """One rank computes for ever, so that no hopeless wait ends the cell before Stop does."""
    cell = stopped(notebook, tmp_path, "if rank == 0:\n    while True: pass\ndist.barrier()")
    assert "the process group is joined again; all variables are kept" in cell.traceback


def test_stop_ends_a_cell_whose_ranks_wait_in_a_sub_group(notebook, tmp_path):
    stopped(notebook, tmp_path, "g = dist.new_group([1, 2])\nif rank == 1: dist.barrier(group=g)\nwhile True: pass")


def test_stop_ends_a_cell_that_swallows_interrupts_with_its_ranks_if_it_must(notebook, tmp_path):
    """Nothing else is left for a rank that refuses to leave; the others keep their variables."""
    code = """import time
while rank == 1:
    try: time.sleep(600)
    except KeyboardInterrupt: pass
dist.barrier()"""
    notebook.value("%px keep = 100 + rank")
    running = notebook.send(f"%%px\nopen(f'{tmp_path}/{{rank}}', 'w').close()\n{code}")
    assert eventually(lambda: len(list(tmp_path.iterdir())) == 3)
    notebook.interrupt()
    assert notebook.wait(running).error.startswith("StoppedError")
    assert notebook.run("%px print(globals().get('keep'))").stdout == "rank 0 │ 100\nrank 1 │ None\nrank 2 │ 102\n"


def test_stop_in_the_notebooks_own_cell_leaves_the_ranks_alone(notebook):
    notebook.value("%px keep = 100 + rank")
    running = notebook.send("print('begun', flush=True)\nimport time\ntime.sleep(600)")
    assert eventually(lambda: notebook.client.get_iopub_msg(timeout=20)["content"].get("text") == "begun\n")
    notebook.interrupt()
    assert notebook.wait(running).error.startswith("KeyboardInterrupt")
    assert notebook.run(ALIVE).stdout == "ranks 0–2 │ 3 True\n"


def test_stop_pressed_twice_leaves_a_lab_that_the_next_cell_heals(notebook, tmp_path):
    notebook.value("%px keep = 100 + rank")
    running = notebook.send(
        f"%%px\nopen(f'{tmp_path}/{{rank}}', 'w').close()\nif rank: dist.barrier()\nwhile True: pass"
    )
    assert eventually(lambda: len(list(tmp_path.iterdir())) == 3)
    notebook.interrupt()
    notebook.interrupt()
    assert notebook.wait(running).status == "error"
    after = notebook.run(ALIVE)
    assert after.error == ""
    assert after.stdout.endswith("ranks 0–2 │ 3 True\n")
