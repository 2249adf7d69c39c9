"""Compile a learner's kernel for a GPU that need not be here, and say what Triton's compiler refuses.

Triton's interpreter takes much of Python that the compiler does not know, and a process either interprets or compiles:
`python -m workbook.tools.kernels.compiled FOLDER` compiles, with an order in JSON on its stdin.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

KINDS = {"x": "*fp32", "out": "*fp32", "weight": "*fp32", "buffers": "*i64", "flags": "*i64"}  # others: "i32"
CONSTANTS: dict[str, Any] = {"ACC": "float32", "BLOCK": 16, "SLOT": 4}
PATIENCE = 30.0  # seconds; it takes two on a quiet machine
GPU = ("cuda", 80, 32)  # an A100: what is refused there, is refused everywhere


def refusal(name: str, arguments: Sequence[str], cell: str) -> str:
    """Return what the compiler says of the kernel of this name in a cell; "" where it takes it, or cannot tell.

    `arguments` are the names that they have in the workbook's own kernel, in their order: see `KINDS`, `CONSTANTS`.
    """
    kept = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-m", __name__]
    with tempfile.TemporaryDirectory(prefix="labkit-") as folder:
        try:
            ran = subprocess.run(
                [*command, folder], input=json.dumps([name, arguments, cell]), env=kept, capture_output=True, text=True,
                timeout=PATIENCE,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return ""
    return ran.stdout if not ran.returncode else ""


def main(folder: str) -> None:
    """Compile what stdin orders, and print what is refused."""
    name, arguments, cell = json.load(sys.stdin)
    os.environ["TRITON_CACHE_DIR"] = f"{folder}/cache"
    path = Path(folder, "cell.py")
    path.write_text(cell, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("cell", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        _compile(getattr(module, name), arguments)
    except Exception as error:
        print(_told(error), end="")


def _compile(kernel: Any, arguments: Sequence[str]) -> None:
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types, constants = {}, {}
    for parameter, argument in zip(kernel.params, arguments, strict=False):
        types[parameter.name] = "constexpr" if parameter.is_constexpr else KINDS.get(argument, "i32")
        if parameter.is_constexpr:
            value = CONSTANTS.get(argument, 1)
            constants[parameter.name] = getattr(tl, value) if isinstance(value, str) else value
    triton.compile(ASTSource(fn=kernel, signature=types, constexprs=constants), target=GPUTarget(*GPU))


def _told(error: BaseException) -> str:
    """Say in a line what the compiler refuses, and where; "" where the cell needs another one."""
    while error.__cause__ is not None:
        error = error.__cause__
    message = str(error)
    if "is not defined" in message:
        return ""
    *above, reason = [line for line in message.splitlines() if line.strip()] or [type(error).__name__]
    code = [line.strip() for line in above if line.strip(" ^") and not re.match(r"at \d+:\d+:", line)]
    where = f"{code[-1].rstrip(':')}: " if code else ""
    said = re.sub(r'^\w+Error\("(.*)"\)$', r"\1", reason.strip()).rstrip(".")
    return f"Triton's compiler refuses what its interpreter takes: {where}{said}."


if __name__ == "__main__":
    main(sys.argv[1])
