"""Write the reference of all that a notebook can call, as Markdown, from the docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import labkit
from labkit import content
from labkit.cluster.magic import PictureMagics


def markdown() -> str:
    """Return the page's sections: the magics, what labkit exports, a lab's methods and properties."""
    exported = [section(name, getattr(labkit, name), "") for name in labkit.__all__]
    named = {name: value for name, value in inspect.getmembers(labkit.Lab) if not name.startswith("_")}
    named |= {name: content.method(name) for name in content.methods()}
    methods = [section(name, named[name], "lab.") for name in sorted(named)]
    magics = [section(name, getattr(PictureMagics, name), "%%") for name in ("flow", "late", "mpi")]
    return "\n\n".join(["", *magics, "## From labkit", *exported, "## Of a lab", *methods])


def section(name: str, value: Any, before: str) -> str:
    """Return what the page says of one call; `before` is what stands before its name."""
    return f"### {before}{name}\n\n{_signature(name, value, before)}{_body(inspect.getdoc(value) or '')}"


def _signature(name: str, value: Any, before: str) -> str:
    if before == "%%" or isinstance(value, property) or (inspect.isclass(value) and issubclass(value, Exception)):
        return ""
    given = inspect.signature(value)
    drop = 1 if before else 0  # the lab itself
    parameters = [p.replace(annotation=inspect.Parameter.empty) for p in given.parameters.values()][drop:]
    plain = given.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
    return f"```python\n{before}{name}{plain}\n```\n\n"


def _body(docstring: str) -> str:
    return "\n\n".join(_blocks(docstring))


def _blocks(docstring: str) -> Iterator[str]:
    for block in re.split(r"\n\n+", docstring):
        lines = block.splitlines()
        if lines[0].startswith(">>>"):
            yield f"```pycon\n{block}\n```".replace("<BLANKLINE>", "")
        elif lines[0] == "Args:":
            yield _arguments(inspect.cleandoc("\n".join(["", *lines[1:]])))
        elif all(line.startswith("%%") for line in lines):
            yield f"```text\n{block}\n```"
        else:
            yield block


def _arguments(text: str) -> str:
    """Write `name: what it is` as a list, with the lines that go on indented below it."""
    return "\n".join(re.sub(r"^(\w+(?:, \w+)*):", r"- `\1`:", line) for line in text.splitlines())
