"""Predictions for lesson 06b: who wins a race of all-reduces at which size, and what memory that ranks share takes."""

from labkit.grading.prediction import ask

python_against_gloo = ask("""
`dist.all_reduce` on Gloo is C++. Your ring is Python. How does the ring do at 16 MiB, on two ranks?
( ) it takes ten times as long, or more
    > This would be true if Python touched each number. It runs a few lines in each step. The sending and the adding
    are C++ in both.
(x) it takes about as long, give or take a factor of two
( ) it takes half as long, or less
    > This would be true if it sent half the bytes. On two ranks a ring sends S bytes a rank, and nobody can do with
    less.
Why: **About as long.** Both send the same bytes through the same sockets, and at 16 MiB that is where the time goes.
The language that a collective is written in hardly matters. What matters is the way that the bytes take, and Gloo's
leads through the operating system's network, even from one process to the next on the same host.
""")

flag_before_data = ask("""
Rank 0 writes a thousand numbers into its slot and then raises its flag. Rank 1 sees the flag up and reads the slot. Can
it still find an old number there?
( ) no: what was written first is seen first
    > This is what you would expect, and it is true for the core that writes. Another core need not see the writes in
    this order.
(x) it depends on the processor
( ) yes, on any processor: writes reach other cores in any order
    > This would be true if no processor promised an order. Some do.
Why: **It depends on the processor.** x86 promises that other cores see a core's writes in the order in which they were
made (*total store order*), so there a flag after the data is enough. ARM does not promise it. Programs there put a
*fence* between the data and the flag: C and C++ have atomic variables with *release* and *acquire* for it. Python has
none. So what you write in this lesson is right on x86 only, and on ARM it would be wrong once in a while. (ARM was not
run here.)
""")

chunks_on_four = ask("""
Now each rank adds up **its own chunk** only, a quarter of `x` on four ranks, and fetches the other three sums. Each
rank copies to its slot the chunks that others add up, adds three chunks to its own, puts the sum into its slot, and
copies the others' sums back. How many bytes does it copy and add in all, in units of S?
= 2.5 S +- 2 %
Why: **2.5 S**: ¾ to the slot, ¾ added, ¼ sum to the slot, ¾ fetched. With N ranks it is (3 − 2/N) S, which is less than
3 S however many there are. When everyone reads every slot, it is (N + 1) S. On two ranks the chunks take 2 S. There you
can do without them: copy all of `x` to your slot and add all of the other slot, which is 2 S as well.
""")

one_piece_or_many = ask("""
64 MiB. A slot could be as large as `x`: then the ranks meet twice. Or it is 2 MiB, and they go through `x` in 32 pieces
and meet 64 times. Which is faster, if nothing else runs on the cores?
( ) one piece: two meetings instead of 64
    > This is true if meetings take long, as they do on a busy machine. Where each rank has its core, a meeting takes
    microseconds, and 64 of them are a small part of this.
( ) no difference: the same bytes are copied
    > The bytes are the same. How fast they can be copied depends on where they are.
(x) many pieces
Why: **Many pieces.** A slot of 2 MiB stays in the cache: the other rank reads it there, and it is written over before
it has gone to memory. A slot of 64 MiB goes to memory and comes back. NCCL has small buffers as well: 4 MiB, cut into 8
steps (from its source and documentation; not run here). And many containers have only 64 MiB of `/dev/shm`.

If other programs want the cores, your table may say the opposite. A rank that is not running comes late to a meeting,
and that can happen 64 times.
""")

waiting_costs = ask("""
Rank 1 comes 0.3 s late. While rank 0 waits for it, how much time does rank 0's core **work** in `shared_all_reduce`,
and how much in Gloo's `all_reduce`?
( ) hardly any in either: a rank that waits does nothing
    > This would be true if both slept. Which of the two could be woken up when the other rank comes?
(x) as much as it can get in yours, hardly any in Gloo's
( ) as much as it can get in both
    > This would be true if Gloo asked again and again, too. It waits in a system call, and the operating system wakes
    it up when data comes.
Why: **As much as it can get in yours**: nearly 0.3 s if nobody else wants the core, and its share of them if somebody
does. A rank that looks at a flag again and again keeps its core busy, even if it offers it to others each time. That is
why it is so fast when the flag comes at once. MPI's ranks do the same, and so does NCCL, which keeps a part of the GPU
busy while it waits. Gloo sleeps, and waking up takes time.
""")

never_yield = ask("""
Four ranks share two cores. One version calls `os.sched_yield()` while it waits, the other one does nothing but look
again. How do they compare at 4 bytes?
( ) the one that never yields is faster: it saves a system call
    > This is true where each rank has a core of its own. Here the rank that you wait for may need yours.
( ) about the same: the operating system shares the cores out anyway
    > It does, but in slices of milliseconds. How many meetings fit into one?
(x) the one that never yields is slower
Why: **It is slower.** A rank that waits without yielding keeps its core until the operating system takes it away, after
some milliseconds. The rank that it waits for may be the one that cannot run. If other programs want the cores, too,
even a rank that yields waits long for its next turn, and the two come closer. And the version that yields may lose to
Gloo here: a rank that yields stays in the queue for a core, while one that sleeps leaves it.
""")
