"""The one form in which a notebook is committed: what `normalise` makes, and what `faults` finds missing.

Pure: reads and returns notebooks, runs nothing and touches no file.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

import nbformat
from cells import DIFFERS, EXTRA, HERE, Code, code_cells
from nbval.plugin import get_sanitize_patterns

OURS = "labkit"  # the key of an output's metadata under which `labkit.show.view` finds what moves without a kernel
LARGEST = 400_000  # bytes; beyond it a browser and a diff both suffer
VIEW = "application/vnd.jupyter.widget-view+json"
NOTE = "  · "  # how `labkit.floor.errors.CellError` begins each of its notes
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
NUMBER = re.compile(r"\d[\d.,]*(?:e[+-]?\d+)?|base64,[A-Za-z0-9+/=]+|\b[nµmu]?s\b|\b[KMGT]?i?B\b| +")


def sanitized(text: str) -> str:
    """The text after nbval's own substitutions, so that this tool and nbval call the same outputs equal."""
    for pattern, replacement in get_sanitize_patterns((HERE / "nbval-sanitize.cfg").read_text()):
        text = re.sub(pattern, replacement, text)
    return text


def shape(text: str) -> str:
    """The text of a measurement without what changes from run to run: numbers, units, encoded pictures."""
    return NUMBER.sub("#", sanitized(text))


def strip_ansi(value: Any) -> Any:
    """The value without colour codes, all through lists and dicts."""
    if isinstance(value, str):
        return ANSI.sub("", value)
    if isinstance(value, list):
        return [strip_ansi(item) for item in value]
    if isinstance(value, dict):
        return {key: strip_ansi(item) for key, item in value.items()}
    return value


def notes(output: Any) -> str:
    """The lines that labkit writes below an error: what became of the other ranks, and what to do."""
    lines = strip_ansi("\n".join(output.get("traceback", ()))).splitlines()
    return "\n".join(lines[next((i for i, line in enumerate(lines) if line.startswith(NOTE)), len(lines)) :])


def normal_output(output: Any, number: int) -> nbformat.NotebookNode:
    """One output without other metadata than ours, widget view, colours and stack, numbered as its cell is."""
    output = nbformat.from_dict(strip_ansi(output))
    if output.output_type == "error":
        # Not []: outside JupyterLab a notebook's reader sees the traceback or nothing.
        output.traceback = ["\n".join(filter(None, [f"{output.ename}: {output.evalue}", notes(output)]))]
    if output.output_type == "execute_result":
        output.execution_count = number
    if "data" in output:
        output.data.pop(VIEW, None)
        output.metadata = {key: value for key, value in output.get("metadata", {}).items() if key == OURS}
    return output


def normal_outputs(outputs: list[Any], number: int) -> list[nbformat.NotebookNode]:
    """A cell's outputs, adjacent pieces of the same stream joined, emptied ones dropped."""
    joined: list[nbformat.NotebookNode] = []
    pieces = (normal_output(output, number) for output in outputs)
    for stream, group in groupby(pieces, key=lambda output: output.get("name")):
        members = list(group)
        if stream is not None:
            members[0].text = "".join(member.text for member in members)
            members = members[:1]
        joined += [output for output in members if output.get("data", True) and output.get("text", True)]
    return joined


