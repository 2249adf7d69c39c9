"""Lesson 02: exchanges by send and receive that cannot lock up, who waits for whom, and what a message is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import ANY, Budget, Case, Least, exercise
from labkit.grading.inputs import counting, draws, uneven
from labkit.grading.prediction import SEEN, ask
from labkit.grading.promises import Messages, OnlyTo
from labkit.theory.origin import Origin

if TYPE_CHECKING:
    from labkit.rank.cell_names import device, dist, rank, torch, world_size

by_messages = partial(exercise, forbids=("collectives",))


def _two_weights(xs: Sequence[Any]) -> list[Any]:
    (w0, x), (w1, _) = xs[0], xs[1]
    return [w1 * x, w0 * x, *[ANY] * (len(xs) - 2)]


def _two_stages(n: int) -> list[Case]:
    """Make weights and an input of rank 0; rank 1's input is what rank 0's stage makes of that."""

    def case(size: int, about: str, seed: int) -> Case:
        rng = np.random.default_rng([seed, n])
        rows = [rng.integers(2, 6, (2, size)).astype(float) for _ in range(n)]
        rows[1][1] = rows[0][0] * rows[0][1]
        return Case([tuple(row) for row in rows], about)

    return [case(3, "", 0), case(1, "one element", 1), case(40, "40 elements", 2)]


def run_gradient_back(gradient_back, weight, x):
    """Stop a backward pass of two stages on rank 1, and collect the weights' gradients after the function."""
    weight.requires_grad_()
    hidden = weight * x if rank == 0 else x.requires_grad_()
    if rank == 1:
        (weight * hidden).sum().backward()
    gradient_back(hidden)
    return weight.grad


@by_messages(
    "Send the gradient back",
    _two_weights,
    minutes=8,
    inputs=_two_stages,
    promises=(Messages(1),),
    least=Least(sent=lambda n, S: S / 2, rounds=lambda n: 1),  # S: a weight and an input
    needs_messages=False,
    scales=False,
    harness=run_gradient_back,
)
def gradient_back(hidden):
    """Send hidden's gradient from rank 1 to rank 0, and continue the backward pass there.

    Finish the backward pass that stopped on rank 1. On rank 1, `hidden` is the tensor that was received, and after
    `loss.backward()` its gradient is in `hidden.grad`. On rank 0, `hidden` is the tensor that was sent, with the graph
    of rank 0's stage still behind it: `hidden.backward(g)` continues there, where `g` is the gradient of the loss with
    respect to `hidden`. Afterwards rank 0's parameters have their gradients. In the check, all ranks call the function:
    ranks 2 and up must return at once. Return nothing.

    The check gives each of the two ranks a stage, a part of the model: it multiplies its input by one `weight`. The
    loss is the sum of what rank 1's stage returns. In the picture, **before** shows the weight and the input of the
    stage, **after** the gradient of the weight.
    Hint: Which rank has the numbers that the other one needs? That rank sends; the other makes room and receives.
    Hint: The gradient has the shape of `hidden`, so `torch.empty_like(hidden)` makes room for it.
    Afterwards: Activations forward, gradients back: pipeline parallelism sends nothing else. The exercise `pipeline`
    does it with any number of stages.
    """
    if rank == 1:
        dist.send(hidden.grad, dst=0)
    if rank == 0:
        gradient = torch.empty_like(hidden)
        dist.recv(gradient, src=1)
        hidden.backward(gradient)


def broken_ring_shift(x):
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    got = torch.empty_like(x)
    dist.send(x, dst=right)
    dist.recv(got, src=left)
    return got


