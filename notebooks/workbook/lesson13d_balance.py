"""Exercises of lesson 13d on gradients and load: which are averaged, a loss that balances, capacity, many experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Case, Least, exercise
from workbook.cards import in_words, no_numbers
from workbook.harnesses import with_gradients
from workbook.lesson13 import both_passes
from workbook.lesson13d import (
    RESULTS,
    WIDE,
    Expert,
    drawn,
    exchange,
    go_back,
    grad_of,
    name_mistakes,
    one_process,
    plan_dispatch,
    together,
)

if TYPE_CHECKING:
    from labkit.rank.cell_names import device, dist, everyones, name_it, rank, torch, world_size


def _averaged(xs: Sequence[Any]) -> list[Any]:
    n = len(xs)
    shared = [np.mean([x[0][i] for x in xs], axis=0) for i in range(len(xs[0][0]))]
    own = ["no gradient" if any(g is None for g in mine) else [g / n for g in mine] for _, mine in xs]
    return [{"shared": shared, "experts": mine} for mine in own]


def _gradients(n: int) -> list[Case]:
    rng = np.random.default_rng([13, 7, n])

    def some(shared: Sequence[tuple[int, ...]], mine: Sequence[tuple[int, ...]]) -> list[Any]:
        alike = [rng.normal(size=s) for s in mine]  # rank r's are r + 1 times these: the harness tells means by it
        return [([rng.normal(size=s) for s in shared], [(r + 1) * g for g in alike]) for r in range(n)]

    first = [([np.array([10.0, 20.0]) * r], [np.array([100.0, 200.0]) * (r + 1)]) for r in range(n)]
    idle = some([(2,)], [(3,)])
    idle[-1] = (idle[-1][0], [None])
    return [
        Case(first, "one shared parameter, and one of the expert"),
        Case(some([(3, 2), (3,)], [(4, 3), (4,), (3, 4)]), "several parameters"),
        Case(idle, "the last rank's expert has no gradient, because no token came"),
        Case(some([(20, 20), (20,)], [(80, 20), (20, 80)]), "larger parameters"),
    ]


def run_mixture_gradients(mixture_gradients, shared, experts):
    """Make parameters with these gradients, and look what is left in them."""
    copies, mine = list(with_gradients(*shared)), [torch.nn.Parameter(torch.ones(3, device=device))]
    if experts[0] is not None:
        mine = list(with_gradients(*experts))
    mixture_gradients(copies, mine)
    for p, sums in zip(mine, experts):
        left = "An expert that no token has reached came with `p.grad` None, and it is a tensor now. Leave it None."
        assert sums is not None or p.grad is None, left
        if sums is None or p.grad is None or torch.allclose(p.grad, sums / world_size):
            continue
        still = "The experts' gradients are still those of the sum of all ranks' losses, and the loss is their mean."
        assert not torch.equal(p.grad, sums), still
        twice = "The experts' gradients are divided by the number of ranks twice."
        assert not torch.allclose(p.grad, sums / world_size**2), twice
        totals = sum(range(world_size + 1)), sum(range(world_size))  # of all ranks, or of all but the last
        means = [sums / (rank + 1) * total / world_size for total in totals]
        assert not any(torch.allclose(p.grad, mean) for mean in means), (
            "The experts' gradients are the mean over the ranks, but each rank holds a different expert."
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
    else. Leave in every `p.grad` the gradient that one process with all experts would have, for the **mean of all
    ranks' losses**. Return nothing. (An expert that no token has reached may have `p.grad` None, and keeps it.)

    Think first: when the backward pass ends, which ranks' losses are in an expert's gradient?
    Hint: For copies it is lesson 09: all-reduce, and divide by the number of ranks.
    Hint: The backward all-to-all has brought the gradients of all ranks' tokens to their expert. So its gradient is a
    sum over all ranks already.
    Hint: The sum is there, and the mean is asked for: divide, and communicate nothing. An all-reduce would add the
    gradients of different experts.
    Afterwards: An all-reduce over experts adds up gradients of different functions, and nothing complains, because the
    shapes agree. The missing division is harder to see. Adam divides by the size of the gradient, so only clipping,
    weight decay and SGD notice that the experts' gradients are N times too large.
    """
    for p in shared:
        dist.all_reduce(p.grad)
        p.grad /= world_size
    for p in experts:
        if p.grad is not None:
            p.grad /= world_size


