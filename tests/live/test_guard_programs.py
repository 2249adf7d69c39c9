"""Right programs are never refused: random ones, with sub-groups, asynchronous calls and late ranks among them."""

from __future__ import annotations

import pytest

PROGRAM = '''
import random, time
import torch.distributed._functional_collectives as fc
from labkit.theory import collectives as means

def inputs(seed, n, shape, dtype):
    """What each rank of a group brings: every rank can work out all of them."""
    g = torch.Generator().manual_seed(seed)
    return [torch.randint(1, 4, shape, generator=g).to(dtype) for _ in range(n)]

def program(seed, steps, left=None):
    """Make the same random calls on every rank, each at a time of its own; the results that are wrong.

    What is open at the end is waited for, or `left`.
    """
    draw, mine = random.Random(seed), random.Random(1000 * seed + rank)
    members = [list(range(world_size)), [0, world_size - 1], [1, 0], [world_size - 1, 1, 0]]
    groups = [dist.group.WORLD] + [dist.new_group(m) for m in members[1:]]
    wrong, open_ = [], []
    for step in range(steps):
        which, kind = draw.randrange(4), draw.choice(KINDS)
        ranks = sorted(members[which])
        n, size = len(ranks), draw.randrange(0, 5)
        dtype = draw.choice([torch.float32, torch.int64, torch.bfloat16, torch.float64])
        op, root, late = draw.choice(["SUM", "MAX", "MIN"]), draw.randrange(n), draw.random() < 0.3
        asynchronous = kind not in NEVER and draw.random() < 0.5
        splits = [[draw.randrange(3) for _ in range(n)] for _ in range(n)]
        if rank not in ranks:
            continue
        me, group = ranks.index(rank), groups[which]
        if late and mine.random() < 0.5:
            time.sleep(mine.random() / 200)
        shape = (n * size,) if kind.startswith(("reduce_scatter", "scatter", "all_to_all")) else (size, 2)
        xs = inputs(step, n, shape, dtype)
        out, want, work = CALLS[kind](xs, me, n, group, ranks[root], root, op, splits, asynchronous)
        if asynchronous and work is not None:
            open_.append((step, kind, out, want, work))
        elif not same(out, want):
            wrong.append((step, kind))
        while open_ and mine.random() < 0.6:  # in any order, and never in the same on two ranks
            finish(open_.pop(mine.randrange(len(open_))), wrong)
    for each in open_:
        finish(each, wrong) if left is None else left.append(each)
    return wrong

def finish(one, wrong):
    step, kind, out, want, work = one
    work.wait()
    if not same(out, want):
        wrong.append((step, kind))

def same(out, want):
    if want is None:
        return True
    out, want = (list(v) if isinstance(v, (list, tuple)) else [v] for v in (out, want))
    return all(torch.equal(a.to(torch.float64), torch.as_tensor(b).to(torch.float64)) for a, b in zip(out, want))

def meant(name, xs, me, **more):
    return getattr(means, name)([x.to(torch.float64).numpy() for x in xs], **more)[me]

def reduction(op):
    return getattr(dist.ReduceOp, op)

def all_reduce(xs, me, n, group, src, root, op, splits, a):
    x = xs[me].clone()
    return x, meant("all_reduce", xs, me, op=op), dist.all_reduce(x, reduction(op), group, async_op=a)

def broadcast(xs, me, n, group, src, root, op, splits, a):
    x = xs[me].clone()
    return x, meant("broadcast", xs, me, root=root), dist.broadcast(x, src, group, async_op=a)

def reduce(xs, me, n, group, src, root, op, splits, a):
    x = xs[me].clone()
    want = meant("reduce", xs, me, root=root, op=op) if me == root else None
    return x, want, dist.reduce(x, src, reduction(op), group, async_op=a)

def gather(xs, me, n, group, src, root, op, splits, a):
    out = [torch.zeros_like(x) for x in xs] if me == root else None
    return out, list(xs) if me == root else None, dist.gather(xs[me], out, src, group, async_op=a)

def all_gather(xs, me, n, group, src, root, op, splits, a):
    out = [torch.zeros_like(x) for x in xs]
    return out, xs, dist.all_gather(out, xs[me], group, async_op=a)

def all_gather_both(xs, me, n, group, src, root, op, splits, a):
    """Some ranks call it with a list, some with a tensor."""
    if me % 2:
        return all_gather(xs, me, n, group, src, root, op, splits, a)
    out = torch.zeros(n * len(xs[me]), 2, dtype=xs[me].dtype)
    return out, torch.cat(xs), dist.all_gather_into_tensor(out, xs[me], group, async_op=a)

def scatter(xs, me, n, group, src, root, op, splits, a):
    out = torch.zeros(len(xs[me]) // n, dtype=xs[me].dtype)
    parts = list(xs[me].chunk(n)) if len(xs[me]) else [torch.zeros_like(out)] * n
    return out, xs[root][me * len(out):][:len(out)], dist.scatter(out, parts if me == root else None, src, group, a)

def reduce_scatter(xs, me, n, group, src, root, op, splits, a):
    out = torch.zeros(len(xs[me]) // n, dtype=xs[me].dtype)
    want = torch.as_tensor(meant("all_reduce", xs, me, op=op))[me * len(out):][:len(out)]
    return out, want, dist.reduce_scatter_tensor(out, xs[me], reduction(op), group, async_op=a)

def all_to_all(xs, me, n, group, src, root, op, splits, a):
    out, want = torch.zeros_like(xs[me]), torch.cat([x.view(n, -1)[me] for x in xs])
    return out, want, dist.all_to_all_single(out, xs[me], group=group, async_op=a)

def all_to_all_uneven(xs, me, n, group, src, root, op, splits, a):
    """Rank i gives rank j splits[i][j] times its own number."""
    given, taken = splits[me], [splits[j][me] for j in range(n)]
    x = torch.full((sum(given),), me, dtype=xs[me].dtype)
    out = torch.full((sum(taken),), -1, dtype=xs[me].dtype)
    want = torch.cat([torch.full((k,), j) for j, k in enumerate(taken)])
    return out, want, dist.all_to_all_single(out, x, taken, given, group, async_op=a)

def barrier(xs, me, n, group, src, root, op, splits, a):
    return None, None, dist.barrier(group, async_op=a)

def objects(xs, me, n, group, src, root, op, splits, a):
    out = [None] * n
    dist.all_gather_object(out, xs[me].tolist(), group)
    return [torch.tensor(o) for o in out], [torch.tensor(x.tolist()) for x in xs], None

def of_comms(xs, me, n, group, src, root, op, splits, a):
    return comms.all_reduce(xs[me], op.lower(), group), meant("all_reduce", xs, me, op=op), None

def functional(xs, me, n, group, src, root, op, splits, a):
    return fc.all_reduce(xs[me], op.lower(), group), meant("all_reduce", xs, me, op=op), None

CALLS = {f.__name__: f for f in (
    all_reduce, broadcast, reduce, gather, all_gather, all_gather_both, scatter, reduce_scatter, all_to_all,
    all_to_all_uneven, barrier, objects, of_comms, functional)}
KINDS, NEVER = list(CALLS), ("objects", "of_comms", "functional")
'''


