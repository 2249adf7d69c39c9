"""The predictions of lesson 06: who is busy, and how much each rank sends."""

from labkit.predictions.prediction import Option, Prediction

PREDICTIONS = (
    Prediction(
        name="busy_rank",
        lesson="06",
        question="Of all the messages that this takes, how many go through rank 0?",
        options=(
            Option(
                "one in N",
                "One in N would be rank 0's share if all ranks had the same amount of work. Here every message has "
                "rank 0 at one of its ends.",
            ),
            Option(
                "half of them",
                "Half of the messages go *to* rank 0. The other half come *from* it: it also has to send the total "
                "back.",
            ),
            Option("all of them"),
        ),
        answer="all of them",
        why="All of them: every message either brings a rank's `x` to rank 0 or takes the total back from it. That is "
        "2 (N - 1) messages of S bytes, and because rank 0 handles one at a time, they take 2 (N - 1) steps.",
    ),
    Prediction(
        name="ring_bytes",
        lesson="06",
        question="Reduce-scatter, then all-gather, round the ring. How much does each rank send, if N is large?",
        options=(
            Option(
                "nearly S / N",
                "S / N is the size of one chunk, so it is what a rank sends in one step. There are 2 (N - 1) steps.",
            ),
            Option("nearly 2 S, whatever N is"),
            Option(
                "nearly N S",
                "That would be true if each rank passed on whole buffers, as in the recipe before. "
                "Here it passes on one chunk a step, and the chunks get smaller as N grows.",
            ),
        ),
        answer="nearly 2 S, whatever N is",
        why="Nearly 2 S. Every rank sends a chunk, S / N bytes, in each of 2 (N - 1) steps: 2 S (N - 1) / N. "
        "With more ranks there are more steps, and the chunks are smaller: **N cancels out of the bytes**.",
    ),
)
