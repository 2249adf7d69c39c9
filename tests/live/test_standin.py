"""What the lab holds on NCCL, held here to a stand-in that does on CPUs what NCCL was seen to do (`tests.standin`)."""

from __future__ import annotations

import pytest

import labkit
from labkit import StuckError

BEGIN = "from tests import standin\nx = torch.full((4,), float(rank + 1))\n"


@pytest.fixture(scope="module")
def lab():
    """Four ranks with the stand-in beside Gloo, that give up waiting after two seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_PRELOAD", "tests.standin")
        with labkit.start(4, timeout=2) as lab:
            lab._console.engines.backend = "standin"
            lab._console.engines.heal()
            lab.run(BEGIN)
            yield lab


def sums(lab) -> None:
    """The group works, and what the ranks had before is there."""
    assert lab.run("y = x.clone()\ndist.all_reduce(y)\nstandin.synchronize()\nprint(y[0].item())") == ["10.0\n"] * 4


def test_connections_that_are_made_later_are_nobodys_business(lab):
    sums(lab)
    lab.run("if rank == 0: dist.send(x, 3)\nif rank == 3: dist.recv(z := torch.empty(4), 0)\nstandin.synchronize()")
    assert lab.pull("float(z[0]) if rank == 3 else 1.0") == [1.0] * 4
    lab.run("pair = dist.new_group([0, 1]); half = dist.new_group([2, 3], use_local_synchronization=False)")
    lab.run("w = x.clone(); dist.all_reduce(w, group=pair if rank < 2 else half); standin.synchronize()")
    assert lab.pull("float(w[0])") == [3.0, 3.0, 7.0, 7.0]


@pytest.mark.parametrize(
    ("seen", "call"),
    [("synchronize", "standin.synchronize()"), ("item", "standin.item()"), ("seconds", "seconds()")],
)
def test_a_wait_for_the_device_is_a_wait_for_the_call_that_it_has_not_completed(lab, seen, call):
    define = "def seconds():\n    standin.synchronize()\n" if seen == "seconds" else ""
    with pytest.raises(StuckError) as stuck:
        lab.run(f"{define}if rank != 2:\n    dist.all_reduce(x.clone())\n    {call}")
    line = 5 if define else 3
    assert str(stuck.value).startswith(
        f"rank 2 is missing: it finished the cell, while ranks 0, 1, 3 wait in all_reduce (line {line - 1}), "
        f"seen in {'synchronize' if define else seen} (line {line})"
    )
    sums(lab)
