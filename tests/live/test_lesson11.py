"""Lessons 11 and 11b: their cells and their script train alike, and their checks take other right ways."""

from __future__ import annotations

import ast
import inspect
import re
import weakref
from pathlib import Path

import pytest

import labkit
from labkit.content import exercises
from tests.live.lesson_cells import code, run_cells
from tests.live.versions import GLOO_ALL_TO_ALL
from tests.scripts import printed
from workbook import harnesses
from workbook.tools import sharding

ROOT = Path(__file__).resolve().parent.parent.parent
LIMIT = 150  # seconds: the script trains in ten ways, on busy cores

OTHER_WAYS = {
    "zero1_step": [
        """
def zero1_step(params, weights, shard, optimizer):
    parts = [part.contiguous() for part in torch.cat([p.grad.flatten() for p in params]).split(len(shard))]
    parts += [torch.zeros_like(shard) for _ in range(world_size - len(parts))]
    parts = [torch.nn.functional.pad(part, (0, len(shard) - len(part))) for part in parts]
    shard.grad = torch.zeros_like(shard)
    dist.reduce_scatter(shard.grad, parts)
    shard.grad /= world_size
    optimizer.step()
    new = [torch.empty_like(shard) for _ in range(world_size)]
    dist.all_gather(new, shard.detach())
    weights.copy_(torch.cat(new))
    for p in params:
        p.grad.zero_()
"""
    ],
    "shed_gradients": [
        """
def shed_gradients(params, shard):
    missing = [len(params)]

    def arrived(_):
        missing[0] -= 1
        if missing[0] == 0:
            missing[0] = len(params)
            gradient = torch.zeros(world_size, len(shard), dtype=shard.dtype)
            flat = torch.cat([p.grad.reshape(-1) for p in params])
            gradient.view(-1)[: len(flat)] = flat
            mine = torch.zeros_like(shard)
            dist.reduce_scatter(mine, list(gradient))
            mine.div_(world_size)
            shard.grad = mine if shard.grad is None else shard.grad.add_(mine)
            for p in params:
                p.grad = None

    for p in params:
        p.register_post_accumulate_grad_hook(arrived)
"""
    ],
    "my_shard": [
        """
def my_shard(flat, group=None):
    size = dist.get_world_size(group)
    room = flat.new_zeros(-(-len(flat) // size) * size)
    room[: len(flat)] = flat
    return room.chunk(size)[dist.get_rank(group)].clone()
""",
        """
def my_shard(flat, group=None):
    size, place = dist.get_world_size(group), dist.get_rank(group)
    padded = torch.cat([flat, flat.new_zeros(-len(flat) % size)])
    return padded.view(size, -1)[place].clone()
""",
    ],
    "zero3_layer": [
        """
def zero3_layer(compute, shard, x):
    def gathered():
        rooms = [torch.empty_like(shard) for _ in range(world_size)]
        dist.all_gather(rooms, shard.detach())
        return torch.cat(rooms)

    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(ctx, shard, x):
            ctx.x = x.detach()
            return compute(gathered(), x)

        @staticmethod
        def backward(ctx, dy):
            weights = gathered().requires_grad_()
            inputs = [weights]
            if ctx.x.is_floating_point():
                inputs.append(ctx.x.requires_grad_())
            with torch.enable_grad():
                y = compute(weights, ctx.x)
            slopes = torch.autograd.grad(y, inputs, dy)
            mine = torch.empty_like(shard)
            dist.reduce_scatter(mine, [part.contiguous() for part in slopes[0].chunk(world_size)])
            return mine / world_size, slopes[1] if len(slopes) > 1 else None

    return Layer.apply(shard, x)
"""
    ],
    "sharded_pass": [
        """
def sharded_pass(layers, shards, x, dy):
    xs, weights = [x], None
    for i, layer in enumerate(layers):
        weights = shards[i].new_empty(world_size * len(shards[i]))
        dist.all_gather_single(weights, shards[i])
        xs.append(layer.forward(weights, xs[-1]))
    mine = [None] * len(layers)
    for i in range(len(layers) - 1, -1, -1):
        if weights is None:
            weights = shards[i].new_empty(world_size * len(shards[i]))
            dist.all_gather_single(weights, shards[i])
        slope, dy = layers[i].backward(weights, xs[i], dy / world_size if i == len(layers) - 1 else dy)
        mine[i] = torch.empty_like(shards[i])
        dist.reduce_scatter(mine[i], [part.contiguous() for part in slope.chunk(world_size)])
        weights = None
    return mine
"""
    ],
    "forward_ahead": [
        """
def forward_ahead(layers, gather, x):
    coming = [gather(0)]
    for i in range(len(layers)):
        work, weights = coming.pop()
        work.wait()
        del work
        if i + 1 < len(layers):
            coming.append(gather(i + 1))
        x = layers[i](weights, x)
        del weights
    return x
"""
    ],
    "hsdp_gradient": [
        """
def hsdp_gradient(gradient, inner, outer):
    parts = [part.contiguous() for part in gradient.chunk(dist.get_world_size(inner))]
    mine = torch.empty_like(parts[0])
    dist.reduce_scatter(mine, parts, group=inner)
    mine /= dist.get_world_size(inner)
    dist.all_reduce(mine, op=dist.ReduceOp.AVG, group=outer)
    return mine
"""
    ],
    "clip_shards": [
        """
def clip_shards(shards, most):
    mine = sum(float(shard.grad.double().pow(2).sum()) for shard in shards)
    norm = comms.all_reduce(mine) ** 0.5
    if norm > most:
        for shard in shards:
            shard.grad.mul_(most / norm)
    return norm
"""
    ],
    "stage_price": [
        """
def stage_price(parameters, gpus, stage):
    whole = {"weights": 2, "gradients": 2, "optimizer": 12}
    cut = {1: ["optimizer"], 2: ["optimizer", "gradients"], 3: list(whole)}.get(stage, [])
    memory = sum(size * parameters / (gpus if kind in cut else 1) for kind, size in whole.items())
    half = 2 * parameters * (1 - 1 / gpus)
    return memory, half * (3 if stage == 3 else 2)
"""
    ],
}
EACH = [
    pytest.param(name, source, marks=GLOO_ALL_TO_ALL if "all_to_all" in source else ())
    for name, sources in OTHER_WAYS.items()
    for source in sources
]


