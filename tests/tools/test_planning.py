"""The planner: memory, bytes and seconds obey the papers' formulas, the schedules and the other modules."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from labkit.content import predictions
from labkit.floor.errors import LabError
from workbook.lesson15c import leaves_host, mates, stage_memory
from workbook.lesson15c_limits import fewest_micro, what_is_wrong
from workbook.tools import pipeline, plan, sharding
from workbook.tools.costs import seconds
from workbook.tools.planning import (
    JOBS,
    ORDERS,
    Plan,
    Price,
    Verdict,
    alone,
    best,
    impossible,
    orders,
    ranking,
    small,
)
from workbook.tools.planning import plans as every_plan
from workbook.tools.planning.places import places
from workbook.tools.planning.price import layer_keeps

SMALL = small()
BIG, TRILLION = JOBS["66B"], JOBS["1T"]
CAPSTONE = Plan(4, 8, 2, 64, zero=1, sequence=True)
MESHES = [(8, 1, 1), (1, 4, 2), (2, 2, 2), (4, 2, 1), (4, 1, 2), (1, 2, 4), (2, 4, 1)]

each_job = pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)


# -- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zero", range(4))
def test_copies_alone_hold_what_lesson_11_says(zero: int):
    job = SMALL.but(gpus=4)
    found = Price(job, Plan(4, zero=zero)).stages[0]
    del found["activations"]
    gathered = 4 * job.model.layer if zero == 3 else 0
    told = sharding.held(job.model.parameters, 4, zero)
    assert found == pytest.approx(told | {"weights": told["weights"] + gathered})


def test_states_are_those_of_the_capstones_plan(subtests: pytest.Subtests):
    for mesh in MESHES:
        with subtests.test(mesh=mesh):
            price = Price(SMALL.but(gpus=8), Plan(*mesh, micro=2))
            for stage, held in enumerate(price.stages):
                told = plan.held(SMALL.model, plan.Mesh(*mesh), 1, stage)
                assert {k: held[k] for k in sharding.KINDS} == pytest.approx({k: told[k] for k in sharding.KINDS})


@pytest.mark.parametrize("tensor", [1, 2, 8])
def test_a_layer_keeps_what_korthikanti_and_others_say(tensor: int):
    tokens_width = BIG.tokens * BIG.model.width  # a micro-batch is one sequence
    one = Plan(64 // tensor, tensor, 1, micro=256 * tensor // 64)
    assert layer_keeps(BIG, one) == pytest.approx(tokens_width * (10 + 24 / tensor))
    assert layer_keeps(BIG, one.but(sequence=True)) == pytest.approx(tokens_width * 34 / tensor)
    scores = layer_keeps(BIG.but(scores=True), one) - layer_keeps(BIG, one)
    assert scores == pytest.approx(5 * BIG.heads * BIG.tokens**2 / tensor)
    assert layer_keeps(BIG.but(dropout=False), one) == pytest.approx(tokens_width * (8 + 24 / tensor))


@pytest.mark.parametrize(("pipe", "micro"), list(product((1, 2, 4), (1, 2, 8))))
def test_as_many_micro_batches_are_alive_as_1f1b_keeps(pipe: int, micro: int):
    job = SMALL.but(gpus=pipe)
    its = Plan(1, 1, pipe, micro)
    kept = [stage["activations"] / (4 / pipe * layer_keeps(job, its)) for stage in Price(job, its).stages]
    assert tuple(kept) == pytest.approx(pipeline.one_f_one_b(pipe, micro).alive)


def test_the_exercise_has_the_same_but_for_the_ends(subtests: pytest.Subtests):
    for mesh, zero, sequence in product(((4, 8, 2, 64), (8, 8, 1, 32), (4, 2, 8, 16)), range(4), (False, True)):
        with subtests.test(mesh=mesh, zero=zero, sequence=sequence):
            held = Price(BIG, Plan(*mesh, zero, sequence)).stages[0]
            rough = stage_memory(80, 8192, 256 * 8192, *mesh, zero, sequence)
            layer = 2 * BIG.model.layer / mesh[1] if zero == 3 else 0
            tolerance = 0.2 if mesh[2] == 8 else 0.08  # the embedding of a vocabulary of 128,256
            assert held["weights"] - layer == pytest.approx(rough["weights"], rel=tolerance)
            for kind in ("gradients", "optimizer", "activations"):
                assert held[kind] == pytest.approx(rough[kind], rel=tolerance)


def test_all_ranks_together_hold_the_model_once_a_copy_but_for_what_is_not_cut():
    for mesh in ((4, 8, 2), (2, 8, 4), (8, 8, 1)):
        its = Plan(*mesh)
        total = sum(
            its.tensor * plan.parameters(BIG.model, its.mesh, stage, cut_ends=True) for stage in range(its.pipe)
        )
        assert total == pytest.approx(BIG.model.parameters + (its.tensor - 1) * 6 * 8192 * 80)


# -- bytes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zero", range(4))
def test_copies_alone_send_what_lesson_11_says(zero: int):
    sent = Price(SMALL, Plan(4, zero=zero)).sent
    assert sent["data"] == pytest.approx([sharding.sent(SMALL.model.parameters, 4, zero)] * 4)


def test_with_micro_batches_zero_2_and_3_send_again_and_0_and_1_do_not():
    sent = [[Price(SMALL, Plan(4, micro=m, zero=zero)).flows["data"].sent for m in (1, 8)] for zero in range(4)]
    assert [after / before for before, after in sent] == pytest.approx([1, 1, 4.5, 8])


def test_tensor_and_pipe_send_what_the_capstones_plan_says(subtests: pytest.Subtests):
    for mesh in MESHES:
        with subtests.test(mesh=mesh):
            job, its = SMALL.but(gpus=8), Plan(*mesh, micro=2)
            price = Price(job, its)
            for stage in range(its.pipe):
                told = plan.sent(job.model, plan.Mesh(*mesh), job.rows * job.tokens / its.data, stage)
                rank = int(np.argmax(price.where.at["pipe"] == stage))
                assert price.sent["tensor"][rank] == pytest.approx(told["tensor"])
                assert price.sent["next"][rank] + price.sent["before"][rank] == pytest.approx(told["pipe"])
                assert price.sent["data"][rank] == pytest.approx(told["data"])


def test_sequence_parallelism_sends_a_quarter_more_along_tensor_and_less_along_pipe():
    job = BIG.but(cut_ends=False)
    flows = [Price(job, CAPSTONE.but(sequence=on)).flows for on in (False, True)]
    assert flows[1]["tensor"].sent / flows[0]["tensor"].sent == pytest.approx(10 / 8)
    assert flows[1]["pipe"].sent == pytest.approx(flows[0]["pipe"].sent / 8)


def test_from_rank_to_rank_is_as_much_as_the_dimensions_send(subtests: pytest.Subtests):
    for mesh, order in product(MESHES, ORDERS):
        with subtests.test(order, mesh=mesh):
            job = SMALL.but(gpus=8, cluster=SMALL.cluster.but(gpus_per_node=4))
            price = Price(job, Plan(*mesh, micro=2, order=order))
            total = sum(float(price.sent[name].sum()) for name in ("data", "tensor", "next", "before"))
            assert price.pairs.sum() == pytest.approx(total)
            assert not np.diag(price.pairs).any()
            out = [price.pairs[:4, 4:].sum(), price.pairs[4:, :4].sum()]
            assert price.across == pytest.approx(max(out))
            usual = Price(job, Plan(*mesh, micro=2))
            assert price.pairs.sum() == pytest.approx(usual.pairs.sum()), "an order moves bytes, and makes none"


def members(its: Plan, rank: int, along: str) -> list[int]:
    sizes = {"data": its.data, "tensor": its.tensor, "pipe": its.pipe}
    return mates(its.order.split(), sizes, rank, along)


def test_ranks_send_round_the_groups_of_the_exercise(subtests: pytest.Subtests):
    for mesh, order, along in product(MESHES, ORDERS, ("data", "tensor")):
        with subtests.test(order, mesh=mesh, along=along):
            its = Plan(*mesh, order=order)
            to = places(its, 4).edges[along].to
            for rank in range(8):
                ring = [rank]
                while to[ring[-1]] != rank:
                    ring.append(int(to[ring[-1]]))
                assert sorted(ring) == members(its, rank, along)


def test_what_leaves_a_host_is_what_the_exercise_counts(subtests: pytest.Subtests):
    for mesh, order in product(MESHES, ORDERS):
        with subtests.test(order, mesh=mesh):
            job = SMALL.but(gpus=8, cluster=SMALL.cluster.but(gpus_per_node=4))
            its = Plan(*mesh, micro=2, order=order)
            price = Price(job, its)
            groups = {
                along: [list(g) for g in {tuple(members(its, r, along)) for r in range(8)}]
                for along in ("tensor", "data")
            }
            one = job.rows * job.tokens / its.data * 128 * 4  # bytes of the activations of a copy's share
            layers = 4 / its.pipe
            assert price.flows["tensor"].across == pytest.approx(leaves_host(groups["tensor"], 4 * layers * one, 4))
            if its.pipe == 1:  # else the stages' gradients are not equally many
                gradients = 4 * plan.parameters(job.model, its.mesh)
                assert price.flows["data"].across == pytest.approx(leaves_host(groups["data"], gradients, 4))


# -- seconds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pipe", "micro"), [(2, 2), (4, 8), (8, 16)])
def test_equal_stages_take_as_long_as_the_schedule_played(pipe: int, micro: int):
    """Without ends all stages are equal, and without messages the bubble is (p - 1) / (m + p - 1)."""
    job = BIG.but(model=plan.Model(80, 8192, 0, 0), gpus=pipe, rows=micro, cluster=BIG.cluster.but(
        network_latency=0.0, nvlink_latency=0.0, nvlink=1e12, rail=1e12))  # fmt: skip
    price = Price(job, Plan(1, 1, pipe, micro))
    schedule = pipeline.one_f_one_b(pipe, micro)
    assert price.bubble == pytest.approx((pipe - 1) / (micro + pipe - 1), rel=1e-3)
    assert price.bubble == pytest.approx(schedule.bubble, rel=1e-3)
    whole = max(box.end for mine in schedule.played for box in mine) / 3  # a forward pass is a third of a turn
    assert price.total == pytest.approx(whole * price.seconds["computing"] / micro, rel=1e-3)


@pytest.mark.parametrize(("order", "beta", "alpha"), [
    ("pipe data tensor", 1 / 370.8e9, 3.4e-6), ("tensor data pipe", 1 / 50e9, 14e-6),
])  # fmt: skip
def test_an_all_reduce_takes_what_the_textbook_says_of_a_ring_on_its_link(order: str, beta: float, alpha: float):
    its = Plan(4, 8, 2, 64, order=order)
    job = BIG.but(cut_ends=False)
    one = BIG.tokens * BIG.model.width * 2
    each = float(seconds("all_reduce", "ring", 8, one, alpha, beta))
    assert Price(job, its).seconds["tensor"] == pytest.approx(64 * 40 * 4 * each, rel=1e-6)


@each_job
def test_the_parts_of_the_time_add_up_and_the_bubble_is_near_the_formula(job):
    for price in ranking(job)[:20]:
        assert price.total == pytest.approx(sum(price.seconds.values()))
        formula = (price.plan.pipe - 1) / (price.plan.micro + price.plan.pipe - 1)
        assert 0.8 * formula <= price.bubble <= formula + 1e-9, "the last stage also has the output, and waits less"
        assert all(part >= 0 for part in price.seconds.values())


def test_what_crosses_hosts_takes_longer_in_every_dimension():
    for name in ("data", "tensor"):
        near = Price(BIG, Plan(8 if name == "data" else 1, 8 if name == "tensor" else 1, 8, 32, order=(
            "pipe data tensor")))  # fmt: skip
        far = Price(BIG, near.plan.but(order="data tensor pipe"))
        assert far.seconds[name] > 2 * near.seconds[name]


# -- all plans --------------------------------------------------------------------------------------------------------


@each_job
def test_the_best_plan_fits_and_no_other_is_faster(job):
    top = best(job)
    assert top is not None
    assert top.fits
    rest = [its for its in every_plan(job) if Price(job, its).fits]
    assert len(rest) == len(ranking(job))
    fastest = min(Price(job, other).total for its in rest for other in orders(its))
    assert top.total == pytest.approx(fastest)


@each_job
def test_every_plan_can_be_laid_out_and_none_is_there_twice(job):
    found = list(every_plan(job))
    assert len(set(found)) == len(found)
    assert not [its for its in found if impossible(job, its)]
    assert {its.mesh.ranks for its in found} == {job.gpus}


def test_orders_that_make_no_difference_are_there_once():
    assert [its.order for its in orders(Plan(16))] == ["pipe data tensor"]
    assert len(orders(Plan(2, 2))) == 2
    assert len(orders(Plan(2, 2, 2))) == 6


# -- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "its", "state", "said"),
    [
        ("7B", Plan(16, micro=4), "does not fit", "46 GB too much"),
        ("7B", Plan(16, micro=4), "does not fit", "ZeRO-1 would shard them over 16 copies: 51 GB in all"),
        ("66B", CAPSTONE.but(sequence=False), "does not fit", "Sequence parallelism would cut all of them: 52 GB"),
        ("66B", Plan(8, 8, 1, 8, 1, True), "does not fit", "A micro-batch has 4 sequences; with one each"),
        ("66B", Plan(8, 8, 1, 1, 1), "does not fit", "A micro-batch has 32 sequences"),
        ("66B", Plan(16, 2, 2, 16, 1, True), "does not fit", "a longer pipeline keeps more micro-batches"),
        ("66B", Plan(1, 1, 16, 1), "impossible", "16 GPUs, and there are 64"),
        ("66B", Plan(1, 2, 32, 1), "impossible", "80 layers cannot be cut into 32 equal stages"),
        ("1T", Plan(16, 64, 1, 1), "impossible", "160 heads cannot be shared equally by tensor 64"),
        ("66B", Plan(4, 8, 2, 128), "impossible", "64 sequences, which cannot be cut into 128 equal micro-batches"),
        ("66B", Plan(4, 16, 1, 64, 1, True), "fits", "Tensor parallelism leaves the host: 6,483 GB"),
        ("66B", CAPSTONE.but(order="tensor data pipe"), "fits", "a different order, the same plan takes 42.4 s"),
        ("66B", CAPSTONE.but(zero=3), "fits", "ZeRO-3 gathers the weights twice and scatters the gradients"),
        ("66B", CAPSTONE, "fits", "1.08 times the best plan"),
        ("1T", Plan(2, 8, 64, 512, 1, True), "fits", "512 micro-batches are few for 64 stages"),
        ("66B", Plan(4, 4, 4, 64, 1, True), "fits", "the fastest plan of the model"),
    ],
)  # fmt: skip
def test_each_fault_has_its_own_reason(job: str, its: Plan, state: str, said: str):
    verdict = Verdict.of(job, its)
    assert verdict.state == state
    assert said in " ".join(verdict.says)
    assert (verdict.ratio is None) == (state != "fits")


def test_the_exercise_finds_what_makes_a_plan_impossible():
    for its in (Plan(4, 8, 2, 64), Plan(3, 8, 2, 1), Plan(1, 2, 32, 1), Plan(4, 8, 2, 128), Plan(4, 3, 2, 1)):
        named = what_is_wrong(64, 8, 64, 80, 256, its.data, its.tensor, its.pipe, its.micro)
        said = " ".join(impossible(BIG, its))
        words = {"gpus": "GPUs, and there", "heads": "heads", "layers": "layers", "rows": "equal micro-batches"}
        there = [name for name, word in words.items() if word in said]
        assert [name for name in named if name != "host"] == there or "shared equally by data" in said


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (lambda: Plan(order="data first"), "Choose one of"),
        (lambda: Plan(0), "whole numbers"),
        (lambda: Plan(zero=4), "stage of ZeRO"),
        (lambda: Verdict.of("8B", Plan()), "'7B', '66B' or '1T'|'7B', '66B', '1T'"),
        (lambda: Price(BIG, Plan()), "there are 64"),
    ],
)
def test_what_is_no_plan_is_refused(wish, said: str):
    with pytest.raises(LabError, match=said):
        wish()


# -- the numbers of the lesson ----------------------------------------------------------------------------------------


def test_the_lessons_numbers():
    capstone, top = Price(BIG, CAPSTONE), best(BIG)
    assert top is not None
    assert str(top.plan) == "data 4 x tensor 4 x pipe 4, 64 micro-batches, ZeRO-1, sequence parallel"
    assert {k: round(v, 1) for k, v in capstone.seconds.items()} == {
        "computing": 32.7, "tensor": 8.8, "pipe": 0.0, "data": 0.3, "bubble": 0.6
    }  # fmt: skip
    assert round(capstone.total, 1) == 42.4
    assert round(top.total, 1) == 39.2
    assert round(capstone.memory / 1e9) == 52
    assert round(top.memory / 1e9) == 76
    assert round(capstone.seconds["tensor"] - top.seconds["tensor"], 1) == 5.1
    assert round(top.seconds["bubble"] - capstone.seconds["bubble"]) == 1
    assert round(top.seconds["computing"] - capstone.seconds["computing"]) == 1
    assert round(Price(BIG, Plan(4, 16, 1, 64, 1, True)).seconds["tensor"]) == 28
    assert round(Price(BIG, CAPSTONE.but(zero=3)).seconds["data"]) == 24
    assert round((capstone.memory - Price(BIG, CAPSTONE.but(zero=3)).memory) / 1e9) == 12
    assert round(Price(BIG, Plan(8, 8, 1, 32, 1, True)).total, 1) == 41.6
    assert round(Price(BIG, CAPSTONE.but(order="tensor data pipe")).total) == 97
    wide = [next(p for p in ranking(TRILLION) if p.plan.tensor == t).total for t in (8, 16)]
    assert round(wide[1] / wide[0], 2) == 1.12
    assert len(list(every_plan(TRILLION))) == 2050


def test_the_numbers_to_estimate():
    team = predictions.find("team_of_a_trillion")
    fits = [t for t in (2**k for k in range(11)) if 4 * 1009e9 / t + 12 * 1009e9 / 1024 <= 80e9]
    assert team.answer == fits[0] == 64
    assert [t.value for t in team.traps][:1] == [next(t for t in (2**k for k in range(11)) if 16 * 1009e9 / t <= 80e9)]
    across = predictions.find("tensor_leaves_the_host")
    price = Price(SMALL, Plan(2, 2, micro=4, order="tensor data pipe"))
    assert across.answer == pytest.approx(price.across / 1e6, rel=0.01)
    assert price.across / 1e6 == pytest.approx(4 * 4 * 2 * 96 * 8 * 128 * 4 / 1e6)
    assert Price(SMALL, Plan(2, 2, micro=4)).across / 1e6 == pytest.approx(3.3, abs=0.05)
    gathers = predictions.find("gathers_of_zero_3")
    part = 66.6e9 / 16 * 2 * 3 / 4 / 1e9
    assert gathers.answer == pytest.approx(3 * 64 * part, rel=0.005)
    slips = [2 * part, 3 * part, 2 * 64 * part, 3 * 64 * part * 4 / 3]
    assert [t.value for t in gathers.traps] == pytest.approx(slips, rel=0.01)
    assert Price(BIG, Plan(4, 4, 4, 64, 3, True)).flows["data"].sent / 1e9 == pytest.approx(1240, abs=1)


def test_trading_copies_for_stages_leaves_activations_and_bubble_as_they_are():
    kept = [Price(BIG, Plan(8 // p, 8, p, 32 * p, 0, True)).stages[0]["activations"] for p in (2, 4, 8)]
    assert max(kept) == pytest.approx(min(kept))
    bubbles = [Price(TRILLION, Plan(128 // p, 8, p, 8 * p, 1, True)).bubble for p in (16, 32, 64)]
    assert max(bubbles) - min(bubbles) < 0.005
    assert fewest_micro(1024, 8, 16, 0.05) is None


def test_what_each_parallelism_sends_by_itself_is_in_the_order_of_the_lesson():
    ways = alone(BIG)
    assert [a.way for a in ways] == ["tensor", "expert", "data", "pipe"]
    assert [a.sent for a in ways] == sorted((a.sent for a in ways), reverse=True)
    assert {round(a.network / a.nvlink, 2) for a in ways} == {round(370.8 / 50, 2)}
    tokens = 32 / 8 * 8192
    assert ways[1].sent == pytest.approx(4 * 80 * tokens * 8192 * 2 * 2 * 7 / 8)
