"""What a learner does in a lesson: reads, runs the cells one after another, and makes the mistakes that learners make.

Every cell's outputs are held against what they should be: those of the committed notebook, or what a mistake ends in.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import nbformat

from labkit.content import exercises
from labkit.grading.exercise import Exercise
from labkit.grading.submission import CALL
from measure.hub import Hub, Kernel

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / ".ci")]

from normal_form import reading, sanitized  # noqa: E402

from tests import mistakes  # noqa: E402

LESSONS = ("00", "04")
STARTS, CELL, CHECK = "start()", "a cell of the lesson", "a check"
TEXT = ("stdout", "stderr", "text/plain", "error")  # what is compared; pictures hold pixels of their own


@dataclass(frozen=True)
class Slip:
    """A mistake of every day: the cell, and words that its outputs must hold.

    `stop` says that Stop is pressed, `loses` that variables are lost, so that the cells above are run again.
    """

    name: str
    code: str
    says: str
    stop: bool = False
    loses: bool = False


RESTART = Slip("the kernel restarted", "", "", loses=True)
SLIPS = (
    Slip("a typing error", "%%px\nprnt(rank)", "NameError"),
    Slip("rank 2 skips a call", "%%px\nif rank != 2:\n    dist.all_reduce(torch.ones(1))", "rank 2"),
    Slip("rank 3 ends", "%%px\nimport os\n\nif rank == 3:\n    os._exit(1)", "rank 3", loses=True),
    Slip("an endless loop, stopped after 5 s", "%%px\nwhile rank == 1:\n    pass", "You stopped the cell", stop=True),
    RESTART,
)
PROBE = "%%px\nours = torch.tensor([{mine} + rank])\ndist.all_reduce(ours)\nprint(ours.tolist())"
RANKS = 4
Wrong = Callable[[Sequence[Any]], str]  # what is wrong with a cell's outputs, or nothing


@dataclass(frozen=True)
class Sent:
    """One cell that a learner has run: for how long, and what was wrong with its outputs, if anything."""

    who: str
    lesson: str
    kind: str
    seconds: float
    wrong: str = ""


@dataclass
class Learner:
    """A user of the hub who goes through lessons; `number` makes the pace and the mistakes, the same in every run."""

    hub: Hub
    name: str
    number: int
    keep: Callable[[Sent], None]
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.number)

    async def go_through(self, lesson: str, seconds: float) -> None:
        """Go through a lesson in about so many seconds; every second learner closes it without its last cell."""
        (file,) = (n for n in await self.hub.names(self.name) if n.startswith(f"{lesson}-") and n.endswith(".ipynb"))
        copy = nbformat.from_dict(await self.hub.notebook(self.name, file))
        committed = nbformat.read(ROOT / "notebooks" / file, as_version=4)
        cells = [(c, k) for c, k in zip(copy.cells, committed.cells, strict=True) if c.cell_type == "code"]
        pause = seconds * self.chance.uniform(0.75, 0.9) / len(cells)
        made = SLIPS if self.number % 3 == 0 else SLIPS[:-1]
        slips = dict(zip(self.chance.sample(range(1, len(cells) - 1), len(made)), made, strict=True))
        kernel = await self.hub.open(self.name, file)
        for i, (cell, expected) in enumerate(cells):
            await asyncio.sleep(self.chance.uniform(0.5, 1.5) * pause)
            if i == len(cells) - 1 and self.number % 2:
                break
            await self._cell(kernel, lesson, cell, expected)
            if slip := slips.get(i):
                await self._slip(kernel, lesson, slip)
                for cell, expected in cells[slip != RESTART : i + 1] if slip.loses else ():
                    await self._cell(kernel, lesson, cell, expected, again=True)
        await kernel.close()

    async def _cell(self, kernel: Kernel, lesson: str, cell: Any, expected: Any, again: bool = False) -> None:
        """Run a cell of the lesson. A check is run on a mistake (but not `again`), then on the solution."""
        tags = cell.metadata.get("tags", ())
        if exercise := _checked(cell.source):
            wrong = self.chance.choice(mistakes.every()[exercise.name]).source
            tries = ((f"%%px\n{wrong}", False), (exercise.answer, True))
            for source, right in tries[again:]:
                await self._run(kernel, lesson, CELL, source, _raises)
                await self._run(kernel, lesson, CHECK, cell.source, partial(_verdict, right=right))
        elif "exercise" in tags or "nbval-ignore-output" in tags or cell.source.startswith("lab.use("):
            await self._run(kernel, lesson, CELL, cell.source, _raises)
        else:
            kind = STARTS if "lab = start()" in cell.source else CELL
            await self._run(kernel, lesson, kind, cell.source, partial(_differs, committed=expected.outputs))

    async def _slip(self, kernel: Kernel, lesson: str, slip: Slip) -> None:
        """Make a mistake, and see that the next cell is right on all ranks."""
        if slip == RESTART:
            began = time.monotonic()
            await kernel.restart()
            return self._note(lesson, slip.name, began, "")
        running = asyncio.create_task(self._run(kernel, lesson, slip.name, slip.code, partial(_lacks, words=slip.says)))
        if slip.stop:
            await asyncio.sleep(5)
            await kernel.interrupt()
        await running
        total = RANKS * self.number + sum(range(RANKS))
        probed = partial(_lacks, words=f"ranks 0–{RANKS - 1} │ [{total}]")
        await self._run(kernel, lesson, CELL, PROBE.format(mine=self.number), probed)

    async def _run(self, kernel: Kernel, lesson: str, kind: str, code: str, wrong: Wrong) -> None:
        began = time.monotonic()
        outputs = await kernel.run(code)
        self._note(lesson, kind, began, wrong(outputs))

    def _note(self, lesson: str, kind: str, began: float, wrong: str) -> None:
        self.keep(Sent(self.name, lesson, kind, time.monotonic() - began, wrong))


def _checked(source: str) -> Exercise | None:
    """Return the exercise that a cell checks, or None."""
    call = CALL.fullmatch(source.strip())
    return exercises.find(call[2]) if call and call[1] == "check" else None


def _text(outputs: Sequence[Any]) -> str:
    """Return what a learner reads below a cell, errors included."""
    return "\n".join(
        str(each) for kind, said in reading(list(outputs), sanitized).items() if kind in TEXT for each in said
    )


def _lacks(outputs: Sequence[Any], words: str) -> str:
    """Return what a learner reads where these words are not among it."""
    return "" if words in _text(outputs) else _text(outputs)


def _raises(outputs: Sequence[Any]) -> str:
    """Return the error that a cell ended in, or nothing."""
    return " ".join(f"{each.ename}: {each.evalue}" for each in outputs if each.output_type == "error")


def _differs(outputs: Sequence[Any], committed: Sequence[Any]) -> str:
    """Return what a learner reads where the committed notebook has something else; pictures are left out."""
    new, old = (
        {kind: said for kind, said in reading(list(each), sanitized).items() if kind in TEXT and any(said)}
        for each in (outputs, committed)
    )
    return "" if new == old else f"{new} and not {old}"


def _verdict(outputs: Sequence[Any], right: bool) -> str:
    """Return the verdict of a check where it calls a mistake right, or a solution wrong."""
    return "" if ("✓" in _text(outputs)) == right else _text(outputs)
