"""Exercises for lesson 02: exchanges by send and receive that cannot lock up."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import ANY, Budget, Case, Least, exercise
from labkit.grading.inputs import counting, draws, uneven
from labkit.grading.promises import Messages, OnlyTo
from labkit.theory.origin import Origin

if TYPE_CHECKING:
    from labkit.rank.seen import device, dist, rank, torch, world_size


# -- a gradient that crosses from rank to rank --------------------------------------------------------------------


def _two_weights(xs: Sequence[Any]) -> list[Any]:
    (w0, x), (w1, _) = xs[0], xs[1]
    hidden = np.tanh(w0 * x)
    return [w1 * (1 - hidden**2) * x, hidden, *[ANY] * (len(xs) - 2)]


def _two_stages(n: int) -> list[Case]:
    """Rank 0 brings its weight and an input, rank 1 its weight and what rank 0's stage makes of that input."""

    def case(size: int, about: str, seed: int) -> Case:
        rng = np.random.default_rng([seed, n])
        rows = [rng.integers(-8, 9, (2, size)) / 8 for _ in range(n)]
        rows[1][1] = np.tanh(rows[0][0] * rows[0][1])
        return Case([tuple(row) for row in rows], about)

    return [case(3, "", 0), case(1, "one element", 1), case(40, "40 elements", 2)]


def run_gradient_back(fn, weight, x):
    weight.requires_grad_()
    if rank == 0:
        hidden = torch.tanh(weight * x)
    else:
        hidden = x.requires_grad_()
    if rank == 1:
        (weight * hidden).sum().backward()
    fn(hidden)
    return weight.grad


@exercise(
    "Send the gradient back",
    _two_weights,
    minutes=8,
    inputs=_two_stages,
    forbids=("collectives",),
    promises=(Messages(1),),
    least=Least(sent=lambda n, S: S / 2, rounds=lambda n: 1),
    needs_messages=False,
    scales=False,
    harness=run_gradient_back,
)
def gradient_back(hidden):
    """Bring hidden's gradient from rank 1 to rank 0, and go on backward there.

    Finish the backward pass that stopped on rank 1. There, `hidden` is the tensor that was received, and after
    `loss.backward()` its gradient is in `hidden.grad`. On rank 0, `hidden` is the tensor that was sent, with the graph
    of rank 0's stage still behind it. Afterwards rank 0's parameters have their gradients. The other ranks call the
    function too and do nothing. Return nothing.

    The check gives both ranks a stage with one `weight`. In the picture, **before** is the weight and the input of that
    stage, **after** the gradient of the weight.
    Hint: Which rank has the number that the other one needs? That rank sends; the other makes room and receives.
    Hint: The gradient has the shape of `hidden`, so `torch.empty_like(hidden)` is room for it.
    Hint: `hidden.backward(gradient)` starts backward in the middle of a graph: `gradient` is the derivative of the loss
    by `hidden`.
    Afterwards: Activations forward, gradients back: this is all that pipeline parallelism sends. The exercise
    `pipeline` does it with any number of stages.
    """
    if rank == 1:
        dist.send(hidden.grad, dst=0)
    if rank == 0:
        gradient = torch.empty_like(hidden)
        dist.recv(gradient, src=1)
        hidden.backward(gradient)


# -- round the ring -----------------------------------------------------------------------------------------------


def _from_the_left(xs: Sequence[Any]) -> list[Any]:
    return [xs[r - 1] for r in range(len(xs))]


def broken_ring_shift(x):
    """Return the left-hand neighbour's x."""
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    got = torch.empty_like(x)
    dist.send(x, dst=right)
    dist.recv(got, src=left)
    return got


