"""The predictions of lesson 07: prices on these ranks, what benchmarks print, and how far a model is off."""

from labkit.grading.prediction import ask

tiny_on_64_h100 = ask("""
The tiny model's gradients are 5 tensors, 49 KiB in all. Now 64 H100s in 8 servers all-reduce them, one tensor after the
other. A network card sends 50 GB/s. The five calls together take about …
( ) 1 µs
    > This would be true if only bytes cost time: 49 KiB at 50 GB/s are 1 µs. But five times in a row, the GPUs first
    have to get a message to each other at all.
( ) 20 µs
    > This would be true if a message between two servers were all that is needed. The sum has to pass through GPU
    after GPU and through several servers, and then it has to come back.
(x) some tenths of a millisecond
( ) 50 ms
    > This would be true of 64 ranks on two cores. GPUs and their network start a call much faster than Gloo over
    sockets does.
Why: **Some tenths of a millisecond.** In the four tables above, an all-reduce of 8 KiB takes 32 to 169 µs on 16 to 64
GPUs in several servers, and five of them take five times as long. (No table here has this size for 64 H100s. More
servers do not make it faster.)

The bytes alone would need about 2 µs. For the large model it is the other way round: its bytes need tens of
milliseconds, and the price of a call is lost in them. All of this lesson lies between these two.
""")

thousand_times_the_bytes = ask("""
A message grows from 64 bytes to 64 KiB, a thousand times. Its time on these ranks grows …
( ) about a thousand times
    > This would be true if each byte had its price and the message itself cost nothing.
( ) ten to a hundred times
    > This would be true if getting under way cost as much as a few thousand bytes. It costs more than that.
(x) less than ten times
Why: **Less than ten times.** In the left picture the dots are nearly level on the left: there a message costs what it
takes to get under way, whatever it carries. Further to the right its time rises with the bytes. (On a busy machine the
dots jump about.)
""")

straight_line = ask("""
Somebody published 29 times of NCCL's all-reduce on 16 A100s, from 8 bytes (164 µs) to 2 GiB (51,406 µs). `np.polyfit`
puts the straight line through them that has the least squared error. What does this line say of 8 bytes?
( ) about 164 µs: the line passes close to its points
    > This would be true if all points counted alike. An error of 150 µs is next to nothing beside the 51,406 µs of
    the largest size, so the line is free to miss every small one.
(x) about twice as much
( ) less than nothing
    > It can happen: the largest sizes may well push the line below zero on the left. In this table they push it up.
Why: **About twice as much: 352 µs.** Least squares count errors in microseconds. The largest size takes hundreds of
times longer than the smallest, so its error decides, and the start of the line is whatever is left over.
""")

algbw_of_a_ring = ask("""
A perfect ring of 1,024 ranks: every link carries 25 GB/s in each direction, and latency is zero. It all-reduces S = 1
GB a rank. What is S divided by the time?
= 12.5 GB/s
( ) 25
    > 25 GB/s is what each link carries. But a rank has to send nearly 2 S, not S: once round the ring to add up, and
    once more to hand out the sums.
( ) 50
    > 50 GB/s adds up both directions of a link. A rank sends in one direction and receives the same amount from the
    other neighbour, so only 25 GB/s of it is sending.
( ) 0.0244140625
    > This would be true if all ranks shared one link. Each has a link of its own, and all links work at the same
    time.
Why: **12.5 GB/s**, half of what the links do. Each rank sends 2 S (N - 1) / N = 1.998 GB: nearly S to add everything
up, and nearly S to hand the sums out. At 25 GB/s that takes 79.9 ms, and 1 GB / 79.9 ms = 12.51 GB/s. While a rank
sends, it also receives as much: the other direction of its links is busy, too.
""")

busbw_of_gloos_reduce_scatter = ask("""
In lesson 04 you saw that Gloo's reduce-scatter sends as many bytes as its all-reduce. `lab.sweep` times both for the
same S, 8 MiB, with the backend of this lab. The busbw of the reduce-scatter is …
(x) about half of the all-reduce's, or less
( ) about the same
    > This would be true if busbw were measured on the links. It is calculated from S and the time, with the bytes
    that a *good* reduce-scatter needs.
( ) about twice the all-reduce's: it moves half of the bytes
    > This would be true if it moved them in a quarter of the time. By the definition half of the bytes count, and the
    time is at least the same.
Why: **About half**, or even less. (On a busy machine one measurement can say anything: repeat it.) Gloo runs an
all-reduce under its reduce-scatter, and then throws a part of the result away. So the reduce-scatter is not faster. But
the factor of a reduce-scatter is half of an all-reduce's. So busbw says that half of what the links carried was of use.
It measures what was *needed*, not what was *sent*.
Elsewhere: **With NCCL** the two should be about the same: it has a true reduce-scatter, which sends half of an
all-reduce's bytes in half of its steps. (From its source, not run.)
On NCCL: about the same
( ) about half of the all-reduce's, or less
    > This is true of Gloo, which sends twice what a reduce-scatter needs. NCCL sends what it needs.
( ) about twice the all-reduce's: it moves half of the bytes
    > This would be true if it moved them in a quarter of the time. By the definition half of the bytes count, and it
    takes half of the time.
Why: **About the same**, as far as the source tells: NCCL has a true reduce-scatter, with half of an all-reduce's bytes
and half of its steps, so half of the time, and the factor of a reduce-scatter is half, too. What your ranks did is
printed above; one measurement can be far off, above all on ranks that share a GPU. Like this, busbw lets you compare
*different* operations: it is the speed of the links while they carry nothing superfluous.
Elsewhere: **With Gloo**, on CPUs, it is about half or less. Gloo runs an all-reduce under its reduce-scatter, so it
takes as long, and only half of what it sends was needed. busbw counts what was *needed*, not what was *sent*.
""")