def _capped(xs: Sequence[Any], capacity: int = 1) -> list[Any]:
    if len(xs[0]) == 2:  # those of the card
        first = [[e not in c[:i] for i, e in enumerate(c)] for _, c in xs]
        return [x[:, 0] + np.where(keep, 100 * (c + 1), 0) for (x, c), keep in zip(xs, first)]
    kept = [[int((chosen[:i] == e).sum()) < capacity for i, e in enumerate(chosen)] for _, _, chosen, _ in xs]
    columns = [(x, h, chosen[:, None], gate[:, None]) for x, h, chosen, gate in xs]
    found, of_experts = one_process(columns, len(xs), kept)
    return [dict(zip(RESULTS, (y, dh, dgate[:, 0], dw))) for (y, dh, dgate), dw in zip(found, of_experts)]


def _crowded(n: int) -> list[Case]:
    rng = np.random.default_rng([13, 12, n])

    def some(tokens: int, capacity: int, about: str, chosen: Any = None) -> Case:
        xs = []
        for r in range(n):
            x, h = (rng.normal(size=(tokens, WIDE)) for _ in range(2))
            mine = rng.integers(0, n, tokens) if chosen is None else chosen[r]
            xs.append((x, h, mine, rng.uniform(0.1, 0.9, tokens)))
        return Case(xs, about, {"capacity": capacity})

    return [
        some(4, 4, "capacity 4: room for everyone"),
        some(6, 2, "capacity 2, and six tokens per rank"),
        some(5, 1, "capacity 1, all choose the last expert", [np.full(5, n - 1)] * n),
        some(5, 2, "capacity 2, each rank's tokens choose one expert", [np.full(5, (r + 1) % n) for r in range(n)]),
    ]


def with_capacity(x, h, chosen, gate, capacity):
    """Return the arguments: two that gradients are asked for, and what is given."""
    return x, h.requires_grad_(), chosen, gate.requires_grad_(), capacity, Expert(rank), exchange


def judged_capped(y, x, h, chosen, gate, capacity, expert, _):
    """Return the result and its gradients, unless it is one of a known mistake."""
    assert expert.seen == [capacity * world_size], (
        f"`compute` got {' and then '.join(map(str, expert.seen)) or 'no'} rows. Call it once, with "
        f"{capacity * world_size}: `capacity`, here {capacity}, from each rank, zeros where tokens are missing."
    )
    go_back(y)
    assert h.grad is not None, (
        "No gradient reaches `h`. `exchange` and `compute` pass gradients on; a collective of torch.distributed, "
        "`detach()` and what runs under `torch.no_grad()` do not."
    )
    with torch.no_grad():
        tokens, ones = torch.arange(len(chosen)), torch.ones_like(gate)
        sames = torch.nn.functional.one_hot(chosen, world_size).cumsum(0)
        kept, first = (sames[tokens, chosen] <= capacity)[:, None], (tokens < capacity)[:, None]
        made, bare, early, wrong = (
            together(rows, chosen[:, None], g[:, None])
            for rows, g in ((h, gate), (h, ones), (gate[:, None] * h, ones), (x, gate))
        )
        zeros = "A dropped token comes out as zeros. No expert sees it, but its row should still be `x[i]`."
        early_ones = "Only this rank's first `capacity` tokens have an expert, though each has room for `capacity`."
        mistakes = {
            zeros: kept * (x + made),
            "The experts' answers are there, but they are not multiplied by the gates.": x + kept * bare,
            "The experts' answers are there, and the tokens themselves, `x`, are missing.": kept * made,
            "The gates multiply what the experts get, and should multiply what they make of it.": x + kept * early,
            "The experts get `x`, and should get `h`.": x + kept * wrong,
            "More than `capacity` tokens have found an expert.": x + made,
            early_ones: x + first * made,
        }
        name_mistakes(y, x + kept * made, mistakes)
    return dict(zip(RESULTS, (y.detach(), h.grad, gate.grad, expert.weight.grad)))


