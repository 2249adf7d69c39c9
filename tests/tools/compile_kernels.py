"""Compile lesson 06c's kernels for GPUs that are not here, as far as machine code, and tell what they do with memory.

A process of its own, for Triton either compiles or interprets. It prints in JSON, for each kernel as it is called on a
GPU, what stands in its PTX in the order of the text: "load" and "store" of numbers, "meet" where all threads of a
program wait for one another, and each atomic operation with its order and scope.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from labkit.content import exercises
from workbook.tools.rank import kernels

LESSON = "06c"
ARCHITECTURES = 75, 80, 90  # T4, A100, H100
SUMMED_IN = {"bf16": tl.float32, "i64": tl.int64, "fp64": tl.float64}
TABLES = "buffers", "flags"
NUMBERS = "x", "out", "weight"
FOUND = re.compile(r"\b(?:(ld|st)\.global|(bar\.sync|barrier\.sync)|(atom|red)\.(?:global\.)?([\w.:]+))")


def cell(code: str, folder: Path) -> ModuleType:
    """A module of what a cell has: Triton reads a kernel's source from its file."""
    path = folder / f"cell{len(list(folder.iterdir()))}.py"
    path.write_text(code.replace("%%px\n", "", 1), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def source(kernel: Any, numbers: str, given: dict[str, Any], one: tuple[str, ...] = ()) -> ASTSource:
    """A kernel with the types of its arguments: numbers are of this type, and an argument in `one` is 1.

    Triton takes a whole number that is 1 for a constant, as rank 1's rank is.
    """
    constants = dict.fromkeys(one, 1)
    signature = {}
    for parameter in kernel.params:
        name = parameter.name
        if parameter.is_constexpr:
            constants[name] = given[name]
        kinds = {**dict.fromkeys(NUMBERS, f"*{numbers}"), **dict.fromkeys(TABLES, "*i64")}
        signature[name] = "constexpr" if name in constants else kinds.get(name, "i32")
    return ASTSource(fn=kernel, signature=signature, constexprs=constants)


def memory(ptx: str) -> list[str]:
    """What a kernel does with memory, in the order of its text."""
    told = []
    for moves, meets, _, atomic in FOUND.findall(ptx):
        told.append({"ld": "load", "st": "store"}[moves] if moves else "meet" if meets else atomic)
    return told


def every(folder: Path) -> Iterator[tuple[str, ASTSource, int]]:
    """Every kernel that a learner's ranks compile: name, what is compiled, and for which GPU."""
    newest = ARCHITECTURES[-1]
    for exercise in exercises.every().values():
        if exercise.lesson != LESSON:
            continue
        name = exercise.name
        given = {"ACC": tl.float32, "BLOCK": 16, "SLOT": 4}
        kernel = getattr(cell(exercise.answer, folder), name)
        names = [parameter.name for parameter in kernel.params]
        if "x" not in names:  # a part of a kernel, which the harness calls from another one
            given, kernel, names = {"barrier": kernel}, kernels.exchange_of_the_check, ["rank", "world_size"]
        for architecture in ARCHITECTURES:
            yield f"{name} of fp32", source(kernel, "fp32", given), architecture
        for one in ("rank", "world_size", "size", "width", "pieces", "call"):
            if one in names:
                yield f"{name}, {one} 1", source(kernel, "fp32", given, (one,)), newest
        if "ACC" in names:
            for numbers, sums in SUMMED_IN.items():
                yield f"{name} of {numbers}", source(kernel, numbers, given | {"ACC": sums}), newest
        if exercise.specimen:
            broken = getattr(cell(exercise.stub, folder), name)
            yield f"broken {name}", source(broken, "fp32", given), newest


def main() -> None:
    """Compile them all."""
    told: dict[str, list[str] | str] = {}
    with tempfile.TemporaryDirectory() as place:
        os.environ["TRITON_CACHE_DIR"] = f"{place}/cache"
        cells = Path(place, "cells")
        cells.mkdir()
        sys.path.insert(0, str(cells))
        for name, what, architecture in every(cells):
            label = f"{name}, sm_{architecture}"
            try:
                ptx = triton.compile(what, target=GPUTarget("cuda", architecture, 32)).asm["ptx"]
            except Exception as error:
                told[label] = f"{type(error).__name__}: {error}"
            else:
                told[label] = memory(ptx)
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main()
