"""The predictions of lesson 06: who is busy, how much each rank sends, and what a shared link does to it."""

from labkit.grading.prediction import ask

same_bits = ask("""
Each of four ranks brings one number: 100000000, 1, -100000000 and 1, as float32. Their sum is 2. They add them up by
this recipe. What do the ranks hold afterwards?
( ) 2 on every rank
    > This would be true in float64. A float32 has room for about seven digits: 100000000 + 1 is rounded to 100000000.
( ) the same number on every rank, but not 2
    > This would be true if all ranks added in the same order. Each rank begins with its own number, and adds the
    others as they come.
(x) not the same number on every rank
Why: **Not the same number on every rank.** A float32 has room for about seven digits, so 100000000 + 1 is 100000000
again. Each rank adds in an order of its own, and loses something different. In training the copies of the model would
drift apart, a bit at a time, and no error would tell you.
""")

first_chunk = ask("""
In every step each rank sends one chunk to the right. Chunk 0 is to pass every rank, collect everyone's part, and be
complete **on rank 0** after N - 1 steps. Which rank sends chunk 0 in the first step?
( ) rank 0
    > A chunk that begins on rank 0 gets to rank N - 1 in N - 1 steps, and ends there. It would need one step more to
    come home.
(x) rank 1
( ) rank N - 1
    > From rank N - 1 the chunk goes to rank 0 in the first step already, with the parts of two ranks in it, and then
    moves on.
Why: **Rank 1.** From there it goes to ranks 2, 3, …, and comes to rank 0 last. In the first step every rank sends the
chunk of the rank on its left. And in the second step? It sends the sum that it has just made.
""")

ring_bytes = ask("""
Reduce-scatter, then all-gather, round the ring. How much does each rank send, if N is large?
( ) nearly S / N
    > S / N is the size of one chunk, so it is what a rank sends in one step. There are 2 (N - 1) steps.
(x) nearly 2 S, whatever N is
( ) nearly N S
    > This would be true if each rank passed on whole buffers, as `pass_on` does. Here it passes on one chunk a step,
    and the chunks get smaller as N grows.
Why: **Nearly 2 S.** Every rank sends a chunk, S / N bytes, in each of 2 (N - 1) steps: 2 S (N - 1) / N. With more ranks
there are more steps, and the chunks are smaller: N cancels out of the bytes.
""")

torchs_own = ask("""
Which of these does torch's own `dist.all_reduce` resemble, if the ranks use Gloo?
( ) one rank does it all
    > Then one row and one column of the matrix would hold all the bytes, those of rank 0.
( ) a tree
    > Then rank 0 would send more than the others: one whole buffer in each step on the way down.
(x) a ring
( ) halving and doubling
    > Then each rank would send to two others, most of it to the nearer one.
Why: **A ring.** Every rank sends 1.5 S, and all of it to one neighbour. Gloo's ring may turn the other way than yours.
Halving and doubling sends as much, but to two partners: the sums of the rows are equal and the matrices are not.
Elsewhere: **With NCCL** it depends on the size and on the machine: a ring, two trees, or additions in a switch. (From
its source. The end of this lesson has more on that.)
""")

shared_link = ask("""
Eight ranks sit on two hosts, ranks 0 to 3 on the first one. Whatever leaves a host goes through **one** link, which is
as fast as a rank's own connection. The buffer is so large that α does not count. Which all-reduce is faster?
( ) halving and doubling: it has 6 steps, and the ring 14
    > Fewer steps save α. They do not save bytes, and here only the bytes count.
( ) neither: in both of them each rank sends 1.75 S
    > This would be true if each rank had a link of its own to the other host.
(x) the ring
Why: **The ring.** In each of its steps one message leaves a host, so no link ever has more to carry than a rank's own:
1.75 S β. In two steps of halving and doubling **all four** ranks of a host send to the other host at once, S / 8 each,
and share the link: these steps take four times as long, and it is 2.5 S β in all.
""")

odd_ranks = ask("""
With α = 10 µs, 10 GB/s for every rank and no shared links, halving and doubling takes 215 ms for 1 GiB on 1,024 ranks.
How many milliseconds does it take on **1,000** ranks?
= 429 ms
Why: **429 ms, twice as long on fewer ranks.** 512 ranks halve and double among themselves: 2 S. Before that, 488 ranks
hand over a whole buffer, and in the end they get one back: 2 S more. The ring takes 235 ms, whether N is a power of two
or not.
""")
