"""Exercises of lesson 12 on a micro-batch's way through a stage, forward and back, and the lesson's predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

from labkit.grading.exercise import ANY, Case, exercise
from labkit.grading.prediction import SEEN, ask, series
from labkit.theory.log import Log
from workbook.cards import in_words, no_numbers

if TYPE_CHECKING:
    from labkit.rank.cell_names import dist, everyones, name_it, rank, recorder, torch, world_size


on_stages = partial(exercise, tolerance=1e-5, counts_memory=False)  # forward and back through the stages of a pipeline


def trained(weights: Sequence[Any], inputs: Any, targets: Any) -> tuple[list[float], list[Any]]:
    """Return the loss of each micro-batch, and the gradient of each stage's weight for their mean, in one process.

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
    (_, inputs, targets), way = xs[0], -1 if turned else 1
    losses, gradients = trained([x[0] for x in xs[::way]], inputs, targets)
    parts = [*[ANY] * (len(xs) - 1), [loss / len(inputs) for loss in losses]]
    return [{"parts of the loss": p, "gradient": g} for p, g in zip(parts, gradients)][::way]


def batches(n: int, seed: int, parts: int, rows: int = 1, wide: int = 2, dtype: str = "float32") -> list[Any]:
    """Draw each rank's weight, and the same micro-batches and targets for all: [parts, rows, wide].

    Take a `seed` whose gradients do not nearly cancel on any rank: there float32 rounds more than the check forgives.
    """
    rng = np.random.default_rng([13, seed, n])
    inputs, targets = (rng.normal(size=(parts, rows, wide)).astype(dtype) for _ in range(2))
    return [(rng.uniform(0.5, 1.5, wide).astype(dtype), inputs, targets) for _ in range(n)]


def _micro_batches(n: int) -> list[Case]:
    return [
        Case(batches(n, 2, n + 1), f"{n + 1} micro-batches of one row"),
        Case(batches(n, 3, 1, 3), "one micro-batch of three rows"),
        Case(batches(n, 4, 5, 2, 3, "float64"), "five micro-batches of two rows, float64"),
        Case(batches(n, 5, 2), "the first stage on the last rank", {"turned": True}),
    ]


def placed(weight, turned=False):
    """Make this rank's stage, in the order of the ranks or in the opposite one."""
    from workbook.on_ranks import Small

    stage = Small(weight)
    if turned:
        stage.before, stage.after = stage.after, stage.before
    return stage


@contextmanager
def messages(stage, source: str, target: str, must_be_tagged: bool = False) -> Iterator[Any]:
    """Yield a `send` for a call of the function, and hold what it receives and sends to the stage's neighbours.

    Mistakes are a message that goes or comes past `stage`, one that is sent in another way than by `send`, and one that
    is not waited for.
    """
    real, sent, began = dist.recv, [], len(Log.of(recorder.records()).ops)

    def right_peer(does: str, peer: int | None, name: str) -> None:
        who, meant = "any rank" if peer is None else f"rank {peer}", getattr(stage, name)
        assert peer == meant, (
            f"rank {rank} {does} {who}, and `stage.{name}` is {meant}. The stages need not lie in the order of the "
            "ranks: take the neighbours from `stage`"
        )

    def recv(tensor, src=None, *args, **kwargs):
        right_peer("receives from", kwargs.get("group_src", src), source)
        return real(tensor, src, *args, **kwargs)

    def send(tensor, dst=None, group=None, tag=0, group_dst=None):
        right_peer("sends to", dst if group_dst is None else group_dst, target)
        assert tag == 1 or not must_be_tagged, f"A gradient goes back from rank {rank} without tag=1."
        sent.append(len(Log.of(recorder.records()).ops))
        dist.send(tensor, dst, group, tag, group_dst)

    with patch.object(dist, "recv", recv):
        yield send
    for number, op in list(enumerate(Log.of(recorder.records()).ops))[began:]:
        if op.kind == "recv":
            right_peer("receives from", op.peer, source)
            assert not op.asynchronous or op.waited or op.asked, (
                f"The function may use what {op.name}{op.at} brings before it is there: it has to call the "
                f"`wait()` of what {op.name} returns."
            )
        assert op.kind != "send" or number in sent, (
            f"The function calls {op.called}{op.at}. Send with `send`, which it is given: so whoever "
            "calls it can choose how the messages are sent."
        )


