"""What an exercise is: a function to write, what it means, and what it may cost.

Plain data; `labkit.exercises` holds the exercises, one module a lesson. Imports neither torch nor a cluster.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.errors import LabError
from labkit.grading.inputs import Case, times, vectors
from labkit.grading.judge import ANY, NOTHING, first_difference
from labkit.grading.promises import Promise

__all__ = ["ANY", "NOTHING", "Budget", "Case", "Exercise", "Least", "stub", "unmarked"]

YOURS, END = "# yours", "# end"  # lines of a solution: what stands between them, the learner writes


@dataclass(frozen=True)
class Budget:
    """What a solution may cost, as functions of the ranks n and of S, the bytes that a rank's input takes.

    >>> ring = Budget(sent=lambda n, S: 2 * (n - 1) / n * S, steps=lambda n: 2 * (n - 1))

    `sent` bounds the bytes that the busiest rank sends (a chunk's rounding is forgiven), `steps` the longest chain of
    messages in which a rank sends one and receives one at a time, `link` the bytes from any rank to any other, or,
    where the option `hosts` of a case says which ranks are on which host, from any host to any other.
    """

    sent: Callable[[int, float], float] | None = None
    steps: Callable[[int], float] | None = None
    link: Callable[[int, float], float] | None = None


@dataclass(frozen=True)
class Least:
    """The least that a solution can cost, as functions of the ranks n and of S, the bytes of the largest input.

    >>> ring = Least(
    ...     sent=lambda n, S: 2 * (n - 1) / n * S,
    ...     rounds=lambda n: 2 * (n - 1),
    ...     memory=lambda n, S: S,
    ... )

    A goal, not a limit (that is `Budget`): the verdict shows it beside what the solution took. `sent` are the bytes
    that the busiest rank has to send, `rounds` the messages and collectives that have to follow one another, `memory`
    the bytes of tensors that a rank has to have alive at once beside its arguments; its result counts. Each is the
    least as far as the card leaves a choice, perhaps not all three in one solution; leave out what nobody knows.
    """

    sent: Callable[[int, float], float] | None = None
    rounds: Callable[[int], float] | None = None
    memory: Callable[[int, float], float] | None = None


@dataclass(frozen=True)
class Exercise:
    """A function for the learner to write on the ranks.

    Args:
        name: of the function and of the exercise.
        lesson: "06".
        statement: what to do, in a few sentences; `code` and **bold** are shown as such, a blank line parts
            paragraphs.
        means: `means(xs, **options)` returns what every rank must end with, index = rank. A rank's None is not
            compared, as in `theory.collectives`; NOTHING must be None, and ANY, at any depth, may be what it likes.
        solution: the source of a function of that name as a learner writes it in a `%%px` cell. It sees the
            ranks' globals `torch, dist, comms, rank, world_size, device`. Where lines stand between a line `# yours`
            and a line `# end`, the stub has `...` for them and keeps the rest; else it has `...` for the whole body.
            Those two lines are in no code that runs or is shown.
        hints: in steps, from a nudge to nearly the answer.
        given: source that stands before the function in the stub, such as imports.
        specimen: a broken function of that name, as one finds it in tutorials: the stub is this one, for the learner
            to run, see go wrong and repair.
        minutes, difficulty: how long it should take, and 1 to 3.
        inputs: `inputs(n)` makes the cases for n ranks, the simplest first; see `labkit.grading.inputs`.
        ranks: how many ranks it is run on, as far as the lab has them.
        forbids: functions of `torch.distributed` that it may not call; "collectives" stands for all of them.
        promises: what the card says of its calls besides: see `labkit.grading.promises`.
        budget: what it may cost.
        least: what it costs at least, to be shown beside what it did.
        counts_memory: whether the memory that the call takes at its peak is shown. False where the backward pass, which
            comes after the call, does the work or half of it.
        counts_messages: whether the bytes and steps that messages took are shown. False where numbers go through memory
            that ranks share: its messages are not what the solution cost.
        needs_messages: False where a rank may end with other ranks' numbers though no message has reached it: they
            come by a file, through memory that ranks share, or with the arguments.
        scales: False where other numbers than those of `inputs` are no input: some follow from others.
        tolerance: relative error that is forgiven; None goes by the dtype, 0 asks for the same bits.
        gradients: False; True for the gradient of the sum of all ranks' losses; "one" where all ranks hold the
            same result and the one loss of it is meant. Held against a numerical derivative of `means`.
        in_place: what counts is what the function leaves in its first argument, not what it returns.
        keeps_input: a changed argument counts as a mistake.
        harness: source of a `def harness(fn, *args)` that the ranks run in place of `fn(*args)`; what it returns is
            compared, and an AssertionError that it raises is the mistake.
        after: what to notice once it is solved.
        picture: xs for the card's picture, instead of tokens or the first case.
    """

    name: str
    lesson: str
    title: str
    statement: str
    means: Callable[..., Sequence[Any]]
    solution: str
    hints: tuple[str, ...] = ()
    given: str = ""
    specimen: str = ""
    minutes: int = 10
    difficulty: int = 1
    inputs: Callable[[int], Iterable[Case]] = vectors
    ranks: tuple[int, ...] = (2, 3, 4)
    forbids: tuple[str, ...] = ()
    promises: tuple[Promise, ...] = ()
    budget: Budget | None = None
    least: Least | None = None
    counts_memory: bool = True
    counts_messages: bool = True
    needs_messages: bool = True
    scales: bool = True
    tolerance: float | None = None
    gradients: bool | str = False
    in_place: bool = False
    keeps_input: bool = False
    harness: str = ""
    after: str = ""
    picture: Callable[[], Sequence[Any]] | None = None

    @property
    def stub(self) -> str:
        """The cell that a learner starts from: the specimen, or the solution with `...` for what is to be written."""
        return f"%%px\n{self.given}{self.specimen.strip() or stub(self.solution, self.name)}"

    @property
    def code(self) -> str:
        """The solution as it runs and is shown: without the lines that mark what the learner writes."""
        return unmarked(self.solution)

    @property
    def arguments(self) -> list[str]:
        """The names of the function's arguments."""
        return [a.arg for a in _function(self.solution, self.name).args.args]

    @property
    def answer(self) -> str:
        """The solution as a cell."""
        return f"%%px\n{self.given}{self.code.strip()}\n"

    def needs_others(self, case: Case, want: Sequence[Any], rank: int) -> bool:
        """Whether a rank's result would be another one if the others brought other numbers; False where none knows."""
        xs = [copy.deepcopy(x) if r == rank else times(x, 1.25) for r, x in enumerate(case.xs)]
        try:
            other = self.means(xs, **case.options)[rank]
        except Exception:  # such numbers together are no input
            return False
        return want[rank] is not None and first_difference(other, want[rank], 1e-3) is not None


def stub(source: str, name: str) -> str:
    """A function without the lines that are to be written; without its body, where no lines are marked.

    >>> print(stub('def f(x):\\n    \\"\\"\\"Return the sum.\\"\\"\\"\\n    return x\\n', "f"))
    def f(x):
        \"\"\"Return the sum.\"\"\"
        ...
    >>> print(stub('def f(x):\\n    # yours\\n    y = x + 1\\n    # end\\n    return y\\n', "f"))
    def f(x):
        ...
        return y
    """
    source = source.strip() + "\n"
    if _marks(source):
        return _blanked(source).strip()
    node = _function(source, name)
    first = node.body[0]
    documented = ast.get_docstring(node) is not None
    lines = source.splitlines()[node.lineno - 1 : first.end_lineno if documented else first.lineno - 1]
    return "\n".join([*lines, "    ..."])


def unmarked(source: str) -> str:
    """The source without the lines that mark what the learner writes."""
    return "".join(line for line in source.splitlines(keepends=True) if line.strip() not in (YOURS, END))


def _marks(source: str) -> list[str]:
    """The marking lines, in their order."""
    marks = [line.strip() for line in source.splitlines() if line.strip() in (YOURS, END)]
    assert marks == [YOURS, END] * (len(marks) // 2), f"{YOURS!r} and {END!r} take turns, in\n{source}"
    return marks


def _blanked(source: str) -> str:
    """The source with `...` in place of what stands between the marks, as far in as that is."""
    lines: list[str] = []
    inside = False
    for line in source.splitlines():
        if line.strip() in (YOURS, END):
            inside, opening = line.strip() == YOURS, line.strip() == YOURS
        elif not inside:
            lines.append(line)
        elif opening and line.strip():
            lines.append(" " * (len(line) - len(line.lstrip())) + "...")
            opening = False
    return "\n".join(lines)


def _function(source: str, name: str) -> ast.FunctionDef:
    for node in ast.parse(source.strip() + "\n").body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    raise LabError(f"The source defines no function {name}. Write def {name}(…): in it.")
