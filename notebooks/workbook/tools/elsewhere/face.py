"""`Elsewhere("tensorflow")`: the ten lines in another system's words, run where it is installed, else as recorded."""

from __future__ import annotations

import time

from workbook.tools.elsewhere import programs as elsewhere
from workbook.tools.elsewhere import ten_lines
from workbook.tools.elsewhere.show import TenLines


class Elsewhere(TenLines):
    """One training step and every call once, by another system, on ranks of its own.

    >>> Elsewhere("mpi").told.wrong
    []

    TensorFlow and DeepSpeed run in environments of their own, `.venv-tf` and `.venv-ds`, in this folder or one above.
    Where there is none, what the program printed on a day is shown, with the command that makes the environment.
    TensorFlow's workers listen on all network interfaces of this host while they run.

    Args:
        name: "torch", "mpi", "tensorflow" or "deepspeed".
        recorded: show the record even where the system is installed.

    Raises `LabError` for another name, and where the program fails.
    """

    def __init__(self, name: str, recorded: bool = False) -> None:
        system = ten_lines.find(name)
        source = elsewhere.source(system)
        if recorded or not elsewhere.python(system):
            super().__init__(system, source, elsewhere.record(system))
            return
        began = time.monotonic()
        told = ten_lines.read(elsewhere.run(system))
        super().__init__(system, source, told, time.monotonic() - began)
