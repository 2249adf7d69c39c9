"""Lessons 12 and 12b: their cells and their script train alike, and their checks take other right ways."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

import labkit
from tests.live.lesson_cells import run_cells
from tests.scripts import printed
from workbook.tools import pipeline

ROOT = Path(__file__).resolve().parent.parent.parent
LIMIT = 240  # seconds: the script trains in nine ways, on busy cores
RANKS = 3  # which do not divide ten layers

OTHER_WAYS = {
    "cut_layers": [
        """
def cut_layers(layers):
    return torch.arange(layers).tensor_split(world_size)[rank].tolist()
""",
        """
def cut_layers(layers):
    begins = [r * (layers // world_size) + min(r, layers % world_size) for r in range(world_size + 1)]
    return range(begins[rank], begins[rank + 1])
""",
    ],
    "stage_forward": [
        """
def stage_forward(stage, batch, parts, send):
    x, targets = batch
    if stage.before is not None:
        x = stage.room(len(targets)).requires_grad_()
        dist.irecv(x.detach(), src=stage.before).wait()
    y = stage(x)
    if stage.after is None:
        return x, stage.loss(y, targets) * (1 / parts)
    with torch.no_grad():
        send(y.clone(), dst=stage.after)
    return x, y
"""
    ],
    "stage_backward": [
        """
def stage_backward(stage, x, y, send):
    slopes = None
    if stage.after is not None:
        slopes = y.detach().clone()
        dist.irecv(slopes, src=stage.after, tag=1).wait()
    torch.autograd.backward([y], [slopes] if slopes is not None else None)
    if stage.before is not None:
        send(x.grad.clone(), dst=stage.before, tag=1)
"""
    ],
    "one_f_one_b": [
        """
def one_f_one_b(stage, stages, parts):
    order, forward, back = [], 0, 0
    while back < parts:
        if forward < parts and forward - back < stages - stage:
            order.append(["F", forward])
            forward += 1
        else:
            order.append(["B", back])
            back += 1
    return tuple(order)
"""
    ],
    "run_ops": [
        """
def run_ops(ops, run):
    going = []

    def send(tensor, dst, tag=0):
        if tag == 0:
            dist.send(tensor, dst)  # one of the two directions may block
        else:
            going.append(dist.isend(tensor, dst, tag=tag))

    for op in ops:
        run(op, send)
    while going:
        going.pop().wait()
""",
    ],
    "balanced_parts": [
        """
def balanced_parts(seconds):
    everyone = [torch.empty_like(seconds) for _ in range(world_size)]
    dist.all_gather(everyone, seconds)
    costs = torch.stack(everyone).mean(0).tolist()

    def filled(limit):
        begins, held = [0], 0.0
        for i, cost in enumerate(costs):
            left = len(costs) - i  # parts that are still to come, and ranks that still need one
            if i and (held + cost > limit or left <= world_size - len(begins)):
                begins.append(i)
                held = 0.0
            held += cost
        return begins

    runs = sorted({sum(costs[a:b]) for a in range(len(costs)) for b in range(a + 1, len(costs) + 1)})
    limit = next(run for run in runs if max(costs) <= run and len(filled(run + 1e-9)) <= world_size)
    begins = [*filled(limit + 1e-9), len(costs)]
    return list(range(begins[rank], begins[rank + 1]))
"""
    ],
    "later_linear": [
        """
def later_linear(x, weight, bias, later):
    class Half(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w, b):
            ctx.x = x.detach()
            return torch.nn.functional.linear(x, w, b)

        @staticmethod
        def backward(ctx, dy):
            def add():
                rows, inputs = dy.flatten(0, -2), ctx.x.flatten(0, -2)
                for p, slope in ((weight, torch.einsum("ro,ri->oi", rows, inputs)), (bias, rows.sum(0))):
                    if p.grad is None:
                        p.grad = torch.zeros_like(p)
                    p.grad.add_(slope)

            later.append(add)
            return torch.nn.functional.linear(dy, weight.detach().T), None, None

    return Half.apply(x, weight, bias)
"""
    ],
    "split_order": [
        """
def split_order(order, place):
    back = [m for kind, m in order if kind == "B"]
    found = []
    for kind, m in order:
        found.append([kind, m])
        if kind == "B" and back.index(m) >= place:
            found.append(["W", back[back.index(m) - place]])
    return (*found, *(["W", m] for m in back[max(0, len(back) - place) :]))
"""
    ],
    "pipeline_norm": [
        """
def pipeline_norm(gradients, tied):
    half = [g.square().sum() / (2 if i == tied else 1) for i, g in enumerate(gradients)]
    everyone = [torch.zeros_like(half[0]) for _ in range(world_size)]
    dist.all_gather(everyone, sum(half))
    return sum(everyone).sqrt().item()
"""
    ],
    "tie_ends": [
        """
def tie_ends(weight):
    dist.new_group([0])  # whoever makes groups makes them on all ranks
    ends = dist.new_group([0, world_size - 1])
    if weight is not None:
        copies = [torch.empty_like(weight) for _ in range(2)]
        dist.all_gather(copies, weight.detach(), group=ends)
        weight.data.copy_(copies[0])

    def tied():
        if rank == 0:
            other = torch.empty_like(weight)
            dist.recv(other, src=world_size - 1)
            weight.grad += other
            dist.send(weight.grad, dst=world_size - 1)
        elif rank == world_size - 1:
            dist.send(weight.grad, dst=0)
            dist.recv(weight.grad, src=0)

    return tied
"""
    ],
    "interleaved_order": [
        """
def interleaved_order(place, ranks, parts, chunks):
    def nth(k):
        group, within = divmod(k, ranks * chunks)
        return group * ranks + within % ranks, within // ranks

    total, ahead = parts * chunks, ranks - place - 1 + (chunks - 1) * ranks  # where messages take no time, it does
    order, forward, back = [], 0, 0
    while back < total:
        if forward < total and forward - back <= ahead:
            order.append(("F", *nth(forward)))
            forward += 1
        else:
            m, c = nth(back)
            order.append(("B", m, chunks - 1 - c))
            back += 1
    return order
"""
    ],
}
EACH = [pytest.param(name, source, id=name) for name, sources in OTHER_WAYS.items() for source in sources]


@pytest.mark.parametrize(("name", "source"), EACH)
def test_another_right_way_is_right(lab, name, source):
    lab.run(source)
    verdict = lab.check(name)
    assert verdict.state == "right", repr(verdict)


# -- script and cells -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def script(tmp_path_factory) -> dict[str, tuple[list[float], float]]:
    """What the script said of each way: its losses, and what rank 0 kept."""
    found = {}
    for line in printed("pipeline.py", RANKS, tmp_path_factory.mktemp("script"), LIMIT):
        name, losses, kept = re.fullmatch(r"(.+): ([\d. ]+?)(?: · ([\d.]+) kept)?", line).groups()
        found[name] = [float(loss) for loss in losses.split()], float(kept or 0)
    return found


@pytest.mark.slow
def test_every_way_of_the_script_has_the_losses_of_one_process(script):
    right, _ = script["one process"]
    assert len(right) == 4
    assert right[-1] < right[0] - 0.3, "it learns"
    assert len(script) == 9
    for losses, _ in script.values():
        assert losses == pytest.approx(right, abs=2e-5)


@pytest.mark.slow
def test_the_script_keeps_what_theory_says(script):
    for schedule in (f(RANKS, 2 * RANKS) for f in pipeline.SCHEDULES.values()):
        _, kept = script[schedule.name]
        assert kept == schedule.alive[0] / schedule.chunks


def said(ran: list[tuple[str, list[str]]], part: str) -> list[str]:
    """What each rank prints in the one cell whose source has this in it."""
    (found,) = [out for source, out in ran if part in source]
    return found


@pytest.fixture(scope="module")
def first(lab):
    """The cells of lesson 12 on three ranks."""
    return list(run_cells(lab, "12"))


@pytest.fixture(scope="module")
def second(lab):
    """The cells of lesson 12b."""
    return list(run_cells(lab, "12b"))


@pytest.mark.slow
def test_the_cells_of_lesson_12_print_the_losses_that_the_script_prints(first, script):
    right, _ = script["one process"]
    alone = re.findall(r"one process, step \d loss ([\d.]+)", said(first, "all 240 rows")[0])
    *others, last = said(first, '"pipeline, step"')
    assert not any("pipeline, step" in text for text in others), "only the last stage knows the loss"
    for losses in (alone, re.findall(r"pipeline, step \d loss ([\d.]+)", last)):
        assert [float(loss) for loss in losses] == pytest.approx(right, abs=2e-4)


def differences(out: list[str]) -> list[float]:
    return [float(re.search(r"largest difference[^:]*: ([\d.e+-]+)", text)[1]) for text in out]


@pytest.mark.slow
def test_gradients_are_those_of_one_process_but_where_one_stage_goes_back_in_another_order(first):
    assert max(differences(said(first, '"pipeline, step"'))) < 1e-6
    assert max(differences(said(first, "with 64 micro-batches"))) < 1e-6
    *wrong, last = differences(said(first, "order[8:][::-1]"))
    assert min(wrong) > 1e-4
    assert last < 1e-6
    whole, parts = (float(norm) for norm in re.findall(r": +([\d.]+)", said(first, "whole batch:")[0]))
    assert parts == pytest.approx(8 * whole, rel=1e-3), "eight means are added"


@pytest.mark.slow
def test_1f1b_keeps_as_much_as_there_are_stages_from_here_on_and_takes_less_memory(first):
    for r, text in enumerate(said(first, "with 64 micro-batches")):
        kept = re.findall(r"kept at once: (\d+), more at the peak: ([\d.]+) MiB", text)
        assert [int(k) for k, _ in kept] == [8, RANKS - r]
        assert float(kept[1][1]) < float(kept[0][1])
        assert f"with 64 micro-batches: {RANKS - r} kept" in text


@pytest.mark.slow
def test_neighbours_that_both_send_swap_what_they_have(first):
    zero, one, *alone = (text.strip() for text in said(first, "batch_isend_irecv"))
    assert zero == "sent [0.0, 0.0, 0.0] and received [1.0, 1.0, 1.0]"
    assert one == "sent [1.0, 1.0, 1.0] and received [0.0, 0.0, 0.0]"
    assert alone == [""], "of three ranks the last one has no partner"


@pytest.mark.slow
def test_one_batch_in_one_piece_keeps_one_rank_at_a_time_busy(lab, first):
    """No pass can overlap another one, however busy the machine is: the bubble is (P - 1) / P or more."""
    lab.run('kept = training_step([("F", 0), ("B", 0)], slow, parts=1, size=8)')
    chart = lab.last.timeline().gantt
    assert [[bar.names[0] for bar in mine] for mine in chart.bars] == [["F0", "B0"]] * RANKS
    assert chart.bubble > (RANKS - 1) / RANKS - 0.01
    forward, back = ([mine[i] for mine in chart.bars] for i in (0, 1))
    assert all(a.end <= b.start for a, b in pairwise(forward))
    assert all(b.end <= a.start for a, b in pairwise(back))


@pytest.mark.slow
def test_the_chart_of_a_run_has_the_order_that_was_asked_for_and_some_passes_at_the_same_time(lab, first):
    lab.run("kept = training_step(one_f_one_b(rank, world_size, 4), slow, parts=4, size=8)")
    chart = lab.last.timeline().gantt
    wanted = pipeline.one_f_one_b(RANKS, 4).orders
    assert [[bar.names[0] for bar in mine] for mine in chart.bars] == [
        [f"{k}{m}" for k, m, _ in mine] for mine in wanted
    ]
    assert 0 < chart.bubble < (RANKS - 1) / RANKS


@pytest.mark.slow
def test_the_cells_of_lesson_12b_print_the_loss_and_the_gradients_of_one_process(second, script):
    right = script["one process"][0][0]
    *_, last = said(second, "def theirs") and said(second, 'theirs("ScheduleGPipe"')
    found = re.findall(r"^(Schedule\w+) +loss ([\d.]+), gradients off by ([\d.e+-]+)$", last, re.MULTILINE)
    assert [name for name, *_ in found] == [
        "ScheduleGPipe",
        "Schedule1F1B",
        "ScheduleInterleaved1F1B",
        "ScheduleInterleavedZeroBubble",
    ]
    assert [float(loss) for _, loss, _ in found] == pytest.approx([right] * 4, abs=2e-4)
    assert max(float(off) for *_, off in found) < 1e-6, "PyTorch's gradients"
    assert max(differences(said(second, "activations kept at once"))) < 1e-6, "interleaved"
    assert max(differences(said(second, "as halved:"))) < 1e-6, "zero bubble"
    for part in ("activations kept at once", "as halved:"):
        ours, alone = re.search(r"loss: ([\d.]+), in one process: ([\d.]+)", said(second, part)[-1]).groups()
        assert float(ours) == pytest.approx(float(alone), abs=2e-4)
    assert float(alone) == pytest.approx(right, abs=2e-4), "the whole batch"


@pytest.mark.slow
def test_one_slow_stage_sets_the_pace_of_the_step(lab, second):
    """No wait is shorter than it was asked to be, so the step takes as long as the prediction computes, or longer."""
    lab.run("kept = training_step(pipeline.gpipe(world_size, 8).orders[rank], [slow], parts=8, size=16)")
    chart = lab.last.timeline().gantt
    assert chart.whole >= 8 * 0.18 + (RANKS - 1) * 0.09
    assert min(chart.idle) == chart.idle[1], "rank 1 is the slow one"


@pytest.mark.slow
def test_both_copies_of_a_tied_matrix_get_the_sum_of_their_gradients(second):
    first, *between, last = said(second, "tied = tie_ends")
    assert between == [""] * (RANKS - 2)
    rows = [[ast.literal_eval(row) for row in re.findall(r"\[.*\]", text)] for text in (first, last)]
    (mine, after, alone), (theirs, same, _) = rows
    assert after == same == pytest.approx(alone, abs=2e-5)
    assert after == pytest.approx([a + b for a, b in zip(mine, theirs, strict=True)], abs=3e-5)


@pytest.fixture(scope="module")
def lab(training):
    """Three ranks, with time to import what they train with."""
    with labkit.start(RANKS, timeout=10) as lab:
        yield lab
