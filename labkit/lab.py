"""The one object that a learner holds: a thin face over the engines, the console and the pictures."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, overload

from IPython.core.getipython import get_ipython

from labkit import content, descriptors, no_ranks, time_limits, words
from labkit.cluster import room
from labkit.cluster.console import FILES, Console
from labkit.cluster.engines import Choose, Engines
from labkit.cluster.live_line import QUIET
from labkit.cluster.processes import Processes
from labkit.cluster.spread import KINDS, MOST, PROFILE, Spread, read_profile, spread
from labkit.cluster.stop import STOP
from labkit.cluster.turn import turn
from labkit.errors import HostError, JoinError, LabError
from labkit.show.look import Look
from labkit.show.table import LabTable
from labkit.theory.cells import assignment, makes_group

if TYPE_CHECKING:  # these bring matplotlib and ipywidgets, for which no start() should wait
    from labkit.show.bars import Bars
    from labkit.show.card import Note
    from labkit.show.curves import Curves
    from labkit.show.flow import Flow
    from labkit.show.histogram import Histogram
    from labkit.show.last import Last
    from labkit.show.progress import ProgressTable
    from labkit.show.sealed import SealedFlow
    from labkit.show.times import Times
    from labkit.show.verdict import Verdict
    from labkit.show.waits import Waits
    from labkit.show.wire import Wire
    from labkit.task import Task
    from labkit.theory.primitives import Means

BACKENDS = ("gloo", "nccl")
SLOW = "their times say nothing about NCCL's bandwidth"
SHARED = "LABKIT_SHARED"  # the address of a cluster that this notebook may use (see `Lab.address`)

_current: Lab | None = None


def start(
    n: int | None = None,
    backend: str | None = None,
    engines: str | None = None,
    timeout: float = 10,
    *,
    nodes: int | None = None,
    per_node: int | None = None,
    hosts: Mapping[str, int] | Sequence[str] | None = None,
    profile: str | None = None,
) -> Lab:
    """Start `n` ranks that `%%px` cells run on, joined in one process group, and return the `Lab`.

    >>> lab = start()        # with NCCL a rank per GPU, or 4 that share one GPU; without a GPU 4 CPU ranks with Gloo
    >>> lab = start(8)       # 8 ranks
    >>> with start(2) as lab:
    ...     lab.run("print(rank)")
    >>> lab = start(engines="ssh", hosts={"na": 2, "nb": 2})     # ranks 0 and 1 on na, 2 and 3 on nb
    >>> lab = start(engines="slurm", nodes=2, per_node=4)
    >>> lab = start(profile="gpu")                               # what an ipyparallel profile says

    Args:
        n: how many ranks, 1 to 16 on one host, by default one a GPU, or 4 where there is one GPU or none.
        backend: "gloo" or "nccl"; by default "nccl" where each rank gets a GPU of its own, or there is exactly one
            for all. With "nccl" more ranks than GPUs share them.
        engines: "ssh", "slurm" or "mpi" for ranks on several hosts, or another launcher that ipyparallel knows; by
            default ranks are forked on this host where that is safe.
        timeout: seconds that a rank may wait in a collective before the lab frees it. A wait that nobody can end
            is freed after one second already.
        nodes: how many hosts, where Slurm or MPI chooses them.
        per_node: how many ranks on each; by default one a GPU, else 2.
        hosts: their names, with the ranks of each: {"na": 2, "nb": 2}; or names alone, with `per_node`.
        profile: the name of an ipyparallel profile: its ipcluster_config.py names the launcher and its settings, and
            hosts, nodes and per_node as c.Lab.hosts and so on. What you give here goes before it. Where neither a
            profile nor a launcher is named, the environment variable LABKIT_PROFILE is.

    Ranks are numbered host by host. A second `start()` with the same wishes returns the running lab; with others it
    replaces it. Raises `LabError`, with what to do next, where the wish cannot be met.
    """
    global _current
    if hasattr(getattr(get_ipython(), "kernel", None), "engine_id"):  # it is ipyparallel's
        raise LabError(
            "This cell runs on the ranks, and start() would begin new ones on each of them. "
            "lab lives in the notebook: run start() in a cell without %%px."
        )
    descriptors.spare(**FILES)
    wish = _checked(n, backend, engines, timeout, nodes, per_node, hosts, profile)
    if _current is not None:
        if _current.wish == wish and _current.running:
            with contextlib.suppress(HostError):  # its job has ended, say: a new one is what is wished for
                _current.heal()
                print(_current.reason)
                return _current
        _current.stop()
    _current = Lab(wish)
    return _current


def backend() -> str:
    """The backend of the lab that runs, "gloo" or "nccl"; "gloo" where none does."""
    return _current.backend if _current is not None and _current.running else "gloo"


@dataclass(frozen=True)
class Wish:
    """What `start()` was asked for, checked; `spread` where there are several hosts, `config` a profile's settings."""

    n: int | None
    backend: str | None
    engines: str | None
    timeout: float
    spread: Spread | None = None
    config: Any = None


