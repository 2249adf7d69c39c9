"""labkit.rank.comms on real ranks: it does what theory.collectives says, to tensors and to objects."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist

from labkit.theory import collectives as theory
from labkit.theory.values import split
from tests.live.ranks import Each, Ranks

SIZES = (0, 1, 5, 12)
OPS = ("sum", "product", "min", "max", "avg")  # the last not for whole numbers


def buffers(n, size, dtype=torch.float32):
    """Small whole numbers, so that every order of adding them gives the same."""
    generator = torch.Generator().manual_seed(size)
    return [torch.randint(1, 5, (size,), generator=generator).to(dtype) for _ in range(n)]


def plain(x):
    """Tensors and arrays as nested lists, to compare."""
    if isinstance(x, (list, tuple)):
        return [plain(v) for v in x]
    return x.tolist() if isinstance(x, (torch.Tensor, np.ndarray)) else x


def arrays(xs):
    return [x.numpy() if isinstance(x, torch.Tensor) else [c.numpy() for c in x] for x in xs]


# What it means


@pytest.mark.parametrize(
    ("op", "dtype"),
    [(op, dtype) for op in OPS for dtype in (torch.float32, torch.float64, torch.int64)][:-1],
    ids=str,
)
def test_reductions_mean_what_theory_says(ranks, op, dtype):
    for size in SIZES:
        xs = buffers(ranks.n, size, dtype)
        chunks = [x.tensor_split(ranks.n) for x in xs]
        code = "comms.all_reduce(x, op), comms.reduce(x, 1, op), comms.reduce_scatter(chunks, op)"
        everyone, root, mine = zip(*ranks(code, x=Each(xs), chunks=Each(chunks), op=op), strict=True)
        assert plain(everyone) == plain(theory.all_reduce(arrays(xs), op))
        assert plain(root) == plain(theory.reduce(arrays(xs), 1, op))
        assert plain(mine) == plain(theory.reduce_scatter(arrays(chunks), op))
        assert all(out.dtype == dtype for out in (*everyone, *mine))


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.float16, torch.bfloat16], ids=str)
def test_small_numbers_add_up_in_every_common_dtype(ranks, dtype):
    xs = buffers(ranks.n, 5, dtype)
    outs = ranks("comms.all_reduce(x)", x=Each(xs))
    assert plain(outs) == plain(theory.all_reduce([x.tolist() for x in xs]))
    assert {out.dtype for out in outs} == {dtype}


@pytest.mark.parametrize("op", ["band", "bor", "bxor"])
def test_bitwise_reductions_work_on_whole_numbers_and_bools(ranks, op):
    xs = buffers(ranks.n, 5, torch.int64)
    assert plain(ranks("comms.all_reduce(x, op)", x=Each(xs), op=op)) == plain(theory.all_reduce(arrays(xs), op))
    flags = [x > 2 for x in xs]
    assert plain(ranks("comms.all_reduce(x, op)", x=Each(flags), op=op)) == plain(theory.all_reduce(arrays(flags), op))


def test_an_op_may_be_torchs_own_and_the_mean_has_two_names(three):
    code = "x = torch.ones(2) * rank; [comms.all_reduce(x, op).tolist() for op in ops]"
    ops = [dist.ReduceOp.MAX, dist.ReduceOp.AVG, "MEAN", "avg", "Prod"]
    assert three(code, ops=ops) == [[[2, 2], [1, 1], [1, 1], [1, 1], [0, 0]]] * 3


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.int64, torch.bool, torch.int16, torch.uint16, torch.complex64, torch.float8_e4m3fn],
    ids=str,
)
def test_moving_tensors_means_what_theory_says_for_every_dtype(ranks, dtype):
    n, last = ranks.n, ranks.n - 1
    code = f"""
x = x.to({dtype})
chunks = x.tensor_split(world_size)
outs = [
    [comms.broadcast(x, src={last})], comms.gather(x, dst={last}) or [], comms.all_gather(x),
    [comms.scatter(chunks, src={last})], comms.all_to_all(chunks),
]
assert {{t.dtype for out in outs for t in out}} == {{x.dtype}}
[[t.to(torch.complex64).real.tolist() for t in out] for out in outs]
"""
    for size in SIZES:
        xs = [x % 2 for x in buffers(n, size)]  # what bool can hold as well
        values = [x.tolist() for x in xs]
        chunks = [split(x, n) for x in values]
        expected = [
            [[x] for x in theory.broadcast(values, last)],
            [x or [] for x in theory.gather(values, last)],
            theory.all_gather(values),
            [[x] for x in theory.scatter(chunks, last)],
            theory.all_to_all(chunks),
        ]
        assert ranks(code, x=Each(xs)) == [list(per_rank) for per_rank in zip(*expected, strict=True)]


def test_shapes_may_differ_where_nothing_is_reduced(ranks):
    code = """
mine = torch.full((rank, 2), rank)
chunks = [torch.full((rank + 1, q), 10 * rank + q) for q in range(world_size)]
comms.gather(mine), comms.all_gather(mine), comms.scatter(chunks), comms.all_to_all(chunks)
"""
    n = ranks.n
    for r, (gathered, everyone, chunk, received) in enumerate(ranks(code)):
        assert [tuple(t.shape) for t in everyone] == [(q, 2) for q in range(n)]
        assert plain(gathered) == (plain(everyone) if r == 0 else None)
        assert plain(chunk) == [[r] * r]
        assert plain(received) == [[[10 * q + r] * r] * (q + 1) for q in range(n)]


def test_what_came_in_stays_as_it_was_and_what_comes_out_is_ones_own(ranks):
    code = """
