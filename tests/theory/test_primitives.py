"""The table of primitives: every name finds its row, and what the rows say is what the meanings do."""

from __future__ import annotations

import pytest

from labkit.floor.errors import LabError
from labkit.theory import collectives
from labkit.theory.origin import Origin
from labkit.theory.primitives import MEANINGS, PART, PARTS, PRIMITIVES, WHOLE, find, meaning, meant
from labkit.theory.values import cut

WITH_MEANING = [PRIMITIVES[name] for name in MEANINGS]


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("all_gather_into_tensor", "all_gather"),
        ("comms.all_gather", "all_gather"),
        ("dist.all_gather", "all_gather"),
        ("torch.distributed.all_gather_single", "all_gather"),
        ("all_gather_tensor_autograd", "all_gather"),
        ("nccl:_all_gather_base", "all_gather"),
        ("nccl:all_gather_into_tensor_coalesced", "all_gather"),
        ("gloo:all_gather", "all_gather"),
        ("allreduce_", "all_reduce"),
        ("c10d::allreduce_", "all_reduce"),
        ("_c10d_functional::all_reduce_.default", "all_reduce"),
        ("gloo:sparse_all_reduce", "all_reduce"),
        ("nccl:all_reduce_barrier", "barrier"),
        ("nccl:_broadcast_oop", "broadcast"),
        ("nccl:_reduce_scatter_base", "reduce_scatter"),
        ("nccl:send 0->1", "send"),
        ("nccl:recv 0<-1", "recv"),
        ("gloo:recvAnySource", "recv"),
        ("alltoall_base", "all_to_all"),
        ("batch_isend_irecv", "send_recv"),
        ("gather_object", "gather_object"),
        ("monitored_barrier", "barrier"),
    ],
)
def test_any_spelling_finds_its_row(name, row):
    assert find(name) is PRIMITIVES[row]


@pytest.mark.parametrize("name", ["wait", "", "nccl:coalesced", "all_sum", "reduce_all", "object"])
def test_what_is_no_primitive_has_no_row(name):
    assert find(name) is None


def test_no_spelling_has_two_rows():
    spellings = [s.strip("_") for p in PRIMITIVES.values() for s in p.spellings]
    assert len(spellings) == len(set(spellings))


@pytest.mark.parametrize("primitive", WITH_MEANING, ids=lambda p: p.name)
def test_a_row_brings_and_gets_what_the_meaning_reads_and_returns(primitive):
    n, root = 3, 1
    sizes = {WHOLE: [6], PART: [2], PARTS: [2, 2, 2]}[primitive.brings]
    xs = [
        [Origin(r, i) for i in range(sum(sizes))] if len(sizes) == 1 else cut([Origin(r, i) for i in range(6)], sizes)
        for r in range(n)
    ]
    out = primitive.meaning(xs, **({"root": root} if primitive.rooted else {}))
    assert [o is None for o in out] == [primitive.to_root and r != root for r in range(n)]
    got = out[root]
    assert {WHOLE: len(got) == 6, PART: len(got) == 2, PARTS: [len(c) for c in got if isinstance(c, list)] == [2] * 3}[
        primitive.gets
    ]
    flat = [o for x in got for o in (x if isinstance(x, list) else [x])]
    assert all((len(o.ranks) == n) == primitive.reduces for o in flat)
    assert {s for o in flat for s in o.ranks} <= ({root} if primitive.from_root else set(range(n)))


@pytest.mark.parametrize("primitive", WITH_MEANING, ids=lambda p: p.name)
def test_a_rank_needs_those_whose_data_it_gets(primitive):
    n, root = 4, 2
    brought = [[Origin(r, c) for c in range(n)] for r in range(n)]
    out = primitive.meaning(brought, **({"root": root} if primitive.rooted else {}))
    for r, got in enumerate(out):
        flat = [o for x in (got or []) for o in (x if isinstance(x, list) else [x])] if isinstance(got, list) else [got]
        assert {s for o in flat if o is not None for s in o.ranks} - {r} == primitive.needs(r, root, range(n))


def test_a_meaning_is_found_by_its_name_and_by_its_function():
    for name in MEANINGS:
        function = getattr(collectives, name)
        assert meaning(name) is meaning(function) is function
        assert meant(name) is meant(function) is PRIMITIVES[name]
    assert meaning(sorted) is sorted
    assert meant(sorted) is None
    for unknown in ("all_sum", "barrier", "send_recv", "broadcast_object_list"):
        with pytest.raises(LabError, match="Use one of broadcast, reduce, all_reduce"):
            meaning(unknown)


def test_what_has_no_textbook_figure_is_refused():
    with pytest.raises(LabError, match="Use one of broadcast"):
        PRIMITIVES["send"].traffic(4, 1.0)
    with pytest.raises(LabError, match="Choose one of 0 to n - 1"):
        PRIMITIVES["gather"].traffic(4, 1.0, root=4)
