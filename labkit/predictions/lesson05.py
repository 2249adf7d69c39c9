"""The predictions of lesson 05: who waits for a late rank, and what a clock says."""

from labkit.predictions.prediction import Option, Prediction

PREDICTIONS = (
    Prediction(
        name="late_to_a_barrier",
        lesson="05",
        question="Rank 2 comes late to `dist.barrier()`. Who is held up by it?",
        options=(
            Option(
                "its neighbours, ranks 1 and 3",
                "That would be true if a rank only had to hear from its neighbours. Nobody may leave before "
                "**everybody** has come.",
            ),
            Option("rank 0, which leads", "A barrier has no leader: its promise is the same for every rank."),
            Option("all the others"),
        ),
        answer="all the others",
        why="All the others. A barrier costs everybody the time of the **latest** rank, and its own messages on top. "
        "The late rank itself waits for nobody.",
    ),
    Prediction(
        name="which_calls_are_barriers",
        lesson="05",
        question="Nine calls, rank 1 late to each. In how many does every other rank wait for it?",
        options=(
            Option(
                "in all nine",
                "Many tutorials say that every collective is an implicit barrier. "
                "Look at the last four: ranks that need nothing from rank 1 have left.",
            ),
            Option("in five: those without a root"),
            Option(
                "in one: the barrier",
                "That would be true if the other calls could end without rank 1's data. No total is complete without "
                "its part.",
            ),
        ),
        answer="in five: those without a root",
        why="In five. There, every rank's result depends on **every** rank: no total without rank 1's part. "
        "They hold everybody up, so they act as barriers.",
    ),
    Prediction(
        name="load_without_a_barrier",
        lesson="05",
        question="Rank 0 needs 0.3 s to save. The other ranks load at once. What do they get?",
        options=(
            Option(
                "the model", "That would be true if they came later than rank 0 finishes. They are 0.3 s too early."
            ),
            Option("an error: there is no such file"),
            Option(
                "they wait for rank 0", "A file system knows nothing of ranks: nothing ties the readers to the writer."
            ),
        ),
        answer="an error: there is no such file",
        why="They get an error: nothing ties the readers to the writer. With less luck they load an older file, "
        "or half of a new one, and nobody notices.",
    ),
    Prediction(
        name="spread_of_readings",
        lesson="05",
        question="Take twenty readings instead of one. How far apart are the longest and the shortest?",
        options=(
            Option(
                "at most 10 %",
                "That would be true of a machine that does nothing else. "
                "Here the ranks share cores with each other and with everything that runs.",
            ),
            Option("more than 10 %"),
        ),
        answer="more than 10 %",
        why="More than 10 %, so one reading says next to nothing.",
    ),
    Prediction(
        name="price_of_more_bytes",
        lesson="05",
        question="16 MiB are 262,144 times 64 bytes. How much longer does it take to all-reduce them?",
        options=(
            Option(
                "about 262,144 times",
                "That would be true if each byte had its price and the call itself cost nothing.",
            ),
            Option("more than twice, less than ten thousand times"),
            Option(
                "at most twice",
                "That would be true if only the call itself cost time. Copying 16 MiB takes time as well.",
            ),
        ),
        answer="more than twice, less than ten thousand times",
        why="More than twice, and far less than 262,144 times. A message has a price of its own, whatever its size: "
        "the flat part of the curve.",
    ),
)