@exercise(
    "Repair the ring",
    _from_the_left,
    minutes=8,
    forbids=("collectives",),
    promises=(OnlyTo(+1), Messages(1)),
    least=Least(sent=lambda n, S: S, rounds=lambda n: 2 + n % 2, memory=lambda n, S: S),
    keeps_input=True,
    specimen=broken_ring_shift,
)
def ring_shift(x):
    """Return the left-hand neighbour's x.

    This is the cell above, as a function: it hangs wherever a `send` waits for its receiver, as on Gloo. Repair it with
    nothing but `send` and `recv`: pass `x` to the right-hand neighbour and return, in a tensor like `x`, what comes
    from the left. Rank r ends with the `x` of rank r - 1, and rank 0 with that of the last rank. `x` stays as it is. It
    must work with **any** number of ranks, odd ones too, and each rank sends one message.

    The score counts **steps**: in one step, each rank can send one message and receive one.
    Hint: Every arrow of the wait-for graph is a rank that sends before it receives. Which arrow do you want to turn?
    Hint: If one rank receives first, its left-hand neighbour's send can end, then that rank receives, and so on round
    the ring. It works, one message after the other.
    Hint: If every second rank receives first, the messages travel side by side. What do the two ranks at the seam do
    when their number is odd: is there still a rank that can go ahead?
    Afterwards: With `send` and `recv`, a ring of N ranks takes N steps if one rank receives first, and two or three if
    every second rank does. The next section shows the calls that do it in one. Every ring algorithm is this step,
    repeated: lesson 06 repeats it 2(N - 1) times and has an all-reduce.
    """
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    got = torch.empty_like(x)
    if rank % 2 == 0:
        dist.send(x, dst=right)
        dist.recv(got, src=left)
    else:
        dist.recv(got, src=left)
        dist.send(x, dst=right)
    return got


# -- messages of unequal length -----------------------------------------------------------------------------------


@exercise(
    "A ring shift of unequal lengths",
    _from_the_left,
    minutes=12,
    difficulty=2,
    inputs=uneven,
    forbids=("collectives",),
    promises=(OnlyTo(+1), Messages(2)),
    least=Least(sent=lambda n, S: S + 8, rounds=lambda n: 2, memory=lambda n, S: S),
)
def send_uneven(x):
    """Return the left-hand neighbour's x, whatever its length.

    As in `ring_shift`, but `x` has one dimension and **a different length on each rank**; it may be empty. The dtype is
    the same everywhere. Return the left-hand neighbour's `x`, with its own length. No rank knows another rank's length
    beforehand. Send and receive only, two messages from each rank.
    Hint: A message is bytes: neither shape nor length travels with it. What must the receiver know before it can make
    room?
    Hint: Two shifts: first the length, in a tensor with one integer, then the numbers.
    Hint: `torch.empty(length, dtype=x.dtype, device=device)` is the room for the second shift.
    Afterwards: `comms.send` and `comms.recv` do the same: a header first, then the tensor.
    """
    right, left = (rank + 1) % world_size, (rank - 1) % world_size

    def shift(mine, room):
        exchange = [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, room, left)]
        for work in dist.batch_isend_irecv(exchange):
            work.wait()
        return room

    length = torch.tensor([len(x)], device=device)
    length = shift(length, torch.empty_like(length))
    return shift(x, torch.empty(length.item(), dtype=x.dtype, device=device))


# -- a halo from both neighbours ----------------------------------------------------------------------------------


def _haloed(xs: Sequence[Any]) -> list[Any]:
    traced = xs[0].dtype == object
    edge = np.array([Origin.of({})]) if traced else np.zeros(1, dtype=xs[0].dtype)  # a 0 comes from no rank
    lefts = [edge, *(x[-1:] for x in xs[:-1])]
    rights = [*(x[:1] for x in xs[1:]), edge]
    return [np.concatenate(parts) for parts in zip(lefts, xs, rights, strict=True)]


def _stretches(n: int) -> list[Case]:
    sizes = [2 + r % 3 for r in range(n)]
    return [
        Case([x + 1 for x in counting(n, 3)]),  # no rank's own number is the 0 at the line's ends
        Case([x + 1 for x in counting(n, 1)], "one element on each rank"),
        Case(draws(n, sizes, seed=8), "uneven sizes"),
        Case(draws(n, sizes[::-1], "int64", 9), "integers"),
        Case(draws(n, 200, "float64", 10), "200 elements on each rank"),
    ]


