"""The diagnoses of lesson 14c, the exam: what each of five programs does, and why."""

from labkit.grading.prediction import series

exam_diagnosis = series(
    """
Two questions about each program: what does it do on four ranks with Gloo, and what is the cause?
""",
    exam_a_does="""
**Program A**, `exam_clip`, on four different gradients, all of them steeper than the limit:
( ) ranks wait for ever, and none raises
    > All ranks make the same single call, so nobody is missing.
( ) at least one rank raises an error
    > Shapes and dtypes agree, and `limit / norm` is an ordinary division.
( ) all end well, with the same wrong result
    > They would agree if `scale` were computed from the mean. Is it?
(x) all end well, but their results disagree
( ) all end well, with the right result
    > It is right where no gradient reaches the limit. These do.
Why: Each rank scales the same mean by a factor of its own, so the weights drift apart.
""",
    exam_a_because="""
**Program A**, the cause:
( ) the mean is divided by the number of ranks twice
    > It is divided once, by `world_size`.
( ) the all-reduce writes into the caller's gradient
    > It would without `.clone()`.
(x) the norm is taken of the gradient before the all-reduce
( ) the scale has an upper bound but no lower one
    > A scale is never negative here.
Why: What an update depends on has to be the same on all ranks: take the norm of the mean, after the all-reduce.
""",
    exam_b_does="""
**Program B**, `exam_edges`, on four strips of three numbers:
(x) ranks wait for ever, and none raises
( ) at least one rank raises an error
    > All ranks and tags are legal, and the lengths agree. Nothing looks wrong to any one rank.
( ) all end well, with the same wrong result
    > No two ranks should hold the same here. But does every `recv` get a message at all?
( ) all end well, but their results disagree
    > It would be so if a `recv` took any message of the right length. Gloo looks at the tag, too.
( ) all end well, with the right result
    > The two sends and the two receives look alike. Follow one message, with its tag, from rank 0 to rank 1.
Why: Each rank waits in its first `recv` for a message with tag 0 from the left. What the left neighbour sends to the
right has tag 1.
Elsewhere: **With NCCL**, which ignores tags, a message is taken in its turn. On three ranks or more that would be the
right one, if single sends and receives get that far there: they belong into one `batch_isend_irecv`. (From torch's
source and the reports below, not run.)
""",
    exam_b_because="""
**Program B**, the cause:
( ) the handles of `isend` are waited for after the calls of `recv`
    > That is the right order: the sends run in the background meanwhile.
( ) all ranks send before they receive, around a closed ring
    > With `send` this would be a cycle of waits. `isend` returns at once.
( ) the neighbours of the first and the last rank are computed wrongly
    > In Python, `-1 % 4` is 3, so the ring closes.
(x) a message has one tag for its sender and another for its receiver
Why: A tag names the direction in which a message travels: what comes *from* the left was sent *to* the right.
""",
    exam_c_does="""
**Program C**, `exam_load`, on matrices of 2 rows and 3 columns:
( ) ranks wait for ever, and none raises
    > Same call, same root, same number of bytes: each rank gets what it waits for.
( ) at least one rank raises an error
    > Both tensors are 3 by 2, and Gloo asks for no more.
( ) all end well, with the same wrong result
    > Print rank 0's `weight`: it does hold the transpose.
(x) all end well, but their results disagree
( ) all end well, with the right result
    > It would be right if a broadcast sent elements by their index. What does it send?
Why: Rank 0 holds the transpose. The others have got its numbers in the order in which they lie in rank 0's memory,
which is that of `stored`.
Elsewhere: **With NCCL** rank 0 raises an error: torch takes only contiguous tensors there. (From its source, not run.)
""",
    exam_c_because="""
**Program C**, the cause:
(x) `t()` leaves the numbers in memory as they were
( ) `clone()` copies `stored` before it is transposed
    > That the copy comes first is no fault. Is the order of the two what makes it go wrong? `.t().clone()` keeps the
    strides, too.
( ) `empty` makes a matrix with rows and columns swapped
    > The transpose of 2 by 3 is 3 by 2, which is what it makes.
( ) `broadcast` has a different tensor name on rank 0
    > It is called `weight` everywhere, and a name would not travel anyway.
Why: A transposed view has the strides (1, 3), an empty tensor of this shape has (2, 1). Only the memory travels. Make
it contiguous before the call.
""",
    exam_d_does="""
**Program D**, `exam_accuracy`, for 5 rows on four ranks, 2 each:
( ) ranks wait for ever, and none raises
    > The sampler has seen to it that all ranks have as many rows, and each makes one call.
( ) at least one rank raises an error
    > `hits` are floats, so there is a mean, a tensor of the same shape on each rank.
(x) all end well, with the same wrong result
( ) all end well, but their results disagree
    > All get the same sum and divide it by the same 4.
( ) all end well, with the right result
    > It is the mean of all rows that were dealt out. Are these the rows of the test set?
Why: Three repeated rows count as if they were new: 8 entries of `hits` are averaged, and there are 5 rows.
""",
    exam_d_because="""
**Program D**, the cause:
( ) the ranks average over different numbers of rows
    > All of them have equally many, so this is not the fault here.
(x) the rows that fill up the last round count like all others
( ) the mean of ones and zeros is rounded on each rank
    > A mean of floats is not rounded to 0 or 1.
( ) the order of the rows is not the same in each epoch
    > Nothing is shuffled here, and an accuracy does not depend on the order.
Why: No tool can see it. Count the rows that go into a metric, and compare with the size of the test set.
""",
    exam_e_does="""
**Program E**, `exam_deal`, for 9 rows on four ranks:
( ) ranks wait for ever, and none raises
    > Ranks 1 to 3 wait, but for whom? Count the parts that rank 0 has.
(x) at least one rank raises an error
( ) all end well, with the same wrong result
    > Each rank should hold something else here. But does it come that far?
( ) all end well, but their results disagree
    > It would be so if the last rank's part were left as it was made. `scatter` wants a part for each rank.
( ) all end well, with the right result
    > It is right for 8 rows. How long are the parts of 9 rows, and how many of them are there?
Why: Rank 0 has three parts for four ranks, and `scatter` refuses the list. The other three ranks wait in `scatter` as
well, for a rank that is gone: as in case 7, the error counts.
""",
    exam_e_because="""
**Program E**, the cause:
( ) `parts` is not known on the ranks other than rank 0
    > Only the root has to bring a list.
( ) `each` is rounded up where it should be rounded down
    > With 2 rows each, one of the nine would belong to nobody.
(x) `chunk` may give fewer parts than it was asked for
( ) `mine` has as many numbers on rank 0 as on the others
    > That is what `scatter` asks for, and what the card wants.
Why: `x.chunk(4)` first decides on the length, 3, and then cuts: 3 + 3 + 3. Fill up with zeros first.
""",
)
