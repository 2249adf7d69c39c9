"""Give a notebook its magics: `%%px`, the standard one by name and options, on ranks; `%%flow`, `%%late`, `%%mpi`."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable
from typing import Any, NoReturn

from ipyparallel.client.magics import ParallelMagics
from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, magics_class
from IPython.core.magic_arguments import parse_argstring

from labkit.cluster.console import Console
from labkit.cluster.debugger import Debugger
from labkit.cluster.stop_button import STOP
from labkit.floor import kernel_internals
from labkit.floor.errors import LabError
from labkit.floor.words import ranks
from labkit.theory.cells import makes_group

OPTIONS = re.compile(r"\s--(?:(means)[ =](\w+)|(root)[ =](\d+)|(predict))(?=\s|$)")

DEBUG = re.compile(r"(?:^|\s)--debug(?:[ =]+(?!-)(\S+))?(?=\s|$)")

TWO_NAMES = re.compile(r"(?!not )[A-Za-z_]\w* +[A-Za-z_]\w*")


class LabMagics(ParallelMagics):
    """ipyparallel's magics over a lab's console; `--noblock` gives ipyparallel's own AsyncResult."""

    def __init__(self, shell: Any, console: Console) -> None:
        self.console = console
        self._debugger: Debugger | None = None  # of the cell that begins
        everyone = range(console.engines.n)
        super().__init__(shell, console.engines.client[:])
        self.view.block = True
        self.view.targets = list(everyone)  # ranks: the engine behind a rank changes when it is healed
        self.magics["line"]["pxresult"] = self.magics["line"]["result"] = self.result
        self.magics["cell"]["px"] = self._numbered(self.cell_px)
        self.magics["line"]["px"] = self.line_px

    def _numbered(self, cell_px: Callable[[str, str], Any]) -> Callable[[str, str], Any]:
        """Let a comment stand for the magic's line, so that a traceback's line numbers are the editor's."""

        @functools.wraps(cell_px)
        def numbered(line: str, cell: str) -> Any:
            if not cell.lstrip().startswith("%%"):  # a cell magic for the ranks must stay their first line
                cell = _under("px", line, cell)
            stops, line = _debug(line)
            args = parse_argstring(self.cell_px, line)
            if stops is not None:
                return self._debugged(stops, line, cell, args)
            if not args.local:
                return cell_px(line, cell)
            result = cell_px(line.replace("--local", "--noblock"), cell)
            here = self.shell.run_cell(cell)
            if args.block is False:
                return result
            with STOP:
                STOP.presses += isinstance(here.error_in_exec, KeyboardInterrupt)  # which IPython has shown by now
                self.console.collect(result, by_rank=args.groupby == "engine")
            return None

        return numbered

    def _debugged(self, stops: str, line: str, cell: str, args: Any) -> Any:
        """Run a cell in which the ranks stop that `--debug` names, where they can be asked for what is typed."""
        if not stops:
            raise UsageError("Say which rank is to stop: %%px --debug 1. Several are --debug 0,2.")
        if args.block is False or args.local:
            option = "--local" if args.local else "--noblock"
            raise LabError(f"%%px --debug waits for what you type: leave {option} out, or take lab.why() and print().")
        kernel = getattr(self.shell, "kernel", None)
        if kernel is not None and not kernel_internals.takes_input(kernel):
            raise LabError(
                "%%px --debug asks for commands in the cell, and none can be typed where a program runs the notebook. "
                "Run the cell in JupyterLab, or take --debug out and use print() and lab.why()."
            )
        chosen = self._eval_target_str(stops, "--debug")
        ran = self._eval_target_str(args.targets) if args.targets is not None else self.view.targets
        if absent := set(chosen) - set(ran):
            raise UsageError(f"--debug {stops}: {ranks(absent)} would not run this cell. Choose among its --targets.")
        self._debugger = Debugger(chosen)
        try:
            return self.cell_px(line, cell)
        finally:
            self._debugger = None

    def line_px(self, line: str = "") -> None:
        """Run the rest of its line on the ranks."""
        if not line.strip():
            raise UsageError(
                "%px runs the rest of its line, and there is none. For a whole cell write %%px, with two %."
            )
        self.parallel_execute(line)

    def _eval_target_str(self, ts: str, option: str = "--targets") -> list[int]:
        """Read an option which names ranks and not engines: 2, 0,3, [0,3], 1:3, ::2 or all."""
        n = self.console.engines.n
        try:
            if ":" in ts:
                parts = [int(p) if p.strip() else None for p in ts.strip("[]").split(":")]
                ranks = list(range(n))[slice(*parts)]
            elif ts.strip("'\"") == "all":
                ranks = list(range(n))
            else:
                value = ast.literal_eval(ts)
                ranks = [value] if isinstance(value, int) else [int(r) for r in value]
        except (ValueError, SyntaxError, TypeError):
            raise UsageError(f"{option} {ts}: give ranks, such as 2, 0,3, 1:3 or all.") from None
        bad = [r for r in ranks if not -n <= r < n]
        if bad or not ranks:
            raise UsageError(f"{option} {ts}: this lab has the ranks 0 to {n - 1}. Choose among them.")
        return sorted({r % n for r in ranks})

    def result(self, line: str = "") -> None:
        """Show what the last `%%px --noblock` cell printed and returned, in rank order."""
        if self.last_result is None:
            raise UsageError("No %%px cell has run yet, so there is no result to show.")
        self.console.collect(self.last_result)

    def parallel_execute(
        self,
        cell: str,
        block: bool | None = None,
        groupby: str = "type",
        save_name: str | None = None,
        stream_output: bool | None = None,
        progress_after: float | None = None,
        signal_on_interrupt: str | int | None = None,
    ) -> Any:
        with STOP:
            debugger = self._debugger
            told = debugger.request(cell) if debugger else None
            result = self.last_result = self.console.send(
                cell, self.view.targets, makes_group=makes_group(cell), metadata=told
            )
            if save_name:
                self.shell.user_ns[save_name] = result
            if not (self.view.block if block is None else block) and not STOP.wished:
                return result
            wait = self.progress_after_seconds if progress_after is None else progress_after
            how = (0.0 if stream_output else wait, groupby == "engine", signal_on_interrupt)
            if debugger is None:
                self.console.collect(result, *how)
            else:
                self.console.collect(result, -1.0, *how[1:], talk=debugger.talk)
            return None


