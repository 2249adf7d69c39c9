"""Compile a kernel that Triton's interpreter has run, for a GPU that need not be here: what does the compiler refuse?

The interpreter takes much of Python that the compiler does not know. A process either compiles or interprets, so a
process of its own compiles: `python -m workbook.tools.rank.compiled`, with the order in JSON on its stdin.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

HEAD = "import triton\nimport triton.language as tl\n"
KINDS = {
    "float32": "fp32", "float64": "fp64", "bfloat16": "bf16", "float16": "fp16", "int64": "i64", "int32": "i32",
    "bool": "i1",
}  # fmt: skip
PATIENCE = 8.0  # seconds, less than a check waits for a rank; a busy machine compiles nothing then
GPU = ("cuda", 80, 32)  # an A100; what is refused there, is refused everywhere

_known: dict[str, str] = {}  # the sources that were compiled → what the compiler refused


def refusal(kernel: Any, types: dict[str, str], constants: dict[str, Any]) -> str:
    """Return what the compiler says of a kernel that was launched with such arguments; "" where it takes it.

    `types` has the arguments in their order: "*fp32" for a tensor, "i32" for a whole number, "constexpr" for what
    `constants` has: a number, or the name of a dtype.
    """
    text = _text(kernel, {})
    if text not in _known:  # once for each kernel, whatever its arguments' types are: it takes a second or two
        order = json.dumps([kernel.fn.__name__, text, types, constants])
        kept = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
        path = os.pathsep.join(filter(None, sys.path))
        try:
            ran = subprocess.run(
                [sys.executable, "-m", __name__],
                env={**kept, "PYTHONPATH": path}, input=order, capture_output=True, text=True, timeout=PATIENCE,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return ""
        _known[text] = ran.stdout if not ran.returncode else ""
    return _known[text]


def _text(kernel: Any, seen: dict[str, Any]) -> str:
    """Return the source of a kernel, behind that of the kernels that it calls."""
    seen[kernel.fn.__name__] = kernel
    function, parts = kernel.fn, []
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if not hasattr(value, "fn") or name in seen:
            continue
        if value.fn.__module__ == "workbook.tools.rank.kernels":
            parts.append(f"from workbook.tools.rank.kernels import {value.fn.__name__} as {name}\n")
        else:
            parts.append(_text(value, seen))
    return "\n".join([*parts, textwrap.dedent(inspect.getsource(function))])


def main() -> None:
    """Compile what stdin orders, and print what is refused."""
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    name, text, types, constants = json.load(sys.stdin)
    constants = {k: getattr(tl, v) if isinstance(v, str) else v for k, v in constants.items()}
    with tempfile.TemporaryDirectory(prefix="labkit-") as folder:
        os.environ["TRITON_CACHE_DIR"] = f"{folder}/cache"
        path = Path(folder, "cell.py")
        path.write_text(HEAD + text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location("cell", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
            source = ASTSource(fn=getattr(module, name), signature=types, constexprs=constants)
            triton.compile(source, target=GPUTarget(*GPU))
        except Exception as error:
            print(_told(error), end="")


def _told(error: BaseException) -> str:
    """Say in a line what the compiler refuses, and where."""
    while error.__cause__ is not None:
        error = error.__cause__
    message = str(error)
    *above, reason = [line for line in message.splitlines() if line.strip()] or [type(error).__name__]
    code = [line.strip() for line in above if line.strip(" ^") and not re.match(r"at \d+:\d+:", line)]
    where = f"{code[-1].rstrip(':')}: " if code else ""
    said = re.sub(r'^\w+Error\("(.*)"\)$', r"\1", reason.strip())
    return f"Triton's compiler refuses what its interpreter takes: {where}{said}"


if __name__ == "__main__":
    main()
