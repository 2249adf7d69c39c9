"""Describe an exercise: a function to write, what it means, and what it may cost.

`@exercise` makes one of a function, the solution as a learner would write it; it runs on ranks alone.
"""

from __future__ import annotations

import ast
import copy
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from labkit.grading.inputs import Case, times, vectors
from labkit.grading.judge import ANY, NEAR, NOTHING, first_difference
from labkit.grading.promises import Promise
from labkit.grading.prose import unwrapped

__all__ = ["ANY", "NOTHING", "Budget", "Case", "Exercise", "Least", "exercise", "stub", "unmarked"]

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
    the bytes of tensors that a rank has to have alive at once beside its arguments; its result counts; `moved` those
    that its kernels read and write. Each is the least as far as the card leaves a choice, perhaps not all in one
    solution; leave out what is unknown.
    """

    sent: Callable[[int, float], float] | None = None
    rounds: Callable[[int], float] | None = None
    memory: Callable[[int, float], float] | None = None
    moved: Callable[[int, float], float] | None = None


@dataclass(frozen=True)
class Exercise:
    """A function for the learner to write on the ranks.

    Args:
        name: of the function and of the exercise.
        means: `means(xs, **options)` returns what every rank must end with, index = rank. A rank's None is not
            compared, as in `theory.collectives`; NOTHING must be None, and ANY, at any depth, may be what it likes.
        title: of the card.
        lesson: "06".
        function: the solution as a learner writes it in a `%%px` cell; see `exercise`. None for a function that is
            checked and is not an exercise of the workbook.
        specimen: a broken function, as one finds it in tutorials: the stub is this one, under the exercise's name and
            with its first paragraph, for the learner to run, see go wrong and repair.
        given: what stands before the function in the stub: imports, or the name of a class or a function of the module,
            which may stand under `if TYPE_CHECKING` there, where it needs torch.
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
        setup: `setup(*args, **options)`, run on the ranks, returns a tuple: the arguments to call the function with.
        collect: `collect(out, *args)`, run on the ranks, gets what the function returned and its arguments; what it
            returns is compared, and an AssertionError that it raises is the mistake.
        harness: `harness(fn, *args, **options)`, run on the ranks, takes the place of `setup`, the call and `collect`
            where the function is called more than once, or is watched.
        reads: `reads(exercise, cell)`, run in the notebook's process once the function is right, returns what is not as
            asked in the source of its cell; "" for nothing.
        slips: mistakes that a wrong result is traced back to, each with the edit of the solution, (old, new), that
            makes it. It is for functions that only compute, from the same arguments on all ranks.
        picture: a case, or its xs alone, for the card's picture, instead of tokens or the first case.
    """

    name: str
    means: Callable[..., Sequence[Any]]
    title: str = ""
    lesson: str = ""
    function: Callable[..., Any] | None = None
    specimen: Callable[..., Any] | None = None
    given: str = ""
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
    setup: Callable[..., tuple[Any, ...]] | None = None
    collect: Callable[..., Any] | None = None
    harness: Callable[..., Any] | None = None
    reads: Callable[[Exercise, str], str] | None = None
    slips: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    picture: Callable[[], Sequence[Any] | Case] | None = None

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Run the solution: on ranks, where functions of the lesson's modules call it by its name."""
        assert self.function is not None
        return self.function(*args, **options)

    @property
    def module(self) -> str:
        """The module that ranks import for what they run around the function; empty where they run it alone."""
        around = self.setup or self.collect or self.harness or self.slips
        return self.function.__module__ if around and self.function else ""

    @cached_property
    def _card(self) -> list[str]:
        """The statement, the hints and the afterword: the function's docstring without its first paragraph."""
        if self.function is None:
            return ["", ""]
        text = inspect.cleandoc(self.function.__doc__ or "").partition("\n\n")[2]
        statement, *hints = re.split(r"^Hint: ", text, flags=re.M)
        *all_but_last, last = (statement, *hints)
        last, _, after = last.partition("\nAfterwards: ")
        return [unwrapped(part) for part in (*all_but_last, last, after)]

    @property
    def statement(self) -> str:
        """What to do, in a few sentences; `code` and **bold** are shown as such, a blank line parts paragraphs."""
        return self._card[0]

    @property
    def hints(self) -> tuple[str, ...]:
        """Hints in steps, from a nudge to nearly the answer."""
        return tuple(self._card[1:-1])

    @property
    def after(self) -> str:
        """What to notice once it is solved."""
        return self._card[-1]

    @cached_property
    def solution(self) -> str:
        """The solution's source, with the lines that mark what the learner writes; empty where there is none."""
        return "" if self.function is None else _source(self.function, self.name, its_own=1)

    @cached_property
    def before(self) -> str:
        """The source that stands before the function."""
        if not self.given or "import" in self.given:
            return self.given and f"{self.given}\n\n\n"
        module = inspect.getsource(sys.modules[getattr(self.function, "__module__", "")])
        defined = (n for n in ast.walk(ast.parse(module)) if isinstance(n, (ast.ClassDef, ast.FunctionDef)))
        (node,) = (n for n in defined if n.name == self.given)
        return textwrap.dedent("\n".join(module.splitlines()[node.lineno - 1 : node.end_lineno])) + "\n\n\n"

    @property
    def stub(self) -> str:
        """The cell that a learner starts from: the specimen, or the solution with `...` for what is to be written."""
        if self.specimen is not None:
            first = inspect.cleandoc(getattr(self.function, "__doc__", None) or "").partition("\n\n")[0]
            return f"%%px\n{self.before}{_source(self.specimen, self.name, first)}"
        return f"%%px\n{stub(self.before + self.solution)}"

    @property
    def code(self) -> str:
        """The solution as it runs and is shown: without the lines that mark what the learner writes."""
        return f"\n{unmarked(self.solution)}\n"

    @property
    def arguments(self) -> list[str]:
        """The names of the function's arguments."""
        return [] if self.function is None else list(inspect.signature(self.function).parameters)

    @property
    def answer(self) -> str:
        """The solution as a cell."""
        return f"%%px\n{self.before}{self.code.strip()}\n"

    def needs_others(self, case: Case, want: Sequence[Any], rank: int) -> bool:
        """Tell whether a rank's result depends on the others' numbers; False where that is not known."""
        xs = [copy.deepcopy(x) if r == rank else times(x, 1.25) for r, x in enumerate(case.xs)]
        try:
            other = self.means(xs, **case.options)[rank]
        except Exception:  # such numbers together are no input
            return False
        return want[rank] is not None and first_difference(other, want[rank], NEAR) is not None


