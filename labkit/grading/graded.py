"""What grading found in learners' copies: plain values, from which reports are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from labkit.grading.score import COSTS, Score

PASSED = ("right", "costly")  # states of a check that are worth a point: a right result, whatever it costs
UNGRADED = "not graded"  # the state where the check itself could not be made


@dataclass(frozen=True)
class Graded:
    """One exercise of a copy: `state` and `says` as `lab.check` has them, `head` in a few words."""

    name: str
    title: str
    state: str
    head: str
    says: tuple[str, ...] = ()
    seconds: float = 0.0
    score: Score | None = None

    @property
    def points(self) -> int:
        """1 where the result is right, whatever it costs; else 0."""
        return int(self.state in PASSED)

    @property
    def text(self) -> str:
        """All that a learner should read."""
        return "\n".join([f"{self.head}.", *self.says])


@dataclass(frozen=True)
class Copy:
    """One learner's copy, with its exercises in their order; `note` says why none of it could be graded."""

    name: str
    exercises: tuple[Graded, ...]
    note: str = ""

    @property
    def points(self) -> int:
        """How many exercises are right."""
        return sum(e.points for e in self.exercises)

    @property
    def seconds(self) -> float:
        """How long the checks took."""
        return sum(e.seconds for e in self.exercises)


@dataclass(frozen=True)
class Fewest:
    """Who has the least of one cost in one exercise."""

    exercise: str
    cost: str
    value: float
    names: tuple[str, ...]


def leaders(copies: Sequence[Copy]) -> list[Fewest]:
    """Find for each exercise who sends the fewest bytes, takes the fewest steps and the least memory.

    Only right solutions within the card's budget take part. All ran on as many ranks and with the same input, so the
    numbers compare.
    """
    found: dict[tuple[str, str], dict[str, float]] = {}
    for copy in copies:
        for e in copy.exercises:
            for cost in COSTS:
                value = getattr(e.score, cost) if e.score and e.state == "right" else None
                if value is not None:
                    found.setdefault((e.name, cost), {})[copy.name] = value
    return [
        Fewest(exercise, cost, least, tuple(name for name, value in values.items() if value == least))
        for (exercise, cost), values in found.items()
        for least in [min(values.values())]
    ]


def names(paths: Sequence[PurePath]) -> list[str]:
    """Name each copy by what its path has and the others' have not.

    >>> names([PurePath("handed-in/ada/04.ipynb"), PurePath("handed-in/bob/04.ipynb")])
    ['ada', 'bob']
    >>> names([PurePath("ada.ipynb"), PurePath("bob.ipynb")]), names([PurePath("ada/04.ipynb")])
    (['ada', 'bob'], ['04'])
    """
    parts = [path.with_suffix("").parts for path in paths]
    if len(set(parts)) < 2:
        return [path.stem for path in paths]
    shortest = min(map(len, parts))
    before = next(i for i in range(shortest + 1) if len({p[: i + 1] for p in parts}) > 1)
    alike = next((i for i in range(shortest - before) if len({p[len(p) - i - 1 :] for p in parts}) > 1), 0)
    return ["/".join(p[before : len(p) - alike]) or "/".join(p) for p in parts]
