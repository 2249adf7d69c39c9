"""Handle the Stop button: while the lab is at work a press is noted and looked for, and tears nothing in two.

Stop is SIGINT. Python would raise KeyboardInterrupt wherever the main thread happens to be: between a request and
its answer, in the middle of healing, or in the kernel's own code, where the cell then never ends.

    with STOP:             # or @STOP on a function
        while not done:
            if STOP.taken(): …

The block ends as a StoppedError where Stop was pressed in it and nothing in it has taken the press.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Literal, ParamSpec, TypeVar

from IPython.core.getipython import get_ipython

from labkit.floor import source_lines
from labkit.floor.errors import StoppedError
from labkit.floor.source_lines import is_cell

IMPORT = "<frozen importlib._bootstrap>"
# What a press does to something that runs: end it; end it and stand for what comes next as well; or stand alone.
Press = Literal["ends it", "ends it and more", "waits"]
P = ParamSpec("P")
T = TypeVar("T")


class Stop:
    """The button; there is one, as there is one main thread. In any other thread it is never pressed."""

    def __init__(self) -> None:
        self.presses = 0  # since the outermost block began
        self._taken = False  # they have been acted on
        self._early = 0  # presses after a cell's request came and before its code began
        self._depth = 0
        self._before: Any = None
        self._asks = False  # the learner is asked for a line, which waits until KeyboardInterrupt ends it
        self._called = False  # away from there, and not by a press

    @property
    def pressed(self) -> int:
        """How many times Stop was pressed since the block began."""
        return self.presses if _in_main_thread() else 0

    @property
    def wished(self) -> bool:
        """Whether Stop was pressed and the press has not been taken yet."""
        return self.pressed > 0 and not self._taken

    def taken(self) -> bool:
        """Tell whether Stop was pressed and the press has not been taken yet; the caller takes it, and acts on it."""
        wished = self.wished
        self._taken |= wished
        return wished

    def press(self, signum: int, frame: FrameType | None) -> None:
        """Handle SIGINT: note it in a block, raise it in the learner's code; else it has come too late."""
        if self._depth:
            called, self._called = self._called, False
            self.presses += not called
            if self._asks:
                self._asks = False
                raise KeyboardInterrupt
        elif _learners(frame):
            importer = _importer(frame)
            source_lines.interrupt(importer or frame, returns=importer is not None)
        else:
            self._early += 1

    def answer(self, ask: Callable[[], str]) -> str | None:
        """Return what `ask` returns, which waits for the learner; None after Stop, or once `call_away` was called."""
        line = None
        self._called = False
        try:
            self._asks = True
            line = None if self.wished else ask()
            self._asks = False
        except KeyboardInterrupt:
            return None
        except BaseException:
            self._asks = False
            raise
        return line

    def call_away(self) -> None:
        """From another thread: let the main thread ask no longer."""
        if self._asks:
            self._called = True
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def __enter__(self) -> Stop:
        if _in_main_thread():
            if not self._depth:
                self._before = signal.signal(signal.SIGINT, self.press)
                self.presses, self._early, self._taken = self._early, 0, False
            self._depth += 1  # from here on a press is noted; one that came before is raised, and nothing has begun
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not _in_main_thread():
            return
        self._depth -= 1  # a press that comes from here on is raised
        if not self._depth:
            if self._before is not None:
                signal.signal(signal.SIGINT, self._before)
            wished, self.presses = self.wished, 0
            if wished and kind is None:
                raise StoppedError("You pressed Stop when the ranks had finished.")

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Run a function in a block."""

        @functools.wraps(function)
        def stoppable(*args: P.args, **kwargs: P.kwargs) -> T:
            with self:
                return function(*args, **kwargs)

        return stoppable

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Run a block that no press tears in two: where Stop was pressed, KeyboardInterrupt is raised behind it."""
        with self:
            yield
            wished = self.taken()
        if wished:
            raise KeyboardInterrupt

    def watch(self, shell: Any) -> None:
        """Take the button from a notebook's kernel, which loses a cell's reply where a press hits its own code."""
        kernel = getattr(shell, "kernel", None)
        if kernel is None:
            return

        def pre_handler_hook() -> None:
            self._early = 0
            with contextlib.suppress(ValueError):  # not in the main thread
                kernel.saved_sigint_handler = signal.signal(signal.SIGINT, self.press)

        kernel.pre_handler_hook = pre_handler_hook
        _show_no_press(shell)
        if _in_main_thread() and not self._depth:
            signal.signal(signal.SIGINT, self.press)  # for the rest of this cell


def _show_no_press(shell: Any) -> None:
    """Let the traceback of an interrupt end where Stop was pressed, and not in what heard it."""
    if getattr(shell.showtraceback, "no_press", False):
        return
    show = shell.showtraceback

    def showtraceback(*args: Any, **kwargs: Any) -> Any:
        error = sys.exc_info()[1]
        entry = error.__traceback__ if isinstance(error, KeyboardInterrupt) else None
        while entry is not None:
            below = entry.tb_next
            if below is not None and below.tb_frame.f_code in HEARD:
                entry.tb_next = below = None
            entry = below
        return show(*args, **kwargs)

    showtraceback.no_press = True  # type: ignore[attr-defined]
    shell.showtraceback = showtraceback


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _learners(frame: FrameType | None) -> bool:
    """Tell whether code of the learner runs: a cell's, or what it called. Outside IPython all code is.

    So is IPython between two statements of a cell: it takes an interrupt there for the next one's, once its `try`
    has made `to_run`, and while it does not handle another.
    """
    shell: Any = get_ipython()
    while shell is not None and frame is not None and frame.f_globals is not shell.user_ns:
        if frame.f_code is shell.run_code.__code__:
            return False
        if frame.f_code is shell.run_ast_nodes.__code__:
            return "to_run" in frame.f_locals and sys.exc_info()[0] is None
        frame = frame.f_back
    return shell is None or frame is not None


def _importer(frame: FrameType | None) -> FrameType | None:
    """Return the frame that imports a library, if one is being imported here: broken off, it would stay half imported.

    A module of the learner's own is broken off like a cell: it may never end.
    """
    importer, imports = None, False
    while frame is not None:
        file = frame.f_code.co_filename
        if file == IMPORT:
            imports = True
        elif imports:
            importer, imports = frame, False
        if is_cell(file) or not source_lines.LIBRARY.search(file):
            break
        frame = frame.f_back
    return importer


STOP = Stop()
HEARD = (Stop.press.__code__, *source_lines.RAISING)
