"""The predictions of lesson 02b: who waits for a busy rank, what stands in a window, and how many updates are left."""

from labkit.grading.prediction import ask, series

ask_a_busy_rank = ask("""
Rank 1 trains for 30 training steps and then sends its weights to rank 0. Rank 0 calls `dist.recv` at once. When does
rank 0 have weights of rank 1?
( ) at once: rank 0 reads them out of rank 1's memory
    > That would be true if a receive reached into the other process. It only takes what that process sends.
( ) after the training step that rank 1 is in: then it answers
    > That would be true if rank 1 looked for questions between two training steps. Nothing in its loop does.
(x) after all 30 training steps
( ) never: rank 1 does not know that rank 0 is waiting
    > Rank 1 need not know it. It calls `send` after its training, and there the two meet.
Why: After all 30. A message takes two: rank 0 waits until rank 1 comes to its `send`. For an answer in between, rank 1
would have to stop again and again and ask whether somebody wants something.
""")

three_places = series(
    """
Four ranks, windows of three places, all 0. What will you find? (With fewer ranks, there are fewer numbers.)
""",
    get_after_put="""
Place 0: the last rank puts a 7 into rank 0's window and gets that place in its next line. It finds:
(x) the 0 that stood there
( ) the 7
    > That would be true if `put` returned when the number is there. It returns when it is handed over.
( ) nothing: `get` raises an error
    > That would help, but nobody checks it. A `get` returns whatever stands there.
Why: The 0 that stood there. A put may be under way until you wait for it, as in `fence`. In this window it always is,
so that you see it; with MPI or on a GPU the 7 may be there already, and then the mistake shows up once in a while.
""",
    puts_to_one_place="""
Place 1: every rank but rank 0 puts its own number there, 1, 2 and 3. After the fence it holds:
( ) 6, the sum
    > That would be true of `accumulate`. A put writes over what it finds.
( ) 3: the highest rank comes last
    > That would be true if ranks took turns. Nothing decides which of them comes last.
( ) an error: the place is taken
    > That would be true if somebody checked. The owner takes no part, and the other ranks do not know.
(x) 1, 2 or 3: any of them, from run to run
Why: One of the three, whichever was written last. MPI is stricter: it calls the result of two puts to the same place,
without anything in between, undefined.
""",
    adds_to_one_place="""
Place 2: every rank but rank 0 accumulates its own number there, 1, 2 and 3. After the fence it holds:
( ) 1, 2 or 3: any of them, from run to run
    > That would be true of `put`. Here each number is added to what is there.
(x) 6, the sum
( ) 6 most of the time, and less when two ranks come at the same time
    > That would be true if each rank read, added and wrote in three steps. An accumulate is a single step: nobody
    comes in between.
Why: The sum, every time, in whatever order they came. Accumulate is **atomic**, number by number: others see the place
before the addition or after it.
""",
)

count_together = ask("""
Rank 0's window holds a 0. Four ranks all start at once, and each does this 400 times: get the number, put that number
plus one, flush. They make no other call. What does the window hold in the end?
( ) 1,600
    > That would be true if nobody else wrote between a rank's get and its put. Nothing keeps the others out.
( ) 400: all ranks count the same numbers
    > That would be true if all ranks went in step, each get at the same moment. They do not wait for one another.
(x) less than 1,600, and a different number from run to run
( ) more than 1,600 at times: some ranks count twice
    > Each put writes one more than was read. No update can count twice; it can only be written over.
Why: Less than 1,600, and a different number from run to run. Two ranks read the same number, and both write one more:
two updates have become one. A rank that is held up between its get and its put does worse: it writes an old number over
all that has been counted since. This is a **race**.
""")
