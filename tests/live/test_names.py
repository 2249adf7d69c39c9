"""The collectives on flat buffers, under the names of the torch that is installed."""

from __future__ import annotations

import torch.distributed as dist

from labkit.rank import names
from tests.live.ranks import Ranks


def test_older_torch_is_called_by_its_own_names(monkeypatch):
    called = []
    for new, old in (
        ("all_gather_single", "all_gather_into_tensor"),
        ("reduce_scatter_single", "reduce_scatter_tensor"),
    ):
        monkeypatch.delattr(dist, new, raising=False)
        monkeypatch.setattr(dist, old, lambda *args, old=old, **kwargs: called.append((old, args, kwargs)))
    names.all_gather_single("out", "in", group=None)
    names.reduce_scatter_single("out", "in", op="sum")
    assert called == [
        ("all_gather_into_tensor", ("out", "in"), {"group": None}),
        ("reduce_scatter_tensor", ("out", "in"), {"op": "sum"}),
    ]


def test_this_torch_gathers_and_reduces_flat_buffers_without_a_warning():
    code = """
from labkit.rank import names
flat, mine = torch.empty(6), torch.empty(2)
names.all_gather_single(flat, torch.ones(2) * rank)
names.reduce_scatter_single(mine, torch.arange(6.))
flat.tolist(), mine.tolist()
"""
    with Ranks(3) as three:
        outs = three(code)
    assert outs == [([0, 0, 1, 1, 2, 2], [6 * r, 6 * r + 3]) for r in range(3)]


def test_a_rank_joins_without_a_warning(tmp_path):
    code = "from labkit.rank import group\ngroup.join(rank, world_size, 'gloo', meeting, 5.0)['backend']"
    with Ranks(2) as two:
        assert two(code, meeting=str(tmp_path / "store")) == ["gloo"] * 2


def test_a_scaled_sum_is_made_in_both_spellings_and_refused_by_gloo(monkeypatch):
    code = """
from labkit.rank import names
try:
    dist.all_reduce(torch.ones(1), op=names.premul_sum(0.5))
except RuntimeError as error:
    said = str(error)
said
"""
    with Ranks(2) as two:
        assert two(code) == ["Cannot use ReduceOp.PREMUL_SUM with Gloo"] * 2
    monkeypatch.setattr(dist.ReduceOp, "PREMUL_SUM", "an older torch's, which takes no factor")
    assert isinstance(names.premul_sum(0.5), dist.ReduceOp)
