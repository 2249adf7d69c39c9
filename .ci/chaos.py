"""A seeded chaos soak: random faults in a row at a real notebook, a right answer after each, and nothing leaked.

python .ci/chaos.py --faults=200               # with a seed of its own, which it prints first; `make soak` runs it
python .ci/chaos.py --seed=57 --faults=200     # the same faults again
python .ci/chaos.py --seed=57 --only=103       # one of them alone
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random, SystemRandom

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / ".ci")]

from chaos_census import Census  # noqa: E402
from chaos_faults import FAULTS, RESTART  # noqa: E402
from chaos_lab import Learner, learner  # noqa: E402

MARK = "LABKIT_CHAOS"
WARM_UP = [  # what is imported, drawn and connected late, and kept
    "the fork server is killed, then a rank",
    "the controller is killed between two cells",
    "Stop in a call of the lab",
    "a hang is looked at",
]


def plan(seed: int, faults: int) -> Iterator[tuple[int, str, Random]]:
    """The faults by number, each with random choices of its own; no kind comes again before all have come."""
    shuffle, deck = Random(seed), []
    for number in range(1, faults + 1):
        if not deck:
            deck = sorted(FAULTS)
            shuffle.shuffle(deck)
        yield number, deck.pop(), Random(f"{seed}/{number}")


class Soak:
    """Suffers faults one after another, and keeps count; after one that was not recovered from, in a new notebook."""

    def __init__(self, seed: int, every: int) -> None:
        self.seed = seed
        self.every = every  # faults between two counts of what the lab has
        self.seconds: dict[str, list[float]] = defaultdict(list)  # to the next right result, by fault
        self.unrecovered: list[str] = []
        self.leaked: list[str] = []
        self._since = 0  # faults since the last count

    def run(self, faults: Iterator[tuple[int, str, Random]]) -> None:
        """Suffer all of them."""
        faults, more = iter(faults), True
        while more:
            with learner(MARK) as who:
                more = self._in(who, faults)

    def _in(self, who: Learner, faults: Iterator[tuple[int, str, Random]]) -> bool:
        """Suffer faults in one notebook; whether there may be more of them, for another one."""
        before = self._warm(who)
        for number, name, draw in faults:
            self._since += 1
            if name == RESTART:  # what there was is counted now or never
                self._count(who, before, number)
            try:
                took = self.suffer(who, name, draw)
            except Exception as error:
                again = f"python .ci/chaos.py --seed={self.seed} --only={number}"
                self.unrecovered.append(f"fault {number} was not recovered from: {name}. Alone: {again}")
                print(f"{number:4} {name} {who.detail}: NOT RECOVERED", flush=True)
                traceback.print_exception(error, file=sys.stdout)
                return True
            self.seconds[name].append(took)
            print(f"{number:4} {name}{f' ({who.detail})' if who.detail else ''}: {took:.1f} s", flush=True)
            if name == RESTART:
                before = self._warm(who)
            if self._since >= self.every and self._count(who, before, number):
                return True
        return self._count(who, before, 0)

    def _warm(self, who: Learner) -> Census:
        """Let a new kernel and its lab have what they get once; what there is then."""
        for k, name in enumerate(WARM_UP):
            who.right()
            self.suffer(who, name, Random(k))
        return who.census()

    def _count(self, who: Learner, before: Census, number: int) -> bool:
        self._since = 0
        now = who.census()
        print(f"{number:4} counted: {now}", flush=True)
        grown = now.grown(before)
        self.leaked += grown
        for what in grown:
            print(f"{number:4} LEAKED {what}", flush=True)
        return bool(grown) and number > 0

    def suffer(self, who: Learner, name: str, draw: Random) -> float:
        """Let one fault happen; the seconds until the next right result."""
        who.draw, who.detail = draw, ""
        began = time.monotonic()
        FAULTS[name](who, draw)
        who.right()
        return time.monotonic() - began


def main() -> int:
    """Suffer, report, and return 0 where all was recovered from and nothing has leaked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(10**6))
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--only", type=int, help="the number of the one fault to suffer")
    parser.add_argument("--kind", help="the name of the one kind of fault to suffer")
    parser.add_argument("--every", type=int, default=20, help="faults between two counts of what the lab has")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    soak = Soak(options.seed, options.every)
    soak.run(
        (number, name, draw)
        for number, name, draw in plan(options.seed, options.only or options.faults)
        if number == (options.only or number) and name == (options.kind or name)
    )
    report(soak.seconds)
    done = sum(map(len, soak.seconds.values())) + len(soak.unrecovered)
    for what in [*soak.unrecovered, *soak.leaked]:
        print(what)
    print(f"{done} faults, {len(soak.unrecovered)} unrecovered, {len(soak.leaked)} leaked (seed {options.seed})")
    return 1 if soak.unrecovered or soak.leaked else 0


def report(seconds: dict[str, list[float]]) -> None:
    """A table by fault: how often, and the median of the seconds to the next right result."""
    for name, took in sorted(seconds.items(), key=lambda item: -statistics.median(item[1])):
        print(f"{len(took):4} × {statistics.median(took):5.1f} s  {name}")


if __name__ == "__main__":
    sys.exit(main())
