"""Exercises for lesson 03: tutorials' snippets repaired, and a broadcast built by hand."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2
from typing import Any

import numpy as np

from labkit.grading.exercise import Budget, Exercise, Least, Mutant
from labkit.grading.inputs import Case, draws, vectors
from labkit.grading.promises import Once
from labkit.theory import collectives
from labkit.theory.primitives import OBJECTS


def _states(n: int) -> list[Case]:
    """State dicts: parameters and buffers, floats and integers, also with the names in another order on rank 1."""

    def state(r: int, k: int) -> dict[str, Any]:
        return {
            "0.weight": np.arange(2.0 * k, dtype="float32").reshape(2, k) + 100 * r,
            "0.bias": np.array([-1.0 - r, 2.0 * r], dtype="float32"),
            "1.running_mean": np.array([0.5 + r, -r], dtype="float32"),
            "1.num_batches_tracked": np.array(7 + r),
        }

    turned = [dict(sorted(state(r, 2).items(), reverse=r == 1)) for r in range(n)]
    return [
        Case([state(r, 2) for r in range(n)]),
        Case([state(r, 5) for r in range(n)], "a wider layer"),
        Case([{k: state(r, 2)[k] for k in ("0.bias", "1.running_mean")} for r in range(n)], "two vectors"),
        Case([{} for _ in range(n)], "a state without tensors"),
        Case(
            [{k: t[k] for k in t if k in ("0.bias", "1.running_mean")} for t in turned],
            "rank 1 has the names in another order",
        ),
    ]


def _losses(n: int) -> list[Case]:
    return [
        Case([np.array([r + 1.0], dtype="float32") for r in range(n)]),
        Case([np.array([0.5 - 2 * r], dtype="float32") for r in range(n)], "negative losses"),
        Case([np.array([2.0**r], dtype="float64") for r in range(n)], "float64"),
    ]


def _mean_on_0(xs: Sequence[Any]) -> list[Any]:
    return collectives.reduce(xs, root=0, op="AVG")


def _only_rank_0_has(n: int) -> list[Case]:
    """A flat tensor on rank 0, an empty one elsewhere: more elements than ranks, fewer, none."""
    cases = (
        (2 * n, "float32", ""),
        (2 * n + 1, "float32", f"{2 * n + 1} elements, which {n} does not divide"),
        (1, "float32", "one element for all ranks"),
        (0, "float32", "no element"),
        (3 * n - 1, "int64", "integers"),
        (101, "float64", "float64"),
    )
    return [
        Case([x[: 0 if r else None] for r, x in enumerate(draws(n, k, dtype, seed=k))], about)
        for k, dtype, about in cases
    ]


REPAIR_STATE_DICT = Exercise(
    name="repair_state_dict",
    lesson="03",
    title="Repair: broadcast(state)",
    statement=(
        "A tutorial hands a whole state dict to `dist.broadcast`, which moves **one tensor**. Repair it. `state` is a "
        "dict from names to tensors, with parameters and buffers, floats and integers. The ranks agree on the names, "
        "shapes and dtypes, but **not** on the order of the names in the dict. Return a new dict with these names and "
        "**rank 0's** numbers, on every rank. `state` stays as it is. No object collectives: they pickle."
    ),
    minutes=8,
    difficulty=1,
    means=collectives.broadcast,
    inputs=_states,
    forbids=OBJECTS,
    keeps_input=True,
    least=Least(sent=lambda n, S: S, rounds=lambda n: 1, memory=lambda n, S: S),
    solution='''
def repair_state_dict(state):
    """Return rank 0's state dict, on every rank."""
    result = {name: state[name].clone() for name in sorted(state)}
    for tensor in result.values():
        dist.broadcast(tensor, src=0)
    return result
