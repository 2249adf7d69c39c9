"""How ranks join a process group."""

from __future__ import annotations

from tests.live.ranks import Ranks


def test_a_rank_joins_without_a_warning(tmp_path):
    met = "dist.barrier()\n"  # nobody leaves the old group before the other has joined it
    code = f"{met}from labkit.rank import group\ngroup.join(rank, world_size, 'gloo', meeting, 5.0)['backend']"
    with Ranks(2) as two:
        assert two(code, meeting=str(tmp_path / "store")) == ["gloo"] * 2
