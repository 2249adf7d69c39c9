"""Exercises of lesson 10 that let ranks go on: a parameter server, local SGD, and a server's replay in one process."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, Least, exercise
from labkit.grading.promises import Calls

if TYPE_CHECKING:
    from labkit.rank.cell_names import dist, everyones, name_it, rank, recorder, torch, world_size


def scripted(n: int, turns: Sequence[int], about: str, **options: Any) -> Case:
    """Start from weights of zero, with a goal that worker r pulls them to; workers send in these turns."""
    goals = [np.zeros(2), *(np.array([8.0 * r, 4.0 - r]) for r in range(1, n))]
    return Case(goals, about, {"turns": [int(turn) for turn in turns], **options})


def served(xs: Sequence[Any], turns: Sequence[int], updates: int, lr: float, bound: float = np.inf) -> list[Any]:
    """Train with a server in one process; return what rank 0 holds and noted, and what each worker pulled."""
    weights = np.zeros_like(xs[0])
    pulled, steps, held = [[weights] for _ in xs], [0] * len(xs), set()
    for worker in turns[:updates]:
        assert worker not in held, "it waits"
        weights = weights - lr * (pulled[worker][-1] - xs[worker])
        steps[worker] += 1
        held.add(worker)
        for free in [w for w in sorted(held) if steps[w] - min(steps[1:]) <= bound]:
            held.remove(free)
            pulled[free].append(weights)
    return [[weights, list(turns[:updates])], *pulled[1:]]


def _orders(n: int) -> list[Case]:
    rng = np.random.default_rng([n, 3])

    def case(order: Sequence[int], about: str, lr: float = 0.5) -> Case:
        return scripted(n, [*order, *range(1, n)], about, updates=len(order), lr=lr)

    return [
        case([n - 1, *range(1, n)], "the last worker comes first"),
        case([1, 1, 1, n - 1], "worker 1 comes three times in a row", 0.25),
        case(rng.integers(1, n, 9).tolist(), "nine updates in a random order"),
        case([n - 1], "a single update"),
    ]


MORE = (
    "it computes another gradient, where all updates are done. Either rank 0 has not sent it `nan`, or it has not "
    "looked for that"
)


class Found(AssertionError):
    """Carry what is found inside the learner's function: it is told as any wrong result is."""


def run_server(fn, x, turns, more=MORE, **options):
    """Run a server and its workers, who send in these turns; return what rank 0 holds and noted, and workers pulled.

    A worker's gradient is not ready before its turn, and its turn begins when the one before it was received: so a run
    is the same every time. Whenever the recorder pauses, it puts torch's own functions back, hence `quietly`. A batch
    wants the `isend` of torch's module; `dist.send` calls that one as well, and has been replaced itself.
    """
    from torch.distributed import distributed_c10d

    mine = [turn for turn, worker in enumerate(turns) if worker == rank]
    token, tokens, pulled, came, taken = torch.zeros(1), [], [], [], []
    real, recv, before = (dist.send, dist.isend), dist.recv, x.clone()

    def gradient(weights):
        if len(pulled) == len(mine):
            raise Found(more)
        pulled.append(weights.clone())
        turn = mine[len(pulled) - 1]
        if turn and turns[turn - 1] != rank:
            quietly(lambda: dist.recv(token, src=turns[turn - 1], tag=9))
        return weights - x

    def received():
        turn = mine[len(pulled) - 1] + 1 if pulled else len(turns)
        if turn < len(turns) and turns[turn] != rank:
            quietly(lambda: tokens.append(dist.isend(token, dst=turns[turn], tag=9)))

    def send(*args, **kwargs):
        distributed_c10d.isend, ours = real[1], distributed_c10d.isend
        try:
            real[0](*args, **kwargs)
        finally:
            distributed_c10d.isend = ours
        received()

    class isend:
        def __init__(self, *args, **kwargs):
            self.work = real[1](*args, **kwargs)

        def wait(self, *args):
            done = self.work.wait(*args)
            received()
            return done

        def __getattr__(self, name):
            return getattr(self.work, name)

    def quietly(call):
        with recorder.paused():
            call()
        put(send, isend)

    def put(send, isend):
        dist.send, dist.isend, distributed_c10d.isend = send, isend, isend

    def recv_of_server(tensor, src=None, *more, **others):
        if src is not None and len(taken) == len(came) < options.get("updates", 0) and src != turns[len(came)]:
            raise Found(
                f"rank 0 waits for a gradient of rank {src}, but it is rank {turns[len(came)]} that comes next. Take "
                "what comes first, from whoever it is: `dist.recv(push)` without `src`"
            )
        taken.append(recv(tensor, src, *more, **others))
        return taken[-1]

    if rank:  # nobody waits for what rank 0 sends
        put(send, isend)
    else:
        dist.recv = recv_of_server
    try:
        fn(x if rank == 0 else torch.zeros_like(x), gradient, note=came.append, **options)
    except Found as found:
        raise AssertionError(str(found)) from None
    finally:
        put(*real)
        dist.recv = recv
    with recorder.paused():
        for passing in tokens:
            with contextlib.suppress(RuntimeError):  # nobody came for it: what comes back says why
                passing.wait(timedelta(seconds=2))
    assert rank or not torch.equal(x, before), (
        "its `weights` are what they were. Move them in place: `weights -= …` changes this tensor, and "
        "`weights = weights - …` makes a new one"
    )
    return [x, came] if rank == 0 else pulled


