"""Lesson 00: the lines that keep the ranks' models equal, a first all-reduce of one's own, and where a cell runs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from labkit.grading.exercise import Least, exercise
from labkit.grading.inputs import Case, counting, normals
from labkit.grading.prediction import ask
from labkit.theory import collectives
from workbook.harnesses import with_gradients

if TYPE_CHECKING:
    from labkit.rank.cell_names import dist, world_size

TINY = ((36, 8), (120, 64), (120,), (36, 120), (36,))  # the parameters of `tiny.Model`


def _gradients(n: int) -> list[Case]:
    rng = np.random.default_rng(n)
    return [
        Case(counting(n, 3), "one parameter"),
        Case([(x, 100 + x[:2]) for x in counting(n, 4)], "two parameters"),
        Case([np.array(float(n * (r == 0)), dtype="float32") for r in range(n)], "only rank 0's gradient is not 0"),
        Case(normals(n, rng, ((2, 3), (3,)), "float64"), "float64"),
        Case(normals(n, rng, TINY), "the size of the language model"),
    ]


def gradients_of(out, model, *_):
    """Return the model's gradients, unless its weights have changed or a gradient is gone."""
    assert all((p == 1).all() for p in model), "It changes the weights. Change `p.grad`, and leave `p` alone."
    assert all(p.grad is not None for p in model), (
        "`p.grad` is None afterwards. `all_reduce` returns None: it overwrites the tensor that you pass, so leave out "
        "`p.grad =`."
    )
    return [p.grad for p in model] if len(model) > 1 else model[0].grad


@exercise(
    "The two lines that keep four models equal",
    partial(collectives.all_reduce, op="AVG"),
    minutes=5,
    inputs=_gradients,
    picture=lambda: counting(4, 3),
    least=Least(sent=lambda n, S: 2 * (n - 1) / n * S, rounds=lambda n: 1, memory=lambda n, S: 0),
    setup=lambda *grads: (with_gradients(*grads),),
    collect=gradients_of,
)
def average_gradients(model):
    """Replace each gradient of the model by its mean over the ranks.

    Every rank calls `average_gradients(model)` after its own `backward()`, so `p.grad` differs from rank to rank.
    Replace **each** parameter's gradient by its **mean over the ranks**, in place: afterwards `p.grad` holds the same
    numbers on every rank. Leave the weights as they are. Return nothing.
    Hint: Two lines. The first is the call that you have just seen, on the gradient instead of on `x`.
    Hint: After the call `p.grad` holds the sum of all ranks' gradients. The mean is that sum divided by the number of
    ranks, `world_size`.
    Hint: `dist.all_reduce(p.grad)`, then divide `p.grad` by `world_size` in place: `/=`.
    Afterwards: Every rank now takes the same step from the same weights, so the models stay equal without ever being
    compared. The score counts your calls of `all_reduce` as steps, one for each parameter. One call would be enough if
    all gradients were in one tensor, so PyTorch's `DistributedDataParallel` puts many gradients into one tensor.
    """
    for p in model.parameters():
        # yours
        dist.all_reduce(p.grad)
        p.grad /= world_size
        # end


@exercise(
    "The total, in a tensor of its own",
    collectives.all_reduce,
    minutes=5,
    keeps_input=True,
    least=Least(sent=lambda n, S: 2 * (n - 1) / n * S, rounds=lambda n: 1, memory=lambda n, S: S),
)
def hello_sum(x):
    """Return the sum of all ranks' x, on every rank.

    Every rank brings a tensor `x`, of the same shape and dtype everywhere. Return a **new** tensor of that shape and
    dtype with the sum over the ranks, element by element, on **every** rank. `x` itself stays as it is.
    Hint: One call of this lesson does the adding. What does it overwrite, and what does it return?
    Hint: `x.clone()` makes a tensor that you may overwrite.
    Hint: Clone `x`, all-reduce the clone, return the clone.
    Afterwards: `all_reduce` works in place and returns `None`. If you still need the old numbers, make a copy first.
    """
    total = x.clone()
    dist.all_reduce(total)
    return total


where_is_x = ask("""
The next cell begins with `%%px`, and it makes a tensor `x`. How many tensors `x` are there afterwards?
( ) one, in this notebook
    > That is what a cell without `%%px` does. With it, the notebook only sends the code away.
( ) one, which the four ranks share
    > They could share it if they were threads of one process. Processes share no memory: each rank has made its own
    `x`, and each has printed different numbers.
(x) four, one on each rank
( ) five, one on each rank and one in this notebook
    > The notebook runs none of the cell's code. It sends the code to the ranks and shows what they print. Try it: write
    `x` into a new cell, without `%%px`, and you get a `NameError`.
Why: Four, one on each rank (with a different number of ranks, as many as there are). `%%px` sends the cell to every
rank, and each rank runs it in its own process, with its own memory. All of them run the same code. Their numbers differ
because each has a different `rank`.
""")

after_one_step = ask("""
The four models are equal. Each rank now takes **one** training step on its share of the batch. What do the four ranks
hold in `model.output.weight[0, :3]` afterwards?
( ) the same numbers: they started from the same seed
    > The seed decided where they started. Where they go from there depends on the gradient, and each rank computed it
    from different text.
( ) the same numbers: the lab keeps the ranks' variables equal
    > Nothing does that. Each rank is a process with its own memory, and no rank knows what happens in another until it
    gets a message.
( ) nearly the same numbers: they differ only in the last digits
    > If each rank had many rows from all parts of the text, the gradients would be nearly equal. But it has only a
    few rows, from one part of the text, so its gradient is a rough estimate: look how far apart the numbers are.
(x) clearly different numbers on every rank
Why: Clearly different numbers on every rank, after a single step: each rank has followed its own gradient. From here
on there are four different models, and no error tells you so.
""")

what_to_average = ask("""
Four ranks with 60 rows each should learn **exactly** what one process would learn from all 240 rows. What do they have
to average?
( ) the losses, in every step
    > The loss is a number to look at. The weights are moved by `p.grad`, and averaging the loss after `backward()`
    leaves every `p.grad` as it was.
(x) the gradients, in every step, before the weights change
( ) the weights, once, after the last step
    > Then each rank would have taken 99 steps away from models that were already different. The average of four
    models that were trained separately is not the model that was trained on everything.
Why: The gradients, in every step. The loss of 240 rows is a mean over rows, so it is the mean of the losses of four
equal shares. The gradient of a mean is the mean of the gradients. If every rank uses that mean, all ranks take the step
that one process with all 240 rows would take, and equal models stay equal.
""")
