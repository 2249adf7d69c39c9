"""The diagnoses of lesson 14c, the exam: what each of five programs does, and why."""

from labkit.predictions.prediction import Option, Prediction, Series

# What a program can do: the same five for all programs, so that no option says which one is right.
HANGS = "ranks wait for ever, and none raises"
RAISES = "at least one rank raises an error"
AGREES = "all end well, with the same wrong result"
DIFFERS = "all end well, but their results disagree"
RIGHT = "all end well, with the right result"
ALL = (HANGS, RAISES, AGREES, DIFFERS, RIGHT)


def does(name: str, question: str, answer: str, why: str, replies: dict[str, str], elsewhere: str = "") -> Prediction:
    """What a program does: one of the five, always in the same order."""
    options = tuple(Option(text, replies.get(text, "")) for text in ALL)
    return Prediction(name, "14c", question, answer, why, options, elsewhere=elsewhere)


def because(name: str, question: str, answer: str, why: str, *wrong: tuple[str, str]) -> Prediction:
    """Why it does so: the right answer stands among the wrong ones at a place that the name decides."""
    options = [Option(text, reply) for text, reply in wrong]
    options.insert(sum(map(ord, name)) % (len(options) + 1), Option(answer))
    return Prediction(name=name, lesson="14c", question=question, options=tuple(options), answer=answer, why=why)


