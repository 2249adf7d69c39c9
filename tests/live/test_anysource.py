"""A receive from any rank: it comes, it fails, and it is freed like any other wait."""

from __future__ import annotations

import pytest

from labkit import StuckError


@pytest.fixture(autouse=True)
def _variables(lab):
    lab.run("keep = 100 + rank")


def kept(lab):
    assert lab.run("y = torch.ones(1)\ndist.all_reduce(y)\nprint(int(y), keep)") == [f"3 {100 + r}\n" for r in range(3)]


@pytest.mark.parametrize(
    "receive", ["src = dist.recv(x)", "work = dist.irecv(x)\nwork.wait()\nsrc = work._source_rank()"]
)
def test_a_receive_without_a_source_gets_what_comes_and_from_whom(lab, receive):
    code = """x = torch.zeros(1)
if rank == 0:
    dist.send(torch.tensor([7.]), 2)
if rank == 2:
    RECEIVE
    print(src, x)
"""
    code = code.replace("RECEIVE", receive.replace("\n", "\n    "))
    assert lab.run(code) == ["", "", "0 tensor([7.])\n"]


@pytest.mark.parametrize("receive", ["dist.recv(z)", "dist.irecv(z).wait()"])
def test_ranks_that_all_receive_from_any_are_freed_with_their_variables(lab, receive):
    with pytest.raises(StuckError) as caught:
        lab.run(f"z = torch.zeros(1)\n{receive}")
    how = "in recv" if "irecv" not in receive else "for the handle of irecv"
    assert str(caught.value) == f"ranks 0–2 wait {how} from any rank (line 2)"
    assert "the process group is joined again; all variables are kept" in caught.value.notes
    kept(lab)


def test_a_receive_in_a_sub_group_is_freed_too(lab):
    with pytest.raises(StuckError):
        lab.run("g = dist.new_group([0, 1])\nif rank == 1: dist.recv(torch.zeros(1), group=g)")
    kept(lab)


def test_a_receive_whose_time_runs_out_raises_in_the_cell(lab):
    code = """import datetime
if rank == 1:
    try:
        dist.irecv(torch.zeros(1)).wait(datetime.timedelta(seconds=0.2))
    except RuntimeError as error:
        print("caught")
"""
    try:
        assert lab.run(code) == ["", "caught\n", ""]
    finally:
        lab._console.engines.rejoin()
    kept(lab)
