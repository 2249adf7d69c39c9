"""From the source of a cell: what makes a definition and may run again, and what may not."""

from __future__ import annotations

import ast

import pytest

from labkit.theory.definitions import Reader, bound, changed_inside, only


def safe(code):
    """For each statement of one or several cells, whether it may run again."""
    reader = Reader()
    return [s.safe for cell in code.split("# next cell\n") for s in reader.read(ast.parse(cell))]


@pytest.mark.parametrize(
    "code",
    [
        "import math, os.path as p",
        "from torch.nn import functional as F",
        "def f(x: torch.Tensor, group=None, *, k: int = 1 << 20, scale=-0.5) -> list[int]:\n    dist.all_reduce(x)",
        "async def f(): await g()",
        "@torch.no_grad()\ndef f(): pass",
        "import functools\n@functools.lru_cache(maxsize=None)\ndef f(): pass",
        "from functools import wraps as w, partial\n@w(g)\ndef f(): pass\nh = partial(f, 1)",
        "import dataclasses as d\n@d.dataclass(frozen=True)\nclass C:\n    x: list = d.field(default_factory=list)",
        "class M(torch.nn.Module):\n    '''Words.'''\n    rate = 0.1\n    @property\n    def f(self): return print()",
        "LR = 0.1",
        "A, B = 1, (2, 'x')",
        "RIGHT = (rank + 1) % world_size",
        "f = lambda x, k=2: dist.send(x, k)",
        "try:\n    import numpy\nexcept ImportError:\n    numpy = None",
        "if rank == 0:\n    def f(): ...",
        "def deco(f):\n    'Words.'\n    def g(*a): return f(*a)\n    return g\n@deco\ndef h(): pass",
    ],
)
def test_what_only_defines_may_run_again(code):
    assert all(safe(code))


@pytest.mark.parametrize(
    "code",
    [
        "dist.all_reduce(x)",
        "x = torch.ones(3)",
        "def f(x=load()): pass",
        "def f(x: load()): pass",
        "@register\ndef f(): pass",
        "@app.route('/')\ndef f(): pass",
        "class C:\n    open('file', 'w')",
        "class C:\n    weights = torch.ones(3)",
        "class C(make()): pass",
        "x += 1",
        "for i in range(3): pass",
        "with open('f') as f: pass",
        "while True: pass",
        "print('hi')",
        "get_ipython().run_line_magic('cd', '..')",
        "x = [dist.get_rank() for _ in range(3)]",
        "x = (y := 3)",
        "x = f'{load()}'",
        "model.rate = 0.1",
        "if load():\n    def f(): ...",
        "lambda: 0",
    ],
)
def test_what_calls_or_changes_something_may_not(code):
    assert safe(code)[-1] is False


def test_a_decorator_of_ones_own_that_does_more_than_define_may_not_run_again():
    code = "def deco(f):\n    print(f)\n    return f\n@deco\ndef h(): pass"
    assert safe(code) == [True, False]


def test_a_name_stands_for_what_it_was_bound_to_last():
    assert safe("from functools import cache\n# next cell\ncache = load()\n# next cell\n@cache\ndef f(): pass") == [
        True,
        False,
        False,
    ]
    assert safe("@cache\ndef f(): pass\n# next cell\nfrom functools import cache\n@cache\ndef f(): pass") == [
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("import os.path, numpy as np", ["os", "np"]),
        ("from x import *\nfrom __future__ import annotations", []),
        ("for i in range(3):\n    with a as b:\n        c += 1", ["i", "b", "c"]),
        ("def f(x):\n    y = 1", ["f"]),
        ("class C:\n    y = 1", ["C"]),
        ("x = lambda a: (b := a)", ["x"]),
        ("if (n := 3): m.k = d['x'] = 1", ["n"]),
        ("match x:\n    case [a, *b]: pass", ["a", "b"]),
        ("try: pass\nexcept E as e: pass", ["e"]),
        ("del a, b[0]", ["a"]),
    ],
)
def test_the_names_that_a_statement_binds(code, names):
    assert sorted(n for node in ast.parse(code).body for n in bound(node)) == sorted(names)


def test_names_that_a_function_declares_global_may_hold_anything():
    assert changed_inside(ast.parse("def f():\n    global a, b\n    def g():\n        global c")) == {"a", "b", "c"}


def test_a_cell_is_left_with_its_definitions_line_for_line():
    cell = "import math\nx = make()\n@cache\ndef g(): 1\n\ndef f(n=x()):\n    return math.pi\n\nprint(f(),\n  2)\n"
    kept = ["import math", "", "", "", "", "def f(n=x()):", "    return math.pi", "", "", ""]
    assert only(cell, "f").split("\n") == kept
    assert only("def f(:", "f") == "def f(:", "what cannot be read is left to who runs it"
