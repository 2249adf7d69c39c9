"""Exercises for lesson 10: a parameter server that bounds staleness, and one that does not wait for the last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, exercise
from workbook.lesson10_async import Found, run_server, scripted, served

if TYPE_CHECKING:
    from labkit.rank.cell_names import dist, everyones, name_it, rank, torch, world_size


def _within(n: int, bound: int, updates: int, eager: bool = False) -> list[int]:
    """Draw whose turn it is among those who may send, or take the first of them; those not held send once more."""
    rng = np.random.default_rng([n, bound, updates])
    steps, turns, held = dict.fromkeys(range(1, n), 0), [], set()
    for _ in range(updates):
        may = [w for w in steps if w not in held]
        worker = may[0] if eager else int(rng.choice(may))
        turns.append(worker)
        steps[worker] += 1
        held = {w for w in {*held, worker} if steps[w] - min(steps.values()) > bound}
    return [*turns, *(w for w in steps if w not in held)]


def _bounds(n: int) -> list[Case]:
    def case(bound: int, updates: int, about: str, eager: bool = False) -> Case:
        return scripted(n, _within(n, bound, updates, eager), about, updates=updates, bound=bound, lr=0.25)

    return [
        case(1, 2 * (n - 1) + 1, "bound 1, worker 1 runs ahead as far as it may", eager=True),
        case(0, 2 * (n - 1), "bound 0, step by step"),
        case(2, 9, "bound 2, nine updates"),
        case(3, 4 * n, "bound 3, worker 1 runs ahead as far as it may", eager=True),
        case(9, 5, "a bound that nobody reaches"),
    ]


def run_bounded_sgd(fn, x, turns, updates, bound, **options):
    """Watch rank 0's own calls, too: whom it lets go how far ahead, and whom it keeps waiting for nothing."""
    from torch.distributed import distributed_c10d

    steps, held, real = dict.fromkeys(range(1, world_size), 0), set(), dist.recv

    def ahead(worker):
        return steps[worker] - min(steps.values())

    def steps_ahead(worker):
        return f"{ahead(worker)} step{'s' * (ahead(worker) != 1)} ahead of the slowest worker"

    def recv(*args, **kwargs):
        if sum(steps.values()) == updates:
            return real(*args, **kwargs)
        for free in (worker for worker in sorted(held) if ahead(worker) <= bound):
            raise Found(
                f"worker {free} is kept waiting. It is {steps_ahead(free)}, and with a bound of {bound} it may go on"
            )
        worker = real(*args, **kwargs)
        steps[worker] += 1
        held.add(worker)
        return worker

    def watched(*args, **kwargs):
        def telling(tell):
            def call(tensor, dst=None, *more, **others):
                worker = others.get("group_dst") if dst is None else dst  # a batch names it so
                if not tensor.isnan().any() and ahead(worker) > bound:
                    raise Found(
                        f"worker {worker} is sent the weights. It is {steps_ahead(worker)}, and with a bound of "
                        f"{bound} it has to wait"
                    )
                held.discard(worker)
                return tell(tensor, dst, *more, **others)

            return call

        dist.recv, dist.send, dist.isend = recv, telling(dist.send), telling(dist.isend)
        distributed_c10d.isend = dist.isend
        try:
            fn(*args, **kwargs)
        finally:
            dist.recv = real

    return run_server(fn if rank else watched, x, turns, updates=updates, bound=bound, **options)