@exercise(
    "A parameter server that answers whoever comes first",
    served,
    difficulty=2,
    inputs=_orders,
    tolerance=1e-9,
    forbids=("collectives",),
    harness=run_server,
)
def asynchronous_sgd(weights, gradient, updates, lr, note):
    """Train on all ranks: rank 0 holds the weights, the others send it gradients.

    Rank 0 is the server, the others are its workers. All are given the same flat `weights`. A **worker** sends the
    gradient of what it has pulled, `gradient(pulled)`, and pulls the new weights, over and over, until what it gets is
    `nan`. The **server** takes as many gradients as there are `updates`, in the order in which they **arrive**. For
    each, it moves its weights in place, `weights -= lr * push`, calls `note(worker)` with the sender's rank, and sends
    the new weights to this worker alone. No worker waits for a slower one. The lines that tell workers to stop are
    written already. Return nothing.

    In the picture all weights begin at 0. On the left is each worker's goal (rank 0 has none), and its gradient is
    `pulled - goal`. On the right are the results. Rank 0 has its last weights, and the list of the ranks that it noted.
    Each worker has the weights that it had pulled, two numbers for each of its gradients. `turns` says from whom the
    first gradient comes, from whom the second, and so on. After the last update, each worker sends one more.
    Hint: Which call takes a message from whoever sends first, and how does it tell you who that was? Lesson 02 has it.
    Hint: `worker = dist.recv(push)`, without `src`, fills `push` and returns the sender's rank. A worker sends to rank
    0 and receives into `pulled`.
    Hint: Server: receive, move the weights in place, note, send the weights to `worker`. Worker:
    `dist.send(gradient(pulled), dst=0)`, then `dist.recv(pulled, src=0)`.
    Afterwards: Six lines, and no worker waits for another. The price: the server moves its weights by a gradient of
    older weights, which others have moved since.
    """
    if rank == 0:
        push = torch.empty_like(weights)
        for _ in range(updates):
            # yours
            worker = dist.recv(push)
            weights -= lr * push
            note(worker)
            dist.send(weights, dst=worker)
            # end
        for _ in range(1, world_size):  # each sends once more, and is told to stop
            dist.send(torch.full_like(weights, torch.nan), dst=dist.recv(push))
    else:
        pulled = weights.clone()
        while not pulled.isnan().any():
            # yours
            dist.send(gradient(pulled), dst=0)
            dist.recv(pulled, src=0)
            # end


