"""Describe a fabric: hosts of GPUs, NICs, leaf switches and the links above them, each link with its own number.

Imports neither torch nor a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from labkit.floor.errors import LabError

Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Fabric:
    """Hosts of `gpus` ranks each; seconds, bytes and bytes per second.

    >>> H100S.but(over=4).uplinks
    8

    Args:
        gpus: ranks of a host; rank = host · gpus + place.
        near, nvlink: the latency of a message inside a host, and the rate of a rank's link there, each way.
        far, nic: the latency of a message between hosts, and the rate of a NIC, each way.
        nics: NICs of a host; with fewer than ranks, neighbours share one.
        leaf: hosts below a leaf switch.
        over: oversubscription: so many NICs below a leaf switch for each link from it to the spine.
        scattered: the seed of a random placement of the hosts; else the hosts stand in the order of their ranks.

    The fabric is rail-optimised: NIC i of each host goes to a leaf switch of its own. A message inside a host takes
    the sender's NVLink out and the receiver's in. One between hosts takes a NIC out and a NIC in, and, where their leaf
    switches differ, one link up to a spine switch and one down. Which spine switch it is, the destination's port
    decides, which keeps neighbours apart. All links of a path have the same rate. The spine switches have as many ports
    as it takes.
    """

    gpus: int = 8
    near: float = 3.4e-6
    nvlink: float = 370.8e9
    far: float = 14e-6
    nic: float = 50e9
    nics: int = 8
    leaf: int = 32
    over: float = 1.0
    scattered: int | None = None

    def __post_init__(self) -> None:
        if min(self.near, self.far, self.nvlink, self.nic) <= 0:
            raise LabError("Latencies and rates of a fabric are above zero. Give seconds and bytes per second.")
        if min(self.gpus, self.nics, self.leaf) < 1 or self.gpus % self.nics:
            raise LabError(f"{self.nics} NICs cannot be dealt out to {self.gpus} ranks of a host. Choose a divisor.")
        if self.over < 1:
            raise LabError(f"over={self.over:g} is not an oversubscription. Choose 1 (none) or more.")

    def but(self, **changes: Any) -> Fabric:
        """Return the same fabric with some numbers changed."""
        try:
            return replace(self, **changes)
        except TypeError:
            raise LabError(
                f"A fabric has no such number. Change one of: {', '.join(self.__dataclass_fields__)}."
            ) from None

    @property
    def uplinks(self) -> int:
        """Links from one leaf switch to the spine."""
        return max(1, round(self.leaf / self.over))

    def hosts(self, n: int) -> int:
        """Return the number of hosts of n ranks; `LabError` where the last one would not be full."""
        if n < 1 or n % self.gpus:
            raise LabError(f"{n} ranks do not fill hosts of {self.gpus}. Choose a multiple of {self.gpus}.")
        return n // self.gpus

    def paths(self, src: Numbers, dst: Numbers, n: int) -> Paths:
        """Find the way of each message from rank src[i] to rank dst[i], of n ranks."""
        hosts, ups = self.hosts(n), self.uplinks
        slots = -(-hosts // self.leaf) * self.leaf
        leaves = slots // self.leaf * self.nics
        begins = np.cumsum([0, n, n, slots * self.nics, leaves * ups, leaves * ups, slots * self.nics])
        inside = src // self.gpus == dst // self.gpus
        (out, leaf, _), (into, other, port) = self._port(src, hosts), self._port(dst, hosts)
        spine = port % ups
        across = ~inside & (leaf != other)
        links = np.stack(
            [
                np.where(inside, begins[0] + src, begins[2] + out),
                np.where(across, begins[3] + leaf * ups + spine, -1),
                np.where(across, begins[4] + other * ups + spine, -1),
                np.where(inside, begins[1] + dst, begins[5] + into),
            ]
        )
        return Paths(
            links,
            np.where(inside, self.near, self.far),
            np.where(inside, self.nvlink, self.nic),
            inside,
            int(begins[6]),
        )

    def _port(self, rank: Numbers, hosts: int) -> tuple[Numbers, Numbers, Numbers]:
        """Return the NIC, the leaf switch and the port on it of each rank."""
        host, nic = rank // self.gpus, rank % self.gpus * self.nics // self.gpus
        if self.scattered is not None:
            host = np.random.default_rng(self.scattered).permutation(hosts)[host]
        pod, place = host // self.leaf, host % self.leaf
        return host * self.nics + nic, pod * self.nics + nic, place


@dataclass(frozen=True)
class Paths:
    """For each message: its links, `links[stage]` with -1 where it takes none, its latency and its rate.

    The stages are: out of the sender, up to the spine, down from it, into the receiver. `count` is how many numbers of
    links the fabric has.
    """

    links: Numbers
    latency: Numbers
    rate: Numbers
    inside: Numbers
    count: int


H100S = Fabric()  # `costs.H100`: 8 GPUs and 8 NICs of 400 Gb/s per host
