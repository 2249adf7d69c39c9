"""What lesson 06 builds, on live ranks: its functions sum up, and send what the schedules beside them say."""

from __future__ import annotations

import pytest

import labkit
from labkit.content import exercises
from labkit.theory.record import read
from tests.notebooks import NOTEBOOKS, sources
from workbook.tools import formulas, schedules

DEFINED = ("def pass_on", "def ring(")
# the lesson's function → the schedule that it is
SCHEDULES = {
    "naive_all_reduce": schedules.naive,
    "ring": schedules.ring,
    "tree_all_reduce": schedules.tree,
    "halving_doubling": schedules.halving_doubling,
}
RETURNS = ("naive_all_reduce", "tree_all_reduce", "halving_doubling")  # the others work in place


def definitions() -> list[str]:
    """The functions that the lesson gives, without what their cells do beside that."""
    cells = [source.removeprefix("%%px\n") for source in sources(NOTEBOOKS["06"])]
    return [source.partition("\n\n\n")[0] for source in cells if source.startswith(DEFINED)]


@pytest.fixture(scope="module", params=[3, 4])
def ranks(request, own_progress):
    with labkit.start(request.param) as lab:
        lab.use("naive_all_reduce", "ring_reduce_scatter", "ring_all_gather", "tree_all_reduce", "halving_doubling")
        assert len(definitions()) == len(DEFINED)
        for source in definitions():
            lab.run(source)
        yield lab


def built(lab: labkit.Lab) -> list[str]:
    """The lesson's functions that serve this number of ranks."""
    return [name for name in SCHEDULES if name != "halving_doubling" or lab.n == 4]


def called(name: str, x: str) -> str:
    return f"{x} = {name}({x})" if name in RETURNS else f"{name}({x})"


@pytest.mark.parametrize("length", [0, 1, 7, 24])
def test_every_function_leaves_the_sum_on_every_rank(ranks, length):
    wanted = [sum(10 * r + i for r in range(ranks.n)) for i in range(length)]
    for name in [*built(ranks), "pass_on"]:
        ranks.run(f"x = torch.arange({length}.) + 10 * rank; {called(name, 'x')}")
        assert [x.tolist() for x in ranks.pull("x")] == [wanted] * ranks.n, name


def test_the_ranks_send_what_the_schedule_beside_the_card_sends_in_its_order(ranks):
    """A learner reads the chunks off the picture: the workbook's solution must be that very plan."""
    for name in built(ranks):  # 12 elements: every number of ranks here divides them
        ranks.run(f"x = torch.ones(12); {called(name, 'x')}")
        schedule = SCHEDULES[name]("all_reduce", ranks.n)
        record = read(ranks._console.records())
        for r in range(ranks.n):
            sent = [(m.send.view.offset, m.dst) for m in record.messages if m.src == r and m.send.view]
            wanted = [
                (min(s.chunks) * 12 // schedule.chunks, s.dst) for step in schedule.steps for s in step if s.src == r
            ]
            if name == "ring":  # its halves work on tensors of their own, so that places do not compare
                sent, wanted = [dst for _, dst in sent], [dst for _, dst in wanted]
            assert sorted(sent) == sorted(wanted) if name == "naive_all_reduce" else sent == wanted, (name, r)


def test_the_bytes_on_the_wire_are_those_of_the_formulas(ranks):
    nbytes = 2**20 * 4 * 3
    for name in built(ranks):
        ranks.run(f"big = torch.ones({nbytes // 4})")
        wire = ranks.wire(called(name, "big"))
        way = {"ring": "ring", "halving_doubling": "halving-doubling"}.get(name, name.partition("_")[0])
        figures = formulas.figures("all_reduce", way, ranks.n)
        assert wire.sent is not None
        assert max(wire.sent) == pytest.approx(figures.sent * nbytes, rel=0.01), name
        assert wire.total == pytest.approx(figures.total * nbytes, rel=0.01), name


def test_only_passing_whole_buffers_on_leaves_different_bits(ranks):
    ranks.run("four = torch.tensor([1e8, 1.0, -1e8, 1.0])")
    for name in [*built(ranks), "pass_on"]:
        ranks.run(f"y = four[rank % 4].reshape(1).clone(); {called(name, 'y')}")
        bits = {y.tobytes() for y in ranks.pull("y")}
        assert len(bits) == 1 or name == "pass_on", name
        if name == "pass_on" and ranks.n == 4:
            assert len(bits) == 2


def test_the_ring_for_the_race_needs_nothing_else(ranks):
    """Lesson 06b takes it alone."""
    ranks.use("ring_all_reduce")
    names = {e.name for e in exercises.every().values() if e.lesson == "06"} - {"ring_all_reduce"}
    assert not [name for name in names if name in exercises.find("ring_all_reduce").code]
    ranks.run("x = torch.ones(5) * rank; got = ring_all_reduce(x)")
    assert [(x.tolist(), got.tolist()) for x, got in zip(ranks.pull("x"), ranks.pull("got"), strict=True)] == [
        ([r] * 5, [sum(range(ranks.n))] * 5) for r in range(ranks.n)
    ]