def _checked(
    n: Any, backend: Any, engines: Any, timeout: Any, nodes: Any, per_node: Any, hosts: Any, profile: Any
) -> Wish:
    if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 1):
        raise LabError(f"n={n!r} is no number of ranks. Choose 1 to {MOST}, such as start(4).")
    if backend is not None and backend not in BACKENDS:
        raise LabError(f"backend={backend!r} is unknown here. Choose 'gloo' (CPUs) or 'nccl' (GPUs), or leave it out.")
    if not isinstance(timeout, (int, float)) or isinstance(timeout, bool) or not 0 < timeout < 1e6:
        raise LabError(f"timeout={timeout!r} is no time to wait. Give seconds, such as start(timeout=10).")
    config = None
    profile = profile or (os.environ.get(PROFILE) if engines is None and hosts is None else None)
    if profile:
        named, count, config = read_profile(profile)
        engines = engines or (None if named == "labkit" else named)
        n = n or count
        if nodes is per_node is hosts is None:
            nodes, per_node, hosts = (config.Lab.get(name) for name in ("nodes", "per_node", "hosts"))
    if hosts is not None and engines is None:
        engines = "ssh"
    if engines in KINDS:
        return Wish(n, backend, engines, float(timeout), spread(engines, nodes, per_node, hosts, n, config), config)
    for name, value in (("nodes", nodes), ("per_node", per_node), ("hosts", hosts)):
        if value is not None:
            raise LabError(f'{name}= is for several hosts. Say how they are reached: engines="ssh", "slurm" or "mpi".')
    if n is not None and n > MOST and engines is None:
        raise LabError(f"n={n!r} is no number of ranks for one host. Choose 1 to {MOST}, such as start(4).")
    return Wish(n, backend, engines, float(timeout), None, config)


