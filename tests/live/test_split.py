"""Groups that torch splits off another one, as it makes meshes on GPUs: noted, guarded and freed as every group is."""

from __future__ import annotations

import pytest

import labkit
from labkit import CellError, StuckError

SPLIT = """
from datetime import timedelta
from torch.distributed.distributed_c10d import _world
x = torch.tensor([float(rank)])
mine, world = [0, 1] if rank < 2 else [2], dist.group.WORLD
half = world.split_group(mine, timeout=timedelta(seconds=20), group_name=f"{world.group_name}-{mine}", group_desc="")
part = half._get_backend(device)
if hasattr(part, "_set_sequence_number_for_group"):  # before torch 2.14
    part._set_sequence_number_for_group()
_world.pg_map[half], _world.pg_names[half] = ("gloo", half.get_group_store()), half.group_name
_world.pg_group_ranks[half] = {r: i for i, r in enumerate(mine)}
_world.pg_backend_config[half], _world.pg_to_tag[half] = "cpu:gloo", ""
"""


@pytest.fixture(scope="module")
def lab():
    """Three ranks whose group has one backend for one kind of device: torch splits off one for each, under one name."""
    with labkit.start(3, timeout=2) as lab:
        lab._console.engines.backend = "cpu:gloo"
        lab._console.engines.rejoin()
        yield lab


@pytest.fixture(autouse=True)
def _split(lab):
    if not lab.pull("'half' in globals() and half in _world.pg_map")[0]:
        lab.run(SPLIT)


def test_it_sums_among_its_own_ranks(lab):
    lab.run("dist.all_reduce(x, group=half)")
    assert lab.pull("x.item()") == [1.0, 1.0, 2.0]


def test_a_rank_that_waits_in_it_is_freed_and_keeps_its_variables(lab):
    with pytest.raises(StuckError, match=r"rank 1 is missing.*rank 0 waits in all_reduce"):
        lab.run("if rank == 0:\n    dist.all_reduce(x, group=half)")
    assert lab.pull("'x' in globals()") == [True] * 3


def test_calls_that_do_not_fit_are_refused_in_it(lab):
    with pytest.raises(CellError, match="Ranks disagree on the reduction"):
        lab.run(
            "op = dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM\nif rank < 2: dist.all_reduce(x, op, group=half)"
        )