@pytest.fixture(scope="module")
def _program(lab):
    lab.run(PROGRAM)


@pytest.mark.usefixtures("_program")
@pytest.mark.parametrize("seed", range(8))
def test_a_random_right_program_runs_to_its_end_with_the_right_results(lab, seed):
    assert lab.guard
    assert lab.run(f"print(program({seed}, 60))") == ["[]\n"] * lab.n
    lab.run("for group in [g for g in dist.distributed_c10d._world.pg_map if g is not dist.group.WORLD]:\n"
            "    dist.destroy_process_group(group)")  # fmt: skip


HERE, THREAD, POOL = "runs()", "last = threading.Thread(target=runs)\nlast.start()", "last = pool.submit(runs)"


@pytest.mark.usefixtures("_program")
@pytest.mark.parametrize(("where", "ends"), [(HERE, ""), (THREAD, "last.join()"), (POOL, "last.result()")])
@pytest.mark.parametrize("seed", range(8, 12))
def test_a_random_right_program_may_go_on_beyond_its_cell(lab, seed, where, ends):
    """Its handles are waited for in the next cell, and a thread may make its calls while the cell ends."""
    lab.run("import threading\nfrom concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor()")
    lab.run(f"left, wrong = [], []\ndef runs(): wrong.extend(program({seed}, 40, left))\n{where}")
    assert lab.run(f"{ends}\nfor each in left: finish(each, wrong)\nprint(wrong)\npool.shutdown()") == ["[]\n"] * lab.n


def test_ranks_may_be_as_far_apart_as_a_reduction_lets_them(lab):
    """Many asynchronous calls are under way on one rank before another one makes its first."""
    code = (
        "import time\nif rank == 0:\n    time.sleep(0.3)\n"
        "xs = [torch.full((2,), float(i)) for i in range(200)]\n"
        "works = [dist.all_reduce(x, async_op=True) for x in xs]\n[w.wait() for w in works]\n"
        "print([i for i, x in enumerate(xs) if x[0] != 3 * i])"
    )
    assert lab.run(code) == ["[]\n"] * lab.n


def test_the_first_steps_of_training_are_not_refused(lab):
    """DDP, then FSDP2: buckets in C++, coalesced and functional collectives."""
    code = (
        "from torch.nn.parallel import DistributedDataParallel\nfrom torch.distributed.fsdp import fully_shard\n"
        "for wrap in (DistributedDataParallel, fully_shard):\n"
        "    torch.manual_seed(0)\n"
        "    model = wrap(torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 2)))\n"
        "    optimizer = torch.optim.Adam(model.parameters())\n"
        "    for _ in range(3):\n        model(torch.ones(2, 4) * rank).sum().backward()\n        optimizer.step()\n"
        "print('trained')"
    )
    assert lab.run(code) == ["trained\n"] * lab.n
