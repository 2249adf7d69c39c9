"""One small program in several systems' words: what each is called, what it must print, and what it did print.

The programs are `notebooks/scripts/ten_lines_*.py`. Each runs one data-parallel training step and then every call
once, on the same numbers; rank 0 prints a line for each call. What was once printed is kept beside the program, as
`ten_lines_*.txt`, for readers who do not have that system. Imports numpy and labkit's theory only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.floor.errors import LabError
from labkit.theory import collectives

N = 4  # ranks of the records


@dataclass(frozen=True)
class System:
    """A system that the program is written in.

    Args:
        name: as `Elsewhere`, the names of the files and the package that is imported have it: "tensorflow".
        title: the name in sentences.
        package: what it needs beside the workbook; "" where the lab's own environment has it.
        folder: of an environment of its own, made beside the notebooks or above them.
    """

    name: str
    title: str
    package: str = ""
    folder: str = ""

    @property
    def program(self) -> str:
        """The name of its file."""
        return f"ten_lines_{self.name}.py"

    @property
    def record(self) -> str:
        """The name of the file that keeps what it printed."""
        return f"ten_lines_{self.name}.txt"

    @property
    def install(self) -> str:
        """The command that makes an environment for it."""
        if not self.folder:
            return f"pip install {self.package}"
        return f"python -m venv {self.folder} && {self.folder}/bin/pip install {self.package}"


SYSTEMS = {
    s.name: s
    for s in (
        System("torch", "torch.distributed"),
        System("mpi", "MPI, from Python with mpi4py", "mpi4py mpich"),
        System("tensorflow", "TensorFlow", "tensorflow-cpu==2.21.0", ".venv-tf"),
        System("deepspeed", "DeepSpeed", "torch==2.13.0 deepspeed==0.19.8 ninja", ".venv-ds"),
    )
}


def find(name: str) -> System:
    """Return the system of this name. Raises `LabError`, which lists the names, where there is none."""
    if name in SYSTEMS:
        return SYSTEMS[name]
    raise LabError(f"There is no program for {name!r}. Choose one of {', '.join(SYSTEMS)}.")


def expected(n: int) -> dict[str, list[list[float] | None]]:
    """Return what each line must say: for each call what every rank holds, None where nothing is promised.

    Rank r brings r + 1, or the n parts 10 (r + 1), 10 (r + 1) + 1 and so on. The step's weights begin as 1 and 2, on
    rank 0 alone; rank r has the row (r + 1, 2) with the target 10, and the learning rate is 1/16.

    >>> expected(2)["all_reduce"], expected(2)["gather"]
    ([[3.0], [3.0]], [[1.0, 2.0], None])
    """
    mine = [[r + 1.0] for r in range(n)]
    parts = [[10.0 * (r + 1) + i for i in range(n)] for r in range(n)]
    total, everyones = [sum(x[0] for x in mine)], [x[0] for x in mine]
    nothing: list[list[float] | None] = [None] * (n - 1)
    gradients = [[2 * (r + 1 + 4 - 10.0) * x for x in (r + 1.0, 2.0)] for r in range(n)]
    w = [w - sum(g[i] for g in gradients) / n / 16 for i, w in enumerate((1.0, 2.0))]
    return {
        "step": [w] * n,
        "broadcast": [mine[0]] * n,
        "reduce": [total, *nothing],
        "all_reduce": [total] * n,
        "gather": [everyones, *nothing],
        "scatter": [[part] for part in parts[0]],
        "all_gather": [everyones] * n,
        "reduce_scatter": [[float(x)] for x in collectives.reduce_scatter(parts)],
        "all_to_all": [[float(x) for x in xs] for xs in collectives.all_to_all(parts)],
        "send, recv": [*mine[:-1], mine[0]],
        "group": [mine[0], *[mine[1]] * (n - 1)],
        "async": [total] * n,
    }


@dataclass(frozen=True)
class Told:
    """What a program printed.

    Args:
        about: its first line, with the versions.
        n: of how many ranks.
        rows: by call, what each rank holds; or why the call is absent, in words.
        recorded: when and where it was kept; "" where it ran just now.
    """

    about: str
    n: int
    rows: dict[str, list[Any] | str]
    recorded: str = ""

    @property
    def ran(self) -> list[str]:
        """The calls that it made."""
        return [call for call, held in self.rows.items() if not isinstance(held, str)]

    @property
    def wrong(self) -> list[str]:
        """The calls after which a rank held a wrong number, or that are missing without a reason.

        >>> Told("x", 2, expected(2) | {"all_reduce": [[3.0], [1.5]]}).wrong
        ['all_reduce']
        """
        return [call for call, held in expected(self.n).items() if not _is(self.rows.get(call), held)]


def _is(told: Sequence[Any] | str | None, held: Sequence[Any]) -> bool:
    """Tell whether every rank held what it must, as float32 has it: where nothing is promised, anything is right."""
    if told is None or isinstance(told, str):
        return bool(told)  # absent, with the reason
    return len(told) == len(held) and all(
        want is None or (len(got or ()) == len(want) and np.allclose(got, want, rtol=1e-6, atol=0))
        for got, want in zip(told, held, strict=True)
    )


RECORDED = "# recorded on "
ABSENT = "absent: "
BETWEEN = r"(?<=[\]l]) (?=[\[n])"  # two ranks


def read(text: str) -> Told:
    """Read a program's output, or a record of it. Raises `LabError` where it does not say which program ran.

    >>> read("x 1.0, 2 ranks\\nbroadcast       [1.0] [1.0]\\nreduce          absent: no such call").rows
    {'broadcast': [[1.0], [1.0]], 'reduce': 'no such call'}
    """
    recorded, about = "", ""
    rows: dict[str, list[Any] | str] = {}
    for line in text.splitlines():
        call, rest = line[:15].strip(), line[15:].strip()
        if line.startswith(RECORDED):
            recorded = line.removeprefix(RECORDED)
        elif re.search(r", \d+ ranks$", line):
            about = line
        elif about and rest.startswith(ABSENT):
            rows[call] = rest.removeprefix(ABSENT)
        elif about and rest.startswith(("[", "null")):
            rows[call] = json.loads(f"[{re.sub(BETWEEN, ', ', rest)}]")
    if not about:
        raise LabError("The program did not say who ran it. Run the workbook's own program, from notebooks/scripts.")
    return Told(about, int(about.split()[-2]), rows, recorded)


def ten_lines(source: str) -> str:
    """Return the ten lines of a program: what stands between its lines `# the ten lines` and `# end`.

    >>> ten_lines("import x\\n# the ten lines\\nx.go()\\n# end\\nx.stop()")
    'x.go()'
    """
    return source.partition("# the ten lines\n")[2].partition("\n# end")[0].strip("\n")