@pytest.mark.parametrize(("name", "source"), EACH)
def test_another_right_way_is_right(lab, name, source):
    lab.run(source)
    verdict = lab.check(name)
    assert verdict.state == "right", repr(verdict)


class Weights:
    """What a weak reference can point to."""


def test_who_lets_weights_go_late_is_not_blamed_for_a_machine_that_stands_still(monkeypatch):
    alive, turns = {"late": Weights(), "never": Weights()}, []

    class Stalling:
        """Every turn takes a minute of the clock, and in the third one a thread gets to let go."""

        @staticmethod
        def monotonic() -> float:
            return 60.0 * len(turns)

        @staticmethod
        def sleep(_: float) -> None:
            turns.append(60.0)
            alive.pop("late", None) if len(turns) == 3 else None

    monkeypatch.setattr(harnesses, "time", Stalling)
    late, never = (weakref.ref(weights) for weights in alive.values())
    assert harnesses.kept([late]) == []
    assert len(turns) == 3, "it ends as soon as they are gone"
    assert harnesses.kept([late, never]) == [1]


LOOKS = """
import threading, time
from labkit.rank import frames


def looks():
    while looking:
        frames.look(frames.MAIN, lambda found: time.sleep(0.004))
        time.sleep(0.002)


looking = True
threading.Thread(target=looks).start()
"""


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, e in exercises.every().items()
        if e.harness and "kept(" in inspect.getsource(getattr(e.harness, "func", e.harness))
    ],
)
def test_a_rank_is_not_blamed_for_what_a_look_at_it_keeps(lab, name):
    """A frame lives as long as anyone looks at it, and so do the tensors in it, also when its function has returned."""
    lab.run(exercises.find(name).answer.removeprefix("%%px\n"))
    lab.run(LOOKS)
    try:
        verdict = lab.check(name)
    finally:
        lab.run("looking = False")
    assert verdict.state == "right", repr(verdict)


def ways(lines: list[str]) -> dict[str, tuple[list[float], dict[str, int]]]:
    """What the script said of each way: its losses, and the bytes that rank 0 holds of each kind."""
    found = {}
    for line in lines:
        name, losses, held = re.fullmatch(r"(.+): ([\d. ]+) · (.*)", line).groups()
        sizes = {kind: int(size.replace(",", "")) for kind, size in re.findall(r"(\w+) ([\d,]+)", held)}
        found[name] = [float(loss) for loss in losses.split()], sizes
    return found


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """The ways of the script on three ranks, among which 205,220 parameters do not divide."""
    return ways(printed("zero_and_fsdp.py", 3, tmp_path_factory.mktemp("script"), LIMIT))


@pytest.mark.slow
def test_every_way_of_the_script_has_the_losses_of_one_process(script):
    right, _ = script["one process"]
    assert len(right) == 4
    assert right[-1] < right[0] - 0.1, "it learns"
    assert {"replicas", "ZeRO-1", "ZeRO-2", "ZeRO-3", "ZeroRedundancyOptimizer", "fully_shard"} < set(script)
    for losses, _ in script.values():
        assert losses == pytest.approx(right, abs=2e-4)


@pytest.mark.slow
def test_what_a_rank_holds_is_what_the_formula_says_but_for_padding_and_counters(script):
    for stage, name in enumerate(["replicas", "ZeRO-1", "ZeRO-2", "ZeRO-3"]):
        _, held = script[name]
        formula = sharding.held(205_220, 3, stage)
        assert all(0 <= held[kind] - formula[kind] < 0.001 * 16 * 205_220 for kind in formula)
    assert sum(script["fully_shard"][1].values()) < 1.03 * sum(sharding.held(205_220, 3, 3).values())


