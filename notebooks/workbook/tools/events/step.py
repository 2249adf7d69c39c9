"""Simulate a training step on very many ranks: they compute and all-reduce the gradient; tell where the time goes.

Imports neither torch nor a cluster.

Every all-reduce here is one discrete-event run (`engine`), or, where no two ranks share a link of a ring, the longest
path that such a run comes to (`chain`). Two things are collapsed, both exactly:

- Rails whose ranks begin at the same moments, and whose links no other ranks use, do the same: one of them is run.
- The rings within the hosts, and rings through hosts in a row, are taken as longest paths.

A hierarchical all-reduce has no barrier but one: the ranks of a host begin to send to other hosts together, once its
reduce-scatter has ended on all of them, as where a switch adds up what all its GPUs have brought.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labkit.floor.errors import LabError
from workbook.tools.events import chain, engine
from workbook.tools.events.fabric import Fabric, Numbers
from workbook.tools.events.program import BUILDERS, Program

PARTS = ("computing", "waiting for the slowest", "latency", "bytes inside hosts", "bytes between hosts", "queues")
WAYS = (*BUILDERS, *(f"hierarchical, {name}" for name in BUILDERS))


@dataclass(frozen=True)
class Run:
    """What took `seconds`: `parts` are seconds by what they went into, and add up to all of them."""

    way: str
    seconds: float
    parts: dict[str, float]

    @property
    def computing(self) -> float:
        """The part of the time in which the average rank computes what is kept."""
        return self.parts["computing"] / self.seconds

    def drawn(self, between: tuple[str, str] | None = None) -> Any:
        """Return what `labkit.draw` shows."""
        return self.drawn_beside({self.way: self})

    @staticmethod
    def drawn_beside(runs: Mapping[str, Any]) -> Any:
        """Return what `labkit.draw` shows of several."""
        from workbook.tools.events.show import Spent  # matplotlib

        return Spent(runs)


@dataclass(frozen=True)
class Step(Run):
    """A training step of n ranks: `parts` are those of the last rank's chain of causes."""

    n: int
    finish: Numbers = field(repr=False)
    events: int  # messages that were run one by one


@dataclass(frozen=True)
class _Leg:
    """A part of the collective: when each rank has ended it, and the chain back from any of them."""

    finish: Numbers
    back: Callable[[int], tuple[int, dict[str, float]]]  # rank → rank at which the chain begins, seconds by part
    events: int = 0


def all_reduce(way: str, fabric: Fabric, n: int, nbytes: float, ready: Numbers | None = None) -> Step:
    """Simulate an all-reduce of S bytes on n ranks, rank r beginning at `ready[r]` seconds (default: all at 0).

    >>> from workbook.tools.events import H100S
    >>> step = all_reduce("hierarchical, ring", H100S, 100_000, 1e9)
    >>> f"{step.seconds * 1e3:.1f} ms, {step.parts['latency'] * 1e3:.1f} of them latency"
    '359.7 ms, 350.0 of them latency'

    Ways: "ring", "halving-doubling", "double tree", "Bruck", "PAT", and "hierarchical, …" with each of them between
    the hosts: a reduce-scatter round a ring in each host, an all-reduce of a part on each rail, an all-gather round a
    ring in each host. A flat ring is one for each NIC of a host, with an equal part of S and of NVLink; it enters and
    leaves each host by that NIC. The mean of `ready` counts as computing, the rest up to where the longest chain begins
    as waiting for the slowest.
    """
    if way not in WAYS:
        raise LabError(f"{way!r} is not an all-reduce here. Choose one of: {', '.join(WAYS)}.")
    hosts = fabric.hosts(n)
    begins = np.zeros(n) if ready is None else np.asarray(ready, float)
    if begins.shape != (n,):
        raise LabError(f"ready has shape {begins.shape}. Give one moment for each of the {n} ranks.")
    if way == "ring":
        legs = [_flat_ring(fabric, n, hosts, nbytes, begins)]
    elif not way.startswith("hierarchical"):
        legs = [_engine(BUILDERS[way](n), fabric, n, begins, nbytes)]
    else:
        legs = _hierarchical(way.removeprefix("hierarchical, "), fabric, n, hosts, nbytes, begins)
    finish = legs[-1].finish
    at, parts = int(finish.argmax()), dict.fromkeys(PARTS, 0.0)
    for leg in reversed(legs):
        at, spent = leg.back(at)
        for part, seconds in spent.items():
            parts[part] += seconds
    parts["computing"] = min(float(begins.mean()), float(begins[at]))
    parts["waiting for the slowest"] = float(begins[at]) - parts["computing"]
    return Step(way, float(finish.max()), parts, n, finish, sum(leg.events for leg in legs))


def _hierarchical(between: str, fabric: Fabric, n: int, hosts: int, nbytes: float, ready: Numbers) -> list[_Leg]:
    g = fabric.gpus
    first, free = _inside(fabric, ready.reshape(hosts, g), np.zeros((hosts, g)), nbytes / g)
    part, together = nbytes / g, _together(first.finish.reshape(hosts, g))
    ranks = np.arange(n)
    if between == "ring" and (hosts == 1 or _unshared(fabric.paths(ranks, (ranks + g) % n, n).links)):
        middle = _rail_rings(fabric, hosts, part, together.finish)
    else:
        middle = _engine(BUILDERS[between](hosts), fabric, n, together.finish, part, copies=g)
    last, _ = _inside(fabric, middle.finish.reshape(hosts, g), free, nbytes / g)
    return [first, together, middle, last]


