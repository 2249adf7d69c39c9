"""labkit beside others that start at the same moment: four ranks and an all-reduce; "all" takes no turns."""

import functools
import sys
import time

from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()  # a notebook has one; part of what is timed

from labkit import start, starting  # noqa: E402
from labkit.cluster import start_queue  # noqa: E402

if sys.argv[1:] == ["all"]:
    starting.turn = functools.partial(start_queue.turn, at_once=1000)

lab = start(4)
said = lab.run("x = torch.ones(1); dist.all_reduce(x); print(x.item())")
first = time.monotonic()
assert said == ["4.0\n"] * 4, said

from cells import answer  # noqa: E402

answer(shell, {}, lab.stop, first)
