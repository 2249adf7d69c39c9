"""Lessons 13 and 13b: their cells and script train as one process does, and their checks take other right ways."""

from __future__ import annotations

import ast
import math
import re
from pathlib import Path

import pytest

import labkit
from labkit.content import exercises, predictions
from labkit.rank import tiny
from tests import mistakes
from tests.live.lesson_cells import run_cells
from tests.scripts import printed

ROOT = Path(__file__).resolve().parent.parent.parent
WIDTH, TOKENS = 48, 240 * 8  # of the lesson's model, and of its batches
LIMIT = 240  # seconds: the script trains in five ways and imports DTensor, on busy cores

OTHER_WAYS = {
    "cut_linear": [
        """
def cut_linear(linear, kind, group=None):
    dim = {"column": 0, "row": 1}[kind]
    n, place = dist.get_world_size(group), dist.get_rank(group)
    size, more = divmod(linear.weight.shape[dim], n)
    start = place * size + min(place, more)
    length = size + (place < more)
    with torch.no_grad():
        weight = linear.weight.narrow(dim, start, length).contiguous().clone()
        bias = linear.bias.clone() if kind == "row" else linear.bias[start : start + length].clone()
    return [weight, bias]
"""
    ],
    "copy_in": [
        """
def copy_in(x, group=None):
    class F(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.group = group
            return x.clone()

        @staticmethod
        def backward(ctx, dy):
            return comms.all_reduce(dy, group=ctx.group)

    return F.apply(x)
""",
        """
def copy_in(x, group=None):
    y = 1 * x

    def add_up(dy):
        dy = dy.contiguous().clone()
        dist.all_reduce(dy, group=group)
        return dy

    y.register_hook(add_up)
    return y
""",
    ],
    "sum_out": [
        """
def sum_out(partial, group=None):
    others = partial.detach().clone()
    dist.all_reduce(others, group=group)
    return partial + (others - partial.detach())
"""
    ],
    "parallel_mlp": [
        """
def parallel_mlp(x, widen, narrow, f, g):
    hidden = torch.nn.functional.gelu(f(x) @ widen[0].T + widen[1])
    return narrow[1] + g(torch.einsum("rh,oh->ro", hidden, narrow[0]))
"""
    ],
    "whole_output": [
        """
def whole_output(part, dim):
    class Whole(torch.autograd.Function):
        @staticmethod
        def forward(ctx, part):
            moved = part.movedim(dim, 0).contiguous()
            y = moved.new_empty(world_size * len(moved), *moved.shape[1:])
            dist.all_gather_single(y, moved)
            return y.movedim(0, dim)

        @staticmethod
        def backward(ctx, dy):
            size = dy.shape[dim] // world_size
            return dy.narrow(dim, rank * size, size).clone()

    return Whole.apply(part)
"""
    ],
    "my_heads": [
        """
def my_heads(qkv, project, heads, group=None):
    n, place = dist.get_world_size(group), dist.get_rank(group)
    each = qkv.in_features // heads
    size, more = divmod(heads, n)
    start, stop = (each * (r * size + min(r, more)) for r in (place, place + 1))
    weight = torch.cat([third[start:stop] for third in qkv.weight.chunk(3)])
    bias = torch.cat([third[start:stop] for third in qkv.bias.chunk(3)])
    return weight, bias, project.weight[:, start:stop]
"""
    ],
    "gather_sequence": [
        """
def gather_sequence(x):
    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            rows = x.transpose(0, 1).contiguous()
            y = rows.new_empty(world_size * len(rows), *rows.shape[1:])
            dist.all_gather_single(y, rows)
            return y.transpose(0, 1)

        @staticmethod
        def backward(ctx, dy):
            rows = dy.transpose(0, 1).contiguous()
            dx = rows.new_empty(len(rows) // world_size, *rows.shape[1:])
            dist.reduce_scatter_single(dx, rows)
            return dx.transpose(0, 1)

    return Gather.apply(x)
""",
    ],
    "lean_column": [
        """
def lean_column(x, weight, bias):
    class Column(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, bias):
            ctx.save_for_backward(x, weight, bias)
            parts = [torch.empty_like(x) for _ in range(world_size)]
            dist.all_gather(parts, x)
            return torch.cat([part @ weight.T + bias for part in parts], 1)

        @staticmethod
        def backward(ctx, dy):
            x, weight, _ = ctx.saved_tensors
            parts = [torch.empty_like(x) for _ in range(world_size)]
            gathering = dist.all_gather(parts, x, async_op=True)  # while the gradient of x is computed
            slopes = [part.contiguous() for part in (dy @ weight).chunk(world_size, 1)]
            gathering.wait()
            dx = torch.empty_like(x)
            scattering = dist.reduce_scatter(dx, slopes, async_op=True)  # while that of the weight is
            d_weight = torch.einsum("rpo,rpi->oi", dy, torch.cat(parts, 1))
            scattering.wait()
            return dx, d_weight, dy.flatten(0, 1).sum(0)

    return Column.apply(x, weight, bias)
"""
    ],
    "sequence_mlp": [
        """
def sequence_mlp(x, norm, widen, narrow, gather, scatter, f):
    weight, bias, last = f(torch.stack([*norm, narrow[1]]))
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    y = (x - mean) / (variance + 1e-5).sqrt() * weight + bias
    hidden = torch.nn.functional.gelu(gather(y) @ widen[0].T + widen[1])
    return last + x + scatter(hidden @ narrow[0].T)
"""
    ],
}
EACH = [pytest.param(name, source) for name, sources in OTHER_WAYS.items() for source in sources]


