"""Lesson 11b: gather ahead, shard within a host and copy across, clip what is sharded; and its questions."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, Least, exercise
from labkit.grading.prediction import ask
from labkit.grading.promises import Calls
from labkit.theory.record import Record
from workbook.cards import in_words, no_numbers
from workbook.harnesses import calls, kept, my_group, with_gradients
from workbook.lesson11 import cut

if TYPE_CHECKING:
    from labkit.rank.cell_names import device, dist, everyones, name_it, rank, torch, world_size


def _chained(xs: Sequence[Any]) -> list[Any]:
    return [reduce(lambda x, w: np.tanh(x * w[: len(x)] + w[len(x) :]), whole, x) for whole, x in xs]


def _chains(n: int) -> list[Case]:
    rng = np.random.default_rng([11, 7, n])

    def chain(layers: int, wide: int, dtype: str = "float32") -> list[Any]:
        whole = [rng.normal(size=2 * wide).astype(dtype) for _ in range(layers)]
        return [([w.copy() for w in whole], rng.normal(size=wide).astype(dtype)) for _ in range(n)]

    return [
        Case(chain(3, n), "three layers"),
        Case(chain(1, n), "one layer"),
        Case(chain(2, 3 * n, "float64"), "two layers, float64"),
        Case(chain(6, 16 * n), "six layers"),
    ]


class Arriving:
    """A gather whose numbers are in the weights once `wait` was called, and not before.

    Gloo writes into buffers of its own, which `wait` copies. These are kept, so that only the learner's function
    decides when the learner's weights go.
    """

    def __init__(self, work, arrived, room):
        self.work, self.arrived, self.room, self.waited = work, arrived, weakref.ref(room), False

    def wait(self, *args):
        done, room = self.work.wait(*args), self.room()
        if not self.waited and room is not None:
            room.copy_(self.arrived)
        self.waited = True
        return done


def run_forward_ahead(forward_ahead, whole, x):
    """Give a gather whose numbers come with its `wait`, and see which are under way while a layer computes."""
    works, rooms, wrong, arriving = [], [], [], [torch.empty_like(w) for w in whole]

    def hold(true, says):
        wrong.extend([] if true else [says])

    def gather(i):
        hold(i == len(works), f"`gather({i})` comes after {len(works)} others: each layer once, in their order.")
        length = len(whole[i]) // world_size
        room = torch.full_like(whole[i], float("nan"))
        mine = whole[i][rank * length : (rank + 1) * length]
        works.append(Arriving(dist.all_gather_single(arriving[i], mine, async_op=True), arriving[i], room))
        rooms.append(weakref.ref(room.untyped_storage()))
        return works[i], room

    def layer(i, weights, x):
        hold(works[i].waited, f"layer {i} computes before its weights have arrived: call `work.wait()`.")
        ahead = min(i + 2, len(whole))
        hold(len(works) >= ahead, f"while layer {i} computes, the all-gather of layer {i + 1} is not under way.")
        hold(len(works) <= ahead, f"while layer {i} computes, that of layer {i + 2} has begun already.")
        gone = wrong or not kept(rooms[:i])
        hold(gone, f"while layer {i} computes, the weights of a layer before it are still in memory.")
        return torch.tanh(x * weights[: len(x)] + weights[len(x) :])

    y = forward_ahead([lambda w, x, i=i: layer(i, w, x) for i in range(len(whole))], gather, x)
    assert not wrong, wrong[0]
    return y


@exercise(
    "Gather the next layer while this one computes",
    in_words(_chained, "what the layers make of x"),
    difficulty=2,
    inputs=_chains,
    tolerance=1e-4,
    promises=(Calls(6),),
    least=Least(rounds=lambda n: 6),
    picture=no_numbers,
    harness=run_forward_ahead,
)
def forward_ahead(layers, gather, x):
    """Return what the layers make of x, the weights of each gathered while the one before computes.

    `layers` is a list of functions, and `layer(weights, x)` computes one of them. `gather(i)` **begins** the all-gather
    of layer i's weights and returns `(work, weights)` at once; the numbers are in `weights` when `work.wait()` has
    returned. Pass `x` through all layers in their order and return what comes out.

    While layer i computes, the all-gather of layer i + 1 must be under way, and that of layer i + 2 must not have
    begun. The weights of layers that have computed must be gone: never more than two layers' are in memory.
    Hint: Before the loop, begin with layer 0. In the loop: wait for what is coming, begin the next one, compute.
    Hint: Keep what `gather` returned in one variable that you overwrite: then nothing refers to old weights any more.
    Hint: `ahead = gather(i + 1) if i + 1 < len(layers) else None`, between the wait and the computation.
    Afterwards: This is prefetching. How far to gather ahead is a choice between time and memory:
    `set_modules_to_forward_prefetch` of FSDP2 takes a list, so that you can gather several layers ahead where one is
    too little to hide the transfer.
    """
    ahead = gather(0)
    for i, layer in enumerate(layers):
        work, weights = ahead
        work.wait()
        ahead = gather(i + 1) if i + 1 < len(layers) else None
        x = layer(weights, x)
    return x


class ShardsAcross:
    """What goes across the groups of a mesh is a shard: no all-reduce brings as much as the whole gradient."""

    def broken(self, record: Record) -> str:
        """Say which rank brings its whole gradient to which call."""
        for mine in record.ops:
            called = [(op, op.primitive.name if op.primitive else "") for op in mine]
            whole = max((op.bytes or 0 for op in mine), default=0)
            scattered = max((len(op.ranks) for op, name in called if name == "reduce_scatter"), default=record.n)
            for op, name in called:
                if name == "all_reduce" and len(op.ranks) > 1 and (op.bytes or 0) * scattered > whole:
                    return (
                        f"Rank {op.rank} brings {op.bytes} bytes to {op.called}{op.at}: "
                        "the whole gradient. Only its shard has to go across."
                    )
        return ""


def grid(n: int, inner: int, columns: bool) -> tuple[list[list[int]], list[list[int]]]:
    """Return the groups that shard and those that replicate: n ranks in rows of `inner`, or in columns."""
    table = np.arange(n).reshape(inner, -1).T if columns else np.arange(n).reshape(-1, inner)
    return table.tolist(), table.T.tolist()


def _hybrid(xs: Sequence[Any], per_group: int = 2, columns: bool = False) -> list[Any]:
    mean = np.mean(xs, axis=0).astype(xs[0].dtype)
    place = {r: row.index(r) for row in grid(len(xs), per_group, columns)[0] for r in row}
    return [cut(mean, per_group, place[r]) for r in range(len(xs))]


def _readable(n: int, length: int) -> list[Any]:
    return [np.arange(length, dtype="float32") + 10 * r for r in range(n)]


def _meshes(n: int) -> list[Case]:
    rng, cases = np.random.default_rng([11, 6, n]), []
    layouts = [(k, columns) for k in sorted({2, n}) if n % k == 0 for columns in (False, True)]
    for i, (inner, columns) in enumerate([*layouts, layouts[0]]):
        length, dtype = (2, 3, 40, 5, 30)[i] * n, ("float32", "float64")[i % 2]
        drawn = [rng.integers(-9, 10, length).astype(dtype) for _ in range(n)]
        xs = drawn if i else _readable(n, length)
        rows = " and ".join(map(str, grid(n, inner, columns)[0]))
        cases.append(Case(xs, f"shards within {rows}", {"per_group": inner, "columns": columns}))
    return cases


def run_hsdp_gradient(hsdp_gradient, gradient, per_group, columns):
    """Give the groups of a mesh, and name the mistake that a wrong shard of the gradient comes from."""
    everyone = everyones(gradient)
    groups = [my_group(rows) for rows in grid(world_size, per_group, columns)]
    mine = hsdp_gradient(gradient, *groups)
    inner, outer = map(dist.get_process_group_ranks, groups)

    def part(ranks, divisor):
        return sum(everyone[r] for r in ranks).chunk(len(inner))[inner.index(rank)] / divisor

    everybody = range(world_size)
    slips = {
        "adds up and does not divide": part(everybody, 1),
        "divides by the size of `inner`": part(everybody, len(inner)),
        "divides by the size of `outer`": part(everybody, len(outer)),
        "divides by the number of ranks and the size of `outer`": part(everybody, world_size * len(outer)),
        "divides by the number of ranks and the size of `inner`": part(everybody, world_size * len(inner)),
        "adds up over `inner` alone, and divides by the number of ranks": part(inner, world_size),
        "averages over `inner` alone": part(inner, len(inner)),
        "adds up over `outer` alone, and divides by the number of ranks": part(outer, world_size),
        "averages over `outer` alone": part(outer, len(outer)),
    }
    name_it(mine, part(everybody, world_size), slips)
    return mine


@exercise(
    "Shards within a host, copies across",
    _hybrid,
    minutes=8,
    difficulty=2,
    inputs=_meshes,
    tolerance=1e-5,
    promises=(Calls(2), ShardsAcross()),
    least=Least(rounds=lambda n: 2),
    picture=lambda: _readable(4, 4),
    harness=run_hsdp_gradient,
)
def hsdp_gradient(gradient, inner, outer):
    """Return this rank's part of the mean gradient of all ranks; the parts of the inner group make the whole.

    The ranks form a grid. The ranks of one `inner` group together hold one copy of the model, in shards. The ranks of
    one `outer` group have **the same part** of their copies. `gradient` is the flat gradient of this rank's
    own loss, and the inner group's size divides its length. Return this rank's part of the **mean over all ranks**: the
    first part belongs to the first rank of the inner group.

    An inner group is on one host with fast links; outer groups go across hosts. So a collective of `outer` may get only
    a part, never the whole gradient. **Two** calls.

    In the picture, ranks 0 and 1 are one inner group, ranks 2 and 3 the other.
    Hint: A sum over all ranks can be taken in two steps: first within each inner group, then across. After the first
    step a rank needs its part only.
    Hint: The first step is a reduce-scatter with `group=inner`. The second one leaves on every rank of `outer` the sum
    of what each of them has.
    Hint: The rank within the group is what counts, and the collectives know it: pass `group=`, and use no index.
    Afterwards: With 8 GPUs per host, an eighth of the gradient crosses the network from each GPU, instead of the whole
    gradient. The price is memory: each GPU holds one eighth, not one N-th. `fully_shard` does this on a two-dimensional
    mesh, and calls it hybrid sharding (HSDP).
    """
    mine = gradient.new_empty(len(gradient) // dist.get_world_size(inner))
    dist.reduce_scatter_single(mine, gradient, group=inner)
    dist.all_reduce(mine, group=outer)
    return mine / world_size


def _clipped(xs: Sequence[Any], most: float) -> list[Any]:
    squares = sum(float((g.astype("float64") ** 2).sum()) for (gradients,) in xs for g in gradients)
    norm = float(np.sqrt(squares))
    scale = min(1.0, most / norm) if norm else 1.0
    return [{"norm": norm, "gradients": [g * g.dtype.type(scale) for g in gradients]} for (gradients,) in xs]


def _shards(n: int) -> list[Case]:
    rng = np.random.default_rng([11, 5, n])

    def drawn(sizes: Sequence[int], level: float, dtype: str = "float32") -> list[Any]:
        return [([(level * rng.normal(size=size)).astype(dtype) for size in sizes],) for _ in range(n)]

    first = [([np.array([4.0 if r else 3.0], dtype="float32")],) for r in range(n)]
    absent = [([np.full(2, 3.0, dtype="float32")] * min(r, 1),) for r in range(n)]
    return [
        Case(first, "one number a rank", {"most": 1.0}),
        Case(drawn([4, 3], 5), "two shards a rank", {"most": 1.0}),
        Case(drawn([4, 3], 0.01), "small gradients, which stay as they are", {"most": 1.0}),
        Case(absent, "rank 0 has no shard", {"most": 2.0}),
        Case([([np.zeros(3, dtype="float32")],) for _ in range(n)], "gradients of zero", {"most": 1.0}),
        Case(drawn([60, 7, 200], 3, "float64"), "float64", {"most": 0.5}),
    ]


def run_clip_shards(clip_shards, gradients, most):
    """Give shards with gradients, name what a wrong norm comes from, and collect the norm and the gradients."""
    squares = everyones(float(sum((g.double() ** 2).sum() for g in gradients)))
    norms, whole = [s**0.5 for s in squares], sum(squares) ** 0.5
    shards = list(with_gradients(*gradients))
    norm = clip_shards(shards, most)
    slips = {
        "adds up the ranks' norms, and not their squares": sum(norms),
        "divides the sum of squares by the number of ranks": whole / world_size**0.5,
        "takes no root": sum(squares),
        "returns the norm after the scaling": min(whole, most),
    }
    if norms[rank] < max(norms):  # what it is when each rank takes its own, the learner should see
        slips["takes the largest of the ranks' norms"] = max(norms)
    assert shards or calls(), "it stays away from the collective, where the others wait for it"
    name_it(norm, whole, slips, "the norm")
    changed = not all(torch.equal(s.grad, g) for s, g in zip(shards, gradients))
    assert whole > most or not changed, f"the norm is {whole:g}, no more than {most:g}, and it scales the gradients"
    assert whole <= most or changed or not norms[rank], "it returns the norm, and does not scale the gradients"
    return {"norm": norm, "gradients": [s.grad for s in shards]}


def broken_clip_shards(shards, most):
    squares = torch.zeros((), dtype=torch.float64, device=device)
    for shard in shards:
        squares += (shard.grad.double() ** 2).sum()
    norm = squares.sqrt()
    for shard in shards:
        shard.grad *= (most / norm).clamp(max=1)
    return norm


@exercise(
    "Repair the clipping of sharded gradients",
    _clipped,
    minutes=6,
    difficulty=2,
    inputs=_shards,
    tolerance=1e-4,
    promises=(Calls(1),),
    least=Least(rounds=lambda n: 1),
    harness=run_clip_shards,
)
def clip_shards(shards, most):
    """Scale the gradients of all ranks' shards so that their norm is at most this; return the norm before.

    Each rank has some `shards` of the weights, perhaps none, each with a `grad`; no number is on two ranks. If the norm
    of **all** gradients of **all** ranks together (the root of the sum of squares) is larger than `most`, scale them so
    that it becomes `most`; else leave them as they are. Return the norm before the scaling, on every rank. **One**
    collective.

    The specimen is what people write for a model that is not sharded. Run its check first: what differs from rank to
    rank? In the picture, the norm and the scaled gradient are on the right.
    Hint: Each rank clips by the norm of its own shards, so each scales by a different factor: the gradient not only
    gets shorter, it also changes its direction. Which number has to be the same everywhere?
    Hint: Squares add up over the ranks, norms do not (`grad_norm` in lesson 08).
    Hint: One line is missing, between the loop and the root. A rank without shards makes the call, too, with 0.
    Afterwards: The padding of a shard has a gradient of 0 and adds nothing. `torch.nn.utils.clip_grad_norm_` does this
    for the DTensors of `fully_shard`, and then the norm that it returns is a DTensor: its `full_tensor()` is the
    number. In DeepSpeed, clip through its configuration, because only its engine has the shards.
    """
    squares = torch.zeros((), dtype=torch.float64, device=device)
    for shard in shards:
        squares += (shard.grad.double() ** 2).sum()
    dist.all_reduce(squares)
    norm = squares.sqrt()
    for shard in shards:
        shard.grad *= (most / norm).clamp(max=1)
    return norm


what_prefetching_hides = ask("""
A model of equal layers: gathering a layer takes 3 ms, and computing it takes 2 ms. Every layer is gathered while the
one before it computes. How long does a forward pass of 10 layers take, in ms?
= 32.0 ms +- 5 %
( ) 50
    > This is the time without any overlap: ten times 3 + 2.
