"""`lab.wire` on live ranks: the kernel's bytes are the textbook's, for every collective, to 1 % from 1 MiB on."""

from __future__ import annotations

import numpy as np
import pytest

import labkit
from labkit.floor.errors import CellError, LabError
from labkit.theory.primitives import PRIMITIVES

MIB = 2**20
# op → (what a rank does with its x of S bytes, S/N bytes a chunk; the root)
CALLS = {
    "broadcast": ("dist.broadcast(x, 1)", 1),
    "reduce": ("dist.reduce(x, 1)", 1),
    "all_reduce": ("dist.all_reduce(x)", 0),
    "gather": ("dist.gather(mine, chunks if rank == 1 else None, dst=1)", 1),
    "scatter": ("dist.scatter(mine, chunks if rank == 1 else None, src=1)", 1),
    "all_gather": ("dist.all_gather(chunks, mine)", 0),
    "all_to_all": ("dist.all_to_all_single(torch.empty_like(x), x)", 0),
}


@pytest.fixture(scope="module", params=[2, 3, 4, 5])
def ranks(request):
    with labkit.start(request.param) as lab:
        yield lab


def near(seen: object, wanted: object) -> bool:
    """To 1 % wherever the textbook moves data, and headers alone elsewhere."""
    a, b = np.array(seen, float), np.array(wanted, float)
    return bool((np.abs(a - b) <= np.where(b > 0, 0.01 * b, 0.005 * MIB)).all())


def fill(lab: labkit.Lab, nbytes: int) -> int:
    """Give each rank x of about so many bytes, in as many chunks as ranks; the exact number."""
    part = nbytes // 4 // lab.n
    lab.run(f"x = torch.ones({part} * world_size); chunks = list(x.chunk(world_size)); mine = chunks[rank].clone()")
    return 4 * part * lab.n


@pytest.mark.parametrize("mib", [1, 4])
@pytest.mark.parametrize("op", CALLS)
def test_a_collective_sends_the_textbooks_bytes(ranks, op, mib):
    nbytes = fill(ranks, mib * MIB)
    code, root = CALLS[op]
    wire = ranks.wire(code)
    assert near(wire.matrix, PRIMITIVES[op].traffic(ranks.n, nbytes, root))
    assert near(wire.textbook, PRIMITIVES[op].traffic(ranks.n, nbytes, root))
    assert "counted: for each pair the textbook's bytes, to 1 %" in wire.notes


@pytest.mark.parametrize("call", ["_single(torch.empty_like(mine), x)", "(torch.empty_like(mine), chunks)"])
def test_a_reduce_scatter_on_gloo_is_seen_to_be_an_all_reduce(ranks, call):
    nbytes = fill(ranks, 2 * MIB)
    wire = ranks.wire(f"dist.reduce_scatter{call}")
    assert near(wire.matrix, PRIMITIVES["all_reduce"].traffic(ranks.n, nbytes))
    assert "counted: 2.0 times the textbook's bytes" in wire.notes
    assert any("textbook's bytes for all_reduce of the same buffer" in note for note in wire.notes)


def test_messages_are_counted_from_rank_to_rank(ranks):
    nbytes = fill(ranks, MIB)
    wire = ranks.wire("if rank == 1: dist.send(x, 0)\nif rank == 0: dist.recv(x, 1);")
    wanted = np.zeros((ranks.n, ranks.n))
    wanted[1, 0] = nbytes
    assert near(wire.matrix, wanted)
    assert near(wire.textbook, wanted)
    assert wire.form == "rank 1 to rank 0"


def test_several_calls_of_a_cell_are_added(ranks):
    nbytes = fill(ranks, MIB)
    wire = ranks.wire("for _ in range(3): dist.all_reduce(x)\ndist.broadcast(x, 0)")
    wanted = 3 * PRIMITIVES["all_reduce"].traffic(ranks.n, nbytes) + PRIMITIVES["broadcast"].traffic(ranks.n, nbytes)
    assert near(wire.matrix, wanted)
    assert near(wire.textbook, wanted)
    assert wire.total == sum(wire.sent) == sum(wire.received)