class Lab:
    """Real ranks, one a row: `lab` shows the table, `lab.look("x")` what each rank holds.

    >>> lab.run("x = torch.ones(2) * rank")
    >>> lab.look("x")
    >>> lab.stop()
    """

    def __init__(self, wish: Wish) -> None:
        self.wish = wish
        self._reason = ""
        shell = get_ipython()
        STOP.watch(shell)
        try:
            self._engines = self._started(wish)
        except BaseException as error:
            no_ranks.explain(no_ranks.after(error), instead=True)
            raise
        self.running = True
        self._console = Console(self._engines, self._drawn)
        self._magics: Any = None
        if shell is not None:
            from labkit.cluster import forgotten, magic

            self._magics = magic.register(shell, self._console, self.flow, self.late, _mpi)
            forgotten.watch(shell, self._engines, type(self))
        if wish.spread:
            self._reason = f"{self._reason}\n{_where(self._engines)}"
        print(self.reason)

    def _started(self, wish: Wish, failed: str = "") -> Engines:
        """Ranks as wished, in a cluster of their own or in a shared one; on CPUs where NCCL, unasked, has `failed`."""
        backend = ""

        def choose(gpus: list[int]) -> tuple[int, str, list[int]]:
            nonlocal backend
            if wish.spread:
                at, backend, self._reason = _choose_far(wish, wish.spread, gpus, failed)
                return len(at), backend, at
            chosen, backend, self._reason = _choose(wish.n, wish.backend, gpus[0], failed)
            if backend == "nccl":
                room.check_gpu(chosen, gpus[0])
            return chosen, backend, []

        shared = os.environ.get(SHARED) if wish.engines is None else None
        say, done = _progress()
        try:
            attached = _attached(shared, wish.timeout, choose) if shared else None
            if attached is not None:
                return attached
            processes = Processes(wish.engines or _default_launcher(), wish.spread, wish.config)
            if wish.spread:
                return Engines.start(wish.timeout, processes, choose, say)
            with turn(say):
                room.check(wish.n or 4)
                return Engines.start(wish.timeout, processes, choose, say)
        except JoinError as error:
            if wish.backend or backend != "nccl":
                raise
            return self._started(replace(wish, backend="gloo"), f"NCCL could not join ranks on GPUs{error.why}")
        finally:
            done()

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
        _text('lab.look("x")', expression)
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
        _text('lab.flow("dist.all_reduce(x)", "x")', code, x, y or x)
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
        _text('lab.wire("dist.all_reduce(x)")', code)
        self._live()
        from labkit.cluster.wire import count
        from labkit.show.wire import Wire

        return Wire(count(self._console, code), self._records())

    def run(self, code: str, ranks: int | Sequence[int] | None = None) -> list[str]:
        """Run code as a `%%px` cell does, on all ranks or on some; the text that each of these ranks printed.

        Raises `CellError` where a rank raised, died or could not finish; the group is healed by then.
        """
        _text('lab.run("print(rank)")', code)
        engines = self._live()
        report = self._console.run(code, _ranks(ranks, engines.n), makes_group=makes_group(code))
        return [r.stdout + r.value for r in report.ranks]

    def pull(self, expression: str) -> list[Any]:
        """Fetch a value from every rank, index = rank: tensors as numpy arrays, else numbers, text, lists, dicts.

        Raises `LabError` where a rank lacks it.
        """
        _text('lab.pull("x")', expression)
        self._live()
        pulled = self._console.call("labkit.rank.agent.pull", expression)
        _all_have(expression, {r: error for r, (error, _) in enumerate(pulled) if error})
        return [value for _, value in pulled]

    def curves(
        self, *expressions: str, every: int = 1, over: str | Sequence[str] | None = None, unit: str = "",
        overlay: bool = False, rank: int | None = None, xlabel: str = "", ylabel: str = "",
    ) -> Curves:  # fmt: skip
        """Draw lists of numbers that ranks recorded, such as losses: a line a rank, a panel an expression, one scale.

        >>> lab.curves("losses")
        >>> lab.curves("alone", "together", every=5)     # a value was kept after every fifth step
        >>> lab.curves("losses", over="seconds", unit="s")
        >>> lab.curves("sync", "async_", overlay=True, over=["sync_s", "async_s"], unit="s")

        Args:
            every: how many steps lie between two values.
            over: the name of a list on the ranks to draw against instead of steps, or one name for each expression; as
                long as the values, never going back. `unit` is what its numbers are in.
            overlay: draw one line an expression, all in one panel: the ranks' mean where they differ, with a shade from
                the lowest rank to the highest.
            rank: draw this rank alone.
            xlabel, ylabel: what the axes say: else the names of the lists in `over`, and nothing. "loss", "ms a step".

        Ranks that lack the list are left out. Raises `LabError` where all do, or where it is no list of numbers.
        """
        from labkit.show.curves import Curves
        from labkit.show.overlay import Overlay

        if not expressions:
            raise LabError('lab.curves() needs a list to draw. Append a number a step, then lab.curves("losses").')
        _text('lab.curves("losses")', *expressions)
        against = _against(expressions, every, over, unit)
        only = _ranks(rank, self.n)
        lists = {name: self._held(name, only) for name in dict.fromkeys([*expressions, *against])}
        pulled = {name: lists[name] for name in expressions}
        of = {name: (x, lists[x]) for name, x in zip(expressions, against, strict=True)} if against else None
        return (Overlay if overlay else Curves)(pulled, every, of, unit, xlabel, ylabel)

    def push(self, **values: Any) -> None:
        """Give every rank the same variables: `lab.push(lr=0.1)`; arrays, numbers, text, lists and dicts cross.

        Raises `LabError` for anything else.
        """
        for name, value in values.items():
            _crosses(name, value)
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
        _text('lab.late("dist.barrier()", rank=1)', code)
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

    def times(self, *expressions: str, warmup: int = 0) -> Times:
        """Draw the times that each rank has kept: a dot for each repetition, a row a rank, the medians marked.

        >>> lab.times("readings", warmup=3)       # a list of seconds on every rank
        >>> lab.times("flat", "one_by_one")       # lists, or what timed(...) returned, over one axis

        The first `warmup` repetitions are drawn hollow and left out of the median. Raises `LabError` where a rank has
        no such times.
        """
        from labkit.show.times import Times
        from labkit.theory import sharing

        if not expressions or not all(isinstance(expression, str) for expression in expressions):
            raise LabError(
                'Say in quotes which times to draw: lab.times("readings"), where every rank has a list of seconds.'
            )
        self._live()
        kept = {}
        for expression in expressions:
            pulled = self._console.call("labkit.rank.agent.readings", expression)
            _all_have(expression, {r: error for r, (error, _) in enumerate(pulled) if error})
            kept[expression] = [seconds for _, seconds in pulled]
        shared = sharing.said([m.processor for m in self._engines.members], self._engines.gpu.under_mps)
        return Times(kept, warmup, shared)

    def bars(self, *expressions: str, formula: Mapping[str, Any] | None = None) -> Bars:
        """Draw bytes by kind that every rank has in a dict: a stacked bar a rank, all expressions on one scale.

        >>> lab.bars("ddp", "zero1")                         # %%px: ddp = footprint(model, optimizer)
        >>> lab.bars("ddp", formula={"ddp": 16 * 12_444})    # bytes a rank, drawn as a dashed mark

        A formula's value is one number for all ranks, or a list with one for each. Raises `LabError` where a rank
        lacks the dict, or where it holds anything but numbers, 0 or more.
        """
        from labkit.show.bars import Bars

        if not expressions or not all(isinstance(expression, str) for expression in expressions):
            raise LabError(
                'Say in quotes what to draw: lab.bars("ddp"), where every rank has ddp = footprint(model, optimizer).'
            )
        return Bars({expression: self.pull(expression) for expression in expressions}, formula)

    def histogram(self, *expressions: str) -> Histogram:
        """Draw how many times each whole number occurs in the ranks' lists: a panel an expression, a bar a rank.

        >>> lab.histogram("staleness")
        >>> lab.histogram("free", "bounded")     # on one scale

        Ranks that lack the list are left out. Raises `LabError` where all do, or where it is no list of whole numbers.
        """
        from labkit.show.histogram import Histogram

        if not expressions or not all(isinstance(expression, str) for expression in expressions):
            raise LabError(
                'Say in quotes which numbers to count: lab.histogram("staleness"), where a rank has a list of them.'
            )
        return Histogram({expression: self._held(expression) for expression in expressions})

    def moves(self, window: str) -> Any:
        """Draw what the last cell put into the ranks' windows, added to them and got from them, and who took part.

        >>> lab.moves("window")           # %%px: window = open_window(4)
        >>> lab.moves("window").lost()    # an update that two ranks made of the same number

        Raises `LabError` where a rank has no such window.
        """
        _text('lab.moves("window")', window)
        self._live()
        told = self._console.call("labkit.rank.agent.pull", f"{window}.told()")
        if lack := {r: error for r, (error, _) in enumerate(told) if error}:
            raise LabError(
                f"{words.ranks(lack)}: {next(iter(lack.values()))}. lab.moves draws a window that every rank has open. "
                "In a %%px cell: from workbook.tools.rank.window import open_window; window = open_window(4)."
            )
        return content.tool("Moves")([value for _, value in told])

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
            _text('lab.check("ring_shift")', name)
        self._live()
        from labkit import task

        return task.check(self._console, name, means, seed, **options)

    def exercise(self, name: str) -> Task:
        """What an exercise asks, drawn on an example, how long it takes, and how you stand.

        >>> lab.exercise("ring_shift")
        >>> lab.exercise("ring_shift").hint()     # also .check(), .solution() once you have tried, .mine()
        """
        _text('lab.exercise("ring_shift")', name)
        self._live()
        from labkit.task import Task

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
        _text('lab.use("ring_shift")', *names)
        self._live()
        from labkit import task

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
        _text('lab.script("mean.py")', file)
        engines = self._live()
        from labkit import script

        return script.write(file, list(engines.cells), engines.n, engines.backend, cells, last, overwrite)

    def progress(self, lesson: str | None = None) -> ProgressTable:
        """The exercises of the workbook, or of a lesson ("06"), how you stand, and which one comes next."""
        from labkit import task

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
        global _current
        if self.running:
            self.running = False
            assert self._engines is not None
            self._engines.stop()
        if _current is self:
            _current = None

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
        descriptors.spare(**FILES)
        return self._engines

    def _held(self, expression: str, ranks: Sequence[int] | None = None) -> dict[int, Any]:
        """What each of these ranks has under an expression, without those that lack it."""
        self._live()
        answers = dict(enumerate(self._console.call("labkit.rank.agent.pull", expression)))
        asked = {r: answers[r] for r in (answers if ranks is None else ranks)}
        held = {r: value for r, (error, value) in asked.items() if not error}
        if not held:
            _all_have(expression, {r: error for r, (error, _) in asked.items()})
        return held

    def _records(self) -> list[dict[str, Any] | None]:
        """What each rank recorded of the last cell: {} where it had no part in it, None where it does not answer."""
        self._live()
        return self._console.records()

    def _drawn(self, *told: Any) -> None:
        """Show who waited for whom in a notebook, above the error that says it in a sentence."""
        if getattr(get_ipython(), "kernel", None) is not None:
            from labkit.show.waits import Waits

            Waits(*told).display()


