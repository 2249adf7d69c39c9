"""Exercises for lesson 00: the lines that keep the ranks' models equal, and a first all-reduce of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from labkit.grading.exercise import Exercise, Least
from labkit.grading.inputs import Case, counting
from labkit.theory import collectives

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


AVERAGE_GRADIENTS = Exercise(
    name="average_gradients",
    lesson="00",
    title="The two lines that keep four models equal",
    statement=(
        "Every rank calls `average_gradients(model)` after its own `backward()`, so `p.grad` differs from rank to "
        "rank. Replace **each** parameter's gradient by its **mean over the ranks**, in place: afterwards `p.grad` "
        "holds the same numbers on every rank. Leave the weights as they are. Return nothing."
    ),
    minutes=5,
    difficulty=1,
    means=_means,
    inputs=_gradients,
    picture=lambda: [(x,) for x in counting(4, 3)],
    harness="""
def harness(average_gradients, *grads):
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.ones_like(g)) for g in grads])
    for p, g in zip(model, grads):
        p.grad = g.clone()
    average_gradients(model)
    assert all((p == 1).all() for p in model), "It changes the weights. Change `p.grad`, and leave `p` alone."
    return [p.grad for p in model] if len(model) > 1 else model[0].grad
""",
    least=Least(sent=lambda n, S: 2 * (n - 1) / n * S, rounds=lambda n: 1, memory=lambda n, S: 0),
    solution='''
def average_gradients(model):
    """Replace each gradient of the model by its mean over the ranks."""
    for p in model.parameters():
        # yours
        dist.all_reduce(p.grad)
        p.grad /= world_size
        # end
''',
    hints=(
        "Two lines. The first is the call that you have just seen, on the gradient instead of on `x`.",
        "After the call `p.grad` holds the sum of all ranks' gradients. A mean is the sum divided by how many there "
        "were, and `world_size` says how many.",
        "`dist.all_reduce(p.grad)`, then divide `p.grad` by `world_size` in place: `/=`.",
    ),
    after=(
        "Every rank now takes the same step from the same weights, so the models stay equal without ever being "
        "compared. The steps are your calls of `all_reduce`, one for each parameter; one call would do if all "
        "gradients stood in one tensor, and PyTorch's `DistributedDataParallel` puts many into one for that reason."
    ),
)

HELLO_SUM = Exercise(
    name="hello_sum",
    lesson="00",
    title="The total, in a tensor of its own",
    statement=(
        "Every rank brings a tensor `x`, of the same shape and dtype everywhere. Return a **new** tensor of that shape "
        "and dtype with the sum over the ranks, element by element, on **every** rank. `x` itself stays as it is."
    ),
    minutes=5,
    difficulty=1,
    means=collectives.all_reduce,
    keeps_input=True,
    least=Least(sent=lambda n, S: 2 * (n - 1) / n * S, rounds=lambda n: 1, memory=lambda n, S: S),
    solution='''
def hello_sum(x):
    """Return the sum of all ranks' x, on every rank."""
    total = x.clone()
    dist.all_reduce(total)
    return total
''',
    hints=(
        "One call of this lesson does the adding. What does it overwrite, and what does it return?",
        "`x.clone()` makes a tensor that you may overwrite.",
        "Clone `x`, all-reduce the clone, return the clone.",
    ),
    after="`all_reduce` works in place and returns `None`: whoever needs the old numbers makes the copy.",
)

EXERCISES = (AVERAGE_GRADIENTS, HELLO_SUM)