@pytest.mark.slow
def test_the_cells_of_lesson_11_print_the_losses_that_the_script_prints(lab, script):
    right, _ = script["one process"]
    said = "\n".join(out[-1] for _, out in run_cells(lab, "11"))
    seen = re.findall(r"^losses: \[(.*)\]$", said, re.MULTILINE)
    assert len(seen) == 7, "one process, replicas, three stages, ZeroRedundancyOptimizer, fully_shard"
    for losses in seen:
        assert [float(loss) for loss in losses.split(",")] == pytest.approx(right, abs=2e-4)
    gathers = re.findall(
        r"^  (?:forward|backward): +flight recorder (\{.*?\})\n +CommDebugMode (\{.*?\})", said, re.MULTILINE
    )
    counts = [[ast.literal_eval(names) for names in both] for both in gathers]
    assert [noted.get("all_gather", 0) for noted, _ in counts] == [5, 4, 5, 0], "with and without resharding"
    assert [dispatched.get("_allgather_base_", 0) for _, dispatched in counts] == [5, 4, 5, 0]
    held = [sum(lab.pull(name)[0].values()) for name in ("replica", "zero1", "zero2", "zero3")]
    assert held == sorted(held, reverse=True)


@pytest.mark.slow
def test_the_cells_of_lesson_11b_print_them_too_and_what_was_saved_is_loaded(lab, script):
    right, _ = script["one process"]
    printed = "\n".join(out[-1] for _, out in run_cells(lab, "11b"))
    (losses,) = re.findall(r"^losses: \[(.*)\]$", printed, re.MULTILINE)
    assert [float(loss) for loss in losses.split(",")] == pytest.approx(right, abs=2e-4)
    (by_hand, by_fsdp, alone) = re.findall(r"^(?:by hand|by FSDP|in one process) +\[(.*)\]$", printed, re.MULTILINE)
    for found in (by_hand, by_fsdp):
        assert [float(x) for x in found.split(",")] == pytest.approx([float(x) for x in alone.split(",")], abs=2e-6)
    seen = re.findall(r"(all parts together:|in one process:|of|afterwards is) +([\d.]+)$", printed, re.MULTILINE)
    norm = {what: float(value) for what, value in seen}
    assert norm["all parts together:"] == pytest.approx(norm["in one process:"], abs=2e-4)
    assert norm["of"] == pytest.approx(norm["in one process:"], abs=2e-4), "what clip_grad_norm_ returns"
    assert norm["afterwards is"] == pytest.approx(0.5, abs=2e-4)
    sizes = ast.literal_eval(re.search(r"^\{'.metadata'.*\}$", printed, re.MULTILINE)[0])
    assert sizes["by_rank_0.pt"] < 0.5 * 4 * 205_220, "rank 0's part, not the model"
    assert "largest difference: 0.0" in printed


@pytest.mark.slow
def test_in_float64_all_stages_end_in_the_weights_of_one_process(lab):
    """In float32 a gradient that is all rounding, such as a key bias's, moves its weight by Adam's full step."""
    names = ("zero1_step", "shed_gradients", "my_shard", "zero3_layer")
    for name in names:
        lab.run(exercises.find(name).answer.removeprefix("%%px\n"))
    for cell in code("11"):
        if re.match(r"%%px\ndef (fresh|flat_buffer)", cell.source):
            lab.run(cell.source.removeprefix("%%px\n").replace(".to(device)", ".to(device).double()"))
    lab.run("""
from workbook.tools.rank import layered


def trained(model, optimizer, update, share=True):
    for step in range(4):
        optimizer.zero_grad()
        batch = tiny.batch(step, rank, world_size) if share else tiny.batch(step)
        tiny.loss(model, batch).backward()
        update()


def off(weights, right):
    return (weights[: len(right)] - right).abs().max().item()


alone = fresh()
optimizer = torch.optim.Adam(alone.parameters(), lr=0.003)
trained(alone, optimizer, optimizer.step, share=False)
right = torch.nn.utils.parameters_to_vector(alone.parameters()).detach()

model = fresh()
params = list(model.parameters())
weights, shard = flat_buffer(params)
optimizer = torch.optim.Adam([shard], lr=0.003)
trained(model, optimizer, lambda: zero1_step(params, weights, shard, optimizer))
errors = [off(weights, right)]

layers = layered.in_layers(fresh())
buffers = [flat_buffer(list(layer.parameters())) for layer in layers]
for layer, (_, mine) in zip(layers, buffers):
    shed_gradients(list(layer.parameters()), mine)
optimizer = torch.optim.Adam([mine for _, mine in buffers], lr=0.003)


def update():
    optimizer.step()
    for whole, mine in buffers:
        dist.all_gather_single(whole, mine.detach())


trained(layers, optimizer, update)
errors.append(off(torch.nn.utils.parameters_to_vector(layers.parameters()).detach(), right))
""")
    errors = lab.pull("errors")
    assert all(error < 1e-9 for mine in errors for error in mine), errors


@pytest.fixture(scope="module")
def lab(training):
    """Three ranks, with time to import what they train with."""
    with labkit.start(3, timeout=10) as lab:
        yield lab
