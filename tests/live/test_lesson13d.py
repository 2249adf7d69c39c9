"""Lesson 13d: its cells and its script train alike, and its checks take other right ways."""

from __future__ import annotations

import contextlib
import io
import re

import pytest

import labkit
from tests.live.lesson_cells import run_cells
from tests.scripts import printed

OTHER_WAYS = {
    "plan_dispatch": [
        """
def plan_dispatch(chosen):
    order = torch.sort(chosen, stable=True).indices
    give = torch.tensor([int((chosen == e).sum()) for e in range(world_size)])
    everyone = [torch.empty_like(give) for _ in range(world_size)]
    dist.all_gather(everyone, give)
    return order, list(give), [int(theirs[rank]) for theirs in everyone]
"""
    ],
    "exchange_tokens": [
        """
class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, give, take):
        ctx.give, ctx.take = give, take
        got = x.new_empty(sum(take), *x.shape[1:])
        dist.all_to_all_single(got, x.contiguous(), take, give)
        return got

    @staticmethod
    def backward(ctx, slope):
        return Exchange.apply(slope, ctx.take, ctx.give), None, None


def exchange_tokens(x, give, take):
    return Exchange.apply(x, give, take)
""",
        """
def exchange_tokens(x, give, take):
    from torch.distributed._functional_collectives import all_to_all_single_autograd

    return all_to_all_single_autograd(x, take, give, dist.group.WORLD)
""",
    ],
    "mixture_of_experts": [
        """
def mixture_of_experts(x, chosen, gate, compute, plan, exchange):
    tokens, top = chosen.shape
    order, give, take = plan(chosen.reshape(-1))
    rows = x.repeat_interleave(top, dim=0)[order]
    back = exchange(compute(exchange(rows, give, take)), take, give)
    in_place = back[order.argsort()].view(tokens, top, x.shape[1])
    return torch.einsum("tkd,tk->td", in_place, gate)
"""
    ],
    "mixture_gradients": [
        """
def mixture_gradients(shared, experts):
    flat = torch.cat([p.grad.flatten() for p in shared])
    dist.all_reduce(flat, op=dist.ReduceOp.AVG)
    for p, part in zip(shared, flat.split([p.numel() for p in shared])):
        p.grad = part.view_as(p)
    for p in experts:
        p.grad = None if p.grad is None else p.grad * (1 / world_size)
"""
    ],
    "balance_loss": [
        """
def balance_loss(probabilities, chosen):
    tokens, experts = probabilities.shape
    parts = torch.nn.functional.one_hot(chosen, experts).to(probabilities).mean(0)
    dist.all_reduce(parts, op=dist.ReduceOp.AVG)
    return experts * torch.dot(parts, probabilities.mean(0))
""",
    ],
    "capped_mixture": [
        """
def capped_mixture(x, h, chosen, gate, capacity, compute, exchange):
    room, rows, taken = h.new_zeros(world_size, capacity, h.shape[1]), [], [0] * world_size
    for i, e in enumerate(chosen.tolist()):
        if taken[e] < capacity:
            rows.append((i, e, taken[e]))
            taken[e] += 1
    i, e, place = torch.tensor(rows).T
    room = room.index_put((e, place), h[i])
    sizes = [capacity] * world_size
    back = exchange(compute(exchange(room.flatten(0, 1), sizes, sizes)), sizes, sizes).view_as(room)
    y = x.clone()
    y[i] = y[i] + gate[i, None] * back[e, place]
    return y
"""
    ],
    "many_experts": [
        """
def many_experts(x, chosen, gate, experts, exchange):
    each = len(experts)
    order = chosen.argsort(stable=True)
    counts = chosen.bincount(minlength=world_size * each)
    everyone = [torch.empty_like(counts) for _ in range(world_size)]
    dist.all_gather(everyone, counts)
    come = torch.stack(everyone)[:, rank * each : (rank + 1) * each]
    give, take = counts.view(world_size, each).sum(1).tolist(), come.sum(1).tolist()
    pieces = exchange(x[order], give, take).split(come.flatten().tolist())
    made = [e(torch.cat(pieces[i::each])).split(come[:, i].tolist()) for i, e in enumerate(experts)]
    back = exchange(torch.cat([made[i][r] for r in range(world_size) for i in range(each)]), take, give)
    y = torch.zeros_like(x)
    y[order] = back
    return gate[:, None] * y
"""
    ],
}


@pytest.mark.parametrize(("name", "source"), [(name, source) for name, ways in OTHER_WAYS.items() for source in ways])
def test_another_right_way_is_right(lab, name, source):
    lab.run(source)
    verdict = lab.check(name)
    assert verdict.state == "right", repr(verdict)


Way = tuple[list[float], list[int], float, list[float]]  # losses, tokens for each expert, per cent dropped, gradients


