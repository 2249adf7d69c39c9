"""Exercises for lesson 00: the lines that keep the ranks' models equal, and a first all-reduce of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Least, exercise
from labkit.grading.inputs import Case, counting
from labkit.theory import collectives

if TYPE_CHECKING:
    from labkit.rank.seen import dist, torch, world_size


TINY = ((36, 8), (120, 64), (120,), (36, 120), (36,))  # the parameters of `tiny.Model`


def _means(xs: Sequence[Any]) -> list[Any]:
    means = [sum(grads) / len(xs) for grads in zip(*xs, strict=True)]
    return [means if len(means) > 1 else means[0] for _ in xs]


def _gradients(n: int) -> list[Case]:
    rng = np.random.default_rng(n)

    def drawn(shapes: Sequence[tuple[int, ...]], dtype: str) -> list[Any]:
        return [tuple(rng.normal(size=shape).astype(dtype) for shape in shapes) for _ in range(n)]

    return [
        Case([(x,) for x in counting(n, 3)], "one parameter"),
        Case([(x, 100 + x[:2]) for x in counting(n, 4)], "two parameters"),
        Case([(np.array(float(n * (r == 0)), dtype="float32"),) for r in range(n)], "only rank 0's gradient is not 0"),
        Case(drawn(((2, 3), (3,)), "float64"), "float64"),
        Case(drawn(TINY, "float32"), "the size of the language model"),
    ]


def run_average_gradients(average_gradients, *grads):
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.ones_like(g)) for g in grads])
    for p, g in zip(model, grads):
        p.grad = g.clone()
    average_gradients(model)
    assert all((p == 1).all() for p in model), "It changes the weights. Change `p.grad`, and leave `p` alone."
    return [p.grad for p in model] if len(model) > 1 else model[0].grad


@exercise(
    "The two lines that keep four models equal",
    _means,
    minutes=5,
    inputs=_gradients,
    picture=lambda: [(x,) for x in counting(4, 3)],
    least=Least(sent=lambda n, S: 2 * (n - 1) / n * S, rounds=lambda n: 1, memory=lambda n, S: 0),
    harness=run_average_gradients,
)
def average_gradients(model):
    """Replace each gradient of the model by its mean over the ranks.

    Every rank calls `average_gradients(model)` after its own `backward()`, so `p.grad` differs from rank to rank.
    Replace **each** parameter's gradient by its **mean over the ranks**, in place: afterwards `p.grad` holds the same
    numbers on every rank. Leave the weights as they are. Return nothing.
    Hint: Two lines. The first is the call that you have just seen, on the gradient instead of on `x`.
    Hint: After the call `p.grad` holds the sum of all ranks' gradients. A mean is the sum divided by how many there
    were, and `world_size` says how many.
    Hint: `dist.all_reduce(p.grad)`, then divide `p.grad` by `world_size` in place: `/=`.
    Afterwards: Every rank now takes the same step from the same weights, so the models stay equal without ever being
    compared. The steps are your calls of `all_reduce`, one for each parameter; one call would do if all gradients stood
    in one tensor, and PyTorch's `DistributedDataParallel` puts many into one for that reason.
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
    Afterwards: `all_reduce` works in place and returns `None`: whoever needs the old numbers makes the copy.
    """
    total = x.clone()
    dist.all_reduce(total)
    return total
