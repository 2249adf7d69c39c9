"""The one object that a learner holds: a thin face over the engines, the console and the pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

from IPython.core.getipython import get_ipython

from labkit import content
from labkit.cluster.console import FILES, Console
from labkit.cluster.engines import Engines
from labkit.cluster.spread import Spread
from labkit.faces import arguments, current_lab
from labkit.faces.drawing import Drawing
from labkit.floor import file_limit, time_limits
from labkit.floor.errors import LabError
from labkit.show.look import Look
from labkit.show.table import LabTable
from labkit.theory.cells import assignment, makes_group

if TYPE_CHECKING:  # these bring matplotlib and ipywidgets, for which no start() should wait
    from labkit.faces.task import Task
    from labkit.show.card import Note
    from labkit.show.flow import Flow
    from labkit.show.last import Last
    from labkit.show.progress import ProgressTable
    from labkit.show.sealed import SealedFlow
    from labkit.show.verdict import Verdict
    from labkit.show.waits import Waits
    from labkit.show.wire import Wire
    from labkit.theory.primitives import Means


@dataclass(frozen=True)
class StartRequest:
    """What `start()` was asked for, checked; `spread` where there are several hosts, `config` a profile's settings."""

    n: int | None
    backend: str | None
    engines: str | None
    timeout: float
    spread: Spread | None = None
    config: Any = None


