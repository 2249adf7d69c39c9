"""What a model and its optimizer hold, counted from the storages: each once, views as what they look into."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from labkit.floor.errors import LabError
from labkit.rank import tiny
from labkit.rank.footprint import footprint

PSI = 12_444  # the parameters of tiny.Model
COUNTERS = 5 * 4  # Adam's steps, a float32 for each tensor


def trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    tiny.loss(model, tiny.batch(0, size=24)).backward()
    optimizer.step()


def test_training_with_adam_takes_sixteen_bytes_a_parameter():
    model = tiny.Model()
    optimizer = torch.optim.Adam(model.parameters())
    assert footprint(model, optimizer) == {"weights": 4 * PSI, "gradients": 0, "optimizer": 0}
    trained(model, optimizer)
    assert footprint(model, optimizer) == {"weights": 4 * PSI, "gradients": 4 * PSI, "optimizer": 8 * PSI + COUNTERS}
    optimizer.zero_grad()
    assert footprint(model, optimizer)["gradients"] == 0
    assert footprint(model) == {"weights": 4 * PSI, "gradients": 0, "optimizer": 0}


def test_plain_sgd_keeps_nothing_and_momentum_one_number_a_parameter():
    for momentum, kept in ((0.0, 0), (0.9, 4 * PSI)):
        model = tiny.Model()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum)
        trained(model, optimizer)
        assert footprint(model, optimizer)["optimizer"] == kept


def test_tied_weights_are_one_memory():
    one, other = nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False)
    model = nn.Sequential(one, other)
    assert footprint(model)["weights"] == 800
    other.weight = one.weight
    assert footprint(model)["weights"] == 400
    other.weight = nn.Parameter(one.weight.data.t())  # another tensor, the same memory
    assert footprint(model)["weights"] == 400


def test_views_into_one_flat_buffer_are_that_buffer_once():
    model = tiny.Model()
    flat = torch.cat([p.data.flatten() for p in model.parameters()] + [torch.zeros(100)])  # and padding
    for p, part in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()] + [100]), strict=False):
        p.data = part.view_as(p)
    assert footprint(model)["weights"] == 4 * (PSI + 100)
    assert footprint(model, shard=flat[:50]) == {"weights": 4 * (PSI + 100), "gradients": 0, "optimizer": 0, "shard": 0}


def test_master_copies_and_shards_are_kinds_of_their_own():
    model = tiny.Model().bfloat16()
    master = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.Adam(master)
    for copy in master:
        copy.grad = torch.zeros_like(copy)
    optimizer.step()
    kept = {"weights": 2 * PSI, "gradients": 4 * PSI, "optimizer": 8 * PSI + COUNTERS}
    assert footprint(model, optimizer, master=master) == {**kept, "master": 4 * PSI}
    assert footprint(model, optimizer, master={"copies": (master, None)})["master"] == 4 * PSI
    assert footprint(model, optimizer) == {**kept, "weights": 6 * PSI}, "what it updates is weights, unless named"


def test_a_name_that_there_is_already_adds_to_it():
    model = tiny.Model()
    assert footprint(model, gradients=torch.zeros(PSI // 4))["gradients"] == PSI


def test_buffers_are_there_where_a_model_has_any():
    model = nn.Sequential(nn.Linear(4, 10), nn.BatchNorm1d(10))
    assert footprint(model)["buffers"] == 2 * 40 + 8
    assert "buffers" not in footprint(nn.Linear(4, 10))


def test_what_was_freed_counts_nothing_and_a_model_on_meta_holds_nothing():
    model = nn.Linear(10, 10, bias=False)
    model.weight.untyped_storage().resize_(0)
    assert footprint(model)["weights"] == 0
    assert footprint(nn.Linear(10, 10, device="meta"))["weights"] == 0


def test_sparse_gradients_count_by_their_rows():
    model = nn.Embedding(1000, 8, sparse=True)
    model(torch.tensor([3, 5])).sum().backward()
    assert footprint(model)["gradients"] == 2 * 8 + 2 * 8 * 4


def test_tensors_stand_for_a_model_and_for_an_optimizer():
    flat = torch.zeros(100, requires_grad=True)
    flat.grad = torch.zeros(100)
    held = footprint([flat[:50], flat], {"m": torch.zeros(25), "v": torch.zeros(25), "step": 3})
    assert held == {"weights": 400, "gradients": 400, "optimizer": 200}


@pytest.mark.parametrize("model", [None, 3, [], {"no": "tensor"}])
def test_what_is_no_model_is_refused(model):
    with pytest.raises(LabError, match=r"where the model belongs\. Give a module"):
        footprint(model)


def test_what_is_no_optimizer_and_no_tensors_is_refused():
    with pytest.raises(LabError, match=r"a float where the optimizer belongs\. Give one of torch\.optim"):
        footprint(nn.Linear(1, 1), 0.1)
    with pytest.raises(LabError, match="buckets: a int holds no tensors"):
        footprint(nn.Linear(1, 1), buckets=25 * 2**20)
