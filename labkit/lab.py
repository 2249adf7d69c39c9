"""The one object that a learner holds: a thin face over the ranks, their console and the pictures."""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any

from IPython.core.getipython import get_ipython

from labkit import content
from labkit.cluster.console import FILES, Console
from labkit.cluster.engines import Engines
from labkit.faces import arguments, current_lab
from labkit.faces.drawing import Drawing
from labkit.floor import file_limit
from labkit.floor.errors import LabError
from labkit.show.look import Look
from labkit.show.table import LabTable
from labkit.theory.cells import assignment, makes_group

if TYPE_CHECKING:  # these bring matplotlib and ipywidgets, for which no start() should wait
    from labkit.faces.task import Task
    from labkit.show.card import Note
    from labkit.show.flow import Flow
    from labkit.show.last import Last
    from labkit.show.sealed import SealedFlow
    from labkit.show.verdict import Verdict
    from labkit.show.waits import Waits
    from labkit.show.wire import Wire
    from labkit.theory.primitives import Means


class Lab(Drawing):
    """Real ranks: `lab` shows a table with a row for each rank, `lab.look("x")` what each rank holds.

    >>> lab.run("x = torch.ones(2) * rank")
    >>> lab.look("x")
    >>> lab.stop()

    Lessons add methods, such as `lab.race`: `dir(lab)` lists them, and `lab.race?` says what one of them does.
    """

    def __init__(self, engines: Engines) -> None:
        self.running = True
        self._engines = engines
        self._ranks_console = Console(engines, self._drawn)
        self._magics: Any = None
        if (shell := get_ipython()) is not None:
            from labkit.cluster import error_hints, magic

            self._magics = magic.register(shell, self._ranks_console, self.flow, self._late, _mpi)
            error_hints.watch(shell, engines, self)

    # -- what a learner calls -----------------------------------------------------------------------------------

    @property
    def n(self) -> int:
        """The number of ranks."""
        return self._console.engines.n

    @property
    def backend(self) -> str:
        """ "gloo" or "nccl"."""
        return self._console.engines.backend

    @property
    def hosts(self) -> list[list[int]]:
        """The ranks of each host, in the order of the ranks: [[0, 1, 2, 3]] on one, [[0, 1], [2, 3]] on two."""
        found: dict[str, list[int]] = {}
        for member in self._console.engines.members:
            found.setdefault(member.place, []).append(member.rank)
        return list(found.values())

    @property
    def guard(self) -> bool:
        """Whether ranks compare their calls before they make them, so that a mismatch raises and nothing else happens.

        >>> lab.guard = False    # from now on a mismatch hangs, ends a rank or gives wrong numbers, as in plain torch

        What it costs is in benchmarks/RESULTS.md. `timed`, `lab.sweep` and `lab.race` run without it.
        """
        return self._console.engines.guarded

    @guard.setter
    def guard(self, wanted: bool) -> None:
        self._console.call(f"labkit.rank.guard.{'on' if wanted else 'off'}")
        self._engines.guarded = bool(wanted)

    def look(self, expression: str) -> Look:
        """Show the value of an expression on every rank, one row per rank, with what differs marked.

        >>> lab.look("x"); lab.look("model.weight.grad")

        Ranks that lack the name are told apart from ranks on which the expression raises.
        """
        arguments.text('lab.look("x")', expression)
        return Look(expression, self._console.call("labkit.rank.agent.look", expression))

    def flow(
        self, code: str, x: str, y: str | None = None, means: str | Means | None = None, root: int = 0,
        predict: bool = False,
    ) -> Flow | SealedFlow:  # fmt: skip
        """Run code on all ranks as `%%flow` does, and draw what became of `x`, coloured by origin.

        >>> lab.flow("dist.all_reduce(x)", "x")
        >>> lab.flow("y = ring(x)", "x", "y", means="all_reduce")  # marks what an all-reduce would have done

        The code runs once on your variables, then on copies of them, with one element of `x` changed at a time:
        whatever changes in `y` came from that element. A cell that writes files or starts programs is not run again.
        `means` is a primitive's name or any function, as in `lab.check`; `root` is the root of that primitive.
        `predict` hides what the ranks hold after the code until you have filled in your prediction: see
        `labkit.show.sealed.SealedFlow`.
        """
        arguments.text('lab.flow("dist.all_reduce(x)", "x")', code, x, y or x)
        console = self._console
        from labkit.cluster.flow import observe
        from labkit.show.flow import Flow, check

        check(means, root, self.n)
        flow = Flow(observe(console, code, x, y or x), means, root)
        if not predict:
            return flow
        from labkit.show.sealed import SealedFlow  # ipywidgets

        return SealedFlow(flow)

    def wire(self, code: str) -> Wire:
        """Run code on all ranks as a cell, then show how many bytes each rank sent to each other rank.

        >>> lab.wire("dist.all_reduce(x)")

        The bytes come from the kernel's own TCP counters; beside them is the textbook's figure for the calls that the
        cell made. See `labkit.show.wire.Wire`; its `across(lab.hosts)` has the bytes from host to host. If the cell
        ends with an error, that error is raised.
        """
        arguments.text('lab.wire("dist.all_reduce(x)")', code)
        console = self._console
        from labkit.cluster.wire import count
        from labkit.show.wire import Wire

        return Wire(count(console, code), console.records())

    def run(self, code: str, ranks: int | Sequence[int] | None = None) -> list[str]:
        """Run code as a `%%px` cell does, on all ranks or on some; return the text that each of them printed.

        Raises `CellError` where a rank raised, died or could not finish; the group is healed by then.
        """
        arguments.text('lab.run("print(rank)")', code)
        report = self._console.run(code, arguments.ranks(ranks, self.n), makes_group=makes_group(code))
        return [r.stdout + r.value for r in report.ranks]

    def push(self, **values: Any) -> None:
        """Give every rank the same variables: `lab.push(lr=0.1)`; arrays, numbers, text, lists and dicts.

        Raises `LabError` for anything else.
        """
        for name, value in values.items():
            arguments.crosses(name, value)
        self._console.call("labkit.rank.agent.push", values)
        for name, value in values.items():
            self._engines.remember(f"# lab.push\n{assignment(name, value)}")

    @property
    def last(self) -> Last:
        """What the last cell did, also after an error: `lab.last.timeline()`, `.steps()`, `.waits()`."""
        console = self._console
        from labkit.show.last import Last  # matplotlib is loaded when there is something to draw

        return Last(console.records(), console.outcome)

    def why(self) -> Waits:
        """Say in one sentence why the last cell is stuck, or was, and draw who waits for whom.

        >>> lab.why()      # after a cell that was cut short, or while a %%px --noblock cell runs

        Below the picture are the lines of code at which the absent ranks are, or were. If the cell ended well, the
        sentence says that nothing was stuck, and which wait was the longest. See `labkit.show.waits.Waits`.
        """
        console = self._console
        from labkit.show.waits import Waits

        outcome = console.seen()
        return Waits(console.records(), outcome)

    def check(self, name: str, means: str | Means | None = None, *, seed: int | None = None, **options: Any) -> Verdict:
        """Run your function of this name on 2, 3 and 4 ranks and compare it with what it should do: a verdict.

        >>> lab.check("ring_all_reduce")                               # an exercise of the workbook
        >>> lab.check("my_sum", means="all_reduce")                    # any function
        >>> lab.check("my_sum", means=collectives.all_reduce, forbids=("all_reduce",), gradients=True)

        The function takes what a rank brings and returns what the rank ends with. `means` is the name of a primitive
        or a function such as those of `labkit.theory.collectives`. With `means` you may also give the options of
        `labkit.grading.exercise.Exercise`: inputs, forbids, budget, tolerance, gradients, in_place, ranks.
        Each check draws different numbers; where that matters, the verdict names the `seed` that draws the same ones.
        A mistake in your function raises no error, and the ranks are well afterwards.
        """
        if not callable(name):  # a function has a sentence of its own
            arguments.text('lab.check("ring_shift")', name)
        console = self._console
        from labkit.faces import task

        return task.check(console, name, means, seed, **options)

    def exercise(self, name: str) -> Task:
        """Show what an exercise asks, drawn on an example, how long it takes, and how you stand.

        >>> lab.exercise("ring_shift")
        >>> lab.exercise("ring_shift").hint()     # also .check(), .solution() once you have tried, .mine()
        """
        arguments.text('lab.exercise("ring_shift")', name)
        console = self._console
        from labkit.faces.task import Task

        return Task(console, name)

    def use(self, *names: str) -> Note:
        """Give all ranks your function of this name, if one was found right, or else the workbook's; say which.

        >>> lab.use("ring_shift")
        >>> lab.use("ring_shift", "prefix_sum")

        Call it before a cell that calls the function of an exercise: that cell then works before you have written the
        function, and runs your own once `lab.check` has found it right. You may call `lab.use` again at any time. If
        you run the exercise's cell again, the ranks get what that cell says, even an empty function: call `lab.use`
        again. If your kept version no longer works, the ranks get the workbook's, and the sentence says why.
        """
        arguments.text('lab.use("ring_shift")', *names)
        console = self._console
        from labkit.faces import task

        return task.use(console, names)

    def heal(self) -> None:
        """Bring every rank back: free those that wait, replace those that died, join all of them again.

        Variables stay, except on a rank that died: it gets the functions, classes and imports of your cells again. A
        healthy lab is left alone.
        """
        self._console.recover(by_hand=True)

    @property
    def elastic(self) -> bool:
        """Whether the others go on without a rank that dies, as a smaller group, and it is not started anew.

        >>> lab.elastic = True    # a rank that dies is left out from now on
        >>> lab.grow()            # later: as many ranks again as there were at first

        The group shrinks: the others keep their variables, and are numbered anew in their order, so that `rank`,
        `world_size` and `lab.n` change.
        What dies in a check, a sweep or a race is started anew all the same.
        """
        return self._console.elastic

    @elastic.setter
    def elastic(self, wanted: bool) -> None:
        self._console.elastic = bool(wanted)

    def grow(self) -> None:
        """Start a new rank for each that an elastic lab has left out, and join it behind the others.

        A new rank has the functions, classes and imports of your cells, and no variables: send it what it needs. A lab
        that has all its ranks is left alone.
        """
        self._console.grow()

    def stop(self) -> None:
        """End all ranks and everything that they started; no process and no file is left."""
        if self.running:
            self.running = False
            self._engines.stop()
        current_lab.end(self)

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    # -- how it shows itself, and what else it needs --------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        """Return a method that a lesson adds to labs, such as `lab.race`."""
        private = name.startswith("_")
        if not private and self.running:
            file_limit.spare(**FILES)  # what names the methods may not be imported yet, nor the method's module
        method = None if private else content.method(name)
        if method is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        return MethodType(method, self)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *content.methods()]

    def __repr__(self) -> str:
        return repr(self._table()) if self.running else "A lab that was stopped. Call start() for a new one."

    def _repr_html_(self) -> str | None:
        return self._table()._repr_html_() if self.running else None

    def _table(self) -> LabTable:
        return LabTable(self._console.engines.table(), "The ranks of this lab")

    @property
    def _address(self) -> str:
        """The file that lets another process of this user share the processes: LABKIT_SHARED names it."""
        return self._console.engines.processes.run.address

    @property
    def _console(self) -> Console:
        """The console; an import after this may open files. Raises `LabError` where the lab was stopped."""
        if not self.running:
            raise LabError("This lab was stopped. Call lab = start() for a new one.")
        file_limit.spare(**FILES)
        return self._ranks_console

    def _drawn(self, *told: Any) -> None:
        """Show who waited for whom in a notebook, above the error that says it in a sentence."""
        if getattr(get_ipython(), "kernel", None) is not None:
            from labkit.show.waits import Waits

            Waits(*told).display()

    def _late(self, code: str, rank: int) -> Any:
        """Run `lab.late`, which is not imported before its magic is used."""
        return self.late(code, rank)


def _mpi(code: str, n: int) -> None:
    """Run a cell on MPI ranks of its own."""
    content.tool("mpi")(code, n)