@exercise(
    "Experts with limited room",
    _capped,
    minutes=15,
    difficulty=3,
    inputs=_crowded,
    picture=lambda: drawn([[0, 2, 0], [1, 1, 1], [2, 0, 1]]),
    tolerance=1e-9,
    **both_passes(4),
    setup=with_capacity,
    collect=judged_capped,
)
def capped_mixture(x, h, chosen, gate, capacity, compute, exchange):
    """Return x plus what the experts make of h, for the tokens that find a place.

    Expert e lies on rank e, and each token has one expert, `chosen[i]`, with one `gate[i]`. A rank may send at most
    `capacity` tokens to **each expert**. The first ones have a place, and the others are **dropped**: no expert sees
    them. `h[i]` is what the expert sees of token i, and `x[i]` the token itself. Return a tensor like `x`: row i is
    `x[i] + gate[i] · expert(h[i])` for a token with a place, and for a dropped one `x[i]` alone.

    The buffer has `capacity` rows for every expert, zeros where tokens are missing. So all splits are equal, no rank
    has to ask for sizes, and **two** exchanges are all that is needed. `compute(rows)` and `exchange(rows, give, take)`
    are as before; gradients have to flow.

    In the picture, `capacity` is 1, gates are 1, and expert e makes 100 · (e + 1) of every token.
    Hint: For every token you need its place: how many tokens before it, on this rank, have the same expert? It is kept
    where its place is below the capacity.
    Hint: `torch.nn.functional.one_hot(chosen, world_size).cumsum(0)` counts every expert's tokens up to each row. The
    token's own column, less 1, is its place, and `chosen * capacity + place` its row in the buffer.
    Hint: `h.new_zeros(rows, width).index_copy(0, row, h[token])` fills the buffer, gradients included. Begin with `x`
    and `index_add` the kept tokens' results: then a dropped token is `x` alone.
    Afterwards: Only the contents still depend on the router's choices: shapes, splits and memory are known
    before the step begins, and the CPU waits for no sizes. The price is empty places, which are sent and computed like
    all others, and dropped tokens.
    """
    sames = torch.nn.functional.one_hot(chosen, world_size).cumsum(0)
    place = sames.gather(1, chosen[:, None])[:, 0] - 1
    (token,) = (place < capacity).nonzero(as_tuple=True)
    row = (chosen * capacity + place)[token]
    room = h.new_zeros(world_size * capacity, h.shape[1]).index_copy(0, row, h[token])
    equal = [capacity] * world_size
    back = exchange(compute(exchange(room, equal, equal)), equal, equal)
    return x.index_add(0, token, back[row] * gate[token, None])


def _mixed(xs: Sequence[Any]) -> list[Any]:
    if len(xs[0]) == 2:  # those of the card
        return [x[:, 0] + 100 * c for x, c in xs]
    found, of_experts = one_process(xs, len(xs))
    return [dict(zip(RESULTS, (*mine, dw))) for mine, dw in zip(found, of_experts)]


def _tokens(n: int) -> list[Case]:
    rng = np.random.default_rng([13, 6, n])

    def some(sizes: Sequence[int], top: int, about: str, chosen: Any = None) -> Case:
        xs = []
        for r, size in enumerate(sizes):
            order = np.argsort(rng.random((size, n)), axis=1)[:, :top] if chosen is None else chosen[r]
            xs.append((rng.normal(size=(size, WIDE)), order, rng.uniform(0.1, 0.9, size=order.shape)))
        return Case(xs, about)

    return [
        some([4] * n, 1, "one expert per token", [(r - np.arange(4)[:, None]) % n for r in range(n)]),
        some([2 * r + 2 for r in range(n)], 1, "ranks with different numbers of tokens"),
        some([5] * n, 2, "two experts per token"),
        some([3] * n, 1, "all tokens choose the last expert", [np.full((3, 1), n - 1)] * n),
        some([0, *[4] * (n - 1)], 2, "rank 0 has no token"),
    ]


def with_expert(x, chosen, gate):
    """Return the arguments: two that gradients are asked for, and what is given."""
    return x.requires_grad_(), chosen, gate.requires_grad_(), Expert(rank), plan_dispatch.function, exchange