def exercise(
    title: str, means: Callable[..., Sequence[Any]], **details: Any
) -> Callable[[Callable[..., Any]], Exercise]:
    """Make an exercise of a function, which is its solution and is never called in the notebook.

    >>> @exercise("Add it up", lambda xs: [sum(xs)] * len(xs), minutes=5)
    ... def total(x):
    ...     \"\"\"Return the sum of all ranks' x.
    ...
    ...     Every rank has a tensor `x`. Return the sum on every rank.
    ...     Hint: Which collective leaves the same on all ranks?
    ...     Hint: `dist.all_reduce(x)` works in place.
    ...     Afterwards: A sum is the only thing that gradients need.
    ...     \"\"\"
    ...     y = x.clone()
    ...     dist.all_reduce(y)
    ...     return y

    The docstring's first paragraph is the stub's, the rest is the card. Where lines of the body stand between a line
    `# yours` and a line `# end`, the stub has `...` for them and keeps the rest; else it has `...` for the whole body.
    Those two lines are in no code that runs or is shown. The function sees what `labkit.rank.cell_names` names. The
    lesson is that of its module, `details` are the fields of `Exercise`. A function `broken_total` above it would be
    its specimen.
    """

    def made(function: Callable[..., Any]) -> Exercise:
        name, lesson = function.__name__, lesson_of(function.__module__)
        told = {"specimen": function.__globals__.get(f"broken_{name}"), **details}
        return Exercise(name=name, means=means, title=title, lesson=lesson, function=function, **told)

    return made


def lesson_of(module: str) -> str:
    """Return the lesson that a module belongs to.

    >>> lesson_of("workbook.lesson06b_puzzles"), lesson_of("workbook.capstone")
    ('06b', 'capstone')
    """
    return module.rpartition(".")[2].partition("_")[0].removeprefix("lesson")


def _source(function: Callable[..., Any], name: str, first: str = "", its_own: int = 0) -> str:
    """Return a function's source under this name, with its docstring's first paragraph alone.

    `first` is for a function without a docstring. So many decorators as `its_own` make an exercise of it: the learner
    sees those that follow.
    """
    text = textwrap.dedent(inspect.getsource(function))
    node = ast.parse(text).body[0]
    assert isinstance(node, ast.FunctionDef)
    lines, quotes = text.splitlines(), '"' * 3
    if (doc := ast.get_docstring(node)) is not None:
        its = node.body[0]
        lines[its.lineno - 1 : its.end_lineno] = [f"    {quotes}{doc.partition(chr(10) * 2)[0]}{quotes}"]
    elif first:
        lines.insert(node.lineno, f"    {quotes}{first}{quotes}")
    begins = [decorator.lineno for decorator in node.decorator_list[its_own:]]
    source = "\n".join(lines[min([node.lineno, *begins]) - 1 :])
    return source.replace(f"def {node.name}(", f"def {name}(", 1)


def stub(source: str) -> str:
    r'''Return a function without the lines that are to be written; without its body, where no lines are marked.

    >>> print(stub('def f(x):\n    """Return the sum."""\n    return x\n'))
    def f(x):
        """Return the sum."""
        ...
    >>> print(stub('def f(x):\n    # yours\n    y = x + 1\n    # end\n    return y\n'))
    def f(x):
        ...
        return y
    '''
    marks = [line.strip() for line in source.splitlines() if line.strip() in (YOURS, END)]
    assert marks == [YOURS, END] * (len(marks) // 2), f"{YOURS!r} and {END!r} take turns, in\n{source}"
    if marks:
        return _blanked(source)
    *_, function = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    first = function.body[0]
    documented = ast.get_docstring(function) is not None
    return "\n".join([*source.splitlines()[: (first.end_lineno or 0) if documented else first.lineno - 1], "    ..."])


def unmarked(source: str) -> str:
    """Return the source without the lines that mark what the learner writes."""
    source = re.sub(r"\n\n *# end\n\n", "\n\n", source)  # between blank lines, after a class
    return "".join(line for line in source.splitlines(keepends=True) if line.strip() not in (YOURS, END))


def _blanked(source: str) -> str:
    """Put `...` in place of what stands between the marks, as far in as that is."""
    lines: list[str] = []
    inside = opening = False
    for line in source.splitlines():
        if line.strip() in (YOURS, END):
            inside = opening = line.strip() == YOURS
        elif not inside:
            lines.append(line)
        elif opening and line.strip():
            lines.append(" " * (len(line) - len(line.lstrip())) + "...")
            opening = False
    return "\n".join(lines)