@by_messages(
    "Repair the ring",
    lambda xs: [xs[r - 1] for r in range(len(xs))],
    minutes=8,
    promises=(OnlyTo(+1), Messages(1)),
    least=Least(sent=lambda n, S: S, rounds=lambda n: 2 + n % 2, memory=lambda n, S: S),  # by send and recv
    keeps_input=True,
)
def ring_shift(x):
    """Return the left-hand neighbour's x.

    This is the cell above, as a function: it hangs on every backend where a `send` waits for its receiver, such as
    Gloo. Repair it with nothing but `send` and `recv`: pass `x` to the right-hand neighbour and return, in a tensor
    like `x`, what comes from the left. Rank r ends with the `x` of rank r - 1, and rank 0 with that of the last rank.
    `x` stays as it is. It must work with **any** number of ranks, odd ones too, and each rank sends one message.

    The score counts **steps**: in one step, each rank can send one message and receive one.
    Hint: Every arrow of the wait-for graph is a rank that sends before it receives. Which arrow do you want to turn?
    Hint: If one rank receives first, its left-hand neighbour's send can end, then that rank receives, and so on round
    the ring. It works, one message after another.
    Hint: If every second rank receives first, the messages travel side by side. With an odd number of ranks, ranks
    0 and N - 1 are neighbours and both send first: is there still a rank that can go ahead?
    Afterwards: With `send` and `recv`, a ring of N ranks takes N steps if one rank receives first, and two or three if
    every second rank does. The next section shows calls that do it in one step. Every ring algorithm repeats this step:
    lesson 06 repeats it 2(N - 1) times to make an all-reduce.
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


@by_messages(
    "A ring shift of unequal lengths",
    lambda xs: [xs[r - 1] for r in range(len(xs))],
    minutes=12,
    difficulty=2,
    inputs=uneven,
    promises=(OnlyTo(+1), Messages(2)),
    least=Least(sent=lambda n, S: S + 8, rounds=lambda n: 2, memory=lambda n, S: S),  # its length goes first
)
def send_uneven(x):
    """Return the left-hand neighbour's x, whatever its length.

    As in `ring_shift`, but `x` has one dimension and **a different length on each rank**; it may be empty. The dtype is
    the same everywhere. Return the left-hand neighbour's `x`, with its own length. No rank knows another rank's length
    beforehand. Use only sends and receives, two messages from each rank.
    Hint: A message is bytes: neither shape nor length travels with it. What must the receiver know before it can make
    room?
    Hint: Make two shifts: first the length, in a tensor with one integer, then the numbers.
    Hint: `torch.empty(length, dtype=x.dtype, device=device)` is the room for the second shift.
    Afterwards: `comms.send` and `comms.recv` do the same: they send a header first, then the tensor.
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


def _haloed(xs: Sequence[Any]) -> list[Any]:
    traced = xs[0].dtype == object
    edge = np.array([Origin.of({})]) if traced else np.zeros(1, dtype=xs[0].dtype)  # a 0 comes from no rank
    lefts = [edge, *(x[-1:] for x in xs[:-1])]
    rights = [*(x[:1] for x in xs[1:]), edge]
    return [np.concatenate(parts) for parts in zip(lefts, xs, rights, strict=True)]


