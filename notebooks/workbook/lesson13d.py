"""Exercises of lesson 13d, in their places: tokens that travel to their experts, with their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading import gradients
from labkit.grading.exercise import Case, Least, exercise
from labkit.grading.inputs import counting
from labkit.grading.prediction import ask
from labkit.grading.promises import Calls
from labkit.theory import collectives
from workbook.lesson13 import both_passes

if TYPE_CHECKING:
    from labkit.rank.cell_names import device, dist, everyones, name_it, rank, torch, world_size


WIDE = 3  # numbers per token, in the checks


def _planned(xs: Sequence[Any]) -> list[Any]:
    give = np.array([np.bincount(x, minlength=len(xs)) for x in xs])
    return [[x.argsort(kind="stable"), give[r].tolist(), give[:, r].tolist()] for r, x in enumerate(xs)]


def _chosen(n: int) -> list[Case]:
    def drawn(sizes: Sequence[int], experts: int, seed: int) -> list[np.ndarray]:
        rng = np.random.default_rng([13, seed, n])
        return [rng.integers(0, experts, size) for size in sizes]

    sizes = [r + 3 for r in range(n)]
    return [
        Case([(np.arange(n + 1) + 2 * r) % n for r in range(n)], f"{n + 1} tokens per rank"),
        Case(drawn(sizes, n, 1), "ranks with different numbers of tokens"),
        Case(drawn([6] * n, n - 1 or 1, 2), "the last expert is chosen by no token"),
        Case([np.full(4, n - 1)] * n, "all tokens choose the last expert"),
        Case(drawn([0, *sizes[1:]], n, 3), "rank 0 has no token"),
        Case(drawn([300] * n, n, 4), "300 tokens per rank"),
    ]


@exercise(
    "Who sends what to whom?",
    _planned,
    minutes=6,
    inputs=_chosen,
    picture=lambda: [np.array([1, 0, 1]), np.array([1, 1, 0])],
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
    Hint: `argsort(stable=True)` keeps equal numbers in their order, and `bincount` counts.
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


def _rows(n: int) -> list[Case]:
    rng = np.random.default_rng([13, 5, n])

    def case(give: np.ndarray, about: str, dtype: str = "float64", wide: int = 2) -> Case:
        rows = [rng.integers(-9, 10, (sum(g), wide)).astype(dtype) for g in give]
        return Case([(rows[r], give[r].tolist(), give[:, r].tolist()) for r in range(n)], about)

    return [
        case(np.ones((n, n), dtype=int), "one row to each rank"),
        case(np.arange(n * n).reshape(n, n) % 3, "uneven"),
        case(np.array([[2, *[0] * (n - 1)]] * n), "all rows go to rank 0"),
        case(rng.integers(0, 40, (n, n)), "many rows", "float32", 8),
    ]


def name_lost_gradients(x, give, take):
    """Let the gradient of x, once it is there, be held against known mistakes; return the arguments."""
    gives, wide = everyones(give), x.shape[1]
    if x.requires_grad:
        taken = [sum(given[r] for given in gives) for r in range(world_size)]
        slopes = [torch.from_numpy(gradients.weights(k * wide, r)).view(k, wide) for r, k in enumerate(taken)]
        right = torch.cat([slope.split([given[r] for given in gives])[rank] for r, slope in enumerate(slopes)])
        slips = {
            "returns the gradients of the rows that came, and does not send them back": slopes[rank],
            "divides the gradients by the number of ranks": right / world_size,
        }
        x.register_hook(lambda grad: name_it(grad, right, slips, "the gradient of x"))
    return x, give, take


def broken_exchange_tokens(x, give, take):
    got = x.new_empty(sum(take), *x.shape[1:])
    dist.all_to_all_single(got, x.detach(), take, give)
    return got


@exercise(
    "An all-to-all that gradients flow through",
    lambda xs: collectives.all_to_all([x for x, _, _ in xs], [give for _, give, _ in xs]),
    minutes=8,
    difficulty=2,
    inputs=_rows,
    picture=lambda: [(x.reshape(2, 2), [1, 1], [1, 1]) for x in counting(2, 4)],
    gradients=True,
    **both_passes(2, rounds=1),
    setup=name_lost_gradients,
)
def exchange_tokens(x, give, take):
    """Return the rows that the ranks send to this one; gradients flow back.

    `x` has a row for each token, those for rank 0 first. Send `give[r]` rows to rank r and return the rows that come,
    `take[r]` from rank r, those of rank 0 first. The function below does this. But the gradients count, too: every rank
    calls `backward()` with a loss of its own, and needs for its `x` the gradient of the **sum** of all ranks' losses.
    Run the check first and see what is missing. Then repair it with a `torch.autograd.Function` of your own.
    Hint: torch's collectives are not part of autograd's graph: what comes out of them begins a new one. A
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