( ) 20
    > This is the computing alone. A layer cannot compute faster than its weights come.
( ) 23
    > That would be true if computing were the slower one. Here gathering takes longer.
( ) 30
    > These are the ten gathers. The last layer still has to compute.
Why: 32 ms. Nothing can hide the first gather: 3 ms. From then on the network is the bottleneck: nine gathers of 3 ms,
each beside 2 ms of computing. After the last gather the tenth layer computes: 3 + 27 + 2.
""")

where_fsdp_sums = ask("""
Rank 0's gradient is 256, and every other rank's is 1. `MixedPrecisionPolicy(param_dtype=torch.bfloat16)` says nothing
about sums. The weights and their gradients are float32 afterwards. With four ranks the true mean is 64.75. What does
FSDP find?
( ) 64.75 everywhere: the gradients are float32
    > That would be true if the gradients were float32 when they are added. They are turned into float32 after the
    sum.
(x) 64 at some places, 65 at others
( ) 65 everywhere: 64.75, rounded to bfloat16
    > That would be true if the sum were exact and rounded once at the end: near 64 bfloat16 holds halves, and 64.75
    becomes 65. But every addition is rounded, and from 256 on bfloat16 holds even numbers only.
( ) inf: 256 is too large for 16 bits
    > fp16 overflows beyond 65,504. bfloat16 has the range of float32; it lacks digits.
