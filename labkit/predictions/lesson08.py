"""The predictions of lesson 08: an empty shard, a gradient that does not communicate, the order of a sum."""

from labkit.predictions.prediction import Option, Prediction

PREDICTIONS = (
    Prediction(
        name="mean_with_an_empty_shard",
        lesson="08",
        question="Every rank takes its own mean, and the ranks average their means. What comes out?",
        options=(
            Option(
                "the mean of all numbers",
                "That would be true if all ranks had equally many numbers. Here a rank with one number counts as much "
                "as a rank with many, and rank 0 has none at all.",
            ),
            Option(
                "a number that is too small",
                "That would be true without rank 0: a rank with one number would count as much as a rank with many, "
                "and the ranks with few numbers have the small ones. But rank 0 takes part.",
            ),
            Option("no number at all"),
        ),
        answer="no number at all",
        why="No number at all. Rank 0's shard is empty, the mean of nothing is `nan`, "
        "and one `nan` makes the sum of all ranks `nan`.",
    ),
    Prediction(
        name="gradient_of_the_statistics",
        lesson="08",
        question="`x` wants a gradient; the statistics come from `dist.all_reduce`. After backward, `x.grad` is …",
        options=(
            Option(
                "right",
                "That would be true if autograd saw the statistics change with `x`. It takes them for constants, "
                "since `dist.all_reduce` is not part of its graph.",
            ),
            Option("wrong, without an error"),
            Option(
                "refused with an error",
                "That would be kind. Autograd has nothing to refuse: "
                "it sees two tensors that need no gradient, and takes them for constants.",
            ),
        ),
        answer="wrong, without an error",
        why="It is wrong, and nothing says so, while the values are right. Every row moves the mean and the deviation "
        "of **all** rows, on all ranks; for autograd the statistics were two constants.",
    ),
    Prediction(
        name="order_of_a_sum",
        lesson="08",
        question="All eight places add the same numbers. After the all-reduce they hold …",
        options=(
            Option(
                "2 everywhere",
                "That would be true if nothing were rounded, as in float64 below it. In float32, 1e8 + 1 is 1e8: the 1"
                " is lost.",
            ),
            Option(
                "the same wrong number everywhere",
                "That would be true if all places were added up in the same order. A ring begins each part of the "
                "tensor at a different rank. (With only two ranks, or with a library that does not use a ring here, "
                "your ranks may have printed just that.)",
            ),
            Option("different numbers"),
        ),
        answer="different numbers",
        why="Different numbers, with four ranks on Gloo. In a ring, each part of the tensor starts its round at a "
        "different rank. So at different places the same numbers are added in different orders, and a 1 that meets"
        " 1e8 before −1e8 is lost.",
    ),
)
