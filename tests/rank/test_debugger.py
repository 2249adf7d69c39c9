"""A rank's debugger in code that runs as IPython runs a cell, by statements; what is typed is given beforehand."""

from __future__ import annotations

import ast
import linecache
import sys

import pytest

from labkit.rank import debugger

CELL, EARLIER = "/tmp/ipykernel_7/cell.py", "/tmp/ipykernel_7/earlier.py"
DOUBLE = "def double(a):\n    b = a * 2\n    return b\n"
CODE = "x = 3\ny = double(x)\nfor i in range(2):\n    y += i\nz = y\n"


@pytest.fixture(autouse=True)
def in_a_group(monkeypatch):
    """The lab has not broken off this process, which is no rank; and these tests are nobody's code."""
    monkeypatch.setattr(debugger, "is_learners", lambda frame: debugger.is_cell(frame.f_code.co_filename))
    monkeypatch.setattr(debugger.group, "aborted", lambda: False)
    before = sys.gettrace()
    yield
    sys.settrace(before)


def run(code: str, space: dict, file: str) -> None:
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    for node in ast.parse(code).body:
        exec(compile(ast.Module([node], []), file, "exec"), space)


class Typed(debugger.Wire):
    """What was typed beforehand, and nothing after it."""

    def __init__(self, *lines: str) -> None:
        super().__init__()
        self.left_over = [f"{line}\n" for line in lines]

    def readline(self) -> str:
        assert self.left_over, f"it stops once more: {self._text}"
        return self.left_over.pop(0)


def typed(*lines: str, code: str = CODE, first: bool = True) -> tuple[str, dict]:
    """What the debugger says while a cell runs and these lines are typed; and the cell's names."""
    prompt = debugger.Prompt(wire := Typed(*lines))

    def here() -> None:
        prompt.here(sys._getframe(1))

    space = {"__name__": "__main__", "here": here}
    run(DOUBLE, space, EARLIER)
    if first:
        prompt.at_first_line()
    try:
        run(code, space, CELL)
    finally:
        sys.settrace(None)
        prompt.clear_all_breaks()
    assert not wire.left_over, "all that was typed was taken"
    wire.stands = True
    return wire.put(0)["said"].replace("(Pdb) ", ""), space


def test_it_stops_at_the_first_line_and_steps_from_statement_to_statement():
    said, space = typed("n", "p x", "n", "n", "n", "n", "n", "n", "c")
    lines = ["1\n-> x = 3", "2\n-> y = double(x)", "3\n-> for i in range(2):", "4\n-> y += i"]
    lines += ["3\n-> for i in range(2):", "4\n-> y += i", "3\n-> for i in range(2):", "5\n-> z = y"]
    stops = [f"> line {line}\n" for line in lines]
    assert said == "".join([*stops[:2], "3\n", *stops[2:]])
    assert space["z"] == 7


def test_it_steps_into_the_learners_functions_and_back_and_says_which_cell_they_are_of():
    said, space = typed("n", "s", "n", "w", "u", "p x", "d", "p a", "n", "n", "n", "p y", "c")
    assert said.endswith(
        "--Call--\n> line 1 of an earlier cell, in double()\n-> def double(a):\n"
        "> line 2 of an earlier cell, in double()\n-> b = a * 2\n"
        "  line 2\n-> y = double(x)\n> line 2 of an earlier cell, in double()\n-> b = a * 2\n"
        "> line 2\n-> y = double(x)\n3\n"
        "> line 2 of an earlier cell, in double()\n-> b = a * 2\n3\n"
        "> line 3 of an earlier cell, in double()\n-> return b\n"
        "--Return--\n> line 3 of an earlier cell, in double()->6\n-> return b\n"
        "> line 3\n-> for i in range(2):\n6\n"
    )
    assert space["z"] == 7


def test_it_steps_over_a_librarys_functions_and_into_those_that_a_library_calls():
    code = "import statistics\nm = statistics.mean([1, 2])\nk = sorted([2, 1], key=lambda v: -v)\n"
    said, space = typed("n", "s", "s", "s", "c", code=code)
    assert [line for line in said.splitlines() if line.startswith(">")] == [
        "> line 1", "> line 2", "> line 3", "> line 3, in <lambda>()", "> line 3, in <lambda>()",
    ]  # fmt: skip
    assert (space["m"], space["k"]) == (1.5, [2, 1])


def test_a_breakpoint_stops_in_its_own_line_and_the_last_one_too():
    said, _ = typed("p i", "c", "n", code="for i in range(2):\n    if i: here()\nhere()\n", first=False)
    assert said == "> line 2\n-> if i: here()\n1\n> line 3\n-> here()\n"


def test_a_breakpoint_that_is_stepped_on_does_not_stop_twice():
    said, _ = typed("n", "n", "c", code="x = 1\nhere()\ny = 2\n")
    assert said == "> line 1\n-> x = 1\n> line 2\n-> here()\n> line 3\n-> y = 2\n"


def test_a_breakpoint_in_a_function_that_is_stepped_over_stops():
    said, _ = typed("n", "n", "c", code="def f():\n    here()\n    return 1\ny = f()\n")
    assert said.endswith("> line 4\n-> y = f()\n> line 2, in f()\n-> here()\n")


def test_variables_are_the_cells_and_a_breakpoint_may_be_set():
    said, space = typed("b 5", "c", "!y = 40", "y", "c")
    assert said.endswith("> line 5\n-> z = y\n40\n")
    assert space["z"] == 40


def test_an_error_stops_where_it_is_raised():
    code = "def f():\n    1 / 0\nf()\n"
    with pytest.raises(ZeroDivisionError):
        typed("n", "n", "c", code=code)


def test_quitting_is_told_and_ends_nothing_by_itself():
    prompt = debugger.Prompt(debugger.Wire())
    assert [prompt.onecmd(line) for line in ("q", "quit", "exit", "EOF")] == [False] * 4
    assert prompt.wire.put(0)["left"]


@pytest.mark.parametrize("line", ["run", "restart", "interact"])
def test_what_no_rank_can_do_is_refused_and_says_what_can_be_done(line):
    said, space = typed(line, "c")
    assert "*** " in said
    assert "prompt" in said
    assert space["z"] == 7


def test_where_the_lab_frees_a_rank_the_debugger_asks_nothing_any_more(monkeypatch):
    monkeypatch.setattr(debugger.group, "aborted", lambda: True)
    said, space = typed()
    assert (said, space["z"]) == ("", 7)


def test_an_interrupt_at_the_prompt_leaves_it(monkeypatch):
    def pressed(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Typed, "readline", pressed)
    with pytest.raises(KeyboardInterrupt):
        typed()


def test_a_line_that_is_given_means_that_the_rank_stands_no_more():
    wire = debugger.Wire()
    wire.write("> line 1\n(Pdb) ")
    assert wire.put(0) == {"stands": False, "stop": 0, "said": "> line 1\n", "left": False}
    wire.stands = True
    assert wire.put(9)["said"] == "(Pdb) "
    assert wire.put(15, "n\n")["stands"] is False
    assert wire.readline() == "n\n"
    assert wire.put(0)["said"] == "> line 1\n", "an answer that was lost is told once more"