PREDICTIONS = (
    Series(
        name="exam_diagnosis",
        lesson="14c",
        question="Two questions about each program: what does it do on four ranks with Gloo, and what is the cause?",
        parts=(
            does(
                "exam_a_does",
                "**Program A**, `exam_clip`, on four different gradients, all of them steeper than the limit:",
                DIFFERS,
                "Each rank scales the same mean by a factor of its own, so the weights drift apart.",
                {
                    HANGS: "All ranks make the same single call, so nobody is missing.",
                    RAISES: "Shapes and dtypes agree, and `limit / norm` is an ordinary division.",
                    AGREES: "They would agree if `scale` were computed from the mean. Is it?",
                    RIGHT: "It is right where no gradient reaches the limit. These do.",
                },
            ),
            because(
                "exam_a_because",
                "**Program A**, the cause:",
                "the norm is taken of the gradient before the all-reduce",
                "What an update depends on has to be the same on all ranks: take the norm of the mean, after the "
                "all-reduce.",
                ("the mean is divided by the number of ranks twice", "It is divided once, by `world_size`."),
                ("the all-reduce writes into the caller's gradient", "It would without `.clone()`."),
                ("the scale has an upper bound but no lower one", "A scale is never negative here."),
            ),
            does(
                "exam_b_does",
                "**Program B**, `exam_edges`, on four strips of three numbers:",
                HANGS,
                "Each rank waits in its first `recv` for a message with tag 0 from the left. What the left neighbour "
                "sends to the right has tag 1.",
                {
                    RAISES: "All ranks and tags are legal, and the lengths agree. Nothing looks wrong to any one rank.",
                    AGREES: "No two ranks should hold the same here. But does every `recv` get a message at all?",
                    DIFFERS: "It would be so if a `recv` took any message of the right length. Gloo looks at the tag, "
                    "too.",
                    RIGHT: "The two sends and the two receives look alike. Follow one message, with its tag, from "
                    "rank 0 to rank 1.",
                },
                elsewhere="**With NCCL**, which ignores tags, a message is taken in its turn. On three ranks or more "
                "that would be the right one, if single sends and receives get that far there: they belong into one "
                "`batch_isend_irecv`. (From torch's source and the reports below, not run.)",
            ),
            because(
                "exam_b_because",
                "**Program B**, the cause:",
                "a message has one tag for its sender and another for its receiver",
                "A tag names the direction in which a message travels: what comes *from* the left was sent *to* the "
                "right.",
                (
                    "the handles of `isend` are waited for after the calls of `recv`",
                    "That is the right order: the sends run in the background meanwhile.",
                ),
                (
                    "all ranks send before they receive, around a closed ring",
                    "With `send` this would be a cycle of waits. `isend` returns at once.",
                ),
                (
                    "the neighbours of the first and the last rank are computed wrongly",
                    "In Python, `-1 % 4` is 3, so the ring closes.",
                ),
            ),
            does(
                "exam_c_does",
                "**Program C**, `exam_load`, on matrices of 2 rows and 3 columns:",
                DIFFERS,
                "Rank 0 holds the transpose. The others have got its numbers in the order in which they lie in rank "
                "0's memory, which is that of `stored`.",
                {
                    HANGS: "Same call, same root, same number of bytes: each rank gets what it waits for.",
                    RAISES: "Both tensors are 3 by 2, and Gloo asks for no more.",
                    AGREES: "Print rank 0's `weight`: it does hold the transpose.",
                    RIGHT: "It would be right if a broadcast sent elements by their index. What does it send?",
                },
                elsewhere="**With NCCL** rank 0 raises an error: torch takes only contiguous tensors there. (From its "
                "source, not run.)",
            ),
            because(
                "exam_c_because",
                "**Program C**, the cause:",
                "`t()` leaves the numbers in memory as they were",
                "A transposed view has the strides (1, 3), an empty tensor of this shape has (2, 1). Only the memory "
                "travels. Make it contiguous before the call.",
                (
                    "`clone()` copies `stored` before it is transposed",
                    "That the copy comes first is no fault. Is the order of the two what makes it go wrong? `.t()."
                    "clone()` keeps the strides, too.",
                ),
                (
                    "`empty` makes a matrix with rows and columns swapped",
                    "The transpose of 2 by 3 is 3 by 2, which is what it makes.",
                ),
                (
                    "`broadcast` has a different tensor name on rank 0",
                    "It is called `weight` everywhere, and a name would not travel anyway.",
                ),
            ),
            does(
                "exam_d_does",
                "**Program D**, `exam_accuracy`, for 5 rows on four ranks, 2 each:",
                AGREES,
                "Three repeated rows count as if they were new: 8 entries of `hits` are averaged, and there are "
                "5 rows.",
                {
                    HANGS: "The sampler has seen to it that all ranks have as many rows, and each makes one call.",
                    RAISES: "`hits` are floats, so there is a mean, a tensor of the same shape on each rank.",
                    DIFFERS: "All get the same sum and divide it by the same 4.",
                    RIGHT: "It is the mean of all rows that were dealt out. Are these the rows of the test set?",
                },
            ),
            because(
                "exam_d_because",
                "**Program D**, the cause:",
                "the rows that fill up the last round count like all others",
                "No tool can see it. Count the rows that go into a metric, and compare with the size of the test set.",
                (
                    "the ranks average over different numbers of rows",
                    "All of them have equally many, so this is not the fault here.",
                ),
                ("the mean of ones and zeros is rounded on each rank", "A mean of floats is not rounded to 0 or 1."),
                (
                    "the order of the rows is not the same in each epoch",
                    "Nothing is shuffled here, and an accuracy does not depend on the order.",
                ),
            ),
            does(
                "exam_e_does",
                "**Program E**, `exam_deal`, for 9 rows on four ranks:",
                RAISES,
                "Rank 0 has three parts for four ranks, and `scatter` refuses the list. The other three ranks wait in "
                "`scatter` as well, for a rank that is gone: as in case 7, the error counts.",
                {
                    HANGS: "Ranks 1 to 3 wait, but for whom? Count the parts that rank 0 has.",
                    AGREES: "Each rank should hold something else here. But does it come that far?",
                    DIFFERS: "It would be so if the last rank's part were left as it was made. `scatter` wants a part "
                    "for each rank.",
                    RIGHT: "It is right for 8 rows. How long are the parts of 9 rows, and how many of them are there?",
                },
            ),
            because(
                "exam_e_because",
                "**Program E**, the cause:",
                "`chunk` may give fewer parts than it was asked for",
                "`x.chunk(4)` first decides on the length, 3, and then cuts: 3 + 3 + 3. Fill up with zeros first.",
                (
                    "`parts` is not known on the ranks other than rank 0",
                    "Only the root has to bring a list.",
                ),
                (
                    "`each` is rounded up where it should be rounded down",
                    "With 2 rows each, one of the nine would belong to nobody.",
                ),
                (
                    "`mine` has as many numbers on rank 0 as on the others",
                    "That is what `scatter` asks for, and what the card wants.",
                ),
            ),
        ),
    ),
)
