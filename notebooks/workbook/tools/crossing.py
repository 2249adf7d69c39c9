"""Say what crosses between hosts: counted on the wire, in units of S, and computed for many hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from labkit.floor.words import count

if TYPE_CHECKING:
    from labkit.lab import Lab
    from labkit.show.wire import Wire


def counted_by(lab: Lab, hosts: Sequence[Sequence[int]], nbytes: int) -> Callable[[str], Wire]:
    """Return a function that runs code on all ranks, prints what leaves each host, and returns the bytes counted.

    Given "dist.all_reduce(x)", it prints "dist.all_reduce(x): 1.50 S out of each host, busiest rank: 1.50 S".
    """

    def crosses(code: str) -> Wire:
        wire = lab.wire(code)
        print(f"{code}: {told(wire, hosts, nbytes)}")
        return wire

    return crosses


def told(wire: Wire, hosts: Sequence[Sequence[int]], nbytes: int) -> str:
    """Say how many bytes leave each host, and how many the busiest rank sends, in units of `nbytes`."""
    across = wire.across(hosts)
    if across is None or wire.sent is None:
        return "not counted"
    out = [f"{sum(row) / nbytes:.2f} S" for row in across]
    hosts_send = f"{out[0]} out of each host" if len(set(out)) == 1 else f"{' and '.join(out)} out of the hosts"
    return f"{hosts_send}, busiest rank: {max(wire.sent) / nbytes:.2f} S"


def ring_beside_hierarchical(hosts: Iterable[int], each: int) -> None:
    """Print what a ring by hosts and a hierarchical all-reduce send out of each host, and their steps: by formulas."""
    print(f"computed, {each} ranks per host   one ring by hosts       hierarchical")
    for h in hosts:
        n = each * h
        ring, both = (f"{2 * (k - 1) / k:.3f} S" for k in (n, h))
        steps = f"{2 * (n - 1):6} steps", f"{2 * (h - 1 + each - 1):6} steps"
        print(f"{count(h, 'host'):>10} {ring:>20}{steps[0]} {both:>10}{steps[1]}")
