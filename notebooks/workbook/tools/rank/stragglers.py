"""Four training runs, each with something wrong on one rank: what it is, and where, is for the learner to find out.

    from workbook.tools.rank import stragglers

    run = stragglers.run("A")
    run["compute"]     # seconds of each training step's forward and backward pass on this rank

A slow device is played by one that waits, so that ranks on few cores get into each other's way no more than machines
of their own would. The gradients are summed round a ring of sends, as in lesson 06: so the link is seen that is slow.
Reading on gives the answers away.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist

from labkit.floor.errors import LabError
from labkit.rank import recorder, tiny
from labkit.rank.spans import span

__all__ = ["NAMES", "QUANTITIES", "run"]

NAMES = "ABCD"
QUANTITIES = ("rows", "compute", "wait", "send", "rest")
PAUSE = 0.012  # seconds that a bad cable loses with each message
A_ROW = 1 / 3000  # seconds that a healthy device takes for a row: 20 ms for a quarter of the batch


def run(name: str, steps: int = 12) -> dict[str, list[float]]:
    """Train the small model for some steps on all ranks; return what this rank measured, a list for each of QUANTITIES.

    `rows`: in this rank's share of the batch. In seconds, `compute`: the forward and backward pass; `wait`: in the
    barrier behind it, until the last rank has come; `send`: for all that this rank sends in the ring; `rest`: what
    this rank does in the step besides, such as the update.
    """
    if name not in NAMES:
        raise LabError(f"There is no run {name!r}. Choose one of {', '.join(NAMES)}.")
    rank, n = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = tiny.Model()
    kept: dict[str, list[float]] = {quantity: [] for quantity in QUANTITIES}
    with recorder.paused():  # the first time takes longer: the text is read
        tiny.loss(model, tiny.batch(0)).backward()
        dist.barrier()
    for step in range(steps):
        began = time.perf_counter()
        inputs, targets = tiny.batch(step)
        shares = _shares(name, len(targets), n)
        inputs, targets = inputs.split(shares)[rank], targets.split(shares)[rank]
        loaded = time.perf_counter()
        with span("forward, backward"):
            model.zero_grad()
            tiny.loss(model, (inputs, targets)).backward()
            due = loaded + A_ROW * len(targets) * _throttled(name, rank, n, step, steps)
            time.sleep(max(0.0, due - time.perf_counter()))
        computed = time.perf_counter()
        dist.barrier()
        met = time.perf_counter()
        flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]) * len(targets) / 240
        before_ring = time.perf_counter()
        sending = _ring(flat, PAUSE if (name, rank) == ("B", n - 1) else 0.0)
        summed = time.perf_counter()
        _update(model, flat)
        if (name, rank) == ("C", 0) and step % 4 == 3:
            time.sleep(0.1)  # rank 0 writes its log to a slow disk
        ended = time.perf_counter()
        rest = (loaded - began) + (before_ring - met) + (ended - summed)
        seconds = (computed - loaded, met - computed, sending, rest)
        for quantity, value in zip(QUANTITIES, (float(len(targets)), *seconds), strict=True):
            kept[quantity].append(value)
    return kept


def _shares(name: str, rows: int, n: int) -> list[int]:
    """Return each rank's rows: equal, but in the run where one document is long and stays with one rank."""
    parts = [3 if (name, r) == ("A", 1 % n) else 1 for r in range(n)]
    sizes = [rows * part // sum(parts) for part in parts]
    sizes[0] += rows - sum(sizes)
    return sizes


def _throttled(name: str, rank: int, n: int, step: int, steps: int) -> float:
    """Return the factor by which a device is too slow: one gets hot after a while and clocks down."""
    return 3.0 if (name, rank) == ("D", max(0, n - 2)) and step >= max(1, steps // 3) else 1.0


def _ring(flat: torch.Tensor, pause: float) -> float:
    """Sum up over the ranks in place, round a ring; return the seconds that this rank's sends took.

    All receives stand ready from the beginning, so that no send waits for its receiver. A link with a bad cable takes
    a `pause` before each message gets through, as if it had to be sent again and again.
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    rooms = [torch.empty_like(flat) for _ in range(n - 1)]
    coming: list[Any] = [dist.irecv(room, src=(rank - 1) % n) for room in rooms]
    out, sending = flat.clone(), 0.0
    for room, work in zip(rooms, coming, strict=True):
        began = time.perf_counter()
        time.sleep(pause)
        dist.send(out, dst=(rank + 1) % n)
        sending += time.perf_counter() - began
        work.wait()
        flat += room
        out = room
    return sending


@torch.no_grad()
def _update(model: torch.nn.Module, flat: torch.Tensor) -> None:
    """Do a step of gradient descent with learning rate 1."""
    parameters = list(model.parameters())
    for p, grad in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        p.sub_(grad.view_as(p))