@by_messages(
    "Swap borders with both neighbours",
    _haloed,
    minutes=15,
    difficulty=2,
    inputs=lambda n: [
        Case([x + 1 for x in counting(n, 3)]),  # no rank's own number is the 0 at the line's ends
        Case([x + 1 for x in counting(n, 1)], "one element on each rank"),
        Case(draws(n, [2 + r % 3 for r in range(n)], seed=8), "uneven sizes"),
        Case(draws(n, [2 + r % 3 for r in reversed(range(n))], "int64", 9), "integers"),
        Case(draws(n, 200, "float64", 10), "200 elements on each rank"),
    ],
    promises=(Messages(2),),
    budget=Budget(steps=lambda n: 4),
    least=Least(rounds=lambda n: min(2, n - 1), memory=lambda n, S: S * 202 / 200),  # 200 elements, and two more
    keeps_input=True,
)
def halo(x):
    """Return x with the neighbours' border elements on either side.

    A long line of cells is cut into stretches, one for each rank. To update a cell, a step of a simulation or of a
    convolution needs the cells on either side of it. `x` is this rank's stretch: it has one dimension and at least one
    element, and its length may differ from the others'. Return a tensor with two more elements: before `x` the
    **last** element of the rank before, after `x` the **first** element of the next rank. At the ends of the line, put
    a 0.

    Use only sends and receives, one element per message, and no more than four steps, however long the line is.
    Hint: Each rank sends `x[:1]` to the left and `x[-1:]` to the right. Which neighbour does the first rank not have,
    and which one the last rank?
    Hint: If all ranks send to the right first, only the last rank, which sends nothing, can receive: the messages go
    one after another. Start them all, then wait.
    Hint: `dist.irecv` fills a slice too: `wide[:1]` shares its memory with `wide`.
    Afterwards: Simulations call the borrowed cells a halo or ghost cells. Convolutions over an image that is split
    between ranks, and attention over a window of a split sequence, make the same exchange. Two steps are enough: in the
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

    return [case(2, "", 0), case(1, "one element", 1), case(5, "float32", 2, "float32"), case(100, "100 elements", 3)]


@by_messages(
    "Two micro-batches through a pipeline",
    _pipelined,
    minutes=25,
    difficulty=3,
    inputs=_micro_batches,
    promises=(Messages(4),),
    budget=Budget(steps=lambda n: 2 * n + 2),
    least=Least(sent=lambda n, S: min(4, 2 * n - 2) * S / 3),  # S: two micro-batches and a weight
    tolerance=1e-5,
)
def pipeline(first, second, weight):
    """Return the gradient of this stage's weight, over both micro-batches.

    Every rank is a stage of one model: stage r computes `torch.tanh(weight * h)` with **its own** `weight`. Rank 0
    brings two micro-batches, `first` and `second`; on the other ranks these are tensors of the same shape and dtype, to
    receive into. The loss is the sum of all that comes out of the last stage, for both micro-batches.

    Send activations forward and gradients back, and return on every rank the gradient of the loss with respect to its
    `weight`. Use only sends and receives, between neighbours. The second micro-batch does not wait until the first is
    back: 2N + 2 steps are enough.
    Hint: Go forward with both micro-batches, and keep what you will need; then go backward with both, in the same order
    on every rank.
    Hint: What you receive is a leaf of this rank's graph: call `requires_grad_()` on it before you compute, and its
    `.grad` is what the rank before needs. What you send is `out.detach()`.
    Hint: `out.backward(gradient)` takes the gradient that came from the next rank; on the last rank it is all ones,
    since the loss is a sum. The gradients of the two calls add up in `weight.grad`.
    Afterwards: This is GPipe's schedule. The last stage could send the first gradient back before it receives the
    second activation, and free memory sooner: that is 1F1B. With blocking sends it deadlocks, unless the neighbours
    agree on the order.
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