def judged_mixture(y, x, chosen, gate, expert, *_):
    """Return the result and its gradients, unless it is one of a known mistake."""
    go_back(y)
    with torch.no_grad():
        right, bare = (together(x, chosen, g) for g in (gate, torch.ones_like(gate)))
        rows = torch.cat([together(x, chosen[:, k : k + 1], gate[:, k : k + 1]) for k in range(chosen.shape[1])])
        unsorted = right[chosen.flatten().argsort(stable=True)] if chosen.shape[1] == 1 else rows
        mistakes = {
            "The experts' answers are there, but they are not multiplied by the gates.": bare,
            "The rows are right, but they lie in the order of the buffer, and not in that of the tokens.": unsorted,
        }
        name_mistakes(y, right, mistakes)
    return dict(zip(RESULTS, (y.detach(), grad_of(x), grad_of(gate), expert.weight.grad)))


@exercise(
    "Tokens to their experts, and back",
    _mixed,
    minutes=12,
    difficulty=2,
    inputs=_tokens,
    picture=lambda: drawn([[0, 2, 1], [2, 0, 0], [1, 1, 1]]),
    tolerance=1e-9,
    **both_passes(5),
    setup=with_expert,
    collect=judged_mixture,
)
def mixture_of_experts(x, chosen, gate, compute, plan, exchange):
    """Return what each token's experts make of it, weighted by its gates.

    Expert e lies on rank e. This rank's token `x[i]` goes to the experts `chosen[i]`, one or more, all different.
    Return a tensor like `x`: row i is the sum of what token i's experts make of it, each multiplied by its gate,
    `gate[i, k]`. Gradients have to flow to `x`, `gate` and the experts.

    These functions are there: `compute(rows)` is what **this rank's** expert makes of rows, also of none. `plan(flat)`
    is your `plan_dispatch` for a flat tensor of choices, and returns `order, give, take`. `exchange(rows, give, take)`
    is your `exchange_tokens`. (`chosen.flatten()` has the choices of token 0 first, then those of token 1, and so on.)

    In the picture, every token chooses one expert, gates are 1, and expert e adds 100 · e.
    Hint: Five steps: plan, send the tokens in their order, compute, send back, weigh and put in place. On the way back,
    what was taken is given.
    Hint: Place p of the flat choices belongs to token `p // chosen.shape[1]`. So `x[order // chosen.shape[1]]` are the
    rows to send, and a token with two experts is sent twice.
    Hint: What comes back is in the order of the buffer: its gates are `gate.flatten()[order]`, and
    `torch.zeros_like(x).index_add(0, token, weighted)` adds each row to that of its token.
    Afterwards: The ranks have different amounts of work, and no rank can compute before the slowest has sent. A rank
    without tokens takes part in every exchange, too: its expert works for the others.
    """
    order, give, take = plan(chosen.flatten())
    token = order // chosen.shape[1]
    came = exchange(x[token], give, take)
    back = exchange(compute(came), take, give)
    weighted = back * gate.flatten()[order, None]
    return torch.zeros_like(x).index_add(0, token, weighted)


def _balance(xs: Sequence[Any]) -> list[Any]:
    n, experts = len(xs), xs[0][0].shape[1]
    chosen = np.concatenate([c for _, c in xs])
    parts = np.bincount(chosen, minlength=experts) / len(chosen)
    losses, slopes = [], []
    for scores, _ in xs:
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        slope = experts * parts / len(p) / n
        losses.append(experts * (parts * p.mean(0)).sum())
        slopes.append(p * (slope - (p * slope).sum(-1, keepdims=True)))
    mean = float(np.mean(losses))
    return [{"mean of the ranks' losses": mean, "gradient of the scores": slope} for slope in slopes]


def _scores(n: int) -> list[Case]:
    rng = np.random.default_rng([13, 11, n])

    def some(tokens: int, experts: int, about: str, chosen: Any = None) -> Case:
        scores = [rng.normal(size=(tokens, experts)) for _ in range(n)]
        return Case([(s, s.argmax(1) if chosen is None else chosen[r]) for r, s in enumerate(scores)], about)

    apart = [np.full(4, min(r, n - 2)) for r in range(n)]
    return [
        some(3, 2, "three tokens, two experts", [np.array([0, 0, 1])] * n),
        some(4, n, "the tokens of a rank all choose the same expert", apart),
        some(5, 2 * n, f"{2 * n} experts, of which some get nothing"),
        some(60, n, "60 tokens per rank"),
    ]


