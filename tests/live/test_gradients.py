"""Gradients through labkit.rank.comms are those of the same formula in one process."""

from __future__ import annotations

import pytest
import torch

from labkit.theory import collectives as theory
from tests.live.ranks import Each

DIFFERENTIABLE = {
    "all_reduce": ("comms.all_reduce(x)", lambda xs, cut: theory.all_reduce(xs)),
    "mean": ("comms.all_reduce(x, 'mean')", lambda xs, cut: theory.all_reduce(xs, "AVG")),
    "all_gather": (
        "torch.cat(comms.all_gather(x))",
        lambda xs, cut: [torch.cat(o) for o in theory.all_gather(xs)],
    ),
    "broadcast": ("comms.broadcast(x if rank == 1 else None, 1)", lambda xs, cut: theory.broadcast(xs, 1)),
    "scatter": ("comms.scatter(cut if rank == 1 else None, 1)", lambda xs, cut: theory.scatter(cut, 1)),
    "reduce_scatter": ("comms.reduce_scatter(cut)", lambda xs, cut: theory.reduce_scatter(cut)),
    "shard of the mean": (
        "comms.reduce_scatter(cut, 'avg')",
        lambda xs, cut: theory.reduce_scatter(cut, "AVG"),
    ),
    "all_to_all": (
        "torch.cat(comms.all_to_all(cut))",
        lambda xs, cut: [torch.cat(o) for o in theory.all_to_all(cut)],
    ),
}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_are_those_of_the_same_formula_in_one_process(ranks, name):
    code, meaning = DIFFERENTIABLE[name]
    xs = [torch.randn(7, generator=torch.manual_seed(r), requires_grad=True) for r in range(ranks.n)]
    outs = meaning(xs, [x.tensor_split(ranks.n) for x in xs])
    sum((r + 1) * (y**2 * torch.arange(len(y))).sum() for r, y in enumerate(outs)).backward()
    expected = [torch.zeros(7) if x.grad is None else x.grad for x in xs]
    found = ranks(
        f"""
cut = x.requires_grad_().tensor_split(world_size)
y = {code}
((rank + 1) * (y**2 * torch.arange(len(y))).sum()).backward()
torch.zeros(7) if x.grad is None else x.grad
""",
        x=Each([x.detach() for x in xs]),
    )
    torch.testing.assert_close(found, expected)


def test_a_rank_that_wants_no_gradient_still_helps_the_others(three):
    code = """
x = torch.ones(2, requires_grad=rank == 0)
y = comms.all_reduce(x)
((rank + 1) * y).sum().backward()
None if x.grad is None else x.grad.tolist()
"""
    assert three(code) == [[6.0, 6.0], None, None]


def test_results_may_be_changed_in_place_and_gradients_still_flow(three):
    code = """
x = torch.ones(3, requires_grad=True)
for y in [comms.all_reduce(x), comms.broadcast(x), *comms.all_gather(x), *comms.all_to_all(x.split(1))]:
    y.add_(1).sum().backward()
x.grad.tolist()
"""
    # 3 from the sum, 3 from the broadcast on its source, 3 from one's gathered part, 1 from the chunks
    assert three(code) == [[10.0] * 3, [7.0] * 3, [7.0] * 3]


def test_without_gradients_nothing_is_recorded(three):
    code = """
x = torch.ones(2, requires_grad=True)
with torch.no_grad():
    quiet = comms.all_reduce(x)
[quiet.requires_grad, comms.all_reduce(x.detach()).requires_grad, comms.all_reduce(x).requires_grad]
"""
    assert three(code) == [[False, False, True]] * 3


def test_second_derivatives_flow_too(three):
    code = """
x = torch.full((1,), 2., requires_grad=True)
total = comms.all_reduce(x ** 3)
(slope,) = torch.autograd.grad(total ** 2, x, create_graph=True)
(curve,) = torch.autograd.grad(slope, x)
slope.item(), curve.item()
"""
    # the ranks' losses add up to L = n·(Σ xᵢ³)²; every rank differentiates the sum of all slopes by its own x
    leaves = [torch.full((1,), 2.0, requires_grad=True) for _ in range(3)]
    loss = 3 * sum(x**3 for x in leaves) ** 2
    slopes = torch.autograd.grad(loss, leaves, create_graph=True)
    curves = torch.autograd.grad(sum(slopes), leaves)
    assert three(code) == [(s.item(), c.item()) for s, c in zip(slopes, curves, strict=True)]
