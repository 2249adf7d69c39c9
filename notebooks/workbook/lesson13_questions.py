"""The predictions of lesson 13: what adds up, who stands idle, what a schedule saves, and who waits for whom."""

from labkit.grading.prediction import SEEN, ask, series

loss_of_micro_batches = ask("""
A batch is cut into 8 micro-batches of equal size. For each of them you take the **mean** loss over its rows and call
`backward()`; nothing is cleared in between. How does what is then in `p.grad` compare with the gradient of the whole
batch's mean loss?
( ) it is the same: the mean of a mean is the mean
    > That would be true if something took the second mean. `backward()` adds.
( ) an eighth of it, because each micro-batch has an eighth of the rows
    > That would be true of sums over rows. A mean over fewer rows is divided by fewer rows, too.
(x) eight times as large
( ) it is the last micro-batch's gradient alone
    > That would be true if `backward()` replaced what is in `p.grad`. It adds to it.
Why: Eight times as large. Each micro-batch's mean gradient is about as large as that of the whole batch, and the eight
are **added**. So every micro-batch's loss is divided by the number of micro-batches, once.
""")

idle_with_one_batch = ask("""
Four ranks hold a stage each, all equally slow. One batch goes forward through them and comes back, in one piece. For
what percentage of that time does a rank compute **nothing**?
= 75.0 % +- 5 %
( ) 25
    > That is the part of the time in which it computes.
( ) 50
    > That would be true of two ranks.
( ) 0
    > That would be true if all computed at once. Each needs what the one before it sends.
Why: 75 %. At any moment one of the four computes: each rank gets a fourth of the time, its forward pass at the
beginning and its backward pass at the end. Four ranks take as long as one would, if one had room for it all.
""")

bubble_of_gpipe = ask("""
Now there are 8 micro-batches on the four ranks. All go forward, one after the other, and then all come back. A backward
pass takes twice as long as a forward pass, and messages take no time. For what percentage of the training step does a
rank compute nothing?
= 27.3 % +- 8 %
( ) 37.5
    > 3 of 8: these are the idle turns as a part of the busy ones. The step has 8 + 3 turns.
( ) 75
    > That would be true without micro-batches. With them the ranks work side by side.
( ) 33.3
    > 4 of 12: the first rank waits for nobody at the beginning. There are 3 idle turns, not 4.
( ) 9.375
    > 75 % divided by 8? The idle turns stay 3, however many micro-batches there are.
( ) 42.9
    > 3 of 7: that would be true of 4 micro-batches.
Why: 27 %. Rank 3 waits for 3 forward passes before the first micro-batch comes, then it has work for 8, and at the end
3 backward passes are left to the others. Of 8 + 3 = 11 turns, each one forward and one backward pass long, a rank has
work for 8 and stands idle for 3.
""")

one_stage_reversed = ask("""
On the last stage, somebody lets the micro-batches go back in the opposite order: 7, 6, … 0. All other stages go back in
the order 0, 1, … 7. What happens?
(x) no error, and wrong gradients on all stages but the last one
( ) it hangs: the messages do not match
    > That would be true if a receive asked for a certain micro-batch. It asks for the next message of a rank.
( ) autograd raises an error, because gradients and activations do not fit
    > That would be true if their shapes differed. All micro-batches have the same shape.
( ) nothing: the gradients are added up anyway
    > That would be true if each gradient still met its own activations. Stage 2 multiplies micro-batch 7's gradient
    with micro-batch 0's activations.
Why: No error, and wrong gradients. A message carries numbers and no name: the gradient of micro-batch 7 meets the
activations of micro-batch 0, of the same shape. The last stage is right, because it matched its own. Every stage in the
opposite order would be right, too; that is what GPipe's paper draws.
""")

before_1f1b = series(
    """
Before you write it: what will you find?
""",
    what_1f1b_saves="""
In GPipe's schedule the first gradient waits until the last micro-batch has come forward. 1F1B takes each micro-batch
back as soon as it can. Passes take as long as before. What does that save?
( ) time: the bubble gets smaller, because the backward passes begin earlier
    > They begin earlier on the last rank, and end when they did before: the last micro-batch sets off no sooner, and
    it still has to come through all stages and back.
( ) time and memory
    > Memory, yes. For the time, look at the last micro-batch: it sets off no sooner than before.
( ) messages: an activation and a gradient travel together
    > That would be nice, but they travel in opposite directions. As many messages are sent as before.
(x) memory
Why: Memory. The step takes as long as GPipe's, with the same bubble. But a rank lets go of a micro-batch's activations
when it has come back. In GPipe's schedule, all of them wait until then.
""",
    kept_on_the_first_rank="""
Four ranks, 1F1B, and 64 micro-batches. Of how many does rank 0 keep the activations at once, at most?
( ) 1
    > That is the last rank: it takes each micro-batch back at once.
(x) 4
( ) 8
    > One way there and one way back? While the first one is on its way, only 4 have set off.
( ) 16
    > 64 divided by 4? The number of micro-batches does not matter.
( ) 64
    > That would be true of GPipe's order.
Why: 4: three set off before the first one comes back, and rank 0's own turn begins with a fourth. Rank 1 keeps 3, rank
2 keeps 2 and rank 3 keeps 1, whatever the number of micro-batches.
""",
)

blocking_1f1b = ask(f"""
With `dist.send` and `dist.recv`, GPipe's order ran well. Now the same two functions run the order of 1F1B, on the same
ranks. What happens?
( ) it runs: every message that is sent is also received
    > Every message has its receiver. But does that receiver come to its `recv`, while it stands in a `send` of its
    own?
(x) it hangs: neighbours wait for each other
( ) it runs, and slower, because sends wait for receivers
    > Sends do wait for receivers. Here two of them wait for each other.
( ) the ranks mix activations and gradients up
    > That would be possible where both travel from the same rank to the same other one. Here they go in opposite
    directions, and they have different tags.
Why: It hangs. Stage r sends an activation forward, and stage r + 1 sends a gradient back, at the same time. On Gloo a
send is a rendezvous: each of the two waits until the other one receives. In GPipe's order all messages go in one
direction first, so nobody's neighbour sends towards them.
Elsewhere: **With NCCL**, on GPUs, this cell ran to its end: messages as small as these are sent off into a buffer
before anybody receives them. {SEEN} With larger ones, both
neighbours' queues can wait for each other. (From NCCL's source.)
""")