def run_balance_loss(balance_loss, scores, chosen):
    """Take the mean of the ranks' losses, and its gradient by the router's scores."""
    loss = balance_loss(scores.requires_grad_().softmax(-1), chosen)
    assert isinstance(loss, torch.Tensor) and loss.numel() == 1, "A loss is a tensor with one number."
    assert loss.requires_grad, "The loss carries no gradient, so the router learns nothing from it."
    (loss.sum() / world_size).backward()
    own, p = chosen.bincount(minlength=scores.shape[1]).double(), scores.detach().softmax(-1).mean(0)
    losses, counts = zip(*everyones((loss.item(), own)))
    mean, all_of_them = sum(losses) / world_size, sum(counts)
    local, right = ((len(p) * f * p).sum() for f in (own / len(chosen), all_of_them / all_of_them.sum()))
    assert not torch.allclose(loss.detach().to(local), local) or torch.allclose(right, local), (
        "f is the fraction of this rank's own tokens, and all ranks' tokens are meant."
    )
    alone, whole = (sum(each) / world_size for each in zip(*everyones((local.item(), right.item()))))
    slips = {
        "leaves out the factor, the number of experts": whole / len(p),
        "divides the counts of all ranks by the number of this rank's tokens": whole * world_size,
        "divides this rank's counts by the number of all ranks' tokens": alone / world_size,
        "divides by the number of ranks, as the mean over the ranks does once more": whole / world_size,
    }
    name_it(mean, whole, slips, "the mean of the ranks' losses")
    return {"mean of the ranks' losses": mean, "gradient of the scores": scores.grad}


@exercise(
    "A loss that balances the experts",
    in_words(_balance, "a loss, whose mean over the ranks is that of all tokens"),
    minutes=8,
    difficulty=2,
    inputs=_scores,
    picture=no_numbers,
    tolerance=1e-6,
    **both_passes(1),
    harness=run_balance_loss,
)
def balance_loss(probabilities, chosen):
    """Return this rank's part of experts * sum(f * P); the mean of the ranks' parts is the loss.

    `probabilities`, [tokens, experts], is what the router's softmax says of this rank's tokens, and `chosen` the expert
    of each. Every rank has equally many tokens. For **all** tokens of **all** ranks together, the Switch Transformer's
    loss is experts · Σ f · P, a sum over experts: f is the fraction of the tokens that chose the expert, which has no
    gradient, and P is the mean of its probabilities, which has one.

    Return a loss on every rank such that the **mean of the ranks' losses** is this loss, and the mean of their
    gradients its gradient (they are averaged later, like all others). One call is enough: decide which of f and P has
    to be that of all ranks, and which may be this rank's own.
    Hint: The mean of the ranks' own P is the P of all tokens, because every rank has equally many. For which f is the
    mean of the ranks' Σ f · P equal to the Σ f · P of all tokens?
    Hint: For one f that is the same on all ranks. So f needs the counts of all ranks, and P may stay this rank's own.
    Hint: `chosen.bincount(minlength=experts)`, one all-reduce of these integers, and a division by the number of tokens
    on all ranks.
    Afterwards: The loss is 1 where all experts get equally many tokens, and at most the number of experts. It is linear
    in P, so P may stay local. With a local f each rank would balance its own tokens: that is stricter, and not the same
    loss. Megatron-LM and others let you choose between the two.
    """
    tokens, experts = probabilities.shape
    counts = chosen.bincount(minlength=experts)
    dist.all_reduce(counts)
    part = counts / (tokens * world_size)
    return experts * (part * probabilities.mean(0)).sum()


def _many(xs: Sequence[Any]) -> list[Any]:
    if len(xs[0]) == 2:  # those of the card
        return _mixed(xs)
    each = xs[0][3]
    found, of_experts = one_process([(x, c[:, None], g[:, None]) for x, c, g, _ in xs], len(xs) * each)
    return [
        {"y": y, "of the gates": dgate[:, 0], "of this rank's experts": of_experts[r * each : (r + 1) * each]}
        for r, (y, _, dgate) in enumerate(found)
    ]


