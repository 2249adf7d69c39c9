"""A server as a value: GPUs and network cards (NICs), the PCIe switches and CPUs above them, NVLink, and paths.

Knows no file format.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.floor.errors import LabError
from labkit.floor.words import count, listed

LINKS = {"NV": "NVLink", "XGMI": "xGMI link"}  # AMD's GPUs have xGMI, as near as NVLink
# From near to far: nvidia-smi's words, and those that only NCCL has (src/graph/topo.h). NV# counts NVLinks.
MEANS = {
    "X": "the same device",
    "NV": "NVLink",
    "C2C": "NVLink-C2C, from a GPU to its CPU",
    "PIX": "at most one PCIe switch",
    "PXB": "several PCIe switches, and no CPU",
    "P2C": "PCIe to the CPU, and NVLink-C2C from there to its GPU",
    "PXN": "NVLink to another GPU, and PCIe from there",
    "PHB": "through the CPU's PCIe host bridge",
    "NODE": "through one CPU, from one of its PCIe host bridges to another",
    "SYS": "over the link between two CPUs",
    "NET": "over the network, from one host to another",
}


@dataclass(frozen=True)
class Topology:
    """One server, or the servers of one file: then each name ends with its host, "GPU0@host1".

    Args:
        name: what it is.
        gpus, nics: their names, such as "GPU0" and "NIC0", in the order of their numbers.
        ways: for each device what is above it, nearest first: its PCIe switches ("" for those without a name), and
            always last its CPU ("" where it is unknown).
        told: paths that were read, by both names. Without any, paths follow from `ways`.
        nvlinks: for each GPU how many links lead to which GPU, or to "NVSwitch".
        cards: a NIC's name on its own machine, "mlx5_0", where it is known.
        source: where it was read.
        link: what the GPUs' links are called, "NV" or "XGMI".
        c2c: the GPUs that NVLink-C2C joins to their CPU.
        denied: devices that cannot take part in GPU Direct RDMA, as far as the file says so.
        notes: what is uncertain, or was left out.

    >>> from workbook.tools import topology
    >>> p4d = topology.find("p4d")
    >>> p4d.path("GPU0", "NIC0"), p4d.path("GPU0", "NIC1"), p4d.path("GPU0", "NIC2")
    ('PIX', 'PHB', 'SYS')
    >>> p4d.nearest("GPU5")
    ('NIC2',)
    """

    name: str
    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    ways: Mapping[str, tuple[str, ...]]
    told: Mapping[tuple[str, str], str] = field(default_factory=dict)
    nvlinks: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    cards: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    link: str = "NV"
    c2c: frozenset[str] = frozenset()
    denied: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    def path(self, a: str, b: str) -> str:
        """Return the path between two devices in the words of `nvidia-smi topo -m` or NCCL: "NV12", "PIX", …"""
        a, b = self._known(a), self._known(b)
        if a == b:
            return "X"
        if (a, b) in self.told:
            return self.told[a, b]
        if links := self._links(a, b):
            return f"{self.link}{links}"
        if self.told:
            raise LabError(f"The text has no row of {a} or {b}, so it does not say their path. Paste the whole matrix.")
        path = by_pcie(self.ways[a], self.ways[b])
        return "P2C" if path == "PHB" and len({a, b} & self.c2c) == 1 else path

    def nearest(self, gpu: str) -> tuple[str, ...]:
        """Return the NICs with the best path to a GPU: its own, where it has one; none in a server without NICs."""
        paths = {nic: level(self.path(gpu, nic)) for nic in self.nics}
        return tuple(nic for nic, far in paths.items() if far == min(paths.values()))

    def direct(self, gpu: str) -> bool:
        """Tell whether NCCL lets a NIC read this GPU's memory (GPU Direct RDMA): at P2C or nearer (paths.cc)."""
        able = [nic for nic in self.nics if not {gpu, nic} & self.denied]
        return any(level(self.path(gpu, nic)) <= level("P2C") for nic in able)

    @property
    def cpus(self) -> tuple[str, ...]:
        """The CPUs, host by host, in the order of their numbers."""
        found = {way[-1] for way in self.ways.values()} - {""}
        return tuple(sorted(found, key=lambda cpu: (len(host(cpu)), host(cpu), len(cpu), cpu)))

    @property
    def switched(self) -> bool:
        """Whether NVLinks lead to NVSwitches, or all pairs of GPUs have equally many, which takes switches."""
        if self.nvlinks:
            return any(target not in self.gpus for links in self.nvlinks.values() for target in links)
        pairs = {self.path(a, b) for a in self.gpus for b in self.gpus if a != b}
        return len(self.gpus) > 4 and len(pairs) == 1 and next(iter(pairs)).startswith("NV")

    def drawn(self, between: tuple[str, str] | None = None) -> Any:
        """Return what `labkit.draw` shows."""
        from workbook.tools.topology.show import Server  # matplotlib

        return Server(self, between)

    def __repr__(self) -> str:
        all_of_it = ((self.gpus, "GPU"), (self.nics, "NIC"), (self.cpus, "CPU"))
        counts = [count(len(names), what) for names, what in all_of_it]
        hosts = {host(device) for device in self.ways}
        counts[:0] = [count(len(hosts), "host")] * (len(hosts) > 1)
        lines = [f"{self.name}: {', '.join(counts)}"]
        for cpu in (*self.cpus, ""):
            if told := [_tree(top, by_switch) for top, by_switch in self.below(cpu).items()]:
                lines.append(f"{cpu or 'elsewhere'}: {'  '.join(told)}")
        text = "".join(lines[1:])
        means = ["[ ]: under one PCIe switch"] * ("[" in text) + ["( ): under several that meet below the CPU"] * (
            "(" in text
        )
        return "\n".join([*lines, *["; ".join(means)] * bool(means), *self.notes])

    def below(self, cpu: str) -> dict[str, dict[str, list[str]]]:
        """Return the devices below a CPU, by their uppermost PCIe switch and in it by their nearest one; "" for none.

        The CPU "" has the devices whose CPU is unknown.
        """
        under: dict[str, dict[str, list[str]]] = {}
        for device in (*self.gpus, *self.nics):
            *switches, home = self.ways[device]
            if home == cpu:
                top, near = (switches[-1], switches[0]) if switches else ("", "")
                under.setdefault(top, {}).setdefault(near, []).append(device)
        return under

    def _links(self, a: str, b: str) -> int:
        """Count the NVLinks between two GPUs, straight or over switches that both have links to."""
        mine, theirs = self.nvlinks.get(a, {}), self.nvlinks.get(b, {})
        over = [t for t in mine if t not in self.gpus and t in theirs]
        return mine.get(b, 0) or sum(min(mine[t], theirs[t]) for t in over)

    def _known(self, device: str) -> str:
        if device not in (*self.gpus, *self.nics):
            raise LabError(f"{self.name} has no {device!r}. It has {listed([*self.gpus, *self.nics])}.")
        return device


