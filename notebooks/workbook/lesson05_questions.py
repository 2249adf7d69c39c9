"""Predictions for lesson 05: who waits for whom, and what a clock measures."""

from labkit.grading.prediction import SEEN, ask

whose_clock = ask("""
Rank 2 works 60 ms longer than the others in each step. Every rank reads its own clock before and after its own
`all_reduce`, and nowhere else. On which ranks does the all-reduce seem slow?
( ) on rank 2 only
    > This would be true if the clock ran during the extra work. It runs during the all-reduce only, and when rank 2
    gets there, everyone else is already waiting for it.
( ) on all ranks alike
    > This would be true if all ranks began the all-reduce together. They only end it together.
(x) on all ranks but rank 2
Why: **The all-reduce seems slow on all ranks but rank 2.** They come early, so they wait in the call until rank 2
brings its part. Rank 2 comes last and finds all the others there. The rank with the *shortest* all-reduce is the one
that holds up the others.
""")

late_to_nine = ask("""
Rank 1 comes late to each of nine calls: a barrier, the four collectives without a root, and the four with root 0. In
how many of the nine does **every** other rank wait for rank 1?
( ) in all nine
    > Every collective would then be an implicit barrier. That would be true if each result depended on every rank. A
    receiver of a broadcast needs the root and no other rank.
(x) in five: those without a root
( ) in one: the barrier
    > This would be true if the other calls could give ranks their result without rank 1's data. An all-reduce has no
    total before rank 1 has brought its part.
Why: **In five.** In the first five calls every rank's result depends on every rank: there is no total without rank 1's
part. These calls act as barriers.

The other four wait only where data depends on rank 1:

- *gather*: the ranks that only hand in their part go on. The root waits, because it needs rank 1's.
- *scatter*: the ranks that have their part go on. The root waits because it still has to hand rank 1 its part, and on
Gloo a send is a rendezvous.
- *broadcast* and *reduce*: some wait and some go on. The next question asks why, for the broadcast.
""")

root_of_a_broadcast = ask(f"""
Look at the row of the broadcast from rank 0: rank 1 is late, ranks 0 and 3 wait for it, and rank 2 goes on. Now the
**last** rank (of four: rank 3) is late instead. Who waits?
( ) rank 0, the root
    > This would be true if the root handed the data to every rank itself. But then rank 3 would not have had to wait
    for rank 1 above.
(x) rank 1
( ) all the others
    > This would be true if a broadcast were a barrier. Above, rank 2 went on while rank 1 was still away.
( ) none: the late rank only takes its data later
    > This would be true if a send only had to put its data on the way. On Gloo a send returns when the receiver takes
    the message: above, rank 0 waited for rank 1.
Why: **Rank 1.** The rank that hands the data to the late one waits, and so does a rank that gets its data
through the late one. With four ranks, the root hands to ranks 1 and 2, and rank 1 hands on to rank 3. So when rank 3 is
late, the root has long gone. This route is a tree: lesson 06 builds it.

**A broadcast is not a barrier.** All of this is Gloo. An MPI library may copy a small message and let its sender go at
once. (This was not run here.) Rely on a collective for its data, never for the waiting.
Elsewhere: **With NCCL** a call returns when its work is *queued* on the GPU, and the waiting is in the queue: after an
all-reduce in which a rank was missing, the others waited in `torch.cuda.synchronize()`, on the next line. {SEEN}
""")

who_loads_what = ask("""
The file holds the checkpoint of step 0. Rank 0 now needs 0.3 s to collect the model, and writes the checkpoint of step
12 to the same file. Meanwhile the other ranks load the file, without waiting for rank 0. What do they get?
( ) step 12: loading waits until rank 0 has written
    > A file system makes no reader wait for a file that is going to be written. Nothing ties the readers to the writer.
( ) an error: the file is not complete
    > This would be true if they came while rank 0 was writing. They come before it has begun, and find a whole file.
(x) step 0, and no error
( ) a deadlock: they wait for rank 0, and rank 0 waits for them
    > There is nothing in these lines that waits: no rank communicates.
Why: **Step 0, and no error.** Rank 0 goes on with the new weights and the others with the old ones, and nothing tells
you. An error would be the lucky case: you get one where there is no older file, or where a rank loads while rank 0 is
writing and finds half a file.
""")

empty_clock = ask("""
The clock runs with an all-reduce of 256 bytes between the two barriers, and then with no work at all. What does it
show **without** work?
( ) next to nothing, a few microseconds: there is nothing left to measure
    > This would be true if a barrier cost nothing. The second barrier stands before the second reading, so you time
    its messages too.
(x) less than with the work, but no less than a barrier takes
( ) as much as with the work: 256 bytes are nothing
    > The bytes are next to nothing, but the call is not: an all-reduce sends messages of its own, however few bytes
    each of them carries.
Why: **No less than a barrier takes.** The second barrier sends messages like any other collective, and it stands
between the two readings. So a part of what the clock shows is the barrier. Look also at how far apart the dots of one
rank lie: if you take a single reading, you catch one of them.
""")

two_clocks = ask("""
Rank 0 broadcasts 1 MiB, 50 times, and reads its own clock. Clock A: a barrier before each broadcast, and only the
broadcast is timed. Clock B: all 50 back to back, the total divided by 50. Which one shows more for one broadcast, on
rank 0?
( ) A: starting afresh each time costs more than going on
    > This would be true if a call after a barrier had to set something up again. The connections are there, and the
    barrier itself is not timed: it ends before the first reading.
( ) neither: it is the same call with the same data
    > This would be true if the root had to wait for the end of a broadcast. It goes on as soon as its own sends are
    done.
(x) B: back to back
Why: **B.** Both clocks are right, and they measure different things. A shows how long *one* broadcast keeps the
**root** busy: it hands its data over and goes on, while others still pass it down the tree. B shows how many broadcasts
**all ranks** get through in a row: soon the root has to wait for a child that is still busy with the one before. The
difference can be large: in one published case (openucx/ucc, issue 1326) clock A gave 94 GB/s where clock B and
nccl-tests gave 54. So write down which clock you used.
""")

flat_or_each = ask("""
The model's gradients are 5 tensors, 49 KiB in all. You can all-reduce them one after the other, or copy them into one
flat tensor and all-reduce that. What is faster, both timed honestly?
( ) one after the other: five small messages are quicker than a large one
    > This would be true if the time went by the bytes. At this size it goes by the number of calls.
( ) no difference: the same bytes travel
    > The bytes are the same. But each call has a price of its own, whatever its size, and you pay it five times.
(x) one flat tensor
Why: **One flat tensor.** The same bytes travel, but every call has a price of its own, however little it carries.
PyTorch's `DistributedDataParallel` therefore collects gradients in *buckets*, and closes one as soon as it holds 25
MiB or more. Lesson 07 measures the price of a call, lesson 09 builds the buckets.
""")
