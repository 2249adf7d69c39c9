"""The faults of the chaos soak by name: Stop, signals, what is done to the lab as a whole.

Those that are cells: `chaos_cells`, `chaos_library`.
"""

from __future__ import annotations

from random import Random
from signal import SIGCONT, SIGSTOP

import chaos_library  # noqa: F401  # which enters its faults
from chaos_cells import CELL, CELLS, FAULTS, STOPPED, STUCK, fault
from chaos_lab import Learner

RESTART = "the kernel restarts"

# -- Stop -----------------------------------------------------------------------------------------------------------


@fault("an endless loop, then Stop")
def _(learner: Learner, draw: Random) -> None:
    r = draw.randrange(learner.n)
    read = "import os\n    r, w = os.pipe()\n    try: os.read(r, 1)\n    finally: os.close(r), os.close(w)"
    what = draw.choice(["while True: pass", "import time\n    time.sleep(600)", read])
    rest = draw.choice(["dist.barrier()", "while True: pass"])
    learner.during(f"if rank == {r}:\n    {what}\n{rest}", learner.stop_button, *STOPPED)


@fault("Stop at any moment of a cell")
def _(learner: Learner, draw: Random) -> None:
    code = draw.choice(["dist.barrier()", "import time; time.sleep(0.4)\ndist.barrier()", "while True: pass"])
    forever = code.startswith("while")
    learner.at(draw.uniform(0.0, 0.6), f"%%px\n{code}", learner.stop_button, *STOPPED, *([] if forever else [""]))


@fault("Stop while the lab heals")
def _(learner: Learner, draw: Random) -> None:
    r = draw.randrange(learner.n)
    learner.may_die(r)
    code = draw.choice(["if rank != {r}: dist.barrier()", "import os\nif rank == {r}: os._exit(1)\ndist.barrier()"])
    learner.at(draw.uniform(0.0, 2.5), "%%px\n" + code.format(r=r), learner.stop_button, *STOPPED, STUCK, CELL)


@fault("Stop in a call of the lab")
def _(learner: Learner, draw: Random) -> None:
    learner.px("def my_sum(x):\n    dist.all_reduce(x)\n    return x", "")
    learner.detail = draw.choice(
        ["lab.check('my_sum', means='all_reduce')", "lab.sweep()", "lab.late('dist.barrier()', 1)"]
    )
    learner.at(draw.uniform(0.0, 1.5), learner.detail, learner.stop_button, *STOPPED, "")


# -- signals from outside -------------------------------------------------------------------------------------------

BUSY = {
    "some wait": "import time\nif rank == {r}: time.sleep(600)\ndist.barrier()",
    "all compute": "while True: pass",
}


@fault("a rank is killed between two cells")
def _(learner: Learner, draw: Random) -> None:
    for r in draw.sample(range(learner.n), draw.randint(1, learner.n)):
        learner.kill(r)


@fault("a rank is killed in a cell")
def _(learner: Learner, draw: Random) -> None:
    r, busy = draw.randrange(learner.n), draw.choice(sorted(BUSY))

    def kill() -> None:
        learner.kill(r)
        if busy == "all compute":  # nobody waits for the dead rank
            learner.stop_button()

    learner.during(BUSY[busy].format(r=r), kill, CELL, STUCK, *STOPPED)


@fault("a rank stands still")
def _(learner: Learner, draw: Random) -> None:
    r = draw.randrange(learner.n)
    learner.may_die(r)
    learner.px(f"import os\nif rank == {r}: os.kill(os.getpid(), 19)\ndist.barrier()", STUCK, CELL)


@fault("a rank or the controller stands still for a moment")
def _(learner: Learner, draw: Random) -> None:
    who = draw.choice([*range(learner.n), "controller"])
    seconds, learner.detail = draw.uniform(0.0, 0.5), str(who)
    code = "%%px\nimport time\ntime.sleep(0.5)\ndist.barrier()"
    learner.at(draw.uniform(0.0, 0.3), code, lambda: learner.send(who, SIGSTOP, SIGCONT, between=seconds), "")


@fault("the controller stands still")
def _(learner: Learner, draw: Random) -> None:
    code = BUSY[draw.choice(sorted(BUSY))].format(r=draw.randrange(learner.n))
    learner.during(code, lambda: learner.send("controller", SIGSTOP), CELL)


@fault("the fork server is killed, then a rank")
def _(learner: Learner, draw: Random) -> None:
    learner.kill("forkserver")
    learner.kill(draw.randrange(learner.n))


@fault("the controller is killed between two cells")
def _(learner: Learner, draw: Random) -> None:
    learner.kill("controller")


@fault("the controller is killed in a cell")
def _(learner: Learner, draw: Random) -> None:
    code = draw.choice(sorted(BUSY.values())).format(r=draw.randrange(learner.n))
    learner.during(code, lambda: learner.kill("controller"), CELL)


# -- the lab as a whole ---------------------------------------------------------------------------------------------


@fault("stop and start")
def _(learner: Learner, draw: Random) -> None:
    if draw.random() < 0.5:
        learner.kill("reaper")
    learner.stop()
    learner.start()


@fault("Stop in start")
def _(learner: Learner, draw: Random) -> None:
    learner.stop()
    learner.at(draw.uniform(0.0, 2.0), learner.STARTS, learner.stop_button, *STOPPED, "")
    learner.start()


@fault(RESTART)
def _(learner: Learner, draw: Random) -> None:
    if draw.random() < 0.5:
        learner.notebook.send("%%px\n" + BUSY["all compute"])
    learner.restart()


@fault("two at once")
def _(learner: Learner, draw: Random) -> None:
    """A rank or a helper dies without a cell, and the next cell fails or is stopped at once."""
    first = draw.choice(["a rank is killed between two cells", "the fork server is killed, then a rank"])
    second = draw.choice([*CELLS, "Stop while the lab heals", "a rank is killed in a cell"])
    learner.detail = f"{first}; {second}"
    FAULTS[first](learner, draw)
    FAULTS[second](learner, draw)
