"""Ranks that write into one another's memory: put, accumulate, a race and its repairs, and training that nobody serves.

    torchrun --nproc-per-node 4 scripts/one_sided.py

Prints what lesson 02b shows: what stands in rank 0's window after puts and accumulates, how far the ranks count
together with a get and a put, with a lock and with accumulate, and the loss of the small model before and after all
ranks have moved the weights in rank 0's window. All ranks are on one host.

torchrun's own store listens on all network interfaces. Without it, ranks can meet in a new file, and nothing but
loopback listens:

    meet=$(mktemp -u)
    for r in 0 1 2 3; do
      RANK=$r WORLD_SIZE=4 INIT_METHOD=file://$meet python scripts/one_sided.py &
    done; wait; rm -f $meet
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from labkit.rank import tiny
from workbook.tools.rank.window import Window, open_window

TIMES, STEPS, LR = 500, 60, 0.5


def places() -> list[float]:
    """What stands in rank 0's window when every rank has put its number, plus one, into place 0 and added it to 1."""
    window = open_window(2)
    window.put(dist.get_rank() + 1, to=0, at=0)
    window.accumulate(dist.get_rank() + 1, to=0, at=1)
    window.fence()
    return window.get(0).tolist()


def raced(counter: Window) -> None:
    """Count one further, if nobody comes in between."""
    seen = counter.get(0)
    counter.put(seen + 1, to=0)
    counter.flush()


def locked(counter: Window) -> None:
    """Count one further; whoever asks for the lock waits."""
    with counter.lock(0):
        counter.put(counter.get(0) + 1, to=0)


def added(counter: Window) -> None:
    """Count one further, in one piece."""
    counter.accumulate(1, to=0)
    counter.flush()


def count(one_further) -> int:
    """How far all ranks come together, each with so many calls."""
    counter = open_window(1, torch.int64)
    for _ in range(TIMES):
        one_further(counter)
    counter.fence()
    return int(counter.get(0))


def train() -> tuple[float, float, int]:
    """The validation loss before and after, and how many updates there were: no rank waits for another one."""
    rank, n = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model, rows = tiny.Model(), tiny.validation()
    weights, updates = open_window(12_444), open_window(1, torch.int64)
    if rank == 0:
        weights.mine.copy_(parameters_to_vector(model.parameters()).detach())
    weights.fence()
    before = tiny.loss(model, rows).item()
    for step in range(STEPS):
        vector_to_parameters(weights.get(0), model.parameters())
        model.zero_grad()
        tiny.loss(model, tiny.batch(step, rank, n)).backward()
        gradient = parameters_to_vector([p.grad for p in model.parameters()])
        weights.accumulate(-LR / n * gradient, to=0)
        weights.flush()
        added(updates)
    weights.fence()
    vector_to_parameters(weights.get(0), model.parameters())
    return before, tiny.loss(model, rows).item(), int(updates.get(0))


def main() -> None:
    """Run all of it; rank 0 prints."""
    if os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]) == os.environ["WORLD_SIZE"]:  # all on one host
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    rank, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", os.environ.get("INIT_METHOD", "env://"), rank=rank, world_size=n)
    put, total = places()
    counts = {how.__name__: count(how) for how in (raced, locked, added)}
    before, after, updates = train()
    if rank == 0:
        print(f"put: {put:.0f}, one of 1 to {n}")
        print(f"accumulated: {total:.0f}")
        for how, reached in counts.items():
            print(f"{how}: counted to {reached} of {n * TIMES}")
        print(f"trained: loss {before:.4f} before, {after:.4f} after {updates} updates")
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # a thread of Gloo's that outlived the group would abort the process (before Python 3.14)


if __name__ == "__main__":
    main()