@exercise(
    "Swap borders with both neighbours",
    _haloed,
    minutes=15,
    difficulty=2,
    inputs=_stretches,
    forbids=("collectives",),
    promises=(Messages(2),),
    budget=Budget(steps=lambda n: 4),
    least=Least(rounds=lambda n: min(2, n - 1), memory=lambda n, S: S * 202 / 200),
    keeps_input=True,
)
def halo(x):
    """Return x with the neighbours' border elements on either side.

    A long line of cells is cut into stretches, one for each rank, and a step of a simulation or of a convolution needs
    the cell on either side of each. `x` is this rank's stretch: one dimension, at least one element, its length perhaps
    different from the others'. Return a tensor two longer: in front of `x` the **last** element of the rank before,
    behind it the **first** element of the next rank. Where the line ends, put a 0.

    Send and receive only, one element per message, and in no more than four steps, however long the line is.
    Hint: Each rank sends `x[:1]` to the left and `x[-1:]` to the right. Which of its neighbours does the first rank not
    have, and the last?
    Hint: If all send to the right first, only the last rank, which sends nothing, can receive: the messages go one
    after another. Start them all, then wait.
    Hint: `dist.irecv` fills a slice too: `wide[:1]` shares its memory with `wide`.
    Afterwards: Simulations call the borrowed cells a halo or ghost cells. Convolutions over an image that is split
    between ranks, and attention over a window of a split sequence, exchange the same. Two steps are enough: in the
    first one all messages go to the right, in the second one all go to the left.
    """
    wide = torch.cat([x.new_zeros(1), x, x.new_zeros(1)])
    for way, out, room in ((1, x[-1:], wide[:1]), (-1, x[:1], wide[-1:])):  # to the right, then to the left
        exchange = []
        if 0 <= rank + way < world_size:
            exchange.append(dist.P2POp(dist.isend, out, rank + way))
        if 0 <= rank - way < world_size:
            exchange.append(dist.P2POp(dist.irecv, room, rank - way))
        for work in dist.batch_isend_irecv(exchange):
            work.wait()
    return wide


# -- a pipeline of stages -----------------------------------------------------------------------------------------


def _pipelined(xs: Sequence[Any]) -> list[Any]:
    weights = [weight.astype("float64") for _, _, weight in xs]
    grads = [np.zeros_like(weight) for weight in weights]
    for batch in xs[0][:2]:
        hidden = [batch.astype("float64")]
        for weight in weights:
            hidden.append(np.tanh(weight * hidden[-1]))
        slope = np.ones_like(hidden[0])
        for r in reversed(range(len(xs))):
            slope = slope * (1 - hidden[r + 1] ** 2)
            grads[r] += slope * hidden[r]
            slope = slope * weights[r]
    return [grad.astype(weight.dtype) for grad, (_, _, weight) in zip(grads, xs, strict=True)]


def _micro_batches(n: int) -> list[Case]:
    def case(size: int, about: str, seed: int, dtype: str = "float64") -> Case:
        rng = np.random.default_rng([seed, n])
        first, second, *weights = (rng.integers(-8, 9, (n + 2, size)) / 8).astype(dtype)
        room = np.zeros(size, dtype)
        batches = [(first, second), *[(room, room.copy())] * (n - 1)]
        return Case([(*pair, weight) for pair, weight in zip(batches, weights, strict=True)], about)

    return [
        case(2, "", 0),
        case(1, "one element", 1),
        case(5, "float32", 2, "float32"),
        case(100, "100 elements", 3),
    ]


