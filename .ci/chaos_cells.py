"""The faults of the chaos soak that are cells: each with the errors as which it may end. The others: `chaos_faults`."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from chaos_lab import Learner

Fault = Callable[[Learner, Random], None]
FAULTS: dict[str, Fault] = {}
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


def cell(ends: str, code: str, named: str = "") -> Fault:
    """The fault that is this cell; `named` must be in the error as which it ends."""

    def run(learner: Learner, draw: Random) -> None:
        r = draw.randrange(learner.n)
        chosen = {"r": r, "q": (r + 1) % learner.n, "first": draw.choice(["send", "recv"])}
        error = learner.px(code.format(**chosen), ends).error
        assert named.format(**chosen) in error, f"{named.format(**chosen)} is not named: {error}"

    return run


FAULTS |= {name: cell(*one) for name, one in CELLS.items()}


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


@fault("a rank leaves the group")
def _(learner: Learner, draw: Random) -> None:
    learner.px(f"if rank >= {draw.randrange(learner.n)}: dist.destroy_process_group()", "")


@fault("a hang is looked at")
def _(learner: Learner, draw: Random) -> None:
    r = draw.randrange(learner.n)
    learner.px(f"x = torch.ones(1)\ndist.all_reduce(x)\nif rank != {r}: dist.all_reduce(x)", STUCK)
    said = learner.cell("lab.why()", "").result.lower()
    assert f"rank {r}" in said, f"it names who is missing: {said}"


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
