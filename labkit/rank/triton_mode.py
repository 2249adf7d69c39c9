"""Have Triton compile kernels on ranks that have a GPU, and interpret them on the others. Imports no Triton."""

from __future__ import annotations

import os
import sys

INTERPRET = "TRITON_INTERPRET"


def choose(interpret: bool) -> None:
    """Set how Triton takes kernels from now on; a cell that imports it may be the first to do so.

    A function that it has made in one way cannot be used in the other, its own library's too: where torch has imported
    it before, it is imported again when it is next asked for, which takes 40 ms.
    """
    if interpret == (os.environ.get(INTERPRET) == "1"):
        return
    if interpret:
        os.environ[INTERPRET] = "1"
    else:
        del os.environ[INTERPRET]
    for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
        if not name.startswith("triton._C"):  # what is compiled is the same in both
            del sys.modules[name]