faster_than_the_link = ask("""
Eight H200s all-reduce 16 GiB at a busbw of 482 GB/s (published). A GPU's links carry 450 GB/s in each direction. How
can that be?
( ) busbw adds up both directions
    > This would be true if the factor 2 (N - 1) / N counted sending and receiving. It counts what a rank *sends*, in
    two laps round the ring.
( ) the clock stops too early: a GPU call returns before it is done
    > This would be a mistake of the benchmark, and nccl-tests does not make it: it waits for the GPU.
(x) fewer bytes cross a link than busbw counts
( ) GB and GiB: 450 GiB/s are 483 GB/s
    > A tempting coincidence! Data sheets count in 10⁹ bytes, and so does nccl-tests.
Why: **Fewer bytes cross the link.** The switch between these GPUs can add up by itself (NCCL calls it NVLS). GPUs no
longer hand sums on from neighbour to neighbour. Each sends its S to the switch, reads the sum of one N-th back, and
sends that N-th once more, for the switch to copy to all: S (1 + 1/N) and not 2 S (N - 1) / N (nccl issue 2140 counts
the same way). With N = 8 and an algbw of 275.6 GB/s, 310 GB/s leave a GPU. The 450 are not exceeded. They are not even
reached.
""")

ring_on_nvlink = ask("""
The data sheet of the H100 says: NVLink, 900 GB/s. Eight of them all-reduce by a ring, in one direction round, and the
switch adds nothing up. Which busbw can they not exceed?
= 450 GB/s
( ) 900
    > 900 GB/s are both directions added up, as data sheets of NVLink do. A rank that sends 450 GB/s and receives 450
    GB/s keeps all 900 busy, and busbw counts what it sends.
( ) 50
    > 50 GB/s is one link of NVLink 4, both directions. An H100 has 18 of them, and a ring can use all.
( ) 25
    > 25 GB/s is one link of NVLink 4 in one direction. An H100 has 18 of them, and all go to the switch: a ring can
    use them all.
( ) 225
    > This halves the data sheet's figure twice. One halving is right: 900 counts both directions. But a ring needs
    only one direction for sending, and has all 450 GB/s of it.
Why: **450 GB/s.** The 900 are both directions together: 18 links of 25 GB/s each way. A ring uses both, sending to one
neighbour and receiving from the other. But busbw counts what a rank *sends*.

What a program reaches is less. A GPU's cores send packets of 128 bytes, and each packet has a header: NCCL counts on
20.6 of the 25 GB/s of a link (its source, `graph/topo.h`; one of its authors explains the header in nccl-tests issue
149). 18 × 20.6 = **370.8 GB/s**, the figure in this lesson's tables. Published for eight H100s without help from the
switch: 370 (nccl issue 2140).
""")

how_far_off = ask("""
NCCL chooses by the times that its own model expects. How far are these times off what others measured, from 2 to 2,160
GPUs?
( ) by less than 20 %: NCCL relies on them
    > NCCL relies on their *order* only. If every algorithm is expected to take half of its real time, the choice is
    still right.
( ) too fast as often as too slow
    > This would be true if the errors were noise. But the model leaves out what costs time, and hardly anything that
    saves it.
(x) mostly too fast, often by a factor of 2
( ) mostly too slow: a library promises little
    > It promises nothing to anybody. It assumes links at full speed, pipelines that are full from the beginning, and
    a network of its own.
Why: **Mostly too fast.** 1.0 would be right, and 0.5 means that the model promises half of the real time. Between 1 and
64 MiB, the median promise is little more than half of the real time. The model is best for large messages. It is too
slow mostly at small sizes on one cloud's network, whose plugin tells NCCL of more latency than there is. The model was
made to **compare** algorithms, not to tell the time.
""")

ring_of_100000 = ask("""
8 bytes, a ring of 100,000 GPUs. A step takes 2.1 µs (the mean of NCCL's own figures for its fastest protocol, within a
server and between servers). After how many seconds do all GPUs have the sum?
= 0.42 s
( ) 0.21
    > This is one lap: afterwards one GPU has the sum of everything. The second lap hands it out.
( ) 7.1e-05
    > This is a tree's time, 2 log2 N steps. In a ring, the sum visits one GPU after the other.
( ) 420
    > A thousand too many: 1 s is a million µs.
Why: **0.42 s**: 2 (N - 1) = 199,998 steps of 2.1 µs. The sum passes through all GPUs one after the other, and then the
result passes through all of them again. No link is ever busy. At this size a ring waits for nothing but latency.
""")
