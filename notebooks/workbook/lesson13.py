"""Exercises of lesson 13, in their places: layers dealt to stages, and a micro-batch's way through a stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.evidence import place
from labkit.grading.exercise import ANY, Case, exercise
from labkit.grading.promises import Calls
from labkit.theory.record import Log
from labkit.words import count

if TYPE_CHECKING:
    from labkit.rank.seen import dist, everyones, name_it, rank, recorder, torch, world_size


def normal(n: int, seed: int) -> np.random.Generator:
    """Reproducible draws, different ones for every n and every case."""
    return np.random.default_rng([13, seed, n])


# -- which layers a stage holds ---------------------------------------------------------------------------------------


def _cut(xs: Sequence[Any], layers: int) -> list[Any]:
    return [[int(i) for i in part] for part in np.array_split(np.arange(layers), len(xs))]


def _depths(n: int) -> list[Case]:
    return [
        Case([()] * n, count(layers, "layer"), {"layers": layers})
        for layers in (2 * n, 3 * n + 1, 4 * n - 1, n, 10, max(1, n - 1))
    ]


def run_cut_layers(cut_layers, layers):
    mine = cut_layers(layers)
    assert not isinstance(mine, torch.Tensor), "Return a list, and not a tensor: its method `tolist()` makes one of it."
    mine = list(mine) if isinstance(mine, range) else mine  # as good as a list, but a range cannot leave its rank
    each, more = divmod(layers, world_size)
    first, most, numbers = rank * each + min(rank, more), -(-layers // world_size), list(range(layers))
    right = numbers[first : first + each + (rank < more)]
    end = layers if rank == world_size - 1 else (rank + 1) * each
    slips = {
        "loses the layers that are left over": numbers[rank * each : (rank + 1) * each],
        "gives the last rank all that are left over": numbers[rank * each : end],
        "rounds up on every rank, as torch.chunk does": numbers[rank * most : (rank + 1) * most],
        "deals the layers out like cards": numbers[rank::world_size],
        "counts the layers from 1": [number + 1 for number in right],
    }
    if rank:
        early = rank * each
        slips = {"forgets that the ranks before it have one more": numbers[early : early + len(right)], **slips}
    name_it(mine, right, slips)
    return mine


@exercise("Which layers are mine?", _cut, minutes=4, inputs=_depths, promises=(Calls(0),), harness=run_cut_layers)
def cut_layers(layers):
    """Return the numbers of my layers, of so many.

    The model has `layers` equal layers, numbered from 0. Return the list of those that this rank holds, in their order:
    neighbouring layers, rank 0 the first ones. Every layer is on exactly one rank, and the numbers of layers differ by
    one at most. Where the number of ranks does not divide the number of layers, the first ranks get one more.
    Communicate nothing.

    For instance, 10 layers on 4 ranks: 3, 3, 2 and 2.
    Hint: `divmod(layers, world_size)` says how many each rank gets at least, and how many are left over.
    Hint: My first layer comes after those of all ranks before me. How many of these ranks have one more?
    Hint: `first = rank * each + min(rank, more)`; I hold `each` layers, and one more if `rank < more`.
    Afterwards: This is what `torch.arange(layers).tensor_split(world_size)` does. Equal counts are a beginning: the
    first stage also embeds and the last one also scores all words, and the slowest stage sets the pace.
    """
    each, more = divmod(layers, world_size)
    first = rank * each + min(rank, more)
    return list(range(first, first + each + (rank < more)))


# -- a stage's passes -------------------------------------------------------------------------------------------------


def trained(weights: Sequence[Any], inputs: Any, targets: Any) -> tuple[list[float], list[Any]]:
    """The loss of each micro-batch, and the gradient of each stage's weight for their mean, in one process.

    Stage s computes `tanh(weights[s] * x)`, the loss is the mean square; a micro-batch is a row of `inputs`.
    """
    values = [inputs.astype("float64")]
    for weight in weights:
        values.append(np.tanh(weight.astype("float64") * values[-1]))
    off = values[-1] - targets
    slope, gradients = 2 * off / off.size, []
    for weight, x, y in zip(weights[::-1], values[-2::-1], values[:0:-1], strict=True):
        dz = slope * (1 - y**2)
        gradients.append((dz * x).sum((0, 1)).astype(weight.dtype))
        slope = dz * weight
    return [float((part**2).mean()) for part in off], gradients[::-1]


def _passed(xs: Sequence[Any], turned: bool = False) -> list[Any]:
    _, inputs, targets = xs[0]
    way = -1 if turned else 1
    losses, gradients = trained([x[0] for x in xs[::way]], inputs, targets)
    parts = [loss / len(inputs) for loss in losses]
    last = len(xs) - 1
    stages = [{"parts of the loss": parts if s == last else ANY, "gradient": g} for s, g in enumerate(gradients)]
    return stages[::way]


def _gradients(xs: Sequence[Any], turned: bool = False) -> list[Any]:
    return [stage["gradient"] for stage in _passed(xs, turned)]


def batches(n: int, seed: int, parts: int, rows: int = 1, wide: int = 2, dtype: str = "float32") -> list[Any]:
    """For each rank its weight, and the same micro-batches and targets for all: [parts, rows, wide]."""
    rng = normal(n, seed)
    inputs, targets = (rng.normal(size=(parts, rows, wide)).astype(dtype) for _ in range(2))
    return [(rng.uniform(0.5, 1.5, wide).astype(dtype), inputs.copy(), targets.copy()) for _ in range(n)]


def _micro_batches(n: int) -> list[Case]:
    return [
        Case(batches(n, 2, n + 1), f"{n + 1} micro-batches of one row"),
        Case(batches(n, 3, 1, 3), "one micro-batch of three rows"),
        Case(batches(n, 4, 5, 2, 3, "float64"), "five micro-batches of two rows, float64"),
        Case(batches(n, 5, 2), "the first stage on the last rank", {"turned": True}),
    ]


def forward(stage, batch, parts, send, tag=0):
    x, targets = batch
    if stage.before is not None:
        x = stage.room(len(targets))
        dist.recv(x, src=stage.before, tag=tag)
        x.requires_grad_()
    y = stage(x)
    if stage.after is not None:
        send(y.detach(), stage.after, tag=tag)
    else:
        y = stage.loss(y, targets) / parts
    return x, y


def backward(stage, x, y, send, tag=1):
    dy = None
    if stage.after is not None:
        dy = torch.empty_like(y)
        dist.recv(dy, src=stage.after, tag=tag)
    y.backward(dy)
    if stage.before is not None:
        send(x.grad, stage.before, tag=tag)


def placed(weight, turned):
    from workbook.on_ranks import Small

    stage = Small(weight, world_size - 1 - rank if turned else rank)
    if turned:
        stage.before, stage.after = (None if r is None else world_size - 1 - r for r in (stage.before, stage.after))
    return stage


def right_peer(does, peer, name, meant):
    who = "any rank" if peer is None else f"rank {peer}"
    assert peer == meant, (
        f"rank {rank} {does} {who}, and `stage.{name}` is {meant}. The stages need not lie in the order of the "
        "ranks: take the neighbours from `stage`"
    )


def calls():
    return Log.of(recorder.records()).ops


class messages:  # around a call of the function: where it receives from, and how it sends
    def __init__(self, stage, source, target, tag=None):
        self.stage, self.source, self.target, self.tag = stage, source, target, tag

    def __enter__(self):
        self.before, self.sent, self.real = len(calls()), [], dist.recv

        def recv(tensor, src=None, *args, **kwargs):
            self.right_source(kwargs.get("group_src", src))
            return self.real(tensor, src, *args, **kwargs)

        dist.recv = recv
        return self

    def right_source(self, peer):
        right_peer("receives from", peer, self.source, getattr(self.stage, self.source))

    def send(self, tensor, dst=None, group=None, tag=0, group_dst=None):
        right_peer("sends to", dst if group_dst is None else group_dst, self.target, getattr(self.stage, self.target))
        assert self.tag in (None, tag), f"A gradient goes back from rank {rank} without tag=1."
        self.sent.append(len(calls()))
        dist.send(tensor, dst, group, tag, group_dst)

    def __exit__(self, error, *_):
        dist.recv = self.real
        for number, op in enumerate(calls()[self.before :] if error is None else [], self.before):
            if op.kind == "recv":
                self.right_source(op.peer)
                assert not op.asynchronous or op.waited or op.asked, (
                    f"The function may use what {op.name}{place(op)} brings before it is there: it has to call the "
                    f"`wait()` of what {op.name} returns."
                )
            assert op.kind != "send" or number in self.sent, (
                f"The function calls {op.called}{place(op)}. Send with `send`, which it is given: so whoever "
                "calls it can choose how the messages are sent."
            )


def run_stage_forward(stage_forward, weight, inputs, targets, turned=False):
    from workbook.on_ranks import Small

    stage, kept, asked = placed(weight, turned), [], []
    stage.loss = lambda *args, **named: asked.append(1) or Small.loss(stage, *args, **named)
    for m, batch in enumerate(zip(inputs, targets)):
        with messages(stage, "before", "after") as mine:
            x, y = stage_forward(stage, batch, len(inputs), mine.send)
        assert y.requires_grad, f"What is returned for micro-batch {m} has no graph: nothing can go back through it."
        assert stage.before is None or x.requires_grad, (
            f"What came in with micro-batch {m} requires no gradient, so there will be none to send back."
        )
        kept.append((x, y))
    last = stage.after is None
    assert not last or all(y.dim() == 0 for _, y in kept), "On the last stage, y is no single number."
    for x, y in kept:
        backward(stage, x, y, dist.send)
    parts = [y.item() for _, y in kept] if last else None
    if last:
        assert len(asked) >= len(kept), (
            f"The last stage called `stage.loss` {len(asked)} times for {len(kept)} micro-batches. The loss is the "
            "stage's own, and in the lesson it is a different one: call `stage.loss(y, targets)`."
        )
        losses = torch.stack([Small.loss(stage, stage(x.detach()), t).detach() for (x, _), t in zip(kept, targets)])
        slips = {
            "does not divide by `parts`": losses.tolist(),
            "divides by the number of ranks, and not by `parts`": (losses / world_size).tolist(),
        }
        name_it(parts, (losses / len(kept)).tolist(), slips, "the parts of the loss")
    return {"parts of the loss": parts, "gradient": stage.weight.grad}


@exercise(
    "A micro-batch goes forward through my stage",
    _passed,
    minutes=8,
    difficulty=2,
    inputs=_micro_batches,
    tolerance=1e-5,
    counts_memory=False,
    harness=run_stage_forward,
)
def stage_forward(stage, batch, parts, send):
    """Take one of `parts` micro-batches through my stage; return what went in, and what came out or its loss.

    `batch` is one of `parts` micro-batches, all of one size: inputs and targets. `stage.before` and `stage.after` are
    the ranks that hold the stages before and after this one, or `None`; `stage.room(rows)` is an empty tensor for what
    comes in. Fill the blanks. Receive what the stage before sends, so that its gradient can be sent back later. Send on
    what comes out with `send(tensor, dst)`, which is called like `dist.send`. On the last stage, `y` becomes this
    micro-batch's part of the loss: `stage.loss(y, targets)` is its mean loss, and the parts of all micro-batches add up
    to the mean loss of the whole batch. Return what is returned already.

    In the picture: on the left each stage's weight and the batch; on the right the parts of the loss, and the gradients
    of the weights after the check has gone back.
    Hint: What comes in is a message: numbers without a graph. It becomes a leaf of this rank's own graph.
    Hint: `dist.recv(x, src=stage.before)`, then `x.requires_grad_()`. What you send is `y.detach()`; what you return
    still has its graph.
    Hint: On the last stage nothing is sent: `y = stage.loss(y, targets) / parts`, because the mean over micro-batches
    is the sum of these parts.
    Afterwards: The division stands on the last stage alone. All stages before it get their gradients from there,
    already divided.
    """
    x, targets = batch
    if stage.before is not None:
        x = stage.room(len(targets))
        # yours
        dist.recv(x, src=stage.before)
        x.requires_grad_()
        # end
    y = stage(x)
    # yours
    if stage.after is not None:
        send(y.detach(), stage.after)
    else:
        y = stage.loss(y, targets) / parts
    # end
    return x, y


def of_each(weight, weights, number, inputs, targets):  # what each micro-batch adds to the gradient of this weight
    for x, target in zip(inputs, targets):
        leaf = weight.clone().requires_grad_()
        for i, theirs in enumerate(weights):
            x = torch.tanh((leaf if i == number else theirs) * x)
        yield torch.autograd.grad(((x - target) ** 2).mean() / len(inputs), leaf)[0]


def run_stage_backward(stage_backward, weight, inputs, targets, turned=False):
    stage, weights, number = placed(weight, turned), everyones(weight), rank
    if turned:
        weights, number = weights[::-1], world_size - 1 - rank
    each = list(of_each(weight, weights, number, inputs, targets))
    kept = [forward(stage, batch, len(inputs), dist.send) for batch in zip(inputs, targets)]
    if stage.after is not None:
        back = [torch.autograd.grad(y, stage.weight, y.detach(), retain_graph=True)[0] for _, y in kept]
    for x, y in kept:
        with messages(stage, "after", "before", 1) as mine:
            stage_backward(stage, x, y, mine.send)
    assert stage.weight.grad is not None, "The weight of this stage has no gradient."
    slips = {"clears the gradients of the micro-batches before: they add up": each[-1]}
    if stage.after is not None:
        slips["sends `x` back and not its gradient, which is in `x.grad`"] = sum(back)
    name_it(stage.weight.grad, sum(each), slips, "the gradient")
    return stage.weight.grad


@exercise(
    "A micro-batch goes back through my stage",
    _gradients,
    minutes=5,
    inputs=_micro_batches,
    tolerance=1e-5,
    counts_memory=False,
    harness=run_stage_backward,
)
def stage_backward(stage, x, y, send):
    """Take a micro-batch back through my stage.

    `x` and `y` are what `stage_forward` returned for this micro-batch: `x` went into this stage, and `y` came out of
    it, or is its part of the loss on the last stage. Receive the gradient of `y` from the stage after this one, go back
    through this stage, and send the gradient of `x` to the stage before it. Messages that go back carry `tag=1`, on
    both sides: so they are never taken for activations. The gradients of the weights **add up** over the micro-batches.
    Return nothing.

    In the picture: each stage's weight and the batch on the left, the weight's gradient on the right.
    Hint: It is lesson 02's `gradient_back`, for a stage that may have a neighbour on both sides.
    Hint: `dy` has the shape of `y`: `torch.empty_like(y)`. `y.backward(dy)` takes it; with `None` it begins at a loss.
    Hint: After `y.backward(dy)`, the gradient that the stage before waits for is in `x.grad`.
    Afterwards: `y.backward(dy)` has done two things: it has added to the gradients of the weights, and it has computed
    the gradient of `x`. The stage before waits for the second one only. Zero-bubble schedules take them apart.
    """
    dy = None  # the last stage's y is a loss, a single number
    if stage.after is not None:
        # yours
        dy = torch.empty_like(y)
        dist.recv(dy, src=stage.after, tag=1)
        # end
    y.backward(dy)
    # yours
    if stage.before is not None:
        send(x.grad, stage.before, tag=1)
    # end