''',
    mutants=(
        Mutant(
            "hands the dict to broadcast, as the tutorial does",
            source="""
def repair_state_dict(state):
    dist.broadcast(state, src=0)
    return state
""",
            verdict="raises",
            says="TypeError",
        ),
        Mutant(
            "forgets the integer buffer",
            replace=("        dist.broadcast", "        if tensor.is_floating_point():\n            dist.broadcast"),
        ),
        Mutant("relies on the order of the names", replace=("sorted(state)", "state")),
        Mutant("broadcasts the last rank's", replace=("src=0", "src=world_size - 1")),
        Mutant(
            "pickles the dict",
            source="""
def repair_state_dict(state):
    box = [state]
    dist.broadcast_object_list(box, src=0)
    return box[0]
""",
            verdict="forbidden",
            says="broadcast_object_list",
        ),
    ),
    hints=(
        "One broadcast for each tensor. Which ranks call it, and in which order do they come to the tensors?",
        "`sorted(state)` gives the names in the same order on every rank.",
        "Clone each tensor first, broadcast the clone from rank 0, and put it into the new dict under its name.",
    ),
    after="Same-shaped tensors in another order raise nothing: two broadcasts that were swapped would lie in silence.",
)

REPAIR_GATHER_LOSSES = Exercise(
    name="repair_gather_losses",
    lesson="03",
    title="Repair: the average loss that is always 0.0",
    statement=(
        "A tutorial gathers the losses into a list that nobody keeps, then prints the mean of another one, 0.0. Repair "
        "it with a **gather**. `loss` is a tensor with one number on every rank. Return, on rank 0, a tensor with one "
        "number: the mean of all losses, in the dtype of `loss`. What the other ranks return does not count."
    ),
    minutes=6,
    difficulty=1,
    means=_mean_on_0,
    inputs=_losses,
    forbids=("reduce", "all_reduce", *OBJECTS),
    promises=(Once(("gather",)),),
    least=Least(sent=lambda n, S: S, rounds=lambda n: 1, memory=lambda n, S: n * S),
    solution='''
def repair_gather_losses(loss):
    """Return the mean of all ranks' losses, on rank 0."""
    losses = [torch.zeros_like(loss) for _ in range(world_size)] if rank == 0 else None
    dist.gather(loss, losses, dst=0)
    if rank == 0:
        return torch.stack(losses).mean(dim=0)
''',
    mutants=(
        Mutant(
            "fills a list that nobody keeps",
            replace=(
                "dist.gather(loss, losses, dst=0)",
                "dist.gather(loss, [torch.zeros_like(t) for t in losses] if rank == 0 else None, dst=0)",
            ),
        ),
        Mutant(
            "brings a list on every rank",
            replace=(" if rank == 0 else None", ""),
            verdict="raises",
            says="ValueError",
        ),
        Mutant(
            "gathers on rank 0 alone",
            replace=("    dist.gather(", "    if rank == 0:\n        dist.gather("),
            verdict="deadlock",
        ),
        Mutant("adds the losses and does not divide", replace=(".mean(dim=0)", ".sum(dim=0)")),
        Mutant(
            "receives one loss after the other",
            source="""
def repair_gather_losses(loss):
    if rank > 0:
        return dist.send(loss, dst=0)
    total, other = loss.clone(), torch.empty_like(loss)
    for source in range(1, world_size):
        dist.recv(other, src=source)
        total += other
    return total / world_size
""",
            verdict="not as asked",
            says="gather does it",
        ),
        Mutant(
            "reduces instead",
            source="""
def repair_gather_losses(loss):
    total = loss.clone()
    dist.reduce(total, dst=0)
    return total / world_size
""",
            verdict="forbidden",
            says="reduce",
        ),
    ),
    hints=(
        "The gather fills the tensors of the list that it is given. Who can read them afterwards?",
        "Give the list a name before the call, on rank 0; off the root it must be `None`.",
        "`torch.stack(losses).mean(dim=0)` is a tensor with one number.",
    ),
    after="The tutorial's list was made inside the call and gone after it. Nothing raises: the mean is just wrong.",
)

REPAIR_REDUCE = Exercise(
    name="repair_reduce",
    lesson="03",
    title="Repair: only rank 0 reduces",
    statement=(
        "A tutorial writes `if rank == 0: total = dist.reduce(loss, dst=0)`, and rank 0 waits for ever. Repair it "
        "with a **reduce**. `loss` is a tensor with one number on every rank. Rank 0 returns a tensor with the mean "
        "of all losses, in the dtype of `loss`. Every other rank returns **its own** `loss`, unharmed."
    ),
    minutes=6,
    difficulty=1,
    means=lambda xs: [_mean_on_0(xs)[0], *xs[1:]],
    inputs=_losses,
    forbids=("all_reduce", "gather", "all_gather", *OBJECTS),
    promises=(Once(("reduce",)),),
    least=Least(sent=lambda n, S: S, rounds=lambda n: 1, memory=lambda n, S: S),
    solution='''
