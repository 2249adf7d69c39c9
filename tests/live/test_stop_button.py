"""The Stop button, as Jupyter presses it: the cell ends, the next one works, variables are kept."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from random import Random
from textwrap import indent

import pytest

from labkit.floor import time_limits
from tests.live.processes import eventually

ALIVE = "%%px\ny = torch.ones(1)\ndist.all_reduce(y)\nprint(int(y), keep == 100 + rank)"


def stopped(notebook, folder, code):
    """Run a cell that never ends, press Stop once all ranks are in it, and run another one.

    They are once they have made a file each, or where the code says BEGUN.
    """
    notebook.value("%px keep = int(torch.tensor(100 + rank))")
    begun = f"open(f'{folder}/{{rank}}', 'w').close()"
    running = notebook.send("%%px\n" + (code.replace("BEGUN", begun) if "BEGUN" in code else f"{begun}\n{code}"))
    assert eventually(lambda: len(list(folder.iterdir())) == 3)
    notebook.interrupt()
    cell = notebook.wait(running)
    assert cell.status == "error"
    assert cell.error.startswith("StoppedError: You stopped the cell"), cell.error
    assert (cell.stdout, cell.stderr) == ("", "")
    after = notebook.run(ALIVE)
    assert (after.error, after.stdout) == ("", "ranks 0–2 │ 3 True\n")
    return cell


# Python 3.11 gives the jump back from its end no line, and that is where it is interrupted.
LOOP = "for i in range(10**12):\n    if i < 0:\n        pass"


AWAIT = "import asyncio\nasync def spin():\n    {}\n"


@pytest.mark.parametrize(
    "code",
    [
        *("while True: pass", "import time; time.sleep(600)", "import os; os.read(os.pipe()[0], 1)", LOOP),
        f"{AWAIT.format('await asyncio.sleep(600)')}await spin()",
        f"{AWAIT.format('await asyncio.sleep(600)')}await asyncio.gather(spin(), asyncio.to_thread(print, end=''))",
        f"{AWAIT.format('while True: pass')}await asyncio.gather(asyncio.sleep(0), spin())",
        f"{AWAIT.format('while True: pass')}task = asyncio.create_task(spin())\nawait asyncio.sleep(600)",
    ],
)
def test_stop_ends_a_cell_that_computes_or_sleeps(notebook, tmp_path, code):
    stopped(notebook, tmp_path, code)


def test_a_loop_that_never_ends_has_a_line_where_python_knows_none(notebook, tmp_path):
    """The sentence about the ranks names it; the others wait meanwhile."""
    cell = stopped(notebook, tmp_path, f"if rank: dist.barrier()\n{LOOP}")
    assert re.search(r"rank 0 went on computing \(line [4-6]\)", cell.error), cell.error
    assert "labkit" not in cell.traceback


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
    notebook.value("%px keep = int(torch.tensor(100 + rank))")
    running = notebook.send(f"%%px\nopen(f'{tmp_path}/{{rank}}', 'w').close()\n{code}")
    assert eventually(lambda: len(list(tmp_path.iterdir())) == 3)
    notebook.interrupt()
    assert notebook.wait(running).error.startswith("StoppedError")
    assert notebook.run("%px print(globals().get('keep'))").stdout == "rank 0 │ 100\nrank 1 │ None\nrank 2 │ 102\n"


def test_stop_after_a_cell_has_run_for_long_is_stop_all_the_same(notebook, tmp_path):
    stopped(notebook, tmp_path, f"import time\ntime.sleep({time_limits.CELL_LEFT} + 0.2)\nBEGUN\nwhile True: pass")


def test_a_rank_that_loses_an_interrupt_is_sent_another_and_keeps_its_variables(notebook, tmp_path):
    code = "import time\ntry: time.sleep(600)\nexcept KeyboardInterrupt: pass\ntime.sleep(600)"
    stopped(notebook, tmp_path, code)


# IPython takes longer to tell of an error than a rank has to leave its cell.
SLOWLY = f"""
import time
really = place.structured_traceback
def slowly(*args, **kwargs):
    place.structured_traceback = really
    time.sleep({time_limits.CELL_LEFT} + 1)
    return really(*args, **kwargs)
place.structured_traceback = slowly
"""


def test_a_rank_that_has_left_its_cell_and_tells_of_it_slowly_keeps_its_variables(notebook, tmp_path):
    slow = f"exec({SLOWLY!r}, {{'place': get_ipython().InteractiveTB}})"
    stopped(notebook, tmp_path, f"{slow}\nBEGUN\nwhile True: pass")


# Stop presses itself where IPython calls one of its own functions, in nobody's namespace.
PRESSES = """
def presses(place, name):
    really = getattr(place, name)
    def press(*args, **kwargs):
        setattr(place, name, really)
        signal.raise_signal(signal.SIGINT)
        return really(*args, **kwargs)
    setattr(place, name, press)
