"""The predictions of lesson 02: what a send does, when it returns, and what a message carries."""

from labkit.predictions.prediction import Option, Prediction

PREDICTIONS = (
    Prediction(
        name="message_is_a_copy",
        lesson="02",
        question="Rank 0 sends `x` to rank 1, which receives it into its own `x`. What do the two hold?",
        options=(
            Option(
                "rank 1 holds rank 0's numbers; rank 0 has none",
                "That would be true of a parcel. A message is a copy: the sender's memory is read, not emptied.",
            ),
            Option("both hold rank 0's numbers"),
            Option(
                "both hold the sum", "That is what an all-reduce leaves behind. A receive adds nothing: it overwrites."
            ),
        ),
        answer="both hold rank 0's numbers",
        why="Both hold rank 0's numbers: a message is a **copy**. Rank 0 keeps its `x`. Rank 1 brought a tensor of the"
        " right size, and `recv` filled it: what was in it is gone.",
    ),
    Prediction(
        name="late_receiver",
        lesson="02",
        question="Rank 1 receives a second late. When does rank 0 come out of its `send`?",
        options=(
            Option(
                "at once: the bytes are on their way",
                "That would be true if the library copied small messages into a buffer of its own, as many MPI "
                "libraries do. Gloo does not.",
            ),
            Option("a second later: when rank 1 receives"),
            Option(
                "never: the send has failed",
                "A send that nobody has answered yet has not failed. It waits until the receiver comes or the time-out"
                " ends it.",
            ),
        ),
        answer="a second later: when rank 1 receives",
        why="A second later. On Gloo, **a send is a rendezvous**: sender and receiver meet, and whoever comes first "
        "waits for the other, even for 12 bytes. Rank 0's `send` takes as long as rank 1 is late, and all of that "
        "time is waiting.",
    ),
    Prediction(
        name="everyone_sends_first",
        lesson="02",
        question="Every rank sends to its right-hand neighbour, then receives from its left-hand one. What happens?",
        options=(
            Option(
                "every rank gets its left neighbour's number",
                "That would be true if `send` returned before anybody received. Here it waits for the receiver, "
                "and every receiver is itself still waiting in its own `send`.",
            ),
            Option("nobody gets anything: all wait"),
            Option(
                "only rank 0 gets something",
                "That would need one rank that receives first, and there is none: all ranks run the same lines.",
            ),
        ),
        answer="nobody gets anything: all wait",
        why="Nobody gets anything. Every rank waits in its `send` until its right-hand neighbour receives, "
        "and that neighbour waits in its own `send`. More time does not help.",
    ),
    Prediction(
        name="written_too_early",
        lesson="02",
        question="Rank 0 holds 1.0, calls `isend`, then writes 99.0 into the tensor, then waits. What does a late rank"
        " 1 receive?",
        options=(
            Option("1.0", "That would be true if `isend` made a copy of the tensor when it is called. It makes none."),
            Option("99.0"),
            Option("an error", "Nothing watches the tensor, so nobody notices that it was changed."),
        ),
        answer="99.0",
        why="99.0: `isend` keeps no copy. It reads your tensor when the receiver is there.",
    ),
    Prediction(
        name="floats_into_integers",
        lesson="02",
        question="Rank 0 sends the floats [1.0, 2.0]. Rank 1 receives them into integers (int32). What does rank 1 "
        "hold?",
        options=(
            Option(
                "[1, 2]",
                "That would be true if the receiver converted the numbers. It does not know that they were floats.",
            ),
            Option("an error", "That would be true if the dtype travelled with the message. Only the bytes do."),
            Option("two other numbers"),
        ),
        answer="two other numbers",
        why="Two other numbers: a message is **bytes**. Neither dtype nor shape travels with it, and nobody compares "
        "them. 1065353216 is how the float 1.0 looks when its 32 bits are read as an integer.",
    ),
)