Why: 64 at some places and 65 at others. Without a `reduce_dtype`, FSDP adds in `param_dtype`: in bfloat16 256 + 1 is
256 again, so three single ones vanish and leave 256 / 4 = 64. Where two ones are added to each other first, 2 + 256 is
258, the last 1 makes it 260, and 260 / 4 = 65. The order of the additions depends on the place in the ring.
""")

rank_of_the_world = ask("""
Four ranks in a 2 × 2 mesh: ranks 0 and 1 share one copy of the model, ranks 2 and 3 the other. The code takes the shard
`weights.chunk(2)[rank % 2]`, with the rank of the **world**. It works. Then the mesh is laid out the other way: ranks 0
and 2 share a copy, and ranks 1 and 3. What happens?
( ) nothing changes: `rank % 2` is the place in a group of two
    > That would be true if neighbours were in one group. Now ranks 0 and 2 are, and both have remainder 0.
( ) an error: rank 2 asks for a part that does not exist
    > That would be true of `chunk(2)[rank]`. The remainder is always 0 or 1, so no error comes.
(x) each copy has one half of the weights twice, and the other half not at all
( ) the two copies swap their halves, and all is well again
    > That would be true if ranks 0 and 2 took different halves. Both take the first one.
Why: Each copy has one half twice: ranks 0 and 2 both take the first half, ranks 1 and 3 both the second one. Nothing
raises, because all shapes fit. The place within the group is what you need: `mesh.get_local_rank("shard")`, or
`dist.get_rank(group)`.
""")

bytes_across_hosts = ask("""
On paper: a model of 7 billion parameters is trained on 8 hosts of 8 GPUs, sharded within each host, with a copy on
every host. Gradients travel in bfloat16. How many GB does **one GPU** send to other hosts in a training step, with an
all-reduce that sends the least?
= 3.0625 GB +- 10 %
( ) 24.5
    > This is an all-reduce of the whole gradient among 8. Only a GPU's own eighth has to go across.
