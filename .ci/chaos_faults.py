"""The faults of the chaos soak: what each does to a learner's lab, and as what it may end."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from chaos_lab import Learner

Fault = Callable[[Learner, Random], None]
FAULTS: dict[str, Fault] = {}
RESTART = "the kernel restarts"
CELL, STUCK, STOPPED = "CellError: ", "StuckError: ", ("StoppedError: ", "KeyboardInterrupt: ")


def fault(name: str) -> Callable[[Fault], Fault]:
    """Enter a function in the table under a name."""

    def entered(function: Fault) -> Fault:
        FAULTS[name] = function
        return function

    return entered


# -- cells that fail or hang by themselves: {r} is a random rank, {q} the next one ---------------------------------

CELLS = {
    "a rank raises": (CELL, "if rank == {r}: 1 / 0\ndist.barrier()"),
    "every rank raises": (CELL, "dist.barrier()\nraise KeyError('weights')"),
    "a syntax error": (CELL, "x = (1,\nfor"),
    "a rank recurses without end": (CELL, "def deep(): return deep() + 1\nif rank == {r}: deep()\ndist.barrier()"),
    "a receive that never comes": (STUCK, "if rank == {r}: dist.recv(torch.ones(1), {q})"),
    "everybody sends or receives first": (STUCK, "dist.{first}(torch.ones(1), (rank + 1) % world_size)"),
    "a sub-group hangs": (
        STUCK,
        "g = dist.new_group(sorted([{r}, {q}]))\nif rank == {r}: dist.all_reduce(torch.ones(1), group=g)",
    ),
    "new_group on some ranks only": (STUCK, "if rank != {r}: dist.new_group(list(range(world_size)))"),
    "memory runs out": (
        CELL,
        "import resource\nlimits = resource.getrlimit(resource.RLIMIT_AS)\n"
        "if rank == {r}:\n"
        "    used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), limits[1]))\n"
        "try:\n    if rank == {r}: torch.ones(1 << 28)\n"
        "finally: resource.setrlimit(resource.RLIMIT_AS, limits)\ndist.barrier()",
    ),
}


def _cell(ends: str, code: str) -> Fault:
    def run(learner: Learner, draw: Random) -> None:
        r = draw.randrange(learner.n)
        learner.px(code.format(r=r, q=(r + 1) % learner.n, first=draw.choice(["send", "recv"])), ends)

    return run


FAULTS |= {name: _cell(*cell) for name, cell in CELLS.items()}


MISFITS = {
    "another reduction": ("dist.all_reduce(x)", "dist.all_reduce(x, dist.ReduceOp.MAX)"),
    "another root": ("dist.broadcast(x, 0)", "dist.broadcast(x, 1)"),
    "another collective": ("dist.all_reduce(x)", "dist.barrier()"),
    "another length": ("dist.all_reduce(x)", "dist.all_reduce(torch.ones(9))"),
    "another dtype": ("dist.broadcast(x, 0)", "dist.broadcast(x.double(), 0)"),
    "lists of another shape": (
        "dist.all_gather([torch.ones_like(x)] * world_size, x)",
        "dist.all_gather([torch.ones(2, 3)] * world_size, torch.ones(2, 3))",
    ),
    "swapped calls": ("dist.all_reduce(x)\n    dist.all_reduce(y)", "dist.all_reduce(y)\n    dist.all_reduce(x)"),
}


def misfit(learner: Learner, draw: Random) -> str:
    """A cell in which one rank makes a call that does not fit those of the others."""
    learner.detail = draw.choice(sorted(MISFITS))
    one, others = draw.sample(MISFITS[learner.detail], 2)
    r = draw.randrange(learner.n)
    return f"x, y = torch.ones(4), torch.ones(4)\nif rank == {r}:\n    {one}\nelse:\n    {others}"


@fault("calls that do not fit")
def _(learner: Learner, draw: Random) -> None:
    learner.px(misfit(learner, draw), "CellError: Ranks disagree on ")


@fault("calls that do not fit, without the guard")
def _(learner: Learner, draw: Random) -> None:
    learner.cell("lab.guard = False", "")
    learner.may_die(*range(learner.n))
    learner.px(misfit(learner, draw), CELL, STUCK, "")
    learner.cell("lab.guard = True\nlab.heal()", "")


@fault("a cell that runs beside the notebook")
def _(learner: Learner, draw: Random) -> None:
    """The next one waits for it, or finds that it hangs."""
    r, hangs = draw.randrange(learner.n), draw.random() < 0.5
    learner.cell(f"%%px --noblock\nimport time\ntime.sleep(0.2)\nif rank != {r} or not {hangs}: dist.barrier()", "")
    learner.cell("lab.why()", "")
    learner.cell("%pxresult", STUCK if hangs else "")


@fault("an asynchronous call that nobody waits for")
def _(learner: Learner, draw: Random) -> None:
    r = draw.randrange(learner.n)
    learner.px(f"if rank != {r}: work = dist.all_reduce(torch.ones(1), async_op=True)", "")
    learner.cell("lab.heal()", "")


@fault("a rank leaves the group")
def _(learner: Learner, draw: Random) -> None:
    learner.px(f"if rank >= {draw.randrange(learner.n)}: dist.destroy_process_group()", "")


@fault("a hang is looked at")
def _(learner: Learner, draw: Random) -> None:
    r = draw.randrange(learner.n)
    learner.px(f"x = torch.ones(1)\ndist.all_reduce(x)\nif rank != {r}: dist.all_reduce(x)", STUCK)
    for look in ("lab.why()", "lab.last.travel()"):
        said = learner.cell(look, "").result.lower()
        assert f"rank {r}" in said, f"{look} names who is missing: {said}"


@fault("an old sub-group is used after healing")
def _(learner: Learner, draw: Random) -> None:
    r = draw.randrange(learner.n)
    learner.px("old = dist.new_group(list(range(world_size)))\ndist.barrier(group=old)", "")
    learner.px(f"if rank != {r}: dist.barrier()", STUCK)
    cell = learner.px("dist.barrier(group=old)", CELL)
    assert "new_group" in cell.traceback, f"it says what to do: {cell.traceback}"


# -- what a cell does to its rank's process -------------------------------------------------------------------------


@fault("a rank ends itself")
def _(learner: Learner, draw: Random) -> None:
    r = draw.randrange(learner.n)
    ways = [f"os._exit({draw.randrange(3)})", "os.abort()", "os.kill(os.getpid(), 9)", "os.kill(os.getpid(), 11)"]
    learner.may_die(r)
    rest = draw.choice(["dist.barrier()", "", "time.sleep(1)"])
    ends = learner.px(f"import os, time\nif rank == {r}: {draw.choice(ways)}\n{rest}", CELL, STUCK)
    assert f"rank {r} died" in ends.error or f"rank {r} died" in ends.traceback, ends.error


@fault("exit in a cell")
def _(learner: Learner, draw: Random) -> None:
    r, ways = draw.randrange(learner.n), ["exit()", "quit()", "import sys; sys.exit()", "raise SystemExit(3)"]
    learner.may_die(r)
    learner.px(f"if rank == {r}:\n    {draw.choice(ways)}\ndist.barrier()", CELL, STUCK, "")


@fault("a flood")
def _(learner: Learner, draw: Random) -> None:
    r, lines, stream = draw.randrange(learner.n), draw.randrange(1, 99999), draw.choice(["stdout", "stderr"])
    cell = learner.px(f"import sys\nif rank == {r}: print('x' * 99 + '\\n' * {lines} + 'end', file=sys.{stream})", "")
    assert "end" in cell.stdout + cell.stderr, "its last line is shown"


@fault("standard output is closed")
def _(learner: Learner, draw: Random) -> None:
    r, way = draw.randrange(learner.n), draw.choice(["sys.stdout.close()", "os.close(1)"])
    learner.px(f"import os, sys\nkept = sys.stdout\nif rank == {r}: {way}", "", CELL)
    learner.right()
    learner.px("import sys\nsys.stdout = kept", "")


@fault("the clock is replaced")
def _(learner: Learner, draw: Random) -> None:
    name, r = draw.choice(["time", "monotonic", "perf_counter", "sleep"]), draw.randrange(learner.n)
    learner.px(f"import time\nkept = time.{name}\nif rank == {r}: time.{name} = lambda *_: 0.0", "")
    learner.right()
    learner.px(f"if rank != {r}: dist.barrier()", STUCK)
    learner.px(f"import time\ntime.{name} = kept", "")


@fault("descriptors are used up")
def _(learner: Learner, draw: Random) -> None:
    r = draw.randrange(learner.n)
    learner.px(
        "import os, resource\nlimits, files = resource.getrlimit(resource.RLIMIT_NOFILE), []\n"
        f"few = len(os.listdir('/proc/self/fd')) + 9\nif rank == {r}:\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (few, limits[1]))\n"
        "    try:\n        while True: files.append(open('/dev/null'))\n"
        "    finally:\n        files.clear()\n        resource.setrlimit(resource.RLIMIT_NOFILE, limits)\n"
        "dist.barrier()",
        CELL,
    )


@fault("a thread is left behind")
def _(learner: Learner, draw: Random) -> None:
    code = "import threading\nenough = threading.Event()\nthreading.Thread(target=enough.wait, daemon=True).start()"
    learner.px(code, "")
    learner.right()
    learner.px("enough.set()", "")


# -- Stop -----------------------------------------------------------------------------------------------------------


@fault("an endless loop, then Stop")
def _(learner: Learner, draw: Random) -> None:
    r = draw.randrange(learner.n)
    ways = ["while True: pass", "import time\n    time.sleep(600)", "import os\n    os.read(os.pipe()[0], 1)"]
    what = draw.choice(ways)
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
    learner.detail, who = draw.choice([("the controller", "controller"), *(("a rank", r) for r in range(learner.n))])
    again = draw.uniform(0.0, 0.5 if who != "controller" else 2.0)
    code = "%%px\nimport time\ntime.sleep(0.5)\ndist.barrier()"
    learner.at(draw.uniform(0.0, 0.3), code, lambda: learner.pause(who, again), "")


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