def run_stage_forward(fn, weight, inputs, targets, turned=False):
    """Take each micro-batch forward by the function, and back by the solution."""
    stage, kept = placed(weight, turned), []
    for m, batch in enumerate(zip(inputs, targets)):
        with messages(stage, "before", "after") as send:
            x, y = fn(stage, batch, len(inputs), send)
        assert y.requires_grad, f"What is returned for micro-batch {m} has no graph: nothing can go back through it."
        assert stage.before is None or x.requires_grad, (
            f"What came in with micro-batch {m} requires no gradient, so there will be none to send back."
        )
        kept.append((x, y))
    last = stage.after is None
    assert not last or all(y.dim() == 0 for _, y in kept), "On the last stage, y should be a single number."
    for x, y in kept:
        stage_backward(stage, x, y, dist.send)
    if not last:
        return {"parts of the loss": None, "gradient": stage.weight.grad}
    assert stage.asked >= len(kept), (
        f"The last stage called `stage.loss` {stage.asked} times for {len(kept)} micro-batches. The loss is the "
        "stage's own, and in the lesson it is a different one: call `stage.loss(y, targets)`."
    )
    parts = [y.item() for _, y in kept]
    losses = torch.stack([stage.loss(stage(x.detach()), t).detach() for (x, _), t in zip(kept, targets)])
    slips = {
        "does not divide by `parts`": losses.tolist(),
        "divides by the number of ranks, and not by `parts`": (losses / world_size).tolist(),
    }
    name_it(parts, (losses / len(kept)).tolist(), slips, "the parts of the loss")
    return {"parts of the loss": parts, "gradient": stage.weight.grad}


@on_stages(
    "A micro-batch goes forward through my stage",
    in_words(_passed, "what went into my stage, and what came out of it or its part of the loss"),
    minutes=8,
    difficulty=2,
    inputs=_micro_batches,
    picture=no_numbers,
    harness=run_stage_forward,
)
def stage_forward(stage, batch, parts, send):
    """Take one of `parts` micro-batches through my stage; return what went in, and what came out or its loss.

    `batch` is one of `parts` micro-batches, all of one size: inputs and targets. `stage.before` and `stage.after` are
    the ranks that hold the stages before and after this one, or `None`; `stage.room(rows)` is an empty tensor for what
    comes in. Fill the blanks. Receive what the stage before sends, so that its gradient can be sent back later. Send on
    what comes out with `send(tensor, dst)`, which is called like `dist.send`: whoever calls the function chooses how to
    send. On the last stage, `y` becomes this micro-batch's part of the loss: `stage.loss(y, targets)` is its mean loss,
    and the parts of all micro-batches add up to the mean loss of the whole batch. The `return` is written already.
    Hint: What comes in is a message: numbers without a graph. It becomes a leaf of this rank's own graph.
    Hint: `dist.recv(x, src=stage.before)`, then `x.requires_grad_()`. What you send is `y.detach()`; what you return
    still has its graph.
    Hint: On the last stage nothing is sent: `y = stage.loss(y, targets) / parts`, because the mean over micro-batches
    is the sum of these parts.
    Afterwards: Only the last stage divides. All stages before it get their gradients from there, already divided.
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


def run_stage_backward(fn, weight, inputs, targets, turned=False):
    """Take each micro-batch forward by the solution, and back by the function."""
    stage, way = placed(weight, turned), -1 if turned else 1
    weights, *batch = ([t.cpu().numpy() for t in tensors] for tensors in (everyones(weight)[::way], inputs, targets))
    alone = [trained(weights, x[None], target[None])[1][::way][rank] for x, target in zip(*batch)]
    each = [torch.from_numpy(gradient).to(weight) / len(inputs) for gradient in alone]  # what a micro-batch adds
    kept = [stage_forward(stage, batch, len(inputs), dist.send) for batch in zip(inputs, targets)]
    slips = {"clears the gradients of the micro-batches before: they add up": each[-1]}
    if stage.after is not None:
        back = [torch.autograd.grad(y, stage.weight, y.detach(), retain_graph=True)[0] for _, y in kept]
        slips["sends `x` back and not its gradient, which is in `x.grad`"] = sum(back)
    for x, y in kept:
        with messages(stage, "after", "before", must_be_tagged=True) as send:
            fn(stage, x, y, send)
    assert stage.weight.grad is not None, "The weight of this stage has no gradient."
    name_it(stage.weight.grad, sum(each), slips, "the gradient")
    return stage.weight.grad


@on_stages(
    "A micro-batch goes back through my stage",
    in_words(
        lambda xs, turned=False: [stage["gradient"] for stage in _passed(xs, turned)],
        "my stage's weights have their gradients, and the stage before has what it waits for",
    ),
    minutes=5,
    inputs=_micro_batches,
    picture=no_numbers,
    harness=run_stage_backward,
)
def stage_backward(stage, x, y, send):
    """Take a micro-batch back through my stage.

    `x` and `y` are what `stage_forward` returned for this micro-batch: `x` went into this stage, and `y` came out of
    it, or is its part of the loss on the last stage. Receive the gradient of `y` from the stage after this one, go back
    through this stage, and send the gradient of `x` to the stage before it. Messages that go back carry `tag=1`, on
    both sides, so that they are never taken for activations. The gradients of the weights **add up** over the
    micro-batches. Return nothing.
    Hint: It is lesson 02's `gradient_back`, for a stage that may have a neighbour on both sides.
    Hint: `dy` has the shape of `y`: `torch.empty_like(y)`. `y.backward(dy)` takes it; with `None` it begins at a loss.
    Hint: After `y.backward(dy)`, the gradient that the stage before waits for is in `x.grad`.
    Afterwards: `y.backward(dy)` has done two things: it has added to the gradients of the weights, and it has computed
    the gradient of `x`. The stage before waits only for the gradient of `x`. Zero-bubble schedules take the two apart.
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


