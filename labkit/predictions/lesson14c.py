"""The diagnoses of lesson 14c, the exam: what each of five programs does, and why."""

from labkit.predictions.prediction import Option, Prediction, Series


def diagnosis(name: str, question: str, answer: str, why: str, *wrong: tuple[str, str]) -> Prediction:
    """A question whose right answer stands among the wrong ones at a place that its name decides."""
    options = [Option(text, reply) for text, reply in wrong]
    options.insert(sum(map(ord, name)) % (len(options) + 1), Option(answer))
    return Prediction(name=name, lesson="14c", question=question, options=tuple(options), answer=answer, why=why)


PREDICTIONS = (
    Series(
        name="exam_diagnosis",
        lesson="14c",
        question="Two questions about each program: what does it do on four ranks, and what is the cause?",
        parts=(
            diagnosis(
                "exam_a_does",
                "**Program A**, `exam_clip`, on four different gradients, some of them steeper than the limit:",
                "it ends well, and the ranks return different gradients",
                "Each rank scales the same mean by a factor of its own, so the weights drift apart.",
                ("it hangs", "All ranks make the same single call: nobody waits for long."),
                (
                    "it ends well, and all ranks return the same wrong gradient",
                    "They would, if the factor were computed from the mean.",
                ),
                ("it raises", "Shapes and dtypes agree, and a norm of 0 only makes an infinity, which is clamped."),
            ),
            diagnosis(
                "exam_a_because",
                "**Program A**, the cause:",
                "`scale` is computed from this rank's own gradient",
                "What an update depends on has to be the same on all ranks: compute the norm after the all-reduce.",
                ("the mean is divided twice", "It is divided once, by `world_size`."),
                ("`all_reduce` changes the caller's gradient", "It would without `.clone()`."),
                ("`torch.clamp` has no lower bound", "A scale is never negative here."),
            ),
            diagnosis(
                "exam_b_does",
                "**Program B**, `exam_epoch`, where rank 3 has 2 batches and the others have 3:",
                "ranks 0 to 2 wait in their third `all_reduce`",
                "Rank 3 has left the loop, and each rank calls as many times as it has batches.",
                ("rank 3 waits for the others", "Rank 3 has left the loop and returns."),
                (
                    "it ends well, without the third batches",
                    "A rank that has a batch calls, and the call waits for everybody.",
                ),
                ("it raises on rank 3", "The end of a loop is no error."),
            ),
            diagnosis(
                "exam_b_because",
                "**Program B**, the cause:",
                "the number of calls depends on a rank's own data",
                "Agree on the number of steps first, or drop what is left over before the loop begins.",
                ("the batches have different lengths", "Each batch is one number here, so the calls themselves agree."),
                (
                    "rank 3 makes its third call late, after it has stacked its sums",
                    "It makes none: it returns after two.",
                ),
                (
                    "`torch.stack` needs tensors of equal length on all ranks",
                    "It is a local function. It knows no other rank.",
                ),
            ),
            diagnosis(
                "exam_c_does",
                "**Program C**, `exam_load`, with two tensors of the same shape:",
                "ranks 1 to 3 end well, with `query` and `key` swapped",
                "Rank 0 sends its key first, and the others take it for the query.",
                (
                    "all ranks end well, with the right tensors",
                    "They would, if the dictionaries were filled in the same order.",
                ),
                ("it hangs in the first broadcast", "Same root, same bytes: the calls fit together."),
                ("it raises, as the names differ", "A name is in no message."),
            ),
            diagnosis(
                "exam_c_because",
                "**Program C**, the cause:",
                "a dictionary keeps the order in which it was filled, and the ranks filled theirs differently",
                "The order of the calls must not depend on how a rank has made its dictionary: sort the names.",
                ("`src=0` is not the same rank everywhere", "`src` is a rank of the whole job, the same for all."),
                (
                    "a broadcast from rank 0 does not write into the other ranks' tensors",
                    "It does: that is how they get what rank 0 has.",
                ),
                ("two broadcasts may overtake each other", "Not in one group: calls keep their order."),
            ),
            diagnosis(
                "exam_d_does",
                "**Program D**, `exam_accuracy`, for 5 rows on four ranks, 2 each:",
                "it ends well with the same wrong number on all ranks",
                "Three repeated rows count as if they were new: 8 hits are averaged, and there are 5 rows.",
                (
                    "it ends well with a different number on each rank",
                    "All get the same sum and divide it by the same 4.",
                ),
                (
                    "it hangs, because the ranks have different numbers of rows",
                    "The sampler has seen to it that they have the same number.",
                ),
                (
                    "it is right: every rank has the same number of rows, so a mean of means is the mean",
                    "It is the mean of all rows dealt out, and some of those are the same row.",
                ),
            ),
            diagnosis(
                "exam_d_because",
                "**Program D**, the cause:",
                "the rows that fill up the last round are counted twice",
                "No tool can see it. Count the rows that go into a metric, and hold that against the size of the "
                "test set.",
                (
                    "a mean of means, over different numbers of rows",
                    "All ranks have equally many, so this is not the fault here.",
                ),
                ("`hits.mean()` rounds", "It would raise if `hits` were integers; a mean of floats is not rounded."),
                (
                    "the shards overlap because no `set_epoch` was called",
                    "That shuffles training data alike in every epoch. Here nothing is shuffled.",
                ),
            ),
            diagnosis(
                "exam_e_does",
                "**Program E**, `exam_pairs`, on four ranks:",
                "it raises on ranks 2 and 3",
                "Their pair has no rank 0. Ranks 0 and 1 are right, so a test on two ranks passes.",
                (
                    "it hangs: not all ranks call `broadcast`",
                    "Only the members of a pair have to. All ranks call `new_group`, as they should.",
                ),
                ("it ends well, and all ranks hold rank 0's `x`", "A broadcast stays within its group."),
                ("it raises on all ranks", "Rank 0 is a member of the first pair."),
            ),
            diagnosis(
                "exam_e_because",
                "**Program E**, the cause:",
                "`src` is a rank of the whole job, not a place in the group",
                "In the pair (2, 3) there is no rank 0. Write `src=first`, or `group_src=0`.",
                ("`new_group` has to be called by the members only", "All ranks have to call it, and all do."),
                (
                    "the second `new_group` replaces the first, so ranks 0 and 1 broadcast in the wrong group",
                    "Each group stays what it is, and each rank uses the one that it is in.",
                ),
                ("`got` is not defined on every rank", "Every rank is in one of the pairs."),
            ),
        ),
    ),
)