def weight_of(expert: int) -> np.ndarray:
    """Make the weights of an expert."""
    return np.cos(np.arange(WIDE * WIDE) + 2.0 * expert).reshape(WIDE, WIDE)


def slope_of(shape: Sequence[int], rank: int) -> np.ndarray:
    """Make what the loss of a rank multiplies its results with."""
    return np.cos(0.9 * np.arange(int(np.prod(shape))) + rank).reshape(shape)


def one_process(xs: Sequence[Any], experts: int, kept: Any = None) -> tuple[list[Any], list[np.ndarray]]:
    """Return what a process with all experts finds: each rank's result and gradients, and those of the experts.

    The gradients are those of the sum of all ranks' losses, by the tokens and by the gates. With `kept`, `kept[r][i]`
    says which of rank r's tokens have room, and a token itself comes first.
    """
    of_experts = [np.zeros((WIDE, WIDE)) for _ in range(experts)]
    found = []
    for r, (*given, chosen, gate) in enumerate(xs):
        h, slope = given[-1], slope_of(given[-1].shape, r)
        y, dh, dgate = np.zeros_like(h) if kept is None else given[0].copy(), np.zeros_like(h), np.zeros_like(gate)
        for i, k in np.ndindex(chosen.shape):
            if kept is None or kept[r][i]:
                e = chosen[i, k]
                t = np.tanh(h[i] @ weight_of(e))
                y[i] += gate[i, k] * t
                dgate[i, k] = slope[i] @ t
                dz = gate[i, k] * slope[i] * (1 - t**2)
                dh[i] += weight_of(e) @ dz
                of_experts[e] += np.outer(h[i], dz)
        found.append((y, dh, dgate))
    return found, of_experts


RESULTS = ("y", "gradient of the tokens", "of the gates", "of this rank's expert")


def drawn(*columns: Sequence[Sequence[int]]) -> list[tuple[Any, ...]]:
    """Make inputs to draw on a card: tokens 1, 2, 3; 11, 12, 13; … and for each rank the experts that they choose.

    >>> drawn([[2, 0, 0]])
    [(array([[1], [2], [3]]), array([2, 0, 0]))]
    """
    return [(10 * r + np.arange(1, 4)[:, None], *map(np.array, mine)) for r, mine in enumerate(zip(*columns))]


class Expert:
    """Hold the weights of an expert, and note how many rows it is called with."""

    def __init__(self, number):
        self.weight, self.seen = torch.nn.Parameter(torch.from_numpy(weight_of(number)).to(device)), []

    def __call__(self, rows):
        self.seen.append(len(rows))
        return torch.tanh(rows @ self.weight)


def exchange(x, give, take):
    """Exchange rows as the solution does, and say what is wrong with the arguments."""
    assert isinstance(x, torch.Tensor), (
        f"`exchange` got a {type(x).__name__} to send. Give it a tensor with a row for each token."
    )
    give, take = ([int(k) for k in counts] for counts in (give, take))
    assert len(give) == len(take) == world_size, "`give` and `take` need a number for every rank."
    assert sum(give) == len(x), (
        f"`give` has {sum(give)} rows to send, and `exchange` got {len(x)}: `give` belongs to a different buffer."
    )
    return exchange_tokens(x, give, take)


