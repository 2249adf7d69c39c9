"""The predictions of lesson 10: the slowest of eight, four slow runs, stale gradients, bounds, and local steps."""

from labkit.grading.prediction import ask, series

slowest_of_eight = ask("""
In each step a rank computes for 10 ms, and then a random time longer: 10 ms on average, often less, now and then much
more. Alone it takes 20 ms a step. Now eight such ranks all-reduce one number after each step, which by itself takes 1
or 2 ms. How long does a step take on average?
( ) about 20 ms: an average stays an average
    > That would be true of the sum of many steps of one rank, where long and short steps even out. Here they meet
    after every step, and the short ones of seven ranks are no help to the long one of the eighth.
( ) about 25 ms: it gets a little worse
    > That is what two ranks take. With each further rank there is one more chance of a long step.
(x) about 40 ms
( ) about 160 ms: each waits for seven others
    > They wait for seven others at the same time, not one after the other: only the slowest of them counts.
Why: **About 40 ms, twice as long.** Nobody is slow: all eight ranks are alike. But the step ends when the *slowest* of
them has come, and of eight draws one is usually long. You pay the maximum, in every step anew.
""")

four_slow_runs = series(
    """
What is wrong in each of the four runs?
""",
    run_a="""
Run A:
( ) throttling
    > A throttled device needs longer for the *same* rows. This one has more rows.
( ) a bad cable
    > Then a rank's sends would take long. They take as long as everybody's.
(x) uneven shards
( ) rank 0 writes its log
    > Then rank 0 would do something besides now and then, and the others wait.
Why: Rank 1 computes three times as long as the others, in every step, and it has three times the **rows**. The device
is fine: it takes as long for a row as the others do.
""",
    run_b="""
Run B:
( ) throttling
    > Then a rank would compute longer. Here all compute for the same time.
(x) a bad cable
( ) uneven shards
    > The rows are the same everywhere, and so is the time that they take.
( ) rank 0 writes its log
    > Then it would show in what rank 0 does besides. It is the sends that are slow, and another rank's.
Why: All compute equally long, and the last rank's **sends** take many times as long as the others'. In a ring
everything passes over every link, so a single slow link makes the whole all-reduce slow.
""",
    run_c="""
Run C:
( ) throttling
    > A hot device is slow in its forward and backward pass, and stays so. Here a rank does something besides, every
    fourth step.
( ) a bad cable
    > The sends are as quick as in a healthy run.
( ) uneven shards
    > The rows are the same everywhere, and so is the time that they take.
(x) rank 0 writes its log
Why: Rank 0 is late in every fourth step only: in the time that is neither computing nor sending. Nobody else writes
anything, and all of them wait for it. A median over the steps would not show it at all.
""",
    run_d="""
Run D:
(x) throttling
( ) a bad cable
    > The sends are as quick as everybody's.
( ) uneven shards
    > That would show in the rows. They are the same everywhere, and in the first steps the times are, too.
( ) rank 0 writes its log
    > It is not rank 0, and it is the forward and backward pass that takes long.
Why: One rank begins like the others and then takes three times as long for the **same rows**, and it stays so. That is
what a chip does that gets hot and lowers its clock.
""",
)

nobody_waits = series(
    """
Before you run it: what will you find?
""",
    how_stale="""
With four ranks there are three workers. Two are equally fast, the last one takes about four times as long for a
gradient. How many updates does the server make on average between a worker's pull and the arrival of its gradient?
( ) about 2 for each worker: there are two others
    > Two is the average over all updates. But the slow worker misses many more updates than a fast one does.
( ) 0: a worker computes with the weights that the server has
    > That would be true if the server's weights stood still while a worker computes. The others go on moving them.
( ) about 8 for each worker: the slow one holds up all of them
    > That would be true if the others waited for the slow worker. Nobody waits for it here.
(x) 1 to 2 for a fast worker, several times as many for the slow one
Why: While the slow worker computes one gradient, each of the two others sends three or four. The slowest rank no longer
costs time. It brings the *stalest* gradients instead. Over all updates the average is about 2, the number of *other*
workers.
""",
    replayed_bits="""
No two asynchronous runs are alike. The server has written down from which worker each gradient came, and nothing else:
no times, no gradients. One process replays the run from this list. How near does it come to the server's weights?
(x) it gets the same weights, to the last bit
( ) to about six digits: floats are added in another order
    > That would be true of an all-reduce, which adds up in an order of its own. The server adds one gradient after
    the other, and the list says in which order.
( ) not near at all: without the times nobody knows which weights a gradient was computed with
    > The list knows: a worker pulls right after its own update, so its next gradient belongs to the weights that it
    got then, however long it took.
( ) the losses agree, and the weights do not
    > That would be true of two different runs that both train well. This is the same run.
Why: All that chance decides in such a run is the order of arrivals. Given the order, everything else follows: which
weights a worker pulled, which rows it read, what the server added to what.
""",
)

thirty_two_workers = ask("""
With three workers and learning rate 0.25 the loss falls steadily. Now take 32 workers, all equally fast, with
everything else as it was and as many gradients in all. What becomes of the loss?
( ) it falls as before: the same gradients are applied
    > They are not the same: each is computed with weights that are 31 updates old.
(x) it explodes: it ends far above where it began
( ) it falls more slowly, and ends where the others do if you wait
    > That is what a smaller learning rate would do. With this one the old gradients push the weights beyond the goal
    again and again, further each time.
( ) it falls faster: 32 workers do more
    > They take less time, but the number of gradients is the same here, and each is older.
Why: **It explodes.** A gradient says which way is downhill *here*. Applied 31 steps further on it is wrong, and by then
31 more like it are on their way. Training survives that only if each step is small: for each doubling of the workers,
about half the learning rate. And with half the learning rate you need about twice the steps.
""")

what_helps = series(
    """
Two remedies. Before you try them: what helps whom?
""",
    bound_of_two="""
The last worker takes four times as long for a gradient, in every step. Now a worker may be at most two steps ahead of
the slowest one. How fast do updates come, compared with the server that holds nobody?
( ) as fast: two steps of head start are enough
    > That would be true if the slow worker caught up now and then. It never does: after two steps the head start is
    used up.
(x) at the slowest worker's pace, after a head start
( ) more slowly than with synchronous SGD: there is the server in between as well
    > The server costs little. In the long run both go at the pace of the slowest.
Why: Each worker goes on at the pace of the slowest. A bound lends the fast ones two steps, once. It helps against
hiccups, where it is a different rank each time that falls behind and then catches up. It does not help against a rank
that is always slow, and nothing can that bounds staleness.
""",
    local_steps_help="""
Local SGD averages the weights after every tenth step only. In one run every rank hiccups by chance, in the other the
last rank takes four times as long in every step. In which of the two does it save a good part of the time?
( ) in both: the ranks meet ten times less often
    > They meet less often, but they do meet. A rank that is always slow is late by ten steps' time then.
( ) where the last rank is always slow: the others need not wait for it
    > They wait for it at every tenth step, and then ten times as long.
(x) where every rank hiccups
( ) in neither: in the end all wait for the slowest
    > For the slowest *sum of ten steps*, yes. But hiccups even out within ten steps.
Why: Over ten steps long and short ones even out, and the slowest sum of ten is not much above the average. A rank that
is always slow is as slow over ten steps as over one. For that you have to give it less to do.
""",
)
