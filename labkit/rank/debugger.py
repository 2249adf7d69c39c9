"""Let a rank stand at Python's own debugger: what it says goes to the notebook, what is typed there comes to it.

The cell's request names the ranks that stop (`%%px --debug 1`); the agent carries the lines, also while the rank
stands at its prompt.
"""

from __future__ import annotations

import pdb
import sys
import threading
from queue import SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any

from labkit.floor.errors import LabError
from labkit.floor.source_lines import is_cell
from labkit.rank import group, patience
from labkit.rank.frames import callers, is_learners

if TYPE_CHECKING:
    from pdb import Pdb
else:  # ipykernel has put a subclass in its place, with colours and a signal handler
    Pdb = next(kind for kind in pdb.Pdb.__mro__ if kind.__module__ == "pdb")

REQUEST = "labkit_debug"  # in the metadata of a cell's request: which ranks stop, and whether at its first line
PLAIN = (
    "breakpoint() stops a rank in a cell that begins with %%px --debug, and this one does not. "
    "Write %%px --debug 1, with the rank that is to stop, or take breakpoint() out."
)
BESIDE = "breakpoint() stops what a cell itself runs, not a thread beside it. Take it out of the thread's function."


class Wire:
    """The debugger's stdin and stdout: text to the notebook, lines from there."""

    def __init__(self) -> None:
        self.stands = self.left = False
        self.stop = 0  # counts the places where the rank has stopped
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._text = ""

    def write(self, text: str) -> int:
        self._text += text
        return len(text)

    def flush(self) -> None:
        """Do nothing: the notebook asks for the text."""

    def readline(self) -> str:
        """Stand at the prompt until a line comes; an interrupt is raised here."""
        self.stands = True
        try:
            return self._lines.get()
        finally:
            self.stands = False

    def put(self, known: int, *lines: str) -> dict[str, Any]:
        """Hand over lines that were typed, and tell whether the rank stands now, and what it has said.

        That is without the `known` first characters: where an answer is lost, the next one has all of it. The last line
        is the prompt, where the rank stands. `left` is whether it was told to quit.
        """
        for line in lines:
            self.stands = False  # before it is taken: until the next prompt the rank does not stand
            self._lines.put(line)
        stands = self.stands  # asked first: all that was said before is there
        said = self._text[known:]
        said = said if stands else said[: said.rfind("\n") + 1]
        return {"stands": stands, "stop": self.stop, "said": said, "left": self.left}