def _several(n: int) -> list[Case]:
    rng = np.random.default_rng([13, 13, n])

    def some(sizes: Sequence[int], each: int, about: str, chosen: Any = None) -> Case:
        xs = []
        for r, size in enumerate(sizes):
            mine = rng.integers(0, n * each, size) if chosen is None else chosen[r]
            xs.append((rng.normal(size=(size, WIDE)), mine, rng.uniform(0.1, 0.9, size), each))
        return Case(xs, about)

    turned = [(np.arange(2 * n) + r) % (2 * n) for r in range(n)]
    return [
        some([2 * n] * n, 2, "two experts per rank, each chosen by one token of every rank", turned),
        some([5] * n, 1, "one expert per rank"),
        some([r + 2 for r in range(n)], 3, "three experts per rank, few tokens"),
        some([0, *[6] * (n - 1)], 2, "rank 0 has no token"),
    ]


def with_experts(x, chosen, gate, each):
    """Return the arguments: two that gradients are asked for, and what is given."""
    experts = [Expert(rank * each + i) for i in range(each)]
    return x.requires_grad_(), chosen, gate.requires_grad_(), experts, exchange


def judged_many(y, x, chosen, gate, experts, _):
    """Return the result and its gradients."""
    calls = [len(expert.seen) for expert in experts]
    assert calls == [1] * len(experts), f"This rank's experts were called {calls} times. Call each of them once."
    go_back(y)
    weights = [expert.weight.grad for expert in experts]
    return {"y": y.detach(), "of the gates": grad_of(gate), "of this rank's experts": weights}


@exercise(
    "Several experts on each rank",
    _many,
    minutes=20,
    difficulty=3,
    inputs=_several,
    picture=lambda: drawn([[0, 5, 3], [4, 1, 0], [2, 2, 2]]),
    tolerance=1e-9,
    **both_passes(5),
    setup=with_experts,
    collect=judged_many,
)
def many_experts(x, chosen, gate, experts, exchange):
    """Return each token's gate times what its expert makes of it.

    Every rank holds `experts`, a list of E functions, equally many everywhere: expert e of the world is number e mod E
    on rank e // E. Each token has one expert, `chosen[i]`, and one `gate[i]`. Return a tensor like `x`: row i is
    `gate[i]` times what token i's expert makes of it. `exchange(rows, give, take)` is as in the lesson.

    Each expert is called **once**, with all rows that have come for it from all ranks, also with none. Rows come in by
    rank, and by expert only within each rank. So you need more counts than one for each rank, and the results must go
    back in the order in which the rows came.

    In the picture, each rank has two experts, gates are 1, and expert e adds 100 · e.
    Hint: Exchange the counts of every expert, not only of every rank: `counts.view(world_size, -1)` has a row for each
    rank, and after an all-to-all row r says how many come from rank r for each of this rank's experts.
    Hint: A row's expert is known from these counts: `torch.arange(E).repeat(world_size).repeat_interleave(...)`. A
    stable argsort of that brings the rows together by expert.
    Hint: `p.argsort()` undoes a permutation p: `made[by_expert.argsort()]` are the results in the order in which the
    rows came, and the same does it for `order` at the end.
    Afterwards: It takes two sorts, one before and one after the tokens travel. With 256 experts on 64 GPUs this
    permutation is work of its own: Megatron, DeepEP and PyTorch's grouped matrix product have kernels for it, and the
    experts of a rank are computed as one grouped product.
    """
    order = chosen.argsort(stable=True)
    counts = chosen.bincount(minlength=world_size * len(experts)).view(world_size, -1)
    come = torch.empty_like(counts)
    dist.all_to_all_single(come, counts)
    give, take = counts.sum(1).tolist(), come.sum(1).tolist()
    came = exchange(x[order], give, take)
    local = torch.arange(len(experts), device=x.device)
    by_expert = local.repeat(world_size).repeat_interleave(come.flatten()).argsort(stable=True)
    parts = came[by_expert].split(come.sum(0).tolist())
    made = torch.cat([expert(part) for expert, part in zip(experts, parts)])
    back = exchange(made[by_expert.argsort()], take, give)
    return (back * gate[order, None])[order.argsort()]
