"""Exercises of the capstone, in their places: the groups of a mesh, and a training step on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

from labkit.grading.exercise import Case, exercise
from workbook.harnesses import my_group

if TYPE_CHECKING:
    from labkit.rank.cell_names import device, dist, everyones, rank, recorder, torch, world_size


def pairs(n: int) -> list[tuple[int, int]]:
    """Return the two-dimensional meshes of n ranks, first those that tell the dimensions apart."""
    return [(2, 2), (1, 4), (4, 1)] if n == 4 else [(1, n), (n, 1)]


def grid(shape: Mapping[str, int]) -> dict[str, list[list[int]]]:
    """List all groups of a mesh, by dimension: those of ranks that differ in this one alone.

    >>> grid({"data": 2, "tensor": 2})
    {'data': [[0, 2], [1, 3]], 'tensor': [[0, 1], [2, 3]]}
    """
    table = np.arange(int(np.prod(list(shape.values())))).reshape(*shape.values())
    return {name: np.moveaxis(table, i, -1).reshape(-1, size).tolist() for i, (name, size) in enumerate(shape.items())}


def _shapes(n: int) -> list[Case]:
    shapes: list[dict[str, int]] = [{"data": data, "tensor": tensor} for data, tensor in pairs(n)]
    if n == 4:
        shapes[2:] = [{"data": 2, "pipe": 1, "tensor": 2}, {"replicas": 2, "pipe": 2}]
    else:
        shapes.append({"data": 1, "pipe": n, "tensor": 1})
    return [Case([(shape,)] * n, " x ".join(f"{name} {k}" for name, k in shape.items())) for shape in shapes]


def run_make_groups(make_groups, shape):
    """Compare what ranks make in a rehearsal without groups, then make them, and collect the ranks of each.

    Groups that not all ranks make, or in different orders, meet the wrong ranks, hang or crash; and those that are
    made are compared before they communicate.
    """
    calls, well = [], True

    def rehearsed(ranks=None, *args, use_local_synchronization=False, **kwargs):
        assert not use_local_synchronization, "leave use_local_synchronization out: here every rank makes every group."
        calls.append(sorted(ranks) if ranks is not None else list(range(world_size)))

    with patch.object(dist, "new_group", rehearsed):
        try:
            make_groups(dict(shape))
        except AssertionError:
            raise
        except Exception:
            well = False
    told = everyones((well, calls))
    for r, (its_well, its_calls) in enumerate(told):
        if told[0][0] and its_well and its_calls != told[0][1]:
            raise AssertionError(
                f"rank 0 makes the groups {told[0][1]}, and rank {r} makes {its_calls}. Every rank has to make every "
                "group, in the same order, also those that it is not in: else the next new_group meets the wrong ranks."
            )
    groups = make_groups(dict(shape))
    mine = dict.fromkeys(shape)
    for name, group in groups.items():
        if group not in (None, dist.GroupMember.NON_GROUP_MEMBER):
            mine[name] = dist.get_process_group_ranks(group)
    told = everyones(mine)
    for r, its in enumerate(told):
        for name, ranks in its.items():
            assert ranks, f"rank {r} returns a group along {name!r} that it is not in."
    if all(told[q].get(name) == ranks for its in told for name, ranks in its.items() for q in ranks):
        with recorder.paused():
            for name in mine:
                seen = torch.zeros(world_size, device=device)
                seen[rank] = 1
                dist.all_reduce(seen, group=groups[name])
                assert seen.nonzero().flatten().tolist() == sorted(mine[name]), f"the group along {name!r} is mixed up"
    return {name: torch.tensor(ranks) for name, ranks in mine.items()}


@exercise(
    "The groups of a mesh",
    lambda xs: [
        {name: np.array(next(ranks for ranks in groups if r in ranks)) for name, groups in grid(shape).items()}
        for r, (shape,) in enumerate(xs)
    ],
    difficulty=2,
    inputs=_shapes,
    picture=lambda: [({"data": 2, "tensor": 2},)] * 4,
    harness=run_make_groups,
)
def make_groups(shape):
    """Return this rank's group along each dimension of a mesh of this shape.

    `shape` says how many ranks lie along each dimension, such as `{"data": 2, "tensor": 2}`; its numbers multiply to
    `world_size`. The ranks are laid out in their order, and the **last** dimension is that of neighbours: with this
    shape ranks 0 and 1 differ in their place along tensor, ranks 0 and 2 in that along data.

    Make the groups, and return a dict with this rank's group along each dimension: the ranks that differ from it in
    their place along this dimension and in no other. `init_device_mesh` does this, and you write it with
    `dist.new_group`, which **every** rank calls for every group.

    The check compares the ranks of your groups, and each group also adds up a number. (Your function is called twice,
    at first with a `new_group` that notes its calls and makes nothing.)
    Hint: `torch.arange(world_size).view(*shape.values())` is a table with the ranks at their places. Each of its rows
    is a group along the last dimension. Where are the groups along the first one?
    Hint: `table.movedim(i, -1)` makes dimension i the last one, and `.reshape(-1, size).tolist()` lists its rows.
    Hint: Every rank calls `dist.new_group(ranks)` for **every** row, in the same order, and keeps the one that it is
    in.
    Afterwards: Along every dimension there are several groups of the same kind, and everybody makes all of them. The
    rank within a group is the place along its dimension, so nothing else ever has to compute coordinates.
    `init_device_mesh` with the same shape and `mesh_dim_names` makes the same groups.
    """
    table, groups = torch.arange(world_size).view(*shape.values()), {}
    for i, name in enumerate(shape):
        for ranks in table.movedim(i, -1).reshape(-1, shape[name]).tolist():
            group = dist.new_group(ranks)
            if rank in ranks:
                groups[name] = group
    return groups


def meshed(shape):
    """Make the groups of a mesh of this shape, unrecorded; return those of this rank along data and along its team."""
    table = torch.arange(world_size).view(*shape)
    with recorder.paused():
        return my_group(table.T.tolist()), my_group(table.tolist())


LR, STEPS = 0.1, 2


def _stepped(xs: Sequence[Any], shape: tuple[int, int]) -> list[Any]:
    tensor = shape[1]
    batches, weights, bias = xs[0][0], np.concatenate([xs[t][2] for t in range(tensor)]).astype("float64"), 0.0
    losses = []
    for inputs, targets in zip(batches.astype("float64"), xs[0][1].astype("float64"), strict=True):
        error = inputs @ weights + bias - targets
        losses.append(float((error**2).mean() / 2))
        weights = weights - LR * inputs.T @ error / len(error)
        bias = bias - LR * float(error.mean())
    parts, its = np.split(np.float32(weights), tensor), {"bias": np.float32([bias])}
    return [{"losses": np.float32(losses), "my columns": parts[r % tensor], **its} for r in range(len(xs))]


def _batches(n: int) -> list[Case]:
    rng, cases = np.random.default_rng([16, 2, n]), []

    def case(
        mesh: tuple[int, int], inputs: np.ndarray, targets: np.ndarray, weights: np.ndarray, more: str = ""
    ) -> Case:
        inputs, targets, weights = (x.astype("float32") for x in (inputs, targets, weights))
        xs = [(inputs, targets, weights[r % mesh[1]]) for r in range(n)]
        return Case(xs, f"data {mesh[0]}, team {mesh[1]}{more}", {"shape": mesh})

    for mesh in pairs(n):
        inputs, targets = rng.integers(-1, 2, (STEPS, n, mesh[1])) + 0.5, rng.integers(-3, 4, (STEPS, n))
        cases.append(case(mesh, inputs, targets, rng.integers(-2, 3, (mesh[1], 1))))
    first = pairs(n)[0]
    inputs, targets = rng.normal(size=(STEPS, 3 * n, 3 * first[1])), rng.normal(size=(STEPS, 3 * n))
    return [*cases, case(first, inputs, targets, rng.normal(size=(first[1], 3)), ", more rows")]


def _one_row() -> Case:
    inputs, targets = np.float32([[[1, 2]]]), np.float32([[1]])
    return Case([(inputs, targets, np.float32([1]))] * 2, options={"shape": (1, 2)})


def run_mesh_step(mesh_step, inputs, targets, columns, shape):
    """Train a linear model whose columns a team shares, and collect the losses and the parameters.

    Each rank adds its part of the product, and the bias is on all of them. What is read, and how often the
    optimizer steps, is watched.
    """
    data, team = meshed(shape)
    mine, of_team = dist.get_rank(data), dist.get_rank(team)
    params = [torch.nn.Parameter(columns.clone()), torch.nn.Parameter(torch.zeros(1, device=device))]
    shares, steps, losses = [], [], []

    class Descent:
        def zero_grad(self, set_to_none=True):
            for p in params:
                p.grad = None

        @torch.no_grad()
        def step(self):
            steps.append(len(shares))
            for p in params:
                p.sub_(p.grad, alpha=0.1)

    def read(place, size):
        shares.append((place, size))
        assert 0 <= place < size, f"share {place} of {size} is none: shares count from 0."
        step = len(shares) - 1
        assert step < len(inputs), "it reads more than once in a training step."
        return inputs[step].tensor_split(size)[place], targets[step].tensor_split(size)[place]

    def compute(x, y):
        first = of_team * len(columns)
        with recorder.paused(), torch.no_grad():
            out = x[:, first : first + len(columns)] @ params[0]
            dist.all_reduce(out, group=team)
            error = out + params[1] - y
            for p, slope in zip(params, (x[:, first : first + len(columns)].T @ error, error.sum()[None])):
                slope = slope / len(x)
                p.grad = slope if p.grad is None else p.grad + slope
        return (error**2).mean() / 2

    for _ in range(len(inputs)):
        losses.append(mesh_step(read, compute, params, Descent(), data, team))
    right = mine, dist.get_world_size(data)
    wrong = [share for share in shares if share != right]
    assert not wrong, (
        "it reads share {} of {}, and its share is {} of {}: else ranks of one team read different rows, or copies "
        "the same ones.".format(*wrong[0], *right)
    )
    assert len(steps) == len(inputs), f"`optimizer.step()` ran {len(steps)} times in {len(inputs)} training steps."
    losses = torch.tensor([float(loss) for loss in losses])
    return {"losses": losses, "my columns": params[0].detach(), "bias": params[1].detach()}


@exercise(
    "A training step on a mesh",
    _stepped,
    difficulty=3,
    inputs=_batches,
    picture=_one_row,
    tolerance=1e-4,
    counts_memory=False,
    harness=run_mesh_step,
)
def mesh_step(read, compute, params, optimizer, data, team):
    """Take a training step on this rank's share of the batch; return the loss of the whole batch.

    Each **team** of ranks holds one copy of the model, cut into parts; the ranks of one `data` group hold **the same
    part** of all copies. `read(place, size)` returns the inputs and targets of share number `place` of `size` of the
    next batch. `compute(inputs, targets)` runs this rank's part of the forward and backward pass, talking to its team.
    It **adds** to the gradients of `params`, this rank's parameters, and returns the mean loss of these rows, the same
    on all ranks of the team.

    Take the training step that one process would take with the whole batch, and return the loss of the whole batch, on
    every rank. Read once. `optimizer` has `zero_grad()` and `step()`, and knows `params`.

    In the picture, two ranks are one team. It shows a batch of one row, its target and this rank's column of a linear
    model; then, after a training step, the loss, its column and the bias, which every rank has.
    Hint: Two ranks of a team work on the same rows: they read the same share. Which number do they have in common, and
    which one tells the copies apart?
    Hint: The share is `dist.get_rank(data)` of `dist.get_world_size(data)`.
    Hint: A gradient is averaged with those of the same part: over `data`, the parameters that every rank of a team has
    no less than the ones that are cut. Whether one by one or in one buffer is up to you. The loss is one number for
    each copy, so its mean is over `data`, too.
    Afterwards: One line says what data parallelism is on any mesh: the mean over the ranks that hold the same part.
    Averaging over the world would mix the gradients of different columns, and nothing would complain, because their
    shapes are equal.
    """
    optimizer.zero_grad()
    loss = compute(*read(dist.get_rank(data), dist.get_world_size(data)))
    gradients = torch.cat([p.grad.flatten() for p in params])
    dist.all_reduce(gradients, op=dist.ReduceOp.AVG, group=data)
    for p, mean in zip(params, gradients.split([p.numel() for p in params])):
        p.grad.copy_(mean.view_as(p))
    optimizer.step()
    dist.all_reduce(loss, op=dist.ReduceOp.AVG, group=data)
    return loss.item()