@pytest.mark.parametrize(("name", "source"), EACH)
def test_another_right_way_is_right(lab, name, source):
    lab.run(source)
    verdict = lab.check(name)
    assert verdict.state == "right", repr(verdict)


def test_every_exercise_of_the_lessons_has_another_right_way():
    assert set(OTHER_WAYS) == {e.name for e in exercises.every().values() if e.lesson in ("13", "13b")}


def test_all_gather_in_the_columns_backward_pass_is_named(lab):
    lab.run(mistakes.find("copy_in", "gathers in the backward pass").source)
    assert "The backward pass calls all_gather" in repr(lab.check("copy_in"))


TENSOR = [{"all_reduce": 4}, {"all_reduce": 4}, {}]
SEQUENCE = [{"all_gather": 5, "reduce_scatter": 4}, {"all_gather": 4, "reduce_scatter": 4}, {"all_reduce": 1}]


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """The ways of the script on three ranks, which do not divide the 8 positions: losses, error, collectives."""
    found = {}
    for line in printed("tensor_parallel.py", 3, tmp_path_factory.mktemp("script"), LIMIT):
        name, losses, error, *counts = re.fullmatch(
            r"(.+): ([\d. ]+) · off by (\S+) · (.+) · (.+) · (.+)", line
        ).groups()
        found[name] = [float(loss) for loss in losses.split()], float(error), [ast.literal_eval(c) for c in counts]
    return found


@pytest.mark.slow
def test_every_way_of_the_script_is_one_process_cut_in_parts(script):
    right, _, none = script["one process"]
    assert none == [{}] * 3
    assert right[-1] < right[0] - 0.1, "it learns"
    for losses, error, _ in script.values():
        assert losses == pytest.approx(right, abs=2e-6), "six digits are printed"
        assert error < 1e-12


@pytest.mark.slow
def test_the_script_makes_the_collectives_that_the_lesson_counts(script):
    assert script["in parts"][2] == script["parallelize_module"][2] == TENSOR
    assert script["by sequence"][2] == SEQUENCE
    assert script["parallelize_module, by sequence"][2] == [*SEQUENCE[:2], {"all_reduce": 9}], (
        "the norms' in the optimizer"
    )


@pytest.mark.slow
def test_wrong_gradients_train_too_so_the_loss_does_not_show_them(tmp_path, monkeypatch):
    monkeypatch.setenv("MISTAKES", "16")
    losses = dict(line.rsplit(": ", 1) for line in printed("tensor_parallel.py", 2, tmp_path, LIMIT))
    right, *wrong = map(float, losses.values())
    assert len({right, *wrong}) == 4, "each way trains differently"
    assert max(right, *wrong) < 3.3, "knowing nothing costs log 36, 3.58"


@pytest.fixture(scope="module")
def said(lab) -> str:
    """What the last of three ranks prints in all cells of both lessons."""
    return "\n".join(out[-1] for lesson in ("13", "13b") for _, out in run_cells(lab, lesson))


@pytest.mark.slow
def test_the_cells_print_the_losses_that_the_script_prints_and_gradients_agree_to_twelve_digits(said, script):
    right, *_ = script["one process"]
    seen = re.findall(r"^losses: \[(.*)\]$", said, re.MULTILINE)
    assert len(seen) == 6, "one process in each lesson, in parts, by sequence, and PyTorch's two"
    for losses in seen:
        assert [float(loss) for loss in losses.split(",")] == pytest.approx(right, abs=2e-6)
    errors = re.findall(r"(?:any gradient:|with g off by|off by) (\d\S*e[-+]\d+)", said)
    assert len(errors) == 9, "all columns, five gradients of the MLP, two models, and a norm's that PyTorch adds up"
    assert max(map(float, errors)) < 1e-12
    assert re.findall(r"with comms.all_reduce (\S+) times", said) == ["3.000000"] * 4 + ["1.000000"]


@pytest.mark.slow
@pytest.mark.usefixtures("said")
def test_what_autograd_keeps_of_a_layer_is_what_the_formula_says(lab):
    """In sizes of x, and a few numbers more for each position."""
    for name, sizes in {"one_process": 16, "tensor": 4 + 12 / 3, "sequence": 2 + 14 / 3, "lean": 16 / 3}.items():
        for held in lab.pull(name):
            assert 0 <= sum(held.values()) / (1920 * 48 * 8 * sizes) - 1 < 0.03, (name, held)


def test_the_napkin_counts_the_layer_that_the_lesson_cuts():
    layer = sum(p.numel() for p in tiny.Block(WIDTH, 12).parameters())
    assert layer == 12 * WIDTH**2 + 13 * WIDTH
    assert math.prod(tiny.batch(0)[0].shape) == TOKENS
    assert round(4 * TOKENS * WIDTH / layer) == 13
    assert predictions.find("bytes_against_data_parallel").answer == "13 times as much"


@pytest.fixture(scope="module")
def lab(own_progress):
    """Three ranks, with time to import what they train with."""
    with labkit.start(3, timeout=10) as lab:
        yield lab
