"""Exercises of lesson 10 for ranks of unequal speed: shares by speed, rounds, and servers that do not wait for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, Least, exercise
from workbook.cards import in_words, no_numbers
from workbook.harnesses import adam_step
from workbook.lesson10_async import Found, run_server, scripted, served

if TYPE_CHECKING:
    from labkit.rank.cell_names import device, dist, everyones, name_it, rank, torch, world_size


def _speeds(n: int) -> list[Case]:
    cases = {
        "": (12, [1.0] * (n - 1) + [2.0]),
        "all are alike": (12 * n, [1.0] * n),
        "rank 0 is four times slower": (61, [4.0] + [1.0] * (n - 1)),
        "all differ": (100, [0.5 + 0.3 * r for r in range(n)]),
        "milliseconds": (240, [1e-3 * (2 + r % 2) for r in range(n)]),
    }
    return [Case([(s,) for s in seconds], about, {"rows": rows}) for about, (rows, seconds) in cases.items()]


def run_balanced_gradient(fn, seconds, rows):
    """Give gradients of rows, of which number i has [i, i * i], and hold the ranks' shares against their pace.

    What each rank computes is collected while the recorder is paused.
    """
    asked = []

    def gradient(first, last):
        assert 0 <= first < last <= rows, f"rows {first} to {last} are not a share of a batch of {rows} rows"
        asked.append((first, last))
        i = torch.arange(first, last, dtype=torch.float64)
        return torch.stack([i, i * i]).mean(1)

    result = fn(gradient, rows, seconds)
    paces, shares = zip(*everyones((seconds, asked)))
    taken = sorted(i for mine in shares for first, last in mine for i in range(first, last))
    missing, twice = set(range(rows)) - set(taken), {i for i in taken if taken.count(i) > 1}
    assert not missing, f"row {min(missing)} of {rows} is on no rank"
    assert not twice, f"row {min(twice)} is on more than one rank"
    slow = {r: paces[r] * sum(last - first for first, last in mine) for r, mine in enumerate(shares)}
    last, enough = max(slow, key=slow.get), rows / sum(1 / s for s in paces) + max(paces)
    ends = [0.0] * world_size  # the least with whole rows: each goes to the rank that is done with it first
    for _ in range(rows):
        first = min(range(world_size), key=lambda r: ends[r] + paces[r])
        ends[first] += paces[first]
    best = max(ends)
    assert slow[last] < enough, f"rank {last} computes for {slow[last]:.3g} s, and all could be done in {best:.3g} s"
    return result


@exercise(
    "Shares by speed",
    lambda xs, rows: [(np.arange(rows)[:, None] ** [1.0, 2.0]).mean(0)] * len(xs),  # row i has the gradient [i, i * i]
    minutes=12,
    difficulty=2,
    inputs=_speeds,
    tolerance=1e-9,
    least=Least(rounds=lambda n: 2),
    harness=run_balanced_gradient,
)
def balanced_gradient(gradient, rows, seconds):
    """Return the mean gradient of the batch; each rank computes as many rows as its speed allows.

    A row takes this rank `seconds`, a measured float that differs from rank to rank. Share out the rows 0 to `rows` − 1
    of a batch, so that all ranks finish at nearly the same time: each takes consecutive rows, in the order of the
    ranks, and their number is in proportion to its speed. `gradient(first, last)` computes rows `first` to `last` − 1
    and returns the **mean** gradient of these. Return the mean gradient of the **whole batch**, on every rank. No share
    is empty here. In the picture row i has the gradient [i, i²].
    Hint: A rank's speed is `1 / seconds` rows per second. To know where its share begins, a rank needs the speeds of
    all.
    Hint: If you round each share by itself, rows are lost or doubled. Round the **borders**: those are sums of speeds.
    Hint: The mean gradient of few rows must not count as much as that of many: multiply by the rows of the share, sum
    up, divide by `rows`.
    Afterwards: A slow device now costs only the work that it does not do; the others no longer wait for it. Three
    devices at full speed and one at a quarter of it do the work of 3.25, where equal shares do the work of 1. And the
    step is the same, except for rounding.
    """
    speed = torch.tensor([1 / seconds], dtype=torch.float64, device=device)
    speeds = [torch.empty_like(speed) for _ in range(world_size)]
    dist.all_gather(speeds, speed)
    borders = torch.cat([torch.zeros_like(speed), *speeds]).cumsum(0)
    first, last = (rows * borders / borders[-1]).round().long().tolist()[rank : rank + 2]
    total = gradient(first, last) * (last - first)
    dist.all_reduce(total)
    return total / rows


INNER, DECAY = 0.25, 0.01  # AdamW as torch has it, but for the learning rate


def _diloco(xs: Sequence[Any], rounds: int, steps: int, lr: float, momentum: float) -> list[Any]:
    """Train in one process with a row per rank: AdamW on each, and a step of SGD with Nesterov momentum for all."""
    goals = np.array([goal for (goal,) in xs])
    anchor, velocity = np.zeros_like(goals[0]), np.zeros_like(goals[0])
    first, second, count = np.zeros_like(goals), np.zeros_like(goals), 0
    for _ in range(rounds):
        weights = np.zeros_like(goals) + anchor
        for _ in range(steps):
            count += 1
            first, second, by = adam_step(first, second, 2 * (weights - goals * count), count)
            weights = weights * (1 - INNER * DECAY) - INNER * by
        outward = anchor - weights.mean(0)
        velocity = momentum * velocity + outward
        anchor = anchor - lr * (outward + momentum * velocity)
    return [[anchor, anchor] for _ in xs]


def _rounds(n: int) -> list[Case]:
    rng = np.random.default_rng([n, 6])

    def case(rounds: int, steps: int, about: str, lr: float = 0.7, momentum: float = 0.9) -> Case:
        goals = [(np.array([3.0, -2.0, 1.0]) * (r + 1) - [0, 0, 2.5] + rng.random(3) / 2,) for r in range(n)]
        return Case(goals, about, {"rounds": rounds, "steps": steps, "lr": lr, "momentum": momentum})

    return [
        case(1, 2, "one round of two steps"),
        case(2, 3, "two rounds of three steps"),
        case(3, 1, "three rounds of a single step, without momentum", 1.0, 0.0),
        case(4, 2, "four rounds of two steps", 0.4, 0.5),
    ]


def run_diloco_round(fn, goal, rounds, steps, lr, momentum):
    """Train a model of two parameters for some rounds, and collect its weights and the anchor."""
    from workbook.on_ranks import AdamW

    model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros_like(part)) for part in (goal[:1], goal[1:])])
    inner = AdamW(model.parameters(), lr=INNER)
    anchor = [p.detach().clone() for p in model.parameters()]
    velocity = [torch.zeros_like(a) for a in anchor]
    count = [0]

    def loss(model):
        count[0] += 1
        return ((torch.cat(list(model.parameters())) - goal * count[0]) ** 2).sum()

    for number in range(rounds):
        fn(model, inner, [loss] * steps, anchor, velocity, lr=lr, momentum=momentum)
        assert count[0] == steps * (number + 1), f"{count[0]} losses in {number + 1} rounds of {steps} steps"
    return [torch.cat([p.detach() for p in model.parameters()]), torch.cat(anchor)]


@exercise(
    "A round of DiLoCo",
    in_words(_diloco, "my model's weights, and `anchor`: both the new anchor, on every rank"),
    minutes=20,
    difficulty=3,
    inputs=_rounds,
    tolerance=1e-9,
    picture=no_numbers,
    harness=run_diloco_round,
)
def diloco_round(model, inner, losses, anchor, velocity, lr=0.7, momentum=0.9):
    """Take an inner step for each loss, then one outer step with all ranks.

    One round of DiLoCo on every rank. The `model` starts equal on all, `inner` is its own AdamW. `anchor` and
    `velocity` are lists with a tensor for each parameter: the weights with which this round began, and the outer
    momentum, both equal on all ranks. The inner steps are written: one for each of `losses`, a function of the model.
    Write the **outer step**, which all ranks take together. The **outer gradient** `outward` is the anchor minus the
    ranks' mean weights. SGD with **Nesterov** momentum moves the anchor by it: `velocity = momentum * velocity +
    outward`, then `anchor -= lr * (outward + momentum * velocity)`. In the end every model is at the new anchor. Change
    anchor, velocity and model in place; the state of `inner` stays for the next round. Return nothing.
    Hint: Think of the whole round as one gradient: it points from where the ranks have gone back to where they began.
    Hint: For each parameter: `outward = start - p.detach()`, averaged over the ranks. Then the two formulas, in place:
    `v.mul_(momentum).add_(outward)`.
    Hint: `start -= lr * (outward + momentum * v)` uses the new `v`. Last, `p.data.copy_(start)`: the next round begins
    there. Leave `inner` alone.
    Afterwards: With `lr=1` and `momentum=0` the anchor becomes the mean of the models: local SGD. DiLoCo puts an
    optimizer of its own around it, and ranks meet once in hundreds of steps. An all-reduce of one flat tensor would do.
    """
    for loss in losses:
        inner.zero_grad()
        loss(model).backward()
        inner.step()
    # yours
    for p, start, v in zip(model.parameters(), anchor, velocity):
        outward = start - p.detach()
        dist.all_reduce(outward)
        outward /= world_size
        v.mul_(momentum).add_(outward)
        start -= lr * (outward + momentum * v)
        p.data.copy_(start)
    # end


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
        case(9, 5, "a bound that no worker reaches"),
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
    sent the weights, only while it is **at most `bound` steps ahead** of the slowest worker. Otherwise it is held until
    the slowest has caught up enough, and then it is sent the newest weights. Gradients are applied and noted as they
    come, `updates` of them. After that, tell each worker to stop by sending it `nan`: those that are held at once, the
    others as they send once more. Return nothing. The picture is as for `asynchronous_sgd`.
    Hint: After each gradient one number has changed: this worker's steps. Which workers may go on now? Perhaps none,
    and perhaps others than this one: the slowest may have caught up.
    Hint: Put the worker on the list `held` first. Then every worker `w` on the list may go on if `steps[w] -
    min(steps.values()) <= bound`.
    Hint: Remove the workers that may go on from the list, and send each of them the weights as they are now.
    Afterwards: With a bound of 0 the workers go step by step, as in synchronous training; without a bound it is the
    asynchronous server. In between, a hiccup costs nothing, and a rank that is always slow still holds all others up,
    only `bound` steps later.
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

    Synchronous SGD that does without the slowest. The workers are written: each sends `[step, *gradient]`,
    with its step and the gradient of its weights, and receives a new step and new weights in return, `[step,
    *weights]`. Write the server. For each of the `steps`: take gradients **of this step**, from whoever comes, until
    `need` of them are there, and call `note(worker)` for each. Move the weights in place by the **mean** of these,
    `weights -= lr * mean`. Then answer those whose gradients counted, with the next step and the new weights. A
    gradient of a step that is over is **thrown away**, and its sender is answered at once, with the current step and
    weights. After the last step, answer each of the others as it comes. Return nothing. The picture is as for
    `asynchronous_sgd`.
    Hint: The first number of a message says for which step it was computed. What do you do with one of this step, and
    what with one of a step that is over?
    Hint: Keep those whose gradients counted on a list, and answer them once the weights have moved. A late one can be
    answered at once: waiting would gain nothing.
    Hint: Keep the message `told = torch.cat([weights.new_tensor([step + 1]), weights])` of the last move: a late worker
    gets it at once, the others after the next move. At the end `world_size - 1 - need` workers are still on their way.
    Afterwards: Every gradient that counts is fresh, so this is synchronous SGD with a batch of `need` shares: no
    staleness, and no step waits for the last. The price is the work that is thrown away, and a bias: rows that always
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