def local(xs, steps, every, lr, last=True, first=0, divisor=None, of="weights"):
    """Train each rank's weights alone, from 0 towards its goal, and take the mean of all ranks' after every some steps.

    Mistakes: no mean after the `last` step, a mean after the `first` one, another `divisor`, a mean `of` "gradients".
    """
    n, weights = len(xs), [goal * 0 for goal in xs]
    for step in range(steps):
        meets = (step + 1 - first) % every == 0 or (last and step == steps - 1)
        slopes = [slope_to(goal, w, step, r) for r, (w, goal) in enumerate(zip(weights, xs))]
        if meets and of == "gradients":
            slopes = [sum(slopes) / n] * n
        weights = [w - lr * slope for w, slope in zip(weights, slopes)]
        if meets and of == "weights":
            weights = [sum(weights) / (divisor or n)] * n
    return weights


def slope_to(goal: Any, weights: Any, step: int, rank: int) -> Any:
    """Return a rank's gradient in this step."""
    return (rank + 1) * (weights - goal * (step + 1))


def _goals(n: int) -> list[Case]:
    rng = np.random.default_rng([n, 5])

    def case(steps: int, every: int, about: str, dtype: str = "float64", size: int = 2) -> Case:
        goals = [rng.integers(-8, 9, size).astype(dtype) for _ in range(n)]
        return Case(goals, about, {"steps": steps, "every": every, "lr": 0.125})

    return [
        Case([np.array([8.0 * (r + 1)]) for r in range(n)], "", {"steps": 5, "every": 3, "lr": 0.25}),
        case(2, 1, "a mean after every step"),
        case(6, 3, "six steps, a mean after every third"),
        case(5, 3, "five steps, a mean after every third"),
        case(4, 9, "four steps, fewer than from mean to mean"),
        case(6, 3, "float32", "float32", 5),
    ]


def run_local_sgd(fn, goal, steps, every, lr):
    """Train from 0 with gradients towards this rank's goal; note the steps, and name what a wrong result comes from."""
    goals, seen, start = everyones(goal), [], torch.zeros_like(goal)

    def gradient(weights, step):
        seen.append(step)
        return slope_to(goal, weights, step, rank)

    def trained(every=every, **mistake):
        return local(goals, steps, every, lr, **mistake)[rank]

    result = fn(start, gradient, steps, every, lr)
    assert seen == list(range(steps)), f"the steps are {seen}, and {list(range(steps))} are asked for"
    slips = {
        "adds up the weights, and does not divide": trained(divisor=1),
        "averages the gradients, and not the weights": trained(of="gradients"),
        "takes the mean after steps 0, `every`, …: counted from 0, the first one comes after step `every - 1`": trained(
            first=1
        ),
        "takes no mean after the last step": trained(last=False),
        "takes the mean after the last step alone": trained(steps + 1),
        "never takes a mean": trained(steps + 1, last=False),
        "takes the mean after each step": trained(1),
    }
    name_it(result, trained(), slips)
    assert not isinstance(result, torch.Tensor) or torch.equal(result, start), (
        "the weights that it returns are new ones, and those that it was given are not changed: `weights -= …`."
    )
    return result