def level(path: str) -> int:
    """Return how far a path is, by its word: 0 is nearest. More NVLinks are not nearer, and xGMI is as near.

    >>> level("NV18") < level("PIX") < level("PXB") < level("PHB") < level("NODE") < level("SYS")
    True
    """
    word = re.sub(r"(NV|XGMI)\d+", "NV", path)
    if word not in MEANS:
        raise LabError(f"{path!r} is not a path. There are {listed([*MEANS])}, NV with the number of links.")
    return [*MEANS].index(word)


def by_pcie(a: tuple[str, ...], b: tuple[str, ...]) -> str:
    """Return the path over PCIe, from what is above each device: its switches, nearest first, and last its CPU.

    As NCCL's ncclTopoSetPaths does it (src/graph/paths.cc). It knows no host bridges, so what nvidia-smi calls NODE
    is PHB here.

    >>> by_pcie(("s1", "cpu0"), ("s1", "cpu0")), by_pcie(("s1", "s0", "cpu0"), ("s2", "s0", "cpu0"))
    ('PIX', 'PXB')
    >>> by_pcie(("s1", "cpu0"), ("s2", "cpu0")), by_pcie(("s1", "cpu0"), ("cpu1",))
    ('PHB', 'SYS')
    """
    if a[-1] != b[-1]:
        return "SYS" if host(a[-1]) == host(b[-1]) else "NET"
    shared = [switch for switch in a[:-1] if switch and switch in b[:-1]]
    if not shared:
        return "PHB"
    return "PIX" if a[0] == b[0] == shared[0] else "PXB"


def host(device: str) -> str:
    """Return the host of a device or CPU; "" where there is only one host.

    >>> host("GPU0@host1"), host("GPU0")
    ('host1', '')
    """
    return device.partition("@")[2]


def _tree(top: str, by_switch: Mapping[str, Sequence[str]]) -> str:
    """Write the devices below one upper switch as text."""
    told = [
        f"[{' '.join(d)}]" if near and (near != top or len(by_switch) == 1) else " ".join(d)
        for near, d in by_switch.items()
    ]
    return f"({' '.join(told)})" if top and (len(by_switch) > 1 or "" in by_switch) else " ".join(told)