class Prompt(Pdb):
    """Python's debugger in the learner's own code: it steps over IPython, torch and the lab."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(stdin=wire, stdout=wire, nosigint=True, readrc=False)  # type: ignore[arg-type]
        self.wire = wire

    # -- where it stops ---------------------------------------------------------------------------------------------

    def begin(self, frame: FrameType | None) -> None:
        """Stop from now on at each line of the learner's."""
        self.reset()
        for each in callers(frame):
            if is_learners(each):
                each.f_trace = self.trace_dispatch
            self.botframe = each
        self.set_step()

    def at_first_line(self) -> None:
        """Stop where the learner's code begins."""
        self.begin(sys._getframe())
        sys.settrace(self.trace_dispatch)

    def here(self, frame: FrameType) -> None:
        """Stop in this frame, in the line of its breakpoint()."""
        if sys.gettrace() == self.trace_dispatch and self.stopframe in (None, frame):
            return  # it was stepped on, and the next line is stopped at anyway
        sys.settrace(None)
        self.begin(frame)
        self.interaction(frame, None)
        if self.breaks or (self.stopframe, self.stoplineno) != (self.botframe, -1):  # told to go on to an end
            sys.settrace(self.trace_dispatch)

    def stop_here(self, frame: FrameType) -> bool:
        return is_learners(frame) and super().stop_here(frame)

    def dispatch_return(self, frame: FrameType, arg: Any) -> Any:
        if frame is self.stopframe and _is_statement(frame):  # bdb would pass over the end of one that awaits
            self.set_step()
            return self.trace_dispatch
        return super().dispatch_return(frame, arg)

    def user_call(self, frame: FrameType, argument_list: Any) -> None:
        if not _is_statement(frame):
            super().user_call(frame, argument_list)

    def user_return(self, frame: FrameType, return_value: Any) -> None:
        if _is_statement(frame):  # IPython runs a cell's statements one by one
            self.set_step()
        else:
            super().user_return(frame, return_value)

    def user_exception(self, frame: FrameType, exc_info: Any) -> None:
        if issubclass(exc_info[0], KeyboardInterrupt):
            self.set_continue()
        else:
            super().user_exception(frame, exc_info)

    def interaction(self, frame: FrameType | None, *told: Any) -> None:
        if group.aborted():  # the lab frees this rank
            self.set_continue()
            return
        self.wire.stop += 1
        super().interaction(frame, *told)

    def _cmdloop(self) -> None:
        self.cmdloop()  # pdb would hear an interrupt at its prompt, and ask again

    # -- what it shows ------------------------------------------------------------------------------------------------

    def get_stack(self, f: FrameType | None, t: Any) -> tuple[list[tuple[FrameType, int]], int]:
        stack, at = super().get_stack(f, t)
        mine = [entry for entry in stack if is_learners(entry[0])]
        return mine, mine.index(stack[at]) if stack[at] in mine else len(mine) - 1

    def format_stack_entry(self, frame_lineno: tuple[FrameType, int], lprefix: str = ": ") -> str:
        frame, line = frame_lineno
        said = super().format_stack_entry(frame_lineno, lprefix)
        head = f"{self.canonic(frame.f_code.co_filename)}({line})"
        if not is_cell(frame.f_code.co_filename) or not said.startswith(head):
            return said
        earlier = frame.f_code.co_filename != self.stack[0][0].f_code.co_filename
        function = f"{frame.f_code.co_name}()"
        rest = said.removeprefix(head).removeprefix(function)
        return f"line {line}{' of an earlier cell' * earlier}{f', in {function}' * (not _is_statement(frame))}{rest}"

    # -- commands that would end more than the cell, or ask elsewhere -------------------------------------------------

    def do_quit(self, arg: str) -> bool:
        """Leave the debugger and end the cell: the notebook frees all ranks."""
        self.wire.left = True
        return False

    do_q = do_exit = do_EOF = do_quit

    def do_run(self, arg: str) -> None:
        """Refuse to run a program anew, which a rank is not."""
        self.error("a cell is not run anew from its prompt: write q, then run it again")

    do_restart = do_run

    def do_interact(self, arg: str) -> None:
        """Refuse pdb's interpreter, which would read what is typed elsewhere."""
        self.error("write the Python code at this prompt, one line at a time")


_prompt = Prompt(Wire())


def _is_statement(frame: FrameType) -> bool:
    """Tell whether a frame runs a statement of a cell, not a function."""
    return is_cell(frame.f_code.co_filename) and frame.f_locals is frame.f_globals


def stands() -> bool:
    """Tell whether the main thread stands at the prompt."""
    return _prompt.wire.stands


def told(known: int, *lines: str) -> dict[str, Any]:
    """Take lines that were typed, and tell what has become of it: see `Wire.put`."""
    return _prompt.wire.put(known, *lines)


def install(shell: Any, rank: int) -> None:
    """Put what a rank has to do at breakpoint() in the place of what would wait for ever, once a process."""
    if getattr(sys.breakpointhook, "labs", False):
        return

    def asked() -> dict[str, Any] | None:
        """Read what the request of the cell or call that runs says of debugging."""
        return (shell.kernel.get_parent("shell") or {}).get("metadata", {}).get(REQUEST)

    def breakpointhook(*_: Any, **__: Any) -> None:
        wanted = asked()
        if wanted is None:
            raise LabError(PLAIN)
        if rank not in wanted["ranks"]:
            return
        if threading.current_thread() is not threading.main_thread():
            raise LabError(BESIDE)
        _prompt.here(sys._getframe(1))

    def begin(_: Any = None) -> None:
        global _prompt
        if (wanted := asked()) is not None:
            patience.begin()
            _prompt = Prompt(Wire())
            if wanted["first"] and rank in wanted["ranks"]:
                _prompt.at_first_line()

    def end(_: Any = None) -> None:
        if asked() is not None:
            sys.settrace(None)
            _prompt.clear_all_breaks()
            patience.end()

    breakpointhook.labs = True  # type: ignore[attr-defined]
    sys.breakpointhook = breakpointhook
    pdb.set_trace = breakpointhook
    shell.events.register("pre_run_cell", begin)
    shell.events.register("post_run_cell", end)
