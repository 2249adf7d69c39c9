"""The predictions of lesson 15d, whose numbers tests/tools/test_lesson15d.py works out again."""

from labkit.grading.prediction import ask

three_quarters_lost = ask("""
100,000 GPUs compute for 2 s a step, then all-reduce 14 GB of gradients round one long ring. The job saves every 30
minutes of work, which takes a minute. Each GPU fails once in 5.8 years, on average; noticing it and starting again
takes 10 minutes. The GPUs spend about a quarter of their time on computing that counts. What takes **most** of the
rest?
( ) the gradient's bytes
    > 14 GB sound like much, but N cancels out of the bytes: inside and between hosts together they take about 1 % of
    the time.
( ) the latency of the ring's 199,998 rounds
    > It is almost a second a step, and 12 % of the whole: a lot, but not most.
( ) waiting for the slowest GPU
    > It takes 2 % of the whole. The times of the GPUs scatter by 40 ms only.
(x) failures: work that is lost, and starting again
Why: **Failures**: work done twice and starting again take more than half of the time. One GPU fails once in 5.8 years.
A hundred thousand of them fail so often that a job that saves every 30 minutes loses much of what it does.
""")

latency_of_the_hosts_ring = ask("""
A hierarchical all-reduce on 12,500 hosts of 8 GPUs: rings inside the hosts, then, on each rail, a ring through all
hosts, then rings inside the hosts again. A message between hosts has a latency of 14 µs. How much time do the latencies
**between hosts** take?
= 350 ms
( ) 175
    > This is one way round: the sums still have to be handed out.
( ) 2800
    > This is a ring through 100,000 ranks in which every round crosses a network.
( ) 0.392
    > These are 2 × 14 rounds, those of a tree. The question is about a ring.
Why: **350 ms**: 2 × 12,499 rounds × 14 µs. The flat ring had 2 × 99,999 rounds, most of them inside hosts, where a
message takes 3.4 µs: 945 ms. That is better, and still twice as long as the bytes take.
""")

four_at_once = ask("""
Four hosts below one leaf switch each send 10 GB to hosts below another one, at the same moment. A NIC and a link to the
spine carry 50 GB/s each. The switch is oversubscribed 4:1: it has **one** link up. First come, first served. When is
the **average** message through?
= 0.5 s
( ) 0.2
    > This is a message alone. Four of them share one link to the spine.
( ) 0.8
    > This is the last one, or all of them if they shared the link fairly.
Why: **0.5 s**: a message keeps the link busy for 0.2 s, so they are through after 0.2, 0.4, 0.6 and 0.8 s. If the four
shared the link fairly, all of them would be through after 0.8 s. The last one ends at the same moment either way, which
is what a collective waits for.
""")

order_of_the_hosts = ask("""
A smaller job: 256 hosts, 32 below a leaf switch, one link up for every four NICs. On each rail a ring passes through
the hosts in order, and the bytes between hosts take 70 ms. Then a scheduler hands you the same hosts **in random
order**. How long do these bytes take now, with their waiting in queues?
( ) 70 ms, as before
    > In order, 31 of 32 hosts send to a neighbour below the same switch. In random order nearly all of them send to a
    host below a different one, over the few links up.
( ) about 4 times as long
    > This would be so if the messages were spread evenly: four NICs to a link. They are not, and the busiest link
    decides.
(x) about 9 times as long
( ) about 32 times as long
    > There are 8 links up for the 32 hosts below a switch, on each rail, not one.
Why: **About 9 times.** Three to four messages share a link on average, and chance puts nine of them on the busiest one.
All rounds of a ring are alike, so it is the same link in every round, and the whole ring goes at its pace.
""")