@exercise(
    "Train alone, average now and then",
    local,
    minutes=6,
    inputs=_goals,
    promises=(Calls(2),),
    least=Least(sent=lambda n, S: 4 * (n - 1) / n * S, rounds=lambda n: 2),
    harness=run_local_sgd,
)
def local_sgd(weights, gradient, steps, every, lr):
    """Return the weights after training; the ranks train alone, and average their weights now and then.

    All ranks start from the same flat `weights`, and train for as many steps as `steps` says. In step 0, 1, 2, … each
    rank moves its own weights, `weights -= lr * gradient(weights, step)`, and the gradients differ from rank to rank.
    With `every=3`, all ranks replace their **weights** by the mean over the ranks after the third step, the sixth, and
    so on. They also do so after the last step, but only once: with `every=3` and `steps=5` after the third step and the
    fifth, with `steps=6` after the third and the sixth. Change `weights` in place and return them. No other
    communication. In the picture all weights begin at 0, the goals are on the left, and rank r's gradient is `(r + 1) *
    (weights - goal * (step + 1))`.
    Hint: The two lines of lesson 00, on the weights, and only now and then.
    Hint: Counted from 1, step `step + 1` has just ended. `(step + 1) % every == 0` says that `every` divides it.
    Hint: `if (step + 1) % every == 0 or step == steps - 1:`, then `dist.all_reduce(weights)` and the division.
    Afterwards: With `every=1` this is synchronous SGD: the ranks' weights are equal before each step, so averaging
    them after it moves them by the mean gradient. With `every=H` there are H times fewer meetings, and the ranks drift
    apart in between.
    """
    for step in range(steps):
        weights -= lr * gradient(weights, step)
        # yours
        if (step + 1) % every == 0 or step == steps - 1:
            dist.all_reduce(weights)
            weights /= world_size
        # end
    return weights


def _recorded(n: int) -> list[Case]:
    rng = np.random.default_rng([n, 4])

    def case(order: Sequence[int], about: str) -> Case:
        xs = [(np.array([1.0, 2.0]), np.array([1.0, 0.5])) for _ in range(n)]
        return Case(xs, about, {"order": order, "lr": 0.25})

    return [
        case([1, 2, 1], "two workers"),
        case([1, 1, 1], "a single worker"),
        case([2, 1, 1, 1, 3, 2], "worker 2 comes back late"),
        case(rng.integers(1, 6, 20).tolist(), "five workers, 20 updates"),
        case([], "no update"),
    ]


def _with_gradient(start, slope, order, lr):
    def gradient(pulled, worker, step):
        assert isinstance(step, int), f"`step` is a whole number, and {step!r} comes"
        return slope * pulled - worker - 10 * step

    return list(order), start, gradient, lr


def _weights_and_staleness(out, *_):
    weights, staleness = out
    return [weights, [int(s) for s in staleness]]


@exercise(
    "Replay an asynchronous run in one process",
    lambda xs, **run: [[*replay_arrivals(*_with_gradient(*x, **run))] for x in xs],
    minutes=12,
    difficulty=2,
    inputs=_recorded,
    forbids=("collectives", "send", "recv"),
    keeps_input=True,
    tolerance=1e-9,
    needs_messages=False,
    setup=_with_gradient,
    collect=_weights_and_staleness,
)
def replay_arrivals(order, weights, gradient, lr):
    """Return the weights after the last update, and the staleness of each.

    `order` lists which worker's gradient arrived at the server, one entry per update, and `weights` is where all began.
    `gradient(pulled, worker, step)` gives what a worker sent after it had pulled these weights, in its own step 0, 1,
    2, … Replay the run, without any communication, and return two things: the **weights** after the last update, and
    for each update its **staleness**: how many updates of others the server had made since this worker pulled. Leave
    `weights` itself as it is.
    Hint: What does a worker hold that the server does not? The weights of its last visit. Keep them for each worker.
    Hint: `pulled[worker]` are those weights, `version[worker]` is how many updates were in them. The staleness is the
    difference between that and now.
    Hint: New weights, then the staleness, then the worker pulls: `pulled[worker], version[worker] = weights, update +
    1`. Write `weights = weights - …`: in place would change what others have pulled.
    Afterwards: An asynchronous run is not reproducible, but only its order of arrivals is missing. If you record the
    order, you can debug the run in one process.
    """
    pulled = dict.fromkeys(order, weights)
    version, steps, staleness = dict.fromkeys(order, 0), dict.fromkeys(order, 0), []
    for update, worker in enumerate(order):
        weights = weights - lr * gradient(pulled[worker], worker, steps[worker])
        staleness.append(update - version[worker])
        pulled[worker], version[worker] = weights, update + 1
        steps[worker] += 1
    return weights, staleness