def repair_reduce(loss):
    """Return the mean of all losses on rank 0, and this rank's own loss elsewhere."""
    total = loss.detach().clone()
    dist.reduce(total, dst=0)
    return total / world_size if rank == 0 else loss
''',
    mutants=(
        Mutant(
            "reduces on rank 0 alone",
            replace=("    dist.reduce(", "    if rank == 0:\n        dist.reduce("),
            verdict="deadlock",
        ),
        Mutant(
            "reads what reduce returns, which is None",
            replace=("    dist.reduce(", "    total = dist.reduce("),
            verdict="raises",
            says="TypeError",
        ),
        Mutant("reduces the loss itself, not a copy", replace=("loss.detach().clone()", "loss")),
        Mutant(
            "reduces twice, in halves",
            replace=(
                "    dist.reduce(total, dst=0)\n",
                "    total /= 2\n    dist.reduce(total, dst=0)\n    again = loss.detach() / 2\n"
                "    dist.reduce(again, dst=0)\n    total += again\n",
            ),
            verdict="not as asked",
            says="2 times",
        ),
        Mutant("forgets to divide", replace=("total / world_size", "total")),
    ),
    hints=(
        "A reduce takes part of **every** rank. What is under the `if`, and what may be there?",
        "`dist.reduce` returns `None`; rank 0 finds the sum in the tensor that it passed.",
        "Off the root the passed tensor holds something undefined afterwards. Pass a copy: `loss.detach().clone()`.",
    ),
    after="Off the root, a reduced tensor is undefined: on Gloo it may hold a partial sum. Reduce a copy.",
)

SCATTER_UNEVEN = Exercise(
    name="scatter_uneven",
    lesson="03",
    title="Deal out what does not divide",
    statement=(
        "Rank 0 has a tensor `x` with one dimension and any number of elements. The others bring an empty one of the "
        "same dtype and do **not** know how long rank 0's is. Cut it into `world_size` consecutive parts as "
        "`x.tensor_split(world_size)` does: the first parts are one element longer where it does not divide. Rank r "
        "returns part r, which may be empty. Use tensors: no object collectives and no send. About S (N - 1) / N bytes "
        "leave rank 0, so nobody else gets the whole."
    ),
    minutes=15,
    difficulty=2,
    means=lambda xs: collectives.split(xs[0], len(xs)),
    inputs=_only_rank_0_has,
    forbids=(*OBJECTS, "send", "isend"),
    budget=Budget(sent=lambda n, S: (n - 1) / n * S + 64),  # 64: the length, told to all
    least=Least(sent=lambda n, S: (n - 1) / n * S + 8, rounds=lambda n: 2, memory=lambda n, S: S / n),
    solution='''
def scatter_uneven(x):
    """Return part r of rank 0's x, on rank r."""
    length = torch.tensor([len(x)], device=device)
    dist.broadcast(length, src=0)
    short, longer = divmod(length.item(), world_size)
    mine = torch.zeros(short + 1, dtype=x.dtype, device=device)
    padded = None
    if rank == 0:
        padded = [torch.zeros_like(mine) for _ in range(world_size)]
        for room, part in zip(padded, x.tensor_split(world_size)):
            room[: len(part)] = part
    dist.scatter(mine, padded, src=0)
    return mine[: short + (rank < longer)]
