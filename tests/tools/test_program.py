"""A notebook's cells as a program: which stand in it, in which order, and what is put around them."""

from __future__ import annotations

import ast

import pytest

from labkit.theory.cells import Cell, assignment, lacking, once, without_replaced
from workbook.tools.script.program import Program, command, program

ALL = (0, 1, 2)


def ran(code: str, number: int = 0, key: str = "", ranks: tuple[int, ...] = ALL, well: bool | None = True) -> Cell:
    return Cell(code, ranks, number, key, well)


def bodies(cells: list[Cell]) -> list[str]:
    return [cell.body for cell in cells]


def written(*codes: str, backend: str = "gloo", ranks: tuple[int, ...] = ALL) -> Program:
    return program([ran(code, ranks=ranks) for code in codes], 3, backend, "mean.py")


def behind(made: Program) -> str:
    """The program's part behind its imports and its group."""
    return made.text.partition("dist.get_world_size()\n")[2]


# -- which cells ----------------------------------------------------------------------------------------------------


def test_cells_that_ran_once_stand_as_they_ran_whatever_they_need():
    cells = [ran("y = x", 1, "a"), ran("x = 1", 2, "b"), ran("y = x", 3), ran("y = x", 4)]
    assert once(cells) == cells


def test_a_cell_that_ran_again_keeps_its_place_and_has_its_last_form():
    assert bodies(once([ran("x = 1", 1, "a"), ran("y = x", 2, "b"), ran("x = 2", 3, "a")])) == ["x = 2", "y = x"]


def test_its_last_form_is_the_last_that_ran_to_its_end_if_one_did():
    first, failed = ran("x = 1", 1, "a"), ran("x = 1 / 0", 2, "a", well=False)
    assert once([first, failed]) == [first]
    assert once([failed, ran("x = y", 3, "a", well=False)])[0].body == "x = y"


def test_a_cell_that_now_needs_a_later_one_comes_behind_it():
    cells = [ran("y = 1", 1, "a"), ran("z = y", 2, "b"), ran("def f():\n    return 2", 3, "c"), ran("y = f()", 4, "a")]
    assert bodies(once(cells)) == ["def f():\n    return 2", "y = f()", "z = y"]


def test_a_notebooks_cell_that_sends_several_is_replaced_as_a_whole():
    cells = [ran("x = 1", 1, "a"), ran("y = 1", 1, "a"), ran("z = 1", 2, "b"), ran("x = 2", 3, "a")]
    assert bodies(once(cells)) == ["x = 2", "z = 1"]


def test_a_definition_that_is_replaced_before_its_use_is_left_out():
    stub, right, call = ran("def f(x):\n    pass"), ran("def f(x):\n    return x"), ran("f(1)")
    assert without_replaced([stub, right, call]) == [right, call]
    assert without_replaced([stub, call, right]) == [stub, call, right]
    alone = ran(right.code, ranks=(1,))
    assert without_replaced([stub, alone, call]) == [stub, alone, call]
    effect = ran("x = torch.ones(2)\ndef f(x):\n    pass")
    assert without_replaced([effect, right]) == [effect, right]


def test_what_no_chosen_cell_makes_is_named_with_the_cell_that_did():
    x, f, call = ran("x = torch.ones(2)", 1), ran("def f():\n    return x + g", 2), ran("[f() for _ in range(rank)]", 3)
    assert lacking([call], [x, f, call]) == {"f": f}
    assert lacking([f, call], [x, f, call]) == {"x": x}
    assert lacking([x, f, call], [x, f, call]) == {}


def test_a_failed_cell_and_what_is_no_python_are_left_out_and_told():
    cells = [
        ran("x = 1"),
        ran("1 / 0", 3, well=False),
        ran("x", 4, well=None),
        ran("!ls", 5),
        ran("# %%px\n%time x", 6),
        ran("import asyncio\nawait asyncio.sleep(0)", 8),
        ran(f"# lab.push\n{assignment('big', object())}", 7),
    ]
    made = program(cells, 3, "gloo", "mean.py")
    assert bodies(list(made.cells)) == ["x = 1"]
    assert [(cell.number, why.split("(")[0].strip()) for cell, why in made.left_out] == [
        (3, "it did not run to its end on all its ranks"),
        (4, "its end was not waited for"),
        (5, "!ls is IPython's, not Python's"),
        (6, "%time is IPython's, not Python's"),
        (8, "it awaits outside of an async def, as only notebooks can"),
        (7, "the value of big came from the notebook"),
    ]
    assert all(f"[{number}] is left out" in made.text for number in range(3, 9))