def _inside(fabric: Fabric, ready: Numbers, free: Numbers, chunk: float) -> tuple[_Leg, Numbers]:
    """Run a ring's reduce-scatter or all-gather in each host; return also when each rank's link is free again."""
    g = fabric.gpus
    rounds, takes = g - 1, chunk / fabric.nvlink
    found, free_again = chain.small_rings(ready, free, fabric.near, takes, rounds)

    def back(rank: int) -> tuple[int, dict[str, float]]:
        host, place = divmod(rank, g)
        if not (hops := int(found.hops[host, place])):
            return rank, {}
        source = (place - hops) % g
        latency, moving = hops * fabric.near, rounds * takes
        end = float(found.finish[host, place])
        held = end - float(ready[host, source]) - latency - moving  # by what the link still had to send
        queued = held if held > 1e-12 * end else 0.0
        return host * g + source, {"latency": latency, "bytes inside hosts": moving, "queues": queued}

    return _Leg(found.finish.ravel(), back), free_again


def _together(ended: Numbers) -> _Leg:
    """Let the ranks of a host, a row of `ended`, go on when the last of them has ended."""
    g = ended.shape[1]

    def back(rank: int) -> tuple[int, dict[str, float]]:
        host = rank // g
        return (rank if ended[host].max() == ended[host, rank % g] else host * g + int(ended[host].argmax())), {}

    return _Leg(np.repeat(ended.max(axis=1), g), back)


def _unshared(links: Numbers) -> bool:
    """Tell whether no two messages share one of these links."""
    used = links[links >= 0]
    return len(np.unique(used)) == len(used)


def _rail_rings(fabric: Fabric, hosts: int, part: float, ready: Numbers) -> _Leg:
    rounds, takes = 2 * (hosts - 1), part / hosts / fabric.nic
    rails = ready.reshape(hosts, fabric.gpus)
    found = [chain.ring(rails[:, i], np.array([fabric.far]), np.array([takes]), rounds) for i in range(fabric.gpus)]
    finish = np.stack([f.finish for f in found], axis=1)

    def back(rank: int) -> tuple[int, dict[str, float]]:
        host, place = divmod(rank, fabric.gpus)
        hops = int(found[place].hops[host])
        origin = (host - hops) % hosts * fabric.gpus + place
        return origin, {"latency": hops * fabric.far, "bytes between hosts": rounds * takes} if hops else {}

    return _Leg(finish.ravel(), back)


def _engine(program: Program, fabric: Fabric, n: int, ready: Numbers, nbytes: float, copies: int = 1) -> _Leg:
    """Run the event loop, for one rail where all of them are alike."""
    rails = ready.reshape(-1, copies)
    alike = copies > 1 and fabric.nics == fabric.gpus and bool((rails == rails[:, :1]).all())
    where = np.arange(n) if not alike else np.arange(0, n, copies)
    run = 1 if alike else copies
    played = engine.play(program, fabric, where, n, rails[:, 0] if alike else ready, nbytes, run)

    def back(rank: int) -> tuple[int, dict[str, float]]:
        at = played.chain(rank // copies if alike else rank)
        origin = int(where[at.origin]) + (rank % copies if alike else 0)
        return origin, dict(zip(PARTS[2:], (at.latency, at.inside, at.across, at.queued), strict=True))

    return _Leg(np.repeat(played.finish, copies) if alike else played.finish, back, played.messages)


def _flat_ring(fabric: Fabric, n: int, hosts: int, nbytes: float, ready: Numbers) -> _Leg:
    """Run a ring for each NIC; every second host is passed backwards, so that a ring stays on a rail between hosts."""
    g, many = fabric.gpus, fabric.nics if hosts > 1 else 1
    host, place = np.divmod(np.arange(n), g)
    orders = [host * g + (c * g // many + np.where(host % 2, g - 1 - place, place)) % g for c in range(many)]
    crossing = [np.stack([order, np.roll(order, -1)])[:, g - 1 :: g] for order in orders] if hosts > 1 else []
    links = np.concatenate([fabric.paths(src, dst, n).links.ravel() for src, dst in crossing] or [np.empty(0, int)])
    if not _unshared(links):
        raise LabError(
            f"On this fabric the rings through {n:,} ranks share links, and so many messages cannot be run one by one. "
            "Take a hierarchical all-reduce, or a fabric without oversubscription, with its hosts in order."
        )
    latency, takes = np.full(g, fabric.near), np.full(g, nbytes / n / fabric.nvlink)
    if hosts > 1:
        latency[-1], takes[-1] = fabric.far, nbytes / many / n / fabric.nic
    rounds = 2 * (n - 1)
    found = [chain.ring(ready[order], latency, takes, rounds) for order in orders]
    finish = np.full(n, -np.inf)
    for order, one in zip(orders, found, strict=True):
        finish[order] = np.maximum(finish[order], one.finish)

    def back(rank: int) -> tuple[int, dict[str, float]]:
        places = [int(np.flatnonzero(order == rank)[0]) for order in orders]
        c = max(range(many), key=lambda c: float(found[c].finish[places[c]]))
        hops = int(found[c].hops[places[c]])
        edges = (places[c] - hops + np.arange(hops)) % g
        cross = np.array([hosts > 1]) & (edges == g - 1)
        spent = {
            "latency": float(latency[edges].sum()),
            "bytes inside hosts": float(takes[edges[~cross]].sum()),
            "bytes between hosts": float(takes[edges[cross]].sum()),
        }
        if hops:
            slowest = edges[takes[edges].argmax()]
            kind = "bytes between hosts" if hosts > 1 and slowest == g - 1 else "bytes inside hosts"
            spent[kind] += (rounds - hops) * float(takes[slowest])
        return int(orders[c][(places[c] - hops) % n]), spent

    return _Leg(finish, back)
