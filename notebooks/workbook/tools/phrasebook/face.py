"""`Phrasebook("torch", "nccl")`: each call in the words of these systems, what was run, and the traps."""

from __future__ import annotations

from labkit.floor.errors import LabError
from workbook.tools.elsewhere import programs as elsewhere
from workbook.tools.elsewhere import ten_lines
from workbook.tools.phrasebook import phrases as phrasebook
from workbook.tools.phrasebook.show import Phrases


class Phrasebook(Phrases):
    """A row a call, a column a system; without a name all eight.

    >>> Phrasebook("torch", "nccl", calls=["all_reduce"]).ran("all_reduce", phrasebook.find("torch"))
    True

    Args:
        systems: among torch, mpi, mpi4py, nccl, rccl, horovod, tensorflow, deepspeed.
        calls: only these rows, such as ["all_gather", "group"].

    Raises `LabError` for a system or a call that is not in it.
    """

    def __init__(self, *systems: str, calls: list[str] | None = None) -> None:
        for call in calls or []:
            if call not in phrasebook.CALLS:
                raise LabError(f"{call!r} is not in the phrasebook. Choose among {', '.join(phrasebook.CALLS)}.")
        programs = {
            name: ((elsewhere.SCRIPTS / system.program).read_text(encoding="utf-8"), elsewhere.record(system))
            for name, system in ten_lines.SYSTEMS.items()
        }
        tongues = [phrasebook.find(name) for name in systems or phrasebook.TONGUES]
        super().__init__(tongues, calls or list(phrasebook.CALLS), programs)