def _choose(n: int | None, backend: str | None, gpus: int, failed: str = "") -> tuple[int, str, str]:
    """How many ranks, with which backend, and why, in a sentence; what has `failed` is why it is not another one."""
    have = words.count(gpus, "GPU") if gpus else "no GPU"
    if backend == "nccl" and gpus == 0:
        raise LabError(f"NCCL wants a GPU, and torch finds {have} here. Call start() for CPU ranks with Gloo.")
    asked = backend is not None
    backend = backend or ("nccl" if gpus == 1 or (n or 1) <= gpus else "gloo")
    if backend == "nccl":
        n = n or (gpus if gpus > 1 else 4)
        each = "each on a GPU of its own" if n <= gpus else f"which share {have} for teaching: {SLOW}"
        return n, backend, f"{words.count(n, 'rank')} with NCCL, {each}{f': torch finds {have} here' * (n <= gpus)}."
    why = "as you asked" if asked and gpus else f"torch finds {'only ' * (gpus > 0)}{have} here"
    return n or 4, backend, f"{words.count(n or 4, 'CPU rank')} with Gloo: {failed or why}."


def _choose_far(wish: Wish, far: Spread, gpus: list[int], failed: str) -> tuple[list[int], str, str]:
    """The host of each rank, the backend, and how many ranks on what, in words."""
    at = far.seats(gpus, wish.n)
    each = [gpus[h] for h in sorted(set(at))]
    enough = all(at.count(h) <= gpus[h] for h in at)
    if wish.backend == "nccl" and not all(each):
        have = words.listed([f"{g} on host {h}" for h, g in enumerate(gpus)])
        raise LabError(
            f"NCCL wants a GPU on each host, and torch finds {have}. Leave the backend out for CPU ranks with Gloo."
        )
    backend = wish.backend or ("nccl" if enough or set(each) == {1} else "gloo")
    if not (backend == "nccl" and enough) and (most := max(map(at.count, at))) > MOST:
        raise LabError(f"{most} ranks on one host are too many. Choose {MOST} or fewer, such as per_node=2.")
    kind = "rank" if backend == "nccl" else "CPU rank"
    own = "each on a GPU of its own" if enough else f"which share GPUs for teaching ({SLOW})"
    how = f"NCCL, {own}" if backend == "nccl" else "Gloo"
    hosts = words.count(len(set(at)), "host")
    because = f" ({failed})" if failed else ""
    return at, backend, f"{words.count(len(at), kind)} with {how}{because}, on {hosts} {far.by}:"