loss_of_micro_batches = ask("""
A batch is cut into 8 micro-batches of equal size. For each of them you take the **mean** loss over its rows and call
`backward()`; nothing is cleared in between. How does what is then in `p.grad` compare with the gradient of the whole
batch's mean loss?
( ) it is the same: the mean of a mean is the mean
    > That would be true if something took the second mean. `backward()` adds.
( ) an eighth of it, because each micro-batch has an eighth of the rows
    > That would be true of sums over rows. A mean over fewer rows is divided by fewer rows, too.
(x) eight times as large
( ) it is the last micro-batch's gradient alone
    > That would be true if `backward()` replaced what is in `p.grad`. It adds to it.
Why: Eight times as large. Each micro-batch's mean gradient is about as large as that of the whole batch, and the eight
are **added**. So every micro-batch's loss has to be divided by the number of micro-batches, once.
""")

idle_with_one_batch = ask("""
Four ranks hold one stage each, all equally slow. One batch goes forward through them and comes back, in one piece. For
what percentage of that time does each rank compute **nothing**?
= 75.0 % +- 5 %
( ) 25
    > That is the part of the time in which it computes.
( ) 50
    > That would be true of two ranks.
( ) 0
    > That would be true if all computed at once. Each needs what the one before it sends.
Why: 75 %. At any moment only one of the four ranks computes, so each rank computes for a quarter of the time. Four
ranks take as long as one rank would, if it had room for the whole model: the pipeline makes room, and it gains no time.
""")

bubble_of_gpipe = ask("""
Now there are 8 micro-batches on the four ranks. All go forward, one after the other, and then all come back. A backward
pass takes twice as long as a forward pass, and messages take no time. For what percentage of the training step does a
rank compute nothing?
= 27.3 % +- 8 %
( ) 37.5
    > 3 of 8: these are the idle turns as a part of the busy ones. The step has 8 + 3 turns.
( ) 75
    > That would be true without micro-batches. With them, several ranks work at the same time.
( ) 33.3
    > 4 of 12: the first rank does not wait at the beginning. There are 3 idle turns, not 4.
( ) 9.375
    > 75 % divided by 8? The idle turns stay 3, however many micro-batches there are.
( ) 42.9
    > 3 of 7: that would be true of 4 micro-batches.
Why: 27 %. Rank 3 waits for 3 forward passes before the first micro-batch comes, then it has work for 8 micro-batches,
and then it waits while the other ranks do 3 more backward passes. The step has 8 + 3 = 11 turns, each as long as one
forward and one backward pass; every rank works for 8 of them and stands idle for 3. This empty part of the chart is
called the **bubble**. With P equally slow stages and M micro-batches, bubble = **(P − 1) / (M + P − 1)**. How long a
pass takes does not matter. The formula leaves out the messages, Python, and whatever else the computer is doing: with
passes of 30 and 60 ms you see these in the measured bubble, above all on a busy computer.
""")