@exercise(
    "Ahead, but not too far",
    served,
    minutes=20,
    difficulty=3,
    inputs=_bounds,
    tolerance=1e-9,
    forbids=("collectives",),
    harness=run_bounded_sgd,
)
def bounded_sgd(weights, gradient, updates, lr, bound, note):
    """Train on all ranks: as asynchronous_sgd, but no worker gets too far ahead.

    The parameter server of `asynchronous_sgd` with a **bound** on how far workers run ahead of one another. The server
    knows how many steps each worker has finished: as many as gradients have come from it. A worker may go on, and is
    sent the weights, only while it is **at most `bound` steps ahead** of the slowest worker. Else it is held, and sent
    the newest weights as soon as the slowest has caught up enough. Gradients are applied and noted as they come,
    `updates` of them. After that, tell each worker to stop by sending it `nan`: those that are held at once, the others
    as they send once more. Return nothing. The picture is as for `asynchronous_sgd`.
    Hint: After each gradient one number has changed: this worker's steps. Who may go on now? Perhaps nobody, perhaps
    others than this one: the slowest may have caught up.
    Hint: Put the worker on the list `held` first. Then those of the list may go for whom `steps[w] -
    min(steps.values()) <= bound`.
    Hint: Take those that may go off the list, and send each of them the weights as they are now.
    Afterwards: With a bound of 0 the workers go step by step, as in synchronous training; without a bound it is the
    asynchronous server. In between, a hiccup costs nobody anything, and a rank that is always slow holds everybody up
    again: only `bound` steps later.
    """
    if rank == 0:
        # yours
        push, held, steps = torch.empty_like(weights), [], dict.fromkeys(range(1, world_size), 0)
        for _ in range(updates):
            worker = dist.recv(push)
            weights -= lr * push
            note(worker)
            steps[worker] += 1
            held.append(worker)
            free = [w for w in held if steps[w] - min(steps.values()) <= bound]
            held = [w for w in held if w not in free]
            for w in free:
                dist.send(weights, dst=w)
        for _ in range(1, world_size):  # those that are not held send once more; all are told to stop
            dist.send(torch.full_like(weights, torch.nan), dst=held.pop() if held else dist.recv(push))
        # end
    else:
        pulled = weights.clone()
        while not pulled.isnan().any():
            dist.send(gradient(pulled), dst=0)
            dist.recv(pulled, src=0)


def backup(xs: Sequence[Any], turns: Sequence[int], steps: int, need: int, lr: float, slip: str = "") -> list[Any]:
    """Train with backup workers in one process; `slip` is one of the mistakes in SLIPS."""
    weights, step, pushes, counted = np.zeros_like(xs[0]), 0, [], []
    divisor = {"adds up": 1, "all workers": len(xs) - 1, "waits for all": len(xs) - 1}.get(slip, need)
    need = len(xs) - 1 if slip in ("waits for all", "adds up all") else need
    total = told = weights
    pulled, at, held = [[weights] for _ in xs], [0] * len(xs), []
    for worker in turns:
        if step == steps:
            break
        if at[worker] < step and slip != "counts late ones":
            if slip == "notes late ones":
                counted.append(worker)
            pulled[worker].append(told)
            at[worker] = step
            continue
        pushes.append(pulled[worker][-1] - xs[worker])
        held.append(worker)
        counted.append(worker)
        if len(pushes) == need:
            pushes = pushes[-1:] * need if slip == "keeps views" else pushes
            total = sum(pushes) + (total if slip == "never begins anew" else 0)
            before, weights, step, pushes = weights, weights - lr * total / divisor, step + 1, []
            told = before if slip == "tells the old weights" else weights
            for free in held:
                at[free] = step
                if step < steps:
                    pulled[free].append(told)
            held = []
    return [[weights, [] if slip == "notes nobody" else counted], *pulled[1:]]


def _with_backups(n: int, steps: int, need: int, last: int = 0) -> list[int]:
    """Draw whose turn it is among those who may send, worker `last` seldom where anybody else may."""
    rng = np.random.default_rng([n, steps, need])
    at, step, came, held, turns = dict.fromkeys(range(1, n), 0), 0, 0, set(), []
    while step < steps:
        may = [w for w in at if w not in held]
        quick = [w for w in may if w != last]
        worker = int(rng.choice(quick if quick and (last == 0 or rng.random() < 0.7) else may))
        turns.append(worker)
        if at[worker] < step:
            at[worker] = step
            continue
        held.add(worker)
        came += 1
        if came == need:
            step, came = step + 1, 0
            at.update(dict.fromkeys(held, step))
            last_held, held = held, set()
    return [*turns, *(w for w in at if w not in last_held)]


def _backups(n: int) -> list[Case]:
    def case(steps: int, need: int, about: str, last: int = 0) -> Case:
        return scripted(n, _with_backups(n, steps, need, last), about, steps=steps, need=need, lr=0.5)

    return [
        case(1, max(1, n - 2), "one step"),
        case(4, max(1, n - 2), "four steps, the last worker comes late", n - 1),
        case(3, n - 1, "three steps, all are needed"),
        case(6, 1, "six steps, the first one is enough"),
    ]