x = torch.ones(world_size)
chunks = list(x.split(1))
outs = [comms.all_reduce(x), comms.reduce(x), comms.broadcast(x), comms.reduce_scatter(chunks)]
outs += [comms.scatter(chunks), *comms.all_gather(x), *comms.all_to_all(chunks), *(comms.gather(x) or [])]
for out in outs:
    if out is not None:
        out.fill_(7)
x.tolist()
"""
    assert ranks(code) == [[1.0] * ranks.n] * ranks.n


def test_strided_and_zero_dimensional_tensors_travel(three):
    code = """
x = torch.arange(6.).reshape(2, 3).T + rank
[comms.all_gather(x)[2], comms.all_reduce(torch.tensor(rank)), comms.broadcast(x[:, 1], 1)]
"""
    assert plain(three(code)) == [[[[2, 5], [3, 6], [4, 7]], 3, [4, 5, 6]]] * 3


def test_five_ranks_agree_too():
    with Ranks(5) as five:
        xs = buffers(5, 7)
        code = "comms.all_reduce(x), comms.reduce_scatter(x.tensor_split(5)), comms.all_gather(x)"
        totals, mine, everyone = zip(*five(code, x=Each(xs)), strict=True)
    assert plain(totals) == plain(theory.all_reduce(arrays(xs)))
    assert plain(mine) == plain(theory.reduce_scatter([split(x.numpy(), 5) for x in xs]))
    assert plain(everyone) == plain(theory.all_gather(arrays(xs)))


# Laws


def test_an_all_gather_of_a_reduce_scatter_is_an_all_reduce(ranks):
    code = """
kept = comms.reduce_scatter(x.tensor_split(world_size))
torch.equal(torch.cat(comms.all_gather(kept)), comms.all_reduce(x))
"""
    assert all(ranks(code, x=Each(buffers(ranks.n, 11))))


def test_all_to_all_twice_is_the_identity(ranks):
    code = "torch.equal(torch.cat(comms.all_to_all(comms.all_to_all(x.tensor_split(world_size)))), x)"
    assert all(ranks(code, x=Each(buffers(ranks.n, 11))))


def test_scatter_undoes_gather(ranks):
    assert ranks("comms.scatter(comms.gather({rank: 'mine'}, dst=1), src=1)") == [{r: "mine"} for r in range(ranks.n)]


# Objects


def test_objects_travel_like_tensors(ranks):
    n = ranks.n
    code = """
[comms.broadcast({"lr": 0.1} if rank == 1 else None, src=1),
 comms.gather("x" * rank, dst=1),
 comms.all_gather(None if rank else [1]),
 comms.scatter([list(range(q)) for q in range(world_size)] if rank == 0 else None),
 comms.all_to_all([(rank, q) for q in range(world_size)])]
"""
    xs = [[(r, q) for q in range(n)] for r in range(n)]
    expected = zip(
        [{"lr": 0.1}] * n,
        theory.gather(["x" * r for r in range(n)], 1),
        theory.all_gather([[1]] + [None] * (n - 1)),
        [list(range(q)) for q in range(n)],
        theory.all_to_all(xs),
        strict=True,
    )
    assert plain(ranks(code)) == plain(list(expected))


def test_python_numbers_and_lists_of_them_are_reduced(ranks):
    n = ranks.n
    code = """
mine = comms.reduce_scatter(list(range(world_size)))
comms.all_reduce(rank), comms.all_reduce([rank, 1], "mean"), comms.reduce(rank, 1, "max"), mine
"""
    for r, out in enumerate(ranks(code)):
        assert out == (n * (n - 1) // 2, [(n - 1) / 2, 1.0], n - 1 if r == 1 else None, n * r)


def test_a_state_dict_with_its_buffers_arrives_whole(three):
    code = """
torch.manual_seed(rank)
model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
model(torch.randn(4, 3) + rank)
model.load_state_dict(comms.broadcast(model.state_dict() if rank == 0 else None))
[v.tolist() for v in model.state_dict().values()]
"""
    first, *others = three(code)
    assert others == [first, first]


def test_an_object_of_a_megabyte_needs_no_care(three):
    assert three("[len(x) for x in comms.all_gather(bytes(rank * 10**6))]") == [[0, 10**6, 2 * 10**6]] * 3


# Point to point and groups


def test_a_value_goes_round_the_ring(ranks):
    code = """
right, left = (rank + 1) % world_size, (rank - 1) % world_size
if rank == 0:
    comms.send(x, right)
    got = comms.recv(left)
else:
    got = comms.recv(left)
    comms.send(got, right)
got
"""
    for x in (torch.arange(5), torch.zeros(0), {"step": 3}, torch.ones(2, 2, dtype=torch.float16), None):
        assert all(plain(got) == plain(x) for got in ranks(code, x=x))


def test_roots_are_ranks_of_the_world_also_in_a_group(three):
    code = """
pair = dist.new_group([1, 2])
if rank:
    outs = [
        comms.broadcast(rank, src=2, group=pair), comms.gather(torch.tensor([rank]), dst=2, group=pair),
        comms.reduce(torch.tensor([rank]), dst=1, group=pair), comms.scatter(["a", "b"], src=1, group=pair),
        comms.all_reduce(rank, group=pair), comms.send("x", 2, pair) if rank == 1 else comms.recv(1, pair),
    ]
outs if rank else None
"""
    nothing, one, two = three(code)
    assert nothing is None
    assert plain(one) == [2, None, [3], "a", 3, None]
    assert plain(two) == [2, [[1], [2]], None, "b", 3, "x"]


def test_a_rank_outside_the_group_is_told_so(three):
    code = "pair = dist.new_group([1, 2]); comms.all_reduce(rank, group=pair)"
    assert three.outcomes(code) == [
        "This rank is not in the group. Call on the group's own ranks only.",
        3,
        3,
    ]
