"""The predictions of lesson 07: the price of a small message, of Gloo's reduce-scatter, of a very large ring."""

from labkit.predictions.prediction import Option, Prediction

PREDICTIONS = (
    Prediction(
        name="thousand_times_the_bytes",
        lesson="07",
        question="The buffer grows from 64 bytes to 64 KiB, a thousand times. The time of an all-reduce grows …",
        options=(
            Option(
                "about a thousand times",
                "That would be true if each byte had its price and the call itself cost nothing.",
            ),
            Option(
                "ten to a hundred times",
                "That would be true if the call itself cost as much as a few thousand bytes. It costs more than that.",
            ),
            Option("less than ten times"),
        ),
        answer="less than ten times",
        why="Less than ten times. In the left picture the curve is level on the "
        "left: there a call costs what it costs to get messages under way, whatever is in them. "
        "Further to the right it rises with the bytes.",
    ),
    Prediction(
        name="gloos_reduce_scatter",
        lesson="07",
        question="Gloo on CPUs, a buffer of 4 MiB a rank. Against an all-reduce, its reduce-scatter sends …",
        options=(
            Option(
                "half the bytes",
                "That is what the table says, and what a real reduce-scatter sends. Compare the columns *sent* and "
                "*textbook*: Gloo sends twice as much as it needs to.",
            ),
            Option("as many bytes"),
            Option(
                "twice the bytes",
                "It does send twice the bytes of the textbook's reduce-scatter. That is as many as one all-reduce "
                "sends.",
            ),
        ),
        answer="as many bytes",
        why="As many. Gloo runs an **all-reduce** under it and throws away what a rank does not keep.",
    ),
    Prediction(
        name="ring_of_100000",
        lesson="07",
        question="8 bytes, a ring through 100,000 GPUs. How long until all have the sum?",
        options=(
            Option(
                "20 µs",
                "That is the time of a few messages. In a ring the sum passes through all 100,000 GPUs one after the "
                "other, so the latencies add up.",
            ),
            Option(
                "20 ms",
                "That would be true at 0.1 µs a step. A message between two GPUs takes some microseconds, "
                "and there are two steps for each GPU.",
            ),
            Option("about a second"),
        ),
        answer="about a second",
        why="About a second: see *flat ring* above. There are two steps for each GPU, and each takes a few "
        "microseconds. Latency alone makes a flat ring useless at this size.",
    ),
)
