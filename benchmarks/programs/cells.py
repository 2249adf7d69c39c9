"""The part of a program that is the same with and without labkit: time `%%px` cells and stop() on request."""

import contextlib
import io
import json
import sys
import time

WARM_UPS = 3


def answer(shell, magics, stop, first):
    """Say that all is up, then obey stdin: `cells N` times N trivial cells per magic, `stop` times the end."""
    say({"first": first})
    for line in sys.stdin:
        command, *count = line.split()
        if command == "cells":
            say(trivial_cells(shell, magics, int(count[0])))
        elif command == "stop":
            began = time.perf_counter()
            stop()
            say({"stop": time.perf_counter() - began})
            return


def say(message):
    """One line for the benchmark."""
    print("@ " + json.dumps(message), flush=True)


def trivial_cells(shell, magics, count):
    """Milliseconds of each round trip by magic, the magics taking turns cell by cell."""
    samples = {name: [] for name in magics}
    for i in range(WARM_UPS + count):
        for name, options in magics.items():
            shown = io.StringIO()
            with contextlib.redirect_stdout(shown):
                began = time.perf_counter()
                shell.run_cell_magic("px", options, "1")
                took = time.perf_counter() - began
            assert "1" in shown.getvalue(), f"{name} showed {shown.getvalue()!r}"
            if i >= WARM_UPS:
                samples[name].append(1000 * took)
    return samples
