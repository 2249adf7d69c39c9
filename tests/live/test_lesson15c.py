"""Lesson 15c: plans laid over real ranks send and hold what the planner says, in two dimensions and in three."""

from __future__ import annotations

import numpy as np
import pytest

import labkit
from tests.live.lesson_cells import run_cells
from workbook.tools import planning
from workbook.tools.planning import Plan, Price

MESHES = {4: [(2, 2, 1), (2, 1, 2), (1, 2, 2)], 8: [(2, 2, 2)]}


@pytest.fixture(scope="module", params=MESHES, ids=lambda n: f"{n} ranks")
def laid(request: pytest.FixtureRequest, training):
    """A lab with the lesson's functions, and the bytes and losses of every plan in every order."""
    with labkit.start(request.param, timeout=30) as lab:
        assert list(run_cells(lab, "15c"))
        every = [planning.orders(Plan(*shape, 2)) for shape in MESHES[lab.n]]
        yield lab, {its: counted(lab, its) for them in every for its in (them[0], them[-1])}


def counted(lab: labkit.Lab, its: Plan) -> dict:
    lab.push(order=its.order.split(), sizes={"data": its.data, "tensor": its.tensor, "pipe": its.pipe})
    lab.run("groups, model, optimizer = lay_out(order, sizes)")
    wire = lab.wire("loss, kept = training_step(groups, model, optimizer)")
    lab.run("held, place = footprint(model, optimizer), dist.get_rank(groups['pipe'])")
    told = {name: lab.pull(name) for name in ("held", "place", "kept")}
    return told | {"matrix": wire.matrix, "loss": sum(lab.pull("float(loss)")) / its.data / its.tensor}


def test_from_rank_to_rank_go_as_many_bytes_as_planned(laid):
    lab, found = laid
    for its, told in found.items():
        if told["matrix"] is None:
            pytest.skip("nothing counts bytes here")
        planned, seen = Price(planning.small(gpus=lab.n), its).pairs, np.array(told["matrix"], float)
        large = planned > 0.02 * planned.max()
        assert seen[large] == pytest.approx(planned[large], rel=0.02), its
        assert seen[~large].max(initial=0) < 0.02 * planned.max(), its


def test_every_plan_computes_the_same_loss(laid):
    lab, found = laid
    lab.run("torch.manual_seed(0)")
    lab.run("alone = tiny.loss(tiny.Transformer(layers=4, width=WIDTH).to(device), tiny.batch(0, size=192)).item()")
    alone = lab.pull("alone")[0]
    assert [told["loss"] for told in found.values()] == pytest.approx([alone] * len(found), rel=1e-5)


def test_a_rank_holds_what_is_planned(laid):
    """Adam counts its steps in 4 bytes a tensor; activations are those kept, and what the backward pass needs."""
    lab, found = laid
    for its, told in found.items():
        for rank, (held, stage, kept) in enumerate(zip(told["held"], told["place"], told["kept"], strict=True)):
            planned = Price(planning.small(gpus=lab.n), its).stages[stage]
            for kind in ("weights", "gradients", "optimizer"):
                assert held[kind] == pytest.approx(planned[kind], rel=1e-3), (its, rank)
            assert 1 <= kept / planned["activations"] < 1.5, (its, rank)


@pytest.mark.parametrize("laid", [4], indirect=True, ids=["4 ranks"])
def test_what_a_backward_pass_needs_besides_does_not_grow_with_the_layers(laid):
    """So the lesson says: the excess is that of the layer that it is in."""
    lab, _ = laid
    lab.push(order=["pipe", "data", "tensor"], sizes={"pipe": 1, "data": lab.n, "tensor": 1})
    lab.run("groups, *_ = lay_out(order, sizes)")
    excess = []
    for layers in (4, 8):
        lab.run(f"model = Stage(tiny.Transformer(layers={layers}, width=WIDTH), groups['pipe']).to(device)")
        lab.run("optimizer = torch.optim.SGD(model.parameters(), lr=0.1)")
        lab.run("_ = training_step(groups, model, optimizer)")
        lab.run("_, kept = training_step(groups, model, optimizer)")
        each = 192 / lab.n / 2 * 8 * 128 * 4  # bytes of the activations of a micro-batch
        excess.append(lab.pull("kept")[0] - layers * 16 * each)
    assert excess[1] == pytest.approx(excess[0], rel=0.35)
