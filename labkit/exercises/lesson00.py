"""Exercises for lesson 00: the first all-reduce of one's own."""

from __future__ import annotations

from labkit.grading.exercise import Exercise, Least, Mutant
from labkit.theory import collectives

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
    mutants=(
        Mutant("hands back its own numbers", replace=("    dist.all_reduce(total)\n", "")),
        Mutant(
            "returns what all_reduce returns, which is None",
            replace=("dist.all_reduce(total)\n    return total", "return dist.all_reduce(total)"),
        ),
        Mutant("leaves the sum on rank 0 alone", replace=("all_reduce(total)", "reduce(total, dst=0)")),
        Mutant("counts rank 0 twice", replace=("    return total", "    return total + x if rank == 0 else total")),
        Mutant(
            "lets rank 0 alone make the call",
            replace=("    dist.all_reduce(total)", "    if rank == 0:\n        dist.all_reduce(total)"),
            verdict="deadlock",
        ),
    ),
    hints=(
        "One call of this lesson does the adding. What does it overwrite, and what does it return?",
        "`x.clone()` makes a tensor that you may overwrite.",
        "Clone `x`, all-reduce the clone, return the clone.",
    ),
    after="`all_reduce` works in place and returns `None`: whoever needs the old numbers makes the copy.",
)

EXERCISES = (HELLO_SUM,)