bruck_or_pat = ask("""
Bruck's algorithm and PAT send the same number of bytes in the same number of rounds, to ranks 1, 2, 4, 8, … away. In
Bruck's all-gather the messages grow with the distance: S/2 goes to the rank that is farthest. In PAT it is the other
way round: S/2 goes to the next rank, and a single chunk goes far. On 100,000 GPUs, with leaf switches that are
oversubscribed 4:1, which one takes longer?
(x) Bruck's
( ) PAT
    > PAT's far messages are small: what has to share the spine is a single chunk in the farthest round.
( ) both take as long: same rounds, same bytes
    > This is right on a network that has as many links above the leaf switches as below. Oversubscribed, it counts
    which bytes go far.
Why: **Bruck's**: its large messages go far, and queue for the spine. The formula α · rounds + β · bytes cannot tell the
two apart. That is why NCCL's PAT goes from far to near (arXiv 2506.20252).
""")

slowest_in_sigmas = ask("""
The times that GPUs need for a step scatter around 2 s with a standard deviation of 40 ms, normally distributed. The
slowest of 8 is on average 57 ms late, the slowest of 1,024 is 129 ms late. How late is the slowest of 100,000?
= 175 ms +- 12 %
( ) 12600
    > In proportion to the number of GPUs, all of them would have to wait for one another in turn.
( ) 444
    > This is an exponential tail, as in lesson 10. A normal one falls faster.
( ) 1270
    > This grows like √N. The maximum of normal times grows far more slowly.
Why: **175 ms**, 4.37 standard deviations. A hundred times as many GPUs add 1.1 standard deviations: the tail of a
normal distribution falls so fast that the maximum hardly grows. With an exponential tail of the same standard deviation
it grows like the logarithm of N: 444 ms.
""")

minutes_between_failures = ask("""
Published: Llama 3 405B was trained on 16,384 GPUs, and in 54 days there were 419 unexpected interruptions. The same
hardware, 100,000 GPUs: how long does the job run between two interruptions, on average?
= 30.4 minutes
( ) 186
    > This is the job of 16,384 GPUs. With more GPUs something fails more often.
( ) 1130
    > The wrong way round: more GPUs fail more often, not less.
( ) 0.507
    > In minutes, please: this is hours.
Why: **30 minutes.** 54 days / 419 = 3.1 hours, on 16,384 GPUs. With 6.1 times as many it is 6.1 times shorter. Per GPU
that is one interruption in 54 days × 16,384 / 419 = 5.8 years, whatever caused it: the GPU, its host, the network or
the software. A hundred thousand GPUs turn years into minutes.
""")

cheaper_checkpoints = ask("""
A checkpoint costs the job a minute, and Young's interval is right for it. Then somebody writes checkpoints in the
background, so that the job stands still for **5 s** in place of 60. What becomes of the best interval?
( ) it stays: the failures are the same
    > The failures are the same, but saving is cheaper, so it pays to save more often and lose less.
(x) it gets 3.5 times shorter
( ) it gets 12 times shorter
    > The interval goes with the root: √(2 · C · M), and √12 = 3.5.
( ) it gets longer
    > Longer intervals lose more work at each failure. Cheap checkpoints are for short ones.
Why: **3.5 times shorter**: √(60 / 5). Half of the gain comes from cheaper saving, the other half from losing less: at
the best interval the job spends about as much on checkpoints as on lost work.
""")

what_to_repair = ask("""
The job now uses PAT between the hosts and saves at Young's interval, a checkpoint costs 60 s, a restart 600 s, the leaf
switches are oversubscribed 4:1. You may repair **one** thing. Which one brings most?
( ) links that are twice as fast, inside the hosts and between them
    > All bytes together take 3 % of the time. Halving them brings less than 2 points.
( ) a network without oversubscription
    > With PAT the queues take less than 1 % of the time.
(x) a restart of 120 s instead of 600 s
( ) a checkpoint of 5 s instead of 60 s
    > This is the second best: about 10 points. But every one of some 800 failures also costs 600 s until all work
    again.
Why: **The restart**: about 14 points. At one failure in 30 minutes, 10 minutes of standing still are a quarter of the
time. Spare hosts that wait, a fast time-out, communicators that are set up quickly: at this size, that is where the
speed is.
""")