''',
    mutants=(
        Mutant("returns the padding as well", replace=("mine[: short + (rank < longer)]", "mine")),
        Mutant("drops the rest", replace=("mine[: short + (rank < longer)]", "mine[:short]")),
        Mutant("gives the rest to the last ranks", replace=("rank < longer", "rank >= world_size - longer")),
        Mutant(
            "scatters tensors of unequal length",
            replace=(
                "            room[: len(part)] = part\n",
                "            pass\n        padded = list(x.tensor_split(world_size))\n",
            ),
            verdict="raises",
        ),
        Mutant(
            "lets only rank 0 announce the length",
            replace=("    dist.broadcast(length, src=0)", "    if rank:\n        dist.broadcast(length, src=0)"),
            verdict="deadlock",
        ),
        Mutant(
            "broadcasts the whole, and everyone takes its part",
            replace=(
                "    short, longer = divmod(length.item(), world_size)",
                "    whole = x.clone() if rank == 0 else x.new_empty(length.item())\n"
                "    dist.broadcast(whole, src=0)\n"
                "    return whole.tensor_split(world_size)[rank]\n"
                "    short, longer = divmod(length.item(), world_size)",
            ),
            verdict="costly",
            says="busiest rank sends",
        ),
        Mutant(
            "pickles the parts",
            source="""
def scatter_uneven(x):
    box = [None]
    dist.scatter_object_list(box, list(x.tensor_split(world_size)) if rank == 0 else None, src=0)
    return box[0]
""",
            verdict="forbidden",
            says="scatter_object_list",
        ),
    ),
    hints=(
        "What must the others know before they can make room? One number does it.",
        "`dist.scatter` wants tensors of equal shape: pad the short parts, and cut the padding off after the call.",
        "With `short, longer = divmod(length, world_size)`, part r has `short + (rank < longer)` elements.",
    ),
    after=(
        "Pad, or send the sizes first: every library that deals out uneven work does one of the two. `comms.scatter` "
        "does."
    ),
)

BROADCAST_FROM_PARTS = Exercise(
    name="broadcast_from_scatter_all_gather",
    lesson="03",
    title="A broadcast without a broadcast",
    statement=(
        "Every rank brings a tensor `x` with one dimension, of the same length and dtype. Return a tensor like it with "
        "**rank 0's** numbers, on every rank, by a `dist.scatter` of the parts and a `dist.all_gather` of them. The "
        "length need not divide by `world_size`, and may be 0. `x` stays as it is."
    ),
    minutes=12,
    difficulty=2,
    means=collectives.broadcast,
    inputs=vectors,
    forbids=(
        "broadcast",
        "reduce",
        "all_reduce",
        "send",
        "isend",
        "gather",
        "all_to_all",
        *OBJECTS,
    ),
    promises=(Once(("scatter", "all_gather")),),
    keeps_input=True,
    least=Least(sent=lambda n, S: 2 * (n - 1) / n * S, rounds=lambda n: 2, memory=lambda n, S: S),
    solution='''