def _where(engines: Engines) -> str:
    """Which ranks are on which host, and what other people of the network could see."""
    hosts = words.alike({m.rank: m.host for m in engines.members})
    each = words.listed([f"{words.ranks(rs)} on {host}" for host, rs in hosts.items()])
    return (
        f"{each}.\nThe notebook's messages to the ranks are encrypted. What the ranks send one another is not, so use "
        "a network that you trust."
    )


def _ranks(ranks: int | Sequence[int] | None, n: int) -> list[int]:
    chosen = list(range(n)) if ranks is None else [ranks] if isinstance(ranks, int) else list(ranks)
    if not chosen or not all(isinstance(r, int) and 0 <= r < n for r in chosen):
        raise LabError(f"ranks={ranks!r}: this lab has the ranks 0 to {n - 1}. Choose among them.")
    return chosen


def _text(like: str, *given: object) -> None:
    """Refuse a value of the notebook's where text is wanted that the ranks read, or a name; `like` is such a call."""
    for value in given:
        if not isinstance(value, str):
            what = f"{like.partition('(')[0]} takes text, and was given a value ({type(value).__name__})"
            raise LabError(f"{what}. Put quotes around it, as in {like}.")


def _against(expressions: Sequence[str], every: int, over: str | Sequence[str] | None, unit: str) -> list[str]:
    """For each expression the name of the list to draw it against; none where that is steps."""
    if over is None:
        if unit:
            raise LabError(f'unit={unit!r} is that of a list to draw against. Name it: over="seconds", unit="s".')
        return []
    names = [over] * len(expressions) if isinstance(over, str) else list(over) if isinstance(over, Sequence) else [over]
    if not all(isinstance(name, str) for name in names):
        raise LabError('over= takes the name of a list on the ranks in quotes, such as over="seconds".')
    if len(names) != len(expressions):
        raise LabError(
            f"over= names {words.count(len(names), 'list')} for {words.count(len(expressions), 'expression')}. "
            "Give one name for all of them, or one for each."
        )
    if every != 1:
        raise LabError(f"every={every} counts steps, and over= draws against something else. Leave one of them out.")
    return names


