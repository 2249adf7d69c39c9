"""The predictions of lesson 11b: where FSDP sums, what gathering ahead hides, and whose rank counts."""

from labkit.predictions.prediction import Option, Prediction, Trap

WHERE_SUMS = Prediction(
    name="where_fsdp_sums",
    lesson="11b",
    question=(
        "Rank 0's gradient is 256, and every other rank's is 1. `MixedPrecisionPolicy(param_dtype=torch.bfloat16)` "
        "says nothing about sums. The weights and their gradients are float32 afterwards. With four ranks the true "
        "mean is 64.75. What does FSDP find?"
    ),
    options=(
        Option(
            "64.75 everywhere: the gradients are float32",
            "That would be true if the gradients were float32 when they are added. They are turned into float32 after "
            "the sum.",
        ),
        Option("64 at some places, 65 at others"),
        Option(
            "64.5 everywhere: bfloat16's nearest number",
            "Near 64, bfloat16 can hold 64 and 64.5 and 65, and so this would be the result of one rounding at the "
            "end. But every addition is rounded, and near 256 bfloat16 holds even numbers only.",
        ),
        Option(
            "inf: 256 is too large for 16 bits",
            "That would be a matter of range, as in fp16 from 65,504 on. bfloat16 has float32's range, and what it "
            "lacks is digits.",
        ),
    ),
    answer="64 at some places, 65 at others",
    why=(
        "64 at some places and 65 at others. Without a `reduce_dtype`, FSDP adds in `param_dtype`: in bfloat16 256 + 1 "
        "is 256 again, and a 1 survives only where it meets other ones first. Which places these are depends on the "
        "ring."
    ),
)

AHEAD = Prediction(
    name="what_prefetching_hides",
    lesson="11b",
    question=(
        "A model of equal layers: gathering a layer takes 3 ms, and computing it takes 2 ms. Every layer is gathered "
        "while the one before it computes. How long does a forward pass of 10 layers take, in ms?"
    ),
    answer=32.0,
    unit="ms",
    within=0.05,
    why=(
        "32 ms. Nothing can hide the first gather: 3 ms. From then on the network is what limits: nine gathers of 3 "
        "ms, each hiding 2 ms of computing behind it. After the last one the tenth layer computes: 3 + 27 + 2."
    ),
    traps=(
        Trap(50, "This is the time without any overlap: ten times 3 + 2."),
        Trap(20, "This is the computing alone. A layer cannot compute faster than its weights come."),
        Trap(23, "That would be true if computing were the slower one. Here gathering takes longer."),
        Trap(30, "These are the ten gathers. The last layer still has to compute."),
    ),
)

RANK_OF_GROUP = Prediction(
    name="rank_of_the_world",
    lesson="11b",
    question=(
        "Four ranks in a 2 × 2 mesh: ranks 0 and 1 share one copy of the model, ranks 2 and 3 the other. The code "
        "takes the shard `weights.chunk(2)[rank % 2]`, with the rank of the **world**. It works. Then the mesh is "
        "laid out the other way: ranks 0 and 2 share a copy, and ranks 1 and 3. What happens?"
    ),
    options=(
        Option(
            "nothing changes: `rank % 2` is the place in a group of two",
            "That would be true if neighbours were in one group. Ranks 0 and 2 are now, and both have remainder 0.",
        ),
        Option(
            "an error: rank 2 asks for a part that does not exist",
            "That would be true of `chunk(2)[rank]`. The remainder is always 0 or 1, so no error comes.",
        ),
        Option("each copy has one half of the weights twice, and the other half not at all"),
        Option(
            "the two copies swap their halves, and all is well again",
            "That would be true if ranks 0 and 2 took different halves. Both take the first one.",
        ),
    ),
    answer="each copy has one half of the weights twice, and the other half not at all",
    why=(
        "Each copy has one half twice: ranks 0 and 2 both take the first half, ranks 1 and 3 both the second one. "
        "Nothing raises, because all shapes fit. The place within the group is what you need: "
        '`mesh.get_local_rank("shard")`, or `dist.get_rank(group)`.'
    ),
)

PREDICTIONS = (AHEAD, WHERE_SUMS, RANK_OF_GROUP)