def ways(lines: list[str]) -> dict[str, Way]:
    """What the script said of each way."""
    found = {}
    for line in lines:
        name, losses, tokens, dropped, gradients = re.fullmatch(
            r"(.+): ([\d. ]+) · tokens \[(.*)\], (.+)% dropped · gradients (?:up to|off by) (.+)", line
        ).groups()
        losses, gradients = ([float(x) for x in re.split("[ ,]+", numbers)] for numbers in (losses, gradients))
        found[name] = losses, [int(t) for t in tokens.split(",")], float(dropped), gradients
    return found


@pytest.fixture(scope="module")
def script(tmp_path_factory) -> dict[str, Way]:
    """The ways of the script on three ranks."""
    return ways(printed("experts.py", 3, tmp_path_factory.mktemp("script")))


@pytest.mark.slow
def test_experts_on_all_ranks_have_losses_and_gradients_of_one_process_and_get_the_same_tokens(script):
    right = script["alone"]
    assert right[0][-1] < right[0][0] - 0.1, "it learns"
    for one, other in (
        ("alone", "spread"),
        ("alone", "capped, places for all"),
        ("alone, two experts a token", "spread, two experts a token"),
    ):
        assert script[one][0] == pytest.approx(script[other][0], abs=2e-5)
        assert script[one][1:3] == script[other][1:3]
        assert min(script[one][3]) > 1e-4, "the gradients of what has copies, and of experts"
        assert max(script[other][3]) < 1e-13, "are those of one process"
    assert min(script["capped, factor 1"][3]) > 1e-6, "a dropped token changes them"
    for name, (_, tokens, dropped, _) in script.items():
        assert sum(tokens) == 2 * 1920 * (2 if "two" in name else 1), "two layers of 240 rows of 8 tokens"
        assert (dropped > 0) == (name == "capped, factor 1")


@pytest.mark.slow
def test_the_cells_train_as_the_script_does_and_show_what_the_text_says(lab, script):
    printed_here = io.StringIO()
    with contextlib.redirect_stdout(printed_here):
        list(run_cells(lab, "13d", notebook=True))
    said = printed_here.getvalue()
    trained = {
        way: [float(x) for x in losses.split(",")] for way, losses in re.findall(r"(\w+) +losses: \[(.*)\]", said)
    }
    like_ddp, average = trained["like_ddp"], trained["average"]
    on_all = [[float(x) for x in losses.split(",")] for losses in re.findall(r"ranks 0–2 │ losses: \[(.*)\]", said)]
    (alone,) = (losses for losses in on_all if len(losses) == 4)
    assert alone == pytest.approx(script["alone"][0], abs=1e-4)
    assert average == pytest.approx(alone, abs=1e-4)
    assert like_ddp[0] == pytest.approx(alone[0], abs=1e-4)
    upto = [float(x) for x in re.findall(r"in one process: .+ of copies, (.+) of my experts", said)]
    averaged = [float(x) for x in re.findall(r"like_ddp gradients off by .+ of copies, (.+) of my experts", said)]
    assert max(averaged) > 0.3 * max(upto), "the mean over different experts is nobody's gradient"
    yours = re.findall(r"average  gradients off by (.+) of copies, (.+) of my experts", said)
    assert yours, "copies and experts, on three ranks"
    off = [float(x) for pair in yours for x in pair]
    off += [float(x) for x in re.findall(r"largest gradient [\d.e+-]+, off by ([\d.e+-]+)", said)]
    assert len(off) > len(2 * yours), "and PyTorch's all-to-all"
    assert max(off) < 1e-12
    assert "{'all_to_all_single': 10}" in said

    experts = range(3)
    before, after, fair = (
        [sum(mine.count(e) for mine in lab.pull(name)) / (2 * 1920) for e in experts]
        for name in ("expert_at_first", "expert_after", "expert_after_fair")
    )
    (hot,) = re.findall(r"^losses: \[.*, ([\d.]+)\]$", said, re.MULTILINE)
    (fair_loss,) = (losses[-1] for losses in on_all if len(losses) == 2)
    assert fair_loss == pytest.approx(float(hot), abs=0.2), "both guess about equally well"
    assert before[0] > 0.8
    assert after[0] > 0.5, "the hot expert stays hot"
    assert max(fair) < 0.45, "and the loss for balance cools it down"

    factors = lab.pull("factors")[0]
    dropped, balanced = lab.pull("dropped")[0], lab.pull("dropped_balanced")[0]
    for parts in (dropped, balanced):
        assert parts == sorted(parts, reverse=True)
        assert parts[-1] == 0, "three times as many places as tokens, on three ranks"
    assert 0 < balanced[factors.index(1.0)] < dropped[factors.index(1.0)]


@pytest.fixture(scope="module")
def lab(training):
    """Three ranks, with time to import what they train with."""
    with labkit.start(3, timeout=10) as lab:
        yield lab