TOO_MANY = (
    "it computes another gradient, where all steps are over. Either rank 0 has answered it with an earlier step than "
    "`steps`, or it has not looked at that"
)
SLIPS = {
    "counts late ones": "counts gradients of a step that is over",
    "notes late ones": "notes workers whose gradients it throws away",
    "notes nobody": "does not call `note`",
    "adds up": "moves the weights by the sum, and not by the mean",
    "all workers": "divides by the number of workers, where only `need` gradients count",
    "waits for all": "waits for the gradients of all workers, where `need` are enough",
    "adds up all": "adds up the gradients of all workers, and divides by `need`",
    "keeps views": "counts the last gradient `need` times: `push[1:]` is a view that the next message overwrites",
    "never begins anew": "takes the gradients of earlier steps along: begin each step with a new total",
    "tells the old weights": "answers with the weights from before the step",
}


def run_backup_sgd(fn, x, turns, **options):
    """Run the server in turns that are known, and name the mistake that rank 0's weights come from."""
    goals = [goal.cpu().numpy() for goal in everyones(x)]
    out = run_server(fn, x, turns, more=TOO_MANY, **options)
    if rank == 0:
        gives = {why: backup(goals, turns, slip=slip, **options)[0] for slip, why in SLIPS.items()}
        name_it(out, backup(goals, turns, **options)[0], gives)
    return out


@exercise(
    "Do not wait for the last",
    backup,
    minutes=25,
    difficulty=3,
    inputs=_backups,
    tolerance=1e-9,
    forbids=("collectives",),
    harness=run_backup_sgd,
)
def backup_sgd(weights, gradient, steps, need, lr, note):
    """Train on all ranks: rank 0 takes the first `need` gradients of a step, and drops those that come later.

    Synchronous SGD that does without the slowest. The workers are written: a worker sends `[step, *gradient]`, with the
    step that it was told and the gradient of the weights that it was told, and is answered with `[step, *weights]`.
    Write the server. For each of the `steps`: take gradients **of this step**, from whoever comes, until `need` of them
    are there, and call `note(worker)` for each. Move the weights in place by the **mean** of these, `weights -= lr *
    mean`. Then answer those whose gradients counted, with the next step and the new weights. A gradient of a step that
    is over is **thrown away**, and its sender is answered at once, with the present step and weights. After the last
    step, answer each of the others as it comes. Return nothing. The picture is as for `asynchronous_sgd`.
    Hint: The first number of a message says for which step it was computed. What do you do with one of this step, and
    what with one of a step that is over?
    Hint: Keep those whose gradients counted on a list, and answer them once the weights have moved. A late one can be
    answered at once: nothing will come of waiting.
    Hint: Keep the message `told = torch.cat([weights.new_tensor([step + 1]), weights])` of the last move: a late worker
    gets it at once, the others after the next move. At the end `world_size - 1 - need` workers are still on their way.
    Afterwards: Every gradient that counts is fresh, so this is synchronous SGD with a batch of `need` shares: no
    staleness, and nobody waits for the last. The price is the work that is thrown away, and a bias: rows that always
    come late are never learned.
    """
    told = torch.cat([weights.new_zeros(1), weights])  # a step, and the weights for it
    if rank == 0:
        # yours
        push, held = torch.empty_like(told), []
        for step in range(steps):
            total = torch.zeros_like(weights)
            while len(held) < need:
                worker = dist.recv(push)
                if push[0] == step:
                    total += push[1:]
                    held.append(worker)
                    note(worker)
                else:
                    dist.send(told, dst=worker)
            weights -= lr * total / need
            told = torch.cat([weights.new_tensor([step + 1]), weights])
            while held:
                dist.send(told, dst=held.pop())
        for _ in range(world_size - 1 - need):
            dist.send(told, dst=dist.recv(push))
        # end
    else:
        while told[0] < steps:
            dist.send(torch.cat([told[:1], gradient(told[1:])]), dst=0)
            dist.recv(told, src=0)