def test_a_sub_groups_bytes_are_counted_also_where_the_cell_makes_it(lab):
    nbytes = fill(lab, 2 * MIB)
    code = "g = dist.new_group([0, 2])\nif rank != 1: dist.all_reduce(x, group=g)"
    for again in (code, code.splitlines()[1]):
        wire = lab.wire(again)
        wanted = np.zeros((3, 3))
        wanted[0, 2] = wanted[2, 0] = nbytes
        assert near(wire.matrix, wanted)
        assert near(wire.textbook, wanted)
    assert wire.form == "each rank to each other one among ranks 0, 2"


def test_a_group_that_ends_in_the_cell_is_said_not_to_be_counted(lab):
    lab.run("g = dist.new_group([0, 1])")
    wire = lab.wire(
        "if rank < 2: dist.all_reduce(torch.ones(2**18), group=g)\nif rank < 2: dist.destroy_process_group(g)\ng = None"
    )
    assert wire.notes[-1].startswith("connections were closed in this cell")


def test_two_runs_say_the_same(lab):
    fill(lab, MIB)
    assert repr(lab.wire("dist.all_reduce(x)")) == repr(lab.wire("dist.all_reduce(x)"))
    assert repr(lab.wire("dist.barrier()")) == repr(lab.wire("dist.barrier()"))


def test_objects_count_as_the_bytes_that_carry_them(lab):
    assert lab.wire("dist.broadcast_object_list([rank])").textbook == [[0, 13, 13], [0, 0, 0], [0, 0, 0]]


def test_what_cannot_be_known_is_said(lab):
    assert lab.wire("pass").notes == ["nothing was sent"]
    wire = lab.wire("dist.group.WORLD.broadcast(torch.ones(4), 2).wait()")  # whose record names no root
    assert wire.textbook is None
    assert wire.notes[-1] == "the textbook has no figure for ProcessGroup.broadcast"
    with pytest.raises(LabError, match="no code to run"):
        lab.wire(" ")


def test_an_error_of_the_cell_is_raised_and_the_next_one_is_counted(lab):
    with pytest.raises(CellError, match="ZeroDivisionError"):
        lab.wire("1 / 0 if rank == 1 else dist.barrier()")
    nbytes = fill(lab, MIB)
    wire = lab.wire("dist.all_reduce(x)")
    assert near(wire.matrix, PRIMITIVES["all_reduce"].traffic(3, nbytes))


def test_any_connection_between_ranks_is_counted_and_what_nobody_receives_is_said(lab):
    wire = lab.wire(
        "import socket, threading\n"
        "if rank == 0:\n"
        "    door = socket.create_server(('127.0.0.1', 0))\n"
        "    dist.broadcast_object_list([door.getsockname()])\n"
        "    held, _ = door.accept()\n"
        "    dist.barrier()\n"
        "else:\n"
        "    told = [None]; dist.broadcast_object_list(told)\n"
        "    if rank == 1:\n"
        "        end = socket.create_connection(told[0])\n"
        "        end.setblocking(False)\n"
        "        while True:\n"
        "            try: end.send(bytes(2**20))\n"
        "            except BlockingIOError: break\n"
        "    dist.barrier()"
    )
    assert wire.matrix[1][0] > 2**16
    assert wire.notes[-1] == "not all that was sent has arrived: a rank sends what no rank receives"
    lab.run("if rank < 2: (held if rank == 0 else end).close()")


def test_what_is_still_under_way_when_the_cell_ends_is_waited_for(lab):
    nbytes = fill(lab, 64 * MIB)
    wire = lab.wire("work = dist.isend(x, 1) if rank == 0 else dist.irecv(x, 0) if rank == 1 else None")
    assert abs(wire.matrix[0][1] - nbytes) < 0.01 * nbytes
    assert "counted: for each pair the textbook's bytes, to 1 %" in wire.notes
    lab.run("if rank < 2: work.wait();")
