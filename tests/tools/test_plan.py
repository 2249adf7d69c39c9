"""The plan of a mesh: it adds up to the model, and agrees with the arithmetic of lesson 11 where that applies."""

from __future__ import annotations

import pytest

from labkit.floor.errors import LabError
from workbook.capstone_whole import mesh_price
from workbook.tools import costs, plan, sharding
from workbook.tools.plan import Mesh, Model

SMALL = Model(layers=4, width=32)
LLAMA = Model(layers=80, width=8192, vocabulary=128_256, positions=8192)
SIZES = [(8, 1, 1), (4, 2, 1), (4, 1, 2), (2, 4, 1), (2, 2, 2), (2, 1, 4), (1, 8, 1), (1, 4, 2), (1, 2, 4)]
MESHES = [Mesh(*sizes) for sizes in SIZES]  # of eight ranks, with at most four stages


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "width"), [(1, 8), (2, 32), (4, 64), (3, 128)])
def test_a_model_has_as_many_parameters_as_the_transformer_of_torch(layers: int, width: int):
    from labkit.rank import tiny

    parameters = sum(p.numel() for p in tiny.Transformer(layers, width).parameters())
    assert Model(layers, width).parameters == parameters


def test_the_parts_of_a_team_are_the_model_and_what_is_whole_is_there_once_more_a_rank(subtests: pytest.Subtests):
    for mesh in MESHES:
        with subtests.test(mesh=mesh):
            stages = [plan.parameters(SMALL, mesh, stage) for stage in range(mesh.pipe)]
            whole = 6 * SMALL.width * SMALL.layers + SMALL.first + SMALL.last
            assert mesh.tensor * sum(stages) == SMALL.parameters + (mesh.tensor - 1) * whole


@pytest.mark.parametrize("recipe", [sharding.FLOAT32, sharding.MIXED], ids=lambda recipe: recipe.name)
@pytest.mark.parametrize("zero", [0, 1])
def test_data_alone_is_what_lesson_11_has(recipe: sharding.Recipe, zero: int):
    held = plan.held(SMALL, Mesh(data=8), 100, recipe=recipe, zero=zero)
    del held["activations"]
    assert held == sharding.held(SMALL.parameters, 8, zero, recipe)
    sent = plan.sent(SMALL, Mesh(data=8), 100, recipe=recipe)
    assert sent == {"data": sharding.sent(SMALL.parameters, 8, zero, recipe), "tensor": 0, "pipe": 0}


def test_states_without_embeddings_and_norms_are_what_the_exercise_asks_for(subtests: pytest.Subtests):
    """Its even division is a good one for a model of many wide layers."""
    for mesh in MESHES:
        with subtests.test(mesh=mesh):
            share = 2**16 / mesh.data
            held = sum(plan.held(LLAMA, mesh, share).values())
            rough = mesh_price(LLAMA.parameters, 80, 8192, 2**16, mesh.data, mesh.tensor, mesh.pipe)
            assert held == pytest.approx(rough["memory"], rel=0.1)
            middle = mesh.pipe // 2 if mesh.pipe > 2 else 0
            sent = plan.sent(LLAMA, mesh, share, middle)
            assert sent["tensor"] == pytest.approx(rough["tensor"])
            assert sent["pipe"] == pytest.approx(rough["pipe"])
            assert sent["data"] == pytest.approx(rough["data"], rel=0.12)


def test_sequence_parallelism_cuts_what_tensor_parallelism_leaves_whole():
    mesh = Mesh(tensor=8)
    with_it = plan.held(LLAMA, mesh, 8192, sequence=True)["activations"]
    assert with_it == pytest.approx(plan.held(LLAMA, Mesh(), 8192)["activations"] / 8)
    assert plan.held(LLAMA, mesh, 8192)["activations"] > 2 * with_it
    alone = [plan.held(SMALL, Mesh(data=2), 64, sequence=on) for on in (False, True)]
    assert alone[0] == alone[1]


def test_the_activations_of_a_layer_are_34_bytes_a_token_and_width_where_numbers_take_two():
    layer = Model(layers=1, width=64)
    held = plan.held(layer, Mesh(), tokens=100, recipe=sharding.MIXED)
    assert held["activations"] == 34 * 100 * 64, "Korthikanti and others, without the 5as/h of the scores"


def test_a_stage_passes_on_to_its_neighbours():
    passed = 96 * 8 * 32 * 4
    assert [plan.sent(SMALL, Mesh(pipe=4), 768, stage)["pipe"] for stage in range(4)] == [
        passed,
        2 * passed,
        2 * passed,
        passed,
    ]
    assert plan.sent(SMALL, Mesh(pipe=1), 768)["pipe"] == 0


def test_the_plan_of_the_lesson_for_66_billion_parameters():
    mesh, tokens = Mesh(4, 8, 2), 256 * 8192
    memory = {
        (zero, sequence): sum(plan.held(LLAMA, mesh, 2 * 8192, 0, sharding.MIXED, zero, sequence).values()) / 1e9
        for zero in (0, 1)
        for sequence in (False, True)
    }
    assert memory == pytest.approx({(0, False): 143, (0, True): 105, (1, False): 96, (1, True): 59}, abs=0.6)
    sent = plan.sent(LLAMA, mesh, tokens / 4, 0, sharding.MIXED)
    across = sent["data"] + sent["pipe"]
    assert sent["tensor"] / across == pytest.approx(100, rel=0.01)
    assert across / 1e9 == pytest.approx(24, abs=0.5)
    assert across / 50e9 == pytest.approx(0.5, abs=0.03)
    seconds = {}
    for its in (mesh, Mesh(4, 16)):
        one = 2 * 8192 * LLAMA.width  # bytes of a sequence's activations
        times = plan.REDUCED * LLAMA.layers // its.pipe * (256 // its.data)
        assert plan.sent(LLAMA, its, tokens / 4, 0, sharding.MIXED)["tensor"] == pytest.approx(
            times * plan.all_reduced(one, its.tensor)
        )
        takes = costs.estimate("all_reduce", one, its.tensor, costs.H100)
        seconds[its.tensor] = (round(1e3 * takes, 2), times, round(times * takes, 1))
    assert seconds == {8: (0.61, 10_240, 6.3), 16: (0.77, 20_480, 15.8)}
    assert 6 * LLAMA.parameters * tokens / 64 / 400e12 == pytest.approx(33, abs=0.5)
    assert 16 * LLAMA.parameters / 1e9 == pytest.approx(1066, abs=1)


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (lambda: Mesh(0), "No mesh"),
        (lambda: plan.parameters(SMALL, Mesh(pipe=2), 2), "Choose 0 to 1"),
        (lambda: plan.held(SMALL, Mesh(pipe=3), 1), "cut into 3 equal stages"),
        (lambda: plan.held(SMALL, Mesh(), 1, zero=3), "Choose 0"),
    ],
)
def test_what_is_no_mesh_is_refused(wish, said: str):
    with pytest.raises(LabError, match=said):
        wish()
