"""What lesson 06 builds, on live ranks: the functions of its own cells sum up, and send what the schedules send."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

import labkit
from labkit.theory import formulas, schedules
from labkit.theory.record import read

NOTEBOOK = Path(__file__).resolve().parent.parent.parent / "notebooks" / "06-build-all-reduce.ipynb"
DEFINED = ("def naive", "def exchange", "def ring_reduce_scatter", "def ring(", "def tree", "def halving_doubling")
# the lesson's function → the schedule that it is
SCHEDULES = {
    "naive": schedules.naive,
    "ring": schedules.ring,
    "tree": schedules.tree,
    "halving_doubling": schedules.halving_doubling,
}


def definitions() -> list[str]:
    """The lesson's cells that define functions on the ranks."""
    cells = [
        c.source for c in nbformat.read(NOTEBOOK, as_version=4).cells if "exercise" not in c.metadata.get("tags", [])
    ]
    return [s.removeprefix("%%px\n") for s in cells if s.startswith("%%px") and any(d in s for d in DEFINED)]


@pytest.fixture(scope="module", params=[3, 4])
def ranks(request):
    with labkit.start(request.param) as lab:
        for source in definitions():
            lab.run(source)
        yield lab


def built(lab: labkit.Lab) -> list[str]:
    """The lesson's functions that serve this number of ranks."""
    return [name for name in SCHEDULES if name != "halving_doubling" or lab.n == 4]


@pytest.mark.parametrize("length", [0, 1, 7, 24])
def test_every_function_leaves_the_sum_on_every_rank(ranks, length):
    wanted = [sum(10 * r + i for r in range(ranks.n)) for i in range(length)]
    for name in [*built(ranks), "pass_on"]:
        ranks.run(f"x = torch.arange({length}.) + 10 * rank; {name}(x)")
        assert [x.tolist() for x in ranks.pull("x")] == [wanted] * ranks.n, name


def test_the_ranks_send_what_the_schedule_sends_in_its_order(ranks):
    for name in built(ranks):  # 12 elements: every number of ranks here divides them
        ranks.run(f"x = torch.ones(12); {name}(x)")
        schedule = SCHEDULES[name]("all_reduce", ranks.n)
        record = read(ranks._records())
        for r in range(ranks.n):
            sent = [(m.send.view.offset, m.dst) for m in record.messages if m.src == r and m.send.view]
            wanted = [
                (min(s.chunks) * 12 // schedule.chunks, s.dst) for step in schedule.steps for s in step if s.src == r
            ]
            assert sorted(sent) == sorted(wanted) if name == "naive" else sent == wanted, (name, r)


def test_the_bytes_on_the_wire_are_those_of_the_formulas(ranks):
    nbytes = 2**20 * 4 * 3
    ranks.run(f"big = torch.ones({nbytes // 4})")
    for name in built(ranks):
        wire = ranks.wire(f"{name}(big)")
        figures = formulas.figures("all_reduce", name.replace("_", "-"), ranks.n)
        assert wire.sent is not None
        assert max(wire.sent) == pytest.approx(figures.sent * nbytes, rel=0.01), name
        assert wire.total == pytest.approx(figures.total * nbytes, rel=0.01), name


def test_only_passing_whole_buffers_on_leaves_different_bits(ranks):
    ranks.run("four = torch.tensor([1e8, 1.0, -1e8, 1.0])")
    for name in [*built(ranks), "pass_on"]:
        ranks.run(f"y = four[rank % 4].reshape(1).clone(); {name}(y)")
        bits = {y.tobytes() for y in ranks.pull("y")}
        assert len(bits) == 1 or name == "pass_on", name
        if name == "pass_on" and ranks.n == 4:
            assert len(bits) == 2