def _crosses(name: str, value: Any) -> None:
    """Refuse what would be another thing on the ranks, or nothing at all."""
    if isinstance(value, (list, tuple, dict)):
        for entry in [*value, *value.values()] if isinstance(value, dict) else value:
            _crosses(name, entry)
    elif not isinstance(value, (type(None), bool, int, float, complex, str, bytes)) and (
        type(value).__module__ != "numpy" or value.dtype == object
    ):
        raise LabError(
            f"{name}: a {type(value).__name__} cannot cross to the ranks. Push numbers, text or arrays, "
            "or make it in a %%px cell."
        )


def _all_have(expression: str, errors: dict[int, str]) -> None:
    if errors:
        raise LabError(
            f"{words.ranks(errors)}: {next(iter(errors.values()))}. "
            f"Make {expression!r} on every rank in a %%px cell first; lab.look({expression!r}) shows who has it."
        )


def _mpi(code: str, n: int) -> None:
    """Run a cell on MPI ranks of its own."""
    content.tool("mpi")(code, n)


def _default_launcher() -> str:
    """Fork on Linux; elsewhere a fork after imports is unsafe, so engines are started one by one."""
    return "labkit" if sys.platform == "linux" else "local"


def _attached(address: str, timeout: float, choose: Choose) -> Engines | None:
    """Fresh ranks in a shared cluster; None where it no longer answers, so that a cluster of one's own serves."""
    try:
        shared = Processes.attach(address)
    except (OSError, LabError, ValueError, KeyError):  # gone, or no address at all
        return None
    return Engines.begin(timeout, shared, choose)


def _progress() -> tuple[Callable[[str], None], Callable[[], None]]:
    """A line that says what start() does, and how to take it away again; nothing where nobody looks."""
    shell = get_ipython()
    if shell is None or getattr(shell, "kernel", None) is None or os.environ.get(QUIET) is not None:
        return (lambda line: None), (lambda: None)
    from IPython.display import clear_output

    def say(line: str) -> None:
        clear_output(wait=True)
        print(line)

    return say, clear_output
