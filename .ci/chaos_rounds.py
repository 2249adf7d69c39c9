"""A random correct program for the ranks, and what each of them must hold after it: the soak's right answers."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from labkit.theory import collectives

DTYPES = ["float64", "float32", "int64", "int32"]
SIZES = [1, 2, 3, 7, 64, 1000]
OPS = ["SUM", "MAX", "MIN", "PRODUCT"]


@dataclass(frozen=True)
class Round:
    """`code` leaves what each rank got in its list `got`; `want[r]` is what rank r must have got."""

    code: str
    want: list[list[Any]]


def draw_round(draw: Random, n: int, calls: int = 3) -> Round:
    """Some collectives in a row, in the world or in a sub-group, on numbers that every dtype holds exactly."""
    code, want = ["got = []"], [[] for _ in range(n)]
    for _ in range(calls):
        members = sorted(draw.sample(range(n), draw.randint(2, n)))
        name = draw.choice(sorted(CALLS))
        lines, results = _call(draw, name, members)
        if len(members) < n:
            lines = [f"group = dist.new_group({members})", f"if rank in {members}:", *(f"    {x}" for x in lines)]
            lines += ["    dist.destroy_process_group(group)"]
        else:
            lines.insert(0, "group = None")
        code += lines
        for r, result in zip(members, results, strict=True):
            want[r].append(result)
    return Round("\n".join(code), want)


def _call(draw: Random, name: str, members: list[int]) -> tuple[list[str], list[Any]]:
    """One call on the ranks `members`: its lines, and what each of them gets."""
    n, size, dtype = len(members), draw.choice(SIZES), draw.choice(DTYPES)
    root, op = draw.randrange(n), draw.choice(OPS)
    if name == "reduce_scatter":
        op = "SUM"
    seed = draw.randrange(1000)
    chunked = name in ("scatter", "reduce_scatter", "all_to_all")
    length = size * n if chunked else size
    xs: list[Any] = [[(seed + 7 * r + i * i) % 5 - 2 for i in range(length)] for r in range(n)]
    made = f"({seed} + 7 * {members}.index(rank) + torch.arange({length}) ** 2) % 5 - 2"
    lines = [
        f"x = ({made}).to(device, torch.{dtype})",
        *CALLS[name].format(root=members[root], op=op, n=n).splitlines(),
    ]
    if chunked:
        xs = [[x[i * size : (i + 1) * size] for i in range(n)] for x in xs]
    results = _means(name, xs, root, op)
    return lines, results


def _means(name: str, xs: list[Any], root: int, op: str) -> list[Any]:
    if name == "all_reduce":
        return collectives.all_reduce(xs, op)
    if name == "reduce":
        return collectives.reduce(xs, root, op)
    if name == "reduce_scatter":
        return collectives.reduce_scatter(xs)
    if name == "shift":
        return [xs[r - 1] for r in range(len(xs))]
    if name in ("broadcast", "scatter", "gather"):
        return getattr(collectives, name)(xs, root)
    return getattr(collectives, name)(xs)


CALLS = {
    "all_reduce": "dist.all_reduce(x, dist.ReduceOp.{op}, group=group)\ngot.append(x.tolist())",
    "reduce": "dist.reduce(x, {root}, dist.ReduceOp.{op}, group=group)\n"
    "got.append(x.tolist() if rank == {root} else None)",
    "broadcast": "dist.broadcast(x, {root}, group=group)\ngot.append(x.tolist())",
    "all_gather": "out = [torch.empty_like(x) for _ in range({n})]\ndist.all_gather(out, x, group=group)\n"
    "got.append([o.tolist() for o in out])",
    "gather": "out = [torch.empty_like(x) for _ in range({n})] if rank == {root} else None\n"
    "dist.gather(x, out, {root}, group=group)\ngot.append(out and [o.tolist() for o in out])",
    "scatter": "out = torch.empty_like(x.chunk({n})[0])\n"
    "dist.scatter(out, list(x.chunk({n})) if rank == {root} else None, {root}, group=group)\ngot.append(out.tolist())",
    "reduce_scatter": "out = torch.empty_like(x.chunk({n})[0])\n"
    "dist.reduce_scatter(out, list(x.chunk({n})), group=group)\ngot.append(out.tolist())",
    "all_to_all": "out = torch.empty_like(x)\ndist.all_to_all_single(out, x, group=group)\n"
    "got.append([o.tolist() for o in out.chunk({n})])",
    "shift": "me, out = dist.get_rank(group), torch.empty_like(x)\n"
    "ops = [dist.P2POp(dist.isend, x, group=group, group_peer=(me + 1) % {n})]\n"
    "ops += [dist.P2POp(dist.irecv, out, group=group, group_peer=(me - 1) % {n})]\n"
    "for work in dist.batch_isend_irecv(ops): work.wait()\ngot.append(out.tolist())",
}
