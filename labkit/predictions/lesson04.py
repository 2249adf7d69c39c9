"""The predictions of lesson 04: what the collectives without a root leave behind."""

from labkit.predictions.prediction import Option, Prediction

PREDICTIONS = (
    Prediction(
        name="totals_of_all_reduce",
        lesson="04",
        question="Every rank calls `dist.all_reduce` on its numbers. What does rank 1 hold afterwards?",
        options=(
            Option(
                "one number: the sum of all",
                "That would be true if it also added up the numbers of each rank. It adds over the ranks only.",
            ),
            Option("the sums over the ranks, place by place"),
            Option("all numbers, one after the other", "That is an all-gather. A reduce combines the ranks' numbers."),
        ),
        answer="the sums over the ranks, place by place",
        why="It holds the sums over the ranks, place by place, and so does every other rank.",
    ),
    Prediction(
        name="part_of_reduce_scatter",
        lesson="04",
        question="After `dist.reduce_scatter(mine, chunks)`, what does rank 1 hold in `mine`?",
        options=(
            Option(
                "the sum of its own chunks",
                "That would need no other rank. The sums go over the ranks, chunk by chunk.",
            ),
            Option("the sum of everyone's chunk 1"),
            Option(
                "chunk 1 of rank 0",
                "That would be true of a scatter from rank 0. Here all ranks bring chunks, and they are added.",
            ),
        ),
        answer="the sum of everyone's chunk 1",
        why="It holds the sum of everyone's chunk 1. Rank *r* keeps the sum of all chunks with number *r*, "
        "and nobody holds the whole total.",
    ),
    Prediction(
        name="mean_of_means",
        lesson="04",
        question="Is the mean of the ranks' means the mean of all numbers?",
        options=(
            Option(
                "yes", "That would be true if all ranks had equally many numbers. Here rank *r* has *r* + 1 of them."
            ),
            Option("no: it is too small here"),
            Option(
                "no: it is too large here",
                "That would be true if the ranks with few numbers had the large ones. Here they have the small ones.",
            ),
        ),
        answer="no: it is too small here",
        why="No, it is too small. The mean of the means lets a rank with one number count as much as a rank with many.",
    ),
    Prediction(
        name="column_of_a_table",
        lesson="04",
        question="On Gloo, which places of `table` does `dist.all_reduce(table[:, 0])` add up over the ranks?",
        options=(
            Option(
                "the first column",
                "That would be true if Gloo followed the tensor's strides. It takes a stretch of memory, and a column "
                "is none.",
            ),
            Option("the first two places of the first row"),
            Option("none: it raises", "That is what NCCL does, according to torch's source. Gloo does not look."),
        ),
        answer="the first two places of the first row",
        why="It adds up the first two places of the first row. The picture has `table` row by row, as it lies in "
        "memory. The column is its first place and the one where the second row begins. Gloo takes two numbers "
        "from the column's address on, neighbours, and does not say so.",
    ),
)