@pytest.mark.parametrize(
    ("value", "spelt"),
    [
        (0.5, "0.5"),
        ([1, (2, "ü\n")], "[1, (2, 'ü\\n')]"),
        (float("nan"), "…"),
        (float("inf"), "…"),
        ([0] * 10_000, "…"),
        (range(3), "…"),
    ],
)
def test_a_pushed_value_is_spelt_where_python_can(value: object, spelt: str):
    assert assignment("x", value) == f"x = {spelt}"


# -- the text -------------------------------------------------------------------------------------------------------


def test_a_program_is_plain_torch_and_imports_the_workbook_only_for_its_tools():
    plain, tools = written("dist.all_reduce(torch.ones(2))").text, written("timed(lambda: comms.barrier())").text
    assert "labkit" not in plain
    assert [line for line in tools.splitlines() if "labkit" in line] == [
        "from labkit.rank import comms",
        "from labkit.rank.clock import timed",
    ]
    spans = written("with span.layers(model):\n    model(x)").text
    assert [line for line in spans.splitlines() if "labkit" in line] == ["from labkit.rank.spans import span"]


def test_a_gpu_is_used_where_the_lab_used_it():
    assert "cuda" not in written("x").text
    cuda = written("x = torch.ones(1, device=device)", backend="nccl").text
    assert 'dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)' in cuda
    assert 'cpu")' not in cuda
    assert 'device = torch.device("cpu")' in written("x = torch.ones(1, device=device)").text


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("x", "show(x)"),
        ("rank, x", "show((rank, x))"),
        ("(1), (2)", "show(((1), (2)))"),
        ("(\n  'ü' +\n  y\n)  # why", "show((\n  'ü' +\n  y\n))  # why"),
        ("x;", "x;"),
        ("x = 1; x", "x = 1; show(x)"),
        ("print(x)", "print(x)"),
        ("dist.all_reduce(x)", "dist.all_reduce(x)"),
        ("dist.recv(x)", "show(dist.recv(x))"),
        ("dist.all_reduce(x, async_op=True)", "show(dist.all_reduce(x, async_op=True))"),
        ("if x:\n    x", "if x:\n    x"),
        ("show = 1\nshow", "show = 1\nshow_value(show)"),
    ],
)
def test_a_last_line_with_a_value_is_printed(code: str, line: str):
    assert f"\n{line}\n" in behind(written(code))


def test_a_cell_of_some_ranks_stands_in_an_if_and_its_texts_are_as_they_were():
    code = 'text = """a\n  b"""\n\nfor i in range(2):\n    print(f"""{i}\nc""")'
    body, end = behind(written(code, ranks=(1,))).split("\n\n\ndist.destroy_process_group()\n")
    assert body.splitlines()[2:] == [
        *("if rank == 1:", '    text = """a', '  b"""', "", "    for i in range(2):", '        print(f"""{i}', 'c""")'),
    ]
    assert end.endswith("sys.stdout.flush()\nos._exit(0)\n")
    assert "if rank in (0, 2):\n    show(x)" in written("x", ranks=(0, 2)).text


def test_the_next_cell_finds_its_rank_again():
    made = behind(written("for rank in range(3):\n    pass", "rank"))
    assert made.index("rank = dist.get_rank()") < made.index("show(rank)")


def test_an_import_from_the_future_moves_to_the_top():
    made = written("x = 1", "from __future__ import annotations\nx")
    first = next(node for node in ast.parse(made.text).body[1:])
    assert ast.unparse(first) == "from __future__ import annotations"


def test_where_a_cell_came_from_stands_above_it():
    cells = [
        ran("# %%px --targets 1\nx = 1", 3, ranks=(1,)),
        ran("# %%flow x -> y\ny = x", 4),
        ran("# lab.use: f\nf", 5),
    ]
    text = program(cells, 3, "gloo", "mean.py").text
    for line in ("# cell [3], %%px\nif rank == 1:", "# cell [4], %%flow x -> y\n", "# cell [5], lab.use, f\n"):
        assert line in text


def test_the_command_names_the_file_as_a_shell_takes_it():
    assert command("mean.py", 4) == "torchrun --nproc-per-node 4 --tee 3 mean.py"
    assert command("my folder/mean.py", 4).endswith(" 'my folder/mean.py'")
