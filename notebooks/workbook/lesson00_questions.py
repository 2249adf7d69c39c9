"""The predictions of lesson 00: where a cell runs, what becomes of equal models, and what would keep them equal."""

from labkit.grading.prediction import ask

where_is_x = ask("""
The next cell begins with `%%px`, and it makes a tensor `x`. How many tensors `x` are there afterwards?
( ) one, in this notebook
    > That is what a cell without `%%px` does. With it, the notebook only sends the code away.
( ) one, which the four ranks share
    > They could share it if they were threads of one process. Processes share no memory: each rank has made an `x` of
    its own, and each has printed different numbers.
(x) four, one on each rank
( ) five, one on each rank and one in this notebook
    > The notebook runs nothing of the cell. It sends the code away and shows what the ranks print. Try it: write `x`
    into a new cell, without `%%px`, and you get a `NameError`.
Why: Four, one on each rank (with a different number of ranks, as many as there are). `%%px` sends the cell to every
rank, and each rank runs it in its own process, with its own memory. All of them run the same code. Their numbers differ
because their `rank` does.
""")

after_one_step = ask("""
The four models are equal. Each rank now takes **one** training step on its share of the batch. What do the four ranks
hold in `model.output.weight[0, :3]` afterwards?
( ) the same numbers: they started from the same seed
    > The seed decided where they started. Where they go from there depends on the gradient, and each rank computed it
    from different text.
( ) the same numbers: the lab keeps the ranks' variables equal
    > Nothing does that. Each rank is a process with memory of its own, and what happens in one is unknown to the
    others until somebody sends it.
( ) nearly the same numbers: they differ only in the last digits
    > All the text is Python's documentation, and with enough rows from everywhere the gradients would be nearly
    equal. Each rank has only a few rows, from one part of the text, so its gradient is a rough estimate: look how
    far apart the numbers are.
(x) clearly different numbers on every rank
Why: Clearly different numbers on every rank, after a single step: each rank has followed a gradient of its own. From
here on there are four models, and no error tells you so.
""")

what_to_average = ask("""
Four ranks with 60 rows each should learn **exactly** what one process would learn from all 240 rows. What do they have
to average?
( ) the losses, in every step
    > The loss is a number to look at. The weights are moved by `p.grad`, and averaging the loss after `backward()`
    leaves every `p.grad` as it was.
(x) the gradients, in every step, before the weights change
( ) the weights, once, after the last step
    > Then each rank would have taken 99 steps away from models that were already different. The average of four
    models that were trained separately is not the model that was trained on everything.
Why: The gradients, in every step. The loss of 240 rows is a mean over rows, so it is the mean of the losses of four
equal shares. The gradient of a mean is the mean of the gradients. If every rank uses that mean, all ranks take the step
that one process with all 240 rows would take, and equal models stay equal.
""")
