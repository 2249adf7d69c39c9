"""The predictions of lesson 03: what is left of a tensor, and who waits for whom."""

from labkit.predictions.prediction import Option, Prediction

PREDICTIONS = (
    Prediction(
        name="left_after_broadcast",
        lesson="03",
        question="Every rank holds numbers in `x`. What is left of rank 1's after `dist.broadcast(x, src=0)`?",
        options=(
            Option("nothing: rank 0's are in their place"),
            Option("all: they are added to rank 0's", "Adding is what a reduce does. A broadcast only copies."),
            Option(
                "all: the result is returned",
                "That would be true if `broadcast` worked out of place. It returns `None` and writes into your `x`.",
            ),
        ),
        answer="nothing: rank 0's are in their place",
        why="Nothing is left. On the root `x` is the message, on all other ranks it is the room for it: "
        "`broadcast` works in place and returns `None`.",
    ),
    Prediction(
        name="one_rank_raises",
        lesson="03",
        question="Rank 0's `scatter` raises a `TypeError`, before anything is sent. And the other ranks?",
        options=(
            Option(
                "they raise as well",
                "That would be true if they had passed the same list. They passed `None`, "
                "which is right for them, and nobody tells them of rank 0's error.",
            ),
            Option("they wait for rank 0"),
            Option(
                "they go on with empty chunks",
                "A receiver does not go on without what it was promised: its part has not come, so it waits for it.",
            ),
        ),
        answer="they wait for rank 0",
        why="They wait for rank 0, which will never send: one rank's mistake is everyone's wait.",
    ),
    Prediction(
        name="left_after_reduce",
        lesson="03",
        question="After `dist.reduce(local_loss, dst=0)`, what do the ranks other than 0 hold in it?",
        options=(
            Option(
                "what they brought",
                "Many tutorials say so, and some ranks may show it. But partial sums pass through the other ranks' "
                "tensors on their way to the root.",
            ),
            Option("the sum, as rank 0 does", "That would be an all-reduce. A reduce owes the sum to the root alone."),
            Option("nothing that they can rely on"),
        ),
        answer="nothing that they can rely on",
        why="Nothing that they can rely on. Rank 0 has the sum; on the other ranks the content is **undefined**. "
        "With four ranks on Gloo, `[1, 2, 3, 4]` became `[10, 9, 7, 4]`: rank 3 passed its 4 on, rank 2 added its 3, "
        "rank 1 its 2, and each of them kept the sum as it went by.",
    ),
)
