"""Planted mistakes: for every exercise wrong functions, and what its check must say of each.

A lesson has a file here, and an exercise a text in it, under its own name. A mistake is one line of the text:

    verdict | what the function does | what the check says | old → new

The verdict is the state that the check ends in, and what it says a part of its sentences. The edit turns the solution
into the mistake: `old` stands in the solution once, and nothing after the arrow takes it out. An edit that is long
stands below its line, indented by four. So does one of whole lines, told as a diff tells it: `-` goes, `+` comes, and
a line with neither stays, to show the place.

    deadlock | sends before it receives | Rank 0 waits for rank 1 to receive
        -     dist.recv(room, src=left)
              dist.send(x, dst=right)
        +     dist.recv(room, src=left)

What is neither is a function of its own, which takes the solution's place. `every` reads all files, and refuses what
cannot be so.
"""

from __future__ import annotations

import ast
import importlib
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from labkit.content import exercises
from labkit.floor.words import count
from labkit.grading.exercise import Exercise

VERDICTS = ("wrong", "raises", "deadlock", "slow", "forbidden", "costly", "not as asked", "differs")
FEWEST = 4  # mistakes of an exercise


@dataclass(frozen=True)
class Mistake:
    """A wrong function, and what the check must make of it: its verdict, and words in it."""

    exercise: Exercise
    verdict: str
    why: str
    says: str
    source: str


@cache
def every() -> dict[str, list[Mistake]]:
    """The mistakes of all exercises by the exercise's name, in the order of the lessons."""
    texts: dict[str, tuple[str, str]] = {}
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        module = importlib.import_module(f"{__name__}.{path.stem}")
        texts |= {name: (path.stem, text) for name, text in vars(module).items() if isinstance(text, str)}
    texts = {name: text for name, text in texts.items() if not name.startswith("__")}
    for name, (file, _) in texts.items():
        lesson = exercises.find(name).lesson
        if file.removeprefix("lesson") != lesson:
            raise ValueError(f"{name} stands in {file}.py, and is an exercise of lesson {lesson}.")
    if lack := sorted(set(exercises.every()) - set(texts)):
        raise ValueError(f"No mistakes are planted for {', '.join(lack)}. Plant them in its lesson's file here.")
    return {name: read(exercise, texts[name][1]) for name, exercise in exercises.every().items()}


def find(name: str, why: str) -> Mistake:
    """The mistake of an exercise that does this."""
    return next(mistake for mistake in every()[name] if mistake.why == why)


def read(exercise: Exercise, text: str) -> list[Mistake]:
    """The mistakes of an exercise's text; a ValueError says what is wrong with one, or with all of them."""
    mistakes = [_mistake(exercise, entry) for entry in re.split(r"\n(?=\S)", text.strip())]
    seen = {_meaning(exercise, exercise.before + exercise.code): "the solution"}
    for mistake in mistakes:
        for it in (mistake.why, _meaning(exercise, mistake.source)):
            if it in seen:
                raise ValueError(f"{exercise.name}: {mistake.why!r} and {seen[it]!r} are alike.")
            seen[it] = mistake.why
    if len(mistakes) < FEWEST:
        raise ValueError(f"{exercise.name} has {len(mistakes)} planted mistakes. Write {FEWEST} or more.")
    if len({mistake.verdict for mistake in mistakes}) == 1:
        raise ValueError(f"{exercise.name}: all its mistakes are {mistakes[0].verdict!r}. Plant one that is not.")
    return mistakes


def named(slips: Mapping[str, tuple[str, str]]) -> str:
    """The text of mistakes that the exercise's own check knows by name, see `labkit.rank.known_mistakes`."""
    return "".join(f"wrong | {why} | {why} | {old} → {new}\n" for why, (old, new) in slips.items())


def _mistake(exercise: Exercise, entry: str) -> Mistake:
    line, _, below = entry.partition("\n")
    parts = line.split(" | ", 3)
    how = [edit for edit in (*parts[3:], textwrap.dedent(below)) if edit.strip()]
    if len(parts) < 3 or len(how) != 1:
        raise ValueError(
            f"{exercise.name}: {line!r} is not: verdict | what it does | what the check says | old → new. "
            f"It has {count(len(how), 'edit')}, and needs one: in that line, or below it, indented by four."
        )
    verdict, why, says = (part.strip() for part in parts[:3])
    here = f"{exercise.name}, {why!r}"
    if verdict not in VERDICTS:
        raise ValueError(f"{here}: there is no verdict {verdict!r}. Use one of {', '.join(VERDICTS)}.")
    if not says:
        raise ValueError(f"{here}: it says nothing. Write what the check must say of it.")
    code = _changed(exercise.code, how[0], here)
    try:
        defined = [node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)]
    except SyntaxError as error:
        raise ValueError(f"{here}: it is not Python: {error}") from error
    if exercise.name not in defined:
        raise ValueError(f"{here}: it defines no function {exercise.name}.")
    return Mistake(exercise, verdict, why, says, exercise.before + code)


def _changed(solution: str, how: str, here: str) -> str:
    """The solution after an edit, which is `old → new` or whole lines; or the source that takes its place."""
    lines = how.rstrip().split("\n")
    if len(lines) == 1 and " →" in how:
        old, _, new = (part.strip() for part in how.partition(" →"))
    elif lines[0][0] in "+- ":
        old, new = ("\n" + "".join(f"{line[2:]}\n" for line in lines if line[:1] != other) for other in "+-")
    else:
        return f"{how}\n"
    if (times := solution.count(old)) != 1:
        raise ValueError(f"{here}: {old!r} is {times} times in the solution, and must be once.")
    return solution.replace(old, new)


def _meaning(exercise: Exercise, source: str) -> str:
    """A source as Python reads it, without the function's docstring: the same for two that do the same in one way."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == exercise.name and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree)