def broadcast_from_scatter_all_gather(x):
    """Return rank 0's x on every rank, by a scatter and an all-gather."""
    size = -(-len(x) // world_size)
    padded = x.new_zeros(size * world_size)
    padded[: len(x)] = x
    mine = x.new_empty(size)
    dist.scatter(mine, list(padded.view(world_size, size)) if rank == 0 else None, src=0)
    parts = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(parts, mine)
    return torch.cat(parts)[: len(x)]
''',
    mutants=(
        Mutant("returns the padding as well", replace=("torch.cat(parts)[: len(x)]", "torch.cat(parts)")),
        Mutant(
            "drops the elements that do not divide",
            replace=("-(-len(x) // world_size)", "len(x) // world_size"),
            verdict="raises",
        ),
        Mutant(
            "brings the list on every rank",
            replace=(" if rank == 0 else None", ""),
            verdict="raises",
            says="ValueError",
        ),
        Mutant("joins the parts backwards", replace=("torch.cat(parts)", "torch.cat(parts[::-1])")),
        Mutant(
            "all-gathers off the root only",
            replace=("    dist.all_gather(", "    if rank:\n        dist.all_gather("),
            verdict="deadlock",
        ),
        Mutant(
            "scatters the same to everyone, and gathers nothing but that",
            source="""
def broadcast_from_scatter_all_gather(x):
    half = len(x) // 2
    got = []
    for part in (x[:half], x[half:]):
        mine = torch.empty_like(part)
        dist.scatter(mine, [part.clone()] * world_size if rank == 0 else None, src=0)
        got.append(mine)
    return torch.cat(got)
""",
            verdict="not as asked",
            says="2 times",
        ),
        Mutant(
            "calls broadcast",
            source="""
def broadcast_from_scatter_all_gather(x):
    x = x.clone()
    dist.broadcast(x, src=0)
    return x
""",
            verdict="forbidden",
            says="broadcast",
        ),
    ),
    hints=(
        "A scatter wants equal parts. What can you put behind the last element?",
        "`-(-len(x) // world_size)` rounds up. `padded.view(world_size, size)` has one part a row.",
        "After the all-gather, `torch.cat(parts)` and cut the padding off.",
    ),
    after=(
        "The root now sends S (N - 1) / N bytes in the scatter and as much in the all-gather: less than 2 S, however "
        "many ranks there are. A tree's root sends S · ⌈log2 N⌉. Long messages are broadcast like this."
    ),
)


def _rounds(n: int) -> int:
    return ceil(log2(n))


TREE_BROADCAST = Exercise(
    name="tree_broadcast",
    lesson="03",
    title="A broadcast in ⌈log2 N⌉ rounds",
    statement=(
        "Every rank brings a tensor `x` of the same shape and dtype. Return a tensor like it with **rank 0's** "
        "numbers, on every rank, by send and receive only. In a round a rank sends one message at most, and all is "
        "done in ⌈log2 N⌉ **rounds**: two with four ranks. So rank 0 must not serve everybody itself. `x` stays as it "
        "is."
    ),
    minutes=15,
    difficulty=2,
    means=collectives.broadcast,
    inputs=vectors,
    forbids=("collectives",),
    budget=Budget(steps=_rounds),
    keeps_input=True,
    least=Least(
        sent=lambda n, S: (n.bit_length() - 1) * S,
        rounds=lambda n: ceil(log2(n)),
        memory=lambda n, S: S,
    ),
    solution='''
def tree_broadcast(x):
    """Return rank 0's x on every rank: whoever has it passes it on."""
    got = x.clone()
    have = 1  # the ranks below this one have it
    while have < world_size:
        if rank < have and rank + have < world_size:
            dist.send(got, dst=rank + have)
        elif have <= rank < 2 * have:
            dist.recv(got, src=rank - have)
        have *= 2
    return got
''',
    mutants=(
        Mutant(
            "lets rank 0 serve one after the other",
            source="""
def tree_broadcast(x):
    got = x.clone()
    if rank == 0:
        for other in range(1, world_size):
            dist.send(got, dst=other)
    else:
        dist.recv(got, src=0)
    return got
""",
            verdict="costly",
        ),
        Mutant(
            "passes it along a chain",
            source="""
def tree_broadcast(x):
    got = x.clone()
    if rank > 0:
        dist.recv(got, src=rank - 1)
    if rank < world_size - 1:
        dist.send(got, dst=rank + 1)
    return got
""",
            verdict="costly",
        ),
        Mutant("stops before the last round", replace=("while have < world_size", "while 2 * have < world_size")),
        Mutant(
            "forgets that the last round may be incomplete",
            replace=(" and rank + have < world_size", ""),
            verdict="raises",
            says="no rank 3",
        ),
        Mutant("passes its own x on", replace=("dist.send(got,", "dist.send(x,")),
        Mutant(
            "calls broadcast",
            replace=("    have = 1", "    return dist.broadcast(got, src=0) or got\n    have = 1"),
            verdict="forbidden",
            says="broadcast",
        ),
    ),
    hints=(
        "After the first round two ranks have it. How many can have it after the second one, if both pass it on?",
        "In the round in which the ranks below `have` have it, rank r serves rank r + `have`.",
        "Double `have` after each round. Mind the ranks that do not exist.",
    ),
    after="Gloo broadcasts by such a tree: with four ranks rank 0 sends twice, rank 1 once, ranks 2 and 3 not at all.",
)

EXERCISES = (
    REPAIR_STATE_DICT,
    REPAIR_GATHER_LOSSES,
    REPAIR_REDUCE,
    SCATTER_UNEVEN,
    BROADCAST_FROM_PARTS,
    TREE_BROADCAST,
)