one_stage_reversed = ask("""
The last stage takes the micro-batches back in the opposite order: 7, 6, … 0. All other stages take them back in the
order 0, 1, … 7. What happens?
(x) no error, and wrong gradients on all stages but the last one
( ) it hangs: the messages do not match
    > That would be true if a receive asked for a certain micro-batch. It asks for the next message from a rank.
( ) autograd raises an error, because gradients and activations do not fit
    > That would be true if their shapes differed. All micro-batches have the same shape.
( ) nothing: the gradients are added up anyway
    > That would be true if each gradient still met its own activations. Stage 2 multiplies micro-batch 7's gradient
    with micro-batch 0's activations.
Why: No error, and wrong gradients. A message carries numbers and no name: the gradient of micro-batch 7 meets the
activations of micro-batch 0, which have the same shape. The last stage is right, because it receives no gradient. If
all stages used the opposite order, that would be right, too; GPipe's paper draws it so.
""")

before_1f1b = series(
    """
Before you write it: what will you find?
""",
    what_1f1b_saves="""
In GPipe's schedule the first gradient waits until the last micro-batch has come forward. 1F1B takes each micro-batch
back as soon as it can. Passes take as long as before. What does that save?
( ) time: the bubble gets smaller, because the backward passes begin earlier
    > They begin earlier on the last rank, but they end no earlier: the last micro-batch does not start sooner, and it
    still has to go through all stages and back.
( ) time and memory
    > Memory, yes. For the time, look at the last micro-batch: it does not start sooner than before.
( ) messages: an activation and a gradient travel together
    > They travel in opposite directions, so they cannot share a message. As many messages are sent as before.
(x) memory
Why: By the formula the step takes as long as GPipe's, with the same bubble. What was measured is larger than that, and
differs from run to run, because messages and Python take their time here. But a rank frees a micro-batch's activations
as soon as the micro-batch has come back. In GPipe's schedule a rank keeps those of **all** micro-batches, so many
micro-batches make the bubble small and the memory large. (The MiB at the peak are activations and this stage's
gradients.)
""",
    kept_on_the_first_rank="""
Four ranks, 1F1B, and 64 micro-batches. Of how many does rank 0 keep the activations at once, at most?
( ) 1
    > That is the last rank: it takes each micro-batch back at once.
(x) 4
( ) 8
    > One way there and one way back? While the first one is on its way, only 4 have started.
( ) 16
    > 64 divided by 4? The number of micro-batches does not matter.
( ) 64
    > That would be true of GPipe's order.
Why: Three start before the first one comes back, and rank 0's own turn begins with a fourth. Rank 1 keeps 3, rank 2
keeps 2 and rank 3 keeps 1, whatever the number of micro-batches. So the first stages are the first to run out of
memory.
""",
)

blocking_1f1b = ask(f"""
With `dist.send` and `dist.recv`, GPipe's order ran well. Now the same two functions run the order of 1F1B, on the same
ranks. What happens?
( ) it runs: every message that is sent is also received
    > Every message has its receiver. But a receiver that waits in a `send` of its own does not come to its `recv`.
(x) it hangs: neighbours wait for each other
( ) it runs more slowly, because sends wait for receivers
    > Sends do wait for receivers. Here two of them wait for each other.
( ) the ranks mix activations and gradients up
    > That would be possible if both went from one rank to the same other rank. Here they go in opposite directions,
    and they have different tags.
Why: Stage r sends an activation forward, and stage r + 1 sends a gradient back, at the same time. On Gloo a
send is a rendezvous: each of the two waits until the other one receives. In GPipe's order all messages go in one
direction first, so no two neighbours send to each other at the same time. 1F1B needs sends that do not block.
Elsewhere: **With NCCL**, on GPUs, this cell ran to its end: messages as small as these go into a buffer before they are
received. {SEEN} With larger ones, both
neighbours' queues can wait for each other. (From NCCL's source.)
""")
