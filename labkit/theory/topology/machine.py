"""What is near to what in one server: GPUs, network cards (NICs), the PCIe switches and CPUs above them, NVLink.

A value, whatever it was read from. Knows no file format.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from labkit.errors import LabError
from labkit.words import count, listed

# From near to far: nvidia-smi's words, and those that only NCCL has (src/graph/topo.h). NV# counts NVLinks.
PATHS = ("X", "NV", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "NODE", "SYS")
MEANS = {
    "X": "the same device",
    "NV": "NVLink",
    "PIX": "at most one PCIe switch",
    "PXB": "several PCIe switches, and no CPU",
    "PHB": "through the CPU's PCIe host bridge",
    "NODE": "through one CPU, from one of its PCIe host bridges to another",
    "SYS": "over the link between two CPUs",
}


@dataclass(frozen=True)
class Topology:
    """One server.

    Args:
        name: what it is.
        gpus, nics: their names, such as "GPU0" and "NIC0", in the order of their numbers.
        ways: for each device what is above it, nearest first: its PCIe switches, then its CPU.
        told: paths that were read, by both names; what is not told follows from `ways`.
        nvlinks: for each GPU how many NVLinks lead to which GPU or NVSwitch.
        cards: a NIC's name on its own machine, "mlx5_0", where it is known.
        source: where it was read.

    >>> from labkit.theory import topology
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

    def path(self, a: str, b: str) -> str:
        """The path between two devices, as `nvidia-smi topo -m` would say it: "NV12", "PIX", … Raises `LabError`."""
        a, b = self._known(a), self._known(b)
        if a == b:
            return "X"
        if (a, b) in self.told:
            return self.told[a, b]
        if links := self._links(a, b):
            return f"NV{links}"
        return by_pcie(self.ways[a], self.ways[b])

    def nearest(self, gpu: str) -> tuple[str, ...]:
        """The NICs with the best path to a GPU: its own, where it has one; none in a server without NICs."""
        paths = {nic: level(self.path(gpu, nic)) for nic in self.nics}
        return tuple(nic for nic, far in paths.items() if far == min(paths.values()))

    def direct(self, gpu: str) -> bool:
        """Whether NCCL lets a NIC read this GPU's memory (GPU Direct RDMA) by its default: PXB or nearer (paths.cc)."""
        return any(level(self.path(gpu, nic)) <= level("PXB") for nic in self.nics)

    @property
    def cpus(self) -> tuple[str, ...]:
        """The CPUs, in the order of their numbers."""
        found = {way[-1] for way in self.ways.values() if way}
        return tuple(sorted(found, key=lambda cpu: (len(cpu), cpu)))

    @property
    def switched(self) -> bool:
        """Whether NVLinks lead to NVSwitches, or all pairs of GPUs have equally many, which takes switches."""
        if self.nvlinks:
            return any(target not in self.gpus for links in self.nvlinks.values() for target in links)
        pairs = {self.path(a, b) for a in self.gpus for b in self.gpus if a != b}
        return len(self.gpus) > 4 and len(pairs) == 1 and next(iter(pairs)).startswith("NV")

    def __repr__(self) -> str:
        all_of_it = ((self.gpus, "GPU"), (self.nics, "NIC"), (self.cpus, "CPU"))
        lines = [f"{self.name}: {', '.join(count(len(names), what) for names, what in all_of_it)}"]
        for cpu in (*self.cpus, ""):
            below = self.below(cpu)
            told = [f"[{' '.join(devices)}]" if switch else " ".join(devices) for switch, devices in below.items()]
            if told:
                lines.append(f"{cpu or 'elsewhere'}: {'  '.join(told)}")
        return "\n".join([*lines, *["[ ]: under one PCIe switch"] * any("[" in line for line in lines)])

    def below(self, cpu: str) -> dict[str, list[str]]:
        """The devices below a CPU by their nearest PCIe switch, "" for none; of the CPU "", those nobody knows of."""
        under: dict[str, list[str]] = {}
        for device in (*self.gpus, *self.nics):
            way = self.ways.get(device, ())
            if (way[-1] if way else "") == cpu:
                under.setdefault(way[0] if len(way) > 1 else "", []).append(device)
        return under

    def _links(self, a: str, b: str) -> int:
        """NVLinks between two GPUs, straight or over switches that both have links to."""
        mine, theirs = self.nvlinks.get(a, {}), self.nvlinks.get(b, {})
        over = [t for t in mine if t not in self.gpus and t in theirs]
        return mine.get(b, 0) or sum(min(mine[t], theirs[t]) for t in over)

    def _known(self, device: str) -> str:
        if device not in (*self.gpus, *self.nics):
            raise LabError(f"{self.name} has no {device!r}. It has {listed([*self.gpus, *self.nics])}.")
        return device


def level(path: str) -> int:
    """How far a path is, by its word: 0 is nearest. More NVLinks are not nearer.

    >>> level("NV18") < level("PIX") < level("PXB") < level("PHB") < level("NODE") < level("SYS")
    True
    """
    word = re.sub(r"\d+$", "", path) if path.startswith("NV") else path
    if word not in PATHS:
        raise LabError(f"{path!r} is no path. There are {listed(PATHS)}, NV with the number of links.")
    return PATHS.index(word)


def by_pcie(a: tuple[str, ...], b: tuple[str, ...]) -> str:
    """The path over PCIe, from what is above each device: its switches, nearest first, and last its CPU.

    As NCCL's ncclTopoSetPaths does it (src/graph/paths.cc). It knows no host bridges, so what nvidia-smi calls NODE
    is PHB here.

    >>> by_pcie(("s1", "cpu0"), ("s1", "cpu0")), by_pcie(("s1", "s0", "cpu0"), ("s2", "s0", "cpu0"))
    ('PIX', 'PXB')
    >>> by_pcie(("s1", "cpu0"), ("s2", "cpu0")), by_pcie(("s1", "cpu0"), ("cpu1",))
    ('PHB', 'SYS')
    """
    if a[-1] != b[-1]:
        return "SYS"
    shared = [switch for switch in a[:-1] if switch in b[:-1]]
    if not shared:
        return "PHB"
    return "PIX" if a[0] == b[0] == shared[0] else "PXB"