class Lab(Drawing):
    """Real ranks, one a row: `lab` shows the table, `lab.look("x")` what each rank holds.

    >>> lab.run("x = torch.ones(2) * rank")
    >>> lab.look("x")
    >>> lab.stop()
    """

    def __init__(self, request: StartRequest, engines: Engines, reason: str) -> None:
        self.request = request
        self.running = True
        self._engines, self._reason = engines, reason
        self._console = Console(engines, self._drawn)
        self._magics: Any = None
        if (shell := get_ipython()) is not None:
            from labkit.cluster import error_hints, magic

            self._magics = magic.register(shell, self._console, self.flow, self.late, _mpi)
            error_hints.watch(shell, engines, type(self))

    # -- what a learner calls -----------------------------------------------------------------------------------

    @property
    def reason(self) -> str:
        """What `start()` says: how many ranks, with which backend, and why; how they share a GPU, where they do."""
        assert self._engines is not None
        return "\n".join(filter(None, [self._reason, self._engines.gpu.said()]))

    @property
    def n(self) -> int:
        """The number of ranks."""
        return self._live().n

    @property
    def backend(self) -> str:
        """ "gloo" or "nccl"."""
        return self._live().backend

    @property
    def hosts(self) -> list[list[int]]:
        """The ranks of each host, in the order of the ranks: [[0, 1, 2, 3]] on one, [[0, 1], [2, 3]] on two."""
        found: dict[str, list[int]] = {}
        for member in self._live().members:
            found.setdefault(member.place, []).append(member.rank)
        return list(found.values())

    @property
    def timeout(self) -> float:
        """Seconds that a rank may wait in a collective before the lab frees it."""
        return self._live().limit

    @property
    def guard(self) -> bool:
        """Whether ranks compare their calls before they make them, so that a mismatch raises and nothing else happens.

        >>> lab.guard = False    # from now on a mismatch hangs, ends a rank or gives wrong numbers, as in plain torch

        What it costs is in benchmarks/RESULTS.md. `timed`, `lab.sweep` and `lab.race` run without it.
        """
        return self._live().guarded

    @guard.setter
    def guard(self, wanted: bool) -> None:
        engines = self._live()
        self._console.call(f"labkit.rank.guard.{'on' if wanted else 'off'}")
        engines.guarded = bool(wanted)

    @property
    def address(self) -> str:
        """A file that tells another process of this user how to share the cluster: set LABKIT_SHARED to it."""
        return self._live().processes.run.address

    def look(self, expression: str) -> Look:
        """Show the value of an expression on every rank, one row a rank, with what differs marked.

        >>> lab.look("x"); lab.look("model.weight.grad")

        Ranks that lack the name are told apart from ranks on which the expression raises.
        """
        arguments.text('lab.look("x")', expression)
        self._live()
        return Look(expression, self._console.call("labkit.rank.agent.look", expression))

    @overload
    def flow(
        self, code: str, x: str, y: str | None = None, means: str | Means | None = None, root: int = 0,
        predict: Literal[False] = False,
    ) -> Flow: ...  # fmt: skip

    @overload
    def flow(
        self, code: str, x: str, y: str | None = None, means: str | Means | None = None, root: int = 0,
        predict: bool = False,
    ) -> Flow | SealedFlow: ...  # fmt: skip

    def flow(
        self, code: str, x: str, y: str | None = None, means: str | Means | None = None, root: int = 0,
        predict: bool = False,
    ) -> Flow | SealedFlow:  # fmt: skip
        """Run code on all ranks as `%%flow` does; a picture of what became of `x`, coloured by origin.

        >>> lab.flow("dist.all_reduce(x)", "x")
        >>> lab.flow("y = ring(x)", "x", "y", means="all_reduce")  # marks what an all-reduce would have done

        The code runs once on your variables, then on copies of them, with one element of `x` changed at a time:
        what moves in `y` came from there. A cell that writes files or starts programs is not run again. `means` is a
        primitive's name or any function, as in `lab.check`; `root` is that of the primitive that is meant. `predict`
        seals what the ranks hold after the code until you have filled in what you think: see
        `labkit.show.sealed.SealedFlow`.
        """
        arguments.text('lab.flow("dist.all_reduce(x)", "x")', code, x, y or x)
        from labkit.cluster.flow import observe
        from labkit.show.flow import Flow, check

        check(means, root, self.n)
        self._live()
        flow = Flow(observe(self._console, code, x, y or x), means, root)
        if not predict:
            return flow
        from labkit.show.sealed import SealedFlow  # ipywidgets

        return SealedFlow(flow)

    def wire(self, code: str) -> Wire:
        """Run code on all ranks as a cell, then show the bytes that each rank sent to each other one.

        >>> lab.wire("dist.all_reduce(x)")

        The bytes are the kernel's own TCP counters; beside them is what the textbook has for the calls that the cell
        made. See `labkit.show.wire.Wire`; its `across(lab.hosts)` has the bytes from host to host. Raises what the cell
        ends with.
        """
        arguments.text('lab.wire("dist.all_reduce(x)")', code)
        self._live()
        from labkit.cluster.wire import count
        from labkit.show.wire import Wire

        return Wire(count(self._console, code), self._records())

    def run(self, code: str, ranks: int | Sequence[int] | None = None) -> list[str]:
        """Run code as a `%%px` cell does, on all ranks or on some; the text that each of these ranks printed.

        Raises `CellError` where a rank raised, died or could not finish; the group is healed by then.
        """
        arguments.text('lab.run("print(rank)")', code)
        engines = self._live()
        report = self._console.run(code, arguments.ranks(ranks, engines.n), makes_group=makes_group(code))
        return [r.stdout + r.value for r in report.ranks]

    def pull(self, expression: str) -> list[Any]:
        """Fetch a value from every rank, index = rank: tensors as numpy arrays, else numbers, text, lists, dicts.

        Raises `LabError` where a rank lacks it.
        """
        arguments.text('lab.pull("x")', expression)
        self._live()
        pulled = self._console.call("labkit.rank.agent.pull", expression)
        arguments.all_have(expression, {r: error for r, (error, _) in enumerate(pulled) if error})
        return [value for _, value in pulled]

    def push(self, **values: Any) -> None:
        """Give every rank the same variables: `lab.push(lr=0.1)`; arrays, numbers, text, lists and dicts cross.

        Raises `LabError` for anything else.
        """
        for name, value in values.items():
            arguments.crosses(name, value)
        engines = self._live()
        self._console.call("labkit.rank.agent.push", values)
        for name, value in values.items():
            engines.remember(f"# lab.push\n{assignment(name, value)}")

    def status(self) -> list[dict[str, Any]]:
        """What each rank does now, one dict a rank.

        `state` is "idle", "computing", "collective", "silent" (no answer in a second) or "dead"; `op` and `line` say
        which collective and which line of the cell; `engine` and `pid` which process.
        """
        engines = self._live()
        where, dead = engines.ask("where", range(engines.n), time_limits.AGENT_ANSWERS), engines.dead()
        return [
            {
                "rank": m.rank,
                "state": "dead" if m.rank in dead else (where[m.rank] or {"state": "silent"})["state"],
                "op": (where[m.rank] or {}).get("op"),
                "line": (where[m.rank] or {}).get("line"),
                "engine": m.engine,
                "pid": m.pid,
            }
            for m in engines.members
        ]

    @property
    def last(self) -> Last:
        """What the last cell did, also after an error: `lab.last.timeline()`, `.steps()`, `.waits()`."""
        self._live()
        from labkit.show.last import Last  # matplotlib is loaded when there is something to draw

        return Last(self._records(), self._console.outcome)

    def why(self) -> Waits:
        """Say in one sentence why the last cell is stuck, or was, and draw who waits for whom.

        >>> lab.why()      # after a cell that was cut short, or while a %%px --noblock cell runs

        Below the picture stand the lines in which absent ranks are, or were. Of a cell that ended well it says that
        nothing was stuck, and which wait was the longest. See `labkit.show.waits.Waits`.
        """
        self._live()
        from labkit.show.waits import Waits

        outcome = self._console.seen()
        return Waits(self._records(), outcome)

    def late(self, code: str, rank: int, seconds: float = 0.25) -> Any:
        """Run a cell's statements one by one, one rank late to each, and draw who waits for it; also `%%late 1`.

        >>> lab.late("dist.barrier()\\ndist.broadcast(x, src=0)", rank=1)

        Each statement runs once, on your variables. Raises `CellError` as a `%%px` cell does.
        """
        arguments.text('lab.late("dist.barrier()", rank=1)', code)
        self._live()
        return content.tool("Late")(rank, self.n, content.tool("late")(self._console, code, rank, seconds))

    def sweep(
        self,
        op: str = "all_reduce",
        sizes: Sequence[int] | None = None,
        ranks: Sequence[int] | None = None,
        dtype: str = "float32",
        repeat: int = 15,
    ) -> Any:
        """Time one operation over sizes: time, algbw and busbw as nccl-tests defines them, with the fitted α and β.

        >>> lab.sweep("all_gather", sizes=[2**10, 2**20])
        >>> lab.sweep("barrier").rows[0].median

        `sizes` are nccl-tests' S in bytes, by default 64 B to 16 MiB; where ranks get parts, S is rounded to them.
        `ranks` measures some of the ranks, in a group of their own. Stop keeps what was measured so far.
        """
        self._live()
        return content.tool("Sweep")(content.tool("sweep")(self._console, op, sizes, ranks, dtype, repeat))

    def race(
        self, *contestants: str, sizes: Sequence[int] | None = None, repeat: int = 9, dtype: str = "float32"
    ) -> Any:
        """Let all-reduces race against `dist.all_reduce` by size, and against MPI where it is installed: a scoreboard.

        >>> lab.race("ring_all_reduce(x)", "halving_doubling(x)")
        >>> lab.race("shared_all_reduce(x, room)", sizes=[4, 2**20])

        A contestant is an expression of `x`, a tensor with one dimension: it leaves the sum in `x` or returns it. All
        take turns in one run, by the clock of `timed`; a result that is wrong does not count, on odd lengths and other
        dtypes too. `sizes` are bytes, by default 4 B to 64 MiB. Stop keeps what was measured so far.
        """
        self._live()
        return content.tool("Race")(content.tool("race")(self._console, contestants, sizes, repeat, dtype))

    def check(self, name: str, means: str | Means | None = None, *, seed: int | None = None, **options: Any) -> Verdict:
        """Run your function of this name on 2, 3 and 4 ranks and hold it against what it should do: a verdict.

        >>> lab.check("ring_all_reduce")                               # an exercise of the workbook
        >>> lab.check("my_sum", means="all_reduce")                    # any function
        >>> lab.check("my_sum", means=collectives.all_reduce, forbids=("all_reduce",), gradients=True)

        The function takes what a rank brings and returns what it ends with. `means` is the name of a primitive or a
        function such as those of `labkit.theory.collectives`. With it go the options of
        `labkit.grading.exercise.Exercise`: inputs, forbids, budget, tolerance, gradients, in_place, ranks.
        Each check draws other numbers; where that matters, the verdict tells the `seed` that draws the same once more.
        Nothing is raised for a mistake, and the ranks are well afterwards.
        """
        if not callable(name):  # a function has a sentence of its own
            arguments.text('lab.check("ring_shift")', name)
        self._live()
        from labkit.faces import task

        return task.check(self._console, name, means, seed, **options)

    def exercise(self, name: str) -> Task:
        """What an exercise asks, drawn on an example, how long it takes, and how you stand.

        >>> lab.exercise("ring_shift")
        >>> lab.exercise("ring_shift").hint()     # also .check(), .solution() once you have tried, .mine()
        """
        arguments.text('lab.exercise("ring_shift")', name)
        self._live()
        from labkit.faces.task import Task

        return Task(self._console, name)

    def use(self, *names: str) -> Note:
        """Give all ranks your function of this name, if one was found right, else the workbook's; says which.

        >>> lab.use("ring_shift")
        >>> lab.use("ring_shift", "prefix_sum")

        A cell that calls the function of an exercise comes after this: it works before you have written the function,
        and with your own from the moment that `lab.check` finds it right. It may be called again at any time. Running
        the exercise's cell once more puts what stands there on the ranks, an empty function too; `lab.use` mends that.
        A kept version that no longer works gives way to the workbook's, and the sentence says why.
        """
        arguments.text('lab.use("ring_shift")', *names)
        self._live()
        from labkit.faces import task

        return task.use(self._console, names)

    def script(
        self, file: str, cells: Sequence[int] | None = None, last: int | None = None, overwrite: bool = False
    ) -> Note:
        """Write the cells that ran on the ranks as a program that torchrun runs with the same result.

        >>> lab.script("mean.py")                    # all cells since start(), beside the notebook
        >>> lab.script("mean.py", last=2)            # the last two
        >>> lab.script("mean.py", cells=[3, 5])      # the numbers in brackets, left of the cells

        A cell that you ran again is in it once, as it ran last; with `cells`, each run that you name. Cells that failed
        are left out, and it says so. A file that you have changed, or that something else wrote, is only written over
        with `overwrite=True`. The lab remembers the last 500 cells.
        """
        arguments.text('lab.script("mean.py")', file)
        engines = self._live()
        from labkit.faces import script

        return script.write(file, list(engines.cells), engines.n, engines.backend, cells, last, overwrite)

    def progress(self, lesson: str | None = None) -> ProgressTable:
        """The exercises of the workbook, or of a lesson ("06"), how you stand, and which one comes next."""
        from labkit.faces import task

        return task.overview(lesson)

    def sheet(self) -> Any:
        """Run every primitive in its shortest form, and lay all of them out on two pages: picture, bytes, one mistake.

        >>> lab.sheet().save("cheat-sheet.html")    # open it in a browser and print it

        For two to four ranks. Your variables on the ranks stay as they are.
        """
        engines = self._live()
        ran = engines.cells.copy()
        try:
            return content.tool("sheet")(self)
        finally:
            engines.cells = ran  # the sheet's calls are no cells of the learner's

    def heal(self) -> None:
        """Bring every rank back: free those that wait, replace those that died, join all of them again.

        Variables stay, except on a rank that died: it gets the functions, classes and imports of your cells again. A
        healthy lab is left alone.
        """
        self._live()
        self._console.recover(by_hand=True)

    def stop(self) -> None:
        """End all ranks and everything that they started; no process and no file is left."""
        if self.running:
            self.running = False
            assert self._engines is not None
            self._engines.stop()
        current_lab.end(self)

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    # -- how it shows itself ------------------------------------------------------------------------------------

    def _table(self) -> LabTable:
        dead = self._live().dead()
        rows = [{**row, "state": "dead" if row["rank"] in dead else "alive"} for row in self._live().table()]
        return LabTable(rows, "The ranks of this lab")

    def __repr__(self) -> str:
        return repr(self._table()) if self.running else "A lab that was stopped. Call start() for a new one."

    def _repr_html_(self) -> str | None:
        return self._table()._repr_html_() if self.running else None

    def _live(self) -> Engines:
        if not self.running or self._engines is None:
            raise LabError("This lab was stopped. Call lab = start() for a new one.")
        file_limit.spare(**FILES)
        return self._engines

    def _records(self) -> list[dict[str, Any] | None]:
        """What each rank recorded of the last cell: {} where it had no part in it, None where it does not answer."""
        self._live()
        return self._console.records()

    def _drawn(self, *told: Any) -> None:
        """Show who waited for whom in a notebook, above the error that says it in a sentence."""
        if getattr(get_ipython(), "kernel", None) is not None:
            from labkit.show.waits import Waits

            Waits(*told).display()


def _mpi(code: str, n: int) -> None:
    """Run a cell on MPI ranks of its own."""
    content.tool("mpi")(code, n)
