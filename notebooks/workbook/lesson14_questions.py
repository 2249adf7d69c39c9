"""The predictions of lesson 14: six broken programs, and what each of them does."""

from labkit.grading.prediction import SEEN, ask

clinic_1 = ask("""
**Case 1.** Read the next cell. Rank 0 tells everybody its validation loss. There are two steps. What does the program
do?
( ) it hangs in step 0, because nobody receives the broadcast
    > Nobody receives it, but rank 0 alone would notice. What do the other ranks do meanwhile? They go on to step 1.
(x) it hangs, with the ranks in two different calls
( ) it raises: a broadcast does not fit an all_reduce
    > Nobody compares the calls. Gloo marks each message with its kind of call, and waits for one of its own kind; a
    different one is no error.
( ) it ends well, and the loss is wrong
    > That happens where both calls are of the same kind. Here the ranks wait for messages that the other call does
    not send.
Why: **It hangs, with the ranks in two different calls.** Rank 0 is in the `broadcast` of step 0, the others are in the
`all_reduce` of step 1. The others are not late: they are further on. So the rank whose line looks right is not always
the healthy one. Reported as pytorch#54059.
Elsewhere: **With NCCL** nobody can say: if the calls of the ranks do not fit together, its documentation promises
"undefined behavior, including hangs, crashes, or data corruption". (This case was not run on a GPU.)
""")

clinic_2 = ask(f"""
**Case 2.** Each rank stops at its own first loss that got worse. Read the next cell. What does the program do?
( ) all ranks stop together: rank 3 has ended the group
    > Leaving a loop ends nothing. The process lives, and its connections are open.
(x) ranks 0 to 2 wait for rank 3 in the third step
( ) it raises on ranks 0 to 2, because a rank is missing
    > Only a process that has died closes its connections. Rank 3 is well, it is just elsewhere.
( ) ranks 0 to 2 go on with sums of three ranks
    > A collective needs all ranks of its group. It never goes on without one.
Why: **Ranks 0 to 2 wait in the third step**, as long as rank 3's process lives, or until the time-out. (In a script
that ends there, they get *Connection closed by peer*.) Rank 3 is already outside the loop. In a training program it
would now call something else, a `barrier` before saving, say, and you would see case 1. Reported as pytorch#33148.
Elsewhere: **With NCCL** they wait as well, but not in the call: `all_reduce` returned, and then
`torch.cuda.synchronize()` did not return within 30 s. {SEEN}
""")

clinic_3 = ask(f"""
**Case 3.** In the last batch, rank 3 has 2 rows and the others have 4. All ranks call `all_reduce` on the losses of
their rows. What does the program do, on Gloo?
( ) an error on all ranks: the shapes differ
    > It would be so with `TORCH_DISTRIBUTED_DEBUG=DETAIL`, where ranks exchange shapes first. A message itself has no
    shape.
( ) all ranks wait
    > Rank 3 has few numbers to send and to receive, and gets them.
( ) it ends well: the first two sums have four terms, the others three
    > It would be so if somebody knew that two numbers are missing.
(x) some ranks wait, and some end well with wrong numbers
Why: **Some wait, and some end well.** Rank 3 ends, and the others wait for bytes. Which ranks do which depends on the
lengths, and so does what the numbers are: with these lengths, rank 3 keeps its own. (Some lengths end a process as
well.) Reported as nccl#1394 and #1417.
Elsewhere: **With NCCL** the behaviour is undefined, by its documentation. With 8 numbers on rank 0 and 4 on the others,
the cell had not ended after 30 s. {SEEN}
""")

clinic_4 = ask("""
**Case 4.** All ranks bring four numbers. Those of rank 3 came from numpy and are float64, the others' are float32. What
does the program do, on Gloo?
( ) a Python exception on rank 3
    > With `DETAIL` it would be one, on all ranks. Without it, no rank knows the dtypes of the others.
(x) a process dies, without a Python exception
( ) the numbers are converted: the sum is float64 on all ranks
    > It would be so if the dtype travelled with the message. Only bytes do.
( ) all ranks wait
    > They would if the longer message were only begun. Gloo checks how long a message is that it has room for.
Why: **A process dies.** Gloo receives a message that is longer than the room for it, and calls `abort()`: signal 6,
SIGABRT. No `try` catches that. The process that dies is a neighbour of the culprit, not the culprit. Reported as
ms-swift#9550 and pytorch#54351.
Elsewhere: **With NCCL** the behaviour is undefined, by its documentation: each GPU counts bytes as its own dtype says,
and nobody looks at how long a message is. (This case was not run on a GPU.)
""")

clinic_5 = ask("""
**Case 5.** Rank 0 sums `rows` first and then `loss`; the other ranks the other way round. Both are one float32 number.
What does the program do?
( ) it hangs: rank 0 waits in one call, the others in another
    > They would, if calls were matched by their variables' names. Torch counts them: first meets first.
( ) it is right: a sum does not depend on the order
    > The order of the ranks in a sum does not matter. Here different things are added.
(x) it ends well, and both sums are wrong on all ranks
( ) rank 0 has the two sums swapped, the others are right
    > The first call adds rank 0's rows to the others' losses. No rank gets a right sum.
Why: **It ends well, and everything is wrong**: 109 is 100 rows of rank 0 plus the losses 2 + 3 + 4. There is no error
and no warning. The mean loss of a training run would look noisy, and nobody would ask why. Reported as apex#19.
Elsewhere: **With NCCL** it is the same lie: there, too, the first call of a group meets the others' first call. (From
NCCL's source, not run.)
""")

clinic_6 = ask("""
**Case 6.** Rank 0 read an old settings file, and calls `all_reduce` with `MAX`; the others call it with `SUM`. Each
rank brings a power of ten: 1, 10, 100, 1000. What does the program do?
( ) it raises: the operations differ
    > The operation is in no message. Each rank applies its own to what arrives.
( ) rank 0 gets 1000, the others get 1111
    > It would be so if each rank got all four numbers and reduced them alone.
(x) it ends well, and the result is neither the sum nor the maximum
( ) it hangs
    > Sum and maximum send the same messages: nobody misses one.
Why: **Neither sum nor maximum**: 1110. Each rank combines what it receives in its own way and passes the result on, and
rank 0's number got lost in its maximum. All ranks agree on the same wrong number, so comparing the ranks finds nothing.
And with the old file on rank 3, the sum comes out right, by luck. (Made up for this lesson; pytorch#39706 is a report
of a `dst` that differs between the ranks.)
Elsewhere: **With NCCL** each rank also combines in its own way what it receives. Which number comes out depends on the
order in which NCCL combines the ranks. (From its source, not run.)
""")