@magics_class
class PictureMagics(Magics):
    """The magics that run a cell and show what it did, over the lab's own `flow`, `late` and MPI.

    A comment stands for the magic's line in what they run, so that a traceback's line numbers are the editor's.
    """

    def __init__(self, shell: Any, *shows: Callable[..., Any]) -> None:
        super().__init__(shell)
        self._flow, self._late, self._mpi = shows

    @cell_magic
    def flow(self, line: str, cell: str) -> Any:
        """Run a cell on all ranks as %%px does, then draw what became of a value.

        %%flow x                             x before and after
        %%flow x -> y                        x before, y after
        %%flow x -> y --means all_reduce     with what an all-reduce would have left beside it
        %%flow x --means reduce --root 2     the same for a primitive with a root
        %%flow x --predict                   x before; you fill in what each rank holds after, then see it
        """
        given = {m[0] or m[2] or m[4]: m[1] or m[3] for m in OPTIONS.findall(f" {line}")}
        what = OPTIONS.sub("", f" {line}")
        x, arrow, y = (part.strip().strip("\"'") for part in what.partition("->"))
        if not x or bool(arrow) != bool(y) or "--" in what or TWO_NAMES.fullmatch(x):
            raise UsageError(
                "Say which value to follow: %%flow x, or %%flow x -> y --means all_reduce --root 0 --predict."
            )
        code, root = _under("flow", line, cell), int(given.get("root", 0))
        return self._flow(code, x, y or x, given.get("means"), root, "predict" in given)

    @cell_magic
    def late(self, line: str, cell: str) -> Any:
        """Run a cell's statements one by one, a rank late to each, and draw who waits for it.

        %%late 1                             rank 1 comes a quarter of a second after the others
        """
        if not line.strip().isdigit():
            raise UsageError("Say which rank comes late: %%late 1.")
        return self._late(_under("late", line, cell), int(line))

    @cell_magic
    def mpi(self, line: str, cell: str) -> None:
        """Run a cell on MPI ranks of its own, where MPI is installed; what they print comes in the order of the ranks.

        %%mpi 4                              on four ranks

        They are not the lab's ranks, and know nothing of other cells.
        """
        if not line.strip().isdigit() or not 1 <= int(line) <= 16:
            raise UsageError("Say how many MPI ranks should run the cell, 1 to 16: %%mpi 4.")
        self._mpi(_under("mpi", line, cell), int(line))


def register(shell: Any, console: Console, *shows: Callable[..., Any]) -> LabMagics:
    """Give a notebook the magics of a lab, and take those of a lab before: IPython would keep both."""
    kept = getattr(shell, "configurables", [])
    kept[:] = [its for its in kept if not isinstance(its, (LabMagics, PictureMagics))]
    magics = LabMagics(shell, console)
    for name in ("flow", "late"):  # no_ranks has given them a line magic too
        shell.register_magic_function(functools.partial(_whole_cell, name), "line", name)
    shell.register_magics(magics, PictureMagics(shell, *shows))
    return magics


def _whole_cell(name: str, line: str = "") -> NoReturn:
    raise UsageError(f"%{name} stands over a whole cell: write %%{name} {line}".rstrip() + ", with two %.")


def _debug(line: str) -> tuple[str | None, str]:
    """Take `--debug` out of a line: the ranks that it names, "" for none, None where it does not stand there."""
    found = DEBUG.search(line)
    return (None, line) if found is None else (found[1] or "", DEBUG.sub(" ", line).strip())


def _under(magic: str, line: str, cell: str) -> str:
    return f"# %%{magic} {line}".rstrip() + "\n" + cell