def name_mistakes(found, right, mistakes):
    """Raise an AssertionError with what is said of a wrong result, where it is what was found."""
    found = found.to(right)
    for says, other in mistakes.items():
        same = found.shape == other.shape and torch.allclose(found, other)
        assert not same or torch.allclose(right, other), says


def together(x, chosen, gate):
    """Compute what all experts make of the tokens, weighted by the gates."""
    made = torch.stack([Expert(e)(x) for e in range(world_size)])
    rows = torch.arange(len(x))
    return sum((gate[:, k, None] * made[chosen[:, k], rows] for k in range(chosen.shape[1])), 0 * x)


def go_back(y):
    """Go back from a loss of this rank's own."""
    assert isinstance(y, torch.Tensor), f"It returns a {type(y).__name__}, and a tensor is asked for."
    assert y.requires_grad, "The result carries no gradient: nothing connects it with the experts in autograd."
    (y * torch.from_numpy(slope_of(y.shape, rank)).to(device)).sum().backward()


def grad_of(t):
    """Return the gradient of a tensor, which an empty one need not have got."""
    return t.grad if t.numel() else torch.zeros_like(t)


tokens_that_arrive = ask("""
Each of the four ranks has 480 tokens and one expert, and the router has chosen an expert for every token. How many
tokens will arrive at rank 2's expert?
( ) 480: as many as rank 2 has
    > That would be true if the router dealt the tokens out evenly. It chooses for each token alone, and does not
    count.
( ) 120, a quarter of what rank 2 has
    > These would be rank 2's own tokens for its own expert, if the router chose all experts equally often. The other
    ranks send theirs, too.
(x) rank 2 cannot know before the other ranks tell it
( ) as many as rank 2 sends away
    > That would be true of a swap. What rank 2 sends depends on its own tokens, and what comes depends on the tokens
    of the others.
Why: Rank 2 cannot know. Anything from 0 to 1,920 is possible, and a receiver has to make room before the tokens come.
So a first all-to-all brings four numbers, and a second one the tokens.
""")

backward_of_an_exchange = ask("""
An all-to-all brings rows from every rank to every rank: `give[r]` of this rank's rows to rank r, and `take[r]` from
rank r. In the backward pass a rank has the gradients of the rows that **came**. Which call gives it the gradients of
the rows that it **gave**?
(x) an all-to-all that gives `take[r]` rows to rank r and takes `give[r]`
( ) an all-reduce of the gradients
    > That would be true if every rank had used the same row. Each row is on one rank only, and it has one gradient
    there.
( ) the same all-to-all once more, with `give` and `take` as they are
    > That would be true if all numbers of rows were equal. Now rank 2 has the gradients of the rows that it took, and
    these go back to where they came from.
( ) a reduce-scatter
    > That is the backward pass of an all-gather, where every rank used every row, and the gradients add up. Here
    nothing adds up.
Why: The same call with its splits swapped. An all-to-all only moves rows, and its backward pass moves their gradients
back. Autograd does not do this by itself: to it, torch's collectives do not exist.
""")

gradient_of_an_expert = ask(""" Every rank computes the mean loss of **its own** rows and calls `backward()`. No
gradient has been averaged yet. What is in the gradient of rank 2's expert, which exists on rank 2 alone?
( ) the gradient of rank 2's loss
    > That is true of rank 2's copy of the embedding. But its expert has computed tokens of all ranks, and their
    gradients have come back to it.
( ) the gradient of the mean of all ranks' losses
    > It is close: all ranks' losses are in it. But nothing has been divided: an all-to-all moves numbers and does no
    arithmetic.
( ) nothing, until the gradients are all-reduced
    > That would be true if no gradient came back through the exchange. Yours brings them.
(x) the gradient of the sum of all ranks' losses
Why: The sum over all ranks' losses. The tokens of all ranks went through this expert, and the backward all-to-all has
brought all their gradients. One process would take the mean of the losses, so its gradient would be N times smaller.
""")

