"""One small model trained in five ways, beside one process: synchronous, asynchronous, bounded, local SGD and DiLoCo.

    torchrun --nproc-per-node 4 scripts/sync_and_async.py

Rank 0 prints a line a way: the loss in the end, that of one process that does the same, and how far apart the weights
are. The losses of the synchronous way, of local SGD and of DiLoCo are those of lesson 10. An asynchronous run is never
the same twice: one process replays it from the order in which the gradients came. The last rank is slow: it waits.
Without other ranks there is no server and no worker.

torchrun's own store listens on all network interfaces. Without it, ranks can meet in a new file, and nothing but
loopback listens:

    meet=$(mktemp -u)
    for r in 0 1 2 3; do
      RANK=$r WORLD_SIZE=4 INIT_METHOD=file://$meet python scripts/sync_and_async.py &
    done; wait; rm -f $meet
"""

import itertools
import os
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: its functions keep the group that they find as their default
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from labkit.rank import tiny  # the model and its text: torch and Python's own documentation

STEPS, EVERY, LR, BOUND = 40, 10, 0.25, 2
ROWS = 240  # of a batch
SLOW = 0.02  # seconds that the last rank loses in each step
Optimizer = Callable[..., torch.optim.Optimizer]

model = tiny.Model()


def fresh() -> torch.Tensor:
    """The weights that everything begins with, the same on every rank."""
    torch.manual_seed(0)
    return parameters_to_vector(tiny.Model().parameters()).detach()


def gradient(weights: torch.Tensor, batch: tiny.Batch) -> torch.Tensor:
    """The gradient of the mean loss of a batch at these weights."""
    vector_to_parameters(weights, model.parameters())
    model.zero_grad()
    tiny.loss(model, batch).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def loss(weights: torch.Tensor) -> float:
    """The mean loss of text that is in no batch."""
    vector_to_parameters(weights, model.parameters())
    with torch.no_grad():
        return tiny.loss(model, tiny.validation()).item()


def share(weights: torch.Tensor, step: int, part: int, parts: int) -> torch.Tensor:
    """The gradient of a rank's part of a batch; the last rank takes its time."""
    if dist.get_rank() == dist.get_world_size() - 1:
        time.sleep(SLOW)
    return gradient(weights, tiny.batch(step, part, parts, ROWS))


# -- together ----------------------------------------------------------------------------------------------------------


def synchronous(rank: int, n: int) -> torch.Tensor:
    """The mean of all gradients, in every step."""
    weights = fresh()
    for step in range(STEPS):
        push = share(weights, step, rank, n)
        dist.all_reduce(push)
        weights -= LR * push / n
    return weights


def one_process() -> torch.Tensor:
    """The same, with the whole batches."""
    weights = fresh()
    for step in range(STEPS):
        weights -= LR * gradient(weights, tiny.batch(step, size=ROWS))
    return weights


# -- with a server -----------------------------------------------------------------------------------------------------


def served(rank: int, n: int, bound: float) -> tuple[torch.Tensor, list[int]]:
    """Rank 0 takes gradients from whoever comes and holds those too far ahead; its weights, and who came."""
    weights, came = fresh(), []
    dist.barrier()  # rank 0 may still listen to the run before: it would take anything that comes
    if rank == 0:
        push, held, steps = torch.empty_like(weights), [], dict.fromkeys(range(1, n), 0)
        for _ in range(STEPS * (n - 1)):
            worker = dist.recv(push)
            weights -= LR * push
            came.append(worker)
            steps[worker] += 1
            held.append(worker)
            free = [w for w in held if steps[w] - min(steps.values()) <= bound]
            held = [w for w in held if w not in free]
            for w in free:
                dist.send(weights, dst=w)
        for _ in range(1, n):  # those that are not held send once more; all are told to stop
            dist.send(torch.full_like(weights, torch.nan), dst=held.pop() if held else dist.recv(push))
        return weights, came
    for step in itertools.count():
        dist.send(share(weights, step, rank - 1, n - 1), dst=0)
        dist.recv(weights, src=0)
        if weights.isnan().any():
            return weights, came


def replayed(came: list[int], n: int, bound: float) -> tuple[torch.Tensor, list[int]]:
    """One process that repeats a run from its list: the same weights, and how stale each gradient was."""
    weights, staleness = fresh(), []
    pulled, version, steps = dict.fromkeys(range(1, n), weights), dict.fromkeys(range(1, n), 0), [0] * n
    held: list[int] = []
    for update, worker in enumerate(came):
        batch = tiny.batch(steps[worker], worker - 1, n - 1, ROWS)
        weights = weights - LR * gradient(pulled[worker], batch)
        staleness.append(update - version[worker])
        steps[worker] += 1
        held.append(worker)
        free = [w for w in held if steps[w] - min(steps[1:]) <= bound]
        held = [w for w in held if w not in free]
        pulled |= dict.fromkeys(free, weights)
        version |= dict.fromkeys(free, update + 1)
    return weights, staleness


