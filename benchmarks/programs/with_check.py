"""Checks exercises on four ranks when it is told to: `with_check.py`, then "right NAME" or "wrong NAME" and "go".

It answers 0 once the function is on the ranks, and after "go" with the verdict and the seconds that it took.
"""

import json
import os
import sys
import time

os.environ["LABKIT_PROGRESS"] = os.path.join(os.environ["TMPDIR"], "progress")
from labkit import start
from labkit.content import exercises

WRONG = """
_right = {name}

def {name}(*args, **options):
    def off(value):
        if isinstance(value, (list, tuple)):
            return type(value)(map(off, value))
        if isinstance(value, dict):
            return {{key: off(entry) for key, entry in value.items()}}
        return value + 1 if isinstance(value, (int, float, torch.Tensor)) else value
    result = off(_right(*args, **options))
    if {in_place}:
        args[0].add_(1)
    return result
"""


with start(4, "gloo", timeout=10) as lab:
    print("@ 0", flush=True)
    for line in map(str.split, sys.stdin):
        if line == ["stop"]:
            break
        how, name = line
        exercise = exercises.find(name)
        source = exercise.answer.removeprefix("%%px\n")
        lab.run(source + (WRONG.format(name=name, in_place=exercise.in_place) if how == "wrong" else ""))
        print("@ 0", flush=True)
        sys.stdin.readline()
        began = time.perf_counter()
        verdict = lab.check(name)
        told = {"state": verdict.state, "seconds": time.perf_counter() - began}
        print("@ " + json.dumps(told), flush=True)