@by_messages(
    "A running total, in few steps",
    lambda xs: list(accumulate(xs)),
    minutes=20,
    difficulty=3,
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

    Every rank brings a tensor `x` of the same shape and dtype. On rank r, return a new tensor with the sum of the `x`
    of ranks 0 to r: rank 0 returns its own numbers, the last rank the sum over all ranks. `x` stays as it is. Use only
    sends and receives, and no more than **⌈log₂ N⌉ steps**: two with four ranks, ten with a thousand. A message down
    the whole line is too slow.
    Hint: After the first step a rank may know the sum of two neighbouring ranks, itself and the one before. Which other
    sum of two would make it a sum of four?
    Hint: In step k = 0, 1, … each rank sends what it has so far to the rank 2ᵏ places further on. The last 2ᵏ ranks
    have no rank to send to, and the first 2ᵏ none to receive from.
    Hint: Do not add into the tensor that is still being sent: `total = total + before` makes a new one.
    Afterwards: This is the scan of Hillis and Steele. It sends more messages than the line, N·log₂ N instead of N, but
    it ends sooner: with small messages, the number of steps decides. MPI's call for it is `MPI_Scan`.
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


gradient_stops = ask("""
Rank 1 has computed the loss from the activations that it received, and calls `loss.backward()`. Which parameters have a
gradient afterwards?
( ) the embedding on rank 0, and the hidden and the output layer on rank 1
    > This is what training needs, and it would be true if autograd had followed the message. But its graph lives in
    one process: on rank 1, the activations are a leaf of the graph.
(x) the hidden and the output layer on rank 1, and none on rank 0
( ) all three layers on rank 1, and none on rank 0
    > This would be true if rank 1 had looked up the characters in its own copy of the embedding. It computed with the
    numbers that it received instead, so its own embedding took no part in the loss.
Why: Only rank 1's hidden and output layers have gradients: backward stops at the tensor that was received. Autograd
knows nothing of the message, because a message carries numbers and no graph.

The gradient that rank 0 needs does exist, on rank 1, in `activations.grad`. It has to be sent back.
""")

late_receiver = ask("""
Rank 1 receives a second late. When does rank 0 return from its `send` of four bytes?
( ) at once: four bytes fit into the network's buffers, whatever rank 1 is doing
    > This would be true if `send` only handed the bytes over to the network. Some MPI libraries do that with small
    messages; Gloo never does.
( ) not at all: rank 1 is not ready, so the send fails
    > This would be true if a send needed a receiver that is already there. It waits for one, for as long as the
    group's time-out allows: half an hour unless you pass a different one.
(x) a second later: when rank 1 receives
Why: A second later. On Gloo a send is a **rendezvous**: sender and receiver meet, and the first to arrive waits for
the other, even for four bytes. Rank 0's `send` takes as long as rank 1 is late. All of that time is waiting. Ranks 2
and up take no part and go on at once.
Elsewhere: **With NCCL**, on GPUs, `send` puts the message into the GPU's queue and returns at once. After that, only
the queue can wait for the receiver, and you notice it where the program needs a number from the GPU. The first
message between two ranks is different: both have to set up their connection, and that can block the program. (From the
sources of torch and NCCL.)
On NCCL: at once: four bytes fit into the network's buffers, whatever rank 1 is doing
( ) a second later: when rank 1 receives
    > This is what Gloo does, where a send waits for its receiver. On NCCL the program only hands the message to the
    GPU's queue.
( ) not at all: rank 1 is not ready, so the send fails
    > This would be true if a send needed a receiver that is already there. The message is kept until rank 1 receives
    it.
Why: At once. On NCCL `send` puts the message into the GPU's queue and returns. The queue does not wait here either,
because NCCL has room for a few messages that have not been received yet. With a message too large for that room, the
queue would wait, and you would notice where the program needs a number from the GPU: in `print`, `.item()` or
`torch.cuda.synchronize()`. (Only the first message between two ranks can block the program: both have to set up their
connection. These two have talked before. All of this is from the sources of torch and NCCL.)
Elsewhere: **With Gloo**, on CPUs, rank 0 returns a second later. A send is a **rendezvous** there: sender and receiver
meet, and the first to arrive waits for the other, even for four bytes.
""")

closed_ring = ask(f"""
Every rank sends to its right-hand neighbour, then receives from its left-hand one. The last rank's right-hand neighbour
is rank 0. What happens?
( ) every rank gets its left-hand neighbour's number, all at the same time
    > This would be true if `send` did not wait for its receiver. Every rank has a matching receive in its program,
    but it stands below the send, and no rank gets that far.
( ) every rank gets its left-hand neighbour's number, one rank after another
    > That happened on the line, because the last rank had nothing to send and could receive straight away. A ring has
    no last rank, so no rank can begin.
( ) rank 0 waits for ever, and all the others get their number
    > This would be true if rank 0's message were the only one with a problem. But each rank's send needs the next
    rank to receive, so as long as one rank waits, its left-hand neighbour waits too.
(x) no rank gets anything: all of them wait
Why: All of them wait, in `send`. Rank 0 waits until rank 1 receives. Rank 1 will receive once its own send is over,
which waits for rank 2, and so on, back to rank 0. More time does not help.

The picture is the **wait-for graph**: an arrow leads from each rank to the one that it waits for. It contains a
**cycle**: follow the arrows, and you come back to where you began. A cycle in the wait-for graph is a **deadlock**. The
smallest one has two ranks, rank 0 waiting for rank 1 and rank 1 for rank 0: two pipeline stages, say, of which one
sends activations forward while the other sends a gradient back. `lab.why()` shows the picture again.

The other picture of a hang has no cycle: the arrows end at a dashed circle, a rank that has finished or is elsewhere in
its code. Then look for the call that this rank has left out.

Here the lab noticed that nothing moved, freed the ranks and joined them again. Outside the lab, your job would wait
until its group's time-out: half an hour on Gloo, ten minutes on NCCL, unless you pass a different one.
Elsewhere: **With NCCL**, on GPUs, all four ranks got their number from this cell, because so small a message is sent
off into a buffer before anybody receives it. {SEEN} Do not
rely on it: a message that is larger than the buffer, or the first one between its two ranks, still needs both of them.
(From NCCL's source.)
On NCCL: every rank gets its left-hand neighbour's number, all at the same time
( ) every rank gets its left-hand neighbour's number, one rank after another
    > This would be true if a rank had to begin by receiving. Here all sends end without a receiver, so no rank has to
    wait for its turn.
( ) rank 0 waits for ever, and all the others get their number
    > This would be true if rank 0's send needed its receiver, and the others' did not. All four are alike.
( ) no rank gets anything: all of them wait
    > This is what Gloo does, where every send waits for its receiver. NCCL sends so small a message off into a
    buffer.
Why: Every rank gets its number. NCCL sends so small a message off into a buffer, so no send here waits for its
receiver. {SEEN} **Do not rely on it.** A message that is
larger than the buffer waits until it is received, and so does the first one between two ranks, which have to set up
their connection. Then this cell hangs on NCCL as well. (From NCCL's source.)
Elsewhere: **With Gloo**, on CPUs, no rank gets anything. Rank 0 waits in `send` until rank 1 receives, rank 1 waits in
its own `send` for rank 2, and so on, back to rank 0. Draw an arrow from each rank to the one that it waits for, and you
have the **wait-for graph**. It contains a **cycle**, and a cycle in it is a **deadlock**. On any backend, write
exchanges without one.
""")

early_write = ask("""
Rank 0's `message` holds 1.0. It calls `isend`, writes 99.0 into `message`, then calls `wait`. Rank 1 comes half a
second late to receive. What does it get?
( ) 1.0
    > This would be true if `isend` kept a copy of your tensor. It keeps a reference and reads the memory when the
    receiver is there.
(x) 99.0
( ) an error
    > This would be true if the tensor were watched. The memory is yours: neither torch nor Gloo sees that you write
    into it.
Why: 99.0. `isend` makes no copy: it reads your tensor when the receiver is there. Had rank 1 been early, it might have
received 1.0. The answer depends on who is faster, and that is a **race**.

Until `wait()` returns, do not write into a tensor that is being sent, and do not read one that is being received.
Elsewhere: (Gloo carries tensors on the CPU, even if there are GPUs.) **With NCCL** it is a race as well: the send
and the `fill_` are two pieces of work in two queues of the GPU, and nothing orders them until `wait()`. (From torch's
source, not run.)
""")

stale_update = ask("""
Each worker gets the weight, computes an update with it, sends the update, and gets the new weight. The last rank takes
a second for its update; meanwhile each of the other workers sends four. When the slow update arrives, with which weight
has it been computed?
( ) the newest one: a worker always has what the server has
    > This would be true if the server told all workers about every update. It answers only the worker that it has
    just heard from.
( ) none: the fast workers wait after their first update until the slow one is there
    > This would be true of a collective, where everyone waits for the slowest rank. Here a worker waits only for the
    server's answer, and the server takes whichever message comes first.
(x) the very first one, without any of the others' updates
Why: The very first one: in the last line that rank 0 printed, the weight held 0 updates when the slow one was
computed, and all the other updates when it was applied. No rank waited for the slow worker, and that has a price: its
update is **stale**. It corrects a weight that has changed since.

This is asynchronous training with a parameter server. Lesson 10 trains with it and measures what staleness does to the
loss.
""")

float_into_int = ask("""
Rank 0 sends the floats [1.0, 2.0]. Rank 1 receives them into a tensor of int32. What does rank 1 hold?
(x) two quite different integers
( ) [1, 2]
    > This would be true if the message said that it carries floats, so that the receiver could convert them. It does
    not say so.
( ) an error: the dtypes do not match
    > This would be true if the two dtypes were compared. On Gloo, a receive looks only at the number of bytes, and that
    fits.
Why: Two quite different integers, without any error. A message is **bytes**: neither dtype nor shape travels with it,
and they are never compared. 1065353216 is how the float 1.0 looks when its 32 bits are read as an integer.

In the tensor with too much room, the rest stays as it was. With too **little** room, Gloo ends the receiving process at
once. So both sides must know dtype and shape, or send them ahead: `comms.send` and `comms.recv` do that, for any
tensor and any Python object.
Elsewhere: (Gloo carries tensors on the CPU, even if there are GPUs.) **NCCL** requires the same dtype and length on
both sides and does not compare them either. If they differ, it is undefined what the tensor holds afterwards. (From its
documentation, not run.)
""")