# -- now and then ------------------------------------------------------------------------------------------------------


def local_sgd(rank: int, n: int) -> torch.Tensor:
    """Each rank by itself, and the mean of the weights after every tenth step."""
    weights = fresh()
    for step in range(STEPS):
        weights -= LR * share(weights, step, rank, n)
        if (step + 1) % EVERY == 0:
            dist.all_reduce(weights)
            weights /= n
    return weights


def diloco(rank: int, n: int) -> torch.Tensor:
    """AdamW on each rank; what ten steps have moved is one gradient, for SGD with Nesterov momentum."""
    anchor, replica = fresh(), tiny.Model()
    velocity = torch.zeros_like(anchor)
    vector_to_parameters(anchor.clone(), replica.parameters())
    inner = torch.optim.AdamW(replica.parameters(), lr=0.01)
    for step in range(STEPS):
        inner.zero_grad()
        tiny.loss(replica, tiny.batch(step, rank, n, ROWS)).backward()
        inner.step()
        if (step + 1) % EVERY == 0:
            outward = anchor - parameters_to_vector(replica.parameters()).detach()
            dist.all_reduce(outward)
            outward /= n
            velocity = 0.5 * velocity + outward
            anchor -= 0.7 * (outward + 0.5 * velocity)
            vector_to_parameters(anchor.clone(), replica.parameters())
    return anchor


def all_ranks(n: int, inner: Optimizer, outer: Optimizer) -> torch.Tensor:
    """One process that is all ranks, with torch's own optimizers: inner ones, and an outer one for the meetings."""
    anchor = fresh().requires_grad_()
    replicas = [tiny.Model() for _ in range(n)]
    for replica in replicas:
        vector_to_parameters(anchor.detach().clone(), replica.parameters())
    inners, outside = [inner(replica.parameters()) for replica in replicas], outer([anchor])
    for step in range(STEPS):
        for part, (replica, own) in enumerate(zip(replicas, inners, strict=True)):
            own.zero_grad()
            tiny.loss(replica, tiny.batch(step, part, n, ROWS)).backward()
            own.step()
        if (step + 1) % EVERY == 0:
            ends = [parameters_to_vector(replica.parameters()).detach() for replica in replicas]
            anchor.grad = anchor.detach() - torch.stack(ends).mean(0)
            outside.step()
            for replica in replicas:
                vector_to_parameters(anchor.detach().clone(), replica.parameters())
    return anchor.detach()


def main() -> None:
    """Train in every way; rank 0 repeats each alone and prints both."""
    rank, n = dist.get_rank(), dist.get_world_size()
    sgd, adamw = torch.optim.SGD, torch.optim.AdamW
    ways = [
        ("synchronous", synchronous(rank, n), one_process),
        ("local SGD", local_sgd(rank, n), partial(all_ranks, n, partial(sgd, lr=LR), partial(sgd, lr=1.0))),
        (
            "DiLoCo",
            diloco(rank, n),
            partial(all_ranks, n, partial(adamw, lr=0.01), partial(sgd, lr=0.7, momentum=0.5, nesterov=True)),
        ),
    ]
    for name, bound in (("asynchronous", float("inf")), (f"bound {BOUND}", BOUND)) if n > 1 else ():
        weights, came = served(rank, n, bound)
        ways.append((name, weights, lambda came=came, bound=bound: replayed(came, n, bound)))
    if rank > 0:
        return
    for name, weights, again in ways:
        alone = again()
        alone, staleness = alone if isinstance(alone, tuple) else (alone, [])
        off = (weights - alone).abs().max().item()
        stale = f", {sum(staleness) / len(staleness):.1f} updates old, {max(staleness)} at most" if staleness else ""
        print(f"{name}: loss {loss(weights):.4f}, one process {loss(alone):.4f}, weights {off:.0e} off{stale}")


if __name__ == "__main__":
    torch.set_num_threads(1)  # so that a replay adds up in the same order
    if os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]) == os.environ["WORLD_SIZE"]:  # all on one host
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", os.environ.get("INIT_METHOD", "env://"), rank=rank, world_size=world_size)
    main()
    dist.destroy_process_group()
