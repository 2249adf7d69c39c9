"""Run what a widget starts between two cells, when it may use the ranks.

JupyterLab has a thread of the kernel (a subshell) handle what widgets tell it, while a cell runs in the main one. Two
cells never run at once; code that a slider starts must not either, or it would change what the cell computes with.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from IPython.core.getipython import get_ipython

from labkit.floor import kernel_internals, time_limits


def after_the_cell(action: Callable[[], object]) -> None:
    """Call it as cells are run: on the kernel's main thread, once no cell runs, and where Stop reaches it.

    Without a kernel it is called at once.
    """
    kernel = _kernel()
    loop = getattr(kernel, "io_loop", None)
    if loop is None:
        action()
        return

    def turn() -> None:
        if kernel_internals.cell_awaits(kernel):
            loop.call_later(time_limits.SLIDER_RESTS, turn)
            return
        kernel.pre_handler_hook()  # as ipykernel does around a cell: Stop is heard from here on
        try:
            action()
        except KeyboardInterrupt:  # beside the learner's code; uncaught, it would end the kernel
            pass
        finally:
            kernel.post_handler_hook()

    loop.add_callback(loop.call_later, time_limits.SLIDER_RESTS, turn)  # add_callback alone may be called in any thread


def in_turn() -> bool:
    """Tell whether this is the thread that cells run on, so that what runs here runs beside none."""
    return _kernel() is None or threading.current_thread() is threading.main_thread()


def _kernel() -> Any:
    return getattr(get_ipython(), "kernel", None)