exchanges_of_a_training_step = ask("""
The model has two mixtures, with the functions that you have written. How many **collectives** does a rank call in a
forward and a backward pass together?
= 10.0 +- 0 %
( ) 6
    > That is the forward pass alone: sizes, tokens and results, in two mixtures.
( ) 8
    > This counts all journeys of the tokens. But before the tokens leave, their counts travel.
( ) 12
    > That would be true if sizes had a gradient. They are integers.
( ) 5
    > That is one mixture. The model has two.
( ) 4
    > That is the forward pass without the sizes, or one mixture without them. Every journey has a way back.
Why: Ten, five for each mixture: sizes, tokens and results in the forward pass, gradients of the results and of the
tokens in the backward pass. Sizes have no gradient.
""")

bytes_against_tensor_parallel = ask("""
For one MLP, tensor parallelism all-reduces all 1,920 tokens in the forward pass, and as many numbers in the backward
pass. The mixture sends each rank's 480 tokens to one expert each and the results back, and in the backward pass it does
the same with the gradients. How many times as many bytes does a rank send with tensor parallelism, on four ranks?
= 4.0 +- 15 %
( ) 1
    > Four exchanges count as much as two all-reduces, which have two halves each. But how many tokens travel?
( ) 2
    > An all-reduce sends twice as much as an all-to-all of the same buffer; but the buffers differ, too.
( ) 8
    > There are four exchanges, and two all-reduces: count the way back.
( ) 0.25
    > The other way round: each rank's own tokens are a quarter of all tokens.
Why: Four times as many, one for each rank. Two ring all-reduces send 2 · 2 · 1,920 · ¾ rows from each rank, and four
exchanges 4 · 480 · ¾. With two experts per token it is half of that, and with 8, as in DeepSeek-V3, four ranks would
send more than tensor parallelism does.
""")

head_start_of_an_expert = ask("""
With its head start, expert 0 gets nearly all tokens at the beginning. All weights are trained, the router's too, and
only to lower the loss of the language model. Where do the tokens go after 20 training steps?
( ) training has evened them out: about a quarter to each expert
    > That would be true if an idle expert cost anything. The loss depends on the model's guesses, not on how busy
    each expert is.
(x) still most of them to expert 0
( ) exactly where they went at the beginning: the router gets no gradient
    > It gets one through the gate, which multiplies what the chosen expert returns. Some tokens do change their
    expert.
( ) most of them to a different expert: expert 0 has too much to learn
    > That would be true if an expert got worse with every token. More tokens mean more training.
Why: Still most of them to expert 0. A token trains only the expert that it goes to. So expert 0 gets better, a higher
gate for it lowers the loss, and the others stay about as they began. In larger models, too, a few experts often end up
with most tokens, and the memory of all others is wasted.
""")

dropped_at_capacity_one = ask("""
With a capacity factor of 1 there are as many places as tokens. After its training, the **balanced** model sends roughly
equally many tokens to each expert. How many tokens are dropped?
( ) none: there is a place for each
    > That would be true if a token could take any free place. Each has one expert, and where that is full, free
    places elsewhere do not help.
(x) some, but fewer than half
( ) three quarters: a rank has places for a quarter of its tokens
    > A rank has places for a quarter of its tokens at **each** of the four experts.
( ) as many as without the loss for balance
    > That would be true if balance did not matter. Without it nearly all tokens want the same expert, and most of
    them find no place.
Why: Some, while as many places stay empty: roughly equal is not equal. Some experts are a little more popular than
others, and each rank's batch is different. So the Switch Transformer was also trained with a factor of 1.25.
""")
