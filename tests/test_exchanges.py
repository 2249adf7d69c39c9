"""The workbook's own exchanges hold on NCCL: both transfers of one are one call, or a lesson says why not."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.theory.record import read
from tests.nccl_exchanges import faults
from tests.notebooks import NOTEBOOKS, cells
from tests.recorded import Told, told

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = [*(ROOT / "notebooks" / "scripts").glob("*.py"), *(ROOT / "benchmarks" / "programs").glob("*.py")]
CALLS = ("send", "recv", "isend", "irecv")
# By cell, or by file and function.
SINGLE = {
    "02-32": "one rank sends and another one receives",
    "14c-09": "the exam's program hangs on Gloo by its tags, and on NCCL by its single calls",
    "15c-24": "1F1B with short messages, whose sends do not wait: the lesson says what longer ones need",
    "15c-25": "the same",
    "cs-06": "one rank sends and another one receives",
}


def batch(told: Told, *ops: tuple[str, int], tags: tuple[int, ...] = (0, 0)) -> Told:
    """A rank's log with these sends and receives in one batch."""
    for i, (kind, peer) in enumerate(ops):
        told._call("i" + kind, kind, 0, 1, peer=peer, batch=True, issued=told.clock + 1 - i, tag=tags[i])
    return told


def ring(n: int, steps: int = 1, batches: bool = False) -> list[Told]:
    """All send to the right first, or do both in one call."""
    ranks = [Told(n) for _ in range(n)]
    for r, it in enumerate(ranks * steps):
        right, left = (r + 1) % n, (r - 1) % n
        batch(it, ("send", right), ("recv", left)) if batches else it.send(right).recv(left)
    return ranks


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("short", [False, True])
def test_a_ring_in_which_all_send_first_is_held_up_and_one_in_batches_is_not(n, short):
    assert faults(read(told(*ring(n))), short) == [f"rank {r} is held up in send" for r in range(n)]
    assert faults(read(told(*ring(n, 3, True))), short) == []


def test_what_was_seen_on_an_h200_with_four_ranks_is_what_the_stand_in_says():
    line = [Told(4) for _ in range(4)]
    for r, it in enumerate(line):  # lesson 02: down the line, then round the closed ring
        if r < 3:
            it.send(r + 1)
        if r > 0:
            it.recv(r - 1)
    closed = [it.send((r + 1) % 4).recv((r - 1) % 4) for r, it in enumerate(line)]
    assert faults(read(told(*closed)), short=True) == []
    assert faults(read(told(*closed)))
    pat = [Told(4).send(r ^ 2).recv(r ^ 2) for r in range(4)]  # lesson 15b, as it was
    assert len(faults(read(told(*pat)), short=True)) == 4


def test_a_chain_holds_and_so_does_a_ring_in_which_one_receives_first():
    chain = [Told(3).send(1).send(1), Told(3).recv(0).send(2).recv(0).send(2), Told(3).recv(1).recv(1)]
    assert faults(read(told(*chain))) == []
    ring = [Told(3).recv(2).send(1), Told(3).send(2).recv(0), Told(3).send(0).recv(1)]
    assert faults(read(told(*ring))) == []


def test_two_neighbours_that_send_to_each_other_get_through_once_connected_if_messages_are_short():
    pair = [Told(2).send(1).recv(1).send(1).recv(1), Told(2).recv(0).send(0).send(0).recv(0)]
    assert faults(read(told(*pair)), short=True) == []
    assert faults(read(told(*pair))) == ["rank 0 is held up in send", "rank 1 is held up in send"]


def test_messages_that_only_their_tags_tell_apart_are_taken_for_one_another():
    crossed = [
        batch(Told(2), ("send", 1), ("send", 1), tags=(0, 1)),
        batch(Told(2), ("recv", 0), ("recv", 0), tags=(1, 0)),
    ]
    assert faults(read(told(*crossed))) == ["rank 1 takes a message by its tag"] * 2


def places() -> Iterator[tuple[str, ast.AST]]:
    """Each function, or cell without one, of the notebooks and programs, with the name of its place."""
    for path in NOTEBOOKS.values():
        for cell in cells(path):
            if cell.cell_type == "code":
                body = "".join(line for line in cell.source.splitlines(True) if not line.startswith(("%", "!")))
                yield from ((cell.id, one) for one in apart(ast.parse(body)))
    for path in PROGRAMS:
        yield from ((f"{path.name} {getattr(one, 'name', '')}", one) for one in apart(ast.parse(path.read_text())))


def apart(tree: ast.Module) -> list[ast.AST]:
    """A program's functions, or the program if it has none."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)] or [tree]


def test_no_cell_and_no_program_makes_an_exchange_of_single_calls():
    found = set()
    for place, tree in places():
        calls = [node.func.attr for node in ast.walk(tree) if isinstance(node, ast.Call) and _direct(node)]
        if len(calls) > 1 and {"isend", "irecv"} & set(calls):
            found.add(place)
    assert found == set(SINGLE)


def _direct(call: ast.Call) -> bool:
    """Whether it is `dist.isend(…)`, and not an argument to P2POp."""
    made = call.func
    return isinstance(made, ast.Attribute) and made.attr in CALLS and getattr(made.value, "id", "") == "dist"
