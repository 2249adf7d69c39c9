"""A knob that runs code on the ranks: moved from a page while cells run, stopped, and told what went wrong."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.live.notebook import Notebook
from tests.live.processes import eventually
from tests.live.test_clicks import tell, update

pytestmark = pytest.mark.live

MAKE = """
import threading
from labkit import Knob

seen, threads = [], set()

def show(n):
    seen.append(n)
    threads.add(threading.current_thread() is threading.main_thread())
    lab.run(f"x = torch.tensor([{n}.0 if {n} != 3 or rank else float('none')]); dist.all_reduce(x)")
    return f"x is {lab.pull('x')[0].item():g}"

knob = Knob(show, n=[0, 1, 2, 3, 4])
slider = knob._controls["n"].model_id
"""


@pytest.fixture(scope="module")
def subshell(notebook) -> str | None:
    """Where JupyterLab has widgets' messages handled; None where a kernel has its one thread alone."""
    return notebook.subshell()


@pytest.fixture
def slider(notebook) -> str:
    notebook.run("lab.heal()")
    assert notebook.run(MAKE).status == "ok"
    return str(ast.literal_eval(notebook.value("slider")))


def text(notebook: Notebook) -> str:
    return str(ast.literal_eval(notebook.value("repr(knob)")))


def says(notebook: Notebook, words: str) -> bool:
    return eventually(lambda: text(notebook) == words)


def test_a_cell_that_ends_in_a_knob_says_what_the_ranks_found(notebook, slider):
    cell = notebook.run("knob")
    assert cell.result == "n: 0\nx is 0"
    assert notebook.run("knob.go(n=2)\nknob").result == "n: 2\nx is 6"


def test_a_move_runs_the_code_on_the_ranks_as_a_cell_does(notebook, subshell, slider):
    tell(notebook, subshell, (slider, update(index=4)))
    assert says(notebook, "n: 4\nx is 12")
    assert notebook.value("seen, threads") == "([0, 4], {True})"
    assert notebook.run('lab.run("print(x.item(), flush=True)", ranks=0)').stdout == "rank 0 │ 12.0\n"


def test_what_a_rank_raises_is_said_and_the_next_move_goes_well(notebook, subshell, slider):
    tell(notebook, subshell, (slider, update(index=3)))
    assert eventually(lambda: text(notebook).startswith("n: 3\nrank 0: ValueError: could not convert"))
    tell(notebook, subshell, (slider, update(index=1)))
    assert says(notebook, "n: 1\nx is 3")


def test_a_cell_that_runs_is_not_disturbed_and_the_last_move_counts(notebook, subshell, slider, tmp_path: Path):
    gate = tmp_path / "gate"
    code = f"import os\nx = 'mine'\nwhile not os.path.exists({str(gate)!r}): pass"
    pending = notebook.send(f"lab.run({code!r})\nlab.pull('x'), list(seen)")
    notebook.until_begun(pending)
    moves = [(slider, update(index=index)) for index in (1, 2, 4)]
    if subshell is not None:
        tell(notebook, subshell, *moves)  # all are handled while the cell runs
        gate.touch()
    else:
        gate.touch()
    cell = notebook.wait(pending)
    assert cell.result == "(['mine', 'mine', 'mine'], [0])"
    if subshell is None:
        tell(notebook, subshell, *moves)
    assert says(notebook, "n: 4\nx is 12")
    if subshell is not None:
        assert notebook.value("seen") == "[0, 4]"


def test_a_cell_that_awaits_something_is_not_disturbed_either(notebook, subshell, slider):
    if subshell is None:
        pytest.skip("this kernel hears of no move before the cell has ended")
    code = """
import asyncio
from labkit.floor.time_limits import SLIDER_RESTS
while not knob._moved:
    await asyncio.sleep(0)
await asyncio.sleep(4 * SLIDER_RESTS)
list(seen)
"""
    pending = notebook.send(code)
    notebook.until_begun(pending)
    tell(notebook, subshell, (slider, update(index=2)))
    assert notebook.wait(pending).result == "[0]"
    assert says(notebook, "n: 2\nx is 6")


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("lab.run(f'open({path!r}, \"a\").close()\\nwhile True: pass')", "You stopped the cell"),
        ("open(path, 'a').close()\n        while True: pass", "You stopped it."),
    ],
)
def test_stop_ends_what_a_move_began_and_the_knob_stays_usable(notebook, subshell, tmp_path: Path, does, said):
    begun = tmp_path / "begun"
    made = f"""
from labkit import Knob
path = {str(begun)!r}
def show(n):
    if n == 1:
        {does}
    return f"n is {{n}}"
knob = Knob(show, n=[0, 1, 2])
"""
    assert notebook.run(made).status == "ok"
    slider = ast.literal_eval(notebook.value("knob._controls['n'].model_id"))
    tell(notebook, subshell, (slider, update(index=1)))
    assert eventually(begun.exists)
    notebook.interrupt()
    assert eventually(lambda: text(notebook).startswith(f"n: 1\n{said}"))
    tell(notebook, subshell, (slider, update(index=2)))
    assert says(notebook, "n: 2\nn is 2")