( ) 27.5625
    > This is DDP on 64 GPUs: all of the gradient, among all of them.
( ) 1.75
    > This is the shard. An all-reduce among 8 sends 2 · 7/8 times as much as it is given.
( ) 1.53125
    > This is half of an all-reduce: a reduce-scatter of the shard alone.
( ) 12.25
    > This is the reduce-scatter of the whole gradient, which stays within the host.
( ) 6.125
    > Gradients in float32 would send this much. bfloat16 takes 2 bytes.
Why: About 3.1 GB. The whole gradient has 14 GB. After the reduce-scatter within the host a GPU has an eighth of it,
1.75 GB, and an all-reduce of that among 8 hosts sends 2 · 7/8 · 1.75 GB from each. The gathers and the reduce-scatters
stay within the host.
""")

norm_of_clipped_parts = ask("""
The gradient of a sharded model lies in parts on four ranks, and each part happens to have norm 1. Every rank clips its
own part, so that the norm of the part is at most 1. What is the norm of the whole gradient afterwards?
= 2.0 +- 1 %
( ) 1
    > That would be true if each rank knew the norm of the whole gradient. It sees its own part alone.
( ) 4
    > Norms do not add up. Their squares do.
( ) 0.5
    > Scaling each part to 1/2 would be right: then the whole has norm 1. But no rank knows that it has to.
( ) 0.25
    > Nothing is divided here: each rank finds that its part is short enough.
Why: 2. Each rank sees a norm of 1 and leaves its part alone. The squares add up to 4, so the whole gradient has norm 2:
twice the limit, and on 64 ranks it would be 8 times. Where the parts have different norms, each is scaled by a
different factor, and the direction of the gradient changes, too.
""")

what_rank_0_saves = ask("""
The weights of a model take 821 kB, and `fully_shard` has cut them for four ranks. **Rank 0 alone** runs
`torch.save(model.state_dict(), path)`, as programs with DDP do. What happens?
( ) the file has the whole model: `state_dict()` gathers it
    > That would be true of `get_model_state_dict` with `full_state_dict=True`. It is a collective, and all ranks have
    to call it.
( ) rank 0 waits for ever: the other ranks do not join its all-gather
    > That would be true if `state_dict()` communicated. It only lists the DTensors that this rank has.
(x) the file has rank 0's part, about a quarter of the weights
( ) an error: DTensors cannot be saved
    > That would at least be noticed. A DTensor can be saved: this rank's part, and how it was cut.
Why: The file has rank 0's part, and no error comes until the rest is needed. `state_dict()` communicates nothing: it
lists DTensors, and this rank has its own part of each.
""")
