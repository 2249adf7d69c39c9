"""Exercises of lesson 13c, in their places: tokens that travel to their experts and back, and what gradients hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, Least, exercise
from labkit.grading.promises import Calls
from workbook.lesson13 import normal

if TYPE_CHECKING:
    from labkit.rank.seen import device, dist, everyones, name_it, rank, torch, world_size


WIDE = 3  # numbers a token, in the checks


def choices(n: int, sizes: Sequence[int], experts: int, seed: int) -> list[np.ndarray]:
    """Each rank's tokens' experts, drawn at random."""
    rng = normal(n, seed)
    return [rng.integers(0, experts, size) for size in sizes]


# -- who sends what to whom -------------------------------------------------------------------------------------------


def _planned(xs: Sequence[Any]) -> list[Any]:
    n = len(xs)
    give = np.array([np.bincount(x, minlength=n) for x in xs])
    return [[x.argsort(kind="stable"), give[r].tolist(), give[:, r].tolist()] for r, x in enumerate(xs)]


def _chosen(n: int) -> list[Case]:
    sizes = [r + 3 for r in range(n)]
    return [
        Case([(np.arange(n + 1) + 2 * r) % n for r in range(n)], f"{n + 1} tokens a rank"),
        Case(choices(n, sizes, n, 1), "ranks with different numbers of tokens"),
        Case(choices(n, [6] * n, n - 1 or 1, 2), "the last expert is chosen by no token"),
        Case([np.full(4, n - 1) for _ in range(n)], "all tokens choose the last expert"),
        Case(choices(n, [0, *sizes[1:]], n, 3), "rank 0 has no token"),
        Case(choices(n, [300] * n, n, 4), "300 tokens a rank"),
    ]


@exercise(
    "Who sends what to whom?",
    _planned,
    minutes=6,
    inputs=_chosen,
    promises=(Calls(1),),
    least=Least(rounds=lambda n: 1),
)
def plan_dispatch(chosen):
    """Return the order in which tokens are sent, and how many go to each rank and come from each.

    Expert e lies on rank e. `chosen[i]` is the expert of this rank's token i. The tokens will travel in one buffer,
    sorted by expert. Return three things: `order`, the tokens' numbers in the order in which they go into the buffer,
    where tokens of the same expert keep their order; `give`, a list with how many tokens this rank gives to each rank;
    `take`, a list with how many it takes from each. Only the other ranks know the last one: one call is enough to ask
    all of them.
    Hint: `argsort(stable=True)` gives an order in which equal ones keep theirs, and `bincount` counts.
    Hint: An expert that no token chose has to be counted, too: `bincount(minlength=world_size)`.
    Hint: Rank r gives this rank `give[rank]` of its own counts. One number from everyone to everyone is an all-to-all:
    `dist.all_to_all_single(take, give)`.
    Afterwards: In the matrix of who gives how many to whom, each rank knows its row and asks for its column: the
    all-to-all of lesson 04 transposes it. A few bytes travel, but the ranks wait for them, and on a GPU the CPU waits
    as well: the sizes of the next buffers depend on these numbers.
    """
    # yours
    order = chosen.argsort(stable=True)
    give = chosen.bincount(minlength=world_size)
    take = torch.empty_like(give)
    dist.all_to_all_single(take, give)
    # end
    return order, give.tolist(), take.tolist()


# -- tokens there and back, with gradients ----------------------------------------------------------------------------


def exchanged(xs: Sequence[np.ndarray], give: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """What each rank has after an all-to-all of rows: those from rank 0 first."""
    parts = [np.split(x, np.cumsum(g)[:-1]) for x, g in zip(xs, give, strict=True)]
    return [np.concatenate([mine[r] for mine in parts]) for r in range(len(xs))]


def _travelled(xs: Sequence[Any]) -> list[Any]:
    return list(exchanged([x for x, _, _ in xs], [give for _, give, _ in xs]))


def _rows(n: int) -> list[Case]:
    rng = normal(n, 5)

    def case(give: np.ndarray, about: str, dtype: str = "float64", wide: int = 2) -> Case:
        rows = [rng.integers(-9, 10, (sum(g), wide)).astype(dtype) for g in give]
        return Case([(rows[r], give[r].tolist(), give[:, r].tolist()) for r in range(n)], about)

    one = np.ones((n, n), dtype=int)
    hot = np.zeros((n, n), dtype=int)
    hot[:, 0] = 2
    return [
        case(one, "one row to each rank"),
        case(np.arange(n * n).reshape(n, n) % 3, "uneven"),
        case(hot, "all rows go to rank 0"),
        case(rng.integers(0, 40, (n, n)), "many rows", "float32", 8),
    ]


def run_exchange_tokens(exchange_tokens, x, give, take):
    from labkit.grading import gradients

    gives = everyones(give)
    if x.requires_grad:
        taken = [sum(given[r] for given in gives) for r in range(world_size)]
        wide = x.shape[1]
        slopes = [torch.from_numpy(gradients.weights(k * wide, r)).view(k, wide) for r, k in enumerate(taken)]
        right = torch.cat([slope.split([given[r] for given in gives])[rank] for r, slope in enumerate(slopes)])
        slips = {
            "returns the gradients of the rows that came, and does not send them back": slopes[rank],
            "divides the gradients by the number of ranks": right / world_size,
        }
        x.register_hook(lambda grad: name_it(grad, right, slips, "the gradient of x"))
    return exchange_tokens(x, give, take)


def broken_exchange_tokens(x, give, take):
    """Return the rows that the ranks send to this one; gradients flow back."""
    got = x.new_empty(sum(take), *x.shape[1:])
    dist.all_to_all_single(got, x.detach(), take, give)
    return got


@exercise(
    "An all-to-all that gradients flow through",
    _travelled,
    minutes=8,
    difficulty=2,
    inputs=_rows,
    gradients=True,
    promises=(Calls(2),),
    least=Least(rounds=lambda n: 1),
    counts_memory=False,
    specimen=broken_exchange_tokens,
    harness=run_exchange_tokens,
)
def exchange_tokens(x, give, take):
    """Return the rows that the ranks send to this one; gradients flow back.

    `x` has a row for each token, those for rank 0 first. Send `give[r]` rows to rank r and return the rows that come,
    `take[r]` from rank r, those of rank 0 first. The function below does this. But the gradients count, too: every rank
    calls `backward()` with a loss of its own, and wants the gradient of the **sum** of all losses by its `x`. Run the
    check first and see what is missing. Then repair it with a `torch.autograd.Function` of your own.
    Hint: torch's collectives are no part of autograd's graph: what comes out of them begins a new one. A
    `torch.autograd.Function` has `forward(ctx, x)` and `backward(ctx, slope)`, and `apply(x)` calls them.
    Hint: The row that went from rank 1 to rank 3 has its gradient on rank 3. Which call brings it to rank 1, and to the
    place that the row had?
    Hint: `dist.all_to_all_single(back, slope.contiguous(), give, take)`: on the way back, what was taken is given.
    Afterwards: An all-to-all moves rows and adds nothing up. So does its backward pass: the same call with the splits
    swapped. PyTorch has such a function, too: `all_to_all_single_autograd`, in a module whose name still begins with an
    underscore.
    """

    class Exchange(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            got = x.new_empty(sum(take), *x.shape[1:])
            dist.all_to_all_single(got, x.contiguous(), take, give)
            return got

        @staticmethod
        def backward(ctx, slope):
            back = slope.new_empty(sum(give), *slope.shape[1:])
            dist.all_to_all_single(back, slope.contiguous(), give, take)
            return back

    return Exchange.apply(x)


# -- the mixture ------------------------------------------------------------------------------------------------------


def weight_of(expert: int, wide: int = WIDE) -> np.ndarray:
    """The weights of an expert, as the harness makes them."""
    return np.cos(np.arange(wide * wide) + 2.0 * expert).reshape(wide, wide)


def slope_of(shape: tuple[int, ...], rank: int) -> np.ndarray:
    """What the loss of a rank multiplies its results with."""
    return np.cos(0.9 * np.arange(int(np.prod(shape))) + rank).reshape(shape)


def mixed(xs: Sequence[Any], kept: Sequence[np.ndarray] | None = None, residual: bool = False) -> list[Any]:
    """What one process with all experts finds: results, and the gradients of the sum of all ranks' losses.

    `kept[r][i]` says which of rank r's tokens have room; with `residual`, a token itself comes first.
    """
    n = len(xs)
    of_experts = [np.zeros((WIDE, WIDE)) for _ in range(n)]
    found = []
    for r, (*given, chosen, gate) in enumerate(xs):
        h = given[-1]
        slope = slope_of(h.shape, r)
        y = given[0].copy() if residual else np.zeros_like(h)
        dh, dgate = np.zeros_like(h), np.zeros_like(gate)
        for i, k in np.ndindex(chosen.shape):
            if kept is not None and not kept[r][i]:
                continue
            e = chosen[i, k]
            t = np.tanh(h[i] @ weight_of(e))
            y[i] += gate[i, k] * t
            dgate[i, k] = slope[i] @ t
            dz = gate[i, k] * slope[i] * (1 - t**2)
            dh[i] += weight_of(e) @ dz
            of_experts[e] += np.outer(h[i], dz)
        found.append((y, dh, dgate))
    return [
        {"y": y, "gradient of the tokens": dh, "of the gates": dgate, "of this rank's expert": of_experts[r]}
        for r, (y, dh, dgate) in enumerate(found)
    ]


def _tokens(n: int) -> list[Case]:
    rng = normal(n, 6)

    def drawn(sizes: Sequence[int], top: int, about: str, chosen: Any = None) -> Case:
        xs = []
        for r, size in enumerate(sizes):
            order = np.argsort(rng.random((size, n)), axis=1)[:, :top] if chosen is None else chosen[r]
            xs.append((rng.normal(size=(size, WIDE)), order, rng.uniform(0.1, 0.9, size=order.shape)))
        return Case(xs, about)

    hot = [np.full((3, 1), n - 1) for _ in range(n)]
    return [
        drawn([4] * n, 1, "one expert a token", [(r - np.arange(4)[:, None]) % n for r in range(n)]),
        drawn([2 * r + 2 for r in range(n)], 1, "ranks with different numbers of tokens"),
        drawn([5] * n, 2, "two experts a token"),
        drawn([3] * n, 1, "all tokens choose the last expert", hot),
        drawn([0, *[4] * (n - 1)], 2, "rank 0 has no token"),
    ]


WIDE = 3


def expert_weight(expert, wide=WIDE):
    return torch.cos(torch.arange(wide * wide, dtype=torch.float64) + 2.0 * expert).view(wide, wide).to(device)


def exchange(x, give, take):
    from workbook.on_ranks import Exchange

    assert isinstance(x, torch.Tensor), f"`exchange` got a {type(x).__name__} to send, and sends the rows of a tensor."
    give, take = ([int(k) for k in counts] for counts in (give, take))
    assert len(give) == len(take) == world_size, "`give` and `take` need a number for every rank."
    assert sum(give) == len(x), (
        f"`exchange` is to send {sum(give)} rows away, and got {len(x)}: `give` belongs to another buffer."
    )
    return Exchange.apply(x, give, take)


def plan(chosen):
    give = chosen.bincount(minlength=world_size)
    take = torch.empty_like(give)
    dist.all_to_all_single(take, give)
    return chosen.argsort(stable=True), give.tolist(), take.tolist()


def named(found, right, mistakes):
    found = found.to(right)
    for says, other in mistakes.items():
        same = found.shape == other.shape and torch.allclose(found, other)
        assert not same or torch.allclose(right, other), says


def together(x, chosen, gate):
    made = [torch.tanh(x @ weight_of(e)) for e in range(world_size)]
    rows = torch.arange(len(x))
    return sum((gate[:, k, None] * torch.stack(made)[chosen[:, k], rows] for k in range(chosen.shape[1])), 0 * x)


def backward(y):
    assert isinstance(y, torch.Tensor), f"It returns a {type(y).__name__}, and a tensor is asked for."
    assert y.requires_grad, "The result carries no gradient: nothing connects it with the experts in autograd."
    slope = torch.cos(0.9 * torch.arange(y.numel(), dtype=torch.float64) + rank).view(y.shape).to(device)
    (y * slope).sum().backward()


def run_mixture_of_experts(mixture_of_experts, x, chosen, gate):
    weight = torch.nn.Parameter(expert_weight(rank))
    x, gate = x.requires_grad_(), gate.requires_grad_()
    y = mixture_of_experts(x, chosen, gate, lambda rows: torch.tanh(rows @ weight), plan, exchange)
    backward(y)
    with torch.no_grad():
        order = chosen.flatten().argsort(stable=True)
        right, bare = (together(x, chosen, g) for g in (gate, torch.ones_like(gate)))
        rows = torch.cat([together(x, chosen[:, k : k + 1], gate[:, k : k + 1]) for k in range(chosen.shape[1])])
        named(
            y,
            right,
            {
                "The experts' answers are there, and nothing has multiplied them by the gates.": bare,
                "The rows are right, but they lie in the order of the buffer, and not in that of the tokens.": right[
                    order
                ]
                if chosen.shape[1] == 1
                else rows,
            },
        )
    grads = [torch.zeros_like(t) if t.grad is None and not t.numel() else t.grad for t in (x, gate)]
    return {
        "y": y.detach(),
        "gradient of the tokens": grads[0],
        "of the gates": grads[1],
        "of this rank's expert": weight.grad,
    }


@exercise(
    "Tokens to their experts, and back",
    mixed,
    minutes=12,
    difficulty=2,
    inputs=_tokens,
    tolerance=1e-9,
    promises=(Calls(5),),
    least=Least(rounds=lambda n: 5),
    counts_memory=False,
    harness=run_mixture_of_experts,
)
def mixture_of_experts(x, chosen, gate, compute, plan, exchange):
    """Return what each token's experts make of it, weighted by its gates.

    Expert e lies on rank e. This rank's token `x[i]` goes to the experts `chosen[i]`, one or more, all different.
    Return a tensor like `x`: row i is the sum of what token i's experts make of it, each multiplied by its gate,
    `gate[i, k]`. Gradients have to flow to `x`, `gate` and the experts.

    These functions are there: `compute(rows)` is what **this rank's** expert makes of rows, also of none. `plan(flat)`
    is your `plan_dispatch` for a flat tensor of choices, and returns `order, give, take`. `exchange(rows, give, take)`
    is your `exchange_tokens`. (`chosen.flatten()` has the choices of token 0 first, then those of token 1, and so on.)
    Hint: Five steps: plan, send the tokens in their order, compute, send back, weigh and put in place. On the way back,
    what was taken is given.
    Hint: Place p of the flat choices belongs to token `p // chosen.shape[1]`. So `x[order // chosen.shape[1]]` are the
    rows to send, and a token with two experts is sent twice.
    Hint: What comes back is in the order of the buffer: its gates are `gate.flatten()[order]`, and
    `torch.zeros_like(x).index_add(0, token, weighted)` adds each row to that of its token.
    Afterwards: The ranks have different amounts of work, and nobody can compute before the slowest has sent. A rank
    without tokens takes part in every exchange, too: its expert works for the others.
    """
    order, give, take = plan(chosen.flatten())
    token = order // chosen.shape[1]
    came = exchange(x[token], give, take)
    back = exchange(compute(came), take, give)
    weighted = back * gate.flatten()[order, None]
    return torch.zeros_like(x).index_add(0, token, weighted)


# -- what the gradients hold ------------------------------------------------------------------------------------------


def _averaged(xs: Sequence[Any]) -> list[Any]:
    n = len(xs)
    shared = [np.mean([x[0][i] for x in xs], axis=0) for i in range(len(xs[0][0]))]
    return [
        {"shared": shared, "experts": [None if g is None else g / n for g in x[1]]}
        if all(g is not None for g in x[1])
        else {"shared": shared, "experts": "no gradient"}
        for x in xs
    ]


def _gradients(n: int) -> list[Case]:
    rng = normal(n, 7)

    def drawn(shared: Sequence[tuple[int, ...]], mine: Sequence[tuple[int, ...]]) -> list[Any]:
        alike = [rng.normal(size=s) for s in mine]  # rank r's are r + 1 times these: the harness tells means by it
        return [([rng.normal(size=s) for s in shared], [(r + 1) * g for g in alike]) for r in range(n)]

    first = [([np.array([10.0, 20.0]) * r], [np.array([100.0, 200.0]) * (r + 1)]) for r in range(n)]
    idle = drawn([(2,)], [(3,)])
    idle[-1] = (idle[-1][0], [None])
    return [
        Case(first, "one shared parameter, and one of the expert"),
        Case(drawn([(3, 2), (3,)], [(4, 3), (4,), (3, 4)]), "several parameters"),
        Case(idle, "the last rank's expert has no gradient, because no token came"),
        Case(drawn([(20, 20), (20,)], [(80, 20), (20, 80)]), "larger parameters"),
    ]


def run_mixture_gradients(mixture_gradients, shared, experts):
    def parameter(grad):
        like = torch.zeros(3, dtype=torch.float64, device=device) if grad is None else grad
        p = torch.nn.Parameter(torch.zeros_like(like))
        p.grad = grad
        return p

    copies, mine = [parameter(g) for g in shared], [parameter(g) for g in experts]
    before = [None if g is None else g.clone() for g in experts]
    mixture_gradients(copies, mine)
    for p, sums in zip(mine, before):
        assert sums is not None or p.grad is None, (
            "An expert that no token has reached came with `p.grad` None, and it is a tensor now. Leave it None."
        )
        if sums is None or p.grad is None or torch.allclose(p.grad, sums / world_size):
            continue
        assert not torch.equal(p.grad, sums), (
            "The experts' gradients are still the sum over all ranks' losses, and the loss is their mean."
        )
        assert not torch.allclose(p.grad, sums / world_size**2), (
            "The experts' gradients are divided by the number of ranks twice."
        )
        totals = sum(range(world_size + 1)), sum(range(world_size))  # of all ranks, or of all but the last
        means = [sums / (rank + 1) * total / world_size for total in totals]
        assert not any(torch.allclose(p.grad, mean) for mean in means), (
            "The experts' gradients are the mean over the ranks, where each rank holds a different expert."
        )
    none = any(p.grad is None for p in mine)
    return {"shared": [p.grad for p in copies], "experts": "no gradient" if none else [p.grad for p in mine]}


@exercise(
    "Which gradients are averaged, and how?",
    _averaged,
    minutes=5,
    inputs=_gradients,
    tolerance=1e-9,
    least=Least(rounds=lambda n: 1),
    counts_memory=False,
    harness=run_mixture_gradients,
)
def mixture_gradients(shared, experts):
    """Leave in each p.grad the gradient of the mean of all ranks' losses.

    `backward()` has run on every rank, from the mean loss of the rank's own tokens. `shared` are parameters of which
    every rank has a copy: attention, norms, router. `experts` are those of this rank's expert, which exists nowhere
    else. Leave in every `p.grad` the gradient that one process would have, which holds all experts and takes the **mean
    of all ranks' losses**. Return nothing. (An expert that no token has reached may have `p.grad` None, and keeps it.)

    Think first: whose losses has an expert's gradient added up, when the backward pass ends?
    Hint: For copies it is lesson 09: all-reduce, and divide by the number of ranks.
    Hint: The backward all-to-all has brought the gradients of all ranks' tokens to their expert. So its gradient is a
    sum over all ranks already.
    Hint: The sum is there, and the mean is asked for: divide, and communicate nothing. An all-reduce would add the
    gradients of different experts.
    Afterwards: An all-reduce over experts adds up gradients of different functions, and nothing complains, because the
    shapes agree. The missing division is harder to see: Adam divides by the size of the gradient, so only clipping,
    weight decay and SGD notice that the experts' gradients are N times too large.
    """
    for p in shared:
        dist.all_reduce(p.grad)
        p.grad /= world_size
    for p in experts:
        if p.grad is not None:
            p.grad /= world_size