@exercise(
    "Two micro-batches through a pipeline",
    _pipelined,
    minutes=25,
    difficulty=3,
    inputs=_micro_batches,
    forbids=("collectives",),
    promises=(Messages(4),),
    budget=Budget(steps=lambda n: 2 * n + 2),
    least=Least(sent=lambda n, S: min(4, 2 * n - 2) * S / 3),
    tolerance=1e-5,
)
def pipeline(first, second, weight):
    """Return the gradient of this stage's weight, over both micro-batches.

    Every rank is a stage of one model: stage r computes `torch.tanh(weight * h)` with **its own** `weight`. Rank 0
    brings two micro-batches, `first` and `second`; on the other ranks these are tensors of the same shape and dtype, to
    receive into. The loss is the sum of all that comes out of the last stage, for both micro-batches.

    Send activations forward and gradients back, and return on every rank the gradient of the loss by its `weight`. Send
    and receive only, between neighbours. The second micro-batch does not wait until the first is back: 2N + 2 steps are
    enough.
    Hint: Forward for both micro-batches, and keep what you will need; then backward for both, in the same order on
    every rank.
    Hint: What you receive is a leaf of this rank's graph: call `requires_grad_()` on it before you compute, and its
    `.grad` is what the rank before wants. What you send is `out.detach()`.
    Hint: `out.backward(gradient)` takes the gradient that came from the next rank; on the last rank it is all ones,
    since the loss is a sum. Two calls add up in `weight.grad` by themselves.
    Afterwards: This is GPipe's schedule. The last stage could send the first gradient back before it takes the second
    activation, and free memory sooner; that is 1F1B. With blocking sends it locks up, unless the neighbours agree on
    the order.
    """
    weight = weight.clone().requires_grad_()
    passed = []
    for h in (first.clone(), second.clone()):
        if rank > 0:
            dist.recv(h, src=rank - 1)
        out = torch.tanh(weight * h.requires_grad_())
        if rank < world_size - 1:
            dist.send(out.detach(), dst=rank + 1)
        passed.append((h, out))
    for h, out in passed:
        gradient = torch.ones_like(out)
        if rank < world_size - 1:
            dist.recv(gradient, src=rank + 1)
        out.backward(gradient)
        if rank > 0:
            dist.send(h.grad, dst=rank - 1)
    return weight.grad


# -- a running total ----------------------------------------------------------------------------------------------


@exercise(
    "A running total, in few steps",
    lambda xs: list(accumulate(xs)),
    minutes=20,
    difficulty=3,
    forbids=("collectives",),
    budget=Budget(steps=lambda n: (n - 1).bit_length()),
    least=Least(
        sent=lambda n, S: (n.bit_length() - 1) * S,
        rounds=lambda n: (n - 1).bit_length(),
        memory=lambda n, S: min(2, n.bit_length() - 1) * S,
    ),
    keeps_input=True,
)
def prefix_sum(x):
    """Return the sum of the x of ranks 0 to this one.

    Every rank brings a tensor `x` of the same shape and dtype. Return a new tensor with the sum of the `x` of the ranks
    0 to r, on rank r: rank 0 returns its own numbers, the last rank everyone's sum. `x` stays as it is. Send and
    receive only, and in no more than **⌈log₂ N⌉ steps**: two with four ranks, ten with a thousand. A message down the
    whole line is too slow.
    Hint: After the first step a rank may know the sum of two neighbouring ranks, itself and the one before. Whose sum
    of two would complete it to a sum of four?
    Hint: In step k = 0, 1, … each rank sends what it has so far to the rank 2ᵏ further on. The last 2ᵏ ranks have
    nobody to send to, and the first 2ᵏ nobody to receive from.
    Hint: Do not add into the tensor that is still being sent: `total = total + before` makes a new one.
    Afterwards: This is the scan of Hillis and Steele. It sends more messages than the line, N·log₂ N instead of N, and
    ends sooner: for small messages, steps are what costs. MPI's call for it is `MPI_Scan`.
    """
    total, distance = x.clone(), 1
    while distance < world_size:
        before = torch.zeros_like(total)
        exchange = []
        if rank + distance < world_size:
            exchange.append(dist.P2POp(dist.isend, total, rank + distance))
        if rank >= distance:
            exchange.append(dist.P2POp(dist.irecv, before, rank - distance))
        for work in dist.batch_isend_irecv(exchange) if exchange else []:
            work.wait()
        total = total + before
        distance *= 2
    return total
