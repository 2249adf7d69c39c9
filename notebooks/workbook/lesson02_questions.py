"""Predictions of lesson 02: who waits for whom, and what a message is."""

from labkit.grading.prediction import SEEN, ask

gradient_stops = ask("""
Rank 1 has computed the loss from the activations that it received, and calls `loss.backward()`. Which parameters have a
gradient afterwards?
( ) the embedding on rank 0, and the hidden and the output layer on rank 1
    > This is what training needs, and it would be true if autograd had followed the message. But its graph lives in
    one process: for rank 1, the activations are a leaf that came from nowhere.
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
    messages; Gloo does it with none.
( ) not at all: rank 1 is not ready, so the send fails
    > This would be true if a send needed a receiver that is already there. It waits for one, for as long as the
    group's time-out allows: half an hour unless you pass a different one.
(x) a second later: when rank 1 receives
Why: A second later. On Gloo a send is a **rendezvous**: sender and receiver meet, and the one who comes first waits for
the other, even for four bytes. Rank 0's `send` takes as long as rank 1 is late, and all of that time is waiting. Ranks
2 and up take no part and go on at once.
Elsewhere: **With NCCL**, on GPUs, `send` puts the message into the GPU's queue and returns at once. If anything waits
for the receiver then, it is the queue, and you notice it where the program needs a number from the GPU. The first
message between two ranks is different: both have to set up their connection, and that can block the program. (From the
sources of torch and NCCL.)
On NCCL: at once: four bytes fit into the network's buffers, whatever rank 1 is doing
( ) a second later: when rank 1 receives
    > This is what Gloo does, where a send waits for its receiver. On NCCL the program only hands the message to the
    GPU's queue.
( ) not at all: rank 1 is not ready, so the send fails
    > This would be true if a send needed a receiver that is already there. The message is kept until rank 1 comes for
    it.
Why: At once. On NCCL `send` puts the message into the GPU's queue and returns. The queue does not wait here either,
because NCCL keeps room for a few messages that nobody has received yet; with a message too large for it, the queue
would wait, and you would notice where the program needs a number from the GPU: in `print`, `.item()` or
`torch.cuda.synchronize()`. (Only the first message between two ranks can block the program: both have to set up their
connection. These two have talked before. All of this is from the sources of torch and NCCL.)
Elsewhere: **With Gloo**, on CPUs, rank 0 returns a second later. A send is a **rendezvous** there: sender and receiver
meet, and the one who comes first waits for the other, even for four bytes.
""")

closed_ring = ask(f"""
Every rank sends to its right-hand neighbour, then receives from its left-hand one. The last rank's right-hand neighbour
is rank 0. What happens?
( ) every rank gets its left-hand neighbour's number, all at the same time
    > This would be true if `send` did not wait for its receiver. Every rank has a matching receive in its program,
    but it stands below the send, and nobody gets there.
( ) every rank gets its left-hand neighbour's number, one rank after another
    > It was so on the line, because the last rank had nothing to send and could receive straight away. In a ring
    there is no last rank: nobody can begin.
( ) rank 0 waits for ever, and all the others get their number
    > This would be true if rank 0's message were the only one with a problem. But each rank's send needs the next
    rank to receive, so as long as one rank waits, its left-hand neighbour waits too.
(x) no rank gets anything: all of them wait
Why: All of them wait, in `send`. Rank 0 waits until rank 1 receives. Rank 1 will receive as soon as its own send is
over, which waits for rank 2, and so on, back to rank 0. More time does not help.

The picture is the **wait-for graph**: an arrow leads from each rank to the one that it waits for. It contains a
**cycle**: follow the arrows, and you come back to where you began. A cycle in the wait-for graph is a **deadlock**. The
smallest one has two ranks, rank 0 waiting for rank 1 and rank 1 for rank 0: two pipeline stages, say, of which one
sends activations forward while the other sends a gradient back. `lab.why()` shows the picture again.

Here the lab noticed that nothing moved, freed the ranks and joined them again. A job of your own would wait until its
group's time-out: half an hour on Gloo, ten minutes on NCCL, unless you pass a different one.
Elsewhere: **With NCCL**, on GPUs, all four ranks got their number from this cell, because so small a message is sent
off into a buffer before anybody receives it. {SEEN} Do not
rely on it: a message that is larger than the buffer, or the first one between its two ranks, still needs both of them.
(From NCCL's source.)
On NCCL: every rank gets its left-hand neighbour's number, all at the same time
( ) every rank gets its left-hand neighbour's number, one rank after another
    > This would be true if a rank had to begin by receiving. Here all sends end without a receiver, so nobody's turn
    comes before the others'.
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
    > This would be true if somebody watched the tensor. The memory is yours: neither torch nor Gloo sees that you
    write into it.
Why: 99.0. `isend` makes no copy: it reads your tensor when the receiver is there. Had rank 1 been early, it might have
received 1.0. The answer depends on who is faster, and that is a **race**.

Until `wait()` returns, do not write into a tensor that is being sent, and do not read one that is being received.
Elsewhere: (Gloo carries tensors on the CPU, also where there are GPUs.) **With NCCL** it is a race as well: the send
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
Why: The very first one: in the last line that rank 0 printed, there were 0 updates so far when the slow one was
computed, and all the others when it was applied. Nobody waited for the slow worker, and that is the price: its update
is **stale**. It corrects a weight that has moved on since.

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
    > This would be true if somebody compared the two dtypes. A receive on Gloo looks at the number of bytes only, and
    they fit.
Why: Two quite different integers, without any error. A message is **bytes**: neither dtype nor shape travels with it,
and nobody compares them. 1065353216 is how the float 1.0 looks when its 32 bits are read as an integer.

In the tensor with too much room, the rest stays as it was. With too **little** room the receiving process ends at once,
on Gloo. So both sides must know dtype and shape, or send them ahead: `comms.send` and `comms.recv` do that, for any
tensor and any Python object.
Elsewhere: (Gloo carries tensors on the CPU, also where there are GPUs.) **NCCL** asks both sides for the same dtype and
length and does not compare them either. What is left in the tensor if they differ is undefined. (From its
documentation, not run.)
""")