def normalise(nb: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook in normal form: cells numbered 1, 2, 3…, and nothing kept that differs from run to run."""
    nb = nbformat.from_dict(nb)
    number = 0
    for cell in nb.cells:
        kept = {key: cell.metadata[key] for key in ("jupyter", "tags") if cell.metadata.get(key)}
        if cell.source.startswith(EXTRA):
            kept["jp-MarkdownHeadingCollapsed"] = True  # JupyterLab shows the heading alone until it is clicked
        cell.metadata = nbformat.from_dict(kept)
        if cell.cell_type == "code":
            number += 1
            cell.execution_count = number
            cell.outputs = normal_outputs(cell.outputs, number)
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    nb.metadata = nbformat.from_dict({"kernelspec": kernel, "language_info": {"name": "python"}})
    nb.nbformat, nb.nbformat_minor = 4, 5
    return nb


def serialised(nb: nbformat.NotebookNode) -> str:
    """The notebook as text, byte for byte as JupyterLab saves it."""
    return nbformat.writes(nb) + "\n"


def reading(outputs: list[Any], scrub: Callable[[str], str]) -> dict[str, list[Any]]:
    """What nbval reads in a cell's outputs: the values of each stream, MIME type and error, in order."""
    seen: dict[str, list[Any]] = defaultdict(list)
    for output in normal_outputs(outputs, 0):
        if output.output_type == "stream":
            seen[output.name] = ["".join([*seen[output.name], output.text])]
        elif output.output_type == "error":
            seen["error"] += [output.ename, output.evalue, notes(output)]
        for kind, value in output.get("data", {}).items():
            seen[kind].append(value)
    return {kind: [scrub(v) if isinstance(v, str) else v for v in values] for kind, values in seen.items()}


def same_outputs(cell: Any, committed: Any) -> bool:
    """Whether the cell's new outputs say what the committed ones say, so that the committed ones can stay.

    A cell tagged nbval-ignore-output measures something: there numbers and pictures may differ, as long as
    its source is the committed one.
    """
    if "nbval-ignore-output" not in cell.metadata.get("tags", ()):
        return reading(cell.outputs, sanitized) == reading(committed.outputs, sanitized)
    new, old = (reading(c.outputs, shape) for c in (cell, committed))
    for kind in {"image/png", "image/jpeg"} & new.keys() & old.keys():
        new[kind] = old[kind]
    return cell.source == committed.source and new == old


def keep_committed(nb: nbformat.NotebookNode, committed: nbformat.NotebookNode) -> None:
    """Put the committed outputs back where the new ones say the same: no diff without a difference.

    What moves without a kernel goes with them: that of a measurement stays, that of other cells is the new one.
    """
    old = {cell.get("id"): cell for cell in committed.cells if cell.cell_type == "code"}
    for cell in nb.cells:
        before = old.get(cell.get("id"))
        if cell.cell_type == "code" and before is not None and same_outputs(cell, before):
            told = [output.get("metadata", {}) for output in normal_outputs(cell.outputs, 0)]
            cell.outputs = before.outputs
            stays = "nbval-ignore-output" in cell.metadata.get("tags", ())
            for output, metadata in zip(cell.outputs, told, strict=False):
                if "data" in output and not (stays and output.metadata):
                    output.metadata = metadata


def must_show(cell: Code) -> bool:
    """Whether running the cell surely shows something: it ends in a bare name, prints, or draws."""
    if cell.magic.startswith(("%%flow", "%%late")):
        return True
    if cell.magic and not cell.on_ranks:
        return False  # %%capture hides what others show
    try:
        tree = ast.parse(cell.body)
    except SyntaxError:
        return False  # a line magic or a planted mistake: only running it can tell
    expressions = [node.value for node in tree.body if isinstance(node, ast.Expr)]
    prints = any(isinstance(e, ast.Call) and getattr(e.func, "id", "") == "print" for e in expressions)
    last = tree.body[-1] if tree.body else None
    bare = isinstance(last, ast.Expr) and isinstance(last.value, ast.Name | ast.Attribute | ast.Subscript)
    return prints or (bare and not cell.source.rstrip().endswith(";"))


def cell_faults(cell: Code, raw: Any) -> Iterator[str]:
    """What keeps one code cell from its normal form, and what is missing in it."""
    outputs = raw.outputs
    if raw.execution_count != cell.number:
        yield f"has the number {raw.execution_count}, not {cell.number}"
    if not outputs and must_show(cell):
        yield "has no output, though it shows something when it runs"
    if any(VIEW in output.get("data", {}) for output in outputs):
        yield "holds a widget's view, which is dead without its kernel"
    if any(set(output.get("metadata", ())) - {OURS} for output in outputs):
        yield "has output metadata"
    if strip_ansi(outputs) != outputs:
        yield "has ANSI colour codes in its output"
    errors = [output for output in outputs if output.output_type == "error"]
    if any(len(error.traceback) > 1 for error in errors):
        yield "has a traceback, which differs between machines"
    if errors and "raises-exception" not in cell.tags:
        yield "ended in an error; mend it, or tag it raises-exception where the error is the lesson"
    if "raises-exception" in cell.tags and DIFFERS not in cell.tags and not errors:
        yield "is tagged raises-exception and raised nothing"


def faults(text: str) -> Iterator[tuple[Code | None, str]]:
    """What is wrong with a notebook file's text, each with its cell, or None for the whole file."""
    nb = nbformat.reads(text, as_version=4)
    named = False
    for cell in code_cells(nb):
        for message in cell_faults(cell, nb.cells[cell.index]):
            named = True
            yield cell, message
    if nb.metadata.get("widgets"):
        yield None, "holds widget state"
    elif not named and text != serialised(normalise(nb)):
        yield None, "is not in normal form (metadata, cell ids, split streams or layout)"
    if len(text.encode()) > LARGEST:
        yield None, f"has {len(text.encode()):,} bytes, over {LARGEST:,}: draw less, or with fewer points"
