"""The predictions of lesson 00: where a cell runs, what becomes of equal models, and what would keep them equal."""

from labkit.predictions.prediction import Option, Prediction

PREDICTIONS = (
    Prediction(
        name="who_runs_a_cell",
        lesson="00",
        question="The next cell begins with `%%px`. How many times does its `print` run?",
        options=(
            Option(
                "once, in this notebook",
                "That is what happens to a cell without `%%px`. With it, the notebook only sends the code away.",
            ),
            Option(
                "four times, and it prints the same line each time",
                "It would print the same line if `rank` were the same everywhere. The code is the same; `rank` is not.",
            ),
            Option("four times, and each line is different"),
        ),
        answer="four times, and each line is different",
        why="Four times, with four different lines (with a different number of ranks, as many as there are). `%%px` "
        "sends the cell to every rank, and each rank runs it in its own process. All of them run the same code. They "
        "differ in one number, their `rank`.",
    ),
    Prediction(
        name="after_one_step",
        lesson="00",
        question="The four models are equal, and each rank has a batch of its own. Each rank now takes **one** "
        "training step. What do the four ranks hold in `model.output.weight[0, :3]` afterwards?",
        options=(
            Option(
                "the same numbers: they started from the same seed",
                "The seed decided where they started. Where they go from there depends on the gradient, and each rank "
                "computed it from different text.",
            ),
            Option(
                "the same numbers: the lab keeps the ranks' variables equal",
                "Nothing does that. Each rank is a process with memory of its own, and what happens in one is unknown "
                "to the others until somebody sends it.",
            ),
            Option("different numbers on every rank"),
        ),
        answer="different numbers on every rank",
        why="Different numbers on every rank, from the very first step on. The differences are small so far: each rank "
        "has taken one step, in a slightly different direction.",
    ),
    Prediction(
        name="what_to_average",
        lesson="00",
        question="Four ranks with 60 rows each should learn **exactly** what one process would learn from all 240 "
        "rows. What do they have to average?",
        options=(
            Option(
                "the losses, in every step",
                "The loss is a number to look at. The weights are moved by `p.grad`, and averaging the loss after "
                "`backward()` leaves every `p.grad` as it was.",
            ),
            Option("the gradients, in every step, before the weights change"),
            Option(
                "the weights, once, after the last step",
                "Then each rank would have taken 99 steps away from models that were already different. The average of "
                "four models that were trained separately is not the model that was trained on everything.",
            ),
        ),
        answer="the gradients, in every step, before the weights change",
        why="The gradients, in every step. The loss of 240 rows is a mean over rows, so it is the mean of the losses "
        "of four equal shares. The gradient of a mean is the mean of the gradients. If every rank uses that mean, all "
        "ranks take the step that one process with all 240 rows would take, and equal models stay equal.",
    ),
)