"""


@pytest.mark.parametrize("again", ["", "beside['presses'](shell.InteractiveTB, 'structured_traceback')"])
def test_stop_between_two_statements_of_a_cell_is_told_whole(notebook, again):
    """Where IPython compiles the second one; and pressed again while it tells of the first press."""
    notebook.value(f"import signal\nshell = get_ipython()\nbeside = {{'signal': signal}}\nexec({PRESSES!r}, beside)")
    cell = notebook.run(f"{again}\nbeside['presses'](shell.compile, 'extra_flags')\nreached = True")
    assert (cell.error[:17], cell.stderr) == ("KeyboardInterrupt", "")
    assert notebook.value("'reached' in globals()") == "False"


@pytest.mark.parametrize("code", ["import time\ntime.sleep(600)", LOOP])
def test_stop_in_the_notebooks_own_cell_leaves_the_ranks_alone(notebook, tmp_path, code):
    notebook.value("%px keep = int(torch.tensor(100 + rank))")
    in_one_statement = f"if not open('{tmp_path}/begun', 'w').close():\n{indent(code, '    ')}"
    running = notebook.send(in_one_statement)
    assert eventually(lambda: list(tmp_path.iterdir()))
    notebook.interrupt()
    cell = notebook.wait(running)
    assert cell.error.startswith("KeyboardInterrupt")
    assert (cell.stdout, cell.stderr) == ("", "")
    assert "Cell In[" in cell.traceback
    assert "labkit" not in cell.traceback, "it ends where Stop was pressed"
    assert notebook.run(ALIVE).stdout == "ranks 0–2 │ 3 True\n"


# -- pressed again and again --------------------------------------------------------------------------------------

ROUNDS = int(os.environ.get("LABKIT_STOP_ROUNDS", "12"))  # a hundred by hand
SEED = int(os.environ.get("LABKIT_STOP_SEED", "0"))
BUSY = int(os.environ.get("LABKIT_STOP_BUSY", "0"))  # endless loops beside the ranks
CELLS = {
    "some wait in a collective": "if rank: dist.barrier()\nwhile True: pass",
    "some wait in a sub-group": "g = dist.new_group([1, 2])\nif rank == 1: dist.barrier(group=g)\nwhile True: pass",
    "all wait": "dist.recv(torch.ones(1), src=(rank + 1) % world_size)",
    "all compute": "while True: pass",
    "all sleep": "import time\ntime.sleep(600)",
    "all print": "import time\nwhile True:\n    print(rank)\n    time.sleep(0.001)",
    "all end at once": "rank",
    "all end soon": "import time\ntime.sleep({soon})\ndist.barrier()",
    "one does not end": "import time\ntime.sleep({soon} if rank else 600)",
}
# In the kernel: when every press was heard, and when the cell was over. In nobody's namespace, or the watcher itself
# would be the learner's code, in which a press that comes while another is being watched is raised.
WATCHER = """
import time
from labkit.cluster import stop_button as stop
def press(signum, frame, really=stop.STOP.press):
    heard.append(time.monotonic())
    really(signum, frame)
stop.STOP.press = press
"""
WATCHED = f"import time\nheard, over = [], 0.0\nexec({WATCHER!r}, {{'heard': heard}})"
CELL = "get_ipython().run_cell_magic('px', '', {!r})\nover = time.monotonic()"


@pytest.fixture(scope="module")
def watched(notebook):
    """The notebook with a list of presses, on a machine as busy as asked for."""
    notebook.value(WATCHED)
    with contextlib.ExitStack() as stack:
        for _ in range(BUSY):
            loop = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(loop.kill)
        yield notebook


@pytest.mark.parametrize("number", range(ROUNDS))
def test_stop_pressed_one_to_ten_times_at_any_moments_ends_the_cell_as_an_error_that_says_so(watched, number):
    """Only a cell that was over before the first press ends well; and always the next cell runs on whole ranks."""
    random = Random(1000 * SEED + number)
    what = random.choice(list(CELLS))
    span = random.choice([0.02, 0.2, 1.0])
    moments = sorted(random.uniform(0, span) for _ in range(random.randint(1, 10)))
    watched.value("%px keep = int(torch.tensor(100 + rank))")
    watched.value("heard.clear()")
    running = watched.send(CELL.format(CELLS[what].format(soon=random.uniform(0, 2 * span))))
    watched.until_begun(running)
    began = time.monotonic()
    for moment in moments:
        time.sleep(max(0.0, began + moment - time.monotonic()))
        watched.interrupt()
    cell = watched.wait(running)
    told = cell.error.startswith(("StoppedError: You", "KeyboardInterrupt"))
    hopeless = what == "all wait" and cell.error.startswith("StuckError")  # the lab saw it first
    late = cell.status == "ok" and watched.value("all(at > over for at in heard)") == "True"
    assert told or hopeless or late, f"{what} {moments} {cell}"
    after = watched.run(ALIVE)
    assert (after.error, after.stdout) == ("", "ranks 0–2 │ 3 True\n"), f"{what} {moments} {cell} {after}"


IMPORTS = {
    "with a line behind it": "import {name}\nafter = 1",
    "with none": "import {name}",
    "in a function": "def use():\n    from {name} import WHOLE\n    return WHOLE\n\nafter = use()",
    "by name": "import importlib\nafter = importlib.import_module('{name}')",
}


@pytest.mark.parametrize("where", ["site-packages", "mine"])
@pytest.mark.parametrize("way", IMPORTS)
def test_a_library_is_imported_to_its_end_before_stop_ends_the_cell(notebook, tmp_path, way, where):
    """Broken off, it would stay half imported for good, as matplotlib does; a module of the learner's own may be."""
    name = f"pressed_{where[:4]}_{list(IMPORTS).index(way)}"
    (tmp_path / where).mkdir()
    (tmp_path / where / f"{name}.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\nWHOLE = True\n")
    notebook.value(f"import sys\nsys.path.insert(0, {str(tmp_path / where)!r})\nafter = 0")
    cell = notebook.run(IMPORTS[way].format(name=name))
    assert cell.error.startswith("KeyboardInterrupt"), cell
    whole = f"getattr(sys.modules.get('{name}'), 'WHOLE', False)"
    assert notebook.value(f"({whole}, after, sys.gettrace())") == str((where == "site-packages", 0, None))
