"""The command line that every benchmark has: how many rounds, and whether the table is kept."""

from __future__ import annotations

import argparse


def parser(description: str | None, rounds: int, what: str) -> argparse.ArgumentParser:
    """A parser with `--rounds`, by default this many, and `--write`; `what` says what happens in a round."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--rounds", type=count, default=rounds, help=f"{what} (default {rounds})")
    made.add_argument("--write", action="store_true", help="put the table into benchmarks/RESULTS.md")
    return made


def count(text: str) -> int:
    """A whole number from 1 on."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} measures nothing: give 1 or more")
    return number


def idle(parser: argparse.ArgumentParser, seconds: float, when: str) -> None:
    """Add `--idle`: for how long nobody does anything, by default this long."""
    parser.add_argument(
        "--idle", type=_duration, default=seconds, help=f"seconds of idling in {when} (default {seconds:g})"
    )


def _duration(text: str) -> float:
    seconds = float(text)
    if seconds < 0:
        raise argparse.ArgumentTypeError(f"{seconds:g} seconds: give 0 or more")
    return seconds
